//! What web sites and browsers do with public buckets.

use crate::{
    Service, code,
    common::{Answer, Place, bytes, eventually},
    operating::{ask, plain},
    sign::Mode,
};
use serde_json::Value;
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

pub const EVERYBODY_READS: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
    "Action":"s3:GetObject","Resource":"arn:aws:s3:::public/*"}]}"#;

/// A server with a public bucket.
fn with_public_bucket(place: &Place) -> Service {
    let service = Service::start(place, &[]);
    let client = &service.client;
    client.send("PUT", "/public", &[], b"").status(200);
    client
        .send("PUT", "/public?policy", &[], EVERYBODY_READS.as_bytes())
        .status(204);
    service
}

/// The parts of a body of several ranges: what each says it is of, and its bytes.
pub fn parts(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    let kind = answer.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = answer.body.strip_prefix(delimiter.as_bytes()).unwrap();
    let mut parts = Vec::new();
    while rest != b"--\r\n" {
        let find = |text: &str| rest.windows(text.len()).position(|window| window == text.as_bytes());
        let (head_end, end) = (find("\r\n\r\n").unwrap(), find(&delimiter).unwrap());
        let head = std::str::from_utf8(&rest[..head_end]).unwrap();
        let range = head.split_once("Content-Range: ").unwrap().1;
        parts.push((range.to_owned(), rest[head_end + 4..end].to_vec()));
        rest = &rest[end + delimiter.len()..];
    }
    parts
}

#[test]
fn several_ranges() {
    let place = Place::new();
    let service = with_public_bucket(&place);
    let client = &service.client;
    for length in [5000, 200_000, 1_500_000_usize] {
        let value = bytes(length);
        let kind = [("content-type", "video/mp4")];
        client.send("PUT", "/public/k", &kind, &value).status(200);
        let get = |range: &str, more: &str| ask(&client.address, "/public/k", &format!("Range: {range}\r\n{more}"));
        let (a, b) = (length / 2, length / 2 + length / 3);
        let answer = get(&format!("bytes={a}-{b},0-99,-100"), "").status(206);
        assert_eq!(answer.header("content-range"), None);
        assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()));
        assert!(answer.text().contains("Content-Type: video/mp4\r\n"));
        let expected = [
            (format!("bytes 0-99/{length}"), value[..100].to_vec()),
            (format!("bytes {a}-{b}/{length}"), value[a..=b].to_vec()),
            (
                format!("bytes {}-{}/{length}", length - 100, length - 1),
                value[length - 100..].to_vec(),
            ),
        ];
        assert!(parts(&answer) == expected, "{length}");

        let one = get("bytes=0-99,50-199", "").status(206);
        assert_eq!(one.header("content-range"), Some(&*format!("bytes 0-199/{length}")));
        assert!(one.body == value[..200]);
        let (status, _) = code(&get(&format!("bytes={length}-,{length}-{length}"), ""));
        assert_eq!(status, 416);
        let many = format!("bytes={}", "0-0,".repeat(17));
        assert!(get(&many, "").status(200).body == value, "too many are none");
        let etag = answer.header("etag").unwrap();
        let matching = get("bytes=0-0,900-999", &format!("If-Range: {etag}\r\n")).status(206);
        assert_eq!(parts(&matching).len(), 2);
        for range in ["bytes=0-0,900-999", "bytes=0-0"] {
            let other = get(range, "If-Range: \"other\"\r\n").status(200);
            assert!(other.body == value && other.header("content-range").is_none());
        }
    }
}

/// Segments of a video are longer than an object's own value may be, so their values' keys are in
/// no order. A client that reads them in order finds the next in RAM all the same.
#[test]
fn play_heads_have_the_next_segment_read_ahead() {
    let place = Place::new();
    let service = with_public_bucket(&place);
    let segments: Vec<_> = (0..12).map(|number| bytes(400_000 + number)).collect();
    for (number, segment) in segments.iter().enumerate() {
        let key = format!("/public/film/seg-{number:03}.ts");
        service.client.put(&key, segment, Mode::Whole).status(200);
    }
    // What was just written would still be in RAM.
    let service = service.restart(&place);
    let figure = |pointer: &str| {
        let stats = plain(service.page_address(), "/api/stats").status(200).json();
        stats.pointer(pointer).and_then(Value::as_u64).unwrap()
    };
    let hits = || figure("/reads/prefetch_hits");
    for (number, segment) in segments.iter().enumerate() {
        let got = plain(&service.client.address, &format!("/public/film/seg-{number:03}.ts")).status(200);
        assert!(got.body == *segment, "{number}");
        if number < 2 {
            assert_eq!(hits(), 0, "no client reads in order yet");
        }
        // From the third on, the next one is read; a player shows this one meanwhile.
        let ahead = number.saturating_sub(1).min(segments.len() - 3) as u64;
        eventually("the next segment is read ahead", || {
            (figure("/flash_cache/prefetch/objects") >= ahead).then_some(())
        });
    }
    assert!(hits() >= 3, "{}", hits());
}

