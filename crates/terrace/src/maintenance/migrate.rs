//! Brings values to where they belong by the rules of now: after *SizeThreshold* or the pins of
//! prefixes were changed, and for pins as long as there are any.
//!
//! A thread walks the ordered index, not the values, and moves what is misplaced, a bounded step at
//! a time, within a rate. What that is:
//!
//! - a value in the log that belongs in the large space is destaged;
//! - a value in a block that is pinned to the log moves there, unless pins take too much of flash.
//!
//! A value in a block that is merely shorter than *SizeThreshold* stays, like one that was
//! destaged: if it is read often it comes back by itself (`heat`), and one that nobody reads has no
//! business on flash. Recycling destages misplaced values, too.
//!
//! All of the index is walked once after the rules have changed, which a file remembers (`record`).
//! After that only what is pinned is, now and then: the walk also counts its bytes.
//!
//! Invariant: a walk that is given up changed nothing but what it moved. Pins are kept only as long
//! as what they ask for fits into half of the log; beyond that recycling could not go on, so they
//! count for nothing, and the figures and a warning say so.
//!
//! On failure: nothing is wrong but the place. The step is tried again.

mod record;

use crate::{
    Result, ScanRange,
    api::placement::Pinning,
    blocks::Origin,
    engine::{Engine, go_on_if},
    flash_cache::count,
    log::{commit::Committer, segments::RESERVED_SEGMENTS},
    maintenance::moves,
    metrics::bucket::Bucket,
    ordered_index::{Entry, Home, KeyBounds},
    read::stored_value,
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    ops::Bound,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Entries looked at in one step.
const STEP_ENTRIES: usize = 8192;
/// Bytes of values moved in one step, but for the last.
const STEP_BYTES: u64 = 1 << 20;
/// Values moved in one step.
const STEP_VALUES: usize = 1024;
/// Longest rest after a step that only looked.
const REST_MAX: Duration = Duration::from_millis(50);
/// Walks over what is pinned are this long apart at least,
const WALK_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });
/// and this many times as long as one took.
const WALK_DISTANCE: u32 = 20;
/// How often a step is made again that found no room in the log, before what it wanted to move
/// there is left to the next walk,
const TRIES_MAX: u32 = 50;
/// and how long apart.
const ROOM_WAIT: Duration = Duration::from_millis(100);
/// Share of the log that pinned values may have.
const PINNED_SHARE_MAX_PERCENT: u64 = 50;

/// Reads the file's bytes; gives what they encode to. For the fuzz targets.
#[must_use]
pub fn recode_record(bytes: &[u8]) -> Option<Vec<u8>> {
    record::Record::decode(bytes).map(|record| record.encode().to_vec())
}

/// The thread's state.
pub struct Migrator {
    engine: Arc<Engine>,
    /// What the file says.
    record: record::Record,
    walk: Option<Walk>,
    /// Bytes that may be moved.
    bucket: Bucket,
    walk_after: Option<Instant>,
}

/// A walk over ranges of keys.
struct Walk {
    /// What is still to be walked, the first being walked.
    ranges: VecDeque<KeyBounds>,
    began: Instant,
    /// All of the index.
    is_whole: bool,
    flash_bytes: u64,
    disk_bytes: u64,
    /// How often the present step found no room in the log.
    tries: u32,
}

impl Migrator {
    /// A migrator for a store. Notes the rules of now, before anything is written by them.
    pub fn new(engine: Arc<Engine>) -> Self {
        let fingerprint = engine.placement.fingerprint();
        let found = record::Record::read(&*engine.flash_disk).filter(|record| record.fingerprint == fingerprint);
        let record = found.unwrap_or_else(|| {
            let is_new = engine.recovered_seq == 0;
            let record = record::Record {
                fingerprint,
                is_settled: is_new,
            };
            if let Err(error) = record.write(&*engine.flash_disk) {
                tracing::warn!(%error, "changed rules may be forgotten");
            }
            record
        });
        engine
            .migration
            .is_under_way
            .store(!record.is_settled, Ordering::Relaxed);
        Self {
            bucket: Bucket::per_second(Some(engine.options.tuning.migrate_bytes_per_second)),
            engine,
            record,
            walk: None,
            walk_after: None,
        }
    }

