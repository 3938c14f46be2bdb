//! Checks the form of signatures before `s3s` verifies them.
//!
//! `s3s` has one answer for all malformed signatures, and no limit on the life of a presigned URL.
//! S3 distinguishes the cases (the "Error responses" of its API reference), and clients depend on
//! the codes.

use super::{
    chunks::unsigned_length,
    head::{Head, begins},
    judged::milliseconds_of,
    version_2,
};
use hyper::{
    HeaderMap, Method,
    header::{self, HeaderName, HeaderValue},
};
use ring::hmac;
use s3s::{S3Error, S3Result, s3_error};
use std::time::Duration;

/// The only algorithm.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Longest life of a presigned URL, in seconds: a week.
const LIFE_MAX_S: i64 = 7 * 24 * 60 * 60;
/// Tolerated difference of a client's clock, as in S3.
pub const SKEW_MAX: Duration = Duration::from_millis(SKEW_MAX_MS);
const SKEW_MAX_MS: u64 = 15 * 60 * 1000;
/// Query names of a presigned URL.
const QUERY_FIELDS: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "X-Amz-Date",
    "X-Amz-SignedHeaders",
    "X-Amz-Expires",
];
/// Headers that need not be signed: the first two are covered in another way.
const UNSIGNED: [&str; 3] = ["x-amz-content-sha256", "x-amz-date", "x-amz-user-agent"];
/// Headers that may occur once, besides those with the prefix [`OURS`]. Readers disagree on
/// repeated ones: some take the first, `s3s` takes none.
const SAID_ONCE: [header::HeaderName; 10] = [
    header::AUTHORIZATION,
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::DATE,
    header::EXPECT,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::RANGE,
    header::TRANSFER_ENCODING,
];
/// Prefix of S3's headers.
const OURS: &str = "x-amz-";
/// Headers of S3 that may have several lines.
const SAID_OFTEN: [&str; 3] = [
    "x-amz-meta-",
    "x-amz-object-attributes",
    "x-amz-optional-object-attributes",
];
/// Parameters of a presigned URL, in lower case, with the prefix of S3's headers that are not
/// headers: they belong to the signature, or SDKs add them by default.
const NO_HEADERS: [&str; 9] = [
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];
/// Prefix of checksum headers.
const CHECKSUM: &str = "x-amz-checksum-";
/// Checksums of an empty body: CRC-32 and CRC-32C, CRC-64/NVME, SHA-1, SHA-256.
const OF_NOTHING: [&str; 4] = [
    "AAAAAA==",
    "AAAAAAAAAAA=",
    "2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
    "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
];
/// Query names that may occur once, besides those of signatures.
const ASKED_ONCE: [&str; 3] = ["versionId", "uploadId", "partNumber"];
/// Prefix of query names that choose headers of the answer.
const RESPONSE_HEADERS: &str = "response-";

