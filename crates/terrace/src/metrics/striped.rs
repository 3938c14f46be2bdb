//! Counters that many threads increment concurrently. The cache line of a single counter would move
//! between cores with every call; here each thread has one of several, and a read adds them up.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Number of counters; with more threads, some share one.
const LANES: usize = 8;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The lane of this thread.
fn own_lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
        }
        own.get()
    })
}

/// Two lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane<T>(T);

/// The same counters several times.
#[derive(Debug, Default)]
pub struct Striped<T>([Lane<T>; LANES]);

impl<T> Striped<T> {
    /// Those for this thread.
    pub fn own(&self) -> &T {
        &self.0[own_lane()].0
    }

    /// The total of one of the counters.
    pub fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let values = self.0.iter().map(|lane| counter(&lane.0).load(Ordering::Relaxed));
        values.fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_threads_count_adds_up() {
        let lanes = Striped::<[AtomicU64; 2]>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * LANES + 1 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        lanes.own()[0].fetch_add(1, Ordering::Relaxed);
                        lanes.own()[1].fetch_add(3, Ordering::Relaxed);
                    }
                });
            }
        });
        let threads = 2 * LANES as u64 + 1;
        assert_eq!(lanes.sum(|counters| &counters[0]), 1000 * threads);
        assert_eq!(lanes.sum(|counters| &counters[1]), 3000 * threads);
    }
}
