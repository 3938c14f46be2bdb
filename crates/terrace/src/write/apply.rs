//! The applier: folds frames into the indexes, in seq order. One thread, the only one that changes
//! them.
//!
//! Waiting frames are applied as one batch, and of the records of one key that replace each other
//! only the last one is applied: no reader can observe a state in between, since batches become
//! visible as a whole.
//!
//! | record | entry in the ordered index | slot in the hash index | what it replaces |
//! |---|---|---|---|
//! | put | points to the record | points to the record | dies |
//! | put inline, put to a block | has the value, points to the block | removed | dies |
//! | delete | removed | removed | dies |
//! | move in the log, to a block | points to the new home | moved, removed | its former home dies |
//! | drop | removed | removed | dies |
//! | range deletion | - | - | its drops follow |
//!
//! A move or a drop takes effect only if the entry still has the version that it names, so it never
//! overrides a concurrent overwrite. What dies is subtracted from the live bytes of its segment or
//! block, and leaves the cache.
//!
//! Between batches it seals the memtable when it is full (with a mark of its seq, once the log is
//! durable up to it) and, after an open, fills the hash index a little at a time ([`fill`]).

mod cache_transfer;
mod copies;
mod fill;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod histories_tests;
mod load;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use super::entry_at;
use crate::{
    HomeKind, Result,
    api::{clock::NEVER_MS, expiry},
    engine::Engine,
    hash_index::{Found, HashIndex, key_filter::KeyFilter},
    key_hash, key_prefix,
    log::{
        address::Address,
        format::{Body, Extent, Record, put_bytes},
        frame::{Frame, FrameView, Sealed},
    },
    mutation::{Mutation, active, unless},
    ordered_index::{Applier as IndexApplier, Entry, Home, IndexMark},
    visibility::presence::Dead,
};
use bytes::Bytes;
use fill::Filling;
use load::Loader;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// The memtable is also sealed after this much log, so that replay after a crash stays short.
const LOG_BYTES_PER_MARK: u64 = 256 << 20;
/// The applier waits while this many memtables are unflushed,
const SEALED_MEMTABLES_MAX: usize = 3;
/// or while the index has this many runs in its first level beyond those that are merged: reads
/// would become slow.
pub const RUNS_BEHIND_MAX: usize = 22;
/// The same in an index that was found damaged: merges that meet the damage fail until the next
/// open, which sets it aside. The library counts up to 255 runs.
const RUNS_OF_DAMAGED_MAX: usize = 150;
/// Records whose buckets in the hash index are prefetched in parallel.
pub const TOUCHED_TOGETHER: usize = 16;
/// Wait before trying again to seal the memtable, when the index's device is full.
const RETRY: Duration = Duration::from_millis(100);
/// Interval at which it checks whether the flusher has made room for another memtable.
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// Maximum wait for the next frame or another request. Spare memory of frames is freed then.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// State of the applying thread.
pub struct Applier {
    engine: Arc<Engine>,
    opened: Instant,
    index: IndexApplier,
    /// Classes of keys whose home may be inline or a block, or whose slot in the hash index was
    /// evicted. Valid once `filling` has ended.
    elsewhere: Arc<KeyFilter>,
    filling: Option<Filling>,
    log_bytes_since_mark: u64,
    /// The live bytes of blocks are known: all recovered frames are applied.
    accounted: bool,
    /// The frames being applied, and the index of the one with the present record.
    frames: Vec<Arc<Frame>>,
    frame: usize,
    /// Earliest expiry in the frames being applied.
    expires_ms: u64,
}

/// A record to apply.
struct Arrived<'a> {
    key_prefix: u64,
    hash: u64,
    address: Address,
    record: Record<'a>,
    /// Index of its frame.
    frame: usize,
}

impl<'a> Arrived<'a> {
    fn new(frame: usize, (address, record): (Address, Record<'a>)) -> Self {
        Self {
            key_prefix: key_prefix(record.key),
            hash: key_hash(record.key),
            address,
            record,
            frame,
        }
    }
}

impl Arrived<'_> {
    /// Whether nothing remains of `earlier`, the previous record of its key, when both are applied.
    /// An extent remains: its block counts its bytes.
    fn replaces(&self, earlier: &Self) -> bool {
        self.record.body.answers_for_key()
            && matches!(
                earlier.record.body,
                Body::Put { .. } | Body::PutInline { .. } | Body::Delete
            )
            && self.key_prefix == earlier.key_prefix
            && self.record.key == earlier.record.key
    }
}

