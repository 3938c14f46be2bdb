//! Tests of a mix's shares, and of temporary refusals.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::s3::notify::targets::Address;
use std::io::{Read as _, Write as _};

/// A server that answers each second request, and refuses the others in one of two ways: with 503,
/// or by closing the connection while it receives a value.
fn busy_server() -> (std::net::SocketAddr, Arc<AtomicU64>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    std::thread::spawn(move || {
        for (turn, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut head = [0; 16 << 10];
            let length = stream.read(&mut head).unwrap();
            if turn % 4 == 0 {
                // Much of it is unread: the client gets a reset.
                continue;
            }
            let end = head.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut rest = vec![0; VALUE_BYTES as usize - (length - end)];
            stream.read_exact(&mut rest).unwrap();
            let status = if turn % 2 == 0 { "503 Slow Down" } else { "200 OK" };
            counted.fetch_add(u64::from(turn % 2 == 1), Ordering::Relaxed);
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, taken)
}

const VALUE_BYTES: u64 = 12 << 20;

fn put_all(until: Until) -> (Outcome, u64) {
    let (address, taken) = busy_server();
    let target = Target {
        address: Address::parse(&format!("http://{address}")).unwrap(),
        tls: None,
        id: "id".to_owned(),
        secret: "secret".to_owned(),
        region: "us-east-1".to_owned(),
        block: Target::block(),
    };
    let work = Arc::new(Work {
        target: Arc::new(target),
        bucket: "bucket".to_owned(),
        mix: "get=1".parse().unwrap(),
        range_bytes: 1,
        part_bytes: 1,
    });
    let objects = Objects {
        bytes: VALUE_BYTES,
        count: 8,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(run(&work, Operation::Put, objects, 1, until));
    (outcome, taken.load(Ordering::Relaxed))
}

/// Regression: a server at its connection limit closes further ones. If that happened while a value
/// was sent, the error was "error writing a body to connection", which was taken for a fault of the
/// server: loads of ten minutes were aborted.
#[test]
fn a_connection_that_is_closed_while_a_value_is_sent_is_refused_for_now() {
    let (outcome, taken) = put_all(Until::Once(0, Duration::MAX));
    let reason = outcome.reason.unwrap();
    assert!(
        reason.starts_with("the connection ended before the answer: "),
        "{reason}"
    );
    assert!(is_for_now(&reason));
    // A request on an open connection is retried once, immediately.
    assert_eq!(outcome.latencies.len(), taken);
    assert_eq!(outcome.failed, 8 - taken);
}

/// Regression: one temporary refusal before or after a row ended the whole run with code 1.
#[test]
fn what_must_be_done_is_asked_for_again() {
    let (outcome, taken) = put_all(Until::Done(0));
    assert_eq!(outcome.reason, None);
    assert_eq!((outcome.latencies.len(), outcome.failed, taken), (8, 0, 8));
}

#[test]
fn a_mix_has_the_shares_that_are_asked_for() {
    let mix: Mix = "get=70, put=20,head=10".parse().unwrap();
    let mut counts = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        *counts.entry(mix.pick(scattered(number))).or_insert(0_i64) += 1;
    }
    for (operation, wanted) in [
        (Operation::Get, 7_000),
        (Operation::Put, 2_000),
        (Operation::Head, 1_000),
    ] {
        assert!((counts[&operation] - wanted).abs() < 200, "{counts:?}");
    }
    for (text, why) in [
        ("get", "NAME=SHARE"),
        ("get=x", "no number"),
        ("get=0", "above 0"),
        ("fetch=1", "none of put"),
        ("delete=5", "cannot be a part"),
    ] {
        assert!(text.parse::<Mix>().unwrap_err().contains(why), "{text}");
    }
}
