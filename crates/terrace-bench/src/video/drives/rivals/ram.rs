//! A cache of records in RAM, evicting the least recently used: ZFS's ARC, or the kernel's cache
//! for the others.

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;

/// A record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// The segment.
    pub object: usize,
    /// The number of the record in it, from 0.
    pub number: usize,
}

#[derive(Debug)]
struct Held {
    data: Bytes,
    was_prefetched: bool,
}

/// The cache.
#[derive(Debug)]
pub struct Ram {
    records: Mutex<LruCache<Record, Held>>,
}

impl Ram {
    /// With space for this many records, at least one.
    pub fn new(records: usize) -> Self {
        let records = NonZeroUsize::new(records).unwrap_or(NonZeroUsize::MIN);
        Self {
            records: Mutex::new(LruCache::new(records)),
        }
    }

    /// Copies a record, if it is there, and marks it as used.
    pub fn get(&self, record: Record, into: &mut [u8]) -> bool {
        let data = self.records.lock().get(&record).map(|held| held.data.clone());
        data.is_some_and(|data| {
            into.copy_from_slice(&data);
            true
        })
    }

    /// Keeps a record.
    pub fn put(&self, record: Record, data: &[u8], was_prefetched: bool) {
        let data = Bytes::copy_from_slice(data);
        self.records.lock().put(record, Held { data, was_prefetched });
    }

    /// The first `count` records that will be evicted next, without prefetched ones.
    pub fn tail(&self, scanned: usize, is_wanted: impl Fn(Record) -> bool) -> Vec<(Record, Bytes)> {
        let records = self.records.lock();
        let tail = records.iter().rev().take(scanned);
        tail.filter(|(record, held)| !held.was_prefetched && is_wanted(**record))
            .map(|(record, held)| (*record, held.data.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_what_leaves_next() {
        let record = |number| Record { object: 7, number };
        let ram = Ram::new(3);
        for number in 0..3 {
            ram.put(record(number), &[number as u8; 4], number == 1);
        }
        let mut found = [9; 4];
        assert!(ram.get(record(0), &mut found));
        assert_eq!(found, [0; 4]);
        let numbers =
            |tail: Vec<(Record, Bytes)>| tail.into_iter().map(|(record, _)| record.number).collect::<Vec<_>>();
        assert_eq!(numbers(ram.tail(3, |_| true)), [2, 0]);
        assert_eq!(numbers(ram.tail(1, |_| true)), [0; 0]);
        assert_eq!(numbers(ram.tail(3, |record| record.number != 2)), [0]);
        ram.put(record(3), &[3; 4], false);
        assert!(!ram.get(record(1), &mut found) && ram.get(record(2), &mut found));
    }
}
