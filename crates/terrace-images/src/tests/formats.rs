//! Tests of formats and pixel types.

use super::{
    super::{ImportOptions, ORIGINAL, OutputFormat, Resolution, attribute, image_key},
    MemorySink, close, encoded, import_one, import_with, jpeg, jpeg_pixels, one_of_each, picture,
};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

#[test]
fn every_format_is_imported_with_all_of_its_group() {
    for (extension, bytes) in one_of_each(900, 400) {
        let sink = import_one(&format!("picture.{extension}"), &bytes);
        let entries = sink.entries();
        let (id, entry) = &entries[0];
        let expected = [
            format!("images/{id}/original"),
            format!("images/{id}/large"),
            format!("images/{id}/small"),
            format!("images/{id}/thumbnail"),
            format!("catalogue/{id}"),
        ];
        assert_eq!(*sink.batches.lock(), [expected.to_vec()], "one batch holds it all");

        let (original, attributes) = sink.get(&image_key(*id, ORIGINAL));
        assert_eq!(original, bytes);
        let hash = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(id.to_string(), hash[..32]);
        assert_eq!(attributes.get_str(attribute::CONTENT_HASH), Some(hash.as_str()));
        assert_eq!(
            attributes.get_str(attribute::ETAG),
            Some(format!("\"{}\"", &hash[..32]).as_str())
        );
        let format = if extension == "jpg" { "jpeg" } else { extension };
        let content_type = format!("image/{format}");
        assert_eq!(attributes.get_str(attribute::CONTENT_TYPE), Some(content_type.as_str()));
        assert_eq!(attributes.get_str(attribute::WIDTH), Some("900"));

        assert_eq!((entry.width, entry.height, entry.format.as_str()), (900, 400, format));
        assert_eq!((entry.bytes, entry.orientation), (bytes.len() as u64, 1));
        assert_eq!(entry.file_name, format!("picture.{extension}"));
        assert_eq!((&entry.capture_time, &entry.camera), (&None, &None));
        for (stored, size) in entry.resolutions.iter().zip([(900, 400), (800, 356), (100, 44)]) {
            let (value, attributes) = sink.get(&image_key(*id, &stored.name));
            assert_eq!((stored.width, stored.height), size, "{}", stored.name);
            assert_eq!(stored.bytes, value.len() as u64);
            assert_eq!(attributes.get_str(attribute::CONTENT_TYPE), Some("image/jpeg"));
            assert_eq!(attributes.get_str(attribute::WIDTH), Some(size.0.to_string().as_str()));
            let etag = format!("\"{}\"", &blake3::hash(&value).to_hex()[..32]);
            assert_eq!(attributes.get_str(attribute::ETAG), Some(etag.as_str()));
            let pixels = jpeg_pixels(&value);
            assert_eq!(pixels.dimensions(), size);
            // The picture's red grows to the right and its green downwards.
            let (right, bottom) = (size.0 - 2, size.1 - 2);
            assert!(
                close(pixels.get_pixel(1, 1).0, [3, 3, 128], 40),
                "{extension} {}",
                stored.name
            );
            let [red, green, _] = pixels.get_pixel(right, bottom).0;
            assert!(red > 220 && green > 220, "{extension} {}", stored.name);
        }
    }
}

#[test]
fn a_small_image_is_not_enlarged() {
    let sink = import_one("small.png", &encoded(picture(60, 30), ImageFormat::Png));
    for resolution in ["thumbnail", "small", "large"] {
        assert_eq!(sink.only(resolution).dimensions(), (60, 30));
    }
    assert_eq!(sink.entries()[0].1.resolutions.len(), 3);
}

#[test]
fn content_decides_and_not_the_name() {
    let png = encoded(picture(20, 20), ImageFormat::Png);
    for name in ["really-a-png.jpg", "no-extension", "notes.txt"] {
        let sink = import_one(name, &png);
        assert_eq!(sink.entries()[0].1.format, "png");
    }
}

#[test]
fn transparent_parts_become_white() {
    let pixels = image::RgbaImage::from_fn(200, 200, |x, y| match (x < 100, y < 100) {
        (true, true) => image::Rgba([0, 0, 0, 0]),
        (false, true) => image::Rgba([200, 0, 0, 255]),
        (true, false) => image::Rgba([0, 0, 200, 128]),
        (false, false) => image::Rgba([10, 10, 10, 255]),
    });
    let gray = DynamicImage::ImageRgba8(pixels.clone()).into_luma_alpha8();
    for (name, bytes) in [
        ("rgba.png", encoded(pixels.clone(), ImageFormat::Png)),
        ("rgba.webp", encoded(pixels, ImageFormat::WebP)),
        ("gray.png", encoded(gray, ImageFormat::Png)),
    ] {
        let sink = import_one(name, &bytes);
        for resolution in ["large", "thumbnail"] {
            let shown = sink.only(resolution);
            let side = shown.width();
            assert!(
                close(shown.get_pixel(side / 4, side / 4).0, [255, 255, 255], 4),
                "{name}"
            );
            assert!(
                close(shown.get_pixel(3 * side / 4, 3 * side / 4).0, [10, 10, 10], 6),
                "{name}"
            );
            if name.starts_with("rgba") {
                assert!(
                    close(shown.get_pixel(side / 4, 3 * side / 4).0, [127, 127, 227], 8),
                    "{name}"
                );
            }
        }
    }
}

