//! What an operator does: keys, logs, figures, limits.

use crate::{
    Service, anonymous, code,
    common::{Answer, PATIENCE, Place, bytes, eventually, signal, wait},
    sign::{Client, Mode},
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    pki_types::{CertificateDer, ServerName},
};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// A running server is asked, and goes by the change at once.
#[test]
fn keys_while_it_serves() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    service.client.send("PUT", "/mine", &[], b"").status(200);
    let made = place
        .run(&["key", "create", "--allow", "mine=write", "--json"])
        .code(0)
        .json();
    let client = service.client.with_key(&made);
    client.put("/mine/k", b"v", Mode::Whole).status(200);
    assert_eq!(
        code(&client.send("DELETE", "/mine", &[], b"")),
        (403, "AccessDenied".to_owned())
    );
    let listed = place.run(&["key", "list"]).code(0).text();
    assert!(listed.contains(&format!("{}  mine=write", client.id)) && !listed.contains(&client.secret));
    place.run(&["key", "remove", &client.id]).code(0);
    place.run(&["key", "remove", &client.id]).code(3);
    assert_eq!(code(&client.get("/mine/k")), (403, "InvalidAccessKeyId".to_owned()));
    let service = service.kill_and_restart(&place);
    service.client.get("/mine/k").status(200);
    let client = Client {
        address: service.client.address.clone(),
        ..client
    };
    assert_eq!(code(&client.get("/mine/k")), (403, "InvalidAccessKeyId".to_owned()));
}

/// Each request has its line and its count, also those that are refused and those whose clients
/// leave.
#[test]
fn what_is_logged_and_counted() {
    let place = Place::new();
    let log = place.path("access.log");
    let mut service = Service::start(&place, &["--access-log", log.to_str().unwrap()]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    // More than sockets take before the client that leaves is gone.
    let large = bytes(24_000_000);
    client.put("/bucket/k", &large, Mode::Whole).status(200);
    client.get("/bucket/k?response-content-type=text%2Fplain").status(200);
    client.get("/bucket/none").status(404);
    assert_eq!(anonymous(&client.address, "GET", "/bucket/k", ""), 403);
    let request = client.sign("GET", "/bucket/k", &[], b"", Mode::Whole);
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.write_all(request.head.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    drop(stream);
    // A request is under way until it is counted; what came before that line may have been written
    // before.
    service.wait_for_requests(0);
    let metrics = service.metrics();
    for line in [
        "terrace_s3_requests_total{operation=\"GetObject\",status=\"404\"} 1",
        "terrace_s3_requests_total{operation=\"GetObject\",status=\"403\"} 1",
        "terrace_s3_requests_total{operation=\"PutObject\",status=\"200\"} 1",
        "terrace_s3_received_bytes_total 24000000",
    ] {
        assert!(metrics.lines().any(|text| text == line), "{line} is not in\n{metrics}");
    }
    assert_eq!(plain(service.page_address(), "/readyz").status, 200);
    service.end();
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| (line["operation"].as_str().unwrap(), line["status"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            ("CreateBucket", 200),
            ("PutObject", 200),
            ("GetObject", 200),
            ("GetObject", 404),
            ("GetObject", 403),
            ("GetObject", 200)
        ]
    );
    assert_eq!(
        (&lines[1]["key"], &lines[1]["received"]),
        (&client.id.clone().into(), &24_000_000.into())
    );
    assert_eq!(
        (&lines[2]["sent"], &lines[2]["complete"]),
        (&24_000_000.into(), &true.into())
    );
    assert_eq!(
        (&lines[4]["key"], &lines[4]["peer"]),
        (&serde_json::Value::Null, &"127.0.0.1".into())
    );
    assert_eq!(lines[5]["complete"], false, "a client that left");
}

#[test]
fn a_sender_above_the_limit_gets_503() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-rate", "2"]);
    let client = &service.client;
    // A second's allowance passes at any pace; then further requests are refused.
    for _ in 0..2 {
        client.get("/").status(200);
    }
    let refused = eventually("a key that sends too many is refused", || {
        Some(client.get("/")).filter(|answer| answer.status == 503)
    });
    assert_eq!(code(&refused).1, "SlowDown");
    assert_eq!(refused.header("retry-after"), Some("1"));
    eventually("addresses count, too", || {
        (anonymous(&client.address, "GET", "/bucket/k", "") == 503).then_some(())
    });
    eventually("the key may send again", || {
        (client.get("/").status == 200).then_some(())
    });
    place.run(&["serve", "--s3-rate", "0"]).code(2);
}

/// Asks without a signature.
pub fn plain(address: &str, path: &str) -> Answer {
    ask(address, path, "")
}

/// The same with more headers.
pub fn ask(address: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

/// An image that was put over S3 is shown by the page, however its bytes are kept; and S3 says
/// which tier it was on.
#[test]
fn the_page_shows_what_came_over_s3() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/images", &[], b"").status(200);
    let large = bytes(900_000);
    client.put("/images/y/original", &large, Mode::Whole).status(200);
    let page = service.page_address();
    plain(page, "/images/y/original").status(404);
    crate::access::open_to_all(client, "images");
    let whole = plain(page, "/images/y/original").status(200);
    assert!(whole.body == large);
    assert_eq!(whole.header("etag"), client.get("/images/y/original").header("etag"));
    let ranged = ask(page, "/images/y/original", "Range: bytes=300000-600000\r\n").status(206);
    assert!(ranged.body == large[300_000..=600_000]);
    assert_eq!(ranged.header("content-range"), Some("bytes 300000-600000/900000"));
    ask(page, "/images/y/original", "Range: bytes=900000-\r\n").status(416);
    let etag = format!("If-None-Match: {}\r\n", whole.header("etag").unwrap());
    ask(page, "/images/y/original", &etag).status(304);
    let status = |target: &str| {
        client
            .get(target)
            .status(200)
            .header("cache-status")
            .unwrap()
            .to_owned()
    };
    assert_eq!(status("/images/y/original"), "Terrace; fwd=miss; detail=block");
    client.put("/images/y/small", &large[..1000], Mode::Whole).status(200);
    assert_eq!(status("/images/y/small"), "Terrace; hit; detail=flash");
}

/// Writes a certificate and its key where the server looks.
pub(crate) fn new_certificate(place: &Place) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    place.write("tls.crt", made.cert.pem());
    place.write("tls.key", made.signing_key.serialize_pem());
    made.cert.der().clone()
}

