//! Scans of the ordered index that are read from both ends while everything changes between any two
//! of their steps.
#![allow(clippy::unwrap_used)]

use super::{tests::*, *};
use crate::KEY_BYTES_MAX;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);

/// Keys and the versions of their entries.
type State = BTreeMap<Vec<u8>, u64>;

/// What a bounded part of a state holds.
fn part(state: &State, bounds: &KeyBounds) -> VecDeque<(Vec<u8>, u64)> {
    let above = |key: &Vec<u8>| match &bounds.0 {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    let below = |key: &Vec<u8>| match &bounds.1 {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    };
    let within = state.iter().filter(|(key, _)| above(key) && below(key));
    within.map(|(key, version)| (key.clone(), *version)).collect()
}

fn shown(item: Option<Result<(bytes::Bytes, Entry)>>) -> Option<(Vec<u8>, u64)> {
    item.map(|item| {
        let (key, entry) = item.unwrap();
        (key.to_vec(), entry.version.0)
    })
}

/// The mark was inserted into the memtable that a scan was reading, after all items that the scan
/// had seen. The library's iterator treated it as another version of the current key, and that key
/// (d here) was missing from the scan.
#[test]
fn a_memtable_sealed_meanwhile_takes_nothing_from_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    for key in [b"a", b"b", b"e", b"f"] {
        applier.insert(key, &flash_entry(1), 1);
    }
    applier.applied(1);
    applier.rotate(mark(1)).unwrap();
    index.flush_sealed(1).unwrap();
    applier.insert(b"d", &flash_entry(2), 2);
    applier.applied(2);
    let mut scan = index.scan(ALL, 2).unwrap();
    let key = |item| shown(item).map(|(key, _)| String::from_utf8(key).unwrap());
    assert_eq!(key(scan.next()).as_deref(), Some("a"));
    assert_eq!(key(scan.next_back()).as_deref(), Some("f"));
    applier.rotate(mark(2)).unwrap();
    index.flush_sealed(2).unwrap();
    assert_eq!(key(scan.next_back()).as_deref(), Some("e"));
    assert_eq!(key(scan.next_back()).as_deref(), Some("d"));
    assert_eq!(key(scan.next_back()).as_deref(), Some("b"));
    assert_eq!(key(scan.next_back()), None);
    assert_eq!(key(scan.next()), None);
}

/// A scan under way, and what it still has to show.
struct Reading {
    scan: IndexScan,
    left: VecDeque<(Vec<u8>, u64)>,
}

/// An index and all its states that can still be read.
struct World {
    index: Arc<OrderedIndex>,
    applier: Applier,
    rng: StdRng,
    states: BTreeMap<u64, State>,
}

impl World {
    fn seq(&self) -> u64 {
        *self.states.keys().last().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..200) {
            0 => vec![0xff; KEY_BYTES_MAX],
            1 => vec![0xff; 3],
            2 => vec![0],
            number => format!("{}/{:090}", ["k", "l", "m"][number % 3], number).into_bytes(),
        }
    }

    /// A commit of a few puts, overwrites and deletes.
    fn commit(&mut self) {
        let seq = self.seq() + 1;
        let mut state = self.states[&(seq - 1)].clone();
        for _ in 0..self.rng.random_range(0..3) {
            let key = self.key();
            if self.rng.random_bool(0.6) {
                self.applier.insert(&key, &flash_entry(seq), seq);
                state.insert(key, seq);
            } else {
                self.applier.remove(&key, seq);
                state.remove(&key);
            }
        }
        self.applier.applied(seq);
        self.states.insert(seq, state);
        // Snapshots of the last commits are kept.
        while self.states.len() > 5 {
            self.states.pop_first();
        }
    }

    fn change(&mut self) {
        let kind = self.rng.random_range(0..12);
        self.change_by(kind);
    }

    fn change_by(&mut self, kind: u32) {
        let oldest = *self.states.keys().next().unwrap();
        match kind {
            0..7 => self.commit(),
            7..9 => drop(self.applier.rotate(mark(self.seq())).unwrap()),
            9..11 => {
                self.applier.rotate(mark(self.seq())).unwrap();
                self.index.flush_sealed(oldest).unwrap();
            }
            _ => while self.index.compact(oldest).unwrap() {},
        }
    }

    /// Any bound: none, a key, what is no key's beginning, and what is too long to be a key.
    fn bound(&mut self) -> Bound<Vec<u8>> {
        let mut key = self.key();
        match self.rng.random_range(0..9) {
            0..3 => return Bound::Unbounded,
            3 => key.truncate(1),
            4 => key.resize(
                [KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 70_000][self.rng.random_range(0..3)],
                0xff,
            ),
            5 => key.resize(KEY_BYTES_MAX + 1, 0),
            _ => {}
        }
        if self.rng.random_bool(0.5) {
            Bound::Included(key)
        } else {
            Bound::Excluded(key)
        }
    }

    fn scan(&mut self) -> Reading {
        let bounds = if self.rng.random_bool(0.5) {
            ALL
        } else {
            (self.bound(), self.bound())
        };
        let held: Vec<u64> = self.states.keys().copied().collect();
        let newest = self.rng.random_bool(0.5);
        let seq = held[if newest {
            held.len() - 1
        } else {
            self.rng.random_range(0..held.len())
        }];
        Reading {
            left: part(&self.states[&seq], &bounds),
            scan: self.index.scan(bounds, seq).unwrap(),
        }
    }
}

impl Reading {
    /// Does a few steps; whether it is over.
    fn go_on(&mut self, rng: &mut StdRng) -> bool {
        let from_behind = [0.0, 0.2, 0.5, 0.8][rng.random_range(0..4)];
        for _ in 0..rng.random_range(1..20) {
            let (item, expected) = if rng.random_bool(from_behind) {
                (shown(self.scan.next_back()), self.left.pop_back())
            } else {
                (shown(self.scan.next()), self.left.pop_front())
            };
            assert_eq!(item, expected);
            if item.is_none() {
                return true;
            }
        }
        false
    }
}

/// Every object of the scan's moment comes once, in order, from whichever end, however the index
/// changes between the steps.
#[test]
fn any_order_of_steps_and_changes_shows_the_moment_of_the_scan() {
    for seed in 0..8 {
        println!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let applier = index.applier().unwrap();
        let rng = StdRng::seed_from_u64(seed);
        let states = BTreeMap::from([(0, State::new())]);
        let mut world = World {
            index,
            applier,
            rng,
            states,
        };
        for _ in 0..100 {
            world.change();
        }
        let mut under_way: Vec<Reading> = Vec::new();
        for _ in 0..300 {
            if under_way.len() < 4 {
                // The fewer items the memtable has, the sooner a scan has seen the end of it.
                if world.rng.random_bool(0.7) {
                    world.change_by(10);
                    world.commit();
                }
                let mut reading = world.scan();
                if !reading.go_on(&mut world.rng) {
                    under_way.push(reading);
                }
            }
            for _ in 0..world.rng.random_range(0..3) {
                world.change();
            }
            if under_way.is_empty() {
                continue;
            }
            let at = world.rng.random_range(0..under_way.len());
            if under_way[at].go_on(&mut world.rng) {
                under_way.swap_remove(at);
            }
        }
    }
}
