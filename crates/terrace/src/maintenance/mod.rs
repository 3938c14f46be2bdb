//! The workers: log GC, block GC, migration, expiry; and the one place that commits moves.

pub(crate) mod block_gc;
pub(crate) mod expire;
pub(crate) mod fill;
pub(crate) mod log_gc;
pub(crate) mod migrate;
pub(crate) mod moves;
pub(crate) mod workers;
