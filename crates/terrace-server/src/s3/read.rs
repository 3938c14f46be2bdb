//! Bodies of answers with objects.

pub use terrace_objects::read::*;

use super::{Gateway, byteranges::Byteranges};
use crate::http::{download::Download, read_ahead::Held};
use bytes::Bytes;
use s3s::{Body, dto::StreamingBlob};

/// A body with the rest of `opened`, whose piece `first` has been read.
pub fn stream(gateway: &Gateway, opened: Opened, first: Bytes, held: Held) -> StreamingBlob {
    if opened.rest().is_empty() {
        return StreamingBlob::from(Body::from(held.hold(first)));
    }
    StreamingBlob::from(Body::http_body(Download::new(&gateway.engine, opened, first, held)))
}

/// A body with several ranges of `opened`, which is at the first of them, whose piece `first` has
/// been read.
pub fn stream_several(
    gateway: &Gateway,
    opened: Opened,
    (first, held): (Bytes, Held),
    several: Byteranges,
) -> StreamingBlob {
    let bytes = several.bytes();
    let (ranges, end) = several.into_ranges();
    let body = Download::new(&gateway.engine, opened, first, held);
    StreamingBlob::from(Body::http_body(body.with_others(ranges, end, bytes)))
}
