//! Tests of the import: results for each kind of file, and whole runs.

#![allow(clippy::unwrap_used)]

mod facts;
mod formats;
mod hostile;
mod pieces;
mod runs;

use super::{
    CATALOGUE_PREFIX, CatalogueEntry, GroupSink, ImageId, ImportOptions, ImportReport, Progress, catalogue_key,
    image_key, import,
};
use bytes::Bytes;
use image::{DynamicImage, ImageFormat, RgbImage};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io::Cursor,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use terrace::{Attributes, Batch, Error, Result, Tier};

/// A sink in memory that can be told to fail.
#[derive(Default)]
pub(super) struct MemorySink {
    objects: Mutex<BTreeMap<String, (Bytes, Attributes)>>,
    /// Keys of each batch, in commit order.
    batches: Mutex<Vec<Vec<String>>>,
    /// Commits that succeed before one fails with a full store; `u64::MAX` for all.
    commits_left: AtomicU64,
}

impl MemorySink {
    fn new() -> Self {
        let sink = Self::default();
        sink.commits_left.store(u64::MAX, Relaxed);
        sink
    }

    fn failing_after(commits: u64) -> Self {
        let sink = Self::default();
        sink.commits_left.store(commits, Relaxed);
        sink
    }

    fn get(&self, key: &str) -> (Bytes, Attributes) {
        self.objects
            .lock()
            .get(key)
            .unwrap_or_else(|| panic!("no object {key}"))
            .clone()
    }

    fn entries(&self) -> Vec<(ImageId, CatalogueEntry)> {
        let objects = self.objects.lock();
        let entries = objects.iter().filter_map(|(key, (value, attributes))| {
            let id = key.strip_prefix(CATALOGUE_PREFIX)?;
            assert!(value.is_empty());
            Some((
                ImageId::parse(id).unwrap(),
                CatalogueEntry::from_attributes(attributes).unwrap(),
            ))
        });
        entries.collect()
    }

    /// The pixels of a stored resolution of the only image.
    fn only(&self, resolution: &str) -> RgbImage {
        let entries = self.entries();
        assert_eq!(entries.len(), 1);
        let (value, _) = self.get(&image_key(entries[0].0, resolution));
        jpeg_pixels(&value)
    }
}

impl GroupSink for MemorySink {
    fn contains(&self, key: &str) -> Result<bool> {
        Ok(self.objects.lock().contains_key(key))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let mut objects = self.objects.lock();
        if self.commits_left.fetch_sub(1, Relaxed) == 0 {
            self.commits_left.store(0, Relaxed);
            return Err(Error::OutOfSpace {
                tier: Tier::Large,
                reason: "told to".to_owned(),
                room: None,
            });
        }
        let mut keys = Vec::new();
        for (key, put) in batch.changes() {
            let (value, attributes) = put.unwrap();
            let key = String::from_utf8(key.to_vec()).unwrap();
            attributes.encode().unwrap();
            objects.insert(key.clone(), (value.clone(), attributes.clone()));
            keys.push(key);
        }
        self.batches.lock().push(keys);
        Ok(())
    }
}

pub(super) fn jpeg_pixels(bytes: &[u8]) -> RgbImage {
    let mut decoder = zune_jpeg::JpegDecoder::new(zune_core::bytestream::ZCursor::new(bytes));
    let pixels = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    let (width, height) = (u32::try_from(width).unwrap(), u32::try_from(height).unwrap());
    if pixels.len() == (width * height) as usize {
        let gray = image::GrayImage::from_raw(width, height, pixels).unwrap();
        return DynamicImage::ImageLuma8(gray).into_rgb8();
    }
    RgbImage::from_raw(width, height, pixels).unwrap()
}

/// A picture in which no two 8x8 blocks are alike.
pub(super) fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let wave = (f64::from(x) / 9.0).sin() * (f64::from(y) / 13.0).cos();
        image::Rgb([
            (x * 255 / width) as u8,
            (y * 255 / height) as u8,
            (128.0 + 100.0 * wave) as u8,
        ])
    })
}

pub(super) fn jpeg(pixels: &RgbImage) -> Vec<u8> {
    let mut out = Vec::new();
    let (width, height) = (pixels.width() as u16, pixels.height() as u16);
    let encoder = jpeg_encoder::Encoder::new(&mut out, 92);
    encoder
        .encode(pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    out
}

pub(super) fn encoded(pixels: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    pixels.into().write_to(&mut out, format).unwrap();
    out.into_inner()
}

/// One file of each format, with its extension.
pub(super) fn one_of_each(width: u32, height: u32) -> Vec<(&'static str, Vec<u8>)> {
    let pixels = picture(width, height);
    vec![
        ("jpg", jpeg(&pixels)),
        ("png", encoded(pixels.clone(), ImageFormat::Png)),
        ("webp", encoded(pixels.clone(), ImageFormat::WebP)),
        ("tiff", encoded(pixels.clone(), ImageFormat::Tiff)),
        ("gif", encoded(pixels, ImageFormat::Gif)),
    ]
}

pub(super) fn import_with(directory: &Path, sink: &MemorySink, options: &ImportOptions) -> ImportReport {
    import(directory, sink, options, &Progress::default(), &AtomicBool::new(false)).unwrap()
}

pub(super) fn import_all(directory: &Path, sink: &MemorySink) -> ImportReport {
    import_with(directory, sink, &ImportOptions::default())
}

/// Imports one file and expects it to succeed.
pub(super) fn import_one(name: &str, bytes: &[u8]) -> MemorySink {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(name), bytes).unwrap();
    let sink = MemorySink::new();
    let report = import_all(directory.path(), &sink);
    assert_eq!(
        (report.imported, report.failed.as_slice()),
        (1, [].as_slice()),
        "{name}"
    );
    sink
}

/// Imports one file and expects it to fail; returns the reason.
pub(super) fn refused(name: &str, bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(name), bytes).unwrap();
    let sink = MemorySink::new();
    let report = import_all(directory.path(), &sink);
    assert!(sink.objects.lock().is_empty());
    assert_eq!((report.imported, report.failed.len()), (0, 1), "{name}: {report}");
    report.failed[0].reason.clone()
}

/// Whether two colours are similar; JPEG does not keep them exactly.
pub(super) fn close(one: [u8; 3], other: [u8; 3], tolerance: u8) -> bool {
    one.iter()
        .zip(other)
        .all(|(one, other)| one.abs_diff(other) <= tolerance)
}

#[test]
fn the_in_memory_sink_fails_when_told() {
    let sink = MemorySink::failing_after(1);
    let batch = || {
        let mut batch = Batch::new();
        batch.put("key", Bytes::new());
        batch
    };
    assert!(sink.commit(batch()).is_ok());
    assert!(sink.commit(batch()).is_err());
    assert!(!sink.contains(&catalogue_key(ImageId([0; 16]))).unwrap());
}
