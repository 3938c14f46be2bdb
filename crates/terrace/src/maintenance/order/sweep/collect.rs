//! Reads the log once, and writes its short values to the sweep's file, sorted as far as RAM
//! allows.
//!
//! Most records of a log of overwritten values are dead, and to look each of them up in the hash
//! index is a cache miss each. So the hash index is read first, from begin to end, and what it has
//! is marked in a bitmap ([`Marks`]) of as many segments as fit into a part of the sweep's RAM.

mod marks;

use super::{Places, spills::Spills, values::Values};
use crate::{
    Result,
    engine::Engine,
    log::{
        format::{FRAME_HEADER_BYTES, Record, records},
        scan::FrameWalk,
    },
    metrics::{bucket::Bucket, count},
    scan_order::{Form, SweepRam, copy_bytes, form},
};
use marks::Marks;
use parking_lot::Mutex;
use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};

/// Reads these segments, which have about so many bytes of short values, with this much RAM. `None`
/// if the sweep has to end. Bytes that are written are taken from the bucket.
///
/// # Errors
/// Errors of the device.
pub(super) fn collect(
    engine: &Engine,
    (segments, copied_bytes): (&Places, u64),
    ram: SweepRam,
    bucket: &Mutex<Bucket>,
) -> Result<Option<Spills>> {
    let (segments_together, marks_bytes) = Marks::within(ram.marks_bytes(), engine, segments.len());
    let list_bytes = ram.list_bytes(copied_bytes, marks_bytes);
    let collected = Collected {
        engine,
        filling: Mutex::new(Values::of(list_bytes)),
        writing: Mutex::new(Values::of(list_bytes)),
        spills: Spills::create(&*engine.flash_disk, engine.options.tuning.direct_io)?,
        bucket,
    };
    for together in segments.chunks(segments_together) {
        let collecting = Collecting {
            engine,
            segments: together,
            next: AtomicUsize::new(0),
            living: Marks::of(engine, together),
            collected: &collected,
        };
        if !collecting.run(ram.threads())? {
            return Ok(None);
        }
    }
    collected.write(&mut collected.filling.lock())?;
    Ok(Some(collected.spills))
}

/// A thread that could not be started, or has panicked, ends the sweep.
fn outcome(thread: io::Result<ScopedJoinHandle<'_, Result<bool>>>) -> Result<bool> {
    thread.map_or(Ok(false), |thread| thread.join().unwrap_or(Ok(false)))
}

/// What the threads share.
struct Collecting<'a> {
    engine: &'a Engine,
    segments: &'a [(u32, u64)],
    /// The next segment.
    next: AtomicUsize,
    living: Marks,
    collected: &'a Collected<'a>,
}

impl Collecting<'_> {
    /// Reads the segments. `false` if the sweep has to end.
    fn run(&self, threads: usize) -> Result<bool> {
        std::thread::scope(|scope| {
            let begin = |_| {
                let thread = std::thread::Builder::new().name("terrace-sweep".into());
                thread.spawn_scoped(scope, || self.walk())
            };
            let threads: Vec<_> = (0..threads).map(begin).collect();
            let outcomes = threads.into_iter().map(outcome);
            outcomes.fold(Ok(true), |all, one| Ok(all? & one?))
        })
    }

    /// Reads segment after segment. `false` if the sweep has to end.
    fn walk(&self) -> Result<bool> {
        while let Some(place) = self.segments.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.read(*place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a segment's values. `false` if the sweep has to end.
    fn read(&self, (number, generation): (u32, u64)) -> Result<bool> {
        let engine = self.engine;
        let segments = &engine.log.segments;
        // A segment that was recycled meanwhile is skipped.
        let Some(segment) = segments
            .pin(number)
            .filter(|segment| segment.generation() == generation)
        else {
            return Ok(true);
        };
        let living = self.living.of_segment(number);
        let read = |part: &mut [u8], at| {
            count(&engine.scan_order.counters.sweep_bytes, part.len() as u64);
            engine.paid_flash_step(|| segment.read(part, at))
        };
        let mut walk = FrameWalk::new(&segment, segments.segment_bytes(), read);
        while let Some(frame) = walk.next_frame()? {
            let payload = &frame.bytes[FRAME_HEADER_BYTES..][..frame.header.payload_bytes as usize];
            let at = frame.offset + FRAME_HEADER_BYTES;
            let presence = engine.presence();
            let is_dead = |record: &Record<'_>| {
                let why = presence.dead(record.key, record.version(), record.attributes);
                why.is_some()
            };
            let marked = records(payload).filter(|(offset, _)| living.has(at + offset));
            let found = marked.filter(|(_, record)| is_short(record) && !is_dead(record));
            let found: Vec<_> = found.map(|(_, record)| record).collect();
            if !self.collected.add(&found)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Values that the threads have found: one list is filled while the other is sorted and written.
struct Collected<'a> {
    engine: &'a Engine,
    filling: Mutex<Values>,
    writing: Mutex<Values>,
    spills: Spills,
    bucket: &'a Mutex<Bucket>,
}

impl Collected<'_> {
    /// Adds the values of these records, and waits until the rate limit has earned their bytes. It
    /// waits for each few, since after a wait for all of a list all threads would read at once.
    /// `false` if the sweep has to end.
    fn add(&self, records: &[Record<'_>]) -> Result<bool> {
        let mut filling = self.filling.lock();
        for record in records {
            filling.add(record);
            if filling.is_full() {
                let mut writing = self.writing.lock();
                std::mem::swap(&mut *filling, &mut *writing);
                drop(filling);
                self.write(&mut writing)?;
                drop(writing);
                filling = self.filling.lock();
            }
        }
        drop(filling);
        let lengths = records
            .iter()
            .map(|record| (record.key.len(), record.body.value().len()));
        let bytes = lengths.map(|(key, value)| copy_bytes(key, value as u64)).sum();
        Ok(self.bucket.lock().wait(bytes, || super::must_end(self.engine)))
    }

    /// Writes values to the file.
    fn write(&self, values: &mut Values) -> Result<()> {
        let engine = self.engine;
        let written = self.spills.spill(values, |write| engine.paid_flash_step(write))?;
        count(&engine.scan_order.counters.spilled_bytes, written);
        Ok(())
    }
}

/// Whether a record is the home of a short value.
fn is_short(record: &Record<'_>) -> bool {
    record.body.is_home() && form(record.body.value().len() as u64) == Some(Form::Copied)
}
