//! Opens a file, recognises its format by its first bytes, and reads it.
//!
//! Invariants: only a regular file is read, even if the path became a pipe after the walk. No more
//! than the limit is read, whatever the file's length.
//!
//! Failure: the reason as text, or "not an image" if neither content nor name is an image's.

use super::walk::unreadable;
use bytes::Bytes;
use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Bytes needed to recognise a format.
const SNIFF_BYTES: usize = 16;

/// The formats that are imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    Webp,
    /// TIFF.
    Tiff,
    /// GIF.
    Gif,
}

impl Format {
    /// Recognises a format by the first bytes of a file.
    #[must_use]
    pub fn sniff(start: &[u8]) -> Option<Self> {
        if start.starts_with(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if start.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP") {
            Some(Self::Webp)
        } else if [b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b"]
            .iter()
            .any(|magic| start.starts_with(*magic))
        {
            Some(Self::Tiff)
        } else if start.starts_with(b"GIF87a") || start.starts_with(b"GIF89a") {
            Some(Self::Gif)
        } else {
            None
        }
    }

    /// The format of a file's extension.
    #[must_use]
    pub fn claimed_by(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "jpe" | "jfif" => Some(Self::Jpeg),
            "png" => Some(Self::Png),
            "webp" => Some(Self::Webp),
            "tif" | "tiff" => Some(Self::Tiff),
            "gif" => Some(Self::Gif),
            _ => None,
        }
    }

    /// Its name in the attributes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::Webp => "webp",
            Self::Tiff => "tiff",
            Self::Gif => "gif",
        }
    }

    /// Its media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Webp => "image/webp",
            Self::Tiff => "image/tiff",
            Self::Gif => "image/gif",
        }
    }
}

/// Why a file is not imported.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Neither its content nor its name is an image's.
    NotAnImage,
    /// An image that cannot be used.
    Failed(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// An open file that begins like an image.
pub(super) struct Source {
    file: File,
    start: Vec<u8>,
    pub(super) format: Format,
    /// Its length in bytes at the time of opening.
    pub(super) length: u64,
}

impl Source {
    /// Opens a file and looks at its first bytes.
    pub(super) fn open(path: &Path, bytes_max: u64) -> Result<Self, Refusal> {
        // Must not block if the path has become a pipe.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
        let mut file = opened.map_err(|error| unreadable(&error))?;
        let metadata = file.metadata().map_err(|error| unreadable(&error))?;
        if !metadata.is_file() {
            return Err(Refusal::Failed("no longer a regular file; left alone".to_owned()));
        }
        let mut start = Vec::with_capacity(SNIFF_BYTES);
        let read = file.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut start);
        read.map_err(|error| unreadable(&error))?;
        let length = metadata.len();
        match (Format::sniff(&start), Format::claimed_by(path)) {
            (None, None) => Err(Refusal::NotAnImage),
            (None, Some(_)) if start.is_empty() => Err(Refusal::Failed("the file is empty".to_owned())),
            (None, Some(claimed)) => Err(Refusal::Failed(format!(
                "named like {} but its content is not of an image format that is imported",
                claimed.name()
            ))),
            (Some(_), _) if length > bytes_max => Err(Refusal::Failed(too_long(bytes_max))),
            (Some(format), _) => Ok(Self {
                file,
                start,
                format,
                length,
            }),
        }
    }

    /// Reads the whole file.
    pub(super) fn read(mut self, bytes_max: u64) -> Result<Bytes, Refusal> {
        let mut bytes = std::mem::take(&mut self.start);
        let expected = usize::try_from(self.length).unwrap_or(0).saturating_sub(bytes.len());
        bytes.reserve_exact(expected);
        let rest_max = bytes_max.saturating_sub(bytes.len() as u64);
        let read = self.file.take(rest_max.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| unreadable(&error))?;
        if bytes.len() as u64 > bytes_max {
            return Err(Refusal::Failed(too_long(bytes_max)));
        }
        Ok(bytes.into())
    }
}

fn too_long(bytes_max: u64) -> String {
    format!("longer than {bytes_max} bytes, the largest file that is imported")
}
