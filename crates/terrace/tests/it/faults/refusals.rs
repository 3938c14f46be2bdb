//! One history many times, each time with another refused allocation on either device: acknowledged
//! values are there, deleted ones are gone, and deletes are accepted.
//!
//! By default some allocations are refused, chosen by seeds from `TERRACE_MODEL_SEED` on. With
//! `TERRACE_MODEL_SECONDS` each allocation of either device is refused in turn, and then random
//! ones for that time.

use super::{
    bench::{Bench, bytes, eventually},
    full_model::{Held, durable, has},
};
use crate::common::{seed, variable};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};
use terrace::{Durability, Error, Options, Store, io::Survival};

/// The history's seed. Its allocations depend little on the scheduling of threads.
const HISTORY: u64 = 32;
const STEPS: usize = 300;
/// Fewest refusals to try.
const REFUSALS: u64 = 10;

fn options(bench: &Bench) -> Options {
    bench.options().tuned(|tuning| {
        tuning.memtable_bytes = 64 << 10;
        tuning.space_amplification_percent = 130;
        tuning.space_amplification_max_percent = 150;
    })
}

/// A step: puts may be refused, deletes may not.
fn step(store: &Store, held: &mut Held, rng: &mut StdRng) {
    let key = format!("{:02}/{}", rng.random_range(0..8), rng.random_range(0..6));
    let (what, seed) = (rng.random_range(0..20), rng.random());
    let length = match rng.random_range(0..8) {
        0 => rng.random_range(0..64),
        1..7 => rng.random_range(64..8_000),
        _ => rng.random_range(8_000..90_000),
    };
    let prefix = format!("{:02}/", rng.random_range(0..8));
    match what {
        0..13 => match store.put_with(&key, bytes(seed, length), &durable()) {
            Ok(_) => drop(held.insert(key, (seed, length))),
            Err(Error::OutOfSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        },
        13..18 => {
            store.delete(&key).unwrap();
            held.remove(&key);
        }
        18 => {
            store.delete_prefix(&prefix, Durability::Sync).unwrap();
            held.retain(|key, _| !key.starts_with(&prefix));
        }
        _ => match store.flush() {
            Ok(()) | Err(Error::OutOfSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        },
    }
}

/// Runs the history, with `count` refusals after `after` allocations of a device. Returns the
/// number of allocations of each.
fn history(is_flash: bool, after: u64, count: u64) -> [u64; 2] {
    let bench = Bench::new(HISTORY);
    let mut store = Store::open(options(&bench)).unwrap();
    let refusing = if is_flash { &bench.flash } else { &bench.large };
    let begun = refusing.growths();
    refusing.refuse_growth(after.saturating_sub(begun), count);
    let (mut held, mut rng) = (Held::new(), StdRng::seed_from_u64(HISTORY));
    for at in 0..STEPS {
        step(&store, &mut held, &mut rng);
        if at == STEPS / 2 {
            // Acknowledged values are durable.
            bench.flash.power_cut();
            bench.large.power_cut();
            drop(store);
            for disk in [&bench.flash, &bench.large] {
                disk.set_survival(Survival::Nothing);
                disk.restore_power();
            }
            store = Store::open(options(&bench)).unwrap();
        }
    }
    has(&store, &held).unwrap();
    let asked = [bench.flash.growths(), bench.large.growths()];
    refusing.refuse_growth(0, 0);
    // No refusal is permanent. The reserve is reallocated every 50 ms, and until it is, new objects
    // are refused: 3 of 96 runs ended here, beside two busy loops.
    for (key, length) in [("after", 5_000), ("after, large", 50_000)] {
        let is_taken = || match store.put(key, bytes(1, length)) {
            Ok(_) => true,
            Err(Error::OutOfSpace { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        eventually("taking what is new", &store, |_| is_taken());
    }
    store.delete_prefix("", Durability::Sync).unwrap();
    eventually("giving room back", &store, |stats| stats.large.live_bytes == 0);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    asked
}

#[test]
fn whichever_allocation_is_refused_nothing_acknowledged_is_lost_and_deletes_are_taken() {
    let began = Instant::now();
    let asked = history(true, u64::MAX, 0);
    assert!(asked.iter().all(|asked| *asked > 5), "{asked:?}");
    let time = variable("TERRACE_MODEL_SECONDS").map(Duration::from_secs);
    if time.is_some() {
        for (is_flash, asked) in [true, false].into_iter().zip(asked) {
            eprintln!("flash {is_flash}: {asked} allocations, each in turn");
            for after in 0..asked {
                history(is_flash, after, 1);
            }
        }
        eprintln!("each in turn: {:?}", began.elapsed());
    }
    let first = seed();
    for seed in first.. {
        if seed >= first + REFUSALS && time.is_none_or(|time| began.elapsed() >= time) {
            break;
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let is_flash = rng.random_bool(0.5);
        let after = rng.random_range(0..asked[usize::from(!is_flash)]);
        let count = [1, 2, 10][rng.random_range(0..3)];
        eprintln!("seed {seed}: flash {is_flash}, {count} after {after}");
        history(is_flash, after, count);
    }
}
