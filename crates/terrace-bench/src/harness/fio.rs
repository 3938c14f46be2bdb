//! Speed of a drive itself, measured by `fio`: random reads of one size, direct, one at a time.
//!
//! The file is as large as the data of the comparison, because a disk's seek distances depend on
//! it. It is written completely first, without delays if the drive is emulated: reads of an extent
//! that is only reserved never reach the drive.

use super::place::{HASTE, Place, drop_caches};
use crate::Outcome;
use emulated_drives::fio;
use serde::{Deserialize, Serialize};

/// Smallest file: it is written in whole MiB.
const FILE_BYTES_MIN: u64 = 16 << 20;

/// Parameters of random reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomReads {
    /// Bytes of one read.
    pub read_bytes: u64,
    /// Bytes of the file, at least 16 MiB.
    pub file_bytes: u64,
    /// Duration.
    pub seconds: u32,
    /// Seed of the offsets.
    pub seed: u64,
}

/// Measurements of `fio`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RawReads {
    /// Mean time of a read.
    pub mean_us: f64,
    /// Standard deviation of that time.
    pub deviation_us: f64,
    /// Reads made.
    pub reads: u64,
    /// Version of fio.
    pub version: String,
}

/// Measures random reads in a place.
///
/// # Errors
/// If `fio` is not installed, fails, or prints an unknown report.
pub fn random_reads(place: &Place, reads: RandomReads) -> Outcome<RawReads> {
    let version = fio::version().map_err(|error| format!("{error}, or give --no-raw"))?;
    let file = place.path.join("fio.data");
    let file_bytes = reads.file_bytes.max(FILE_BYTES_MIN).next_multiple_of(1 << 20);
    let (size, seed) = (format!("size={file_bytes}"), format!("randseed={}", reads.seed));
    let (bs, runtime) = (
        format!("bs={}", reads.read_bytes.max(1)),
        format!("runtime={}", reads.seconds),
    );
    let base = [&size, &seed, "ioengine=psync", "fallocate=none"];
    let write = [&base[..], &["rw=write", "bs=1m", "end_fsync=1"]].concat();
    let read = [
        &base[..],
        &["rw=randread", &bs, "iodepth=1", "norandommap", "time_based", &runtime],
    ]
    .concat();
    place.hurry(HASTE)?;
    let written = fio::job(&file, &write);
    place.hurry(1.0)?;
    // Stores start with empty caches too; below an emulated drive this is the cache of its backing
    // file.
    drop_caches(&[place])?;
    let job = written.and_then(|_| fio::job(&file, &read));
    let _ = std::fs::remove_file(file);
    let job = job?;
    let count = fio::figure(&job, "/read/total_ios")? as u64;
    if count == 0 {
        return Err("fio made no read in the given time; give it more".into());
    }
    Ok(RawReads {
        mean_us: fio::figure(&job, "/read/lat_ns/mean")? / 1e3,
        deviation_us: fio::figure(&job, "/read/lat_ns/stddev")? / 1e3,
        reads: count,
        version,
    })
}

/// Whether `fio` is installed.
pub fn is_installed() -> bool {
    fio::version().is_ok()
}
