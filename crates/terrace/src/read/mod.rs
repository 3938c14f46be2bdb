//! The read path: pending frames → hash index (frames, cache, or one flash read) → ordered index →
//! home.
//!
//! Data found by an address is trusted only if key and checksums match; otherwise the lookup is
//! repeated, since a move or an overwrite may have happened in between. A persistent mismatch is
//! damage of that object alone.
//!
//! A hit of the hash index is the key's newest applied record if its key matches (see
//! `hash_index`), so no other lookup is needed. Pending frames are searched first, and a frame is
//! pending until the applier has updated the indexes; so a read never misses a commit that was
//! acknowledged before it began. Where there is no slot, and the filter of keys elsewhere does not
//! have the key, there is no such object. A `Sync` commit is neither found there nor applied before
//! it is durable, so a crash takes back nothing that was read; until then reads return the previous
//! state, and do not wait.
//!
//! An object that is found may be dead: expired, or hidden by a range deletion. The state that
//! decides this is taken before the key is looked up (`presence`).

mod describe;
mod from_log;
mod in_order;
pub mod multi_get;
mod pieces;
pub mod reader;
pub mod scan;
mod small_reads;
pub mod snapshot;

use crate::cache::{CachedValue, Place, chunk::Pair};
use crate::{
    Error, HomeKind, Object, RamAnswer, Result, Version,
    blocks::{Source, ValueReader},
    engine::Engine,
    hash_index, key_hash,
    log::{
        address::Address,
        format::{Body, Extent, Record, record_bytes_max},
        reader::{Found, read_record},
    },
    metrics::{count, counters::AnsweredBy},
    ordered_index::{Entry, Home},
    visibility::presence::Presence,
    write::{check_key, entry_at},
};
use bytes::Bytes;
use describe::object_info;
pub use describe::{Described, decode_attributes, find_entry, head, head_in_ram};
pub use pieces::is_cached;

/// Attempts of a lookup before a mismatch counts as damage.
const ATTEMPTS: usize = 4;

/// A whole object as it is found: attributes still encoded.
pub struct Hit {
    version: Version,
    attributes: Bytes,
    value: Bytes,
    /// The checksum of the value, if known.
    checksum: Option<u32>,
    home: HomeKind,
}

impl Hit {
    /// An entry's object with its value.
    fn of(entry: &Entry, value: Bytes) -> Self {
        Self {
            version: entry.version,
            attributes: entry.attributes.clone(),
            value,
            checksum: Some(entry.checksum),
            home: entry.home.kind(),
        }
    }

    /// A copy of a pair of a chunk.
    fn of_pair(pair: &Pair<'_>) -> Self {
        Self {
            version: Version(pair.version),
            attributes: Bytes::copy_from_slice(pair.attributes),
            value: Bytes::copy_from_slice(pair.value),
            checksum: Some(pair.checksum),
            home: pair.home,
        }
    }

    /// Length of the value.
    const fn bytes(&self) -> u64 {
        self.value.len() as u64
    }

    /// The checksum of the value.
    fn checksum(&self) -> u32 {
        self.checksum.unwrap_or_else(|| crc32c::crc32c(&self.value))
    }

    /// The object, unless it is dead.
    fn living(self, key: &[u8], presence: &Presence<'_>) -> Option<Self> {
        let dead = presence.dead(key, self.version.0, &self.attributes);
        dead.is_none().then_some(self)
    }

    /// The object for the caller.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the attributes are not.
    pub fn into_object(self) -> Result<Object> {
        Ok(Object {
            version: self.version,
            attributes: decode_attributes(&self.attributes)?,
            value: self.value,
        })
    }
}

/// From a place in the log, as cached. (Inline values and values in blocks have an entry:
/// [`Hit::of`].)
impl From<CachedValue> for Hit {
    fn from(cached: CachedValue) -> Self {
        Self {
            version: Version(cached.version),
            attributes: cached.attributes,
            value: cached.value,
            checksum: None,
            home: HomeKind::Flash,
        }
    }
}

