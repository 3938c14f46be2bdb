//! What is known of an object without its value.

use super::{Hit, Pending, find_pending};
use crate::{
    Attributes, Error, HomeKind, ObjectInfo, Result,
    api::expiry,
    engine::Engine,
    key_hash,
    ordered_index::{Entry, Home},
    write::check_key,
};

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
    /// That of the entry, unless this is made of a small value of the overlay: it is in hand then,
    /// as if it were inline.
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
            checksum: crc32c::crc32c(&hit.value),
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

/// What overlay or ordered index say of a key.
pub fn find_entry(engine: &Engine, key: &[u8]) -> Result<Option<Described>> {
    check_key(key)?;
    let hash = key_hash(key);
    let presence = engine.presence();
    let found: Option<Described> = match find_pending(engine, hash, key) {
        Some(Pending::Deleted) => None,
        Some(Pending::Large(entry)) => Some((*entry).into()),
        Some(Pending::Small(hit)) => Some(hit.into()),
        None => engine.index.get_for_caller(key, hash)?.map(Described::from),
    };
    let is_living = |found: &Described| {
        let entry = &found.entry;
        presence.dead(key, entry.version.0, &entry.attributes).is_none()
    };
    Ok(found.filter(is_living))
}

/// What is known of an object without reading its value.
pub fn head(engine: &Engine, key: &[u8]) -> Result<Option<ObjectInfo>> {
    find_entry(engine, key)?.map(|found| found.info()).transpose()
}

/// An entry as the interface shows it.
///
/// # Errors
/// [`Error::Corruption`] if the attributes do not decode.
pub fn object_info(entry: &Entry) -> Result<ObjectInfo> {
    Ok(ObjectInfo {
        version: entry.version,
        length: entry.length,
        checksum: entry.checksum,
        home: entry.home.kind(),
        expires_at: expiry::of(&entry.attributes).map(expiry::from_ms),
        attributes: decode_attributes(&entry.attributes)?,
    })
}
