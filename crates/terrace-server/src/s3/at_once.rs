//! The short way: answers a plain GET or HEAD of an object that is completely in RAM, signed or
//! not, without `s3s`, whose parsing of a hundred operations and building of answers is most of the
//! cost.
//!
//! The short way makes the same decisions by the same code. Requests that are not plain, sessions,
//! invalid signatures, objects that are missing, not in RAM or not permitted, and buckets whose
//! policy does more than open everything are left to the long way. `ops::objects` reads and
//! describes the object for both. The front's checks of all requests come before, and its additions
//! to all answers after.

use super::{
    Gateway,
    access::decide::{Action, Claim, Principal},
    bucket::Bucket,
    head::Head,
    ops::objects,
    verified,
};
use hyper::{
    HeaderMap, Method, Response,
    header::{self, HeaderName, HeaderValue},
};
use s3s::{Body, S3Result};
use std::{net::IpAddr, sync::Arc};

/// Headers that do not change the answer here. `Origin` does, but the front handles it for all
/// answers.
static PLAIN: [HeaderName; 14] = [
    header::HOST,
    header::USER_AGENT,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::COOKIE,
    header::DNT,
    header::ORIGIN,
    header::PRAGMA,
    header::REFERER,
    header::UPGRADE_INSECURE_REQUESTS,
    header::VIA,
];
/// Prefixes of further such headers, which browsers and proxies add.
const PLAIN_BEGINNINGS: [&str; 2] = ["sec-", "x-forwarded-"];

/// Requests the checksums of an object.
const CHECKSUM_MODE: &str = "x-amz-checksum-mode";
/// Further headers allowed in signed requests.
const SIGNED: [&str; 4] = ["authorization", "x-amz-date", "x-amz-content-sha256", CHECKSUM_MODE];
/// Prefix of further such headers, about a client's retries.
const SIGNED_BEGINNING: &str = "amz-sdk-";
/// Query names of presigned URLs, and of SDKs.
const IN_QUERY: [&str; 7] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
    "x-id",
];

/// An answer of the short way.
pub struct AtOnce {
    /// S3's name of the operation.
    pub operation: &'static str,
    /// The caller's access key.
    pub key: Option<String>,
    /// The answer.
    pub response: S3Result<Response<Body>>,
}

/// A plain request for an object: no query except a signature, no header with an effect, a path in
/// its canonical form. Without a signature nothing in it can be refused.
pub struct Plain<'h> {
    bucket: &'h str,
    key: &'h str,
    has_body: bool,
    with_checksums: bool,
    sender: IpAddr,
}

impl<'h> Plain<'h> {
    /// Reads a request as one. `None` if it is another.
    pub fn of(head: &'h Head, headers: &HeaderMap) -> Option<Self> {
        let has_body = match head.method {
            Method::GET => true,
            Method::HEAD => false,
            _ => return None,
        };
        let begins = |name: &HeaderName| PLAIN_BEGINNINGS.iter().any(|start| name.as_str().starts_with(start));
        let is_of_signed = |name: &str| SIGNED.contains(&name) || name.starts_with(SIGNED_BEGINNING);
        let is_signed = head.is_signed();
        let is_plain =
            |name: &HeaderName| PLAIN.contains(name) || begins(name) || (is_signed && is_of_signed(name.as_str()));
        let asks_more = if is_signed {
            head.query.iter().any(|(name, _)| !IN_QUERY.contains(&name.as_str()))
        } else {
            head.uri.query().is_some()
        };
        if head.ranges.is_some() || asks_more || !headers.keys().all(is_plain) {
            return None;
        }
        headers.get(header::HOST)?.to_str().ok()?;
        let (bucket, key) = head.place().filter(|_| head.is_path_plain())?;
        let mode = headers.get(CHECKSUM_MODE).map(HeaderValue::as_bytes);
        (!key.is_empty()).then_some(Self {
            bucket,
            key,
            has_body,
            with_checksums: mode.is_some_and(|mode| mode.eq_ignore_ascii_case(b"ENABLED")),
            sender: head.sender(),
        })
    }

    /// Answers it, if all callers may read the object and it is in RAM. `None` means nothing.
    pub fn answer(&self, gateway: &Gateway) -> Option<AtOnce> {
        let bucket = gateway.buckets.get(self.bucket).ok()?;
        self.answer_to(Principal::Anonymous, gateway, &bucket)
    }

    /// Answers it, if its signature is valid and the signer may read the object, which is in RAM.
    /// `None` means nothing, not even about the signature.
    pub fn answer_to_signer(&self, gateway: &Gateway, head: &Head, headers: &HeaderMap) -> Option<AtOnce> {
        let bucket = gateway.buckets.get(self.bucket).ok()?;
        if bucket.record().has_more_rules() {
            return None;
        }
        let keys = &gateway.access_keys;
        // The long way reads what policies need.
        let id = verified::signer(head, headers, |id| keys.secret(id), head.peer.arrived_ms)?;
        if keys.policy(id).is_some() {
            return None;
        }
        let principal = Principal::Key {
            id: Arc::from(id),
            keys: Arc::clone(keys),
        };
        let answer = self.answer_to(principal, gateway, &bucket)?;
        let charged = gateway.charge(head.peer, id);
        Some(AtOnce {
            key: Some(id.to_owned()),
            response: charged.and(answer.response),
            ..answer
        })
    }

    fn answer_to(&self, principal: Principal, gateway: &Gateway, bucket: &Arc<Bucket>) -> Option<AtOnce> {
        let claim = Claim::new(principal, Action::Read, bucket).within(Some(Arc::from(self.key)));
        claim.may_begin().ok()?;
        let (operation, (head, body)) = if self.has_body {
            let answer = objects::get_at_once(gateway, &claim, self.key, self.with_checksums, self.sender)?;
            ("GetObject", answer)
        } else {
            let head = objects::head_at_once(gateway, &claim, self.key, self.with_checksums)?;
            ("HeadObject", (head, Body::empty()))
        };
        gateway.figures.at_once.inc();
        let mut response = Response::new(body);
        *response.headers_mut() = head;
        Some(AtOnce {
            operation,
            key: None,
            response: Ok(response),
        })
    }
}
