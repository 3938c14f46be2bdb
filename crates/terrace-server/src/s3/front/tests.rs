//! Tests of what stands before the operations.
#![allow(clippy::unwrap_used)]
use super::*;
use bytes::Bytes;

#[test]
fn errors_say_what_they_are_about() {
    let mut body = Body::from(Bytes::from_static(b"<Error><Code>X</Code></Error>"));
    complete_error(&mut body, "/b/a&b", "1F");
    let text = String::from_utf8(body.bytes().unwrap().to_vec()).unwrap();
    let expected = "<Error><Code>X</Code><Resource>/b/a&amp;b</Resource><RequestId>1F</RequestId></Error>";
    assert_eq!(text, expected);
    let mut other = Body::from(Bytes::from_static(b"no error"));
    complete_error(&mut other, "/", "1F");
    assert_eq!(other.bytes().unwrap(), "no error");
}

#[test]
fn nothing_plain_is_refused() {
    let domains = Domains(vec!["s3.example.org".to_owned()]);
    let request = |method: &str, uri: &str, header: (&str, &str)| {
        let request = Request::builder().method(method).uri(uri).header("host", "h");
        let (parts, ()) = request.header(header.0, header.1).body(()).unwrap().into_parts();
        let is_plain = Plain::of(&domains, &parts).is_some();
        // What is plain goes by without these.
        assert!(!is_plain || (refuse(&parts).is_ok() && !has_signature(&parts)));
        assert!(!is_plain || Promise::of(&parts).is_ok_and(|promise| promise.is_none()));
        is_plain
    };
    let plain = ("accept", "*/*");
    for (method, uri) in [
        ("GET", "/b/k"),
        ("HEAD", "/b/k/"),
        ("GET", "/b//k"),
        ("GET", "/b/k+1&x=y"),
    ] {
        assert!(request(method, uri, plain), "{method} {uri}");
    }
    for (method, uri) in [
        ("PUT", "/b/k"),
        ("POST", "/b/k"),
        ("DELETE", "/b/k"),
        ("GET", "/b/k?"),
        ("GET", "/b/k?uploadId="),
        ("GET", "/b/%zz"),
        ("GET", "/b/%6b"),
        ("GET", "/b/"),
        ("GET", "/b"),
        ("GET", "/"),
    ] {
        assert!(!request(method, uri, plain), "{method} {uri}");
    }
    for name in [
        "range",
        "if-match",
        "if-range",
        "authorization",
        "expect",
        "content-length",
        "te",
    ] {
        assert!(!request("GET", "/b/k", (name, "1")), "{name}");
    }
    for name in [
        "x-amz-date",
        "x-amz-mfa",
        "x-amz-content-sha256",
        "content-md5",
        "transfer-encoding",
    ] {
        assert!(!request("GET", "/b/k", (name, "1")), "{name}");
    }
}

#[test]
fn odd_ranges_of_players_are_no_ranges() {
    let left = |method: &str, uri: &str, range: &str| {
        let request = Request::builder().method(method).uri(uri).header("range", range);
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        take_odd_range(&mut parts);
        let is_kept = parts.headers.contains_key("range");
        (is_kept, parts.extensions.get::<Ranges>().is_some())
    };
    for kept in ["bytes=0-1", "bytes=5-", "bytes=-5"] {
        assert_eq!(left("GET", "/b/k", kept), (true, false), "{kept}");
    }
    for dropped in ["bytes=x", "lines=1-2", "bytes=3-2"] {
        assert_eq!(left("GET", "/b/k", dropped), (false, false), "{dropped}");
    }
    assert_eq!(left("GET", "/b/k", "bytes=0-1,4-5"), (false, true));
    assert_eq!(left("HEAD", "/b/k", "bytes=0-1,4-5"), (false, false));
    assert_eq!(left("GET", "/b/k?X-Amz-Signature=0", "bytes=0-1,4-5"), (false, false));
}