/// A sender that has as many connections as it may is told, and has a place again when it ends one.
#[test]
fn connections_of_one_sender_are_bounded() {
    let place = Place::new();
    let service = Service::start(&place, &["--sender-connections", "3"]);
    let address = &service.client.address;
    let mut held: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    // They are accepted in this order.
    let mut told = Vec::new();
    TcpStream::connect(address).unwrap().read_to_end(&mut told).unwrap();
    let refused = Answer::parse(&told);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    held.pop();
    eventually("the place is free again", || {
        ask_or_closed(address).filter(|answer| answer.status != 503)
    });
    place.run(&["serve", "--sender-connections", "0"]).code(2);
}

/// An answer to an anonymous request, unless the server closed before it was read.
fn ask_or_closed(address: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut bytes = Vec::new();
    let _ = write!(stream, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let _ = stream.read_to_end(&mut bytes);
    (!bytes.is_empty()).then(|| Answer::parse(&bytes))
}

/// Whatever the disk does meanwhile, an answer is the object or says when to come again, and small
/// objects are always served.
#[test]
fn a_busy_disk_refuses_rather_than_cuts() {
    let place = Place::new();
    let service = with_public_bucket(&place);
    let value = bytes(1_500_000);
    for number in 0..8 {
        service
            .client
            .put(&format!("/public/{number}"), &value, Mode::Whole)
            .status(200);
    }
    service.client.put("/public/small", b"small", Mode::Whole).status(200);
    // What the page shows is a bucket, too.
    service.client.send("PUT", "/images", &[], b"").status(200);
    crate::access::open_to_all(&service.client, "images");
    service.client.put("/images/1/large", &value, Mode::Whole).status(200);
    let (id, secret) = (service.client.id.clone(), service.client.secret.clone());
    drop(service.restart(&place));
    let service = Service::with_key(&place, &["--large-wait", "1ms"], &id, &secret);
    let address = &service.client.address;
    let page = service.page_address();
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for reader in 0..16 {
            let (served, value) = (&served, &value);
            scope.spawn(move || {
                for round in 0..4 {
                    let answer = plain(address, &format!("/public/{}", (reader + round) % 8));
                    if answer.status == 200 {
                        assert!(answer.body == *value);
                        served.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert_eq!(code(&answer), (503, "SlowDown".to_owned()));
                        assert_eq!(answer.header("retry-after"), Some("1"));
                    }
                    plain(address, "/public/small").status(200);
                    let answer = plain(page, "/images/1/large");
                    assert!(answer.status == 503 || (answer.status == 200 && answer.body == *value));
                    assert_eq!(answer.header("retry-after"), (answer.status == 503).then_some("1"));
                }
            });
        }
    });
    assert!(served.into_inner() > 0);
    place.run(&["serve", "--large-wait", "soon"]).code(2);
}

/// A server whose bucket `public` has a web site, of which nothing is open yet.
fn with_site(place: &Place) -> Service {
    let service = Service::start(place, &["--s3-website-domain", "web.localhost"]);
    let client = &service.client;
    client.send("PUT", "/public", &[], b"").status(200);
    let site = b"<WebsiteConfiguration><IndexDocument><Suffix>index.html</Suffix></IndexDocument>\
        <ErrorDocument><Key>error.html</Key></ErrorDocument><RoutingRules><RoutingRule>\
        <Condition><KeyPrefixEquals>old/</KeyPrefixEquals></Condition>\
        <Redirect><ReplaceKeyPrefixWith>new/</ReplaceKeyPrefixWith></Redirect></RoutingRule></RoutingRules></WebsiteConfiguration>";
    client.send("PUT", "/public?website", &[], site).status(200);
    let html = [("content-type", "text/html")];
    for (key, body) in [
        ("index.html", "home"),
        ("dir/index.html", "dir"),
        ("error.html", "sorry"),
    ] {
        client
            .send("PUT", &format!("/public/{key}"), &html, body.as_bytes())
            .status(200);
    }
    service
}

