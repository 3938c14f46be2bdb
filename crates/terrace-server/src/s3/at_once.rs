//! The short way of an answer: a GET or HEAD of an object that everybody may read, of which RAM has
//! all, by a request that asks for nothing else. It is what a web site's visitors send, and most of
//! what such an answer costs is the library's: taking requests apart that may be any of a hundred
//! operations, and putting answers together that may say any of forty things.
//!
//! Nothing is decided here in another way. A request that is not plain, and an object that is not
//! there, not public or not in RAM, goes the long way; what is read and what is said of it is
//! `ops::objects`' on both. A request comes here after what the front asks of all requests, and its
//! answer gets what the front adds to all answers.

use super::{
    Gateway,
    access::{
        Domains,
        decide::{Action, Claim, Principal},
    },
    ops::objects,
};
use crate::http::ranges::Ranges;
use hyper::{
    Method, Response,
    header::{self, HeaderName},
    http::request::Parts,
};
use s3s::Body;

/// Headers that choose nothing of an answer here. `Origin` does, but what it adds the front adds to
/// all answers.
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
/// What the names of others begin with: what browsers and proxies say of where a request comes
/// from.
const PLAIN_BEGINNINGS: [&str; 2] = ["sec-", "x-forwarded-"];

/// An answer that was had at once.
pub struct AtOnce {
    /// S3's name of what it answers.
    pub operation: &'static str,
    /// The answer.
    pub response: Response<Body>,
}

/// A request that asks for an object and nothing else: no query, no header that chooses anything, a
/// path that is written as it is meant. There is nothing in it that could be refused, or that could
/// be a signature.
pub struct Plain<'p> {
    bucket: &'p str,
    key: &'p str,
    has_body: bool,
}

impl<'p> Plain<'p> {
    /// Reads a request as one. `None` if it is another.
    pub fn of(domains: &Domains, parts: &'p Parts) -> Option<Self> {
        let has_body = match parts.method {
            Method::GET => true,
            Method::HEAD => false,
            _ => return None,
        };
        let begins = |name: &HeaderName| PLAIN_BEGINNINGS.iter().any(|start| name.as_str().starts_with(start));
        let says_more = |name: &HeaderName| !PLAIN.contains(name) && !begins(name);
        // Several ranges the front has taken out of the headers.
        let has_ranges = parts.extensions.get::<Ranges>().is_some();
        if has_ranges || parts.uri.query().is_some() || parts.headers.keys().any(says_more) {
            return None;
        }
        let path = parts.uri.path().strip_prefix('/')?;
        let host = parts.headers.get(header::HOST)?.to_str().ok()?;
        let (bucket, key) = match domains.bucket(host) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/')?,
        };
        (!key.is_empty() && !path.contains('%')).then_some(Self { bucket, key, has_body })
    }

    /// Answers it, if everybody may read the object and RAM has it. `None` says nothing about it.
    pub fn answer(&self, gateway: &Gateway) -> Option<AtOnce> {
        let bucket = gateway.buckets.get(self.bucket).ok()?;
        let claim = Claim::new(Principal::Everybody, Action::Read, &bucket);
        claim.may_begin().ok()?;
        let (operation, (head, body)) = if self.has_body {
            ("GetObject", objects::get_at_once(gateway, &claim, self.key)?)
        } else {
            let head = objects::head_at_once(gateway, &claim, self.key)?;
            ("HeadObject", (head, Body::empty()))
        };
        gateway.figures.at_once.inc();
        let mut response = Response::new(body);
        *response.headers_mut() = head;
        Some(AtOnce { operation, response })
    }
}
