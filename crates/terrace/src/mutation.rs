//! Rules of docs/durability.md taken away one at a time, to show that the tests of that page
//! notice.
//!
//! Invariants: without the feature `mutations` nothing here costs anything or can be switched on:
//! [`active`] is a constant. With it, the variable `TERRACE_MUTATION` names the one rule this
//! process breaks; it is read once. A name that is none ends the process: a run that breaks nothing
//! by mistake would prove nothing.

/// A rule that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Checksums of records and values in a frame are not looked at.
    FrameChecksum,
    /// Each operation of a batch is a commit of its own.
    BatchInOneCommit,
    /// Recovery goes on behind missing seqs.
    HoleEndsLog,
    /// A segment's length is not synced before its header.
    SegmentLength,
    /// A segment's header is not synced before its first frame.
    SegmentHeader,
    /// A segment is not synced before the next one is written.
    SegmentBeforeNext,
    /// A `Sync` commit's value in the large space is not synced before its record.
    LargeBeforeSyncRecord,
    /// A `Buffered` commit's value in the large space is not synced before its record.
    LargeBeforeBufferedRecord,
    /// Destaged values are not synced before their moves.
    DestagedBeforeMove,
    /// A sealed block is not synced.
    BlockSeal,
    /// A new block's header is not synced.
    BlockHeader,
    /// A `Sync` commit returns without an fdatasync.
    CommitSync,
    /// A memtable is sealed before the log is durable up to its mark.
    LogBeforeMark,
    /// Segments are freed before the index persisted what emptied them.
    SegmentBeforePersisted,
    /// Segments are freed although a snapshot is older.
    SegmentBeforeSnapshot,
    /// Segments are freed although somebody reads them.
    SegmentWhilePinned,
    /// Blocks are deleted before the index persisted what emptied them, and although snapshots are
    /// older.
    BlockBeforePersisted,
    /// A move is applied whatever version the entry has.
    MoveVersion,
    /// The segment directory is not synced when a segment is made.
    SegmentDirectory,
    /// The block directory is not synced when a block is made.
    BlockDirectory,
    /// The block directory is not synced when a block is removed.
    BlockRemoval,
    /// The directory of LargeMeta is not synced when a version is written.
    LargeMetaDirectory,
    /// A LargeMeta version is not synced.
    LargeMetaSync,
    /// LargeMeta is written over itself.
    LargeMetaInPlace,
    /// A manifest is not synced before it gets its name.
    ManifestSync,
    /// A tier's directory is not synced when its manifest got its name.
    ManifestDirectory,
    /// The directory above a new directory is not synced.
    NewDirectory,
    /// The directory above the index is not synced when the index is made.
    IndexDirectory,
    /// Frames behind a hole stay.
    WipeHole,
    /// Wiped frames are not synced.
    WipeSync,
    /// Segments that recovery replays from are not synced.
    ReplayedSync,
    /// The log behind a checkpoint of the hash index is not looked at.
    CheckpointLog,
    /// A checkpoint of the hash index gets its name before the index has persisted what is in it,
    /// and is believed.
    CheckpointPersisted,
    /// Chunks of the scan cache stay although the applier changes keys in them.
    ScanCacheDrop,
    /// A chunk of the scan cache is kept although something is applied that it does not show.
    ScanCacheBegin,
}

/// What is known of a mutation.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The mutation.
    pub mutation: Mutation,
    /// Its name on the command line and in the environment.
    pub name: &'static str,
    /// The rule it breaks.
    pub rule: &'static str,
    /// What is left out.
    pub what: &'static str,
}

const fn described(mutation: Mutation, name: &'static str, rule: &'static str, what: &'static str) -> Description {
    Description {
        mutation,
        name,
        rule,
        what,
    }
}

