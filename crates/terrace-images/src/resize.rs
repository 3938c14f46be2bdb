//! Makes the resolutions of an image, largest first, each from a larger one.
//!
//! Resizing uses the Lanczos filter with three lobes, in SIMD. A resolution is made from the
//! smallest existing one that is at least twice its size in each direction, else from the largest:
//! this costs a fraction of using the source each time, and looks the same. The orientation is
//! applied once, to the largest resolution.
//!
//! Invariants: a fitted size is within its box, keeps the aspect ratio to half a pixel, is never
//! larger than the image and never zero.
//!
//! Failure: the reason as text, if the resizer refuses a size.

use super::options::Resolution;
use fast_image_resize::{
    FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer,
    images::TypedImage,
    pixels::{U8, U8x3, U8x4},
};
use image::{DynamicImage, GrayImage, RgbImage, RgbaImage, metadata::Orientation};

/// One resolution, ready to be encoded.
pub(super) struct Resized {
    /// Its index in the list of resolutions.
    pub(super) place: usize,
    /// The index of its pixels: resolutions of equal size share them.
    pub(super) made: usize,
}

/// All resolutions of an image: pixels, largest first, and the resolutions that use them.
pub(super) struct ResizedSet {
    pub(super) made: Vec<DynamicImage>,
    pub(super) resolutions: Vec<Resized>,
}

/// Width and height of an image after its orientation is applied.
pub(super) const fn upright(width: u32, height: u32, orientation: u8) -> (u32, u32) {
    if orientation >= 5 {
        (height, width)
    } else {
        (width, height)
    }
}

/// The size at which an image fits a box, in either orientation, without being enlarged.
pub(super) fn fit(width: u32, height: u32, resolution: &Resolution) -> (u32, u32) {
    let (short, long) = (
        resolution.width.min(resolution.height),
        resolution.width.max(resolution.height),
    );
    let (box_width, box_height) = if width > height { (long, short) } else { (short, long) };
    if width <= box_width && height <= box_height {
        return (width, height);
    }
    let [w, h, bw, bh] = [width, height, box_width, box_height].map(u64::from);
    // Rounded to the nearest pixel; this stays in the box, since the exact size does.
    let scaled =
        |side: u64, to: u64, from: u64| u32::try_from((side * to + from / 2) / from).unwrap_or(u32::MAX).max(1);
    if w * bh >= h * bw {
        (box_width, scaled(h, bw, w))
    } else {
        (scaled(w, bh, h), box_height)
    }
}

/// Makes all resolutions of an image. `source` is as stored in the file, before `orientation` is
/// applied.
pub(super) fn resize_all(
    source: DynamicImage,
    orientation: u8,
    resolutions: &[Resolution],
    resizer: &mut Resizer,
) -> Result<ResizedSet, String> {
    let (width, height) = upright(source.width(), source.height(), orientation);
    let mut wanted: Vec<_> = resolutions
        .iter()
        .map(|resolution| fit(width, height, resolution))
        .enumerate()
        .collect();
    wanted.sort_by_key(|&(_, (width, height))| std::cmp::Reverse((u64::from(width) * u64::from(height), width)));
    let mut set = ResizedSet {
        made: Vec::new(),
        resolutions: Vec::new(),
    };
    let mut source = Some(source);
    for (place, size) in wanted {
        if set.made.last().is_none_or(|last| (last.width(), last.height()) != size) {
            let pixels = match source.take() {
                Some(source) => largest(source, size, orientation, resizer)?,
                None => scale(base_for(&mut set.made, size), size, resizer)?,
            };
            set.made.push(pixels);
        }
        set.resolutions.push(Resized {
            place,
            made: set.made.len() - 1,
        });
    }
    Ok(set)
}

/// Scales the source and then applies the orientation, which is cheaper on fewer pixels.
fn largest(
    mut source: DynamicImage,
    size: (u32, u32),
    orientation: u8,
    resizer: &mut Resizer,
) -> Result<DynamicImage, String> {
    let stored_size = upright(size.0, size.1, orientation);
    let mut pixels = if (source.width(), source.height()) == stored_size {
        source
    } else {
        scale(&mut source, stored_size, resizer)?
    };
    pixels.apply_orientation(Orientation::from_exif(orientation).unwrap_or(Orientation::NoTransforms));
    Ok(pixels)
}

/// The best existing image to make `size` from: large enough to lose nothing visible.
fn base_for(made: &mut [DynamicImage], size: (u32, u32)) -> &mut DynamicImage {
    let twice = |pixels: &DynamicImage| {
        u64::from(pixels.width()) >= 2 * u64::from(size.0) && u64::from(pixels.height()) >= 2 * u64::from(size.1)
    };
    let place = made.iter().rposition(twice).unwrap_or(0);
    &mut made[place]
}

