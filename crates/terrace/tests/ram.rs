//! Compares the store's RAM statistics with a counting allocator. In a process of its own, since
//! the allocator counts for the whole process.
#![allow(clippy::unwrap_used)]

use rand::{RngCore, SeedableRng, rngs::StdRng};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::{
    alloc::System,
    time::{Duration, Instant},
};
use terrace::{Durability, Options, PutOptions, RamStats, Store};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tables, threads, rings, names: RAM without a figure of its own.
const OTHER_BYTES: u64 = 4 << 20;

fn allocated_bytes() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.bytes_allocated - stats.bytes_deallocated) as u64
}

/// Reads both figures until they agree: threads allocate between the two reads.
fn ram_once_they_agree(store: &Store, before_bytes: u64, what: &str) -> RamStats {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let told = store.stats().ram;
        let (total, counted) = (told.total_bytes(), allocated_bytes().saturating_sub(before_bytes));
        let least = counted.saturating_sub(OTHER_BYTES) * 9 / 10;
        if (least..=counted * 11 / 10).contains(&total) {
            println!("{what}: {total} of {counted}, {told:?}");
            return told;
        }
        assert!(Instant::now() < until, "{what}: {total} of {counted}, {told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_told_of_ram_is_what_is_allocated() {
    let directory = tempfile::tempdir().unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let mut value = vec![0; 300 << 10];
    StdRng::seed_from_u64(1).fill_bytes(&mut value);
    let before_bytes = allocated_bytes();
    let store = Store::open(
        Options {
            segment_bytes: 16 << 20,
            log_capacity_bytes: Some(1 << 30),
            cache_bytes: 128 << 20,
            ..Options::new(directory.path())
        }
        .tuned(|tuning| tuning.memtable_bytes = 16 << 20),
    )
    .unwrap();
    let empty = ram_once_they_agree(&store, before_bytes, "empty");
    // The table of the cache takes RAM before there are values.
    let index_bytes_max = (128 << 20) / 256;
    assert!(
        empty.values_bytes < index_bytes_max && empty.recent_bytes == 0,
        "{empty:?}"
    );

    // Small values: memtables, filters, slots, frames in RAM.
    for number in 0..150_000_u32 {
        store.put_with(number.to_be_bytes(), &value[..200], &buffered).unwrap();
    }
    ram_once_they_agree(&store, before_bytes, "small values, some on their way");
    store.flush().unwrap();
    let filled = ram_once_they_agree(&store, before_bytes, "small values");
    assert!(
        filled.recent_bytes > 20 << 20 && filled.hash_index_bytes > 150_000 * 8,
        "{filled:?}"
    );

    // Large values, all of them read: cached values.
    for number in 0..300_u32 {
        let key = [b"large".as_slice(), &number.to_be_bytes()].concat();
        store.put_with(&key, &value, &buffered).unwrap();
    }
    ram_once_they_agree(&store, before_bytes, "large values, some on their way");
    store.flush().unwrap();
    for number in 0..300_u32 {
        let key = [b"large".as_slice(), &number.to_be_bytes()].concat();
        assert_eq!(store.get(&key).unwrap().unwrap().value.len(), value.len());
    }
    let read = ram_once_they_agree(&store, before_bytes, "large values");
    assert!(read.values_bytes > 60 << 20, "{read:?}");
    assert_eq!(
        read.total_bytes(),
        read.parts().iter().map(|(_, bytes)| bytes).sum::<u64>()
    );
    store.close().unwrap();
}
