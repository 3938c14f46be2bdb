//! The two traces of the FlashStore paper (Debnath, Sengupta, Li, VLDB 2010), generated with its
//! published properties (section 5.4 and table 3). The same seed gives the same operations.
//!
//! *Xbox*: 7.5 gets per set; keys are strings joined by dots, 92 bytes on average, values 1,200
//! bytes; many sets of existing keys, and gets of absent ones. Assumed, since it is not published:
//! the popularity of players follows Zipf's law with exponent 0.9, for gets and sets alike; there
//! is one player per twenty operations; lengths are uniform, keys from 74 to 110, values from 800
//! to 1,600. A get of a player without a set is the get of an absent key.
//!
//! *Dedup*: a stream of chunks, 27,748,824 of which 12,082,492 are different; each is looked up,
//! and set if it was absent. Keys are hashes of 20 bytes, values have 44; no key is set twice.
//! Assumed: new and repeated chunks occur in runs of 32 on average, and a repeated run may be any
//! earlier one.

use super::super::data::mix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

/// Share of the different chunks (section 5.4).
const NEW_CHUNKS: f64 = 12_082_492.0 / 27_748_824.0;
/// Average chunks per run.
const RUN_CHUNKS: f64 = 32.0;
/// Gets per set (table 3).
const GETS_PER_SET: f64 = 7.5;
const OPERATIONS_PER_PLAYER: u64 = 20;
const PLAYER_EXPONENT: f64 = 0.9;
/// Shortest and longest, uniform: 92 and 1,200 on average (table 3).
const XBOX_KEY_BYTES: (u64, u64) = (74, 110);
const XBOX_VALUE_BYTES: (u64, u64) = (800, 1600);
/// SHA-1, and the metadata of a chunk (table 3).
const DEDUP_KEY_BYTES: usize = 20;
const DEDUP_VALUE_BYTES: usize = 44;

/// Which trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An online game.
    Xbox,
    /// The index of a deduplicating backup.
    Dedup,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Xbox, Self::Dedup];

    /// As text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xbox => "Xbox",
            Self::Dedup => "Dedup",
        }
    }

    /// Longest value.
    pub const fn value_bytes_max(self) -> usize {
        match self {
            Self::Xbox => XBOX_VALUE_BYTES.1 as usize,
            Self::Dedup => DEDUP_VALUE_BYTES,
        }
    }

    /// Average bytes of key and value.
    pub const fn pair_bytes(self) -> u64 {
        match self {
            Self::Xbox => 92 + 1200,
            Self::Dedup => (DEDUP_KEY_BYTES + DEDUP_VALUE_BYTES) as u64,
        }
    }

    /// Length of the value of a version of a key.
    pub const fn value_bytes(self, number: u64, version: u32) -> usize {
        match self {
            Self::Xbox => spread(XBOX_VALUE_BYTES, mix(number) ^ version as u64) as usize,
            Self::Dedup => DEDUP_VALUE_BYTES,
        }
    }

    /// Writes the key of a number.
    pub fn key(self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        let mut hash = mix(number ^ 0x5851_f42d_4c95_7f2d);
        match self {
            Self::Xbox => {
                let length = spread(XBOX_KEY_BYTES, hash) as usize - 17;
                while key.len() < length {
                    hash = mix(hash.wrapping_add(1));
                    key.push(if key.len() % 9 == 8 {
                        b'.'
                    } else {
                        b'a' + (hash % 26) as u8
                    });
                }
                key.push(b'.');
                key.extend_from_slice(format!("{number:016x}").as_bytes());
            }
            Self::Dedup => {
                // `mix` is a bijection, so the first eight bytes are unique.
                for _ in 0..3 {
                    key.extend_from_slice(&hash.to_be_bytes());
                    hash = mix(hash.wrapping_add(1));
                }
                key.truncate(DEDUP_KEY_BYTES);
            }
        }
    }
}

