//! Profile of a kind of drive: the parameters of its model, from TOML.
//!
//! The project's profiles are compiled in; a separate file has the same form. docs/drives.md
//! explains each parameter and its source. Failure: a file that is not valid, or has a value that
//! no model can use, is refused with the name of the value.

use crate::Outcome;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Profiles compiled in, by name.
const BUILT_IN: [(&str, &str); 4] = [
    ("maxtor-7l250s0", include_str!("../profiles/maxtor-7l250s0.toml")),
    ("intel-320", include_str!("../profiles/intel-320.toml")),
    ("hdd-modern", include_str!("../profiles/hdd-modern.toml")),
    ("nvme", include_str!("../profiles/nvme.toml")),
];

/// Values that must be above 0; all others must not be negative.
const POSITIVE: [&str; 13] = [
    "rpm",
    "outer_mb_per_s",
    "inner_mb_per_s",
    "link_mb_per_s",
    "queue",
    "stroke",
    "block_pages",
    "channels",
    "reserve_blocks",
    "spare_share",
    "read_mb_per_s",
    "write_mb_per_s",
    "lanes",
];

/// A kind of drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name, as on the command line.
    pub name: String,
    /// Description, one line.
    pub description: String,
    /// Bytes that are written whole or not at all, even in a power cut.
    #[serde(default = "default_sector_bytes")]
    pub sector_bytes: u64,
    /// Time per request in kernel, loop device and FUSE, in microseconds. The model's times are
    /// shortened by it.
    #[serde(default)]
    pub overhead_us: Overhead,
    /// The model and its parameters.
    pub kind: Kind,
    /// Published measurements of the drive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

fn default_sector_bytes() -> u64 {
    512
}

/// Time that a request spends outside the drive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// From the caller to the daemon.
    pub before: f64,
    /// From the daemon back to the caller.
    pub after: f64,
}

impl Default for Overhead {
    fn default() -> Self {
        Self {
            before: 20.0,
            after: 20.0,
        }
    }
}

/// The model and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Platters and a head.
    Disk(DiskProfile),
    /// Flash with a mapping table and garbage collection.
    Flash(FlashProfile),
    /// Fixed latency and rate.
    Flat(FlatProfile),
}

/// Parameters of [`Kind::Disk`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskProfile {
    /// Revolutions per minute.
    pub rpm: f64,
    /// Media rate at the outer edge, in 10⁶ bytes per second.
    pub outer_mb_per_s: f64,
    /// Media rate at the inner edge.
    pub inner_mb_per_s: f64,
    /// Seek to the adjacent track, including settling, in milliseconds.
    pub track_seek_ms: f64,
    /// Seek over a third of the surface.
    pub average_seek_ms: f64,
    /// Seek over the whole surface.
    pub full_seek_ms: f64,
    /// Additional settling time before a write.
    pub write_settle_ms: f64,
    /// Share of the surface, from the outer edge, that holds the drive's bytes.
    pub stroke: f64,
    /// Processing time per request, in microseconds.
    pub command_us: f64,
    /// Rate of the link to the host.
    pub link_mb_per_s: f64,
    /// Requests that the drive queues and may reorder.
    pub queue: usize,
    /// Read-ahead after a read.
    pub read_ahead_bytes: u64,
    /// Cache for read data.
    pub read_cache_bytes: u64,
    /// Cache for writes that are not on the media yet; 0 for write-through.
    pub write_cache_bytes: u64,
    /// Filled share of the write cache at which the drive writes back even while it is busy.
    pub write_back_share: f64,
    /// Idle time after which the drive writes back, in milliseconds.
    pub write_back_ms: f64,
}

/// Parameters of [`Kind::Flash`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashProfile {
    /// Bytes of a page, the unit of the mapping table.
    pub page_bytes: u64,
    /// Pages erased together.
    pub block_pages: u64,
    /// Channels that work in parallel.
    pub channels: usize,
    /// Reading a page into the chip's register, in microseconds.
    pub page_read_us: f64,
    /// Programming a page (per page, if the chip programs several at once).
    pub page_program_us: f64,
    /// Erasing a block, in milliseconds.
    pub erase_ms: f64,
    /// Processing time per read from flash.
    pub read_command_us: f64,
    /// Set-up time per channel that a read touches.
    pub channel_us: f64,
    /// Processing time per read answered from memory.
    pub hit_us: f64,
    /// Processing time per write.
    pub write_command_us: f64,
    /// Time of a flush in addition to programming.
    pub flush_us: f64,
    /// Rate of the link to the host.
    pub link_mb_per_s: f64,
    /// Buffer for writes that are not programmed yet.
    pub write_buffer_bytes: u64,
    /// Read-ahead of a sequential reader.
    pub read_ahead_bytes: u64,
    /// Spare flash, as a share of the drive's bytes.
    pub spare_share: f64,
    /// Free blocks per channel below which garbage is collected.
    pub reserve_blocks: usize,
    /// Share of a new drive that counts as written in random order.
    pub aged_share: f64,
    /// Idle time after which buffered writes are programmed, in milliseconds.
    pub write_back_ms: f64,
}

