//! Log GC: drains the oldest segment of the flash log, frees drained segments and deletes dead
//! blocks.
//!
//! ```text
//!          survey              choose            destage     large space
//! segment ────────▶ live values ──────▶ cold ───────────────▶ block
//!                       │         └───▶ hot ────────────────▶ log
//!                       └ dead: dropped        reinsert
//! ```
//!
//! Each live value whose only copy is in the segment moves: back to the log, if it was read
//! recently (`second_chance`), else to a block, many in one sequential write. A record (a move)
//! says so, and the applier takes the move only if the entry still has that version. A dead value
//! (expired, or deleted by a range) is dropped: a move without a destination.
//!
//! A drained segment is free again when (a) the index has persisted everything up to the last move
//! out of it, (b) no snapshot is older, (c) no reader has it pinned. The same holds for a block
//! without live values. Overwrites and deletes empty blocks, or block GC does.
//!
//! The functions are in the order in which [`LogGc::turn`] calls them.

mod blocks;
mod burst;
mod damage;
mod live;
mod policy;
pub mod second_chance;
mod sorting;

use crate::{
    Error, Result, Tier,
    blocks::Origin,
    engine::Engine,
    log::{
        commit::Committer,
        segments::{LEFT_BY_COPIES, RESERVED_SEGMENTS, SCARCE_SEGMENTS, Segment, SegmentState, Segments},
    },
    maintenance::{
        moves::{self, Committed},
        promote::{lent_by_copies, release_to_log},
    },
    metrics::count,
    mutation::{Mutation, active},
};
use blocks::{DeadBlock, Progress};
use burst::DEAD_PERCENT_MIN_AWAITED;
use live::{Kept, Live, Survey, parts, record_bytes};
use policy::Ring;
use second_chance::Credit;
use sorting::sort_by_key;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Interval of retries of a segment that could not be drained for lack of room, if log GC has freed
/// none meanwhile.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Without a commit for this long nothing is done.
const QUIET: Duration = Duration::from_secs(1);
/// Minimum interval of requests for a mark of the index, which freeing segments needs.
const MARK_INTERVAL: Duration = Duration::from_millis(200);
/// The same if only blocks wait for it and no writer is short of room: each mark makes a table of
/// the index, however small.
const BLOCKS_MARK_INTERVAL: Duration = Duration::from_secs(1);
/// And while writers wait for blocks to be deleted.
const AWAITED_MARK_INTERVAL: Duration = Duration::from_millis(20);

/// State of the log GC thread.
pub struct LogGc {
    engine: Arc<Engine>,
    marked_at: Instant,
    dead_blocks: BTreeMap<u64, DeadBlock>,
    /// Incremented when room is freed: segments that could not be drained for lack of it are tried
    /// again then.
    round: u64,
    /// When one was last retried although no room was freed.
    probed_at: Instant,
    /// The round in which the large tier had no room for what a segment held.
    blocks_refused_in: Option<u64>,
    /// The last committed seq that was seen, and since when.
    quiet_since: (u64, Instant),
    blocks_seen: Option<(Progress, Instant)>,
    /// The live bytes of segments from before the open were determined by the hash index.
    former_are_counted: bool,
    /// It has started, and has not reached its end yet.
    is_under_way: bool,
    /// The log crowded its device, and segments without live values have been freed since.
    is_shortening: bool,
    /// Of the segments kept free for recycling so few are left that each segment must give
    /// something back, whatever is in it.
    is_short: bool,
    /// While the reserve is used: how much of a segment must be dead.
    dead_percent_min: usize,
    /// How many segments of the reserve the commits had left, and when they last took one.
    reserve_seen: (u32, Instant),
    credit: Credit,
}

/// Destinations of the live values of a segment.
struct Chosen {
    /// They stay in the log.
    hot: Vec<Live>,
    /// They leave it.
    cold: Vec<Live>,
    /// Bytes of those that stay because they were read.
    second_chances: usize,
}

