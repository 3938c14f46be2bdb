//! Refuses requests before `s3s` sees them: for features that the service does not have, and for
//! three cases that `s3s` would accept. An unsigned `x-amz-…` header: the holder of a presigned URL
//! could otherwise add `x-amz-copy-source` and read any object that its signer can read; see
//! [`signature`]. Subresources unknown to `s3s`. And parts of uploads without an upload ID, which
//! it would treat as objects.

mod writes;

use super::{
    access::{EXPECTED_OWNER, EXPECTED_OWNER_OF_SOURCE, no_account},
    chunks::unsigned_length,
    class::Class,
    digest::Algorithm,
    form::{FILE_BYTES_MAX, FORM_BYTES_MAX},
    head::{Head, long_head},
    signature,
};
use hyper::{
    HeaderMap, Method, Version,
    header::{self, HeaderValue},
};
use s3s::{S3Error, S3Result, s3_error};

/// Longest XML body: 10,000 parts with their checksums fit.
pub const XML_BYTES_MAX: usize = 8 << 20;
/// Longest head of a request that stores something, S3's limit: all names and values of its
/// headers.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Prefixes of headers for features that the service does not have.
const NOT_SUPPORTED: [&str; 2] = ["x-amz-mfa", "x-amz-write-offset-bytes"];

/// Headers of S3 that say nothing if they are empty, besides metadata: no tags, and what is checked
/// with the signature.
const MAY_BE_EMPTY: [&str; 5] = [
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-tagging",
    "x-amz-user-agent",
];

/// Storage classes whose objects S3 must restore before they can be read.
pub const ARCHIVES: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

/// Query names without a value that `s3s` supports: each selects an operation.
pub const SUBRESOURCES: [&str; 31] = [
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
/// Query names of POST requests to an object.
const POSTED: [&str; 4] = ["uploads", "uploadId", "restore", "select"];
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

/// Refuses features that the service does not have.
pub fn refuse(head: &Head, headers: &HeaderMap) -> S3Result {
    if head.path().is_none() {
        return Err(s3_error!(InvalidURI, "Couldn't parse the specified URI."));
    }
    refuse_method(head)?;
    refuse_long_head(&head.method, headers)?;
    if let Some(name) = headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| NOT_SUPPORTED.iter().any(|start| name.starts_with(start)))
    {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: {name}"
        ));
    }
    refuse_post(head)?;
    refuse_encryption(head, headers)?;
    refuse_fields(head)?;
    refuse_subresources(head)?;
    refuse_odd_puts(head, headers)?;
    refuse_long_body(head)?;
    refuse_trailer(head, headers)?;
    refuse_trailer_of_xml(head, headers)?;
    refuse_values(headers)?;
    signature::check(head, headers)?;
    signature::refuse_ended(head)
}

/// Refuses methods that do not exist for the resource.
fn refuse_method(head: &Head) -> S3Result {
    let is_posted = |name: &&str| head.has(name);
    let allowed: &'static str = match head.place() {
        _ if head.is_call => return Ok(()),
        None => "GET, OPTIONS",
        Some((_, "")) => "GET, HEAD, PUT, POST, DELETE, OPTIONS",
        Some(_) if POSTED.iter().any(is_posted) => "GET, HEAD, PUT, POST, DELETE, OPTIONS",
        Some(_) => "GET, HEAD, PUT, DELETE, OPTIONS",
    };
    if allowed.split(", ").any(|method| method == head.method.as_str()) {
        return Ok(());
    }
    let mut error = s3_error!(
        MethodNotAllowed,
        "The specified method is not allowed against this resource."
    );
    let mut headers = HeaderMap::new();
    headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
    error.set_headers(headers);
    Err(error)
}

/// Refuses a POST to a bucket that is not a form.
fn refuse_post(head: &Head) -> S3Result {
    let is_of_bucket = head.place().is_some_and(|(_, key)| key.is_empty());
    if head.method == Method::POST && is_of_bucket && !head.is_form && !head.has_subresource {
        return Err(s3_error!(
            PreconditionFailed,
            "Bucket POST must be of the enclosure-type multipart/form-data"
        ));
    }
    Ok(())
}

/// Refuses encryption headers on requests that create no object.
fn refuse_encryption(head: &Head, headers: &HeaderMap) -> S3Result {
    let makes_one = matches!(head.method, Method::PUT | Method::POST) && !head.has("partNumber");
    if headers.contains_key("x-amz-server-side-encryption") && !makes_one {
        return Err(s3_error!(
            InvalidArgument,
            "x-amz-server-side-encryption header is not supported for this operation."
        ));
    }
    Ok(())
}

