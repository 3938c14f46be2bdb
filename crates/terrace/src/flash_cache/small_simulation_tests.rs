//! Second chance and coming back together, without devices: reads of small objects by Zipf's law on
//! a log that holds a part of them.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use super::small::Policy;
use crate::{
    key_hash,
    maintenance::log_gc::second_chance::{Credit, Drained, choose},
};
use std::collections::VecDeque;

const SEGMENTS: usize = 64;

struct Outcome {
    hits: f64,
    /// Of a cache that always holds the most popular objects that fit.
    perfect: f64,
    /// Per 100 reads.
    moved: f64,
    reinserted: f64,
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Where an object is in the log, and how often it was used there.
#[derive(Clone, Copy)]
struct Slot {
    segment: u64,
    uses: u8,
}

struct Log {
    segment_objects: usize,
    sealed: VecDeque<(u64, Vec<usize>)>,
    open: Vec<usize>,
    number: u64,
    slots: Vec<Option<Slot>>,
    policy: Policy,
    credit: Credit,
    reads: u64,
    written: u64,
    moved: u64,
    reinserted: u64,
}

impl Log {
    fn new(objects: usize, capacity: usize) -> Self {
        let segment_objects = (capacity / SEGMENTS).max(1);
        Self {
            segment_objects,
            sealed: VecDeque::new(),
            open: Vec::new(),
            number: 0,
            slots: vec![None; objects],
            policy: Policy::new(1 << 18),
            credit: Credit::new(segment_objects as u64),
            reads: 0,
            written: 0,
            moved: 0,
            reinserted: 0,
        }
    }

    fn append(&mut self, object: usize) {
        if self.open.len() >= self.segment_objects {
            self.sealed.push_back((self.number, std::mem::take(&mut self.open)));
            self.number += 1;
        }
        self.open.push(object);
        self.slots[object] = Some(Slot {
            segment: self.number,
            uses: 0,
        });
    }

    fn recycle(&mut self) {
        while self.sealed.len() + 1 > SEGMENTS * 4 / 5 {
            let (number, objects) = self.sealed.pop_front().unwrap();
            let live: Vec<(usize, u8)> = objects
                .into_iter()
                .filter_map(|object| {
                    let slot = self.slots[object].filter(|slot| slot.segment == number)?;
                    Some((object, slot.uses))
                })
                .collect();
            self.credit.written(self.written, self.moved);
            let limits = self.credit.limits(Drained {
                length: self.segment_objects,
                held: self.segment_objects,
                live_bytes: live.len(),
                is_crowded: false,
                is_short: false,
            });
            let (hot, cold) = choose(live, limits, |(_, uses)| (*uses, 1));
            self.credit.spend(hot.len());
            self.reinserted += hot.len() as u64;
            let uses = cold.iter().map(|(_, uses)| u64::from(*uses)).sum();
            self.policy
                .drained(self.reads, self.sealed.len() + 2, cold.len() as u64, uses);
            cold.iter().for_each(|(object, _)| self.slots[*object] = None);
            hot.iter().for_each(|(object, _)| self.append(*object));
        }
    }

    fn read(&mut self, object: usize) -> bool {
        self.reads += 1;
        if let Some(slot) = &mut self.slots[object] {
            slot.uses = (slot.uses + 1).min(3);
            return true;
        }
        let hash = key_hash(&object.to_le_bytes());
        if self.policy.read(hash, self.reads) {
            self.policy.forget(hash);
            self.moved += 1;
            self.append(object);
            self.recycle();
        }
        false
    }
}

/// Reads after `warm_up` others; ranks are turned around in the middle of the warm-up if they
/// `change`.
fn simulate(objects: usize, share: f64, warm_up: u64, measured: u64, change: bool) -> Outcome {
    let capacity = (objects as f64 * share * 0.92) as usize;
    let mut log = Log::new(objects, capacity);
    for object in 0..objects {
        log.append(object * 7919 % objects);
        log.written += 1;
        log.recycle();
    }
    let mut sums = Vec::with_capacity(objects);
    let mut sum = 0.0;
    for rank in 1..=objects {
        sum += (rank as f64).powf(-0.99);
        sums.push(sum);
    }
    let mut numbers = Numbers(88_172_645_463_325_252);
    let (mut hits, mut before) = (0_u64, (0, 0));
    for read in 0..warm_up + measured {
        if read == warm_up {
            (hits, before) = (0, (log.moved, log.reinserted));
        }
        let at = numbers.share() * sum;
        let rank = sums.partition_point(|sum| *sum < at).min(objects - 1);
        let object = if change && read > warm_up / 2 {
            (rank + objects / 2) % objects
        } else {
            rank
        };
        hits += u64::from(log.read(object));
    }
    let per_100 = |count: u64| count as f64 / measured as f64 * 100.0;
    Outcome {
        hits: hits as f64 / measured as f64,
        perfect: sums[((objects as f64 * share) as usize).min(objects) - 1] / sum,
        moved: per_100(log.moved - before.0),
        reinserted: per_100(log.reinserted - before.1),
    }
}

#[test]
fn hits_come_near_a_perfect_cache_with_few_writes() {
    for share in [0.1, 0.25, 0.5, 0.9] {
        let Outcome {
            hits,
            perfect,
            moved,
            reinserted,
        } = simulate(20_000, share, 600_000, 200_000, false);
        println!("{share}: {hits:.3} of {perfect:.3}, {moved:.2} moved, {reinserted:.2} reinserted");
        assert!(hits > perfect - 0.05, "{share}: {hits:.3} of {perfect:.3}");
        assert!(moved < 3.0 && reinserted < 6.0, "{share}: {moved:.2}, {reinserted:.2}");
    }
}

#[test]
fn what_becomes_popular_comes_in() {
    let Outcome { hits, perfect, .. } = simulate(20_000, 0.1, 800_000, 100_000, true);
    assert!(hits > perfect - 0.06, "{hits:.3} of {perfect:.3}");
}
