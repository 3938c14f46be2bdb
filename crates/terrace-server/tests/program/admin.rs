//! The socket of a running server: what it answers, and what a client may cost.

use super::common::{Answer, PATIENCE, Place, Server, eventually};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

const SOCKET: &str = "terrace-data/flash/control.sock";

fn connect(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(place.path(SOCKET)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream
}

/// Sends bytes as they are, and reads until the server closes.
fn ask(place: &Place, request: &[u8]) -> String {
    let mut stream = connect(place);
    // What is too long is not read to its end.
    let _ = stream.write_all(request);
    if request.is_empty() {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answer to a call, in one piece.
fn call(place: &Place, method: &str, path: &str, body: &str) -> Answer {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n");
    Answer::parse(ask(place, format!("{head}\r\n{body}").as_bytes()).as_bytes())
}

fn threads(server: &Server) -> usize {
    let tasks = format!("/proc/{}/task", server.child().id());
    fs::read_dir(tasks).unwrap().count()
}

/// Regression: each connection had a thread for ten seconds, whatever it sent and however many
/// there were; beside four of them commands were refused.
#[test]
#[cfg(target_os = "linux")]
fn clients_that_send_slowly_cost_no_threads_and_shut_out_no_other() {
    let place = Place::new();
    let server = place.serve_program(&[]);
    server.get("/healthz").status(200);
    let before = threads(&server);
    let mut held = Vec::new();
    for begun in [
        &b""[..],
        b"GET /sta",
        b"POST /backup HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{",
    ] {
        for _ in 0..if begun.is_empty() || begun.starts_with(b"GET") {
            20
        } else {
            8
        } {
            let mut stream = connect(&place);
            let _ = stream.write_all(begun);
            held.push(stream);
        }
    }
    let began = Instant::now();
    for _ in 0..2 {
        place.run(&["key", "list"]).code(0);
    }
    // Half a head has thirty seconds, half a body ten: no command waited for either.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert!(threads(&server) < before + 8, "{before}, {}", threads(&server));
    // A body that does not arrive is not waited for.
    let ended = held.iter_mut().rev().take(8).filter_map(|stream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok().map(|_| answer)
    });
    let answers: Vec<_> = ended.collect();
    assert!(
        answers
            .iter()
            .any(|answer| answer.starts_with("HTTP/1.1 408") && answer.contains("send it again")),
        "{answers:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn a_huge_request_is_refused_unread() {
    let place = Place::new();
    let server = place.serve_program(&[]);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.child().id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap()
            .trim();
        line.trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    server.get("/healthz").status(200);
    let before = memory();
    let heads = [
        "POST /backup HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n",
        "POST /backup HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000\r\n",
        "POST /backup HTTP/1.1\r\nHost: a\r\nX-Long: ",
    ];
    for (head, status) in heads.into_iter().zip(["413", "413", "431"]) {
        let answer = ask(&place, &[head.as_bytes(), &vec![b'x'; 32 << 20]].concat());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
    }
    assert!(memory() < before + (8 << 20), "{before}, {}", memory());
}

#[test]
fn what_else_comes_to_the_socket_is_refused() {
    let place = Place::new();
    place.run_with_input(&["put", "key", "-"], b"value").code(0);
    let server = place.serve_program(&[]);
    for request in [
        &b"{}\n"[..],
        b"nonsense\n",
        b"\xff\xfe\n",
        &[b'x'; 300_000],
        b"\"stats\"\n",
    ] {
        let answer = ask(&place, request);
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(ask(&place, b""), "");
    let failed = |method, path, body, status| {
        let failed = call(&place, method, path, body).status(status).json()["failed"].clone();
        assert!(failed["code"].is_string(), "{failed}");
        failed["message"].as_str().unwrap().to_owned()
    };
    for (method, path, body, status) in [
        ("GET", "/", "", 404),
        ("GET", "/backup", "", 405),
        ("POST", "/stats", "", 405),
        ("POST", "/backup", "", 400),
        ("POST", "/backup", "{}", 400),
        (
            "POST",
            "/backup",
            r#"{"dir":"/b","onto":null,"copy":false,"bytes_per_second":1,"more":1}"#,
            400,
        ),
        ("POST", "/capacity", r#"{"flash":null}"#, 400),
        ("GET", "/stats", "{}", 400),
    ] {
        let message = failed(method, path, body, status);
        assert!(
            message.contains("does not understand") && message.contains("one version"),
            "{message}"
        );
    }
    // What was understood, and cannot be done, says why.
    assert!(failed("POST", "/kms/change", r#"{"name":"none","change":"Rotate"}"#, 400).contains("none"));
    let stats = call(&place, "GET", "/stats", "").status(200);
    assert_eq!(stats.header("content-type"), Some("application/x-ndjson"));
    assert!(stats.json()["done"]["log"].is_object(), "{}", stats.text());
    server.get("/healthz").status(200);
    // A store whose server died without removing the socket is opened by the command itself.
    drop(server);
    assert!(place.path(SOCKET).exists());
    place.run(&["backup", "b"]).code(0);
    place.serve(&[]).get("/healthz").status(200);
}

/// Four calls at a time, of which each may take long.
#[test]
fn more_calls_than_are_served_at_a_time_are_told_so() {
    let place = Place::new();
    place.run_with_input(&["put", "key", "-"], &[7; 1 << 20]).code(0);
    let server = place.serve(&[]);
    let slow = |name: &str| {
        let dir = place.path(name);
        let body = serde_json::json!({"dir": dir, "onto": null, "copy": true, "bytes_per_second": 1024}).to_string();
        let mut stream = connect(&place);
        let length = body.len();
        write!(
            stream,
            "POST /backup HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let part = dir.join("BACKUP.part");
        eventually("a backup begins", || part.exists().then_some(()));
        stream
    };
    let held = ["1", "2", "3", "4"].map(slow);
    let refused = place.run(&["key", "list"]).code(1);
    assert!(refused.error().contains("try again later"), "{}", refused.error());
    // They end with their clients.
    drop(held);
    eventually("the server lets go of them", || {
        place.run(&["key", "list"]).0.status.success().then_some(())
    });
    server.get("/healthz").status(200);
}
