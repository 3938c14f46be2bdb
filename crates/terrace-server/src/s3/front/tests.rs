//! Tests of the code before the operations.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::s3::head::tests::head;
use bytes::Bytes;

#[test]
fn errors_say_what_they_are_about() {
    let completed = |body: &'static str, uri: &str, is_copy| {
        let mut response = Response::new(Body::from(Bytes::from_static(body.as_bytes())));
        let range = HeaderValue::from_static("bytes */7");
        if body.contains("InvalidRange") {
            response.headers_mut().insert(header::CONTENT_RANGE, range);
        }
        errors::complete(&mut response, &head("GET", uri, &[]).0, is_copy, "1F");
        String::from_utf8(response.body().bytes().unwrap().to_vec()).unwrap()
    };
    let error = |code: &str, more: &str| {
        format!("<Error><Code>{code}</Code>{more}<Resource>/b/a&amp;b</Resource><RequestId>1F</RequestId></Error>")
    };
    let asked = |body, is_copy| completed(body, "/b/a&b", is_copy);
    assert_eq!(asked("<Error><Code>X</Code></Error>", false), error("X", ""));
    let missing = "<Error><Code>NoSuchKey</Code></Error>";
    assert_eq!(asked(missing, false), error("NoSuchKey", "<Key>a&amp;b</Key>"));
    assert_eq!(asked(missing, true), error("NoSuchKey", ""), "it may be the source");
    let gone = "<Error><Code>NoSuchBucket</Code></Error>";
    assert_eq!(asked(gone, false), error("NoSuchBucket", "<BucketName>b</BucketName>"));
    let odd = "<Error><Code>InvalidRange</Code></Error>";
    let length = "<ActualObjectSize>7</ActualObjectSize>";
    assert_eq!(asked(odd, false), error("InvalidRange", length));
    let list = completed("<Error><Code>MalformedXML</Code></Error>", "/b?acl", false);
    assert!(list.contains("<Code>MalformedACLError</Code>"), "{list}");
    // Regression: refusals by the library had no message.
    let wrong = asked("<Error><Code>SignatureDoesNotMatch</Code></Error>", false);
    assert!(
        wrong.contains("</Code><Message>The request signature we calculated"),
        "{wrong}"
    );
    let said = "<Error><Code>InvalidArgument</Code><Message>x</Message></Error>";
    assert_eq!(asked(said, false), error("InvalidArgument", "<Message>x</Message>"));
    assert_eq!(asked("no error", false), "no error");
}

#[test]
fn nothing_plain_is_refused() {
    let request = |method: &str, uri: &str, header: (&str, &str)| {
        let (head, headers, clear) = head(method, uri, &[("host", "h"), header]);
        let is_plain = Plain::of(&head, &headers).is_some() && !head.is_signed();
        // Plain requests skip these steps.
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
