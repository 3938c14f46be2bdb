//! Short reads first, on one device: while short reads of a device are under way, long transfers
//! are split into slices.
//!
//! A read of 4 KiB that arrives while a device takes a write of 1 MiB waits for it. Between slices
//! it is served. Without readers, long writes are faster in one piece; and on a disk that seeks,
//! reads between slices would cost both a seek each, so writes are not split there. The kind of a
//! device is measured by its short reads: what a kernel reports of virtual devices is often wrong.
//!
//! Invariant: this decides the size of transfers only, never what is written or when a write
//! completes.

use super::PAGE_BYTES;
use crate::metrics::moving_average::MovingAverage;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Reads up to this length are short.
pub(super) const SHORT_BYTES: usize = 32 << 10;
/// Shortest slice; none is twice as long. Measured on an SSD with writes of 133 MB/s beside reads
/// of 4 KiB: their 99th percentile is 330 µs with slices of 128 KiB, 440 with 256 KiB, 490 with 512
/// KiB and 1,190 with 1 MiB; 240 without writes.
const SLICE_BYTES: usize = 128 << 10;
/// Short reads are under way if one ended so lately.
const LATELY: Duration = Duration::from_millis(20);
/// A device whose short reads take longer than this on average, in nanoseconds, seeks.
pub const SEEKS_NS: u64 = 3_000_000;
/// Weight (1/n) of the latest read in the mean.
const MEAN_PARTS: u64 = 16;

/// Devices in use by their numbers.
static DEVICES: Mutex<BTreeMap<u64, Weak<Neighbours>>> = Mutex::new(BTreeMap::new());

/// Statistics of a device's short reads.
#[derive(Debug)]
pub(super) struct Neighbours {
    born: Instant,
    /// When one ended last, in microseconds after `born`; 0 for never.
    ended_us: AtomicU64,
    /// Their mean time, in nanoseconds.
    mean_ns: MovingAverage<MEAN_PARTS>,
}

impl Neighbours {
    fn new() -> Self {
        Self {
            born: Instant::now(),
            ended_us: AtomicU64::new(0),
            mean_ns: MovingAverage::default(),
        }
    }

    /// Those of the device that `directory` is on, shared with all others that use it in this
    /// process.
    pub fn of(directory: &Path) -> Arc<Self> {
        let Ok(metadata) = directory.metadata() else {
            return Arc::new(Self::new());
        };
        let mut devices = DEVICES.lock();
        devices.retain(|_, device| device.strong_count() > 0);
        if let Some(known) = devices.get(&metadata.dev()).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Self::new());
        devices.insert(metadata.dev(), Arc::downgrade(&new));
        new
    }

    /// A short read that took so long has ended.
    pub fn short_read(&self, took: Duration, ended: Instant) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.mean_ns.add(took_ns);
        self.ended_us.store(self.micros(ended).max(1), Ordering::Relaxed);
    }

    /// How many of `wanted` bytes to read or write at a time. No slice is much shorter than the
    /// others: a request for a small remainder costs more than the wait it saves, and many devices
    /// take it for a sequential reader, and read ahead.
    pub fn slice_of(&self, wanted: usize, now: Instant) -> usize {
        let slices = wanted / SLICE_BYTES;
        if slices < 2 || !self.are_short_reads_under_way(now) {
            return wanted;
        }
        (wanted / slices).next_multiple_of(PAGE_BYTES)
    }

    /// Whether there are some, on a device that does not seek.
    fn are_short_reads_under_way(&self, now: Instant) -> bool {
        let ended_us = self.ended_us.load(Ordering::Relaxed);
        let since_us = self.micros(now).saturating_sub(ended_us);
        let seeks = self.mean_ns.get() > SEEKS_NS;
        ended_us != 0 && !seeks && u128::from(since_us) <= LATELY.as_micros()
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from((at - self.born).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LONG: usize = 8 * SLICE_BYTES;

    #[test]
    fn transfers_are_sliced_while_short_reads_are_under_way() {
        let neighbours = Neighbours::new();
        let began = neighbours.born;
        let ended = began + Duration::from_micros(100);
        assert_eq!(neighbours.slice_of(LONG, ended), LONG, "no readers");
        neighbours.short_read(ended - began, ended);
        assert_eq!(neighbours.slice_of(LONG, ended), SLICE_BYTES);
        assert_eq!(neighbours.slice_of(LONG, ended + LATELY), SLICE_BYTES);
        let later = ended + LATELY + Duration::from_micros(1);
        assert_eq!(neighbours.slice_of(LONG, later), LONG, "no readers any more");
    }

    /// A value of 128 KiB with its header was read as 128 KiB and a remainder of 8, twice as many
    /// requests as values. An SSD that reads ahead for sequential readers was busy with that when
    /// the next read arrived, which took 3.0 ms instead of 0.6.
    #[test]
    fn nothing_is_cut_into_a_slice_and_a_small_rest() {
        let neighbours = Neighbours::new();
        let now = neighbours.born + Duration::from_micros(100);
        neighbours.short_read(now - neighbours.born, now);
        for wanted in (1..700).map(|pages| pages * PAGE_BYTES) {
            let (mut left, mut slices) = (wanted, Vec::new());
            while left > 0 {
                let slice = neighbours.slice_of(left, now);
                assert!(slice <= left && slice.is_multiple_of(PAGE_BYTES), "{slice} of {left}");
                left -= slice;
                slices.push(slice);
            }
            assert_eq!(slices.len(), (wanted / SLICE_BYTES).max(1), "{wanted}");
            let shortest = slices.iter().min().unwrap();
            assert!(slices.len() == 1 || *shortest >= SLICE_BYTES, "{wanted}: {slices:?}");
            assert!(
                slices.iter().all(|slice| *slice < 2 * SLICE_BYTES),
                "{wanted}: {slices:?}"
            );
        }
    }

    #[test]
    fn on_a_disk_that_seeks_transfers_stay_in_one_piece() {
        let neighbours = Neighbours::new();
        let mut now = neighbours.born;
        let mut read = |count: u32, took| {
            for _ in 0..count {
                neighbours.short_read(took, now + took);
                now += took;
            }
            neighbours.slice_of(LONG, now)
        };
        assert_eq!(read(30, Duration::from_millis(9)), LONG);
        assert_eq!(read(60, Duration::from_micros(200)), SLICE_BYTES);
    }

    #[test]
    fn directories_on_one_device_share() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let (one, other) = (Neighbours::of(dir.path()), Neighbours::of(&inner));
        assert!(Arc::ptr_eq(&one, &other));
        assert!(!Arc::ptr_eq(&one, &Neighbours::of(Path::new("/proc"))));
    }
}
