//! Keys and attributes of imported images.
//!
//! Invariant: every name that an import writes is a constant or a function of this file. Text
//! attributes are UTF-8, numbers are decimal text. Failure: an entry without a required attribute
//! reads as `None`, never as zeros.

use std::fmt;
use terrace::Attributes;

/// Prefix of the keys of catalogue entries; an image's ID follows.
pub const CATALOGUE_PREFIX: &str = "catalogue/";
/// Prefix of the keys of originals and resolutions; an image's ID, `/` and the resolution's name
/// follow.
pub const IMAGES_PREFIX: &str = "images/";
/// The resolution name under which the original file is stored.
pub const ORIGINAL: &str = "original";

/// Names of attributes.
pub mod attribute {
    /// Media type of the value, such as `image/jpeg`.
    pub const CONTENT_TYPE: &str = "content-type";
    /// Strong entity tag: a quoted hash of the value.
    pub const ETAG: &str = "etag";
    /// Full BLAKE3 hash of the value (of the original, in a catalogue entry) in lowercase hex.
    pub const CONTENT_HASH: &str = "content-hash";
    /// Width in pixels, with the orientation applied.
    pub const WIDTH: &str = "width";
    /// Height in pixels, with the orientation applied.
    pub const HEIGHT: &str = "height";
    /// Format of the original: `jpeg`, `png`, `webp`, `tiff` or `gif`.
    pub const FORMAT: &str = "format";
    /// EXIF orientation of the original, 1 to 8; 1 if it has none.
    pub const ORIENTATION: &str = "orientation";
    /// Time of capture, `2024-05-17T09:30:00`, with the offset from UTC if known. Optional.
    pub const CAPTURE_TIME: &str = "capture-time";
    /// Make and model of the camera. Optional.
    pub const CAMERA: &str = "camera";
    /// Length of the original in bytes.
    pub const BYTES: &str = "bytes";
    /// Name of the file the image came from, without directories.
    pub const FILE_NAME: &str = "file-name";
    /// In a catalogue entry: names of the stored resolutions, largest first, separated by commas.
    pub const RESOLUTIONS: &str = "resolutions";

    /// In a catalogue entry: the properties of one stored resolution, `width height bytes
    /// content-type`.
    #[must_use]
    pub fn resolution(name: &str) -> String {
        format!("resolution.{name}")
    }
}

/// The ID of an image: the first 16 bytes of the BLAKE3 hash of its file. Displays as lowercase
/// hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub [u8; 16]);

impl ImageId {
    /// The ID of the image in a file with this content hash.
    #[must_use]
    pub fn of(hash: &blake3::Hash) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_bytes()[..16]);
        Self(id)
    }

    /// Parses 32 lowercase hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(Self(id))
    }
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The key of an image's catalogue entry.
#[must_use]
pub fn catalogue_key(id: ImageId) -> String {
    format!("{CATALOGUE_PREFIX}{id}")
}

/// The key of one resolution of an image, or of its [`ORIGINAL`].
#[must_use]
pub fn image_key(id: ImageId, resolution: &str) -> String {
    format!("{IMAGES_PREFIX}{id}/{resolution}")
}

/// A strong entity tag for a value with this hash.
pub(super) fn etag(hash: &blake3::Hash) -> String {
    format!("\"{}\"", ImageId::of(hash))
}

/// One stored resolution in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResolution {
    /// Its name.
    pub name: String,
    /// Its width in pixels.
    pub width: u32,
    /// Its height in pixels.
    pub height: u32,
    /// Length of its value in bytes.
    pub bytes: u64,
    /// Its media type.
    pub content_type: String,
}

/// The catalogue entry of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// Width in pixels, with the orientation applied.
    pub width: u32,
    /// Height in pixels, with the orientation applied.
    pub height: u32,
    /// Format of the original.
    pub format: String,
    /// EXIF orientation, 1 to 8.
    pub orientation: u8,
    /// Time of capture, if known.
    pub capture_time: Option<String>,
    /// Make and model of the camera, if known.
    pub camera: Option<String>,
    /// Length of the original in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the original, in lowercase hex.
    pub content_hash: String,
    /// Name of the file it came from.
    pub file_name: String,
    /// The stored resolutions, largest first.
    pub resolutions: Vec<StoredResolution>,
}

impl CatalogueEntry {
    /// The attributes of the image itself, without the resolutions.
    pub(super) fn image_attributes(&self) -> Attributes {
        let mut attributes = Attributes::new()
            .with(attribute::WIDTH, self.width.to_string())
            .with(attribute::HEIGHT, self.height.to_string())
            .with(attribute::FORMAT, &self.format)
            .with(attribute::ORIENTATION, self.orientation.to_string())
            .with(attribute::BYTES, self.bytes.to_string())
            .with(attribute::CONTENT_HASH, &self.content_hash)
            .with(attribute::FILE_NAME, &self.file_name);
        if let Some(capture_time) = &self.capture_time {
            attributes.set(attribute::CAPTURE_TIME, capture_time);
        }
        if let Some(camera) = &self.camera {
            attributes.set(attribute::CAMERA, camera);
        }
        attributes
    }

    /// The attributes of the catalogue entry.
    #[must_use]
    pub fn to_attributes(&self) -> Attributes {
        let mut attributes = self.image_attributes();
        let names: Vec<_> = self.resolutions.iter().map(|stored| stored.name.as_str()).collect();
        attributes.set(attribute::RESOLUTIONS, names.join(","));
        for stored in &self.resolutions {
            let facts = format!(
                "{} {} {} {}",
                stored.width, stored.height, stored.bytes, stored.content_type
            );
            attributes.set(attribute::resolution(&stored.name), facts);
        }
        attributes
    }

    /// Reads the attributes of a catalogue entry. `None` if a required one is missing or malformed.
    #[must_use]
    pub fn from_attributes(attributes: &Attributes) -> Option<Self> {
        let text = |name: &str| attributes.get_str(name);
        let owned = |name: &str| text(name).map(str::to_owned);
        let names = text(attribute::RESOLUTIONS)?.split(',').filter(|name| !name.is_empty());
        let resolutions = names.map(|name| {
            let mut facts = text(&attribute::resolution(name))?.split(' ');
            Some(StoredResolution {
                name: name.to_owned(),
                width: facts.next()?.parse().ok()?,
                height: facts.next()?.parse().ok()?,
                bytes: facts.next()?.parse().ok()?,
                content_type: facts.next()?.to_owned(),
            })
        });
        Some(Self {
            width: text(attribute::WIDTH)?.parse().ok()?,
            height: text(attribute::HEIGHT)?.parse().ok()?,
            format: owned(attribute::FORMAT)?,
            orientation: text(attribute::ORIENTATION)?.parse().ok()?,
            capture_time: owned(attribute::CAPTURE_TIME),
            camera: owned(attribute::CAMERA),
            bytes: text(attribute::BYTES)?.parse().ok()?,
            content_hash: owned(attribute::CONTENT_HASH)?,
            file_name: owned(attribute::FILE_NAME)?,
            resolutions: resolutions.collect::<Option<_>>()?,
        })
    }
}
