//! Readers beside writers, and power cuts: a `Sync` commit that was read is there afterwards.
//!
//! Each writer counts up in its own keys, and readers record the highest count that they read in
//! any way, also after the cut. After recovery no key may have less than was read or acknowledged.

use super::{Tally, machine::Machine};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::{
    Barrier,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use terrace::{Batch, Condition, Durability, PutOptions, ScanRange, Store, Version};

const WRITERS: usize = 3;
const LIVES: usize = 6;
/// Reads of each reader after the writers have met the cut.
const READS_AFTER: usize = 20;

/// The two keys of a writer; one commit writes both.
fn keys(writer: usize) -> [String; 2] {
    [format!("w/{writer}/a"), format!("w/{writer}/b")]
}

fn value(count: u64) -> Vec<u8> {
    let length = [8, 300, 5_000, 30_000][(count % 4) as usize];
    let mut value = vec![count as u8; length];
    value[..8].copy_from_slice(&count.to_le_bytes());
    value
}

fn count_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Counts up until the power is cut; records acknowledgements.
fn write(store: &Store, writer: usize, from: u64, known: &AtomicU64) {
    for count in from + 1.. {
        let mut batch = Batch::new();
        for key in keys(writer) {
            batch.put(key, value(count));
        }
        if store.write(batch, Durability::Sync).is_err() {
            return;
        }
        known.fetch_max(count, Ordering::SeqCst);
    }
}

/// `Buffered` writes share frames with the others.
fn write_beside(store: &Store, rng: &mut StdRng) {
    let options = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let mut number = 0_u64;
    while store
        .put_with(format!("beside/{}", number % 50), value(number), &options)
        .is_ok()
    {
        number += 1;
        if rng.random_bool(0.1) {
            std::thread::yield_now();
        }
    }
}

fn read(store: &Store, rng: &mut StdRng, known: &[AtomicU64]) {
    let writer = rng.random_range(0..WRITERS);
    let [one, other] = keys(writer);
    let found = |read: Option<u64>| {
        if let Some(count) = read {
            known[writer].fetch_max(count, Ordering::SeqCst);
        }
    };
    // Errors are ignored: the devices may be off.
    match rng.random_range(0..5) {
        0 => found(store.get(one).ok().flatten().map(|object| count_of(&object.value))),
        1 => {
            let both = store.multi_get(&[one, other]);
            both.into_iter()
                .flatten()
                .flatten()
                .for_each(|object| found(Some(count_of(&object.value))));
        }
        2 => {
            let bytes = store.get_range(other, 0..8).ok().flatten();
            found(bytes.map(|bytes| count_of(&bytes)));
        }
        3 => {
            let Ok(snapshot) = store.snapshot() else { return };
            if let (Ok(one), Ok(other)) = (snapshot.get(one), snapshot.get(other)) {
                let counts = [one, other].map(|object| object.map(|object| count_of(&object.value)));
                assert_eq!(counts[0], counts[1], "a batch is seen whole");
                found(counts[0]);
            }
        }
        _ => {
            // What was acknowledged or read before a scan begins is in it, although most of it
            // comes from chunks that other scans have made meanwhile.
            let least = known[writer].load(Ordering::SeqCst);
            let Ok(mut scan) = store.scan(ScanRange::prefix(format!("w/{writer}/"))) else {
                return;
            };
            for (_, value) in scan.next_values(2).into_iter().flatten() {
                let count = value.ok().map(|bytes| count_of(&bytes));
                assert!(count.is_none_or(|count| count >= least), "{count:?} after {least}");
                found(count);
            }
            // Always refused: it waits beside the writers.
            let condition = PutOptions {
                condition: Condition::VersionIs(Version(u64::MAX)),
                ..PutOptions::default()
            };
            let _ = store.put_with(one, value(0), &condition);
        }
    }
}

/// Waits at the barrier when dropped, also after a panic, for which the others would wait for ever.
struct Meets<'a>(&'a Barrier);

impl Drop for Meets<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

fn life(machine: &Machine, store: &Store, rng: &mut StdRng, from: &[u64]) -> Vec<u64> {
    let known: Vec<AtomicU64> = from.iter().map(|&count| AtomicU64::new(count)).collect();
    let writers_ended = AtomicBool::new(false);
    let seeds: [u64; 3] = rng.random();
    let operations = [50, 300, 1_500][rng.random_range(0..3)];
    machine.cut_within(rng, operations);
    let ended = Barrier::new(WRITERS + 2);
    std::thread::scope(|scope| {
        for (writer, from) in from.iter().enumerate() {
            let (known, ended) = (&known[writer], &ended);
            scope.spawn(move || {
                let _ended = Meets(ended);
                write(store, writer, *from, known);
            });
        }
        scope.spawn(|| {
            let _ended = Meets(&ended);
            write_beside(store, &mut StdRng::seed_from_u64(seeds[2]));
        });
        scope.spawn(|| {
            ended.wait();
            writers_ended.store(true, Ordering::SeqCst);
        });
        for seed in &seeds[..2] {
            let (known, writers_ended) = (&known, &writers_ended);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(*seed);
                while !writers_ended.load(Ordering::SeqCst) {
                    read(store, &mut rng, known);
                }
                (0..READS_AFTER).for_each(|_| read(store, &mut rng, known));
            });
        }
    });
    known.into_iter().map(AtomicU64::into_inner).collect()
}

pub fn readers(rng: &mut StdRng, tally: &mut Tally) {
    let machine = Machine::new(rng);
    let mut store = machine.open().unwrap();
    let mut counts = vec![0; WRITERS];
    for _ in 0..LIVES {
        let known = life(&machine, &store, rng, &counts);
        machine.power_cycle(Some(store), rng);
        tally.count_cut();
        store = machine.recover(rng);
        for (writer, &known) in known.iter().enumerate() {
            let found = keys(writer).map(|key| store.get(key).unwrap().map_or(0, |object| count_of(&object.value)));
            assert_eq!(found[0], found[1], "writer {writer}: a batch is whole");
            assert!(
                found[0] >= known,
                "writer {writer}: {known} was read or acknowledged, {} is there",
                found[0]
            );
            counts[writer] = found[0];
        }
    }
}
