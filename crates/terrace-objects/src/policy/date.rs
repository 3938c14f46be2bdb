//! Dates in policies.

use super::condition::number;

/// Seconds since 1970, from a number or an ISO 8601 date with or without a time; `None` for another
/// form, and for a day that does not exist.
pub fn seconds_of(text: &str) -> Option<f64> {
    if let Some(seconds) = number(text) {
        return Some(seconds);
    }
    let (day, rest) = text.split_once(['T', 't']).unwrap_or((text, "00:00Z"));
    let [year, month, of_month]: [i64; 3] = numbers(day, '-')?.try_into().ok()?;
    if !(1..=12).contains(&month) || !(1..=days_of_month(year, month)).contains(&of_month) {
        return None;
    }
    let at = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(at);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = numbers(time, ':')?.into_iter();
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next().unwrap_or(0));
    let offset = match zone {
        "Z" | "z" => 0,
        zone => {
            let [hours, minutes]: [i64; 2] = numbers(&zone[1..], ':')?.try_into().ok()?;
            (hours * 60 + minutes) * if zone.starts_with('-') { -60 } else { 60 }
        }
    };
    if parts.next().is_some() || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let seconds = days_from_civil(year, month, of_month) * 86_400 + hours * 3600 + minutes * 60 + seconds - offset;
    Some(seconds as f64 + format!("0.{fraction}").parse::<f64>().ok()?)
}

fn numbers(text: &str, between: char) -> Option<Vec<i64>> {
    let is_number = |part: &&str| !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split(between)
        .map(|part| Some(part).filter(is_number)?.parse().ok())
        .collect()
}

/// The last day of a month of 1 to 12.
const fn days_of_month(year: i64, month: i64) -> i64 {
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days_from_civil(next.0, next.1, 1) - days_from_civil(year, month, 1)
}

/// Days since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Regression: the 31st of February was the 3rd of March, so a denial until the end of a month
    /// ended some days too late, without an error.
    #[test]
    fn days_that_do_not_exist_are_no_dates() {
        for (text, expected) in [
            ("1970-01-01", 0.0),
            ("2024-02-29", 1_709_164_800.0),
            ("2000-02-29T00:00:00Z", 951_782_400.0),
            ("2026-12-31T23:59:60Z", 1_798_761_600.0),
            ("2026-04-30T12:00Z", 1_777_550_400.0),
        ] {
            assert_eq!(seconds_of(text), Some(expected), "{text}");
        }
        for none in [
            "2026-02-31",
            "2026-02-29T00:00:00Z",
            "1900-02-29",
            "2026-04-31",
            "2026-11-31T00:00:00+01:00",
            "2026-12-32",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
        ] {
            assert_eq!(seconds_of(none), None, "{none}");
        }
    }
}
