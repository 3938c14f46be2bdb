//! What a sweep of the log costs, and its RAM.

use super::COPY_BYTES_MAX;

/// Assumed mean length of keys until any are measured.
const MEAN_KEY_BYTES: usize = 32;
/// Long sequential reads cost this fraction (1/n) of writing the same bytes: with it, one page read
/// costs as much as 32 KiB of them. That is 1.5 GB a second against 50,000 pages.
const LONG_READ_PART: u64 = 2;
/// RAM that a value takes in a sweep in addition to key and value.
const SWEPT_OVERHEAD_BYTES: u64 = 24;
/// RAM of a sweep, which the value cache lends it, as a fraction (1/n) of its size,
const RAM_SHARE: u64 = 2;
/// within these bounds.
const RAM_BYTES_MIN: u64 = 2 << 20;
const RAM_BYTES_MAX: u64 = 64 << 20;
/// Threads that read the log, at least and at most: beside scans with many reads under way a single
/// thread would get only a small share of the device.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 16;
/// One of them for each so much RAM: its window of the log is a small part of that.
const RAM_BYTES_OF_THREAD: usize = 4 << 20;
/// One list of values is written at a time for so many of them, beside the one that they fill: a
/// device that scans keep busy takes 10 ms and more for one.
const THREADS_OF_LIST: usize = 4;
/// Values that are sorted together: as many as fit into a core's cache. Longer lists keep a core
/// busy for tens of milliseconds, and the 99th percentile of reads beside a sweep is 2.1 times that
/// of reads alone with 11 MiB, 1.7 with 2 MiB, 1.4 with this.
const LIST_BYTES: u64 = 1 << 20;
/// They are longer where more spills than this would come from it: each makes the merge slower.
const SPILLS_WANTED: u64 = 256;
/// Part (1/n) of the RAM that marks which records live, at most.
const MARKS_SHARE: usize = 2;

/// Cost of a copy for a sweep: bytes of its file, or that a merge writes, and about as many of RAM.
pub const fn copy_bytes(key_bytes: usize, copied_bytes: u64) -> u64 {
    SWEPT_OVERHEAD_BYTES + key_bytes as u64 + copied_bytes
}

/// RAM of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepRam(usize);

impl SweepRam {
    /// RAM that reads a sorted part of a sweep's file, at least.
    pub const SPILL_READ_BYTES: usize = 16 << 10;
    /// What a thread has in RAM of the log: a piece in which records begin, and as much behind it
    /// as the last of them may take.
    pub const WINDOW_BYTES: usize = Self::PIECE_BYTES + Self::RECORD_BYTES_MAX;
    /// See there. Beside readers long reads are made in slices of 128 KiB anyway.
    pub const PIECE_BYTES: usize = 256 << 10;
    /// Longer records are left out: of short values with many attributes.
    pub const RECORD_BYTES_MAX: usize = 8 << 10;

    /// Of a cache of this many bytes.
    // 64 MiB at most.
    pub fn of_cache(cache_bytes: u64) -> Self {
        Self((cache_bytes / RAM_SHARE).clamp(RAM_BYTES_MIN, RAM_BYTES_MAX) as usize)
    }

    /// All of it.
    pub const fn bytes(self) -> usize {
        self.0
    }

    /// Threads that read the log with it.
    pub fn threads(self) -> usize {
        (self.0 / RAM_BYTES_OF_THREAD).clamp(THREADS_MIN, THREADS_MAX)
    }

    /// Lists of values that are sorted and written at a time.
    pub fn lists_written(self) -> usize {
        (self.threads() / THREADS_OF_LIST).max(1)
    }

    /// How much of it marks which records live, at most.
    pub const fn marks_bytes(self) -> usize {
        self.0 / MARKS_SHARE
    }

    /// Values that are sorted together, of so many in all, beside the lists that are being written
    /// and this many bytes of marks.
    // At most the RAM.
    pub fn list_bytes(self, copied_bytes: u64, marks_bytes: usize) -> usize {
        let wanted = copied_bytes.div_ceil(SPILLS_WANTED).max(LIST_BYTES);
        wanted.min(self.list_bytes_max(marks_bytes)) as usize
    }

    fn list_bytes_max(self, marks_bytes: usize) -> u64 {
        let windows_bytes = self.threads() * Self::WINDOW_BYTES;
        (self.0.saturating_sub(windows_bytes + marks_bytes) / (1 + self.lists_written())) as u64
    }
}

/// Work of a sweep: segments that are not swept yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Bytes to read.
    pub bytes: u64,
    /// Bytes of values that live there, about.
    pub live_bytes: u64,
    /// Bytes of the index, which is rewritten.
    pub index_bytes: u64,
}

impl Sweep {
    /// Bytes of the copies that it makes, where values in the log have this mean length.
    pub fn copied_bytes(&self, mean_bytes: u64) -> u64 {
        let values = self.live_bytes.div_ceil(mean_bytes.max(1));
        values * copy_bytes(MEAN_KEY_BYTES, mean_bytes.min(COPY_BYTES_MAX))
    }

