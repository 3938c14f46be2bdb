//! Groups in an engine. A group is a small and a large object of one image, committed together.
//! Objects are numbered: twice the group, plus one for the large one. Reading a wrong value is an
//! error.

use crate::{
    Outcome,
    harness::{
        driver::{LoopOutcome, settle, timed_loop},
        progress::Progress,
        setup::{Places, Setup},
        values::Values,
    },
    rivals::{Candidate, Figures, KeyValue, Opening, disk_bytes, terrace::Terrace},
};
use serde::{Deserialize, Serialize};
use std::{fs, path::PathBuf, sync::Arc, time::Duration};
use terrace::{Durability, Options};

/// Operations between two reports of progress.
const REPORT_EVERY: u64 = 64;

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
    pub const fn of(self, object: u64) -> usize {
        if is_large(object) {
            self.large_bytes
        } else {
            self.small_bytes
        }
    }

    /// Of a group.
    pub const fn group(self) -> u64 {
        (self.small_bytes + self.large_bytes) as u64
    }
}

/// Whether an object is the large one of its group.
const fn is_large(object: u64) -> bool {
    object % 2 == 1
}

/// The key of an object: in the order of the groups.
fn key(object: u64) -> String {
    let kind = if is_large(object) { "large" } else { "small" };
    format!("image/{:012}/{kind}", object / 2)
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

/// Sizes of the flash cache, which copies hot objects; the default, off, is as in the paper, where
/// only size decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heat {
    /// RAM for objects being copied to flash.
    pub staging_bytes: u64,
    /// Capacity of the log and the copies, if limited.
    pub flash_capacity_bytes: Option<u64>,
}

/// Opens Terrace without a RAM cache for values, and waits until its hash index is filled.
pub fn open_terrace(usual: Options, tuning: Tuning, heat: Heat) -> Outcome<Box<dyn KeyValue>> {
    let options = Options {
        cache_bytes: 0,
        log_capacity_bytes: heat.flash_capacity_bytes,
        size_threshold_bytes: tuning.size_threshold_bytes,
        segment_bytes: tuning.segment_bytes,
        split_threshold_bytes: tuning.split_threshold_bytes,
        ..usual
    };
    let options = options.tuned(|tuning| tuning.staging_bytes = heat.staging_bytes);
    Ok(Box::new(Terrace::filled(options)?))
}

/// Opens LevelDB, the paper's baseline, with its defaults.
pub fn open_leveldb(setup: Setup, places: &Places, name: &str) -> Outcome<Box<dyn KeyValue>> {
    let opening = Opening {
        cache_bytes: 0,
        ..Opening::new(&setup.flash(places).path.join(name))
    };
    Candidate::LevelDb.open(&opening)
}

/// The groups in an open engine.
pub struct Groups {
    /// The engine.
    pub engine: Box<dyn KeyValue>,
    /// Its directories.
    pub directories: [PathBuf; 2],
    /// What values are cut from.
    pub values: Arc<Values>,
    /// Lengths of the objects.
    pub sizes: Sizes,
}

impl Groups {
    fn value(&self, object: u64) -> &[u8] {
        self.values.piece(object, self.sizes.of(object))
    }

    /// Puts groups, each as one batch, without waiting for the device.
    pub fn insert(&self, groups: &[u64], progress: &Progress) -> Outcome<LoopOutcome> {
        one_by_one(groups, 1, progress, |group| {
            let objects = [2 * group, 2 * group + 1].map(|object| (key(object), self.value(object)));
            let pairs = objects.each_ref().map(|(key, value)| (key.as_bytes(), *value));
            self.engine.put_all(&pairs, Durability::Buffered)?;
            Ok(0)
        })
    }

    /// Reads objects; kind 0 are small ones, kind 1 large ones.
    pub fn read(&self, objects: &[u64], progress: &Progress) -> Outcome<LoopOutcome> {
        one_by_one(objects, 2, progress, |object| {
            crate::contest::step::get(&*self.engine, key(object).as_bytes(), |found| {
                let found = found.ok_or_else(|| format!("object {object} is gone"))?;
                self.values.check(object, self.sizes.of(object), found)
            })?;
            Ok(usize::from(is_large(object)))
        })
    }

    /// Waits for the background work after insertions: until no file has changed for `quiet`.
    pub fn settle(&self, quiet: Duration) -> Outcome {
        settle(quiet, || self.directories.iter().map(|path| disk_bytes(path)).sum())
    }

    /// Closes. Returns the engine's statistics since it was opened; LevelDB has them in its log.
    pub fn close(self) -> Outcome<Figures> {
        let figures = self.engine.figures();
        self.engine.close()?;
        let log = self
            .directories
            .iter()
            .find_map(|path| fs::read_to_string(path.join("LOG")).ok());
        Ok(log.map_or(figures, |log| of_leveldb(&log)))
    }
}

/// Does an operation with each of these numbers.
fn one_by_one(
    numbers: &[u64],
    kinds: usize,
    progress: &Progress,
    operation: impl Fn(u64) -> Outcome<usize> + Sync,
) -> Outcome<LoopOutcome> {
    timed_loop(1, numbers.len() as u64, None, kinds, |position| {
        if position.is_multiple_of(REPORT_EVERY) {
            progress.share(position as f64 / numbers.len() as f64);
        }
        operation(numbers[position as usize])
    })
}

/// Counts events in LevelDB's log: "Level-0 table #5: 4096 bytes OK", "Compacted 1@0 + 2@1 files =>
/// 4096 bytes". What it wrote to its own log of writes is not there.
fn of_leveldb(log: &str) -> Figures {
    let bytes = |line: &str| -> Option<u64> { line.split(" bytes").next()?.rsplit(' ').next()?.parse().ok() };
    let (mut flushes, mut compactions, mut written_bytes) = (0, 0, 0);
    for line in log.lines() {
        let is_flush = line.contains("Level-0 table #") && line.contains(" bytes ");
        let is_compaction = line.contains("Compacted ") && line.contains(" => ");
        flushes += u64::from(is_flush);
        compactions += u64::from(is_compaction);
        if is_flush || is_compaction {
            written_bytes += bytes(line).unwrap_or(0);
        }
    }
    Figures {
        flushes: Some(flushes),
        compactions: Some(compactions),
        written_bytes: Some(written_bytes),
        ..Figures::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn compactions_are_counted_from_the_log() {
        let log = "2026/11/20-10:00:00.000000 7f Level-0 table #5: started\n\
                   2026/11/20-10:00:00.100000 7f Level-0 table #5: 4194304 bytes OK\n\
                   2026/11/20-10:00:01.000000 7f Compacting 4@0 + 0@1 files\n\
                   2026/11/20-10:00:01.200000 7f Generated table #7@0: 100 keys, 1000 bytes\n\
                   2026/11/20-10:00:01.300000 7f Compacted 4@0 + 0@1 files => 16777216 bytes\n";
        let figures = of_leveldb(log);
        assert_eq!((figures.flushes, figures.compactions), (Some(1), Some(1)));
        assert_eq!(figures.written_bytes, Some(4_194_304 + 16_777_216));
    }
}
