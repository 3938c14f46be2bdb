//! The essentials of the S3 service through a plain socket. What clients do with it is in `boto.py`
//! and `run` beside this file.
#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod accounts;
mod at_once;
mod bench;
mod budget;
mod capacity;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod copies;
mod downloads;
mod encryption;
mod etags;
mod events;
mod hostile;
mod key_policies;
mod kms;
mod lifecycle;
mod locks;
mod logs;
mod lost_index;
mod master_keys;
mod meant;
mod offline;
mod opening;
mod operating;
mod policies;
mod presigned;
mod protocol;
mod refusals;
mod service;
mod sessions;
mod sign;
mod sites;
mod table;
mod unreadable;
mod upload;
mod version_2;
mod versions;
mod whole;

use common::{Answer, PATIENCE, Place, bytes, eventually, files};
use service::Service;
use sign::{Client, Mode};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};
use upload::Upload;

fn code(answer: &Answer) -> (u16, String) {
    let text = answer.text();
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    (
        answer.status,
        code.map_or_else(String::new, |(code, _)| code.to_owned()),
    )
}

/// The texts of all elements of a name.
fn elements(answer: &Answer, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let text = answer.text();
    let parts = text.split(&open).skip(1).filter_map(|part| part.split_once(&close));
    parts.map(|(text, _)| text.to_owned()).collect()
}

/// The system keys of a store that no process has open.
fn left_over(place: &Place) -> Vec<String> {
    let listed = place.run(&["ls"]).code(0).text();
    let system = listed.lines().filter(|key| key.starts_with("\\x00s3/"));
    let others = system.filter(|key| !key.contains("/key/") && !key.contains("/bucket/"));
    others.map(str::to_owned).collect()
}

#[test]
fn bodies_in_every_mode() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/modes", &[], b"").status(200);
    for length in [0, 1, 65_536, 65_537, 300_000, 1_200_000] {
        let body = bytes(length);
        for mode in [
            Mode::Whole,
            Mode::Unsigned,
            Mode::Chunks,
            Mode::ChunksWithTrailer,
            Mode::UnsignedWithTrailer,
        ] {
            client.put("/modes/k", &body, mode).status(200);
            let got = client.get("/modes/k").status(200);
            assert!(got.body == body, "{length} bytes");
            assert_eq!(
                got.header("content-encoding"),
                None,
                "chunks are not the object's encoding"
            );
            if length == 0 || mode == Mode::Unsigned {
                continue;
            }
            // One bit of the body is wrong on the wire: in a chunk, or, for a whole body, anywhere.
            let mut wrong = client.sign("PUT", "/modes/wrong", &[], &body, mode);
            let at = wrong
                .body
                .windows(2)
                .position(|pair| pair == b"\r\n")
                .map_or(0, |at| at + 2);
            let at = if mode == Mode::Whole { 0 } else { at };
            wrong.body[at] ^= 1;
            let (status, code) = code(&client.exchange(&wrong));
            let expected = match mode {
                Mode::Whole => (400, "XAmzContentSHA256Mismatch"),
                Mode::UnsignedWithTrailer => (400, "BadDigest"),
                _ => (403, "SignatureDoesNotMatch"),
            };
            assert_eq!((status, code.as_str()), expected, "{length} bytes");
            client.get("/modes/wrong").status(404);
        }
    }
}