const WITH_TLS: [&str; 5] = ["serve", "--tls-cert", "tls.crt", "--tls-key", "tls.key"];

/// Serves with that certificate: the process, the page's address, and a client, which itself speaks
/// no TLS.
fn serve_with_tls(place: &Place) -> (Child, String, Client) {
    let key = place
        .run(&["key", "create", "--allow", "*=admin", "--json"])
        .code(0)
        .json();
    let mut command = place.command(&WITH_TLS);
    let command = command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = || {
        let line = lines.next().unwrap().unwrap();
        let rest = line.strip_prefix("https://").unwrap();
        rest.split('/').next().unwrap().to_owned()
    };
    let page = address();
    let client = Client {
        address: address(),
        id: key["access_key_id"].as_str().unwrap().to_owned(),
        secret: key["secret_access_key"].as_str().unwrap().to_owned(),
        clock: place.clock.clone(),
    };
    (child, page, client)
}

/// A server with TLS, whose certificate is `tls.crt` in its place.
pub(crate) fn start_with_tls(place: &Place) -> (Child, Client) {
    new_certificate(place);
    let (child, _, client) = serve_with_tls(place);
    (child, client)
}

/// Both listeners speak TLS and nothing else, and take another certificate without a restart.
#[test]
fn tls() {
    let place = Place::new();
    let first = new_certificate(&place);
    let (mut child, page, client) = serve_with_tls(&place);
    let s3 = client.address.clone();
    let list = client.sign("GET", "/", &[], b"", Mode::Whole).head;
    let health = format!("GET /healthz HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
    assert_eq!(over_tls(&page, &first, &health).unwrap(), 200);
    assert_eq!(over_tls(&s3, &first, &list).unwrap(), 200);
    let mut plain = TcpStream::connect(&s3).unwrap();
    plain.write_all(list.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "not without TLS");

    let second = new_certificate(&place);
    assert!(over_tls(&s3, &second, &list).is_err(), "not yet");
    signal(&child, "HUP");
    eventually("the new certificate is shown", || over_tls(&s3, &second, &list).ok());
    place.write("tls.key", "no key");
    signal(&child, "HUP");
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(
        over_tls(&s3, &second, &list).unwrap(),
        200,
        "what cannot be used changes nothing"
    );
    signal(&child, "TERM");
    assert!(wait(&mut child).success());
    let refused = place.run(&WITH_TLS).code(1);
    assert!(
        refused.error().contains("tls.key: there is no private key"),
        "{}",
        refused.error()
    );
    place.run(&["serve", "--tls-cert", "tls.crt"]).code(2);
}

/// The status of the answer to a request, if the server's certificate is this one.
pub(crate) fn over_tls(address: &str, certificate: &CertificateDer<'static>, head: &str) -> std::io::Result<u16> {
    let answer = ask_over_tls(address, certificate, head.as_bytes(), rustls::ALL_VERSIONS)?;
    Ok(answer.status)
}

fn ask_over_tls(
    address: &str,
    certificate: &CertificateDer<'static>,
    request: &[u8],
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(request)?;
    let mut answer = Vec::new();
    // The server may end without saying so.
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => return Err(error),
        _ => {}
    }
    Ok(Answer::parse(&answer))
}

