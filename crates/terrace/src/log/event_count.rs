//! Where threads wait for a round of the group commit.
//!
//! All waiters of a round are woken by one system call, and continue without taking a lock in turn:
//! with many writers on few cores, waking them is the main cost of a round. (parking_lot's
//! condition variable hands its mutex from one to the next, with a system call each; the standard
//! library's wakes all at once.)
//!
//! Invariant: no wake-up is lost. A thread takes a ticket before it releases the lock under which
//! it decided to wait; every wake-up invalidates all earlier tickets.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Number of wake-ups; changed with `lock` held.
    opened: AtomicU64,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Gate {
    /// The argument of [`Gate::wait`].
    pub(super) fn ticket(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Returns after the next wake-up since `ticket` that includes this thread; immediately if
    /// there was one already. The caller must check its condition again.
    pub(super) fn wait(&self, ticket: u64) {
        let guard = self.guard();
        if self.ticket() == ticket {
            drop(self.signal.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Wakes all waiting threads.
    pub(super) fn wake_all(&self) {
        self.open();
        self.signal.notify_all();
    }

    /// Wakes one waiting thread, and every thread that is about to wait.
    pub(super) fn wake_one(&self) {
        self.open();
        self.signal.notify_one();
    }

    fn open(&self) {
        let _guard = self.guard();
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing panics with the lock held, and it protects no data.
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
