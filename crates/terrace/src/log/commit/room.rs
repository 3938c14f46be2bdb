//! Waiting for room in the log: for the applier, for the index, for a segment.
//!
//! A commit that finds no free segment waits for log GC. One with new data is refused at once if
//! log GC has tried every segment and could free none, and no commit since could have changed that.
//! One that frees space may use the device's reserve.

use super::{CommitLog, Committer};
use crate::{
    Error, Result, Tier,
    log::segments::{RESERVED_SEGMENTS, SCARCE_SEGMENTS},
    metrics::{
        event::Event,
        stalls::{Patience, StallReason},
    },
};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// How long a commit waits for log GC, while no segment becomes free, before it reports that the
/// tier is full.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a commit that frees space waits before it takes the reserve, unless log GC can free
/// nothing: long enough for log GC if it can help at all.
const RESERVE_WAIT: Duration = Duration::from_millis(200);
/// How long a commit that frees space waits for an index that has no room, and new data for a merge
/// of the index: several of its attempts.
const INDEX_WAIT: Duration = Duration::from_secs(5);
/// Why new data is refused after that.
const NOT_MERGED: &str = "the ordered index takes too much of flash_capacity_bytes, and is not merged";

impl CommitLog {
    /// The only way in which callers wait for room: calls `look` until it returns a result,
    /// immediately when `event` is raised.
    ///
    /// # Errors
    /// Errors of `look`; [`Error::Failed`] or [`Error::Unavailable`] if the store stops first.
    pub fn stall<T>(&self, why: StallReason, event: &Event, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        self.stalls.wait(why, event, || {
            let found = look()?;
            if found.is_none() {
                self.writer.check()?;
                self.check_open()?;
                self.urge_applier();
            }
            Ok(found)
        })
    }

    /// Why new data is refused on a tier; `None` if it is accepted.
    pub fn refusal(&self, tier: Tier) -> Option<Error> {
        let by_capacity = || self.segments.refusal(tier);
        self.reserve.refusal(tier).or_else(by_capacity)
    }

