//! The table of frames, which is in RAM only, in log order: newest commits are looked up here.
//!
//! A frame is *pending* from when it is opened until it is both written and applied: the indexes do
//! not have it yet. Pending frames are the overlay: lookups by key search them first, and find a
//! `Buffered` commit immediately, a `Sync` commit when it is durable. Until then an earlier record
//! of the key is found, here or in the index. Afterwards a frame is *retained* if it is the home of
//! some value, and is found by place only: recently written values are often read soon, and then no
//! device read is needed. A long frame is retained as it is, a short one as a copy without its
//! padding. The oldest retained frames are evicted: together they take no more than their share of
//! the RAM for values, plus what their heir, the cache, may use and does not. Records that were
//! read in a frame are marked, and are passed to the heir at eviction. Frames with many dead values
//! are evicted before the others, and all their live values are passed on if the heir has room: so
//! values that are overwritten often do not displace others from RAM.
//!
//! Readers take no lock and change no memory that others use. They search lists that are appended
//! to, and that are replaced when an item is removed, by the thread that holds the lock
//! `FrameTable::retained`. A lookup by key searches the list of pending frames, where a filter
//! tells which may have the key. (Only the open frame is searched under that frame's lock.) A
//! lookup by place searches the same list, then that of a stretch of the log. A single list of all
//! frames would be copied for each evicted frame, and with the RAM of a large cache, or the short
//! frames of `Sync` commits, there are tens of thousands.
//!
//! Invariant: a record of an acknowledged commit, or a later one of its key, is found here or by
//! the indexes at every moment, if pending frames are searched before the indexes, by key as by
//! place. Why: docs/durability.md, section 3, *A record is found at every moment*.

mod frame_filter;
mod list;

use crate::{
    Durability,
    log::{
        departures::Departures,
        format::Record,
        frame::{EmptiestFrames, Frame, FrameView, Heir, Heritage, PlaceInLog, Sealed},
    },
};
use frame_filter::FrameFilter;
use list::{List, Loaded};
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A record counts as at least this many bytes: applying even a short one takes time.
const RECORD_BYTES_MIN: u64 = 256;
/// Retained frames have this fraction (1/n) of the RAM for values.
const PART: u64 = 8;
/// Evictions at once are at most twice this, if the new frame is shorter.
const LEFT_BYTES_MIN: u64 = 1 << 20;
/// Records prefetched in parallel: as many as fit in the processor's first-level cache.
const FETCHED_TOGETHER: usize = 32;
/// The log is indexed in stretches of 256 KiB: a long frame is in five of them, and of the shortest
/// frames 64 are in one.
const STRETCH_BITS: u32 = 18;
/// Number of lists of stretches, a power of two: those of 2 GiB in a row are distinct.
const STRETCHES: usize = 1 << 13;

/// Cells for frames that are opened before the list of pending frames is replaced.
const PENDING_SPARE: usize = 16;
/// At most this fraction (1/n) of the share is evicted in advance.
const PART_MORE: u64 = 16;
/// Bits for the number of a stretch in its segment.
const GENERATION_SHIFT: u32 = 24;

/// The stretch that contains a place: ascending in log order.
const fn stretch_of((generation, offset): PlaceInLog) -> u64 {
    generation << GENERATION_SHIFT | offset >> STRETCH_BITS
}

/// See the module.
pub struct FrameTable {
    /// Newest last. Changed with `retained` held.
    pending: List<Pending>,
    /// The stretch in which the first of them begins, or one before it. If nothing is being
    /// written, or for an earlier place, comparing this number avoids the search.
    first_pending: AtomicU64,
    filter: FrameFilter,
    /// Number of pending frames without a bit in the filter.
    unfiltered: AtomicUsize,
    /// The keys that its commits have removed.
    pub departures: Departures,
    /// Bytes of sealed pending frames.
    pending_bytes: AtomicU64,
    /// Their records.
    pending_records: AtomicU64,
    /// The table is full above this many bytes; a record counts as at least [`RECORD_BYTES_MIN`].
    pending_bytes_max: u64,
    leaving_seq: AtomicU64,
    released_seq: AtomicU64,
    /// Held by the thread that retains frames, so that none is retained twice.
    settling: Mutex<()>,
    /// In log order.
    retained: Mutex<VecDeque<Slot>>,
    /// The same, by the stretches that contain them. Changed with `retained` held.
    stretches: Box<[List<Slot>]>,
    /// Like `first_pending`, for retained frames: most places that are looked up are older.
    first_retained: AtomicU64,
    retained_bytes: AtomicU64,
    /// Retained frames with many dead values; some may have been evicted.
    emptiest: Mutex<EmptiestFrames>,
    share_bytes: AtomicU64,
    heir: OnceLock<Box<dyn Heir>>,
    /// Held by the thread that evicts retained frames.
    leaving: Mutex<()>,
}

