//! Tests of the whole engine through its interface.
#![allow(clippy::unwrap_used)]

mod basics;
mod close;
mod figures;
mod heat;
mod reopen;

pub use crate::test_common::bytes;
use crate::{Options, Store};
use std::path::Path;

/// Options small enough that a test meets every mechanism.
pub fn small_options(dir: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        flash_capacity_bytes: 4 << 20,
        size_threshold_bytes: 16 << 10,
        split_threshold_bytes: 256 << 10,
        memtable_bytes: 64 << 10,
        overlay_bytes: 1 << 20,
        cache_bytes: 1 << 20,
        ..Options::new(dir)
    }
}

pub fn open(dir: &Path) -> Store {
    Store::open(small_options(dir)).unwrap()
}
