//! Tests of the hash index against a model, its growth, its RAM, and readers beside a writer.
#![allow(clippy::unwrap_used)]
use super::{partition::LOAD_PERCENT_MAX, *};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};

fn index(partitions: usize, buckets_min: usize) -> HashIndex {
    let config = Config {
        partitions,
        buckets_min,
        ..Config::default()
    };
    HashIndex::new(config).unwrap()
}

fn address(number: u64) -> Address {
    Address::from_packed(number + 1).unwrap()
}

/// The bits of a hash that the index uses: keys that agree in them share a slot.
fn class(index: &HashIndex, hash: u64) -> u64 {
    hash >> (64 - index.partition_bits - index.class_bits)
}

fn address_of(index: &HashIndex, hash: u64) -> Option<Address> {
    index.peek(hash).map(|found| found.address)
}

#[test]
fn random_histories_agree_with_a_map_of_classes() {
    for seed in 0..4 {
        let mut random = StdRng::seed_from_u64(seed);
        let index = index(2, 4);
        // 22 bits of class: 30,000 hashes share theirs with another in about 100 cases.
        let hashes: Vec<u64> = (0..30_000).map(|_| random.random()).collect();
        let mut model: HashMap<u64, Address> = HashMap::new();
        for step in 0..120_000 {
            let hash = hashes[random.random_range(0..hashes.len())];
            let class = class(&index, hash);
            let known = model.get(&class).copied();
            match random.random_range(0..10) {
                0..5 => {
                    let replaced = index.insert(hash, address(step), step);
                    assert_eq!(replaced.map(|found| found.address), known, "seed {seed}");
                    model.insert(class, address(step));
                }
                5..8 => {
                    assert_eq!(index.remove(hash).map(|found| found.address), known, "seed {seed}");
                    model.remove(&class);
                }
                _ => assert_eq!(index.lookup(hash).map(|found| found.address), known, "seed {seed}"),
            }
            assert_eq!(index.len(), model.len() as u64);
        }
        for hash in &hashes {
            assert_eq!(
                address_of(&index, *hash),
                model.get(&class(&index, *hash)).copied(),
                "seed {seed}"
            );
        }
        let classes: std::collections::HashSet<_> = hashes.iter().map(|hash| class(&index, *hash)).collect();
        let shared = hashes.len() - classes.len();
        // Expected 107, standard deviation 10.
        assert!(
            (60..160).contains(&shared),
            "seed {seed}: {shared} hashes share a class"
        );
        assert!(index.growths() > 20 && index.evicted() == 0, "seed {seed}");
    }
}

#[test]
fn absent_keys_match_exactly_when_their_class_is_taken() {
    let mut random = StdRng::seed_from_u64(11);
    let index = index(1, 2);
    let classes: std::collections::HashSet<_> = (0..10_000)
        .map(|number| {
            let hash = random.random();
            index.insert(hash, address(number), 100);
            class(&index, hash)
        })
        .collect();
    assert_eq!(index.len(), classes.len() as u64);
    let mut matches = 0;
    for _ in 0..200_000 {
        let hash = random.random();
        let found = index.peek(hash).is_some();
        assert_eq!(found, classes.contains(&class(&index, hash)));
        matches += u32::from(found);
    }
    // The documented share: entries / 2^(0 + 19 + 1) = 0.95 %, of 200,000 so 1,907 ± 43.
    assert!((1_650..2_150).contains(&matches), "{matches}");
}

#[test]
fn growth_keeps_every_entry_with_its_length_and_recency() {
    let mut random = StdRng::seed_from_u64(3);
    let index = index(1, 64);
    let mut known: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut growths = 0;
    while growths < 40 {
        let (hash, number): (u64, u64) = (random.random(), known.len() as u64);
        if index.insert(hash, address(number), number * 37).is_some() {
            continue;
        }
        (0..number % 5).for_each(|_| assert!(index.lookup(hash).is_some()));
        known.insert(hash, (number, number % 5));
        if index.growths() == growths {
            continue;
        }
        growths = index.growths();
        assert_eq!(index.len(), known.len() as u64);
        for (hash, (number, uses)) in &known {
            let found = index.peek(*hash).unwrap();
            assert_eq!(found.address, address(*number));
            assert_eq!(found.read_bytes_max, SizeClass::of(number * 37).read_bytes_max());
            assert_eq!(index.recency(*hash, address(*number)), Some((*uses).min(3) as u8));
        }
    }
    assert_eq!(index.evicted(), 0);
}

