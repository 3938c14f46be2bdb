//! Counters and latencies; `figures` makes a snapshot of them.

use crate::metrics::striped::Striped;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Latency buckets: powers of two from 1 µs to about 17 s; the last takes the rest.
const BUCKETS: usize = 25;
const FIRST_BUCKET_NS: u64 = 1_000;

/// One operation's count and latencies since open.
#[derive(Debug, Clone)]
pub struct OperationStats {
    /// `get`, `put`, `delete`, `write`, `head`, `scan`, …; `reader` and `writer` are streams, each
    /// counted when it ends with the time spent in its calls.
    pub name: &'static str,
    /// Calls that succeeded.
    pub count: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Sum of the latencies in nanoseconds.
    pub total_ns: u64,
    /// Count of calls per latency bucket: upper bound in nanoseconds, calls at or below it and
    /// above the bound before.
    pub buckets: Vec<(u64, u64)>,
}

/// Count and latencies of one operation.
#[derive(Debug, Default)]
pub struct Operation(Striped<Calls>);

#[derive(Debug, Default)]
struct Calls {
    errors: AtomicU64,
    total_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Operation {
    /// Runs and counts one call.
    pub fn measure<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.measure_unless(|_| false, call)
    }

    /// Runs one call, and counts it unless its answer is inconclusive.
    pub fn measure_unless<T, E>(
        &self,
        says_nothing: impl FnOnce(&T) -> bool,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let start = Instant::now();
        let outcome = call();
        if !outcome.as_ref().is_ok_and(says_nothing) {
            self.record(elapsed_ns(start), outcome.is_err());
        }
        outcome
    }

    /// Runs and counts one call of several parts; it failed if any of them did.
    pub fn measure_all<T, E>(&self, call: impl FnOnce() -> Vec<Result<T, E>>) -> Vec<Result<T, E>> {
        let start = Instant::now();
        let outcomes = call();
        self.record(elapsed_ns(start), outcomes.iter().any(Result::is_err));
        outcomes
    }

    /// Counts one call that began then.
    pub fn record_since(&self, began: Instant, failed: bool) {
        self.record(elapsed_ns(began), failed);
    }

