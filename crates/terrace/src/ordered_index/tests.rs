//! Tests of the ordered index as its callers see it.
#![allow(clippy::unwrap_used)]

use super::{background::Choice, mark::MARK_KEY, *};
use crate::{ATTRIBUTES_BYTES_MAX, Version, api::object::Extent};
use bytes::Bytes;
use lsm_tree::compaction::{MoveDown, PullDown};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{ops::Bound, path::Path};

/// Small everything, so that few operations make many tables in several levels.
pub(super) const SMALL: IndexOptions = IndexOptions {
    guards: false,
    cache_bytes: 1 << 20,
    memtable_bytes: 8 << 10,
    table_bytes: 4 << 10,
};

pub(super) fn flash_entry(version: u64) -> Entry {
    Entry {
        version: Version(version),
        length: version % 5000,
        checksum: u32::try_from(version % 0xFFFF_FFFF).unwrap(),
        home: Home::Flash {
            address: version * 4096 % ADDRESS_LIMIT,
        },
        attributes: Bytes::new(),
        copy: None,
    }
}

pub(super) fn open(dir: &Path) -> (Arc<OrderedIndex>, Option<IndexMark>) {
    let (index, mark) = OrderedIndex::open(dir, SMALL).unwrap();
    (Arc::new(index), mark)
}

impl Applier {
    /// Removes an entry by its key alone.
    pub(super) fn remove(&mut self, key: &[u8], seq: u64) {
        self.remove_with_hash(key, crate::key_hash(key), seq);
    }
}

/// An index with a memtable of one entry, sealed and not flushed.
pub(super) fn with_one_sealed(dir: &Path) -> (Arc<OrderedIndex>, Applier) {
    let (index, _) = open(dir);
    let mut applier = index.applier().unwrap();
    applier.insert(b"a", &flash_entry(1), 1);
    applier.applied(1);
    applier.rotate(mark(1)).unwrap();
    (index, applier)
}

pub(super) fn mark(applied_seq: u64) -> IndexMark {
    IndexMark {
        applied_seq,
        payload: Bytes::from(format!("accounting as of {applied_seq}")),
    }
}

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);

fn keys(scan: IndexScan) -> Vec<String> {
    scan.map(|item| String::from_utf8(item.unwrap().0.to_vec()).unwrap())
        .collect()
}

fn encoded(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    entry.encode_into(&mut out);
    out
}

#[test]
fn golden_bytes() {
    let mut entry = Entry {
        version: Version(0x0605_0403_0201),
        length: 0x0D0C_0B0A,
        checksum: 0x1413_1211,
        home: Home::Flash {
            address: 0xE5_E4E3_E2E1,
        },
        attributes: Bytes::new(),
        copy: None,
    };
    let flash = "120102030405 06e1e2e3e4e5 0a0b0c0d 11121314";
    assert_eq!(hex(&encoded(&entry)), flash.replace(' ', ""));
    entry.attributes = Bytes::from_static(&[0xAA, 0xBB]);
    assert_eq!(
        hex(&encoded(&entry)),
        flash.replacen("12", "1a", 1).replace(' ', "") + "aabb"
    );
    entry.length = 3;
    entry.copy = Some(Bytes::from_static(b"xyz"));
    let copy = "1c 010203040506 e1e2e3e4e5 03000000 11121314 78797a aabb";
    assert_eq!(hex(&encoded(&entry)), copy.replace(' ', ""));
    entry.length = 0x0D0C_0B0A;
    entry.copy = None;
    entry.home = Home::Block(Extent {
        block: 0x2625_2423_2221,
        offset: 0x35_3433_3231,
        extent_bytes: 0x45_4443_4241,
        length: entry.length,
    });
    let block = "1b 010203040506 0a0b0c0d00 11121314 212223242526 3132333435 4142434445 aabb";
    assert_eq!(hex(&encoded(&entry)), block.replace(' ', ""));
    entry.home = Home::Inline(Bytes::from_static(b"xyz"));
    entry.length = 3;
    assert_eq!(
        hex(&encoded(&entry)),
        "19010203040506111213140300007".to_owned() + "8797aaabb"
    );
    entry.attributes = Bytes::new();
    assert_eq!(hex(&encoded(&entry)), "110102030405061112131478797a");

    let mark = IndexMark {
        applied_seq: 0x0807_0605_0403_0201,
        payload: Bytes::from_static(b"pay"),
    };
    let bytes = mark.encode();
    assert_eq!(
        hex(&bytes[..20]),
        "5449584d010000000102030405060708 03000000".replace(' ', "")
    );
    assert_eq!(&bytes[24..], b"pay");
    let mut covered = bytes[..20].to_vec();
    covered.extend_from_slice(b"pay");
    assert_eq!(bytes[20..24], crc32c::crc32c(&covered).to_le_bytes());
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn entries_come_back_as_they_were() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..2000 {
        let inline_bytes = rng.random_range(0..40);
        let home = match rng.random_range(0..3) {
            0 => Home::Inline(Bytes::from(vec![7; inline_bytes])),
            1 => Home::Flash {
                address: rng.random_range(0..ADDRESS_LIMIT),
            },
            _ => Home::Block(Extent {
                block: rng.random_range(0..BLOCK_LIMIT),
                offset: rng.random_range(0..ADDRESS_LIMIT),
                extent_bytes: rng.random_range(0..ADDRESS_LIMIT),
                length: rng.random_range(0..=crate::VALUE_BYTES_MAX),
            }),
        };
        let copied_bytes = rng.random_range(0..300);
        let is_flash = matches!(home, Home::Flash { .. });
        let copy = (is_flash && rng.random_bool(0.5)).then(|| Bytes::from(vec![8; copied_bytes]));
        let length = match &home {
            Home::Inline(value) => value.len() as u64,
            Home::Flash { .. } if copy.is_some() => copied_bytes as u64,
            Home::Flash { .. } => rng.random_range(0..1 << 32),
            Home::Block(extent) => extent.length,
        };
        let attributes_bytes = *[0, 0, 1, 30, ATTRIBUTES_BYTES_MAX].choose(&mut rng).unwrap();
        let entry = Entry {
            version: Version(rng.random_range(0..VERSION_LIMIT)),
            length,
            checksum: rng.random(),
            home,
            attributes: Bytes::from(vec![9; attributes_bytes]),
            copy,
        };
        assert_eq!(Entry::decode(&encoded(&entry)), Some(entry));
    }
}

