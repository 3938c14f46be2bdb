//! Counters of a drive over its whole life.

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
    /// Sum of the times from arrival to answer, in nanoseconds.
    pub waited_nanoseconds: u64,
}

/// Counters of a drive. They only grow; subtract two states for an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Reads.
    pub reads: Traffic,
    /// Writes.
    pub writes: Traffic,
    /// Flushes, which fsync causes.
    pub flushes: u64,
    /// Requests that failed because of a fault or without power.
    pub failed: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Time with at least one request unanswered, in nanoseconds: what `iostat` calls utilisation.
    pub busy_nanoseconds: u64,
    /// Sum of the times by which answers were late, in nanoseconds: the error of the emulation on a
    /// busy host.
    pub late_nanoseconds: u64,
    /// Work inside the model.
    pub internals: Internals,
    /// Writes in memory now.
    pub pending_writes: u64,
    /// Their bytes.
    pub pending_bytes: u64,
}

impl Traffic {
    /// Requests and bytes since an earlier state.
    pub fn since(&self, earlier: &Self) -> Self {
        let since = u64::saturating_sub;
        Self {
            requests: since(self.requests, earlier.requests),
            bytes: since(self.bytes, earlier.bytes),
            sequential: since(self.sequential, earlier.sequential),
            random: since(self.random, earlier.random),
            waited_nanoseconds: since(self.waited_nanoseconds, earlier.waited_nanoseconds),
        }
    }
}

impl Counters {
    /// Counts since an earlier state; pending writes are those of now.
    pub fn since(&self, earlier: &Self) -> Self {
        let since = u64::saturating_sub;
        Self {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            flushes: since(self.flushes, earlier.flushes),
            failed: since(self.failed, earlier.failed),
            cuts: since(self.cuts, earlier.cuts),
            busy_nanoseconds: since(self.busy_nanoseconds, earlier.busy_nanoseconds),
            late_nanoseconds: since(self.late_nanoseconds, earlier.late_nanoseconds),
            internals: self.internals.with(&earlier.internals, since),
            ..*self
        }
    }
}

/// Distinguishes sequential requests from random ones, for several concurrent streams.
#[derive(Debug, Default)]
pub struct Streams {
    ends: [u64; 8],
    next: usize,
}

impl Streams {
    /// Whether a request continues a recent stream. The stream then ends at this request.
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

/// Accumulates counters.
#[derive(Debug, Default)]
pub struct Counting {
    /// The counters kept here; the engine fills in the others.
    pub counters: Counters,
    reads: Streams,
    writes: Streams,
}

impl Counting {
    /// Continues from earlier counters.
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