/// Policies that ask for the version of TLS were refused, also where the server speaks it itself.
#[test]
fn policies_ask_for_the_version_of_tls() {
    let place = Place::new();
    let certificate = new_certificate(&place);
    let (mut child, _, client) = serve_with_tls(&place);
    let ask = |method: &str, target: &str, body: &[u8], versions: &[&'static SupportedProtocolVersion]| {
        let signed = client.sign(method, target, &[], body, Mode::Whole);
        let request = [signed.head.as_bytes(), &signed.body].concat();
        ask_over_tls(&client.address, &certificate, &request, versions).unwrap()
    };
    let any = rustls::ALL_VERSIONS;
    ask("PUT", "/bucket", b"", any).status(200);
    ask("PUT", "/bucket/k", b"value", any).status(200);
    let policy =
        br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"NumericLessThan":{"s3:TlsVersion":"1.3"}}}}"#;
    ask("PUT", "/bucket?policy", policy, any).status(204);
    let get = |version: &'static SupportedProtocolVersion| ask("GET", "/bucket/k", b"", &[version]);
    assert_eq!(get(&rustls::version::TLS13).status(200).body, b"value");
    get(&rustls::version::TLS12).status(403);
    signal(&child, "TERM");
    assert!(wait(&mut child).success());
}

/// Deletions free the values of long objects a moment later, and the store their blocks later
/// still. A put meanwhile waits for that.
#[test]
fn what_was_deleted_is_room_for_the_next_object() {
    let place = Place::new();
    let limits = ["--split-threshold", "1MiB", "--large-capacity", "12MiB"];
    let service = Service::start(&place, &limits);
    let client = &service.client;
    client.send("PUT", "/full", &[], b"").status(200);
    let value = bytes(900_000);
    let put = |key: &str| client.put(&format!("/full/{key}"), &value, Mode::Whole);
    for round in 0..4 {
        let keys: Vec<_> = (0..40).map(|number| format!("{round}-{number}")).collect();
        let mut stored = Vec::new();
        let refused = keys.iter().find_map(|key| {
            let answer = put(key);
            let refused = (answer.status != 200).then(|| code(&answer));
            stored.extend(refused.is_none().then_some(key));
            refused
        });
        assert_eq!(refused, Some((507, "ServiceUnavailable".to_owned())));
        assert!((4..40).contains(&stored.len()), "{round}: {} objects fit", stored.len());
        let objects: String = stored
            .iter()
            .map(|key| format!("<Object><Key>{key}</Key></Object>"))
            .collect();
        let delete = format!("<Delete>{objects}</Delete>");
        client.send("POST", "/full?delete=", &[], delete.as_bytes()).status(200);
        put("next").status(200);
        assert!(client.get("/full/next").status(200).body == value);
        client.send("DELETE", "/full/next", &[], b"").status(204);
    }
}

