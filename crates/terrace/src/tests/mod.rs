//! Tests of the whole engine through its interface.
#![allow(clippy::unwrap_used)]

mod basics;
mod close;
mod figures;
mod reopen;

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

/// Bytes that look random and are the same for the same seed.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