#[test]
fn decoding_takes_any_bytes_and_only_canonical_ones_pass() {
    let mut rng = StdRng::seed_from_u64(2);
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut bytes = vec![0; rng.random_range(0..60)];
        rng.fill(bytes.as_mut_slice());
        if let Some(first) = bytes.first_mut()
            && rng.random_bool(0.9)
        {
            *first = 0x10 | (*first & 0x0F);
        }
        if let Some(entry) = Entry::decode(&bytes) {
            accepted += 1;
            assert_eq!(encoded(&entry), bytes);
        }
        assert_eq!(IndexMark::decode(&bytes), None);
    }
    assert!(accepted > 10_000, "{accepted}");
    let good = mark(5).encode();
    assert_eq!(IndexMark::decode(&good), Some(mark(5)));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(IndexMark::decode(&bad), None, "byte {at}");
        assert_eq!(IndexMark::decode(&good[..at]), None);
    }
}

#[test]
#[should_panic(expected = "too large")]
fn an_address_that_does_not_fit_is_never_written() {
    let mut entry = flash_entry(1);
    entry.home = Home::Flash { address: ADDRESS_LIMIT };
    encoded(&entry);
}

#[test]
fn reads_see_what_was_applied_before_and_after_flush_and_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/index");
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let (index, found) = open(&path);
    assert_eq!(found, None);
    assert_eq!(index.flush_sealed(0).unwrap(), None);
    let mut applier = index.applier().unwrap();
    assert!(matches!(index.applier(), Err(Error::Unavailable(_))));
    for (seq, key) in [(1, "a"), (2, "b"), (3, "c")] {
        applier.insert(key.as_bytes(), &flash_entry(seq), seq);
        applier.applied(seq);
    }
    applier.remove(b"b", 4);
    applier.applied(4);
    assert_eq!(index.get(b"a").unwrap(), Some(flash_entry(1)));
    assert_eq!(index.get(b"b").unwrap(), None);
    assert_eq!(index.get_at(b"b", 3).unwrap(), Some(flash_entry(2)));
    assert_eq!(index.get_at(b"b", 1).unwrap(), None);
    assert!(applier.rotate(mark(4)).unwrap());
    assert!(!applier.rotate(mark(4)).unwrap(), "nothing new to seal");
    assert_eq!(index.sealed_count(), 1);
    assert_eq!(index.flush_sealed(2).unwrap(), Some(mark(4)));
    assert_eq!(index.sealed_count(), 0);
    assert_eq!(
        index.get_at(b"b", 3).unwrap(),
        Some(flash_entry(2)),
        "an older snapshot"
    );
    assert!(
        matches!(index.get_at(b"b", 1), Err(Error::Invalid(_))),
        "older than the watermark"
    );
    assert_eq!(keys(index.scan(ALL, 4).unwrap()), ["a", "c"]);
    assert_eq!(keys(index.scan(ALL, 3).unwrap()), ["a", "b", "c"]);
    let stats = index.stats();
    assert_eq!((stats.tables, stats.persisted_seq, stats.flushes), (1, 4, 1));
    // A commit that is only in memory is gone at the next open, to be replayed.
    applier.insert(b"d", &flash_entry(5), 5);
    applier.applied(5);
    drop((applier, index));
    let (index, found) = open(&path);
    assert_eq!(found, Some(mark(4)));
    assert_eq!(keys(index.scan(ALL, 4).unwrap()), ["a", "c"]);
    let mut applier = index.applier().unwrap();
    applier.insert(b"d", &flash_entry(5), 5);
    assert_eq!(index.get_at(b"d", 4).unwrap(), None);
    applier.applied(5);
    assert_eq!(index.get_at(b"d", 5).unwrap(), Some(flash_entry(5)));
}

