//! The commit log: gives every commit its seq and its place in the flash log, and makes it visible.
//!
//! Order of events for one commit: (1) under the tail's lock its condition is decided, it gets the next seq and its
//! records are appended to the open frame, where readers find them at once; (2) the frame is sealed when full, when
//! somebody needs it durable, or after the coalescing interval; (3) it is written (`flash::writer`) and applied
//! (`write::apply`), in either order; (4) it leaves the overlay.
//!
//! Invariants: seqs are contiguous and in log order; a commit's records are in one frame; a record's address is known
//! at commit.

use super::{index_full::IndexFull, overlay::Overlay};
use crate::{
    Error, Result, Tier,
    io::PAGE_BYTES,
    log::{
        format::{Body, FRAME_HEADER_BYTES, Record},
        frame::{Frame, FramePool},
        recent::RecentFrames,
        recover::RecoveredLog,
        segments::{RESERVED_SEGMENTS, Segments},
        writer::{FrameWriter, LargeSync},
    },
    visibility::range_tombstones::{DeletedRange, Ranges},
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A frame is sealed once it is this long. Large enough for the device's full sequential rate.
const FRAME_BYTES_TARGET: usize = 1 << 20;
/// How long a commit waits for recycling before it reports that the tier is full.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often those who wait look whether the store stops.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Who commits, and so what it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committer {
    /// A caller: waits for the applier and for free segments.
    User,
    /// Who gives space back, by deletes, drops and the moves of cleaning. Waits as well, but may use one of the reserved
    /// segments: else nobody could end the state of two full tiers.
    Freeing,
    /// Recycling: uses the reserved segments and never waits for itself.
    Recycler,
    /// Who moves values without need: leaves the reserved segments alone, and waits for nothing.
    Background,
}

impl Committer {
    /// Free segments it leaves to others.
    const fn keeps_free(self) -> u32 {
        match self {
            Self::User | Self::Background => RESERVED_SEGMENTS,
            Self::Freeing => 1,
            Self::Recycler => 0,
        }
    }

    /// Whether it waits for the applier and for free segments, or gives up.
    const fn waits(self) -> bool {
        matches!(self, Self::User | Self::Freeing)
    }
}

/// The log's tail, frames in memory, and the threads' meeting points.
#[derive(Debug)]
pub struct CommitLog {
    /// The ring of segments.
    pub segments: Segments,
    /// Writes frames and makes them durable.
    pub writer: FrameWriter,
    /// Commits the index does not know yet.
    pub overlay: Overlay,
    /// Those it was last told of.
    pub recent: Arc<RecentFrames>,
    /// Range deletions that are not swept yet.
    pub ranges: Ranges,
    tail: Mutex<Tail>,
    /// Memory for frames.
    pub pool: Arc<FramePool>,
    committed_seq: AtomicU64,
    applied_seq: AtomicU64,
    /// No commit any more; what there is goes its way.
    closing: AtomicBool,
    /// Threads end.
    closed: AtomicBool,
    /// Why the index cannot take more, while its device is full.
    pub index_full: IndexFull,
    to_apply: Mutex<VecDeque<Arc<Frame>>>,
    apply_signal: Condvar,
    /// For the flusher: something was opened or sealed.
    flush_needed: Mutex<bool>,
    flush_signal: Condvar,
    /// For those who wait until a seq is applied, or for free segments.
    progress: Mutex<u64>,
    progress_signal: Condvar,
}

#[derive(Debug)]
struct Tail {
    /// Number and generation of the segment that is written.
    segment: Option<(u32, u64)>,
    /// Where in it the next frame starts.
    offset: u64,
    open: Option<(Arc<Frame>, Instant)>,
    next_seq: u64,
    /// A segment made ready ahead of need.
    spare: Option<(u32, u64)>,
    /// Who may write into the segment while there are no more free ones than reserved: who may take that many.
    keeps_free: u32,
}