fn open(service: &Service) {
    service
        .client
        .send("PUT", "/public?policy", &[], EVERYBODY_READS.as_bytes())
        .status(204);
}

/// A visitor's request to the site.
fn visit(service: &Service, method: &str, path: &str, more: &str) -> Answer {
    let host = "public.web.localhost:7071";
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n");
    crate::sign::raw(&service.client.address, request.as_bytes())
}

/// A website on a host of its own shows public objects, and else its error document.
#[test]
fn a_bucket_is_a_web_site() {
    let place = Place::new();
    let service = with_site(&place);
    let visit = |method: &str, path: &str, more: &str| visit(&service, method, path, more);
    let large = "x".repeat(700_000);
    service
        .client
        .send("PUT", "/public/large.bin", &[], large.as_bytes())
        .status(200);
    // Nothing is open yet, the error document neither.
    let closed = visit("GET", "/", "").status(403);
    assert_eq!(closed.header("x-amz-error-code"), Some("AccessDenied"));
    assert!(closed.text().contains("Retrieve a Custom Error Document"));
    open(&service);
    for _ in 0..2 {
        let home = visit("GET", "/", "").status(200);
        assert_eq!(
            (home.text().as_str(), home.header("content-type")),
            ("home", Some("text/html"))
        );
    }
    let signed = visit("GET", "/dir/?x=y", "Authorization: AWS a:b\r\n").status(200);
    assert_eq!(signed.text(), "dir");
    let missing = visit("GET", "/none", "Range: bytes=0-1\r\n").status(403);
    assert_eq!(
        missing.text(),
        "sorry",
        "a client that cannot list does not learn what is missing"
    );
    assert_eq!(
        visit("GET", "/large.bin", "Range: bytes=5-9\r\n")
            .status(206)
            .body
            .len(),
        5
    );
    assert_eq!(visit("GET", "/large.bin", "").status(200).body.len(), 700_000);
    let head = visit("HEAD", "/index.html", "").status(200);
    let tag = head.header("etag").unwrap();
    visit("GET", "/index.html", &format!("If-None-Match: {tag}\r\n")).status(304);
    for method in ["POST", "PUT", "DELETE"] {
        visit(method, "/index.html", "Content-Length: 0\r\n").status(405);
    }
}

/// Where a web site sends its visitors, and what a bucket without one says.
#[test]
fn a_web_site_sends_elsewhere() {
    let place = Place::new();
    let service = with_site(&place);
    let client = &service.client;
    let visit = |path: &str| visit(&service, "GET", path, "");
    open(&service);
    let shown = client.get("/public?website").status(200);
    assert_eq!(crate::elements(&shown, "ReplaceKeyPrefixWith"), ["new/"]);
    assert_eq!(visit("/dir").status(302).header("location"), Some("/dir/"));
    let old = visit("/old/a%20b").status(301);
    assert_eq!(
        old.header("location"),
        Some("http://public.web.localhost:7071/new/a%20b")
    );
    let moved = [("x-amz-website-redirect-location", "https://example.org/")];
    client.send("PUT", "/public/moved", &moved, b"").status(200);
    let sent = visit("/moved").status(301);
    assert_eq!(sent.header("location"), Some("https://example.org/"));
    // The same object over S3 is an object.
    plain(&client.address, "/public/moved").status(200);
    let wrong = [("x-amz-website-redirect-location", "example.org")];
    let refused = client.send("PUT", "/public/moved", &wrong, b"");
    assert_eq!(code(&refused), (400, "InvalidRedirectLocation".to_owned()));
    client.send("DELETE", "/public?website", &[], b"").status(204);
    assert_eq!(
        code(&client.get("/public?website")),
        (404, "NoSuchWebsiteConfiguration".to_owned())
    );
    let none = visit("/").status(404);
    assert_eq!(none.header("x-amz-error-code"), Some("NoSuchWebsiteConfiguration"));
    assert_eq!(none.header("content-type"), Some("text/html; charset=utf-8"));
}
