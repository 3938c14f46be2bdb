//! An entry: the value of one key in the ordered index, and its bytes.
//!
//! Invariants: one entry has one encoding (`decode` accepts nothing that `encode_into` does not
//! write), and the common entry, a value in the flash log without attributes, takes exactly 20
//! bytes, the most that `lsm_tree::Slice` holds without a heap allocation. The layout is normative
//! in docs/format.md.
//!
//! On failure: `decode` returns `None` for any bytes that are not an entry; it never panics and
//! allocates no more than the bytes it was given. `encode_into` asserts that the numbers fit,
//! because a truncated number would be a wrong address on flash.

use crate::{
    ATTRIBUTES_BYTES_MAX, HomeKind, VALUE_BYTES_MAX, Version, api::object::Extent, codec::Reader,
    visibility::presence::Presence,
};
use bytes::Bytes;

/// Versions are below this (48 bits).
pub const VERSION_LIMIT: u64 = 1 << 48;
/// Flash addresses, offsets in blocks and extents are below this (40 bits).
pub const ADDRESS_LIMIT: u64 = 1 << 40;
/// Block numbers are below this (48 bits).
pub const BLOCK_LIMIT: u64 = 1 << 48;
/// Inline values are shorter than this (24 bits).
pub const INLINE_BYTES_LIMIT: usize = 1 << 24;

const FORMAT: u8 = 0x10;
const FORMAT_MASK: u8 = 0xF0;
const ATTRIBUTES_FLAG: u8 = 0x08;
const HOME_MASK: u8 = 0x07;
const HOME_INLINE: u8 = 1;
const HOME_FLASH: u8 = 2;
const HOME_BLOCK: u8 = 3;
const HOME_FLASH_AND_COPY: u8 = 4;

/// Home of a value, with the information needed to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// The value itself.
    Inline(Bytes),
    /// In the flash log.
    Flash {
        /// Byte offset of the record, below [`ADDRESS_LIMIT`].
        address: u64,
    },
    /// In a block of the large space.
    /// Its number is below [`BLOCK_LIMIT`], offset and length of the extent below
    /// [`ADDRESS_LIMIT`].
    Block(Extent),
}

impl Extent {
    /// Whether it has a stored form. Checksums keep all others away, unless they were forged.
    pub const fn is_possible(&self) -> bool {
        self.block < BLOCK_LIMIT
            && self.offset < ADDRESS_LIMIT
            && self.extent_bytes < ADDRESS_LIMIT
            && self.length <= VALUE_BYTES_MAX
    }
}

impl Home {
    /// The home without the address.
    pub const fn kind(&self) -> HomeKind {
        match self {
            Self::Inline(_) => HomeKind::Inline,
            Self::Flash { .. } => HomeKind::Flash,
            Self::Block(_) => HomeKind::Block,
        }
    }
}

/// What the ordered index holds for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The commit that wrote the value. A move keeps it.
    pub version: Version,
    /// Length of the value in bytes.
    pub length: u64,
    /// CRC-32C of the value.
    pub checksum: u32,
    /// Where the value lives.
    pub home: Home,
    /// The attributes in their stored form ([`crate::Attributes::encode`]), empty if there are
    /// none.
    pub attributes: Bytes,
    /// The value once more, of a short one in the flash log that is scanned. The home is in the
    /// log: this is needed for speed only, and a writer of the entry may leave it out.
    pub copy: Option<Bytes>,
}

/// Whether these bytes are of an entry with its home in the log and no copy, if they are one.
pub(super) fn may_gain_copy(bytes: &[u8]) -> bool {
    bytes
        .first()
        .is_some_and(|tag| tag & (FORMAT_MASK | HOME_MASK) == FORMAT | HOME_FLASH)
}