/// Refuses heads of storing requests above the limit.
fn refuse_long_head(method: &Method, headers: &HeaderMap) -> S3Result {
    let lengths = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    if matches!(*method, Method::PUT | Method::POST) && lengths.sum::<usize>() > HEAD_BYTES_MAX {
        return Err(long_head());
    }
    Ok(())
}

/// Refuses forms and XML above the limit, before they are read.
fn refuse_long_body(head: &Head) -> S3Result {
    let bytes = head.content_length.unwrap_or(0);
    if head.is_form && bytes > FORM_BYTES_MAX {
        return Err(s3_error!(
            EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size for forms: {FILE_BYTES_MAX}"
        ));
    }
    if head.is_xml && !head.is_form && bytes > XML_BYTES_MAX as u64 {
        return Err(s3_error!(MaxMessageLengthExceeded, "Your request was too big."));
    }
    Ok(())
}

/// Whether a query name is a subresource that `s3s` supports.
pub fn is_subresource(name: &str) -> bool {
    SUBRESOURCES.contains(&name)
}

/// Refuses subresources unknown to `s3s`: it would treat `PUT /BUCKET/KEY?new-thing` as a PUT of
/// the object. A GET of an object may have any, since such names are used to bypass caches.
fn refuse_subresources(head: &Head) -> S3Result {
    if head.is_of_object() && matches!(head.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    writes::refuse_others(head)?;
    let unknown = empty_names(head).find(|name| {
        let is_known = is_subresource(name) || LIST_FIELDS.contains(name) || name.starts_with("X-Amz-");
        !name.is_empty() && !is_known
    });
    match unknown {
        None => Ok(()),
        Some(name) => Err(s3_error!(NotImplemented, "The subresource {name} is not implemented.")),
    }
}

/// The names in a query that have no value.
fn empty_names(head: &Head) -> impl Iterator<Item = &str> {
    let empty = head.query.iter().filter(|(_, value)| value.is_empty());
    empty.map(|(name, _)| name.as_str())
}

/// Refuses fields that must not be empty.
fn refuse_fields(head: &Head) -> S3Result {
    match empty_names(head).find(|name| FILLED_FIELDS.contains(name)) {
        None => Ok(()),
        Some(name) => Err(no_value(name)),
    }
}

/// Refuses objects without a length, and parts without upload ID or number.
fn refuse_odd_puts(head: &Head, headers: &HeaderMap) -> S3Result {
    if head.method != Method::PUT || !head.is_of_object() {
        return Ok(());
    }
    if head.has("uploadId") != head.has("partNumber") {
        return Err(s3_error!(InvalidArgument, "A part needs both uploadId and partNumber."));
    }
    let has_body = !headers.contains_key("x-amz-copy-source") && !head.has_subresource;
    if has_body {
        refuse_algorithm(headers)?;
    }
    // Before HTTP/2 only these headers announce a body.
    let is_silent = head.version < Version::HTTP_2
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

/// Refuses bodies without their announced checksum, or with one of another algorithm.
fn refuse_algorithm(headers: &HeaderMap) -> S3Result {
    let Some(name) = headers.get("x-amz-sdk-checksum-algorithm") else {
        return Ok(());
    };
    let trailer = headers.get("x-amz-trailer").and_then(|trailer| trailer.to_str().ok());
    let comes_behind =
        |algorithm: Algorithm| trailer.is_some_and(|trailer| trailer.trim().eq_ignore_ascii_case(algorithm.header()));
    let has = |algorithm: Algorithm| headers.contains_key(algorithm.header()) || comes_behind(algorithm);
    let has_checksum = Algorithm::ALL.into_iter().any(has);
    let said = name.to_str().ok().and_then(Algorithm::parse);
    if said.is_none_or(|said| has_checksum && !has(said)) {
        return Err(s3_error!(
            InvalidRequest,
            "Value for x-amz-sdk-checksum-algorithm header is invalid."
        ));
    }
    if has_checksum || headers.contains_key("x-amz-trailer") {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "x-amz-sdk-checksum-algorithm was given, but neither a checksum nor an x-amz-trailer header."
    ))
}

/// Refuses announced trailers if the body has none, and unknown checksums: an announced checksum is
/// verified or refused.
fn refuse_trailer(head: &Head, headers: &HeaderMap) -> S3Result {
    let Some(announced) = headers.get("x-amz-trailer") else {
        return Ok(());
    };
    let hash = headers
        .get("x-amz-content-sha256")
        .and_then(|value| value.to_str().ok());
    let is_said = hash.is_some_and(|hash| hash.starts_with("STREAMING-") && hash.ends_with("-TRAILER"));
    let has_trailer = is_said || matches!(unsigned_length(head, headers), Ok(Some(_)));
    let is_known = |name: &str| {
        let is_header = |algorithm: Algorithm| algorithm.header().eq_ignore_ascii_case(name.trim());
        Algorithm::ALL.into_iter().any(is_header)
    };
    let is_there = |algorithm: Algorithm| headers.contains_key(algorithm.header());
    if Algorithm::ALL.into_iter().any(is_there) {
        return Err(s3_error!(
            InvalidRequest,
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
        ));
    }
    if has_trailer && announced.to_str().is_ok_and(is_known) {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "The value specified in the x-amz-trailer header is not supported: it needs a body in chunks with a trailer, and one checksum."
    ))
}

