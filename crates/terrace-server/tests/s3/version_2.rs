//! Requests that are signed by version 2, as boto3 presigns and old clients sign everything.

use crate::{
    Service, code,
    common::{Answer, Place, bytes, eventually},
    elements,
    operating::plain,
    sessions::session,
    sign::{Client, Mode, post_form, raw},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use std::time::UNIX_EPOCH;

/// What of a query is signed, as the tests use it.
const COVERED: [&str; 9] = [
    "acl",
    "delete",
    "policy",
    "response-content-type",
    "partNumber",
    "tagging",
    "uploadId",
    "uploads",
    "versioning",
];

fn signature(client: &Client, text: &str) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(client.secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

/// What is signed of a request; `prefix` is the bucket that its host names, with a slash.
fn text(method: &str, target: &str, headers: &[(&str, &str)], time: &str, prefix: &str) -> String {
    let value = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map_or("", |(_, value)| value)
    };
    let mut ours: Vec<_> = headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-amz-"))
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    ours.sort();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut named: Vec<_> = query
        .split('&')
        .filter(|pair| COVERED.contains(&pair.split('=').next().unwrap()))
        .map(|pair| pair.replace("%2F", "/"))
        .collect();
    named.sort();
    let query = if named.is_empty() {
        String::new()
    } else {
        format!("?{}", named.join("&"))
    };
    let (md5, kind) = (value("content-md5"), value("content-type"));
    format!(
        "{method}\n{md5}\n{kind}\n{time}\n{}{prefix}{path}{query}",
        ours.concat()
    )
}

fn send_to(
    client: &Client,
    host: &str,
    prefix: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let date = httpdate::fmt_http_date(client.clock.now());
    let signed = signature(client, &text(method, target, headers, &date, prefix));
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nDate: {date}\r\n{lines}Authorization: AWS {}:{signed}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        client.id,
        body.len()
    );
    raw(&client.address, &[head.as_bytes(), body].concat())
}

fn send(client: &Client, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    send_to(client, &client.address, "", method, target, headers, body)
}

/// A target with such a signature in its query, which is good for so many seconds from now.
pub fn presigned(client: &Client, method: &str, target: &str, headers: &[(&str, &str)], life: i64) -> String {
    let now = client.clock.now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let expires = now.checked_add_signed(life).unwrap().to_string();
    let signed = signature(client, &text(method, target, headers, &expires, ""));
    let encoded = |text: &str| text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let mut pairs = vec![
        format!("AWSAccessKeyId={}", client.id),
        format!("Signature={}", encoded(&signed)),
        format!("Expires={expires}"),
    ];
    pairs.extend(headers.iter().map(|(name, value)| format!("{name}={}", encoded(value))));
    let mark = if target.contains('?') { '&' } else { '?' };
    format!("{target}{mark}{}", pairs.join("&"))
}

pub fn ask(client: &Client, method: &str, target: &str, headers: &str, body: &[u8]) -> Answer {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
        client.address,
        body.len()
    );
    raw(&client.address, &[head.as_bytes(), body].concat())
}

fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
}

