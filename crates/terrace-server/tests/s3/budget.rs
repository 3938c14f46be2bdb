//! Bounds on what clients hold of the server: memory, connections, time; and permissions of its
//! files.

use crate::{
    Service, code,
    common::{PATIENCE, Place, bytes},
    operating::plain,
    sign::Mode,
};
use memchr::memmem;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// The most memory the server had at any time.
pub fn most_memory_bytes(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.child().id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

/// One chunk of 700 MiB took 700 MiB of memory: a chunk was collected before any of it was written,
/// however long its sender said that it was.
#[test]
fn a_long_chunk_passes_as_it_comes() {
    let place = Place::new();
    let service = Service::program(&place, &["--cache", "16MiB", "--split-threshold", "256MiB"]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let data = bytes(192 << 20);
    let mut request = client.sign("PUT", "/bucket/k", &[], &data, Mode::UnsignedWithTrailer);
    let trailer = String::from_utf8_lossy(&request.body[request.body.len() - 100..]).into_owned();
    let trailer = &trailer[trailer.find("x-amz-checksum").unwrap()..];
    let body = [
        format!("{:x}\r\n", data.len()).as_bytes(),
        &data,
        b"\r\n0\r\n",
        trailer.as_bytes(),
    ]
    .concat();
    let length = |bytes: usize| format!("\r\ncontent-length: {bytes}\r\n");
    request.head = request.head.replace(&length(request.body.len()), &length(body.len()));
    request.body = body;
    let before = most_memory_bytes(&service);
    client.exchange(&request).status(200);
    let more = most_memory_bytes(&service) - before;
    assert!(more < 128 << 20, "{more}");
    assert!(client.get("/bucket/k").status(200).body == data);

    // A signed chunk had to be judged whole. Now it is dropped if it was not right at its end.
    client.put("/bucket/signed", &data, Mode::OneChunk).status(200);
    let more = most_memory_bytes(&service) - before;
    assert!(more < 128 << 20, "{more}");
    assert!(client.get("/bucket/signed").status(200).body == data);
    let mut request = client.sign("PUT", "/bucket/wrong", &[], &data, Mode::OneChunk);
    let at = request.body.len() / 2;
    request.body[at] ^= 1;
    assert_eq!(
        code(&client.exchange(&request)),
        (403, "SignatureDoesNotMatch".to_owned())
    );
    client.get("/bucket/wrong").status(404);
    // One whose head may be read in two ways is left to the library, and has a bound.
    let mut request = client.sign("PUT", "/bucket/signed()", &[], b"0123456789", Mode::Chunks);
    request.body = format!("2bc00000;chunk-signature={}\r\n0123", "0".repeat(64)).into_bytes();
    assert_eq!(code(&client.exchange(&request)), (400, "EntityTooLarge".to_owned()));
}

/// What came of chunks of a byte each was kept as a list of all of them, 32 bytes for each of three
/// pieces, and the list's memory for as long as the request took: 300 connections took 1.7 GB.
#[test]
fn short_chunks_take_no_more_than_they_have() {
    const BYTES: usize = 700_000;
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let chunks = b"1\r\na\r\n".repeat(BYTES);
    let twice = (2 * BYTES).to_string();
    let announced = [("x-amz-decoded-content-length", twice.as_str())];
    let before = most_memory_bytes(&service);
    // Those of ten would have taken 670 MB.
    let held: Vec<_> = (0..10)
        .map(|number| {
            let target = format!("/bucket/{number}");
            let mut request = client.sign("PUT", &target, &announced, b"", Mode::UnsignedWithTrailer);
            let length = |bytes: usize| format!("\r\ncontent-length: {bytes}\r\n");
            request.head = request
                .head
                .replace(&length(request.body.len()), &length(2 * chunks.len()));
            let mut stream = TcpStream::connect(&client.address).unwrap();
            stream.write_all(request.head.as_bytes()).unwrap();
            stream.write_all(&chunks).unwrap();
            stream
        })
        .collect();
    // What is still on its way has been taken when this has.
    client.put("/bucket/other", &bytes(900_000), Mode::Whole).status(200);
    let more = most_memory_bytes(&service) - before;
    assert!(more < 100 << 20, "{more}");
    drop(held);
}

/// Regression: the maximum of idle connections kept all other clients out.
#[test]
fn idle_connections_do_not_stop_the_service() {
    let place = Place::new();
    let service = Service::start(&place, &["--connections", "16"]);
    let client = &service.client;
    let idle: Vec<_> = (0..40).map(|_| TcpStream::connect(&client.address).unwrap()).collect();
    for _ in 0..4 {
        client.get("/").status(200);
    }
    drop(idle);
}

/// Eight connections that were in the middle of a form were all there could be, however slowly they
/// sent: all others got 503.
#[test]
fn slow_forms_do_not_block_others() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let form = |fields: &str, length: usize| {
        let address = &client.address;
        format!(
            "POST /bucket HTTP/1.1\r\nHost: {address}\r\nContent-Type: multipart/form-data; boundary=x\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{fields}"
        )
    };
    let start = "--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n";
    let slow: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(&client.address).unwrap();
            stream.write_all(form(start, 1000).as_bytes()).unwrap();
            stream
        })
        .collect();
    let field =
        |name: &str, value: &str| format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    // The policy's signature is looked at before the file comes.
    let fields = [
        field("key", "k"),
        field("policy", "cG9saWN5"),
        field("x-amz-date", "20260101T000000Z"),
        field("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        field(
            "x-amz-credential",
            &format!("{}/20260101/us-east-1/s3/aws4_request", client.id),
        ),
        field("x-amz-signature", &"0".repeat(64)),
        "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n".to_owned(),
    ]
    .concat();
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(form(&fields, 10_000_000).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("SignatureDoesNotMatch"),
        "{answer}"
    );
    drop(slow);
}

