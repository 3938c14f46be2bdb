//! The physical models: when a request completes, and when a write reaches the media.
//!
//! A model knows no bytes, no threads and no clock: requests come in with the virtual time of their
//! arrival, and events come out with the virtual time they happen at. The same requests at the same
//! times give the same events.
//!
//! Invariants: each request completes exactly once, at or after its arrival. Each write settles
//! (reaches the media) exactly once, before, at or after its completion. When a flush completes,
//! every write that completed before it arrived has settled. Events come out in the order of their
//! times. Nothing here can fail; a request beyond the drive's end is refused before it gets here.

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

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Bytes from the drive.
    Read,
    /// Bytes to the drive.
    Write,
    /// Everything written so far to the media.
    Flush,
}

/// A request as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Grows with each request, by any step.
    pub id: u64,
    /// What is asked for.
    pub operation: Operation,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Length; 0 for a flush.
    pub bytes: u64,
}

impl Request {
    /// The byte behind the last one.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// What a model tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request is answered.
    Completed {
        /// The request.
        id: u64,
        /// When.
        at: Nanoseconds,
    },
    /// A write is on the media: a power cut cannot undo it any more.
    Settled {
        /// The write.
        id: u64,
        /// When.
        at: Nanoseconds,
    },
}

/// A drive's behaviour in time.
pub trait Model: Send {
    /// A request arrives. Times need not grow: an arrival before the last one, or before the time
    /// the model has advanced to, counts as arriving as early as the model still allows.
    fn submit(&mut self, at: Nanoseconds, request: Request);

    /// Lets time pass until `until`, and appends what happened.
    fn advance(&mut self, until: Nanoseconds, events: &mut Vec<Event>);

    /// The time of the next event if nothing else arrives; `None` if nothing will happen.
    fn next_event(&self) -> Option<Nanoseconds>;

    /// The power goes and comes back: queue and caches are gone, the media are what they were. Time
    /// goes on.
    fn power_cycle(&mut self, at: Nanoseconds);

    /// What the drive did apart from requests, for a reader to see why it took its time.
    fn internals(&self) -> Internals;
}

/// Work inside a drive that no request shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Internals {
    /// Time the media were at work, in nanoseconds.
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

/// The model of a profile for a drive of `bytes`.
pub fn build(profile: &Profile, bytes: u64, seed: u64) -> Box<dyn Model> {
    match &profile.kind {
        Kind::Disk(disk) => Box::new(disk::Disk::new(disk.clone(), bytes)),
        Kind::Flash(flash) => Box::new(flash::Flash::new(flash.clone(), bytes, seed)),
        Kind::Flat(flat) => Box::new(flat::Flat::new(flat.clone())),
    }
}

/// Events already decided, until their time comes.
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

    /// The next event somebody waits for. Settlements can wait while there is one: they come out
    /// before it.
    fn next(&self) -> Option<Nanoseconds> {
        let heap = if self.completions.is_empty() {
            &self.settlements
        } else {
            &self.completions
        };
        heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Moves what is due at `until` into `events`. Of the same time, settlements come first: a
    /// flush must find its writes settled.
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

/// The cable to the host: one transfer at a time, each in the first gap that is long enough.
#[derive(Debug, Default)]
struct Link {
    /// Booked times, in order.
    booked: VecDeque<(Nanoseconds, Nanoseconds)>,
}

impl Link {
    /// Books a transfer that may begin at `at`, for a request that arrived at `now`: when it ends.
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