#[test]
fn a_day_of_an_old_client() {
    let place = Place::new();
    let service = Service::start(&place, &["--domain", "s3.localhost"]);
    let client = &service.client;
    send(client, "PUT", "/bucket", &[], b"").status(200);
    let content = bytes(700_000);
    let headers = [
        ("content-type", "image/png"),
        ("x-amz-meta-b", "two"),
        ("x-amz-meta-a", "one"),
        ("cache-control", "no-cache"),
    ];
    send(client, "PUT", "/bucket/a%20b%2Bc+d", &headers, &content).status(200);
    let got = send(client, "GET", "/bucket/a%20b%2Bc+d", &[], b"").status(200);
    assert!(got.body == content && got.header("x-amz-meta-a") == Some("one"));
    assert_eq!(got.header("content-type"), Some("image/png"));
    let part = send(client, "GET", "/bucket/a%20b%2Bc+d", &[("range", "bytes=5-9")], b"");
    assert_eq!(part.status(206).body, content[5..10]);
    // It is the object that a request of version 4 names so.
    assert_eq!(client.get("/bucket/a%20b%2Bc%2Bd").status(200).body, content);
    let listed = send(client, "GET", "/bucket?prefix=a&max-keys=5", &[], b"").status(200);
    assert_eq!(elements(&listed, "Key"), ["a b+c+d"]);
    // A hash of the body that is signed along is checked.
    let hash = (
        "x-amz-content-sha256",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    );
    send(client, "PUT", "/bucket/empty", &[hash], b"").status(200);
    assert_eq!(send(client, "PUT", "/bucket/empty", &[hash], b"not").status, 400);
    // The listing of buckets, and what is wrong with a key.
    assert_eq!(
        elements(&send(client, "GET", "/", &[], b"").status(200), "Name"),
        ["bucket"]
    );
    let other = |id: &str, secret: &str| Client {
        id: id.to_owned(),
        secret: secret.to_owned(),
        ..client.clone()
    };
    is(
        &send(&other(&client.id, "wrong"), "GET", "/", &[], b""),
        403,
        "SignatureDoesNotMatch",
    );
    is(
        &send(&other("TRCE0", "wrong"), "GET", "/", &[], b""),
        403,
        "InvalidAccessKeyId",
    );
}

#[test]
fn buckets_in_the_host() {
    let place = Place::new();
    let service = Service::start(&place, &["--domain", "s3.localhost"]);
    let client = &service.client;
    send(client, "PUT", "/bucket", &[], b"").status(200);
    // With the bucket in the host.
    let host = "bucket.s3.localhost";
    let there = |method: &str, target: &str, body: &[u8]| send_to(client, host, "/bucket", method, target, &[], body);
    there("PUT", "/of-host", b"value").status(200);
    assert_eq!(there("GET", "/of-host", b"").status(200).text(), "value");
    assert_eq!(elements(&there("GET", "/", b"").status(200), "Key"), ["of-host"]);
    let lacking = send_to(client, host, "", "GET", "/of-host", &[], b"");
    is(&lacking, 403, "SignatureDoesNotMatch");
}

#[test]
fn parts_copies_and_lists_of_keys() {
    let place = Place::new();
    let service = Service::start(&place, &["--domain", "s3.localhost"]);
    let client = &service.client;
    send(client, "PUT", "/bucket", &[], b"").status(200);
    // Parts, copies, lists of keys to delete.
    let begun = send(client, "POST", "/bucket/parts?uploads", &[], b"").status(200);
    let id = elements(&begun, "UploadId").remove(0);
    let put = send(
        client,
        "PUT",
        &format!("/bucket/parts?partNumber=1&uploadId={id}"),
        &[],
        b"part",
    );
    let tag = put.status(200).header("etag").unwrap().to_owned();
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    send(
        client,
        "POST",
        &format!("/bucket/parts?uploadId={id}"),
        &[],
        list.as_bytes(),
    )
    .status(200);
    let source = [("x-amz-copy-source", "/bucket/parts")];
    send(client, "PUT", "/bucket/copy", &source, b"").status(200);
    assert_eq!(send(client, "GET", "/bucket/copy", &[], b"").status(200).text(), "part");
    let keys = b"<Delete><Object><Key>copy</Key></Object><Object><Key>parts</Key></Object></Delete>";
    let sent = [("content-md5", "8TaOZtBGp3YUaemdkJLv+Q==")];
    send(client, "POST", "/bucket?delete", &sent, keys).status(200);
    send(client, "PUT", "/bucket/k", &[], b"").status(200);
    send(client, "DELETE", "/bucket/k", &[], b"").status(204);
    assert!(elements(&client.get("/bucket").status(200), "Key").is_empty());
}

