//! Where threads wait for a round of the group commit.
//!
//! All of a round's waiters are woken by one system call and go on without taking a lock in turn:
//! with many writers on few cores their waking is what a round costs. (parking_lot's condition
//! variable hands its mutex from one to the next, with a system call each; the standard library's
//! wakes all at once.)
//!
//! Invariant: a wake-up is never lost. A thread that waits took a ticket before it let go of the
//! lock under which it saw that it must wait; every wake-up makes the tickets given before it
//! worthless.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Counts wake-ups; changed with `lock` held.
    opened: AtomicU64,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Gate {
    /// What [`Gate::wait`] needs.
    pub(super) fn ticket(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Returns after the next wake-up since `ticket` that meets this thread, at once if there was
    /// any. The caller looks again at what it waits for.
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
