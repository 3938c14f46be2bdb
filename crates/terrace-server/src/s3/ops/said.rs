//! The headers of an object in answers to GET and HEAD.
//!
//! They are written here, and not by `s3s` from fields of its outputs, so that answers without
//! `s3s` ([`crate::s3::at_once`]) have the same headers.

use super::wanted::Answer;
use crate::s3::{
    access::decide::{Action, Claim},
    bucket::Bucket,
    crypt::request::{self, CustomerKey, Told},
    digest,
    head::Head,
    keyspace::Id,
    lifecycle::{Expiration, Subject},
    lock,
    record::{self, CONTENT_TYPE_DEFAULT, Facts},
    versions::Name,
};
use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
    http::Extensions,
};
use s3s::dto::{Timestamp, TimestampFormat};
use std::time::SystemTime;
use terrace::{Clock, HomeKind};
use terrace_objects::text::percent_encode;

static CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Capacity for headers, enough for most answers.
const HEADERS: usize = 16;

/// An object and the bytes that are sent.
pub struct Said<'a> {
    /// The claim, with the bucket.
    pub claim: &'a Claim,
    /// Its key, if an answer may have its expiry: named versions have none.
    pub key: Option<&'a str>,
    pub facts: &'a Facts,
    /// The bytes that are sent.
    pub answer: &'a Answer,
    /// Whether checksums are requested. They are of the whole object, or of a part, so they are
    /// sent only with all of that.
    pub with_checksums: bool,
    /// The client's key, if the request has one.
    pub customer: Option<&'a CustomerKey>,
}

impl Said<'_> {
    /// The headers of both GET and HEAD, without user metadata that has to be encoded
    /// ([`Facts::encoded_metadata`]), and without values that headers cannot carry: the object can
    /// be read all the same.
    pub fn head(&self) -> HeaderMap {
        let (facts, answer) = (self.facts, self.answer);
        let mut head = HeaderMap::with_capacity(HEADERS);
        head.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        head.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE_DEFAULT));
        for (name, text) in facts.shown() {
            set(&mut head, name, text);
        }
        if let Some(time) = expires(facts) {
            set(&mut head, "expires", &record::http_date(&time));
        }
        let length = answer.range.end - answer.range.start;
        head.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        put(&mut head, header::ETAG, &["\"", &facts.etag, "\""].concat());
        put(
            &mut head,
            header::LAST_MODIFIED,
            &httpdate::fmt_http_date(facts.modified),
        );
        let texts = [
            ("content-range", answer.content_range.clone()),
            ("x-amz-mp-parts-count", answer.parts.map(|parts| parts.to_string())),
            (
                "x-amz-expiration",
                self.key
                    .and_then(|key| self.claim.bucket().expiration(Subject::of(key, facts)))
                    .and_then(expiration),
            ),
            ("x-amz-version-id", self.claim.bucket().shown(Name::of(facts))),
        ];
        for (name, text) in texts.into_iter().chain(self.locks()) {
            if let Some(text) = text {
                set(&mut head, name, &text);
            }
        }
        let told = Told::of(&facts.attributes, self.customer);
        for (name, text) in told.iter().flat_map(request::headers) {
            set(&mut head, name, text);
        }
        if let Some(tagging) = facts.tagging().filter(|_| self.may_read_tags()) {
            let tags = tagging.split('&').count();
            head.insert("x-amz-tagging-count", HeaderValue::from(tags));
        }
        let whole = answer.content_range.is_none().then_some(&facts.attributes);
        let checksums = answer.checksum.as_ref().or(whole);
        if let Some(checksums) = checksums.filter(|_| self.with_checksums) {
            for (name, text) in digest::headers(checksums) {
                set(&mut head, name, text);
            }
        }
        head
    }

    /// As in S3 the number of tags is returned only to callers that may read tags.
    fn may_read_tags(&self) -> bool {
        let asked = self.key.map_or("s3:GetObjectVersionTagging", |_| "s3:GetObjectTagging");
        self.claim.of_another(Action::Inspect, asked).on(self.facts).is_ok()
    }

    /// Lock headers: for callers that may read locks, as in S3.
    fn locks(&self) -> [(&'static str, Option<String>); 3] {
        let may = |asked| self.claim.of_another(Action::Configure, asked).on(self.facts).is_ok();
        let retention = lock::retention(&self.facts.attributes).filter(|_| may("s3:GetObjectRetention"));
        let hold = lock::legal_hold(&self.facts.attributes).filter(|_| may("s3:GetObjectLegalHold"));
        [
            (
                "x-amz-object-lock-mode",
                retention.map(|retention| retention.mode.name().to_owned()),
            ),
            (
                "x-amz-object-lock-retain-until-date",
                retention.map(super::lock::until_text),
            ),
            (
                "x-amz-object-lock-legal-hold",
                hold.map(|is_held| if is_held { "ON" } else { "OFF" }.to_owned()),
            ),
        ]
    }

    /// The same with the headers of GET only.
    pub fn head_with_body(&self, home: HomeKind) -> HeaderMap {
        let mut head = self.head();
        head.insert(CACHE_STATUS.clone(), cache_status(home));
        head
    }
}

