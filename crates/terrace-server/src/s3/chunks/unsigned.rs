//! Bodies in chunks of requests that version 4 does not sign: nobody's, and those of version 2.
//! Over TLS the SDKs send a checksum behind each object in this way, whoever signs it.
//!
//! `s3s` looks for chunks only where version 4 signs. It gets what is in them, and what comes
//! behind them goes beside the request to where the object is received.

use super::{CONTENT_HASH, DECODED_LENGTH, UNSIGNED, UNSIGNED_WITH_TRAILER};
use crate::s3::head::Head;
use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
};
use s3s::{S3Result, s3_error};
use std::sync::{Arc, OnceLock};

/// What comes behind the last chunk of a body, when the body has ended.
#[derive(Debug, Clone, Default)]
pub struct Trailer(Arc<OnceLock<Vec<(String, String)>>>);

impl Trailer {
    /// The value of a field, if it came.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut fields = self.0.get()?.iter();
        fields.find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// It came.
    pub(super) fn set(&self, fields: Vec<(String, String)>) {
        // A body ends once.
        let _ = self.0.set(fields);
    }
}

/// How long a body in chunks is without what surrounds them, of a request that version 4 does not
/// sign. `None` if it is in none.
///
/// # Errors
/// `InvalidRequest` if they are said to be signed, or if it is not said how long the body is: it
/// would be stored with what surrounds its chunks.
pub fn length(head: &Head, headers: &HeaderMap) -> S3Result<Option<u64>> {
    let says = |name: &str, part: &str| {
        let values = headers.get_all(name).iter();
        let mut texts = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
        texts.any(|text| text.contains(part))
    };
    let is_coded = says("content-encoding", "aws-chunked");
    let length = headers.get(DECODED_LENGTH);
    if head.is_of_version_4() || !(is_coded || length.is_some() || says(CONTENT_HASH, "streaming-")) {
        return Ok(None);
    }
    let are_unsigned = match headers.get(CONTENT_HASH) {
        Some(said) => said == UNSIGNED_WITH_TRAILER || (said == UNSIGNED && is_coded),
        None => is_coded,
    };
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let length = length.filter(|_| are_unsigned && !head.is_form && !head.is_call);
    length.map(Some).ok_or_else(|| {
        s3_error!(
            InvalidRequest,
            "A body in chunks needs a signature of version 4, or chunks without signatures and x-amz-decoded-content-length."
        )
    })
}

/// Changes headers that announce such chunks to announce what is in them. `None` if they do not.
pub(super) fn announce(head: &Head, headers: &mut HeaderMap) -> Option<()> {
    let length = length(head, headers).ok().flatten()?;
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if !head.is_signed() {
        headers.remove(CONTENT_HASH);
    }
    Some(())
}
