//! What the ordered index relies on in lsm-tree, tested on the library itself. A new version of it
//! is taken only if these pass; each test says which rule of ours stands on it.
#![allow(clippy::unwrap_used)]

use super::{item_seqno, read_seqno};
use crate::test_common::copy_directory;
use lsm_tree::{
    AbstractTree as _, AnyTree, Config, InternalValue, SeqNo, SequenceNumberCounter, Tree, ValueType,
    compaction::{Leveled, PullDown},
};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

fn open(dir: &Path) -> (Tree, SequenceNumberCounter) {
    let seqno = SequenceNumberCounter::default();
    match Config::new(dir, seqno.clone(), SequenceNumberCounter::default())
        .open()
        .unwrap()
    {
        AnyTree::Standard(tree) => (tree, seqno),
        AnyTree::Blob(_) => unreachable!(),
    }
}

fn flush(tree: &Tree, watermark: SeqNo) {
    tree.rotate_memtable();
    tree.flush(&tree.get_flush_lock(), watermark).unwrap();
}

fn text(tree: &Tree, key: &str, seqno: SeqNo) -> Option<String> {
    let value = tree.get(key, seqno).unwrap()?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}

/// Snapshots read at `read_seqno`, the next commit's.
#[test]
fn a_read_shows_what_is_strictly_below_its_seqno() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, _) = open(dir.path());
    tree.insert("k", "5", 5);
    tree.insert("k", "9", 9);
    for flushed in [false, true] {
        assert_eq!(text(&tree, "k", 5), None, "flushed {flushed}");
        assert_eq!(text(&tree, "k", 6).as_deref(), Some("5"));
        assert_eq!(text(&tree, "k", 9).as_deref(), Some("5"));
        assert_eq!(text(&tree, "k", 10).as_deref(), Some("9"));
        assert_eq!(text(&tree, "k", SeqNo::MAX).as_deref(), Some("9"));
        tree.rotate_memtable();
        // The state this installs has seqno 0, so that all reads use it; watermark 1 drops nothing.
        tree.flush(&tree.get_flush_lock(), 1).unwrap();
    }
}

/// Why the mark is not under the empty key.
#[test]
fn the_empty_key_is_refused() {
    let refused = catch_unwind(|| InternalValue::from_components(b"", b"", 1, ValueType::Value));
    assert!(refused.is_err());
}

/// Why the highest persisted seqno cannot say where replay starts.
#[test]
fn the_highest_persisted_seqno_falls_when_tombstones_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    tree.insert("a", "1", 1);
    tree.insert("b", "2", 2);
    tree.remove("b", 3);
    seqno.fetch_max(4);
    flush(&tree, 4);
    assert_eq!(tree.get_highest_persisted_seqno(), Some(3));
    tree.major_compact(64 << 20, 4).unwrap();
    assert_eq!(tree.get_highest_persisted_seqno(), Some(1));
}

/// States take the counter's value and raise it; reads use the newest state strictly below their
/// seqno; rotation changes the live state in place.
#[test]
fn reads_use_the_state_of_their_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    tree.insert("k", "5", item_seqno(5));
    seqno.fetch_max(item_seqno(5));
    tree.rotate_memtable();
    tree.insert("k", "6", item_seqno(6));
    seqno.fetch_max(item_seqno(6));
    assert_eq!(
        text(&tree, "k", read_seqno(6)).as_deref(),
        Some("6"),
        "rotation is in place"
    );
    // The flush drops nothing it meets, but the state it installs is not used by a snapshot at 5.
    tree.flush(&tree.get_flush_lock(), read_seqno(5)).unwrap();
    assert_eq!(seqno.get(), item_seqno(6) + 1, "one seqno per state");
    assert_eq!(tree.version_free_list_len(), 1, "the old state is kept");
    flush(&tree, read_seqno(5));
    for (seq, expected) in [(4, None), (5, Some("5")), (6, Some("6"))] {
        assert_eq!(text(&tree, "k", read_seqno(seq)).as_deref(), expected);
    }
}

