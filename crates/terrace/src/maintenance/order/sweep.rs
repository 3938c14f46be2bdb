//! The sweep: the log is read once, sequentially, and its short values are written into their
//! entries by one merge of the index
//! ([`crate::ordered_index::OrderedIndex::merge_with_copies`]).
//!
//! The merge meets entries in key order, and the log has values in commit order. So the values are
//! sorted first, with little RAM for any number of them: the threads that read the log
//! ([`collect`]) fill a list again and again, and write each, sorted, to a temporary file
//! ([`spills`]). The merge reads these *spills* side by side. It holds up other merges only from
//! then on.
//!
//! The next sweep skips full segments that a sweep has read: all short values that live there have
//! copies, and later values are elsewhere. The index's mark lists them for the next open. The
//! segment that is being written is read as far as it is, too: the values in it would cost another
//! merge of the whole index.
//!
//! Invariants: RAM is bounded. A segment is pinned while it is read. An entry gets only the value
//! of its own key and version. Before the merge the index has flushed the entries of these
//! segments.
//!
//! On failure, or when there is no room, or a thread waits because of the sweep: no more copies are
//! given, the merge ends without them, and the segments count as not swept. When the store stops,
//! or merges are far behind, the merge is aborted.

mod collect;
mod spills;
mod values;

use super::{INDEX_LOOK, Orderer, has_room};
use crate::{
    Result,
    engine::Engine,
    hash_index::HashIndex,
    log::segments::{Segment, SegmentState},
    metrics::{bucket::Bucket, count},
    ordered_index::{CopySource, Entry},
    scan_order::{Form, Sweep, SweepRam, copy_bytes, form},
    write::apply,
};
use bytes::Bytes;
use collect::collect;
use parking_lot::Mutex;
use spills::InOrder;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A sweep makes no more copies when merges of the index, which it holds up, are behind by more
/// runs than this: long before the applier waits for them.
const RUNS_BEHIND_MAX: usize = 2;

/// The merge is ended early, keeping its results, when they are behind by half as many as the
/// applier waits for: the rest of a large index may take minutes.
const RUNS_BEHIND_GIVEN_UP: usize = apply::RUNS_BEHIND_MAX / 2;
/// Entries between two looks at that.
const RUNS_LOOK: u32 = 4096;
/// Spills that are read on at a time while scans pay for it, by reads of the device that the sweep
/// makes needless: one at a time the merge would wait for the device half of its time. Otherwise
/// gets would wait for so many reads.
const SPILLS_TOGETHER: usize = 8;
/// Bytes of copies between two waits for the rate limit.
const EARNED_TOGETHER: u64 = 1 << 20;

/// Segments, with their generations.
type Places = Vec<(u32, u64)>;

/// What a sweep reads.
struct Bought {
    /// All short values in these have copies afterwards.
    full: Places,
    /// These are still being written, or applied.
    growing: Places,
    /// Bytes of the copies, about.
    copied_bytes: u64,
}

impl Orderer {
    /// Sweeps the log if the charges of scans are sufficient. `false` if there was nothing to do.
    pub(super) fn sweep(&self) -> bool {
        let engine = &self.engine;
        let Some(bought) = bought(engine) else {
            return false;
        };
        // Once: while it is lent, the cache is smaller.
        let ram = ram(engine);
        engine.cache.lend(ram.bytes() as u64);
        // Scans that read the log have hundreds of reads under way, and would leave it nothing.
        let shared = engine.read_queue.share();
        let is_whole = self.sweep_segments(&bought, ram).unwrap_or_else(|error| {
            tracing::warn!(%error, "a sweep of the log for scans failed");
            false
        });
        drop(shared);
        engine.cache.lend(0);
        engine.scan_order.swept(is_whole);
        true
    }

