//! Errors for clients: one table for errors of the object model, [`of_object`], which includes one
//! for the engine, [`of_engine`].
//!
//! Details of devices and paths are only logged. Clients get only information that they can act on.

use super::head::Head;
use crate::{
    http::{budget::Exhausted, engine::NotRun},
    key_text,
    size::Size,
};
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{self, HeaderValue},
};
use s3s::{Body, S3Error, S3ErrorCode, S3Result, s3_error};
use terrace::{Error, Room};
use terrace_objects::{
    checksum::Wrong,
    error::{Condition, Digest, Marker, ObjectError},
};

/// Converts an error of the object model.
pub trait Told<T> {
    /// Converts it to S3's.
    ///
    /// # Errors
    /// By the table [`of_object`].
    fn told(self) -> S3Result<T>;
}

impl<T, E: Into<ObjectError>> Told<T> for Result<T, E> {
    fn told(self) -> S3Result<T> {
        self.map_err(|error| of_object(error.into()))
    }
}

/// Messages of codes that `s3s` returns without one, from the list of error codes in S3's API
/// reference.
pub const MESSAGES: [(&str, &str); 13] = [
    (
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    ),
    (
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema",
    ),
    (
        "InvalidPolicyDocument",
        "The content of the form does not meet the conditions specified in the policy document.",
    ),
    (
        "EntityTooLarge",
        "Your proposed upload exceeds the maximum allowed object size.",
    ),
    (
        "EntityTooSmall",
        "Your proposed upload is smaller than the minimum allowed object size.",
    ),
    ("InvalidBucketName", "The specified bucket is not valid."),
    ("MissingRequestBodyError", "Request body is empty."),
    ("AccessDenied", "Access Denied"),
    ("InvalidArgument", "Invalid Argument"),
    ("InvalidRequest", "Invalid Request"),
    (
        "MethodNotAllowed",
        "The specified method is not allowed against this resource.",
    ),
    (
        "NotImplemented",
        "A header you provided implies functionality that is not implemented.",
    ),
    ("InternalError", "We encountered an internal error. Please try again."),
];

/// The S3 error for an engine error met while working on `key`.
pub fn of_engine(error: &Error, key: &[u8]) -> S3Error {
    told_of(error, &key_text::escape(key))
}

