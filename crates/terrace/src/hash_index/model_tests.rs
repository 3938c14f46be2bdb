//! The same partition under a model checker: `shuttle` runs the sources of this room with its own
//! threads, atomics and locks, and chooses at random, or by priorities, which thread takes each
//! step.
//!
//! A writer changes classes; readers look them up. Of each class a counter says what the writer has
//! begun and what it has finished (its lowest bit: present, at an address made of class and
//! counter). A lookup is right if its answer was true at some moment between its begin and its end:
//! never an address of another class or of a time before, never a miss of what was there
//! throughout.
//!
//! Shuttle runs steps one after the other (sequential consistency); the orderings of the single
//! atomics are argued for in `partition.rs`, not tested here.
#![allow(clippy::unwrap_used, clippy::duplicate_mod, dead_code)]

use super::{
    geometry, slot,
    slot::{SizeClass, Slot},
};
use crate::log::address::Address;
use std::sync::{
    Arc,
    atomic::{
        AtomicU64 as Counter,
        Ordering::{Relaxed, SeqCst},
    },
};

mod sync {
    pub(super) use shuttle::{sync::atomic::AtomicU64, thread::yield_now as pause};

    #[derive(Debug)]
    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    #[derive(Debug)]
    pub(super) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(super) fn new(value: T) -> Self {
            Self(shuttle::sync::RwLock::new(value))
        }

        pub(super) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        pub(super) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }
}

#[path = "displace.rs"]
mod displace;
#[path = "partition.rs"]
mod partition;
#[path = "table.rs"]
mod table;

use partition::Partition;

/// A partition whose classes 0..n (numbers of the test) are watched.
struct Watched {
    partition: Partition,
    classes: Vec<u64>,
    begun: Vec<Counter>,
    finished: Vec<Counter>,
}

fn address(number: usize, state: u64) -> Address {
    Address::from_packed(((number as u64 + 1) << 20) + state).unwrap()
}

/// Different classes, the same for the same seed.
fn random_classes(count: usize, buckets_min: usize, seed: u64) -> Vec<u64> {
    use rand::{Rng, SeedableRng, rngs::StdRng};
    let mut random = StdRng::seed_from_u64(seed);
    let mut taken = std::collections::HashSet::new();
    let last = (1 << geometry::Geometry::new(buckets_min).class_bits()) - 1;
    let classes = std::iter::repeat_with(|| random.random_range(0..=last));
    classes.filter(|class| taken.insert(*class)).take(count).collect()
}

impl Watched {
    fn new(buckets_min: usize, buckets_max: usize, classes: usize, seed: u64) -> Self {
        let partition = Partition::new(buckets_min, buckets_max);
        Self {
            partition,
            classes: random_classes(classes, buckets_min, seed),
            begun: (0..classes).map(|_| Counter::new(0)).collect(),
            finished: (0..classes).map(|_| Counter::new(0)).collect(),
        }
    }

    /// Makes the class present (anew) or absent.
    fn change(&self, number: usize, present: bool) {
        let state = self.finished[number].load(SeqCst);
        let next = (state / 2 + 1) * 2 + u64::from(present);
        self.begun[number].store(next, SeqCst);
        let before = match present {
            true => self
                .partition
                .insert(self.classes[number], SizeClass::of(0), address(number, next)),
            false => self.partition.remove(self.classes[number]),
        };
        assert_eq!(
            before.and_then(Slot::address),
            (state % 2 == 1).then(|| address(number, state)),
            "no other thread writes"
        );
        self.finished[number].store(next, SeqCst);
    }

    fn check(&self, number: usize) {
        let from = self.finished[number].load(SeqCst);
        let found = self.partition.lookup(self.classes[number]).and_then(Slot::address);
        let to = self.begun[number].load(SeqCst);
        let right = match found {
            Some(found) => (from..=to).any(|state| state % 2 == 1 && found == address(number, state)),
            // In between, it may have been absent only if there was a change in between.
            None => from.is_multiple_of(2) || to.is_multiple_of(2) || to / 2 - from / 2 >= 2,
        };
        assert!(right, "class {number}: {found:?} was not true in states {from} to {to}");
    }
}

static MOVES: Counter = Counter::new(0);

/// Images that were begun after some changes and before others.
static IMAGES_AMIDST: Counter = Counter::new(0);

