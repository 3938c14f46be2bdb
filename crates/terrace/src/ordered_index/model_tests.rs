//! The ordered index against a model of all its versions.
#![allow(clippy::unwrap_used)]

use super::{tests::*, *};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
    sync::atomic::{AtomicU64, AtomicUsize},
    time::{Duration, Instant},
};

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);

/// What each commit does, and what each key holds after each commit: computed before, so that
/// threads can check any snapshot without asking each other.
struct History {
    commits: Vec<Vec<(u16, bool)>>,
    per_key: BTreeMap<u16, Vec<(u64, bool)>>,
}

impl History {
    fn new(seed: u64, commits: usize, keys: u16) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut history = Self {
            commits: vec![Vec::new()],
            per_key: BTreeMap::new(),
        };
        for seq in 1..=commits as u64 {
            let mut commit: BTreeMap<u16, bool> = BTreeMap::new();
            for _ in 0..rng.random_range(0..6) {
                commit.insert(rng.random_range(0..keys), rng.random_bool(0.7));
            }
            for (&key, &put) in &commit {
                history.per_key.entry(key).or_default().push((seq, put));
            }
            history.commits.push(commit.into_iter().collect());
        }
        history
    }

    /// Version the key has at a snapshot.
    fn at(&self, key: u16, seq: u64) -> Option<u64> {
        let versions = self.per_key.get(&key)?;
        let after = versions.partition_point(|(version, _)| *version <= seq);
        let (version, put) = *versions.get(after.checked_sub(1)?)?;
        put.then_some(version)
    }

    fn apply(&self, applier: &mut Applier, seq: u64) {
        for (key, put) in &self.commits[usize::try_from(seq).unwrap()] {
            if *put {
                applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
            } else {
                applier.remove(&key.to_be_bytes(), seq);
            }
        }
        applier.applied(seq);
    }

    fn check_whole(&self, index: &OrderedIndex, seq: u64) {
        let found: Vec<(u16, u64)> = index
            .scan(ALL, seq)
            .unwrap()
            .map(|item| {
                let (key, entry) = item.unwrap();
                (u16::from_be_bytes(key.as_ref().try_into().unwrap()), entry.version.0)
            })
            .collect();
        let expected: Vec<(u16, u64)> = self
            .per_key
            .keys()
            .filter_map(|key| Some((*key, self.at(*key, seq)?)))
            .collect();
        assert_eq!(found, expected, "at seq {seq}");
    }
}

#[test]
fn snapshots_agree_with_the_model_while_everything_runs_at_once() {
    for seed in [11, 12, 13] {
        println!("seed {seed}");
        run_concurrently(seed, 6_000..60_000, 300);
    }
}

