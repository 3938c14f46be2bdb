//! What commands do to the objects of buckets, and what a server does that does not listen for S3.

use crate::{
    Service, code,
    common::{Place, bytes, eventually},
    elements, left_over,
    sign::Mode,
};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

const VERSIONED: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

/// Regression: putting an object with the attributes that `head` shows made two objects own one
/// value: deleting either freed the other's bytes.
#[test]
fn an_object_cannot_get_the_bytes_of_another() {
    let place = Place::new();
    let file = place.write("file", b"v");
    let file = file.to_str().unwrap();
    for attribute in ["s3-values=00", "s3-length=9", "s3-version=00", "etag=\"x\""] {
        let refused = place
            .run(&["put", "bucket/twin", file, "--attribute", attribute])
            .code(2);
        assert!(refused.error().contains("only the server gives"), "{}", refused.error());
    }
    place.run(&["put", "bucket/twin", file, "--attribute", "s3=x"]).code(0);
}

/// A command in a bucket with versioning destroyed the current version, and left the others without
/// a current one.
#[test]
fn commands_keep_versions() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket?versioning", &[], VERSIONED).status(200);
    for key in ["k", "a/1", "a/2"] {
        client.put(&format!("/bucket/{key}"), b"first", Mode::Whole).status(200);
    }
    let large = place.write("large", bytes(900_000));
    drop(service.restart(&place));

    let put = |more: &[&str]| place.run(&[&["put", "bucket/k", large.to_str().unwrap()], more].concat());
    let made = put(&["--content-type", "x/y", "--json"]).code(0).json();
    assert!(made["version"].as_u64().is_some());
    put(&["--if-absent"]).code(4);
    put(&["--ttl", "1h"]).code(2);
    assert_eq!(place.run(&["get", "bucket/k"]).code(0).0.stdout, bytes(900_000));
    place.run(&["rm", "bucket/k"]).code(0);
    place.run(&["rm", "bucket/k"]).code(3);
    place.run(&["rm", "--prefix", "bucket/a/", "--yes"]).code(0);

    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    let client = &service.client;
    let gone = client.get("/bucket/k").status(404);
    assert_eq!(gone.header("x-amz-delete-marker"), Some("true"));
    let listed = client.get("/bucket?versions").status(200);
    assert_eq!(elements(&listed, "DeleteMarker").len(), 3);
    let versions = elements(&listed, "Version");
    assert_eq!(versions.len(), 4, "{}", listed.text());
    let id = |key: &str, at: usize| {
        let of_key = versions
            .iter()
            .filter(|version| version.contains(&format!("<Key>{key}<")));
        let version = of_key.collect::<Vec<_>>()[at];
        let (_, rest) = version.split_once("<VersionId>").unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    let second = client.get(&format!("/bucket/k?versionId={}", id("k", 0))).status(200);
    assert!(second.body == bytes(900_000) && second.header("content-type") == Some("x/y"));
    for (key, at) in [("k", 1), ("a/1", 0), ("a/2", 0)] {
        let first = client
            .get(&format!("/bucket/{key}?versionId={}", id(key, at)))
            .status(200);
        assert_eq!(first.body, b"first");
    }
}

/// Regression: garbage of commands and crashes was never collected with `--s3-listen off`.
#[test]
fn what_is_left_over_goes_without_s3() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    for key in ["one", "two"] {
        client
            .put(&format!("/bucket/{key}"), &bytes(900_000), Mode::Whole)
            .status(200);
    }
    drop(service.restart(&place));
    let file = place.write("file", b"small");
    place.run(&["put", "bucket/one", file.to_str().unwrap()]).code(0);
    place.run(&["rm", "--prefix", "bucket/tw", "--yes"]).code(0);
    assert!(!left_over(&place).is_empty());
    let mut time = Duration::from_millis(50);
    eventually("nothing is left over", || {
        let mut server = place.serve(&["--s3-listen", "off"]);
        assert_eq!(server.get("/healthz").status, 200);
        // It is seen only where no server has the store, so each time one runs for longer.
        thread::sleep(time);
        time *= 2;
        server.process.end();
        left_over(&place).is_empty().then_some(())
    });
    assert_eq!(place.run(&["get", "bucket/one"]).code(0).text(), "small");
}

/// Regression: a bucket was looked up by its name again after the body: deleted and made again
/// meanwhile, it got an object that its new owner did not permit.
#[test]
fn a_slow_upload_does_not_reach_a_new_bucket_of_the_same_name() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    for body in [bytes(100_000), bytes(900_000)] {
        client.send("PUT", "/bucket", &[], b"").status(200);
        let request = client.sign("PUT", "/bucket/k", &[], &body, Mode::Unsigned);
        let head = request
            .head
            .replace("connection: close", "connection: close\r\nexpect: 100-continue");
        let mut stream = TcpStream::connect(&client.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        // The body is asked for once the bucket was found.
        let mut told = [0; 25];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.send("DELETE", "/bucket", &[], b"").status(204);
        client.send("PUT", "/bucket", &[], b"").status(200);
        let _ = stream.write_all(&request.body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = crate::common::Answer::parse(&answer);
        assert_eq!(code(&answer), (404, "NoSuchBucket".to_owned()));
        client.get("/bucket/k").status(404);
        client.send("DELETE", "/bucket", &[], b"").status(204);
    }
}
