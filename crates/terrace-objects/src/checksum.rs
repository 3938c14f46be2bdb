//! S3's checksum algorithms and their names.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::fmt;

/// Why a request's checksum headers are not valid; the text goes to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// A checksum algorithm of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-32 as in zip files.
    Crc32,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// CRC-64/NVME, the default.
    Crc64Nvme,
    /// SHA-1
    Sha1,
    /// SHA-256
    Sha256,
}

/// Whether the checksum of an object of several parts is of its bytes or of its parts' checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of the bytes.
    FullObject,
    /// Of the parts' checksums, one after the other.
    Composite,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// The name in `x-amz-checksum-algorithm`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// The algorithm with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// Name of the header, and of the attribute, that holds a checksum.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// Length of a checksum in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The kind of an object's checksum after a multipart upload. `asked` is the kind in the
    /// request that began the upload.
    ///
    /// # Errors
    /// [`Wrong`] for combinations that S3 does not allow.
    pub fn kind(self, asked: Option<&str>) -> Result<Kind, Wrong> {
        match (self, asked) {
            (Self::Crc64Nvme, None | Some("FULL_OBJECT")) | (Self::Crc32 | Self::Crc32c, Some("FULL_OBJECT")) => {
                Ok(Kind::FullObject)
            }
            (Self::Crc64Nvme, Some("COMPOSITE")) | (Self::Sha1 | Self::Sha256, Some("FULL_OBJECT")) => {
                Err(Wrong(format!(
                    "The checksum type {} cannot be used with the {} checksum algorithm",
                    asked.unwrap_or_default(),
                    self.name()
                )))
            }
            (_, None | Some("COMPOSITE")) => Ok(Kind::Composite),
            (_, Some(other)) => Err(Wrong(format!("Unknown checksum type {other}"))),
        }
    }
}

impl Kind {
    /// The name in `x-amz-checksum-type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullObject => "FULL_OBJECT",
            Self::Composite => "COMPOSITE",
        }
    }
}

/// A checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// Its bytes.
    pub value: Vec<u8>,
}

impl Checksum {
    /// Parses a client's header.
    ///
    /// # Errors
    /// [`Wrong`] if it is not base64 of the right length.
    pub fn parse(algorithm: Algorithm, text: &str) -> Result<Self, Wrong> {
        let value = STANDARD
            .decode(text)
            .ok()
            .filter(|value| value.len() == algorithm.bytes());
        let value = value.ok_or_else(|| Wrong(format!("Value for {} header is invalid.", algorithm.header())))?;
        Ok(Self { algorithm, value })
    }

    /// S3's form: base64.
    pub fn text(&self) -> String {
        STANDARD.encode(&self.value)
    }

    /// A CRC as a number.
    pub fn number(&self) -> u64 {
        self.value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
