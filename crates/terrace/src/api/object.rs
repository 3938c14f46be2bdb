//! Types of the public interface: versions, attributes, homes of objects.

use crate::{Error, Result};
use bytes::Bytes;
use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

/// Longest key, in bytes. Keys have at least one byte; any bytes are allowed.
pub const KEY_BYTES_MAX: usize = 4096;
/// Longest value, in bytes (5 GiB).
pub const VALUE_BYTES_MAX: u64 = 5 << 30;
/// Largest encoded attributes of one object, in bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

/// The version of an object: the sequence number of the commit that wrote it. Later commits have
/// larger versions; all objects of one batch share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where a value lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HomeKind {
    /// In the ordered index itself (tiny values), on the flash tier.
    Inline,
    /// In the flash log.
    Flash,
    /// In a block of the large space.
    Block,
}

impl fmt::Display for HomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inline => "inline",
            Self::Flash => "flash",
            Self::Block => "block",
        })
    }
}

/// Small metadata of an object that can be read without its value: content type, dimensions, user
/// metadata. Names are UTF-8, values are bytes; sorted by name. Clones share the data until one is
/// changed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes(Option<Arc<BTreeMap<String, Bytes>>>);

impl Attributes {
    /// Empty attributes.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Adds or replaces an attribute and returns `self`, for chaining.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.set(name, value);
        self
    }

    /// Adds or replaces an attribute.
    pub fn set(&mut self, name: impl Into<String>, value: impl AsRef<[u8]>) {
        let map = Arc::make_mut(self.0.get_or_insert_default());
        map.insert(name.into(), Bytes::copy_from_slice(value.as_ref()));
    }

    /// The bytes of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.as_ref()?.get(name).map(AsRef::as_ref)
    }

    /// The attribute as text, if it exists and is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All attributes in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let all = self.0.iter().flat_map(|map| map.iter());
        all.map(|(name, value)| (name.as_str(), value.as_ref()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many attributes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// The stored form: for each attribute `name length u16, value length u32, name, value`,
    /// little-endian, in name order. Empty attributes encode to zero bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is longer than [`ATTRIBUTES_BYTES_MAX`] or a name is empty.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (name, value) in self.iter() {
            if name.is_empty() {
                return Err(Error::invalid("an attribute's name is empty"));
            }
            let too_long = || Error::invalid(format!("attributes are longer than {ATTRIBUTES_BYTES_MAX} bytes"));
            let name_bytes = u16::try_from(name.len()).map_err(|_| too_long())?;
            let value_bytes = u32::try_from(value.len()).map_err(|_| too_long())?;
            out.extend_from_slice(&name_bytes.to_le_bytes());
            out.extend_from_slice(&value_bytes.to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value);
            if out.len() > ATTRIBUTES_BYTES_MAX {
                return Err(too_long());
            }
        }
        Ok(out)
    }

    /// Reads the stored form. `None` if the bytes are not one.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut map = BTreeMap::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at_checked(6)?;
            let name_bytes = usize::from(u16::from_le_bytes([head[0], head[1]]));
            let value_bytes = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
            let (name, rest) = rest.split_at_checked(name_bytes)?;
            let (value, rest) = rest.split_at_checked(value_bytes)?;
            if name.is_empty() {
                return None;
            }
            map.insert(
                std::str::from_utf8(name).ok()?.to_owned(),
                Bytes::copy_from_slice(value),
            );
            bytes = rest;
        }
        Some(Self((!map.is_empty()).then(|| Arc::new(map))))
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Address of a value in the large space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number of the block.
    pub block: u64,
    /// Offset of the extent in the block's file.
    pub offset: u64,
    /// Length of the extent, with header and padding.
    pub extent_bytes: u64,
    /// Length of the value.
    pub length: u64,
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The commit that wrote it.
    pub version: Version,
    /// Length of the value in bytes.
    pub length: u64,
    /// CRC-32C of the value.
    pub checksum: u32,
    /// Where the value lives.
    pub home: HomeKind,
    /// When it expires, if ever.
    pub expires_at: Option<SystemTime>,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Result of a lookup in RAM alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RamAnswer<T> {
    /// The object.
    Found(T),
    /// There is no such object.
    Absent,
    /// Unknown from RAM alone: use a call that may read a device.
    Unknown,
}

impl<T> RamAnswer<T> {
    /// What was found.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Absent | Self::Unknown => None,
        }
    }

    /// Whether the result is unknown.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// A whole object. Dereferences to its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The commit that wrote it.
    pub version: Version,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its value.
    pub value: Bytes,
}

impl std::ops::Deref for Object {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_attributes() {
        let attributes = Attributes::new().with("zz", [0, 1, 0xff]).with("a", "");
        let bytes = attributes.encode();
        let expected = [
            &[1, 0, 0, 0, 0, 0, b'a'][..],
            &[2, 0, 3, 0, 0, 0, b'z', b'z', 0, 1, 0xff],
        ]
        .concat();
        assert_eq!(bytes.as_ref(), Ok(&expected));
        assert_eq!(Attributes::decode(&expected), Some(attributes));
        assert_eq!(Attributes::new().encode(), Ok(vec![]));
    }
}