impl LogGc {
    /// Log GC of a store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            marked_at: Instant::now(),
            dead_blocks: BTreeMap::new(),
            round: 0,
            probed_at: Instant::now(),
            blocks_refused_in: None,
            quiet_since: (0, Instant::now()),
            blocks_seen: None,
            former_are_counted: false,
            is_under_way: false,
            is_shortening: false,
            is_short: false,
            dead_percent_min: DEAD_PERCENT_MIN_AWAITED,
            reserve_seen: (u32::MAX, Instant::now()),
            credit: Credit::new(engine.log.segments.segment_bytes()),
            engine,
        }
    }

    /// Executes the next step. `false` if there was none.
    ///
    /// # Errors
    /// The devices'; it can be tried again.
    pub fn turn(&mut self) -> Result<bool> {
        let freed = self.free_drained();
        self.delete_blocks()?;
        self.give_room_back()?;
        let drained = self.drained();
        self.request_mark();
        if self.take_from_copies() {
            return Ok(true);
        }
        let ring = self.ring(drained);
        self.is_under_way = ring.wants_draining(self.is_under_way);
        self.limit_use_of_reserve(ring);
        Ok(self.free_dead_segment(ring)? || self.drain_next(ring)? || freed)
    }

    /// The state of the ring with this many drained segments.
    fn ring(&self, drained: u32) -> Ring {
        let segments = &self.engine.log.segments;
        Ring {
            capacity: segments.capacity_now(),
            beyond_capacity: segments.beyond_capacity(),
            available: segments.available(),
            available_now: segments.available_now(),
            drained,
            lent: lent_by_copies(&self.engine),
            reserve_segments: self.engine.log.reserve.segments_left(),
            reserve_is_whole: self.engine.log.reserve.is_whole(),
            index_load: self.engine.hash_index.load_of_bound(),
        }
    }

    // At most as many as the ring has.
    fn drained(&self) -> u32 {
        self.engine.log.segments.in_state(SegmentState::Drained).count() as u32
    }

    fn free_drained(&mut self) -> bool {
        let segments = &self.engine.log.segments;
        let mut freed = false;
        for segment in segments.in_state(SegmentState::Drained) {
            let generation = segment.generation();
            if self.may_reuse(segment.drained_seq()) && segments.free_drained(segment) {
                self.engine.log.frames.forget_use(generation);
                count(&self.engine.metrics.segments_reclaimed, 1);
                freed = true;
            }
        }
        if freed {
            tracing::debug!("freed segments");
            self.made_room();
        }
        freed
    }

    fn may_reuse(&self, drained_seq: u64) -> bool {
        let is_persisted = self.engine.persisted_seq.load(Ordering::Acquire) >= drained_seq;
        let is_unseen = self.engine.watermark_seq() >= drained_seq;
        (is_persisted || active(Mutation::SegmentBeforePersisted))
            && (is_unseen || active(Mutation::SegmentBeforeSnapshot))
    }

    /// Room was freed: nothing is stuck, and refused segments are tried again.
    fn made_room(&mut self) {
        self.engine.log.recycling_made_room();
        self.round += 1;
    }

    /// Seals and deletes blocks, if that is due. A full large tier must not keep the log from being
    /// recycled, nor dead blocks from being deleted.
    fn delete_blocks(&mut self) -> Result<()> {
        if !self.blocks_are_due() {
            return Ok(());
        }
        let sealed = self.engine.large_result(self.engine.large.seal_ready());
        self.tolerate_full(sealed)?;
        let deleted = self.delete_dead_blocks();
        self.tolerate_full(deleted)
    }

    /// Passes on a result, except that a full device is only logged. If it is the flash tier's
    /// device as well, the reserve gives space to the deletion of blocks.
    fn tolerate_full(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(error @ Error::OutOfSpace { .. }) => {
                tracing::debug!(%error, "recycling goes on without");
                let reserve = &self.engine.log.reserve;
                if reserve.is_shared() {
                    reserve.give_up();
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Deletes files of free segments, and refills the reserve.
    fn give_room_back(&self) -> Result<()> {
        let engine = &self.engine;
        let segments = &engine.log.segments;
        let released = segments.release_free(engine.log_files_kept())?;
        if released {
            // Otherwise overwrites that shrink would find the reserve used up by segments that no
            // longer exist.
            engine.log.reserve.return_segment();
        }
        // Beyond its capacity the log may use the reserve's segments.
        let is_restored = segments.beyond_capacity() == 0 && engine.log.reserve.restore();
        if released || is_restored {
            segments.retry_device();
            engine.log.notify_progress();
            engine.block_gc.progress();
        }
        Ok(())
    }

    /// Requests a mark of the index if drained segments or dead blocks need one to be freed.
    fn request_mark(&mut self) {
        let (engine, segments) = (&self.engine, &self.engine.log.segments);
        let persisted_seq = engine.persisted_seq.load(Ordering::Acquire);
        let waits = |seq: &u64| *seq > persisted_seq;
        let drained = segments.in_state(SegmentState::Drained);
        let drained_seq = drained.map(Segment::drained_seq).filter(waits).min();
        let is_due = drained_seq.is_some() || !self.dead_blocks.is_empty();
        if !is_due || active(Mutation::SegmentBeforePersisted) {
            // Nothing waits for the index to be persisted, so no mark is requested.
            return;
        }
        let interval = match (
            engine.has_held_writers(),
            drained_seq.is_some() || engine.lacks_block_room(),
        ) {
            (true, _) => AWAITED_MARK_INTERVAL,
            (false, true) => MARK_INTERVAL,
            (false, false) => BLOCKS_MARK_INTERVAL,
        };
        if segments.available() > SCARCE_SEGMENTS && self.marked_at.elapsed() < interval {
            return;
        }
        // Evaluated only now: there may be a hundred thousand.
        let dead_seqs = self.dead_blocks.values().map(|block| block.seen).filter(waits);
        // The first that waits, which does not change while it does: a mark has those behind it
        // that are applied by then.
        if let Some(awaited_seq) = drained_seq.into_iter().chain(dead_seqs).min() {
            self.marked_at = Instant::now();
            engine.want_mark(awaited_seq);
        }
    }

    /// Segments of copies count as free, except those guaranteed to copies.
    fn take_from_copies(&self) -> bool {
        self.engine.log.segments.available() < LEFT_BY_COPIES && release_to_log(&self.engine)
    }

    /// A segment in which next to nothing lives is freed without need: it costs little, and its
    /// room is not waited for later. On a busy store with enough free ones only if the log crowds
    /// its device.
    fn free_dead_segment(&mut self, ring: Ring) -> Result<bool> {
        let frees_all = self.frees_dead_segments();
        if !ring.may_drain_more() || !(frees_all || self.is_shortening || self.engine.log_crowds_device()) {
            return Ok(false);
        }
        if !self.former_are_counted {
            self.count_former_segments();
        }
        let engine = Arc::clone(&self.engine);
        let segments = &engine.log.segments;
        let round = self.round;
        let is_wanted = |segment: &Segment| {
            let may_go = || frees_all || engine.checkpoints.spares_log_up_to(segment.last_seq());
            segment.is_mostly_dead() && segment.is_worth_trying(round) && may_go()
        };
        let next = segments.oldest_sealed(engine.log.frames.released_seq(), is_wanted);
        // All of them, once it has begun: each few freed cost a mark of the index.
        self.is_shortening = next.is_some() && !frees_all;
        let Some(segment) = next else { return Ok(false) };
        self.is_short = false;
        self.drain_or_refuse(segment).map(|()| true)
    }

    /// Whether all segments without live values are freed although there are enough free ones:
    /// where room is short, and when the store is idle. Otherwise not those that a checkpoint of
    /// the hash index needs: the log behind it.
    fn frees_dead_segments(&mut self) -> bool {
        let committed_seq = self.engine.log.committed_seq();
        if self.quiet_since.0 != committed_seq {
            self.quiet_since = (committed_seq, Instant::now());
        }
        self.is_under_way
            || self.quiet_since.1.elapsed() >= QUIET
            || self.engine.lacks_block_room()
            || !self.engine.log.reserve.is_whole()
    }

    /// Determines once, by the hash index, the live bytes of segments from before the open. Until
    /// then they count as fully live, and dead ones would stay until the log is full. Not possible
    /// with an index that has given up slots, or cannot be filled.
    fn count_former_segments(&mut self) {
        let engine = &self.engine;
        if engine.refilling.load(Ordering::Acquire) || engine.hash_index.evicted() > 0 {
            return;
        }
        self.former_are_counted = true;
        let segments = &engine.log.segments;
        let mut lives = BTreeMap::new();
        engine.hash_index.each_record(|address, bytes| {
            if let Ok(number) = u32::try_from(address.bytes() / segments.segment_bytes()) {
                *lives.entry(number).or_insert(0) += bytes;
            }
        });
        segments.lives_in_former(&lives);
        tracing::debug!(segments = lives.len(), "asked what lives in segments of before");
    }

    /// Drains the next segment, if that is wanted, and there is one.
    fn drain_next(&mut self, ring: Ring) -> Result<bool> {
        if !self.is_under_way || !ring.drains_next() {
            return Ok(false);
        }
        let engine = Arc::clone(&self.engine);
        let Some(segment) = self.next_segment(&engine.log.segments, ring.drained > 0) else {
            return Ok(false);
        };
        self.is_short = ring.is_short();
        self.drain_or_refuse(segment).map(|()| true)
    }

    /// The segment to drain next: the oldest that may be drained, or while the reserve is used the
    /// one with most dead bytes. If there is none, waiting writers are notified, and the oldest is
    /// tried periodically, since room may be freed elsewhere.
    fn next_segment<'a>(&mut self, segments: &'a Segments, some_are_drained: bool) -> Option<&'a Segment> {
        let log = &self.engine.log;
        let committed_seq = log.committed_seq();
        let is_applied = log.applied_seq() >= committed_seq;
        // Applied and written: a record that is only applied is not in the file yet, and would be
        // treated as dead.
        let released_seq = log.frames.released_seq();
        let round = self.round;
        // Reading each segment of a full store only to find again that blocks have no room took 0.4
        // s for 600 MB, during which writers waited.
        let blocks_refuse = self.blocks_refused_in == Some(round);
        let is_wanted =
            |segment: &Segment| segment.is_worth_trying(round) && (!blocks_refuse || self.may_be_reinserted(segment));
        let reserve_is_whole = log.reserve.is_whole();
        let next = if reserve_is_whole {
            segments.oldest_sealed(released_seq, is_wanted)
        } else {
            segments.deadest_sealed(released_seq, is_wanted)
        };
        if next.is_some() || some_are_drained {
            return next;
        }
        if !reserve_is_whole && self.dead_percent_min > DEAD_PERCENT_MIN_AWAITED {
            // The commits have segments, and not all was tried that could give them more.
            return None;
        }
        let is_finished =
            |segment: &Segment| segment.state() != SegmentState::Sealed || segment.last_seq() <= released_seq;
        // Values may go to blocks once there is room, which waiting commits wait for; but not if
        // block GC itself waits for a segment.
        let waits_for_us = || log.is_closing() || log.cleaning_waits();
        let gives_room =
            || self.engine.lacks_block_room() && self.engine.blocks_give_room(waits_for_us) && !log.cleaning_waits();
        // Nothing is sealed while the log has little more than the segment being written and the
        // next: that is no lack of room while callers can get one.
        let callers_have_none = segments.available_now() <= RESERVED_SEGMENTS;
        if callers_have_none && is_applied && segments.iter().all(is_finished) && !gives_room() {
            log.recycling_stuck_at(committed_seq);
            log.notify_progress();
        }
        if self.probed_at.elapsed() < PROBE_INTERVAL {
            return None;
        }
        self.probed_at = Instant::now();
        segments.oldest_sealed(released_seq, |_| true)
    }

    /// Drains a segment. Without room for that it is noted, and is no error: a younger one may be
    /// dead, or its values may go where these cannot.
    fn drain_or_refuse(&mut self, segment: &Segment) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let segments = &engine.log.segments;
        segments.start_draining(segment);
        let outcome = self.drain(segment);
        engine.metrics.draining_bytes.store(0, Ordering::Relaxed);
        if outcome.is_err() && segment.state() == SegmentState::Draining {
            segments.stop_draining(segment);
        }
        match outcome {
            Err(error @ Error::OutOfSpace { .. }) => {
                tracing::debug!(%error, segment = segment.number, "there is no room to drain a segment");
                segment.refuse(self.round);
                if matches!(error, Error::OutOfSpace { tier: Tier::Large, .. }) {
                    self.blocks_refused_in = Some(self.round);
                }
                Ok(())
            }
            outcome => outcome.inspect(|()| self.round += 1),
        }
    }

    /// Moves everything alive out of a segment.
    fn drain(&mut self, segment: &Segment) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let Survey { live, kept, walked } = self.survey(segment)?;
        if self.refuses_damage(segment, &walked)? {
            return Ok(());
        }
        engine.metrics.draining_bytes.store(kept.bytes(), Ordering::Relaxed);
        let live = self.drop_dead(live, &kept)?;
        let Chosen {
            mut hot,
            mut cold,
            second_chances,
        } = self.choose(live, &kept, walked.held_bytes);
        // The applier looks up in the index for each move whether it is still current.
        sort_by_key(&mut hot, |live| live.record(&kept).key);
        sort_by_key(&mut cold, |live| live.record(&kept).key);
        // These first: if they cannot be moved, nothing is written, since that would free nothing.
        let (destaged, outcome) = self.destage(&cold, &kept);
        let stays = match outcome {
            Ok(()) => &[][..],
            Err(Error::OutOfSpace { tier: Tier::Large, .. })
                if self.reinserting_helps(&[&hot, &cold], walked.held_bytes) =>
            {
                &cold[destaged..]
            }
            Err(error) => return Err(error),
        };
        self.check_room(&[&hot, stays])?;
        let committed = self.reinsert(&hot, &kept);
        // Spent now, for the records in the log: if this drain fails later, a retry does not find
        // them in the segment any more.
        self.credit.spend(second_chances.min(committed.bytes));
        committed.outcome?;
        self.reinsert(stays, &kept).outcome?;
        self.update_promotion_threshold(&cold);
        // A snapshot taken before now may still read overwritten records of this segment.
        let applied_seq = engine.log.wait_until_applied(engine.log.committed_seq())?;
        engine.log.segments.drained(segment, applied_seq);
        if !cold.is_empty() {
            *engine.metrics.log_eviction_age.lock() = Some(segment.age());
        }
        tracing::debug!(
            segment = segment.number,
            hot = hot.len(),
            cold = cold.len(),
            "drained a segment"
        );
        Ok(())
    }

    /// Commits drops for dead entries, so that no entry points into the segment any more; returns
    /// the live ones.
    fn drop_dead(&self, live: Vec<Live>, kept: &Kept) -> Result<Vec<Live>> {
        let presence = self.engine.presence();
        let (dead, live): (Vec<_>, Vec<_>) = live.into_iter().partition(|live| {
            let record = live.record(kept);
            presence.dead(record.key, record.version(), record.attributes).is_some()
        });
        let drops = dead.iter().map(|live| live.record(kept));
        let drops = drops.map(|record| moves::to_nowhere(record.key, record.version()));
        moves::commit(&self.engine, Committer::LogGc, drops).outcome?;
        Ok(live)
    }

    /// Those that stay in the log, and those that leave it.
    fn choose(&mut self, live: Vec<Live>, kept: &Kept, held_bytes: usize) -> Chosen {
        let engine = &self.engine;
        let placement = &engine.placement;
        let belongs = |live: &Live| {
            let record = live.record(kept);
            (record.body.value().len() as u64) < placement.large_from(record.key)
        };
        let (live, misplaced): (Vec<_>, Vec<_>) = live.into_iter().partition(belongs);
        let written = engine.log.writer.written().records.load(Ordering::Relaxed);
        let moved = engine.flash_cache.moved_log_bytes.load(Ordering::Relaxed);
        let reinserted = engine.metrics.reinserted_bytes.load(Ordering::Relaxed);
        let ordered = engine.scan_order.counters.log_bytes.load(Ordering::Relaxed);
        self.credit
            .written(written.saturating_sub(moved + reinserted + ordered), moved);
        let limits = self.credit.limits(second_chance::Drained {
            length: self.segment_bytes(),
            held: held_bytes,
            live_bytes: live.iter().map(Live::record_bytes).sum(),
            is_crowded: engine.hash_index_is_crowded(),
            is_short: self.is_short,
        });
        let (hot, mut cold) = second_chance::choose(live, limits, |live| {
            let uses = if live.is_pinned {
                second_chance::PINNED
            } else {
                live.uses
            };
            (uses, live.record_bytes())
        });
        let used = hot.iter().filter(|live| !live.is_pinned);
        let second_chances = used.map(Live::record_bytes).sum();
        cold.extend(misplaced);
        Chosen {
            hot,
            cold,
            second_chances,
        }
    }

    // At most 1 GiB.
    fn segment_bytes(&self) -> usize {
        self.engine.log.segments.segment_bytes() as usize
    }

    /// Moves values to blocks, in parts. Says how many are there, from the first, and whether that
    /// is all of them.
    fn destage(&self, values: &[Live], kept: &Kept) -> (usize, Result<()>) {
        let mut destaged = 0;
        for part in parts(values) {
            let moved: Vec<_> = part.iter().map(|live| moves::Moved::of(&live.record(kept))).collect();
            let done = moves::to_blocks(&self.engine, Committer::LogGc, Origin::Recycling, &moved);
            destaged += done.moves;
            if done.outcome.is_err() {
                return (destaged, done.outcome);
            }
        }
        (destaged, Ok(()))
    }

    /// Refuses values that do not completely fit into the log: rewriting a part of a segment takes
    /// space and frees none.
    fn check_room(&self, values: &[&[Live]]) -> Result<()> {
        let (needed, room) = (record_bytes(values) as u64, self.engine.log.room_for_recycling());
        if needed <= room {
            return Ok(());
        }
        let reason = format!("{needed} bytes of a segment live, and the log has room for {room} of them");
        Err(Error::no_room(Tier::Flash, reason))
    }

    fn reinsert(&self, values: &[Live], kept: &Kept) -> Committed {
        let records = values.iter().map(|live| live.record(kept));
        let moves = records.map(|record| moves::Moved::of(&record).to_flash());
        let committed = moves::commit(&self.engine, Committer::LogGc, moves);
        count(&self.engine.metrics.reinserted_bytes, committed.bytes as u64);
        committed
    }

    /// Updates the threshold of promotion: small values are promoted if they are read more often
    /// than those that leave.
    fn update_promotion_threshold(&self, cold: &[Live]) {
        let engine = &self.engine;
        let in_log = |segment: &&Segment| {
            let state = segment.state();
            matches!(
                state,
                SegmentState::Open | SegmentState::Sealed | SegmentState::Draining
            )
        };
        let segments = engine.log.segments.iter().filter(in_log).count();
        let uses = cold.iter().map(|live| u64::from(live.uses)).sum();
        let (small, reads) = (&engine.flash_cache.small, engine.small_reads());
        small.drained(reads, segments, cold.len() as u64, uses);
    }
}

#[cfg(test)]
mod tests;
