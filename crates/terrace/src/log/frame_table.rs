//! The frames that are in RAM, in the order of the log: what was committed last is found here.
//!
//! A frame is *pending* from when it is opened until it is both written and applied: the indexes do
//! not know it yet. Those that are pending are the overlay: by key they answer first, for a
//! `Buffered` commit at once, for a `Sync` commit when it is durable. Until then an earlier record
//! of the key answers, here or in the index. Then a frame is *retained*, if it is the home of some
//! value, and found by place only: what was just written is often read soon, and then no device
//! need be asked. A long one is retained as it is,
//! of a short one a copy without its padding. The oldest *leave*: together they take no more than
//! their share of the RAM for values, and what an heir, the cache, may use and does not. What was
//! read in one is marked, and handed on to the heir when it leaves.
//!
//! Readers take no lock and change no memory that others use: what they look into are lists that
//! are never changed, but replaced by those who have the lock [`FrameTable::retained`], a few times
//! for each megabyte. By key they look into the list of pending frames, of which a filter says
//! which may have the key. (Only in the frame that is open now do they look under that frame's
//! lock.) By place they look into the list of one stretch of the log: one list of all frames would
//! be copied for each frame, and with the RAM of a large cache, or the short frames of `Sync`
//! commits, there are tens of thousands.
//!
//! Why a record that an acknowledged commit made, or an earlier one of its key, is found at every
//! moment:
//! - *By key.* A frame is counted, then in the list, and its bit is in the filter before the commit
//!   is acknowledged. It goes out of the list, then out of the filter, and then out of the count,
//!   when it is applied. So who finds no bit, or no frame, either began before the acknowledgement,
//!   or finds in the indexes, which it asks after this, what the frame had. A list that is out of
//!   date still has the frame, which answers as it did.
//! - *By place.* An address is in the indexes when its frame is applied, so it is sealed, and has
//!   been found by place since before the applier got it. From then on it is in its stretch's list
//!   without a gap: to retain it replaces it there, or leaves it as it is. If it leaves, it is
//!   written, and what was read of it is handed on before.
//! - A place, that is generation and offset, is written once for ever: a segment that is used anew
//!   has another generation. So what is found is what was written there, or nothing.
//!
//! `leaving_seq` rises before frames are pending no more and `released_seq` after. Who finds nothing
//! for a key, and the same `leaving_seq` as before it asked the index, may believe the index. And
//! what is forgotten once it is released, as ranges are, nobody needs who looks for a key later: it
//! meets none of these frames.
//!
//! Nothing of this outlives the process.

mod frame_filter;

use crate::{
    Durability,
    log::{
        departures::Departures,
        format::Record,
        frame::{Frame, FrameView, Heir, PlaceInLog, Sealed},
    },
};
use arc_swap::{ArcSwap, ArcSwapOption};
use frame_filter::FrameFilter;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A record is counted as this many bytes at least: applying it takes its time, however short it
/// is, and who scans waits for all of them.
const RECORD_BYTES_MIN: u64 = 256;
/// Of the RAM for values one part in so many is for retained frames.
const PART: u64 = 8;
/// Half of what may leave at once, if what came is shorter.
const LEFT_BYTES_MIN: u64 = 1 << 20;
/// Records whose memory is fetched side by side: as many as the processor's first cache has room
/// for.
const FETCHED_TOGETHER: usize = 32;
/// The log is looked at in stretches of 256 KiB: a long frame is in five of them, and of the
/// shortest frames 64 are in one.
const STRETCH_BITS: u32 = 18;
/// Lists of stretches, a power of two: those of 2 GiB in a row share none.
const STRETCHES: usize = 1 << 13;

/// Bits for the number of a stretch in its segment.
const GENERATION_SHIFT: u32 = 24;

/// The stretch that a place is in: ascending in the order of the log.
const fn stretch_of((generation, offset): PlaceInLog) -> u64 {
    generation << GENERATION_SHIFT | offset >> STRETCH_BITS
}

