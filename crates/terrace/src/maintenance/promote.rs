//! The thread that writes images to flash as copies, and makes room for them.
//!
//! No caller waits for it: images that it cannot write in time, or for which there is no room or
//! budget, are dropped and counted. It writes in chunks and gives reads priority.

use crate::{
    Error, Result, ScanRange,
    engine::{Engine, go_on_if},
    flash_cache::{
        FlashCache, SLICE_BYTES, Slice,
        admission::{Unmeasured, Worth},
        contents::{self, Contents, Item, Owner},
        copies::Copy,
        credit::{Credit, holds_many},
        staging::Image,
    },
    io::{AlignedBuffer, PAGE_BYTES},
    log::{
        format::SegmentUse,
        segments::{LEFT_BY_COPIES, RESERVED_SEGMENTS, SCARCE_SEGMENTS, Segment, SegmentState},
    },
    maintenance::small_moves,
    metrics::{bucket::Bucket, count},
    ordered_index::Home,
};
use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes of one write.
const CHUNK_BYTES: usize = 512 << 10;
/// How long it waits for the next image when there is nothing else to do.
const IDLE: Duration = Duration::from_millis(100);
/// How long it sleeps while there are no reads. The first read of a group rouses it, and whatever
/// waits for it.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Steps in the index that are spent on measuring before the next image is handled: some
/// milliseconds.
const MEASURING_STEPS: usize = 5_000;
/// Cost of beginning a scan, in steps.
const SCAN_STEPS: usize = 100;
/// A group with more objects is not measured to its end, and counts object by object.
const MEASURED_OBJECTS_MAX: usize = 20_000;
/// Minimum interval of checks of the room for copies, unless a segment begins.
const SPACE_INTERVAL: Duration = Duration::from_millis(200);

/// A segment that is being filled with copies.
struct OpenSegment {
    number: u32,
    /// Position of the next copy.
    at: u64,
    /// Bytes of the copies in it, without padding.
    bytes: u64,
    contents: Contents,
}

/// The thread's state.
pub struct Promoter {
    engine: Arc<Engine>,
    cache: Arc<FlashCache>,
    /// For settled copies, and for passing ones.
    open: [Option<OpenSegment>; 2],
    budget: Bucket,
    credit: Credit,
    space_seen: Option<Instant>,
    /// Bytes that callers had read at the last check.
    asked_bytes: u64,
    /// Bytes of copies in a full segment, lately: the next one often does not fit into the last of
    /// it, and their last pages are not full.
    full_bytes: u64,
}

