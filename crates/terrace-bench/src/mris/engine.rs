//! An engine for the evaluation, and Terrace as one.
//!
//! A group is a small and a large object of one image, committed together. Objects are numbered:
//! twice the group, plus one for the large one. Reading a wrong value is an error.

use crate::{
    Outcome,
    harness::{
        driver::{LoopOutcome, closed_loop},
        setup::{Places, Setup},
        values::Values,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use terrace::{Batch, Durability, Options, Store};

/// Lengths of the two objects of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of the small one.
    pub small_bytes: usize,
    /// Of the large one.
    pub large_bytes: usize,
}

impl Sizes {
    /// Of an object.
    #[must_use]
    pub const fn of(self, object: u64) -> usize {
        if is_large(object) {
            self.large_bytes
        } else {
            self.small_bytes
        }
    }

    /// Of a group.
    #[must_use]
    pub const fn group(self) -> u64 {
        (self.small_bytes + self.large_bytes) as u64
    }
}

/// Whether an object is the large one of its group.
#[must_use]
pub const fn is_large(object: u64) -> bool {
    object % 2 == 1
}

/// The key of an object: in the order of the groups.
#[must_use]
pub fn key(object: u64) -> String {
    let kind = if is_large(object) { "large" } else { "small" };
    format!("image/{:012}/{kind}", object / 2)
}

/// An engine's statistics since it was opened; `None` if it does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFigures {
    /// Memtables written as tables.
    pub flushes: Option<u64>,
    /// Compactions of tables.
    pub compactions: Option<u64>,
    /// Bytes of tables written by both.
    pub table_bytes: Option<u64>,
    /// All bytes written to tables and logs, as counted by the engine.
    pub written_bytes: Option<u64>,
    /// Reads of the flash log.
    pub flash_reads: Option<u64>,
    /// Reads of the large space.
    pub block_reads: Option<u64>,
    /// Data blocks of the ordered index read from its files.
    pub index_reads: Option<u64>,
}

/// An open store.
pub trait Engine {
    /// Puts groups, each as one batch, without waiting for the device.
    ///
    /// # Errors
    /// The store's.
    fn insert(&mut self, groups: &[u64]) -> Outcome<LoopOutcome>;

    /// Reads objects; kind 0 are small ones, kind 1 large ones.
    ///
    /// # Errors
    /// The store's, or a wrong value.
    fn read(&mut self, objects: &[u64]) -> Outcome<LoopOutcome>;

    /// Makes all puts durable.
    ///
    /// # Errors
    /// The store's.
    fn flush(&mut self) -> Outcome;

    /// A number that changes with each flush or compaction of the engine's tables.
    ///
    /// # Errors
    /// The store's.
    fn tables(&mut self) -> Outcome<u64>;

    /// Closes.
    ///
    /// # Errors
    /// The store's.
    fn close(self: Box<Self>) -> Outcome<EngineFigures>;
}

