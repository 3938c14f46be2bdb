//! Tests of broken and hostile files: each is reported with a reason, and nothing is stored.

use super::{
    super::{ImportOptions, source::Source},
    MemorySink, encoded, import_all, import_with, jpeg, one_of_each, picture, refused,
};
use image::ImageFormat;
use std::{fs, os::unix::fs::symlink};

#[test]
fn truncated_files_fail() {
    for (extension, bytes) in one_of_each(160, 120) {
        for tenth in 1..10 {
            let part = &bytes[..bytes.len() * tenth / 10];
            let reason = refused(&format!("part.{extension}"), part);
            assert!(!reason.is_empty());
        }
    }
}

#[test]
fn a_progressive_jpeg_cut_between_scans_fails() {
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.set_progressive(true);
    encoder
        .encode(&picture(160, 120), 160, 120, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    for tenth in 1..10 {
        refused("part.jpg", &bytes[..bytes.len() * tenth / 10]);
    }
    assert!(refused("part.jpg", &bytes[..bytes.len() - 2]).contains("end marker"));
}

#[test]
fn what_follows_a_jpeg_does_not_matter() {
    let mut bytes = jpeg(&picture(50, 50));
    // A motion photo appends a video, in which any bytes may occur.
    bytes.extend_from_slice(b"....ftypmp42\xff\xda\x00\x02\xff\xd8");
    super::import_one("motion.jpg", &bytes);
}

#[test]
fn empty_and_mislabelled_files_fail() {
    assert_eq!(refused("nothing.png", b""), "the file is empty");
    assert!(refused("text.jpg", b"this is a shopping list").contains("content"));
    assert!(refused("magic-only.gif", b"GIF89a").contains("damaged"));
    assert!(refused("magic-only.jpg", b"\xff\xd8\xff\xe0").contains("damaged"));
}

#[test]
fn files_that_do_not_claim_to_be_images_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("notes.txt"), "text").unwrap();
    fs::write(directory.path().join("empty"), "").unwrap();
    let report = import_all(directory.path(), &MemorySink::new());
    assert_eq!((report.not_images, report.imported, report.failed.len()), (2, 0, 0));
}

/// CRC-32 as PNG has it (ISO 3309).
fn png_checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

fn png_bomb() -> Vec<u8> {
    let mut bytes = encoded(picture(8, 8), ImageFormat::Png);
    bytes[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
    let checksum = png_checksum(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn gif_bomb() -> Vec<u8> {
    let mut bytes = encoded(picture(8, 8), ImageFormat::Gif);
    bytes[6..8].copy_from_slice(&60_000_u16.to_le_bytes());
    bytes[8..10].copy_from_slice(&60_000_u16.to_le_bytes());
    bytes
}

fn jpeg_bomb() -> Vec<u8> {
    let mut bytes = jpeg(&picture(8, 8));
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&60_000_u16.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&60_000_u16.to_be_bytes());
    bytes
}

fn tiff_bomb() -> Vec<u8> {
    let mut bytes = encoded(picture(8, 8), ImageFormat::Tiff);
    let directory = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let entries = usize::from(u16::from_le_bytes(bytes[directory..directory + 2].try_into().unwrap()));
    for entry in 0..entries {
        let at = directory + 2 + entry * 12;
        // ImageWidth, ImageLength, RowsPerStrip.
        if [[0, 1], [1, 1], [0x16, 1]].contains(&[bytes[at], bytes[at + 1]]) {
            bytes[at + 2..at + 4].copy_from_slice(&4_u16.to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&60_000_u32.to_le_bytes());
        }
    }
    bytes
}

/// An extended WebP whose canvas is 60000x60000.
fn webp_bomb() -> Vec<u8> {
    let simple = encoded(picture(8, 8), ImageFormat::WebP);
    let canvas = 59_999_u32.to_le_bytes();
    let mut bytes = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&canvas[..3]);
    bytes.extend_from_slice(&canvas[..3]);
    bytes.extend_from_slice(&simple[12..]);
    let length = u32::try_from(bytes.len() - 8).unwrap();
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn decompression_bombs_are_refused_from_the_header() {
    let bombs = [
        ("a.png", png_bomb()),
        ("a.gif", gif_bomb()),
        ("a.jpg", jpeg_bomb()),
        ("a.tif", tiff_bomb()),
        ("a.webp", webp_bomb()),
    ];
    for (name, bytes) in bombs {
        let reason = refused(name, &bytes);
        assert!(
            reason.contains("60000x60000") && reason.contains("pixel limit"),
            "{name}: {reason}"
        );
    }
}

#[test]
fn a_frame_larger_than_its_screen_is_refused() {
    let mut bytes = encoded(picture(8, 8), ImageFormat::Gif);
    // The image descriptor: separator, left, top, then width and height.
    let descriptor = bytes.windows(5).rposition(|bytes| bytes == b"\x2c\0\0\0\0").unwrap();
    bytes[descriptor + 5..descriptor + 7].copy_from_slice(&60_000_u16.to_le_bytes());
    bytes[descriptor + 7..descriptor + 9].copy_from_slice(&60_000_u16.to_le_bytes());
    refused("frame.gif", &bytes);
}

#[test]
fn the_limits_are_those_of_the_options() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("a.png"),
        encoded(picture(100, 100), ImageFormat::Png),
    )
    .unwrap();
    let reason_with = |options: &ImportOptions| {
        let report = import_with(directory.path(), &MemorySink::new(), options);
        report.failed.first().map(|failed| failed.reason.clone())
    };
    let pixels = |pixel_limit| ImportOptions {
        pixel_limit,
        ..ImportOptions::default()
    };
    assert_eq!(reason_with(&pixels(10_000)), None);
    assert!(reason_with(&pixels(9_999)).unwrap().contains("100x100"));
    let long = ImportOptions {
        file_bytes_max: 100,
        ..ImportOptions::default()
    };
    assert!(reason_with(&long).unwrap().contains("longer than 100 bytes"));
}

