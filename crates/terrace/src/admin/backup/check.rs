//! Checks a backup: its files against its manifest, and the copy as a store.
//!
//! Nothing is written to the backup. After a failed file the next ones are still checked.

use super::{
    BackupCheck, BackupProgress,
    dirs::{existing, load_manifest},
    manifest::{BackupFile, BackupManifest},
};
use crate::{
    Clock, Error, Options, Result, VerifyReport, Version,
    io::{AlignedBuffer, Disk, OpenMode},
    manifest::{MANIFEST_BYTES, Manifest},
};
use std::{io, path::Path};
use xxhash_rust::xxh3::Xxh3;

const CHUNK_BYTES: usize = 1 << 20;

/// Checks a backup. See [`crate::Store::verify_backup`]. `read_store` opens the copy as a store,
/// reads everything in it and returns its last commit.
///
/// # Errors
/// See there.
pub fn verify(
    dir: &Path,
    progress: &BackupProgress,
    read_store: impl FnOnce(Options) -> Result<(VerifyReport, Version)>,
) -> Result<BackupCheck> {
    let disk = existing(None, dir)?;
    let manifest = load_manifest(&*disk, dir)?;
    progress.start(manifest.bytes());
    let mut check = BackupCheck {
        version: Version(manifest.seq),
        taken_at: Clock::of_ms(manifest.time_s.saturating_mul(1000)),
        files: manifest.files.len() as u64,
        compared_bytes: 0,
        linked_bytes: 0,
        store: None,
        errors: Vec::new(),
    };
    for (path, file) in &manifest.files {
        progress.check()?;
        match check_file(&*disk, path, file, progress) {
            Ok(None) if file.checksum.is_some() => check.compared_bytes += file.bytes,
            Ok(None) => check.linked_bytes += file.bytes,
            Ok(Some(finding)) => check.errors.push(format!("{path}: {finding}")),
            Err(error) if progress.is_stopped() => return Err(error),
            Err(error) => check.errors.push(format!("{path}: {error}")),
        }
    }
    match options_of(&*disk, dir, &manifest).and_then(read_store) {
        Ok((mut report, found)) => {
            if found != check.version {
                report.errors.push(format!(
                    "the copy ends with commit {}, the manifest says {}",
                    found.0, manifest.seq
                ));
            }
            check.errors.extend(report.errors.iter().cloned());
            check.store = Some(report);
        }
        Err(error) => check.errors.push(format!("the copy cannot be used: {error}")),
    }
    Ok(check)
}

/// The damage of a file, if any.
fn check_file(disk: &dyn Disk, path: &str, file: &BackupFile, progress: &BackupProgress) -> Result<Option<String>> {
    let fail = |error: io::Error| Error::io("it cannot be read", &error);
    let opened = match disk.open(Path::new(path), OpenMode::READ.with_direct(true)) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some("it is gone".to_owned())),
        Err(error) => return Err(fail(error)),
    };
    let length = opened.len().map_err(fail)?;
    if length != file.length {
        return Ok(Some(format!("it has {length} bytes instead of {}", file.length)));
    }
    let Some(expected) = file.checksum else {
        progress.add(file.bytes);
        return Ok(None);
    };
    let mut hasher = Xxh3::new();
    let mut buffer = AlignedBuffer::new();
    let mut at = 0;
    let mut rest_is_zero = true;
    while at < length {
        progress.check()?;
        // At most a chunk.
        let count = (length - at).min(CHUNK_BYTES as u64) as usize;
        buffer.clear();
        buffer.set_len(count);
        opened.read_exact_at(&mut buffer, at).map_err(fail)?;
        // At most a chunk.
        let counting = file.bytes.saturating_sub(at).min(count as u64) as usize;
        hasher.update(&buffer[..counting]);
        rest_is_zero &= buffer[counting..].iter().all(|&byte| byte == 0);
        progress.add(counting as u64);
        at += count as u64;
    }
    if hasher.digest128() != expected {
        return Ok(Some("its checksum is wrong".to_owned()));
    }
    Ok((!rest_is_zero).then(|| "something stands behind its end".to_owned()))
}

/// Options to open the copy as a store, read-only.
fn options_of(disk: &dyn Disk, dir: &Path, manifest: &BackupManifest) -> Result<Options> {
    let path = Path::new("flash").join(Manifest::PATH);
    let fail = |error: io::Error| Error::io(format!("read {}", dir.join(&path).display()), &error);
    let mut bytes = [0; MANIFEST_BYTES];
    let file = disk.open(&path, OpenMode::READ).map_err(fail)?;
    file.read_exact_at(&mut bytes, 0).map_err(fail)?;
    let tier = Manifest::decode(&bytes)
        .map_err(|_| Error::corruption(path.display().to_string(), "it is no manifest of a store"))?;
    let segments = manifest.files.keys().filter(|path| path.starts_with("flash/segments/"));
    Ok(Options {
        read_only: true,
        create: false,
        segment_bytes: tier.segment_bytes,
        // No more RAM than the copy needs.
        log_capacity_bytes: Some((segments.count().max(8) as u64 * tier.segment_bytes).min(1 << 40)),
        // It fits all lengths of segments; nothing is written.
        size_threshold_bytes: 64 << 10,
        cache_bytes: 0,
        ..Options::new(dir)
    })
}
