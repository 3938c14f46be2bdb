//! Signatures of version 2, made as clients make them ("Signing and authenticating REST requests"
//! in S3's user guide): a signed request is converted to one signed by version 4, with the same
//! meaning, and a request changed after signing is not.

use super::{ID, SECRET, parts, read, secret};
use crate::s3::{signature, verified, version_2};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::{
    HeaderMap, Uri,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use sha1::Sha1;
use std::time::{Duration, UNIX_EPOCH};

/// Names that a signature covers, and some that it does not.
const COVERED: [&str; 12] = [
    "acl",
    "delete",
    "lifecycle",
    "location",
    "partNumber",
    "policy",
    "response-content-type",
    "tagging",
    "uploadId",
    "uploads",
    "versionId",
    "versions",
];
const NOT_COVERED: [&str; 4] = ["list-type", "marker", "max-keys", "prefix"];
/// When it is.
const NOW: Duration = Duration::from_secs(1_369_353_600);
const DATE: &str = "Fri, 24 May 2013 00:00:00 GMT";
const EXPIRES: &str = "1369354200";

fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
    String::from_utf8_lossy(value).trim().to_owned()
}

fn sign(parts: &Parts, query: &[(String, String)], bucket: Option<&str>, time: &str) -> String {
    let headers = &parts.headers;
    let (md5, kind) = (text(headers, "content-md5"), text(headers, "content-type"));
    let mut signed = format!("{}\n{md5}\n{kind}\n{time}\n", parts.method);
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    for name in names.iter().filter(|name| name.starts_with("x-amz-")) {
        signed += &format!("{name}:{}\n", text(headers, name));
    }
    signed += &bucket.map(|bucket| format!("/{bucket}")).unwrap_or_default();
    signed += parts.uri.path();
    let mut covered: Vec<_> = query
        .iter()
        .filter(|(name, _)| COVERED.contains(&name.as_str()))
        .collect();
    covered.sort();
    for (at, (name, value)) in covered.iter().enumerate() {
        let (start, equals) = (if at == 0 { "?" } else { "&" }, if value.is_empty() { "" } else { "=" });
        signed += &format!("{start}{name}{equals}{value}");
    }
    let mac = Hmac::<Sha1>::new_from_slice(SECRET.as_bytes()).map(|mut mac| {
        mac.update(signed.as_bytes());
        STANDARD.encode(mac.finalize().into_bytes())
    });
    mac.unwrap_or_default()
}

/// Whether it is taken, and what for: the request that `s3s` gets is about the same.
fn is_taken(came: &Parts) -> bool {
    let mut parts = came.clone();
    let (head, clear) = read(&mut parts);
    if clear.is_err() || version_2::check(&head, &parts.headers).is_err() {
        return false;
    }
    if version_2::carry(&head, &mut parts, secret, UNIX_EPOCH + NOW).is_err() {
        return false;
    }
    let (again, _) = read(&mut parts);
    let now_ms = u64::try_from(NOW.as_millis()).unwrap_or(u64::MAX);
    assert_eq!(verified::signer(&again, &parts.headers, secret, now_ms), Some(ID));
    assert_eq!(again.place(), head.place());
    assert!(again.version_2.is_none() && again.is_signed_in_header && !again.is_signed_in_query);
    let kept = |(name, _): &&(String, String)| !signature::is_of_signature(name);
    let mut before: Vec<_> = head.query.iter().filter(kept).collect();
    let mut after: Vec<_> = again.query.iter().collect();
    before.sort();
    after.sort();
    assert_eq!(before, after, "it asks for the same");
    true
}

fn with_query(parts: &Parts, query: &str) -> Option<Parts> {
    let mut parts = parts.clone();
    let path = parts.uri.path();
    let target = if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    };
    parts.uri = target.parse::<Uri>().ok()?;
    Some(parts)
}

/// A head, as lines, which is signed here: the first byte chooses where, and what is changed
/// afterwards.
pub fn version_2_head(input: &[u8]) -> bool {
    let Some((choice, text)) = input.split_first() else {
        return false;
    };
    let Some(mut given) = parts(text) else { return false };
    let came = given.uri.query().unwrap_or("").to_owned();
    let query: Vec<(String, String)> = form_urlencoded::parse(came.as_bytes()).into_owned().collect();
    let is_known = |name: &str| COVERED.contains(&name) || NOT_COVERED.contains(&name);
    let is_stranger = |name: &HeaderName| {
        [header::AUTHORIZATION, header::DATE].contains(name)
            || (name.as_str().starts_with("x-amz-") && name != "x-amz-acl")
    };
    let is_odd = given.headers.len() != given.headers.keys_len()
        || given.headers.keys().any(is_stranger)
        || given.headers.values().any(|value| value.to_str().is_err())
        || query.iter().any(|(name, _)| !is_known(name))
        || given.headers.contains_key(header::CONTENT_ENCODING);
    if is_odd {
        return false;
    }
    let (head, clear) = read(&mut given.clone());
    if clear.is_err() || head.is_form || head.is_call || head.place().is_none() {
        return false;
    }
    let bucket = head.bucket().filter(|_| head.is_of_host());
    let date = HeaderValue::from_static(DATE);
    let signed = match choice % 3 {
        0 => {
            let signature = encoded(&sign(&given, &query, bucket, EXPIRES));
            let of_key = format!("AWSAccessKeyId={ID}&Expires={EXPIRES}&Signature={signature}");
            let all: Vec<_> = [came.as_str(), &of_key]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect();
            with_query(&given, &all.join("&"))
        }
        place => {
            let (name, time) = if place == 1 { ("date", DATE) } else { ("x-amz-date", "") };
            given.headers.insert(name, date);
            let said = format!("AWS {ID}:{}", sign(&given, &query, bucket, time));
            let said = HeaderValue::from_str(&said).ok();
            said.map(|said| given.headers.insert(header::AUTHORIZATION, said));
            Some(given)
        }
    };
    let Some(signed) = signed else { return false };
    let is_repeated = (1..query.len()).any(|at| query[..at].iter().any(|(name, _)| *name == query[at].0));
    let taken = is_taken(&signed);
    assert!(taken || is_repeated, "it is signed: {} {}", signed.method, signed.uri);
    changed(&signed, choice / 3);
    taken
}

/// A head changed after signing is not accepted.
fn changed(signed: &Parts, choice: u8) {
    let mut other = signed.clone();
    match choice % 4 {
        0 => {
            other.method = if signed.method == "GET" { "HEAD" } else { "GET" }
                .try_into()
                .unwrap_or_default()
        }
        1 => other.uri = with_path(&signed.uri).unwrap_or_default(),
        2 => {
            other
                .headers
                .insert("x-amz-acl", HeaderValue::from_static("public-read-write"));
        }
        _ => {
            other
                .headers
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
        }
    }
    let is_same = other.method == signed.method && other.uri == signed.uri && other.headers == signed.headers;
    assert!(is_same || !is_taken(&other), "it was not signed so");
}

fn with_path(uri: &Uri) -> Option<Uri> {
    format!("/z{uri}").parse().ok()
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
