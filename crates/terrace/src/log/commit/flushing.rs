//! The work of the flusher: it seals frames that are old enough, writes sealed ones, and keeps a
//! segment and memory for frames prepared. It leads the rounds of the group commit for callers that
//! wait without a thread.
//!
//! It is notified of an open frame by the first commit in it that no caller makes durable: a caller
//! of a `Sync` commit seals and writes the frame itself, and waking the flusher would cost each
//! round of the group commit two thread switches. It is notified of a sealed frame by a thread that
//! sealed it and does not write it.

use super::{CommitLog, FRAME_BYTES_TARGET, Open, Tail};
use crate::{Result, log::segments::RESERVED_SEGMENTS};
use std::{sync::atomic::Ordering, time::Duration};

/// Maximum number of intervals that a frame which fills quickly stays open,
const INTERVALS_MAX: u32 = 32;
/// if more than this many others wait for the applier.
const FRAMES_WAITING: usize = 4;
/// Minimum sleep of the flusher between two checks of an open frame: otherwise, if frames are
/// opened at a high rate, it would wake for each.
const LOOK_MIN: Duration = Duration::from_micros(300);
/// The next segment is prepared when this fraction (1/n) of the present one is used: early enough
/// to be there when it is needed, and late enough that opening a store does not create one.
const SPARE_AFTER_PART: u64 = 4;

impl CommitLog {
    /// Wakes the flusher to check the open and sealed frames.
    pub(super) fn wake_flusher(&self) {
        let mut needed = self.flush_needed.lock();
        if !*needed {
            *needed = true;
            self.flush_signal.notify_one();
        }
    }

    /// One turn of the flusher: waits for work, at most `idle`, then seals frames older than
    /// `interval`, writes, and keeps a segment prepared. A frame that waits for values of the large
    /// space may become as old as `large_interval`: by then more of them are made durable at once.
    /// Returns whether it did something.
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
    /// sealing it early would only create more and smaller frames. Only if it will be full soon,
    /// since its records are not written yet.
    fn fills_soon(&self, open: &Open, interval: Duration) -> bool {
        let elapsed = open.since.elapsed();
        let late = interval * INTERVALS_MAX;
        let full = open.bytes as f64 / FRAME_BYTES_TARGET as f64;
        elapsed < late
            && full >= elapsed.as_secs_f64() / late.as_secs_f64()
            && self.waiting_for_applier() > FRAMES_WAITING
    }

    /// Requests that the flusher makes everything up to `seq` durable, for a caller that waits
    /// without a thread ([`crate::log::writer::FrameWriter::poll_durable`]).
    pub fn promise_durable(&self, seq: u64) {
        self.promised_seq.fetch_max(seq, Ordering::AcqRel);
        self.wake_flusher();
    }

    /// Makes everything requested so far durable. Later requests have woken the flusher again.
    fn keep_promises(&self) -> Result<()> {
        let promised_seq = self.promised_seq.load(Ordering::Acquire);
        if promised_seq > self.writer.durable_seq() {
            self.make_durable(promised_seq)?;
        }
        Ok(())
    }

    /// Writes sealed frames.
    fn write_sealed(&self) -> Result<()> {
        while self.writer.write_sealed(&self.segments)? {
            self.release_finished();
            self.prepare_spare();
            self.pool.make_ready();
        }
        Ok(())
    }

    /// Whether the next segment should be prepared. Not before it is needed: otherwise every open
    /// of a store would cost a segment. And not while the present one was taken from the reserve:
    /// segments that become free then are for the callers that wait for them.
    pub(super) fn wants_spare(&self, tail: &Tail) -> bool {
        let used = tail.segment.map_or(u64::MAX, |_| tail.offset);
        may_have_spare(tail) && used > self.segments.segment_bytes() / SPARE_AFTER_PART
    }

    /// Prepares the next segment, so that no commit waits for a file to be created.
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
            // rise in log order, since recovery sorts segments by them, so this one is too old to
            // be written after that.
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

    /// The flusher is not notified of a frame that a `Sync` commit opens, whose caller seals it. A
    /// `Buffered` commit in the same frame has no such caller: if the flusher were notified only
    /// when frames are opened, it would leave the commit in RAM until another caller needs the
    /// frame.
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

    /// With both tiers full, log GC wrote into a segment of the reserve, and the next segment that
    /// became free was prepared. No commit could use it: callers were refused until the present
    /// segment was full, since that one was not for them, and it never became full.
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
    /// were refused at once, though the next attempt had the room that block GC freed.
    #[test]
    fn a_delete_waits_for_the_next_attempt_of_an_index_that_had_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        store.put("key", "value").unwrap();
        let index_full = &store.engine().log.index_full;
        index_full.compaction_ended(Some("no room".to_owned()));
        let _ = index_full.holds_up_applier();
        // The index has nothing to merge, which its thread finds at its next check.
        store.delete("key").unwrap();
        assert_eq!(index_full.refuses_commits(), None);
    }
}