#[test]
fn load_is_high_before_growth_and_ram_low_after_it() {
    let mut random = StdRng::seed_from_u64(5);
    let index = index(1, 1024);
    let initial_bytes = index.ram_bytes();
    assert!(initial_bytes < 1024 * 65 + 2048, "{initial_bytes}");
    let mut growths = 0;
    let mut load = 0.0;
    for number in 0..100_000 {
        index.insert(random.random(), address(number), 1000);
        if index.growths() > growths {
            growths = index.growths();
            assert!(load >= 0.95, "grew at a load of {load}");
            let bytes = index.ram_bytes() as f64 / index.len() as f64;
            assert!(bytes <= 9.0, "{bytes} bytes per entry at {} entries", index.len());
        }
        load = index.load();
    }
    assert!(growths > 30);
    assert!(index.partitions[0].moves() > 10_000, "such loads take displacements");
    assert!(load <= LOAD_PERCENT_MAX as f64 / 100.0);
}

#[test]
fn a_million_entries_take_at_most_nine_bytes_each() {
    let index = HashIndex::new(Config::default()).unwrap();
    assert!(index.ram_bytes() <= (4 << 20) + (256 << 10), "{}", index.ram_bytes());
    let mut random = StdRng::seed_from_u64(6);
    for number in 0..1_000_000 {
        index.insert(random.random(), address(number), 1000);
    }
    let bytes = index.ram_bytes() as f64 / index.len() as f64;
    assert!(bytes <= 9.0, "{bytes}");
    // 15 pairs are expected to share a class.
    assert!((999_950..=1_000_000).contains(&index.len()), "{}", index.len());
}

#[test]
fn recency_counts_lookups_and_only_of_the_address_asked_for() {
    let index = index(1, 16);
    let (hash, here, elsewhere) = (0x1234_5678_9ABC_DEF0, address(7), address(8));
    assert_eq!(index.recency(hash, here), None);
    index.insert(hash, here, 100);
    assert_eq!(index.recency(hash, here), Some(0));
    assert!(index.peek(hash).is_some());
    assert_eq!(index.recency(hash, here), Some(0), "a peek is not a use");
    for expected in [1, 2, 3, 3] {
        let found = index.lookup(hash).unwrap();
        assert_eq!((found.address, found.read_bytes_max), (here, 256));
        assert_eq!(index.recency(hash, here), Some(expected));
    }
    assert_eq!(index.recency(hash, elsewhere), None);
    let replaced = index.insert(hash, elsewhere, 600).unwrap();
    assert_eq!((replaced.address, replaced.read_bytes_max), (here, 256));
    assert_eq!(index.recency(hash, elsewhere), Some(0), "a new record starts unused");
    assert!(index.remove(hash).unwrap().address == elsewhere && index.is_empty());
    assert_eq!(index.lookup(hash), None);
}

#[test]
fn clearing_empties_the_index_and_it_can_be_filled_again() {
    let mut random = StdRng::seed_from_u64(9);
    let index = index(2, 16);
    for round in 0..3 {
        let hashes: Vec<u64> = (0..3_000).map(|_| random.random()).collect();
        for (number, hash) in hashes.iter().enumerate() {
            index.insert(*hash, address(number as u64), 1000);
        }
        let shared = 3_000 - index.len();
        assert!(shared < 20, "round {round}: {shared} share a class");
        let found = hashes.iter().filter(|hash| index.peek(**hash).is_some()).count();
        assert_eq!(found, 3_000);
        let ram_bytes = index.ram_bytes();
        index.clear();
        assert!(index.is_empty() && index.load() == 0.0);
        assert!(hashes.iter().all(|hash| index.peek(*hash).is_none()));
        assert_eq!(index.ram_bytes(), ram_bytes, "the memory is kept");
    }
}

#[test]
fn at_its_bound_it_overwrites_what_was_used_least() {
    let config = Config {
        partitions: 4,
        buckets_min: 64,
        ram_bytes_max: 64 << 10,
    };
    let index = HashIndex::new(config).unwrap();
    let mut random = StdRng::seed_from_u64(13);
    let used: Vec<u64> = (0..1_000).map(|_| random.random()).collect();
    for (number, hash) in used.iter().enumerate() {
        index.insert(*hash, address(number as u64), 1000);
        assert!(index.lookup(*hash).is_some());
    }
    let mut shared = 0;
    for number in 1_000..50_000 {
        let hash = random.random();
        shared += u64::from(index.insert(hash, address(number), 1000).is_some());
        assert_eq!(
            address_of(&index, hash),
            Some(address(number)),
            "what was just inserted is there"
        );
    }
    assert!(index.ram_bytes() <= 64 << 10, "{}", index.ram_bytes());
    assert!(index.load() > 0.96, "{}", index.load());
    assert_eq!(index.len() + index.evicted() + shared, 50_000);
    let kept = used
        .iter()
        .zip(0..)
        .filter(|(hash, number)| address_of(&index, **hash) == Some(address(*number)));
    assert!(kept.count() > 990, "used slots stay");
}