/// The exact rule of the watermark: of one key, every item behind a newer one goes if it is below
/// the watermark, whether or not that newer one is. A snapshot between the two still finds it,
/// because it uses the older state; maintenance keeps the newest state below the watermark and all
/// after it.
#[test]
fn the_watermark_drops_shadowed_items_below_it_and_keeps_the_states_above() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    for seq in [5, 10] {
        tree.insert("k", seq.to_string(), item_seqno(seq));
        seqno.fetch_max(item_seqno(seq));
    }
    flush(&tree, read_seqno(8));
    assert_eq!(
        text(&tree, "k", read_seqno(8)).as_deref(),
        Some("5"),
        "from the old state"
    );
    assert_eq!(text(&tree, "k", read_seqno(10)).as_deref(), Some("10"));
    assert_eq!(tree.version_free_list_len(), 1);
    drop(tree);
    let (tree, _) = open(dir.path());
    assert_eq!(text(&tree, "k", read_seqno(8)), None, "it is not in the table any more");
    assert_eq!(text(&tree, "k", read_seqno(10)).as_deref(), Some("10"));
    // At the boundary: an item whose seqno equals the watermark stays, one below it goes.
    for (watermark, kept) in [(item_seqno(5), true), (item_seqno(5) + 1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (tree, seqno) = open(dir.path());
        tree.insert("k", "5", item_seqno(5));
        tree.insert("k", "10", item_seqno(10));
        seqno.fetch_max(item_seqno(10));
        flush(&tree, watermark);
        drop(tree);
        let (tree, _) = open(dir.path());
        assert_eq!(text(&tree, "k", read_seqno(8)).is_some(), kept, "watermark {watermark}");
    }
}

/// Maintenance frees a state as soon as a newer one is below the watermark.
#[test]
fn old_states_are_freed_by_the_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    for seq in 1..=5 {
        tree.insert("k", seq.to_string(), item_seqno(seq));
        seqno.fetch_max(item_seqno(seq));
        flush(&tree, read_seqno(1));
    }
    // States have seqnos 0, 1', 2', … 5'; a reader at 1 uses 1'. Only the one of seqno 0 is gone.
    assert_eq!(tree.version_free_list_len(), 4);
    tree.insert("k", "6", item_seqno(6));
    seqno.fetch_max(item_seqno(6));
    flush(&tree, read_seqno(6));
    assert_eq!(tree.version_free_list_len(), 0);
    let vanished = catch_unwind(AssertUnwindSafe(|| tree.get("k", read_seqno(5))));
    assert!(vanished.is_err(), "why get_at checks the watermark first");
}

/// By itself, too: it installs no state and takes no seqno. A state whose successor is not below
/// the watermark stays, with its tables.
#[test]
fn maintenance_alone_frees_states_and_their_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    for seq in 1..=3 {
        tree.insert("k", seq.to_string(), item_seqno(seq));
        seqno.fetch_max(item_seqno(seq));
        flush(&tree, read_seqno(1));
    }
    tree.major_compact(u64::MAX, read_seqno(1)).unwrap();
    let tables = || std::fs::read_dir(dir.path().join("tables")).unwrap().count();
    let before = (tree.current_version().id(), seqno.get());
    let mut seen = Vec::new();
    for seq in [1, 2, 3] {
        tree.get_version_history_lock()
            .maintenance(dir.path(), read_seqno(seq))
            .unwrap();
        assert_eq!(text(&tree, "k", read_seqno(seq)), Some(seq.to_string()));
        seen.push((tree.version_free_list_len(), tables()));
    }
    assert_eq!(seen, [(3, 4), (2, 4), (0, 1)]);
    assert_eq!((tree.current_version().id(), seqno.get()), before);
}

/// After an open there is one state, which every read uses.
#[test]
fn the_state_after_an_open_has_seqno_zero() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    tree.insert("k", "5", item_seqno(5));
    seqno.fetch_max(item_seqno(5));
    flush(&tree, read_seqno(5));
    drop(tree);
    let (tree, seqno) = open(dir.path());
    assert_eq!(seqno.get(), 0, "the counter is ours to restore");
    assert_eq!(text(&tree, "k", 1), None);
    assert_eq!(text(&tree, "k", read_seqno(5)).as_deref(), Some("5"));
}

