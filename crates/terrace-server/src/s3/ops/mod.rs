//! The operations, as functions of a request. Code that several of them share is here.

pub mod acl;
pub mod attributes;
pub mod buckets;
pub mod configure;
pub mod copy;
pub mod delete;
pub mod encryption;
pub mod lifecycle;
pub mod listings;
pub mod lock;
pub mod logging;
pub mod multipart;
pub mod notifications;
pub mod objects;
pub mod ownership;
pub mod said;
pub mod tagging;
mod wanted;
pub mod website;

use super::{
    Gateway,
    access::{
        By,
        decide::{Action, Claim},
    },
    account,
    bucket::{Bucket, Buckets, Record},
    commit::{self, NewObject, Place, Requirement, Tag},
    errors::{self, Told as _},
    keyspace,
    manifest::Part,
    read::Opened,
    record::Facts,
    versions::{self, Name},
};
use hyper::{
    HeaderMap, header,
    header::{HeaderName, HeaderValue},
};
use s3s::{
    S3Error, S3ErrorCode, S3Response, S3Result,
    dto::{ETagCondition, Owner, Timestamp},
    s3_error,
};
use std::{ops::Range, sync::Arc, time::SystemTime};
use terrace::{Attributes, Store};
use terrace_objects::error::ObjectError;

/// Refuses keys that cannot be stored.
///
/// # Errors
/// `KeyTooLongError`, `InvalidArgument`.
pub fn check_key(key: &str) -> S3Result {
    if key.len() > keyspace::KEY_BYTES_MAX {
        return Err(s3_error!(KeyTooLongError, "Your key is too long"));
    }
    if key.contains('\0') {
        return Err(s3_error!(InvalidArgument, "Keys with a zero byte are not supported."));
    }
    Ok(())
}

/// The answer of an operation.
pub type Answered<T> = S3Result<S3Response<T>>;

/// Changes the record of a bucket, and returns an empty answer.
///
/// # Errors
/// `change`'s, `NoSuchBucket`, errors of the store.
pub async fn change_bucket<A: Default>(
    gateway: &Arc<Gateway>,
    bucket: String,
    change: impl FnOnce(&mut Record) -> S3Result + Send + 'static,
) -> Answered<A> {
    gateway
        .run(move |gateway, store| change_here(&gateway.buckets, store, &bucket, change))
        .await?;
    Ok(S3Response::new(A::default()))
}

/// Prefix of headers with a checksum of the body, and headers with that prefix that are none.
const CHECKSUM: &str = "x-amz-checksum-";
const NO_CHECKSUMS: [&str; 3] = ["x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"];

/// Refuses requests without a digest of the body that S3 requires besides the signature: deletions
/// of many objects, and settings of their lifetime.
///
/// # Errors
/// `InvalidRequest`
pub fn check_has_digest(headers: &HeaderMap) -> S3Result {
    let mut names = headers.keys().map(HeaderName::as_str);
    let is_digest = |name: &str| name == "content-md5" || (name.starts_with(CHECKSUM) && !NO_CHECKSUMS.contains(&name));
    if names.any(is_digest) {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
    ))
}

/// The same with a change that cannot fail: a setting is put or deleted.
///
/// # Errors
/// `NoSuchBucket`, errors of the store.
pub async fn set<A: Default>(
    gateway: &Arc<Gateway>,
    bucket: String,
    change: impl FnOnce(&mut Record) + Send + 'static,
) -> Answered<A> {
    let change = |record: &mut Record| {
        change(record);
        Ok(())
    };
    change_bucket(gateway, bucket, change).await
}

/// The same on a thread that may block.
fn change_here(
    buckets: &Buckets,
    store: &Store,
    bucket: &str,
    change: impl FnOnce(&mut Record) -> S3Result,
) -> S3Result {
    /// An error of the object model or of an operation.
    struct Failed(S3Error);
    impl From<ObjectError> for Failed {
        fn from(error: ObjectError) -> Self {
            Self(errors::of_object(error))
        }
    }
    let changed = buckets.change(store, bucket, |record| change(record).map_err(Failed));
    changed.map_err(|Failed(error)| error)
}

/// How often rewriting a record is tried. A try fails only if another commit has replaced the
/// record meanwhile, so this many in a row mean that clients keep replacing it; a bound, since each
/// reads the record again.
const ATTEMPTS: usize = 64;

