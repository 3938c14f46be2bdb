//! Values in RAM that will be rewritten to the log: in key order for scans, or because they are
//! read often. Readers and scans enqueue them, a thread (`maintenance`) moves them.
//!
//! Invariants: the queue is bounded in bytes, and no caller waits for it. A value is in flight from
//! when it is enqueued until its move is applied, and is not enqueued a second time meanwhile. All
//! of this may be lost at any time: the value stays where it is.

use super::address::Address;
use bytes::Bytes;
use hashbrown::HashSet;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

/// Approximate RAM of a queued value in addition to its bytes.
const OVERHEAD_BYTES: u64 = 160;

/// A value to be moved.
#[derive(Debug, Clone)]
pub struct Moving {
    /// Its key,
    pub key: Bytes,
    /// and the hash of that.
    pub hash: u64,
    /// The version it has.
    pub version: u64,
    /// Attributes in stored form.
    pub attributes: Bytes,
    /// The value.
    pub value: Bytes,
    /// CRC-32C of the value.
    pub checksum: u32,
    /// Address of its record and generation of its segment, if known.
    pub place: Option<(Address, u64)>,
}

impl Moving {
    /// RAM that it takes, approximately.
    pub fn ram_bytes(&self) -> u64 {
        OVERHEAD_BYTES + (self.key.len() + self.attributes.len() + self.value.len()) as u64
    }
}

/// Result of [`MoveQueue::enqueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It was enqueued; the queue has so many bytes now.
    Waits(u64),
    /// There is no room.
    Full,
    /// It is in flight already.
    Already,
}

/// The queue.
#[derive(Debug)]
pub struct MoveQueue {
    bytes_max: u64,
    state: Mutex<State>,
    /// Bytes of RAM of queued values.
    bytes: AtomicU64,
    /// Number of values in flight, so that no thread takes the lock when there are none.
    under_way: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Moving>,
    /// Hashes of keys in flight.
    under_way: HashSet<u64>,
    /// Hashes of values committed with a seq.
    committed: VecDeque<(u64, Vec<u64>)>,
}

impl MoveQueue {
    /// An empty queue. At most `bytes_max` of RAM may be queued; with 0 nothing ever is.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            state: Mutex::default(),
            bytes: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
        }
    }

    /// Whether moves are enabled.
    pub const fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Bytes of RAM of queued values.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Enqueues a value to be moved.
    pub fn enqueue(&self, value: Moving) -> Enqueued {
        let ram_bytes = value.ram_bytes();
        self.change(|state| {
            if state.under_way.contains(&value.hash) {
                return Enqueued::Already;
            }
            let bytes = self.bytes() + ram_bytes;
            if bytes > self.bytes_max {
                return Enqueued::Full;
            }
            state.under_way.insert(value.hash);
            state.waiting.push_back(value);
            self.bytes.store(bytes, Ordering::Relaxed);
            Enqueued::Waits(bytes)
        })
    }

    /// The next values to move, of about so many bytes in RAM, but at least one. They stay in
    /// flight until their commit is applied, or until they are forgotten.
    #[must_use]
    pub fn take(&self, bytes_max: u64) -> Vec<Moving> {
        self.change(|state| {
            let (mut taken, mut bytes) = (Vec::new(), 0);
            while let Some(next) = state.waiting.front().map(Moving::ram_bytes)
                && (taken.is_empty() || bytes + next <= bytes_max)
            {
                bytes += next;
                taken.extend(state.waiting.pop_front());
            }
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            taken
        })
    }

    /// Dequeued values are committed, with this seq.
    pub fn committed(&self, seq: u64, values: &[Moving]) {
        let hashes = values.iter().map(|value| value.hash).collect();
        self.change(|state| state.committed.push_back((seq, hashes)));
    }

    /// Everything up to this seq is applied.
    pub fn applied(&self, seq: u64) {
        if self.under_way.load(Ordering::Acquire) == 0 {
            return;
        }
        self.change(|state| {
            while state.committed.front().is_some_and(|(committed, _)| *committed <= seq) {
                for hash in state.committed.pop_front().into_iter().flat_map(|(_, hashes)| hashes) {
                    state.under_way.remove(&hash);
                }
            }
        });
    }

    /// Dequeued values are not moved.
    pub fn forget<'a>(&self, values: impl IntoIterator<Item = &'a Moving>) {
        self.forget_hashes(values.into_iter().map(|value| value.hash));
    }

    /// Dequeued values with these hashes are no longer in flight.
    pub fn forget_hashes(&self, hashes: impl IntoIterator<Item = u64>) {
        self.change(|state| {
            for hash in hashes {
                state.under_way.remove(&hash);
            }
        });
    }

    /// Whether nothing is in flight once everything up to this seq is applied.
    #[cfg(test)]
    pub fn is_idle(&self, applied_seq: u64) -> bool {
        self.applied(applied_seq);
        self.under_way.load(Ordering::Acquire) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        self.under_way.store(state.under_way.len() as u64, Ordering::Release);
        changed
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A value to be moved.
    pub(crate) fn value(number: u64, bytes: usize) -> Moving {
        Moving {
            key: Bytes::from(format!("{number:04}")),
            hash: number,
            version: number + 100,
            attributes: Bytes::new(),
            value: Bytes::from(vec![7; bytes]),
            checksum: 0,
            place: None,
        }
    }

    #[test]
    fn a_value_is_under_way_once_until_its_move_is_applied() {
        let queue = MoveQueue::new(1 << 20);
        for (number, bytes) in [(2, 1000), (1, 1000), (3, 5000)] {
            assert!(matches!(queue.enqueue(value(number, bytes)), Enqueued::Waits(_)));
        }
        assert_eq!(queue.enqueue(value(2, 1000)), Enqueued::Already);
        let mut taken = queue.take(1500);
        assert_eq!(taken.len(), 1, "the second is too much for one commit");
        taken.extend(queue.take(u64::MAX));
        let keys: Vec<_> = taken.iter().map(|value| value.hash).collect();
        assert_eq!((keys, queue.bytes()), (vec![2, 1, 3], 0));
        assert_eq!(queue.enqueue(value(2, 1000)), Enqueued::Already);
        queue.committed(9, &taken[..2]);
        queue.forget(&taken[2..]);
        assert_eq!(queue.enqueue(value(1, 1000)), Enqueued::Already);
        let again = queue.enqueue(value(3, 10));
        assert!(matches!(again, Enqueued::Waits(_)), "it stays where it is");
        queue.applied(8);
        assert_eq!(queue.enqueue(value(2, 1000)), Enqueued::Already);
        queue.applied(9);
        assert!(matches!(queue.enqueue(value(2, 1000)), Enqueued::Waits(_)));
        assert_eq!(queue.take(0).len(), 1, "at least one");
    }

    #[test]
    fn what_waits_is_bounded() {
        let queue = MoveQueue::new(600 << 10);
        let said: Vec<_> = (0..100).map(|number| queue.enqueue(value(number, 10_000))).collect();
        let waits = said.iter().filter(|said| matches!(said, Enqueued::Waits(_))).count();
        assert_eq!((waits, queue.take(u64::MAX).len()), (60, 60));
        assert_eq!(said.last(), Some(&Enqueued::Full));
        assert!(!MoveQueue::new(0).is_on());
    }
}