const fn spread(bounds: (u64, u64), hash: u64) -> u64 {
    bounds.0 + mix(hash) % (bounds.1 - bounds.0 + 1)
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Get of a key that has this version, or is absent.
    Get {
        /// The key's.
        number: u64,
        /// Number of sets so far; 0 means absent.
        version: u32,
    },
    /// Set of a key, which then has this version.
    Set {
        /// The key's.
        number: u64,
        /// From 1.
        version: u32,
    },
}

/// A trace, generated on demand; it does not end.
pub type Trace = Box<dyn FnMut() -> Operation + Send>;

/// A trace for about this many operations.
///
/// # Errors
/// Without operations.
pub fn trace(kind: Kind, operations: u64, seed: u64) -> crate::Outcome<Trace> {
    let random = ChaCha8Rng::seed_from_u64(seed);
    Ok(match kind {
        Kind::Xbox => {
            let players = (operations / OPERATIONS_PER_PLAYER).max(1);
            let mut xbox = Xbox {
                random,
                popularity: Zipf::new(players as f64, PLAYER_EXPONENT)?,
                versions: vec![0; usize::try_from(players)?],
            };
            Box::new(move || xbox.next())
        }
        Kind::Dedup => {
            let mut dedup = Dedup {
                random,
                different: 0,
                run: Run { next: None, left: 0 },
                set: None,
            };
            Box::new(move || dedup.next())
        }
    })
}

/// The game.
struct Xbox {
    random: ChaCha8Rng,
    popularity: Zipf<f64>,
    /// Versions by player.
    versions: Vec<u32>,
}

impl Xbox {
    fn next(&mut self) -> Operation {
        // The most popular player need not be set first.
        let rank = (self.popularity.sample(&mut self.random) as usize).clamp(1, self.versions.len()) - 1;
        let version = &mut self.versions[rank];
        let number = rank as u64;
        if self.random.random::<f64>() < 1.0 / (1.0 + GETS_PER_SET) {
            *version += 1;
            Operation::Set {
                number,
                version: *version,
            }
        } else {
            Operation::Get {
                number,
                version: *version,
            }
        }
    }
}

/// A run of consecutive chunks.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// The next repeated chunk; `None` in a run of new ones.
    next: Option<u64>,
    left: u64,
}

/// The backup.
struct Dedup {
    random: ChaCha8Rng,
    /// Number of different chunks so far.
    different: u64,
    run: Run,
    /// A chunk that was looked up, absent, and is to be set.
    set: Option<u64>,
}

impl Dedup {
    fn next(&mut self) -> Operation {
        if let Some(number) = self.set.take() {
            return Operation::Set { number, version: 1 };
        }
        if self.run.left == 0 {
            self.start_run();
        }
        self.run.left -= 1;
        if let Some(number) = self.run.next {
            let after = number + 1;
            self.run.next = Some(if after < self.different { after } else { 0 });
            return Operation::Get { number, version: 1 };
        }
        let number = self.different;
        self.different += 1;
        self.set = Some(number);
        Operation::Get { number, version: 0 }
    }

    fn start_run(&mut self) {
        let is_new = self.different == 0 || self.random.random::<f64>() < NEW_CHUNKS;
        // Exponential, rounded up, which adds half a chunk to the mean.
        let length = -(1.0 - self.random.random::<f64>()).ln() * (RUN_CHUNKS - 0.5);
        self.run = Run {
            next: (!is_new).then(|| self.random.random_range(0..self.different.max(1))),
            left: (length.ceil() as u64).max(1),
        };
    }
}

/// Contents after some operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Keys that were set.
    pub objects: u64,
    /// Bytes of their keys and newest values.
    pub bytes: u64,
}

