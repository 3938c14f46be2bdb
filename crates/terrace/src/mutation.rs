//! Fault injection: switches off one rule of docs/durability.md at a time, to show that the tests
//! detect it.
//!
//! Invariants: without the feature `mutations` nothing here has a cost or can be switched on:
//! [`active`] is a constant. With it, the variable `TERRACE_MUTATION` names the one rule that this
//! process breaks; it is read once. An unknown name ends the process: a run that breaks no rule by
//! mistake would prove nothing.

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

/// Declares the rules that can be taken away, each with its name, the rule of docs/durability.md,
/// and what is left out.
macro_rules! mutations {
    ($($mutation:ident $name:literal $rule:literal $what:literal)*) => {
        /// A rule that can be taken away.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation {
            $(#[doc = concat!("Left out: ", $what, " (", $rule, ").")] $mutation,)*
        }

        /// All of them, in the order of the rules.
        pub const ALL: &[Description] = &[
            $(Description { mutation: Mutation::$mutation, name: $name, rule: $rule, what: $what },)*
        ];
    };
}

mutations! {
    FrameChecksum "frame-checksum" "R1" "checksums of records and values in a frame"
    BatchInOneCommit "batch-in-one-commit" "R1" "one commit per batch"
    HoleEndsLog "hole-ends-log" "R2" "the log ends where seqs are missing"
    SegmentLength "segment-length" "R3" "sync of a segment's length before its header"
    SegmentHeader "segment-header" "R3" "sync of a segment's header before its frames"
    SegmentBeforeNext "segment-before-next" "R4" "sync of a segment before the next one"
    LargeBeforeSyncRecord "large-before-sync-record" "R5" "sync of a Sync commit's large value"
    LargeBeforeBufferedRecord "large-before-buffered-record" "R5" "sync of a Buffered commit's large value"
    DestagedBeforeMove "destaged-before-move" "R5" "sync of destaged values before their moves"
    BlockSeal "block-seal" "R5" "sync of a block that is sealed"
    BlockHeader "block-header" "R5" "sync of a new block's header"
    CommitSync "commit-sync" "R6" "fdatasync of a Sync commit"
    VisibleWhenDurable "visible-when-durable" "R12" "a Sync commit is found when it is durable"
    LogBeforeMark "log-before-mark" "R7" "log durable before the memtable is sealed"
    SegmentBeforePersisted "segment-before-persisted" "R8" "index persisted before a segment is freed"
    SegmentBeforeSnapshot "segment-before-snapshot" "R8" "no older snapshot when a segment is freed"
    SegmentWhilePinned "segment-while-pinned" "R8" "no reader has a segment that is freed"
    BlockBeforePersisted "block-before-persisted" "R8" "index persisted before a block is deleted"
    MoveVersion "move-version" "R9" "a move applies only to the version that moved"
    SegmentDirectory "segment-directory" "R10" "directory sync after a segment is made"
    BlockDirectory "block-directory" "R10" "directory sync after a block is made"
    BlockRemoval "block-removal" "R10" "directory sync after a block is removed"
    LargeMetaDirectory "large-meta-directory" "R10" "directory sync after a LargeMeta version"
    LargeMetaSync "large-meta-sync" "section 6" "sync of a LargeMeta version"
    LargeMetaInPlace "large-meta-in-place" "section 6" "a new file for each LargeMeta version"
    ManifestSync "manifest-sync" "R10" "sync of a manifest before its rename"
    ManifestDirectory "manifest-directory" "R10" "directory sync after a manifest's rename"
    NewDirectory "new-directory" "R10" "sync of the directory above a new one"
    IndexDirectory "index-directory" "R10" "sync of the directory above the index"
    WipeHole "wipe-hole" "section 3" "frames behind a hole are wiped"
    WipeSync "wipe-sync" "section 3" "sync of the wiped frames"
    ReplayedSync "replayed-sync" "section 3" "sync of segments that were replayed"
    CheckpointLog "checkpoint-log" "section 4" "what the log says behind a checkpoint"
    CheckpointPersisted "checkpoint-persisted" "R11" "index persisted before a checkpoint is named"
    CopyOfPresent "copy-of-present" "section 4" "a copy is made of the present value alone"
    ScanCacheDrop "scan-cache-drop" "section 4" "drop of chunks that the applier changes"
    ScanCacheBegin "scan-cache-begin" "section 4" "a chunk is of everything that is applied"
}

/// The variable that names the rule to break.
pub const VARIABLE: &str = "TERRACE_MUTATION";

/// Whether this build can break rules.
pub const POSSIBLE: bool = cfg!(feature = "mutations");

/// Whether this rule is broken in this process.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn active(_: Mutation) -> bool {
    false
}

/// Whether this rule is broken in this process.
///
/// # Panics
/// If the variable names no mutation.
#[cfg(feature = "mutations")]
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
    fn each_has_a_name_of_its_own() {
        for (at, described) in ALL.iter().enumerate() {
            let same = |other: &Description| other.name == described.name;
            assert_eq!(ALL.iter().position(same), Some(at), "{}", described.name);
        }
    }

    #[test]
    fn nothing_is_broken_unasked() {
        if std::env::var_os(VARIABLE).is_none() {
            assert!(ALL.iter().all(|described| !active(described.mutation)));
        }
    }
}
