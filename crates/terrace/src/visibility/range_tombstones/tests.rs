//! Which versions a set hides, and what bounds mean for keys.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::Durability;
use rand::{Rng, SeedableRng, rngs::StdRng};

fn range(seq: u64, start: &[u8], end: &[u8]) -> DeletedRange {
    DeletedRange {
        seq,
        start: start.into(),
        end: end.into(),
    }
}

/// Whether a key is in a range.
fn covers(range: &DeletedRange, key: &[u8]) -> bool {
    *range.start <= *key && (range.end.is_empty() || *key < *range.end)
}

#[test]
fn bounds_become_a_first_key_and_an_end() {
    let normal = |range: ScanRange| first_and_end(&range);
    let pair = |start: &[u8], end: &[u8]| Some((start.to_vec(), end.to_vec()));
    assert_eq!(normal(ScanRange::all()), pair(&[0], b""));
    assert_eq!(normal(ScanRange::prefix("")), pair(&[0], b""));
    assert_eq!(normal(ScanRange::prefix("a/")), pair(b"a/", b"a0"));
    assert_eq!(normal(ScanRange::prefix([0xff, 0xff])), pair(&[0xff, 0xff], b""));
    assert_eq!(normal(ScanRange::range("a".."c")), pair(b"a", b"c"));
    assert_eq!(normal(ScanRange::range("a"..="c")), pair(b"a", b"c\0"));
    assert_eq!(normal(ScanRange::all().after("k")), pair(b"k\0", b""));
    assert_eq!(normal(ScanRange::range("c".."a")), None);
    assert_eq!(normal(ScanRange::range("c".."c")), None);
    assert_eq!(normal(ScanRange::range(..="")), None);
    assert_eq!(normal(ScanRange::range("a"..="a")), pair(b"a", b"a\0"));
    let longest = vec![b'k'; KEY_BYTES_MAX];
    let mut next = longest.clone();
    next[KEY_BYTES_MAX - 1] = b'l';
    assert_eq!(
        normal(ScanRange::range(longest.clone()..=longest.clone())),
        pair(&longest, &next)
    );
    let last = vec![0xff; KEY_BYTES_MAX];
    assert_eq!(normal(ScanRange::range(last.clone()..=last.clone())), pair(&last, b""));
    assert_eq!(normal(ScanRange::all().after(&last)), None);
    // Longer than any key: what it means for keys is what its first 4096 bytes say.
    let longer = [&longest[..], b"x"].concat();
    assert_eq!(normal(ScanRange::range(longer.clone()..)), pair(&next, b""));
    assert_eq!(normal(ScanRange::range(b"a".to_vec()..longer)), pair(b"a", &next));
}

/// Against asking every range.
#[test]
fn a_set_hides_what_its_ranges_hide() {
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..300 {
        let key = |rng: &mut StdRng| -> Vec<u8> {
            let length = rng.random_range(1..4);
            (0..length).map(|_| rng.random_range(b'a'..b'd')).collect()
        };
        let mut ranges = Vec::new();
        for seq in 1..rng.random_range(2..12_u64) {
            let (start, mut end) = (key(&mut rng), key(&mut rng));
            if rng.random_bool(0.2) {
                end.clear();
            }
            if end.is_empty() || start < end {
                ranges.push(Arc::new(range(seq * 10, &start, &end)));
            }
        }
        let set = RangeSet::new(ranges.clone());
        for _ in 0..100 {
            let (key, version, seq) = (key(&mut rng), rng.random_range(0..130), rng.random_range(0..130));
            let expected = ranges
                .iter()
                .any(|range| covers(range, &key) && range.seq > version && range.seq <= seq);
            assert_eq!(
                set.hides(&key, version, seq),
                expected,
                "{key:?} {version} {seq} {ranges:?}"
            );
        }
    }
}

#[test]
fn a_set_in_hand_outlives_what_is_forgotten() {
    let ranges = Ranges::starting_with(vec![range(7, b"b", b"d"), range(3, b"a", b"c")]);
    assert_eq!(ranges.up_to(6), [Arc::new(range(3, b"a", b"c"))]);
    let before = ranges.current().unwrap();
    ranges.forget(&[3]);
    ranges.add(range(9, b"x", b""), Durability::Buffered);
    assert!(before.hides(b"a", 2, u64::MAX) && !before.hides(b"y", 2, u64::MAX));
    let now = ranges.current().unwrap();
    assert!(!now.hides(b"a", 2, u64::MAX) && now.hides(b"y", 8, 9) && !now.hides(b"y", 8, 8));
    ranges.forget(&[7, 9]);
    assert!(ranges.current().is_none() && ranges.has_room());
    assert!(ranges.current_with(|| ()).0.is_none());
}

#[test]
fn there_is_room_for_so_many_and_so_long() {
    let ranges = Ranges::default();
    for seq in 1..=RANGES_MAX as u64 {
        assert!(ranges.has_room());
        ranges.add(range(seq, format!("{seq}").as_bytes(), b""), Durability::Buffered);
    }
    assert!(!ranges.has_room());
    let ranges = Ranges::default();
    for seq in 1..=8 {
        assert!(ranges.has_room());
        ranges.add(range(seq, &[1; 4096], &[2; 4096]), Durability::Buffered);
    }
    assert!(!ranges.has_room());
}
