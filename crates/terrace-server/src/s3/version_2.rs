//! Signatures of version 2, in the header (`AWS ID:SIGNATURE`) and in the query ("Signing and
//! authenticating REST requests" in S3's user guide). boto3 presigns with them by default, and old
//! clients use them for everything.
//!
//! They are verified only here. `s3s` supports them too, but covers fewer subresources than it has
//! operations, and compares in a time that depends on the guess. It gets a verified request signed
//! again by version 4, with path and query in canonical form, so all requests are read in one way.
//!
//! Such a signature covers method, path, subresources, `Content-MD5`, `Content-Type`, the time and
//! the headers `x-amz-…`, but no other header or query name and not the body.

use super::{
    chunks::unsigned_length,
    head::Head,
    refuse::SUBRESOURCES,
    signature::{SKEW_MAX, not_version_2, too_skewed, two_signatures},
    verified,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::{
    HeaderMap, Uri,
    header::{self, HeaderName, HeaderValue},
    http::{request::Parts, uri::PathAndQuery},
};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use sha1::Sha1;
use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use terrace_objects::text::percent_encode;

/// Query names of such a signature.
pub const FIELDS: [&str; 3] = ["Signature", "AWSAccessKeyId", "Expires"];
/// Prefix of the header.
const SCHEME: &str = "AWS ";
/// Prefix of the covered headers.
const OURS: &str = "x-amz-";
/// Covered query names, besides subresources.
const COVERED: [&str; 9] = [
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "uploadId",
    "versionId",
];
/// Query names of a signature of version 4.
const VERSION_4: [&str; 3] = ["X-Amz-Signature", "X-Amz-Algorithm", "X-Amz-Credential"];
/// First word of a date. S3 does not check the day.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Marks a request signed by version 2.
#[derive(Debug)]
pub struct Version2 {
    /// Its time, if that is in a header.
    date: Option<String>,
}

impl Version2 {
    /// `None` if it is not.
    pub fn of(headers: &HeaderMap, query: &[(String, String)]) -> Option<Self> {
        let in_header = text(headers, &header::AUTHORIZATION).is_some_and(|said| said.starts_with(SCHEME));
        let date = || text(headers, &AMZ_DATE).or_else(|| text(headers, &header::DATE));
        (in_header || is_in_query(query)).then(|| Self {
            date: date().filter(|_| in_header).map(str::to_owned),
        })
    }

    /// Time of signing, in milliseconds since 1970, if there is one.
    pub fn signed_ms(&self) -> Option<u64> {
        let time = time_of(self.date.as_deref()?)?;
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }
}

/// Replaces `Date`.
static AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");

/// Whether a query is signed so.
pub fn is_in_query(query: &[(String, String)]) -> bool {
    query.iter().any(|(name, _)| FIELDS[..2].contains(&name.as_str()))
}

/// Refuses malformed signatures.
///
/// # Errors
/// `InvalidRequest`, `InvalidArgument`, `AccessDenied`.
pub fn check(head: &Head, headers: &HeaderMap) -> S3Result {
    // Calls never have such a signature, and forms have theirs in their fields.
    if head.is_call || head.is_form {
        return Err(not_version_2());
    }
    let in_query = is_in_query(&head.query);
    let is_version_4 = VERSION_4.iter().any(|name| head.has(name));
    if is_version_4 || (in_query && head.is_signed_in_header) {
        return Err(two_signatures());
    }
    if in_query && FIELDS.iter().any(|name| head.value(name).is_none_or(str::is_empty)) {
        return Err(s3_error!(
            AccessDenied,
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        ));
    }
    if !in_query {
        of_header(headers)?;
    }
    let names = || head.query.iter().map(|(name, _)| name);
    if let Some(name) = names().find(|name| names().filter(|other| other == name).count() > 1) {
        return Err(s3_error!(InvalidArgument, "The query has {name} more than once."));
    }
    unsigned_length(head, headers).map(drop)
}

/// Verifies the signature, and signs the request again by version 4.
///
/// # Errors
/// `InvalidAccessKeyId`, `SignatureDoesNotMatch`, `RequestTimeTooSkewed`, `AccessDenied`,
/// `InvalidArgument`.
pub fn carry(head: &Head, parts: &mut Parts, secret: impl FnOnce(&str) -> Option<String>, now: SystemTime) -> S3Result {
    let claimed = Claimed::of(head, &parts.headers)?;
    claimed.check_time(now)?;
    let secret = secret(claimed.id).ok_or_else(|| {
        s3_error!(
            InvalidAccessKeyId,
            "The AWS Access Key Id you provided does not exist in our records."
        )
    })?;
    let tag = STANDARD.decode(claimed.signature).map_err(|_| mismatch())?;
    let is_right = |path: &str| {
        let signed = claimed.text(head, &parts.headers, path);
        let mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).ok();
        signed.zip(mac).is_some_and(|(signed, mut mac)| {
            mac.update(signed.as_bytes());
            mac.verify_slice(&tag).is_ok()
        })
    };
    let path = head.uri.path();
    // S3 treats a bucket's path as ending with a slash, and botocore signs it so.
    let is_bucket = head.place().is_some_and(|(_, key)| key.is_empty()) && !path.ends_with('/');
    let is_signed = is_right(path) || (is_bucket && is_right(&format!("{path}/")));
    if !is_signed {
        return Err(mismatch());
    }
    let id = claimed.id.to_owned();
    parts.uri = meant(head, &parts.uri).ok_or(S3ErrorCode::InternalError)?;
    verified::sign(parts, &id, &secret, now).ok_or_else(|| S3ErrorCode::InternalError.into())
}

/// The signature parameters of a request.
struct Claimed<'a> {
    id: &'a str,
    signature: &'a str,
    time: Time<'a>,
}

