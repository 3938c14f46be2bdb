//! Several ranges of an object in one body: `multipart/byteranges` (RFC 9110 section 14.6).

use super::keyspace;
use crate::http::ranges::content_range;
use bytes::Bytes;
use std::ops::Range;

/// A body with several ranges, each below a head of its own.
#[derive(Debug)]
pub struct Byteranges {
    boundary: String,
    /// In the order in which they are sent.
    ranges: Vec<(Bytes, Range<u64>)>,
    end: Bytes,
}

impl Byteranges {
    /// A body with these ranges of an object of so many bytes.
    pub fn new(ranges: Vec<Range<u64>>, length: u64, content_type: &str) -> Self {
        let boundary = keyspace::unique_text();
        let head = |range: &Range<u64>| {
            let place = content_range(range, length);
            format!("\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {place}\r\n\r\n").into()
        };
        let ranges = ranges.into_iter().map(|range| (head(&range), range)).collect();
        let end = format!("\r\n--{boundary}--\r\n").into();
        Self { boundary, ranges, end }
    }

    /// Length of the body.
    pub fn bytes(&self) -> u64 {
        let ranges = self
            .ranges
            .iter()
            .map(|(head, range)| head.len() as u64 + (range.end - range.start));
        ranges.sum::<u64>() + self.end.len() as u64
    }

    /// The content type of the answer.
    pub fn kind(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// The ranges with their heads, and the end of the body.
    pub fn into_ranges(self) -> (Vec<(Bytes, Range<u64>)>, Bytes) {
        (self.ranges, self.end)
    }
}