    /// Accepts new data, once a merge of the index that may give it room has ended.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn accept_new(&self) -> Result<()> {
        if self.segments.awaits_merge() && self.reserve.is_whole() {
            let began = Instant::now();
            self.stall(StallReason::IndexFull, &self.progress, || {
                let waits = self.segments.awaits_merge();
                if waits && began.elapsed() >= INDEX_WAIT {
                    return Err(Error::no_room(Tier::Flash, NOT_MERGED.to_owned()));
                }
                Ok((!waits).then_some(()))
            })?;
        }
        self.refusal(Tier::Flash).map_or(Ok(()), Err)
    }

    /// Whether callers must wait for the applier: no other thread should add to its work.
    pub fn is_behind(&self) -> bool {
        self.frames.is_full() || self.index_full.refuses_commits().is_some()
    }

    /// Whether optional moves to the log are allowed: log GC keeps segments free for commits.
    pub fn has_room_for_moves(&self) -> bool {
        let is_full = !self.reserve.is_whole() || self.segments.available() <= SCARCE_SEGMENTS;
        !self.is_closing() && !self.is_behind() && !is_full
    }

    /// Back-pressure: waits until not too much is unapplied. Commits that free space also wait for
    /// the index's next attempts: other work may free the space that the index lacks.
    pub(super) fn wait_for_applier(&self, committer: Committer) -> Result<()> {
        if !self.is_behind() {
            return Ok(());
        }
        let began = Instant::now();
        let refuses = || self.index_full.refuses_commits();
        loop {
            self.stall(StallReason::Applier, &self.progress, || {
                Ok((!self.frames.is_full() || refuses().is_some()).then_some(()))
            })?;
            if refuses().is_none() {
                return Ok(());
            }
            self.stall(StallReason::IndexFull, &self.progress, || match refuses() {
                Some(reason)
                    if !matches!(committer, Committer::Freeing | Committer::Cleaning)
                        || began.elapsed() >= INDEX_WAIT =>
                {
                    Err(Error::no_room(Tier::Flash, reason))
                }
                refusal => Ok(refusal.is_none().then_some(())),
            })?;
        }
    }

    /// Number of free segments that a committer leaves to others.
    pub(super) fn kept_by(&self, committer: Committer) -> u32 {
        committer.keeps_free(self.reserve.is_whole())
    }

    /// Whether there are more free segments than the committer leaves to others. For `Replacing`
    /// commits the device is queried now: segments that might be created are not there for commits
    /// that must continue.
    pub(super) fn has_segment_for(&self, committer: Committer) -> bool {
        let available = match committer {
            Committer::Replacing => self.segments.available_now(),
            _ => self.segments.available(),
        };
        let kept = self.kept_by(committer);
        available > kept && !(kept >= RESERVED_SEGMENTS && self.segments.owes_segment())
    }

    /// Bytes of values that log GC may rewrite. While the reserve is in use it leaves half a
    /// segment to commits that free space.
    pub fn room_for_recycling(&self) -> u64 {
        let free = self.segments.available_now();
        let segment_bytes = self.segments.segment_bytes();
        let left_bytes = if self.reserve.is_whole() { 0 } else { segment_bytes / 2 };
        let tail = self.tail.lock();
        let open_bytes = tail.open.as_ref().map_or(0, |open| open.bytes as u64);
        let rest = tail
            .segment
            .map_or(0, |_| segment_bytes.saturating_sub(tail.offset + open_bytes));
        (rest + u64::from(free) * segment_bytes).saturating_sub(left_bytes)
    }

    /// How long a commit waits for a segment.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(SPACE_WAIT_MAX, self.segments.last_generation())
    }

    /// Waits until log GC has freed a segment that a caller may use.
    pub(super) fn wait_for_segment(&self, committer: Committer, patience: &mut Patience) -> Result<()> {
        // Log GC only drains segments that are written.
        self.wake_flusher();
        let began = Instant::now();
        let is_freeing = committer.frees();
        let has_one = || self.has_segment_for(committer);
        let cleans = u64::from(committer == Committer::Cleaning);
        self.cleaning_waits.fetch_add(cleans, Ordering::AcqRel);
        let is_replacing = committer == Committer::Replacing;
        let found = self.stall(StallReason::Segment, &self.progress, || {
            // Draining a segment of a full store moves nearly all of it to free the few bytes that
            // are dead by now.
            let waits_in_vain = self.recycling_is_stuck() || (is_replacing && self.has_been_full());
            let may_use_reserve = is_freeing && (waits_in_vain || began.elapsed() >= RESERVE_WAIT);
            while may_use_reserve && !has_one() && self.makes_segment_of_reserve(has_one) {}
            if has_one() {
                return Ok(Some(()));
            }
            // A delete continues to wait: its own record may free space.
            let gives_up = !is_freeing || (is_replacing && may_use_reserve);
            if patience.is_over(self.segments.last_generation()) || (gives_up && self.recycling_is_stuck()) {
                self.segments.retry_device();
                return Err(self.no_segment());
            }
            Ok(None)
        });
        self.cleaning_waits.fetch_sub(cleans, Ordering::AcqRel);
        found
    }

    /// Whether block GC waits for a segment: it frees no space then.
    pub fn cleaning_waits(&self) -> bool {
        self.cleaning_waits.load(Ordering::Acquire) > 0
    }

    /// Creates a segment from the reserve's part for it, or from the space of the device beyond
    /// what others may need: without an index that can be flushed no segment becomes free, and
    /// without block GC few blocks do. A log at its capacity, of which log GC can free nothing,
    /// gets one segment more for the one from the reserve: the total size of the store stays the
    /// same.
    ///
    /// Several threads may ask at the same moment: the second uses the segment that the first
    /// created.
    fn makes_segment_of_reserve(&self, has_one: impl Fn() -> bool) -> bool {
        let _one_at_a_time = self.making.lock();
        if has_one() {
            return true;
        }
        // Once the reserve is in use, log GC lets segments die until little of each is live.
        let is_at_capacity = !self.segments.may_grow() && self.has_been_full();
        let is_device_full = self.segments.is_device_full() || self.segments.is_device_short();
        if !is_device_full && !is_at_capacity {
            return false;
        }
        self.reserve.give_up();
        let mut is_theirs = false;
        let mut take = || {
            is_theirs = self.reserve.take_segment();
            is_theirs
        };
        let flush_bytes = self.reserve.flush_bytes();
        let made = if is_at_capacity {
            self.segments.add_beyond_capacity(|| take().then_some(flush_bytes))
        } else {
            let left_bytes = || {
                if take() {
                    flush_bytes
                } else {
                    self.segments.left_of_reserve_bytes()
                }
            };
            self.segments.add_free(left_bytes)
        };
        if is_theirs && made.is_err() {
            // The space of the device is taken by something else for now.
            self.reserve.return_segment();
        }
        made.is_ok()
    }

    fn no_segment(&self) -> Error {
        let (segments, bytes) = (self.segments.created(), self.segments.segment_bytes());
        let reason = format!(
            "the flash log has no free segment among {segments} of {bytes} bytes (flash_capacity_bytes) and recycling \
             cannot free one (large tier full, see large_capacity_bytes, or an old snapshot holds them)"
        );
        Error::no_room(Tier::Flash, reason)
    }

    /// Log GC has tried every segment as of `committed_seq` and could free none.
    pub fn recycling_stuck_at(&self, committed_seq: u64) {
        self.stuck.begins(committed_seq);
    }

    /// It could, or there is room elsewhere that it can use: refused writes may be tried again. A
    /// segment that log GC needs itself does not end the state of a full log.
    pub fn recycling_made_room(&self) {
        self.stuck.ends(self.segments.available() > RESERVED_SEGMENTS);
        self.notify_progress();
    }

    /// Whether callers have no segment, and have had none since log GC tried all and could free
    /// none; commits may have been made since then.
    pub fn has_been_full(&self) -> bool {
        let is_full = self.stuck.was() && self.segments.available() <= RESERVED_SEGMENTS;
        is_full || !self.reserve.is_whole()
    }

    /// Whether log GC can free no segment.
    pub fn recycling_is_stuck(&self) -> bool {
        self.stuck.is_at(self.committed_seq())
    }
}

