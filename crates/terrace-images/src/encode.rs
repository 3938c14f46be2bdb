//! Encodes one resolution.
//!
//! Invariant: the result needs no metadata to be displayed correctly: it is upright, and has a
//! colour profile only if its colours are not sRGB.
//!
//! Failure: the reason as text.

use super::options::OutputFormat;
use image::{
    DynamicImage, ImageEncoder,
    codecs::{png::PngEncoder, webp::WebPEncoder},
};
use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder};

/// Encodes pixels: gray, RGB or (not for JPEG) RGBA.
pub(super) fn encode(
    pixels: &DynamicImage,
    profile: Option<&[u8]>,
    format: OutputFormat,
    quality: u8,
) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    match format {
        OutputFormat::Jpeg => encode_jpeg(pixels, profile, quality, &mut out)?,
        OutputFormat::Png => encode_other(pixels, profile, PngEncoder::new(&mut out))?,
        OutputFormat::Webp => encode_other(pixels, profile, WebPEncoder::new_lossless(&mut out))?,
    }
    Ok(out)
}

fn encode_jpeg(pixels: &DynamicImage, profile: Option<&[u8]>, quality: u8, out: &mut Vec<u8>) -> Result<(), String> {
    let side = |side: u32| u16::try_from(side).map_err(|_| format!("{side} pixels are too many for a side of a JPEG"));
    let (width, height) = (side(pixels.width())?, side(pixels.height())?);
    let colours = match pixels {
        DynamicImage::ImageLuma8(_) => ColorType::Luma,
        DynamicImage::ImageRgb8(_) => ColorType::Rgb,
        _ => return Err("its pixels are in a form that JPEG does not have".to_owned()),
    };
    let mut encoder = Encoder::new(out, quality);
    // The default samples the colour of one in four pixels, which is visible at sharp edges.
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    let refused = |error| format!("cannot be encoded: {error}");
    if let Some(profile) = profile {
        encoder.add_icc_profile(profile).map_err(refused)?;
    }
    encoder
        .encode(pixels.as_bytes(), width, height, colours)
        .map_err(refused)
}

fn encode_other(pixels: &DynamicImage, profile: Option<&[u8]>, mut encoder: impl ImageEncoder) -> Result<(), String> {
    if let Some(profile) = profile {
        // Without its profile the image is valid, with slightly different colours.
        let _ = encoder.set_icc_profile(profile.to_vec());
    }
    let colours = pixels.color().into();
    let written = encoder.write_image(pixels.as_bytes(), pixels.width(), pixels.height(), colours);
    written.map_err(|error| format!("cannot be encoded: {error}"))
}
