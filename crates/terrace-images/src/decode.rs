//! Decodes image files.
//!
//! JPEG is decoded by `zune-jpeg` directly, which allows strict decoding and the choice of output
//! colours; other formats by `image`. Of an animation the first frame is used, of a TIFF file the
//! first page. The result is 8-bit gray, RGB or RGBA; CMYK, palettes, 16-bit and floating-point
//! samples are converted.
//!
//! Invariants: [`Decoder::open`] reads headers only and enforces the pixel limit, so no memory in
//! proportion to claimed dimensions is allocated before. A file with incomplete pixel data is
//! refused. Data after the last pixel is not checked, except that a JPEG must have its end marker.
//!
//! Failure: the reason as text. A panic inside a decoder is caught by the caller.

use super::source::Format;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

/// Largest ICC profile copied to resolutions. Display profiles have a few KiB.
const PROFILE_BYTES_MAX: usize = 64 << 10;
/// RAM per pixel for decoding a JPEG: RGB, and the coefficients of a progressive one.
const JPEG_BYTES_PER_PIXEL: u64 = 9;

/// An image with a valid header.
pub(super) struct Decoder<'a> {
    inner: Inner<'a>,
    bytes: &'a [u8],
    /// Width in pixels, as stored in the file.
    pub(super) width: u32,
    /// Height in pixels, as stored in the file.
    pub(super) height: u32,
}

enum Inner<'a> {
    Jpeg(Box<JpegDecoder<ZCursor<&'a [u8]>>>),
    Other(Box<dyn ImageDecoder + 'a>),
}

/// Pixels, as 8-bit gray, gray with alpha, RGB or RGBA, and their colour profile.
pub(super) struct Decoded {
    pub(super) pixels: DynamicImage,
    /// An ICC profile; `None` for sRGB.
    pub(super) profile: Option<Vec<u8>>,
}

impl<'a> Decoder<'a> {
    /// Reads the header.
    pub(super) fn open(bytes: &'a [u8], format: Format, pixel_limit: u64) -> Result<Self, String> {
        let (inner, width, height) = match format {
            Format::Jpeg => open_jpeg(bytes, true)?,
            _ => open_other(bytes, format, pixel_limit)?,
        };
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(format!("claims to be {width}x{height} pixels"));
        }
        if pixels > pixel_limit {
            return Err(format!(
                "{width}x{height} pixels are more than the pixel limit of {pixel_limit}"
            ));
        }
        Ok(Self {
            inner,
            bytes,
            width,
            height,
        })
    }

    /// Estimated RAM for decoding.
    pub(super) fn memory_bytes(&self) -> u64 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        match &self.inner {
            Inner::Jpeg(_) => pixels * JPEG_BYTES_PER_PIXEL,
            // The decoded pixels, and their conversion to at most RGBA.
            Inner::Other(decoder) => decoder.total_bytes().saturating_add(pixels * 4),
        }
    }

    /// Decodes the pixels.
    pub(super) fn decode(self) -> Result<Decoded, String> {
        match self.inner {
            Inner::Jpeg(decoder) => decode_jpeg(*decoder, self.bytes),
            Inner::Other(mut decoder) => {
                let profile = decoder.icc_profile().ok().flatten();
                let pixels = DynamicImage::from_decoder(decoder).map_err(|error| damaged(&error))?;
                let pixels = to_8_bit(pixels);
                let profile = profile.filter(|profile| worth_keeping(profile, &pixels));
                Ok(Decoded { pixels, profile })
            }
        }
    }
}

fn damaged(error: &dyn std::fmt::Display) -> String {
    format!("damaged or not supported: {error}")
}

fn open_jpeg(bytes: &[u8], strict: bool) -> Result<(Inner<'_>, u32, u32), String> {
    let options = DecoderOptions::default()
        .set_strict_mode(strict)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX));
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    match decoder.decode_headers() {
        Ok(()) => {}
        // Extra bytes between header segments are common, since some cameras pad, and harmless.
        Err(error) if strict && format!("{error:?}").contains("Extra bytes between headers") => {
            return open_jpeg(bytes, false);
        }
        Err(error) => return Err(damaged(&format!("{error:?}"))),
    }
    let info = decoder.info().ok_or("damaged: it has no frame header")?;
    let colours = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => ColorSpace::Luma,
        _ => ColorSpace::RGB,
    };
    let options = decoder.options().jpeg_set_out_colorspace(colours);
    decoder.set_options(options);
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    Ok((Inner::Jpeg(Box::new(decoder)), width, height))
}