#[test]
fn presigned_urls() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/secret", b"secret", Mode::Whole).status(200);
    let url = presigned(client, "PUT", "/bucket/k%20%C3%BC", &[], 60);
    ask(client, "PUT", &url, "", b"value").status(200);
    // A client that has it cannot make another request of it.
    is(
        &ask(client, "PUT", &url, "x-amz-copy-source: /bucket/secret\r\n", b""),
        403,
        "SignatureDoesNotMatch",
    );
    for more in [
        "&tagging",
        "&retention",
        "&legal-hold",
        "&acl",
        "&partNumber=1&uploadId=x",
    ] {
        is(
            &ask(client, "PUT", &format!("{url}{more}"), "", b""),
            403,
            "SignatureDoesNotMatch",
        );
    }
    is(&ask(client, "GET", &url, "", b""), 403, "SignatureDoesNotMatch");
    is(
        &ask(client, "PUT", &url, "content-type: text/html\r\n", b""),
        403,
        "SignatureDoesNotMatch",
    );
    let chunks = "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n";
    assert_eq!(ask(client, "PUT", &url, chunks, b"0\r\n\r\n").status, 400);
    // As SDKs send objects over TLS: nothing says it but what the signature covers.
    let coding = ("content-encoding", "aws-chunked");
    let length = ("x-amz-decoded-content-length", "4");
    let trailer = ("x-amz-trailer", "x-amz-checksum-crc32");
    let hash = ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    let body = b"4\r\nbody\r\n0\r\nx-amz-checksum-crc32:26gLsg==\r\n\r\n";
    for headers in [&[coding, length, trailer][..], &[coding, length, trailer, hash]] {
        send(client, "PUT", "/bucket/chunks", headers, body).status(200);
        assert_eq!(client.get("/bucket/chunks").status(200).text(), "body");
        let wrong = body.map(|byte| if byte == b'L' { b'M' } else { byte });
        is(
            &send(client, "PUT", "/bucket/chunks", headers, &wrong),
            400,
            "BadDigest",
        );
        client.send("DELETE", "/bucket/chunks", &[], b"").status(204);
    }
    is(
        &ask(client, "PUT", &url, "content-encoding: aws-chunked\r\n", b"0\r\n\r\n"),
        400,
        "InvalidRequest",
    );
    let url = presigned(
        client,
        "GET",
        "/bucket/k%20%C3%BC?response-content-type=text%2Fx",
        &[],
        60,
    );
    let got = plain(&client.address, &url).status(200);
    assert_eq!(
        (got.text().as_str(), got.header("content-type")),
        ("value", Some("text/x"))
    );
}

#[test]
fn urls_that_are_good_no_more_or_twice() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/secret", b"secret", Mode::Whole).status(200);
    // Expired, or never good.
    let late = presigned(client, "GET", "/bucket/secret", &[], -2);
    let refused = plain(&client.address, &late);
    is(&refused, 403, "AccessDenied");
    assert!(refused.text().contains("Request has expired"));
    let url = presigned(client, "GET", "/bucket/secret", &[], i64::from(u32::MAX));
    assert_eq!(plain(&client.address, &url).status(200).text(), "secret");
    is(
        &plain(&client.address, &url.replace("Expires=", "Expires=1")),
        403,
        "SignatureDoesNotMatch",
    );
    // In two ways at once, in either order.
    let twice = client.presigned("GET", "/bucket/secret");
    let (_, names) = url.split_once('?').unwrap();
    is(
        &plain(&client.address, &format!("{twice}&{names}")),
        400,
        "InvalidArgument",
    );
    let signed = client.sign("GET", &url, &[], b"", Mode::Whole);
    is(&client.exchange(&signed), 400, "InvalidArgument");
}

