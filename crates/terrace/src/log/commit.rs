//! The commit log: gives every commit its seq and its address in the flash log, and makes it
//! visible.
//!
//! Steps of a commit: (1) under the tail's lock its condition is evaluated, it gets the next seq
//! and its records are appended to the open frame, where readers find those of a `Buffered` commit
//! immediately, and those of a `Sync` commit once they are durable; (2) the frame is sealed when it
//! is full, when a caller needs it durable, or after the coalescing interval; (3) it is written
//! (`log::writer`) and applied (`write::apply`), in either order, but if it has a `Sync` commit it
//! is not applied before that is durable; (4) it is no longer pending.
//!
//! Invariants: seqs are contiguous and in log order; a commit's records are in one frame; a
//! record's address is known at commit. A visible commit stays visible, and the commits of one key
//! become visible in the order of their seqs.

mod applying;
mod committer;
mod flushing;
mod room;
mod visible;
mod waiting;

use super::index_full::IndexFull;
use crate::{
    Durability, Error, Result, Tier,
    io::PAGE_BYTES,
    log::{
        format::{Body, FRAME_HEADER_BYTES, Record},
        frame::{Frame, FramePool},
        frame_table::FrameTable,
        recover::RecoveredLog,
        reserve::Reserve,
        segments::{RESERVED_SEGMENTS, SegmentState, Segments},
        writer::{FrameWriter, LargeSync},
    },
    metrics::{
        event::Event,
        stalls::{Patience, Stalls},
    },
    visibility::range_tombstones::{DeletedRange, Ranges},
};
pub use committer::Committer;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
pub use visible::{Committed, Judged};
pub use waiting::BatchSize;
use waiting::Waiting;

/// A frame is sealed once it is this long. Large enough for the device's full sequential rate.
const FRAME_BYTES_TARGET: usize = 1 << 20;
/// How long a commit that must not block waits for the tail's lock: many times the time of an
/// append to a frame, and less than a device access.
const TAIL_WAIT_MAX: Duration = Duration::from_micros(200);

/// The log's tail, frames in memory, and synchronisation of its threads.
pub struct CommitLog {
    /// The ring of segments.
    pub segments: Segments,
    /// Writes frames and makes them durable.
    pub writer: FrameWriter,
    /// The overlay (frames not yet applied), and frames applied most recently.
    pub frames: Arc<FrameTable>,
    /// Range deletions not swept yet.
    pub ranges: Ranges,
    tail: Mutex<Tail>,
    /// Memory for frames.
    pub pool: Arc<FramePool>,
    /// Each of these is raised before its commit becomes visible.
    committed_seq: AtomicU64,
    /// Every commit up to this seq is in a frame and in `ranges`. Behind `committed_seq` while
    /// one is being added.
    shown_seq: AtomicU64,
    /// Seq of the last commit that was visible immediately.
    buffered_seq: AtomicU64,
    /// Seq of the last commit that becomes visible when it is durable.
    sync_seq: AtomicU64,
    /// The flusher makes everything up to this seq durable, for callers that do not block a thread.
    promised_seq: AtomicU64,
    applied_seq: AtomicU64,
    applier_ended: AtomicBool,
    /// No more commits are accepted; existing ones are still written and applied.
    closing: AtomicBool,
    /// The threads end.
    closed: AtomicBool,
    /// Why the index accepts no more data, while its device is full.
    pub index_full: IndexFull,
    /// The part of the flash device that is reserved for commits that free space, and for the
    /// index.
    pub reserve: Arc<Reserve>,
    /// Number of commits of block GC that wait for a segment.
    cleaning_waits: AtomicU64,
    /// Held while a segment is created from the reserve.
    making: Mutex<()>,
    /// Whether log GC cannot free anything.
    stuck: room::Stuck,
    to_apply: Mutex<Waiting>,
    /// How many frames are applied at once.
    pub batch: BatchSize,
    /// Some of the last applied records were left out, since later ones replaced them.
    gathering_pays: AtomicBool,
    /// A thread waits until commits up to this seq are applied.
    urgent_seq: AtomicU64,
    apply_signal: Condvar,
    /// Tells the flusher that a frame was opened or sealed.
    flush_needed: Mutex<bool>,
    flush_signal: Condvar,
    /// Raised when frames were applied or a segment was freed.
    pub progress: Event,
    /// Callers that wait for room, in the log or elsewhere.
    pub stalls: Stalls,
    /// Raised when a background thread may have work.
    pub activity: Arc<Event>,
}

/// Never returned: [`CommitLog::make_room`] has opened one.
const NO_FRAME: Error = Error::Unavailable("the log has no open frame");