/// Sets a header, unless it cannot be carried.
fn set(head: &mut HeaderMap, name: &str, text: &str) {
    if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
        put(head, name, text);
    }
}

/// Sets a header, unless its value cannot be carried.
fn put(head: &mut HeaderMap, name: HeaderName, text: &str) {
    // Not `from_str`: file names may have letters beyond ASCII.
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        head.insert(name, value);
    }
}

/// The tier that serves an answer, in the form of RFC 9211: flash is a hit, disk is not.
const fn cache_status(home: HomeKind) -> HeaderValue {
    HeaderValue::from_static(match home {
        HomeKind::Inline => "Terrace; hit; detail=inline",
        HomeKind::Flash => "Terrace; hit; detail=flash",
        HomeKind::Block => "Terrace; fwd=miss; detail=block",
    })
}

/// `Expires`, if it was a date.
fn expires(facts: &Facts) -> Option<Timestamp> {
    let text = facts.attributes.get_str(record::EXPIRES)?;
    Timestamp::parse(TimestampFormat::HttpDate, text).ok()
}

/// A stored time in answers, at most the end of the year 9999.
pub fn time(ms: u64) -> Timestamp {
    Timestamp::from(Clock::of_ms(ms))
}

/// The same in whole seconds.
pub fn second(ms: u64) -> Timestamp {
    time(ms / 1000 * 1000)
}

/// The nearest time that has a date, as text: `2026-01-31T12:00:00.000Z`
pub fn date_text(time: SystemTime) -> String {
    let mut text = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = Timestamp::from(Clock::dated(time)).format(TimestampFormat::DateTime, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Whether answers can tell a time: their dates end with the year 9999.
fn has_date(time: SystemTime) -> bool {
    Clock::dated(time) == time
}

/// The header of a current object's expiry: time and rule.
pub fn expiration(due: Expiration) -> Option<String> {
    let date = has_date(due.at).then(|| httpdate::fmt_http_date(due.at))?;
    let id = percent_encode(&due.rule);
    Some(format!("expiry-date=\"{date}\", rule-id=\"{id}\""))
}

/// The headers of an upload's abortion: time and rule.
pub fn abortion(bucket: &Bucket, key: &str, upload: Id) -> (Option<Timestamp>, Option<String>) {
    let due = bucket.abortion(key, upload.ms());
    due.filter(|due| has_date(due.at)).map_or((None, None), |due| {
        (Some(Timestamp::from(due.at)), Some(percent_encode(&due.rule)))
    })
}

/// The version header for a version that a request has made. S3 returns its ID, but not, while
/// versioning is suspended, the version `null` ("Sample Response: versioning suspended" of
/// PutObject in its API reference).
pub fn made(name: Option<Name>) -> Option<String> {
    name.filter(|name| *name != Name::Null).map(|name| name.to_string())
}

/// The address of an object, as the client reached the server.
pub fn location(noted: &Extensions, headers: &HeaderMap, bucket: &str, key: &str) -> String {
    let head = Head::of(noted).ok();
    let key = percent_encode(key);
    let path = if head.is_some_and(|head| head.is_of_host()) {
        format!("/{key}")
    } else {
        format!("/{bucket}/{key}")
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Only a proxy that terminates TLS can tell, and only the requesting client gets this answer.
    let is_secure = head.is_some_and(|head| head.peer.is_secure) || text("x-forwarded-proto") == Some("https");
    let scheme = if is_secure { "https" } else { "http" };
    // A host name or an address, which need no escaping in XML. Without one the path is returned.
    let is_plain = |host: &&str| {
        host.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
    };
    let host = text("host").filter(is_plain);
    host.map_or_else(|| path.clone(), |host| format!("{scheme}://{host}{path}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn when_it_expires() {
        let due = |seconds| Expiration {
            at: UNIX_EPOCH + Duration::from_secs(seconds),
            rule: "r 1".to_owned(),
        };
        assert_eq!(
            expiration(due(1_390_089_600)).unwrap(),
            "expiry-date=\"Sun, 19 Jan 2014 00:00:00 GMT\", rule-id=\"r%201\""
        );
        assert_eq!(expiration(due(253_402_300_800)), None, "no date has that year");
    }
}