/// The S3 error for an error of the object model. There is no catch-all arm: each new error needs a
/// decision on what clients get.
#[rustfmt::skip]
pub fn of_object(error: ObjectError) -> S3Error {
    match error {
        ObjectError::Engine(error, key) => of_engine(&error, &key),
        ObjectError::NotRun(reason) => of_call(reason),
        ObjectError::Impossible => S3ErrorCode::InternalError.into(),
        ObjectError::Denied => s3_error!(AccessDenied, "Access Denied"),
        ObjectError::Locked => s3_error!(AccessDenied, "Access Denied because object protected by object lock."),
        ObjectError::NoSuchKey(marker) => no_such_key(marker.as_ref()),
        ObjectError::IsDeleteMarker(marker) => is_delete_marker(&marker),
        ObjectError::NoSuchVersion => s3_error!(NoSuchVersion,
            "Indicates that the version ID specified in the request does not match an existing version."),
        ObjectError::NoVersionName => s3_error!(InvalidArgument, "Invalid version id specified"),
        ObjectError::AlwaysReplaced => s3_error!(SlowDown, "The object is being replaced all the time. Try again."),
        ObjectError::AlwaysChanged => s3_error!(OperationAborted,
            "A conflicting conditional operation is currently in progress against this resource. Try again."),
        ObjectError::Condition(condition) => failed(condition),
        ObjectError::NoSuchBucket => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
        ObjectError::BucketIsTaken => s3_error!(BucketAlreadyExists,
            "The requested bucket name is not available. The bucket namespace is shared by all users of the system. \
             Please select a different name and try again."),
        ObjectError::BucketExists => s3_error!(BucketAlreadyOwnedByYou,
            "Your previous request to create the named bucket succeeded and you already own it."),
        ObjectError::TooManyBuckets(most) => s3_error!(TooManyBuckets, "There are {most} buckets already."),
        ObjectError::BucketNotEmpty => s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty"),
        ObjectError::VersioningIsKept => custom("InvalidBucketState", StatusCode::CONFLICT,
            "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed."),
        ObjectError::BucketUnreadable => s3_error!(InternalError,
            "An access setting of this bucket cannot be read. The owner of the bucket has to put it again; the server's log \
             says which one."),
        ObjectError::SettingsTooLong(most) => s3_error!(InvalidRequest,
            "The settings of the bucket are longer than {most} bytes, all together."),
        ObjectError::NoMasterKey => s3_error!(NotImplemented,
            "This server encrypts nothing by itself, since it was not given a master key; keys of your own (SSE-C) it takes."),
        ObjectError::MasterKeyMissing => s3_error!(InternalError, "The master key of this object is not at hand."),
        ObjectError::KeyNeeded => s3_error!(InvalidRequest,
            "The object was stored using a form of Server Side Encryption. \
             The correct parameters must be provided to retrieve the object."),
        ObjectError::KmsNotFound(key) => custom("KMS.NotFoundException", StatusCode::BAD_REQUEST,
            format!("Key '{key}' does not exist")),
        ObjectError::KmsDisabled(key) => custom("KMS.DisabledException", StatusCode::BAD_REQUEST,
            format!("{key} is disabled.")),
        ObjectError::KmsDenied(key) => s3_error!(AccessDenied,
            "You are not authorized to use the key {key}: it is for others."),
        ObjectError::KmsNeedsVersion4 => s3_error!(InvalidArgument,
            "Requests specifying Server Side Encryption with AWS KMS managed keys require AWS Signature Version 4."),
        ObjectError::KeyNotNeeded => s3_error!(InvalidRequest,
            "The encryption parameters are not applicable to this object."),
        ObjectError::TooLongToMove => s3_error!(NotImplemented,
            "An object that was not put through S3 and is this long cannot stay as a version; \
             delete its version null first."),
        ObjectError::TooLongToDescribe => s3_error!(NotImplemented,
            "This object was not put through S3; put it again to change what is known of it."),
        ObjectError::Incomplete => s3_error!(IncompleteBody,
            "You did not provide the number of bytes specified by the Content-Length HTTP header"),
        ObjectError::TooLong => s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed size"),
        ObjectError::BadDigest(Digest::Md5) => s3_error!(BadDigest,
            "The Content-MD5 you specified did not match what we received."),
        ObjectError::BadDigest(Digest::Checksum(name)) => s3_error!(BadDigest,
            "The {name} you specified did not match the calculated checksum."),
    }
}

/// The text of the S3 error, for callers other than clients.
pub fn said(error: ObjectError) -> String {
    let error = of_object(error);
    error.message().unwrap_or(error.code().as_str()).to_owned()
}

/// A failed condition, by its header.
fn failed(condition: Condition) -> S3Error {
    let header = match condition {
        Condition::Version => "version",
        Condition::Match => "If-Match",
        Condition::NoneMatch => "If-None-Match",
        Condition::Modified => "x-amz-if-match-last-modified-time",
        Condition::Length => "x-amz-if-match-size",
    };
    s3_error!(
        PreconditionFailed,
        "At least one of the pre-conditions you specified did not hold: {header}"
    )
}

/// The object is missing, or its latest version is a delete marker.
fn no_such_key(marker: Option<&Marker>) -> S3Error {
    let mut error = s3_error!(NoSuchKey, "The specified key does not exist.");
    if let Some(marker) = marker {
        error.set_headers(headers_of_marker(marker));
    }
    error
}

/// The request is for an object, and the version is a delete marker.
fn is_delete_marker(marker: &Marker) -> S3Error {
    let mut error = s3_error!(
        MethodNotAllowed,
        "The specified method is not allowed against this resource."
    );
    let mut headers = headers_of_marker(marker);
    headers.insert(header::ALLOW, HeaderValue::from_static("DELETE"));
    if let Ok(value) = HeaderValue::from_str(&httpdate::fmt_http_date(marker.modified)) {
        headers.insert(header::LAST_MODIFIED, value);
    }
    error.set_headers(headers);
    error
}

fn headers_of_marker(marker: &Marker) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-amz-delete-marker", HeaderValue::from_static("true"));
    if let Ok(value) = HeaderValue::from_str(&marker.version) {
        headers.insert("x-amz-version-id", value);
    }
    headers
}

