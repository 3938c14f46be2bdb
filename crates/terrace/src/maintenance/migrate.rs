//! Migration: moves values to where they belong, once after *SizeThreshold* or the pins of prefixes
//! were changed.
//!
//! A thread walks the ordered index, not the values, and moves misplaced values, a bounded step at
//! a time, within a rate limit:
//!
//! - a value in the log that belongs in the large space is destaged;
//! - a value in a block that is pinned to the log moves there, if there is room: a pin is a
//!   preference. One walk moves at most what log GC would keep of a whole log.
//!
//! A value in a block that is merely shorter than *SizeThreshold* stays, like a destaged one: if it
//! is read often it is promoted (`flash_cache::small`), and an unread one should not take flash.
//! Log GC destages misplaced values, too.
//!
//! The manifest records by which rules values were placed, and whether the walk for them is
//! complete.
//!
//! Invariant: an aborted walk changed nothing except the values it moved.
//!
//! On failure: only the place is wrong. The step is tried again.

use crate::{
    Error, Result, Tier,
    blocks::Origin,
    engine::{Engine, go_on_if},
    log::commit::Committer,
    maintenance::{log_gc::second_chance::SEGMENT_SHARE_MAX_PERCENT, moves},
    manifest::Placed,
    metrics::{bucket::Bucket, count},
    ordered_index::{Entry, Home, KeyBounds},
    read::stored_value,
};
use bytes::Bytes;
use std::{
    ops::Bound,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Entries visited in one step.
const STEP_ENTRIES: usize = 8192;
/// Bytes of values moved in one step, but for the last; or a segment, if that is shorter.
const STEP_BYTES: u64 = 1 << 20;
/// Values moved in one step.
const STEP_VALUES: usize = 1024;
/// Longest rest after a step that only looked.
const REST_MAX: Duration = Duration::from_millis(50);
/// Retries of a step that found no room in the log, before its values for the log stay where they
/// are,
const TRIES_MAX: u32 = 50;
/// and how long apart.
const ROOM_WAIT: Duration = Duration::from_millis(100);

/// The thread's state.
pub struct Migrator {
    engine: Arc<Engine>,
    /// State in the manifest.
    placed: Placed,
    /// Where the walk continues, unless it is at its end.
    rest: Option<KeyBounds>,
    /// Bytes that may be moved,
    bucket: Bucket,
    /// and that may still be moved to the log.
    to_log_bytes: u64,
    /// How often the present step found no room in the log.
    tries: u32,
}

impl Migrator {
    /// A migrator for a store. Notes the rules of now, before anything is written by them.
    pub fn new(engine: Arc<Engine>) -> Self {
        let fingerprint = engine.placement.fingerprint();
        let found = engine
            .manifest
            .placed
            .filter(|placed| placed.fingerprint == fingerprint);
        let placed = found.unwrap_or_else(|| {
            let placed = Placed {
                fingerprint,
                is_settled: engine.recovered_seq == 0,
            };
            if let Err(error) = engine.manifest.note_placed(&*engine.flash_disk, placed) {
                tracing::warn!(%error, "changed rules may be forgotten");
            }
            placed
        });
        engine
            .migration
            .is_under_way
            .store(!placed.is_settled, Ordering::Relaxed);
        let segments = &engine.log.segments;
        let log_bytes = u64::from(segments.capacity()) * segments.segment_bytes();
        Self {
            rest: Some((Bound::Unbounded, Bound::Unbounded)),
            bucket: Bucket::per_second(Some(engine.options.tuning.migrate_bytes_per_second)),
            to_log_bytes: log_bytes / 100 * SEGMENT_SHARE_MAX_PERCENT as u64,
            tries: 0,
            engine,
            placed,
        }
    }

    /// Executes the next step. `false` if there was none.
    ///
    /// # Errors
    /// Errors of the log, errors of the index, the devices'; it can be tried again.
    pub fn turn(&mut self) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        // What recovery found was placed by the rules before, and must be in the index to be met.
        if engine.log.applied_seq() < engine.recovered_seq || engine.options.tuning.migrate_bytes_per_second == 0 {
            return Ok(false);
        }
        if self.placed.is_settled {
            return Ok(false);
        }
        let began = Instant::now();
        let moved_bytes = match self.rest.clone() {
            Some(bounds) => self.step(bounds)?,
            None => 0,
        };
        if engine.log.is_closing() {
            // The step may have moved nothing for that reason; so the walk must not end with it.
            return Ok(false);
        }
        if self.rest.is_none() {
            self.end()?;
        }
        let rest = if moved_bytes > 0 {
            self.bucket.overdraw(moved_bytes)
        } else {
            began.elapsed().min(REST_MAX)
        };
        engine.pause(rest);
        Ok(true)
    }

    /// The walk is over.
    fn end(&mut self) -> Result<()> {
        let engine = &self.engine;
        // Moved values must be durable before the walk counts as done, since no later walk visits
        // them, and visible to a caller that is notified of its end.
        let moved_seq = engine.log.wait_applied()?;
        engine.log.make_durable(moved_seq)?;
        let placed = Placed {
            is_settled: true,
            ..self.placed
        };
        engine.manifest.note_placed(&*engine.flash_disk, placed)?;
        self.placed = placed;
        engine.migration.is_under_way.store(false, Ordering::Relaxed);
        tracing::info!("all values are where they belong");
        Ok(())
    }

    /// Visits the next entries and moves the misplaced ones. Returns the bytes moved.
    fn step(&mut self, bounds: KeyBounds) -> Result<u64> {
        let engine = &self.engine;
        let (mut misplaced, mut misplaced_bytes, mut seen) = (Vec::new(), 0, 0);
        let (end, mut to_log_bytes) = (bounds.1.clone(), self.to_log_bytes);
        let bytes_max = STEP_BYTES.min(engine.log.segments.segment_bytes());
        let presence = engine.presence();
        let rest = engine.walk(bounds, |key, entry| {
            seen += 1;
            if is_misplaced(engine, key, &entry, to_log_bytes)
                && presence.dead(key, entry.version.0, &entry.attributes).is_none()
            {
                if matches!(entry.home, Home::Block(_)) {
                    to_log_bytes -= entry.length;
                }
                misplaced_bytes += entry.length;
                misplaced.push((key.clone(), entry));
            }
            go_on_if(seen < STEP_ENTRIES && misplaced.len() < STEP_VALUES && misplaced_bytes < bytes_max)
        })?;
        let moved = move_all(engine, &misplaced)?;
        if moved.lacks_room && self.tries < TRIES_MAX {
            self.tries += 1;
            engine.pause(ROOM_WAIT);
            return Ok(moved.bytes);
        }
        self.tries = 0;
        // Not earlier: a failed step is repeated, and counts once.
        count(&engine.migration.counters.walked, seen as u64);
        self.rest = rest.map(|start| (start, end));
        self.to_log_bytes = to_log_bytes;
        Ok(moved.bytes)
    }
}

