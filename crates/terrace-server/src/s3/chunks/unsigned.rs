//! Bodies in chunks of requests without a signature of version 4: unsigned ones, and those of
//! version 2. Over TLS the SDKs send a checksum after each object in this way, whatever the
//! signature.
//!
//! `s3s` parses chunks only in requests of version 4. It gets the contents of the chunks, and the
//! trailer is passed separately to the code that receives the object.

use super::{CONTENT_HASH, DECODED_LENGTH, UNSIGNED, UNSIGNED_WITH_TRAILER};
use crate::s3::head::Head;
use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
};
use s3s::{S3Result, s3_error};
use std::sync::{Arc, OnceLock};

/// The trailer of a body, once the body has ended.
#[derive(Debug, Clone, Default)]
pub struct Trailer(Arc<OnceLock<Vec<(String, String)>>>);

impl Trailer {
    /// The value of a field, if it came.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut fields = self.0.get()?.iter();
        fields.find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    pub(super) fn set(&self, fields: Vec<(String, String)>) {
        // A body ends once.
        let _ = self.0.set(fields);
    }
}

/// The length of the contents of a body in chunks, of a request without a signature of version 4.
/// `None` if the body is not in chunks.
///
/// # Errors
/// `InvalidRequest` if the chunks are declared as signed, or if the length of the contents is
/// missing: the object would be stored with the chunks' framing.
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

/// Changes headers that announce such chunks to headers that announce their contents. `None` if
/// there are none.
pub(super) fn announce(head: &Head, headers: &mut HeaderMap) -> Option<()> {
    let length = length(head, headers).ok().flatten()?;
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if !head.is_signed() {
        headers.remove(CONTENT_HASH);
    }
    Some(())
}