#[test]
fn keys_made_to_collide_do_not_make_it_grow_without_end() {
    let index = index(1, 64);
    // All in the first two thousandths of the range, so with the same few primary buckets.
    for number in 0..2_000u64 {
        index.insert(number << 44, address(number), 1000);
        assert_eq!(address_of(&index, number << 44), Some(address(number)));
    }
    assert!(index.ram_bytes() < 64 << 10, "{}", index.ram_bytes());
    assert_eq!(index.len() + index.evicted(), 2_000);
    let kept = (0..2_000u64)
        .filter(|number| address_of(&index, number << 44) == Some(address(*number)))
        .count();
    assert_eq!(kept as u64, index.len());
}

#[test]
fn the_table_gives_every_bucket_its_own_place_and_reserves_whole_segments() {
    for buckets_min in [2, 32, 64, 256] {
        let table = Table::new(buckets_min);
        let mut buckets = buckets_min;
        while buckets < buckets_min * 9 {
            let next = Table::next_buckets(buckets);
            assert!(next > buckets);
            assert!(buckets < 32 || next * 100 <= buckets * 107, "{buckets} -> {next}");
            table.reserve(buckets, next);
            buckets = next;
            assert_eq!(
                table.ram_bytes(),
                Table::ram_bytes_of(buckets_min, buckets),
                "{buckets}"
            );
        }
        for bucket in 0..buckets {
            assert_eq!(table.bucket(bucket).load(3), 0);
            table.bucket(bucket).store(3, bucket as u64 + 1);
        }
        assert!((0..buckets).all(|bucket| table.bucket(bucket).load(3) == bucket as u64 + 1));
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let good = Config::default();
    let bad = [
        Config { partitions: 0, ..good },
        Config { partitions: 3, ..good },
        Config {
            partitions: 1 << 17,
            ..good
        },
        Config { buckets_min: 0, ..good },
        Config { buckets_min: 1, ..good },
        Config {
            buckets_min: 48,
            ..good
        },
        Config {
            buckets_min: 1 << 15,
            ..good
        },
        Config {
            ram_bytes_max: 1 << 20,
            ..good
        },
    ];
    for config in bad {
        assert!(matches!(HashIndex::new(config), Err(Error::Invalid(_))), "{config:?}");
    }
    assert_eq!(Config::for_flash_bytes(0, None), good);
    assert_eq!(Config::for_flash_bytes(64 << 30, None), good);
    assert_eq!(Config::for_flash_bytes(1 << 40, None).partitions, 1024);
    assert_eq!(Config::for_flash_bytes(u64::MAX, None).partitions, 4096);
    for (flash_bytes, ram_bytes) in [
        (4 << 20, 512 << 10),
        (64 << 30, 4 << 20),
        (1 << 40, 8 << 20),
        (1 << 40, 1 << 30),
    ] {
        let config = Config::for_flash_bytes(flash_bytes, Some(ram_bytes));
        let index = HashIndex::new(config).unwrap();
        assert!(
            index.ram_bytes() <= ram_bytes / 2 + 4096,
            "{config:?}: {}",
            index.ram_bytes()
        );
        assert!(
            index.slots_max().is_some_and(|slots| slots > ram_bytes / 20),
            "{config:?}"
        );
    }
    let widest = Config {
        partitions: 1,
        buckets_min: 1 << 14,
        ..good
    };
    assert_eq!(HashIndex::new(widest).unwrap().insert(u64::MAX, address(1), 1), None);
}

/// What is known of one key: the number of its last change, begun and finished, times two, plus 1
/// if it is present after it.
#[derive(Default)]
struct Watched {
    begun: AtomicU64,
    finished: AtomicU64,
}

fn versioned(key: usize, state: u64) -> Address {
    Address::from_packed(((key as u64 + 1) << 20) + state).unwrap()
}

/// Whether `found` was true at some moment while a key went from one state to the other.
fn was_true(key: usize, found: Option<Address>, from: u64, to: u64) -> bool {
    match found {
        Some(address) => (from..=to).any(|state| state % 2 == 1 && address == versioned(key, state)),
        // In between, it may have been absent only if there was a change in between.
        None => from.is_multiple_of(2) || to.is_multiple_of(2) || to / 2 - from / 2 >= 2,
    }
}

#[test]
fn readers_see_only_what_was_true_while_they_looked() {
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        let index = index(2, 4);
        let mut classes = std::collections::HashSet::new();
        let hashes: Vec<u64> = (0..2_000)
            .map(|_| random.random())
            .filter(|hash| classes.insert(class(&index, *hash)))
            .collect();
        let watched: Vec<Watched> = hashes.iter().map(|_| Watched::default()).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..2 {
                let (index, hashes, watched, stop) = (&index, &hashes, &watched, &stop);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 100 + reader);
                    while !stop.load(SeqCst) {
                        let key = random.random_range(0..hashes.len());
                        let from = watched[key].finished.load(SeqCst);
                        let found = index.lookup(hashes[key]).map(|found| found.address);
                        let to = watched[key].begun.load(SeqCst);
                        assert!(
                            was_true(key, found, from, to),
                            "seed {seed}, key {key}: {found:?}, {from} to {to}"
                        );
                    }
                });
            }
            for step in 0..40_000 {
                // Ever more keys at first, so that the table grows under the readers; then changes
                // at its load.
                let key = random.random_range(0..hashes.len().min(20 + step / 10));
                let state = watched[key].finished.load(SeqCst);
                let present = random.random_range(0..8) > 0;
                let next = (state / 2 + 1) * 2 + u64::from(present);
                watched[key].begun.store(next, SeqCst);
                if present {
                    index.insert(hashes[key], versioned(key, next), 100);
                } else {
                    index.remove(hashes[key]);
                }
                watched[key].finished.store(next, SeqCst);
            }
            stop.store(true, SeqCst);
        });
        assert!(
            index.growths() > 10 && index.evicted() == 0,
            "seed {seed}: {} {}",
            index.growths(),
            index.evicted()
        );
    }
}

