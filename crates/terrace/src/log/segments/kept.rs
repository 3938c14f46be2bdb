//! How many segments stay free, and for which purpose: the only table of these numbers. A thread
//! that takes a segment leaves so many to others ([`Segments::take`](super::Segments::take));
//! `Committer` says how many a commit leaves.

/// For log GC, so that it can always make progress. Otherwise only the last commits before a full
/// device take these: they free space, and leave log GC one.
pub const RESERVED_SEGMENTS: u32 = 2;
/// For commits: optional moves to the log leave this many, and copies begin no segment. At this
/// few, writers are about to wait: log GC requests marks immediately, and background work is not
/// throttled.
pub const SCARCE_SEGMENTS: u32 = RESERVED_SEGMENTS + 1;
/// Log GC frees at least this many, and this many keep their files when the log returns space: one
/// being written and the next one, in addition to log GC's own.
pub const WANTED_SEGMENTS: u32 = RESERVED_SEGMENTS + 2;
/// So that the log can begin a segment immediately: below this, copies of large objects give
/// segments back.
pub const LEFT_BY_COPIES: u32 = RESERVED_SEGMENTS + 4;
