//! Writes sealed frames to their segments and makes them durable, in groups.
//!
//! One thread at a time is the *leader*. A commit that must be durable leads if no other thread
//! does: it writes and syncs for all that committed before it sealed the frame. Otherwise it waits
//! for the leader. So a single writer needs no thread switch, and many writers share one fdatasync.
//!
//! A caller that must not block waits without a thread: it registers the seq it waits for, and the
//! end of the round that covers it wakes its task. It can lead no round, so the flusher does, which
//! is notified when such a caller has committed ([`super::commit::CommitLog::promise_durable`]).
//!
//! A round begins with a leader, seals the open frame, writes, syncs and ends. A commit that comes
//! during a round waits at one of two gates, for even and for odd rounds, and checks again when
//! woken:
//!
//! | the round under way | the seq that is wanted | waits for | is woken at its end |
//! |---|---|---|---|
//! | has sealed | up to what it sealed | it | with all others |
//! | has sealed | later | the next | one alone, to lead the next |
//! | has not sealed yet | any | the next, which may be needless | all are |
//! | writes without a sync | any | the next, which may be needless | all are |
//!
//! No round starts by itself: one of the threads that wait for it must be woken to lead it. So if
//! the chosen one might find itself already served and return, all are woken.
//!
//! Invariants:
//! - Frames are written in log order. A segment is synced before the first frame of the next one is
//!   written, so a power cut can leave a hole only in the segment that was written last.
//! - A frame with a record that points to a value in the large space is written only after that
//!   value is durable.
//! - After a failed write or sync nothing is written any more: the state of the device is unknown.

use super::{
    event_count::Gate,
    frame::{Frame, FrameView},
    segments::{Segment, Segments},
};
use crate::{
    Error, Result,
    metrics::count,
    mutation::{Mutation, unless},
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Poll, Waker},
};

/// Frames written at once when nothing must be synced: writers that wait for room in RAM need not
/// wait for more of them.
const FRAMES_UNSYNCED: usize = 4;
/// Adjacent frames are written to the device as one write of up to this many bytes, or one frame
/// that is longer: it is split into parallel requests, while separate writes would be done one
/// after the other.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// Makes the values of the large space up to a turn durable.
pub type LargeSync = Box<dyn Fn(u64) -> Result<()> + Send + Sync>;

/// Group commit.
pub struct FrameWriter {
    state: Mutex<State>,
    /// Where commits wait for an even round, and for an odd one: so the end of a round wakes those
    /// it served, and one of the others to lead the next.
    rounds: [Gate; 2],
    durable_seq: AtomicU64,
    /// Whether `state` has a failure: set with its lock held, for threads that only check.
    has_failed: AtomicBool,
    written: WrittenBytes,
    large_sync: LargeSync,
}

#[derive(Debug, Default)]
struct State {
    has_leader: bool,
    round: Round,
    sealed: VecDeque<Arc<Frame>>,
    written_seq: u64,
    /// Segment with unsynced frames, if any.
    unsynced: Option<u32>,
    unsynced_bytes: u64,
    /// Waiting tasks, each until the log is durable up to its seq.
    tasks: BTreeMap<u64, Waker>,
    /// Why nothing is written any more.
    failure: Option<String>,
}

impl State {
    fn check(&self) -> Result<()> {
        let failure = self.failure.clone();
        failure.map_or(Ok(()), |reason| Err(Error::Failed(reason)))
    }

    /// Removes and returns the tasks that wait for at most this seq.
    fn served(&mut self, durable_seq: u64) -> BTreeMap<u64, Waker> {
        let later = self.tasks.split_off(&durable_seq.saturating_add(1));
        std::mem::replace(&mut self.tasks, later)
    }
}

/// Wakes tasks, without the state's lock: wakers are code of the caller.
fn wake(tasks: BTreeMap<u64, Waker>) {
    tasks.into_values().for_each(Waker::wake);
}