fn decode_jpeg(mut decoder: JpegDecoder<ZCursor<&[u8]>>, bytes: &[u8]) -> Result<Decoded, String> {
    if !jpeg_has_end(bytes) {
        return Err("truncated: its end marker is missing".to_owned());
    }
    let samples = decoder.decode().map_err(|error| damaged(&format!("{error:?}")))?;
    let info = decoder.info().ok_or("damaged: it has no frame header")?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    let pixels = match decoder.output_colorspace() {
        Some(ColorSpace::Luma) => image::GrayImage::from_raw(width, height, samples).map(DynamicImage::ImageLuma8),
        Some(ColorSpace::RGB) => image::RgbImage::from_raw(width, height, samples).map(DynamicImage::ImageRgb8),
        _ => None,
    };
    let pixels = pixels.ok_or("damaged or not supported: its colours cannot be converted")?;
    let profile = decoder.icc_profile().filter(|profile| worth_keeping(profile, &pixels));
    Ok(Decoded { pixels, profile })
}

/// Whether there is an end marker after the start of the first scan. In scans 0xFF is always
/// escaped, so another byte pair is not mistaken for it. What a camera appended (a video, a second
/// picture) is ignored.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    let mut place = 2;
    while let Some(&[0xff, marker]) = bytes.get(place..place + 2) {
        if marker == 0xff {
            place += 1;
            continue;
        }
        let Some(&[high, low]) = bytes.get(place + 2..place + 4) else {
            return false;
        };
        place += 2 + usize::from(u16::from_be_bytes([high, low]));
        if marker == 0xda {
            break;
        }
    }
    bytes
        .get(place..)
        .is_some_and(|rest| rest.windows(2).any(|pair| pair == [0xff, 0xd9]))
}

fn open_other(bytes: &[u8], format: Format, pixel_limit: u64) -> Result<(Inner<'_>, u32, u32), String> {
    let format = match format {
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Png => ImageFormat::Png,
        Format::Webp => ImageFormat::WebP,
        Format::Tiff => ImageFormat::Tiff,
        Format::Gif => ImageFormat::Gif,
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    // 16-bit RGBA takes 8 bytes per pixel; the rest is for the decoder's own buffers.
    limits.max_alloc = Some(pixel_limit.saturating_mul(8).saturating_add(64 << 20));
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|error| damaged(&error))?;
    let (width, height) = decoder.dimensions();
    Ok((Inner::Other(Box::new(decoder)), width, height))
}

/// Converts samples to 8 bits, keeping gray, and alpha only if the image uses it.
fn to_8_bit(pixels: DynamicImage) -> DynamicImage {
    let colours = pixels.color();
    match (colours.has_color(), colours.has_alpha()) {
        (false, false) => DynamicImage::ImageLuma8(pixels.into_luma8()),
        (false, true) => DynamicImage::ImageLumaA8(pixels.into_luma_alpha8()),
        (true, false) => DynamicImage::ImageRgb8(pixels.into_rgb8()),
        (true, true) => DynamicImage::ImageRgba8(pixels.into_rgba8()),
    }
}

/// Whether a profile is valid for the converted pixels and is not just sRGB.
fn worth_keeping(profile: &[u8], pixels: &DynamicImage) -> bool {
    let colours = if pixels.color().has_color() { b"RGB " } else { b"GRAY" };
    (128..=PROFILE_BYTES_MAX).contains(&profile.len())
        && profile.get(16..20) == Some(colours)
        && !profile.windows(4).any(|text| text == b"sRGB")
        // As two bytes per character in newer profiles.
        && !profile.windows(8).any(|text| text == b"\0s\0R\0G\0B")
}