#[test]
fn levels_and_operations() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = service.client.clone();
    client.send("PUT", "/mine", &[], b"").status(200);
    client.send("PUT", "/other", &[], b"").status(200);
    client.put("/mine/k", b"v", Mode::Whole).status(200);
    client.put("/other/k", b"v", Mode::Whole).status(200);
    drop(service.restart(&place));

    let make = |grants: &[&str]| {
        let mut args = vec!["key", "create", "--json"];
        args.extend(grants.iter().flat_map(|grant| ["--allow", grant]));
        let made = place.run(&args).code(0).json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("access_key_id"), text("secret_access_key"))
    };
    let (reader, writer) = (make(&["mine=read"]), make(&["mine=write"]));
    let listed = place.run(&["key", "list"]).code(0).text();
    assert!(listed.contains("mine=write") && !listed.contains(&writer.1));
    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    let with = |(id, secret): &(String, String)| Client {
        address: service.client.address.clone(),
        id: id.clone(),
        secret: secret.clone(),
        clock: place.clock.clone(),
    };
    let (reader, writer) = (with(&reader), with(&writer));
    assert_eq!(elements(&reader.get("/").status(200), "Name"), ["mine"]);
    reader.get("/mine/k").status(200);
    for (client, method, target) in [
        (&reader, "PUT", "/mine/k"),
        (&reader, "DELETE", "/mine/k"),
        (&reader, "GET", "/other/k"),
        (&reader, "GET", "/other?list-type=2"),
        (&reader, "POST", "/mine/k?uploads"),
        (&writer, "DELETE", "/mine"),
        (&writer, "PUT", "/mine?policy"),
        (&writer, "PUT", "/new-bucket"),
        (&writer, "GET", "/other/k"),
    ] {
        let answer = client.send(method, target, &[], b"");
        assert_eq!(code(&answer), (403, "AccessDenied".to_owned()), "{method} {target}");
    }
    assert_eq!(code(&writer.get("/nowhere/k")), (404, "NoSuchBucket".to_owned()));
    writer.put("/mine/k", b"w", Mode::Whole).status(200);
    let copy = writer.send("PUT", "/mine/copy", &[("x-amz-copy-source", "/other/k")], b"");
    assert_eq!(code(&copy), (403, "AccessDenied".to_owned()), "a copy reads its source");
    let forged = Client {
        secret: "wrong".to_owned(),
        ..reader.clone()
    };
    assert_eq!(code(&forged.get("/mine/k")), (403, "SignatureDoesNotMatch".to_owned()));
    assert_eq!(anonymous(&reader.address, "GET", "/mine/k", ""), 403);
    // Of version 2, and without a date.
    assert_eq!(
        anonymous(&reader.address, "GET", "/mine/k", "Authorization: AWS a:b\r\n"),
        403
    );
    // What S3 clients cannot name: the system's keys, whatever the path looks like.
    for path in ["/%00s3/key/x", "/mine/../%00s3/key/x", "/mine/%00s3"] {
        assert_ne!(reader.get(path).status, 200, "{path}");
    }
}

fn anonymous(address: &str, method: &str, path: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes).status
}

#[test]
fn starting() {
    let place = Place::new();
    let refused = place
        .run(&["serve", "--listen", "127.0.0.1:0", "--s3-listen", "0.0.0.0:0"])
        .code(2);
    assert!(refused.error().contains("terrace key create"), "{}", refused.error());
    let mut server = place.serve_program(&[]);
    server.interrupt();
    let error = server.error();
    assert!(
        error.contains("access key ID:     TRCE") && error.contains("shown this once"),
        "{error}"
    );
    let again = place.serve_program(&[]).error();
    assert!(!again.contains("secret"), "{again}");
    let off = place.serve(&["--s3-listen", "off"]);
    assert_eq!(off.get("/healthz").status, 200);
    drop(off);
    let id = place
        .run(&["key", "list"])
        .code(0)
        .text()
        .split(' ')
        .next()
        .unwrap()
        .to_owned();
    place.run(&["key", "remove", &id]).code(0);
    place.run(&["key", "remove", &id]).code(3);
    place.run(&["key", "create", "--allow", "x=everything"]).code(2);
}