/// Whether a value should be moved, if this many bytes may still be moved to the log.
fn is_misplaced(engine: &Engine, key: &[u8], entry: &Entry, to_log_bytes: u64) -> bool {
    match entry.home {
        Home::Inline(_) => false,
        Home::Flash { .. } => entry.length >= engine.placement.large_from(key),
        Home::Block(_) => {
            entry.length <= to_log_bytes
                && !engine.hash_index_is_crowded()
                && engine.placement.is_pinned_to_log(key, entry.length)
        }
    }
}

/// Result of a step.
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
        // Damage is reported to readers, and by `verify`; what moved meanwhile is elsewhere.
        let Ok(Some(value)) = stored_value(engine, key, entry) else {
            continue;
        };
        match entry.home {
            Home::Flash { .. } => to_blocks.push((key, entry, value)),
            _ => to_log.push((key, entry, value)),
        }
    }
    // Log GC makes the room; until then they stay.
    let lacks_room = !to_log.is_empty() && !engine.log.has_room_for_moves();
    if lacks_room {
        to_log.clear();
    }
    if engine.log.is_closing() || to_log.is_empty() && to_blocks.is_empty() {
        return Ok(Moved { bytes: 0, lacks_room });
    }
    let blocks: Vec<_> = to_blocks.iter().map(moved).collect();
    moves::to_blocks(engine, Committer::Background, Origin::Recycling, &blocks).outcome?;
    let log = to_log.iter().map(|item| moved(item).to_flash());
    let committed = moves::commit(engine, Committer::Background, log);
    count(&engine.flash_cache.moved_log_bytes, committed.bytes as u64);
    match committed.outcome {
        // Values without room stay where they are: if the step were repeated, log GC would
        // meanwhile move out the values that it had moved in.
        Err(Error::OutOfSpace { tier: Tier::Flash, .. }) => {}
        outcome => outcome?,
    }
    engine.log.wait_until_applied(engine.log.committed_seq())?;
    to_log.truncate(committed.moves);
    let bytes = to_log.iter().chain(&to_blocks).map(|(_, entry, _)| entry.length).sum();
    let migration = &engine.migration;
    count(&migration.counters.moved, (to_log.len() + to_blocks.len()) as u64);
    count(&migration.counters.moved_bytes, bytes);
    Ok(Moved { bytes, lacks_room })
}

fn moved<'a>((key, entry, value): &'a (&'a Bytes, &'a Entry, Bytes)) -> moves::Moved<'a> {
    moves::Moved::by_entry(key, entry, value)
}