/// What a put or delete replaced: its entry in the ordered index, and its slot in the hash index.
/// With neither, no known object was replaced. With a slot only, it is an object in the flash log
/// of about this length, at this address if the slot was the same key's.
type Replaced = (Option<Entry>, Option<Found>);

/// A home in the flash log.
const fn flash(address: Address) -> Home {
    Home::Flash {
        address: address.bytes(),
    }
}

impl Applier {
    /// Creates the store's applier.
    ///
    /// # Errors
    /// If there is one already; errors of the device.
    pub fn new(engine: Arc<Engine>) -> Result<Self> {
        let (opened, index) = (Instant::now(), engine.index.applier()?);
        let loader = Loader::begin(&engine)?;
        engine.scan_cache.changing(index.applied_seq(), std::iter::empty());
        engine.refilling.store(true, Ordering::Release);
        Ok(Self {
            engine,
            opened,
            index,
            elsewhere: Arc::default(),
            filling: Some(Filling::begin(loader)),
            log_bytes_since_mark: 0,
            accounted: false,
            frames: Vec::new(),
            frame: 0,
            expires_ms: NEVER_MS,
        })
    }

    /// Runs until the log is closed and everything is applied.
    pub fn run(mut self) {
        loop {
            let filling = self.filling.as_ref();
            let wait = if filling.is_some_and(Filling::goes_on) {
                Duration::ZERO
            } else if self.is_mark_due() {
                RETRY
            } else {
                IDLE_MAX
            };
            if !filling.is_some_and(Filling::holds_up_frames) {
                let engine = &self.engine;
                let called = || self.mark_asked().is_some() || engine.log.is_closed();
                let began = Instant::now();
                let frames = engine.log.next_to_apply(wait, called);
                if !frames.is_empty() {
                    self.apply_frames(&frames);
                } else if engine.log.is_closed() {
                    break;
                } else if began.elapsed() >= IDLE_MAX {
                    engine.log.pool.trim();
                }
            }
            if let Err(error) = self.between_frames() {
                self.engine.log.writer.fail(&format!("the index cannot go on: {error}"));
            }
        }
    }

    /// Applies consecutive frames as one batch: snapshots are taken before or after it.
    fn apply_frames(&mut self, frames: &[Arc<Frame>]) {
        let views: Vec<_> = frames.iter().map(|frame| frame.view()).collect();
        let after = self.index.applied_seq();
        // After the log has failed, a frame may contain commits that did not become durable. They
        // are left out: no reader saw them, and nothing that this applier does now is persisted, so
        // the next open decides about them.
        let durable_seq = self.engine.log.writer.durable_seq();
        // A recovered frame may begin with commits that the index has persisted.
        let count = views.iter().map(|view| view.record_count() as usize).sum();
        let mut records: Vec<Arrived<'_>> = Vec::with_capacity(count);
        for (frame, view) in views.iter().enumerate() {
            let is_visible = |seq| seq > after && view.is_visible(seq, durable_seq);
            let visible = view.records().filter(|(_, record)| is_visible(record.seq));
            records.extend(visible.map(|found| Arrived::new(frame, found)));
        }
        self.frames.extend_from_slice(frames);
        let order = in_key_order(&records);
        self.engine.log.note_folded(records.len(), order.len());
        let last_seq = views.iter().map(FrameView::last_seq).fold(after, u64::max);
        let changing = order.iter().map(|(_, number)| &records[*number].record);
        let changing = changing.filter(|record| record.body.changes_object());
        self.engine
            .scan_cache
            .changing(last_seq, changing.map(|record| record.key));
        for together in order.chunks(TOUCHED_TOGETHER) {
            let arrived = || together.iter().map(|(_, number)| &records[*number]);
            self.engine.hash_index.touch(arrived().map(|arrived| arrived.hash));
            arrived().for_each(|arrived| self.apply_record(arrived));
        }
        drop(records);
        self.frames.clear();
        let log_bytes = views.iter().map(|view| view.bytes().len() as u64).sum();
        self.log_bytes_since_mark += log_bytes;
        self.engine.checkpoints.applied(log_bytes);
        drop(views);
        if last_seq > after {
            self.copy_step(last_seq);
        }
        self.index.applied(last_seq);
        self.engine.log.applied(frames, last_seq);
        // After applying: a pass that began before and does not see these objects is notified of
        // them here, and one that begins now sees them.
        let expires_ms = std::mem::replace(&mut self.expires_ms, NEVER_MS);
        if expires_ms != NEVER_MS {
            self.engine.expiring.put(expires_ms);
        }
    }

