//! Which bytes of an object a GET or HEAD requests, and gets.

use super::range_of_part;
use crate::{
    http::{
        conditional::{Validators, range_applies},
        ranges::{Ranges, content_range},
    },
    s3::{byteranges::Byteranges, digest, head::Head, read::Opened, record::Facts},
};
use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
    http::Extensions,
};
use s3s::{S3Error, S3ErrorCode, S3Result, dto::Range, s3_error};
use terrace::Attributes;

/// The requested bytes of an object.
#[derive(Debug, Clone)]
pub struct Wanted {
    what: What,
    /// `If-Range`: the range counts only for this version.
    only_of: Option<String>,
}

#[derive(Debug, Clone)]
enum What {
    All,
    Range(Range),
    Ranges(Ranges),
    Part(i32),
}

/// The bytes of an answer.
#[derive(Debug)]
pub struct Answer {
    /// The bytes; of several ranges, the first.
    pub range: std::ops::Range<u64>,
    /// `Content-Range`, if it is not all.
    pub content_range: Option<String>,
    /// The number of parts, if a part was requested.
    pub parts: Option<i32>,
    /// The attributes with the checksum of a requested part.
    pub checksum: Option<Attributes>,
    /// The body, if it has several ranges.
    pub several: Option<Byteranges>,
}

impl Answer {
    /// All of an object of this length.
    pub fn whole(length: u64) -> Self {
        Self::of(0..length, None)
    }

    fn of(range: std::ops::Range<u64>, content_range: Option<String>) -> Self {
        Self {
            range,
            content_range,
            parts: None,
            checksum: None,
            several: None,
        }
    }
}

impl Wanted {
    /// The request's range or part.
    ///
    /// # Errors
    /// `InvalidRequest`, `InvalidArgument`.
    pub fn of(range: Option<Range>, part: Option<i32>) -> S3Result<Self> {
        let what = match (range, part) {
            (Some(_), Some(_)) => {
                return Err(s3_error!(
                    InvalidRequest,
                    "Cannot specify both Range header and partNumber query parameter"
                ));
            }
            (None, Some(number)) if !(1..=10_000).contains(&number) => {
                return Err(s3_error!(
                    InvalidArgument,
                    "Part number must be an integer between 1 and 10000, inclusive"
                ));
            }
            (None, Some(number)) => What::Part(number),
            (Some(range), None) => What::Range(range),
            (None, None) => What::All,
        };
        Ok(Self { what, only_of: None })
    }

    /// Adds the headers that `s3s` does not parse: several ranges, those that end beyond 2^63, and
    /// `If-Range`.
    ///
    /// # Errors
    /// `InternalError`
    pub fn with(mut self, extensions: &Extensions, headers: &HeaderMap) -> S3Result<Self> {
        if let (What::All, Some(ranges)) = (&self.what, &Head::of(extensions)?.ranges) {
            self.what = What::Ranges(ranges.clone());
        }
        let only_of = headers.get(header::IF_RANGE);
        self.only_of = only_of.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Ok(self)
    }

    /// Whether the object's parts are needed for the answer.
    pub const fn is_part(&self) -> bool {
        matches!(self.what, What::Part(_))
    }

    /// The bytes of an open object.
    ///
    /// # Errors
    /// `InvalidRange`, `InvalidPartNumber`.
    pub fn answer(&self, opened: &Opened) -> S3Result<Answer> {
        let What::Part(number) = self.what else {
            return self.answer_for(&opened.facts);
        };
        let (range, part) = range_of_part(opened, number)?;
        let content_range = (!range.is_empty()).then(|| content_range(&range, opened.facts.length));
        let whole = &opened.facts.attributes;
        let checksum = part.map_or_else(
            || Some(whole.clone()),
            |(part, _)| Some(digest::of_part(part.checksum.as_ref()?, whole)),
        );
        Ok(Answer {
            parts: part.and_then(|(_, count)| i32::try_from(count).ok()),
            checksum,
            ..Answer::of(range, content_range)
        })
    }

    /// The bytes of an object with these facts, if no part is requested.
    ///
    /// # Errors
    /// `InvalidRange`
    pub fn answer_for(&self, facts: &Facts) -> S3Result<Answer> {
        let length = facts.length;
        let validators = Validators {
            etag: &format!("\"{}\"", facts.etag),
            modified: Some(facts.modified),
        };
        let whole = Answer::whole(length);
        if !range_applies(self.only_of.as_deref(), &validators) {
            return Ok(whole);
        }
        let mut ranges = match &self.what {
            What::All | What::Part(_) => return Ok(whole),
            What::Ranges(ranges) => ranges.of(length),
            What::Range(range) => range.check(length).into_iter().collect(),
        };
        // A suffix of length 0: `check` of an empty object gives an empty range, which an answer
        // cannot have.
        ranges.retain(|range| !range.is_empty());
        let first = ranges.first().cloned().ok_or_else(|| unsatisfiable(length))?;
        let content_range = Some(content_range(&first, length));
        let several = (ranges.len() > 1).then(|| Byteranges::new(ranges, length, &facts.content_type()));
        Ok(Answer {
            several,
            ..Answer::of(first, content_range)
        })
    }
}

fn unsatisfiable(length: u64) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::InvalidRange, "The requested range is not satisfiable");
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{length}")) {
        headers.insert(header::CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}