/// With so many commits at least, and more, up to the end, until everything has run beside the
/// others for a while: how often depends on the machine.
fn run_concurrently(seed: u64, commits: Range<u64>, keys: u16) {
    let dir = tempfile::tempdir().unwrap();
    let history = History::new(seed, commits.end as usize, keys);
    let (index, _) = open(dir.path());
    let snapshots: Mutex<BTreeMap<u64, usize>> = Mutex::default();
    let watermark = || {
        let open = snapshots.lock();
        let applied = index.applied_seq();
        open.keys().next().map_or(applied, |oldest| applied.min(*oldest))
    };
    let done = AtomicBool::new(false);
    let (checks, steps, flushes) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let merges = AtomicUsize::new(0);
    let has_run = || {
        let counts = [&flushes, &steps, &merges].map(|count| count.load(Ordering::Relaxed));
        counts[0] > 10 && counts[1] > 5 && counts[2] > 5
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rng = StdRng::seed_from_u64(seed);
            apply_until(&index, &history, rng, |seq| {
                seq == commits.end || seq >= commits.start && has_run()
            });
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                if index.flush_sealed(watermark()).unwrap().is_some() {
                    flushes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                if index.compact(watermark()).unwrap() {
                    steps.fetch_add(1, Ordering::Relaxed);
                }
                // Now and then readers pay for a merge. More often, and they would leave nothing
                // for compaction to do.
                if merges.load(Ordering::Relaxed) <= 2 * steps.load(Ordering::Relaxed) {
                    index.looks.pay_for_runs(1 << 10);
                    if index.merge_for_readers(watermark()).unwrap() {
                        merges.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        for reader in 0..3 {
            let rng = StdRng::seed_from_u64(seed * 100 + reader);
            let (index, history, snapshots, done, checks) = (&index, &history, &snapshots, &done, &checks);
            scope.spawn(move || read_until(done, index, history, snapshots, rng, checks));
        }
    });
    println!("{checks:?} checks, {flushes:?} flushes, {steps:?} compaction steps, {merges:?} merges for readers");
    assert!(has_run());
    history.check_whole(&index, index.applied_seq());
    let persisted = index.persisted_mark().unwrap().applied_seq;
    drop(index);
    let (index, found) = open(dir.path());
    assert_eq!(found, Some(mark(persisted)));
    history.check_whole(&index, persisted);
}

/// Applies one commit after the other, and lets the threads that flush and compact keep up, unless
/// they have failed.
fn apply_until(index: &Arc<OrderedIndex>, history: &History, mut rng: StdRng, is_last: impl Fn(u64) -> bool) {
    let mut applier = index.applier().unwrap();
    for seq in 1.. {
        history.apply(&mut applier, seq);
        if rng.random_bool(0.02) {
            applier.rotate(mark(seq)).unwrap();
        }
        if is_last(seq) {
            return;
        }
        let until = Instant::now() + Duration::from_secs(60);
        while (index.sealed_count() > 2 || index.runs_behind() > 2) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Takes snapshots, reads them for a while, and lets them go.
fn read_until(
    done: &AtomicBool,
    index: &OrderedIndex,
    history: &History,
    snapshots: &Mutex<BTreeMap<u64, usize>>,
    mut rng: StdRng,
    checks: &AtomicU64,
) {
    let keys = *history.per_key.keys().last().unwrap() + 1;
    while !done.load(Ordering::Acquire) {
        let seq = {
            let mut open = snapshots.lock();
            let seq = index.applied_seq();
            *open.entry(seq).or_default() += 1;
            seq
        };
        for _ in 0..rng.random_range(1..400) {
            let key = rng.random_range(0..keys);
            let found = index.get_at(&key.to_be_bytes(), seq).unwrap();
            let found = found.map(|entry| entry.version.0);
            assert_eq!(found, history.at(key, seq), "key {key} at seq {seq}");
            checks.fetch_add(1, Ordering::Relaxed);
        }
        history.check_whole(index, seq);
        check_latest(index, history, rng.random_range(0..keys));
        let mut open = snapshots.lock();
        let count = open.get_mut(&seq).unwrap();
        *count -= 1;
        if *count == 0 {
            open.remove(&seq);
        }
    }
}

/// The latest read lies between what was applied before it and what is applied after it.
fn check_latest(index: &OrderedIndex, history: &History, key: u16) {
    let before = index.applied_seq();
    let found = index.get(&key.to_be_bytes()).unwrap().map(|entry| entry.version.0);
    // The applier may be in the middle of the next commit.
    let after = index.applied_seq() + 1;
    assert!(
        (before..=after).any(|seq| history.at(key, seq) == found),
        "key {key}: {found:?} between seqs {before} and {after}"
    );
}

#[test]
fn replay_from_the_mark_restores_every_state() {
    let dir = tempfile::tempdir().unwrap();
    let history = History::new(21, 3000, 400);
    let mut rng = StdRng::seed_from_u64(21);
    let mut applied = 0;
    while applied < 3000 {
        let (index, found) = open(dir.path());
        let from = found.map_or(0, |mark| mark.applied_seq);
        assert!(from <= applied);
        let mut applier = index.applier().unwrap();
        history.check_whole(&index, from);
        applied = (from + rng.random_range(100..600)).min(3000);
        for seq in from + 1..=applied {
            history.apply(&mut applier, seq);
            match rng.random_range(0..100) {
                0..5 => drop(applier.rotate(mark(seq)).unwrap()),
                5..8 => drop(index.flush_sealed(seq).unwrap()),
                8..10 => while index.compact(seq).unwrap() {},
                10..12 => {
                    index.looks.pay_for_runs(1 << 20);
                    index.merge_for_readers(seq).unwrap();
                }
                _ => {}
            }
        }
        history.check_whole(&index, applied);
        // Dropped without a flush: what a killed process leaves behind.
    }
}