    /// Returns whether it came to its end.
    fn sweep_segments(&self, bought: &Bought, ram: SweepRam) -> Result<bool> {
        let engine = &self.engine;
        let bucket = Mutex::new(Bucket::per_second(Some(engine.options.tuning.order_bytes_per_second)));
        let segments = [&bought.full[..], &bought.growing].concat();
        let Some(spills) = collect(engine, (&segments, bought.copied_bytes), ram, &bucket)? else {
            return Ok(false);
        };
        if !self.flush_index() {
            return Ok(false);
        }
        let values = spills.in_order(ram.bytes(), &engine.read_queue, together(engine))?;
        Ok(self.merge_with_copies(&bought.full, values, bucket.into_inner()))
    }

    /// Flushes applied entries, since a merge does not see memtables, and waits until merges are
    /// not far behind. Returns whether it did.
    fn flush_index(&self) -> bool {
        let engine = &self.engine;
        let seq = engine.index.applied_seq();
        let is_flushed = || {
            engine
                .index
                .persisted_mark()
                .is_some_and(|mark| mark.applied_seq >= seq)
        };
        while !is_flushed() || is_behind(engine) {
            if must_end(engine) {
                return false;
            }
            if !is_flushed() {
                engine.want_mark(seq);
            }
            engine.pause(INDEX_LOOK);
        }
        true
    }

    /// Returns whether all entries got their copies.
    fn merge_with_copies(&self, full: &Places, values: InOrder, bucket: Bucket) -> bool {
        let engine = &self.engine;
        let told = Arc::new(Told::default());
        let source = LogInOrder {
            engine: Arc::clone(engine),
            values,
            bucket,
            given_bytes: 0,
            told: Arc::clone(&told),
            asked: 0,
        };
        match engine.index.merge_with_copies(engine.watermark_seq(), Box::new(source)) {
            Ok(true) => count(&engine.scan_order.counters.copied, told.copied.load(Ordering::Relaxed)),
            Ok(false) => return false,
            Err(error) => {
                if told.is_given_up.load(Ordering::Relaxed) {
                    tracing::debug!(%error, "a sweep was given up");
                } else {
                    tracing::warn!(%error, "a merge with copies for scans failed");
                }
                return false;
            }
        }
        if told.has_ended.load(Ordering::Relaxed) {
            return false;
        }
        let pinned = full.iter().filter_map(|(number, generation)| {
            let segment = engine.log.segments.pin(*number)?;
            Some((segment, *generation))
        });
        pinned.for_each(|(segment, generation)| segment.swept(generation));
        true
    }
}

/// Results of a merge.
#[derive(Default)]
struct Told {
    copied: AtomicU64,
    /// The merge did not get all copies.
    has_ended: AtomicBool,
    /// It was aborted.
    is_given_up: AtomicBool,
}

/// Short values of the log in the order of their keys.
struct LogInOrder {
    engine: Arc<Engine>,
    values: InOrder,
    /// Bytes that may be written.
    bucket: Bucket,
    /// Bytes of copies since the last wait for the rate limit.
    given_bytes: u64,
    told: Arc<Told>,
    /// Entries visited.
    asked: u32,
}

impl CopySource for LogInOrder {
    fn copy_of(&mut self, key: &[u8], entry: &Entry) -> Option<Bytes> {
        if form(entry.length) != Some(Form::Copied) || self.told.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        let queue = &self.engine.read_queue;
        let of_entry = (key, entry.version.0, entry.checksum);
        let value = self.values.value(of_entry, queue, together(&self.engine));
        let copy = value.unwrap_or_else(|error| {
            tracing::warn!(%error, "a sweep of the log for scans ends early");
            self.told.has_ended.store(true, Ordering::Relaxed);
            None
        })?;
        self.told.copied.fetch_add(1, Ordering::Relaxed);
        self.given_bytes += copy_bytes(key.len(), entry.length);
        if self.given_bytes >= EARNED_TOGETHER && !self.earn() {
            self.told.has_ended.store(true, Ordering::Relaxed);
        }
        Some(copy)
    }

