//! What scans are spared, and what that costs.

use crate::metrics::counted;

counted! {
    /// Values that are written where scans find them because scans have paid for it. Counts
    /// are since open.
    pub struct ScanOrderStats {
        /// Bytes of RAM for values that wait for that.
        pub waiting_bytes: u64,
    }
    /// As they are counted.
    pub(crate) struct ScanOrderCounters {
        /// What scans have paid: bytes that could have been written in the time.
        paid_bytes,
        /// Values written to the log in order.
        moved,
        /// Short values that were copied into their entries.
        copied,
        /// How often the log was read in long pieces for that.
        sweeps,
        /// Bytes of it that were read.
        sweep_bytes,
        /// Bytes of the log that were written for that, which [`crate::WrittenStats`] has too.
        log_bytes,
        /// Values that were paid for and not written because too many waited.
        dropped_full,
        /// The same because the log, or the index, had no room.
        dropped_no_room,
    }
}

/// What scans have read, kept in the order of keys: a part of the RAM cache. Counts are since open.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanCacheStats {
    /// Chunks there are, or were until they left the cache unnoticed.
    pub chunks: u64,
    /// Bytes of RAM for finding them.
    pub table_bytes: u64,
    /// How often a chunk was read.
    pub chunk_hits: u64,
    /// Pairs that scans were given out of chunks.
    pub pair_hits: u64,
    /// Chunks that were made.
    pub made: u64,
    /// Their bytes.
    pub made_bytes: u64,
    /// Chunks that were dropped since something in them was written.
    pub dropped: u64,
}
