//! Whether a version that was found is visible: snapshots, range tombstones, expiry.

pub(crate) mod presence;
pub(crate) mod range_tombstones;
pub mod snapshots;
