//! Conditional and range requests (RFC 9110 sections 13 and 14), as functions of headers and facts
//! alone.
//!
//! A client's header is never an error here: invalid ones are ignored, as the RFC requires, and the
//! whole value is sent.

use super::ranges::Ranges;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The value's validators.
#[derive(Debug, Clone, Copy)]
pub struct Validators<'a> {
    /// Strong entity tag with its quotes.
    pub etag: &'a str,
    /// When it was last changed, if known.
    pub modified: Option<SystemTime>,
}

/// The relevant headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requested<'a> {
    /// `If-None-Match`; several lines joined with commas.
    pub if_none_match: Option<&'a str>,
    /// `If-Modified-Since`
    pub if_modified_since: Option<&'a str>,
    /// `Range`
    pub range: Option<&'a str>,
    /// `If-Range`
    pub if_range: Option<&'a str>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 200 with the whole value.
    Whole,
    /// 206 with these bytes, at least one.
    Part(std::ops::Range<u64>),
    /// 304
    NotModified,
    /// 416
    Unsatisfiable,
}

/// Decides on the answer to a GET of a value of `length` bytes.
pub fn decide(requested: &Requested<'_>, validators: &Validators<'_>, length: u64) -> Answer {
    if is_unchanged(requested, validators) {
        return Answer::NotModified;
    }
    match requested.range {
        Some(range) if range_applies(requested.if_range, validators) => parse_range(range, length),
        _ => Answer::Whole,
    }
}

/// Whether the client has the value already.
pub fn is_unchanged(requested: &Requested<'_>, validators: &Validators<'_>) -> bool {
    if let Some(list) = requested.if_none_match {
        // If-Modified-Since is ignored if there is an If-None-Match (section 13.1.3), even if
        // nothing in its list matches.
        return list.trim() == "*" || tags(list).any(|tag| weak(tag) == weak(validators.etag));
    }
    let Some((since, modified)) = requested
        .if_modified_since
        .and_then(parse_date)
        .zip(validators.modified)
    else {
        return false;
    };
    whole_seconds(modified) <= since
}

/// The entity tags of a list. A comma inside quotes belongs to the tag.
fn tags(mut list: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        list = list.trim_start_matches([' ', '\t', ',']);
        let quote = if list.starts_with("W/\"") { 2 } else { 0 };
        let inner = list.get(quote..)?.strip_prefix('"')?;
        let end = quote + 1 + inner.find('"')? + 1;
        let (tag, rest) = list.split_at(end);
        list = rest;
        Some(tag)
    })
}

