//! Requests that nobody means well with. Whatever comes, the server answers or closes, stores
//! nothing that was not signed, and goes on.

use crate::{
    Service, code,
    common::{PATIENCE, Place, bytes},
    elements,
    sign::{Client, Mode, Signed},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// Sends bytes and reads what comes back, if anything does. The status, or 0 if the server only
/// closed.
fn raw(client: &Client, request: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    text.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

fn bytes_of(request: &Signed) -> Vec<u8> {
    [request.head.as_bytes(), &request.body].concat()
}

/// The keys in the bucket.
fn stored(client: &Client) -> Vec<String> {
    elements(&client.get("/bucket?list-type=2").status(200), "Key")
}

/// Bodies in chunks that lie about themselves.
fn lying_chunks(client: &Client) -> Vec<Vec<u8>> {
    let lying = |body: &str| {
        let mut request = client.sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Chunks);
        let length = format!("content-length: {}\r\n", request.body.len());
        request.head = request
            .head
            .replace(&length, &format!("content-length: {}\r\n", body.len()));
        request.body = body.as_bytes().to_vec();
        bytes_of(&request)
    };
    vec![
        lying("ffffffffffffffff;chunk-signature=0\r\n"),
        lying("-1;chunk-signature=0\r\n"),
        lying("a\r\n0123456789\r\n0\r\n\r\n"),
        lying(&format!("a;chunk-signature={}\r\n0123456789\r\n", "0".repeat(64))),
        lying(&"a;".repeat(100_000)),
        lying(""),
    ]
}

#[test]
fn requests_that_are_wrong_in_known_ways() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let host = &client.address;
    let put = client.sign("PUT", "/bucket/k", &[], b"body", Mode::Whole).head;
    let many = "x-amz-meta-a: b\r\n".repeat(200);
    let requests: Vec<Vec<u8>> = vec![
        // Two lengths, or a length and chunks: what smuggling is made of.
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!").into(),
        put.replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
            .into(),
        put.replace("content-length: 4", "content-length: -4").into(),
        put.replace("content-length: 4", "content-length: 4, 4").into(),
        // Signatures that are none.
        put.replace("Signature=", "Signature=0").into(),
        put.replace("SignedHeaders=", "SignedHeaders=;;").into(),
        put.replace("Credential=", "Credential=/////").into(),
        put.replace("us-east-1/s3/", "us-east-1/iam/").into(),
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256\r\n\r\n").into(),
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256 Credential\r\n\r\n").into(),
        format!("GET /bucket/k?X-Amz-Signature=1&X-Amz-Algorithm=AWS4-HMAC-SHA256 HTTP/1.1\r\nHost: {host}\r\n\r\n")
            .into(),
        // Paths that lead out.
        format!("GET /../../etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /bucket/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /%00s3/key/x HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /bucket/%ff%fe HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        // A body that got lost: its length is signed, so it is missed.
        client
            .sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Chunks)
            .head
            .replace("content-length", "lost")
            .replace("x-amz-decoded-lost", "x-amz-decoded-content-length")
            .into(),
        client
            .sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Whole)
            .head
            .replace("content-length", "lost")
            .into(),
        // Too much of everything.
        put.replace("\r\n\r\n", &format!("\r\n{many}\r\n")).into(),
        format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", "a/".repeat(200_000)).into(),
        format!("POST /bucket?delete HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999999\r\n\r\n").into(),
        b"\0\xff\x16\x03\x01\x02\x00\x01\x00\x01\xfc".to_vec(),
    ];
    for request in requests.into_iter().chain(lying_chunks(client)) {
        let status = raw(client, &request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(300)]).into_owned();
        assert!(
            status == 0 || (400..500).contains(&status) || status == 501,
            "{status} for {shown}"
        );
    }
    assert_eq!(stored(client), [] as [&str; 0]);
}

#[test]
fn xml_that_is_wrong() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/kept", b"kept", Mode::Whole).status(200);
    let deep = format!("<Delete>{}</Delete>", "<Object>".repeat(50_000));
    // Entities that multiply are not expanded.
    let entities = "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">]>\
                    <Delete><Object><Key>&b;</Key></Object></Delete>";
    for body in [
        "",
        "<",
        "<Delete>",
        "<Other/>",
        "<Delete><Object/></Delete>",
        "\0",
        &deep,
        entities,
    ] {
        let (status, code) = code(&client.send("POST", "/bucket?delete", &[], body.as_bytes()));
        assert!(
            (400..500).contains(&status),
            "{status} {code} for {:?}",
            &body[..body.len().min(100)]
        );
    }
    let large = format!("<Delete>{}</Delete>", " ".repeat(9 << 20));
    let (status, _) = code(&client.send("POST", "/bucket?delete", &[], large.as_bytes()));
    assert!(status == 400 || status == 413, "{status}");
    assert_eq!(stored(client), ["kept"]);
}

/// A request with any byte of its head or body changed stores what was signed, where it was signed
/// for, or nothing.
#[test]
fn requests_changed_at_random() {
    let mut random = StdRng::seed_from_u64(11);
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let body = bytes(2000);
    for mode in [Mode::Whole, Mode::Chunks, Mode::ChunksWithTrailer] {
        for _ in 0..150 {
            let mut request = bytes_of(&client.sign("PUT", "/bucket/k", &[("x-amz-meta-a", "b")], &body, mode));
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..request.len());
                request[at] = random.random();
            }
            raw(client, &request);
            for key in stored(client) {
                assert_eq!(key, "k");
                let got = client.get("/bucket/k").status(200);
                let head = String::from_utf8_lossy(&request[..request.len().min(900)]);
                assert!(got.body == body, "{} other bytes were stored by {head}", got.body.len());
                assert_eq!(got.header("x-amz-meta-a"), Some("b"));
                client.send("DELETE", "/bucket/k", &[], b"").status(204);
            }
        }
    }
}
