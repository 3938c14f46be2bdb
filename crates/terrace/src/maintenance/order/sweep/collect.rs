//! Reads the log once, and writes its short values to the sweep's file, sorted as far as RAM
//! allows.

use super::{Places, spills::Spills, values::Values};
use crate::{
    Result,
    engine::Engine,
    key_hash,
    log::{
        address::Address,
        format::{FRAME_HEADER_BYTES, Record, records},
        scan::FrameWalk,
    },
    metrics::{bucket::Bucket, count},
    scan_order::{Form, SWEEP_THREADS, form},
    write::apply::TOUCHED_TOGETHER,
};
use parking_lot::Mutex;
use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};

/// Reads these segments with this much RAM. `None` if the sweep has to end. Bytes that are written
/// are taken from the bucket.
///
/// # Errors
/// Errors of the device.
pub(super) fn collect(
    engine: &Engine,
    segments: &Places,
    ram_bytes: usize,
    bucket: &Mutex<Bucket>,
) -> Result<Option<Spills>> {
    let collecting = Collecting {
        engine,
        segments,
        next: AtomicUsize::new(0),
        spills: Spills::create(&*engine.flash_disk, engine.options.tuning.direct_io)?,
        bucket,
        ram_bytes: ram_bytes / SWEEP_THREADS,
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let begin = |_| {
            let thread = std::thread::Builder::new().name("terrace-sweep".into());
            thread.spawn_scoped(scope, || collecting.walk())
        };
        let threads: Vec<_> = (0..SWEEP_THREADS).map(begin).collect();
        threads.into_iter().map(outcome).collect()
    });
    let mut is_whole = true;
    for outcome in outcomes {
        is_whole &= outcome?;
    }
    Ok(is_whole.then_some(collecting.spills))
}

/// A thread that could not be started, or has panicked, ends the sweep.
fn outcome(thread: io::Result<ScopedJoinHandle<'_, Result<bool>>>) -> Result<bool> {
    thread.map_or(Ok(false), |thread| thread.join().unwrap_or(Ok(false)))
}

/// What the threads share.
struct Collecting<'a> {
    engine: &'a Engine,
    segments: &'a Places,
    /// The next segment.
    next: AtomicUsize,
    spills: Spills,
    bucket: &'a Mutex<Bucket>,
    /// Of each thread.
    ram_bytes: usize,
}

impl Collecting<'_> {
    /// Reads segment after segment. `false` if the sweep has to end.
    fn walk(&self) -> Result<bool> {
        let mut values = Values::of(self.ram_bytes);
        while let Some(place) = self.segments.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.read(*place, &mut values)? {
                return Ok(false);
            }
        }
        self.spill(&mut values)
    }

    /// Reads a segment's values. `false` if the sweep has to end.
    fn read(&self, (number, generation): (u32, u64), values: &mut Values) -> Result<bool> {
        let engine = self.engine;
        let segments = &engine.log.segments;
        // A segment that was recycled meanwhile is skipped.
        let Some(segment) = segments
            .pin(number)
            .filter(|segment| segment.generation() == generation)
        else {
            return Ok(true);
        };
        let base = u64::from(number) * segments.segment_bytes();
        let step = |bytes, read: &mut dyn FnMut() -> Result<()>| {
            count(&engine.scan_order.counters.sweep_bytes, bytes as u64);
            engine.paid_flash_step(read)
        };
        let mut walk = FrameWalk::new(&segment, segments.segment_bytes(), step);
        while let Some(frame) = walk.next_frame()? {
            let payload = &frame.bytes[FRAME_HEADER_BYTES..][..frame.header.payload_bytes as usize];
            let at = base + (frame.offset + FRAME_HEADER_BYTES) as u64;
            let short = records(payload).filter(|(_, record)| is_short(record));
            let found: Vec<_> = short
                .filter_map(|(offset, record)| Some((key_hash(record.key), Address::new(at + offset as u64)?, record)))
                .collect();
            for together in found.chunks(TOUCHED_TOGETHER) {
                engine.hash_index.touch(together.iter().map(|(hash, ..)| *hash));
                for (hash, address, record) in together {
                    if lives(engine, record, *hash, *address) {
                        values.add(record);
                    }
                }
                if values.is_full() && !self.spill(values)? {
                    return Ok(false);
                }
            }
            if super::must_end(engine) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes values to the file, and waits until the rate limit has earned that. `false` if the
    /// sweep has to end.
    fn spill(&self, values: &mut Values) -> Result<bool> {
        let engine = self.engine;
        let written = self.spills.spill(values, |write| engine.paid_flash_step(write))?;
        count(&engine.scan_order.counters.spilled_bytes, written);
        Ok(self.bucket.lock().wait(written, || super::must_end(engine)))
    }
}

/// Whether a record is the home of a short value.
fn is_short(record: &Record<'_>) -> bool {
    record.body.is_home() && form(record.body.value().len() as u64) == Some(Form::Copied)
}

/// Whether the hash index says that a value lives there. Of the few that it has lost scans buy
/// copies by themselves.
fn lives(engine: &Engine, record: &Record<'_>, hash: u64, address: Address) -> bool {
    let is_present = engine.hash_index.recency(hash, address).is_some();
    let is_dead = || {
        let presence = engine.presence();
        presence.dead(record.key, record.version(), record.attributes).is_some()
    };
    is_present && !is_dead()
}