/// Gives an object, or a version, the attributes that `change` makes of the stored ones. Its bytes
/// and its time stay. If it was replaced meanwhile the new object gets them; if it moved, they
/// follow it. Returns the version for the answer.
async fn redescribe(
    gateway: &Arc<Gateway>,
    claim: Claim,
    (key, name): (String, Option<Name>),
    change: impl Fn(&Gateway, &Facts) -> S3Result<Attributes> + Send + 'static,
) -> S3Result<Option<String>> {
    gateway
        .run(move |gateway, store| {
            for _ in 0..ATTEMPTS {
                let opened = versions::open(store, &gateway.collector, &claim, &key, name).told()?;
                let place = Place {
                    store,
                    durability: gateway.durability,
                    permit: opened.permit(),
                    key: &key,
                };
                // Errors of the change are reported only to callers that may make it.
                let new = NewObject {
                    attributes: change(gateway, &opened.facts)?,
                    value: opened.record_value().told()?,
                };
                if commit::redescribe(place, opened.place(), opened.facts.version, &new).told()? {
                    return Ok(claim.bucket().shown(Name::of(&opened.facts)));
                }
            }
            Err(s3_error!(
                OperationAborted,
                "The object is being replaced all the time. Try again."
            ))
        })
        .await
}

/// The claim to read an object of this key, or its version of this name, besides the request's own
/// action.
fn reading(gateway: &Gateway, by: By<'_>, bucket: &Arc<Bucket>, key: &str, name: Option<Name>) -> Claim {
    let action = name.map_or("s3:GetObject", |_| "s3:GetObjectVersion");
    let claim = gateway.claim(by, Action::reading(name.is_some()), bucket);
    let version = name.map(|name| name.to_string());
    claim.about(action, key).of_version(version.as_deref())
}

/// The conditions of a request on the object that it replaces or deletes. An entity tag needs
/// permission to read the object ("How to perform conditional deletes" in S3's guide).
///
/// # Errors
/// `NotImplemented` for `If-None-Match` with an entity tag, as in S3: it would hold for each object
/// but one, and policies that demand the header are to prevent overwriting.
fn requirement(
    reading: impl FnOnce() -> Claim,
    if_match: Option<Tag>,
    if_none_match: Option<Tag>,
) -> S3Result<Requirement> {
    if matches!(if_none_match, Some(Tag::Is(_))) {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: If-None-Match other than *"
        ));
    }
    Ok(Requirement {
        reader: matches!(if_match, Some(Tag::Is(_))).then(reading),
        if_match,
        if_none_match,
        ..Requirement::default()
    })
}

/// A condition on an entity tag, for the object model.
fn tag(condition: ETagCondition) -> Tag {
    match condition {
        ETagCondition::Any => Tag::Any,
        ETagCondition::ETag(tag) => Tag::Is(tag.into_value()),
    }
}

/// A time of a request.
fn time_of(time: Timestamp) -> SystemTime {
    time::OffsetDateTime::from(time).into()
}

/// An account in answers.
pub fn shown(account: &str) -> Owner {
    Owner {
        display_name: Some(account.to_owned()),
        id: Some(account::canonical_id(account)),
    }
}