/// See the module.
pub struct FrameTable {
    /// Newest last. Changed with `retained` held.
    pending: ArcSwap<Vec<Pending>>,
    /// How many there are, or a moment ago were: where nothing is written, nobody need ask the
    /// filter, which is a wait for memory.
    count: AtomicUsize,
    filter: FrameFilter,
    /// Those that the filter does not know.
    unfiltered: AtomicUsize,
    /// What its commits have taken away.
    pub departures: Departures,
    /// Bytes of the sealed ones of those that are pending.
    pending_bytes: AtomicU64,
    /// Their records.
    pending_records: AtomicU64,
    /// It is full above so many bytes, or with this many for each record.
    pending_bytes_max: u64,
    leaving_seq: AtomicU64,
    released_seq: AtomicU64,
    /// Held by who retains frames, so that none is retained twice.
    settling: Mutex<()>,
    /// Sealed frames, by the stretches that they are in. Changed with `retained` held.
    stretches: Box<[ArcSwapOption<Vec<Slot>>]>,
    /// The first stretch that any frame is in ([`stretch_of`]), or one before it: most places that
    /// are asked for are older, and then one number says so.
    first_stretch: AtomicU64,
    /// In the order of the log.
    retained: Mutex<VecDeque<Slot>>,
    retained_bytes: AtomicU64,
    share_bytes: AtomicU64,
    heir: OnceLock<Box<dyn Heir>>,
    /// Held by who lets retained frames leave.
    leaving: Mutex<()>,
}

#[derive(Clone)]
struct Pending {
    /// By which the filter knows it.
    bit: Option<u32>,
    frame: Arc<Frame>,
}

/// The bytes of a sealed frame, and where they are.
#[derive(Clone)]
struct Slot {
    place: PlaceInLog,
    /// Where in the segment they end.
    end: u64,
    sealed: Arc<Sealed>,
}

impl std::fmt::Debug for FrameTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameTable")
            .field("pending_frames", &self.pending_frames())
            .field("pending_bytes", &self.pending_bytes())
            .field("retained_bytes", &self.retained_bytes())
            .field("share_bytes", &self.share_bytes())
            .finish_non_exhaustive()
    }
}

impl Slot {
    /// A frame once it is sealed, if anybody may ask for a place in it: inline values are in the
    /// index.
    fn of(frame: &Frame) -> Option<Self> {
        let sealed = frame.sealed().filter(|_| frame.view().has_homes())?;
        Some(Self {
            place: frame.place(),
            end: frame.end(),
            sealed: Arc::clone(sealed),
        })
    }

    /// The one of a list that a place may be in, and where in it that is.
    fn with(slots: &[Self], place: PlaceInLog) -> Option<(&Self, usize)> {
        let at = slots.partition_point(|slot| slot.place <= place).checked_sub(1)?;
        let slot = slots.get(at)?;
        let is_in = slot.place.0 == place.0 && place.1 < slot.end;
        is_in.then(|| Some((slot, usize::try_from(place.1 - slot.place.1).ok()?)))?
    }
}

