//! Speed of the import relative to the decoding, resizing and encoding crates alone on all cores.
//!
//! `cargo bench -p terrace-images --bench import` generates its pictures; with
//! `TERRACE_BENCH_IMAGES=DIR` it uses the images in a directory, preferably photographs. Prints
//! images and megapixels per second of wall-clock and of processor time, for: the crates alone
//! (files in memory, results dropped), the import into a sink that drops everything, the import
//! into a new store until all is durable (in `TERRACE_BENCH_DIR`, by default the directory for
//! temporary files), and the ratios. The best of several alternating runs of each is compared.

#![allow(clippy::unwrap_used)]

use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer, images::Image};
use image::{DynamicImage, RgbImage};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Instant,
};
use terrace::{Batch, Options, Result, Store};
use terrace_images::{Format, GroupSink, ImportOptions, Progress, import};

/// Rounds of each measurement.
const ROUNDS: usize = 3;

/// A sink that drops all groups.
struct Nowhere;

impl GroupSink for Nowhere {
    fn contains(&self, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        std::hint::black_box(batch);
        Ok(())
    }
}

/// A picture with the detail of a photograph: smooth areas, edges and noise.
fn synthetic(seed: u32) -> Vec<u8> {
    let (width, height) = (4000_u16, 3000_u16);
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let pixels = RgbImage::from_fn(u32::from(width), u32::from(height), |x, y| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let noise = f64::from(state & 15);
        let wave = (f64::from(x + seed * 97) / 170.0).sin() * (f64::from(y) / 230.0).cos() * 90.0;
        let edge = if (x / 97 + y / 61) % 5 == 0 { 40.0 } else { 0.0 };
        let sample = |base: f64| (base + wave + edge + noise).clamp(0.0, 255.0) as u8;
        image::Rgb([sample(110.0), sample(100.0), sample(80.0)])
    });
    let mut out = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut out, 88);
    encoder
        .encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    out
}

fn files_under(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.is_file() && Format::claimed_by(path).is_some());
    files.sort();
    files
}

/// Processor time of this process so far, user and kernel mode, in seconds.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    // USER_HZ is 100 on every Linux architecture that Rust runs on.
    ticks / 100.0
}

fn decode(bytes: &[u8]) -> DynamicImage {
    if Format::sniff(bytes) != Some(Format::Jpeg) {
        return image::load_from_memory(bytes).unwrap().into_rgb8().into();
    }
    let options = zune_core::options::DecoderOptions::default();
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(zune_core::bytestream::ZCursor::new(bytes), options);
    let samples = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    let (width, height) = (u32::try_from(width).unwrap(), u32::try_from(height).unwrap());
    match RgbImage::from_raw(width, height, samples.clone()) {
        Some(pixels) => pixels.into(),
        None => image::GrayImage::from_raw(width, height, samples).unwrap().into(),
    }
}

fn work(bytes: &[u8], resizer: &mut Resizer) {
    let mut pixels = decode(bytes);
    let kind = if pixels.color().has_color() {
        PixelType::U8x3
    } else {
        PixelType::U8
    };
    for (short, long) in [(2048.0, 3072.0), (600.0, 800.0), (100.0, 100.0)] {
        let (width, height) = (f64::from(pixels.width()), f64::from(pixels.height()));
        let (box_width, box_height) = if width > height { (long, short) } else { (short, long) };
        let scale = f64::min(box_width / width, box_height / height);
        if scale < 1.0 {
            let (to_width, to_height) = ((width * scale).round().max(1.0), (height * scale).round().max(1.0));
            let from = Image::from_vec_u8(pixels.width(), pixels.height(), pixels.into_bytes(), kind).unwrap();
            let mut to = Image::new(to_width as u32, to_height as u32, kind);
            let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Lanczos3));
            resizer.resize(&from, &mut to, &options).unwrap();
            let (width, height, samples) = (to.width(), to.height(), to.into_vec());
            pixels = if kind == PixelType::U8 {
                image::GrayImage::from_raw(width, height, samples).unwrap().into()
            } else {
                RgbImage::from_raw(width, height, samples).unwrap().into()
            };
        }
        let mut out = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut out, 85);
        encoder.set_chroma_subsampling_method(jpeg_encoder::ChromaSubsamplingMethod::Average);
        let colours = if kind == PixelType::U8 {
            jpeg_encoder::ColorType::Luma
        } else {
            jpeg_encoder::ColorType::Rgb
        };
        encoder
            .encode(
                pixels.as_bytes(),
                pixels.width() as u16,
                pixels.height() as u16,
                colours,
            )
            .unwrap();
        std::hint::black_box(out);
    }
}

fn crates_alone(files: &[Vec<u8>], threads: usize) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut resizer = Resizer::new();
                while let Some(bytes) = files.get(next.fetch_add(1, Relaxed)) {
                    work(bytes, &mut resizer);
                }
            });
        }
    });
}

fn timed(run: impl FnOnce()) -> (f64, f64) {
    let (wall, processor) = (Instant::now(), processor_seconds());
    run();
    (wall.elapsed().as_secs_f64(), processor_seconds() - processor)
}

fn import_into(sink: &impl GroupSink, directory: &Path, images: usize) {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let report = import(directory, sink, &ImportOptions::default(), &progress, &stop).unwrap();
    assert_eq!(report.imported + report.skipped(), images as u64, "{report}");
}

fn main() {
    let scratch = std::env::temp_dir().join(format!("terrace-bench-import-{}", std::process::id()));
    let directory = std::env::var_os("TERRACE_BENCH_IMAGES").map_or_else(
        || {
            fs::create_dir_all(&scratch).unwrap();
            for seed in 0..24 {
                fs::write(scratch.join(format!("{seed}.jpg")), synthetic(seed)).unwrap();
            }
            scratch.clone()
        },
        PathBuf::from,
    );
    let paths = files_under(&directory);
    let files: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let megapixels: f64 = paths
        .iter()
        .map(|path| {
            let bytes = fs::read(path).unwrap();
            let pixels = decode(&bytes);
            f64::from(pixels.width()) * f64::from(pixels.height()) / 1e6
        })
        .sum();
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("{} images, {megapixels:.0} megapixels, {threads} threads", paths.len());

    let store_directory = std::env::var_os("TERRACE_BENCH_DIR")
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("terrace-bench-import-store-{}", std::process::id()));
    let names = ["crates alone", "import into nothing", "import into a store"];
    let mut best = [(f64::MAX, f64::MAX); 3];
    for round in 1..=ROUNDS {
        let alone = timed(|| crates_alone(&files, threads));
        let nowhere = timed(|| import_into(&Nowhere, &directory, paths.len()));
        let store = Store::open(Options::new(&store_directory)).unwrap();
        let stored = timed(|| {
            import_into(&store, &directory, paths.len());
            store.flush().unwrap();
        });
        store.close().unwrap();
        fs::remove_dir_all(&store_directory).unwrap();
        for ((name, best), (wall, processor)) in names.iter().zip(&mut best).zip([alone, nowhere, stored]) {
            println!(
                "round {round}  {name}: {:.1} images/s, {:.0} megapixels/s; {wall:.2} s, {processor:.2} s of processor",
                paths.len() as f64 / wall,
                megapixels / wall,
            );
            *best = (best.0.min(wall), best.1.min(processor));
        }
    }
    for (name, (wall, processor)) in names.iter().zip(best).skip(1) {
        println!(
            "{name}: {:.2} of the crates alone by wall clock, {:.2} by processor time",
            best[0].0 / wall,
            best[0].1 / processor
        );
    }
    let _ = fs::remove_dir_all(&scratch);
}