#[derive(Debug)]
struct Tail {
    /// Number and generation of the segment being written.
    segment: Option<(u32, u64)>,
    /// Offset in it of the next frame.
    offset: u64,
    open: Option<Open>,
    next_seq: u64,
    /// A segment prepared in advance.
    spare: Option<(u32, u64)>,
    /// While no more segments are free than are reserved, the open one is only for committers that
    /// leave at most this many to others.
    keeps_free: u32,
}

/// The frame that commits are added to.
#[derive(Debug)]
struct Open {
    frame: Arc<Frame>,
    since: Instant,
    /// Its length so far; changes under the tail's lock.
    bytes: usize,
    /// The flusher is notified of it, and seals it when it is old enough.
    is_timed: bool,
}

impl CommitLog {
    /// Starts a log after the recovered one.
    pub fn new(
        segments: Segments,
        pool: Arc<FramePool>,
        frames: Arc<FrameTable>,
        recovered: RecoveredLog,
        persisted_seq: u64,
        large_sync: LargeSync,
    ) -> Self {
        let RecoveredLog {
            frames: recovered,
            last_seq,
            tail,
            ..
        } = recovered;
        let segment = tail.and_then(|(number, end)| {
            let segment = segments.get(number)?;
            let room = end + (2 * PAGE_BYTES) as u64 <= segments.segment_bytes();
            room.then(|| {
                segment.set_state(SegmentState::Open);
                (number, segment.generation())
            })
        });
        let activity = Arc::default();
        for frame in &recovered {
            frames.sealed(frame);
            frames.push(Arc::clone(frame));
        }
        Self {
            tail: Mutex::new(Tail {
                segment,
                offset: tail.map_or(0, |tail| tail.1),
                open: None,
                next_seq: last_seq + 1,
                spare: None,
                keeps_free: RESERVED_SEGMENTS,
            }),
            segments,
            writer: FrameWriter::starting_at(last_seq, large_sync),
            frames,
            ranges: Ranges::default(),
            pool,
            committed_seq: AtomicU64::new(last_seq),
            shown_seq: AtomicU64::new(last_seq),
            buffered_seq: AtomicU64::new(last_seq),
            sync_seq: AtomicU64::new(last_seq),
            promised_seq: AtomicU64::new(last_seq),
            applier_ended: AtomicBool::new(false),
            applied_seq: AtomicU64::new(persisted_seq),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            index_full: IndexFull::default(),
            reserve: Arc::new(Reserve::none()),
            cleaning_waits: AtomicU64::new(0),
            making: Mutex::default(),
            stuck: room::Stuck::default(),
            to_apply: Mutex::new(Waiting::recovered(recovered)),
            batch: BatchSize::default(),
            gathering_pays: AtomicBool::new(false),
            urgent_seq: AtomicU64::new(0),
            apply_signal: Condvar::new(),
            flush_needed: Mutex::new(false),
            flush_signal: Condvar::new(),
            progress: Event::default(),
            stalls: Stalls::raising(Arc::clone(&activity)),
            activity,
        }
    }

