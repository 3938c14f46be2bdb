//! Verifies signatures without `s3s`: for the short way ([`super::at_once`]), for bodies in signed
//! chunks ([`super::chunks`]), and for removing headers without an effect.
//!
//! It accepts valid signatures in the form that clients send. All others are left to `s3s`, which
//! reports the error. So nothing is accepted here that is not signed, byte for byte, with a key's
//! secret, for this method, path, query, headers and time.

use super::{
    REGION,
    chunks::Signatures,
    digest,
    head::{Head, idle},
    judged, session,
    signature::{self, SKEW_MAX},
};
use crate::time_span::Moment;
use hyper::{
    HeaderMap, Method,
    header::{self, HeaderValue},
    http::request::Parts,
};
use ring::{digest as sha, hmac};
use std::time::{Duration, SystemTime};
use terrace_objects::text::percent_encode;

/// Digits of a hash.
const HASH_DIGITS: usize = 64;
/// Used instead of a hash of the body in a signature.
const NO_HASH: &str = "UNSIGNED-PAYLOAD";
/// The header with the hash of a body.
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// Prefix of that header's value for a body in chunks.
const IN_CHUNKS: &str = "STREAMING-";
/// The query name of the signature itself, which it does not cover.
const IN_QUERY: &str = "X-Amz-Signature";

/// The signature parameters of a request.
struct Claimed<'a> {
    credential: &'a str,
    time: &'a str,
    /// How long after its time it is valid.
    life: Duration,
    signed_headers: &'a str,
    signature: &'a str,
    payload: &'a str,
}

impl<'a> Claimed<'a> {
    fn of(head: &'a Head, headers: &'a HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let payload = text(CONTENT_HASH);
        if head.is_signed_in_query {
            let seconds = head.value("X-Amz-Expires")?.parse().ok()?;
            return Some(Self {
                credential: head.value("X-Amz-Credential")?,
                time: head.value("X-Amz-Date")?,
                life: Duration::from_secs(seconds),
                signed_headers: head.value("X-Amz-SignedHeaders")?,
                signature: head.value(IN_QUERY)?,
                payload: payload.is_none().then_some(NO_HASH)?,
            });
        }
        let said = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let said = said.strip_prefix(signature::ALGORITHM)?;
        Some(Self {
            credential: signature::field(said, "Credential")?,
            time: text("x-amz-date")?,
            life: SKEW_MAX,
            signed_headers: signature::field(said, "SignedHeaders")?,
            signature: signature::field(said, "Signature")?,
            payload: payload.filter(|payload| {
                *payload == NO_HASH || payload.len() == HASH_DIGITS || payload.starts_with(IN_CHUNKS)
            })?,
        })
    }

    /// Whether its time is valid now.
    fn is_of_time(&self, now_ms: u64) -> bool {
        let Some(signed_ms) = judged::milliseconds_of(self.time) else {
            return false;
        };
        let early = Duration::from_millis(signed_ms.saturating_sub(now_ms));
        let late = Duration::from_millis(now_ms.saturating_sub(signed_ms));
        early <= SKEW_MAX && late <= self.life
    }

    /// The string to sign for a canonical request.
    fn text(&self, scope: &str, canonical: &str) -> String {
        let hash = digest::hex(sha::digest(&sha::SHA256, canonical.as_bytes()).as_ref());
        format!("{}\n{}\n{scope}\n{hash}", signature::ALGORITHM, self.time)
    }

    /// The canonical request of S3's documentation.
    fn canonical(&self, head: &Head, headers: &HeaderMap) -> Option<String> {
        let path = head.uri.path();
        // Readers may disagree on other forms.
        if percent_encode(head.path()?) != path {
            return None;
        }
        let signed = head.query.iter().filter(|(name, _)| name != IN_QUERY);
        self.canonical_of(&head.method, path, &canonical_query(signed), headers)
    }

    /// The same for a path and a query in canonical form.
    fn canonical_of(&self, method: &Method, path: &str, query: &str, headers: &HeaderMap) -> Option<String> {
        let mut text = format!("{method}\n{path}\n{query}\n");
        let mut before = "";
        for name in self.signed_headers.split(';') {
            let mut values = headers.get_all(name).iter();
            let (value, more) = (values.next()?.to_str().ok()?, values.next());
            let is_plain = value.trim() == value && !value.contains("  ") && !value.contains('\t');
            if more.is_some() || name <= before || !is_plain || name != name.to_ascii_lowercase() {
                return None;
            }
            text.extend([name, ":", value, "\n"]);
            before = name;
        }
        text.extend(["\n", self.signed_headers, "\n", self.payload]);
        Some(text)
    }
}

/// A request with a valid signature.
pub struct Verified<'h> {
    head: &'h Head,
    /// The ID of its key or session.
    id: &'h str,
    /// The scope of its signature.
    scope: &'h str,
    key: hmac::Key,
    claimed: Claimed<'h>,
}