impl CommitLog {
    /// Starts a log behind what recovery found.
    pub fn new(
        segments: Segments,
        pool: Arc<FramePool>,
        overlay_bytes_max: u64,
        recent: Arc<RecentFrames>,
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
                segments.reopen(segment);
                (number, segment.generation())
            })
        });
        let overlay = Overlay::starting_at(persisted_seq, overlay_bytes_max);
        for frame in &recovered {
            overlay.sealed(frame);
            overlay.push(Arc::clone(frame));
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
            overlay,
            recent,
            ranges: Ranges::default(),
            pool,
            committed_seq: AtomicU64::new(last_seq),
            applied_seq: AtomicU64::new(persisted_seq),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            index_full: IndexFull::default(),
            to_apply: Mutex::new(recovered.into()),
            apply_signal: Condvar::new(),
            flush_needed: Mutex::new(false),
            flush_signal: Condvar::new(),
            progress: Mutex::new(0),
            progress_signal: Condvar::new(),
        }
    }

    /// Seq of the last commit.
    pub fn committed_seq(&self) -> u64 {
        self.committed_seq.load(Ordering::Acquire)
    }

    /// Everything up to this seq is in the index.
    pub fn applied_seq(&self) -> u64 {
        self.applied_seq.load(Ordering::Acquire)
    }

    /// Commits records as one: all get the same seq. `decide` runs inside the commit, where no other commit can come
    /// between it and this one; its error becomes the commit's and nothing is written. Before the frame is written the
    /// large space is synced up to `large_turn`, if that is not 0.
    ///
    /// # Errors
    /// `decide`'s, [`Error::OutOfSpace`], [`Error::Failed`], or [`Error::Invalid`] if the records are longer than a segment.
    pub fn commit(
        &self,
        who: Committer,
        records: &[(u64, Record<'_>)],
        large_turn: u64,
        decide: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        let bytes: usize = records.iter().map(|(_, record)| record.record_bytes()).sum();
        let longest = self.segments.segment_bytes() as usize - PAGE_BYTES - FRAME_HEADER_BYTES;
        if bytes > longest {
            return Err(Error::invalid(format!(
                "the small values of one commit add up to {bytes} bytes in the log; at most {longest} fit in a segment: split the batch or raise the segment size"
            )));
        }
        if who.waits() {
            self.wait_for_applier()?;
        }
        let mut patience = Patience::new(&self.segments);
        let (mut tail, frame) = loop {
            let mut tail = self.tail.lock();
            if let Some(reason) = self.writer.failure() {
                return Err(Error::Failed(reason));
            }
            self.check_open()?;
            decide()?;
            match self.frame_with_room(&mut tail, bytes, who) {
                Ok(frame) => break (tail, frame),
                Err(Error::OutOfSpace { .. }) if who.waits() => {
                    drop(tail);
                    self.wait_for_segment(who, &mut patience)?;
                }
                Err(error) => return Err(error),
            }
        };
        let seq = tail.next_seq;
        if large_turn > 0 {
            frame.needs_large_sync(large_turn);
        }
        self.overlay.append(&frame, seq, records);
        self.publish_ranges(seq, records);
        tail.next_seq += 1;
        self.committed_seq.store(seq, Ordering::Release);
        if frame.len_bytes() >= FRAME_BYTES_TARGET {
            self.seal_open(&mut tail);
        }
        Ok(seq)
    }

    /// Under the tail's lock, so that nobody sees a later commit and not the range.
    fn publish_ranges(&self, seq: u64, records: &[(u64, Record<'_>)]) {
        for (_, record) in records {
            if let Body::DeleteRange { end } = record.body {
                self.ranges.add(DeletedRange {
                    seq,
                    start: record.key.into(),
                    end: end.into(),
                });
            }
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closing() {
            return Err(Error::Unavailable("the store is closed"));
        }
        Ok(())
    }

    /// Whether callers have to wait for the applier: nobody else should add to what it has to do.
    pub fn is_behind(&self) -> bool {
        self.overlay.is_full() || self.index_full.refuses_commits().is_some()
    }

    /// Back-pressure: waits until not too much is unapplied.
    fn wait_for_applier(&self) -> Result<()> {
        if !self.is_behind() {
            return Ok(());
        }
        let stopped = || self.is_closing() || self.writer.failure().is_some();
        self.overlay
            .wait_for_room(|| stopped() || self.index_full.refuses_commits().is_some());
        let tier = Tier::Flash;
        let refuse = |reason| Err(Error::OutOfSpace { tier, reason });
        self.index_full.refuses_commits().map_or(Ok(()), refuse)
    }

    /// Waits until recycling has freed a segment that a caller may have.
    fn wait_for_segment(&self, who: Committer, patience: &mut Patience) -> Result<()> {
        let stopped = || self.is_closing() || self.writer.failure().is_some();
        // Recycling only takes what is written.
        self.wake_flusher();
        let mut progress = self.progress.lock();
        while self.segments.available() <= who.keeps_free() && !stopped() {
            if patience.is_over(&self.segments) {
                self.segments.retry_device();
                return Err(Error::OutOfSpace {
                    tier: Tier::Flash,
                    reason: format!(
                        "the flash log has no free segment among {} (flash_capacity_bytes) and recycling cannot free one (large tier full, see large_capacity_bytes, or an old snapshot holds them)",
                        self.segments.created()
                    ),
                });
            }
            self.progress_signal.wait_for(&mut progress, WAIT_STEP);
        }
        Ok(())
    }

    fn frame_with_room(&self, tail: &mut MutexGuard<'_, Tail>, bytes: usize, who: Committer) -> Result<Arc<Frame>> {
        // What was taken out of the reserve is for those whom the reserve is for.
        if who.keeps_free() > tail.keeps_free && self.segments.available() <= who.keeps_free() {
            let reason = "the rest of the log is reserved for making room".to_owned();
            let tier = Tier::Flash;
            return Err(Error::OutOfSpace { tier, reason });
        }
        if let Some((frame, _)) = &tail.open {
            let fits =
                frame.fits(bytes) && frame.len_bytes() + bytes <= FRAME_BYTES_TARGET.max(FRAME_HEADER_BYTES + bytes);
            if fits {
                return Ok(Arc::clone(frame));
            }
            self.seal_open(tail);
        }
        let needed = (FRAME_HEADER_BYTES + bytes).next_multiple_of(PAGE_BYTES) as u64;
        if tail.segment.is_none() || tail.offset + needed > self.segments.segment_bytes() {
            self.next_segment(tail, who)?;
        }
        let Some((number, generation)) = tail.segment else {
            return Err(Error::Unavailable("the log has no segment to write"));
        };
        let frame = Arc::new(Frame::open(
            number,
            generation,
            self.segments.segment_bytes(),
            tail.offset,
            Arc::clone(&self.pool),
        ));
        self.overlay.push(Arc::clone(&frame));
        tail.open = Some((Arc::clone(&frame), Instant::now()));
        self.wake_flusher();
        Ok(frame)
    }

    fn next_segment(&self, tail: &mut MutexGuard<'_, Tail>, who: Committer) -> Result<()> {
        let next = match tail.spare.take() {
            Some(spare) => {
                tail.keeps_free = RESERVED_SEGMENTS;
                spare
            }
            None => {
                let segment = self.segments.take(tail.next_seq, who.keeps_free())?;
                tail.keeps_free = self.segments.available().min(RESERVED_SEGMENTS);
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

    /// Seals the open frame and hands it to the writer and the applier.
    fn seal_open(&self, tail: &mut MutexGuard<'_, Tail>) {
        let Some((frame, _)) = tail.open.take() else { return };
        tail.offset = frame.seal(self.writer.durable_seq());
        self.overlay.sealed(&frame);
        self.writer.push(Arc::clone(&frame));
        self.to_apply.lock().push_back(frame);
        self.apply_signal.notify_one();
        self.wake_flusher();
    }

    /// Seals whatever is open. Returns the last seq that is in a sealed frame.
    pub fn seal(&self) -> u64 {
        let mut tail = self.tail.lock();
        self.seal_open(&mut tail);
        tail.next_seq - 1
    }

    /// Returns when everything up to `seq` is durable.
    ///
    /// # Errors
    /// [`Error::Failed`] if the device failed.
    pub fn make_durable(&self, seq: u64) -> Result<()> {
        let wrote = self.writer.make_durable(&self.segments, seq, || self.seal())?;
        // Of a round's many commits only the one that wrote looks.
        if wrote {
            self.overlay.release_finished(&self.recent);
        }
        Ok(())
    }

    fn wake_flusher(&self) {
        let mut needed = self.flush_needed.lock();
        if !*needed {
            *needed = true;
            self.flush_signal.notify_one();
        }
    }

    /// The flusher's turn: waits for something to do, at most `idle`, then seals what is older than `interval`, writes,
    /// and keeps a segment ready. Returns whether it did something.
    ///
    /// # Errors
    /// [`Error::Failed`] if the device failed.
    pub fn flush_turn(&self, interval: Duration, idle: Duration) -> Result<bool> {
        {
            let mut needed = self.flush_needed.lock();
            if !*needed {
                self.flush_signal.wait_for(&mut needed, idle);
            }
            if !std::mem::take(&mut *needed) {
                return Ok(false);
            }
        }
        self.write_sealed()?;
        let wait = {
            let mut tail = self.tail.lock();
            // When the applier is behind, sealing early only makes more and smaller frames.
            let behind = self.to_apply.lock().len() > 4;
            match &tail.open {
                Some((_, since)) if since.elapsed() >= interval && !behind => {
                    self.seal_open(&mut tail);
                    None
                }
                Some((_, since)) => Some(interval.saturating_sub(since.elapsed()).max(Duration::from_micros(300))),
                None => None,
            }
        };
        self.write_sealed()?;
        self.overlay.release_finished(&self.recent);
        self.prepare_spare();
        if let Some(wait) = wait {
            let mut needed = self.flush_needed.lock();
            if !*needed {
                self.flush_signal.wait_for(&mut needed, wait);
            }
            *needed = true;
        }
        Ok(true)
    }

    /// Writes what is sealed.
    fn write_sealed(&self) -> Result<()> {
        while self.writer.write_sealed(&self.segments)? {
            self.overlay.release_finished(&self.recent);
            self.prepare_spare();
        }
        Ok(())
    }

    /// Makes the next segment ready, so that no commit waits for a file to be made.
    fn prepare_spare(&self) {
        let wanted = {
            let tail = self.tail.lock();
            let used = tail.segment.map_or(u64::MAX, |_| tail.offset);
            // Not before there is need: every opening of a store would else cost a segment.
            (tail.spare.is_none() && used > self.segments.segment_bytes() / 4).then_some(tail.next_seq)
        };
        let Some(next_seq) = wanted else { return };
        if self.segments.available() <= RESERVED_SEGMENTS {
            return;
        }
        if let Ok(segment) = self.segments.take(next_seq, RESERVED_SEGMENTS) {
            let mut tail = self.tail.lock();
            // A commit that could not wait may have taken a segment meanwhile. Generations must rise in log order, which is
            // how recovery sorts segments, so this one is too old to be written after that.
            let rises = tail
                .segment
                .is_none_or(|(_, generation)| generation < segment.generation());
            if tail.spare.is_none() && rises {
                tail.spare = Some((segment.number, segment.generation()));
            } else {
                self.segments.free_unused(segment);
            }
        }
    }

    /// The applier's next frame; waits at most `wait`.
    pub fn next_to_apply(&self, wait: Duration) -> Option<Arc<Frame>> {
        let mut queue = self.to_apply.lock();
        if queue.is_empty() {
            self.apply_signal.wait_for(&mut queue, wait);
        }
        queue.pop_front()
    }

    /// Wakes the applier for something other than a frame.
    pub fn wake_applier(&self) {
        let _guard = self.to_apply.lock();
        self.apply_signal.notify_one();
    }

    /// The applier has put everything up to `seq` into the index.
    pub fn applied(&self, frame: &Frame, seq: u64) {
        self.applied_seq.store(seq, Ordering::Release);
        frame.set_applied();
        self.overlay.release_finished(&self.recent);
        self.notify_progress();
        if self.to_apply.lock().is_empty() {
            self.pool.make_ready();
        }
    }

    /// Wakes those who wait for seqs to be applied or segments to be freed.
    pub fn notify_progress(&self) {
        *self.progress.lock() += 1;
        self.progress_signal.notify_all();
    }

    /// Returns when `done` holds; looks again at every progress.
    ///
    /// # Errors
    /// [`Error::Failed`] or [`Error::Unavailable`] if the store stops first.
    pub fn wait_for(&self, done: impl Fn() -> bool) -> Result<()> {
        self.wait_until(|| Ok(done()))
    }

    /// Like [`CommitLog::wait_for`]; an error of `done` ends the wait, too.
    ///
    /// # Errors
    /// Those, and `done`'s.
    pub fn wait_until(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        if done()? {
            return Ok(());
        }
        let mut progress = self.progress.lock();
        while !done()? {
            if let Some(reason) = self.writer.failure() {
                return Err(Error::Failed(reason));
            }
            // Nothing makes progress any more.
            if self.is_closed() {
                return Err(Error::Unavailable("the store is closed"));
            }
            self.progress_signal.wait_for(&mut progress, WAIT_STEP);
        }
        Ok(())
    }

    /// Returns when everything committed so far is applied, and gives that seq.
    ///
    /// # Errors
    /// [`Error::Failed`] if the store stops first.
    pub fn wait_applied(&self) -> Result<u64> {
        let seq = self.committed_seq();
        if self.applied_seq() < seq {
            self.seal();
            self.wait_for(|| self.applied_seq() >= seq)?;
        }
        Ok(self.applied_seq())
    }

    /// No commit after this. What was committed is still written and applied.
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

/// How long a commit still waits for a segment. As long as segments become free, whoever gets them, it is worth waiting: on a
/// slow disk many writers may stand in line for each.
struct Patience {
    until: Instant,
    uses_begun: u64,
}

impl Patience {
    fn new(segments: &Segments) -> Self {
        Self {
            until: Instant::now() + SPACE_WAIT_MAX,
            uses_begun: segments.uses_begun(),
        }
    }

    fn is_over(&mut self, segments: &Segments) -> bool {
        if self.uses_begun != segments.uses_begun() {
            *self = Self::new(segments);
        }
        Instant::now() >= self.until
    }
}