/// Its period of validity.
enum Time<'a> {
    /// Around this time.
    Signed(&'a str),
    /// Until this many seconds after 1970.
    Expires(&'a str),
}

/// The key's ID and the signature of a header.
fn of_header(headers: &HeaderMap) -> S3Result<(&str, &str)> {
    let said = text(headers, &header::AUTHORIZATION).and_then(|said| said.strip_prefix(SCHEME));
    let parts = said.and_then(|said| said.trim().split_once(':'));
    let whole = parts.filter(|(id, signature)| !id.is_empty() && !signature.is_empty());
    whole.ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "The authorization header is not of the form AWS ID:SIGNATURE."
        )
    })
}

impl<'a> Claimed<'a> {
    fn of(head: &'a Head, headers: &'a HeaderMap) -> S3Result<Self> {
        if let Some(expires) = head.value("Expires").filter(|_| is_in_query(&head.query)) {
            return Ok(Self {
                id: head.value("AWSAccessKeyId").unwrap_or_default(),
                signature: head.value("Signature").unwrap_or_default(),
                time: Time::Expires(expires),
            });
        }
        let (id, signature) = of_header(headers)?;
        let date = text(headers, &AMZ_DATE).or_else(|| text(headers, &header::DATE));
        let date = date.ok_or_else(no_date)?;
        Ok(Self {
            id,
            signature,
            time: Time::Signed(date),
        })
    }

    fn check_time(&self, now: SystemTime) -> S3Result {
        match self.time {
            Time::Signed(date) => {
                let signed = time_of(date).ok_or_else(no_date)?;
                let (early, late) = (signed.duration_since(now), now.duration_since(signed));
                if early.or(late).unwrap_or_default() > SKEW_MAX {
                    return Err(too_skewed());
                }
            }
            Time::Expires(seconds) => {
                let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
                let until = seconds.parse().ok().filter(|_| is_number);
                let until: u64 = until.ok_or_else(|| {
                    s3_error!(AccessDenied, "Invalid date (should be seconds since epoch): {seconds}")
                })?;
                if now.duration_since(UNIX_EPOCH).unwrap_or_default() > Duration::from_secs(until) {
                    return Err(s3_error!(AccessDenied, "Request has expired"));
                }
            }
        }
        Ok(())
    }

    /// The string to sign ("StringToSign" in the documentation) for this path. `None` if a header
    /// is not text.
    fn text(&self, head: &Head, headers: &HeaderMap, path: &str) -> Option<String> {
        let value = |name: &str| headers.get(name).map_or(Some(""), as_text);
        let time = match self.time {
            Time::Signed(_) if headers.contains_key(&AMZ_DATE) => "",
            Time::Signed(time) | Time::Expires(time) => time,
        };
        let (md5, kind) = (value("content-md5")?, value("content-type")?);
        let mut signed = format!("{}\n{md5}\n{kind}\n{time}\n", head.method);
        let names = headers.keys().map(HeaderName::as_str);
        let mut names: Vec<_> = names.filter(|name| name.starts_with(OURS)).collect();
        names.sort_unstable();
        for name in names {
            let values: Option<Vec<_>> = headers.get_all(name).iter().map(as_text).collect();
            signed.extend([name, ":", &values?.join(","), "\n"]);
        }
        if let Some(bucket) = head.bucket().filter(|_| head.is_of_host()) {
            signed.extend(["/", bucket]);
        }
        signed.push_str(path);
        let mut named: Vec<_> = head.query.iter().filter(|(name, _)| is_covered(name)).collect();
        named.sort();
        for (at, (name, value)) in named.into_iter().enumerate() {
            signed.extend([if at == 0 { "?" } else { "&" }, name]);
            if !value.is_empty() {
                signed.extend(["=", value]);
            }
        }
        Some(signed)
    }
}

/// Whether a query name is covered by a signature: those in the documentation, and each later
/// subresource, so that a URL is valid only for its operation.
fn is_covered(name: &str) -> bool {
    COVERED.contains(&name) || SUBRESOURCES.contains(&name)
}

/// The target in canonical form, without signature parameters.
fn meant(head: &Head, uri: &Uri) -> Option<Uri> {
    let path = percent_encode(head.path()?);
    let is_of_request = |name: &str| !FIELDS.contains(&name) && !name.starts_with(OURS);
    let rest = head.query.iter().filter(|(name, _)| is_of_request(name));
    let query = verified::canonical_query(rest);
    let target = if query.is_empty() {
        path
    } else {
        format!("{path}?{query}")
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}

/// Parses a time as in RFC 9110 with any day of the week, or with `+0000` instead of `GMT`, or as
/// in version 4.
fn time_of(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let zones = [" +0000", " -0000", " UTC"];
    let bare = zones.iter().find_map(|zone| text.strip_suffix(zone));
    let text = bare.map_or_else(|| text.into(), |bare| Cow::from(format!("{bare} GMT")));
    let parsed = httpdate::parse_http_date(&text).ok();
    let on_any_day = || {
        let (_, date) = text.split_once(", ")?;
        let mut dates = DAYS.iter().map(|day| format!("{day}, {date}"));
        dates.find_map(|text| httpdate::parse_http_date(&text).ok())
    };
    let compact = || super::judged::milliseconds_of(&text).map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
    parsed.or_else(on_any_day).or_else(compact)
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(as_text)
}

fn as_text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok().map(str::trim)
}

fn no_date() -> S3Error {
    s3_error!(
        AccessDenied,
        "AWS authentication requires a valid Date or x-amz-date header"
    )
}

fn mismatch() -> S3Error {
    s3_error!(
        SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method."
    )
}

#[cfg(test)]
mod tests;
