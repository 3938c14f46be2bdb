//! Tests of orientation, time of capture and camera, from valid and hostile metadata.

use super::{close, import_one, picture};
use exif::{Field, In, Tag, Value, experimental::Writer};
use image::{Rgb, RgbImage};
use std::io::Cursor;

fn metadata(fields: &[(Tag, Value)]) -> Vec<u8> {
    let fields: Vec<_> = fields
        .iter()
        .map(|(tag, value)| Field {
            tag: *tag,
            ifd_num: In::PRIMARY,
            value: value.clone(),
        })
        .collect();
    let mut writer = Writer::new();
    fields.iter().for_each(|field| writer.push_field(field));
    let mut out = Cursor::new(Vec::new());
    writer.write(&mut out, false).unwrap();
    out.into_inner()
}

fn text(text: &str) -> Value {
    Value::Ascii(vec![text.as_bytes().to_vec()])
}

fn jpeg_with(pixels: &RgbImage, metadata: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut out, 95);
    encoder.add_exif_metadata(metadata).unwrap();
    let (width, height) = (pixels.width() as u16, pixels.height() as u16);
    encoder
        .encode(pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    out
}

const RED: [u8; 3] = [230, 20, 20];
const GREEN: [u8; 3] = [20, 200, 20];
const BLUE: [u8; 3] = [20, 20, 230];
const GRAY: [u8; 3] = [120, 120, 120];

/// The upright picture: red, green above blue, gray.
fn upright(x: u32, y: u32) -> Rgb<u8> {
    Rgb(match (x < 480, y < 320) {
        (true, true) => RED,
        (false, true) => GREEN,
        (true, false) => BLUE,
        (false, false) => GRAY,
    })
}

/// How the upright 960x640 picture is stored under an orientation, from the definition: which edge
/// the stored first row and first column are (TIFF 6.0, section 8, Orientation).
fn stored(orientation: u32) -> RgbImage {
    let (right, bottom) = (959, 639);
    let (width, height) = if orientation >= 5 { (640, 960) } else { (960, 640) };
    RgbImage::from_fn(width, height, |column, row| match orientation {
        1 => upright(column, row),
        2 => upright(right - column, row),
        3 => upright(right - column, bottom - row),
        4 => upright(column, bottom - row),
        5 => upright(row, column),
        6 => upright(right - row, column),
        7 => upright(right - row, bottom - column),
        _ => upright(row, bottom - column),
    })
}

#[test]
fn each_orientation_comes_out_upright() {
    for orientation in 1..=8_u16 {
        let metadata = metadata(&[(Tag::Orientation, Value::Short(vec![orientation]))]);
        let bytes = jpeg_with(&stored(u32::from(orientation)), &metadata);
        let sink = import_one("turned.jpg", &bytes);
        let (_, entry) = &sink.entries()[0];
        assert_eq!(u16::from(entry.orientation), orientation);
        assert_eq!((entry.width, entry.height), (960, 640), "as shown");
        for (resolution, size) in [("large", (960, 640)), ("small", (800, 533)), ("thumbnail", (100, 67))] {
            let shown = sink.only(resolution);
            assert_eq!(shown.dimensions(), size);
            let at = |x: u32, y: u32| shown.get_pixel(x * size.0 / 4, y * size.1 / 4).0;
            let corners = [(at(1, 1), RED), (at(3, 1), GREEN), (at(1, 3), BLUE), (at(3, 3), GRAY)];
            for (found, wanted) in corners {
                assert!(
                    close(found, wanted, 12),
                    "{orientation} {resolution}: {found:?} for {wanted:?}"
                );
            }
        }
    }
}

#[test]
fn capture_time_and_camera_are_kept() {
    let metadata = metadata(&[
        (Tag::Make, text("Canon")),
        (Tag::Model, text("Canon EOS R6\u{7}")),
        (Tag::DateTimeOriginal, text("2024:05:17 09:30:05")),
        (Tag::OffsetTimeOriginal, text("-03:30")),
    ]);
    let sink = import_one("a.jpg", &jpeg_with(&picture(40, 40), &metadata));
    let (_, entry) = &sink.entries()[0];
    assert_eq!(entry.capture_time.as_deref(), Some("2024-05-17T09:30:05-03:30"));
    assert_eq!(entry.camera.as_deref(), Some("Canon EOS R6"));
}

#[test]
fn facts_of_other_containers_are_read_too() {
    let metadata = metadata(&[(Tag::Orientation, Value::Short(vec![6])), (Tag::Model, text("X100"))]);
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::png::PngEncoder::new(&mut bytes);
    image::ImageEncoder::set_exif_metadata(&mut encoder, metadata).unwrap();
    picture(40, 30).write_with_encoder(encoder).unwrap();
    let (_, entry) = &import_one("a.png", &bytes).entries()[0];
    assert_eq!((entry.orientation, entry.width, entry.height), (6, 30, 40));
    assert_eq!(entry.camera.as_deref(), Some("X100"));
}

#[test]
fn nonsense_in_metadata_means_a_missing_fact() {
    let cases: [&[(Tag, Value)]; 5] = [
        &[(Tag::Orientation, Value::Short(vec![9]))],
        &[(Tag::Orientation, Value::Short(vec![0]))],
        &[(Tag::Orientation, Value::Ascii(vec![b"up".to_vec()]))],
        &[(Tag::DateTimeOriginal, text("2024:13:45 99:99:99"))],
        &[
            (Tag::DateTimeOriginal, text("    :  :     :  :  ")),
            (Tag::Make, text("  \u{1b}[2J ")),
        ],
    ];
    for (place, fields) in cases.into_iter().enumerate() {
        let sink = import_one("a.jpg", &jpeg_with(&picture(40, 40), &metadata(fields)));
        let (_, entry) = &sink.entries()[0];
        assert_eq!((entry.orientation, &entry.capture_time), (1, &None), "case {place}");
        assert!(entry.camera.as_deref().is_none_or(|camera| !camera.contains('\u{1b}')));
    }
}

#[test]
fn damaged_metadata_never_fails_an_image() {
    let good = metadata(&[
        (Tag::Orientation, Value::Short(vec![1])),
        (Tag::Model, text("a camera with a longer name")),
        (Tag::DateTimeOriginal, text("2024:05:17 09:30:05")),
    ]);
    let pixels = picture(24, 24);
    for place in 0..good.len() {
        for value in [0, 0x7f, 0xff] {
            let mut damaged = good.clone();
            damaged[place] = value;
            let facts = super::super::exif::capture_facts(&jpeg_with(&pixels, &damaged), super::super::Format::Jpeg);
            assert!((1..=8).contains(&facts.orientation));
        }
    }
    for metadata in [
        &b""[..],
        b"II",
        b"not metadata at all",
        &[0xff; 5000],
        &good[..good.len() / 2],
    ] {
        import_one("a.jpg", &jpeg_with(&pixels, metadata));
    }
}