impl FrameTable {
    /// An empty table. Everything up to `released_seq` is applied and written. It is full when so
    /// many bytes are pending. `share_bytes` are for retained frames, which take more while it is
    /// lent; with 0 none is retained.
    pub fn starting_at(released_seq: u64, pending_bytes_max: u64, share_bytes: u64) -> Self {
        Self {
            pending: ArcSwap::default(),
            filter: FrameFilter::default(),
            count: AtomicUsize::new(0),
            unfiltered: AtomicUsize::new(0),
            departures: Departures::default(),
            pending_bytes: AtomicU64::new(0),
            pending_records: AtomicU64::new(0),
            pending_bytes_max,
            leaving_seq: AtomicU64::new(released_seq),
            released_seq: AtomicU64::new(released_seq),
            settling: Mutex::default(),
            stretches: (0..STRETCHES).map(|_| ArcSwapOption::empty()).collect(),
            first_stretch: AtomicU64::new(u64::MAX),
            retained: Mutex::default(),
            retained_bytes: AtomicU64::new(0),
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
        self.count.fetch_add(1, Ordering::AcqRel);
        let bit = self.filter.lend();
        match bit {
            Some(bit) => frame.set_filter_bit(bit),
            None => {
                self.unfiltered.fetch_add(1, Ordering::AcqRel);
            }
        }
        let changing = self.retained.lock();
        let mut pending = Vec::clone(&self.pending.load());
        let frame_pushed = Arc::clone(&frame);
        pending.push(Pending { bit, frame });
        self.pending.store(Arc::new(pending));
        drop(changing);
        if let Some(bit) = bit {
            frame_pushed.view().hashes().for_each(|hash| self.filter.add(bit, hash));
        }
    }

    /// Appends a commit to the open frame, and answers for it: at once, or from when it is durable.
    pub fn append(&self, frame: &Frame, seq: u64, records: &[(u64, Record<'_>)], durability: Durability) {
        self.departures.note(seq, records);
        if let Some(bit) = frame.filter_bit() {
            let answering = records.iter().filter(|(_, record)| record.body.answers_for_key());
            answering.for_each(|(hash, _)| self.filter.add(bit, *hash));
        }
        match durability {
            Durability::Buffered => frame.append(seq, records),
            Durability::Sync => frame.append_unfinished(seq, records),
        }
    }

    /// A pending frame was sealed: from now on it is found by place.
    pub fn sealed(&self, frame: &Frame) {
        let view = frame.view();
        self.pending_bytes
            .fetch_add(view.bytes().len() as u64, Ordering::AcqRel);
        self.pending_records
            .fetch_add(u64::from(view.record_count()), Ordering::AcqRel);
        if let Some(slot) = Slot::of(frame) {
            self.put(&self.retained.lock(), &slot);
        }
    }

    /// The frames at the front that are written and applied are pending no more. Whether there were
    /// any.
    pub fn settle(&self) -> bool {
        let alone = self.settling.lock();
        let pending = self.pending.load_full();
        let count = pending.iter().take_while(|one| one.frame.is_finished()).count();
        let finished = &pending[..count];
        let Some(last) = finished.last() else { return false };
        let last_seq = last.frame.view().last_seq();
        let came_bytes = finished.iter().map(|one| self.retain(&one.frame)).sum();
        self.leaving_seq.fetch_max(last_seq, Ordering::AcqRel);
        let changing = self.retained.lock();
        let still_pending = self.pending.load()[count..].to_vec();
        self.pending.store(Arc::new(still_pending));
        drop(changing);
        self.released_seq.fetch_max(last_seq, Ordering::AcqRel);
        for Pending { bit, frame } in finished {
            let view = frame.view();
            self.pending_bytes
                .fetch_sub(view.bytes().len() as u64, Ordering::AcqRel);
            self.pending_records
                .fetch_sub(u64::from(view.record_count()), Ordering::AcqRel);
            match bit {
                Some(bit) => self.filter.give_back(*bit, view.hashes()),
                None => {
                    self.unfiltered.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        self.count.fetch_sub(count, Ordering::AcqRel);
        drop(alone);
        self.give_back(came_bytes);
        true
    }

    /// Retains a frame that is written and applied. The RAM that it takes: all of them may take too
    /// much now ([`FrameTable::give_back`]).
    fn retain(&self, frame: &Frame) -> u64 {
        let Some(pending) = Slot::of(frame) else { return 0 };
        let shortened = pending.sealed.shortened().map(Arc::new);
        let slot = Slot {
            sealed: shortened.unwrap_or_else(|| Arc::clone(&pending.sealed)),
            ..pending.clone()
        };
        let bytes = slot.sealed.ram_bytes();
        if bytes > self.share_bytes() {
            if let Some(heir) = self.heir.get() {
                slot.sealed.hand_on(slot.place, heir.as_ref());
            }
            self.take_out(&self.retained.lock(), &slot);
            return 0;
        }
        let mut retained = self.retained.lock();
        if !Arc::ptr_eq(&slot.sealed, &pending.sealed) {
            self.put(&retained, &slot);
        }
        self.retained_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Nearly always behind the others.
        let at = retained.partition_point(|other| other.place < slot.place);
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

    /// Everything up to this is applied and in its segment, and not looked for here by key.
    pub fn released_seq(&self) -> u64 {
        self.released_seq.load(Ordering::Acquire)
    }

    /// While this stays the same, what the index says of a key that is in no pending frame is its
    /// latest state.
    pub fn leaving_seq(&self) -> u64 {
        self.leaving_seq.load(Ordering::Acquire)
    }

    /// Whether so much waits that those who write should, too.
    pub fn is_full(&self) -> bool {
        let records = self.pending_records.load(Ordering::Acquire);
        self.pending_bytes().max(records.saturating_mul(RECORD_BYTES_MIN)) > self.pending_bytes_max
    }

    /// Hands the newest visible record of `key` to `use_record`, if a pending frame has one.
    /// `durable_seq` is only asked for if it may have.
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

    /// Hands the newest record of `key` to `use_record`, visible or not, and says whether it is
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

    /// The first answer of `look`, from the newest pending frame to the oldest, without those that
    /// cannot have a key with this hash.
    fn find_by<R>(&self, hash: u64, mut look: impl FnMut(&FrameView<'_>) -> Option<R>) -> Option<R> {
        if self.count.load(Ordering::Acquire) == 0 {
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

    /// Hands the record at a place to `use_record`, if its frame is here, and marks it as read.
    pub fn at<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_frame_at(place, |sealed, at| {
            let record = sealed.record_at(at, place.0)?;
            sealed.mark(at);
            Some(use_record(&record))
        })?
    }

    /// The same for many places, each with the length that its record has at most: hands the
    /// records that are here to `use_record`, each with the number of its place. A record by itself
    /// is little work and a long wait for memory; the waits for many are one.
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

    /// The same for who wants the record from the device, unless it is not there yet; this does not
    /// count as a read.
    pub fn pending_at<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let pending = self.pending.load();
        let at = pending
            .partition_point(|one| one.frame.place() <= place)
            .checked_sub(1)?;
        let frame = &pending.get(at)?.frame;
        let offset = (frame.generation == place.0).then(|| place.1 - frame.offset)?;
        let record = frame.sealed()?.record_at(usize::try_from(offset).ok()?, place.0)?;
        Some(use_record(&record))
    }

    /// What is at a place is of no use there any more: it is not handed on. Hands it to
    /// `use_record` if it would have been.
    pub fn take_read<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_frame_at(place, |sealed, at| {
            let was_read = sealed.unmark(at);
            let record = was_read.then(|| sealed.record_at(at, place.0))??;
            Some(use_record(&record))
        })?
    }

    /// Has `use_frame` do something with the frame that a place is in, and where it is there.
    fn with_frame_at<R>(&self, place: PlaceInLog, use_frame: impl FnOnce(&Sealed, usize) -> R) -> Option<R> {
        let stretch = stretch_of(place);
        if stretch < self.first_stretch.load(Ordering::Acquire) {
            return None;
        }
        let slots = self.list(stretch).load();
        let (slot, at) = Slot::with(slots.as_ref()?, place)?;
        Some(use_frame(&slot.sealed, at))
    }

    /// The list of a stretch. Others may be in it, too.
    #[allow(clippy::cast_possible_truncation)] // the low bits, by definition
    fn list(&self, stretch: u64) -> &ArcSwapOption<Vec<Slot>> {
        // Odd, so that it spreads generations.
        let first = (stretch >> GENERATION_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.stretches[first.wrapping_add(stretch) as usize % STRETCHES]
    }

    /// Has a frame found by place, instead of what was found there.
    fn put(&self, changing: &MutexGuard<'_, VecDeque<Slot>>, slot: &Slot) {
        self.first_stretch.fetch_min(stretch_of(slot.place), Ordering::AcqRel);
        self.change(changing, slot, |slots, at| slots.insert(at, slot.clone()));
    }

    /// Has a frame found no more.
    fn take_out(&self, changing: &MutexGuard<'_, VecDeque<Slot>>, slot: &Slot) {
        self.change(changing, slot, |_, _| ());
    }

    /// Takes a frame out of its lists, and tells where it was or would be.
    fn change(&self, _: &MutexGuard<'_, VecDeque<Slot>>, slot: &Slot, put: impl Fn(&mut Vec<Slot>, usize)) {
        let last = stretch_of((slot.place.0, slot.end - 1));
        for stretch in (stretch_of(slot.place)..=last).take(STRETCHES) {
            let list = self.list(stretch);
            let mut slots = list.load().as_deref().cloned().unwrap_or_default();
            slots.retain(|other| other.place != slot.place);
            let at = slots.partition_point(|other| other.place < slot.place);
            put(&mut slots, at);
            list.store((!slots.is_empty()).then(|| Arc::new(slots)));
        }
    }

    /// Changes the share of retained frames, and lets go of what is above it and not lent. A table
    /// that was made with no share stays without one.
    pub fn set_share(&self, share_bytes: u64) {
        if self.share_bytes() > 0 {
            self.share_bytes.store(share_bytes.max(1), Ordering::Relaxed);
            self.give_back(self.retained_bytes());
        }
    }

    /// Says who takes what was read here and leaves, and lends.
    pub fn hand_on_to(&self, heir: Box<dyn Heir>) {
        let _ = self.heir.set(heir);
    }

    /// Lets the oldest frames leave if there are more than the share and what is lent, since so
    /// many bytes came. What is handed on may take as much as its frame did, so that the next one
    /// must leave for it: most of that is left for who comes next, or the first reader to want a
    /// little room would move all there is.
    pub fn give_back(&self, came_bytes: u64) {
        if self.retained_bytes() <= self.share_bytes() {
            return;
        }
        // Whoever is at it has it done.
        let Some(_alone) = self.leaving.try_lock() else { return };
        let heir = self.heir.get();
        let bytes_max = self.share_bytes() + heir.map_or(0, |heir| heir.unused_bytes());
        let mut left_bytes = 0;
        while left_bytes < 2 * came_bytes.max(LEFT_BYTES_MIN) && self.retained_bytes() > bytes_max {
            let Some(oldest) = self.retained.lock().front().cloned() else {
                return;
            };
            left_bytes += oldest.sealed.ram_bytes();
            if let Some(heir) = heir {
                oldest.sealed.hand_on(oldest.place, heir.as_ref());
            }
            self.forget(|place| *place == oldest.place);
        }
    }

    /// Lets go of the frames of a segment's use that is over: nobody asks for them any more.
    pub fn forget_use(&self, generation: u64) {
        self.forget(|place| place.0 == generation);
    }

    /// Lets go of retained frames that follow each other.
    fn forget(&self, is_over: impl Fn(&PlaceInLog) -> bool) {
        let mut retained = self.retained.lock();
        let Some(from) = retained.iter().position(|slot| is_over(&slot.place)) else {
            return;
        };
        let count = retained
            .iter()
            .skip(from)
            .take_while(|slot| is_over(&slot.place))
            .count();
        let forgotten: Vec<_> = retained.drain(from..from + count).collect();
        for slot in forgotten {
            self.take_out(&retained, &slot);
            self.retained_bytes
                .fetch_sub(slot.sealed.ram_bytes(), Ordering::Relaxed);
        }
        let pending = self.pending.load();
        let first_pending = pending.first().map(|one| one.frame.place());
        let first = retained
            .front()
            .map(|slot| slot.place)
            .into_iter()
            .chain(first_pending)
            .min();
        self.first_stretch
            .store(first.map_or(u64::MAX, stretch_of), Ordering::Release);
    }

    /// RAM that retained frames may take whatever the heir uses, in bytes.
    pub fn share_bytes(&self) -> u64 {
        self.share_bytes.load(Ordering::Relaxed)
    }

    /// RAM that retained frames take, in bytes.
    pub fn retained_bytes(&self) -> u64 {
        self.retained_bytes.load(Ordering::Relaxed)
    }
}