/// Files that others can read, or directories that they can enter.
fn open_to_others(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.permissions().mode() & 0o077 != 0 {
            found.push(format!("{} {:o}", path.display(), metadata.permissions().mode()));
        }
        if metadata.is_dir() {
            found.extend(open_to_others(&path));
        }
    }
    found
}

/// Regression: store, backup and access log were readable by all users, including secrets of access
/// keys, which were stored unencrypted.
#[test]
fn stored_files_are_private() {
    // The mask that the program inherits does not matter. This process's own mask stays: other
    // tests make files meanwhile.
    let place = Place::with_starter(&["sh", "-c", "umask 000; exec \"$@\"", "sh"]);
    place.write("key", "0f".repeat(32));
    let with_key = ["--secrets-key-file", "key"];
    let made = place.run(&[&["key", "create", "--allow", "*=admin", "--json"][..], &with_key].concat());
    let made = made.code(0).json();
    let text = |name: &str| made[name].as_str().unwrap();
    let (id, secret) = (text("access_key_id"), text("secret_access_key"));
    let more = [&["--access-log", "access.log"][..], &with_key].concat();
    let service = Service::program_with_key(&place, &more, id, secret);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    service
        .client
        .put("/bucket/k", &bytes(900_000), Mode::Whole)
        .status(200);
    place.run(&["backup", "backup"]).code(0);
    // Nothing comes and goes in the directory any more.
    drop(service);
    fs::remove_file(place.path("key")).unwrap();
    assert_eq!(open_to_others(place.dir.path()), [] as [&str; 0]);
    assert!(place.path("access.log").exists() && place.path("backup").exists());
    // The socket of a server that was killed is no file.
    for file in crate::files(place.dir.path()).into_iter().filter(|path| path.is_file()) {
        let found = fs::read(&file).unwrap();
        let has = memmem::find(&found, secret.as_bytes()).is_some();
        assert!(!has, "{} has the secret", file.display());
    }
    let refused = place.run(&["serve", "--listen", "127.0.0.1:0"]).code(2);
    assert!(refused.error().contains("TERRACE_SECRETS_KEY"), "{}", refused.error());
    place.write("key", "0e".repeat(32));
    let refused = place
        .run(&["serve", "--listen", "127.0.0.1:0", "--secrets-key-file", "key"])
        .code(2);
    assert!(refused.error().contains("another key"), "{}", refused.error());
    assert!(
        place.run(&["key", "list"]).code(0).text().contains(id),
        "what a key may do is no secret"
    );
}

/// Probes pass by whatever else waits, and need no password.
#[test]
fn the_page_has_a_password_where_others_reach_it() {
    let place = Place::new();
    let refused = place.run(&["serve", "--listen", "0.0.0.0:0"]).code(2);
    assert!(refused.error().contains("--page-password-file"), "{}", refused.error());
    place.write("password", "open sesame\n");
    let more = [
        "--listen",
        "0.0.0.0:0",
        "--page-password-file",
        "password",
        "--host-name",
        "pictures.example.org",
    ];
    let mut command = place.command(&["serve"]);
    let server = crate::common::Server::start(command.args(more));
    let port = server.address.rsplit_once(':').unwrap().1;
    let address = format!("127.0.0.1:{port}");
    let refused = plain(&address, "/api/stats").status(401);
    assert!(refused.header("www-authenticate").unwrap().starts_with("Basic "));
    plain(&address, "/healthz").status(200);
    // "user:open sesame"
    let right = "Authorization: Basic dXNlcjpvcGVuIHNlc2FtZQ==\r\n";
    let ask = |host: &str, headers: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = format!("GET /api/stats HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        crate::common::Answer::parse(&bytes).status
    };
    assert_eq!(ask(&address, right), 200);
    assert_eq!(ask("pictures.example.org", right), 200);
    assert_eq!(ask("attacker.example", right), 421);
    assert_eq!(ask(&address, "Authorization: Basic eDp4\r\n"), 401);
}