#[test]
fn headers_in_urls() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/secret", b"secret", Mode::Whole).status(200);
    // Headers that are signed with it are in it, and count.
    let acl = [("x-amz-acl", "public-read"), ("x-amz-meta-a", "1/2")];
    let url = presigned(client, "PUT", "/bucket/public", &acl, 60);
    ask(client, "PUT", &url, "", b"public").status(200);
    let got = plain(&client.address, "/bucket/public").status(200);
    assert_eq!(got.header("x-amz-meta-a"), Some("1/2"));
    is(
        &ask(client, "PUT", &url.replace("x-amz-acl=public-read&", ""), "", b""),
        403,
        "SignatureDoesNotMatch",
    );
    // A session's has its token in it.
    let session = session(client, None);
    let token = [("x-amz-security-token", session.token.as_str())];
    let url = presigned(&session.client, "GET", "/bucket/secret", &token, 60);
    assert_eq!(plain(&client.address, &url).status(200).text(), "secret");
    let without = presigned(&session.client, "GET", "/bucket/secret", &[], 60);
    is(&plain(&client.address, &without), 400, "InvalidToken");
}

/// What version a request is signed by policies can ask for, as they can whether in its query.
#[test]
fn policies_can_keep_it_out() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let deny = |key: &str, value: &str| {
        let policy = format!(
            r#"{{"Statement":{{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
            "Condition":{{"StringEquals":{{"{key}":"{value}"}}}}}}}}"#
        );
        client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
        let url = |life| plain(&client.address, &presigned(client, "GET", "/bucket/k", &[], life)).status;
        let in_header = send(client, "GET", "/bucket/k", &[], b"").status;
        let version_4 = plain(&client.address, &client.presigned("GET", "/bucket/k")).status;
        [in_header, url(60), client.get("/bucket/k").status, version_4]
    };
    assert_eq!(deny("s3:signatureversion", "AWS"), [403, 403, 200, 200]);
    assert_eq!(deny("s3:signatureversion", "AWS4-HMAC-SHA256"), [200, 200, 403, 403]);
    assert_eq!(deny("s3:authType", "REST-QUERY-STRING"), [200, 403, 200, 403]);
    assert_eq!(deny("s3:authType", "REST-HEADER"), [403, 200, 403, 200]);
}

#[test]
fn it_can_be_off() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-signature-v2", "off"]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    is(&send(client, "GET", "/bucket", &[], b""), 400, "InvalidRequest");
    let url = presigned(client, "GET", "/bucket", &[], 60);
    let refused = plain(&client.address, &url);
    is(&refused, 400, "InvalidRequest");
    assert!(refused.text().contains("Please use AWS4-HMAC-SHA256."));
    let policy = STANDARD.encode(
        r#"{"expiration":"2100-01-01T00:00:00Z","conditions":[{"bucket":"bucket"},["starts-with","$key",""]]}"#,
    );
    let signed = signature(client, &policy);
    let fields = [
        ("key", "k"),
        ("AWSAccessKeyId", client.id.as_str()),
        ("policy", policy.as_str()),
        ("signature", signed.as_str()),
    ];
    is(&post_form(&client.address, "bucket", &fields), 400, "InvalidRequest");
    client.get("/bucket/k").status(404);
    place.run(&["serve", "--s3-signature-v2", "maybe"]).code(2);
}

/// The address pays until the signature is found right, then the key does.
#[test]
fn invalid_signatures_of_version_2_are_counted() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-rate", "3"]);
    let client = &service.client;
    let is_slow = |answer: &Answer| code(answer).1 == "SlowDown";
    for _ in 0..3 {
        send(client, "GET", "/", &[], b"").status(200);
    }
    // The address has paid nothing for these.
    assert!((0..3).all(|_| !is_slow(&plain(&client.address, "/none"))));
    let forged = Client {
        secret: "wrong".to_owned(),
        ..client.clone()
    };
    eventually("senders of invalid signatures are slowed", || {
        is_slow(&send(&forged, "GET", "/", &[], b"")).then_some(())
    });
    eventually("and so are senders of invalid URLs", || {
        let url = presigned(&forged, "GET", "/none/k", &[], 60);
        is_slow(&plain(&client.address, &url)).then_some(())
    });
}