/// That it is full, what is used of what there is, the reserve, and how long the rest lasts.
fn figures_say_that_it_is_full(service: &Service, page: &str) {
    let metrics = service.metrics();
    let of = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}"))
            .trim()
            .parse()
            .unwrap()
    };
    assert!(of("terrace_full ") > 0.0);
    let reserve = of("terrace_reserve_bytes ");
    assert!(reserve > 0.0);
    let used = of("terrace_fill_used_bytes{tier=\"large\"} ");
    let capacity = of("terrace_fill_capacity_bytes{tier=\"large\"} ");
    assert!(used > 0.0 && used <= capacity, "{used} of {capacity}");
    assert!(of("terrace_hours_to_full{tier=\"large\"} ") > 0.0);
    let stats = plain(page, "/api/stats").status(200).json();
    assert!(stats["full"].as_str().unwrap().contains("free segment"), "{stats}");
    assert_eq!(stats["reserve_bytes"].as_f64(), Some(reserve), "{stats}");
    assert_eq!(
        stats["fill"]["large"]["capacity_bytes"].as_f64(),
        Some(capacity),
        "{stats}"
    );
}

/// A store of which both tiers were full took no DELETE any more: each hung for ten seconds and was
/// refused, and `/readyz` said ready. Nothing of this had a test but a script for root.
#[test]
fn a_full_store_refuses_new_objects_says_so_and_takes_deletes() {
    const LENGTH: usize = 20_000;
    let place = Place::new();
    let limits = [
        "--split-threshold",
        "256KiB",
        "--large-capacity",
        "4MiB",
        "--flash-capacity",
        "16MiB",
    ];
    let service = Service::start(&place, &limits);
    let client = &service.client;
    client.send("PUT", "/full", &[], b"").status(200);
    let value = bytes(LENGTH);
    let page = service
        .page
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned();
    let fill = |round: usize| -> Vec<String> {
        let mut stored = Vec::new();
        for number in 0..2_000 {
            let key = format!("/full/{round}/{number:04}");
            let answer = client.put(&key, &value, Mode::Whole);
            if answer.status != 200 {
                assert_eq!(code(&answer), (507, "ServiceUnavailable".to_owned()));
                return stored;
            }
            stored.push(key);
        }
        panic!("there is no end of room");
    };
    let first = fill(0);
    assert!(first.len() * LENGTH > 6 << 20, "{} objects", first.len());
    // Not ready for writes, with the reason, and reads go on. What is about to be recycled may
    // still take some of the next ones.
    let until = Instant::now() + PATIENCE;
    let mut stored = first.clone();
    loop {
        let ready = plain(&page, "/readyz");
        if ready.status == 503 {
            assert!(ready.text().contains("\"reads\":\"ok\""), "{}", ready.text());
            assert!(ready.text().contains("free segment"), "{}", ready.text());
            break;
        }
        assert!(Instant::now() < until, "{}", ready.text());
        stored.extend(fill(stored.len()));
    }
    figures_say_that_it_is_full(&service, &page);
    assert!(client.get(&stored[0]).status(200).body == value);
    for key in &stored {
        client.send("DELETE", key, &[], b"").status(204);
    }
    // A moment later it takes as much again.
    let until = Instant::now() + PATIENCE;
    let mut again = 0;
    while again * 10 < first.len() * 9 {
        assert!(Instant::now() < until, "{again} of {} objects go in again", first.len());
        again += fill(10_000 + again).len();
    }
}