/// Contents after a number of operations of a trace.
pub fn extent(kind: Kind, operations: u64, seed: u64) -> crate::Outcome<Extent> {
    let mut trace = trace(kind, operations, seed)?;
    let (mut extent, mut key) = (Extent::default(), Vec::new());
    for _ in 0..operations {
        if let Operation::Set { number, version } = trace() {
            let bytes = kind.value_bytes(number, version) as u64;
            if version == 1 {
                kind.key(number, &mut key);
                extent.objects += 1;
                extent.bytes += key.len() as u64 + bytes;
            } else {
                extent.bytes = extent.bytes + bytes - kind.value_bytes(number, version - 1) as u64;
            }
        }
    }
    Ok(extent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// Statistics of a trace.
    #[derive(Default)]
    struct Seen {
        gets: f64,
        absent: f64,
        sets: f64,
        updates: f64,
        key_bytes: f64,
        value_bytes: f64,
    }

    fn look(kind: Kind, operations: u64, seed: u64) -> Seen {
        let mut trace = trace(kind, operations, seed).unwrap();
        let (mut seen, mut key, mut there) = (Seen::default(), Vec::new(), HashMap::new());
        for _ in 0..operations {
            match trace() {
                Operation::Get { number, version } => {
                    assert_eq!(there.get(&number).copied().unwrap_or(0), version);
                    seen.gets += 1.0;
                    seen.absent += f64::from(u8::from(version == 0));
                }
                Operation::Set { number, version } => {
                    assert_eq!(there.insert(number, version).unwrap_or(0) + 1, version);
                    kind.key(number, &mut key);
                    seen.sets += 1.0;
                    seen.updates += f64::from(u8::from(version > 1));
                    seen.key_bytes += key.len() as f64;
                    seen.value_bytes += kind.value_bytes(number, version) as f64;
                }
            }
        }
        let extent = extent(kind, operations, seed).unwrap();
        assert_eq!(extent.objects, there.len() as u64);
        seen
    }

    fn close(found: f64, published: f64, part: f64) {
        assert!((found / published - 1.0).abs() < part, "{found}, published {published}");
    }

    #[test]
    fn xbox_is_like_the_published_one() {
        for seed in [1, 2] {
            let seen = look(Kind::Xbox, 400_000, seed);
            close(seen.gets / seen.sets, 7.5, 0.02);
            close(seen.key_bytes / seen.sets, 92.0, 0.03);
            close(seen.value_bytes / seen.sets, 1200.0, 0.03);
            // "Many updates", and "get operations on keys that have not been set earlier" (section
            // 5.6 and 5.4).
            assert!(seen.updates / seen.sets > 0.5, "{}", seen.updates / seen.sets);
            assert!(
                (0.01..0.3).contains(&(seen.absent / seen.gets)),
                "{}",
                seen.absent / seen.gets
            );
        }
    }

    #[test]
    fn dedup_is_like_the_published_one() {
        for seed in [1, 2] {
            let seen = look(Kind::Dedup, 1_000_000, seed);
            // Table 3 says 2.2 where the counts of section 5.4 give 2.297.
            close(seen.gets / seen.sets, 27_748_824.0 / 12_082_492.0, 0.04);
            assert_eq!(seen.updates, 0.0);
            assert_eq!((seen.key_bytes / seen.sets, seen.value_bytes / seen.sets), (20.0, 44.0));
            // An absent chunk is set at once; the last one may still be due.
            assert!((seen.absent - seen.sets).abs() <= 1.0);
        }
    }

    #[test]
    fn keys_are_different_and_the_games_have_dots() {
        for kind in Kind::ALL {
            let mut key = Vec::new();
            let keys: HashSet<Vec<u8>> = (0..50_000)
                .map(|number| {
                    kind.key(number, &mut key);
                    key.clone()
                })
                .collect();
            assert_eq!(keys.len(), 50_000);
        }
        let mut key = Vec::new();
        Kind::Xbox.key(7, &mut key);
        assert!(key.iter().filter(|byte| **byte == b'.').count() > 5);
        assert!(key.iter().all(u8::is_ascii_graphic));
    }

    #[test]
    fn a_seed_gives_one_trace() {
        for kind in Kind::ALL {
            let first = |seed| -> Vec<Operation> {
                let mut trace = trace(kind, 1000, seed).unwrap();
                (0..1000).map(|_| trace()).collect()
            };
            assert_eq!(first(3), first(3));
            assert_ne!(first(3), first(4));
        }
    }
}
