//! Takes a backup of an open store.

use super::{
    BackupOptions, BackupReport,
    dirs::{Target, existing, load_manifest},
    image::{StoreImage, segment_bytes_at},
    manifest::BackupManifest,
    transfer::{Earlier, Source, Transfer},
};
use crate::{
    Error, Result, Tier, Version,
    api::clock,
    blocks::{HeldBlock, block_path},
    engine::Engine,
    io::{Disk as _, FileDisk, OpenMode},
    log::segments::{SegmentPin, Segments},
    manifest::Manifest,
    metrics::bucket::Bucket,
    ordered_index::IndexImage,
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

/// Takes a backup into `dir`. See [`crate::Store::backup`].
///
/// # Errors
/// See there.
pub fn take(engine: &Engine, dir: &Path, options: &BackupOptions) -> Result<BackupReport> {
    let start = Instant::now();
    engine.check_writable()?;
    let earlier = options
        .onto
        .as_deref()
        .map(|onto| open_earlier(engine, onto))
        .transpose()?;
    if options.target_disk.is_none() {
        check_is_outside(engine, dir)?;
    }
    let target = Target::begin(options.target_disk.as_ref(), dir)?;
    let image = StoreImage::hold(engine)?;
    let check = || {
        if engine.log.is_closing() {
            return Err(Error::Unavailable(
                "the store was closed before its backup was complete",
            ));
        }
        Ok(())
    };
    let mut transfer = Transfer {
        target: &target,
        earlier: earlier.as_ref(),
        copy: options.copy,
        direct_io: engine.options.tuning.direct_io,
        pace: Bucket::per_second(options.bytes_per_second),
        progress: &options.progress,
        check: &check,
        manifest: BackupManifest {
            store_id: engine.manifest.store_id,
            seq: image.seq,
            time_s: clock::unix_seconds(),
            files: BTreeMap::new(),
        },
        copied_bytes: 0,
        linked_bytes: 0,
        reused_bytes: 0,
    };
    let seq = image.seq;
    bring_all(engine, image, &mut transfer)?;
    // What was read before this moment was still the store's.
    check()?;
    options.progress.check()?;
    target.complete(&transfer.manifest)?;
    Ok(BackupReport {
        version: Version(seq),
        files: transfer.manifest.files.len() as u64,
        bytes: transfer.manifest.bytes(),
        copied_bytes: transfer.copied_bytes,
        linked_bytes: transfer.linked_bytes,
        reused_bytes: transfer.reused_bytes,
        elapsed: start.elapsed(),
    })
}

/// A backup within a tier would be among the files of the store, which removes what it does not
/// know, and would be lost with the tier.
fn check_is_outside(engine: &Engine, dir: &Path) -> Result<()> {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    // By its existing part, since links may lead there. What does not exist has none.
    let existing = absolute.ancestors().find_map(|part| part.canonicalize().ok());
    let is_within = |tier: &Path| {
        let tier = tier.canonicalize();
        existing
            .as_ref()
            .zip(tier.as_ref().ok())
            .is_some_and(|(dir, tier)| dir.starts_with(tier))
    };
    let options = &engine.options;
    if is_within(&options.flash_dir) || is_within(&options.large_dir) {
        return Err(Error::Invalid(format!(
            "{} is in a directory of the store itself; name one beside it, or on another device",
            dir.display()
        )));
    }
    Ok(())
}

fn open_earlier(engine: &Engine, dir: &Path) -> Result<Earlier> {
    let disk = existing(None, dir)?;
    let manifest = load_manifest(&*disk, dir)?;
    if manifest.store_id != engine.manifest.store_id {
        return Err(Error::invalid(format!(
            "{} is a backup of another store; nothing in it can be used for this one",
            dir.display()
        )));
    }
    Ok(Earlier { disk, manifest })
}

/// Index, segments, blocks, and the manifests of the tiers last.
fn bring_all(engine: &Engine, image: StoreImage<'_>, transfer: &mut Transfer<'_>) -> Result<()> {
    let StoreImage {
        index,
        seq,
        segments,
        blocks,
    } = image;
    let segment_bytes = engine.log.segments.segment_bytes();
    let mut parts = Vec::with_capacity(segments.len());
    for pin in segments {
        let bytes = segment_bytes_at(&pin, seq, segment_bytes)?;
        // A segment that was prepared, or begun after the seq of the backup.
        if bytes > 0 {
            parts.push((pin, bytes));
        }
    }
    let segments_total: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let blocks_total: u64 = blocks.iter().map(|block| block.bytes).sum();
    let tables_total = engine.index.stats().bytes;
    transfer.progress.start(tables_total + segments_total + blocks_total);
    bring_index(engine, index, transfer)?;
    for (pin, bytes) in parts {
        bring_segment(engine, &pin, bytes, transfer)?;
    }
    let listed: Vec<_> = blocks.iter().map(|block| (block.number, block.bytes)).collect();
    for block in blocks {
        bring_block(engine, &block, transfer)?;
    }
    let (path, bytes) = engine.large.meta_of(&listed);
    transfer.write(&Path::new("large").join(path), &bytes)?;
    for (tier, dir) in [(Tier::Flash, "flash"), (Tier::Large, "large")] {
        for name in [Manifest::PATH, Manifest::COPY_PATH] {
            transfer.write(&Path::new(dir).join(name), &engine.manifest.of(tier).encode())?;
        }
    }
    Ok(())
}

fn bring_index(engine: &Engine, index: IndexImage, transfer: &mut Transfer<'_>) -> Result<()> {
    let dir = engine.options.flash_dir.join("index");
    let disk = FileDisk::new(&dir).map_err(|error| Error::io(format!("open {}", dir.display()), &error))?;
    let place = |path: &Path| Path::new("flash/index").join(path);
    for table in &index.tables {
        let context = |error| Error::io(format!("read {}", dir.join(table).display()), &error);
        let open = || disk.open(table, OpenMode::READ).map_err(context);
        let bytes = open()?.len().map_err(context)?;
        transfer.take(&Source {
            path: place(table),
            bytes,
            length: bytes,
            host_path: disk.host_path(table),
            tag: Some("table".to_owned()),
            is_final: Box::new(|| Ok(true)),
            open: Box::new(open),
        })?;
    }
    for (path, bytes) in &index.files {
        transfer.write(&place(path), bytes)?;
    }
    Ok(())
}

fn bring_segment(engine: &Engine, pin: &SegmentPin<'_>, bytes: u64, transfer: &mut Transfer<'_>) -> Result<()> {
    let path = Segments::path(pin.number);
    let segment_bytes = engine.log.segments.segment_bytes();
    let length = pin
        .file
        .len()
        .map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
    transfer.take(&Source {
        path: Path::new("flash").join(&path),
        bytes,
        // A file that was cut is damaged, and stays so.
        length: length.min(segment_bytes).max(bytes),
        host_path: engine.flash_disk.host_path(&path),
        tag: Some(format!("use{}", pin.generation())),
        // It is written again in its next use.
        is_final: Box::new(|| Ok(false)),
        open: Box::new(|| Ok(Arc::clone(&pin.file))),
    })
}

fn bring_block(engine: &Engine, block: &HeldBlock, transfer: &mut Transfer<'_>) -> Result<()> {
    let path = block_path(block.number);
    transfer.take(&Source {
        path: Path::new("large").join(&path),
        bytes: block.bytes,
        length: block.bytes,
        host_path: engine.large.host_path(&path),
        tag: block.sealed.then(|| "block".to_owned()),
        // An open may cut zeros off one that has none.
        is_final: Box::new(|| engine.large.has_footer(block)),
        open: Box::new(|| engine.large.held_file(block)),
    })
}