    fn apply_record(&mut self, arrived: &Arrived<'_>) {
        self.frame = arrived.frame;
        let Arrived {
            hash, address, record, ..
        } = arrived;
        let (hash, address) = (*hash, *address);
        match record.body {
            Body::Put { value } => self.put_flash(hash, address, record, value.len() as u64),
            Body::PutInline { value } => {
                self.replace(hash, record.key);
                let home = Home::Inline(Bytes::copy_from_slice(value));
                self.put_elsewhere(hash, record, home, value.len() as u64);
            }
            Body::PutLarge { extent } => {
                self.replace(hash, record.key);
                self.put_elsewhere(hash, record, Home::Block(extent), extent.length);
                self.engine.large.account_live(extent.block, extent.extent_bytes);
            }
            Body::Delete => {
                self.replace(hash, record.key);
                self.index.remove_with_hash(record.key, hash, record.seq);
            }
            Body::MoveToFlash { version, value } => {
                self.move_to_flash(hash, address, record, version, value.len() as u64)
            }
            Body::MoveToBlock { version, extent } => self.move_to_block(hash, record, version, extent),
            Body::Drop { version } => self.drop_value(hash, record, version),
            // Entries that it hides are recognised by their versions; the following drops remove
            // them.
            Body::DeleteRange { .. } => {}
        }
        if record.body.answers_for_key()
            && let Some(expires_ms) = expiry::of(record.attributes)
        {
            self.expires_ms = self.expires_ms.min(expires_ms);
        }
    }

    fn put_flash(&mut self, hash: u64, address: Address, record: &Record<'_>, length: u64) {
        let old = self.old_elsewhere(hash, record.key);
        let replaced = (old, self.set_slot(hash, address, record.record_bytes() as u64));
        self.account_replaced(record.key, &replaced);
        self.cache_instead(&replaced, address);
        let entry = entry_at(record, flash(address), length);
        self.index.insert_with_hash(record.key, hash, &entry, record.seq);
        self.engine.accounting.add(HomeKind::Flash, length);
        self.value_lives(address, record);
    }

    fn put_elsewhere(&mut self, hash: u64, record: &Record<'_>, home: Home, length: u64) {
        self.add_elsewhere(hash);
        self.engine.accounting.add(home.kind(), length);
        let entry = entry_at(record, home, length);
        self.index.insert_with_hash(record.key, hash, &entry, record.seq);
    }

    /// Removes the key's object from the hash index and the accounting.
    fn replace(&mut self, hash: u64, key: &[u8]) {
        let old = self.old_elsewhere(hash, key);
        let replaced = (old, self.remove_slot(hash));
        self.account_replaced(key, &replaced);
        self.uncache(&replaced);
    }

    fn move_to_flash(&mut self, hash: u64, address: Address, record: &Record<'_>, version: u64, length: u64) {
        let Some(entry) = self.entry_of_version(hash, record.key, version) else {
            return;
        };
        let home = flash(address);
        // A copy stays with its value for any move within the log.
        let has_copy = entry.copy.is_some();
        let slot = self.set_slot(hash, address, record.record_bytes() as u64);
        self.cache_at(&entry, record.key, &home);
        self.account_replaced(record.key, &(Some(entry), slot));
        self.engine.accounting.add(HomeKind::Flash, length);
        self.value_lives(address, record);
        let mut entry = entry_at(record, home, length);
        entry.copy = has_copy.then(|| Bytes::copy_from_slice(record.body.value()));
        self.index.insert_with_hash(record.key, hash, &entry, record.seq);
    }

    fn move_to_block(&mut self, hash: u64, record: &Record<'_>, version: u64, extent: Extent) {
        let current = self.look_up(hash, record.key);
        // Live first, then dead if the move is obsolete: so the block never seems unused in
        // between.
        self.engine.large.account_live(extent.block, extent.extent_bytes);
        let current = match current {
            Ok(current) => current.filter(|entry| has_version(entry, version)),
            // It may be the value of a lost entry: it counts as live, so that `repair` finds it.
            Err(_) => return,
        };
        let Some(entry) = current else {
            self.engine.large.account_dead(extent.block, extent.extent_bytes);
            return;
        };
        let slot = self.remove_slot_of(hash, &entry);
        let home = Home::Block(extent);
        self.cache_at(&entry, record.key, &home);
        self.account_replaced(record.key, &(Some(entry), slot));
        self.put_elsewhere(hash, record, home, extent.length);
    }

