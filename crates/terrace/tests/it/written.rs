//! Compares the bytes written, by cause, with those the process handed to the kernel. In a
//! process of its own, since the kernel counts per process.

use crate::in_own_process;
use std::time::{Duration, Instant};
use terrace::{Batch, Durability, Options, PutOptions, ScanRange, Stats, Store};

/// Bytes passed to write calls so far.
fn kernel_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

/// Bytes on both devices, sum of all causes.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn counted_bytes(stats: &Stats) -> u64 {
    let written = &stats.written;
    let causes = written.flash_user_bytes
        + written.flash_padding_bytes
        + written.flash_reinserted_bytes
        + written.flash_moved_bytes
        + written.flash_ordered_bytes
        + written.sweep_bytes
        + written.index_bytes
        + written.compaction_bytes
        + written.large_user_bytes
        + written.large_destaged_bytes
        + written.large_cleaned_bytes;
    let by_amplification = written.write_amplification() * written.user_bytes as f64;
    assert!(
        (by_amplification - causes as f64).abs() < 1.0 + causes as f64 / 1e6,
        "a cause is left out"
    );
    causes
}

fn settled(store: &Store) -> Stats {
    store.flush().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = store.stats();
    // Compactions continue after the flush: wait until the tables have not changed for some time.
    loop {
        std::thread::sleep(Duration::from_millis(1500));
        let now = store.stats();
        if now.written.compaction_bytes == last.written.compaction_bytes && now.index.tables == last.index.tables {
            break;
        }
        assert!(Instant::now() < deadline, "compactions go on for ever");
        last = now;
    }
    // A compaction under way ends before this returns, and its bytes are counted then.
    store.close().unwrap();
    store.stats()
}

/// Values in random order are not rewritten until they are scanned: then short ones are copied into
/// their entries, and longer ones are written again. Closes the store.
fn scan_what_lies_in_no_order(store: &Store) -> Stats {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..20_000_u64 {
        let key = format!("short/{:05}", n * 7919 % 20_000);
        store.put_with(key, [7; 100], &buffered).unwrap();
        if n % 10 == 0 {
            let key = format!("longer/{:05}", n * 7919 % 20_000);
            store.put_with(key, [8; 1000], &buffered).unwrap();
        }
    }
    for n in 0..20_000 {
        store.get(format!("short/{n:05}")).unwrap().unwrap();
    }
    store.flush().unwrap();
    let order = store.stats().scan_order;
    assert_eq!((order.paid_bytes, order.moved, order.log_bytes), (0, 0, 0));
    assert_eq!((order.copied, order.sweep_bytes), (0, 0));
    let scan_20_times = |prefix: &str| {
        for _ in 0..20 {
            let mut scan = store.scan(ScanRange::prefix(prefix)).unwrap();
            while !scan.next_values(50).unwrap().is_empty() {}
        }
    };
    scan_20_times("short/");
    let until = Instant::now() + Duration::from_secs(60);
    while store.stats().scan_order.copied <= 1_000 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let stats = store.stats();
    assert!(stats.scan_order.copied > 1_000, "{:?}", stats.scan_order);
    assert_eq!(stats.written.flash_ordered_bytes, 0, "a copy takes nothing of the log");
    scan_20_times("longer/");
    // Beside other tests the sweep may begin late; `settled` waits for compactions only.
    let until = Instant::now() + Duration::from_secs(60);
    while store.stats().written.flash_ordered_bytes <= 100_000 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let stats = settled(store);
    assert!(stats.written.flash_ordered_bytes > 100_000, "{:?}", stats.scan_order);
    stats
}

#[test]
fn every_byte_given_to_the_devices_has_a_cause() {
    in_own_process(
        "written::every_byte_given_to_the_devices_has_a_cause",
        compare_with_the_kernel,
    );
}

fn compare_with_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 1 << 20,
        log_capacity_bytes: Some(64 << 20),
        size_threshold_bytes: 64 << 10,
        split_threshold_bytes: 4 << 20,
        cache_bytes: 0, // scans pay for order only by reads of a device
        ..Options::new(dir.path())
    }
    .tuned(|tuning| {
        tuning.space_slack_bytes = 0;
        tuning.memtable_bytes = 512 << 10;
        // Otherwise the close takes one.
        tuning.checkpoint_log_bytes = 0;
    });
    let store = Store::open(options).unwrap();
    let before = (kernel_bytes(), counted_bytes(&store.stats()));
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    // Tiny values, which compactions write repeatedly.
    for n in 0..200_000_u64 {
        let key = format!("tiny/{:06}", n * 7919 % 40_000);
        store.put_with(key, n.to_le_bytes().repeat(7), &buffered).unwrap();
    }
    for n in 0..8_u8 {
        let mut batch = Batch::new();
        batch.put(format!("large/{n}"), vec![n; 1 << 20]);
        batch.put(format!("small/{n}"), vec![n; 10_000]);
        store.write(batch, Durability::Sync).unwrap();
    }
    let stats = scan_what_lies_in_no_order(&store);
    let kernel = kernel_bytes() - before.0;
    let counted = counted_bytes(&stats) - before.1;
    let compactions = stats.written.compaction_bytes;
    assert!(
        compactions > kernel / 20,
        "{compactions} of {kernel} bytes: too few compactions to tell anything"
    );
    // Not counted by cause: a page per segment, LargeMeta, the files with the index's state.
    assert!(counted <= kernel, "{counted} counted, {kernel} written");
    assert!(
        counted > kernel - kernel / 50,
        "{counted} counted, {kernel} written: {:?}",
        stats.written
    );
    eprintln!("{counted} of {kernel} bytes have a cause; {:?}", stats.written);
}