impl<'h> Verified<'h> {
    /// `None` if the signature is invalid, not valid now, or not in canonical form.
    pub fn of(
        head: &'h Head,
        headers: &'h HeaderMap,
        secret: impl FnOnce(&str) -> Option<String>,
        now_ms: u64,
    ) -> Option<Self> {
        let claimed = Claimed::of(head, headers)?;
        let (id, scope) = signature::scope(claimed.credential, "s3")?;
        let is_of_day = claimed.time.split('T').next() == scope.split('/').next();
        if !is_of_day || !claimed.is_of_time(now_ms) {
            return None;
        }
        let key = signature::key(&secret(id)?, scope.split('/'));
        let signed = claimed.text(scope, &claimed.canonical(head, headers)?);
        let tag = signature::unhex(claimed.signature)?;
        hmac::verify(&key, signed.as_bytes(), &tag).ok()?;
        Some(Self {
            head,
            id,
            scope,
            key,
            claimed,
        })
    }

    /// The checker for the chunks of its body, which starts from its own signature.
    pub fn signatures(&self) -> Signatures {
        let Claimed { time, signature, .. } = self.claimed;
        Signatures::new(self.key.clone(), time, self.scope, signature)
    }

    /// Signs it again with other headers. `None` if they are not in canonical form.
    pub fn sign_again(&self, headers: &mut HeaderMap) -> Option<()> {
        let claimed = Claimed::of(self.head, headers)?;
        let signed = claimed.text(self.scope, &claimed.canonical(self.head, headers)?);
        let signature = digest::hex(hmac::sign(&self.key, signed.as_bytes()).as_ref());
        let said = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let said = said.replace(claimed.signature, &signature);
        headers.insert(header::AUTHORIZATION, said.try_into().ok()?);
        Some(())
    }
}

/// Removes [`idle`] headers from a request with a valid signature in its header, and signs it
/// again: the signature may cover headers that `s3s` would refuse. A request with an invalid
/// signature is not changed.
pub fn take_out_idle(
    head: &Head,
    headers: &mut HeaderMap,
    secret: impl FnOnce(&str) -> Option<String>,
    now_ms: u64,
) -> Option<()> {
    if !head.is_signed_in_header {
        return None;
    }
    let names: Vec<_> = idle(headers).collect();
    if names.is_empty() {
        return None;
    }
    let mut left = headers.clone();
    let verified = Verified::of(head, headers, secret, now_ms)?;
    let covered = verified.claimed.signed_headers;
    let kept: Vec<_> = covered
        .split(';')
        .filter(|name| names.iter().all(|idle| idle.as_str() != *name))
        .collect();
    let said = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let said = said.replace(covered, &kept.join(";"));
    left.insert(header::AUTHORIZATION, said.try_into().ok()?);
    for name in names {
        left.remove(name);
    }
    verified.sign_again(&mut left)?;
    *headers = left;
    Some(())
}

/// The ID of the key, not of a session, of a valid signature on a request without chunks.
pub fn signer<'h>(
    head: &'h Head,
    headers: &'h HeaderMap,
    secret: impl FnOnce(&str) -> Option<String>,
    now_ms: u64,
) -> Option<&'h str> {
    let secret = |id: &str| session::parent(id).is_none().then(|| secret(id)).flatten();
    let verified = Verified::of(head, headers, secret, now_ms)?;
    (!verified.claimed.payload.starts_with(IN_CHUNKS)).then_some(verified.id)
}

/// A query in canonical form.
pub fn canonical_query<'q>(pairs: impl Iterator<Item = &'q (String, String)>) -> String {
    let mut pairs: Vec<_> = pairs.map(|(name, value)| (encoded(name), encoded(value))).collect();
    pairs.sort();
    let mut text = String::new();
    for (at, (name, value)) in pairs.iter().enumerate() {
        text.extend([if at == 0 { "" } else { "&" }, name.as_str(), "=", value.as_str()]);
    }
    text
}

/// Signs a request in canonical form for a key whose signature was verified in another way. `None`
/// if that is not possible.
pub fn sign(parts: &mut Parts, id: &str, secret: &str, now: SystemTime) -> Option<()> {
    let time = Moment(now).of_signature();
    let scope = format!("{}/{REGION}/s3/aws4_request", time.split('T').next()?);
    parts
        .headers
        .entry(CONTENT_HASH)
        .or_insert(HeaderValue::from_static(NO_HASH));
    parts.headers.insert("x-amz-date", HeaderValue::from_str(&time).ok()?);
    let credential = format!("{id}/{scope}");
    let claimed = Claimed {
        credential: &credential,
        time: &time,
        life: SKEW_MAX,
        signed_headers: "x-amz-content-sha256;x-amz-date",
        signature: "",
        payload: parts.headers.get(CONTENT_HASH)?.to_str().ok()?,
    };
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or(""));
    let canonical = claimed.canonical_of(&parts.method, path, query, &parts.headers)?;
    let key = signature::key(secret, scope.split('/'));
    let signature = digest::hex(hmac::sign(&key, claimed.text(&scope, &canonical).as_bytes()).as_ref());
    let said = format!(
        "{} Credential={credential}, SignedHeaders={}, Signature={signature}",
        signature::ALGORITHM,
        claimed.signed_headers
    );
    parts.headers.insert(header::AUTHORIZATION, said.try_into().ok()?);
    Some(())
}