#[test]
fn scans_respect_bounds_from_both_ends_and_never_show_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let last = vec![0xFF; crate::KEY_BYTES_MAX];
    for key in [&b"\x00"[..], b"b", b"d", b"f", &last] {
        applier.insert(key, &flash_entry(1), 1);
    }
    applier.applied(1);
    for flushed in [false, true] {
        let found = |lower: Bound<&[u8]>, upper: Bound<&[u8]>| -> Vec<Vec<u8>> {
            let bounds = (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec));
            let forward: Vec<Vec<u8>> = index
                .scan(bounds.clone(), 1)
                .unwrap()
                .map(|item| item.unwrap().0.to_vec())
                .collect();
            let backward = index.scan(bounds, 1).unwrap().rev();
            let mut backward: Vec<Vec<u8>> = backward.map(|item| item.unwrap().0.to_vec()).collect();
            backward.reverse();
            assert_eq!(forward, backward, "flushed {flushed}");
            forward
        };
        use Bound::{Excluded, Included, Unbounded};
        assert_eq!(found(Unbounded, Unbounded).len(), 5);
        assert_eq!(found(Included(b""), Included(&MARK_KEY)).len(), 5);
        assert_eq!(found(Included(&MARK_KEY), Unbounded).len(), 0);
        assert_eq!(found(Included(&[0xFF; 6000]), Included(&[0xFF; 6001])).len(), 0);
        assert_eq!(found(Included(&last), Included(&last)), std::slice::from_ref(&last));
        assert_eq!(found(Included(b"b"), Excluded(b"f")), [b"b", b"d"]);
        assert_eq!(found(Excluded(b"b"), Included(b"f")), [b"d", b"f"]);
        assert_eq!(found(Included(b"f"), Included(b"b")).len(), 0, "upside down");
        assert_eq!(found(Excluded(b"b"), Excluded(b"b")).len(), 0);
        let mut both = index.scan(ALL, 1).unwrap();
        assert_eq!(both.next().unwrap().unwrap().0, b"\x00"[..]);
        assert_eq!(both.next_back().unwrap().unwrap().0, last);
        assert_eq!(both.by_ref().count(), 3);
        applier.rotate(mark(1)).unwrap();
        index.flush_sealed(0).unwrap();
    }
}

#[test]
fn a_scan_keeps_its_state_while_everything_below_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let mut scan = None;
    for seq in 1..=200_u64 {
        for key in 0..50_u64 {
            applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
        }
        applier.applied(seq);
        if seq == 20 {
            scan = Some(index.scan(ALL, 20).unwrap());
        }
        if seq % 10 == 0 {
            applier.rotate(mark(seq)).unwrap();
            index.flush_sealed(seq).unwrap();
            while index.compact(seq).unwrap() {}
        }
    }
    let found: Vec<u64> = scan.unwrap().map(|item| item.unwrap().1.version.0).collect();
    assert_eq!(found, vec![20; 50]);
}

#[test]
#[should_panic(expected = "is applied after")]
fn a_commit_already_in_the_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    applier.applied(7);
    applier.insert(b"a", &flash_entry(7), 7);
}