/// Reads an object whole.
pub fn get(engine: &Engine, key: &[u8]) -> Result<Option<Hit>> {
    check_key(key)?;
    let hash = key_hash(key);
    let presence = engine.presence();
    match locate(engine, hash, key, &presence) {
        Located::Here(found) => return Ok(counted(engine, found)),
        Located::InBlock => return get_by_entry(engine, key, || find_entry(engine, key)),
        Located::Record(found) => {
            if let Some(hit) = read_flash(engine, key, found.address, found.read_bytes_max, None)? {
                return Ok(hit.living(key, &presence));
            }
        }
        Located::Elsewhere => {}
    }
    get_by_entry(engine, key, || {
        let entry = presence.living(key, engine.index.get_for_caller(key, hash)?);
        Ok(entry.map(Described::from))
    })
}

/// The answer to a get; a hit is counted already.
fn counted(engine: &Engine, found: Option<Hit>) -> Option<Hit> {
    if found.is_none() {
        engine.metrics.missed();
    }
    found
}

/// Location of a key's newest value, as far as RAM tells.
enum Located {
    /// In a pending frame, whole; or there is none.
    Here(Option<Hit>),
    /// In a block, by a pending frame. It is looked up again: if overwritten, it may be applied and
    /// its block deleted by now.
    InBlock,
    /// In the log, if the record there is the key's.
    Record(hash_index::Found),
    /// In the ordered index.
    Elsewhere,
}

fn locate(engine: &Engine, hash: u64, key: &[u8], presence: &Presence<'_>) -> Located {
    match find_pending(engine, hash, key, hit) {
        Some(Pending::Large(_)) => Located::InBlock,
        Some(Pending::Deleted) => Located::Here(None),
        Some(Pending::Small(hit)) => {
            let found = hit.living(key, presence);
            if let Some(hit) = &found {
                engine.metrics.answered(AnsweredBy::Overlay, hit.bytes());
            }
            Located::Here(found)
        }
        None => match engine.hash_index.lookup(hash) {
            Some(found) => Located::Record(found),
            None if engine.knows_absent(hash) => Located::Here(None),
            None => Located::Elsewhere,
        },
    }
}

/// Result of a lookup of a key in pending frames.
enum Pending<S> {
    Deleted,
    Small(S),
    Large(Box<Entry>),
}

