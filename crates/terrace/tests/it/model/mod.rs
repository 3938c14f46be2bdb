//! Random histories against a model, with power cuts at any moment, on simulated disks.
//!
//! With small options, recycling, destaging, index flushes, block GC and block deletion happen all
//! the time. After each cut the store must hold an earlier state: every commit up to some point and
//! none after it, with the point not before the last acknowledged durable commit. Then the history
//! continues.
//!
//! `TERRACE_MODEL_SECONDS` is the duration of each test (default 10), `TERRACE_MODEL_SEED` the
//! first seed (default 1). A failure prints its seed. The scheduling of threads differs between
//! runs, so several tries may be needed.

mod backup;
mod checkpoint;
mod generate;
mod history;
mod machine;
mod state;
mod watch;
mod watchdog;

use crate::common::{seed, variable};
use history::History;
use machine::{Machine, assert_sound, contents, drop_promptly};
use rand::{Rng, SeedableRng, rngs::StdRng};
use state::{Journal, Key, State, at_time};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};
use terrace::{FilledFrom, Store};
use watchdog::Watchdog;

/// Lives of one store; each ends with a crash or a close.
const LIVES: usize = 12;

/// Coverage of a run.
#[derive(Debug, Default)]
struct Tally {
    commits: u64,
    cuts: u64,
    segments_reclaimed: u64,
    reinserted_bytes: u64,
    destaged_bytes: u64,
    /// Small values moved back to the log.
    moved: u64,
    /// Values moved because the rules of placement changed.
    settled: u64,
    /// Values written in key order because scans had paid for it, and those among them that were
    /// copied into their entries.
    ordered: u64,
    copied: u64,
    /// Sweeps of the whole log for that.
    sweeps: u64,
    index_flushes: u64,
    dropped_expired: u64,
    dropped_deleted: u64,
    checkpoints_taken: u64,
    /// Lives that filled the hash index from a checkpoint.
    checkpoints_used: u64,
    /// Blocks deleted.
    blocks_deleted: u64,
    blocks_reclaimed: u64,
    cleaned_bytes: u64,
}

impl Tally {
    /// Counts a life of the store, which ends now.
    fn count(&mut self, store: &Store, journal: &Journal, cut: bool) {
        let stats = store.stats();
        self.commits += journal.commits.len() as u64;
        self.cuts += u64::from(cut);
        self.segments_reclaimed += stats.log.segments_reclaimed;
        self.reinserted_bytes += stats.written.flash_reinserted_bytes;
        self.destaged_bytes += stats.written.large_destaged_bytes;
        self.moved += stats.flash_cache.moved;
        self.settled += stats.placement.moved;
        self.ordered += stats.scan_order.moved;
        self.copied += stats.scan_order.copied;
        self.sweeps += stats.scan_order.sweeps;
        self.index_flushes += stats.index.flushes;
        self.dropped_expired += stats.expire.dropped_expired;
        self.dropped_deleted += stats.expire.dropped_deleted;
        let checkpoint = stats.hash_index.checkpoint;
        self.checkpoints_taken += checkpoint.taken;
        self.checkpoints_used += u64::from(checkpoint.filled_from == Some(FilledFrom::Checkpoint));
        self.blocks_reclaimed += stats.large.blocks_reclaimed;
        self.cleaned_bytes += stats.written.large_cleaned_bytes;
        // Without power no block can be read.
        let set_aside = stats.large.blocks_set_aside;
        assert!(cut || set_aside == 0, "nothing is damaged, and no account is wrong");
    }

    /// Counts a life without details.
    const fn count_cut(&mut self) {
        self.cuts += 1;
    }

    /// Counts the blocks of a store.
    fn count_blocks(&mut self, machine: &Machine) {
        let blocks: Vec<u64> = (machine.large.files().iter())
            .filter_map(|file| u64::from_str_radix(file.strip_prefix("blocks/")?.strip_suffix(".blk")?, 16).ok())
            .collect();
        self.blocks_deleted += blocks.iter().max().map_or(0, |last| last - blocks.len() as u64);
    }

    /// Whether every mechanism occurred, or there were too few commits to expect it: histories
    /// without a mechanism prove nothing about it.
    fn is_meaningful(&self) -> bool {
        let counts = [
            self.cuts,
            self.segments_reclaimed,
            self.reinserted_bytes,
            self.destaged_bytes,
            self.moved,
            self.settled,
            self.ordered,
            self.copied,
            self.sweeps,
            self.index_flushes,
            self.dropped_expired,
            self.dropped_deleted,
            self.checkpoints_taken,
            self.checkpoints_used,
            self.blocks_deleted,
            self.blocks_reclaimed,
            self.cleaned_bytes,
        ];
        self.commits < 5_000 || counts.iter().all(|&count| count > 0)
    }
}

/// Runs `history` with consecutive seeds until the time is over, and longer if some mechanism did
/// not occur, which may be chance: not every store moves values back, for example, and there may be
/// time for two or three only.
fn for_some_time(name: &str, history: fn(&mut StdRng, &mut Tally)) {
    let seconds = variable("TERRACE_MODEL_SECONDS").unwrap_or(10);
    let first = seed();
    let start = Instant::now();
    let (mut seed, mut tally) = (first, Tally::default());
    let watchdog = Watchdog::of(name);
    let is_over = |tally: &Tally| {
        let seconds_max = if tally.is_meaningful() { seconds } else { 10 * seconds };
        start.elapsed() >= Duration::from_secs(seconds_max)
    };
    while seed == first || !is_over(&tally) {
        watchdog.begins(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            history(&mut StdRng::seed_from_u64(seed), &mut tally)
        }));
        if let Err(panic) = outcome {
            eprintln!("{name}: failed with TERRACE_MODEL_SEED={seed}");
            resume_unwind(panic);
        }
        seed += 1;
    }
    println!("{name}: {} stores, seeds from {first}, {tally:?}", seed - first);
    assert!(tally.is_meaningful(), "{tally:?}");
}

