//! The workers: log GC, block GC, migration, expiry; and the one place that commits moves.

pub(crate) mod block_gc;
pub(crate) mod checkpoint;
pub(crate) mod expire;
pub(crate) mod log_gc;
pub(crate) mod migrate;
pub(crate) mod mirror;
pub(crate) mod moves;
pub(crate) mod order;
pub(crate) mod prefetch;
pub(crate) mod promote;
pub(crate) mod small_moves;
pub(crate) mod workers;