impl Promoter {
    /// A promoter for a store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            cache: Arc::clone(&engine.flash_cache),
            open: [None, None],
            budget: Bucket::per_day(engine.options.promotion_bytes_per_day),
            credit: Credit::new(engine.log.segments.segment_bytes()),
            space_seen: None,
            asked_bytes: 0,
            full_bytes: data_bytes(&engine),
            engine,
        }
    }

    /// Runs until the store is closed.
    pub fn run(mut self) {
        self.load();
        let (mut seen, mut seen_images) = (0, 0);
        while !self.engine.log.is_closed() {
            if self.cache.must_seal.swap(false, Ordering::AcqRel) {
                self.seal_open();
            }
            self.look_at_space();
            // Where each object is a group by itself nothing is copied before its group is
            // measured, so that must not wait for images.
            let all_measured = self.measure_some();
            small_moves::move_waiting(&self.engine, &mut self.budget);
            let asked_bytes = self.cache.counters.asked_bytes.load(Ordering::Relaxed);
            let is_quiet = std::mem::replace(&mut self.asked_bytes, asked_bytes) == asked_bytes;
            if all_measured && is_quiet && self.cache.small.queue.bytes() == 0 {
                self.cache.images.sleep(&mut seen, IDLE_MAX);
                if self.engine.log.is_closed() {
                    break;
                }
            }
            let wait = if all_measured { IDLE } else { Duration::ZERO };
            let Some(image) = self.cache.images.next(&mut seen_images, wait) else {
                continue;
            };
            if let Err(error) = self.promote(&image) {
                tracing::warn!(%error, "a copy could not be written");
                count(&self.cache.counters.dropped_no_room, 1);
            }
            self.cache.images.drop_image(&image);
        }
        self.seal_open();
    }

    /// Ends the segments that are being written.
    fn seal_open(&mut self) {
        for which in 0..self.open.len() {
            // Without its contents it is not found after the next open: a loss of copies.
            let _ = self.seal_one(which);
        }
    }

    /// Ends the segment of a kind, since the next copy does not fit into it.
    fn seal_full(&mut self, which: usize) -> Result<()> {
        if let Some(open) = &self.open[which] {
            self.full_bytes = (self.full_bytes * 7 + open.bytes) / 8;
        }
        self.seal_one(which)
    }

    /// Ends the segment of a kind, if there is one. Regardless of the result, it may be recycled
    /// from here on.
    fn seal_one(&mut self, which: usize) -> Result<()> {
        let Some(open) = self.open[which].take() else {
            return Ok(());
        };
        let written = write_contents(&self.engine, &open);
        self.cache.copies.seal(open.number);
        written
    }

    /// Whether the open segment of a kind has room for a copy.
    fn fits(&self, which: usize, key: &[u8], bytes: usize) -> bool {
        let segment_bytes = self.engine.log.segments.segment_bytes();
        let bytes = bytes.next_multiple_of(PAGE_BYTES) as u64;
        self.open[which].as_ref().is_some_and(|open| {
            let contents = open.contents.bytes_with(key.len());
            contents.is_some_and(|contents| open.at + bytes + contents <= segment_bytes)
        })
    }

    /// Reads the copies of earlier runs of the store.
    fn load(&self) {
        let segments = &self.engine.log.segments;
        for segment in segments.in_state(SegmentState::Copies) {
            let Some((items, contents_at)) = read_contents(&self.engine, segment) else {
                segments.free_unused(segment);
                continue;
            };
            let is_passing = items.first().is_some_and(|item| item.is_passing);
            self.cache
                .copies
                .begin(segment.number, Arc::clone(&segment.file), is_passing);
            for item in items {
                let is_within = item.at >= PAGE_BYTES as u64 && item.at + u64::from(item.bytes) <= contents_at;
                if is_within && u64::from(item.bytes) <= SLICE_BYTES {
                    let copy = Copy {
                        segment: segment.number,
                        at: item.at,
                        bytes: item.bytes,
                        key: item.key.into(),
                    };
                    self.cache.copies.insert(item.slice, copy);
                }
            }
            self.cache.copies.seal(segment.number);
        }
    }

    /// Updates how much room copies have.
    fn look_at_space(&mut self) {
        if self.space_seen.is_some_and(|seen| seen.elapsed() < SPACE_INTERVAL) {
            return;
        }
        self.space_seen = Some(Instant::now());
        let (used, passing_bytes) = self.cache.copies.segments();
        let room = self.segments_max(used);
        self.cache
            .popularity
            .set_space(u64::from(room) * self.full_bytes, passing_bytes);
    }

    /// How many segments copies may have, when they have `used` of them.
    fn segments_max(&self, used: u32) -> u32 {
        let segments = &self.engine.log.segments;
        let left = segments.available().saturating_sub(LEFT_BY_COPIES);
        (used + left).max(guaranteed(&self.engine))
    }

    /// Measures groups of which nothing is known but their names. `false` if there may be more.
    fn measure_some(&self) -> bool {
        let mut steps = 0;
        while steps < MEASURING_STEPS {
            let Some(group) = self.cache.popularity.unmeasured() else {
                return true;
            };
            steps += SCAN_STEPS + self.measure(&group);
        }
        false
    }

    /// Measures a group, and returns the number of objects visited. If that fails, nothing of the
    /// group is copied.
    fn measure(&self, group: &Unmeasured) -> usize {
        let bounds = (
            Bound::Included(group.prefix.clone()),
            ScanRange::prefix(&group.prefix).end,
        );
        let (mut objects, mut bytes, mut steps) = (0, 0, 0);
        let walked = self.engine.walk(bounds, |_, entry| {
            steps += 1;
            if matches!(entry.home, Home::Block(_)) {
                objects += 1;
                bytes += entry.length;
            }
            go_on_if(steps < MEASURED_OBJECTS_MAX)
        });
        if walked.is_err() {
            return steps;
        }
        if objects as usize >= MEASURED_OBJECTS_MAX {
            bytes = u64::MAX >> 8;
        }
        self.cache.popularity.measured(group, objects, bytes);
        steps
    }

    /// Writes an image to flash, if it is still worth it, and there is room and budget.
    fn promote(&mut self, image: &Image) -> Result<()> {
        let Some(bytes) = image.whole().filter(|_| !self.cache.copies.has(image.slice)) else {
            return Ok(());
        };
        // While it was queued it may have been promoted, or become less popular.
        let worth = self.cache.popularity.worth(&image.key, image.slice_bytes as u64);
        let fits = image.slice_bytes as u64 <= data_bytes(&self.engine);
        if worth == Worth::None || !fits {
            return Ok(());
        }
        if !self.budget.take(image.slice_bytes as u64) {
            count(&self.cache.counters.dropped_budget, 1);
            return Ok(());
        }
        let written = self.write(image.slice, &image.key, bytes, worth)?;
        if written {
            count(&self.cache.counters.promoted, 1);
            count(&self.cache.counters.promoted_bytes, image.slice_bytes as u64);
        } else {
            count(&self.cache.counters.dropped_no_room, 1);
        }
        Ok(())
    }

    /// Writes a copy. `false` if there is no room and none can be made.
    fn write(&mut self, slice: Slice, key: &Arc<[u8]>, bytes: &[u8], worth: Worth) -> Result<bool> {
        let is_passing = worth == Worth::Passing;
        let which = usize::from(is_passing);
        if !self.fits(which, key, bytes.len()) {
            // Cleaning may have begun a segment, and filled it.
            let copy_bytes = bytes.len() as u64;
            let bar = self.cache.popularity.bar(key, copy_bytes);
            let has_next = self.next_segment(is_passing, copy_bytes, bar)?;
            if !has_next || !self.fits(which, key, bytes.len()) {
                return Ok(false);
            }
        }
        let Some(open) = self.open[which].as_mut() else {
            return Ok(false);
        };
        let segments = &self.engine.log.segments;
        let Some(segment) = segments.get(open.number) else {
            return Ok(false);
        };
        let (at, number) = (open.at, open.number);
        write_gently(&self.engine, segment, at, bytes)?;
        open.at += (bytes.len() as u64).next_multiple_of(PAGE_BYTES as u64);
        open.bytes += bytes.len() as u64;
        // At most SLICE_BYTES.
        let length = bytes.len() as u32;
        open.contents.push(&Item {
            slice,
            at,
            bytes: length,
            is_passing,
            key: Box::from(&**key),
        });
        let copy = Copy {
            segment: number,
            at,
            bytes: length,
            key: Arc::clone(key),
        };
        self.cache.copies.insert(slice, copy);
        Ok(true)
    }

    /// Ends the open segment of a kind and begins another, for a copy of `bytes` before which those
    /// below the bar must give way. `false` if there is none to be had.
    fn next_segment(&mut self, is_passing: bool, bytes: u64, bar: Option<f64>) -> Result<bool> {
        let which = usize::from(is_passing);
        self.seal_full(which)?;
        if !self.has_room() {
            self.clean_one(bytes, bar)?;
            // Cleaning may have begun a segment of this kind.
            if self.open[which].is_some() {
                return Ok(true);
            }
        }
        if !self.has_room() {
            return Ok(false);
        }
        self.take(is_passing)
    }

    fn has_room(&self) -> bool {
        let (used, _) = self.cache.copies.segments();
        used < self.segments_max(used) && self.engine.log.segments.available() > SCARCE_SEGMENTS
    }

    fn take(&mut self, is_passing: bool) -> Result<bool> {
        let segments = &self.engine.log.segments;
        let segment = match segments.take_for(SegmentUse::Copies, 0, RESERVED_SEGMENTS) {
            Ok(segment) => segment,
            Err(Error::OutOfSpace { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.cache
            .copies
            .begin(segment.number, Arc::clone(&segment.file), is_passing);
        self.open[usize::from(is_passing)] = Some(OpenSegment {
            number: segment.number,
            at: PAGE_BYTES as u64,
            bytes: 0,
            contents: Contents::default(),
        });
        // Fast devices fill many segments within the interval of the checks.
        self.space_seen = None;
        Ok(true)
    }

    /// Maximum bytes that may be rewritten of the next segment to be cleaned, for a copy of this
    /// many bytes.
    fn written_again_max(&mut self, bytes: u64, is_single: bool) -> u64 {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.cache.counters;
        let written_bytes = load(&counters.promoted_bytes) + load(&counters.recopied_bytes);
        self.credit.update(load(&counters.asked_bytes), written_bytes);
        self.credit
            .written_again_max(data_bytes(&self.engine), bytes, is_single)
    }

    /// Makes room for a copy of `bytes`: frees the segment with the fewest bytes worth keeping,
    /// after rewriting these.
    fn clean_one(&mut self, bytes: u64, bar: Option<f64>) -> Result<()> {
        let cache = Arc::clone(&self.cache);
        let Some((victim, kept_bytes)) = least_worth(&cache) else {
            return Ok(());
        };
        let Some(staying) = self.plan(victim, kept_bytes, bytes, bar) else {
            return Ok(());
        };
        let segments = &self.engine.log.segments;
        let Some(file) = segments.get(victim).map(|segment| Arc::clone(&segment.file)) else {
            return Ok(());
        };
        let mut buffer = AlignedBuffer::new();
        for (slice, copy, worth) in staying {
            buffer.clear();
            buffer.set_len(copy.bytes as usize);
            let read = self
                .engine
                .flash_step(buffer.len(), || file.read_exact_at(&mut buffer, copy.at));
            if !cache.copies.holds(slice, victim) {
                // Log GC was faster: the bytes read may belong to the log by now.
                return Ok(());
            }
            let can_take = self.engine.log.segments.available() > RESERVED_SEGMENTS;
            if read.is_ok() && self.rewrite(slice, &copy, &buffer, worth, can_take)? {
                count(&cache.counters.recopied_bytes, u64::from(copy.bytes));
            }
        }
        release(&self.engine, victim);
        Ok(())
    }

    /// Which copies of a segment, in which `kept_bytes` are worth keeping, are rewritten to make
    /// room for a copy of `bytes`. `None` if the segment stays unchanged: more of it than may be
    /// rewritten is above the threshold, and the evicted copies would soon be made again at the
    /// same cost.
    fn plan(
        &mut self,
        victim: u32,
        kept_bytes: u64,
        bytes: u64,
        bar: Option<f64>,
    ) -> Option<Vec<(Slice, Copy, Worth)>> {
        let limit = self.written_again_max(bytes, bar.is_some());
        let (data_bytes, popularity) = (data_bytes(&self.engine), &self.cache.popularity);
        let bar = bar.filter(|_| kept_bytes > limit);
        let worthy = self
            .cache
            .copies
            .in_segment(victim)
            .into_iter()
            .filter_map(|(slice, copy)| {
                let reaches = |bar| popularity.reaches(bar, &copy.key, u64::from(copy.bytes));
                let worth = worth_of(&self.cache, &copy);
                (worth != Worth::None && bar.is_none_or(reaches)).then_some((slice, copy, worth))
            });
        let mut staying: Vec<_> = worthy.collect();
        let staying_bytes: u64 = staying.iter().map(|(_, copy, _)| u64::from(copy.bytes)).sum();
        if kept_bytes > limit && staying_bytes > limit {
            return None;
        }
        let mut left = limit;
        staying.retain(|(_, copy, worth)| {
            let bytes = u64::from(copy.bytes);
            let stays = popularity.may_stay(*worth, holds_many(data_bytes, bytes)) && bytes <= left;
            left -= if stays { bytes } else { 0 };
            stays
        });
        Some(staying)
    }

    fn rewrite(&mut self, slice: Slice, copy: &Copy, bytes: &[u8], worth: Worth, can_take: bool) -> Result<bool> {
        let which = usize::from(worth == Worth::Passing);
        if !self.fits(which, &copy.key, bytes.len()) {
            if !can_take {
                return Ok(false);
            }
            self.seal_full(which)?;
            if !self.take(worth == Worth::Passing)? {
                return Ok(false);
            }
        }
        self.write(slice, &copy.key, bytes, worth)
    }
}

/// Bytes of a segment that copies may use: without the header and the minimum length of a table of
/// contents.
fn data_bytes(engine: &Engine) -> u64 {
    engine.log.segments.segment_bytes() - 2 * PAGE_BYTES as u64
}

/// Drops the copies in a segment and returns it to the ring, unless another thread was first. (The
/// model test found a case in which both threads freed it: the log was already using the segment,
/// and it was given to another thread.)
fn release(engine: &Engine, number: u32) {
    let Some(forgotten) = engine.flash_cache.copies.end(number) else {
        return;
    };
    count(&engine.flash_cache.counters.evicted, forgotten);
    if let Some(segment) = engine.log.segments.get(number) {
        if forgotten > 0 {
            *engine.flash_cache.eviction_age.lock() = Some(segment.age());
        }
        engine.log.segments.free_unused(segment);
        engine.log.notify_progress();
    }
}

/// The log needs room: drops the segment of copies with the fewest bytes worth keeping, if copies
/// have more than their guaranteed segments. Returns whether it did.
pub fn release_to_log(engine: &Engine) -> bool {
    let (used, _) = engine.flash_cache.copies.segments();
    if used <= guaranteed(engine) {
        return false;
    }
    let Some((victim, _)) = least_worth(&engine.flash_cache) else {
        // Open segments must be sealed first.
        engine.flash_cache.must_seal.store(true, Ordering::Release);
        engine.flash_cache.images.rouse();
        return false;
    };
    release(engine, victim);
    true
}

fn worth_of(cache: &FlashCache, copy: &Copy) -> Worth {
    cache.popularity.worth(&copy.key, u64::from(copy.bytes))
}

/// The segment with the fewest bytes worth keeping, and their number.
fn least_worth(cache: &FlashCache) -> Option<(u32, u64)> {
    let kept = |copy: &Copy| match worth_of(cache, copy) {
        Worth::None => 0,
        Worth::Settled | Worth::Passing => u64::from(copy.bytes),
    };
    cache.copies.least_worth(kept)
}

fn guaranteed(engine: &Engine) -> u32 {
    let share = u64::from(engine.log.segments.capacity()) * u64::from(engine.options.tuning.copies_share_percent) / 100;
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// Segments of copies that the log can have at once.
pub fn lent_by_copies(engine: &Engine) -> u32 {
    engine
        .flash_cache
        .copies
        .segments()
        .0
        .saturating_sub(guaranteed(engine))
}

fn owner(store_id: u64, segment: &Segment) -> Owner {
    Owner {
        store_id,
        segment: segment.number,
        generation: segment.generation(),
    }
}

/// What the table of contents at the end of a segment names, and where the table begins.
fn read_contents(engine: &Engine, segment: &Segment) -> Option<(Vec<Item>, u64)> {
    let segments = &engine.log.segments;
    let end = segments.segment_bytes();
    let mut table = AlignedBuffer::zeroed(PAGE_BYTES);
    let last_page_at = end - PAGE_BYTES as u64;
    segment.file.read_exact_at(&mut table, last_page_at).ok()?;
    let bytes = contents::length_by(&table)?;
    let at = end.checked_sub(bytes as u64)?;
    if bytes > PAGE_BYTES {
        table = AlignedBuffer::zeroed(bytes);
        segment.file.read_exact_at(&mut table, at).ok()?;
    }
    let items = contents::decode(&table, owner(segments.store_id(), segment))?;
    Some((items, at))
}

fn write_contents(engine: &Engine, open: &OpenSegment) -> Result<()> {
    let segments = &engine.log.segments;
    let Some(segment) = segments.get(open.number) else {
        return Ok(());
    };
    let owner = owner(segments.store_id(), segment);
    let table = open.contents.encode(owner);
    segment
        .file
        .write_all_at(&table, segments.segment_bytes() - table.len() as u64)
        .map_err(|error| Error::io(format!("write the contents of segment {:08x}", open.number), &error))
}

/// Writes in chunks, and lets callers' reads go first.
fn write_gently(engine: &Engine, segment: &Segment, at: u64, bytes: &[u8]) -> Result<()> {
    let mut buffer = AlignedBuffer::with_capacity(CHUNK_BYTES);
    for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        buffer.clear();
        buffer.extend_from_slice(chunk);
        buffer.pad_to_page();
        let chunk_at = at + (number * CHUNK_BYTES) as u64;
        engine
            .flash_step(buffer.len(), || segment.file.write_all_at(&buffer, chunk_at))
            .map_err(|error| Error::io(format!("write copies to segment {:08x}", segment.number), &error))?;
    }
    Ok(())
}