#[derive(Clone)]
struct Pending {
    place: PlaceInLog,
    /// Its bit in the filter.
    bit: Option<u32>,
    frame: Arc<Frame>,
}

/// The bytes of a retained frame, and their place.
#[derive(Clone)]
struct Slot {
    place: PlaceInLog,
    /// Their end in the segment.
    end: u64,
    sealed: Arc<Sealed>,
}

impl Slot {
    /// The stretches that contain it.
    fn stretches(&self) -> impl Iterator<Item = u64> + use<> {
        (stretch_of(self.place)..=stretch_of((self.place.0, self.end - 1))).take(STRETCHES)
    }
}

/// Distance of a place from an earlier one in the same use of a segment.
fn offset_from(start: PlaceInLog, place: PlaceInLog) -> Option<usize> {
    let is_there = start.0 == place.0;
    is_there.then(|| usize::try_from(place.1.checked_sub(start.1)?).ok())?
}

impl Loaded<Pending> {
    /// The frame that may contain a place, if it is sealed, and the offset in it.
    fn with(&self, place: PlaceInLog) -> Option<(&Arc<Sealed>, usize)> {
        let pending = self.last_before(|one| one.place <= place)?;
        Some((pending.frame.sealed()?, offset_from(pending.place, place)?))
    }
}

impl FrameTable {
    /// An empty table. Everything up to `released_seq` is applied and written. It is full when so
    /// many bytes are pending. `share_bytes` are for retained frames, which may borrow more; with 0
    /// none is retained.
    pub fn starting_at(released_seq: u64, pending_bytes_max: u64, share_bytes: u64) -> Self {
        Self {
            pending: List::default(),
            first_pending: AtomicU64::new(u64::MAX),
            filter: FrameFilter::default(),
            unfiltered: AtomicUsize::new(0),
            departures: Departures::default(),
            pending_bytes: AtomicU64::new(0),
            pending_records: AtomicU64::new(0),
            pending_bytes_max,
            leaving_seq: AtomicU64::new(released_seq),
            released_seq: AtomicU64::new(released_seq),
            settling: Mutex::default(),
            retained: Mutex::default(),
            stretches: (0..STRETCHES).map(|_| List::default()).collect(),
            first_retained: AtomicU64::new(u64::MAX),
            retained_bytes: AtomicU64::new(0),
            emptiest: Mutex::default(),
            share_bytes: AtomicU64::new(share_bytes),
            heir: OnceLock::new(),
            leaving: Mutex::default(),
        }
    }

    /// The share of retained frames in the RAM for values, in bytes.
    pub const fn share_of(cache_bytes: u64) -> u64 {
        cache_bytes / PART
    }

    /// Adds a frame that was just opened, or recovered.
    pub fn push(&self, frame: Arc<Frame>) {
        let (place, bit) = (frame.place(), self.filter.lend());
        match bit {
            Some(bit) => frame.set_filter_bit(bit),
            None => {
                self.unfiltered.fetch_add(1, Ordering::AcqRel);
            }
        }
        let changing = self.retained.lock();
        self.first_pending.fetch_min(stretch_of(place), Ordering::AcqRel);
        let view = frame.view();
        self.pending.push(Pending {
            place,
            bit,
            frame: Arc::clone(&frame),
        });
        drop(changing);
        if let Some(bit) = bit {
            view.hashes().for_each(|hash| self.filter.add(bit, hash));
        }
    }

