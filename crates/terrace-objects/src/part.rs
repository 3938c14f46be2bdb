//! The record of a part of an upload: attributes, no value.

use crate::{
    checksum::{Algorithm, Checksum},
    error::{ObjectError, ObjectResult},
    keyspace,
    manifest::SALT_BYTES,
    tag::Tag,
};
use terrace::{Attributes, Error, ObjectInfo};

/// A part as its record says.
#[derive(Debug, Clone)]
pub struct PartRecord {
    /// Its number.
    pub number: u16,
    /// Last component of its value's key.
    pub nonce: u32,
    /// Length in bytes.
    pub length: u64,
    /// Salt of its key, if encrypted.
    pub salt: Option<[u8; SALT_BYTES]>,
    /// Its entity tag.
    pub tag: Tag,
    /// Time of upload, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Its checksums, as attributes.
    pub attributes: Attributes,
}

const PART_NONCE: &str = "nonce";
const PART_LENGTH: &str = "length";
const PART_SALT: &str = "salt";
const PART_MD5: &str = "md5";
/// A random tag, instead of the MD5.
const PART_TAG: &str = "tag";
const PART_MODIFIED_MS: &str = "modified-ms";

impl PartRecord {
    /// What to store.
    pub fn to_attributes(&self) -> Attributes {
        let attributes = self
            .attributes
            .clone()
            .with(PART_NONCE, self.nonce.to_le_bytes())
            .with(PART_LENGTH, self.length.to_le_bytes())
            .with(if self.tag.is_random { PART_TAG } else { PART_MD5 }, self.tag.bytes)
            .with(PART_MODIFIED_MS, self.modified_ms.to_le_bytes());
        match self.salt {
            Some(salt) => attributes.with(PART_SALT, salt),
            None => attributes,
        }
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// The engine's corruption error for a damaged record.
    pub fn read(key: &[u8], info: &ObjectInfo) -> ObjectResult<Self> {
        let read = || {
            let get = |name| info.attributes.get(name);
            Some(Self {
                number: keyspace::parse_part(key)?,
                nonce: u32::from_le_bytes(get(PART_NONCE)?.try_into().ok()?),
                length: u64::from_le_bytes(get(PART_LENGTH)?.try_into().ok()?),
                salt: match get(PART_SALT) {
                    Some(salt) => Some(salt.try_into().ok()?),
                    None => None,
                },
                tag: match get(PART_MD5) {
                    Some(md5) => Tag::of_md5(md5.try_into().ok()?),
                    None => Tag {
                        bytes: get(PART_TAG)?.try_into().ok()?,
                        is_random: true,
                    },
                },
                modified_ms: u64::from_le_bytes(get(PART_MODIFIED_MS)?.try_into().ok()?),
                attributes: info.attributes.clone(),
            })
        };
        read().ok_or_else(|| ObjectError::engine(&Error::corruption("record of a part", "it does not decode"), key))
    }

    /// Its checksum by this algorithm.
    pub fn checksum(&self, algorithm: Algorithm) -> Option<Checksum> {
        let text = self.attributes.get_str(algorithm.header())?;
        Checksum::parse(algorithm, text).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::text::hex;
    use terrace::{Clock, HomeKind, Version};

    /// The stored bytes.
    #[test]
    fn golden() {
        let part = |salt, tag| PartRecord {
            number: 7,
            nonce: 0x0102_0304,
            length: 5 << 20,
            salt,
            tag,
            modified_ms: 1_700_000_000_123,
            attributes: Attributes::new().with(Algorithm::Crc32c.header(), "qqqqqg=="),
        };
        let info = |attributes| ObjectInfo {
            expires_at: None,
            version: Version(1),
            length: 0,
            checksum: 0,
            home: HomeKind::Inline,
            attributes,
        };
        let sealed = part(Some([0xbb; SALT_BYTES]), Tag::of_md5([0xab; 16])).to_attributes();
        let stored: Vec<_> = sealed.iter().map(|(name, value)| (name, hex(value))).collect();
        let expected = [
            ("length", "0000500000000000"),
            ("md5", "abababababababababababababababab"),
            ("modified-ms", "7b68e5cf8b010000"),
            ("nonce", "04030201"),
            ("salt", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"),
            ("x-amz-checksum-crc32c", "71717171"),
        ];
        let names = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            stored.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>(),
            names(&expected)
        );
        for ((_, stored), (name, expected)) in stored.iter().zip(expected) {
            assert!(stored.starts_with(expected), "{name}: {stored}");
        }
        let key = keyspace::part(keyspace::Id::new(&Clock::default()), 7);
        let read = PartRecord::read(&key, &info(sealed)).unwrap();
        assert_eq!(
            (read.number, read.nonce, read.length, read.salt),
            (7, 0x0102_0304, 5 << 20, Some([0xbb; 16]))
        );
        assert_eq!(
            (read.tag.text(), read.modified_ms),
            ("ab".repeat(16), 1_700_000_000_123)
        );
        assert_eq!(read.checksum(Algorithm::Crc32c).unwrap().value, [0xaa; 4]);
        let random = Tag {
            bytes: [0xcd; 16],
            is_random: true,
        };
        let plain = part(None, random).to_attributes();
        assert_eq!((plain.get("tag"), plain.get("md5")), (Some(&[0xcd; 16][..]), None));
        let plain = PartRecord::read(&key, &info(plain)).unwrap();
        assert_eq!((plain.salt, plain.tag), (None, random));
        for name in ["length", "md5", "modified-ms", "nonce", "salt"] {
            let odd = part(None, Tag::of_md5([0xab; 16])).to_attributes().with(name, "odd");
            assert!(PartRecord::read(&key, &info(odd)).is_err(), "{name}");
        }
    }
}