fn told_of(error: &Error, key: &str) -> S3Error {
    match error {
        Error::Invalid(message) => s3_error!(InvalidArgument, "{message}"),
        Error::ConditionFailed { .. } => S3Error::new(S3ErrorCode::PreconditionFailed),
        Error::OutOfSpace { tier, room, .. } => {
            // Only debug: the engine logs once that it is full, and the access log has each
            // refusal.
            tracing::debug!(%error, key, "out of space");
            // Not 503: clients would retry immediately, and waiting frees no space.
            let mut full = s3_error!(
                ServiceUnavailable,
                "The {tier} tier of the store is full{}. Delete objects, have its capacity raised or its device enlarged.",
                room.map_or_else(String::new, told_of_room)
            );
            full.set_status_code(StatusCode::INSUFFICIENT_STORAGE);
            full
        }
        Error::Corruption { .. } => {
            tracing::error!(%error, key, "damaged object");
            s3_error!(
                InternalError,
                "This object is damaged; run `terrace verify` for the extent of it."
            )
        }
        Error::Failed(_) => {
            tracing::error!(%error, key, "the store refuses writes");
            s3_error!(
                InternalError,
                "The store refuses writes since a device failed; reads go on."
            )
        }
        Error::Unavailable(_) => s3_error!(ServiceUnavailable, "The store is closed or read-only."),
        Error::Busy { .. } => {
            tracing::debug!(key, "not begun, since the large tier is busy");
            slow_down("The disk is busy. Please try again in a moment.")
        }
        error => {
            tracing::error!(%error, key, "engine error");
            s3_error!(InternalError, "The store could not answer; see the server's log.")
        }
    }
}

fn told_of_room(room: Room) -> String {
    let Room {
        used_bytes,
        capacity_bytes,
        reserve_bytes,
    } = room;
    format!(
        ": {} of {} are used, {} of them kept for deletes",
        Size(used_bytes),
        Size(capacity_bytes),
        Size(reserve_bytes)
    )
}

/// Whether an error of [`of_engine`] says that a tier is full.
pub fn is_full(error: &S3Error) -> bool {
    error.status_code() == Some(StatusCode::INSUFFICIENT_STORAGE)
}

/// Asks a client to retry in a second.
pub fn slow_down(message: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::SlowDown, message);
    let mut headers = HeaderMap::new();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    error.set_headers(headers);
    error
}

/// The error while the store is being opened.
pub fn not_open() -> S3Error {
    let message = "The store is being opened. Try again shortly.";
    S3Error::with_message(S3ErrorCode::ServiceUnavailable, message)
}

/// The S3 error for a request that is not valid.
pub fn of_wrong(wrong: Wrong) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, wrong.0)
}

/// The S3 error for an engine call without a result.
pub fn of_call(reason: NotRun) -> S3Error {
    match reason {
        NotRun::Busy => slow_down("Please reduce your request rate."),
        NotRun::Panicked => S3ErrorCode::InternalError.into(),
    }
}

/// The S3 error for exhausted memory.
pub fn of_memory(exhausted: Exhausted) -> S3Error {
    slow_down(match exhausted {
        Exhausted::All => "The server is collecting as much as it may. Please try again in a moment.",
        Exhausted::Share => {
            "The server is collecting as much from your address as it may. Please try again in a moment."
        }
    })
}

/// The S3 error for an incomplete or wrong body. The error types of bodies are not public, so they
/// are recognised by their texts; a test with the real ones checks this.
pub fn of_body(error: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    tracing::debug!(text, "a body could not be read");
    if text.contains("Sha256Mismatch") {
        return custom(
            "XAmzContentSHA256Mismatch",
            StatusCode::BAD_REQUEST,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        );
    }
    if text.contains("SignatureMismatch") {
        return s3_error!(SignatureDoesNotMatch, "The signature of a chunk does not match.");
    }
    if text.contains("FormatError") || text.contains("TooLarge") || text.contains("TooManyTrailerHeaders") {
        return s3_error!(
            InvalidRequest,
            "The body is not in the chunked form that was announced."
        );
    }
    if text.contains(STALLED) {
        return s3_error!(
            RequestTimeout,
            "Your socket connection to the server was not read from or written to within the timeout period."
        );
    }
    s3_error!(
        IncompleteBody,
        "You did not provide the number of bytes specified by the Content-Length HTTP header."
    )
}