/// Inserts `filled` of the classes; then, while two readers look, removes a random one and inserts
/// another, or inserts one anew. So the table stays as full as it is.
fn writer_against_readers(buckets: usize, classes: usize, filled: usize, changes: usize) {
    use shuttle::rand::Rng;
    let watched = Arc::new(Watched::new(buckets, buckets, classes, 21));
    (0..filled).for_each(|number| watched.change(number, true));
    let moves = watched.partition.moves();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let watched = Arc::clone(&watched);
            shuttle::thread::spawn(move || {
                for _ in 0..12 {
                    watched.check(shuttle::rand::thread_rng().gen_range(0..classes));
                }
            })
        })
        .collect();
    let (mut present, mut absent): (Vec<_>, Vec<_>) = (0..classes).partition(|number| *number < filled);
    for _ in 0..changes {
        let leaving = shuttle::rand::thread_rng().gen_range(0..present.len());
        let coming = shuttle::rand::thread_rng().gen_range(0..absent.len());
        watched.change(present[leaving], false);
        watched.change(absent[coming], true);
        std::mem::swap(&mut present[leaving], &mut absent[coming]);
        watched.change(present[0], true);
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    (0..classes).for_each(|number| watched.check(number));
    assert_eq!(
        (watched.partition.entries(), watched.partition.evicted()),
        (filled as u64, 0)
    );
    MOVES.fetch_add(watched.partition.moves() - moves, Relaxed);
}

#[test]
fn lookups_are_right_while_slots_are_displaced() {
    // 32 slots, no growth, 31 in use: many insertions must displace.
    shuttle::check_random(|| writer_against_readers(4, 36, 31, 10), 3_000);
    shuttle::check_pct(|| writer_against_readers(4, 36, 31, 10), 1_500, 4);
    assert!(
        MOVES.load(Relaxed) > 5_000,
        "displacements happened under the readers' eyes"
    );
}

#[test]
fn lookups_are_right_while_the_table_grows() {
    let grow = || {
        let watched = Arc::new(Watched::new(2, 8, 34, 21));
        (0..14).for_each(|number| watched.change(number, true));
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let watched = Arc::clone(&watched);
                shuttle::thread::spawn(move || (0..17).for_each(|number| watched.check(number * 2 + reader)))
            })
            .collect();
        (14..34).for_each(|number| watched.change(number, true));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        (0..34).for_each(|number| watched.check(number));
        assert!(watched.partition.growths() >= 3);
    };
    shuttle::check_random(grow, 3_000);
    shuttle::check_pct(grow, 1_500, 4);
}

#[test]
fn lookups_are_right_while_the_table_is_cleared() {
    let clear = || {
        let watched = Arc::new(Watched::new(2, 8, 20, 21));
        (0..20).for_each(|number| watched.change(number, true));
        let cleared = Arc::clone(&watched);
        let writer = shuttle::thread::spawn(move || {
            cleared.begun.iter().for_each(|begun| begun.store(4, SeqCst));
            cleared.partition.clear();
            cleared.finished.iter().for_each(|finished| finished.store(4, SeqCst));
            cleared.change(3, true);
        });
        (0..20).for_each(|number| watched.check(number));
        writer.join().unwrap();
        (0..20).for_each(|number| watched.check(number));
        assert_eq!(watched.partition.entries(), 1);
    };
    shuttle::check_random(clear, 2_000);
}