    /// Bytes of its file, and of the new tables, which exist beside the old ones until the sweep is
    /// over.
    pub fn written_bytes(&self, mean_bytes: u64) -> u64 {
        self.index_bytes + 2 * self.copied_bytes(mean_bytes)
    }

    /// Cost of a sweep, for this mean length of values in the log and this much RAM: an upper
    /// bound, since long values are not copied. `None`: the sorted parts of its file are too many
    /// to be read side by side.
    pub(super) fn price(&self, mean_bytes: u64, ram: SweepRam) -> Option<u64> {
        let copied_bytes = self.copied_bytes(mean_bytes);
        let spills = copied_bytes.div_ceil(ram.list_bytes_max(ram.marks_bytes())) + 1;
        let read_bytes = self.bytes + copied_bytes;
        (spills * SweepRam::SPILL_READ_BYTES as u64 <= ram.bytes() as u64)
            .then_some(read_bytes / LONG_READ_PART + self.written_bytes(mean_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::READ_PRICE, super::tests::of_rate, *};

    #[test]
    fn a_sweep_is_bought_once_reads_have_cost_as_much_as_all_of_it() {
        let order = of_rate(1 << 20);
        let ram = SweepRam(RAM_BYTES_MAX as usize);
        assert!(!order.sweep.has_grown());
        let sweep = Sweep {
            bytes: 1 << 20,
            live_bytes: 500_000,
            index_bytes: 200_000,
        };
        // A MiB to read, an index to write anew, and in it 5,000 copies of 156 bytes, which are
        // written to a file before, and read there.
        let copies = 5_000 * 156;
        let price = (sweep.bytes + copies) / LONG_READ_PART + sweep.index_bytes + 2 * copies;
        let reads = (price / 100 * 100).div_ceil(READ_PRICE);
        assert!(!order.sweep.buy(sweep, 100, ram), "no scans");
        order.sweep.pay(reads - 1);
        assert!(order.sweep.has_grown());
        assert!(!order.sweep.buy(sweep, 100, ram));
        assert!(!order.sweep.buy(Sweep::default(), 100, ram), "nothing is left to sweep");
        assert!(!order.sweep.has_grown(), "no need to ask again");
        order.sweep.pay(1);
        assert!(order.sweep.has_grown());
        assert!(order.sweep.buy(sweep, 100, ram));
        assert!(!order.sweep.buy(sweep, 100, ram), "it is spent");
        // Charges made during a sweep are dropped.
        order.sweep.pay(10 * reads);
        order.swept(true);
        assert!(!order.sweep.buy(sweep, 100, ram));
        // The same values in a log of ten times as much cost as much more.
        let large = Sweep {
            bytes: sweep.bytes * 10,
            live_bytes: sweep.live_bytes * 10,
            index_bytes: sweep.index_bytes * 10,
        };
        order.sweep.pay(9 * reads);
        assert!(!order.sweep.buy(large, 100, ram));
        order.sweep.pay(reads);
        assert!(order.sweep.buy(large, 100, ram));
    }

    #[test]
    fn a_log_with_too_many_values_for_the_ram_is_not_swept() {
        let order = of_rate(1 << 20);
        let of_cache = |bytes| SweepRam::of_cache(bytes).bytes();
        assert_eq!([0, 16 << 20, 1 << 30].map(of_cache), [2 << 20, 8 << 20, 64 << 20]);
        // With 2 MiB 128 sorted parts can be read side by side. Each but the last has 248 KiB.
        let values = 127 * (248 << 10) / 156;
        let sweep = |values: u64| Sweep {
            bytes: values * 150,
            live_bytes: values * 100,
            index_bytes: 0,
        };
        order.sweep.pay(1 << 40);
        let least = SweepRam::of_cache(0);
        assert!(!order.sweep.buy(sweep(values + 1), 100, least));
        assert!(order.sweep.buy(sweep(values), 100, least));
    }

    /// Marks, lists of values and the threads' windows, together.
    #[test]
    fn the_parts_of_the_ram_are_no_more_than_all_of_it() {
        for (cache_bytes, threads) in [(0, 2), (16 << 20, 2), (64 << 20, 8), (1 << 30, 16)] {
            let ram = SweepRam::of_cache(cache_bytes);
            assert_eq!(ram.threads(), threads);
            for marks_bytes in [0, 100_000, ram.marks_bytes()] {
                let list_bytes = ram.list_bytes(u64::MAX, marks_bytes);
                let windows_bytes = ram.threads() * SweepRam::WINDOW_BYTES;
                let lists_bytes = (1 + ram.lists_written()) * list_bytes;
                assert!(lists_bytes + marks_bytes + windows_bytes <= ram.bytes());
                assert!(list_bytes >= ram.bytes() / 13);
            }
            assert!(ram.list_bytes(1000, 0) <= LIST_BYTES as usize);
        }
    }
}
