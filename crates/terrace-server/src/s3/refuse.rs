//! What is refused before `s3s` sees it: what the service does not have, and what `s3s` would let pass.
//!
//! Of the latter there are three. A header `x-amz-…` that is not signed: whoever has a presigned URL could otherwise add
//! `x-amz-copy-source` to it and read any object its signer can read. Signatures of version 2, which cover neither body nor
//! time. And subresources that `s3s` does not know.

use super::{
    OWNER,
    form::{FILE_BYTES_MAX, FORM_BYTES_MAX, is_form},
};
use hyper::{Method, header, http::request::Parts};
use s3s::{S3Result, s3_error};

/// Longest XML body: 10,000 parts with their checksums fit.
pub const XML_BYTES_MAX: usize = 8 << 20;
/// Headers that need not be signed: the first two are covered by the signature in another way.
const UNSIGNED: [&str; 3] = ["x-amz-content-sha256", "x-amz-date", "x-amz-user-agent"];
/// What headers begin with that ask for something the service does not have.
const NOT_SUPPORTED: [&str; 7] = [
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-bypass-governance-retention",
    "x-amz-mfa",
    "x-amz-grant-",
    "x-amz-write-offset-bytes",
];

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

/// Refuses what the service does not have.
pub fn refuse(parts: &Parts) -> S3Result {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let query = parts.uri.query().unwrap_or("");
    let has_field = |field: &str| {
        let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or(""));
        names.into_iter().any(|name| name == field)
    };
    let version_2 = text("authorization").is_some_and(|value| value.starts_with("AWS "));
    if version_2 || has_field("Signature") || has_field("AWSAccessKeyId") {
        return Err(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
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
    refuse_subresources(&parts.method, parts.uri.path(), query)?;
    if is_form(&parts.method, &parts.headers) {
        refuse_long_form(text("content-length"))?;
    } else {
        refuse_long_xml(&parts.method, query, text("content-length"))?;
    }
    refuse_values(text)?;
    check_signed(parts, query)
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

/// Refuses XML that is longer than any, before it is read. What is behind a subresource, or posted, is XML, but for parts.
fn refuse_long_xml(method: &Method, query: &str, length: Option<&str>) -> S3Result {
    let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or(""));
    let is_xml = *method == Method::POST || names.into_iter().any(|name| SUBRESOURCES.contains(&name));
    let is_long = length.is_some_and(|text| text.parse::<usize>().is_ok_and(|bytes| bytes > XML_BYTES_MAX));
    if is_xml && is_long {
        return Err(s3_error!(MaxMessageLengthExceeded, "Your request was too big."));
    }
    Ok(())
}

/// Refuses subresources that `s3s` does not know: it would take `PUT /BUCKET/KEY?new-thing` for an object to be put. A
/// GET of an object may have any, since people add such names to get around caches.
fn refuse_subresources(method: &Method, path: &str, query: &str) -> S3Result {
    let is_object = path
        .trim_start_matches('/')
        .split_once('/')
        .is_some_and(|(_, key)| !key.is_empty());
    if is_object && matches!(*method, Method::GET | Method::HEAD) {
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

/// Refuses values of headers that the service does not have.
fn refuse_values<'v>(text: impl Fn(&str) -> Option<&'v str>) -> S3Result {
    if text("x-amz-security-token").is_some() {
        return Err(s3_error!(
            InvalidToken,
            "The provided token is malformed or otherwise invalid."
        ));
    }
    if text("x-amz-bucket-object-lock-enabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(s3_error!(NotImplemented, "Object lock is not implemented."));
    }
    if text("x-amz-storage-class").is_some_and(|value| value != "STANDARD") {
        return Err(s3_error!(
            InvalidStorageClass,
            "The storage class you specified is not valid"
        ));
    }
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if text(name).is_some_and(|owner| owner != OWNER) {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
    }
    Ok(())
}

/// Refuses signed requests with headers that matter and are not signed.
fn check_signed(parts: &Parts, query: &str) -> S3Result {
    let authorization = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let of_header = authorization.and_then(|value| {
        let (_, rest) = value.split_once("SignedHeaders=")?;
        Some(rest.split([',', ' ']).next().unwrap_or(""))
    });
    let of_query = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("X-Amz-SignedHeaders="));
    let Some(signed) = of_header.or(of_query) else {
        // Anonymous, or malformed; both are for others to judge.
        return Ok(());
    };
    let signed = signed.to_ascii_lowercase().replace("%3b", ";");
    let is_signed = |name: &str| signed.split(';').any(|other| other == name);
    let unsigned = parts
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| name.starts_with("x-amz-") && !UNSIGNED.contains(name) && !is_signed(name));
    let unsigned = unsigned.or_else(|| (!is_signed("host")).then_some("host"));
    match unsigned {
        None => Ok(()),
        Some(name) => Err(s3_error!(
            AccessDenied,
            "There were headers present in the request which were not signed: {name}"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hyper::Request;

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
            (("x-amz-server-side-encryption", "AES256"), "NotImplemented"),
            (("x-amz-object-lock-mode", "GOVERNANCE"), "NotImplemented"),
            (("x-amz-grant-read", "id=x"), "NotImplemented"),
            (("x-amz-storage-class", "GLACIER"), "InvalidStorageClass"),
            (("x-amz-expected-bucket-owner", "1234"), "AccessDenied"),
            (("authorization", "AWS key:signature"), "InvalidRequest"),
        ] {
            assert_eq!(refused("POST", "/b", &[headers]).as_deref(), Some(code), "{headers:?}");
        }
        let form = ("content-type", "multipart/form-data; boundary=x");
        assert_eq!(refused("POST", "/b", &[form, ("content-length", "9000000")]), None);
        assert_eq!(
            refused("POST", "/b", &[form, ("content-length", "90000000")]).as_deref(),
            Some("EntityTooLarge")
        );
        assert_eq!(
            refused("GET", "/b/k?AWSAccessKeyId=x&Signature=y", &[]).as_deref(),
            Some("InvalidRequest")
        );
        for headers in [
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-meta-a", "b"),
        ] {
            assert_eq!(refused("PUT", "/b/k?prefix=Signature", &[headers]), None, "{headers:?}");
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
            assert_eq!(refused(method, uri, &[]), None, "{method} {uri}");
        }
    }

    #[test]
    fn headers_that_matter_are_signed() {
        let signed = (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host;x-amz-meta-a, Signature=y",
        );
        let presigned = "/b/k?X-Amz-SignedHeaders=host%3Bx-amz-meta-a&X-Amz-Signature=y";
        let refused = |uri, headers: &[(&str, &str)]| refused("PUT", uri, headers).is_some();
        assert!(!refused(
            "/b/k",
            &[signed, ("x-amz-meta-a", "1"), ("x-amz-date", "1"), ("range", "x")]
        ));
        assert!(refused("/b/k", &[signed, ("x-amz-copy-source", "/b/secret")]));
        assert!(!refused(presigned, &[("x-amz-meta-a", "1")]));
        assert!(refused(presigned, &[("x-amz-copy-source", "/b/secret")]));
        assert!(
            refused("/b/k?X-Amz-SignedHeaders=date", &[]),
            "the host is always signed"
        );
        assert!(!refused("/b/k", &[("x-amz-meta-a", "1")]), "anonymous");
    }
}