#[test]
fn an_image_taken_while_somebody_writes_is_a_state_there_was() {
    let copy = || {
        let watched = Arc::new(Watched::new(2, 8, 34, 21));
        (0..20).for_each(|number| watched.change(number, true));
        let from: Vec<u64> = watched.finished.iter().map(|state| state.load(SeqCst)).collect();
        let copying = Arc::clone(&watched);
        let copier = shuttle::thread::spawn(move || {
            let from: Vec<u64> = copying.finished.iter().map(|state| state.load(SeqCst)).collect();
            let image = copying.partition.image();
            let to: Vec<u64> = copying.begun.iter().map(|state| state.load(SeqCst)).collect();
            (from, image, to)
        });
        let looking = Arc::clone(&watched);
        let reader = shuttle::thread::spawn(move || (0..20).for_each(|number| looking.check(number)));
        for number in 0..8 {
            watched.change(number, number % 2 == 0);
            watched.change(number + 20, true);
        }
        let (begun, image, ended) = copier.join().unwrap();
        reader.join().unwrap();
        let restored = Partition::new(2, 8);
        restored.restore(&image);
        let mut entries = 0;
        for number in 0..34 {
            let found = restored.peek(watched.classes[number]).and_then(Slot::address);
            entries += u64::from(found.is_some());
            let mut states = begun[number]..=ended[number];
            let is_right = match found {
                Some(found) => states.any(|state| state % 2 == 1 && found == address(number, state)),
                None => states.any(|state| state.is_multiple_of(2)),
            };
            assert!(
                is_right,
                "class {number}: {found:?} was not true in {:?}",
                begun[number]..=ended[number]
            );
        }
        assert_eq!(restored.entries(), entries, "each slot is some class's");
        let last: Vec<u64> = watched.finished.iter().map(|state| state.load(SeqCst)).collect();
        IMAGES_AMIDST.fetch_add(u64::from(begun != from && ended != last), Relaxed);
    };
    shuttle::check_random(copy, 3_000);
    shuttle::check_pct(copy, 1_500, 4);
    assert!(IMAGES_AMIDST.load(Relaxed) > 100, "images were taken amidst changes");
}

#[test]
fn a_mark_of_use_never_brings_a_slot_back() {
    let touch = || {
        let watched = Arc::new(Watched::new(2, 2, 2, 21));
        watched.change(0, true);
        let reader = Arc::clone(&watched);
        let reader = shuttle::thread::spawn(move || (0..3).for_each(|_| reader.check(0)));
        watched.change(0, false);
        watched.check(0);
        watched.change(1, true);
        watched.change(0, true);
        watched.change(0, true);
        watched.check(0);
        reader.join().unwrap();
        assert_eq!(watched.partition.entries(), 2);
        (0..2).for_each(|number| watched.check(number));
    };
    shuttle::check_random(touch, 2_000);
}

/// The classes of a table of 32 slots: 0 to 30 are put into it and `left` is removed, so that a
/// bucket that was full has a vacancy.
const FILLED: usize = 31;

/// A class to remove, one to insert next, and one that this insertion moves from its alternate
/// bucket to its primary one: against the order in which readers look. Found by trying, on a
/// partition outside the model.
fn backward_move(classes: &[u64]) -> Option<(usize, usize, usize)> {
    use super::partition::Partition;
    let is_alternate = |partition: &Partition, number: usize| {
        partition
            .peek(classes[number])
            .is_some_and(|slot| slot.identity().is_alternate())
    };
    let cases = (0..FILLED).flat_map(|left| (FILLED..classes.len()).map(move |coming| (left, coming)));
    cases.into_iter().find_map(|(left, coming)| {
        let partition = Partition::new(4, 4);
        let insert = |number: usize| partition.insert(classes[number], SizeClass::of(0), address(number, 1));
        (0..FILLED).for_each(|number| assert_eq!(insert(number), None));
        assert!(partition.remove(classes[left]).is_some());
        let alternates: Vec<_> = (0..FILLED).filter(|number| is_alternate(&partition, *number)).collect();
        insert(coming);
        let moving = alternates
            .into_iter()
            .find(|number| !is_alternate(&partition, *number))?;
        (partition.peek(classes[moving]).is_some()).then_some((left, coming, moving))
    })
}

#[test]
fn a_class_moved_against_the_readers_order_is_not_missed() {
    let chosen = (0..1_000).find_map(|seed| Some((seed, backward_move(&random_classes(60, 4, seed))?)));
    let (seed, (left, coming, moving)) = chosen.expect("some insertion moves a slot backward");
    let nearly_full = move || {
        let watched = Watched::new(4, 4, coming + 1, seed);
        (0..FILLED).for_each(|number| watched.change(number, true));
        watched.change(left, false);
        watched
    };
    let look = move || {
        let watched = Arc::new(nearly_full());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let watched = Arc::clone(&watched);
                shuttle::thread::spawn(move || (0..3).for_each(|_| watched.check(moving)))
            })
            .collect();
        watched.change(coming, true);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(watched.partition.moves() > 0);
    };
    shuttle::check_random(look, 5_000);
    shuttle::check_pct(look, 5_000, 3);
}