    fn is_over(&mut self) -> bool {
        self.asked = self.asked.wrapping_add(1);
        let is_late = || self.engine.index.runs_behind() > RUNS_BEHIND_GIVEN_UP;
        let is_over = self.engine.log.is_closing() || (self.asked.is_multiple_of(RUNS_LOOK) && is_late());
        if is_over {
            self.told.is_given_up.store(true, Ordering::Relaxed);
        }
        is_over
    }
}

impl LogInOrder {
    /// Waits until the rate limit has earned the written bytes, with all merges of the index held
    /// up. Returns whether the sweep continues.
    fn earn(&mut self) -> bool {
        let engine = &self.engine;
        let given_bytes = engine.scan_order.sweep.take(std::mem::take(&mut self.given_bytes));
        self.bucket.wait(given_bytes, || must_end(engine) || is_behind(engine))
    }
}

/// Spills that are read on at a time.
fn together(engine: &Engine) -> usize {
    if engine.scan_order.sweep.is_paying() {
        SPILLS_TOGETHER
    } else {
        1
    }
}

/// Whether a sweep has to end: there is no room, or the store stops.
fn must_end(engine: &Engine) -> bool {
    let log = &engine.log;
    log.is_closing()
        || log.writer.has_failed()
        || !log.has_room_for_moves()
        || log.index_full.reason().is_some()
        || !log.reserve.is_whole()
        || !engine.index.is_usable()
}

/// Whether a thread will soon wait for merges of the index.
fn is_behind(engine: &Engine) -> bool {
    engine.index.runs_behind() > RUNS_BEHIND_MAX
}

/// Whether a segment is full, all its records are in the index, and no sweep has visited it. A
/// merge that begins now would not see records applied later.
fn is_due(segment: &Segment, applied_seq: u64) -> bool {
    segment.state() == SegmentState::Sealed && segment.last_seq() <= applied_seq && !segment.is_swept()
}

/// Whether a segment will be due soon. What it has by now, the hash index and the index know.
fn is_growing(segment: &Segment, applied_seq: u64) -> bool {
    match segment.state() {
        SegmentState::Open => true,
        SegmentState::Sealed => segment.last_seq() > applied_seq,
        _ => false,
    }
}

/// The segments to be swept, if there are full ones and the charges of scans are sufficient.
fn bought(engine: &Engine) -> Option<Bought> {
    // Called at each turn: if nothing was scanned since, the segments need not be visited.
    if !engine.scan_order.sweep.has_grown() {
        return None;
    }
    // What lives where is asked of the hash index, which has to be filled.
    if must_end(engine) || is_behind(engine) || engine.refilling.load(Ordering::Acquire) {
        engine.scan_order.sweep.is_impossible();
        return None;
    }
    let applied_seq = engine.index.applied_seq();
    let segments = || engine.log.segments.iter();
    let full: Vec<_> = segments().filter(|segment| is_due(segment, applied_seq)).collect();
    // By themselves they are not worth a merge of the index.
    let is_worth = !full.is_empty();
    let growing = segments().filter(|segment| is_worth && is_growing(segment, applied_seq));
    let growing: Vec<_> = growing.collect();
    let (sweep, mean_bytes) = work(engine, &[&full[..], &growing].concat());
    let places = |segments: &[&Segment]| {
        let place = |segment: &&Segment| (segment.number, segment.generation());
        segments.iter().map(place).collect()
    };
    if !has_room(engine, sweep.written_bytes(mean_bytes)) {
        engine.scan_order.sweep.is_impossible();
        return None;
    }
    let is_bought = engine.scan_order.sweep.buy(sweep, mean_bytes, ram(engine));
    is_bought.then(|| Bought {
        full: places(&full),
        growing: places(&growing),
        copied_bytes: sweep.copied_bytes(mean_bytes),
    })
}

