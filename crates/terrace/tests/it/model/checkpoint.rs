//! Checkpoints of the hash index: the store's answers, key by key, after it was filled from one;
//! and histories with many checkpoints, with cuts while they are taken and loaded, and immediate
//! reopening.

use super::{
    Tally, for_some_time,
    history::History,
    machine::{Machine, drop_promptly},
    next_life,
    state::{Key, State, name},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use terrace::Store;

/// Lives of one store.
const LIVES: usize = 16;

pub fn wait_until_filled(store: &Store) {
    let start = Instant::now();
    while store.stats().hash_index.refilling {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the hash index is never filled"
        );
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Checks each key against a scan, deleted keys included: a slot that leads to an older version
/// would answer.
pub fn check_keys(store: &Store, keys: &BTreeSet<Key>, state: &State) {
    for key in keys {
        let found = store.get(key).unwrap();
        let is_right = match (&found, state.get(key)) {
            (Some(found), Some(held)) => held.is(found),
            (None, None) => true,
            _ => false,
        };
        let (found, held) = (
            found.map(|found| found.version),
            state.get(key).map(|held| held.version),
        );
        assert!(
            is_right,
            "{} has version {found:?} instead of {held:?}; {:#?}",
            name(key),
            store.stats().hash_index
        );
    }
}

/// Sets its flag when dropped, also after a panic, so that the checkpoints end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One caller writes, another takes checkpoints. Lives are short, and some end while the hash index
/// is still being filled.
fn many_checkpoints(rng: &mut StdRng, tally: &mut Tally) {
    let machine = Machine::new(rng);
    let mut state = State::new();
    let mut store = machine.open().unwrap();
    for _ in 0..LIVES {
        let cut = rng.random_bool(0.8);
        if cut {
            let operations = [20, 100, 1_000][rng.random_range(0..3)];
            machine.cut_within(rng, operations);
        }
        let steps = rng.random_range(1..250);
        let pause_us = [0, 300, 3_000][rng.random_range(0..3)];
        let seed = rng.random();
        let over = AtomicBool::new(false);
        let (journal, now) = std::thread::scope(|scope| {
            let (machine, over, taking) = (&machine, &over, &store);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let taken = taking.checkpoint();
                    assert!(taken.is_ok() || !machine.is_powered(), "{taken:?} with the power on");
                    std::thread::sleep(Duration::from_micros(pause_us));
                }
            });
            let _ends = Ends(over);
            let mut rng = StdRng::seed_from_u64(seed);
            let mut history = History::new(machine, &store, &mut rng, "k/", true, state);
            let _ = history.run(steps);
            (history.journal, history.now)
        });
        tally.count(&store, &journal, cut);
        (store, state) = next_life(&machine, store, cut, rng, journal, &now);
        if rng.random_bool(0.2) {
            // Reopened at once: possibly cut while it is loaded.
            machine.power_cycle(Some(store), rng);
            store = machine.recover(rng);
            check_keys(&store, &state.keys().cloned().collect(), &state);
        }
    }
    drop_promptly(Some(store));
    tally.count_blocks(&machine);
}

#[test]
fn checkpoints_and_power_cuts() {
    for_some_time("checkpoints", many_checkpoints);
}
