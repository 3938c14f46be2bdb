//! The flash log: fixed-size segments in ring order, written in frames, never in place. It is the commit log and, at
//! the same time, where small values live; so a small value is written once (FlashStore section 4.5).
//!
//! In reading order: [`format`] (bytes), [`segments`] (the ring), [`frame`] (the unit of commit in memory),
//! [`writer`] (group commit), [`recent`] (what was just written, in RAM), [`reader`] (one record), [`scan`] (a whole segment), [`side_by_side`] (the same, soon),
//! [`recover`] (the end of the log), [`index`] (which record is a key's: the flash index in RAM), [`free_list`] (what the index's
//! mark says of the ring).

pub mod address;
pub mod commit;
mod event_count;
pub mod format;
pub mod frame;
pub mod free_list;
mod identify;
pub mod index_full;
pub mod overlay;
pub mod parallel_scan;
pub mod reader;
pub mod recent;
pub mod recover;
pub mod scan;
pub mod segments;
pub mod writer;

#[cfg(test)]
mod tests;