/// Waits for the background work after insertions: until the tables have not changed for `quiet`.
///
/// # Errors
/// The engine's.
pub fn settle(engine: &mut dyn Engine, quiet: Duration) -> Outcome {
    let (mut tables, mut since) = (engine.tables()?, Instant::now());
    while since.elapsed() < quiet {
        std::thread::sleep(quiet / 20);
        let now = engine.tables()?;
        if now != tables {
            (tables, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Terrace.
#[derive(Debug)]
pub struct Terrace {
    store: Store,
    values: Arc<Values>,
    sizes: Sizes,
}

/// Sizes of the flash cache, which copies hot objects; zero if it is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heat {
    /// RAM for objects being copied to flash.
    pub staging_bytes: u64,
    /// Capacity of the log and the copies, if limited.
    pub flash_capacity_bytes: Option<u64>,
}

impl Heat {
    /// Only size decides, as in the paper.
    pub const OFF: Self = Self {
        staging_bytes: 0,
        flash_capacity_bytes: None,
    };
}

/// Terrace's own sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// *SizeThreshold*.
    pub size_threshold_bytes: u64,
    /// Segment size of the flash log.
    pub segment_bytes: u64,
    /// *SplitThreshold*.
    pub split_threshold_bytes: u64,
}

impl Terrace {
    /// Opens a store of this name without a RAM cache for values, and waits until its hash index is
    /// filled.
    ///
    /// # Errors
    /// The store's.
    pub fn open(
        setup: Setup,
        places: &Places,
        name: &str,
        tuning: Tuning,
        heat: Heat,
        values: &Arc<Values>,
        sizes: Sizes,
    ) -> Outcome<Self> {
        let usual = setup.options(places, name);
        let store = Store::open(
            Options {
                cache_bytes: 0,
                flash_capacity_bytes: heat.flash_capacity_bytes.unwrap_or(usual.flash_capacity_bytes),
                size_threshold_bytes: tuning.size_threshold_bytes,
                segment_bytes: tuning.segment_bytes,
                split_threshold_bytes: tuning.split_threshold_bytes,
                ..usual
            }
            .tuned(|tuning| tuning.staging_bytes = heat.staging_bytes),
        )?;
        while store.stats().hash_index.refilling {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Self {
            store,
            values: Arc::clone(values),
            sizes,
        })
    }

    fn batch(&self, group: u64) -> Batch {
        let mut batch = Batch::new();
        for object in [2 * group, 2 * group + 1] {
            batch.put(key(object), self.values.value(object, self.sizes.of(object)));
        }
        batch
    }
}

impl Engine for Terrace {
    fn insert(&mut self, groups: &[u64]) -> Outcome<LoopOutcome> {
        // The time to make the values is not measured.
        let batches: Vec<Mutex<Batch>> = groups.iter().map(|&group| Mutex::new(self.batch(group))).collect();
        closed_loop(1, groups.len() as u64, 1, |number| {
            let batch = std::mem::take(&mut *batches[number as usize].lock().map_err(|_| "a worker panicked")?);
            self.store.write(batch, Durability::Buffered)?;
            Ok(0)
        })
    }

    fn read(&mut self, objects: &[u64]) -> Outcome<LoopOutcome> {
        closed_loop(1, objects.len() as u64, 2, |number| {
            let object = objects[number as usize];
            let found = self
                .store
                .get(key(object))?
                .ok_or_else(|| format!("object {object} is gone"))?;
            Values::check(object, self.sizes.of(object), &found)?;
            Ok(usize::from(is_large(object)))
        })
    }

    fn flush(&mut self) -> Outcome {
        Ok(self.store.flush()?)
    }

    fn tables(&mut self) -> Outcome<u64> {
        let index = self.store.stats().index;
        Ok(xxhash_rust::xxh3::xxh3_64(
            format!("{} {} {}", index.tables, index.bytes, index.flushes).as_bytes(),
        ))
    }

    fn close(self: Box<Self>) -> Outcome<EngineFigures> {
        self.store.close()?;
        let stats = self.store.stats();
        let written = stats.written;
        Ok(EngineFigures {
            flushes: Some(stats.index.flushes),
            compactions: Some(stats.index.compactions),
            table_bytes: Some(written.index_bytes + written.compaction_bytes),
            written_bytes: Some(
                written.flash_user_bytes
                    + written.flash_padding_bytes
                    + written.flash_reinserted_bytes
                    + written.index_bytes
                    + written.compaction_bytes
                    + written.large_user_bytes
                    + written.large_destaged_bytes
                    + written.large_cleaned_bytes,
            ),
            flash_reads: Some(stats.reads.flash_reads),
            block_reads: Some(stats.reads.block_reads),
            index_reads: Some(stats.index.block_reads),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Changes its tables a limited number of times.
    struct Busy(u64);

    impl Engine for Busy {
        fn insert(&mut self, _: &[u64]) -> Outcome<LoopOutcome> {
            Err("not asked for".into())
        }
        fn read(&mut self, _: &[u64]) -> Outcome<LoopOutcome> {
            Err("not asked for".into())
        }
        fn flush(&mut self) -> Outcome {
            Err("not asked for".into())
        }
        fn tables(&mut self) -> Outcome<u64> {
            self.0 = (self.0 + 1).min(30);
            Ok(self.0)
        }
        fn close(self: Box<Self>) -> Outcome<EngineFigures> {
            Err("not asked for".into())
        }
    }

    #[test]
    fn settling_waits_until_the_tables_stay() {
        let (mut busy, start) = (Busy(0), Instant::now());
        settle(&mut busy, Duration::from_millis(40)).unwrap();
        assert_eq!(busy.0, 30);
        // 29 changes at intervals of 2 ms, then the quiet time.
        assert!(start.elapsed() >= Duration::from_millis(29 * 2 + 40));
    }

    #[test]
    fn objects_of_a_group_are_neighbours_in_key_order() {
        assert_eq!(
            (key(6).as_str(), key(7).as_str()),
            ("image/000000000003/small", "image/000000000003/large")
        );
        assert!(key(7) < key(6) && key(6) < key(9));
        let sizes = Sizes {
            small_bytes: 8,
            large_bytes: 128,
        };
        assert_eq!((sizes.of(6), sizes.of(7), sizes.group()), (8, 128, 136));
    }
}
