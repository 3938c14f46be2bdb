//! What is refused before `s3s` sees it: what the service does not have, and what `s3s` would let
//! pass.
//!
//! Of the latter there are four. A header `x-amz-…` that is not signed: whoever has a presigned URL
//! could otherwise add `x-amz-copy-source` to it and read any object its signer can read.
//! Signatures of version 2, which cover neither body nor time; for both see [`signature`].
//! Subresources that `s3s` does not know. And parts of uploads that do not say of which, which it
//! would take for objects.

use super::{
    digest::Algorithm,
    errors,
    form::{FILE_BYTES_MAX, FORM_BYTES_MAX, is_form},
    signature,
};
use hyper::{HeaderMap, Method, StatusCode, Version, header, http::request::Parts};
use s3s::{S3Result, s3_error};
use std::borrow::Cow;

/// Longest XML body: 10,000 parts with their checksums fit.
pub const XML_BYTES_MAX: usize = 8 << 20;
/// Longest head of a request that stores something, as S3 has it: all names and values of its
/// headers.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// What headers begin with that ask for something the service does not have.
const NOT_SUPPORTED: [&str; 2] = ["x-amz-mfa", "x-amz-write-offset-bytes"];

/// Query names without a value that `s3s` knows: each names an operation of its own.
const SUBRESOURCES: [&str; 31] = [
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
];
/// Query names of listings, which may have an empty value.
const LIST_FIELDS: [&str; 9] = [
    "continuation-token",
    "delimiter",
    "encoding-type",
    "key-marker",
    "marker",
    "prefix",
    "start-after",
    "upload-id-marker",
    "version-id-marker",
];
/// Query names that need a value.
const FILLED_FIELDS: [&str; 9] = [
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "partNumber",
    "uploadId",
    "versionId",
    "list-type",
];

/// Refuses what the service does not have.
pub fn refuse(parts: &Parts) -> S3Result {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let query = parts.uri.query().unwrap_or("");
    refuse_path(parts.uri.path())?;
    refuse_long_head(parts)?;
    if let Some(name) = parts
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| NOT_SUPPORTED.iter().any(|start| name.starts_with(start)))
    {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: {name}"
        ));
    }
    refuse_encryption(&parts.method, query, &parts.headers)?;
    refuse_fields(query)?;
    refuse_subresources(&parts.method, parts.uri.path(), query)?;
    refuse_odd_puts(parts, query)?;
    if is_form(&parts.method, &parts.headers) {
        refuse_long_form(text("content-length"))?;
    } else {
        refuse_long_xml(&parts.method, query, text("content-length"))?;
    }
    refuse_trailer(&parts.headers)?;
    refuse_values(text)?;
    signature::check(parts)
}

/// Refuses to say how an object is to be encrypted where none is made.
fn refuse_encryption(method: &Method, query: &str, headers: &HeaderMap) -> S3Result {
    let makes_one = matches!(*method, Method::PUT | Method::POST) && !names(query).any(|name| name == "partNumber");
    if headers.contains_key("x-amz-server-side-encryption") && !makes_one {
        return Err(s3_error!(
            InvalidArgument,
            "x-amz-server-side-encryption header is not supported for this operation."
        ));
    }
    Ok(())
}

/// Refuses heads that are longer than any that stores something.
fn refuse_long_head(parts: &Parts) -> S3Result {
    let headers = parts.headers.iter();
    let bytes: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
    if matches!(parts.method, Method::PUT | Method::POST) && bytes > HEAD_BYTES_MAX {
        return Err(errors::custom(
            "RequestHeaderSectionTooLarge",
            StatusCode::BAD_REQUEST,
            "Your request header section exceeds the maximum allowed size.",
        ));
    }
    Ok(())
}