/// What was acknowledged is there after a kill; what was not is absent, and leaves nothing behind.
#[test]
fn a_kill_in_the_middle() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    let large = bytes(900_000);
    client.put("/bucket/large", &large, Mode::Whole).status(200);
    client.put("/bucket/small", b"small", Mode::Whole).status(200);
    let upload = Upload::begin(&client, "/bucket/parts", &[]);
    let first = bytes(5 << 20);
    let tag = upload.put(&client, 1, &first, Mode::Unsigned);
    // Half a body, and then the power goes.
    let halves: Vec<_> = ["/bucket/half", &upload.part(3)]
        .map(|target| {
            let half = client.sign("PUT", target, &[], &large, Mode::Unsigned);
            let mut stream = TcpStream::connect(&client.address).unwrap();
            stream.write_all(half.head.as_bytes()).unwrap();
            stream.write_all(&half.body[..600_000]).unwrap();
            stream
        })
        .into();
    service.wait_for_requests(2);
    let service = service.kill_and_restart(&place);
    drop(halves);
    let client = &service.client;
    assert!(client.get("/bucket/large").status(200).body == large);
    assert_eq!(client.get("/bucket/small").status(200).body, b"small");
    client.get("/bucket/half").status(404);
    let last = upload.put(client, 2, b"end", Mode::Whole);
    upload.complete(client, &[], &[tag, last]).status(200);
    let service = service.kill_and_restart(&place);
    let client = &service.client;
    assert!(client.get("/bucket/parts").status(200).body == [&first[..], b"end"].concat());
    for key in ["large", "small", "parts"] {
        client.send("DELETE", &format!("/bucket/{key}"), &[], b"").status(204);
    }
    assert_nothing_left(service, &place);
}

/// Clients that leave in the middle, upwards and downwards, free what they hold.
#[test]
fn clients_that_leave() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let large = bytes(3_000_000);
    client.put("/bucket/large", &large, Mode::Unsigned).status(200);
    for _ in 0..5 {
        let request = client.sign("PUT", "/bucket/left", &[], &large, Mode::Unsigned);
        let mut stream = TcpStream::connect(&client.address).unwrap();
        stream.write_all(request.head.as_bytes()).unwrap();
        stream.write_all(&request.body[..1_000_000]).unwrap();
        drop(stream);
        let request = client.sign("GET", "/bucket/large", &[], b"", Mode::Whole);
        let mut stream = TcpStream::connect(&client.address).unwrap();
        stream.write_all(request.head.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
    }
    // Replaced during a read: the reader gets all of the former object.
    let request = client.sign("GET", "/bucket/large", &[], b"", Mode::Whole);
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.write_all(request.head.as_bytes()).unwrap();
    let mut begun = vec![0; 1000];
    stream.read_exact(&mut begun).unwrap();
    client.put("/bucket/large", b"new", Mode::Whole).status(200);
    thread::sleep(Duration::from_millis(500));
    stream.read_to_end(&mut begun).unwrap();
    assert!(Answer::parse(&begun).body == large);
    client.send("DELETE", "/bucket/large", &[], b"").status(204);
    assert_nothing_left(service, &place);
}

/// What is deleted is collected some time later. It is seen only where no server has the store, so
/// each time one runs for longer.
#[track_caller]
fn assert_nothing_left(mut service: Service, place: &Place) {
    let mut time = Duration::from_millis(250);
    eventually("nothing is left over", || {
        service.end();
        let left = left_over(place);
        if left.is_empty() {
            return Some(());
        }
        eprintln!("left over: {left:?}");
        let client = service.client.clone();
        service = Service::with_key(place, &[], &client.id, &client.secret);
        thread::sleep(time);
        time *= 2;
        None
    });
}

/// botocore expects "100 Continue" also before an empty body, and does not get it. If the
/// connection then went on, it would take the status line of the next answer for a header.
#[test]
fn without_continue_the_connection_is_closed() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let expecting = |target: &str, body: &[u8]| {
        let mut request = client.sign("PUT", target, &[], body, Mode::Whole);
        request.head = request.head.replace("connection: close", "expect: 100-continue");
        let mut stream = TcpStream::connect(&client.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.head.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, String::from_utf8_lossy(&first).into_owned())
    };
    for (target, status) in [("/bucket/empty", "HTTP/1.1 200"), ("/none/at-all", "HTTP/1.1 404")] {
        let (mut stream, first) = expecting(target, b"");
        assert_eq!(first, status, "{target}");
        // Were the connection open still, this would be answered on it.
        let more = client.sign("GET", "/", &[], b"", Mode::Whole);
        let _ = stream.write_all(more.head.as_bytes());
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.contains("connection: close\r\n"), "{target}: {rest}");
        assert!(!rest.contains("HTTP/1.1"), "{target}: the connection goes on: {rest}");
    }
    let (mut stream, first) = expecting("/bucket/k", b"body");
    assert_eq!(first, "HTTP/1.1 100");
    stream.write_all(b"body").unwrap();
    let mut rest = [0; 40];
    stream.read_exact(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("HTTP/1.1 200"));
}