/// Looks up a key in pending frames; for a small value returns the result of `take` for its record.
fn find_pending<S>(engine: &Engine, hash: u64, key: &[u8], take: impl FnOnce(&Record<'_>) -> S) -> Option<Pending<S>> {
    let durable_seq = || engine.log.writer.durable_seq();
    engine
        .log
        .frames
        .find(hash, key, durable_seq, |record| match record.body {
            Body::Delete => Pending::Deleted,
            Body::PutLarge { extent } => Pending::Large(Box::new(entry_at(record, Home::Block(extent), extent.length))),
            _ => Pending::Small(take(record)),
        })
}

fn hit(record: &Record<'_>) -> Hit {
    Hit {
        version: Version(record.version()),
        attributes: Bytes::copy_from_slice(record.attributes),
        value: Bytes::copy_from_slice(record.body.value()),
        checksum: Some(record.checksum),
        home: small_home(&record.body),
    }
}

/// Where the value of a record is once that is applied. It was decided by the limits of its time,
/// not by today's.
const fn small_home(body: &Body<'_>) -> HomeKind {
    match body {
        Body::PutInline { .. } => HomeKind::Inline,
        _ => HomeKind::Flash,
    }
}

/// Reads the record at an address, by the cache or from flash. `None` if it is not `key`'s, or not
/// `version`.
fn read_flash(
    engine: &Engine,
    key: &[u8],
    address: Address,
    expected_bytes: u64,
    version: Option<Version>,
) -> Result<Option<Hit>> {
    let place = match flash_in_ram(engine, key, address, version) {
        InRam::Read(found) => return Ok(found),
        InRam::Absent(place) => place,
    };
    if let Some(hit) = in_chunk(engine, key, version) {
        return Ok(Some(hit));
    }
    let read = engine.paces.flash.read();
    // A record is shorter than a segment.
    let outcome = read_record(&engine.log.segments, address, expected_bytes as usize, |record| {
        is_wanted(record, key, version).then(|| CachedValue::of_record(record))
    });
    drop(read);
    let (found, device_reads) = outcome?;
    count(&engine.metrics.flash_reads, device_reads);
    let Found::Record(Some(read)) = found else {
        count(&engine.metrics.false_flash_reads, device_reads);
        return Ok(None);
    };
    Ok(Some(take_read(engine, place, key, read)))
}

/// Result of a lookup of a place of the log in RAM.
enum InRam {
    /// The record was read; it is returned if it is the requested one.
    Read(Option<Hit>),
    /// Not in RAM, with the cache's key for the place.
    Absent(Option<Place>),
}

/// The record at an address, from a frame or the cache.
fn flash_in_ram(engine: &Engine, key: &[u8], address: Address, version: Option<Version>) -> InRam {
    let Some(written) = engine.log.segments.place(address.bytes()) else {
        return InRam::Absent(None);
    };
    // Records of an evicted frame are in the cache before that.
    let wanted = |record: &Record<'_>| is_wanted(record, key, version).then(|| hit(record));
    if let Some(found) = engine.log.frames.at(written, wanted) {
        if let Some(hit) = &found {
            engine.metrics.answered(AnsweredBy::Cache, hit.bytes());
        }
        return InRam::Read(found);
    }
    let place = Place::log(written);
    match engine.cache.get(place, key) {
        Some(cached) if version.is_none_or(|version| version.0 == cached.version) => {
            engine.metrics.answered(AnsweredBy::Cache, cached.value.len() as u64);
            InRam::Read(Some(Hit::from(cached)))
        }
        _ => InRam::Absent(Some(place)),
    }
}

/// The value of a key that the log has, from a chunk of scanned pairs. It stays there alone: a copy
/// in the cache would take its RAM twice.
fn in_chunk(engine: &Engine, key: &[u8], version: Option<Version>) -> Option<Hit> {
    let is_wanted = |pair: &Pair<'_>| version.is_none_or(|version| version.0 == pair.version);
    let wanted = |pair: &Pair<'_>| is_wanted(pair).then(|| Hit::of_pair(pair));
    let hit = engine.scan_cache.pair_of(key, wanted)??;
    engine.metrics.answered(AnsweredBy::Cache, hit.bytes());
    Some(hit)
}

/// Whether a record is the one that is wanted; any version will do if there is none.
fn is_wanted(record: &Record<'_>, key: &[u8], version: Option<Version>) -> bool {
    record.key == key && version.is_none_or(|version| version.0 == record.version())
}

/// Uses a record read from the log, for the caller and for the cache.
fn take_read(engine: &Engine, place: Option<Place>, key: &[u8], read: CachedValue) -> Hit {
    engine.metrics.answered(AnsweredBy::Log, read.value.len() as u64);
    if let Some(place) = place {
        engine.cache.insert(place, key, &read);
    }
    Hit::from(read)
}

/// Reads the object that `lookup` finds.
pub fn get_by_entry(
    engine: &Engine,
    key: &[u8],
    lookup: impl Fn() -> Result<Option<Described>>,
) -> Result<Option<Hit>> {
    let found = read_by_entry(engine, key, lookup, |found| read_for_caller(engine, key, &found.entry))?;
    Ok(counted(engine, found))
}

/// Looks a key up and reads by its entry, again if its home has moved meanwhile.
pub fn read_by_entry<T>(
    engine: &Engine,
    key: &[u8],
    lookup: impl Fn() -> Result<Option<Described>>,
    read: impl Fn(&Described) -> Result<T>,
) -> Result<Option<T>> {
    let mut previous: Option<Entry> = None;
    let mut waited = false;
    for _ in 0..ATTEMPTS {
        let Some(found) = lookup()? else {
            return Ok(None);
        };
        match read(&found) {
            Ok(read) => return Ok(Some(read)),
            // The same entry again: nothing moved, so it is damage. But a move that is not applied
            // yet may lead to a sound value: after a crash the old place may be damaged by then.
            Err(error) if previous.as_ref() == Some(&found.entry) => {
                if waited || engine.log.applied_seq() >= engine.log.committed_seq() {
                    return Err(error);
                }
                waited = true;
                engine.log.wait_applied()?;
            }
            Err(error @ Error::Corruption { .. }) => {
                tracing::debug!(%error, "looking up again");
                previous = Some(found.entry);
            }
            Err(error) => return Err(error),
        }
    }
    let reason = "its entry keeps changing and never leads to its value";
    Err(Error::corrupt_value(key, reason))
}

/// The same for a caller: a hot small value in a block is promoted to the log.
pub fn read_for_caller(engine: &Engine, key: &[u8], entry: &Entry) -> Result<Hit> {
    let (hit, from_block) = read_value(engine, key, entry)?;
    if from_block.is_some_and(|extent| small_reads::may_move_to_log(engine, key, &extent)) {
        small_reads::small_read(engine, key, entry, &hit.value);
    }
    Ok(hit)
}

/// Reads the value an entry points to.
pub fn read_home(engine: &Engine, key: &[u8], entry: &Entry) -> Result<Hit> {
    read_value(engine, key, entry).map(|(hit, _)| hit)
}

/// The value an entry points to, and its extent if a block was read for it.
fn read_value(engine: &Engine, key: &[u8], entry: &Entry) -> Result<(Hit, Option<Extent>)> {
    if let Some(hit) = copied(engine, entry) {
        return Ok((hit, None));
    }
    match &entry.home {
        Home::Inline(value) => Ok((inline(engine, key, entry, value)?, None)),
        Home::Flash { address } => {
            let expected = record_bytes_max(key.len(), entry.attributes.len(), entry.length);
            let read = |address| read_flash(engine, key, address, expected, Some(entry.version)).transpose();
            let hit = Address::new(*address).and_then(read);
            Ok((hit.unwrap_or_else(|| Err(not_there(engine, key, *address)))?, None))
        }
        Home::Block(extent) => read_block(engine, key, entry, extent),
    }
}

/// The value as copied into its entry.
fn copied(engine: &Engine, entry: &Entry) -> Option<Hit> {
    let value = entry.sound_copy()?;
    engine.metrics.answered(AnsweredBy::Inline, value.len() as u64);
    Some(Hit::of(entry, value.clone()))
}

fn inline(engine: &Engine, key: &[u8], entry: &Entry, value: &Bytes) -> Result<Hit> {
    if crc32c::crc32c(value) != entry.checksum {
        let reason = "its inline value does not match its checksum";
        return Err(Error::corrupt_value(key, reason));
    }
    engine.metrics.answered(AnsweredBy::Inline, value.len() as u64);
    Ok(Hit::of(entry, value.clone()))
}

/// Reads a value of the large space, and gives its extent if its block was read for it.
fn read_block(engine: &Engine, key: &[u8], entry: &Entry, extent: &Extent) -> Result<(Hit, Option<Extent>)> {
    if let Some(hit) = block_in_ram(engine, key, entry, extent) {
        return Ok((hit, None));
    }
    let reader = engine.large.open_for(key, extent)?;
    let value = reader.read_all(key)?;
    count_large_hit(engine, &reader, entry.length);
    let hit = Hit::of(entry, value);
    let cached = CachedValue::of_entry(entry.version, &entry.attributes, &hit.value);
    engine
        .cache
        .insert(Place::block(extent.block, extent.offset), key, &cached);
    let from_block = matches!(reader.source(), None | Some(Source::Block));
    Ok((hit, from_block.then_some(*extent)))
}

/// Counts the source of a value of the large space, by the bytes read so far.
fn count_large_hit(engine: &Engine, reader: &ValueReader, bytes: u64) {
    let by = match reader.source() {
        Some(Source::Ram | Source::Copy) => AnsweredBy::Copy,
        Some(Source::Ahead) => AnsweredBy::Ahead,
        Some(Source::Block) | None => AnsweredBy::Block,
    };
    engine.metrics.answered(by, bytes);
}

/// The error of a value that is not at its address in the log.
pub fn not_there(engine: &Engine, key: &[u8], address: u64) -> Error {
    let segment_bytes = engine.log.segments.segment_bytes();
    Error::corruption(
        format!(
            "segment {:08x} at {} (key {:?})",
            address / segment_bytes,
            address % segment_bytes,
            String::from_utf8_lossy(key)
        ),
        "the record there is damaged or another's",
    )
}

/// Locates a key as [`get`] does, and reads what is in RAM of the log.
///
/// # Errors
/// As [`get`].
fn locate_in_ram(engine: &Engine, key: &[u8], presence: &Presence<'_>) -> Result<Located> {
    check_key(key)?;
    let hash = key_hash(key);
    Ok(match locate(engine, hash, key, presence) {
        Located::Here(found) => Located::Here(counted(engine, found)),
        Located::Record(found) => match flash_in_ram(engine, key, found.address, None) {
            InRam::Read(Some(hit)) => Located::Here(hit.living(key, presence)),
            InRam::Read(None) => Located::Elsewhere,
            InRam::Absent(_) => match in_chunk(engine, key, None) {
                Some(hit) => Located::Here(hit.living(key, presence)),
                None => Located::Record(found),
            },
        },
        located => located,
    })
}

/// Reads a key whose entry is in the ordered index, if entry and value are in RAM. `None` says
/// nothing about the key.
///
/// # Errors
/// As [`get`].
fn elsewhere_in_ram(engine: &Engine, key: &[u8], presence: &Presence<'_>) -> Result<Option<Hit>> {
    let RamAnswer::Found(entry) = engine.index.get_in_ram(key, key_hash(key))? else {
        return Ok(None);
    };
    let hit = value_in_ram(engine, key, &entry)?;
    Ok(hit.and_then(|hit| hit.living(key, presence)))
}

/// The value of an entry, if it is in RAM.
fn value_in_ram(engine: &Engine, key: &[u8], entry: &Entry) -> Result<Option<Hit>> {
    if let Some(hit) = copied(engine, entry) {
        return Ok(Some(hit));
    }
    match &entry.home {
        Home::Inline(value) => inline(engine, key, entry, value).map(Some),
        Home::Flash { address } => Ok(Address::new(*address).and_then(|address| {
            match flash_in_ram(engine, key, address, Some(entry.version)) {
                InRam::Read(found) => found,
                InRam::Absent(_) => None,
            }
        })),
        Home::Block(extent) => Ok(block_in_ram(engine, key, entry, extent)),
    }
}

/// A value of the large space that is in RAM.
fn block_in_ram(engine: &Engine, key: &[u8], entry: &Entry, extent: &Extent) -> Option<Hit> {
    let cached = engine.cache.get(Place::block(extent.block, extent.offset), key)?;
    engine.metrics.answered(AnsweredBy::Cache, entry.length);
    Some(Hit::of(entry, cached.value))
}

/// A value at the home in its entry, to move or verify it: not counted as a read, and bypasses the
/// cache. `None` if it is not there.
///
/// # Errors
/// [`Error::Corruption`], the devices'.
pub fn stored_value(engine: &Engine, key: &[u8], entry: &Entry) -> Result<Option<Bytes>> {
    let value = |record: &Record<'_>| Bytes::copy_from_slice(record.body.value());
    let wanted = |record: &Record<'_>| is_wanted(record, key, Some(entry.version)).then(|| value(record));
    match &entry.home {
        Home::Inline(value) => Ok(Some(value.clone())),
        Home::Flash { address } => {
            let Some(place) = Address::new(*address) else {
                return Ok(None);
            };
            let written = engine.log.segments.place(place.bytes());
            if let Some(found) = written.and_then(|written| engine.log.frames.pending_at(written, wanted)) {
                return Ok(found);
            }
            // A value in the log is shorter than a segment.
            let expected = record_bytes_max(key.len(), entry.attributes.len(), entry.length) as usize;
            let (found, _) = read_record(&engine.log.segments, place, expected, wanted)?;
            Ok(match found {
                Found::Record(found) => found,
                Found::NotARecord => None,
            })
        }
        Home::Block(extent) => engine.large.read_all(key, extent).map(Some),
    }
}
