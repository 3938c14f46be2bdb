//! Which records of frames that are applied together are left out, and that no result shows it.

use super::*;
use crate::{
    Batch, Durability, HomeKind, Options, PutOptions, Snapshot, Store,
    log::commit::{Committer, Judged},
    tests::small_options,
};

const EXTENT: Extent = Extent {
    block: 1,
    offset: 4096,
    length: 5000,
    extent_bytes: 8192,
};

fn record(seq: u64, key: &'static [u8], body: Body<'static>) -> Arrived<'static> {
    let record = Record {
        seq,
        generation: 0,
        key,
        attributes: &[],
        checksum: 0,
        body,
    };
    Arrived::new(0, (Address::new(seq * 64).unwrap(), record))
}

/// Left out were records that a move or the figures of a block still ask for, had only the key been
/// looked at.
#[test]
fn of_records_that_replace_each_other_the_last_is_left() {
    let (put, inline) = (Body::Put { value: b"v" }, Body::PutInline { value: b"v" });
    let (large, delete) = (Body::PutLarge { extent: EXTENT }, Body::Delete);
    let moved = Body::MoveToBlock {
        version: 1,
        extent: EXTENT,
    };
    let gone = Body::Drop { version: 1 };
    let left = |bodies: &[Body<'static>]| {
        let mut records: Vec<_> = (1..).zip(bodies).map(|(seq, body)| record(seq, b"k", *body)).collect();
        records.insert(0, record(90, b"a", put));
        records.push(record(91, b"kk", put));
        let applied = in_key_order(&records);
        let mut seqs: Vec<_> = applied.iter().map(|(_, number)| records[*number].record.seq).collect();
        let ends = (seqs.remove(0), seqs.pop().unwrap());
        assert_eq!(ends, (90, 91), "other keys are left alone");
        seqs
    };
    assert_eq!(left(&[put]), [1]);
    assert_eq!(left(&[put, inline, delete, put]), [4]);
    assert_eq!(left(&[put, delete]), [2]);
    assert_eq!(left(&[put, large]), [2]);
    assert_eq!(left(&[large, put, put]), [1, 3], "the block counts what died in it");
    assert_eq!(left(&[put, moved, put, put]), [1, 2, 4], "a move asks what is there");
    assert_eq!(left(&[put, put, gone]), [2, 3]);
}

/// Commits the key so that no frame from here on is applied before it is durable.
fn hold_up(store: &Store, key: &'static [u8]) {
    let body = Body::Put { value: b"held" };
    let record = Record {
        checksum: crc32c::crc32c(b"held"),
        ..record(1, key, body).record
    };
    let (records, decide) = ([(key_hash(key), record)], || Ok(Judged::default()));
    store
        .engine()
        .log
        .commit_as(Committer::User, Durability::Sync, &records, 0, decide)
        .unwrap();
}

fn put(store: &Store, key: &str, round: usize, length: usize) {
    let options = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let value = format!("{key} of {round}{}", " ".repeat(length));
    store.put_with(key, value, &options).unwrap();
}

/// What a snapshot or the store has of the keys: the first word but one of each value.
fn rounds(get: impl Fn(&str) -> Option<crate::Object>) -> Vec<Option<String>> {
    let round = |object: crate::Object| String::from_utf8_lossy(&object.value).trim_end().to_owned();
    KEYS.iter().map(|key| get(key).map(round)).collect()
}

const KEYS: [&str; 4] = ["deleted", "flash", "inline", "large"];

/// The state after the writes of a round.
fn expected(round: usize) -> Vec<Option<String>> {
    let value = |key: &&str| (*key != "deleted").then(|| format!("{key} of {round}"));
    KEYS.iter().map(value).collect()
}

#[test]
fn overwrites_that_wait_together_leave_snapshots_figures_and_space_right() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        log_capacity_bytes: Some(16 << 20),
        ..small_options(dir.path())
    }
    .tuned(|tuning| tuning.overlay_bytes = 8 << 20);
    let store = Store::open(options.clone()).unwrap();
    let mut snapshots: Vec<(usize, Snapshot)> = Vec::new();
    for turn in 0..6 {
        // Several frames wait for this one, and are handed out with it.
        hold_up(&store, b"zz");
        for round in turn * 10..turn * 10 + 10 {
            put(&store, "flash", round, 1000);
            put(&store, "inline", round, 10);
            put(&store, "large", round, if round % 2 == 0 { 20_000 } else { 500 });
            put(&store, "deleted", round, 1000);
            let mut batch = Batch::new();
            batch.delete("deleted");
            store.write(batch, Durability::Buffered).unwrap();
            store.engine().log.seal();
        }
        assert_eq!(rounds(|key| store.get(key).unwrap()), expected(turn * 10 + 9));
        snapshots.push((turn * 10 + 9, store.snapshot().unwrap()));
    }
    for (round, snapshot) in &snapshots {
        assert_eq!(rounds(|key| snapshot.get(key).unwrap()), expected(*round));
    }
    let check = |store: &Store| {
        assert_eq!(rounds(|key| store.get(key).unwrap()), expected(59));
        let count = |home| store.engine().accounting.stats(home).objects;
        let counts = [HomeKind::Inline, HomeKind::Flash, HomeKind::Block].map(count);
        // "zz" is one of them.
        assert_eq!(counts.iter().sum::<u64>(), 4, "{counts:?}");
        let errors = store.verify().unwrap().errors;
        assert!(errors.is_empty(), "{errors:?}");
    };
    check(&store);
    drop(snapshots);
    store.flush().unwrap();
    store.close().unwrap();
    drop(store);
    check(&Store::open(options).unwrap());
}