fn weak(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// Whether `Range` counts, given `If-Range` (section 13.1.5): a strong tag that matches, or exactly
/// the value's date.
pub fn range_applies(if_range: Option<&str>, validators: &Validators<'_>) -> bool {
    let Some(validator) = if_range.map(str::trim) else {
        return true;
    };
    if validator.ends_with('"') {
        return validator == validators.etag;
    }
    parse_date(validator)
        .zip(validators.modified)
        .is_some_and(|(date, modified)| date == whole_seconds(modified))
}

fn parse_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

/// HTTP dates have no fractions.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// Reads one range of bytes. Several ranges, another unit or an invalid one mean the whole value
/// (section 14.2 allows it).
fn parse_range(header: &str, length: u64) -> Answer {
    let Some(ranges) = Ranges::parse(header).filter(|ranges| !ranges.are_many()) else {
        return Answer::Whole;
    };
    ranges.of(length).pop().map_or(Answer::Unsatisfiable, Answer::Part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ETAG: &str = "\"7-abc\"";

    fn validators() -> Validators<'static> {
        Validators {
            etag: ETAG,
            modified: Some(UNIX_EPOCH + Duration::from_millis(784_111_777_500)),
        }
    }

    fn range(header: &str, length: u64) -> Answer {
        decide(
            &Requested {
                range: Some(header),
                ..Requested::default()
            },
            &validators(),
            length,
        )
    }

    #[test]
    fn ranges() {
        for (header, length, answer) in [
            ("bytes=0-0", 10, Answer::Part(0..1)),
            ("bytes=0-9", 10, Answer::Part(0..10)),
            ("bytes=2-5", 10, Answer::Part(2..6)),
            ("bytes=2-", 10, Answer::Part(2..10)),
            ("bytes=9-", 10, Answer::Part(9..10)),
            ("bytes=-3", 10, Answer::Part(7..10)),
            ("bytes=-30", 10, Answer::Part(0..10)),
            ("bytes=5-99999999999999999999999", 10, Answer::Part(5..10)),
            ("bytes=0-18446744073709551615", 10, Answer::Part(0..10)),
            ("Bytes = 1 - 2 ", 10, Answer::Part(1..3)),
            ("bytes=10-", 10, Answer::Unsatisfiable),
            ("bytes=10-12", 10, Answer::Unsatisfiable),
            ("bytes=-0", 10, Answer::Unsatisfiable),
            ("bytes=0-", 0, Answer::Unsatisfiable),
            ("bytes=-1", 0, Answer::Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Answer::Unsatisfiable),
            ("bytes=5-2", 10, Answer::Whole),
            ("bytes=0-1,4-5", 10, Answer::Whole),
            ("bytes=", 10, Answer::Whole),
            ("bytes=-", 10, Answer::Whole),
            ("bytes=a-b", 10, Answer::Whole),
            ("bytes=+1-2", 10, Answer::Whole),
            ("bytes=1--2", 10, Answer::Whole),
            ("lines=1-2", 10, Answer::Whole),
            ("1-2", 10, Answer::Whole),
        ] {
            assert_eq!(range(header, length), answer, "{header} of {length}");
        }
    }

    #[test]
    fn entity_tags() {
        for (list, unchanged) in [
            (ETAG, true),
            ("W/\"7-abc\"", true),
            ("*", true),
            ("\"x\", \"7-abc\"", true),
            ("\"a,b\",W/\"7-abc\"", true),
            (" , \"x\" ,,\"7-abc\"", true),
            ("\"x\"", false),
            ("7-abc", false),
            ("\"7-abc", false),
            ("\"x,\"7-abc\"", false),
            ("", false),
            ("é", false),
        ] {
            let requested = Requested {
                if_none_match: Some(list),
                ..Requested::default()
            };
            assert_eq!(is_unchanged(&requested, &validators()), unchanged, "{list}");
        }
    }

    #[test]
    fn dates() {
        for (since, unchanged) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", true),
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("yesterday", false),
        ] {
            let requested = Requested {
                if_modified_since: Some(since),
                ..Requested::default()
            };
            assert_eq!(is_unchanged(&requested, &validators()), unchanged, "{since}");
            // A list of tags takes precedence.
            let requested = Requested {
                if_none_match: Some("\"x\""),
                ..requested
            };
            assert!(!is_unchanged(&requested, &validators()));
        }
        let requested = Requested {
            if_modified_since: Some("Sun, 06 Nov 1994 08:49:37 GMT"),
            ..Requested::default()
        };
        assert!(!is_unchanged(
            &requested,
            &Validators {
                etag: ETAG,
                modified: None
            }
        ));
    }

    #[test]
    fn if_range_needs_a_strong_match() {
        for (validator, applies) in [
            (ETAG, true),
            ("W/\"7-abc\"", false),
            ("\"x\"", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("nonsense", false),
        ] {
            let requested = Requested {
                range: Some("bytes=1-2"),
                if_range: Some(validator),
                ..Requested::default()
            };
            let answer = if applies { Answer::Part(1..3) } else { Answer::Whole };
            assert_eq!(decide(&requested, &validators(), 10), answer, "{validator}");
        }
    }

    #[test]
    fn not_modified_comes_before_the_range() {
        let requested = Requested {
            range: Some("bytes=99-"),
            if_none_match: Some(ETAG),
            ..Requested::default()
        };
        assert_eq!(decide(&requested, &validators(), 10), Answer::NotModified);
    }
}