    /// Does the next step there is to do. `false` if there was none.
    ///
    /// # Errors
    /// The log's, the index's, the devices'; it can be tried again.
    pub fn turn(&mut self) -> Result<bool> {
        if !self.begin() {
            return Ok(false);
        }
        let Some(walk) = &mut self.walk else { return Ok(false) };
        let began = Instant::now();
        let moved_bytes = walk.step(&self.engine)?;
        if self.engine.log.is_closing() {
            // The step may have moved nothing for that reason; so the walk must not end with it.
            return Ok(false);
        }
        if walk.ranges.is_empty() {
            self.end()?;
        }
        let rest = if moved_bytes > 0 {
            self.bucket.overdraw(moved_bytes)
        } else {
            began.elapsed().min(REST_MAX)
        };
        self.engine.pause(rest);
        Ok(true)
    }

    /// Whether there is a walk to go on with.
    fn begin(&mut self) -> bool {
        let engine = &self.engine;
        if self.walk.is_some() {
            return true;
        }
        // What recovery found was placed by the rules before, and must be in the index to be met.
        if engine.log.applied_seq() < engine.recovered_seq || engine.options.tuning.migrate_bytes_per_second == 0 {
            return false;
        }
        let mut ranges = VecDeque::new();
        if !self.record.is_settled {
            ranges.push_back((Bound::Unbounded, Bound::Unbounded));
        } else if self.walk_after.is_none_or(|after| Instant::now() >= after) {
            for prefix in engine.placement.prefixes() {
                let range = ScanRange::prefix(prefix);
                ranges.push_back((range.start, range.end));
            }
        }
        if ranges.is_empty() {
            return false;
        }
        self.walk = Some(Walk {
            ranges,
            began: Instant::now(),
            is_whole: !self.record.is_settled,
            flash_bytes: 0,
            disk_bytes: 0,
            tries: 0,
        });
        true
    }

    /// A walk is over.
    fn end(&mut self) -> Result<()> {
        let engine = &self.engine;
        if let Some(walk) = self.walk.take() {
            let took = walk.began.elapsed();
            walk.tell(engine);
            if walk.is_whole {
                // What was moved must not be lost once nobody looks for it any more, and is there
                // for whoever is told so.
                let moved_seq = engine.log.wait_applied()?;
                engine.log.make_durable(moved_seq)?;
                let record = record::Record {
                    is_settled: true,
                    ..self.record
                };
                record.write(&*engine.flash_disk)?;
                self.record = record;
                engine.migration.is_under_way.store(false, Ordering::Relaxed);
                tracing::info!("all values are where they belong");
            }
            self.walk_after = Some(Instant::now() + WALK_INTERVAL.max(took * WALK_DISTANCE));
        }
        Ok(())
    }
}

impl Walk {
    /// Looks at the next entries and moves what is misplaced among them. Returns the bytes moved.
    fn step(&mut self, engine: &Engine) -> Result<u64> {
        let Some(bounds) = self.ranges.front().cloned() else {
            return Ok(0);
        };
        let (mut misplaced, mut misplaced_bytes) = (Vec::new(), 0);
        let (mut seen, mut flash_bytes, mut disk_bytes) = (0, 0, 0);
        let presence = engine.presence();
        let rest = engine.walk(bounds, |key, entry| {
            seen += 1;
            if presence.dead(key, entry.version.0, &entry.attributes).is_none() {
                match engine.placement.pinning(key) {
                    Pinning::Flash if engine.placement.is_pinned_to_log(key, entry.length) => {
                        flash_bytes += entry.length;
                    }
                    Pinning::Disk => disk_bytes += entry.length,
                    _ => {}
                }
                if is_misplaced(engine, key, &entry) {
                    misplaced_bytes += entry.length;
                    misplaced.push((key.clone(), entry));
                }
            }
            go_on_if(seen < STEP_ENTRIES && misplaced.len() < STEP_VALUES && misplaced_bytes < STEP_BYTES)
        })?;
        let Moved { bytes, lacks_room } = move_all(engine, &misplaced)?;
        if lacks_room && self.tries < TRIES_MAX {
            self.tries += 1;
            engine.pause(ROOM_WAIT);
            return Ok(bytes);
        }
        self.tries = 0;
        // Not before: a step that failed is made again, and counts once.
        self.flash_bytes += flash_bytes;
        self.disk_bytes += disk_bytes;
        if self.is_whole {
            count(&engine.migration.counters.walked, seen as u64);
        }
        match (self.ranges.front_mut(), rest) {
            (Some(range), Some(start)) => range.0 = start,
            _ => drop(self.ranges.pop_front()),
        }
        Ok(bytes)
    }