/// Parameters of [`Kind::Flat`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlatProfile {
    /// Latency of a read, in microseconds.
    pub read_us: f64,
    /// Latency of a write.
    pub write_us: f64,
    /// Latency of a flush.
    pub flush_us: f64,
    /// Rate of reads, in 10⁶ bytes per second.
    pub read_mb_per_s: f64,
    /// Rate of writes.
    pub write_mb_per_s: f64,
    /// Requests that are processed in parallel.
    pub lanes: usize,
    /// Time after which a buffered write reaches the media without a flush, in milliseconds.
    pub write_back_ms: f64,
}

/// A published measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// `fio`'s name of the access: `randread`, `read`, `randwrite`, `write`.
    pub access: String,
    /// Bytes per request.
    pub bytes: u64,
    /// Rate in 10⁶ bytes per second.
    pub mb_per_s: f64,
    /// Its source.
    pub source: String,
}

impl Profile {
    /// Finds a profile by name, or reads the file of that name if it ends in `.toml`.
    ///
    /// # Errors
    /// If there is no such profile, or the file cannot be read or is not valid.
    pub fn find(name: &str) -> Outcome<Self> {
        if name.ends_with(".toml") {
            return Self::read(Path::new(name));
        }
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::parse(text),
            None => Err(format!(
                "no profile is called `{name}`: use {}, or the path of a file that ends in .toml",
                Self::names().join(", ")
            )
            .into()),
        }
    }

    /// Names of the profiles compiled in.
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|(name, _)| *name).collect()
    }

    fn read(path: &Path) -> Outcome<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// Parses a profile.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn parse(text: &str) -> Outcome<Self> {
        let profile: Self = toml::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks that a model can use the values.
    fn check(&self) -> Outcome {
        if !self.sector_bytes.is_power_of_two() || !(512..=4096).contains(&self.sector_bytes) {
            return Err("sector_bytes must be 512, 1024, 2048 or 4096".into());
        }
        sound(&self.overhead_us)?;
        match &self.kind {
            Kind::Disk(disk) => sound(disk).and_then(|()| disk.check()),
            Kind::Flash(flash) => sound(flash).and_then(|()| flash.check()),
            Kind::Flat(flat) => sound(flat),
        }
    }
}

impl DiskProfile {
    fn check(&self) -> Outcome {
        if self.stroke > 1.0 || !(0.0..=1.0).contains(&self.write_back_share) {
            return Err("stroke and write_back_share are shares: not above 1".into());
        }
        if !(self.track_seek_ms <= self.average_seek_ms && self.average_seek_ms <= self.full_seek_ms) {
            return Err("track_seek_ms, average_seek_ms and full_seek_ms must grow in this order".into());
        }
        Ok(())
    }
}

impl FlashProfile {
    fn check(&self) -> Outcome {
        if !self.page_bytes.is_power_of_two() || !(512..=65_536).contains(&self.page_bytes) {
            return Err("page_bytes must be a power of two from 512 to 65536".into());
        }
        if !(0.0..=1.0).contains(&self.aged_share) {
            return Err("aged_share is a share: from 0 to 1".into());
        }
        Ok(())
    }
}

/// Checks all numbers of a table. One that is not finite is null in JSON.
fn sound(table: &impl Serialize) -> Outcome {
    for (name, value) in serde_json::to_value(table)?.as_object().into_iter().flatten() {
        let number = value.as_f64().unwrap_or(-1.0);
        if POSITIVE.contains(&name.as_str()) && number <= 0.0 {
            return Err(format!("{name} is {value}: it must be above 0").into());
        }
        if number < 0.0 {
            return Err(format!("{name} is {value}: it must be a number and not negative").into());
        }
    }
    Ok(())
}