/// The applier inserts into the memtable it holds, without the library's lock.
#[test]
fn inserting_into_the_memtable_counts_its_size_and_is_seen_by_every_state_that_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    tree.insert("a", "1", item_seqno(1));
    seqno.fetch_max(item_seqno(1));
    tree.rotate_memtable();
    let memtable = tree.active_memtable();
    let item = InternalValue::from_components("k", "2", item_seqno(2), ValueType::Value);
    let (added, total) = memtable.insert(item.clone());
    assert_eq!((added, total), (memtable.size(), memtable.size()));
    assert_eq!(memtable.get_highest_seqno(), Some(item_seqno(2)));
    // A flush of the sealed one keeps the active one active.
    tree.flush(&tree.get_flush_lock(), 0).unwrap();
    memtable.insert(InternalValue::from_components(
        "k",
        "3",
        item_seqno(3),
        ValueType::Value,
    ));
    assert_eq!(text(&tree, "k", SeqNo::MAX).as_deref(), Some("3"));
    assert_eq!(text(&tree, "k", read_seqno(2)).as_deref(), Some("2"));
    assert!(Arc::ptr_eq(&memtable, &tree.active_memtable()));
    // The same key and seqno again replaces it.
    memtable.insert(InternalValue::from_components(
        "k",
        "x",
        item_seqno(3),
        ValueType::Value,
    ));
    assert_eq!(text(&tree, "k", SeqNo::MAX).as_deref(), Some("x"));
}

/// A returned flush is on flash: a copy of the directory, taken while the tree is open, has it.
#[test]
fn a_flush_that_returned_is_in_the_directory_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(&dir.path().join("live"));
    for round in 1..=30_u64 {
        tree.insert(format!("k{}", round % 7), round.to_string(), round);
        seqno.fetch_max(round);
        tree.rotate_memtable();
        if round % 3 == 0 {
            tree.flush(&tree.get_flush_lock(), round + 1).unwrap();
        }
        if round % 5 == 0 {
            tree.compact(Arc::new(Leveled::default()), round + 1).unwrap();
        }
        let copy = dir.path().join(format!("copy{round}"));
        copy_directory(&dir.path().join("live"), &copy).unwrap();
        let (copied, _) = open(&copy);
        let persisted = round - round % 3;
        for key in 0..7 {
            let expected = (1..=persisted).rev().find(|at| at % 7 == key);
            let expected = expected.map(|at| at.to_string());
            assert_eq!(text(&copied, &format!("k{key}"), SeqNo::MAX), expected);
        }
    }
}

/// A failed flush leaves the memtables sealed; the next open removes what it wrote.
#[test]
fn a_failed_flush_keeps_its_memtables_and_its_files_are_removed_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, _) = open(dir.path());
    tree.insert("a", "1", 1);
    flush(&tree, 0);
    tree.insert("b", "2", 2);
    tree.rotate_memtable();
    // The table can be written, the next state cannot: its name is taken by a directory.
    let next_state = dir.path().join(format!("v{}", tree.current_version().id() + 1));
    fs::create_dir(&next_state).unwrap();
    assert!(tree.flush(&tree.get_flush_lock(), 0).is_err());
    assert_eq!(tree.sealed_memtable_count(), 1);
    assert_eq!(text(&tree, "b", SeqNo::MAX).as_deref(), Some("2"));
    let tables = |dir: &Path| fs::read_dir(dir.join("tables")).unwrap().count();
    assert_eq!(tables(dir.path()), 2);
    let copy = tempfile::tempdir().unwrap();
    fs::remove_dir(&next_state).unwrap();
    copy_directory(dir.path(), copy.path()).unwrap();
    let (copied, _) = open(copy.path());
    assert_eq!(tables(copy.path()), 1, "the orphan is gone");
    assert_eq!(text(&copied, "a", SeqNo::MAX).as_deref(), Some("1"));
    assert_eq!(text(&copied, "b", SeqNo::MAX), None);
    tree.flush(&tree.get_flush_lock(), 0).unwrap();
    assert_eq!(tree.sealed_memtable_count(), 0);
    drop(tree);
    let (tree, _) = open(dir.path());
    assert_eq!(text(&tree, "b", SeqNo::MAX).as_deref(), Some("2"));
    assert_eq!(tables(dir.path()), 2);
}

