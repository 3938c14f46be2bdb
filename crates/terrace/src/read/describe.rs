//! Metadata of an object, without its value.

use super::{Hit, Pending, find_pending, hit, is_wanted, small_home};
use crate::{
    Attributes, Error, HomeKind, ObjectInfo, RamAnswer, Result, Version,
    api::expiry,
    cache::Place,
    engine::Engine,
    key_hash,
    log::{address::Address, format::Record},
    ordered_index::{Entry, Home},
    write::check_key,
};
use bytes::Bytes;

/// Reads stored attributes.
///
/// # Errors
/// [`Error::Corruption`].
pub fn decode_attributes(bytes: &[u8]) -> Result<Attributes> {
    if bytes.is_empty() {
        return Ok(Attributes::new());
    }
    expiry::split(bytes)
        .and_then(|(_, attributes)| Attributes::decode(attributes))
        .ok_or_else(|| Error::corruption("attributes", "they do not decode"))
}

/// A key's entry, and where its value lives.
pub struct Described {
    pub entry: Entry,
    /// The home in the entry, except for a small value of the overlay: it is in RAM then, like an
    /// inline one.
    home: HomeKind,
}

impl From<Entry> for Described {
    fn from(entry: Entry) -> Self {
        let home = entry.home.kind();
        Self { entry, home }
    }
}

impl From<Hit> for Described {
    fn from(hit: Hit) -> Self {
        let entry = Entry {
            version: hit.version,
            length: hit.value.len() as u64,
            checksum: hit.checksum(),
            home: Home::Inline(hit.value),
            attributes: hit.attributes,
            copy: None,
        };
        Self { entry, home: hit.home }
    }
}

impl Described {
    /// As the interface shows it.
    ///
    /// # Errors
    /// As [`object_info`].
    pub fn info(&self) -> Result<ObjectInfo> {
        let home = self.home;
        Ok(ObjectInfo {
            home,
            ..object_info(&self.entry)?
        })
    }
}

/// The description of a key in the overlay or the ordered index.
pub fn find_entry(engine: &Engine, key: &[u8]) -> Result<Option<Described>> {
    check_key(key)?;
    let hash = key_hash(key);
    let presence = engine.presence();
    let found: Option<Described> = match find_pending(engine, hash, key, hit) {
        Some(Pending::Deleted) => None,
        Some(Pending::Large(entry)) => Some((*entry).into()),
        Some(Pending::Small(hit)) => Some(hit.into()),
        None if engine.knows_absent(hash) => None,
        None => engine.index.get_for_caller(key, hash)?.map(Described::from),
    };
    let is_living = |found: &Described| {
        let entry = &found.entry;
        presence.dead(key, entry.version.0, &entry.attributes).is_none()
    };
    Ok(found.filter(is_living))
}

/// Metadata of an object, without reading its value.
pub fn head(engine: &Engine, key: &[u8]) -> Result<Option<ObjectInfo>> {
    find_entry(engine, key)?.map(|found| found.info()).transpose()
}

/// Facts about an object in its record or entry, without the value.
pub(super) struct Brief {
    pub(super) version: Version,
    pub(super) length: u64,
    pub(super) checksum: u32,
    pub(super) home: HomeKind,
    pub(super) attributes: Bytes,
}

impl Brief {
    fn of(record: &Record<'_>) -> Self {
        Self {
            version: Version(record.version()),
            length: record.body.value().len() as u64,
            checksum: record.checksum,
            home: small_home(&record.body),
            attributes: Bytes::copy_from_slice(record.attributes),
        }
    }

    /// As the interface shows it.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the attributes do not decode.
    pub(super) fn info(self) -> Result<ObjectInfo> {
        Ok(ObjectInfo {
            version: self.version,
            length: self.length,
            checksum: self.checksum,
            home: self.home,
            expires_at: expiry::of(&self.attributes).map(expiry::from_ms),
            attributes: decode_attributes(&self.attributes)?,
        })
    }
}

impl From<Hit> for Brief {
    fn from(hit: Hit) -> Self {
        Self {
            length: hit.bytes(),
            checksum: hit.checksum(),
            version: hit.version,
            home: hit.home,
            attributes: hit.attributes,
        }
    }
}

impl From<&Entry> for Brief {
    fn from(entry: &Entry) -> Self {
        Self {
            version: entry.version,
            length: entry.length,
            checksum: entry.checksum,
            home: entry.home.kind(),
            attributes: entry.attributes.clone(),
        }
    }
}

/// The result of [`head`] for a small value in RAM, for a key whose entry is in RAM, or for one
/// that is known to be absent, without a device read or a wait. In a frame not even the value is
/// read: its record has the checksum.
///
/// # Errors
/// As [`head`].
pub fn head_in_ram(engine: &Engine, key: &[u8]) -> Result<RamAnswer<ObjectInfo>> {
    check_key(key)?;
    let hash = key_hash(key);
    let presence = engine.presence();
    let brief = match find_pending(engine, hash, key, Brief::of) {
        Some(Pending::Small(brief)) => Some(brief),
        Some(Pending::Deleted) => return Ok(RamAnswer::Absent),
        Some(Pending::Large(entry)) => Some(Brief::from(&*entry)),
        None => match engine.hash_index.lookup(hash) {
            Some(found) => brief_at(engine, key, found.address),
            None if engine.knows_absent(hash) => return Ok(RamAnswer::Absent),
            None => match engine.index.get_in_ram(key, hash)? {
                RamAnswer::Found(entry) => Some(Brief::from(&entry)),
                RamAnswer::Absent => return Ok(RamAnswer::Absent),
                RamAnswer::Unknown => None,
            },
        },
    };
    Ok(match brief {
        None => RamAnswer::Unknown,
        Some(brief) if presence.dead(key, brief.version.0, &brief.attributes).is_some() => RamAnswer::Absent,
        Some(brief) => RamAnswer::Found(brief.info()?),
    })
}

/// Facts in the record at an address, if it is the key's and in RAM.
fn brief_at(engine: &Engine, key: &[u8], address: Address) -> Option<Brief> {
    let written = engine.log.segments.place(address.bytes())?;
    let wanted = |record: &Record<'_>| is_wanted(record, key, None).then(|| Brief::of(record));
    // Records of an evicted frame are in the cache before that.
    match engine.log.frames.at(written, wanted) {
        Some(found) => found,
        None => {
            let cached = engine.cache.get(Place::log(written), key)?;
            Some(Hit::from(cached).into())
        }
    }
}

/// The public form of an entry.
///
/// # Errors
/// [`Error::Corruption`] if the attributes do not decode.
pub fn object_info(entry: &Entry) -> Result<ObjectInfo> {
    Brief::from(entry).info()
}