/// The present or last round.
#[derive(Debug, Default)]
struct Round {
    number: u64,
    /// It makes everything up to this seq durable, once it has sealed that; not set by a round that
    /// does not sync.
    sealed_to: Option<u64>,
    /// A thread waits for the next round although this one may serve it.
    is_unsure: bool,
}

impl Round {
    fn begin(&mut self) {
        self.number += 1;
        self.sealed_to = None;
    }

    /// The number of the round for which a caller that needs this seq waits.
    fn waits_for(&mut self, seq: u64) -> u64 {
        self.is_unsure |= self.sealed_to.is_none();
        let is_served = self.sealed_to.is_some_and(|sealed_seq| seq <= sealed_seq);
        if is_served { self.number } else { self.number + 1 }
    }
}

/// How far the leader of a round has got.
#[derive(Debug, Default)]
struct Reached {
    written_seq: u64,
    durable_seq: u64,
    /// Bytes written by the round.
    bytes: u64,
    /// Segment with unsynced frames, if any.
    unsynced: Option<u32>,
}

/// Written bytes.
#[derive(Debug, Default)]
pub struct WrittenBytes {
    /// Records.
    pub records: AtomicU64,
    /// Frame headers and padding.
    pub padding: AtomicU64,
    /// Rounds that ended with an fdatasync.
    pub syncs: AtomicU64,
}

impl FrameWriter {
    /// Starts after recovery: everything up to `seq` is durable.
    pub fn starting_at(seq: u64, large_sync: LargeSync) -> Self {
        Self {
            state: Mutex::new(State {
                written_seq: seq,
                ..State::default()
            }),
            rounds: Default::default(),
            durable_seq: AtomicU64::new(seq),
            has_failed: AtomicBool::new(false),
            written: WrittenBytes::default(),
            large_sync,
        }
    }

    /// Queues a sealed frame. Must be called in log order.
    pub fn push(&self, frame: Arc<Frame>) {
        self.state.lock().sealed.push_back(frame);
    }

    /// Returns when everything up to `seq` is durable. `seal` is called as the leader: it pushes
    /// the open frame and returns the last sealed seq. Returns whether this call wrote anything
    /// itself.
    ///
    /// # Errors
    /// [`Error::Failed`] if a write or sync failed now or before; whether `seq` is on the device is
    /// then unknown.
    pub fn make_durable(&self, segments: &Segments, seq: u64, seal: impl Fn() -> u64) -> Result<bool> {
        let mut led = false;
        while self.durable_seq() < seq {
            let mut state = self.state.lock();
            if self.durable_seq() >= seq {
                break;
            }
            state.check()?;
            if state.has_leader {
                let gate = self.gate(state.round.waits_for(seq));
                let ticket = gate.ticket();
                drop(state);
                gate.wait(ticket);
            } else {
                self.lead_round(segments, state, &seal)?;
                led = true;
            }
        }
        Ok(led)
    }