/// For a rebuild: keys come in order, all items get the one seqno the counter had, above everything
/// flushed, and what was in memory is flushed first.
#[test]
fn ingested_items_share_the_next_seqno() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    tree.insert("a", "old", 3);
    tree.insert("z", "old", 3);
    seqno.fetch_max(10);
    let any = AnyTree::Standard(tree);
    let mut ingestion = any.ingestion().unwrap();
    ingestion.write("a", "new").unwrap();
    ingestion.write("b", "new").unwrap();
    let unordered = catch_unwind(AssertUnwindSafe(|| ingestion.write("a", "again")));
    assert!(unordered.is_err(), "keys must ascend");
    ingestion.finish().unwrap();
    let AnyTree::Standard(tree) = any else { unreachable!() };
    // The flush took 10, the ingestion 11.
    assert_eq!(seqno.get(), 12);
    let seqno_of = |key: &str| {
        tree.get_internal_entry(key.as_bytes(), SeqNo::MAX)
            .unwrap()
            .unwrap()
            .key
            .seqno
    };
    assert_eq!((seqno_of("a"), seqno_of("b"), seqno_of("z")), (11, 11, 3));
    assert_eq!(text(&tree, "a", 11).as_deref(), Some("old"), "an older snapshot");
    assert_eq!(text(&tree, "a", SeqNo::MAX).as_deref(), Some("new"));
    assert_eq!(tree.get_highest_persisted_seqno(), Some(11));
}

/// Merges for readers are told to the library so.
#[test]
fn a_level_can_be_merged_into_another_whatever_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, seqno) = open(dir.path());
    for seq in 1..=4_u64 {
        tree.insert("all", seq.to_string(), item_seqno(seq));
        tree.insert(format!("only {seq}"), seq.to_string(), item_seqno(seq));
        if seq == 4 {
            tree.remove("only 2", item_seqno(seq));
        }
        seqno.fetch_max(item_seqno(seq));
        flush(&tree, read_seqno(seq));
        if seq == 2 {
            tree.compact(Arc::new(PullDown(0, 6)), read_seqno(seq)).unwrap();
            assert_eq!((tree.l0_run_count(), tree.table_count()), (0, 1));
        }
    }
    assert_eq!((tree.l0_run_count(), tree.table_count()), (2, 3));
    tree.compact(Arc::new(PullDown(0, 6)), read_seqno(4)).unwrap();
    assert_eq!((tree.l0_run_count(), tree.table_count()), (0, 1));
    assert_eq!(text(&tree, "all", SeqNo::MAX).as_deref(), Some("4"));
    assert_eq!(text(&tree, "only 1", SeqNo::MAX).as_deref(), Some("1"));
    assert_eq!(text(&tree, "only 2", SeqNo::MAX), None);
    assert_eq!(
        tree.tombstone_count(),
        0,
        "in the last level there is nothing left to hide"
    );
}

/// A lookup hashes its key once, and may ask tables without memtables.
#[test]
fn tables_are_asked_by_the_hash_of_the_key_that_is_ours() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, _) = open(dir.path());
    let key = |n: u64| format!("key {n}");
    for n in 0..1000 {
        tree.insert(key(n), "1", item_seqno(1));
    }
    flush(&tree, 0);
    tree.insert("only in the memtable", "1", item_seqno(2));
    let state = tree.current_version();
    let from_tables = |key: &str| {
        let run = state.l0().first_run()?;
        let table = run.get_for_key(key.as_bytes())?;
        let hash = crate::key_hash(key.as_bytes());
        table.get(key.as_bytes(), SeqNo::MAX, hash).unwrap()
    };
    assert!((0..1000).all(|n| from_tables(&key(n)).is_some_and(|item| &*item.value == b"1")));
    assert!(from_tables("key x").is_none() && from_tables("only in the memtable").is_none());
}
