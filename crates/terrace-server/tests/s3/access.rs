//! Permissions, and forms of requests: each test is a regression.

use crate::{
    Service, code,
    common::{Answer, Place, bytes, eventually},
    operating::{ask, plain},
    sign::{Client, Mode, raw},
    upload::Upload,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Lets anonymous clients read the objects of a bucket, but not list it.
pub fn open_to_all(client: &Client, bucket: &str) {
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::{bucket}/*"}}]}}"#
    );
    let put = client.send("PUT", &format!("/{bucket}?policy"), &[], policy.as_bytes());
    assert!(matches!(put.status, 200 | 204), "{}", put.text());
}

/// A key that may only do this.
pub fn key(place: &Place, service: &Service, grant: &str) -> Client {
    let made = place.run(&["key", "create", "--json", "--allow", grant]).code(0).json();
    service.client.with_key(&made)
}

fn refused(answer: &Answer) -> (u16, String) {
    code(answer)
}

fn denied() -> (u16, String) {
    (403, "AccessDenied".to_owned())
}

/// Regression: access was checked for one version of the object and the answer came from another:
/// of a key that alternated between public and private, one read in a hundred returned the private
/// bytes.
#[test]
fn what_is_judged_is_what_is_opened() {
    const ROUNDS: usize = 150;
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/mine", &[], b"").status(200);
    client.send("PUT", "/target", &[], b"").status(200);
    let copier = key(&place, &service, "target=write");
    let (public, private) = ([b'p'; 100], [b's'; 200]);
    let put = |acl: &str, body: &[u8]| client.send("PUT", "/mine/k", &[("x-amz-acl", acl)], body).status(200);
    let of_private = put("private", &private).header("etag").unwrap().to_owned();
    let is_over = AtomicBool::new(false);
    let address = client.address.as_str();
    let read = |method: &str| {
        let request = format!("{method} /mine/k HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let mut seen = 0;
        let mut is_last = false;
        // The last request is sent when it stays public.
        while !is_last {
            is_last = is_over.load(Ordering::SeqCst);
            let answer = raw(address, request.as_bytes());
            if answer.status == 200 {
                seen += 1;
                assert_eq!(
                    answer.header("content-length"),
                    Some("100"),
                    "{method} was answered with what is private"
                );
            } else {
                assert_eq!(answer.status, 403);
            }
        }
        assert!(seen > 0, "{method}");
    };
    let copy = || {
        while !is_over.load(Ordering::SeqCst) {
            let answer = copier.send("PUT", "/target/k", &[("x-amz-copy-source", "/mine/k")], b"");
            assert!(matches!(answer.status, 200 | 403), "{}", answer.text());
            assert!(
                !answer.text().contains(of_private.trim_matches('"')),
                "a copy was made of what is private"
            );
        }
    };
    thread::scope(|scope| {
        let readers = [
            scope.spawn(|| read("GET")),
            scope.spawn(|| read("GET")),
            scope.spawn(|| read("HEAD")),
        ];
        let copier = scope.spawn(copy);
        for _ in 0..ROUNDS {
            put("public-read", &public);
            put("private", &private);
        }
        put("public-read", &public);
        ask(address, "/mine/k", "").status(200);
        is_over.store(true, Ordering::SeqCst);
        for reader in readers {
            reader.join().unwrap();
        }
        copier.join().unwrap();
    });
}

/// Regression: S3 buckets named `images` and `catalogue` were readable on the page, whatever their
/// access settings.
#[test]
fn the_page_shows_what_is_published() {
    let place = Place::new();
    place
        .run_with_input(&["put", "images/x/small", "-"], b"imported")
        .code(0);
    let service = Service::start(&place, &[]);
    let client = &service.client;
    for bucket in ["images", "catalogue"] {
        client.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
    }
    client.put("/images/x/secret", b"secret", Mode::Whole).status(200);
    client.put("/images/y/large", &bytes(700_000), Mode::Whole).status(200);
    client.put("/catalogue/x", b"", Mode::Whole).status(200);
    let page = service.page_address();
    assert_eq!(plain(page, "/images/x/small").status(200).text(), "imported");
    for closed in ["/images/x/secret", "/images/y/large", "/api/images/x"] {
        plain(page, closed).status(404);
        ask(page, closed, "If-None-Match: \"x\"\r\n").status(404);
    }
    assert_eq!(plain(page, "/api/images").json()["images"].as_array().unwrap().len(), 0);

    client
        .send("PUT", "/images/x/secret?acl", &[("x-amz-acl", "public-read")], b"")
        .status(200);
    assert_eq!(plain(page, "/images/x/secret").status(200).text(), "secret");
    plain(page, "/images/y/large").status(404);
    open_to_all(client, "images");
    plain(page, "/images/y/large").status(200);
    open_to_all(client, "catalogue");
    let described = plain(page, "/api/images/x").status(200).json();
    assert_eq!(described["resolutions"].as_array().unwrap().len(), 2);
    assert_eq!(plain(page, "/api/images").json()["images"][0]["id"], "x");
}

/// Regression: a copy could read a version by its name with a key that may only read public
/// objects; and it returned 404 for a missing source where a GET returns 403.
#[test]
fn a_copy_reads_no_more_than_a_get() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    for bucket in ["open", "target"] {
        client.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
    }
    let enable = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/open?versioning", &[], enable).status(200);
    open_to_all(client, "open");
    let old = client.put("/open/k", b"old", Mode::Whole).status(200);
    let old = old.header("x-amz-version-id").unwrap().to_owned();
    client.put("/open/k", b"new", Mode::Whole).status(200);
    let writer = key(&place, &service, "target=write");
    let part = Upload::begin(&writer, "/target/parts", &[]).part(1);
    let named = format!("/open/k?versionId={old}");
    for (source, expected) in [
        ("/open/k", None),
        (named.as_str(), Some(denied())),
        ("/open/none", Some(denied())),
        ("/target/none", Some((404, "NoSuchKey".to_owned()))),
    ] {
        for target in ["/target/copy", part.as_str()] {
            let answer = writer.send("PUT", target, &[("x-amz-copy-source", source)], b"");
            match &expected {
                None => drop(answer.status(200)),
                Some(expected) => assert_eq!(refused(&answer), *expected, "{source} to {target}"),
            }
        }
    }
    writer.get("/open/k").status(200);
    assert_eq!(refused(&writer.get(&named)), denied());
    client.get(&named).status(200);
}

/// Regression: one parser took the first of two Authorization headers and the other none of them,
/// so operations for signed requests were possible without a signature.
#[test]
fn what_is_said_twice_is_refused() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/open", &[], b"").status(200);
    client.put("/open/k", b"v", Mode::Whole).status(200);
    open_to_all(client, "open");
    let odd = "AWS4-HMAC-SHA256 Credential=ID/20200102/r/s3/aws4_request, SignedHeaders=host, Signature=0";
    let twice = format!("authorization: {odd}\r\nauthorization: {odd}\r\nx-amz-date: 20200102T030405Z\r\n");
    ask(&client.address, "/open/k?response-content-type=text%2Fhtml", &twice).status(400);
    for header in [
        "host: other",
        "x-amz-date: 20200102T030405Z",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        "content-type: multipart/form-data; boundary=y",
        "content-type: text/plain",
        "x-amz-copy-source: /open/k",
        "x-amz-decoded-content-length: 1",
        "range: bytes=0-0",
    ] {
        ask(&client.address, "/open/k", &format!("{header}\r\n{header}\r\n")).status(400);
    }
    let signed = client.sign("GET", "/open/k", &[], b"", Mode::Whole);
    let line = signed
        .head
        .lines()
        .find(|line| line.starts_with("authorization"))
        .unwrap();
    let more = signed.head.replacen(line, &format!("{line}\r\n{line}"), 1);
    assert_eq!(raw(&client.address, more.as_bytes()).status, 400);
    let presigned = client.presigned("GET", "/open/k");
    ask(&client.address, &presigned, "").status(200);
    for again in [
        "X-Amz-Signature=0",
        "X%2DAmz-Date=0",
        "X-Amz-SignedHeaders=host",
        "X-Amz-Expires=9",
    ] {
        ask(&client.address, &format!("{presigned}&{again}"), "").status(400);
        ask(&client.address, &format!("/open/k?{again}&{again}"), "").status(400);
    }
    ask(&client.address, "/open/k?versionId=null&version%49d=null", "").status(400);
}

/// Regression: a request with a signature was counted only after that was verified: invalid ones
/// were not counted at all.
#[test]
fn invalid_signatures_are_counted() {
    const RATE: usize = 2;
    let place = Place::new();
    let service = Service::start(&place, &["--s3-rate", &RATE.to_string()]);
    let client = &service.client;
    let is_slowed = |answer: Answer| code(&answer).1 == "SlowDown";
    for _ in 0..RATE {
        client.get("/").status(200);
    }
    let slowed = (0..RATE).filter(|_| is_slowed(plain(&client.address, "/none"))).count();
    assert_eq!(
        slowed, 0,
        "a signature that is right is counted for its key, not for its address"
    );
    let forged = Client {
        secret: "wrong".to_owned(),
        ..client.clone()
    };
    // Once more of them arrive within a second than the limit.
    eventually("senders of invalid signatures are slowed", || {
        is_slowed(forged.get("/")).then_some(())
    });
}

/// A line break in a field of a form was stored, and the object could never be read again.
#[test]
fn what_no_header_can_carry() {
    let place = Place::new();
    place
        .run_with_input(
            &[
                "put",
                "box/stored",
                "-",
                "--attribute",
                "cache-control=a\r\nb",
                "--attribute",
                "x-amz-meta-m=c\nd",
            ],
            b"v",
        )
        .code(0);
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/box", &[], b"").status(200);
    for (name, value) in [
        ("Cache-Control", "a\r\nX-Injected: b"),
        ("Content-Type", "a\nb"),
        ("Content-Disposition", "a\u{1}b"),
        ("x-amz-meta-m", "a\rb"),
        ("x-amz-meta-m", "\u{7f}"),
        ("x-amz-meta-a(b)", "v"),
        ("x-amz-website-redirect-location", "/a\nb"),
    ] {
        let answer = client.form("box", &[("key", "k"), (name, value)], 0, 600);
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        client.get("/box/k").status(404);
    }
    client
        .form(
            "box",
            &[("key", "k"), ("Cache-Control", "no-cache"), ("x-amz-meta-m", "ü\tv")],
            0,
            600,
        )
        .status(204);
    assert_eq!(
        client.get("/box/k").status(200).header("cache-control"),
        Some("no-cache")
    );
    let got = client.get("/box/stored").status(200);
    assert_eq!((got.text().as_str(), got.header("x-injected")), ("v", None));
    assert!(
        got.header("x-amz-meta-m")
            .is_some_and(|value| value.starts_with("=?UTF-8?B?"))
    );
    client.send("HEAD", "/box/stored", &[], b"").status(200);
    open_to_all(client, "box");
    plain(&client.address, "/box/stored").status(200);
}

/// A form was refused 15 minutes after it was signed, though its policy says until when it is good.
#[test]
fn a_form_is_good_until_its_policy_expires() {
    const HOUR: i64 = 3600;
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/box", &[], b"").status(200);
    client.form("box", &[("key", "k")], HOUR, HOUR).status(204);
    assert_eq!(code(&client.form("box", &[("key", "k")], HOUR, -1)), denied());
    assert_eq!(code(&client.form("box", &[("key", "k")], 0, -1)), denied());
    let forged = Client {
        secret: "wrong".to_owned(),
        ..client.clone()
    };
    assert_eq!(forged.form("box", &[("key", "k")], HOUR, HOUR).status, 403);
    // Elsewhere the clock of a signature still matters.
    let late = client.sign("GET", "/box/k", &[], b"", Mode::Whole);
    client.exchange(&late).status(200);
}

/// What comes in signed chunks is handed on while it is checked: whichever signature is wrong, of a
/// chunk, of the last one, or of a trailer, nothing may be there afterwards. A key that is written
/// with percent signs is signed as it is written; one that is written in another way is left to the
/// library.
#[test]
fn a_body_in_signed_chunks_is_there_if_all_of_it_is_right() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/box", &[], b"").status(200);
    let data = vec![b'a'; 3 << 20];
    for target in ["/box/k", "/box/a%20b%C3%A9", "/box/a(b)"] {
        for mode in [Mode::Chunks, Mode::ChunksWithTrailer] {
            let right = client.sign("PUT", target, &[], &data, mode);
            let text = String::from_utf8(right.body.clone()).unwrap();
            let marks: Vec<_> = text
                .match_indices("signature")
                .map(|(at, mark)| at + mark.len() + 1)
                .collect();
            assert!(marks.len() >= 49, "each chunk has a signature");
            for at in [marks[0], marks[20], marks[marks.len() - 2], marks[marks.len() - 1]] {
                let mut wrong = client.sign("PUT", target, &[], &data, mode);
                wrong.body[at] = if wrong.body[at] == b'0' { b'1' } else { b'0' };
                let answer = client.exchange(&wrong);
                assert_eq!(
                    refused(&answer),
                    (403, "SignatureDoesNotMatch".to_owned()),
                    "{target} {at}"
                );
                client.get(target).status(404);
            }
            client.exchange(&right).status(200);
            assert!(client.get(target).status(200).body == data, "{target}");
            client.send("DELETE", target, &[], b"").status(204);
        }
    }
    // Less or more than was announced.
    for announced in ["3145727", "3145729", "0"] {
        for mode in [Mode::Chunks, Mode::ChunksWithTrailer] {
            let length = [("x-amz-decoded-content-length", announced)];
            let request = client.sign("PUT", "/box/k", &length, &data, mode);
            assert_eq!(client.exchange(&request).status, 400, "{announced}");
            client.get("/box/k").status(404);
        }
    }
}

/// A signature for another service was taken; so was a body whose last chunk, and with it the end,
/// never came; and a checksum that was announced to come after a body that nothing can come after.
#[test]
fn signatures_and_bodies_that_are_not_whole() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/box", &[], b"").status(200);
    let other = client.sign_for("sts", "PUT", "/box/k", &[], b"v", Mode::Whole);
    assert_eq!(
        refused(&client.exchange(&other)),
        (400, "AuthorizationHeaderMalformed".to_owned())
    );
    for mode in [Mode::Chunks, Mode::ChunksWithTrailer, Mode::UnsignedWithTrailer] {
        let mut request = client.sign("PUT", "/box/k", &[], b"0123456789", mode);
        client.exchange(&request).status(200);
        client.send("DELETE", "/box/k", &[], b"").status(204);
        let last = request
            .body
            .windows(3)
            .position(|window| window == b"\n0;" || window == b"\n0\r")
            .unwrap()
            + 1;
        let whole = format!("content-length: {}\r\n", request.body.len());
        request.head = request.head.replace(&whole, &format!("content-length: {last}\r\n"));
        request.body.truncate(last);
        let answer = client.exchange(&request);
        assert_eq!(answer.status, 400, "{}", answer.text());
        client.get("/box/k").status(404);
    }
    for trailer in ["x-amz-checksum-crc32", "x-amz-checksum-nothing"] {
        let answer = client.send("PUT", "/box/k", &[("x-amz-trailer", trailer)], b"v");
        assert_eq!(refused(&answer), (400, "InvalidRequest".to_owned()), "{trailer}");
    }
    client.get("/box/k").status(404);
}
