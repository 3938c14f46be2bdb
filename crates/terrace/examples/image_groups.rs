//! Images as groups: each resolution is an object, all of an image are committed together, and size
//! decides where each is stored (MRIS, sections 3 and 4).
//!
//! `cargo run --release -p terrace --example image_groups [DIR]`. Without DIR it uses a temporary
//! directory and removes it. The "images" are bytes of typical sizes: decoding is not part of the
//! engine.

use std::{
    error::Error,
    path::{Path, PathBuf},
};
use terrace::{Attributes, Batch, Condition, Durability, HomeKind, Options, ScanRange, Store, Version};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A resolution: name, width, height, size of its encoded bytes.
const RESOLUTIONS: [(&str, u32, u32, usize); 3] = [
    ("thumbnail", 100, 75, 4 << 10),
    ("small", 800, 600, 90 << 10),
    ("large", 3072, 2304, 1 << 20),
];

fn main() -> Outcome {
    if let Some(dir) = std::env::args_os().nth(1) {
        return show(&PathBuf::from(dir));
    }
    let dir = std::env::temp_dir().join(format!("terrace-image-groups-{}", std::process::id()));
    let outcome = show(&dir);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn show(dir: &Path) -> Outcome {
    let mut options = Options::new(dir);
    options.segment_bytes = 4 << 20;
    options.flash_capacity_bytes = 64 << 20;
    let size_threshold_bytes = options.size_threshold_bytes;
    let store = Store::open(options)?;

    for image in 0..4_u8 {
        let version = store_group(&store, image)?;
        println!("image {image}: three resolutions, committed together as version {version}");
    }
    println!("values of {size_threshold_bytes} bytes and more live in blocks:");
    for item in store.scan(ScanRange::prefix("images/"))? {
        let item = item?;
        let width = item
            .info
            .attributes
            .get_str("width")
            .ok_or("a resolution without width")?;
        println!(
            "  {:<22} {width:>4} px {:>9} bytes  {}",
            String::from_utf8_lossy(&item.key),
            item.info.length,
            item.info.home
        );
        let is_large = item.info.length >= size_threshold_bytes;
        assert_eq!(
            item.info.home == HomeKind::Block,
            is_large,
            "size decides the first home"
        );
    }
    store.close()?;
    Ok(())
}

/// Commits the resolutions of one image: a reader sees all of them, or none.
fn store_group(store: &Store, image: u8) -> Outcome<Version> {
    let mut group = Batch::new();
    for (name, width, height, size_bytes) in RESOLUTIONS {
        let attributes = Attributes::new()
            .with("content-type", "image/jpeg")
            .with("width", width.to_string())
            .with("height", height.to_string());
        let key = format!("images/{image:04}/{name}");
        group.put_with(key, vec![image; size_bytes], attributes, Condition::None);
    }
    Ok(store.write(group, Durability::Sync)?)
}
