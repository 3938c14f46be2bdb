//! Ranges of bytes (RFC 9110 section 14), for the page and for S3.
//!
//! No byte is sent twice, and no request gets more pieces than [`RANGES_MAX`]: ranges that overlap,
//! or whose gap is shorter than a head, are merged, and too many ranges are ignored (sections 14.2
//! and 15.3.7.2).

use std::ops::Range;

/// Most ranges of one request.
pub const RANGES_MAX: usize = 16;
/// Gaps up to this length are sent.
const GAP_BYTES_MAX: u64 = 80;

/// Requested ranges, for a value of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges(Vec<Spec>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spec {
    /// From the first of these bytes to the second, inclusive, or to the end.
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

impl Ranges {
    /// Reads a header. `None` for another unit, an invalid header, or too many ranges: the whole
    /// value is sent then.
    pub fn parse(header: &str) -> Option<Self> {
        let (unit, list) = header.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let specs = list.split(',').map(str::trim).filter(|spec| !spec.is_empty());
        let specs: Vec<_> = specs.take(RANGES_MAX + 1).map(Spec::parse).collect::<Option<_>>()?;
        ((1..=RANGES_MAX).contains(&specs.len())).then_some(Self(specs))
    }

    /// Whether several were requested.
    pub fn are_many(&self) -> bool {
        self.0.len() > 1
    }

    /// The ranges of a value of `length` bytes, in order, none of them empty. None if all are
    /// outside.
    pub fn of(&self, length: u64) -> Vec<Range<u64>> {
        let ranges = self.0.iter().map(|spec| spec.of(length));
        let mut ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, kept| {
            let is_near = next.start <= kept.end.saturating_add(GAP_BYTES_MAX);
            if is_near {
                kept.end = kept.end.max(next.end);
            }
            is_near
        });
        ranges
    }
}

impl Spec {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        match (number(first)?, number(last)?) {
            (Number::Missing, Number::Value(bytes)) => Some(Self::Last(bytes)),
            (Number::Value(first), Number::Missing) => Some(Self::From(first, None)),
            (Number::Value(first), Number::Value(last)) if first <= last => Some(Self::From(first, Some(last))),
            _ => None,
        }
    }

    fn of(self, length: u64) -> Range<u64> {
        match self {
            Self::From(first, last) => first..last.map_or(length, |last| last.saturating_add(1).min(length)),
            Self::Last(bytes) => length.saturating_sub(bytes)..length,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Missing,
    Value(u64),
}

/// A position: absent, or digits only. Numbers that overflow mean "beyond any value".
fn number(text: &str) -> Option<Number> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Number::Missing);
    }
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| Number::Value(text.parse().unwrap_or(u64::MAX)))
}

/// `Content-Range` for a part of a value.
pub fn content_range(range: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

#[cfg(test)]
mod tests {
    // Lists of one range are intended here.
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;

    #[test]
    fn what_a_value_has_of_them() {
        for (header, length, expected) in [
            ("bytes=0-9,200-209", 1000, vec![0..10, 200..210]),
            ("bytes=200-209,0-9", 1000, vec![0..10, 200..210]),
            ("bytes=0-9, ,-10,", 1000, vec![0..10, 990..1000]),
            ("bytes=0-9,5-20", 1000, vec![0..21]),
            ("bytes=0-9,10-20", 1000, vec![0..21]),
            ("bytes=0-9,90-99", 1000, vec![0..100]),
            ("bytes=0-9,91-99", 1000, vec![0..10, 91..100]),
            ("bytes=0-,0-,0-,0-", 1000, vec![0..1000]),
            ("bytes=0-500,10-20,300-", 1000, vec![0..1000]),
            ("bytes=0-9,2000-,500-509", 1000, vec![0..10, 500..510]),
            ("bytes=1000-,2000-2001,-0", 1000, vec![]),
            ("bytes=-1,0-", 0, vec![]),
        ] {
            let ranges = Ranges::parse(header).unwrap();
            assert!(ranges.are_many());
            assert_eq!(ranges.of(length), expected, "{header}");
        }
        assert!(!Ranges::parse("bytes=1-2,").unwrap().are_many());
    }

    #[test]
    fn what_is_no_list_of_ranges() {
        for header in [
            "bytes=",
            "bytes=,",
            "bytes=0-1,x",
            "bytes=0-1,5-4",
            "lines=0-1,3-4",
            "bytes 0-1",
        ] {
            assert_eq!(Ranges::parse(header), None, "{header}");
        }
        let list = |count: usize| {
            format!(
                "bytes={}",
                (0..count).map(|at| format!("{at}000-{at}001,")).collect::<String>()
            )
        };
        assert!(Ranges::parse(&list(RANGES_MAX)).is_some());
        assert_eq!(Ranges::parse(&list(RANGES_MAX + 1)), None);
    }
}
