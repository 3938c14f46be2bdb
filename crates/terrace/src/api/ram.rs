//! What a store uses RAM for.

/// RAM of a store by purpose, in bytes. Memory held by callers (returned values, open readers) and
/// the overhead of the allocator are not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RamStats {
    /// Cached values with their overhead. Bounded by [`Options::cache_bytes`], together with
    /// `recent_bytes`.
    ///
    /// [`Options::cache_bytes`]: crate::Options::cache_bytes
    pub values_bytes: u64,
    /// Recently written frames that are kept for reads.
    pub recent_bytes: u64,
    /// Frames being written or applied, except the open one, and memory kept for the next ones.
    /// Each of the two is bounded by [`Tuning::overlay_bytes`].
    ///
    /// [`Tuning::overlay_bytes`]: crate::Tuning::overlay_bytes
    pub frames_bytes: u64,
    /// Large values being written to blocks, and memory kept for the next ones and for reads: at
    /// most 24 MiB.
    pub transfer_bytes: u64,
    /// Objects being read from blocks for readers and for copies on flash. Bounded by
    /// [`Tuning::staging_bytes`] and an eighth of it.
    ///
    /// [`Tuning::staging_bytes`]: crate::Tuning::staging_bytes
    pub staging_bytes: u64,
    /// Live values of the segment that log GC drains at the moment. Their descriptions, and keys
    /// that it looks up, take at most some 30 MiB more with values of 100 B, which is not included.
    pub draining_bytes: u64,
    /// Memtables of the ordered index: the active one ([`Tuning::memtable_bytes`]) and those
    /// waiting to be flushed, three at most.
    ///
    /// [`Tuning::memtable_bytes`]: crate::Tuning::memtable_bytes
    pub memtable_bytes: u64,
    /// Blocks of the ordered index's tables. Bounded by [`Tuning::index_cache_bytes`], except for
    /// those that every lookup needs and that are always kept.
    ///
    /// [`Tuning::index_cache_bytes`]: crate::Tuning::index_cache_bytes
    pub index_blocks_bytes: u64,
    /// The hash index: 8 to 9 bytes for each value in the log.
    pub hash_index_bytes: u64,
    /// Filters of keys: those of memtables, and that of keys whose values are not in the log.
    pub filters_bytes: u64,
}

impl RamStats {
    /// All parts, with their names in metrics.
    #[must_use]
    pub const fn parts(&self) -> [(&'static str, u64); 10] {
        [
            ("values", self.values_bytes),
            ("recent", self.recent_bytes),
            ("frames", self.frames_bytes),
            ("transfer", self.transfer_bytes),
            ("staging", self.staging_bytes),
            ("draining", self.draining_bytes),
            ("memtable", self.memtable_bytes),
            ("index_blocks", self.index_blocks_bytes),
            ("hash_index", self.hash_index_bytes),
            ("filters", self.filters_bytes),
        ]
    }

    /// The total.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}