impl Entry {
    /// Replaces `out` with the entry's bytes.
    ///
    /// # Panics
    /// If a number is not below its limit, or the length of an inline value or a copy is not
    /// `length`: writing such an entry would lose the object.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.clear();
        assert!(self.version.0 < VERSION_LIMIT, "version {} is too large", self.version);
        assert!(self.attributes.len() <= ATTRIBUTES_BYTES_MAX, "attributes are too long");
        let may_have_copy = matches!(self.home, Home::Flash { .. });
        assert!(may_have_copy || self.copy.is_none(), "a copy beside {:?}", self.home);
        let flag = if self.attributes.is_empty() { 0 } else { ATTRIBUTES_FLAG };
        let mut head = [0; 32];
        head[1..7].copy_from_slice(&self.version.0.to_le_bytes()[..6]);
        let checksum = self.checksum.to_le_bytes();
        match &self.home {
            Home::Flash { address } => {
                assert!(*address < ADDRESS_LIMIT, "flash address {address} is too large");
                let length = u32::try_from(self.length).expect("a value in the flash log is shorter than 4 GiB");
                let kind = if self.copy.is_some() {
                    HOME_FLASH_AND_COPY
                } else {
                    HOME_FLASH
                };
                head[0] = FORMAT | flag | kind;
                head[7..12].copy_from_slice(&address.to_le_bytes()[..5]);
                head[12..16].copy_from_slice(&length.to_le_bytes());
                head[16..20].copy_from_slice(&checksum);
                out.extend_from_slice(&head[..20]);
                if let Some(copy) = &self.copy {
                    assert_eq!(copy.len() as u64, self.length, "length of a copy");
                    out.extend_from_slice(copy);
                }
            }
            Home::Block(extent) => {
                assert!(extent.is_possible(), "{extent:?} is too large");
                assert_eq!(extent.length, self.length, "length of a value in a block");
                let Extent { block, offset, .. } = extent;
                head[0] = FORMAT | flag | HOME_BLOCK;
                head[7..12].copy_from_slice(&self.length.to_le_bytes()[..5]);
                head[12..16].copy_from_slice(&checksum);
                head[16..22].copy_from_slice(&block.to_le_bytes()[..6]);
                head[22..27].copy_from_slice(&offset.to_le_bytes()[..5]);
                head[27..32].copy_from_slice(&extent.extent_bytes.to_le_bytes()[..5]);
                out.extend_from_slice(&head);
            }
            Home::Inline(value) => {
                assert!(value.len() < INLINE_BYTES_LIMIT, "inline value is too long");
                assert_eq!(value.len() as u64, self.length, "length of an inline value");
                head[0] = FORMAT | flag | HOME_INLINE;
                head[7..11].copy_from_slice(&checksum);
                out.extend_from_slice(&head[..11]);
                if flag != 0 {
                    out.extend_from_slice(&self.length.to_le_bytes()[..3]);
                }
                out.extend_from_slice(value);
            }
        }
        out.extend_from_slice(&self.attributes);
    }

    /// Reads an entry. `None` if the bytes are not exactly one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let [tag] = rest.array()?;
        if tag & FORMAT_MASK != FORMAT {
            return None;
        }
        let version = rest.number::<6>()?;
        let flagged = tag & ATTRIBUTES_FLAG != 0;
        let mut copy = None;
        let (length, checksum, home) = match tag & HOME_MASK {
            kind @ (HOME_FLASH | HOME_FLASH_AND_COPY) => {
                let (address, length) = (rest.number::<5>()?, rest.number::<4>()?);
                let checksum = rest.u32()?;
                if kind == HOME_FLASH_AND_COPY {
                    let value = rest.bytes(usize::try_from(length).ok()?)?;
                    copy = Some(Bytes::copy_from_slice(value));
                }
                (length, checksum, Home::Flash { address })
            }
            HOME_BLOCK => {
                let (length, checksum) = (rest.number::<5>()?, rest.u32()?);
                if length > VALUE_BYTES_MAX {
                    return None;
                }
                let extent = Extent {
                    block: rest.number::<6>()?,
                    offset: rest.number::<5>()?,
                    extent_bytes: rest.number::<5>()?,
                    length,
                };
                (length, checksum, Home::Block(extent))
            }
            HOME_INLINE => {
                let checksum = rest.u32()?;
                let bytes = if flagged {
                    rest.number::<3>()?
                } else {
                    rest.0.len() as u64
                };
                let value = rest.bytes(usize::try_from(bytes).ok()?)?;
                if value.len() >= INLINE_BYTES_LIMIT {
                    return None;
                }
                (bytes, checksum, Home::Inline(Bytes::copy_from_slice(value)))
            }
            _ => return None,
        };
        let attributes = rest.0;
        if attributes.is_empty() == flagged || attributes.len() > ATTRIBUTES_BYTES_MAX {
            return None;
        }
        Some(Self {
            version: Version(version),
            length,
            checksum,
            home,
            attributes: Bytes::copy_from_slice(attributes),
            copy,
        })
    }

    /// The copy, if it is there and sound.
    pub fn sound_copy(&self) -> Option<&Bytes> {
        self.copy.as_ref().filter(|copy| crc32c::crc32c(copy) == self.checksum)
    }
}

impl Presence<'_> {
    /// The entry, unless it is dead.
    #[inline]
    pub fn living(&self, key: &[u8], entry: Option<Entry>) -> Option<Entry> {
        entry.filter(|entry| self.dead(key, entry.version.0, &entry.attributes).is_none())
    }
}