/// Regression: desktop wallpapers drawn in white that is nowhere quite opaque were empty sheets
/// over white.
#[test]
fn what_white_would_hide_is_laid_over_dark() {
    let drawing = |ink: u8, alpha: u8| {
        image::RgbaImage::from_fn(200, 200, move |x, y| {
            let drawn = (80..120).contains(&x) && (20..180).contains(&y);
            image::Rgba([ink, ink, ink, if drawn { alpha } else { 0 }])
        })
    };
    // Drawn gray, its alpha, and the expected drawing and background.
    for (ink, alpha, drawn, around) in [
        (255, 255, 255, 48),
        (255, 128, 152, 48),
        (0, 128, 127, 255),
        (128, 255, 128, 255),
        (255, 0, 255, 255),
    ] {
        let pixels = drawing(ink, alpha);
        let gray = DynamicImage::ImageRgba8(pixels.clone()).into_luma_alpha8();
        for bytes in [encoded(pixels, ImageFormat::Png), encoded(gray, ImageFormat::Png)] {
            let shown = import_one("drawing.png", &bytes).only("thumbnail");
            assert!(close(shown.get_pixel(50, 50).0, [drawn; 3], 6), "{ink} {alpha}");
            assert!(close(shown.get_pixel(10, 50).0, [around; 3], 6), "{ink} {alpha}");
        }
    }
}

/// A screenshot of a window: white, with a few words and transparent corners.
#[test]
fn what_is_white_and_written_on_stays_on_white() {
    let pixels = image::RgbaImage::from_fn(200, 200, |x, y| match (x, y) {
        (..10, ..10) => image::Rgba([0, 0, 0, 0]),
        (60..140, 95..105) => image::Rgba([20, 20, 20, 255]),
        _ => image::Rgba([255, 255, 255, 255]),
    });
    let shown = import_one("window.png", &encoded(pixels, ImageFormat::Png)).only("thumbnail");
    assert!(close(shown.get_pixel(1, 1).0, [255; 3], 4));
}

#[test]
fn transparency_is_kept_where_the_format_has_it() {
    let pixels = image::RgbaImage::from_fn(300, 300, |x, _| {
        if x < 150 {
            image::Rgba([255, 0, 0, 0])
        } else {
            image::Rgba([0, 255, 0, 255])
        }
    });
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.png"), encoded(pixels, ImageFormat::Png)).unwrap();
    for (format, decoded) in [
        (OutputFormat::Png, ImageFormat::Png),
        (OutputFormat::Webp, ImageFormat::WebP),
    ] {
        let options = ImportOptions {
            format,
            ..ImportOptions::default()
        };
        let sink = MemorySink::new();
        assert_eq!(import_with(directory.path(), &sink, &options).imported, 1);
        let (value, attributes) = sink.get(&image_key(sink.entries()[0].0, "thumbnail"));
        assert_eq!(attributes.get_str(attribute::CONTENT_TYPE), Some(format.content_type()));
        let thumbnail = image::load_from_memory_with_format(&value, decoded)
            .unwrap()
            .into_rgba8();
        assert_eq!(thumbnail.dimensions(), (100, 100));
        assert_eq!(thumbnail.get_pixel(10, 50).0[3], 0);
        assert_eq!(thumbnail.get_pixel(90, 50).0, [0, 255, 0, 255]);
        // The invisible red must not affect the edge.
        assert!(thumbnail.pixels().all(|pixel| pixel.0[3] == 0 || pixel.0[0] < 8));
    }
}

#[test]
fn deep_gray_and_palette_pixels_are_converted() {
    let picture = DynamicImage::ImageRgb8(picture(120, 80));
    let cases = [
        ("rgb16.png", encoded(picture.to_rgb16(), ImageFormat::Png)),
        ("rgba16.png", encoded(picture.to_rgba16(), ImageFormat::Png)),
        ("gray16.png", encoded(picture.to_luma16(), ImageFormat::Png)),
        ("gray.png", encoded(picture.to_luma8(), ImageFormat::Png)),
        ("rgb16.tif", encoded(picture.to_rgb16(), ImageFormat::Tiff)),
        ("gray16.tif", encoded(picture.to_luma16(), ImageFormat::Tiff)),
        ("rgb32f.tif", encoded(picture.to_rgb32f(), ImageFormat::Tiff)),
        ("palette.gif", encoded(picture.clone(), ImageFormat::Gif)),
    ];
    for (name, bytes) in cases {
        let shown = import_one(name, &bytes).only("large");
        let expected = if name.starts_with("gray") {
            DynamicImage::ImageLuma8(picture.to_luma8()).into_rgb8()
        } else {
            picture.to_rgb8()
        };
        for (x, y) in [(5, 5), (60, 40), (115, 75)] {
            let (found, wanted) = (shown.get_pixel(x, y).0, expected.get_pixel(x, y).0);
            assert!(close(found, wanted, 30), "{name} at {x},{y}: {found:?} for {wanted:?}");
        }
    }
}

