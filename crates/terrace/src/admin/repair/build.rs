//! The new index: reads the sources a second time and takes from them what the survey decided.
//!
//! Invariants:
//! - A value is in the new index only if its checksum was just verified, or if it is the newest
//!   version of its key, verifies nowhere, and is named in the report.
//! - Entries get seqs of their own, one per memtable, starting at 1. Only the mark matters to later
//!   commits; its seq is at least every version and every seq of the log. So nothing is replayed,
//!   no version is given twice, and an unused seq is skipped.
//!
//! On failure: the error is returned; only `index.new` was written.

use super::{
    OldIndex, install,
    notes::Notes,
    survey::{Place, Survey, for_each_record},
};
use crate::{
    Error, Options, Result, Version,
    accounting::Accounting,
    blocks::{LargeSpace, ScannedExtent},
    engine::mark::MarkPayload,
    log::{
        address::Address,
        format::{Body, Record},
        reader::{Found, read_record},
        segments::Segments,
    },
    ordered_index::{ADDRESS_LIMIT, Applier, Entry, Home, INLINE_BYTES_LIMIT, IndexMark, IndexOptions, OrderedIndex},
    write::entry_at,
};
use bytes::Bytes;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes of a record read at once to check whether it exists.
const EXPECTED_BYTES_MAX: usize = 64 << 10;
/// Runs in the first level before they are merged on the way.
const FIRST_LEVEL_RUNS_MAX: usize = 8;

/// Builds the new index.
pub struct Builder<'a> {
    directory: PathBuf,
    options: IndexOptions,
    segments: &'a Segments,
    large: &'a LargeSpace,
    index: Arc<OrderedIndex>,
    applier: Applier,
    seq: u64,
    accounting: Accounting,
    objects: u64,
    unsound: HashMap<Box<[u8]>, Unsound>,
    /// Values are read before they are taken.
    verifies: bool,
}

/// A newest version whose value did not verify where it should be.
struct Unsound {
    entry: Entry,
    reason: String,
    /// The record header there is the key's own, so part of the value may be readable.
    is_readable: bool,
    /// No record of the log names it: it may never have been committed.
    is_orphan: bool,
}