    fn record(&self, elapsed_ns: u64, failed: bool) {
        let calls = self.0.own();
        if failed {
            calls.errors.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let bucket = (elapsed_ns / FIRST_BUCKET_NS)
            .checked_ilog2()
            .map_or(0, |log| log as usize + 1)
            .min(BUCKETS - 1);
        calls.total_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
        calls.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    fn stats(&self, name: &'static str) -> OperationStats {
        let buckets: Vec<_> = (0..BUCKETS)
            .map(|at| {
                let bound = if at == BUCKETS - 1 {
                    u64::MAX
                } else {
                    FIRST_BUCKET_NS << at
                };
                (bound, self.0.sum(|calls| &calls.buckets[at]))
            })
            .collect();
        OperationStats {
            name,
            count: buckets.iter().map(|(_, count)| count).sum(),
            errors: self.0.sum(|calls| &calls.errors),
            total_ns: self.0.sum(|calls| &calls.total_ns),
            buckets,
        }
    }
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The calls of one stream. They count as one operation when the stream ends, with the time spent
/// in them: what the caller does in between is not the store's latency.
#[derive(Debug)]
pub struct StreamClock {
    operation: Arc<Operation>,
    spent_ns: AtomicU64,
    failed: AtomicBool,
    ended: AtomicBool,
}

impl StreamClock {
    /// For a stream to read: it ends when it is dropped, wherever it is then.
    pub fn reading(operation: &Arc<Operation>) -> Self {
        Self::new(operation, true)
    }

    /// For a stream to write: it ends with [`StreamClock::last`], or when a call fails. One that
    /// the caller gives up is no operation.
    pub fn writing(operation: &Arc<Operation>) -> Self {
        Self::new(operation, false)
    }

    fn new(operation: &Arc<Operation>, ended: bool) -> Self {
        Self {
            operation: Arc::clone(operation),
            spent_ns: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            ended: AtomicBool::new(ended),
        }
    }

    /// Runs one call.
    pub fn time<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let outcome = call();
        self.spent_ns.fetch_add(elapsed_ns(start), Ordering::Relaxed);
        if outcome.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// There is no stream, so it is not counted.
    pub fn cancel(mut self) {
        *self.ended.get_mut() = false;
    }

    /// Runs the last call.
    pub fn last<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.ended.store(true, Ordering::Relaxed);
        self.time(call)
    }
}

impl Drop for StreamClock {
    fn drop(&mut self) {
        let failed = *self.failed.get_mut();
        if failed || *self.ended.get_mut() {
            self.operation.record(*self.spent_ns.get_mut(), failed);
        }
    }
}

/// The source of a read's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The overlay.
    Overlay,
    /// The RAM cache, or frames written lately.
    Cache,
    /// Prefetched bytes.
    Ahead,
    /// The ordered index itself.
    Inline,
    /// The flash log.
    Log,
    /// A copy on flash, or an image that another reader was filling.
    Copy,
    /// The large space.
    Block,
}

impl AnsweredBy {
    const COUNT: usize = Self::Block as usize + 1;
}

/// Reads answered.
#[derive(Debug, Default)]
pub struct Answers {
    /// By [`AnsweredBy`].
    hits: [AtomicU64; AnsweredBy::COUNT],
    pub(crate) misses: AtomicU64,
    /// Bytes of values by the tier that answered.
    pub(crate) ram_bytes: AtomicU64,
    pub(crate) flash_bytes: AtomicU64,
    pub(crate) large_bytes: AtomicU64,
}

/// All counters of a store since it was opened.
#[derive(Debug, Default)]
pub struct Metrics {
    pub(crate) answers: Striped<Answers>,
    /// Age of the segment that values last left for the large tier.
    pub log_eviction_age: Mutex<Option<Duration>>,
    /// Reads of the flash log.
    pub flash_reads: AtomicU64,
    /// Of those, reads that found another key.
    pub false_flash_reads: AtomicU64,
    /// Bytes given by callers.
    pub user_bytes: AtomicU64,
    /// Record bytes written by reinsertion.
    pub reinserted_bytes: AtomicU64,
    /// Records of the segment that log GC drains, which it has in RAM.
    pub draining_bytes: AtomicU64,
    /// Segments freed by recycling.
    pub segments_reclaimed: AtomicU64,
    /// Bytes of dead blocks that only a snapshot keeps.
    pub held_block_bytes: AtomicU64,
    /// Bytes of dead blocks that only readers keep, or a doubt.
    pub pinned_block_bytes: AtomicU64,
    /// Calls.
    pub get: Operation,
    /// Calls.
    pub head: Operation,
    /// Calls.
    pub get_range: Operation,
    /// Calls.
    pub put: Operation,
    /// Calls.
    pub delete: Operation,
    /// Calls.
    pub delete_range: Operation,
    /// Calls.
    pub write: Operation,
    /// Calls.
    pub scan: Operation,
    /// Calls.
    pub multi_get: Operation,
    /// Streams read.
    pub reader: Arc<Operation>,
    /// Streams written.
    pub writer: Arc<Operation>,
}

impl Metrics {
    /// Counts a read that returned a value of this many bytes.
    pub fn answered(&self, by: AnsweredBy, bytes: u64) {
        self.answered_many(by, 1, bytes);
    }

    /// Counts this many reads, which returned this many bytes in total.
    pub fn answered_many(&self, by: AnsweredBy, count: u64, bytes: u64) {
        let answers = self.answers.own();
        let tier_bytes = match by {
            AnsweredBy::Overlay | AnsweredBy::Cache | AnsweredBy::Ahead => &answers.ram_bytes,
            AnsweredBy::Inline | AnsweredBy::Log | AnsweredBy::Copy => &answers.flash_bytes,
            AnsweredBy::Block => &answers.large_bytes,
        };
        answers.hits[by as usize].fetch_add(count, Ordering::Relaxed);
        tier_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reads that were answered so.
    pub fn hits(&self, by: AnsweredBy) -> u64 {
        self.answers.sum(|answers| &answers.hits[by as usize])
    }

    /// Counts a read that found no object.
    pub fn missed(&self) {
        self.answers.own().misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Count and latencies of each kind of call.
    pub fn operations(&self) -> Vec<OperationStats> {
        vec![
            self.get.stats("get"),
            self.head.stats("head"),
            self.get_range.stats("get_range"),
            self.put.stats("put"),
            self.delete.stats("delete"),
            self.delete_range.stats("delete_range"),
            self.write.stats("write"),
            self.scan.stats("scan"),
            self.multi_get.stats("multi_get"),
            self.reader.stats("reader"),
            self.writer.stats("writer"),
        ]
    }
}
