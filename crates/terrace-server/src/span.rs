//! Spans of time as people write them: `90s`, `15m`, `6h`, `2d`.
//!
//! A unit must be given: a bare number could mean anything. Anything else is refused with an example, never guessed.

use serde::{Deserialize, Deserializer, de};
use std::{str::FromStr, time::Duration};

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a span of time; write it like 90s, 15m, 6h or 2d");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
        let (number, unit) = trimmed.split_at(digits);
        let seconds: u64 = match unit.trim_start() {
            "s" => 1,
            "m" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            _ => return Err(refuse()),
        };
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let span = number.checked_mul(seconds).filter(|&seconds| seconds > 0);
        span.map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(|| format!("`{text}` must be between 1s and some billions of years"))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn spans_are_read_or_refused() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("6 h", 21_600), ("2d", 172_800)] {
            assert_eq!(text.parse::<Span>().unwrap().0, Duration::from_secs(seconds), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "0s",
            "1.5h",
            "-1s",
            "3 weeks",
            "99999999999999999999s",
            "99999999999999999d",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