#[test]
fn commits_may_be_applied_together_in_key_order() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    for (key, seq) in [("a", 3), ("a", 1), ("b", 2), ("c", 3), ("c", 2)] {
        applier.insert(key.as_bytes(), &flash_entry(seq), seq);
    }
    applier.applied(3);
    for flushed in [false, true] {
        let version = |key: &str, seq| index.get_at(key.as_bytes(), seq).unwrap().map(|entry| entry.version.0);
        assert_eq!(
            [version("a", 1), version("b", 1), version("c", 1)],
            [Some(1), None, None]
        );
        assert_eq!(
            [version("a", 2), version("b", 2), version("c", 2)],
            [Some(1), Some(2), Some(2)]
        );
        assert_eq!(
            [version("a", 3), version("b", 3), version("c", 3)],
            [Some(3), Some(2), Some(3)],
            "{flushed}"
        );
        applier.rotate(mark(3)).unwrap();
        index.flush_sealed(0).unwrap();
    }
}

#[test]
fn a_full_device_is_out_of_space() {
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let failed = errors::guarded_write("flushing", || Err::<(), _>(lsm_tree::Error::Io(full())));
    assert!(matches!(
        failed,
        Err(Error::OutOfSpace {
            tier: crate::Tier::Flash,
            ..
        })
    ));
    let panicked = errors::guarded_read("reading", || -> lsm_tree::Result<()> { panic!("lock is poisoned") });
    assert!(matches!(panicked, Err(Error::Corruption { reason, .. }) if reason.contains("lock is poisoned")));
}

#[test]
fn a_mark_must_say_what_is_in_its_memtable() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    applier.insert(b"a", &flash_entry(1), 1);
    assert!(
        matches!(applier.rotate(mark(0)), Err(Error::Invalid(_))),
        "commit begun"
    );
    applier.applied(1);
    assert!(matches!(applier.rotate(mark(2)), Err(Error::Invalid(_))), "not applied");
    assert!(applier.rotate(mark(1)).unwrap());
    // A commit without entries (its record concerned none) moves the mark on as well.
    applier.applied(9);
    assert!(applier.rotate(mark(9)).unwrap());
    assert_eq!(index.flush_sealed(9).unwrap(), Some(mark(9)));
    drop((applier, index));
    assert_eq!(open(dir.path()).1, Some(mark(9)));
}

#[test]
fn states_between_two_commits_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_one_sealed(dir.path());
    index.seqno.fetch_max(item_seqno(2) - 256);
    assert!(matches!(index.flush_sealed(1), Err(Error::Unavailable(_))));
    assert!(!index.compact(1).unwrap());
    index.looks.pay_for_runs(1 << 40);
    assert!(!index.merge_for_readers(1).unwrap());
    applier.applied(2);
    assert_eq!(index.flush_sealed(1).unwrap(), Some(mark(1)));
}

/// Regression: each install that failed used up a number, as each one that succeeds does. On a full
/// device two fail per second, and no commit comes. After some hours no number was left: flushes
/// were refused, which stopped all writes until the store was opened again.
#[test]
fn installs_that_fail_use_up_no_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_one_sealed(dir.path());
    index.flush_sealed(1).unwrap();
    applier.insert(b"b", &flash_entry(2), 2);
    applier.applied(2);
    applier.rotate(mark(2)).unwrap();
    // The file that lists the tables of the next state is on a full device.
    let next = format!("v{}", index.tree.current_version().id() + 1);
    std::os::unix::fs::symlink("/dev/full", dir.path().join(&next)).unwrap();
    let is_full = |failed: &Error| matches!(failed, Error::OutOfSpace { .. });
    let move_down = || Some(Choice::by(MoveDown(0, 6)));
    let moves = (0..1_u32 << UPGRADE_BITS).map(|_| index.compact_by(2, move_down));
    assert!(moves.map(Result::unwrap_err).all(|failed| is_full(&failed)));
    for _ in 0..300 {
        assert!(is_full(&index.flush_sealed(2).unwrap_err()));
    }
    // One beside a merge.
    let merge = index.compacting.lock();
    assert!(is_full(&index.flush_sealed(2).unwrap_err()));
    drop(merge);
    std::fs::remove_file(dir.path().join(next)).unwrap();
    assert!(index.compact_by(2, move_down).unwrap());
    assert_eq!(index.flush_sealed(2).unwrap(), Some(mark(2)));
    assert!(!index.compact(2).unwrap());
    assert_eq!(index.get_at(b"a", 2).unwrap(), Some(flash_entry(1)));
    drop((applier, index));
    assert_eq!(open(dir.path()).1, Some(mark(2)));
}