/// Refuses malformed signatures, and unsigned requests that need a signature.
///
/// # Errors
/// `InvalidArgument`, `InvalidRequest`, `AuthorizationHeaderMalformed`,
/// `AuthorizationQueryParametersError`, `AccessDenied`.
pub fn check(head: &Head, headers: &HeaderMap) -> S3Result {
    if head.version_2.is_some() {
        version_2::check(head, headers)?;
        return check_content_hash(headers);
    }
    let authorization = headers.get(header::AUTHORIZATION);
    // A value that is not text is refused as a malformed signature.
    let in_header = authorization.map(|value| value.to_str().unwrap_or("?"));
    match (in_header, head.is_signed_in_query) {
        (Some(_), true) => Err(two_signatures()),
        (Some(text), false) => check_header(head, headers, text),
        (None, true) => check_query(head),
        (None, false) => refuse_choices(head).and_then(|()| unsigned_length(head, headers).map(drop)),
    }?;
    check_content_hash(headers)?;
    if let Some(signed) = in_header.and_then(|text| field(text, "SignedHeaders")) {
        return check_signed(headers, signed, |_| false);
    }
    // The query is signed as a whole.
    let in_query = |name: &str| {
        let mut headers = head.query.iter().filter(|(name, value)| is_header(name, value));
        head.is_signed_in_query && headers.any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    let signed = head.value("X-Amz-SignedHeaders");
    signed.map_or(Ok(()), |signed| check_signed(headers, signed, in_query))
}

/// Refuses repeated names that may occur once.
///
/// # Errors
/// `InvalidArgument`
pub fn refuse_repeated(headers: &HeaderMap, query: &[(String, String)]) -> S3Result {
    if headers.len() != headers.keys_len() {
        let is_single = |name: &&header::HeaderName| {
            let is_ours = name.as_str().starts_with(OURS);
            let is_list = SAID_OFTEN.iter().any(|start| name.as_str().starts_with(start));
            (SAID_ONCE.contains(*name) || name.as_str() == "content-md5" || is_ours) && !is_list
        };
        let repeated = headers
            .keys()
            .filter(is_single)
            .find(|name| headers.get_all(*name).iter().count() > 1);
        if let Some(name) = repeated {
            return Err(s3_error!(InvalidArgument, "The header {name} is there more than once."));
        }
    }
    let is_single = |name: &str| ASKED_ONCE.contains(&name) || is_of_signature(name);
    let is_repeated = |at: usize, name: &str| query[..at].iter().any(|(before, _)| before == name);
    let mut names = query.iter().map(|(name, _)| name.as_str()).enumerate();
    match names.find(|(at, name)| is_single(name) && is_repeated(*at, name)) {
        None => Ok(()),
        Some((_, name)) => Err(s3_error!(InvalidArgument, "The query has {name} more than once.")),
    }
}

/// Adds the headers in the query of a presigned URL: presigners put signed headers there, which the
/// holder of the URL need not know. The signature is checked later; if it is invalid, the request
/// is refused as it would be without them.
///
/// # Errors
/// `InvalidArgument` if a header occurs twice, or has an invalid name or value.
pub fn take_out(query: &[(String, String)], headers: &mut HeaderMap) -> S3Result {
    let is_version_2 = version_2::is_in_query(query);
    let is_one = |name: &str, value: &str| {
        if is_version_2 {
            name.starts_with(OURS)
        } else {
            is_header(name, value)
        }
    };
    for (name, value) in query.iter().filter(|(name, value)| is_one(name, value)) {
        let said = HeaderName::from_bytes(name.as_bytes()).ok();
        let said = said.zip(HeaderValue::from_str(value).ok());
        let (known, value) =
            said.ok_or_else(|| s3_error!(InvalidArgument, "No header can be like the parameter {name:?}."))?;
        if headers.get_all(&known).iter().any(|given| *given != value) {
            return Err(s3_error!(
                InvalidArgument,
                "The header {name} and the parameter of this name are not the same."
            ));
        }
        headers.insert(known, value);
    }
    Ok(())
}

/// Whether a parameter of a URL presigned by version 4 is a header. The checksum of an empty body
/// is not: SDKs put it there when they presign for an unknown body, and S3 then accepts any body.
fn is_header(name: &str, value: &str) -> bool {
    let is_empty = || begins(name, CHECKSUM) && OF_NOTHING.contains(&value);
    begins(name, OURS) && !NO_HEADERS.iter().any(|other| name.eq_ignore_ascii_case(other)) && !is_empty()
}

/// Whether a decoded query name belongs to a signature.
pub fn is_of_signature(name: &str) -> bool {
    begins(name, OURS) || version_2::FIELDS.contains(&name)
}

/// Key ID and scope of a credential, if the scope is for this service.
pub fn scope<'c>(credential: &'c str, service: &str) -> Option<(&'c str, &'c str)> {
    let (at, _) = credential.rmatch_indices('/').nth(3)?;
    let (id, scope) = (&credential[..at], &credential[at + 1..]);
    let mut parts = scope.split('/');
    let [date, region, named, end] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let is_date = date.len() == 8 && is_number(date);
    let is_scope = is_date && named == service && end == "aws4_request" && !region.is_empty();
    (is_scope && !id.is_empty()).then_some((id, scope))
}

/// The signing key for a scope, given by the parts after the key's ID.
pub fn key<'s>(secret: &str, scope: impl Iterator<Item = &'s str>) -> hmac::Key {
    let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    scope.fold(first, |key, part| {
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
    })
}

/// Decodes lower-case hex digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes().chunks(2).map(|pair| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    bytes.collect()
}

/// A field of the header's value: `NAME=VALUE`, separated by commas or spaces.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    // By bytes: each signed request needs three of them, and splitting at characters took 3 % of a
    // GET's time.
    let mut rest = text;
    loop {
        let end = rest.bytes().position(|byte| matches!(byte, b',' | b' '));
        let part = &rest[..end.unwrap_or(rest.len())];
        if let Some(value) = part.strip_prefix(name).and_then(|part| part.strip_prefix('=')) {
            return Some(value);
        }
        rest = &rest[end? + 1..];
    }
}