/// Refuses XML with a trailer, which no client sends and nothing would check.
fn refuse_trailer_of_xml(head: &Head, headers: &HeaderMap) -> S3Result {
    if headers.contains_key("x-amz-trailer") && head.is_xml && !head.is_form {
        return Err(s3_error!(
            InvalidRequest,
            "Only objects and parts of uploads are taken with a trailer."
        ));
    }
    Ok(())
}

/// Refuses unknown storage classes, and archives: here each object can be read immediately.
///
/// # Errors
/// `InvalidStorageClass`
pub fn refuse_class(name: &str) -> S3Result {
    if Class::parse(name).is_some() {
        return Ok(());
    }
    let reason = if ARCHIVES.contains(&name) {
        ": nothing is archived here"
    } else {
        ""
    };
    Err(s3_error!(
        InvalidStorageClass,
        "The storage class you specified is not valid{reason}"
    ))
}

/// Refuses header values for features that the service does not have.
fn refuse_values(headers: &HeaderMap) -> S3Result {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("x-amz-storage-class").map_or(Ok(()), refuse_class)?;
    let is_empty = |value: &HeaderValue| value.as_bytes().trim_ascii().is_empty();
    let empty = headers.iter().filter(|(_, value)| is_empty(value));
    empty.map(|(name, _)| name.as_str()).try_for_each(refuse_empty)
}