/// Of writers that all demand to be first, or to replace what they read, one is; and no increment
/// is lost.
#[test]
fn conditions_are_decided_in_the_commit() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let first = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let answer = client.send("PUT", "/bucket/counter", &[("if-none-match", "*")], b"0");
                if answer.status == 200 {
                    first.fetch_add(1, Ordering::Relaxed);
                } else {
                    assert_eq!(code(&answer), (412, "PreconditionFailed".to_owned()));
                }
            });
        }
    });
    assert_eq!(first.into_inner(), 1);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut done = 0;
                while done < 10 {
                    let read = client.get("/bucket/counter").status(200);
                    let next = (read.text().parse::<u32>().unwrap() + 1).to_string();
                    let etag = read.header("etag").unwrap();
                    let answer = client.send("PUT", "/bucket/counter", &[("if-match", etag)], next.as_bytes());
                    if answer.status == 200 {
                        done += 1;
                    }
                }
            });
        }
    });
    assert_eq!(client.get("/bucket/counter").text(), "40");
}

/// The page's images are the objects of a bucket, once there is one of that name.
#[test]
fn what_the_page_keeps_is_a_bucket_too() {
    let place = Place::new();
    let large = bytes(400_000);
    place
        .run_with_input(
            &["put", "images/x/small", "-", "--content-type", "image/jpeg"],
            b"0123456789",
        )
        .code(0);
    place.run_with_input(&["put", "images/x/original", "-"], &large).code(0);
    let service = Service::start(&place, &[]);
    let client = &service.client;
    assert_eq!(code(&client.get("/images/x/small")), (404, "NoSuchBucket".to_owned()));
    client.send("PUT", "/images", &[], b"").status(200);
    let got = client.get("/images/x/small").status(200);
    assert_eq!(
        (got.text().as_str(), got.header("content-type")),
        ("0123456789", Some("image/jpeg"))
    );
    assert!(client.get("/images/x/original").status(200).body == large);
    let listed = client.get("/images?list-type=2&prefix=x%2F").status(200);
    assert_eq!(elements(&listed, "Key"), ["x/original", "x/small"]);
    assert_eq!(elements(&listed, "Size"), ["400000", "10"]);
    assert!(service.page.starts_with("http://127.0.0.1:"));
    assert_eq!(
        code(&client.send("DELETE", "/images", &[], b"")),
        (409, "BucketNotEmpty".to_owned())
    );
}

/// An object that was put over S3 can be read with the command line, also if its bytes are in
/// values of their own.
#[test]
fn the_command_line_reads_and_removes_what_came_over_s3() {
    let place = Place::new();
    let mut service = Service::start(&place, &[]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    let large = bytes(700_000);
    for key in ["one", "two"] {
        service
            .client
            .put(&format!("/bucket/{key}"), &large, Mode::Whole)
            .status(200);
    }
    service.end();
    assert!(place.run(&["get", "bucket/one"]).code(0).0.stdout == large);
    place.run(&["rm", "bucket/one"]).code(0);
    place.run_with_input(&["put", "bucket/two", "-"], b"replaced").code(0);
    place.run(&["rm", "\\x00s3/bucket/bucket"]).code(2);
    let client = service.client.clone();
    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    service.client.get("/bucket/one").status(404);
    assert_eq!(service.client.get("/bucket/two").status(200).text(), "replaced");
    service.client.send("DELETE", "/bucket/two", &[], b"").status(204);
    assert_nothing_left(service, &place);
    assert!(!files(place.dir.path()).is_empty());
}
