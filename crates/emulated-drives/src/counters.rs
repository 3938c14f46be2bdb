//! What a drive was asked for and did, over its whole life.

use super::model::{Internals, Operation};
use serde::{Deserialize, Serialize};

/// Requests of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that began where an earlier one of the same direction ended.
    pub sequential: u64,
    /// Requests that did not.
    pub random: u64,
    /// Time from arrival to answer, summed, in nanoseconds.
    pub waited_nanoseconds: u64,
}

/// Counters of a drive. They only grow; take two and subtract for what lies between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Reads.
    pub reads: Traffic,
    /// Writes.
    pub writes: Traffic,
    /// Flushes: the drive's side of fsync.
    pub flushes: u64,
    /// Requests that failed, by a fault or without power.
    pub failed: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Time with at least one request unanswered, in nanoseconds: what `iostat` calls utilisation.
    pub busy_nanoseconds: u64,
    /// Time by which answers went out after they were due, summed: what a busy host costs the
    /// emulation.
    pub late_nanoseconds: u64,
    /// What the model did inside.
    pub internals: Internals,
    /// Writes in memory now.
    pub pending_writes: u64,
    /// Their bytes.
    pub pending_bytes: u64,
}

impl Traffic {
    /// Requests and bytes since an earlier state.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            sequential: self.sequential.saturating_sub(earlier.sequential),
            random: self.random.saturating_sub(earlier.random),
            waited_nanoseconds: self.waited_nanoseconds.saturating_sub(earlier.waited_nanoseconds),
        }
    }
}

impl Counters {
    /// What was counted since an earlier state; what is in memory stays as it is now.
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (&self.internals, &earlier.internals);
        Self {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            failed: self.failed.saturating_sub(earlier.failed),
            cuts: self.cuts.saturating_sub(earlier.cuts),
            busy_nanoseconds: self.busy_nanoseconds.saturating_sub(earlier.busy_nanoseconds),
            late_nanoseconds: self.late_nanoseconds.saturating_sub(earlier.late_nanoseconds),
            internals: Internals {
                busy_nanoseconds: now.busy_nanoseconds.saturating_sub(then.busy_nanoseconds),
                positionings: now.positionings.saturating_sub(then.positionings),
                cache_hits: now.cache_hits.saturating_sub(then.cache_hits),
                pages_moved: now.pages_moved.saturating_sub(then.pages_moved),
                blocks_erased: now.blocks_erased.saturating_sub(then.blocks_erased),
            },
            pending_writes: self.pending_writes,
            pending_bytes: self.pending_bytes,
        }
    }
}

/// Tells sequential requests from random ones: a few streams at once, as several files are read
/// side by side.
#[derive(Debug, Default)]
pub struct Streams {
    ends: [u64; 8],
    next: usize,
}

impl Streams {
    /// Whether a request continues one of the last streams; it does from now on.
    pub fn continues(&mut self, offset: u64, bytes: u64) -> bool {
        let found = self.ends.iter().position(|end| *end == offset && offset != 0);
        let slot = found.unwrap_or_else(|| {
            self.next = (self.next + 1) % self.ends.len();
            self.next
        });
        self.ends[slot] = offset + bytes;
        found.is_some()
    }
}

/// Counters while they are counted.
#[derive(Debug, Default)]
pub struct Counting {
    /// Of what is counted here; the rest is filled in by the engine.
    pub counters: Counters,
    reads: Streams,
    writes: Streams,
}

impl Counting {
    /// Goes on from earlier counters.
    pub fn new(counters: Counters) -> Self {
        Self {
            counters,
            ..Self::default()
        }
    }

    /// Counts an accepted request.
    pub fn count(&mut self, operation: Operation, offset: u64, bytes: u64) {
        let (traffic, streams) = match operation {
            Operation::Flush => {
                self.counters.flushes += 1;
                return;
            }
            Operation::Read => (&mut self.counters.reads, &mut self.reads),
            Operation::Write => (&mut self.counters.writes, &mut self.writes),
        };
        traffic.requests += 1;
        traffic.bytes += bytes;
        if streams.continues(offset, bytes) {
            traffic.sequential += 1;
        } else {
            traffic.random += 1;
        }
    }
}
