//! Requests while the store is being opened. The open of these stores waits at a pipe: the note
//! beside the index that it is damaged. The open reads it, checks the index and removes it.

use crate::{
    Service, code,
    common::{Answer, PATIENCE, Place, Process, bytes, eventually, wait},
    operating::{new_certificate, over_tls},
    sign::{Client, Mode},
};
use rustix::fs::{CWD, FileType, OFlags};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const OBJECTS: usize = 300;

fn value(n: usize) -> Vec<u8> {
    bytes(100 + n * 37 % 9_000)
}

fn path(n: usize) -> String {
    format!("/mine/object-{n:04}")
}

/// The program while it opens its store.
struct Opening {
    child: Child,
    page: String,
    client: Client,
    pipe: PathBuf,
}

impl Opening {
    /// Of a store with objects.
    fn start(place: &Place, more: &[&str]) -> Self {
        let mut service = Service::start(place, &[]);
        service.client.send("PUT", "/mine", &[], b"").status(200);
        for n in 0..OBJECTS {
            service.client.put(&path(n), &value(n), Mode::Whole).status(200);
        }
        service.end();
        let pipe = place.path("terrace-data/flash/index/damaged");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut command = place.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("the store is being opened") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        child.stderr = Some(log.into_inner());
        let field = |name: &str| {
            let value = line.split_whitespace().find_map(|field| field.strip_prefix(name));
            value.unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let client = Client {
            address: field("s3="),
            ..service.client.clone()
        };
        let page = field("page=");
        Self {
            child,
            page,
            client,
            pipe,
        }
    }

    /// Lets the open go on, and waits until the server says that it serves.
    fn go_on(&mut self) {
        let mut note = fs::OpenOptions::new();
        note.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        // Fails while the pipe is not being read. It may be read twice.
        eventually("the note is gone", || match note.open(&self.pipe) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(()),
            _ => None,
        });
        let mut lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        for address in [&self.page, &self.client.address] {
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains(address.as_str()), "{line}");
        }
    }
}

/// A connection that stays.
struct Alive(BufReader<TcpStream>);

impl Alive {
    fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, request: &str) -> Answer {
        let request = request.replace("connection: close\r\n", "");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            assert!(self.0.read_until(b'\n', &mut answer).unwrap() > 0, "it was closed");
        }
        let mut answer = Answer::parse(&answer);
        let length = answer.header("content-length").unwrap().parse().unwrap();
        answer.body.resize(length, 0);
        self.0.read_exact(&mut answer.body).unwrap();
        answer
    }

    fn get(&mut self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }
}

/// Reads objects on one connection, from one on, until some time after the server says that it
/// serves. Each answer is an object or a refusal; after an object none is refused. Returns how many
/// were.
fn read_on(client: &Client, first: usize, is_served: &AtomicBool) -> usize {
    let mut s3 = Alive::to(&client.address);
    let (mut refused, mut served) = (0, 0);
    for n in (0..OBJECTS).cycle().skip(first) {
        let answer = s3.ask(&client.sign("GET", &path(n), &[], b"", Mode::Whole).head);
        if answer.status == 200 {
            assert!(answer.body == value(n), "{n}");
            served += 1;
        } else {
            assert_eq!(code(&answer), (503, "ServiceUnavailable".to_owned()));
            assert_eq!(served, 0, "refused after the open");
            refused += 1;
        }
        if is_served.load(Ordering::Relaxed) && served > 50 {
            break;
        }
    }
    refused
}

