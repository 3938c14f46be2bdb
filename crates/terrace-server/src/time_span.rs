//! Spans of time as people write them (`90s`, `15m`, `1h`, `7d`), and moments as they read them.
//!
//! A span is a whole number and a unit; several may follow each other (`1h30m`). Anything else is
//! refused with an example, never guessed: a bare number could mean anything.

use serde::{Deserialize, Deserializer, de};
use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A span of time, above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

const UNITS: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a span of time; write it like 90s, 15m, 1h30m or 7d");
        let too_long = || format!("`{text}` is too long a span of time");
        let mut rest = text.trim();
        let mut total_ms = 0_u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
            if number.is_empty() {
                return Err(refuse());
            }
            let number: u64 = number.parse().map_err(|_| too_long())?;
            let part = number.checked_mul(*unit_ms);
            total_ms = part.and_then(|part| total_ms.checked_add(part)).ok_or_else(too_long)?;
            rest = after;
        }
        if total_ms == 0 {
            return Err(refuse());
        }
        Ok(Self(Duration::from_millis(total_ms)))
    }
}

/// A moment as `2026-11-21T05:30:00.250Z`.
#[derive(Debug, Clone, Copy)]
pub struct Moment(pub SystemTime);

impl Moment {
    /// The same as signatures of S3 have it: `20261121T053000Z`.
    pub fn of_signature(self) -> String {
        let text = self.to_string();
        let seconds = text.split('.').next().unwrap_or_default();
        let mut time: String = seconds.chars().filter(|letter| !"-:".contains(*letter)).collect();
        time.push('Z');
        time
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let (year, month, day) = date(days);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
            second / 3600,
            second / 60 % 60,
            second % 60,
            since.subsec_millis()
        )
    }
}

/// Year, month and day of a count of days since 1970-01-01, in the Gregorian calendar.
const fn date(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, the leap day is the last day of its year, and 400 years have 146,097
    // days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_spans() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("1h", 3_600),
            (" 1h30m ", 5_400),
            ("7d", 604_800),
            ("2w", 1_209_600),
            ("1d12h", 129_600),
        ] {
            assert_eq!(text.parse(), Ok(TimeSpan(Duration::from_secs(seconds))), "{text}");
        }
        assert_eq!("250ms".parse(), Ok(TimeSpan(Duration::from_millis(250))));
    }

    #[test]
    fn refuses_what_is_not_a_span() {
        for text in ["", "1", "h", "1 h", "-1h", "1.5h", "1y", "0s", "1h30", "٣s", "1H"] {
            assert!(
                text.parse::<TimeSpan>().unwrap_err().contains("write it like"),
                "{text}"
            );
        }
        for text in ["99999999999999999999s", "18446744073709551615w"] {
            assert!(text.parse::<TimeSpan>().unwrap_err().contains("too long"), "{text}");
        }
    }

    #[test]
    fn prints_moments() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_001, "2000-03-01T00:00:00.001Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_000, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(Moment(UNIX_EPOCH + Duration::from_millis(ms)).to_string(), text);
        }
    }
}
