//! Keys, values that identify the operation that wrote them, and the moods of a writer.
//!
//! Invariant: every byte of a value and of its attributes follows from operation, key and length,
//! so a reader can check all of it.

use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
use std::path::Path;
use terrace::{Attributes, Options};

/// Writing threads.
pub const CALLERS: u64 = 5;
/// Keys that all callers write, by compare and swap.
pub const SHARED_KEYS: u64 = 6;
/// Values of at least this size go to the large tier.
pub const SIZE_THRESHOLD_BYTES: u64 = 16 << 10;
/// Shortest value: its header.
const VALUE_BYTES_MIN: usize = 16;

/// Options with which recycling, destaging, index flushes, compactions and block deletion happen
/// within seconds.
pub fn options(flash: &Path, large: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        log_capacity_bytes: Some(6 << 20),
        size_threshold_bytes: SIZE_THRESHOLD_BYTES,
        split_threshold_bytes: 256 << 10,
        cache_bytes: 256 << 10,
        ..Options::on_tiers(flash, large)
    }
    .tuned(|tuning| {
        tuning.space_slack_bytes = 0;
        tuning.overlay_bytes = 1 << 20;
        tuning.index_cache_bytes = 1 << 20;
        tuning.checkpoint_log_bytes = 1 << 20;
        tuning.index_mirror_after = Some(std::time::Duration::ZERO);
    })
}

/// Number of an operation: life, caller, and count within them.
pub const fn op(life: u64, caller: u64, count: u64) -> u64 {
    life << 32 | caller << 24 | count
}

/// Life and caller of an operation.
pub const fn caller_of(op: u64) -> (u64, u64) {
    (op >> 32, op >> 24 & 0xff)
}

/// A key of one caller.
pub fn own_key(caller: u64, number: u64) -> String {
    format!("own/{caller}/{number:03}")
}

/// A key shared by all callers.
pub fn shared_key(number: u64) -> String {
    format!("shared/{number}")
}

/// FNV-1a.
fn hash(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The value an operation puts under a key.
pub fn value(op: u64, key: &str, length: u64) -> Vec<u8> {
    #[allow(clippy::cast_possible_truncation)] // below a megabyte
    let mut bytes = vec![0; (length as usize).max(VALUE_BYTES_MIN)];
    StdRng::seed_from_u64(op ^ hash(key) ^ length << 40).fill_bytes(&mut bytes[VALUE_BYTES_MIN..]);
    bytes[..8].copy_from_slice(&op.to_le_bytes());
    bytes[8..16].copy_from_slice(&hash(key).to_le_bytes());
    bytes
}

/// The attributes an operation gives to what it puts under a key.
pub fn attributes(op: u64, key: &str) -> Attributes {
    if (op ^ hash(key)).is_multiple_of(3) {
        Attributes::new().with("op", op.to_string())
    } else {
        Attributes::new()
    }
}

/// Finds the operation that wrote a value.
///
/// # Errors
/// What is wrong with it, if no operation wrote exactly this.
pub fn origin(key: &str, bytes: &[u8], found: &Attributes) -> Result<u64, String> {
    let op = bytes.first_chunk().map(|head| u64::from_le_bytes(*head));
    let op = op.ok_or_else(|| format!("{key}: only {} bytes", bytes.len()))?;
    if bytes != value(op, key, bytes.len() as u64) {
        return Err(format!("{key}: {} bytes that no operation wrote", bytes.len()));
    }
    if *found != attributes(op, key) {
        return Err(format!(
            "{key}: the value of operation {op:x} has other attributes: {found:?}"
        ));
    }
    Ok(op)
}

/// Parameters of the writers in a life.
#[derive(Debug, Clone, Copy)]
pub struct Mood {
    /// Its name.
    pub name: &'static str,
    /// Share of `Buffered` operations.
    pub buffered: f64,
    /// Share of values for the large tier.
    pub large: f64,
    /// Shortest value for the log.
    pub small_bytes_min: u64,
    /// Longest value for the log.
    pub small_bytes_max: u64,
    /// Keys per caller.
    pub keys: u64,
    /// Longest pause between two operations, in microseconds.
    pub pause_us: u64,
}

/// Mood: long values that are rarely overwritten.
pub const COLD: &str = "cold";
/// Mood: frames of one commit, all of the same length.
pub const SINGLE: &str = "single";

/// Longest value for the log.
const LONG: u64 = SIZE_THRESHOLD_BYTES - 1;

/// All moods.
pub const MOODS: &[Mood] = &[
    Mood::of("mixed", 0.5, 0.12, (16, LONG), 220, 300),
    Mood::of("sync", 0.05, 0.1, (16, LONG), 90, 0),
    Mood::of("buffered", 1.0, 0.02, (16, LONG), 90, 12_000),
    Mood::of("large", 0.6, 0.6, (16, LONG), 60, 1_000),
    Mood::of("hot", 0.9, 0.01, (16, LONG), 25, 100),
    // Much is live when its segment is drained, and is moved to the large drive, which otherwise
    // has little to do.
    Mood::of(COLD, 1.0, 0.0, (3_000, LONG), 150, 20_000),
    // Hardly a flush: many frames are in the drive's cache at a time.
    Mood::of("tiny", 1.0, 0.0, (16, 200), 90, 2_500),
    // The same, with hardly two commits per frame.
    Mood::of(SINGLE, 1.0, 0.0, (16, 200), 90, 40_000),
];

impl Mood {
    const fn of(
        name: &'static str,
        buffered: f64,
        large: f64,
        small_bytes: (u64, u64),
        keys: u64,
        pause_us: u64,
    ) -> Self {
        let (small_bytes_min, small_bytes_max) = small_bytes;
        Self {
            name,
            buffered,
            large,
            small_bytes_min,
            small_bytes_max,
            keys,
            pause_us,
        }
    }

    /// Draws the length of a value.
    pub fn length(&self, rng: &mut StdRng) -> u64 {
        if rng.random_bool(self.large) {
            return match rng.random_range(0..20) {
                0 => rng.random_range(200_000..400_000),
                _ => rng.random_range(SIZE_THRESHOLD_BYTES..60_000),
            };
        }
        let bytes = match rng.random_range(0..10) {
            0..3 => rng.random_range(16..60),
            3..8 => rng.random_range(100..4_000),
            _ => rng.random_range(4_000..SIZE_THRESHOLD_BYTES),
        };
        bytes.clamp(self.small_bytes_min, self.small_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_value_names_its_operation() {
        for op in [op(1, 2, 3), op(1, 2, 4), op(900, 4, 70_000)] {
            let bytes = value(op, "own/1/002", 300);
            assert_eq!(origin("own/1/002", &bytes, &attributes(op, "own/1/002")), Ok(op));
            assert!(origin("own/1/003", &bytes, &attributes(op, "own/1/003")).is_err());
            let mut flipped = bytes.clone();
            flipped[200] ^= 1;
            assert!(origin("own/1/002", &flipped, &attributes(op, "own/1/002")).is_err());
            assert!(origin("own/1/002", &bytes[..299], &attributes(op, "own/1/002")).is_err());
            let others = Attributes::new().with("op", "0");
            assert!(origin("own/1/002", &bytes, &others).is_err());
        }
        assert_eq!(caller_of(op(900, 4, 70_000)), (900, 4));
    }
}