/// Regression: clients that connected while the index was built anew waited for minutes, without an
/// answer to health checks either.
#[test]
fn until_the_store_is_open_requests_are_refused() {
    let place = Place::new();
    let mut opening = Opening::start(&place, &[]);
    let mut page = Alive::to(&opening.page);
    let health = page.get("/healthz").status(200);
    assert_eq!(
        (&health.json()["reads"], health.header("retry-after")),
        (&"refused".into(), None)
    );
    assert_eq!(health.header("x-content-type-options"), Some("nosniff"));
    let ready = page.get("/readyz").status(503);
    assert_eq!(
        (&ready.json()["ready"], ready.header("retry-after")),
        (&false.into(), Some("1"))
    );
    assert!(ready.json()["reason"].as_str().unwrap().contains("is being opened"));
    let refused = page.get("/api/stats").status(503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(refused.json()["error"].as_str().unwrap().contains("is being opened"));

    let client = opening.client.clone();
    let signed = |n: usize| client.sign("GET", &path(n), &[], b"", Mode::Whole).head;
    let mut s3 = Alive::to(&client.address);
    for request in [signed(7), "GET /mine HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned()] {
        let refused = s3.ask(&request);
        assert_eq!(code(&refused), (503, "ServiceUnavailable".to_owned()));
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    let put = client.put("/mine/new", &bytes(100_000), Mode::Whole);
    assert_eq!(code(&put), (503, "ServiceUnavailable".to_owned()));
    assert_eq!(put.header("connection"), Some("close"), "the body was not read");

    let is_served = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = |first: usize| {
            let (client, is_served) = (&client, &is_served);
            move || read_on(client, first, is_served)
        };
        let asking: Vec<_> = (0..8).map(|first| scope.spawn(ask(first))).collect();
        opening.go_on();
        is_served.store(true, Ordering::Relaxed);
        let refused: Vec<usize> = asking.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(
            refused.iter().any(|refused| *refused > 0),
            "some came before the store was open"
        );
    });
    // The first connections, too.
    page.get("/readyz").status(200);
    page.get("/api/stats").status(200);
    assert!(s3.ask(&signed(7)).status(200).body == value(7));
    client.get("/mine/new").status(404);
    client.put("/mine/new", &bytes(100_000), Mode::Whole).status(200);
    Process::Program(opening.child).end();
}

#[test]
fn a_signal_ends_a_server_that_opens_its_store() {
    let place = Place::new();
    let mut opening = Opening::start(&place, &[]);
    crate::common::signal(&opening.child, "TERM");
    assert!(wait(&mut opening.child).success());
    let mut said = String::new();
    opening.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("stopped before the store was open"), "{said}");
    fs::remove_file(&opening.pipe).unwrap();
    let (id, secret) = (&opening.client.id, &opening.client.secret);
    let again = Service::program_with_key(&place, &[], id, secret);
    for n in [0, OBJECTS - 1] {
        assert!(again.client.get(&path(n)).status(200).body == value(n));
    }
}

#[test]
fn it_is_the_same_over_tls() {
    let place = Place::new();
    let certificate = new_certificate(&place);
    let mut opening = Opening::start(&place, &["--tls-cert", "tls.crt", "--tls-key", "tls.key"]);
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let list = opening.client.sign("GET", "/", &[], b"", Mode::Whole).head;
    assert_eq!(over_tls(&opening.page, &certificate, health).unwrap(), 200);
    assert_eq!(over_tls(&opening.client.address, &certificate, &list).unwrap(), 503);
    opening.go_on();
    assert_eq!(over_tls(&opening.client.address, &certificate, &list).unwrap(), 200);
    Process::Program(opening.child).end();
}

/// The open fails after requests were refused: with the message and the code of any command.
#[test]
fn an_open_that_fails_ends_the_program() {
    let place = Place::new();
    let mut opening = Opening::start(&place, &[]);
    // What is read after the index.
    let blocks = place.path("terrace-data/large");
    fs::remove_dir_all(&blocks).unwrap();
    fs::write(&blocks, "no directory").unwrap();
    let mut note = fs::OpenOptions::new();
    note.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let ended = eventually("it ends", || {
        let _ = note.open(&opening.pipe);
        opening.child.try_wait().unwrap()
    });
    let mut said = String::new();
    opening.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.lines().any(|line| line.starts_with("error: ")), "{said}");
}
