//! Why callers wait for the store, and for how long: every wait for room is counted here, under the
//! reason for it, and looks again in one way.

use crate::metrics::event::Event;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Interval at which a waiting thread checks without a notification: whether the store stops, and
/// whether it has waited for long enough.
const STEP: Duration = Duration::from_millis(20);

/// Why a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallReason {
    /// So much is committed and not in the index yet that there is no RAM for more.
    Applier,
    /// The index has no room on its device.
    IndexFull,
    /// The log has no free segment.
    Segment,
    /// Blocks take more of the large tier than allowed for their live bytes.
    BlockSpace,
    /// The large tier has no room, and deleted data will free some.
    BlockRoom,
    /// Too many range deletions have not been carried out yet.
    Ranges,
}

impl StallReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Applier,
        Self::IndexFull,
        Self::Segment,
        Self::BlockSpace,
        Self::BlockRoom,
        Self::Ranges,
    ];

    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Applier => "applier",
            Self::IndexFull => "index_full",
            Self::Segment => "segment",
            Self::BlockSpace => "block_space",
            Self::BlockRoom => "block_room",
            Self::Ranges => "ranges",
        }
    }
}

/// Callers that waited for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallStats {
    /// The reason.
    pub reason: StallReason,
    /// Threads that wait now.
    pub waiting: u64,
    /// Waits that ended, since open.
    pub count: u64,
    /// Total time of the waits.
    pub time: Duration,
}

/// Counts callers that wait, by reason.
#[derive(Debug, Default)]
pub struct Stalls {
    by_reason: [Counters; StallReason::ALL.len()],
    /// Raised when a thread begins to wait.
    activity: Arc<Event>,
}

#[derive(Debug, Default)]
struct Counters {
    waiting: AtomicU64,
    count: AtomicU64,
    ns: AtomicU64,
}

impl Stalls {
    /// No thread waits. From now on one that does raises `activity`.
    pub fn raising(activity: Arc<Event>) -> Self {
        let by_reason = Default::default();
        Self { by_reason, activity }
    }

    /// Calls `look` until it returns something: immediately, whenever `event` was raised, and from
    /// time to time. From before the first call on the caller counts as waiting, and the threads
    /// that may help are notified; if the first call suffices, it has not waited.
    ///
    /// # Errors
    /// Errors of `look`, which end the wait.
    pub fn wait<T, E>(
        &self,
        why: StallReason,
        event: &Event,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let counters = &self.by_reason[why as usize];
        let mut wait = Wait { counters, began: None };
        counters.waiting.fetch_add(1, Ordering::AcqRel);
        event.raise();
        self.activity.raise();
        loop {
            // Before the check: an event from here on ends the wait.
            let seen = event.count();
            if let Some(found) = look()? {
                return Ok(found);
            }
            wait.began.get_or_insert_with(Instant::now);
            event.wait_beyond(seen, STEP);
        }
    }

    /// How many wait for one of these reasons.
    pub fn waiting(&self, reasons: &[StallReason]) -> u64 {
        let waiting = |why: &StallReason| self.by_reason[*why as usize].waiting.load(Ordering::Acquire);
        reasons.iter().map(waiting).sum()
    }

    /// Their present values.
    pub fn picture(&self) -> [StallStats; StallReason::ALL.len()] {
        StallReason::ALL.map(|reason| {
            let counters = &self.by_reason[reason as usize];
            StallStats {
                reason,
                waiting: counters.waiting.load(Ordering::Acquire),
                count: counters.count.load(Ordering::Relaxed),
                time: Duration::from_nanos(counters.ns.load(Ordering::Relaxed)),
            }
        })
    }
}

/// A caller that waits.
struct Wait<'a> {
    counters: &'a Counters,
    began: Option<Instant>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.counters.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Some(began) = self.began {
            let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.counters.count.fetch_add(1, Ordering::Relaxed);
            self.counters.ns.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// A timeout that restarts with each progress, even if another waiter benefits. On a slow device
/// many threads may wait for the same room.
#[derive(Debug)]
pub struct Patience {
    longest: Duration,
    until: Instant,
    progress: u64,
}

impl Patience {
    /// For `longest` without progress, starting from this value of it.
    pub fn new(longest: Duration, progress: u64) -> Self {
        Self {
            longest,
            until: Instant::now() + longest,
            progress,
        }
    }

    /// Whether the time is up. Begins anew if there is more progress than at the last look.
    pub fn is_over(&mut self, progress: u64) -> bool {
        if progress != self.progress {
            *self = Self::new(self.longest, progress);
        }
        Instant::now() >= self.until
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_until_it_is_told_to_give_up_and_is_counted() {
        let (stalls, event) = (Stalls::default(), Event::default());
        let why = StallReason::Segment;
        let at = |stalls: &Stalls| stalls.picture()[why as usize];
        let now: Result<_, ()> = stalls.wait(why, &event, || Ok(Some(stalls.waiting(&[why]))));
        assert_eq!(now, Ok(1), "it counts before it looks");
        assert_eq!((at(&stalls).count, at(&stalls).waiting), (0, 0), "there was room");
        let mut looks = 0;
        let refused: Result<(), _> = stalls.wait(why, &event, || {
            looks += 1;
            if looks == 3 { Err("give up") } else { Ok(None) }
        });
        assert_eq!((refused, looks), (Err("give up"), 3));
        let ended = at(&stalls);
        assert_eq!((ended.count, ended.waiting), (1, 0));
        assert!(ended.time >= STEP * 2, "nothing told it to look before: {ended:?}");
        let others = stalls.picture().iter().filter(|stall| stall.count > 0).count();
        assert_eq!(others, 1);
    }

    /// Each reason's name and place are its own, so no wait is counted as another.
    #[test]
    fn reasons_are_in_their_places() {
        let stalls = Stalls::default();
        for (place, reason) in StallReason::ALL.into_iter().enumerate() {
            assert_eq!((reason as usize, stalls.picture()[place].reason), (place, reason));
        }
        let mut names = StallReason::ALL.map(StallReason::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), StallReason::ALL.len());
    }

    #[test]
    fn patience_lasts_as_long_as_there_is_progress() {
        let mut patience = Patience::new(Duration::from_millis(30), 7);
        assert!(!patience.is_over(7));
        std::thread::sleep(Duration::from_millis(31));
        assert!(!patience.is_over(8), "more happened");
        std::thread::sleep(Duration::from_millis(31));
        assert!(patience.is_over(8));
    }
}
