//! Statistics of rewrites charged to scans, and of the scan cache.

use crate::metrics::counted;

counted! {
    /// Rewrites of values in key order, or into their entries, charged to scans. Counts are since
    /// open.
    pub struct ScanOrderStats {
        /// Bytes of RAM of values that wait for that.
        pub waiting_bytes: u64,
    }
    /// The counters.
    pub(crate) struct ScanOrderCounters {
        /// Charges of scans: bytes that could have been written in the time.
        paid_bytes,
        /// Values rewritten to the log in key order.
        moved,
        /// Short values that were copied into their entries.
        copied,
        /// Sweeps: sequential reads of the log for that.
        sweeps,
        /// Bytes of the log that they read.
        sweep_bytes,
        /// Bytes written to their temporary files, also in [`crate::WrittenStats`].
        spilled_bytes,
        /// Bytes written to the log for that, also in [`crate::WrittenStats`].
        log_bytes,
        /// Charged values that were not written because too many waited.
        dropped_full,
        /// Charged values that were not written because the log, or the index, had no room.
        dropped_no_room,
    }
}

/// Values read by scans, cached in key order: a part of the RAM cache. Counts are since open.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanCacheStats {
    /// Chunks, including some evicted ones that have not been removed from the table yet.
    pub chunks: u64,
    /// Bytes of RAM of the table of chunks.
    pub table_bytes: u64,
    /// How often a chunk was read.
    pub chunk_hits: u64,
    /// Pairs that scans read from chunks.
    pub pair_hits: u64,
    /// Chunks created.
    pub made: u64,
    /// Their bytes.
    pub made_bytes: u64,
    /// Chunks dropped since one of their values was written.
    pub dropped: u64,
}
