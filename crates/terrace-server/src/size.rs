//! Sizes as people write them: `64MiB`, `128 KiB`, `1GB`, `4096`.
//!
//! `K`, `KiB`, `M`, … are binary; `KB`, `MB`, … are decimal, as the units are defined. A fraction
//! is allowed if the result is a whole number of bytes (`1.5MiB`). Anything else is refused with an
//! example, never guessed.

use serde::{Deserialize, Deserializer, de};
use std::{fmt, str::FromStr};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a size; write it like 64MiB, 128 KiB, 1GB or 4096");
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim_start().to_ascii_lowercase();
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 {
            return Err(refuse());
        }
        let too_large = || format!("`{text}` is too large for a size");
        // In units of 10^-digits so that nothing is rounded.
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| refuse())?);
        let whole: u64 = whole
            .parse()
            .map_err(|_| if number.contains("..") { refuse() } else { too_large() })?;
        let fraction: u64 = fraction.parse().map_err(|_| refuse())?;
        let scaled = (u128::from(whole) * scale + u128::from(fraction)) * u128::from(*factor);
        if scaled % scale != 0 {
            return Err(format!(
                "`{text}` does not come to whole bytes; write it like 64MiB or 4096"
            ));
        }
        u64::try_from(scaled / scale).map(Self).map_err(|_| too_large())
    }
}

/// Writes the largest binary unit with at most one decimal: `1.5 GiB`.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut power = 0;
        while power + 1 < NAMES.len() && self.0 >> (10 * (power + 1)) > 0 {
            power += 1;
        }
        let unit = 1_u64 << (10 * power);
        let tenths = (self.0 % unit) * 10 / unit;
        if tenths == 0 {
            write!(f, "{} {}", self.0 / unit, NAMES[power])
        } else {
            write!(f, "{}.{tenths} {}", self.0 / unit, NAMES[power])
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size like \"64MiB\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_binary_decimal_and_bare_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64MiB", 64 << 20),
            ("128 KiB", 128 << 10),
            (" 2 gib ", 2 << 30),
            ("64k", 64 << 10),
            ("1GB", 1_000_000_000),
            ("1.5MiB", 3 << 19),
            ("0.5K", 512),
            ("1TB", 1_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in [
            "", "MiB", "-1", "+1", "1 2", "64 MiBs", "1..5K", "1.", ".5K", "0.3", "1e3", "64MiB x", "٣",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for text in ["18446744073709551616", "17179869184 GiB", "99999999999999999999999"] {
            assert!(text.parse::<Size>().unwrap_err().contains("too large"), "{text}");
        }
    }

    #[test]
    fn prints_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
