//! Where the threads of a store are started: one place, so that a test can refuse one and see when
//! each has ended.

use std::{
    io,
    thread::{Builder, JoinHandle},
};

/// Starts a thread.
///
/// # Errors
/// The operating system's: a process may have no more threads, or no memory for another.
pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(test)]
    let body = watch::watched(name, body)?;
    Builder::new().name(name.to_owned()).spawn(body)
}

#[cfg(test)]
pub mod watch {
    //! Refusing threads, and counting them, for the stores that one test opens.

    use parking_lot::Mutex;
    use std::{cell::RefCell, io, sync::Arc};

    type AtEnd = Arc<dyn Fn(&str) + Send + Sync>;

    thread_local! {
        static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    }

    /// What becomes of the threads that the present thread starts.
    #[derive(Clone)]
    pub struct Watch {
        /// The one that cannot be started.
        pub refused: Option<String>,
        /// Those that were.
        pub started: Arc<Mutex<Vec<String>>>,
        /// Called in each as it starts, by the thread that starts it.
        pub at_start: Arc<dyn Fn()>,
        /// Called in each as it ends.
        pub at_end: AtEnd,
    }

    /// Runs `action` with the threads that it starts being watched.
    pub fn watching<T>(watch: &Watch, action: impl FnOnce() -> T) -> T {
        WATCH.set(Some(watch.clone()));
        let outcome = action();
        WATCH.set(None);
        outcome
    }

    /// Calls `at_end` also if the thread panics.
    struct End(String, Option<AtEnd>);

    impl Drop for End {
        fn drop(&mut self) {
            if let Some(at_end) = &self.1 {
                at_end(&self.0);
            }
        }
    }

    pub(crate) fn watched(
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<impl FnOnce() + Send + 'static> {
        let watch = WATCH.with_borrow(Clone::clone);
        if let Some(watch) = &watch {
            (watch.at_start)();
            if watch.refused.as_deref() == Some(name) {
                return Err(io::Error::from(io::ErrorKind::WouldBlock));
            }
            watch.started.lock().push(name.to_owned());
        }
        let at_end = watch.map(|watch| watch.at_end);
        let end = End(name.to_owned(), at_end);
        Ok(move || {
            let _end = end;
            body();
        })
    }
}
