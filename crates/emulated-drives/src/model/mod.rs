//! The physical models: when a request completes, and when a write reaches the media.
//!
//! A model has no data, no threads and no clock: it receives requests with the virtual time of
//! their arrival, and returns events with their virtual time. The same requests at the same times
//! give the same events.
//!
//! Invariants: each request completes exactly once, at or after its arrival. Each write settles
//! (reaches the media) exactly once, before, at or after its completion. When a flush completes,
//! every write that completed before its arrival has settled. Events are in the order of their
//! times. Nothing here can fail; a request beyond the drive's end is refused earlier.

mod disk;
mod extents;
mod flash;
mod flat;
mod geometry;
mod mapping;
pub mod rates;
#[cfg(test)]
mod tests;

use super::profile::{Kind, Profile};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Virtual time since the drive was switched on, in nanoseconds.
pub type Nanoseconds = u64;

/// Nanoseconds of a time given in microseconds.
pub fn microseconds(value: f64) -> Nanoseconds {
    (value * 1_000.0).round().max(0.0) as Nanoseconds
}

/// Nanoseconds that `bytes` take at `megabytes_per_second` (of 10⁶ bytes).
pub fn transfer(bytes: u64, megabytes_per_second: f64) -> Nanoseconds {
    (bytes as f64 * 1_000.0 / megabytes_per_second).round() as Nanoseconds
}

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Bytes from the drive.
    Read,
    /// Bytes to the drive.
    Write,
    /// All earlier writes to the media.
    Flush,
}

/// A request for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Ascends with each request, in any steps.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Length; 0 for a flush.
    pub bytes: u64,
}

impl Request {
    /// First byte after it.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// An event of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request is answered.
    Completed {
        /// The request.
        id: u64,
        /// When.
        at: Nanoseconds,
    },
    /// A write is on the media: a power cut cannot undo it.
    Settled {
        /// The write.
        id: u64,
        /// When.
        at: Nanoseconds,
    },
}

/// Timing of a drive.
pub trait Model: Send {
    /// Submits a request. Times need not ascend: a time before that of the last request, or before
    /// the model's present, counts as the earliest possible.
    fn submit(&mut self, at: Nanoseconds, request: Request);

    /// Advances to `until` and appends the events.
    fn advance(&mut self, until: Nanoseconds, events: &mut Vec<Event>);

    /// The time of the next event if no request arrives; `None` if there is none.
    fn next_event(&self) -> Option<Nanoseconds>;

    /// A power cycle: queue and caches are lost, the media stay. Time continues.
    fn power_cycle(&mut self, at: Nanoseconds);

    /// Counters of the drive's internal work.
    fn internals(&self) -> Internals;
}

/// Internal work of a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Internals {
    /// Time the media were busy, in nanoseconds.
    pub busy_nanoseconds: u64,
    /// Requests for which a disk had to move its head or wait for the platter.
    pub positionings: u64,
    /// Reads answered from the drive's own memory.
    pub cache_hits: u64,
    /// Pages that garbage collection moved.
    pub pages_moved: u64,
    /// Erase blocks erased.
    pub blocks_erased: u64,
}

impl Internals {
    /// Each count combined with another's.
    pub fn with(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            busy_nanoseconds: combine(self.busy_nanoseconds, other.busy_nanoseconds),
            positionings: combine(self.positionings, other.positionings),
            cache_hits: combine(self.cache_hits, other.cache_hits),
            pages_moved: combine(self.pages_moved, other.pages_moved),
            blocks_erased: combine(self.blocks_erased, other.blocks_erased),
        }
    }
}

/// The model of a profile for a drive of `bytes`.
pub fn build(profile: &Profile, bytes: u64, seed: u64) -> Box<dyn Model> {
    match &profile.kind {
        Kind::Disk(disk) => Box::new(disk::Disk::new(disk.clone(), bytes)),
        Kind::Flash(flash) => Box::new(flash::Flash::new(flash.clone(), bytes, seed)),
        Kind::Flat(flat) => Box::new(flat::Flat::new(flat.clone())),
    }
}

/// Future events, already decided.
#[derive(Debug, Default)]
struct Agenda {
    completions: BinaryHeap<Reverse<(Nanoseconds, u64)>>,
    settlements: BinaryHeap<Reverse<(Nanoseconds, u64)>>,
}

impl Agenda {
    fn settle(&mut self, at: Nanoseconds, id: u64) {
        self.settlements.push(Reverse((at, id)));
    }

    fn complete(&mut self, at: Nanoseconds, id: u64) {
        self.completions.push(Reverse((at, id)));
    }

    /// The next event that must be on time. Settlements are delivered late, with the next such
    /// event, if there is one.
    fn next(&self) -> Option<Nanoseconds> {
        let heap = if self.completions.is_empty() {
            &self.settlements
        } else {
            &self.completions
        };
        heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Moves events due at `until` into `events`. Of the same time, settlements come first: a flush
    /// must find its writes settled.
    fn drain(&mut self, until: Nanoseconds, events: &mut Vec<Event>) {
        loop {
            let completion = self.completions.peek().map_or(Nanoseconds::MAX, |Reverse((at, _))| *at);
            let settlement = self.settlements.peek().map_or(Nanoseconds::MAX, |Reverse((at, _))| *at);
            if completion.min(settlement) > until {
                return;
            }
            if settlement <= completion {
                events.extend(
                    self.settlements
                        .pop()
                        .map(|Reverse((at, id))| Event::Settled { id, at }),
                );
            } else {
                events.extend(
                    self.completions
                        .pop()
                        .map(|Reverse((at, id))| Event::Completed { id, at }),
                );
            }
        }
    }
}

/// The link to the host: one transfer at a time, each in the first gap that is long enough.
#[derive(Debug, Default)]
struct Link {
    /// Reserved intervals, in order.
    booked: VecDeque<(Nanoseconds, Nanoseconds)>,
}

impl Link {
    /// Reserves a transfer that may begin at `at`, for a request that arrived at `now`. Returns its
    /// end.
    fn book(&mut self, now: Nanoseconds, at: Nanoseconds, duration: Nanoseconds) -> Nanoseconds {
        while self.booked.front().is_some_and(|(_, end)| *end <= now) {
            self.booked.pop_front();
        }
        let mut begin = at.max(now);
        let mut place = self.booked.len();
        for (index, (start, end)) in self.booked.iter().enumerate() {
            if begin + duration <= *start {
                place = index;
                break;
            }
            begin = begin.max(*end);
        }
        self.booked.insert(place, (begin, begin + duration));
        begin + duration
    }
}