/// A number for the protocol.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Conditions of a request that reads.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// `If-Match`
    pub if_match: Option<ETagCondition>,
    /// `If-None-Match`
    pub if_none_match: Option<ETagCondition>,
    /// `If-Modified-Since`
    pub if_modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`
    pub if_unmodified_since: Option<Timestamp>,
}

/// Takes the conditions out of an input; GET and HEAD have the same fields.
#[macro_export]
macro_rules! conditions {
    ($input:expr) => {
        $crate::s3::ops::Conditions {
            if_match: $input.if_match.take(),
            if_none_match: $input.if_none_match.take(),
            if_modified_since: $input.if_modified_since.take(),
            if_unmodified_since: $input.if_unmodified_since.take(),
        }
    };
}

/// Takes the conditions on the source out of the input of a copy.
#[macro_export]
macro_rules! source_conditions {
    ($input:expr) => {
        $crate::s3::ops::Conditions {
            if_match: $input.copy_source_if_match.take(),
            if_none_match: $input.copy_source_if_none_match.take(),
            if_modified_since: $input.copy_source_if_modified_since.take(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.take(),
        }
    };
}

/// Result of conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Answer,
    /// 304: the client has it already.
    NotModified,
    /// A condition does not hold.
    Failed,
}

impl Conditions {
    /// Judges, in the order of RFC 9110 section 13.2.2.
    pub fn judge(&self, facts: &Facts) -> Verdict {
        let matches = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(tag) => is_among(tag.value(), &facts.etag),
        };
        let modified = Timestamp::from(facts.modified);
        let wanted = match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) => matches(condition),
            (None, Some(time)) => modified <= *time,
            (None, None) => true,
        };
        if !wanted {
            return Verdict::Failed;
        }
        let known = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => matches(condition),
            (None, Some(time)) => modified <= *time,
            (None, None) => false,
        };
        if known { Verdict::NotModified } else { Verdict::Answer }
    }

    /// Judges for a request that reads.
    ///
    /// # Errors
    /// `PreconditionFailed`; 304 with the entity tag.
    pub fn check(&self, facts: &Facts) -> S3Result {
        match self.judge(facts) {
            Verdict::Answer => Ok(()),
            Verdict::Failed => Err(precondition_failed()),
            Verdict::NotModified => {
                let mut error = S3Error::new(S3ErrorCode::NotModified);
                let mut headers = HeaderMap::new();
                if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", facts.etag)) {
                    headers.insert(header::ETAG, value);
                }
                if let Ok(value) = HeaderValue::from_str(&httpdate::fmt_http_date(facts.modified)) {
                    headers.insert(header::LAST_MODIFIED, value);
                }
                if let Some(value) = facts
                    .header("cache-control")
                    .and_then(|text| HeaderValue::from_str(&text).ok())
                {
                    headers.insert(header::CACHE_CONTROL, value);
                }
                error.set_headers(headers);
                Err(error)
            }
        }
    }
}

/// Whether an entity tag is one of those that a condition names: `s3s` removes only the outer
/// quotes of a list.
fn is_among(named: &str, etag: &str) -> bool {
    let tags = named.split(',').map(str::trim);
    tags.map(|tag| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"'))
        .any(|tag| tag == etag)
}

/// The error of a failed condition.
pub fn precondition_failed() -> S3Error {
    s3_error!(
        PreconditionFailed,
        "At least one of the pre-conditions you specified did not hold"
    )
}

/// A part of an object, and how many parts that has.
pub type Numbered<'a> = (&'a Part, usize);

/// The bytes of a part by its number, and the part if the object has any.
///
/// # Errors
/// `InvalidPartNumber`
pub fn range_of_part(opened: &Opened, number: i32) -> S3Result<(Range<u64>, Option<Numbered<'_>>)> {
    let wrong = || {
        let status = hyper::StatusCode::RANGE_NOT_SATISFIABLE;
        errors::custom(
            "InvalidPartNumber",
            status,
            "The requested partnumber is not satisfiable",
        )
    };
    let is_multipart = opened.facts.etag.contains('-');
    let parts = opened.parts.as_deref().filter(|_| is_multipart);
    let Some(parts) = parts else {
        return if number == 1 {
            Ok((0..opened.facts.length, None))
        } else {
            Err(wrong())
        };
    };
    let mut start = 0;
    for part in parts {
        if i32::from(part.number) == number {
            return Ok((start..start + part.length, Some((part, parts.len()))));
        }
        start += part.length;
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::record;
    use std::time::Duration;
    use terrace::{Attributes, HomeKind, ObjectInfo, Version};

    #[test]
    fn conditions_in_the_order_of_the_standard() {
        let mut attributes = Attributes::new();
        record::stamp(&mut attributes, "abc", 1_700_000_000_500);
        let facts = Facts::of(&ObjectInfo {
            expires_at: None,
            version: Version(1),
            length: 1,
            checksum: 1,
            home: HomeKind::Inline,
            attributes,
        });
        let tag = |text: &str| Some(text.parse::<ETagCondition>().unwrap());
        let time = |offset: i64| {
            let seconds = 1_700_000_000_u64.checked_add_signed(offset).unwrap();
            Some(Timestamp::from(std::time::UNIX_EPOCH + Duration::from_secs(seconds)))
        };
        let judge = |if_match, if_none_match, if_modified_since, if_unmodified_since| {
            Conditions {
                if_match,
                if_none_match,
                if_modified_since,
                if_unmodified_since,
            }
            .judge(&facts)
        };
        assert_eq!(judge(None, None, None, None), Verdict::Answer);
        assert_eq!(judge(tag("\"abc\""), None, None, time(-1)), Verdict::Answer);
        assert_eq!(judge(tag("\"x\""), None, None, time(1)), Verdict::Failed);
        assert_eq!(judge(None, None, None, time(-1)), Verdict::Failed);
        assert_eq!(judge(None, None, None, time(0)), Verdict::Answer);
        assert_eq!(judge(None, tag("\"abc\""), time(-1), None), Verdict::NotModified);
        assert_eq!(judge(None, tag("\"x\""), time(1), None), Verdict::Answer);
        assert_eq!(judge(None, None, time(0), None), Verdict::NotModified);
        assert_eq!(judge(None, None, time(-1), None), Verdict::Answer);
        assert_eq!(judge(tag("*"), tag("*"), None, None), Verdict::NotModified);
        assert_eq!(judge(None, tag("\"x\", W/\"abc\""), None, None), Verdict::NotModified);
        assert_eq!(judge(tag("\"abc\",\"x\""), None, None, None), Verdict::Answer);
        assert_eq!(judge(tag("\"abcd\", \"x\""), None, None, None), Verdict::Failed);
    }

    #[test]
    fn keys_that_cannot_be_stored() {
        assert!(check_key(&"k".repeat(1024)).is_ok());
        assert!(check_key(&"k".repeat(1025)).is_err());
        assert!(check_key("a\0b").is_err());
    }
}
