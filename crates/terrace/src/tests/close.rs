//! Closing: promptly, whatever waits, and without losing what was acknowledged before.

use super::{bytes, open};
use crate::{Durability, Error, PutOptions};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A buffered commit acknowledged while the store was being closed stayed in a frame that no thread
/// wrote.
#[test]
fn what_was_acknowledged_while_closing_is_there() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let options = PutOptions {
                    durability: Durability::Buffered,
                    ..PutOptions::default()
                };
                for n in 1.. {
                    match store.put_with(format!("{n:06}"), bytes(n, 300), &options) {
                        Ok(_) => acknowledged.store(n, Ordering::Release),
                        Err(error) => {
                            assert!(matches!(error, Error::Unavailable(_)), "{error}");
                            break;
                        }
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(round));
            store.close().unwrap();
        });
        drop(store);
        let store = open(dir.path());
        for n in 1..=acknowledged.load(Ordering::Acquire) {
            assert!(store.get(format!("{n:06}")).unwrap().is_some(), "{n} in round {round}");
        }
    }
}

/// A caller that waited for commits to be applied waited for ever once the applier had ended.
#[test]
fn nobody_waits_for_a_closed_store() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let start = Instant::now();
        std::thread::scope(|scope| {
            for writer in 0..3_u64 {
                let store = &store;
                scope.spawn(move || {
                    for n in 0.. {
                        let put = store.put(format!("{writer} {n}"), bytes(n, 2_000));
                        let flushed = if writer == 0 { store.flush() } else { Ok(()) };
                        let scanned = store.snapshot().map(drop);
                        if put.is_err() && flushed.and(scanned).is_err() || put.is_err() && writer > 0 {
                            break;
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(round * 3));
            store.close().unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
