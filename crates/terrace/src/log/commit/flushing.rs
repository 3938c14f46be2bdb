//! What the flusher does: it seals frames that are old enough, writes what is sealed, and keeps a
//! segment and memory for frames ready. It leads the rounds of the group commit for callers that
//! wait without a thread.
//!
//! It is told of an open frame by the first commit in it that no caller makes durable: a caller
//! that asked for `Sync` seals and writes the frame itself, and to wake the flusher would cost each
//! round of the group commit two changes of threads. It is told of a sealed frame by a thread that
//! sealed it and does not write it.

use super::{CommitLog, FRAME_BYTES_TARGET, Open, Tail};
use crate::{Result, log::segments::RESERVED_SEGMENTS};
use std::{sync::atomic::Ordering, time::Duration};

/// A frame that fills quickly is left open for so many intervals at most,
const INTERVALS_MAX: u32 = 32;
/// if more than so many others wait for the applier.
const FRAMES_WAITING: usize = 4;
/// The flusher sleeps so long at least before it looks at an open frame again: frames that are
/// opened all the time would else have it wake for each.
const LOOK_MIN: Duration = Duration::from_micros(300);
/// A segment of which this part is used has the next one made ready: early enough that it is there
/// when it is needed, and late enough that opening a store does not make one.
const SPARE_AFTER_PART: u64 = 4;

impl CommitLog {
    /// Has the flusher look at what is open and sealed.
    pub(super) fn wake_flusher(&self) {
        let mut needed = self.flush_needed.lock();
        if !*needed {
            *needed = true;
            self.flush_signal.notify_one();
        }
    }

