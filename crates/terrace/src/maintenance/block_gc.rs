//! Block GC: moves the live values of mostly dead blocks to other blocks, so that the former can be
//! deleted.
//!
//! A block is walked from start to end in long reads. A value to which an entry of the index points
//! is live; live values are gathered up to a region's length, written in one run to the block for
//! moved values, synced, and moves are committed, exactly as log GC does with cold values of the
//! log. Expired and range-deleted values are dropped instead. Then nothing lives in the block, and
//! log GC deletes it like any other.
//!
//! Invariants:
//! - The block is only read here. Data is verified before it is written anywhere.
//! - Only blocks at rest are drained, in which every extent is accounted: all references to them
//!   are in the index.
//! - After a walk a block is empty, or it is set aside: no block is walked repeatedly in vain.
//!
//! On failure: an unreadable value stays, with all of its block, and is reported; other blocks are
//! drained. If writing fails nothing was changed except orphaned space; it is tried again.

use crate::{
    Error, Result, Tier,
    blocks::{
        BlockScan, Origin, ScannedExtent,
        gc::{Bounds, Finding, Picture, Plan},
    },
    engine::Engine,
    log::commit::Committer,
    maintenance::moves::{self, Moved, NOT_ITS_CHECKSUM},
    ordered_index::{Entry, Home},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Longer values are moved piece by piece, not held in RAM.
const VALUE_BYTES_IN_RAM_MAX: u64 = 8 << 20;
/// After so long at work the thread rests, unless a writer waits for it. Where a sixth of a block
/// lives a region is gathered from six times its length, which a disk takes a second for.
const WORK_STEP: Duration = Duration::from_millis(100);
/// It rests this many times as long as it worked: callers have at least two thirds of the device's
/// time,
const REST_TIMES: u32 = 2;
/// but at most so long, which is twice a read of 8 MiB from a disk that others read too.
const REST_MAX: Duration = Duration::from_secs(1);
/// A block that was set aside is checked again after this long, if more of it has died since.
const SET_ASIDE: Duration = Duration::from_secs(600);

/// The cleaning thread's state.
pub struct BlockGc {
    engine: Arc<Engine>,
    set_aside: BTreeMap<u64, SetAside>,
}

/// A block that was walked and is not empty.
#[derive(Debug)]
struct SetAside {
    live_bytes: u64,
    since: Instant,
}

/// Why a block was not emptied.
enum Trouble {
    /// It cannot be read, or the lookup in the index failed.
    Block(Error),
    /// The store cannot write now.
    Store(Error),
}

/// Result of a step of emptying a block.
type Emptied<T> = std::result::Result<T, Trouble>;

/// A value that is to be written elsewhere.
struct Kept {
    key: Vec<u8>,
    entry: Entry,
    value: Vec<u8>,
}

/// Values read from a block and not moved yet.
#[derive(Default)]
struct Gathered {
    kept: Vec<Kept>,
    dead: Vec<(Vec<u8>, u64)>,
    bytes: u64,
}

impl BlockGc {
    /// Block GC of a store.
    pub const fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            set_aside: BTreeMap::new(),
        }
    }

    /// Drains the next block, if one is due. `false` if none was.
    ///
    /// # Errors
    /// The devices'; it can be tried again.
    pub fn turn(&mut self) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        let _at_work = engine.block_gc.at_work();
        if engine.log.is_closing() {
            return Ok(false);
        }
        engine.block_gc.begin_pass();
        if engine.has_held_writers() {
            // Full blocks count as much as those at rest, but only those at rest can be drained.
            // Log GC seals them at its own pace.
            engine.large_result(engine.large.seal_ready())?;
        }
        self.look_at_set_aside();
        let is_tight = engine.lacks_block_room();
        let bounds = Bounds::of(&engine.options);
        let bounds = if is_tight { bounds.without_room() } else { bounds };
        let totals = engine.large.totals();
        if !bounds.is_over(totals.rest_bytes, totals.live_bytes) {
            engine.block_gc.publish(Finding::default());
            return Ok(false);
        }
        let shares = engine.large.shares();
        let picture = Picture::of(&shares, &bounds, |share| self.set_aside.contains_key(&share.number));
        let plan = picture.plan(&bounds, totals.live_bytes, self.outstanding_bytes());
        engine.block_gc.publish(Finding {
            tolerated_bytes: picture.tolerated_bytes(),
            is_stuck: plan == Plan::Stuck,
            cleans: matches!(plan, Plan::Clean(_)),
        });
        match plan {
            Plan::Clean(block) => self.clean(block.number).map(|()| true),
            Plan::Wait | Plan::Stuck => Ok(false),
        }
    }

    /// Runs the next turn. Block GC that has used up its own room waits until drained blocks are
    /// deleted: this is not a failure, after which it would rest and report to writers that no room
    /// will be freed.
    ///
    /// # Errors
    /// As [`BlockGc::turn`].
    pub fn turn_within_its_room(&mut self) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        let state = &engine.block_gc;
        let seen = state.progress_so_far();
        match self.turn() {
            Err(Error::OutOfSpace { tier: Tier::Large, .. }) if engine.large.is_giving_room() => {
                state.publish(Finding::default());
                Ok(false)
            }
            // It was deleted meanwhile.
            Err(Error::OutOfSpace { tier: Tier::Large, .. }) if state.progress_so_far() != seen => Ok(true),
            outcome => outcome,
        }
    }

    /// Removes blocks that were deleted or may be tried again, and publishes the rest.
    fn look_at_set_aside(&mut self) {
        let large = &self.engine.large;
        let mut bytes = 0;
        self.set_aside.retain(|number, aside| {
            let share = large.share(*number);
            let share = share.filter(|share| share.live_bytes > 0 && aside.holds(share.live_bytes));
            bytes += share.map_or(0, |share| share.bytes.saturating_sub(share.live_bytes));
            share.is_some()
        });
        let count = self.set_aside.len() as u64;
        let block_gc = &self.engine.block_gc;
        block_gc.blocks_set_aside.store(count, Ordering::Relaxed);
        block_gc.set_aside_bytes.store(bytes, Ordering::Relaxed);
    }

    fn clean(&mut self, number: u64) -> Result<()> {
        match self.empty(number) {
            Ok(()) => {}
            Err(Trouble::Store(error)) => return Err(error),
            Err(Trouble::Block(_)) if self.engine.log.is_closing() => return Ok(()),
            Err(Trouble::Block(error)) => {
                tracing::error!(block = number, %error, "the block cannot be cleaned; it is left as it is");
                self.put_aside(number);
                return Ok(());
            }
        }
        let live_bytes = self.engine.large.share(number).map_or(0, |share| share.live_bytes);
        if live_bytes == 0 {
            self.engine.block_gc.emptied(number);
            tracing::debug!(block = number, "cleaned a block");
        } else {
            tracing::error!(
                block = number,
                live_bytes,
                "the block counts as live what could not be found in it; it is left as it is"
            );
            self.put_aside(number);
        }
        Ok(())
    }

    /// Bytes of blocks that were emptied and are not deleted yet.
    fn outstanding_bytes(&self) -> u64 {
        let large = &self.engine.large;
        let there = |number| large.share(number).is_some();
        large.bytes_of(&self.engine.block_gc.emptied_and_there(there))
    }

    fn put_aside(&mut self, number: u64) {
        let live_bytes = self.engine.large.share(number).map_or(0, |share| share.live_bytes);
        let since = Instant::now();
        self.set_aside.insert(number, SetAside { live_bytes, since });
    }

    /// The entry that points to an extent, if there is one.
    fn home_of(&self, block: u64, found: &ScannedExtent) -> Emptied<Option<Entry>> {
        let entry = self.engine.index.get(&found.header.key).map_err(Trouble::Block)?;
        Ok(entry.filter(|entry| entry.home == Home::Block(found.at(block))))
    }

    /// Moves everything alive out of a block.
    fn empty(&self, number: u64) -> Emptied<()> {
        let engine = &self.engine;
        let mut walk = engine.large.scan_in_bursts(number).map_err(Trouble::Block)?;
        let mut gathered = Gathered::default();
        let mut began = Instant::now();
        while let Some(found) = walk.next() {
            if began.elapsed() >= WORK_STEP {
                self.rest(&mut began);
            }
            match found {
                Ok(found) => self.gather(&mut walk, number, &found, &mut gathered, &mut began)?,
                Err(error @ Error::Io { .. }) => return Err(Trouble::Block(error)),
                // If something alive is behind it, the block will not be empty in the end.
                Err(error) => tracing::debug!(block = number, %error, "passed over"),
            }
        }
        self.move_all(&mut gathered, &mut began)?;
        drop(walk);
        let applied = engine.log.wait_until_applied(engine.log.committed_seq());
        applied.map(drop).map_err(Trouble::Store)
    }

    /// Adds an extent found by the walk, if it is live.
    fn gather(
        &self,
        walk: &mut BlockScan,
        number: u64,
        found: &ScannedExtent,
        gathered: &mut Gathered,
        began: &mut Instant,
    ) -> Emptied<()> {
        // Taken before the key is looked up.
        let presence = self.engine.presence();
        let Some(entry) = self.home_of(number, found)? else {
            return Ok(());
        };
        let key = &found.header.key;
        if presence.dead(key, entry.version.0, &entry.attributes).is_some() {
            gathered.dead.push((key.clone(), entry.version.0));
            return Ok(());
        }
        let is_long = found.extent_bytes > VALUE_BYTES_IN_RAM_MAX;
        if is_long || gathered.bytes + found.extent_bytes > self.engine.large.region_bytes() {
            self.move_all(gathered, began)?;
        }
        if is_long {
            return self.stream(number, found, &entry, began);
        }
        let value = walk.value(found).map_err(Trouble::Block)?;
        if crc32c::crc32c(&value) != entry.checksum {
            return Err(Trouble::Block(Error::corrupt_value(key, NOT_ITS_CHECKSUM)));
        }
        gathered.bytes += found.extent_bytes;
        let key = key.clone();
        gathered.kept.push(Kept { key, entry, value });
        Ok(())
    }

    /// Writes the gathered values and commits their moves, and drops for dead entries.
    fn move_all(&self, gathered: &mut Gathered, began: &mut Instant) -> Emptied<()> {
        let engine = &self.engine;
        let Gathered { kept, dead, bytes } = std::mem::take(gathered);
        if kept.is_empty() && dead.is_empty() {
            return Ok(());
        }
        if engine.log.is_closing() {
            return Err(Trouble::Store(Error::Unavailable("the store is closed")));
        }
        let drops = dead.iter().map(|(key, version)| moves::to_nowhere(key, *version));
        let dropped = moves::commit(engine, Committer::Cleaning, drops);
        dropped.outcome.map_err(Trouble::Store)?;
        let moved: Vec<_> = kept
            .iter()
            .map(|kept| Moved::by_entry(&kept.key, &kept.entry, &kept.value))
            .collect();
        let done = moves::to_blocks(engine, Committer::Cleaning, Origin::Cleaning, &moved);
        done.outcome.map_err(Trouble::Store)?;
        tracing::trace!(values = kept.len(), bytes, "moved out of a block");
        self.moved(began);
        Ok(())
    }

    /// Moves a long value piece by piece.
    fn stream(&self, block: u64, found: &ScannedExtent, entry: &Entry, began: &mut Instant) -> Emptied<()> {
        let engine = &self.engine;
        let reader = engine.large.open_value(&found.at(block)).map_err(Trouble::Block)?;
        let moved = moves::stream_to_block(
            engine,
            Committer::Cleaning,
            Origin::Cleaning,
            Moved::by_entry(&found.header.key, entry, &[]),
            entry.length,
            |range, out| {
                if engine.log.is_closing() {
                    return Err(Error::Unavailable("the store is closed"));
                }
                // A piece.
                let bytes = (range.end - range.start) as usize;
                engine.large_step(bytes, || reader.read_range(range, out))
            },
        );
        moved.map_err(Trouble::Store)?.map_err(Trouble::Block)?;
        self.moved(began);
        Ok(())
    }

    /// Something was moved.
    fn moved(&self, began: &mut Instant) {
        self.engine.block_gc.progress();
        self.rest(began);
    }

    /// Others come first. A writer that waits for room ends it.
    fn rest(&self, began: &mut Instant) {
        let engine = &self.engine;
        let until = Instant::now() + (began.elapsed() * REST_TIMES).min(REST_MAX);
        while !engine.awaits_block_gc() && !engine.log.is_closing() && Instant::now() < until {
            engine.pause(until.saturating_duration_since(Instant::now()).min(WORK_STEP));
        }
        *began = Instant::now();
    }
}

impl SetAside {
    /// Whether there is no reason yet to try again.
    fn holds(&self, live_bytes: u64) -> bool {
        self.live_bytes == live_bytes || self.since.elapsed() < SET_ASIDE
    }
}
