//! Lookups that do not ask memtables find what they would have found there.
#![allow(clippy::unwrap_used)]

use super::{
    tests::{flash_entry, mark, open},
    *,
};
use crate::Tier;
use std::{
    io,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

fn version(index: &OrderedIndex, key: u64) -> Option<u64> {
    let entry = index.get(&key.to_be_bytes()).unwrap()?;
    Some(entry.version.0)
}

#[test]
fn a_key_is_found_wherever_it_is_and_memtables_are_asked_only_for_what_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let may_have = |keys: std::ops::Range<u64>| {
        let hash = |key: u64| key_hash(&key.to_be_bytes());
        keys.filter(|key| index.live.may_have(hash(*key))).count()
    };
    assert_eq!(may_have(0..1000), 0);
    for seq in 1..=3_u64 {
        for key in (seq - 1) * 100..seq * 100 {
            applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
        }
        applier.remove(&(1000 + seq).to_be_bytes(), seq);
        applier.applied(seq);
        if seq < 3 {
            applier.rotate(mark(seq)).unwrap();
        }
    }
    let expected = |key: u64| (key < 300).then_some(key / 100 + 1);
    let check = |sealed: usize| {
        assert_eq!(index.sealed_count(), sealed);
        assert!((0..1010).all(|key| version(&index, key) == expected(key)));
    };
    check(2);
    assert_eq!((may_have(0..300), may_have(1001..1004)), (300, 3));
    index.flush_sealed(2).unwrap();
    check(0);
    assert_eq!((may_have(200..300), may_have(1003..1004)), (100, 1));
    assert!(may_have(0..200) < 20, "they are in tables");
    // Another applier goes on with the same memtable and its filter.
    drop(applier);
    let mut applier = index.applier().unwrap();
    applier.insert(&500_u64.to_be_bytes(), &flash_entry(4), 4);
    applier.remove(&7_u64.to_be_bytes(), 4);
    applier.applied(4);
    assert_eq!((may_have(200..300), may_have(500..501)), (100, 1));
    assert_eq!(
        (version(&index, 500), version(&index, 7)),
        (Some(4), None),
        "a removal hides what a table has"
    );
    applier.rotate(mark(4)).unwrap();
    index.flush_sealed(4).unwrap();
    assert_eq!(
        (version(&index, 500), version(&index, 7), version(&index, 8)),
        (Some(4), None, Some(1))
    );
    assert_eq!(may_have(0..1010), 0);
}

/// The library holds the lock of its states while it syncs the file that names a new one. A lookup
/// of a newest entry goes on meanwhile.
#[test]
fn lookups_do_not_wait_for_a_state_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    for seq in 1..=2_u64 {
        applier.insert(&seq.to_be_bytes(), &flash_entry(seq), seq);
        applier.applied(seq);
        if seq == 1 {
            applier.rotate(mark(1)).unwrap();
            index.flush_sealed(1).unwrap();
        }
    }
    let being_written = index.tree.get_version_history_lock();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let index = &index;
        scope.spawn(move || {
            let found = (1..=3).map(|key| version(index, key)).collect::<Vec<_>>();
            send.send(found).unwrap();
        });
        let found = receive.recv_timeout(Duration::from_secs(20));
        drop(being_written);
        assert_eq!(found, Ok(vec![Some(1), Some(2), None]));
    });
}

/// An entry is had without waiting where a memtable has it, or where a lookup has found it in a
/// table.
#[test]
fn entries_are_had_without_waiting_once_they_were_found() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let in_ram = |key: u64| {
        index
            .get_in_ram(&key.to_be_bytes(), key_hash(&key.to_be_bytes()))
            .unwrap()
    };
    let find = |key: u64| {
        let key = key.to_be_bytes();
        index.get_for_caller(&key, key_hash(&key)).unwrap()
    };
    for key in 0..100_u64 {
        applier.insert(&key.to_be_bytes(), &flash_entry(1), 1);
    }
    applier.applied(1);
    assert_eq!(in_ram(5), RamAnswer::Found(flash_entry(1)));
    assert!(in_ram(200).is_unknown());
    applier.rotate(mark(1)).unwrap();
    index.flush_sealed(1).unwrap();
    assert!(in_ram(5).is_unknown(), "no lookup has found it in a table");
    assert_eq!(find(5), Some(flash_entry(1)));
    assert_eq!(in_ram(5), RamAnswer::Found(flash_entry(1)));
    assert!(in_ram(6).is_unknown());
    applier.remove(&5_u64.to_be_bytes(), 2);
    applier.insert(&6_u64.to_be_bytes(), &flash_entry(2), 2);
    applier.applied(2);
    for is_flushed in [false, true] {
        assert_eq!(in_ram(5), RamAnswer::Absent, "flushed: {is_flushed}");
        assert_eq!(find(6), Some(flash_entry(2)));
        assert_eq!(in_ram(6), RamAnswer::Found(flash_entry(2)));
        applier.rotate(mark(2)).unwrap();
        index.flush_sealed(2).unwrap();
        find(6);
    }
}

