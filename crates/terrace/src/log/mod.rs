//! The flash log: fixed-size segments in ring order, written in frames, never in place. It is both
//! the commit log and the home of small values; so a small value is written once (FlashStore
//! section 4.5).
//!
//! In reading order: [`mod@format`] (bytes), [`segments`] (the ring), [`frame`] (the unit of commit
//! in memory), [`commit`] (order and visibility), [`frame_table`] (frames in RAM: those not yet
//! applied, and recent ones), [`writer`] (group commit), [`reader`] (one record), [`scan`] (a whole
//! segment), [`parallel_scan`] (the same by several requests), [`recover`] (the end of the log),
//! [`free_list`] (what the index's mark says of the ring), `reserve` (space of a full device for
//! operations that free space), [`move_queue`] (values to be rewritten).

pub mod address;
pub mod commit;
pub(crate) mod departures;
pub mod emptiest;
mod event_count;
pub mod format;
pub mod frame;
pub mod frame_table;
pub mod free_list;
mod identify;
pub mod index_full;
mod liveness;
pub mod move_queue;
pub mod parallel_scan;
pub mod reader;
pub mod recover;
pub(crate) mod reserve;
pub mod scan;
pub mod segments;
pub mod writer;

#[cfg(test)]
mod tests;