/// Scales an image, without modifying it ([`samples_at`]).
fn scale(pixels: &mut DynamicImage, size: (u32, u32), resizer: &mut Resizer) -> Result<DynamicImage, String> {
    let from = (pixels.width(), pixels.height());
    let scaled = match pixels {
        DynamicImage::ImageLuma8(pixels) => {
            let samples = samples_at::<U8>(pixels, from, size, resizer)?;
            GrayImage::from_raw(size.0, size.1, samples).map(DynamicImage::ImageLuma8)
        }
        DynamicImage::ImageRgb8(pixels) => {
            let samples = samples_at::<U8x3>(pixels, from, size, resizer)?;
            RgbImage::from_raw(size.0, size.1, samples).map(DynamicImage::ImageRgb8)
        }
        DynamicImage::ImageRgba8(pixels) => {
            let samples = samples_at::<U8x4>(pixels, from, size, resizer)?;
            RgbaImage::from_raw(size.0, size.1, samples).map(DynamicImage::ImageRgba8)
        }
        _ => return Err("its pixels are in a form that cannot be resized".to_owned()),
    };
    scaled.ok_or_else(|| "cannot be resized: sizes do not match".to_owned())
}

/// Scales the samples of an image. For one pixel type: a call that accepts any compiles the resizer
/// for all thirteen, which took 50 s. The source is mutable like the resizer's intermediate images:
/// with an immutable type each step is compiled twice.
fn samples_at<P: PixelTrait>(
    pixels: &mut [u8],
    from: (u32, u32),
    size: (u32, u32),
    resizer: &mut Resizer,
) -> Result<Vec<u8>, String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot be resized: {error}");
    let from = TypedImage::<P>::from_buffer(from.0, from.1, pixels).map_err(|error| refused(&error))?;
    let mut samples = vec![0; size.0 as usize * size.1 as usize * size_of::<P>()];
    let mut to = TypedImage::<P>::from_buffer(size.0, size.1, &mut samples).map_err(|error| refused(&error))?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Lanczos3));
    resizer
        .resize_typed(&from, &mut to, &options)
        .map_err(|error| refused(&error))?;
    Ok(samples)
}

/// Background of transparent pixels, as a gray sample.
const WHITE: u8 = 255;
/// Background if white hides the image, which may be drawn in white.
const DARK: u8 = 48;
/// A sample this close to its background is invisible.
const HARDLY: u8 = 16;

/// Composes transparent pixels over white, or over dark gray if the image is nearly invisible over
/// white and visible over gray. For formats without transparency.
pub(super) fn over_ground(pixels: DynamicImage) -> DynamicImage {
    let (width, height) = (pixels.width(), pixels.height());
    let opaque = match &pixels {
        DynamicImage::ImageRgba8(_) => {
            let samples = laid(pixels.as_bytes(), 4);
            RgbImage::from_raw(width, height, samples).map(DynamicImage::ImageRgb8)
        }
        DynamicImage::ImageLumaA8(_) => {
            let samples = laid(pixels.as_bytes(), 2);
            GrayImage::from_raw(width, height, samples).map(DynamicImage::ImageLuma8)
        }
        _ => None,
    };
    opaque.unwrap_or(pixels)
}

/// Composes samples, each pixel's followed by its alpha, over the better background.
fn laid(samples: &[u8], per_pixel: usize) -> Vec<u8> {
    let seen_over = |ground| {
        let seen = |pixel: &&[u8]| over(pixel, ground).any(|sample| sample.abs_diff(ground) > HARDLY);
        samples.chunks_exact(per_pixel).filter(seen).count()
    };
    let over_white = seen_over(WHITE);
    let hidden = over_white * 200 < samples.len() / per_pixel && over_white * 8 < seen_over(DARK);
    let ground = if hidden { DARK } else { WHITE };
    samples
        .chunks_exact(per_pixel)
        .flat_map(|pixel| over(pixel, ground))
        .collect()
}

/// Composes a pixel over a background.
fn over(pixel: &[u8], ground: u8) -> impl Iterator<Item = u8> {
    let (&alpha, samples) = pixel.split_last().unwrap_or((&0, &[]));
    samples.iter().map(move |&sample| {
        let mixed = (u32::from(sample) * u32::from(alpha) + u32::from(ground) * u32::from(255 - alpha) + 127) / 255;
        u8::try_from(mixed).unwrap_or(u8::MAX)
    })
}