/// Refuses forms that are longer than any that is taken.
fn refuse_long_form(length: Option<&str>) -> S3Result {
    let is_long = length.is_some_and(|text| text.parse::<u64>().is_ok_and(|bytes| bytes > FORM_BYTES_MAX));
    if is_long {
        return Err(s3_error!(
            EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size for forms: {FILE_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// Whether a body is XML, if it is no form: what is behind a subresource, or posted.
pub fn is_xml(method: &Method, query: &str) -> bool {
    *method == Method::POST || names(query).any(|name| SUBRESOURCES.contains(&&*name))
}

/// The names in a query, decoded.
pub fn names(query: &str) -> impl Iterator<Item = Cow<'_, str>> {
    signature::decoded(query).map(|(name, _)| name)
}

/// Refuses XML that is longer than any, before it is read.
fn refuse_long_xml(method: &Method, query: &str, length: Option<&str>) -> S3Result {
    let is_long = length.is_some_and(|text| text.parse::<usize>().is_ok_and(|bytes| bytes > XML_BYTES_MAX));
    if is_long && is_xml(method, query) {
        return Err(s3_error!(MaxMessageLengthExceeded, "Your request was too big."));
    }
    Ok(())
}

/// Refuses subresources that `s3s` does not know: it would take `PUT /BUCKET/KEY?new-thing` for an
/// object to be put. A GET of an object may have any, since people add such names to get around
/// caches.
fn refuse_subresources(method: &Method, path: &str, query: &str) -> S3Result {
    if is_object(path) && matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let empty = query.split('&').filter_map(|pair| match pair.split_once('=') {
        None | Some((_, "")) => Some(pair.trim_end_matches('=')),
        Some(_) => None,
    });
    let unknown = empty.into_iter().find(|name| {
        let is_known = SUBRESOURCES.contains(name) || LIST_FIELDS.contains(name) || name.starts_with("X-Amz-");
        !name.is_empty() && !is_known
    });
    match unknown {
        None => Ok(()),
        Some(name) => Err(s3_error!(NotImplemented, "The subresource {name} is not implemented.")),
    }
}

/// Whether a path names an object, as far as it can be told without the host.
pub fn is_object(path: &str) -> bool {
    let parts = path.trim_start_matches('/').split_once('/');
    parts.is_some_and(|(_, key)| !key.is_empty())
}

/// Refuses paths with a `%` that begins no byte.
fn refuse_path(path: &str) -> S3Result {
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let mut is_digit = || rest.next().is_some_and(|digit| digit.is_ascii_hexdigit());
        if byte == b'%' && !(is_digit() && is_digit()) {
            return Err(s3_error!(InvalidURI, "The URI cannot be decoded."));
        }
    }
    Ok(())
}

/// Refuses fields that are empty and cannot be.
fn refuse_fields(query: &str) -> S3Result {
    let is_empty = |pair: &&str| pair.strip_suffix('=').is_some_and(|name| FILLED_FIELDS.contains(&name));
    match query.split('&').find(is_empty) {
        None => Ok(()),
        Some(pair) => Err(s3_error!(
            InvalidArgument,
            "{} has no value.",
            pair.trim_end_matches('=')
        )),
    }
}

/// Refuses objects to be put that do not say how long they are, and parts that do not say of which
/// upload, or which.
fn refuse_odd_puts(parts: &Parts, query: &str) -> S3Result {
    if parts.method != Method::PUT || !is_object(parts.uri.path()) {
        return Ok(());
    }
    let has = |name: &str| names(query).any(|other| other == name);
    if has("uploadId") != has("partNumber") {
        return Err(s3_error!(InvalidArgument, "A part needs both uploadId and partNumber."));
    }
    let headers = &parts.headers;
    let has_body =
        !headers.contains_key("x-amz-copy-source") && !names(query).any(|name| SUBRESOURCES.contains(&&*name));
    if has_body {
        refuse_algorithm(headers)?;
    }
    // Before HTTP/2 nothing else says that there is a body.
    let is_silent = parts.version < Version::HTTP_2
        && !headers.contains_key(header::CONTENT_LENGTH)
        && !headers.contains_key(header::TRANSFER_ENCODING);
    if has_body && is_silent {
        return Err(s3_error!(
            MissingContentLength,
            "You must provide the Content-Length HTTP header."
        ));
    }
    Ok(())
}

/// Refuses bodies that are said to have a checksum and come without one.
fn refuse_algorithm(headers: &HeaderMap) -> S3Result {
    let Some(name) = headers.get("x-amz-sdk-checksum-algorithm") else {
        return Ok(());
    };
    if name.to_str().ok().and_then(Algorithm::parse).is_none() {
        return Err(s3_error!(
            InvalidRequest,
            "Value for x-amz-sdk-checksum-algorithm header is invalid."
        ));
    }
    let has_checksum = Algorithm::ALL
        .into_iter()
        .any(|algorithm| headers.contains_key(algorithm.header()));
    if has_checksum || headers.contains_key("x-amz-trailer") {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "x-amz-sdk-checksum-algorithm was given, but neither a checksum nor an x-amz-trailer header."
    ))
}

/// Refuses checksums that are announced to come after a body that nothing can come after, and those
/// that nobody can compute: what is announced is verified or not taken.
fn refuse_trailer(headers: &HeaderMap) -> S3Result {
    let Some(announced) = headers.get("x-amz-trailer") else {
        return Ok(());
    };
    let hash = headers
        .get("x-amz-content-sha256")
        .and_then(|value| value.to_str().ok());
    let has_trailer = hash.is_some_and(|hash| hash.starts_with("STREAMING-") && hash.ends_with("-TRAILER"));
    let is_known = |name: &str| {
        let is_header = |algorithm: Algorithm| algorithm.header().eq_ignore_ascii_case(name.trim());
        Algorithm::ALL.into_iter().any(is_header)
    };
    if has_trailer && announced.to_str().is_ok_and(is_known) {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "The value specified in the x-amz-trailer header is not supported: it needs a body in chunks with a trailer, and one checksum."
    ))
}

/// Refuses values of headers that the service does not have.
fn refuse_values<'v>(text: impl Fn(&str) -> Option<&'v str>) -> S3Result {
    if text("content-md5").is_some_and(|value| value.trim().is_empty()) {
        return Err(s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid."));
    }
    if text("x-amz-storage-class").is_some_and(|value| value != "STANDARD") {
        return Err(s3_error!(
            InvalidStorageClass,
            "The storage class you specified is not valid"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hyper::Request;

    const LENGTH: (&str, &str) = ("content-length", "0");

    fn refused(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        refuse(&parts).err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn what_the_service_does_not_have() {
        for (headers, code) in [
            (("x-amz-mfa", "x 123456"), "NotImplemented"),
            (("x-amz-storage-class", "GLACIER"), "InvalidStorageClass"),
            (("content-md5", ""), "InvalidDigest"),
        ] {
            assert_eq!(refused("POST", "/b", &[headers]).as_deref(), Some(code), "{headers:?}");
        }
        for (method, uri, code) in [
            ("GET", "/b/k", Some("InvalidArgument")),
            ("HEAD", "/b/k", Some("InvalidArgument")),
            ("PUT", "/b/k?partNumber=1&uploadId=2", Some("InvalidArgument")),
            ("PUT", "/b/k", None),
            ("POST", "/b/k?uploads", None),
        ] {
            let asked = ("x-amz-server-side-encryption", "AES256");
            assert_eq!(
                refused(method, uri, &[asked, LENGTH]).as_deref(),
                code,
                "{method} {uri}"
            );
        }
        let long = "x".repeat(HEAD_BYTES_MAX);
        let code = refused("PUT", "/b/k", &[("cache-control", &long), LENGTH]);
        assert_eq!(code.as_deref(), Some("RequestHeaderSectionTooLarge"));
        assert_eq!(
            refused("GET", "/b/k", &[("cookie", &long)]),
            None,
            "what browsers send along"
        );
        let form = ("content-type", "multipart/form-data; boundary=x");
        assert_eq!(refused("POST", "/b", &[form, ("content-length", "9000000")]), None);
        assert_eq!(
            refused("POST", "/b", &[form, ("content-length", "90000000")]).as_deref(),
            Some("EntityTooLarge")
        );
        for headers in [
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-meta-a", "b"),
        ] {
            assert_eq!(
                refused("PUT", "/b/k?prefix=Signature", &[headers, LENGTH]),
                None,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn subresources_that_nobody_knows() {
        for (method, uri) in [
            ("PUT", "/b/k?new-thing"),
            ("PUT", "/b?new-thing="),
            ("GET", "/b?new-thing"),
            ("DELETE", "/b/k?x"),
        ] {
            assert_eq!(
                refused(method, uri, &[]).as_deref(),
                Some("NotImplemented"),
                "{method} {uri}"
            );
        }
        for (method, uri) in [
            ("PUT", "/b/k?tagging"),
            ("POST", "/b?delete="),
            ("GET", "/b?list-type=2&prefix=&delimiter=%2F"),
            ("GET", "/b/k?12345"),
            ("PUT", "/b/k?x-id=PutObject"),
        ] {
            assert_eq!(refused(method, uri, &[LENGTH]), None, "{method} {uri}");
        }
    }

    #[test]
    fn what_cannot_be_meant() {
        for (method, uri, code) in [
            ("GET", "/b/%zz", "InvalidURI"),
            ("GET", "/b/a%2", "InvalidURI"),
            ("GET", "/b?max-keys=", "InvalidArgument"),
            ("GET", "/b/k?versionId=", "InvalidArgument"),
            ("PUT", "/b/k?partNumber=1", "InvalidArgument"),
            ("PUT", "/b/k?uploadId=1", "InvalidArgument"),
            ("PUT", "/b/k", "MissingContentLength"),
            ("PUT", "/b/k?partNumber=1&uploadId=2", "MissingContentLength"),
        ] {
            assert_eq!(refused(method, uri, &[]).as_deref(), Some(code), "{method} {uri}");
        }
        for (algorithm, checksum, code) in [
            ("MD4", ("x-amz-checksum-crc32", "AAAAAA=="), Some("InvalidRequest")),
            ("CRC32", ("x-other", ""), Some("InvalidRequest")),
            ("CRC32", ("x-amz-checksum-crc32", "AAAAAA=="), None),
            ("crc32c", ("x-amz-trailer", "x-amz-checksum-crc32c"), None),
        ] {
            let chunks = ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
            let headers = [LENGTH, chunks, ("x-amz-sdk-checksum-algorithm", algorithm), checksum];
            assert_eq!(refused("PUT", "/b/k", &headers).as_deref(), code, "{algorithm}");
        }
        assert_eq!(refused("PUT", "/b/k", &[("transfer-encoding", "chunked")]), None);
        assert_eq!(refused("PUT", "/b/k", &[("x-amz-copy-source", "/b/o")]), None);
        for (method, uri) in [("PUT", "/b"), ("PUT", "/b/k?acl"), ("GET", "/b/%C3%BC%2F?prefix=")] {
            assert_eq!(refused(method, uri, &[]), None, "{method} {uri}");
        }
    }
}
