//! An event that many threads may raise and for which some wait.
//!
//! Invariant: no event is lost. A waiting thread has read the count before looking for work; an
//! event since then ends the wait immediately. Raising one takes no lock while no thread waits, so
//! it is cheap everywhere.

use parking_lot::{Condvar, Mutex};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// See the module.
#[derive(Debug, Default)]
pub struct Event {
    count: AtomicU64,
    /// Threads that wait or are about to: they increment this before they load `count`; a raiser
    /// increments `count` before it loads this. All four operations are sequentially consistent, so
    /// one of the two sees the other.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Event {
    /// How often it was raised.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Raises it: all waiting threads go on.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock();
            self.signal.notify_all();
        }
    }

    /// Waits until it was raised since `seen`, at most for `wait`, and takes note of how often it
    /// was.
    pub fn wait(&self, seen: &mut u64, wait: Duration) {
        self.wait_beyond(*seen, wait);
        *seen = self.count();
    }

    /// The result of `look`, now or after such a wait.
    pub fn wait_unless<T>(&self, seen: &mut u64, wait: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
        look().or_else(|| {
            self.wait(seen, wait);
            look()
        })
    }

    /// Waits until it was raised more than `seen` times, at most for `wait`.
    pub fn wait_beyond(&self, seen: u64, wait: Duration) {
        let until = Instant::now() + wait;
        let mut guard = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.count() == seen && !self.signal.wait_until(&mut guard, until).timed_out() {}
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{sync::Arc, thread};

    /// So long that a wait shows, however busy the machine is.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_was_raised_before_the_wait_ends_it_at_once() {
        let event = Event::default();
        let seen = event.count();
        event.raise();
        let start = Instant::now();
        event.wait_beyond(seen, LONG);
        event.wait_beyond(event.count(), Duration::from_millis(5));
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn no_event_is_lost_between_looking_and_waiting() {
        let (there, back) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let start = Instant::now();
        let other = {
            let (there, back) = (Arc::clone(&there), Arc::clone(&back));
            thread::spawn(move || {
                for turn in 0..5_000 {
                    there.wait_beyond(turn, LONG);
                    back.raise();
                }
            })
        };
        for turn in 0..5_000 {
            there.raise();
            back.wait_beyond(turn, LONG);
        }
        other.join().unwrap();
        assert!(start.elapsed() < LONG / 2);
    }
}
