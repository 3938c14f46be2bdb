//! How many segments stay free, and for what: the one table. A thread that takes a segment leaves
//! so many to others ([`Segments::take`](super::Segments::take)); what a commit leaves, `Committer`
//! says.

/// For log GC, so that it can always make progress. Besides log GC only the last commits before a
/// full device take these: they free space, and leave it one.
pub const RESERVED_SEGMENTS: u32 = 2;
/// For commits: what moves to the log without need leaves so many, and copies begin no segment. At
/// so few writers are about to wait: log GC asks for marks at once, and background work does not
/// rest.
pub const SCARCE_SEGMENTS: u32 = RESERVED_SEGMENTS + 1;
/// As many as log GC makes free at least, and as keep their files when the log gives room back: one
/// that is written, and one that is next, above its own.
pub const WANTED_SEGMENTS: u32 = RESERVED_SEGMENTS + 2;
/// For the log to begin at once: copies of large objects give segments back below that.
pub const LEFT_BY_COPIES: u32 = RESERVED_SEGMENTS + 4;
