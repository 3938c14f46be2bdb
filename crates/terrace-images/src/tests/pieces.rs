//! Tests of box fitting, the memory gate, keys and options.

use super::super::{
    CatalogueEntry, ImageId, ImportOptions, OutputFormat, Resolution, StoredResolution, catalogue_key,
    gate::MemoryGate, image_key, resize::fit,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

#[test]
fn images_fit_their_box_either_way_round() {
    let large = Resolution::new("large", 2048, 3072);
    assert_eq!(fit(6000, 4000, &large), (3072, 2048));
    assert_eq!(fit(4000, 6000, &large), (2048, 3072));
    assert_eq!(fit(4000, 4000, &large), (2048, 2048));
    assert_eq!(fit(3072, 2048, &large), (3072, 2048));
    assert_eq!(fit(10_000, 100, &large), (3072, 31));
    let small = Resolution::new("small", 600, 800);
    assert_eq!(fit(4000, 3000, &small), (800, 600));
    assert_eq!(fit(3000, 4000, &small), (600, 800));
    assert_eq!(fit(799, 601, &small), (798, 600));
    let thumbnail = Resolution::new("thumbnail", 100, 100);
    assert_eq!(fit(65_535, 1, &thumbnail), (100, 1));
    assert_eq!(fit(20, 10, &thumbnail), (20, 10));
}

#[test]
fn fitted_sizes_keep_the_rules_for_any_image() {
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..200_000 {
        let mut side = || {
            let bits = random.random_range(0..=17);
            random.random_range(1..=1_u32 << bits)
        };
        let (width, height) = (side(), side());
        let resolution = Resolution::new("any", side().min(65_535), side().min(65_535));
        let (w, h) = fit(width, height, &resolution);
        let what = format!("{width}x{height} in {resolution:?} gave {w}x{h}");
        assert!(w >= 1 && h >= 1 && w <= width && h <= height, "{what}");
        let (short, long) = (w.min(h), w.max(h));
        let box_short = resolution.width.min(resolution.height);
        let box_long = resolution.width.max(resolution.height);
        assert!(short <= box_short && long <= box_long, "{what}");
        assert_eq!(fit(height, width, &resolution), (h, w), "{what}");
        // Either the size is unchanged, or one side fills the box and the other is right to half a
        // pixel.
        if (w, h) == (width, height) {
            continue;
        }
        let exact_height = f64::from(w) * f64::from(height) / f64::from(width);
        let exact_width = f64::from(h) * f64::from(width) / f64::from(height);
        let right = |side: u32, exact: f64| (f64::from(side) - exact).abs() <= 0.5 + 1e-6 || (side == 1 && exact < 1.0);
        assert!(right(h, exact_height) || right(w, exact_width), "{what}");
        assert!([short == box_short, long == box_long].contains(&true), "{what}");
    }
}

#[test]
fn the_gate_holds_memory_within_the_budget_and_never_blocks_for_good() {
    let gate = MemoryGate::new(1000);
    let peak = AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in 0..8_u64 {
            let (gate, peak) = (&gate, &peak);
            scope.spawn(move || {
                for turn in 0..200 {
                    let mut permit = gate.enter(50);
                    // Some images need more than the whole budget.
                    let needed = if (worker + turn) % 50 == 0 { 1500 } else { 300 };
                    permit.grow(needed);
                    peak.fetch_max(gate.used_bytes(), SeqCst);
                    permit.settle(20);
                }
            });
        }
    });
    assert_eq!(gate.used_bytes(), 0);
    assert!(peak.load(SeqCst) <= 1000 + 1500, "{peak:?}");
}

#[test]
fn a_file_waits_at_the_gate_until_there_is_room() {
    let gate = MemoryGate::new(100);
    let first = gate.enter(80);
    thread::scope(|scope| {
        let second = scope.spawn(|| drop(gate.enter(80)));
        thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap();
    });
}

#[test]
fn ids_and_keys_read_back() {
    let id = ImageId::of(&blake3::hash(b"an image"));
    let text = id.to_string();
    assert_eq!(text, blake3::hash(b"an image").to_hex()[..32]);
    assert_eq!(ImageId::parse(&text), Some(id));
    assert_eq!(catalogue_key(id), format!("catalogue/{text}"));
    assert_eq!(image_key(id, "small"), format!("images/{text}/small"));
    let bad = [
        &text[1..],
        &text.to_uppercase(),
        "",
        &format!("{}g", &text[1..]),
        "ééééééééééééééé.",
    ];
    for bad in bad {
        assert_eq!(ImageId::parse(bad), None, "{bad}");
    }
}

#[test]
fn catalogue_entries_read_back() {
    let mut entry = CatalogueEntry {
        width: 640,
        height: 480,
        format: "png".to_owned(),
        orientation: 6,
        capture_time: Some("2024-05-17T09:30:00".to_owned()),
        camera: None,
        bytes: 12345,
        content_hash: "00ff".to_owned(),
        file_name: "a picture, with commas.png".to_owned(),
        resolutions: Vec::new(),
    };
    assert_eq!(
        CatalogueEntry::from_attributes(&entry.to_attributes()),
        Some(entry.clone())
    );
    entry.resolutions = ["large", "small"]
        .map(|name| StoredResolution {
            name: name.to_owned(),
            width: 7,
            height: 8,
            bytes: 9,
            content_type: "image/jpeg".to_owned(),
        })
        .into();
    let attributes = entry.to_attributes();
    assert_eq!(CatalogueEntry::from_attributes(&attributes), Some(entry));
    assert_eq!(
        CatalogueEntry::from_attributes(&attributes.clone().with("width", "wide")),
        None
    );
    assert_eq!(
        CatalogueEntry::from_attributes(&attributes.with("resolution.small", "7 8")),
        None
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let with = |change: fn(&mut ImportOptions)| {
        let mut options = ImportOptions::default();
        change(&mut options);
        options.validate()
    };
    assert!(with(|_| ()).is_ok());
    assert!(with(|options| options.resolutions.clear()).is_ok());
    let bad: [fn(&mut ImportOptions); 9] = [
        |options| options.quality = 0,
        |options| options.quality = 101,
        |options| options.pixel_limit = 0,
        |options| options.resolutions[0].name = "original".to_owned(),
        |options| options.resolutions[0].name = "a/b".to_owned(),
        |options| options.resolutions[0].name = options.resolutions[1].name.clone(),
        |options| options.resolutions[0].width = 0,
        |options| options.resolutions[0].height = 70_000,
        |options| {
            options.format = OutputFormat::Webp;
            options.resolutions[0].height = 20_000;
        },
    ];
    for (place, change) in bad.into_iter().enumerate() {
        assert!(with(change).is_err(), "case {place}");
    }
}
