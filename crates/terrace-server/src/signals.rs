//! Ctrl-C and SIGTERM: the first one stops the running work properly, a second one ends the process
//! immediately. SIGHUP requests that files are read again, if there are any.

use crate::failure::{Code, Failure, Outcome};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
    low_level::pipe,
};
use std::{
    io,
    os::unix::net::UnixStream as Pipe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{net::UnixStream, sync::Notify};

/// Installs the handlers. The flag is set by the first signal.
///
/// # Errors
/// If the operating system refuses a handler.
pub fn install() -> Outcome<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the shutdown checks the flag before this signal sets it.
        flag::register_conditional_shutdown(signal, Code::Interrupted as i32, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::io("installing a signal handler", &error))?;
    }
    Ok(stop)
}

/// Received signals, in a runtime, without polling by a thread.
pub struct Received(UnixStream);

impl Received {
    /// Receives SIGHUP, which then no longer ends the process. Must be called within a runtime.
    ///
    /// # Errors
    /// If the operating system refuses the handler.
    pub fn hang_up() -> Outcome<Self> {
        Self::of(&[SIGHUP]).map_err(|error| Failure::io("installing a signal handler", &error))
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        let (ours, theirs) = Pipe::pair()?;
        ours.set_nonblocking(true)?;
        for signal in signals {
            pipe::register(*signal, theirs.try_clone()?)?;
        }
        Ok(Self(UnixStream::from_std(ours)?))
    }

    /// Resolves when one or more have come since.
    pub async fn next(&mut self) {
        // The other end is never closed. Any other result of the read ends the wait.
        while self.0.readable().await.is_ok() {
            match self.0.try_read(&mut [0; 64]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

/// The end of a server: a signal or a call begins it, and tasks of its runtime await it. Clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    told: Arc<Notify>,
    is_of_process: bool,
}

impl Stop {
    /// One that SIGINT and SIGTERM begin. Must be called within a runtime.
    ///
    /// # Errors
    /// If the operating system refuses a handler.
    pub fn by_signals() -> Outcome<Self> {
        let stop = Self {
            flag: install()?,
            told: Arc::default(),
            is_of_process: true,
        };
        let received = Received::of(&[SIGINT, SIGTERM]);
        let mut received = received.map_err(|error| Failure::io("installing a signal handler", &error))?;
        let passed_on = stop.clone();
        tokio::spawn(async move {
            // Handlers run in the order in which they were installed: the flag is set before the
            // notification.
            while !passed_on.flag.load(Ordering::Relaxed) {
                received.next().await;
            }
            passed_on.stop();
        });
        Ok(stop)
    }

    /// Requests to read files again. None if signals do not concern it.
    ///
    /// # Errors
    /// As [`Received::hang_up`].
    pub fn hang_up(&self) -> Outcome<Option<Received>> {
        self.is_of_process.then(Received::hang_up).transpose()
    }

    /// Set when it has begun.
    pub const fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// Begins it.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// Resolves once it has begun.
    pub async fn begun(self) {
        // It counts from here on, before it is awaited.
        let told = self.told.notified();
        if !self.flag.load(Ordering::SeqCst) {
            told.await;
        }
    }
}