    /// What it counted is what is known from now on.
    fn tell(&self, engine: &Engine) {
        let migration = &engine.migration;
        let counters = &migration.counters;
        counters.pinned_flash_bytes.store(self.flash_bytes, Ordering::Relaxed);
        counters.pinned_disk_bytes.store(self.disk_bytes, Ordering::Relaxed);
        let segments = &engine.log.segments;
        let capacity_bytes = u64::from(segments.capacity()) * segments.segment_bytes();
        let exceed = self.flash_bytes > capacity_bytes * PINNED_SHARE_MAX_PERCENT / 100;
        if exceed != migration.pins_exceed.swap(exceed, Ordering::Relaxed) {
            if exceed {
                tracing::warn!(
                    bytes = self.flash_bytes,
                    capacity_bytes,
                    "what is pinned to flash is more than half of the log: pins to flash count for nothing until it is less; pin less, or raise the flash capacity"
                );
            } else {
                tracing::info!("pins to flash count again");
            }
        }
    }
}

/// Whether a value should be moved.
fn is_misplaced(engine: &Engine, key: &[u8], entry: &Entry) -> bool {
    match entry.home {
        Home::Inline(_) => false,
        Home::Flash { .. } => entry.length >= engine.placement.large_from(key),
        Home::Block(_) => {
            engine.migration.pins_hold()
                && !engine.hash_index_is_crowded()
                && engine.placement.is_pinned_to_log(key, entry.length)
        }
    }
}

/// What came of a step's values.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    /// Bytes of values moved.
    bytes: u64,
    /// Some should have moved to the log, which has no room now.
    lacks_room: bool,
}

/// Moves values to where they belong, and waits until that is applied.
fn move_all(engine: &Engine, misplaced: &[(Bytes, Entry)]) -> Result<Moved> {
    let mut to_log = Vec::new();
    let mut to_blocks = Vec::new();
    for (key, entry) in misplaced {
        // Damage is reported to who reads, and by `verify`; what moved meanwhile is elsewhere.
        let Ok(Some(value)) = stored_value(engine, key, entry) else {
            continue;
        };
        match entry.home {
            Home::Flash { .. } => to_blocks.push((key, entry, value)),
            _ => to_log.push((key, entry, value)),
        }
    }
    // Recycling makes the room; until then they stay.
    let has_room = !engine.log.is_behind() && engine.log.segments.available() > RESERVED_SEGMENTS + 1;
    let lacks_room = !has_room && !to_log.is_empty();
    if lacks_room {
        to_log.clear();
    }
    if engine.log.is_closing() || to_log.is_empty() && to_blocks.is_empty() {
        return Ok(Moved { bytes: 0, lacks_room });
    }
    let blocks: Vec<_> = to_blocks.iter().map(moved).collect();
    moves::to_blocks(engine, Committer::Background, Origin::Recycling, &blocks)?;
    let log = to_log.iter().map(|item| moved(item).to_flash());
    let committed = moves::commit(engine, Committer::Background, log);
    count(&engine.flash_cache.moved_log_bytes, committed.bytes as u64);
    committed.outcome?;
    let seq = engine.log.committed_seq();
    engine.log.seal();
    engine.log.wait_for(|| engine.log.applied_seq() >= seq)?;
    let bytes = to_log.iter().chain(&to_blocks).map(|(_, entry, _)| entry.length).sum();
    let migration = &engine.migration;
    count(&migration.counters.moved, (to_log.len() + to_blocks.len()) as u64);
    count(&migration.counters.moved_bytes, bytes);
    Ok(Moved { bytes, lacks_room })
}

fn moved<'a>((key, entry, value): &'a (&'a Bytes, &'a Entry, Bytes)) -> moves::Moved<'a> {
    moves::Moved::by_entry(key, entry, value)
}
