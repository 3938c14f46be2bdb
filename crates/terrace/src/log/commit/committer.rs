//! The kinds of commits: which segments each may use, and whether it waits for them.

use crate::log::segments::RESERVED_SEGMENTS;

/// The kind of a commit, which decides what it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committer {
    /// A caller's commit: waits for the applier and for free segments.
    User,
    /// Frees space, by deletes and drops. Waits like `User`, but may use one of the reserved
    /// segments, and the last one while the device's reserve is in use: otherwise no caller could
    /// end the state of two full tiers.
    Freeing,
    /// Block GC, by moves and drops. Like [`Committer::Freeing`]; while it waits for a segment, log
    /// GC does not wait for block GC, which would be a deadlock.
    Cleaning,
    /// Frees more than it adds, but its records stay live. It may use segments of the device's
    /// reserve, but leaves the reserved segments to commits that free space.
    Replacing,
    /// Log GC: uses the reserved segments and never waits for itself.
    LogGc,
    /// Optional moves of values: leaves the reserved segments alone, and does not wait.
    Background,
    /// A caller that must not block: like [`Committer::Background`], and does not wait for the
    /// device, so it uses only segments that were prepared, and does not wait for a thread that
    /// begins one.
    AtOnce,
    /// A non-blocking commit that frees space: may use the same part of the log as
    /// [`Committer::Freeing`].
    FreeingAtOnce,
}

impl Committer {
    /// Number of free segments that it leaves to others.
    pub(super) const fn keeps_free(self, is_reserve_whole: bool) -> u32 {
        match self {
            Self::User | Self::Replacing | Self::Background | Self::AtOnce => RESERVED_SEGMENTS,
            Self::Freeing | Self::FreeingAtOnce | Self::Cleaning if is_reserve_whole => 1,
            Self::Freeing | Self::FreeingAtOnce | Self::Cleaning | Self::LogGc => 0,
        }
    }

    /// Whether it waits for the applier and for free segments; otherwise it gives up.
    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::User | Self::Freeing | Self::Cleaning | Self::Replacing)
    }

    /// Whether it must not block.
    pub(super) const fn is_at_once(self) -> bool {
        matches!(self, Self::AtOnce | Self::FreeingAtOnce)
    }

    /// Whether it frees space.
    pub(super) const fn frees(self) -> bool {
        matches!(self, Self::Freeing | Self::Cleaning | Self::Replacing)
    }
}