/// Whether a life ends in a cut.
fn ends_in_a_cut(machine: &Machine, rng: &mut StdRng) -> bool {
    let cut = rng.random_bool(0.8);
    if cut {
        let operations = [30, 300, 3_000][rng.random_range(0..3)];
        machine.cut_within(rng, operations);
    }
    cut
}

fn one_caller(rng: &mut StdRng, tally: &mut Tally) {
    let machine = Machine::new(rng);
    let mut state = State::new();
    let mut store = machine.open().unwrap();
    for _ in 0..LIVES {
        let steps = rng.random_range(10..1_200);
        let cut = ends_in_a_cut(&machine, rng);
        let (journal, now) = {
            let mut history = History::new(&machine, &store, rng, "k/", true, state);
            let _ = history.run(steps);
            (history.journal, history.now)
        };
        tally.count(&store, &journal, cut);
        (store, state) = next_life(&machine, store, cut, rng, journal, &now);
    }
    tally.count_blocks(&machine);
}

/// Ends a life by a power cut or a close, opens the store again and checks its contents.
fn next_life(
    machine: &Machine,
    store: Store,
    cut: bool,
    rng: &mut StdRng,
    journal: Journal,
    now: &State,
) -> (Store, State) {
    if cut {
        machine.power_cycle(Some(store), rng);
    } else {
        store.close().unwrap();
        drop_promptly(Some(store));
    }
    if rng.random_bool(0.5) {
        machine.pass_time(rng, 1_000);
    }
    machine.change_limits(rng);
    if rng.random_bool(0.4) {
        machine.change_placement(rng);
    }
    if rng.random_bool(0.5) {
        machine.change_sizes(rng);
    }
    let keys = journal.keys();
    let store = if rng.random_bool(0.2) {
        // A read-only open sees what recovery will find.
        let seen = look(machine, rng, &keys);
        let store = machine.open().unwrap();
        assert!(
            seen == contents(&store),
            "it was seen otherwise without the right to write"
        );
        store
    } else {
        machine.recover(rng)
    };
    // Through the ordered index, the hash index, or in between.
    if rng.random_bool(0.5) {
        checkpoint::wait_until_filled(&store);
    }
    let state = contents(&store);
    checkpoint::check_keys(&store, &keys, &state);
    let now_ms = machine.now_ms();
    if cut {
        journal
            .check(&state, now_ms)
            .unwrap_or_else(|reason| panic!("after a cut: {reason}; damage: {:?}", store.stats().damage));
    } else {
        assert!(state == at_time(now.clone(), now_ms), "a clean close lost something");
    }
    if rng.random_bool(0.5) {
        checkpoint::wait_until_filled(&store);
    }
    assert_sound(&store);
    checkpoint::check_keys(&store, &keys, &state);
    assert_eq!(store.stats().damage, [""; 0], "nothing was damaged");
    (store, state)
}

/// The contents of the store when opened read-only.
fn look(machine: &Machine, rng: &mut StdRng, keys: &BTreeSet<Key>) -> State {
    let operations = || (machine.flash.operations(), machine.large.operations());
    let before = operations();
    let store = machine.look();
    if rng.random_bool(0.5) {
        checkpoint::wait_until_filled(&store);
    }
    let seen = contents(&store);
    checkpoint::check_keys(&store, keys, &seen);
    drop(store);
    assert_eq!(operations(), before, "it wrote");
    seen
}

fn many_callers(rng: &mut StdRng, tally: &mut Tally) {
    let machine = Machine::new(rng);
    let prefixes = ["a/", "b/", "c/", "d/"];
    let mut state = State::new();
    let mut store = machine.open().unwrap();
    for _ in 0..LIVES {
        let steps = rng.random_range(10..600);
        let cut = ends_in_a_cut(&machine, rng);
        let seeds: Vec<u64> = prefixes.iter().map(|_| rng.random()).collect();
        let parts: Vec<(Journal, State)> = std::thread::scope(|scope| {
            let callers: Vec<_> = prefixes
                .iter()
                .zip(seeds)
                .map(|(prefix, seed)| {
                    let own: State = state
                        .iter()
                        .filter(|(key, _)| key.starts_with(prefix.as_bytes()))
                        .map(|(key, held)| (key.clone(), held.clone()))
                        .collect();
                    let (machine, store) = (&machine, &store);
                    scope.spawn(move || {
                        let mut rng = StdRng::seed_from_u64(seed);
                        let mut history = History::new(machine, store, &mut rng, prefix, false, own);
                        let _ = history.run(steps);
                        (history.journal, history.now)
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        let mut journal = Journal::starting_with(state);
        let mut now = State::new();
        for (part, part_now) in parts {
            journal.merge(part);
            now.extend(part_now);
        }
        tally.count(&store, &journal, cut);
        (store, state) = next_life(&machine, store, cut, rng, journal, &now);
    }
    tally.count_blocks(&machine);
}

#[test]
fn one_caller_and_power_cuts() {
    for_some_time("one caller", one_caller);
}

#[test]
fn readers_and_power_cuts() {
    for_some_time("readers", watch::readers);
}

#[test]
fn many_callers_and_power_cuts() {
    for_some_time("many callers", many_callers);
}
