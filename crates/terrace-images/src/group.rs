//! Builds the group of one image: all objects that are committed together.
//!
//! Invariants: the group contains the original unchanged, every resolution of the options, and the
//! catalogue entry. The commit is conditional on the entry's absence, so of two concurrent imports
//! only one stores the image.
//!
//! Failure: the reason as text; nothing has been written.

use super::{
    catalogue::{CatalogueEntry, ImageId, ORIGINAL, StoredResolution, attribute, catalogue_key, etag, image_key},
    decode::{Decoded, Decoder},
    encode::encode,
    exif::capture_facts,
    gate::Permit,
    options::{ImportOptions, OutputFormat},
    resize::{over_ground, resize_all, upright},
    source::Format,
};
use bytes::Bytes;
use fast_image_resize::Resizer;
use image::DynamicImage;
use std::path::Path;
use terrace::{Attributes, Batch, Condition};

/// Longest file name kept, in bytes.
const FILE_NAME_BYTES_MAX: usize = 1024;

/// A file that has been read but not stored.
pub(super) struct Original<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: Bytes,
    pub(super) format: Format,
    pub(super) hash: blake3::Hash,
}

/// A group, ready to be committed.
pub(super) struct Group {
    pub(super) batch: Batch,
    /// Bytes of the original.
    pub(super) original_bytes: u64,
    /// Bytes of the resolutions together.
    pub(super) resolution_bytes: u64,
}

/// Decodes an image and builds its group. The permit is larger while pixels are in memory.
pub(super) fn make_group(
    original: &Original<'_>,
    options: &ImportOptions,
    permit: &mut Permit<'_>,
    resizer: &mut Resizer,
) -> Result<Group, String> {
    let decoder = Decoder::open(&original.bytes, original.format, options.pixel_limit)?;
    permit.grow(decoder.memory_bytes());
    let facts = capture_facts(&original.bytes, original.format);
    let (width, height) = upright(decoder.width, decoder.height, facts.orientation);
    let mut entry = CatalogueEntry {
        width,
        height,
        format: original.format.name().to_owned(),
        orientation: facts.orientation,
        capture_time: facts.capture_time,
        camera: facts.camera,
        bytes: original.bytes.len() as u64,
        content_hash: original.hash.to_hex().to_string(),
        file_name: file_name(original.path),
        resolutions: Vec::new(),
    };
    let id = ImageId::of(&original.hash);
    let mut batch = Batch::new();
    let original_attributes = entry
        .image_attributes()
        .with(attribute::CONTENT_TYPE, original.format.content_type())
        .with(attribute::ETAG, etag(&original.hash));
    batch.put_with(
        image_key(id, ORIGINAL),
        original.bytes.clone(),
        original_attributes,
        Condition::None,
    );
    let resolution_bytes = add_resolutions(decoder.decode()?, id, &mut entry, options, &mut batch, resizer)?;
    batch.put_with(
        catalogue_key(id),
        Bytes::new(),
        entry.to_attributes(),
        Condition::Absent,
    );
    Ok(Group {
        batch,
        original_bytes: entry.bytes,
        resolution_bytes,
    })
}

/// Adds the resolutions to the batch and the entry; returns their total bytes.
fn add_resolutions(
    decoded: Decoded,
    id: ImageId,
    entry: &mut CatalogueEntry,
    options: &ImportOptions,
    batch: &mut Batch,
    resizer: &mut Resizer,
) -> Result<u64, String> {
    let Decoded { pixels, profile } = decoded;
    let pixels = match (options.format, pixels) {
        (OutputFormat::Jpeg, pixels) => over_ground(pixels),
        (_, DynamicImage::ImageLumaA8(pixels)) => DynamicImage::ImageLumaA8(pixels).into_rgba8().into(),
        (_, pixels) => pixels,
    };
    let set = resize_all(pixels, entry.orientation, &options.resolutions, resizer)?;
    let mut encoded = Vec::with_capacity(set.made.len());
    for pixels in &set.made {
        let value = Bytes::from(encode(pixels, profile.as_deref(), options.format, options.quality)?);
        let hash = blake3::hash(&value);
        encoded.push((value, hash));
    }
    let mut total_bytes = 0;
    for resized in set.resolutions {
        let (value, hash) = &encoded[resized.made];
        let (width, height) = (set.made[resized.made].width(), set.made[resized.made].height());
        let name = &options.resolutions[resized.place].name;
        let attributes = Attributes::new()
            .with(attribute::CONTENT_TYPE, options.format.content_type())
            .with(attribute::ETAG, etag(hash))
            .with(attribute::CONTENT_HASH, hash.to_hex().as_str())
            .with(attribute::WIDTH, width.to_string())
            .with(attribute::HEIGHT, height.to_string());
        batch.put_with(image_key(id, name), value.clone(), attributes, Condition::None);
        total_bytes += value.len() as u64;
        entry.resolutions.push(StoredResolution {
            name: name.clone(),
            width,
            height,
            bytes: value.len() as u64,
            content_type: options.format.content_type().to_owned(),
        });
    }
    Ok(total_bytes)
}

/// The last part of a path as text, truncated to the limit.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let whole = name
        .char_indices()
        .take_while(|(place, character)| place + character.len_utf8() <= FILE_NAME_BYTES_MAX);
    whole.map(|(_, character)| character).collect()
}