/// Whether log GC can free nothing, and whether that has been so since there was room.
///
/// Invariant: a thread that sees the first also sees the second.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// Seq of the last commit when it had tried every segment without success; 0 if it has not.
    at_seq: AtomicU64,
    was: AtomicBool,
}

impl Stuck {
    fn begins(&self, committed_seq: u64) {
        self.was.store(true, Ordering::Release);
        self.at_seq.store(committed_seq, Ordering::Release);
    }

    fn ends(&self, is_room: bool) {
        self.at_seq.store(0, Ordering::Release);
        if is_room {
            self.was.store(false, Ordering::Release);
        }
    }

    fn is_at(&self, committed_seq: u64) -> bool {
        let seq = self.at_seq.load(Ordering::Acquire);
        seq > 0 && seq == committed_seq
    }

    fn was(&self) -> bool {
        self.was.load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{AtomicU64, Ordering, Stuck};
    use crate::{
        Durability, Options, Store, key_hash,
        log::{
            commit::{Committer, Judged},
            format::{Body, Record},
            segments::RESERVED_SEGMENTS,
        },
    };

    /// Aborted uploads on a full store had begun a segment of the reserve. Overwrites that shrink
    /// continued in it and left the one that was created for them unused; log GC gave that back to
    /// the device, three times, and 1,974 of 2,000 were refused.
    #[test]
    fn what_replaces_begins_a_segment_where_deletes_have_one_of_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        store.put("key", "value").unwrap();
        let log = &store.engine().log;
        let commit = |committer| {
            let record = Record::new(b"key", &[], Body::Put { value: b"v" });
            let decide = || Ok(Judged::default());
            log.commit_as(
                committer,
                Durability::Buffered,
                &[(key_hash(record.key), record)],
                0,
                decide,
            )
            .unwrap();
            let tail = log.tail.lock();
            (tail.segment, tail.keeps_free)
        };
        let (begun, _) = commit(Committer::User);
        log.tail.lock().keeps_free = RESERVED_SEGMENTS - 1;
        assert_eq!(commit(Committer::Freeing), (begun, RESERVED_SEGMENTS - 1));
        let (own, keeps_free) = commit(Committer::Replacing);
        assert_ne!(own, begun, "it lives among deletes");
        assert_eq!(keeps_free, RESERVED_SEGMENTS);
        assert_eq!(commit(Committer::Replacing).0, own, "one for all of them");
        assert_eq!(commit(Committer::Freeing).0, own);
    }

    /// A writer was refused since log GC was stuck, and tried again as one that frees more than it
    /// adds: it could find that the log had not been full, created no segment from the reserve and
    /// was refused. A test failed this way once, under heavy load.
    #[test]
    fn that_recycling_is_stuck_is_seen_with_the_log_having_been_full() {
        const ROUNDS: u64 = 20_000;
        // On one processor the other thread would wait for the end of this one's time slice.
        const LOOKS_PER_YIELD: u32 = 1_000;
        let (stuck, looks) = (Stuck::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while looks.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    stuck.begins(round);
                }
            });
            for round in 1..=ROUNDS {
                stuck.ends(true);
                looks.store(round, Ordering::Release);
                let mut looked = 0_u32;
                while !stuck.is_at(round) {
                    looked += 1;
                    if looked.is_multiple_of(LOOKS_PER_YIELD) {
                        std::thread::yield_now();
                    }
                    std::hint::spin_loop();
                }
                if !stuck.was() {
                    looks.store(u64::MAX, Ordering::Release);
                    panic!("round {round}");
                }
            }
        });
    }
}
