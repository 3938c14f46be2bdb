//! Where a value belongs by its size and its key: *SizeThreshold*, and the rules that pin prefixes
//! to a tier.
//!
//! Invariant: where a value belongs is a function of the options alone. A value may be elsewhere:
//! values written under other rules are moved later (`migrate`), and reads never use this module.

use super::options::SEGMENT_VALUES_MIN;
use crate::{Error, KEY_BYTES_MAX, Options, Result};

/// Maximum number of rules.
const PINS_MAX: usize = 256;
/// Longest value that a pin keeps in the log, whatever the size of a segment.
const PINNED_BYTES_MAX: u64 = 16 << 20;

/// Effect of a rule on the objects of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pinning {
    /// No effect: they are placed by size and heat, as without a rule. For a part of a pinned
    /// prefix.
    #[default]
    None,
    /// They live on flash if they have at most a quarter of a segment and 16 MiB: in the log they
    /// count as the most read values, so they stay there as long as they take less than three
    /// quarters of it. Larger ones are placed by size and heat.
    Flash,
    /// They live in the large space and are never copied or moved to flash. Values that live in the
    /// index ([`crate::Tuning::inline_bytes_max`]) stay there.
    Disk,
}

/// A rule: objects whose keys begin with `prefix` are pinned. If several rules match a key, the one
/// with the longest prefix applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Prefix of the keys.
    pub prefix: Vec<u8>,
    /// How they are pinned.
    pub to: Pinning,
}

/// Checks rules.
///
/// # Errors
/// [`Error::Invalid`] for too many rules, two for one prefix, or a prefix longer than a key.
pub fn check(pins: &[Pin]) -> Result<()> {
    if pins.len() > PINS_MAX {
        return Err(Error::invalid(format!(
            "{} prefixes are pinned; at most {PINS_MAX} may be",
            pins.len()
        )));
    }
    let mut prefixes: Vec<&[u8]> = pins.iter().map(|pin| &pin.prefix[..]).collect();
    prefixes.sort_unstable();
    if let Some(twice) = prefixes.windows(2).find(|two| two[0] == two[1]) {
        let prefix = String::from_utf8_lossy(twice[0]).into_owned();
        return Err(Error::invalid(format!(
            "the prefix {prefix:?} is pinned twice; leave one of the rules"
        )));
    }
    if prefixes.iter().any(|prefix| prefix.len() > KEY_BYTES_MAX) {
        return Err(Error::invalid("a pinned prefix is longer than a key may be, 4 KiB"));
    }
    Ok(())
}

/// The rules of a store.
#[derive(Debug)]
pub struct Placement {
    size_threshold_bytes: u64,
    /// Values of this size and more do not stay in the log even if they are pinned to flash.
    pinned_from: u64,
    /// Values of this size and more do not live in the index.
    outside_index_from: u64,
    /// Sorted, the longest prefix first.
    pins: Vec<Pin>,
}

impl Placement {
    /// The rules of these options, which must be valid.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let mut pins = options.pins.clone();
        pins.sort_by(|one, other| {
            let by_length = other.prefix.len().cmp(&one.prefix.len());
            by_length.then_with(|| one.prefix.cmp(&other.prefix))
        });
        let pinned_max = (options.segment_bytes / SEGMENT_VALUES_MIN).min(PINNED_BYTES_MAX);
        Self {
            size_threshold_bytes: options.size_threshold_bytes,
            pinned_from: (pinned_max + 1).max(options.size_threshold_bytes),
            outside_index_from: options.tuning.inline_bytes_max + 1,
            pins,
        }
    }

    /// How the objects of a key are pinned.
    #[inline]
    #[must_use]
    pub fn pinning(&self, key: &[u8]) -> Pinning {
        let rule = self.pins.iter().find(|pin| key.starts_with(&pin.prefix));
        rule.map_or(Pinning::None, |pin| pin.to)
    }

    /// Values of this key belong in the large space if they have at least this length.
    #[inline]
    #[must_use]
    pub fn large_from(&self, key: &[u8]) -> u64 {
        match self.pinning(key) {
            Pinning::None => self.size_threshold_bytes,
            Pinning::Flash => self.pinned_from,
            Pinning::Disk => self.outside_index_from,
        }
    }

    /// Whether a value of this length is pinned to the log.
    #[must_use]
    pub fn is_pinned_to_log(&self, key: &[u8], length: u64) -> bool {
        self.pinning(key) == Pinning::Flash && length < self.pinned_from
    }

    /// A number that differs, except with probability 2^-64, from that of any other rules that
    /// place anything elsewhere.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut text = Vec::new();
        for number in [self.size_threshold_bytes, self.pinned_from, self.outside_index_from] {
            text.extend_from_slice(&number.to_le_bytes());
        }
        for pin in &self.pins {
            text.push(match pin.to {
                Pinning::None => 0,
                Pinning::Flash => 1,
                Pinning::Disk => 2,
            });
            text.extend_from_slice(&(pin.prefix.len() as u64).to_le_bytes());
            text.extend_from_slice(&pin.prefix);
        }
        crate::key_hash(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(prefix: &str, to: Pinning) -> Pin {
        Pin {
            prefix: prefix.into(),
            to,
        }
    }

    fn options() -> Options {
        Options {
            pins: vec![
                pin("a/", Pinning::Flash),
                pin("a/b/", Pinning::Disk),
                pin("a/b/c", Pinning::None),
                pin("z", Pinning::Disk),
            ],
            segment_bytes: 64 << 20,
            ..Options::new("nowhere")
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let placement = Placement::new(&options());
        for (key, to) in [
            ("a/x", Pinning::Flash),
            ("a", Pinning::None),
            ("a/b/x", Pinning::Disk),
            ("a/b/cx", Pinning::None),
            ("z", Pinning::Disk),
            ("y", Pinning::None),
        ] {
            assert_eq!(placement.pinning(key.as_bytes()), to, "{key}");
        }
        assert_eq!(placement.large_from(b"y"), 128 << 10);
        assert_eq!(placement.large_from(b"a/x"), (16 << 20) + 1);
        assert_eq!(placement.large_from(b"z1"), 65);
        assert!(placement.is_pinned_to_log(b"a/x", 16 << 20) && !placement.is_pinned_to_log(b"a/x", (16 << 20) + 1));
    }

    #[test]
    fn other_rules_have_another_fingerprint() {
        let fingerprint = |options: &Options| Placement::new(options).fingerprint();
        let before = fingerprint(&options());
        let mut other = options();
        other.pins.reverse();
        assert_eq!(fingerprint(&other), before, "their order means nothing");
        other.pins[0].to = Pinning::Flash;
        assert_ne!(fingerprint(&other), before);
        let other = Options {
            size_threshold_bytes: 64 << 10,
            ..options()
        };
        assert_ne!(fingerprint(&other), before);
    }

    #[test]
    fn rules_that_contradict_each_other_are_refused() {
        assert!(check(&options().pins).is_ok());
        assert!(check(&[pin("a", Pinning::Flash), pin("a", Pinning::Disk)]).is_err());
        assert!(check(&vec![pin("", Pinning::Flash); 257]).is_err());
        assert!(check(&[pin(&"x".repeat(4097), Pinning::Flash)]).is_err());
    }
}