    fn drop_value(&mut self, hash: u64, record: &Record<'_>, version: u64) {
        let Some(entry) = self.entry_of_version(hash, record.key, version) else {
            return;
        };
        let slot = self.remove_slot_of(hash, &entry);
        // Counted here, where it takes effect: sweeps, log GC and block GC may each have committed
        // a drop of the same value.
        if record.seq > self.engine.recovered_seq {
            let presence = self.engine.presence();
            count_drop(&self.engine, presence.dead(record.key, version, &entry.attributes));
        }
        let replaced = (Some(entry), slot);
        self.account_replaced(record.key, &replaced);
        self.uncache(&replaced);
        self.index.remove_with_hash(record.key, hash, record.seq);
    }

    /// Removes the slot of an entry, if it has one. Returns its contents.
    fn remove_slot_of(&mut self, hash: u64, entry: &Entry) -> Option<Found> {
        let is_in_log = entry.home.kind() == HomeKind::Flash;
        is_in_log.then(|| self.remove_slot(hash)).flatten()
    }

    /// The key's entry, if it still has this version, the one named by a move or a drop.
    fn entry_of_version(&self, hash: u64, key: &[u8], version: u64) -> Option<Entry> {
        self.current_entry(hash, key)
            .filter(|entry| has_version(entry, version))
    }

    /// The key's entry, if the hash index cannot tell what it is.
    fn old_elsewhere(&self, hash: u64, key: &[u8]) -> Option<Entry> {
        let class = self.engine.hash_index.class_hash(hash);
        if self.filling.is_none() && !self.elsewhere.may_contain(class) {
            return None;
        }
        self.current_entry(hash, key)
    }

    /// The key's present entry.
    fn current_entry(&self, hash: u64, key: &[u8]) -> Option<Entry> {
        // The replaced value is then counted as live until `repair` counts again: space is lost,
        // and no data.
        self.look_up(hash, key).unwrap_or_default()
    }

    /// The same; an error if it cannot be read.
    fn look_up(&self, hash: u64, key: &[u8]) -> Result<Option<Entry>> {
        let index = &self.engine.index;
        index.get_with_hash(key, hash).inspect_err(|error| {
            if !index.has_lost(key) {
                tracing::error!(%error, "the index cannot say what a commit replaces");
            }
        })
    }

    fn account_replaced(&self, key: &[u8], replaced: &Replaced) {
        match replaced {
            (None, None) => {}
            (None, Some(found)) => {
                self.engine.accounting.remove_average_flash();
                let log = &self.engine.log;
                log.value_died(found.address.bytes(), found.read_bytes_max);
            }
            (Some(entry), slot) => {
                self.engine.accounting.remove(entry.home.kind(), entry.length);
                match entry.home {
                    Home::Block(extent) => self.engine.large.account_dead(extent.block, extent.extent_bytes),
                    Home::Flash { address } => {
                        let bytes = counted_bytes(key, entry, address, slot.as_ref());
                        self.engine.log.value_died(address, bytes);
                    }
                    Home::Inline(_) => {}
                }
            }
        }
    }

    /// A value counts with the length in its slot, when it becomes live as when it dies.
    fn value_lives(&self, address: Address, record: &Record<'_>) {
        let bytes = HashIndex::read_bytes_max(record.record_bytes() as u64);
        self.engine.log.segments.value_lives(address.bytes(), bytes);
        if let Some((sealed, at)) = self.in_frame(address) {
            sealed.lives(at, bytes);
        }
    }

    /// The frame of the present record, which is at an address, and the offset in it.
    fn in_frame(&self, address: Address) -> Option<(&Sealed, usize)> {
        let frame = self.frames.get(self.frame)?;
        let offset = address.bytes() % self.engine.log.segments.segment_bytes();
        let at = offset.checked_sub(frame.offset)?;
        Some((frame.sealed()?, usize::try_from(at).ok()?))
    }