/// Text encoded as in a canonical query.
pub fn encoded(text: &str) -> String {
    percent_encode(text).replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::head::tests::head;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const SCOPE: &str = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
    /// 24 May 2013, 00:00.
    const TIME_MS: u64 = 1_369_353_600_000;
    const MINUTE_MS: u64 = 60_000;

    fn signer_of(method: &str, uri: &str, headers: &[(&str, &str)], now_ms: u64) -> Option<String> {
        let (head, headers, _) = head(method, uri, headers);
        let secret = |id: &str| (id == "AKIAIOSFODNN7EXAMPLE").then(|| SECRET.to_owned());
        signer(&head, &headers, secret, now_ms).map(str::to_owned)
    }

    /// The example of "Authenticating Requests: Using Query Parameters" in S3's API reference.
    #[test]
    fn presigned() {
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&\
             X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
            SCOPE.replace('/', "%2F")
        );
        let target = format!("/test.txt?{query}");
        let at = |now_ms| signer_of("GET", &target, &[HOST], now_ms).is_some();
        assert!(at(TIME_MS) && at(TIME_MS + 86_400_000) && at(TIME_MS - 15 * MINUTE_MS));
        assert!(!at(TIME_MS + 86_400_001) && !at(TIME_MS - 15 * MINUTE_MS - 1));
        let is_right = |method, uri: &str, host| signer_of(method, uri, &[("host", host)], TIME_MS).is_some();
        assert!(!is_right("HEAD", &target, HOST.1));
        assert!(!is_right("GET", &target, "other.s3.amazonaws.com"));
        for (part, other) in [
            ("/test.txt", "/test.txu"),
            ("/test.txt", "/%74est.txt"),
            ("86400", "86401"),
            ("Signature=aeee", "Signature=AEEE"),
            ("Signature=aeee", "Signature=beee"),
            ("AKIA", "BKIA"),
            ("us-east-1", "us-east-2"),
            ("%2Fs3%2F", "%2Fsts%2F"),
            (
                "Credential=AKIAIOSFODNN7EXAMPLE%2F20130524",
                "Credential=AKIAIOSFODNN7EXAMPLE%2F20130525",
            ),
            ("SignedHeaders=host", "SignedHeaders=host%3Brange"),
            ("&X-Amz-Expires", "&versionId=null&X-Amz-Expires"),
        ] {
            let changed = target.replace(part, other);
            assert_ne!(changed, target);
            assert!(!is_right("GET", &changed, HOST.1), "{part} {other}");
        }
        let (names, signature) = target.rsplit_once('&').unwrap();
        let (path, names) = names.split_once('?').unwrap();
        let moved = format!("{path}?{signature}&{names}");
        assert!(is_right("GET", &moved, HOST.1), "in another order it means the same");
    }

    /// The example "GET Bucket Lifecycle" of "Using the Authorization Header".
    #[test]
    fn signed_in_the_header() {
        let signature = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        let said = format!(
            "AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature={signature}"
        );
        let at = |authorization: &str, hash: &str, date: &str, now_ms| {
            let headers = [
                HOST,
                ("authorization", authorization),
                ("x-amz-date", date),
                ("x-amz-content-sha256", hash),
            ];
            signer_of("GET", "/?lifecycle", &headers, now_ms).is_some()
        };
        let date = "20130524T000000Z";
        assert!(at(&said, HASH, date, TIME_MS) && at(&said, HASH, date, TIME_MS + 15 * MINUTE_MS));
        assert!(!at(&said, HASH, date, TIME_MS + 15 * MINUTE_MS + 1));
        assert!(!at(&said, NO_HASH, date, TIME_MS) && !at(&said, HASH, "20130524T000001Z", TIME_MS));
        for (part, other) in [
            (
                "host;x-amz-content-sha256;x-amz-date",
                "x-amz-content-sha256;host;x-amz-date",
            ),
            ("host;", ""),
            (signature, ""),
            (signature, &signature[..62]),
            ("HMAC", "OTHER"),
        ] {
            assert!(!at(&said.replace(part, other), HASH, date, TIME_MS), "{part} {other}");
        }
    }
}