/// XML without a valid content.
pub fn malformed_xml() -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

/// An error with a code that `s3s` does not define.
pub fn custom(code: &str, status: StatusCode, message: impl Into<String>) -> S3Error {
    let code = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
    let mut error = S3Error::with_message(code, message.into());
    error.set_status_code(status);
    error
}

/// A missing setting of a bucket.
pub fn missing(code: &'static str, message: &'static str) -> impl FnOnce() -> S3Error {
    move || custom(code, StatusCode::NOT_FOUND, message)
}

/// Text of the error that ends a body after a silence of its client.
pub const STALLED: &str = "the client sent nothing for too long";

/// Adds the resource and the request's number to an error's XML, as in S3.
pub fn complete(response: &mut Response<Body>, head: &Head, is_copy: bool, number: &str) {
    const END: &str = "</Error>";
    let Some(xml) = response.body().bytes() else { return };
    let Ok(text) = std::str::from_utf8(&xml) else { return };
    let Some(front) = text.strip_suffix(END) else { return };
    let code = |code: &str| format!("<Code>{code}</Code>");
    let mut front = front.to_owned();
    if !text.contains("<Message>")
        && let Some((known, message)) = MESSAGES.iter().find(|(known, _)| text.contains(&code(known)))
    {
        let said = format!("{}<Message>{message}</Message>", code(known));
        front = front.replacen(&code(known), &said, 1);
    }
    if head.has("acl") {
        // XML of access control lists has an error of its own.
        front = front.replacen(&code("MalformedXML"), &code("MalformedACLError"), 1);
    }
    let mut add = |name: &str, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        front.push_str(&format!("<{name}>{text}</{name}>"));
    };
    let is = |name: &str| text.contains(&code(name));
    let (bucket, key) = head.place().unwrap_or_default();
    // In a copy the source may be the missing one.
    if is("NoSuchBucket") && !is_copy {
        add("BucketName", bucket);
    } else if is("NoSuchKey") && !is_copy {
        add("Key", key);
    }
    let range = response.headers().get(header::CONTENT_RANGE);
    if let Some(length) = range.and_then(|range| range.to_str().ok()?.strip_prefix("bytes */")) {
        add("ActualObjectSize", length);
    }
    add("Resource", head.uri.path());
    add("RequestId", number);
    *response.body_mut() = Body::from(front + END);
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace::Tier;

    #[test]
    fn the_table() {
        let code = |error: Error| {
            let error = of_engine(&error, b"k");
            (
                error.code().as_str().to_owned(),
                error.status_code().map(|status| status.as_u16()),
            )
        };
        let row = |code: &str, status| (code.to_owned(), Some(status));
        let full = Error::OutOfSpace {
            tier: Tier::Large,
            reason: "/dev/x".to_owned(),
            room: Some(Room {
                used_bytes: 11 << 20,
                capacity_bytes: 12 << 20,
                reserve_bytes: 1 << 10,
            }),
        };
        let told = of_engine(&full, b"k").message().unwrap_or_default().to_owned();
        assert!(!told.contains("/dev/x"), "{told}");
        let wanted =
            "The large tier of the store is full: 11 MiB of 12 MiB are used, 1 KiB of them kept for deletes. Delete";
        assert!(told.starts_with(wanted), "{told}");
        assert_eq!(code(full), row("ServiceUnavailable", 507));
        assert_eq!(code(Error::corruption("a", "b")), row("InternalError", 500));
        assert_eq!(code(Error::Failed(String::new())), row("InternalError", 500));
        assert_eq!(code(Error::Unavailable("")), row("ServiceUnavailable", 503));
        let wait_max = std::time::Duration::from_secs(1);
        assert_eq!(code(Error::Busy { wait_max }), row("SlowDown", 503));
        assert_eq!(code(Error::invalid("x")), row("InvalidArgument", 400));
        assert_eq!(
            of_call(NotRun::Busy).status_code().map(|status| status.as_u16()),
            Some(503)
        );
    }
}