    /// Commits records of the store itself, as `Buffered`; otherwise like [`CommitLog::commit_as`].
    ///
    /// # Errors
    /// As [`CommitLog::commit_as`].
    pub fn commit(
        &self,
        committer: Committer,
        records: &[(u64, Record<'_>)],
        large_turn: u64,
        decide: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        let decide = || decide().map(|()| Judged::default());
        let committed = self.commit_as(committer, Durability::Buffered, records, large_turn, decide)?;
        Ok(committed.seq)
    }

    /// Commits records atomically: all get the same seq. `decide` runs inside the commit, so no
    /// other commit can come in between; if it refuses, its error is returned and nothing is
    /// written. Before the frame is written the large space is synced up to `large_turn`, unless
    /// that is 0.
    ///
    /// A `Buffered` commit that depends on one that is not visible yet, or replaces a record of it,
    /// becomes a `Sync` one: if it were visible immediately, it would show a batch in part, or data
    /// that a crash may undo. A refusal that depends on such a commit is returned only once that is
    /// durable. A committer that does not wait gets it immediately: then it may be wrong, and must
    /// not be shown to any caller.
    ///
    /// # Errors
    /// The error of `decide`, [`Error::OutOfSpace`], [`Error::Failed`], or [`Error::Invalid`] if
    /// the records are longer than a segment.
    pub fn commit_as(
        &self,
        committer: Committer,
        durability: Durability,
        records: &[(u64, Record<'_>)],
        large_turn: u64,
        decide: impl Fn() -> Result<Judged>,
    ) -> Result<Committed> {
        let bytes = self.check_bytes(records)?;
        if committer == Committer::User {
            self.accept_new()?;
        }
        if committer.waits() {
            self.wait_for_applier(committer)?;
        }
        let (mut tail, judged) = self.tail_with_room(committer, bytes, decide)?;
        self.append(&mut tail, bytes, records, durability, judged.rests_on, large_turn)
    }

    /// Length of a commit in the log.
    fn check_bytes(&self, records: &[(u64, Record<'_>)]) -> Result<usize> {
        let bytes: usize = records.iter().map(|(_, record)| record.record_bytes()).sum();
        let longest = self.segments.segment_bytes() as usize - PAGE_BYTES - FRAME_HEADER_BYTES;
        if bytes > longest {
            return Err(Error::invalid(format!(
                "the small values of one commit add up to {bytes} bytes in the log; at most {longest} fit in a segment: split the batch or raise the segment size"
            )));
        }
        Ok(bytes)
    }

    /// Takes the tail once its frame has room for this many bytes, and evaluates the conditions
    /// under its lock.
    fn tail_with_room(
        &self,
        committer: Committer,
        bytes: usize,
        decide: impl Fn() -> Result<Judged>,
    ) -> Result<(MutexGuard<'_, Tail>, Judged)> {
        let mut patience: Option<Patience> = None;
        loop {
            let mut tail = self.lock_tail(committer)?;
            self.writer.check()?;
            self.check_open()?;
            let judged = decide()?;
            if let Some(refusal) = judged.refusal {
                drop(tail);
                if committer.waits() {
                    self.make_durable(judged.rests_on)?;
                }
                return Err(refusal);
            }
            match self.make_room(&mut tail, bytes, committer) {
                Ok(()) => return Ok((tail, judged)),
                Err(Error::OutOfSpace { .. }) if committer.waits() => {
                    drop(tail);
                    let patience = patience.get_or_insert_with(|| self.patience());
                    self.wait_for_segment(committer, patience)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Locks the tail, for a commit. A thread that begins a segment holds it for the duration of
    /// the device's operation.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a committer that must not block.
    fn lock_tail(&self, committer: Committer) -> Result<MutexGuard<'_, Tail>> {
        if !committer.is_at_once() {
            return Ok(self.tail.lock());
        }
        let held = Error::Unavailable("the log is held by a commit that waits for the device");
        self.tail.try_lock_for(TAIL_WAIT_MAX).ok_or(held)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closing() {
            return Err(Error::Unavailable("the store is closed"));
        }
        Ok(())
    }

    /// Ensures an open frame with room for the commit: the present one, or the next.
    fn make_room(&self, tail: &mut Tail, bytes: usize, committer: Committer) -> Result<()> {
        self.check_reserved(tail, committer)?;
        // Records of `Replacing` commits stay live, so these do not continue in a segment that was
        // begun for deletes. Otherwise the segment created for them would stay unused, and log GC
        // would give it back to the device.
        let wants_own = committer == Committer::Replacing && tail.keeps_free < RESERVED_SEGMENTS;
        if let Some(open) = &tail.open {
            let longer = open.bytes + bytes;
            let fits = open.frame.may_have(longer) && longer <= FRAME_BYTES_TARGET.max(FRAME_HEADER_BYTES + bytes);
            if fits && !wants_own {
                return Ok(());
            }
            self.seal_open(tail);
            self.wake_flusher();
        }
        let needed = (FRAME_HEADER_BYTES + bytes).next_multiple_of(PAGE_BYTES) as u64;
        if wants_own || tail.segment.is_none() || tail.offset + needed > self.segments.segment_bytes() {
            self.next_segment(tail, committer)?;
        }
        self.open_frame(tail)
    }

    /// Whether the segment being written was taken from the reserve, which is not for this
    /// committer.
    fn check_reserved(&self, tail: &Tail, committer: Committer) -> Result<()> {
        let keeps_free = self.kept_by(committer);
        if keeps_free <= tail.keeps_free || self.has_segment_for(committer) {
            return Ok(());
        }
        Err(Error::no_room(
            Tier::Flash,
            "the rest of the log is reserved for making room",
        ))
    }

    /// Begins the next segment: the prepared one, which is never from the reserve, or one that is
    /// taken now.
    fn next_segment(&self, tail: &mut Tail, committer: Committer) -> Result<()> {
        let next = match tail.spare.take() {
            Some(spare) => {
                tail.keeps_free = RESERVED_SEGMENTS;
                spare
            }
            None if committer.is_at_once() => return Err(Error::no_room(Tier::Flash, "no segment is ready")),
            None => {
                let segment = self.segments.take(tail.next_seq, self.kept_by(committer))?;
                // Queried from the device anew: with an old count, one of the last two segments
                // counted as one of many and was used for `Replacing` commits, and a delete found
                // no room.
                tail.keeps_free = self.segments.available_now().min(RESERVED_SEGMENTS);
                (segment.number, segment.generation())
            }
        };
        if let Some(full) = tail.segment.and_then(|(number, _)| self.segments.get(number)) {
            self.segments.seal(full, tail.next_seq - 1, tail.offset);
        }
        tail.segment = Some(next);
        tail.offset = PAGE_BYTES as u64;
        Ok(())
    }

    /// Opens a frame at the log's end.
    fn open_frame(&self, tail: &mut Tail) -> Result<()> {
        let Some((number, generation)) = tail.segment else {
            return Err(Error::Unavailable("the log has no segment to write"));
        };
        let (segment_bytes, pool) = (self.segments.segment_bytes(), Arc::clone(&self.pool));
        let frame = Arc::new(Frame::open(number, generation, segment_bytes, tail.offset, pool));
        self.frames.push(Arc::clone(&frame));
        tail.open = Some(Open {
            frame,
            since: Instant::now(),
            bytes: FRAME_HEADER_BYTES,
            is_timed: false,
        });
        if self.wants_spare(tail) {
            self.wake_flusher();
        }
        Ok(())
    }

    /// Appends a commit to the open frame, and makes it visible unless it is a `Sync` one.
    fn append(
        &self,
        tail: &mut Tail,
        bytes: usize,
        records: &[(u64, Record<'_>)],
        asked_for: Durability,
        rests_on: u64,
        large_turn: u64,
    ) -> Result<Committed> {
        let seq = tail.next_seq;
        let open = tail.open.as_mut().ok_or(NO_FRAME)?;
        if large_turn > 0 {
            open.frame.needs_large_sync(large_turn);
        }
        let durability = self.durability_of(asked_for, records, rests_on);
        self.committed_seq.store(seq, Ordering::Release);
        match durability {
            Durability::Buffered => self.buffered_seq.store(seq, Ordering::Release),
            Durability::Sync => self.sync_seq.store(seq, Ordering::Release),
        }
        self.frames.append(&open.frame, seq, records, durability);
        self.publish_ranges(seq, records, durability);
        self.shown_seq.store(seq, Ordering::Release);
        tail.next_seq += 1;
        open.bytes += bytes;
        // A caller that asked for `Sync` seals the frame itself.
        let has_sealer = (asked_for, durability) == (Durability::Sync, Durability::Sync);
        if open.bytes >= FRAME_BYTES_TARGET {
            self.seal_open(tail);
            self.wake_flusher();
        } else if !has_sealer && !std::mem::replace(&mut open.is_timed, true) {
            self.wake_flusher();
        }
        Ok(Committed { seq, durability })
    }

    /// Called under the tail's lock, so that no reader sees a later commit without the range.
    fn publish_ranges(&self, seq: u64, records: &[(u64, Record<'_>)], durability: Durability) {
        for (_, record) in records {
            if let Body::DeleteRange { end } = record.body {
                let (start, end) = (record.key.into(), end.into());
                self.ranges.add(DeletedRange { seq, start, end }, durability);
            }
        }
    }

    /// Seals the open frame and queues it for the writer and the applier. A thread must write it
    /// then.
    fn seal_open(&self, tail: &mut Tail) {
        let Some(Open { frame, .. }) = tail.open.take() else {
            return;
        };
        tail.offset = frame.seal(self.writer.durable_seq());
        self.frames.sealed(&frame);
        self.writer.push(Arc::clone(&frame));
        self.push_to_apply(frame);
    }

    /// Seals the open frame, if any.
    pub fn seal(&self) {
        self.seal_for_round();
        self.wake_flusher();
    }

    /// The same for the leader of a round. Returns the last seq in a sealed frame.
    fn seal_for_round(&self) -> u64 {
        let mut tail = self.tail.lock();
        self.seal_open(&mut tail);
        tail.next_seq - 1
    }

    /// Returns when everything up to `seq` is durable.
    ///
    /// # Errors
    /// [`Error::Failed`] if the device failed.
    pub fn make_durable(&self, seq: u64) -> Result<()> {
        let outcome = self.writer.make_durable(&self.segments, seq, || self.seal_for_round());
        // Of the many commits of a round only the one that wrote checks.
        if !matches!(outcome, Ok(false)) {
            self.release_finished();
            self.wake_applier_if_ready();
            // Frames that the flusher sealed meanwhile, which it could not write.
            if self.writer.backlog().0 > 0 {
                self.wake_flusher();
            }
        }
        outcome.map(drop)
    }

    /// Refuses commits from now on. Existing ones are still written and applied.
    pub fn refuse_commits(&self) {
        let _tail = self.tail.lock();
        self.closing.store(true, Ordering::Release);
    }

    /// Ends the threads.
    pub fn close(&self) {
        self.refuse_commits();
        self.closed.store(true, Ordering::Release);
        self.wake_flusher();
        self.wake_applier();
        self.notify_progress();
    }

    /// Whether commits are refused because the store is closed or being closed.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether the log was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
