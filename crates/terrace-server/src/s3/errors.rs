//! What clients are told when the engine cannot do something: one table, [`of_engine`].
//!
//! Details of devices and paths stay in the log. What a client can act on goes to it.

use crate::{
    http::{budget::Exhausted, engine::NotRun},
    key_text,
};
use hyper::{
    HeaderMap, StatusCode,
    header::{self, HeaderValue},
};
use s3s::{S3Error, S3ErrorCode, s3_error};
use terrace::Error;
use terrace_objects::checksum::Wrong;

/// The S3 error for an engine error met while working on `key`.
pub fn of_engine(error: &Error, key: &[u8]) -> S3Error {
    let mut told = told_of(error, &key_text::escape(key));
    told.set_source(Box::new(Source(error.clone())));
    told
}

/// What an error is of, for callers that are no clients: it shows nothing of itself.
struct Source(Error);

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the engine's error")
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Source {}

/// The engine's error that another was made of.
pub fn engine(error: &S3Error) -> Option<&Error> {
    let source = error.source()?.downcast_ref::<Source>()?;
    Some(&source.0)
}

fn told_of(error: &Error, key: &str) -> S3Error {
    match error {
        Error::Invalid(message) => s3_error!(InvalidArgument, "{message}"),
        Error::ConditionFailed { .. } => S3Error::new(S3ErrorCode::PreconditionFailed),
        Error::OutOfSpace { tier, .. } => {
            tracing::error!(%error, key, "out of space");
            // Not 503: clients would try again at once, and room does not come by waiting.
            let mut full = s3_error!(ServiceUnavailable, "The {tier} tier of the store is full.");
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

/// Whether an error of [`of_engine`] says that a tier is full.
pub fn is_full(error: &S3Error) -> bool {
    error.status_code() == Some(StatusCode::INSUFFICIENT_STORAGE)
}

/// Asks a client to come back in a second.
pub fn slow_down(message: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::SlowDown, message);
    let mut headers = HeaderMap::new();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    error.set_headers(headers);
    error
}

/// The S3 error for what makes no sense.
pub fn of_wrong(wrong: Wrong) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, wrong.0)
}

/// The S3 error for a call that gave no result.
pub fn of_call(reason: NotRun) -> S3Error {
    match reason {
        NotRun::Busy => slow_down("Please reduce your request rate."),
        NotRun::Panicked => S3ErrorCode::InternalError.into(),
    }
}

/// The S3 error for memory that there is not.
pub fn of_memory(exhausted: Exhausted) -> S3Error {
    slow_down(match exhausted {
        Exhausted::All => "The server is collecting as much as it may. Please try again in a moment.",
        Exhausted::Share => {
            "The server is collecting as much from your address as it may. Please try again in a moment."
        }
    })
}

/// The S3 error for a body that broke off or is not what was announced. The bodies' own error types
/// are not public, so they are told apart by what they say; a test with the real ones keeps this
/// true.
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

/// XML that says nothing that can be stored.
pub fn malformed_xml() -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

/// An error with a code that `s3s` does not know.
pub fn custom(code: &str, status: StatusCode, message: impl Into<String>) -> S3Error {
    let code = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
    let mut error = S3Error::with_message(code, message.into());
    error.set_status_code(status);
    error
}

/// What the error says with which a body ends whose client sends nothing any more.
pub const STALLED: &str = "the client sent nothing for too long";

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
        };
        assert!(!format!("{}", of_engine(&full, b"k")).contains("/dev/x"));
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
