//! What a store's RAM is for.

/// RAM of a store, by what it is for, in bytes. What a caller holds (values it was given, open
/// readers) is not counted here, nor what an allocator takes beside what it was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RamStats {
    /// Cached values, with what each costs besides its bytes. Bounded by [`Options::cache_bytes`],
    /// together with the next.
    ///
    /// [`Options::cache_bytes`]: crate::Options::cache_bytes
    pub values_bytes: u64,
    /// Frames that were written lately and are kept to be read.
    pub recent_bytes: u64,
    /// Frames on their way to the log and the index, the one that is being filled left out, and
    /// memory kept for the next ones. Each of the two is bounded by [`Tuning::overlay_bytes`].
    ///
    /// [`Tuning::overlay_bytes`]: crate::Tuning::overlay_bytes
    pub frames_bytes: u64,
    /// Large values on their way to blocks, and memory kept for the next ones and for reads: at
    /// most 24 MiB.
    pub transfer_bytes: u64,
    /// Objects on their way from blocks to readers and to flash. Bounded by
    /// [`Tuning::staging_bytes`] and an eighth of it.
    ///
    /// [`Tuning::staging_bytes`]: crate::Tuning::staging_bytes
    pub staging_bytes: u64,
    /// Values that live in the segment that log GC drains at the moment. What describes them, and
    /// keys that it looks up, take some 30 MiB more at most with values of 100 B, which is not
    /// counted.
    pub draining_bytes: u64,
    /// Memtables of the ordered index: the one that is filled ([`Tuning::memtable_bytes`]) and
    /// those that wait to be flushed, three at most.
    ///
    /// [`Tuning::memtable_bytes`]: crate::Tuning::memtable_bytes
    pub memtable_bytes: u64,
    /// Blocks of the ordered index's tables. Bounded by [`Tuning::index_cache_bytes`], but for
    /// what every lookup needs and is kept always.
    ///
    /// [`Tuning::index_cache_bytes`]: crate::Tuning::index_cache_bytes
    pub index_blocks_bytes: u64,
    /// The hash index: 8 to 9 bytes for each value in the log.
    pub hash_index_bytes: u64,
    /// Filters of keys: those in memtables, and those whose values are not in the log.
    pub filters_bytes: u64,
}

impl RamStats {
    /// All parts, each with its name in figures.
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

    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}