#[test]
fn it_says_of_a_class_that_it_has_none_unless_slots_were_given_up() {
    let bounded = HashIndex::new(Config {
        partitions: 1,
        buckets_min: 16,
        ram_bytes_max: 4 << 10,
    });
    let (bounded, free) = (bounded.unwrap(), index(1, 16));
    let hashes: Vec<u64> = (0..2_000)
        .map(|n| (n + 1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    for (number, hash) in (0..).zip(&hashes) {
        assert!(free.has_none(*hash), "{number}");
        free.insert(*hash, address(number), 100);
        bounded.insert(*hash, address(number), 100);
        // A key that differs only in bits that the table does not use has the same class.
        for key in [*hash, free.class_hash(*hash), *hash ^ 1] {
            assert!(!free.has_none(key));
            assert_eq!(free.class_hash(key), free.class_hash(*hash));
        }
    }
    assert!(bounded.gave_slots_up() && !free.gave_slots_up());
    assert!(
        hashes.iter().all(|hash| !bounded.has_none(*hash)),
        "some of them have no slot"
    );
    free.remove(hashes[7]);
    assert!(free.has_none(hashes[7]));
    free.hide();
    assert!(!free.has_none(hashes[7]), "nothing is known of a hidden table");
    free.show();
    free.restores_crowded();
    assert!(!free.has_none(hashes[7]) && free.gave_slots_up());
    free.clear();
    assert!(free.has_none(hashes[8]) && !free.gave_slots_up());
}

#[test]
fn room_is_made_at_once_and_not_beyond_the_bound() {
    let (grown, bounded) = (
        index(2, 4),
        Config {
            partitions: 2,
            buckets_min: 4,
            ram_bytes_max: 16 << 10,
        },
    );
    let bounded = HashIndex::new(bounded).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let hashes: Vec<u64> = (0..40_000).map(|_| random.random()).collect();
    let insert = |index: &HashIndex, from: usize, to: usize| {
        for (number, hash) in (from..to).zip(&hashes[from..to]) {
            index.insert(*hash, address(number as u64), 100);
        }
    };
    insert(&grown, 0, 1_000);
    (0..2).for_each(|partition| grown.make_room(partition, 40_000));
    let growths = grown.growths();
    for (number, hash) in (0..).zip(&hashes[..1_000]) {
        let found = address_of(&grown, *hash);
        assert!(
            found.is_some_and(|found| found >= address(number)),
            "a later one of its class, or it"
        );
    }
    insert(&grown, 1_000, 39_000);
    assert_eq!(grown.growths(), growths, "there was room for all of them");
    assert!(grown.load() > 0.85, "{}", grown.load());
    assert_eq!(grown.evicted(), 0);
    (0..2).for_each(|partition| grown.make_room(partition, 100));
    assert_eq!(grown.growths(), growths, "there is room");
    insert(&bounded, 0, 500);
    (0..2).for_each(|partition| bounded.make_room(partition, 40_000));
    assert!(bounded.ram_bytes() <= 16 << 10, "{}", bounded.ram_bytes());
}