/// What reading these segments takes, and the mean length of the values in the log.
fn work(engine: &Engine, due: &[&Segment]) -> (Sweep, u64) {
    let flash = engine.accounting.stats(crate::HomeKind::Flash);
    let mean_bytes = flash.bytes.checked_div(flash.objects).unwrap_or(0);
    // Segments count a value with the length in its slot. One that was written before the open
    // counts dead values as well.
    let live_bytes: u64 = due.iter().map(|segment| segment.live_bytes()).sum();
    let live_bytes = live_bytes / HashIndex::read_bytes_max_of_value(mean_bytes) * mean_bytes;
    let sweep = Sweep {
        // The end of an open segment is not known.
        bytes: due
            .iter()
            .map(|segment| segment.end_bytes().max(segment.live_bytes()))
            .sum(),
        live_bytes: live_bytes.min(flash.bytes),
        index_bytes: engine.index.disk_bytes(),
    };
    (sweep, mean_bytes)
}

/// RAM of a sweep, by the present size of the value cache and not the size at the open.
fn ram(engine: &Engine) -> SweepRam {
    SweepRam::of_cache(engine.cache.capacity_bytes() + engine.log.frames.share_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        Options, Store,
        tests::{bytes, open, small_options},
    };

    /// The last frames of a segment that was just filled may wait to be applied. Their entries came
    /// behind the merge, without copies, and the segment counted as swept.
    #[test]
    fn a_segment_is_swept_once_all_of_it_is_applied() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for number in 0..600_u64 {
            store.put(format!("{number}"), bytes(number, 1_000)).unwrap();
        }
        store.flush().unwrap();
        let engine = store.engine();
        let log = &engine.log;
        let segment = log.segments.in_state(SegmentState::Sealed).next().unwrap();
        let (last_seq, applied_seq) = (segment.last_seq(), engine.index.applied_seq());
        assert!(last_seq < applied_seq);
        assert!(is_due(segment, last_seq) && !is_due(segment, last_seq - 1));
        segment.swept(segment.generation());
        assert!(!is_due(segment, applied_seq));
    }

    /// After an open dead values counted as copies to be made, so a log of overwritten values was
    /// swept after three times the reads.
    #[test]
    fn values_that_died_before_the_open_cost_no_copies() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..10_u64 {
            let store = open(dir.path());
            for number in 0..200_u64 {
                store
                    .put(format!("{number}"), bytes(round * 200 + number, 1_000))
                    .unwrap();
            }
            store.close().unwrap();
        }
        let store = open(dir.path());
        let segments = &store.engine().log.segments;
        let sealed: Vec<_> = segments.in_state(SegmentState::Sealed).collect();
        assert!(!sealed.is_empty());
        let (sweep, mean_bytes) = work(store.engine(), &sealed);
        assert_eq!(mean_bytes, 1_000);
        assert!((1..=200_000).contains(&sweep.live_bytes), "{sweep:?}");
    }

    /// After values were written and not yet read, frames have all the RAM for values. They kept it
    /// while a sweep had a part of it, so that the process took 64 MiB more than its limit.
    #[test]
    fn the_ram_that_a_sweep_borrows_is_given_back_by_frames() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options {
            cache_bytes: 8 << 20,
            ..Options::new(dir.path())
        })
        .unwrap();
        for number in 0..8_000_u64 {
            store.put(format!("{number}"), bytes(number, 1_000)).unwrap();
        }
        store.flush().unwrap();
        let engine = store.engine();
        let recent_bytes = || engine.log.frames.retained_bytes();
        assert!(recent_bytes() > 6 << 20, "{}", recent_bytes());
        engine.cache.lend(5 << 20);
        assert!(recent_bytes() + engine.cache.bytes() <= 3 << 20, "{}", recent_bytes());
    }

    /// In a store whose cache was made smaller while it was open, sweeps used half of the former
    /// size.
    #[test]
    fn a_sweep_has_a_part_of_the_cache_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            cache_bytes: 64 << 20,
            ..small_options(dir.path())
        };
        let store = Store::open(options).unwrap();
        assert_eq!(ram(store.engine()).bytes(), 32 << 20);
        store.set_cache_bytes(4 << 20);
        assert_eq!(ram(store.engine()).bytes(), 2 << 20);
    }
}
