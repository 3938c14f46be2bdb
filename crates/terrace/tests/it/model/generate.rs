//! Random keys, values and changes.

use super::state::{Change, Key, Put};
use bytes::Bytes;
use rand::{Rng, rngs::StdRng};
use terrace::Attributes;

/// One of a few hundred keys below `prefix`, some of them unusual.
pub fn key(rng: &mut StdRng, prefix: &str) -> Key {
    let number = rng.random_range(0..400_u32);
    match number {
        0 => [prefix.as_bytes(), &[0xff; 3]].concat(),
        1 => [prefix.as_bytes(), &[0]].concat(),
        2 => {
            let mut key = [prefix.as_bytes(), &[b'k'; 4096]].concat();
            key.truncate(4096);
            key
        }
        _ => format!("{prefix}{:02}/{number:03}", number % 7).into_bytes(),
    }
}

/// Pseudo-random bytes, which do not compress.
pub fn value(rng: &mut StdRng) -> Bytes {
    let length = match rng.random_range(0..100) {
        0..5 => 0,
        5..35 => rng.random_range(1..130),
        35..80 => rng.random_range(100..6_000),
        80..97 => rng.random_range(3_000..60_000),
        97..99 => rng.random_range(60_000..400_000),
        _ => rng.random_range(1_000_000..1_300_000),
    };
    let mut value = vec![0; length];
    rng.fill(&mut value[..]);
    value.into()
}

pub fn attributes(rng: &mut StdRng) -> Attributes {
    match rng.random_range(0..10) {
        0..7 => Attributes::new(),
        7..9 => Attributes::new().with("kind", rng.random::<u32>().to_string()),
        _ => Attributes::new()
            .with("a", vec![7; rng.random_range(0..3_000)])
            .with("b", ""),
    }
}

/// How many objects expire or are deleted by range: expired ones are never reinserted or destaged,
/// and those must occur too.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub now_ms: u64,
    /// Few objects expire, and few ranges are deleted.
    pub calm: bool,
}

/// A value, often with an expiry soon, sometimes in the past.
pub fn put(rng: &mut StdRng, times: Times) -> Put {
    let now_ms = times.now_ms;
    let expires_ms = match rng.random_range(0..if times.calm { 2_000 } else { 100 }) {
        0..23 => Some(now_ms + rng.random_range(1..1_500)),
        23..25 => Some(now_ms - rng.random_range(0..500)),
        _ => None,
    };
    Put {
        value: value(rng),
        attributes: attributes(rng),
        expires_ms,
    }
}

pub fn change(rng: &mut StdRng, prefix: &str, times: Times) -> Change {
    let key = key(rng, prefix);
    change_of(rng, key, times)
}

fn change_of(rng: &mut StdRng, key: Key, times: Times) -> Change {
    if rng.random_bool(0.8) {
        Change::Put(key, put(rng, times))
    } else {
        Change::Delete(key)
    }
}

/// A batch. Its small values must fit into a segment, so it has few changes.
pub fn changes(rng: &mut StdRng, prefix: &str, times: Times) -> Vec<Change> {
    let count = rng.random_range(1..8);
    let mut changes: Vec<Change> = (0..count).map(|_| change(rng, prefix, times)).collect();
    if rng.random_bool(0.3)
        && let Some(Change::Put(key, _) | Change::Delete(key)) = changes.first()
    {
        // The same key twice: the later change wins.
        let again = change_of(rng, key.clone(), times);
        changes.push(again);
    }
    changes
}
