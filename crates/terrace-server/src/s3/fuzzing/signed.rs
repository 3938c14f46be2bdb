//! Signatures of heads, made as clients make them ("Authenticating Requests" in S3's API
//! reference): both the short way and the checks before the long way accept signed heads, and
//! neither accepts heads changed after signing.

use super::{ID, SECRET, parts, read, secret};
use crate::{
    s3::{digest::hex, signature, verified},
    time_span::Moment,
};
use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use ring::{digest, hmac};
use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

const NO_HASH: &str = "UNSIGNED-PAYLOAD";

/// Date, region and service.
pub fn scope(time: &str) -> String {
    format!("{}/us-east-1/s3/aws4_request", &time[..8])
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn signature(time: &str, canonical: &str) -> String {
    let scope = scope(time);
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{SECRET}").as_bytes());
    let key = scope.split('/').fold(first, |key, part| {
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
    });
    let signed = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
    hex(hmac::sign(&key, signed.as_bytes()).as_ref())
}

fn canonical(
    method: &str,
    path: &str,
    query: &[(String, String)],
    headers: &HeaderMap,
    payload: &str,
) -> (String, String) {
    let mut pairs: Vec<_> = query
        .iter()
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<_> = pairs
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    let text = |name: &&str| String::from_utf8_lossy(headers[*name].as_bytes()).into_owned();
    let lines: String = names.iter().map(|name| format!("{name}:{}\n", text(name))).collect();
    let names = names.join(";");
    let text = format!("{method}\n{path}\n{}\n{lines}\n{names}\n{payload}", pairs.join("&"));
    (text, names)
}

/// Signs all of these headers, with their `x-amz-date` and `x-amz-content-sha256`.
pub fn sign_in_header(
    method: &str,
    path: &str,
    query: &[(String, String)],
    headers: &mut HeaderMap,
    time: &str,
) -> String {
    let payload = String::from_utf8_lossy(headers["x-amz-content-sha256"].as_bytes()).into_owned();
    let (text, names) = canonical(method, path, query, headers, &payload);
    let signature = signature(time, &text);
    let scope = scope(time);
    let said = format!("AWS4-HMAC-SHA256 Credential={ID}/{scope}, SignedHeaders={names}, Signature={signature}");
    if let Ok(said) = HeaderValue::from_str(&said) {
        headers.insert(header::AUTHORIZATION, said);
    }
    signature
}

/// Whether a head can be signed in one way only, and is not yet.
fn is_plain(parts: &Parts) -> bool {
    let is_text = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or("  ");
        !text.contains("  ") && !text.contains('\t') && text.trim() == text
    };
    let is_ours = |name: &HeaderName| name.as_str().starts_with("x-amz-") || name == header::AUTHORIZATION;
    let path: Vec<_> = parts.uri.path().split('/').collect();
    parts.headers.contains_key(header::HOST)
        && parts.headers.len() == parts.headers.keys_len()
        && parts.headers.values().all(is_text)
        && !parts.headers.keys().any(is_ours)
        && path.iter().all(|part| encoded(part) == **part)
}

fn signer_of(parts: &Parts) -> Option<bool> {
    let mut parts = parts.clone();
    let (head, clear) = read(&mut parts);
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    let taken = verified::signer(&head, &parts.headers, secret, now_ms) == Some(ID);
    if taken && clear.is_ok() && !head.is_call && !head.is_form {
        let checked = signature::check(&head, &parts.headers);
        assert!(checked.is_ok(), "one way takes it and the other does not: {checked:?}");
    }
    clear.ok().map(|()| taken)
}

fn with_target(parts: &Parts, target: &str) -> Option<Parts> {
    let mut parts = parts.clone();
    parts.uri = target.parse().ok()?;
    Some(parts)
}

/// A head, as lines, which is signed here: the first byte chooses header or query, and what is
/// changed afterwards.
pub fn signed_head(input: &[u8]) -> bool {
    let Some((choice, text)) = input.split_first() else {
        return false;
    };
    let Some(mut given) = parts(text).filter(is_plain) else {
        return false;
    };
    let query = given.uri.query().unwrap_or("").to_owned();
    let mut pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    if pairs.iter().any(|(name, _)| signature::is_of_signature(name)) {
        return false;
    }
    let time = Moment(SystemTime::now()).of_signature();
    let (method, path) = (given.method.to_string(), given.uri.path().to_owned());
    let in_query = choice & 1 == 1;
    if in_query {
        let mut names: Vec<_> = given.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &format!("{ID}/{}", scope(&time))),
            ("X-Amz-Date", &time),
            ("X-Amz-Expires", "600"),
            ("X-Amz-SignedHeaders", &names.join(";")),
        ] {
            pairs.push((name.to_owned(), value.to_owned()));
        }
        let (text, _) = canonical(&method, &path, &pairs, &given.headers, NO_HASH);
        pairs.push(("X-Amz-Signature".to_owned(), signature(&time, &text)));
    } else {
        given
            .headers
            .insert("x-amz-content-sha256", HeaderValue::from_static(NO_HASH));
        if let Ok(time) = HeaderValue::from_str(&time) {
            given.headers.insert("x-amz-date", time);
        }
        sign_in_header(&method, &path, &pairs, &mut given.headers, &time);
    }
    let query: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    let target = format!("{path}?{}", query.join("&"));
    let Some(signed) = with_target(&given, &target) else {
        return false;
    };
    let Some(taken) = signer_of(&signed) else { return false };
    // Headers without effect are removed from a head with a signature in its query before it is
    // checked.
    let is_idle = [header::RANGE, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE]
        .iter()
        .any(|name| given.headers.contains_key(name));
    assert!(taken || is_idle, "it is signed: {target}");
    changed(&signed, &target, choice >> 1);
    taken
}

/// A head changed after signing is not accepted.
fn changed(signed: &Parts, target: &str, choice: u8) {
    let mut other = signed.clone();
    match choice % 6 {
        0 => {
            other.method = if signed.method == "GET" { "HEAD" } else { "GET" }
                .try_into()
                .unwrap_or_default()
        }
        1 => other.uri = format!("{target}&zz=1").parse().unwrap_or_default(),
        2 => other.uri = format!("/z{target}").parse().unwrap_or_default(),
        3 => other.uri = target.replacen("600", "601", 1).parse().unwrap_or_default(),
        4 => {
            other
                .headers
                .insert(header::HOST, HeaderValue::from_static("other.example.net"));
        }
        _ => {
            let said = other
                .headers
                .get(header::AUTHORIZATION)
                .and_then(|said| said.to_str().ok());
            let said = said.map(|said| said.replace("Signature=", "Signature=0"));
            if let Some(said) = said.and_then(|said| HeaderValue::from_str(&said).ok()) {
                other.headers.insert(header::AUTHORIZATION, said);
            }
        }
    }
    let is_same = other.method == signed.method && other.uri == signed.uri && other.headers == signed.headers;
    assert!(is_same || signer_of(&other) != Some(true), "it was not signed so");
}
