//! Reads the log once, and writes its short values to the sweep's file, sorted as far as RAM
//! allows.
//!
//! Most records of a log of overwritten values are dead, and to look one up in the hash index is a
//! cache miss. So the hash index is read first, from begin to end, and what it has is marked in a
//! bitmap ([`Marks`]) of as many segments as fit into a part of the sweep's RAM. Then pieces of the
//! log in which anything is marked are read, and in them only the marked records: each has a
//! checksum of its own, so frames do not matter.

mod marks;

use super::{Places, spills::Spills, values::Values};
use crate::{
    Result,
    engine::Engine,
    io::AlignedBuffer,
    log::format::Record,
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
    let segment_bytes = engine.log.segments.segment_bytes();
    let (segments_together, marks_bytes) = Marks::fitting(ram.marks_bytes(), segment_bytes, segments.len());
    let list_bytes = ram.list_bytes(copied_bytes, marks_bytes);
    let collected = Collected {
        engine,
        filling: Mutex::new(Values::of(list_bytes)),
        writing: (0..ram.lists_written())
            .map(|_| Mutex::new(Values::of(list_bytes)))
            .collect(),
        written: AtomicUsize::new(0),
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
            let mut outcomes = threads.into_iter().map(outcome);
            outcomes.try_fold(true, |all, one| Ok(all & one?))
        })
    }

    /// Reads segment after segment. `false` if the sweep has to end.
    fn walk(&self) -> Result<bool> {
        let mut window = AlignedBuffer::zeroed(SweepRam::WINDOW_BYTES);
        while let Some(place) = self.segments.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.read(*place, &mut window)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a segment's values. `false` if the sweep has to end.
    // A segment has at most 1 GiB. Records have the lower half of its generation.
    fn read(&self, (number, generation): (u32, u64), window: &mut AlignedBuffer) -> Result<bool> {
        let engine = self.engine;
        let segments = &engine.log.segments;
        // A segment that was recycled meanwhile is skipped.
        let Some(segment) = segments
            .pin(number)
            .filter(|segment| segment.generation() == generation)
        else {
            return Ok(true);
        };
        let (living, presence) = (self.living.of_segment(number), engine.presence());
        let is_wanted = |record: &Record<'_>| {
            let is_dead = || presence.dead(record.key, record.version(), record.attributes).is_some();
            record.generation == generation as u32 && is_short(record) && !is_dead()
        };
        let segment_bytes = segments.segment_bytes() as usize;
        for at in (0..segment_bytes).step_by(SweepRam::PIECE_BYTES) {
            let mut offsets = living.within(at..at + SweepRam::PIECE_BYTES).peekable();
            if offsets.peek().is_none() {
                continue;
            }
            window.set_len(SweepRam::WINDOW_BYTES.min(segment_bytes - at));
            count(&engine.scan_order.counters.sweep_bytes, window.len() as u64);
            engine.paid_flash_step(|| segment.read(window, at as u64))?;
            // One that is damaged, or longer, is left out.
            let found = offsets.filter_map(|offset| Record::decode(&window[offset - at..]));
            let found: Vec<_> = found.filter(is_wanted).collect();
            if !self.collected.add(&found)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Values that the threads have found: one list is filled while others are sorted and written.
struct Collected<'a> {
    engine: &'a Engine,
    filling: Mutex<Values>,
    writing: Vec<Mutex<Values>>,
    /// Lists that were full: each takes the place in `writing` that was used least recently.
    written: AtomicUsize,
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
                let number = self.written.fetch_add(1, Ordering::Relaxed);
                let mut writing = self.writing[number % self.writing.len()].lock();
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
        let bytes = self.engine.scan_order.sweep.take(bytes);
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