fn jpeg_of(samples: &[u8], side: u16, colours: jpeg_encoder::ColorType, progressive: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut out, 95);
    encoder.set_progressive(progressive);
    encoder.encode(samples, side, side, colours).unwrap();
    out
}

#[test]
fn gray_and_progressive_and_four_colour_jpegs_are_converted() {
    use jpeg_encoder::ColorType::{Cmyk, CmykAsYcck, Luma, Rgb};
    let fill = |sample: &[u8]| sample.repeat(64 * 64);
    // Full cyan removes all red from white.
    let cyan = fill(&[255, 0, 0, 0]);
    let cases = [
        ("gray", jpeg_of(&fill(&[77]), 64, Luma, false), [77, 77, 77]),
        ("progressive gray", jpeg_of(&fill(&[77]), 64, Luma, true), [77, 77, 77]),
        (
            "progressive",
            jpeg_of(&fill(&[200, 100, 50]), 64, Rgb, true),
            [200, 100, 50],
        ),
        ("cmyk", jpeg_of(&cyan, 64, Cmyk, false), [0, 255, 255]),
        ("ycck", jpeg_of(&cyan, 64, CmykAsYcck, false), [0, 255, 255]),
    ];
    for (name, bytes, colour) in cases {
        let shown = import_one(&format!("{name}.jpg"), &bytes).only("small");
        let found = shown.get_pixel(30, 30).0;
        assert!(close(found, colour, 6), "{name}: {found:?} for {colour:?}");
    }
}

#[test]
fn of_an_animation_the_first_frame_is_taken() {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut bytes);
    for colour in [[255, 0, 0, 255], [0, 0, 255, 255]] {
        let frame = image::Frame::new(image::RgbaImage::from_pixel(40, 40, image::Rgba(colour)));
        encoder.encode_frame(frame).unwrap();
    }
    drop(encoder);
    let shown = import_one("moving.gif", &bytes).only("large");
    assert!(close(shown.get_pixel(20, 20).0, [255, 0, 0], 8));
}

#[test]
fn resolutions_and_quality_follow_the_options() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.jpg"), jpeg(&picture(1000, 1000))).unwrap();
    let import = |quality| {
        let options = ImportOptions {
            resolutions: vec![Resolution::new("icon", 32, 32), Resolution::new("wide", 640, 480)],
            quality,
            ..ImportOptions::default()
        };
        let sink = MemorySink::new();
        assert_eq!(import_with(directory.path(), &sink, &options).imported, 1);
        sink.entries().remove(0).1.resolutions
    };
    let (good, poor) = (import(95), import(20));
    let sizes: Vec<_> = good
        .iter()
        .map(|stored| (stored.name.as_str(), stored.width, stored.height))
        .collect();
    assert_eq!(sizes, [("wide", 480, 480), ("icon", 32, 32)]);
    assert!(good[0].bytes > 2 * poor[0].bytes);
}

#[test]
fn the_smaller_resolutions_are_as_good_as_made_from_the_source() {
    let source = picture(1600, 1200);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("a.png"),
        encoded(source.clone(), ImageFormat::Png),
    )
    .unwrap();
    let options = ImportOptions {
        format: OutputFormat::Png,
        ..ImportOptions::default()
    };
    let sink = MemorySink::new();
    assert_eq!(import_with(directory.path(), &sink, &options).imported, 1);
    let (value, _) = sink.get(&image_key(sink.entries()[0].0, "thumbnail"));
    let direct: RgbImage = image::imageops::resize(&source, 100, 75, image::imageops::FilterType::Lanczos3);
    let cascaded = image::load_from_memory(&value).unwrap().into_rgb8();
    assert_eq!(cascaded.dimensions(), (100, 75));
    let pairs = direct.pixels().zip(cascaded.pixels());
    let squares = pairs.flat_map(|(Rgb(one), Rgb(other))| {
        let squares: [f64; 3] = std::array::from_fn(|place| f64::from(one[place].abs_diff(other[place])).powi(2));
        squares
    });
    let mean = squares.sum::<f64>() / f64::from(100 * 75 * 3);
    let noise_ratio = 10.0 * (255.0 * 255.0 / mean).log10();
    assert!(noise_ratio > 40.0, "{noise_ratio} dB");
}
