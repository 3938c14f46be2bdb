//! Random histories, once with commits that gather and are folded, once applied one by one: every
//! answer, every snapshot and every figure is the same.

use crate::{
    Attributes, Batch, Condition, Durability, Error, Expiry, HomeKind, Object, Options, PutOptions, ScanRange,
    Snapshot, Store, key_hash,
    log::{
        commit::{Committer, Judged},
        format::{Body, Record},
    },
    tests::{eventually, small_options},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

const KEYS: u32 = 12;
/// Of one length for each home: what was overwritten in the log is accounted for by an average.
const LENGTHS: [usize; 3] = [20, 1_000, 20_000];
const STEPS: usize = 600;
const STEPS_OF_SNAPSHOT: usize = 40;
/// More often than that, since a range deletion makes everything before it durable here.
const STEPS_HELD_UP: usize = 10;

#[derive(Debug, Clone)]
enum Step {
    Put {
        key: u32,
        length: usize,
        condition: Condition,
        has_attribute: bool,
        /// Whether its time has come by now.
        is_expired: Option<bool>,
    },
    Delete(u32),
    /// Puts of keys, and deletes where there is no length.
    Batch(Vec<(u32, Option<usize>)>),
    DeleteRange(u32, u32),
}

fn steps(seed: u64) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed);
    // Some keys are overwritten much more often than others.
    let key = |random: &mut StdRng| random.random_range(0..KEYS).min(random.random_range(0..KEYS));
    let length = |random: &mut StdRng| LENGTHS[random.random_range(0..8_usize).saturating_sub(5)];
    let step = |random: &mut StdRng| match random.random_range(0..40) {
        0 => {
            let from = key(random);
            Step::DeleteRange(from, from + random.random_range(1..4))
        }
        1..6 => Step::Delete(key(random)),
        6..10 => {
            let item = |random: &mut StdRng| {
                let is_put = random.random_bool(0.7);
                (key(random), is_put.then(|| length(random)))
            };
            Step::Batch((0..5).map(|_| item(random)).collect())
        }
        _ => Step::Put {
            key: key(random),
            length: length(random),
            condition: [Condition::None, Condition::None, Condition::Absent, Condition::Present]
                [random.random_range(0..4)],
            has_attribute: random.random_bool(0.2),
            is_expired: random.random_bool(0.1).then(|| random.random_bool(0.5)),
        },
    };
    (0..STEPS).map(|_| step(&mut random)).collect()
}

fn key_of(key: u32) -> String {
    format!("key {key:02}")
}

/// All are different, so a value identifies the step that wrote it.
fn value_of(number: usize, key: u32, length: usize) -> Vec<u8> {
    let mut value = format!("{number:06}/{key:02}").into_bytes();
    value.resize(length, b'.');
    value
}

type Model = BTreeMap<String, Vec<u8>>;

/// Does a step to a store, and returns its result.
fn done(store: &Store, number: usize, step: &Step) -> bool {
    let outcome = match step {
        Step::Put {
            key,
            length,
            condition,
            has_attribute,
            is_expired,
        } => {
            let attributes = Attributes::new();
            let now = SystemTime::now();
            let hour = Duration::from_secs(3600);
            let options = PutOptions {
                attributes: if *has_attribute {
                    attributes.with("number", number.to_string())
                } else {
                    attributes
                },
                durability: Durability::Buffered,
                condition: *condition,
                expiry: match is_expired {
                    None => Expiry::Never,
                    Some(true) => Expiry::At(now - hour),
                    Some(false) => Expiry::At(now + hour),
                },
            };
            store.put_with(key_of(*key), value_of(number, *key, *length), &options)
        }
        Step::Delete(key) => {
            let mut batch = Batch::new();
            batch.delete(key_of(*key));
            store.write(batch, Durability::Buffered)
        }
        Step::Batch(items) => {
            let mut batch = Batch::new();
            for (key, length) in items {
                match length {
                    Some(length) => batch.put(key_of(*key), value_of(number, *key, *length)),
                    None => batch.delete(key_of(*key)),
                };
            }
            store.write(batch, Durability::Buffered)
        }
        Step::DeleteRange(from, to) => {
            store.delete_range(ScanRange::range(key_of(*from)..key_of(*to)), Durability::Buffered)
        }
    };
    match outcome {
        Ok(_) => true,
        Err(Error::ConditionFailed { .. }) => false,
        Err(error) => panic!("step {number}, {step:?}: {error}"),
    }
}

/// Does it to a model.
fn done_to_model(model: &mut Model, number: usize, step: &Step) -> bool {
    match step {
        Step::Put {
            key,
            length,
            condition,
            is_expired,
            ..
        } => {
            let is_there = model.contains_key(&key_of(*key));
            if (*condition == Condition::Absent && is_there) || (*condition == Condition::Present && !is_there) {
                return false;
            }
            if *is_expired == Some(true) {
                model.remove(&key_of(*key));
            } else {
                model.insert(key_of(*key), value_of(number, *key, *length));
            }
        }
        Step::Delete(key) => drop(model.remove(&key_of(*key))),
        Step::Batch(items) => {
            for (key, length) in items {
                match length {
                    Some(length) => drop(model.insert(key_of(*key), value_of(number, *key, *length))),
                    None => drop(model.remove(&key_of(*key))),
                }
            }
        }
        Step::DeleteRange(from, to) => model.retain(|key, _| !(key_of(*from)..key_of(*to)).contains(key)),
    }
    true
}

