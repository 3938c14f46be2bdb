//! Options of an import.

use super::catalogue::ORIGINAL;
use std::num::NonZero;
use terrace::{Error, Result};

/// Largest side of a JPEG image, in pixels.
const JPEG_SIDE_MAX: u32 = 65_535;
/// Largest side of a WebP image, in pixels.
const WEBP_SIDE_MAX: u32 = 16_383;

/// A box into which images are fitted, in either orientation: the longer side is the width for a
/// landscape image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The last part of its key: lowercase letters, digits, `-` and `_`.
    pub name: String,
    /// Width of the box, in pixels.
    pub width: u32,
    /// Height of the box, in pixels.
    pub height: u32,
}

impl Resolution {
    /// A resolution called `name` that fits `width` by `height` pixels.
    #[must_use]
    pub fn new(name: impl Into<String>, width: u32, height: u32) -> Self {
        let name = name.into();
        Self { name, width, height }
    }

    /// The three of the MRIS paper: thumbnail 100×100, small 600×800, large 2048×3072.
    #[must_use]
    pub fn standard() -> Vec<Self> {
        vec![
            Self::new("thumbnail", 100, 100),
            Self::new("small", 600, 800),
            Self::new("large", 2048, 3072),
        ]
    }
}

/// How resolutions are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputFormat {
    /// Lossy; transparent pixels become white, or dark gray if the image would be invisible on
    /// white.
    #[default]
    Jpeg,
    /// Lossless, keeps transparency.
    Png,
    /// Lossless WebP, keeps transparency.
    Webp,
}

impl OutputFormat {
    /// The media type of what is stored.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Webp => "image/webp",
        }
    }

    const fn side_max(self) -> u32 {
        match self {
            Self::Jpeg | Self::Png => JPEG_SIDE_MAX,
            Self::Webp => WEBP_SIDE_MAX,
        }
    }
}

/// Options of an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The resolutions of each image. An image smaller than a box keeps its size.
    pub resolutions: Vec<Resolution>,
    /// How they are encoded.
    pub format: OutputFormat,
    /// JPEG quality, 1 to 100. 85.
    pub quality: u8,
    /// Images with more pixels are refused, from their header. 100 million.
    pub pixel_limit: u64,
    /// Files longer than this are refused. 256 MiB.
    pub file_bytes_max: u64,
    /// RAM for images in flight; 0 for 256 MiB per thread, at least 1 GiB. An image that needs more
    /// is processed alone.
    pub memory_bytes: u64,
    /// Decoding threads; 0 for one per core.
    pub threads: usize,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            resolutions: Resolution::standard(),
            format: OutputFormat::Jpeg,
            quality: 85,
            pixel_limit: 100_000_000,
            file_bytes_max: 256 << 20,
            memory_bytes: 0,
            threads: 0,
        }
    }
}

impl ImportOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the option and its allowed values.
    pub fn validate(&self) -> Result<()> {
        if !(1..=100).contains(&self.quality) {
            return Err(Error::invalid(format!(
                "quality {} must be between 1 and 100",
                self.quality
            )));
        }
        if self.pixel_limit == 0 || self.file_bytes_max == 0 {
            return Err(Error::invalid(
                "the pixel limit and the largest file size must be above 0",
            ));
        }
        for (place, resolution) in self.resolutions.iter().enumerate() {
            self.validate_resolution(resolution)?;
            if self.resolutions[..place]
                .iter()
                .any(|other| other.name == resolution.name)
            {
                return Err(Error::invalid(format!(
                    "resolution {} is listed twice",
                    resolution.name
                )));
            }
        }
        Ok(())
    }

    fn validate_resolution(&self, resolution: &Resolution) -> Result<()> {
        let Resolution { name, width, height } = resolution;
        let good_name = !name.is_empty()
            && name.len() <= 64
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_');
        if !good_name || name == ORIGINAL {
            return Err(Error::invalid(format!(
                "resolution name {name:?} must be 1 to 64 of a-z, 0-9, - and _, and not {ORIGINAL:?}"
            )));
        }
        let sides = 1..=self.format.side_max();
        if !sides.contains(width) || !sides.contains(height) {
            return Err(Error::invalid(format!(
                "resolution {name}: {width}x{height} must have sides between 1 and {} pixels",
                self.format.side_max()
            )));
        }
        Ok(())
    }

    /// Number of decoding threads.
    pub(super) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        }
    }

    /// Budget of RAM for images in flight, in bytes.
    pub(super) fn memory_budget_bytes(&self) -> u64 {
        match self.memory_bytes {
            0 => (self.thread_count() as u64 * (256 << 20)).max(1 << 30),
            bytes => bytes,
        }
    }
}