/// A request is signed in two ways.
pub fn two_signatures() -> S3Error {
    s3_error!(
        InvalidArgument,
        "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified"
    )
}

/// Signatures of version 2 are switched off.
pub fn not_version_2() -> S3Error {
    s3_error!(
        InvalidRequest,
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
    )
}

fn check_header(head: &Head, headers: &HeaderMap, text: &str) -> S3Result {
    let Some(rest) = text.strip_prefix(ALGORITHM) else {
        return Err(s3_error!(
            InvalidArgument,
            "This type of authorization is not supported."
        ));
    };
    let is_whole = field(rest, "SignedHeaders").is_some() && field(rest, "Signature").is_some();
    // A signature is for one service only.
    let service = if head.is_call { "sts" } else { "s3" };
    if !is_whole || field(rest, "Credential").is_none_or(|credential| scope(credential, service).is_none()) {
        return Err(s3_error!(
            AuthorizationHeaderMalformed,
            "The authorization header needs Credential=ID/YYYYMMDD/REGION/{service}/aws4_request, SignedHeaders and Signature."
        ));
    }
    let date = headers.get("x-amz-date").and_then(|value| value.to_str().ok());
    let Some(signed_ms) = date.and_then(milliseconds_of) else {
        return Err(s3_error!(
            AccessDenied,
            "A signed request needs a valid x-amz-date header: YYYYMMDDTHHMMSSZ."
        ));
    };
    // `s3s` does not limit the difference.
    if head.peer.arrived_ms.abs_diff(signed_ms) > SKEW_MAX_MS {
        return Err(too_skewed());
    }
    Ok(())
}

/// The clocks of client and server differ by more than [`SKEW_MAX`].
pub fn too_skewed() -> S3Error {
    s3_error!(
        RequestTimeTooSkewed,
        "The difference between the request time and the current time is too large."
    )
}

fn check_query(head: &Head) -> S3Result {
    let wrong = |message: String| Err(s3_error!(AuthorizationQueryParametersError, "{message}"));
    if QUERY_FIELDS.iter().any(|name| !head.has(name)) {
        return wrong(format!(
            "A signature in the query needs all of {}.",
            QUERY_FIELDS.join(", ")
        ));
    }
    let value = |name| head.value(name).unwrap_or("");
    if value("X-Amz-Algorithm") != ALGORITHM {
        return wrong(format!("X-Amz-Algorithm can only be {ALGORITHM}."));
    }
    if !is_scope(value("X-Amz-Credential")) {
        return wrong("X-Amz-Credential is not ID/YYYYMMDD/REGION/s3/aws4_request.".to_owned());
    }
    if !is_time(value("X-Amz-Date")) {
        return wrong("X-Amz-Date is not YYYYMMDDTHHMMSSZ.".to_owned());
    }
    let latest_ms = head.peer.arrived_ms.saturating_add(SKEW_MAX_MS);
    match value("X-Amz-Expires").parse::<i64>() {
        Err(_) => wrong("X-Amz-Expires is not a number.".to_owned()),
        Ok(..0) => wrong("X-Amz-Expires is negative.".to_owned()),
        Ok(seconds) if seconds > LIFE_MAX_S => wrong(format!("X-Amz-Expires is more than {LIFE_MAX_S} seconds.")),
        // `s3s` would report `RequestTimeTooSkewed`, which S3 has for signatures in the header.
        Ok(_) if milliseconds_of(value("X-Amz-Date")).is_some_and(|ms| ms > latest_ms) => {
            Err(s3_error!(AccessDenied, "Request is not yet valid"))
        }
        Ok(_) => Ok(()),
    }
}

/// Refuses a presigned URL whose life has ended. `s3s` compares it with the system's clock only.
///
/// # Errors
/// `AccessDenied`
pub fn refuse_ended(head: &Head) -> S3Result {
    let value = |name| head.value(name).filter(|_| head.is_signed_in_query);
    let signed_ms = value("X-Amz-Date").and_then(milliseconds_of);
    let life_s = value("X-Amz-Expires").and_then(|text| text.parse::<u64>().ok());
    let end_ms = signed_ms
        .zip(life_s)
        .map(|(signed_ms, life_s)| signed_ms.saturating_add(life_s.saturating_mul(1000)));
    if end_ms.is_some_and(|end_ms| end_ms < head.peer.arrived_ms) {
        return Err(ended());
    }
    Ok(())
}