/// Commits something so that no later commit is applied before it is durable, and no thread makes
/// it so.
fn hold_up(store: &Store) {
    let record = Record {
        seq: 0,
        generation: 0,
        key: b"held",
        attributes: &[],
        checksum: 0,
        body: Body::Delete,
    };
    let (records, decide) = ([(key_hash(record.key), record)], || Ok(Judged::default()));
    let log = &store.engine().log;
    log.commit_as(Committer::User, Durability::Sync, &records, 0, decide)
        .unwrap();
}

fn check_snapshot(snapshot: &Snapshot, model: &Model, when: &str) {
    let scanned: Vec<String> = snapshot
        .scan(ScanRange::all())
        .unwrap()
        .map(|item| String::from_utf8_lossy(&item.unwrap().key).into_owned())
        .collect();
    assert!(scanned.iter().eq(model.keys()), "{when}: {scanned:?}");
    check(|key| snapshot.get(key).unwrap(), model, when);
}

fn check(get: impl Fn(&str) -> Option<Object>, model: &Model, when: &str) {
    for key in (0..KEYS).map(key_of) {
        let found = get(&key).map(|object| object.value.to_vec());
        assert_eq!(found.as_ref(), model.get(&key), "{when}: {key}");
    }
}

/// Objects and bytes in each home, of the log's segments and of the blocks.
fn figures(store: &Store) -> Vec<u64> {
    let engine = store.engine();
    let homes = [HomeKind::Inline, HomeKind::Flash, HomeKind::Block].map(|home| engine.accounting.stats(home));
    let mut figures: Vec<_> = homes.iter().flat_map(|home| [home.objects, home.bytes]).collect();
    figures.push(engine.log.segments.iter().map(|segment| segment.live_bytes()).sum());
    figures.push(store.stats().large.live_bytes);
    figures
}

/// Expected figures of a model's objects.
fn expected_figures(model: &Model) -> Vec<u64> {
    let of_length = |length: usize| model.values().filter(|value| value.len() == length).count() as u64;
    LENGTHS
        .iter()
        .flat_map(|&length| [of_length(length), of_length(length) * length as u64])
        .collect()
}

fn options(dir: &std::path::Path) -> Options {
    let options = Options {
        segment_bytes: 8 << 20,
        log_capacity_bytes: Some(256 << 20),
        // No block is full and dies: what waits for dead ones flushes the memtables, whose lengths
        // are compared.
        split_threshold_bytes: 64 << 20,
        ..small_options(dir)
    };
    options.tuned(|tuning| {
        tuning.memtable_bytes = 16 << 20;
        tuning.overlay_bytes = 64 << 20;
        tuning.expire_interval = Duration::ZERO;
    })
}

#[test]
fn commits_that_are_folded_leave_what_they_leave_one_by_one() {
    for seed in 0..4 {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [folded, single] = dirs.each_ref().map(|dir| Store::open(options(dir.path())).unwrap());
        let (mut model, mut snapshots) = (Model::new(), Vec::new());
        for (number, step) in steps(seed).iter().enumerate() {
            if number % STEPS_HELD_UP == 0 {
                hold_up(&folded);
            }
            let expected = done_to_model(&mut model, number, step);
            assert_eq!(done(&folded, number, step), expected, "step {number}, {step:?}");
            assert_eq!(done(&single, number, step), expected, "step {number}, {step:?}");
            single.engine().log.wait_applied().unwrap();
            if number % STEPS_OF_SNAPSHOT == STEPS_OF_SNAPSHOT - 1 {
                check(|key| folded.get(key).unwrap(), &model, "before a snapshot");
                let taken = [&folded, &single].map(|store| store.snapshot().unwrap());
                snapshots.push((number, taken, model.clone()));
            }
        }
        let of_memtable = |store: &Store| store.stats().index.memtable_bytes;
        folded.engine().log.wait_applied().unwrap();
        assert!(of_memtable(&folded) < of_memtable(&single) * 3 / 4, "little was folded");
        for (number, [of_folded, of_single], model) in &snapshots {
            check_snapshot(of_folded, model, &format!("seed {seed}, folded, step {number}"));
            check_snapshot(of_single, model, &format!("seed {seed}, one by one, step {number}"));
        }
        drop(snapshots);
        for store in [&folded, &single] {
            // Until hidden and expired objects are swept.
            let is_right = || figures(store)[..6] == expected_figures(&model);
            eventually("that the figures are right", is_right);
            store.flush().unwrap();
            check(|key| store.get(key).unwrap(), &model, "at the end");
        }
        assert_eq!(figures(&folded), figures(&single), "seed {seed}");
        drop((folded, single));
        for dir in &dirs {
            let store = Store::open(options(dir.path())).unwrap();
            check(|key| store.get(key).unwrap(), &model, "after an open");
            eventually("that the figures are right", || {
                figures(&store)[..6] == expected_figures(&model)
            });
            let errors = store.verify().unwrap().errors;
            assert!(errors.is_empty(), "{errors:?}");
        }
    }
}