/// Numbers of states rise, whatever is given back: neither a state's number nor one of a commit is
/// given out again.
#[test]
fn a_number_that_is_given_back_is_above_those_of_states_and_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_one_sealed(dir.path());
    index.flush_sealed(1).unwrap();
    let installed = index.seqno.get();
    assert_eq!(installed, item_seqno(1) + 1);
    let fail = || {
        let next = dir.path().join(format!("v{}", index.tree.current_version().id() + 1));
        std::os::unix::fs::symlink("/dev/full", &next).unwrap();
        index.compact_by(1, || Some(Choice::by(MoveDown(0, 6)))).unwrap_err();
        std::fs::remove_file(next).unwrap();
    };
    // The first after a state was installed cannot tell its number from the state's.
    fail();
    fail();
    assert_eq!(index.seqno.get(), installed + 1);
    applier.applied(2);
    fail();
    assert_eq!(index.seqno.get(), item_seqno(2));
}

/// Found by a full device: of nine tables merged into one all ten stayed, and without their room
/// nothing else could ever be installed that would have let them go.
#[test]
fn tables_that_were_merged_go_although_no_flush_or_compaction_follows() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let tables = || std::fs::read_dir(dir.path().join("tables")).unwrap().count();
    for seq in 1..=3 {
        applier.insert(b"k", &flash_entry(seq), seq);
        applier.applied(seq);
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq.min(2)).unwrap();
    }
    let merge = |watermark| {
        let choice = Choice::by(PullDown(0, 6));
        assert!(index.compact_by(watermark, || Some(choice)).unwrap());
    };
    // Beside a snapshot of the state before; the same as a commit that comes while it runs.
    merge(2);
    assert_eq!((index.stats().tables, tables()), (1, 4));
    assert_eq!(index.get_at(b"k", 2).unwrap(), Some(flash_entry(2)));
    index.forget_states(2).unwrap();
    assert_eq!(index.get_at(b"k", 2).unwrap(), Some(flash_entry(2)));
    assert_eq!(tables(), 4, "the snapshot reads them");
    *index.failed.lock() = Some("the directory may name the older state".into());
    index.forget_states(3).unwrap();
    assert_eq!(tables(), 4, "an open may need them");
    *index.failed.lock() = None;
    index.forget_states(3).unwrap();
    assert_eq!(tables(), 1);
    assert_eq!(index.get_at(b"k", 3).unwrap(), Some(flash_entry(3)));
    // With no reader of an older state none is left even for a moment, though no commit came in
    // between.
    merge(3);
    assert_eq!((index.stats().tables, tables()), (1, 1));
    assert_eq!(index.get_at(b"k", 3).unwrap(), Some(flash_entry(3)));
}

#[test]
fn absent_keys_cost_under_a_hundredth_of_a_read_and_present_ones_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = IndexOptions {
        guards: false,
        cache_bytes: 0,
        memtable_bytes: 1 << 20,
        table_bytes: 1 << 20,
    };
    let (index, _) = OrderedIndex::open(dir.path(), options).unwrap();
    let index = Arc::new(index);
    let mut applier = index.applier().unwrap();
    let mut rng = StdRng::seed_from_u64(3);
    let present: Vec<u128> = (0..150_000).map(|_| rng.random()).collect();
    for (seq, key) in (1..).zip(&present) {
        applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
        applier.applied(seq);
        if applier.is_full() {
            applier.rotate(mark(seq)).unwrap();
            index.flush_sealed(seq).unwrap();
            index.compact(seq).unwrap();
        }
    }
    let last = applier.applied_seq();
    applier.rotate(mark(last)).unwrap();
    index.flush_sealed(last).unwrap();
    let before = index.stats().block_reads;
    for _ in 0..50_000 {
        let key: u128 = rng.random();
        assert_eq!(index.get(&key.to_be_bytes()).unwrap(), None);
    }
    let absent = index.stats().block_reads - before;
    let before = index.stats().block_reads;
    for key in present.choose_multiple(&mut rng, 10_000) {
        assert!(index.get(&key.to_be_bytes()).unwrap().is_some());
    }
    let found = index.stats().block_reads - before;
    let bytes_per_key = index.pinned_bytes() as f64 / present.len() as f64;
    println!(
        "tables {}, runs in L0 {}, reads per absent key {:.5}, per present key {:.4}, RAM per key {bytes_per_key:.2} bytes",
        index.stats().tables,
        index.l0_runs(),
        absent as f64 / 50_000.0,
        found as f64 / 10_000.0
    );
    assert!(absent < 500, "{absent} reads for 50,000 absent keys");
    assert!(
        (9_900..10_150).contains(&found),
        "{found} reads for 10,000 present keys"
    );
    assert!(bytes_per_key < 4.0, "{bytes_per_key}");
}