/// A presigned URL, or the policy of a form, has expired.
pub fn ended() -> S3Error {
    s3_error!(AccessDenied, "Request has expired")
}

/// An unsigned link to a public object must not choose the content type for a browser.
///
/// # Errors
/// `InvalidRequest`
pub fn refuse_choices(head: &Head) -> S3Result {
    let reads = matches!(head.method, Method::GET | Method::HEAD);
    if reads && head.query.iter().any(|(name, _)| name.starts_with(RESPONSE_HEADERS)) {
        return Err(s3_error!(
            InvalidRequest,
            "Only signed requests can choose headers of the answer."
        ));
    }
    Ok(())
}

fn check_content_hash(headers: &HeaderMap) -> S3Result {
    let Some(value) = headers.get("x-amz-content-sha256") else {
        return Ok(());
    };
    let is_known = |text: &str| {
        let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash || text == "UNSIGNED-PAYLOAD" || text.starts_with("STREAMING-")
    };
    if value.to_str().is_ok_and(is_known) {
        return Ok(());
    }
    Err(s3_error!(
        InvalidArgument,
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- value or a SHA-256 in hex."
    ))
}

/// `ID/YYYYMMDD/REGION/s3/aws4_request`; an ID may contain slashes.
pub fn is_scope(text: &str) -> bool {
    scope(text, "s3").is_some()
}