/// All of them, in the order of the rules.
#[rustfmt::skip] // one line each reads as the table it is
pub const ALL: &[Description] = &[
    described(Mutation::FrameChecksum, "frame-checksum", "R1", "checksums of records and values in a frame"),
    described(Mutation::BatchInOneCommit, "batch-in-one-commit", "R1", "one commit per batch"),
    described(Mutation::HoleEndsLog, "hole-ends-log", "R2", "the log ends where seqs are missing"),
    described(Mutation::SegmentLength, "segment-length", "R3", "sync of a segment's length before its header"),
    described(Mutation::SegmentHeader, "segment-header", "R3", "sync of a segment's header before its frames"),
    described(Mutation::SegmentBeforeNext, "segment-before-next", "R4", "sync of a segment before the next one"),
    described(Mutation::LargeBeforeSyncRecord, "large-before-sync-record", "R5", "sync of a Sync commit's large value"),
    described(Mutation::LargeBeforeBufferedRecord, "large-before-buffered-record", "R5", "sync of a Buffered commit's large value"),
    described(Mutation::DestagedBeforeMove, "destaged-before-move", "R5", "sync of destaged values before their moves"),
    described(Mutation::BlockSeal, "block-seal", "R5", "sync of a block that is sealed"),
    described(Mutation::BlockHeader, "block-header", "R5", "sync of a new block's header"),
    described(Mutation::CommitSync, "commit-sync", "R6", "fdatasync of a Sync commit"),
    described(Mutation::LogBeforeMark, "log-before-mark", "R7", "log durable before the memtable is sealed"),
    described(Mutation::SegmentBeforePersisted, "segment-before-persisted", "R8", "index persisted before a segment is freed"),
    described(Mutation::SegmentBeforeSnapshot, "segment-before-snapshot", "R8", "no older snapshot when a segment is freed"),
    described(Mutation::SegmentWhilePinned, "segment-while-pinned", "R8", "nobody reads a segment that is freed"),
    described(Mutation::BlockBeforePersisted, "block-before-persisted", "R8", "index persisted before a block is deleted"),
    described(Mutation::MoveVersion, "move-version", "R9", "a move applies only to the version that moved"),
    described(Mutation::SegmentDirectory, "segment-directory", "R10", "directory sync after a segment is made"),
    described(Mutation::BlockDirectory, "block-directory", "R10", "directory sync after a block is made"),
    described(Mutation::BlockRemoval, "block-removal", "R10", "directory sync after a block is removed"),
    described(Mutation::LargeMetaDirectory, "large-meta-directory", "R10", "directory sync after a LargeMeta version"),
    described(Mutation::LargeMetaSync, "large-meta-sync", "section 6", "sync of a LargeMeta version"),
    described(Mutation::LargeMetaInPlace, "large-meta-in-place", "section 6", "a new file for each LargeMeta version"),
    described(Mutation::ManifestSync, "manifest-sync", "R10", "sync of a manifest before its rename"),
    described(Mutation::ManifestDirectory, "manifest-directory", "R10", "directory sync after a manifest's rename"),
    described(Mutation::NewDirectory, "new-directory", "R10", "sync of the directory above a new one"),
    described(Mutation::IndexDirectory, "index-directory", "R10", "sync of the directory above the index"),
    described(Mutation::WipeHole, "wipe-hole", "section 3", "frames behind a hole are wiped"),
    described(Mutation::WipeSync, "wipe-sync", "section 3", "sync of the wiped frames"),
    described(Mutation::ReplayedSync, "replayed-sync", "section 3", "sync of segments that were replayed"),
    described(Mutation::CheckpointLog, "checkpoint-log", "section 4", "what the log says behind a checkpoint"),
    described(Mutation::CheckpointPersisted, "checkpoint-persisted", "R11", "index persisted before a checkpoint is named"),
    described(Mutation::ScanCacheDrop, "scan-cache-drop", "section 4", "drop of chunks that the applier changes"),
    described(Mutation::ScanCacheBegin, "scan-cache-begin", "section 4", "a chunk is of everything that is applied"),
];

/// The variable that names the rule to break.
pub const VARIABLE: &str = "TERRACE_MUTATION";

/// Whether this build can break rules.
pub const POSSIBLE: bool = cfg!(feature = "mutations");

/// Whether this rule is broken in this process.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
#[must_use]
pub const fn active(_: Mutation) -> bool {
    false
}

/// Whether this rule is broken in this process.
///
/// # Panics
/// If the variable names no mutation.
#[cfg(feature = "mutations")]
#[must_use]
pub fn active(mutation: Mutation) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Mutation>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
        let found = ALL.iter().find(|described| described.name == name);
        let found = found.unwrap_or_else(|| panic!("{VARIABLE}={name} is no mutation of this build"));
        Some(found.mutation)
    });
    *chosen == Some(mutation)
}

/// Does `step`, unless its rule is broken.
///
/// # Errors
/// The step's.
#[inline(always)]
pub fn unless<E>(mutation: Mutation, step: impl FnOnce() -> std::result::Result<(), E>) -> std::result::Result<(), E> {
    if active(mutation) { Ok(()) } else { step() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_described_once() {
        for (at, described) in ALL.iter().enumerate() {
            let same = |other: &Description| other.name == described.name || other.mutation == described.mutation;
            assert_eq!(ALL.iter().position(same), Some(at), "{}", described.name);
        }
        // The last variant's number says how many there are.
        assert_eq!(ALL.len(), Mutation::ScanCacheBegin as usize + 1);
    }

    #[test]
    fn nothing_is_broken_unasked() {
        if std::env::var_os(VARIABLE).is_none() {
            assert!(ALL.iter().all(|described| !active(described.mutation)));
        }
    }
}