    fn between_frames(&mut self) -> Result<()> {
        if !self.accounted && self.index.applied_seq() >= self.engine.recovered_seq {
            self.engine.large.accounting_complete();
            self.accounted = true;
        }
        let asked = self.mark_asked();
        if let Some(seq) = asked {
            // Once: if the index has no room, the waiting threads must ask again.
            let wanted = &self.engine.mark_wanted;
            let _ = wanted.compare_exchange(seq, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        if self.engine.options.read_only {
            // Nothing is persisted: replayed records stay in memory.
        } else if asked.is_some() || self.is_mark_due() {
            self.rotate()?;
        }
        self.fill_step();
        Ok(())
    }

    fn is_mark_due(&self) -> bool {
        let is_due = self.index.is_full() || self.log_bytes_since_mark >= LOG_BYTES_PER_MARK;
        is_due && !self.engine.options.read_only
    }

    /// The seq up to which the index must be persisted, if a mark now would include it and no flush
    /// is running.
    fn mark_asked(&self) -> Option<u64> {
        let engine = &self.engine;
        let wanted = engine.mark_wanted.load(Ordering::Acquire);
        let is_new = wanted > engine.persisted_seq.load(Ordering::Acquire) && wanted <= self.index.applied_seq();
        (is_new && engine.index.sealed_count() == 0).then_some(wanted)
    }

    /// Seals the memtable with its mark and starts its flush.
    fn rotate(&mut self) -> Result<()> {
        let engine = &self.engine;
        let usual = if engine.index.is_damaged() {
            RUNS_OF_DAMAGED_MAX
        } else {
            RUNS_BEHIND_MAX
        };
        let runs_behind_max = engine.runs_behind_max(usual);
        while engine.index.sealed_count() >= SEALED_MEMTABLES_MAX || engine.index.runs_behind() >= runs_behind_max {
            if engine.log.writer.has_failed() || engine.log.is_closed() {
                break;
            }
            if engine.log.index_full.holds_up_applier() {
                return Ok(());
            }
            engine.index_work.raise();
            std::thread::sleep(ROOM_LOOK);
        }
        // The log is made durable before the memtable is sealed, not before it is flushed: the
        // library flushes every memtable that is sealed by then, so one sealed concurrently with a
        // flush would be persisted ahead of the log.
        unless(Mutation::LogBeforeMark, || {
            engine.log.make_durable(self.index.applied_seq())
        })?;
        let applied_seq = self.index.applied_seq();
        let mark = IndexMark {
            applied_seq,
            payload: engine.mark_payload(applied_seq).encode().into(),
        };
        self.index.rotate(mark)?;
        self.log_bytes_since_mark = 0;
        engine.index_work.raise();
        Ok(())
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.engine.log.applier_ends();
    }
}

/// Whether a move or a drop of this version is of the entry.
fn has_version(entry: &Entry, version: u64) -> bool {
    entry.version.0 == version || active(Mutation::MoveVersion)
}

/// Indexes of the records to apply, each with the prefix of its key. They are sorted by key, since
/// inserting into the memtable is up to twice as fast then; records of one key are in the order of
/// their seqs, and of those that replace each other only the last is kept. Pairs of prefix and
/// index are sorted, since they are shorter than the records.
fn in_key_order(records: &[Arrived<'_>]) -> Vec<(u64, usize)> {
    let numbered = records.iter().enumerate();
    let mut order: Vec<_> = numbered.map(|(number, arrived)| (arrived.key_prefix, number)).collect();
    order.sort_unstable_by(|(prefix, number), (other_prefix, other)| {
        let by_prefix = prefix.cmp(other_prefix);
        let by_key = || records[*number].record.key.cmp(records[*other].record.key);
        by_prefix.then_with(by_key).then(number.cmp(other))
    });
    order.dedup_by(|next, kept| {
        let replaces = records[next.1].replaces(&records[kept.1]);
        if replaces {
            std::mem::swap(next, kept);
        }
        replaces
    });
    order
}

/// The bytes that the segment counts for an entry's value: the length in its slot. Without a slot,
/// the length of a put of it.
fn counted_bytes(key: &[u8], entry: &Entry, address: u64, slot: Option<&Found>) -> u64 {
    let slot = slot.filter(|found| found.address.bytes() == address);
    slot.map_or_else(
        || HashIndex::read_bytes_max(put_bytes(key.len(), entry.attributes.len(), entry.length)),
        |found| found.read_bytes_max,
    )
}

/// Counts a drop that takes effect, by reason: a value that no range hides was dropped because it
/// had expired.
fn count_drop(engine: &Engine, why: Option<Dead>) {
    let counter = match why {
        Some(Dead::Deleted) => &engine.expire_counters.dropped_deleted,
        Some(Dead::Expired) | None => &engine.expire_counters.dropped_expired,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}