/// `YYYYMMDDTHHMMSSZ`
pub fn is_time(text: &str) -> bool {
    let parts = text.strip_suffix('Z').and_then(|text| text.split_once('T'));
    parts.is_some_and(|(day, time)| day.len() == 8 && time.len() == 6 && is_number(day) && is_number(time))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Refuses signed requests with relevant unsigned headers.
fn check_signed(headers: &HeaderMap, signed: &str, in_query: impl Fn(&str) -> bool) -> S3Result {
    let signed = signed.to_ascii_lowercase();
    let is_signed = |name: &str| signed.split(';').any(|other| other == name);
    let unsigned = headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| name.starts_with(OURS) && !UNSIGNED.contains(name) && !is_signed(name) && !in_query(name));
    let unsigned = unsigned.or_else(|| (!is_signed("host")).then_some("host"));
    match unsigned {
        None => Ok(()),
        Some(name) => Err(s3_error!(
            AccessDenied,
            "There were headers present in the request which were not signed: {name}"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::head::tests::head;

    /// The time in `seconds` from now, in the form of signatures.
    fn stamp(seconds: i64) -> String {
        let time = time::OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
        let (hour, minute, second) = time.to_hms();
        let day = time.date().to_string().replace('-', "");
        format!("{day}T{hour:02}{minute:02}{second:02}Z")
    }

    fn refused(method: &str, uri: &str, headers: &[(&str, &str)]) -> String {
        let (head, headers, _) = head(method, uri, headers);
        let error = check(&head, &headers).err();
        error.map_or_else(String::new, |error| error.code().as_str().to_owned())
    }

    #[test]
    fn headers_that_cannot_be_right() {
        let now = stamp(0);
        let refused = |text: &str| refused("GET", "/b/k", &[("authorization", text), ("x-amz-date", &now)]);
        let scope = "ID/20200102/us-east-1/s3/aws4_request";
        assert_eq!(
            refused(&format!(
                "{ALGORITHM} Credential={scope}, SignedHeaders=host, Signature=0"
            )),
            ""
        );
        assert_eq!(
            refused(&format!(
                "{ALGORITHM} Credential=a/{scope},SignedHeaders=host,Signature=0"
            )),
            ""
        );
        assert_eq!(refused(""), "");
        assert_eq!(refused("AWS id:signature"), "");
        assert_eq!(refused("AWS nothing"), "InvalidArgument");
        assert_eq!(refused("Basic x"), "InvalidArgument");
        for wrong in [
            format!("{ALGORITHM} Credential={scope}, SignedHeaders=host"),
            format!("{ALGORITHM} SignedHeaders=host, Signature=0"),
            format!("{ALGORITHM} Credential=ID/2020/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"),
            format!("{ALGORITHM} Credential=ID, SignedHeaders=host, Signature=0"),
            format!("{ALGORITHM} Credential=ID/20200102/r/sts/aws4_request, SignedHeaders=host, Signature=0"),
        ] {
            assert_eq!(refused(&wrong), "AuthorizationHeaderMalformed", "{wrong}");
        }
    }

    #[test]
    fn signed_requests_have_a_time() {
        let text = format!("{ALGORITHM} Credential=ID/20200102/r/s3/aws4_request, SignedHeaders=host, Signature=0");
        for date in ["", "20200102", "20200102T0304Z", "20200102T030405", "2020010xT030405Z"] {
            let headers = [("authorization", text.as_str()), ("x-amz-date", date)];
            assert_eq!(refused("GET", "/b/k", &headers), "AccessDenied", "{date}");
        }
        assert_eq!(refused("GET", "/b/k", &[("authorization", &text)]), "AccessDenied");
        let at = |seconds| {
            refused(
                "GET",
                "/b/k",
                &[("authorization", &text), ("x-amz-date", &stamp(seconds))],
            )
        };
        assert_eq!((at(-880), at(880)), (String::new(), String::new()));
        assert_eq!(at(-920), "RequestTimeTooSkewed");
        assert_eq!(at(920), "RequestTimeTooSkewed");
    }

    #[test]
    fn presigned_urls() {
        let url = |change: (&str, &str)| {
            let whole = "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ID%2F20200102%2Fr%2Fs3%2Faws4_request\
                         &X-Amz-Date=20200102T030405Z&X-Amz-Expires=604800&X-Amz-SignedHeaders=host&X-Amz-Signature=0";
            refused("GET", &whole.replace(change.0, change.1), &[])
        };
        assert_eq!(url(("", "")), "");
        for change in [
            ("=604800", "=604801"),
            ("=604800", "=-1"),
            ("=604800", "=soon"),
            ("X-Amz-Expires=604800", "x=y"),
            ("&X-Amz-Signature=0", ""),
            ("HMAC", "OTHER"),
            ("T030405Z", ""),
            ("%2Faws4_request", ""),
        ] {
            assert_eq!(url(change), "AuthorizationQueryParametersError", "{change:?}");
        }
        assert_eq!(refused("GET", "/b/k?AWSAccessKeyId=x&Signature=y", &[]), "AccessDenied");
        assert_eq!(
            refused("GET", "/b/k?X-Amz-Signature=0", &[("authorization", "Basic x")]),
            "InvalidArgument"
        );
    }

    #[test]
    fn what_needs_a_signature() {
        let uri = "/b/k?response-content-type=text%2Fhtml";
        assert_eq!(refused("GET", uri, &[]), "InvalidRequest");
        assert_eq!(refused("PUT", uri, &[]), "");
        let hash = |text| refused("GET", "/b/k", &[("x-amz-content-sha256", text)]);
        assert_eq!(hash("x"), "InvalidArgument");
        assert_eq!(hash("UNSIGNED-PAYLOAD"), "");
        assert_eq!(hash(&"0a".repeat(32)), "");
    }

    #[test]
    fn headers_that_matter_are_signed() {
        let signed = (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=x/20200102/r/s3/aws4_request, SignedHeaders=host;x-amz-meta-a, Signature=y",
        );
        let presigned = |names: &str| {
            format!(
                "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=x/20200102/r/s3/aws4_request&\
                 X-Amz-Date=20200102T030405Z&X-Amz-Expires=9&X-Amz-SignedHeaders={names}&X-Amz-Signature=y"
            )
        };
        let both = presigned("host%3Bx-amz-meta-a");
        let refused = |uri: &str, headers: &[(&str, &str)]| !refused("PUT", uri, headers).is_empty();
        let date = &stamp(0);
        let date = ("x-amz-date", date.as_str());
        assert!(!refused("/b/k", &[signed, date, ("x-amz-meta-a", "1"), ("range", "x")]));
        assert!(refused("/b/k", &[signed, date, ("x-amz-copy-source", "/b/secret")]));
        assert!(!refused(&both, &[("x-amz-meta-a", "1")]));
        assert!(refused(&both, &[("x-amz-copy-source", "/b/secret")]));
        let written_otherwise = both.replace("X-Amz-", "X%2DAmz%2d");
        assert!(!refused(&written_otherwise, &[("x-amz-meta-a", "1")]));
        assert!(refused(&written_otherwise, &[("x-amz-copy-source", "/b/secret")]));
        assert!(refused(&presigned("date"), &[]), "the host is always signed");
        assert!(!refused("/b/k", &[("x-amz-meta-a", "1")]), "anonymous");
    }
}
