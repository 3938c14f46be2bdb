//! Metadata in requests that put objects, as attributes of the record.

pub use terrace_objects::record::*;

use super::{errors, ops::acl};
use hyper::StatusCode;
use s3s::{
    S3Result,
    dto::{Metadata, Timestamp, TimestampFormat},
    s3_error,
};
use terrace::Attributes;

/// Most bytes of user metadata with names, S3's limit.
const METADATA_BYTES_MAX: usize = 2048;
/// Most bytes of [`KEPT`] headers with names, S3's limit.
const SYSTEM_BYTES_MAX: usize = 2048;

/// Metadata of an object in a request.
#[derive(Debug, Default)]
pub struct Description {
    /// In the order of [`KEPT`].
    pub kept: [Option<String>; 8],
    /// User metadata.
    pub metadata: Option<Metadata>,
    /// Tags in query encoding, checked.
    pub tagging: Option<String>,
    /// Access control list.
    pub acl: acl::Asked,
}

/// Takes the metadata from an input; four inputs have the same fields.
#[macro_export]
macro_rules! description {
    ($input:expr) => {{
        use $crate::s3::record;
        record::Description {
            kept: [
                $input.content_type.take(),
                $input.cache_control.take(),
                $input.content_disposition.take(),
                $input.content_encoding.take(),
                $input.content_language.take(),
                $input.expires.take().map(|time| record::http_date(&time)),
                $input.website_redirect_location.take(),
                // The default is the standard class.
                $input
                    .storage_class
                    .take()
                    .map(|class| class.as_str().to_owned())
                    .filter(|class| class != "STANDARD"),
            ],
            metadata: $input.metadata.take(),
            tagging: $input.tagging.take(),
            acl: $crate::asked_acl!($input),
        }
    }};
}

/// A time in the form of headers.
pub fn http_date(time: &Timestamp) -> String {
    let mut text = Vec::new();
    // Writing to a Vec cannot fail; a year outside the format writes nothing.
    let _ = time.format(TimestampFormat::HttpDate, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

impl Description {
    /// Refuses redirects to invalid locations.
    ///
    /// # Errors
    /// `InvalidRedirectLocation`
    pub fn check_redirect(&self) -> S3Result {
        let redirect = KEPT.into_iter().zip(&self.kept).find(|(name, _)| *name == REDIRECT);
        let Some(location) = redirect.and_then(|(_, location)| location.as_deref()) else {
            return Ok(());
        };
        if ["/", "http://", "https://"]
            .iter()
            .any(|start| location.starts_with(start))
        {
            return Ok(());
        }
        Err(errors::custom(
            "InvalidRedirectLocation",
            StatusCode::BAD_REQUEST,
            "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.",
        ))
    }

    /// The attributes to store.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub fn into_attributes(self) -> S3Result<Attributes> {
        let mut attributes = Attributes::new();
        let mut system_bytes = 0;
        for (name, text) in KEPT.into_iter().zip(self.kept) {
            let text = match text {
                Some(text) if name == "content-encoding" => without_transfer_coding(&text),
                other => other,
            };
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                system_bytes += name.len() + text.len();
                attributes.set(name, text);
            }
        }
        if system_bytes > SYSTEM_BYTES_MAX {
            return Err(s3_error!(
                MetadataTooLarge,
                "Your system metadata headers exceed the maximum allowed size of {SYSTEM_BYTES_MAX} bytes"
            ));
        }
        let metadata = self.metadata.unwrap_or_default();
        if metadata
            .iter()
            .map(|(name, text)| name.len() + text.len())
            .sum::<usize>()
            > METADATA_BYTES_MAX
        {
            return Err(s3_error!(
                MetadataTooLarge,
                "Your metadata headers exceed the maximum allowed metadata size of {METADATA_BYTES_MAX} bytes"
            ));
        }
        for (name, text) in metadata {
            attributes.set(format!("{METADATA_PREFIX}{name}"), text);
        }
        if let Some(tagging) = self.tagging.filter(|tagging| !tagging.is_empty()) {
            attributes.set(TAGGING, tagging);
        }
        Ok(attributes)
    }
}

/// Removes `aws-chunked`, which describes the transfer and not the object.
fn without_transfer_coding(text: &str) -> Option<String> {
    let is_chunked = |coding: &&str| coding.eq_ignore_ascii_case("aws-chunked");
    let all: Vec<_> = text.split(',').map(str::trim).collect();
    let others: Vec<_> = all.iter().copied().filter(|coding| !is_chunked(coding)).collect();
    if others.len() == all.len() {
        return Some(text.to_owned());
    }
    (!others.is_empty()).then(|| others.join(", "))
}

#[cfg(test)]
mod tests;