    /// Appends a commit to the open frame, where it is found immediately, or from when it is
    /// durable.
    pub fn append(&self, frame: &Frame, seq: u64, records: &[(u64, Record<'_>)], durability: Durability) {
        self.departures.note(seq, records);
        if let Some(bit) = frame.filter_bit() {
            let answering = records.iter().filter(|(_, record)| record.body.answers_for_key());
            answering.for_each(|(hash, _)| self.filter.add(bit, *hash));
        }
        frame.append(seq, records, durability);
    }

    /// A pending frame was sealed.
    pub fn sealed(&self, frame: &Frame) {
        let view = frame.view();
        self.pending_bytes
            .fetch_add(view.bytes().len() as u64, Ordering::AcqRel);
        self.pending_records
            .fetch_add(u64::from(view.record_count()), Ordering::AcqRel);
    }

    /// Removes the frames at the front that are written and applied from the pending ones. Returns
    /// whether there were any.
    pub fn settle(&self) -> bool {
        let alone = self.settling.lock();
        let pending = self.pending.load();
        let finished: Vec<&Pending> = pending.iter().take_while(|one| one.frame.is_finished()).collect();
        let Some(last) = finished.last() else { return false };
        let last_seq = last.frame.view().last_seq();
        let came_bytes = finished.iter().map(|one| self.retain(&one.frame)).sum();
        self.leaving_seq.fetch_max(last_seq, Ordering::AcqRel);
        self.no_more_pending(finished.len());
        self.released_seq.fetch_max(last_seq, Ordering::AcqRel);
        for one in &finished {
            let view = one.frame.view();
            self.pending_bytes
                .fetch_sub(view.bytes().len() as u64, Ordering::AcqRel);
            self.pending_records
                .fetch_sub(u64::from(view.record_count()), Ordering::AcqRel);
            match one.bit {
                Some(bit) => self.filter.give_back(bit, view.hashes()),
                None => {
                    self.unfiltered.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        drop(alone);
        self.give_back(came_bytes);
        true
    }

    /// Removes so many frames from the front of the list.
    fn no_more_pending(&self, count: usize) {
        let _changing = self.retained.lock();
        let rest: Vec<_> = self.pending.load().iter().skip(count).cloned().collect();
        let first = rest.first().map_or(u64::MAX, |one| stretch_of(one.place));
        self.pending.replace(rest, PENDING_SPARE);
        self.first_pending.store(first, Ordering::Release);
    }

    /// Retains a written and applied frame, if a reader may look up a place in it (inline values
    /// are in the index). Returns the RAM that it takes; the total may be too much now
    /// ([`FrameTable::give_back`]).
    fn retain(&self, frame: &Frame) -> u64 {
        let (place, end) = (frame.place(), frame.end());
        let Some(sealed) = frame.sealed().filter(|_| frame.view().has_homes()) else {
            return 0;
        };
        let shortened = sealed.shortened().map(Arc::new);
        let sealed = shortened.unwrap_or_else(|| Arc::clone(sealed));
        let bytes = sealed.ram_bytes();
        if bytes > self.share_bytes() {
            if let Some(heir) = self.heir.get() {
                sealed.hand_on(place, Heritage::Read, heir.as_ref());
            }
            return 0;
        }
        if sealed.is_sparse() {
            self.emptiest.lock().note(place, sealed.living_bytes(), bytes);
        }
        let slot = Slot { place, end, sealed };
        let mut retained = self.retained.lock();
        self.first_retained.fetch_min(stretch_of(place), Ordering::AcqRel);
        for list in slot.stretches().map(|stretch| self.list(stretch)) {
            let loaded = list.load();
            if loaded.iter().next_back().is_none_or(|last| last.place < place) {
                list.push(slot.clone());
            } else {
                let mut slots: Vec<_> = loaded.iter().cloned().collect();
                slots.insert(slots.partition_point(|other| other.place < place), slot.clone());
                list.replace(slots, 0);
            }
        }
        self.retained_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Nearly always after the others.
        let at = retained.partition_point(|other| other.place < place);
        retained.insert(at, slot);
        bytes
    }

    /// Bytes of commits not yet applied or written, without the open frame.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Acquire)
    }

    /// Number of pending frames.
    pub fn pending_frames(&self) -> usize {
        self.pending.load().len()
    }

    /// Everything up to this seq is applied and written, and not looked up here by key.
    pub fn released_seq(&self) -> u64 {
        self.released_seq.load(Ordering::Acquire)
    }

    /// While this is unchanged, the index has the latest state of keys in no pending frame.
    pub fn leaving_seq(&self) -> u64 {
        self.leaving_seq.load(Ordering::Acquire)
    }

    /// Whether so much is pending that writers should wait.
    pub fn is_full(&self) -> bool {
        let records = self.pending_records.load(Ordering::Acquire);
        self.pending_bytes().max(records.saturating_mul(RECORD_BYTES_MIN)) > self.pending_bytes_max
    }

    /// Passes the newest visible record of `key` to `use_record`, if a pending frame has one.
    /// `durable_seq` is called only if one may have it.
    pub fn find<R>(
        &self,
        hash: u64,
        key: &[u8],
        durable_seq: impl Fn() -> u64,
        use_record: impl FnOnce(&Record<'_>) -> R,
    ) -> Option<R> {
        let (mut durable, mut use_record) = (None, Some(use_record));
        self.find_by(hash, |view| {
            let durable_seq = *durable.get_or_insert_with(&durable_seq);
            let record = view.find_visible(hash, key, durable_seq)?;
            use_record.take().map(|use_record| use_record(&record))
        })
    }

    /// Passes the newest record of `key` to `use_record`, visible or not, with whether it is
    /// visible when everything up to `durable_seq` is durable.
    pub fn find_committed<R>(
        &self,
        hash: u64,
        key: &[u8],
        durable_seq: u64,
        use_record: impl FnOnce(&Record<'_>, bool) -> R,
    ) -> Option<R> {
        let mut use_record = Some(use_record);
        self.find_by(hash, |view| {
            let record = view.find(hash, key)?;
            let is_visible = view.is_visible(record.seq, durable_seq);
            use_record.take().map(|use_record| use_record(&record, is_visible))
        })
    }

    /// The first result of `look`, from the newest pending frame to the oldest, without those that
    /// cannot have a key with this hash.
    fn find_by<R>(&self, hash: u64, mut look: impl FnMut(&FrameView<'_>) -> Option<R>) -> Option<R> {
        if self.first_pending.load(Ordering::Acquire) == u64::MAX {
            return None;
        }
        let with_key = self.filter.frames_with(hash);
        if with_key == 0 && self.unfiltered.load(Ordering::Acquire) == 0 {
            return None;
        }
        let pending = self.pending.load();
        let may_have = |one: &&Pending| one.bit.is_none_or(|bit| with_key >> bit & 1 == 1);
        let mut asked = pending.iter().rev().filter(may_have);
        asked.find_map(|one| look(&one.frame.view()))
    }

    /// Passes the record at a place to `use_record`, if its frame is here, and marks it as read.
    pub fn at<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_frame_at(place, |sealed, at| {
            let record = sealed.record_at(at, place.0)?;
            sealed.mark(at);
            Some(use_record(&record))
        })?
    }

    /// The same for many places, each with the maximum length of its record: passes the records
    /// that are here to `use_record`, each with the index of its place. A single record takes
    /// little work and a long wait for memory; these waits overlap for many records.
    pub fn at_each(&self, places: &[Option<(PlaceInLog, usize)>], mut use_record: impl FnMut(usize, &Record<'_>)) {
        let numbered: Vec<_> = (0..)
            .zip(places)
            .filter_map(|(at, place)| Some((at, (*place)?)))
            .collect();
        for together in numbered.chunks(FETCHED_TOGETHER) {
            for (_, (place, length)) in together {
                self.with_frame_at(*place, |sealed, at| sealed.fetch(at, *length));
            }
            for (number, (place, _)) in together {
                self.at(*place, |record| use_record(*number, record));
            }
        }
    }

    /// The same for a caller that wants the record from the device, unless it is not written yet;
    /// this does not count as a read.
    pub fn pending_at<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let pending = self.pending.load();
        let (sealed, at) = pending.with(place)?;
        Some(use_record(&sealed.record_at(at, place.0)?))
    }

    /// The record at a place is no longer needed there: it is not passed to the heir. Passes it to
    /// `use_record` if it would have been.
    pub fn take_read<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_frame_at(place, |sealed, at| {
            let was_read = sealed.unmark(at);
            let record = was_read.then(|| sealed.record_at(at, place.0))??;
            Some(use_record(&record))
        })?
    }

    /// The record at a place, of about so many bytes, is no longer its value's home.
    pub fn value_died(&self, place: PlaceInLog, bytes: u64) {
        self.with_frame_at(place, |sealed, at| {
            if sealed.died(at, bytes) {
                let frame = (place.0, place.1 - at as u64);
                let living_bytes = sealed.living_bytes();
                self.emptiest.lock().note(frame, living_bytes, sealed.ram_bytes());
            }
        });
    }

    /// Calls `use_frame` with the frame that contains a place, and the offset in it.
    fn with_frame_at<R>(&self, place: PlaceInLog, use_frame: impl FnOnce(&Sealed, usize) -> R) -> Option<R> {
        let stretch = stretch_of(place);
        if stretch >= self.first_pending.load(Ordering::Acquire) {
            let pending = self.pending.load();
            if let Some((sealed, at)) = pending.with(place) {
                return Some(use_frame(sealed, at));
            }
        }
        if stretch < self.first_retained.load(Ordering::Acquire) {
            return None;
        }
        let slots = self.list(stretch).load();
        let slot = slots.last_before(|slot| slot.place <= place)?;
        Some(use_frame(&slot.sealed, offset_from(slot.place, place)?))
    }

    /// The list of a stretch. Other stretches may be in it, too.
    // The low bits, by definition.
    fn list(&self, stretch: u64) -> &List<Slot> {
        // Odd, so that generations are spread.
        let first = (stretch >> GENERATION_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.stretches[first.wrapping_add(stretch) as usize % STRETCHES]
    }

    /// Changes the share of retained frames, and evicts what exceeds it and is not borrowed. A
    /// table created without a share stays without one.
    pub fn set_share(&self, share_bytes: u64) {
        if self.share_bytes.load(Ordering::Relaxed) > 0 {
            self.share_bytes.store(share_bytes.max(1), Ordering::Relaxed);
            self.give_back(self.retained_bytes());
        }
    }

    /// Sets the heir: it takes records that were read here when their frame is evicted, and lends
    /// RAM.
    pub fn hand_on_to(&self, heir: Box<dyn Heir>) {
        let _ = self.heir.set(heir);
    }

    /// Evicts the oldest frames if they exceed the share and what is borrowed, after so many bytes
    /// were added. Records passed to the heir may take as much as their frame did, so that the next
    /// frame must be evicted for them: most of that is left to later callers, or the first reader
    /// that needs a little room would move everything.
    pub fn give_back(&self, came_bytes: u64) {
        if self.retained_bytes() <= self.share_bytes() {
            return;
        }
        // Another thread does it.
        let Some(_alone) = self.leaving.try_lock() else { return };
        let heir = self.heir.get().map(Box::as_ref);
        let left_bytes_max = 2 * came_bytes.max(LEFT_BYTES_MIN);
        let left_bytes = self.empty_sparse(heir, left_bytes_max);
        if left_bytes >= left_bytes_max {
            return;
        }
        let leaving = self.oldest_above(self.bytes_max(heir), left_bytes_max - left_bytes);
        if let Some(heir) = heir {
            let hand_on = |slot: &Slot| slot.sealed.hand_on(slot.place, Heritage::Read, heir);
            leaving.iter().for_each(hand_on);
        }
        if let [first, .., last] | [first @ last] = &leaving[..] {
            self.forget(|place| (first.place..=last.place).contains(&place));
        }
    }

    /// RAM that retained frames may take now.
    fn bytes_max(&self, heir: Option<&dyn Heir>) -> u64 {
        self.share_bytes() + heir.map_or(0, Heir::unused_bytes)
    }

    /// Evicts frames with many dead values, the emptiest first, while there is too much. All live
    /// values of these stay in RAM if the heir takes them. Returns the evicted bytes.
    fn empty_sparse(&self, heir: Option<&dyn Heir>, left_bytes_max: u64) -> u64 {
        let mut left_bytes = 0;
        while left_bytes < left_bytes_max && self.retained_bytes() > self.bytes_max(heir) {
            let Some(place) = self.emptiest.lock().take() else {
                break;
            };
            let Some(slot) = self.retained_at(place) else { continue };
            if let Some(heir) = heir {
                let takes_all = heir.takes_unread(slot.sealed.living_bytes());
                let heritage = if takes_all { Heritage::Living } else { Heritage::Read };
                slot.sealed.hand_on(place, heritage, heir);
            }
            self.forget(|other| other == place);
            left_bytes += slot.sealed.ram_bytes();
        }
        left_bytes
    }

    /// The retained frame that begins at a place.
    fn retained_at(&self, place: PlaceInLog) -> Option<Slot> {
        let retained = self.retained.lock();
        let found = retained.binary_search_by_key(&place, |slot| slot.place);
        found.ok().and_then(|at| retained.get(at).cloned())
    }

    /// The oldest frames that must be evicted to keep no more than `bytes_max`, and at most so many
    /// bytes; with them a few in the same stretch, if none of it is left then, since replacing its
    /// list costs more than they do.
    fn oldest_above(&self, bytes_max: u64, left_bytes_max: u64) -> Vec<Slot> {
        let (mut left_bytes, mut last) = (0, None);
        let kept_bytes = self.retained_bytes();
        let goes = |slot: &&Slot| {
            let stretch = stretch_of(slot.place);
            let bytes = kept_bytes.saturating_sub(left_bytes);
            let is_above = bytes > bytes_max && left_bytes < left_bytes_max;
            let goes_with = last == Some(stretch) && bytes + self.share_bytes() / PART_MORE > bytes_max;
            last = Some(stretch);
            left_bytes += slot.sealed.ram_bytes();
            is_above || goes_with
        };
        self.retained.lock().iter().take_while(goes).cloned().collect()
    }

    /// Drops the frames of an ended use of a segment: no reader looks them up any more.
    pub fn forget_use(&self, generation: u64) {
        self.forget(|place| place.0 == generation);
    }

    /// Drops consecutive retained frames.
    fn forget(&self, is_over: impl Fn(PlaceInLog) -> bool) {
        let mut retained = self.retained.lock();
        let from = retained
            .iter()
            .position(|slot| is_over(slot.place))
            .unwrap_or(retained.len());
        let over = retained
            .iter()
            .skip(from)
            .take_while(|slot| is_over(slot.place))
            .count();
        let over: Vec<_> = retained.drain(from..from + over).collect();
        let bytes = over.iter().map(|slot| slot.sealed.ram_bytes()).sum();
        self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let stretches: BTreeSet<_> = over.iter().flat_map(Slot::stretches).collect();
        for list in stretches.into_iter().map(|stretch| self.list(stretch)) {
            let slots = list.load();
            let rest = slots.iter().filter(|slot| !is_over(slot.place)).cloned();
            list.replace(rest.collect(), 0);
        }
        let first = retained.front().map_or(u64::MAX, |slot| stretch_of(slot.place));
        self.first_retained.store(first, Ordering::Release);
    }

    /// RAM that retained frames may take regardless of the heir, without what the heir has
    /// borrowed.
    pub fn share_bytes(&self) -> u64 {
        let borrowed_bytes = self.heir.get().map_or(0, |heir| heir.borrowed_bytes());
        self.share_bytes.load(Ordering::Relaxed).saturating_sub(borrowed_bytes)
    }

    /// Live bytes in retained frames, approximately. Walks over them.
    pub fn living_bytes(&self) -> u64 {
        self.retained.lock().iter().map(|slot| slot.sealed.living_bytes()).sum()
    }

    /// RAM that retained frames take, in bytes.
    pub fn retained_bytes(&self) -> u64 {
        self.retained_bytes.load(Ordering::Relaxed)
    }
}