/// Refuses a header without a value: `s3s` takes it for absent, and the condition, the checksum,
/// the lock or the encryption that it was to have would be dropped.
fn refuse_empty(name: &str) -> S3Result {
    match name {
        "content-md5" => Err(s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid.")),
        "x-amz-server-side-encryption" => Err(s3_error!(
            InvalidArgument,
            "The encryption method specified is not supported"
        )),
        EXPECTED_OWNER | EXPECTED_OWNER_OF_SOURCE => Err(no_account("")),
        _ if MAY_BE_EMPTY.contains(&name) || name.starts_with("x-amz-meta-") => Ok(()),
        "if-match" | "if-none-match" => Err(no_value(name)),
        _ if name.starts_with("x-amz-") => Err(no_value(name)),
        _ => Ok(()),
    }
}

fn no_value(name: &str) -> S3Error {
    s3_error!(InvalidArgument, "{name} has no value.")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{s3::head::tests::head, time_span::Moment};

    const LENGTH: (&str, &str) = ("content-length", "0");

    fn refused(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let (head, headers, _) = head(method, uri, headers);
        refuse(&head, &headers)
            .err()
            .map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn what_the_service_does_not_have() {
        for (headers, code) in [
            (("x-amz-mfa", "x 123456"), "NotImplemented"),
            (("x-amz-storage-class", "GLACIER"), "InvalidStorageClass"),
            (("x-amz-storage-class", "standard_ia"), "InvalidStorageClass"),
            (("content-md5", ""), "InvalidDigest"),
            (("x-amz-server-side-encryption", ""), "InvalidArgument"),
        ] {
            assert_eq!(
                refused("POST", "/b?delete", &[headers]).as_deref(),
                Some(code),
                "{headers:?}"
            );
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
            ("x-amz-storage-class", "GLACIER_IR"),
            ("x-amz-meta-a", "b"),
        ] {
            assert_eq!(
                refused("PUT", "/b/k?prefix=Signature", &[headers, LENGTH]),
                None,
                "{headers:?}"
            );
        }
    }

    /// These are 501 `NotImplemented`.
    #[test]
    fn methods_that_nothing_has() {
        for (method, uri) in [
            ("PATCH", "/b/k"),
            ("TRACE", "/b"),
            ("get", "/b/k"),
            ("POST", "/b/k"),
            ("PUT", "/"),
            ("DELETE", "/"),
            ("HEAD", "/"),
        ] {
            let code = refused(method, uri, &[LENGTH]);
            assert_eq!(code.as_deref(), Some("MethodNotAllowed"), "{method} {uri}");
        }
        for (method, uri) in [
            ("POST", "/b/k?uploadId=1"),
            ("POST", "/b?delete"),
            ("GET", "/"),
            ("OPTIONS", "/b/k"),
        ] {
            assert_eq!(refused(method, uri, &[]), None, "{method} {uri}");
        }
        // `s3s` treated these as the deletion of an object or a bucket, or as a new one.
        for (method, uri) in [
            ("DELETE", "/b/k?acl"),
            ("DELETE", "/b/k?versions"),
            ("DELETE", "/b/k?tagging&acl"),
            ("DELETE", "/b?versioning"),
            ("DELETE", "/b?acl=x"),
            ("PUT", "/b/k?attributes"),
            ("PUT", "/b/k?policy"),
            ("PUT", "/b?location"),
            ("POST", "/b?acl"),
            ("POST", "/b/k?uploads&acl"),
        ] {
            let code = refused(method, uri, &[LENGTH]);
            assert_eq!(code.as_deref(), Some("MethodNotAllowed"), "{method} {uri}");
        }
        for (method, uri) in [
            ("DELETE", "/b/k?tagging&versionId=1"),
            ("DELETE", "/b?policy"),
            ("PUT", "/b/k?acl&versionId=1"),
            ("PUT", "/b?publicAccessBlock"),
            ("POST", "/b/k?uploads"),
            ("GET", "/b?location"),
        ] {
            assert_eq!(refused(method, uri, &[LENGTH]), None, "{method} {uri}");
        }
        let (head, ..) = head("POST", "/b/k", &[]);
        let refusal = refuse_method(&head).unwrap_err();
        let allowed = &refusal.headers().unwrap()[header::ALLOW];
        assert_eq!(allowed, "GET, HEAD, PUT, DELETE, OPTIONS");
    }

    #[test]
    fn unknown_subresources() {
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
            ("POST", "/b", "PreconditionFailed"),
            ("POST", "/b/", "PreconditionFailed"),
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
            (
                "SHA1",
                ("x-amz-trailer", "x-amz-checksum-crc32c"),
                Some("InvalidRequest"),
            ),
        ] {
            let chunks = ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
            // Chunks need a signature.
            let now = Moment(std::time::SystemTime::now()).of_signature();
            let signed = "AWS4-HMAC-SHA256 Credential=ID/20200102/r/s3/aws4_request, SignedHeaders=host;x-amz-checksum-crc32;\
                          x-amz-content-sha256;x-amz-sdk-checksum-algorithm;x-amz-trailer, Signature=0";
            let signed = [("authorization", signed), ("x-amz-date", now.as_str())];
            let headers = [LENGTH, chunks, ("x-amz-sdk-checksum-algorithm", algorithm), checksum];
            let headers = [&headers[..], &signed].concat();
            assert_eq!(refused("PUT", "/b/k", &headers).as_deref(), code, "{algorithm}");
        }
        assert_eq!(refused("PUT", "/b/k", &[("transfer-encoding", "chunked")]), None);
        assert_eq!(refused("PUT", "/b/k", &[("x-amz-copy-source", "/b/o")]), None);
        // Regression: whether a request is about an object was decided by the raw path, without the
        // host.
        let of_host = [("host", "b.s3.example.net"), LENGTH];
        let refused_there = |method, uri| refused(method, uri, &of_host);
        assert_eq!(
            refused_there("PUT", "/k?partNumber=1").as_deref(),
            Some("InvalidArgument")
        );
        assert_eq!(
            refused("PUT", "/b%2Fk?partNumber=1", &[LENGTH]).as_deref(),
            Some("InvalidArgument")
        );
        assert_eq!(refused_there("GET", "/k?12345"), None);
        assert_eq!(refused_there("GET", "/?12345").as_deref(), Some("NotImplemented"));
        for (method, uri) in [("PUT", "/b"), ("PUT", "/b/k?acl"), ("GET", "/b/%C3%BC%2F?prefix=")] {
            assert_eq!(refused(method, uri, &[]), None, "{method} {uri}");
        }
    }
}
