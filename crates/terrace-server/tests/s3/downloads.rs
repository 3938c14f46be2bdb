//! Downloads beside clients that take nothing: what those hold, and what others get meanwhile.

use crate::{
    Service,
    budget::most_memory_bytes,
    common::{Place, bytes, eventually},
    encryption::ALGORITHM,
    operating::ask,
    sign::{Client, Mode},
    sites::{EVERYBODY_READS, parts},
    upload::Upload,
};
use std::{io::Write as _, net::TcpStream};

/// Readers that take nothing: with what each has left all of what downloads of one sender may have
/// is taken.
const STALLED: usize = 300;
/// Readers of one object.
const OF_ONE: usize = 10;
const LONG: usize = 12 << 20;

/// A reader that asks for an object and takes nothing of it. The operating system takes some MiB.
fn stalled(client: &Client, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    let request = client.sign("GET", target, &[], b"", Mode::Whole);
    stream.write_all(request.head.as_bytes()).unwrap();
    stream
}

fn put_in_parts(client: &Client, target: &str, body: &[u8], first: usize) {
    let upload = Upload::begin(client, target, &[]);
    let put = |(number, part)| upload.put(client, number, part, Mode::Whole);
    let tags = [(1, &body[..first]), (2, &body[first..])].map(put);
    upload.complete(client, &[], &tags).status(200);
}

/// Ranges within pieces, across them, and longer ones.
fn read_in_every_way(client: &Client, target: &str, body: &[u8]) {
    assert!(client.get(target).status(200).body == body, "{target}");
    let get = |ranges: &str| ask(&client.address, target, &format!("Range: bytes={ranges}\r\n")).status(206);
    for (from, to) in [(0, 0), (65_535, 65_536), (262_100, 600_000), (5 << 20, LONG - 1)] {
        assert!(
            get(&format!("{from}-{to}")).body == body[from..=to],
            "{target} {from}-{to}"
        );
    }
    let several = get("0-299999,5000000-9000000,11000000-11000009");
    let read: Vec<_> = parts(&several).into_iter().map(|(_, bytes)| bytes).collect();
    let expected = [0..300_000, 5_000_000..9_000_001, 11_000_000..11_000_010];
    assert!(read == expected.map(|range| body[range].to_vec()), "{target}");
}

/// Each reader had up to two MiB read ahead of it, and what the cache had dropped since: 700 of 350
/// objects took 1134 MB.
#[test]
fn readers_that_take_nothing_hold_little_and_others_read_on() {
    let place = Place::new();
    let service = Service::program(&place, &["--cache", "32MiB"]);
    let client = &service.client;
    client.send("PUT", "/public", &[], b"").status(200);
    client
        .send("PUT", "/public?policy", &[], EVERYBODY_READS.as_bytes())
        .status(204);
    let long = bytes(LONG);
    let target = |n: usize| format!("/public/long{n}");
    for n in 0..STALLED / OF_ONE {
        client.put(&target(n), &long, Mode::Whole).status(200);
    }
    client
        .send("PUT", "/public/sealed", &[(ALGORITHM, "AES256")], &long)
        .status(200);
    put_in_parts(client, "/public/parts", &long, 6 << 20);
    let lengths = [1, 100_000, 131_073, 262_144, 1 << 20, 1_500_000];
    for length in lengths {
        client
            .put(&format!("/public/{length}"), &long[..length], Mode::Whole)
            .status(200);
    }
    let before = most_memory_bytes(&service);
    let waiting: Vec<_> = (0..STALLED).map(|n| stalled(client, &target(n / OF_ONE))).collect();
    service.wait_for_requests(STALLED);

    for object in ["long0", "sealed", "parts"] {
        read_in_every_way(client, &format!("/public/{object}"), &long);
    }
    for length in lengths {
        let got = client.get(&format!("/public/{length}")).status(200);
        assert!(got.body == long[..length], "{length}");
    }
    let more = most_memory_bytes(&service) - before;
    assert!(more < 320 << 20, "{more}");
    drop(waiting);
    eventually("they are over", || {
        service.metrics().contains("\nterrace_s3_in_flight 0\n").then_some(())
    });
    read_in_every_way(client, "/public/long1", &long);
}