#[test]
fn a_file_that_grows_while_it_is_read_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.gif");
    fs::write(&path, b"GIF89a, and more").unwrap();
    let source = Source::open(&path, 1000).ok().unwrap();
    fs::write(&path, [b'G'; 2000]).unwrap();
    assert!(source.read(1000).is_err());
}

#[test]
fn flipped_bits_never_stop_an_import() {
    let directory = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (extension, bytes) in one_of_each(40, 30) {
        for place in (0..bytes.len()).step_by(bytes.len() / 40) {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x55;
            fs::write(directory.path().join(format!("{place}.{extension}")), damaged).unwrap();
            count += 1;
        }
    }
    let report = import_all(directory.path(), &MemorySink::new());
    let dealt_with = report.imported + report.skipped() + report.not_images + report.failed.len() as u64;
    assert_eq!(dealt_with, count);
    assert!(report.failed.len() > 20);
}

#[test]
fn links_pipes_and_sockets_do_not_trap_the_walk() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let inside = root.join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("a.png"), encoded(picture(9, 9), ImageFormat::Png)).unwrap();
    symlink(root, inside.join("loop")).unwrap();
    symlink("self", root.join("self")).unwrap();
    symlink(&inside, root.join("inside-again")).unwrap();
    symlink(root.join("gone.jpg"), root.join("dangling.jpg")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe.jpg"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket.jpg")).unwrap();
    let report = import_all(root, &MemorySink::new());
    assert_eq!((report.imported, report.skipped()), (1, 0), "{report}");
    let failed: Vec<_> = report
        .failed
        .iter()
        .map(|failed| {
            (
                failed.path.file_name().unwrap().to_str().unwrap(),
                failed.reason.as_str(),
            )
        })
        .collect();
    let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["dangling.jpg", "loop", "pipe.jpg", "self", "socket.jpg"]);
    assert!(failed[1].1.contains("link back"));
    assert!(failed[2].1.contains("named pipe"));
    assert!(failed[4].1.contains("socket"));
}

#[test]
fn a_pipe_put_in_place_of_a_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe.jpg");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(Source::open(&path, 1000).is_err());
}

#[test]
fn directories_linking_to_each_other_are_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..30).map(|level| directory.path().join(level.to_string())).collect();
    for pair in names.windows(2) {
        fs::create_dir(&pair[0]).unwrap();
        // Two ways down from each level: 2^30 paths, if each were walked.
        symlink(&pair[1], pair[0].join("one")).unwrap();
        symlink(&pair[1], pair[0].join("other")).unwrap();
    }
    fs::create_dir(&names[29]).unwrap();
    fs::write(names[29].join("a.png"), encoded(picture(9, 9), ImageFormat::Png)).unwrap();
    let report = import_all(directory.path(), &MemorySink::new());
    assert_eq!(
        (report.imported, report.skipped(), report.failed.len()),
        (1, 0, 0),
        "{report}"
    );
}

#[test]
fn unreadable_files_and_directories_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let secret = directory.path().join("secret.jpg");
    fs::write(&secret, jpeg(&picture(9, 9))).unwrap();
    for path in [&closed, &secret] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let report = import_all(directory.path(), &MemorySink::new());
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    if fs::read(&secret).is_ok() {
        // Permissions do not apply to the superuser, which reads both.
        assert_eq!((report.imported, report.failed.len()), (1, 0));
        return;
    }
    assert_eq!(report.imported, 0);
    assert_eq!(report.failed.len(), 2);
    assert!(report.failed.iter().all(|failed| failed.reason == "permission denied"));
}