impl<'a> Builder<'a> {
    /// Starts an empty index in `directory`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn new(directory: &Path, options: &Options, segments: &'a Segments, large: &'a LargeSpace) -> Result<Self> {
        let options = IndexOptions {
            cache_bytes: options.tuning.index_cache_bytes,
            ..IndexOptions::on_tier(options.tuning.memtable_bytes, options.flash_capacity_bytes)
        };
        let (index, _) = OrderedIndex::open(directory, options)?;
        let index = Arc::new(index);
        Ok(Self {
            directory: directory.to_owned(),
            options,
            segments,
            large,
            applier: index.applier()?,
            index,
            seq: 1,
            accounting: Accounting::default(),
            objects: 0,
            unsound: HashMap::new(),
            verifies: true,
        })
    }

    /// Uses the log's records of values in blocks without reading these values.
    pub const fn trust_the_log(&mut self) {
        self.verifies = false;
    }

    /// Takes what records in the log hold or name.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn add_from_log(&mut self, survey: &mut Survey, notes: &mut Notes) -> Result<()> {
        for_each_record(self.segments, |address, record| {
            let Some(known) = survey.keys.get_mut(record.key).filter(|_| record.body.names_value()) else {
                return Ok(());
            };
            if (known.version, known.rank, known.place) != (record.version(), record.seq, Place::Log) {
                return Ok(());
            }
            known.place = Place::Settled;
            let entry = entry_of(address, record);
            if !is_possible(&entry) {
                notes.add_key(record.key, "its record has an impossible length or place; it is lost");
                return Ok(());
            }
            self.add(record.key, entry, Some(record.checksum), false)
        })
    }

    /// Takes what only headers in blocks name.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn add_from_blocks(&mut self, survey: &mut Survey, notes: &mut Notes) -> Result<()> {
        for block in survey.blocks_wanted() {
            let Ok(scan) = self.large.scan_block(block) else {
                continue;
            };
            for extent in scan.flatten() {
                let offset = extent.offset;
                let Some(known) = survey.keys.get_mut(&extent.header.key[..]) else {
                    continue;
                };
                if known.place != (Place::Extent { block, offset }) {
                    continue;
                }
                known.place = Place::Settled;
                let entry = entry_of_extent(block, &extent, known.version);
                if !is_possible(&entry) {
                    notes.add_key(
                        &extent.header.key,
                        "its extent has an impossible length or place; it is lost",
                    );
                    continue;
                }
                self.add(&extent.header.key, entry, None, extent.version.is_none())?;
            }
        }
        Ok(())
    }

    /// Takes the entries that only the old index has: inline values, and entries whose values'
    /// records are damaged or lost.
    ///
    /// # Errors
    /// The new index's. What the old one refuses was noted in the survey.
    pub fn add_from_old_index(&mut self, old: &OldIndex, survey: &mut Survey, notes: &mut Notes) -> Result<()> {
        for (key, known) in &mut survey.keys {
            if known.place != Place::OldIndex {
                continue;
            }
            let Ok(Some(entry)) = old.get(key) else { continue };
            if known.version != entry.version.0 {
                continue;
            }
            known.place = Place::Settled;
            match entry.home {
                Home::Inline(_) => self.insert(key, &entry)?,
                Home::Block(_) => {
                    let checksum = Some(entry.checksum);
                    self.add(key, entry, checksum, false)?;
                }
                Home::Flash { address } => {
                    if !self.has_record(address, key, &entry) {
                        let note = "is not in the log any more; its entry is kept, so that reading it says so";
                        notes.add_key(key, &format!("version {} {note}", entry.version));
                    }
                    self.insert(key, &entry)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the log has the value of an entry at its address.
    fn has_record(&self, address: u64, key: &[u8], entry: &Entry) -> bool {
        let Some(address) = Address::new(address) else {
            return false;
        };
        let expected_bytes = usize::try_from(entry.length)
            .unwrap_or(usize::MAX)
            .min(EXPECTED_BYTES_MAX);
        let found = read_record(self.segments, address, expected_bytes, |record| {
            record.key == key && record.version() == entry.version.0 && record.checksum == entry.checksum
        });
        matches!(found, Ok((Found::Record(true), _)))
    }

    /// Searches other places for versions that did not verify at their expected place; then decides
    /// about the others.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn add_from_elsewhere(&mut self, notes: &mut Notes) -> Result<()> {
        if self.unsound.is_empty() {
            return Ok(());
        }
        for_each_record(self.segments, |address, record| {
            let entry = entry_of(address, record);
            if record.body.names_value() && is_possible(&entry) {
                self.try_instead(record.key, entry)?;
            }
            Ok(())
        })?;
        for block in self.large.blocks() {
            let Ok(scan) = self.large.scan_block(block.number) else {
                continue;
            };
            for extent in scan.flatten() {
                let Some(version) = extent.version else { continue };
                let entry = entry_of_extent(block.number, &extent, version);
                if is_possible(&entry) {
                    self.try_instead(&extent.header.key, entry)?;
                }
            }
        }
        for (key, unsound) in std::mem::take(&mut self.unsound) {
            let Unsound {
                entry,
                reason,
                is_readable,
                is_orphan,
            } = unsound;
            let version = entry.version;
            if is_orphan {
                notes.add_key(&key, &format!("not taken after all: {reason}"));
            } else if is_readable {
                notes.add_key(
                    &key,
                    &format!("version {version} is damaged ({reason}); its entry is kept, so that reading it says so"),
                );
                self.insert(&key, &entry)?;
            } else {
                notes.add_key(&key, &format!("version {version} is lost ({reason})"));
            }
        }
        Ok(())
    }

    fn try_instead(&mut self, key: &[u8], mut entry: Entry) -> Result<()> {
        let Some(unsound) = self.unsound.get(key) else {
            return Ok(());
        };
        if entry.version != unsound.entry.version || entry.home == unsound.entry.home {
            return Ok(());
        }
        if let Ok(checksum) = self.verify(key, &entry) {
            entry.checksum = checksum;
            self.unsound.remove(key);
            self.insert(key, &entry)?;
        }
        Ok(())
    }

    /// Verifies a value and inserts its entry, or keeps it aside. `checksum` is the one in the log.
    fn add(&mut self, key: &[u8], mut entry: Entry, checksum: Option<u32>, is_orphan: bool) -> Result<()> {
        if !self.verifies && checksum.is_some() {
            return self.insert(key, &entry);
        }
        match self.verify(key, &entry) {
            Ok(found) if checksum.is_none_or(|checksum| checksum == found) => {
                entry.checksum = found;
                self.insert(key, &entry)
            }
            outcome => {
                let reason = match outcome {
                    Ok(_) => "its checksum is not the one in the log".to_owned(),
                    Err(error) => error.to_string(),
                };
                let is_readable = self.has_header(key, &entry);
                let unsound = Unsound {
                    entry,
                    reason,
                    is_readable,
                    is_orphan,
                };
                self.unsound.insert(key.into(), unsound);
                Ok(())
            }
        }
    }

    /// Reads the value of an entry and returns its CRC-32C. Values in the log were checked with
    /// their frame.
    fn verify(&self, key: &[u8], entry: &Entry) -> Result<u32> {
        let Home::Block(extent) = entry.home else {
            return Ok(entry.checksum);
        };
        let reader = self.large.open_value(&extent)?;
        if reader.header()?.key != key {
            return Err(Error::corruption(
                format!("block {:016x} at offset {}", extent.block, extent.offset),
                "the value there is another key's",
            ));
        }
        reader.verify()
    }

    fn has_header(&self, key: &[u8], entry: &Entry) -> bool {
        let Home::Block(extent) = entry.home else {
            return false;
        };
        let reader = self.large.open_value(&extent);
        reader
            .and_then(|reader| reader.header())
            .is_ok_and(|header| header.key == key)
    }

    fn insert(&mut self, key: &[u8], entry: &Entry) -> Result<()> {
        self.applier.insert(key, entry, self.seq);
        self.accounting.add(entry.home.kind(), entry.length);
        if let Home::Block(extent) = entry.home {
            self.large.account_live(extent.block, extent.extent_bytes);
        }
        self.objects += 1;
        if self.applier.is_full() {
            self.flush(Bytes::new())?;
            self.seq += 1;
        }
        Ok(())
    }

    /// Makes everything inserted so far durable under a mark of the present seq.
    fn flush(&mut self, payload: Bytes) -> Result<()> {
        self.applier.applied(self.seq);
        self.applier.rotate(IndexMark {
            applied_seq: self.seq,
            payload,
        })?;
        self.index.flush_sealed(self.seq)?;
        while self.index.l0_runs() > FIRST_LEVEL_RUNS_MAX && self.index.compact(self.seq)? {}
        Ok(())
    }

    /// Ends the index with a mark at `highest_seq` or later, and opens it once more to see that it
    /// is whole. Returns the number of objects.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn finish(mut self, highest_seq: u64) -> Result<u64> {
        self.seq = self.seq.max(highest_seq);
        // Something may have expired already.
        let payload = MarkPayload {
            store_id: self.segments.store_id(),
            in_use: self.segments.in_use(self.seq),
            earliest_ms: 0,
            homes: self.accounting.homes(),
            live: Some(self.large.account()),
            ..MarkPayload::empty()
        };
        let expected = IndexMark {
            applied_seq: self.seq,
            payload: payload.encode().into(),
        };
        self.flush(expected.payload.clone())?;
        let Self {
            applier,
            index,
            directory,
            options,
            objects,
            ..
        } = self;
        drop(applier);
        drop(index);
        let (_, mark) = OrderedIndex::open(&directory, options)?;
        if mark != Some(expected) {
            return Err(Error::corruption(
                install::NEW,
                "the new index does not have the mark it was given; run `terrace repair` again",
            ));
        }
        Ok(objects)
    }
}

/// The entry a record speaks of.
fn entry_of(address: Address, record: &Record<'_>) -> Entry {
    let (home, length) = match record.body {
        Body::PutInline { value } => (Home::Inline(Bytes::copy_from_slice(value)), value.len() as u64),
        Body::PutLarge { extent } | Body::MoveToBlock { extent, .. } => (Home::Block(extent), extent.length),
        Body::Put { value } | Body::MoveToFlash { value, .. } => {
            let address = address.bytes();
            (Home::Flash { address }, value.len() as u64)
        }
        Body::Delete | Body::Drop { .. } | Body::DeleteRange { .. } => (Home::Inline(Bytes::new()), 0),
    };
    entry_at(record, home, length)
}

fn entry_of_extent(block: u64, extent: &ScannedExtent, version: u64) -> Entry {
    Entry {
        version: Version(version),
        length: extent.header.length,
        checksum: 0,
        home: Home::Block(extent.at(block)),
        attributes: Bytes::copy_from_slice(&extent.header.attributes),
        copy: None,
    }
}

/// Whether an entry has a stored form.
fn is_possible(entry: &Entry) -> bool {
    match &entry.home {
        Home::Inline(value) => value.len() < INLINE_BYTES_LIMIT,
        Home::Flash { address } => *address < ADDRESS_LIMIT,
        Home::Block(extent) => extent.is_possible(),
    }
}
