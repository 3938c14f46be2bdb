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
use tokio::net::UnixStream;

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

/// Shutdown of tasks in a runtime.
pub struct Stopping {
    stop: Arc<AtomicBool>,
    received: Received,
}

impl Stopping {
    /// Watches the flag that [`install`] returned. Must be called within a runtime.
    ///
    /// # Errors
    /// If the operating system refuses a handler.
    pub fn of(stop: &Arc<AtomicBool>) -> Outcome<Self> {
        let received = Received::of(&[SIGINT, SIGTERM]);
        Ok(Self {
            stop: Arc::clone(stop),
            received: received.map_err(|error| Failure::io("installing a signal handler", &error))?,
        })
    }

    /// Resolves once the flag is set.
    pub async fn begun(mut self) {
        // Handlers run in the order in which they were installed: the flag is set before the
        // notification.
        while !self.stop.load(Ordering::Relaxed) {
            self.received.next().await;
        }
    }
}
