//! Whether what is found is there: snapshots, range tombstones, expiry.

pub(crate) mod presence;
pub(crate) mod range_tombstones;
pub mod snapshots;
