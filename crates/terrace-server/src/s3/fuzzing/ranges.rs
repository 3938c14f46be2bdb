//! Ranges and conditions: the answers of the page and of S3, compared with the simplest
//! interpretation of the same header.

use super::parts;
use crate::{
    http::{
        conditional::{self, Answer, Requested, Validators},
        ranges::{RANGES_MAX, Ranges, content_range},
    },
    s3::{byteranges::Byteranges, head::idle},
};
use hyper::{HeaderMap, header, header::HeaderValue};
use s3s::dto::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Gaps up to this are sent, too.
const GAP_BYTES_MAX: u64 = 80;

/// One range, parsed in the simplest way: first and last byte of a value of so many bytes.
fn plain(spec: &str, length: u64) -> Option<Option<(u64, u64)>> {
    let (first, last) = spec.split_once('-')?;
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (first, last) = (first.trim(), last.trim());
    let (from, to) = (number(first)?, number(last)?);
    let range = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => (length.saturating_sub(to), u64::MAX),
        (false, true) => (from, u64::MAX),
        (false, false) if from > to => return None,
        (false, false) => (from, to),
    };
    let is_nothing = (first.is_empty() && to == 0) || range.0 >= length;
    Some((!is_nothing).then(|| (range.0, range.1.min(length.saturating_sub(1)))))
}

/// Ranges of a value whose length is the number in the first eight bytes, or its lowest byte.
pub fn ranges(input: &[u8]) -> bool {
    let Some((number, text)) = input.split_first_chunk::<8>() else {
        return false;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let number = u64::from_be_bytes(*number);
    // Longer than any value is.
    for length in [number >> 1, number % 512] {
        of_length(text, length);
    }
    Ranges::parse(text).is_some()
}

fn of_length(text: &str, length: u64) {
    let parsed = Ranges::parse(text);
    if let Some(parsed) = &parsed {
        let ranges = parsed.of(length);
        let list = text.split_once('=').map_or("", |(_, list)| list);
        let specs: Vec<_> = list.split(',').map(str::trim).filter(|spec| !spec.is_empty()).collect();
        let wanted: Vec<_> = specs.iter().filter_map(|spec| plain(spec, length).flatten()).collect();
        assert!(specs.len() <= RANGES_MAX && specs.iter().all(|spec| plain(spec, length).is_some()));
        assert_eq!(ranges.is_empty(), wanted.is_empty());
        assert!(
            ranges
                .iter()
                .all(|range| range.start < range.end && range.end <= length)
        );
        assert!(
            ranges
                .windows(2)
                .all(|pair| pair[1].start > pair[0].end + GAP_BYTES_MAX),
            "no byte is sent twice"
        );
        for (first, last) in &wanted {
            assert!(ranges.iter().any(|range| range.contains(first) && range.contains(last)));
        }
        for range in &ranges {
            assert!(wanted.iter().any(|(first, _)| *first == range.start));
            assert!(wanted.iter().any(|(_, last)| last + 1 == range.end));
        }
        body(&ranges, length);
    }
    let validators = Validators {
        etag: "\"e\"",
        modified: None,
    };
    let requested = Requested {
        range: Some(text),
        ..Requested::default()
    };
    let answer = conditional::decide(&requested, &validators, length);
    match (&answer, parsed.as_ref().filter(|ranges| !ranges.are_many())) {
        (Answer::Part(range), Some(ranges)) => assert_eq!(ranges.of(length), std::slice::from_ref(range)),
        (Answer::Unsatisfiable, Some(ranges)) => assert!(ranges.of(length).is_empty()),
        (Answer::Whole, None) => {}
        other => panic!("{other:?}"),
    }
    as_s3_has_it(text, length, &answer);
}

/// S3 and the page give the same answer to one range.
fn as_s3_has_it(text: &str, length: u64, answer: &Answer) {
    let Ok(value) = HeaderValue::from_str(text) else { return };
    let headers: HeaderMap = [(header::RANGE, value)].into_iter().collect();
    let is_idle = idle(&headers).next().is_some();
    let Some(range) = Range::parse(text).ok().filter(|_| !is_idle) else {
        return;
    };
    // As `Wanted` has it: `check` of an empty object gives an empty range.
    let range = range.check(length).ok().filter(|range| !range.is_empty());
    match range {
        Some(range) => assert_eq!(*answer, Answer::Part(range), "{text} of {length}"),
        None => assert_eq!(*answer, Answer::Unsatisfiable, "{text} of {length}"),
    }
}

/// The length of a body of several ranges is the announced one.
fn body(ranges: &[std::ops::Range<u64>], length: u64) {
    if ranges.len() < 2 {
        return;
    }
    let body = Byteranges::new(ranges.to_vec(), length, "text/plain");
    let said = body.bytes();
    let (parts, end) = body.into_ranges();
    let mut bytes = end.len() as u64;
    for ((head, range), wanted) in parts.iter().zip(ranges) {
        let head = String::from_utf8_lossy(head);
        assert!(head.contains(&content_range(wanted, length)) && range == wanted);
        bytes += head.len() as u64 + (range.end - range.start);
    }
    assert_eq!((bytes, parts.len()), (said, ranges.len()));
}

/// Conditions, in a head as lines: its headers, and the value's entity tag in `etag`.
pub fn conditions(text: &[u8]) -> bool {
    let Some(parts) = parts(text) else { return false };
    let get = |name: header::HeaderName| parts.headers.get(name)?.to_str().ok();
    let etag = get(header::ETAG).filter(|etag| is_strong(etag)).unwrap_or("\"7-abc\"");
    let modified = UNIX_EPOCH + Duration::from_millis(784_111_777_500);
    let validators = Validators {
        etag,
        modified: Some(modified),
    };
    let requested = Requested {
        if_none_match: get(header::IF_NONE_MATCH),
        if_modified_since: get(header::IF_MODIFIED_SINCE),
        range: get(header::RANGE),
        if_range: get(header::IF_RANGE),
    };
    let is_unchanged = conditional::is_unchanged(&requested, &validators);
    let answer = conditional::decide(&requested, &validators, 1000);
    assert_eq!(answer == Answer::NotModified, is_unchanged, "first of all");
    let applies = conditional::range_applies(requested.if_range, &validators);
    assert!(applies || is_unchanged || answer == Answer::Whole);
    if let Some(list) = requested.if_none_match {
        // A list with the tag in front contains it; so do two header lines.
        let joined = format!("{etag}, {list}");
        let with = |list: &str, etag: &str| {
            let requested = Requested {
                if_none_match: Some(list),
                ..requested
            };
            conditional::is_unchanged(&requested, &Validators { etag, ..validators })
        };
        assert!(with(&joined, etag) && with(&format!("W/{joined}"), etag) && with("*", etag));
        let quoted = list.contains(etag) || list.trim() == "*";
        assert!(quoted || !is_unchanged, "no other tag is this one");
    } else if let Some(since) = requested.if_modified_since {
        let read = httpdate::parse_http_date(since.trim()).ok();
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let expected = read.is_some_and(|read| read >= UNIX_EPOCH && seconds(read) >= seconds(modified));
        assert_eq!(is_unchanged, expected, "{since}");
    } else {
        assert!(!is_unchanged, "nothing is asked");
    }
    requested.if_none_match.is_some() || requested.if_modified_since.is_some() || requested.if_range.is_some()
}

fn is_strong(etag: &str) -> bool {
    let inner = etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.contains('"'))
}