/// What is applied before a lookup begins is found, while memtables are sealed, flushed and
/// compacted as fast as it goes.
#[test]
fn no_key_is_hidden_while_its_memtable_is_flushed() {
    const ROUNDS: u64 = 400;
    const KEYS: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let done = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut applier = index.applier().unwrap();
            for seq in 1..=ROUNDS {
                for key in 0..KEYS {
                    if (key + seq).is_multiple_of(3) {
                        applier.remove(&key.to_be_bytes(), seq);
                    } else {
                        applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
                    }
                }
                applier.applied(seq);
                if seq % 2 == 0 {
                    applier.rotate(mark(seq)).unwrap();
                }
                // Readers keep up, unless they have failed.
                let until = Instant::now() + Duration::from_secs(60);
                let is_alone = || looks.load(Ordering::Relaxed) < seq * 4 && Instant::now() < until;
                while index.sealed_count() > 2 || is_alone() {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                index.flush_sealed(index.applied_seq()).unwrap();
                index.compact(index.applied_seq()).unwrap();
                index.looks.pay_for_runs(1 << 8);
                index.merge_for_readers(index.applied_seq()).unwrap();
            }
        });
        for reader in 0..2 {
            let (index, done, looks) = (&index, &done, &looks);
            scope.spawn(move || {
                let mut key = reader;
                while !done.load(Ordering::Acquire) {
                    key = (key + 7) % KEYS;
                    let before = index.applied_seq();
                    let found = version(index, key);
                    // The applier may be in the middle of the next commit.
                    let after = index.applied_seq() + 1;
                    let at = |seq: u64| (seq > 0 && !(key + seq).is_multiple_of(3)).then_some(seq);
                    assert!(
                        (before..=after).any(|seq| at(seq) == found),
                        "key {key}: {found:?} between {before} and {after}"
                    );
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(looks.into_inner() > 1000);
}

/// Regression: a flush that failed compared the state in memory with the one that the directory
/// names. If a merge installed one in between, they differed, and the index was taken for failed:
/// the store refused all writes until it was opened again. On a full device flushes and merges fail
/// and succeed side by side for long.
#[test]
fn a_failure_beside_another_change_of_the_state_is_not_the_end() {
    const ROUNDS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let full = io::Error::from(io::ErrorKind::StorageFull);
                let failed = Error::io_on(Tier::Flash, "flushing the index", &full);
                assert!(index.noting_failure::<()>(Err(failed)).is_err());
            }
        });
        let mut applier = index.applier().unwrap();
        for seq in 1..=ROUNDS {
            applier.insert(&seq.to_be_bytes(), &flash_entry(seq), seq);
            applier.applied(seq);
            applier.rotate(mark(seq)).unwrap();
            if index.flush_sealed(seq).is_err() {
                break;
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(index.is_usable(), "{:?}", index.check_usable());
    assert_eq!(version(&index, ROUNDS), Some(ROUNDS));
}

/// Regression: the last lookup in tables that a merge had replaced removed their files, though it
/// may be one that must not wait.
#[test]
fn a_merge_waits_for_lookups_in_the_tables_that_it_removes() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    for seq in 1..=3_u64 {
        applier.insert(&seq.to_be_bytes(), &flash_entry(seq), seq);
        applier.applied(seq);
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq).unwrap();
    }
    let files = || std::fs::read_dir(dir.path().join("tables")).unwrap().count();
    let (before, state) = (files(), index.tree.current_version().id());
    let key = 1_u64.to_be_bytes();
    let Newest::In(tables) = index.live.find(&key, key_hash(&key)) else {
        panic!("it is in no table");
    };
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let all = || Some(super::background::Choice::All { table_bytes: 1 << 20 });
            assert!(index.compact_by(3, all).unwrap());
            assert!(
                has_ended.load(Ordering::Acquire),
                "the lookup is left to remove the files"
            );
            assert!(files() < before, "{before}");
        });
        while index.tree.current_version().id() == state {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(tables.search(&key, key_hash(&key)).unwrap().item.is_some());
        has_ended.store(true, Ordering::Release);
        drop(tables);
    });
}