    /// The flusher's turn: waits for something to do, at most `idle`, then seals what is older than
    /// `interval`, writes, and keeps a segment ready. A frame that waits for values of the large
    /// space may become as old as `large_interval` says: by then more of them are made durable at
    /// once. Returns whether it did something.
    ///
    /// # Errors
    /// [`Error::Failed`] if the device failed.
    pub fn flush_turn(
        &self,
        interval: Duration,
        large_interval: impl Fn() -> Duration,
        idle: Duration,
    ) -> Result<bool> {
        {
            let mut needed = self.flush_needed.lock();
            if !*needed {
                self.flush_signal.wait_for(&mut needed, idle);
            }
            if !std::mem::take(&mut *needed) {
                return Ok(false);
            }
        }
        self.keep_promises()?;
        self.write_sealed()?;
        let wait = {
            let mut tail = self.tail.lock();
            let waits_for_large = tail.open.as_ref().is_some_and(|open| open.frame.large_turn() > 0);
            let age = if waits_for_large { large_interval() } else { interval };
            match &tail.open {
                Some(open) if !open.is_timed => None,
                Some(open) if open.since.elapsed() >= age && !self.fills_soon(open, interval) => {
                    self.seal_open(&mut tail);
                    None
                }
                Some(open) => Some(age.saturating_sub(open.since.elapsed()).max(LOOK_MIN)),
                None => None,
            }
        };
        self.write_sealed()?;
        self.release_finished();
        // A segment that was full may have been synced.
        self.wake_applier_if_ready();
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

    /// Whether to leave a frame open beyond `interval`: while others wait for the applier as well,
    /// to seal it early would only make more and smaller ones. Not unless it is full soon: what is
    /// in it is not written yet.
    fn fills_soon(&self, open: &Open, interval: Duration) -> bool {
        let elapsed = open.since.elapsed();
        let late = interval * INTERVALS_MAX;
        let full = open.bytes as f64 / FRAME_BYTES_TARGET as f64;
        elapsed < late
            && full >= elapsed.as_secs_f64() / late.as_secs_f64()
            && self.waiting_for_applier() > FRAMES_WAITING
    }

    /// Has the flusher make everything up to `seq` durable, for a caller that waits without a
    /// thread ([`crate::log::writer::FrameWriter::poll_durable`]).
    pub fn promise_durable(&self, seq: u64) {
        self.promised_seq.fetch_max(seq, Ordering::AcqRel);
        self.wake_flusher();
    }

    /// Makes durable what was promised. What is promised meanwhile has woken the flusher again.
    fn keep_promises(&self) -> Result<()> {
        let promised_seq = self.promised_seq.load(Ordering::Acquire);
        if promised_seq > self.writer.durable_seq() {
            self.make_durable(promised_seq)?;
        }
        Ok(())
    }

    /// Writes what is sealed.
    fn write_sealed(&self) -> Result<()> {
        while self.writer.write_sealed(&self.segments)? {
            self.release_finished();
            self.prepare_spare();
            self.pool.make_ready();
        }
        Ok(())
    }

    /// Whether the next segment should be made ready. Not before there is need: every opening of a
    /// store would else cost a segment. And not while the one that is written was taken out of the
    /// reserve: what becomes free then is for the callers that wait for it.
    pub(super) fn wants_spare(&self, tail: &Tail) -> bool {
        let used = tail.segment.map_or(u64::MAX, |_| tail.offset);
        may_have_spare(tail) && used > self.segments.segment_bytes() / SPARE_AFTER_PART
    }

    /// Makes the next segment ready, so that no commit waits for a file to be made.
    fn prepare_spare(&self) {
        let wanted = {
            let tail = self.tail.lock();
            self.wants_spare(&tail).then_some(tail.next_seq)
        };
        let Some(next_seq) = wanted else { return };
        if self.segments.available() <= RESERVED_SEGMENTS || !self.reserve.is_whole() {
            return;
        }
        if let Ok(segment) = self.segments.take(next_seq, RESERVED_SEGMENTS) {
            let mut tail = self.tail.lock();
            // A commit that could not wait may have taken a segment meanwhile. Generations must
            // rise in log order, which is how recovery sorts segments, so this one is too old to be
            // written after that.
            let rises = tail
                .segment
                .is_none_or(|(_, generation)| generation < segment.generation());
            if may_have_spare(&tail) && rises {
                tail.spare = Some((segment.number, segment.generation()));
            } else {
                self.segments.free_unused(segment);
            }
        }
    }
}

const fn may_have_spare(tail: &Tail) -> bool {
    tail.spare.is_none() && tail.keeps_free >= RESERVED_SEGMENTS
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::{
        Durability, Options, PutOptions, Store, key_hash,
        log::{
            commit::{Committer, Judged},
            format::{Body, Record},
            segments::RESERVED_SEGMENTS,
        },
    };
    use std::{
        sync::atomic::Ordering,
        time::{Duration, Instant},
    };

    /// The flusher is not told of a frame that a `Sync` commit opens, whose caller seals it. A
    /// `Buffered` commit in the same frame has no such caller: told only of frames that are opened,
    /// the flusher would leave it in RAM until another caller needs the frame.
    #[test]
    fn a_buffered_commit_in_a_frame_that_a_sync_commit_opened_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(Options::new(dir.path()).tuned(|tuning| tuning.coalesce_interval = Duration::from_millis(1)))
                .unwrap();
        let log = &store.engine().log;
        let record = Record::new(b"sync", &[], Body::Put { value: b"value" });
        let records = [(key_hash(record.key), record)];
        let decide = || Ok(Judged::default());
        log.commit_as(Committer::User, Durability::Sync, &records, 0, decide)
            .unwrap();
        let buffered = PutOptions {
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        store.put_with("buffered", "value", &buffered).unwrap();
        let written = || log.writer.written().records.load(Ordering::Acquire);
        let until = Instant::now() + Duration::from_secs(60);
        while written() == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(written() > 0, "no thread was told of it");
    }

    /// With both tiers full log GC wrote into a segment of the reserve, and what became free next
    /// was made ready as the segment to come. No commit could get it: callers were refused, since
    /// the segment that was written was not for them, until that was full, which it never was.
    #[test]
    fn what_becomes_free_while_the_reserve_is_written_is_for_callers() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        store.put("key", "value").unwrap();
        let log = &store.engine().log;
        let spare_after = |keeps_free| {
            let mut tail = log.tail.lock();
            tail.offset = log.segments.segment_bytes() / 2;
            tail.keeps_free = keeps_free;
            drop(tail);
            log.prepare_spare();
            log.tail.lock().spare
        };
        assert_eq!(spare_after(RESERVED_SEGMENTS - 1), None);
        assert!(spare_after(RESERVED_SEGMENTS).is_some());
    }

    /// While a merge of the index had no room on a full device, and flushes waited for it, deletes
    /// were refused at once, though the next attempt had the room that cleaning gave back.
    #[test]
    fn a_delete_waits_for_the_next_attempt_of_an_index_that_had_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        store.put("key", "value").unwrap();
        let index_full = &store.engine().log.index_full;
        index_full.compaction_ended(Some("no room".to_owned()));
        let _ = index_full.holds_up_applier();
        // The index has nothing to merge, which its thread finds when it looks the next time.
        store.delete("key").unwrap();
        assert_eq!(index_full.refuses_commits(), None);
    }
}
