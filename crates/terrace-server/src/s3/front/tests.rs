//! Tests of what stands before the operations.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::s3::head::tests::head;
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
    let request = |method: &str, uri: &str, header: (&str, &str)| {
        let (head, headers, clear) = head(method, uri, &[("host", "h"), header]);
        let is_plain = Plain::of(&head, &headers).is_some() && !head.is_signed();
        // What is plain goes by without these.
        assert!(!is_plain || (clear.is_ok() && refuse(&head, &headers).is_ok()));
        assert!(!is_plain || Promise::of(&head, &headers).is_ok_and(|promise| promise.is_none()));
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
        assert!(!request("GET", "/b/k", (name, "bytes=0-1")), "{name}");
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