    /// One round: seals, writes, syncs, and wakes those it served and the leader of the next.
    fn lead_round<'a>(
        &'a self,
        segments: &Segments,
        mut state: MutexGuard<'a, State>,
        seal: impl Fn() -> u64,
    ) -> Result<()> {
        state.has_leader = true;
        state.round.begin();
        let round = state.round.number;
        drop(state);
        let sealed_seq = seal();
        state = self.state.lock();
        state.round.sealed_to = Some(sealed_seq);
        let mut state = self.write_as_leader(segments, state, true)?;
        // A frame that was pushed after the sealing has been written too, so the round served some
        // threads that wait for the next; if one of them were chosen to lead, it would return and
        // the others would sleep on.
        let is_unsure = std::mem::take(&mut state.round.is_unsure) || state.written_seq > sealed_seq;
        let served = state.served(self.durable_seq());
        drop(state);
        // The next leader first: the device works while the others wake up.
        let next = self.gate(round + 1);
        if is_unsure {
            next.wake_all();
        } else {
            next.wake_one();
        }
        self.gate(round).wake_all();
        wake(served);
        Ok(())
    }

    fn gate(&self, round: u64) -> &Gate {
        &self.rounds[(round % 2) as usize]
    }

    /// Writes all sealed frames and syncs if requested, otherwise writes some of them; then stops
    /// leading.
    fn write_as_leader<'a>(
        &'a self,
        segments: &Segments,
        mut state: MutexGuard<'a, State>,
        sync: bool,
    ) -> Result<MutexGuard<'a, State>> {
        let all = state.sealed.len();
        let taken = if sync { all } else { all.min(FRAMES_UNSYNCED) };
        let frames: Vec<_> = state.sealed.drain(..taken).collect();
        let mut reached = Reached {
            written_seq: state.written_seq,
            unsynced: state.unsynced,
            ..Reached::default()
        };
        drop(state);
        let outcome = self.write_frames(segments, &frames, sync, &mut reached);
        let mut state = self.state.lock();
        state.has_leader = false;
        state.written_seq = state.written_seq.max(reached.written_seq);
        state.unsynced = reached.unsynced;
        state.unsynced_bytes = if reached.unsynced.is_none() {
            0
        } else {
            state.unsynced_bytes + reached.bytes
        };
        // Not after a failure: commits that were not visible stay so until the next open.
        if state.failure.is_none() {
            let durable_seq = reached.durable_seq.min(state.written_seq);
            self.durable_seq.fetch_max(durable_seq, Ordering::AcqRel);
        }
        if let Err(error) = outcome {
            tracing::error!(%error, "writing the log failed; the store refuses writes from now on");
            self.set_failure(&mut state, error.to_string());
        }
        if let Err(error) = state.check() {
            self.wake_failed(state);
            return Err(error);
        }
        Ok(state)
    }

    /// Writes frames in order, and syncs each segment before the next gets its first frame; then
    /// syncs the last if requested.
    fn write_frames(
        &self,
        segments: &Segments,
        frames: &[Arc<Frame>],
        sync: bool,
        reached: &mut Reached,
    ) -> Result<()> {
        for run in runs(frames) {
            if reached.unsynced.is_some_and(|segment| segment != run[0].segment) {
                let full = reached.unsynced.take();
                unless(Mutation::SegmentBeforeNext, || Self::sync(segments, full))?;
                reached.durable_seq = reached.written_seq;
            }
            let large_turn = run.iter().map(|frame| frame.large_turn()).max().unwrap_or_default();
            if large_turn > 0 {
                unless(Mutation::LargeBeforeBufferedRecord, || (self.large_sync)(large_turn))?;
            }
            self.write_run(segments, run)?;
            for frame in run {
                let view = frame.view();
                reached.written_seq = view.last_seq();
                reached.bytes += view.bytes().len() as u64;
                drop(view);
                frame.set_written();
            }
            reached.unsynced = Some(run[0].segment);
        }
        if sync {
            Self::sync(segments, reached.unsynced.take())?;
            count(&self.written.syncs, 1);
            reached.durable_seq = u64::MAX;
        }
        Ok(())
    }

    /// Writes adjacent frames, the first one first.
    fn write_run(&self, segments: &Segments, run: &[Arc<Frame>]) -> Result<()> {
        let (number, offset) = (run[0].segment, run[0].offset);
        let segment = segments
            .get(number)
            .ok_or_else(|| Error::corruption(format!("segment {number}"), "it is not there"))?;
        let views: Vec<_> = run.iter().map(|frame| frame.view()).collect();
        let buffers: Vec<&[u8]> = views.iter().map(FrameView::bytes).collect();
        segment
            .file
            .write_all_vectored_at(&buffers, offset)
            .map_err(|error| Error::io(format!("write segment {number:08x} at {offset}"), &error))?;
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let padding: usize = views.iter().map(FrameView::padding_bytes).sum();
        count(&self.written.padding, padding as u64);
        count(&self.written.records, (bytes - padding) as u64);
        Ok(())
    }

    fn sync(segments: &Segments, unsynced: Option<u32>) -> Result<()> {
        let segment = unsynced.and_then(|number| segments.get(number));
        segment.map_or(Ok(()), Segment::sync)
    }

    /// Writes some sealed frames, without syncing them, and returns whether there are more. Returns
    /// immediately if another thread leads.
    ///
    /// # Errors
    /// [`Error::Failed`] if a write failed now or before.
    pub fn write_sealed(&self, segments: &Segments) -> Result<bool> {
        let mut state = self.state.lock();
        state.check()?;
        if state.has_leader || state.sealed.is_empty() {
            return Ok(false);
        }
        state.has_leader = true;
        state.round.begin();
        let mut state = self.write_as_leader(segments, state, false)?;
        let is_more = !state.sealed.is_empty();
        let served = state.served(self.durable_seq());
        drop(state);
        // No thread was served; those that wait for this round or the next must choose a leader.
        self.wake_all();
        wake(served);
        Ok(is_more)
    }

    /// Whether everything up to `seq` is durable; if not, `waker` is woken when it is, or when the
    /// log has failed. There is one waker for a seq: the last. A thread must lead a round.
    pub fn poll_durable(&self, seq: u64, waker: &Waker) -> Poll<Result<()>> {
        if self.durable_seq() >= seq {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.state.lock();
        // It is raised, and the tasks are removed, with the lock held.
        if self.durable_seq() >= seq {
            return Poll::Ready(Ok(()));
        }
        state.check()?;
        state.tasks.insert(seq, waker.clone());
        Poll::Pending
    }

    /// No task waits for `seq` by [`FrameWriter::poll_durable`] any more.
    pub fn forget(&self, seq: u64) {
        self.state.lock().tasks.remove(&seq);
    }

    /// Everything up to this seq is durable.
    pub fn durable_seq(&self) -> u64 {
        self.durable_seq.load(Ordering::Acquire)
    }

    /// Bytes written since open.
    pub const fn written(&self) -> &WrittenBytes {
        &self.written
    }

    /// Whether frames wait to be written, or written ones to be synced: `(frames, unsynced bytes)`.
    pub fn backlog(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.sealed.len(), state.unsynced_bytes)
    }

    /// Why nothing is written any more; `None` if writes work.
    pub fn failure(&self) -> Option<String> {
        if !self.has_failed() {
            return None;
        }
        self.state.lock().failure.clone()
    }

    /// Fails if nothing is written any more.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |reason| Err(Error::Failed(reason)))
    }

    /// Whether nothing is written any more. From then on [`FrameWriter::durable_seq`] stays as it
    /// is.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Stops all writing, for a failure found elsewhere (large space, index).
    pub fn fail(&self, reason: &str) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            tracing::error!(reason, "the store refuses writes from now on");
            self.set_failure(&mut state, reason.to_owned());
        }
        self.wake_failed(state);
    }

    fn set_failure(&self, state: &mut State, reason: String) {
        state.failure.get_or_insert(reason);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Wakes all waiting threads after a failure.
    fn wake_failed(&self, mut state: MutexGuard<'_, State>) {
        let tasks = state.served(u64::MAX);
        drop(state);
        self.wake_all();
        wake(tasks);
    }

    fn wake_all(&self) {
        for round in &self.rounds {
            round.wake_all();
        }
    }
}

/// Divides frames, which are in log order, into those of one write each: adjacent in one segment,
/// and not too many bytes.
fn runs(frames: &[Arc<Frame>]) -> impl Iterator<Item = &[Arc<Frame>]> {
    let mut run_bytes = 0;
    frames.chunk_by(move |frame, next| {
        run_bytes += frame.len_bytes();
        let adjoin = frame.segment == next.segment && frame.end() == next.offset;
        let goes_on = adjoin && run_bytes + next.len_bytes() <= WRITE_BYTES_MAX;
        if !goes_on {
            run_bytes = 0;
        }
        goes_on
    })
}
