//! Answers by the short way say what those by the long way do.

use crate::{
    Service, code,
    common::{Answer, Place, bytes, eventually},
    operating::plain,
    sign::{Client, Mode, raw},
};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

/// Rules that add headers to answers: for other origins, and for the expiry of objects.
const CORS: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>https://site.example</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
const LIFECYCLE: &[u8] =
    b"<LifecycleConfiguration><Rule><ID>old</ID><Status>Enabled</Status><Filter><Prefix>due/</Prefix></Filter>\
    <Expiration><Days>30</Days></Expiration></Rule></LifecycleConfiguration>";

/// A request without a signature and its answer.
fn ask(address: &str, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

/// How many answers went the short way.
fn at_once(service: &Service) -> u64 {
    let text = service.metrics();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("terrace_s3_at_once_total "));
    line.unwrap().parse().unwrap()
}

/// Waits until the hash index is filled, which goes on for a moment after the start: before that
/// nothing is answered at once.
fn wait_for_index(service: &Service) {
    eventually("the hash index is filled", || {
        let stats = plain(service.page_address(), "/api/stats").status(200).json();
        (stats["hash_index"]["refilling"] == false).then_some(())
    });
}

/// What an answer says but for what is its own: its number, and the second it was made.
fn said(answer: &Answer) -> (u16, Vec<(&str, &str)>) {
    let own = ["x-amz-request-id", "date"];
    let headers = answer.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_str()));
    (answer.status, headers.filter(|(name, _)| !own.contains(name)).collect())
}

/// Sends a request both ways: an unknown header is enough for the long way. Returns whether the
/// short one was taken.
#[track_caller]
fn compare(service: &Service, method: &str, path: &str, headers: &str) -> bool {
    let address = &service.client.address;
    let before = at_once(service);
    let answer = ask(address, method, path, headers);
    let between = at_once(service);
    let other = ask(address, method, path, &format!("X-Unknown: 1\r\n{headers}"));
    assert_eq!(at_once(service), between, "{path}: the other way is the long one");
    assert_eq!(said(&answer), said(&other), "{method} {path} {headers}");
    assert!(answer.body == other.body, "{method} {path} {headers}");
    assert!(answer.header("x-amz-request-id") != other.header("x-amz-request-id"));
    between > before
}

/// Puts objects of all lengths and descriptions: the shortest live in the index, the longest on the
/// large tier. Their paths.
fn put_objects(service: &Service) -> Vec<String> {
    let client = &service.client;
    let described = [
        vec![],
        vec![
            ("content-type", "text/html; charset=utf-8"),
            ("cache-control", "max-age=60"),
        ],
        vec![
            ("content-disposition", "attachment; filename=\"a b.txt\""),
            ("content-language", "de"),
        ],
        vec![
            ("content-encoding", "gzip"),
            ("expires", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ],
        vec![
            ("x-amz-meta-one", "1"),
            ("x-amz-meta-two", "two words"),
            ("x-amz-tagging", "a=b&c=d"),
        ],
        vec![
            ("x-amz-website-redirect-location", "/elsewhere"),
            ("x-amz-checksum-crc32", ""),
        ],
    ];
    let mut paths = Vec::new();
    for length in [0, 1, 64, 65, 8 << 10, 100_000, 200_000] {
        for (number, headers) in described.iter().enumerate() {
            for prefix in ["", "due/"] {
                let path = format!("/public/{prefix}{length}/{number}+x");
                let headers: Vec<_> = headers.iter().filter(|(_, value)| !value.is_empty()).copied().collect();
                client.send("PUT", &path, &headers, &bytes(length)).status(200);
                paths.push(path);
            }
        }
    }
    paths
}

fn with_public_bucket(place: &Place) -> Service {
    let service = Service::start(place, &["--domain", "s3.example.org"]);
    let client = &service.client;
    client.send("PUT", "/public", &[], b"").status(200);
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
        "Action":"s3:GetObject","Resource":"arn:aws:s3:::public/*"}]}"#;
    client.send("PUT", "/public?policy", &[], policy.as_bytes()).status(204);
    service
}

#[test]
fn what_is_in_ram_is_answered_at_once_and_in_the_same_words() {
    let place = Place::new();
    place.write("page.html", "<p>put by the command line");
    for attributes in [
        &["--attribute", "colour=red"][..],
        &["--attribute", "x-amz-meta-a=\u{fc}"],
    ] {
        let key = format!("public/{}", attributes[1].len());
        place.run(&[&["put", &key, "page.html"], attributes].concat()).code(0);
    }
    let service = with_public_bucket(&place);
    let paths = put_objects(&service);
    wait_for_index(&service);
    for rules in ["none", "cors", "lifecycle", "versioning"] {
        let client = &service.client;
        match rules {
            "cors" => drop(client.send("PUT", "/public?cors", &[], CORS).status(200)),
            "lifecycle" => drop(client.send("PUT", "/public?lifecycle", &[], LIFECYCLE).status(200)),
            "versioning" => {
                let on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
                client.send("PUT", "/public?versioning", &[], on).status(200);
                put_objects(&service);
            }
            _ => {}
        }
        for path in &paths {
            let origin = "Origin: https://site.example\r\nSec-Fetch-Mode: cors\r\n";
            for (method, headers) in [("GET", ""), ("HEAD", ""), ("GET", origin), ("HEAD", "Accept: */*\r\n")] {
                eventually("an object in RAM is answered at once", || {
                    compare(&service, method, path, headers).then_some(())
                });
            }
        }
        let answer = ask(
            &client.address,
            "GET",
            "/public/due/8192/0+x",
            "Origin: https://site.example\r\n",
        )
        .status(200);
        let has = |name: &str| answer.header(name).is_some();
        assert_eq!(has("access-control-allow-origin"), rules != "none");
        assert_eq!(has("x-amz-expiration"), !matches!(rules, "none" | "cors"));
        assert_eq!(has("x-amz-version-id"), rules == "versioning");
        assert_eq!(answer.header("cache-status"), Some("Terrace; hit; detail=flash"));
    }
    // What the command line put has other words, and one that no header can carry as it is.
    for key in ["10", "15"] {
        compare(&service, "GET", &format!("/public/{key}"), "");
    }
    let metadata = ask(&service.client.address, "GET", "/public/8192/4+x", "").status(200);
    assert_eq!(metadata.header("x-amz-meta-two"), Some("two words"));
    assert_eq!(
        metadata.header("x-amz-tagging-count"),
        None,
        "told with the right to read tags"
    );
}

#[test]
fn what_is_not_plain_goes_the_long_way() {
    let place = Place::new();
    let service = with_public_bucket(&place);
    let client = &service.client;
    client.put("/public/k", &bytes(8 << 10), Mode::Whole).status(200);
    client.put("/public/a%20b", &bytes(100), Mode::Whole).status(200);
    client.put("/public/long", &bytes(900_000), Mode::Whole).status(200);
    client
        .send("PUT", "/public/odd", &[("x-amz-meta-a", "=?UTF-8?B?w7w=?=")], b"v")
        .status(200);
    client.send("PUT", "/private", &[], b"").status(200);
    client.put("/private/k", b"secret", Mode::Whole).status(200);
    wait_for_index(&service);
    eventually("an object in RAM is answered at once", || {
        compare(&service, "GET", "/public/k", "").then_some(())
    });
    let etag = ask(&client.address, "HEAD", "/public/k", "")
        .header("etag")
        .unwrap()
        .to_owned();
    for (method, path, headers) in [
        ("GET", "/public/k", "Range: bytes=0-9\r\n"),
        ("GET", "/public/k", "Range: bytes=0-9,100-200\r\n"),
        ("HEAD", "/public/k", "Range: bytes=0-9\r\n"),
        ("GET", "/public/k", &*format!("If-None-Match: {etag}\r\n")),
        ("GET", "/public/k", "If-Match: \"other\"\r\n"),
        (
            "GET",
            "/public/k",
            "If-Modified-Since: Wed, 21 Oct 2115 07:28:00 GMT\r\n",
        ),
        ("GET", "/public/k", "X-Amz-Checksum-Mode: ENABLED\r\n"),
        ("GET", "/public/k", "Content-Length: 0\r\n"),
        ("GET", "/public/k", "Authorization: Basic eDp5\r\n"),
        ("GET", "/public/k?x", ""),
        ("GET", "/public/k?response-content-type=a", ""),
        ("GET", "/public/k?versionId=null", ""),
        ("GET", "/public/k?tagging", ""),
        ("GET", "/public/a%20b", ""),
        ("GET", "/public/long", ""),
        ("GET", "/public/none", ""),
        ("GET", "/public/", ""),
        ("GET", "/public", ""),
        ("GET", "//public/k", ""),
        ("GET", "/private/k", ""),
        ("GET", "/absent/k", ""),
        ("OPTIONS", "/public/k", "Origin: https://site.example\r\n"),
        ("DELETE", "/public/k", ""),
    ] {
        // Bodies of errors and of several ranges have numbers of their own.
        let before = at_once(&service);
        let answer = ask(&client.address, method, path, headers);
        assert_eq!(
            at_once(&service),
            before,
            "{method} {path} {headers}: {}",
            answer.status
        );
    }
    ask(&client.address, "GET", "/private/k", "").status(403);
    ask(&client.address, "GET", "/public/k", "").status(200);
    let decoded = ask(&client.address, "GET", "/public/odd", "").status(200);
    assert_eq!(decoded.header("x-amz-meta-a"), Some("=?UTF-8?B?w7w=?="));
}

#[test]
fn buckets_named_by_the_host_and_buckets_that_are_closed() {
    let place = Place::new();
    let service = with_public_bucket(&place);
    let client = &service.client;
    client.put("/public/k", &bytes(8 << 10), Mode::Whole).status(200);
    client.send("PUT", "/private", &[], b"").status(200);
    client.put("/private/k", b"secret", Mode::Whole).status(200);
    let host = |host: &str, path: &str| {
        let mut stream = TcpStream::connect(&client.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    };
    wait_for_index(&service);
    for (name, path) in [("public.s3.example.org", "/k"), ("s3.example.org", "/public/k")] {
        eventually("an object in RAM is answered at once", || {
            let before = at_once(&service);
            assert_eq!(host(name, path).status(200).body, bytes(8 << 10));
            (at_once(&service) > before).then_some(())
        });
    }
    let before = at_once(&service);
    host("public.s3.example.org", "/public/k").status(403);
    host("private.s3.example.org", "/k").status(403);

    // A bucket that is no longer public is private by the short way, too.
    client.send("DELETE", "/public?policy", &[], b"").status(204);
    ask(&client.address, "GET", "/public/k", "").status(403);
    assert_eq!(at_once(&service), before);
}

/// The head of a request that is signed in its head, as clients send it.
fn signed(client: &Client, method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let head = client.sign(method, target, headers, b"", Mode::Whole).head;
    head.replace("content-length: 0\r\n", "")
}

/// The same, signed in the query.
fn presigned(client: &Client, method: &str, target: &str) -> String {
    let (target, address) = (client.presigned(method, target), &client.address);
    format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
}

/// Sends a signed request both ways. Its answer, and whether the short one was taken.
#[track_caller]
fn compare_signed(service: &Service, head: &str) -> (Answer, bool) {
    let address = &service.client.address;
    let before = at_once(service);
    let answer = raw(address, head.as_bytes());
    let between = at_once(service);
    let other = raw(address, head.replacen("\r\n", "\r\nX-Unknown: 1\r\n", 1).as_bytes());
    assert_eq!(at_once(service), between, "the other way is the long one: {head}");
    if answer.status == 200 {
        assert_eq!(said(&answer), said(&other), "{head}");
        assert!(answer.body == other.body, "{head}");
    }
    assert_eq!(code(&answer), code(&other), "{head}");
    (answer, between > before)
}

/// The answer to a signed request that is of the short way as soon as RAM has the object: it leaves
/// RAM for a moment where it is written and applied.
fn short(service: &Service, head: &str) -> Answer {
    eventually("a signed request is answered at once", || {
        let (answer, is_short) = compare_signed(service, head);
        is_short.then_some(answer)
    })
}

/// Asks for what was just put until a signed request is answered at once.
fn wait_for_signed(service: &Service, target: &str) {
    let before = at_once(service);
    eventually("a signed request is answered at once", || {
        let ask = presigned(&service.client, "GET", target);
        raw(&service.client.address, ask.as_bytes());
        (at_once(service) > before).then_some(())
    });
}

#[test]
fn what_is_signed_is_answered_at_once_too() {
    let place = Place::new();
    let make = |allow: &str| {
        let made = place.run(&["key", "create", "--allow", allow, "--json"]);
        made.code(0).json()
    };
    let (within, elsewhere) = (make("private/in/=read"), make("other=admin"));
    let service = Service::start(&place, &["--domain", "s3.example.org"]);
    let client = &service.client;
    client.send("PUT", "/private", &[], b"").status(200);
    for key in ["in/k", "k"] {
        let headers = [("x-amz-tagging", "a=b"), ("x-amz-meta-m", "v")];
        client
            .send("PUT", &format!("/private/{key}"), &headers, &bytes(8 << 10))
            .status(200);
    }
    wait_for_signed(&service, "/private/k");
    let modes = [("x-amz-checksum-mode", "enabled"), ("x-amz-checksum-mode", "other")];
    for method in ["GET", "HEAD"] {
        for head in [
            signed(client, method, "/private/k", &[]),
            signed(client, method, "/private/k?x-id=GetObject", &modes[..1]),
            signed(client, method, "/private/k", &modes[1..]),
            presigned(client, method, "/private/k"),
            presigned(client, method, "/private/k?x-id=GetObject"),
            presigned(client, method, "/private/k").replacen("\r\n", "\r\namz-sdk-request: attempt=1\r\n", 1),
        ] {
            short(&service, &head).status(200);
        }
    }
    let within = client.with_key(&within);
    short(&service, &presigned(&within, "GET", "/private/in/k")).status(200);
    for (client, target) in [
        (&within, "/private/k"),
        (&within, "/private/none"),
        (&client.with_key(&elsewhere), "/private/k"),
        (client, "/private/none"),
        (client, "/none/k"),
    ] {
        for head in [presigned(client, "GET", target), signed(client, "GET", target, &[])] {
            let (answer, is_short) = compare_signed(&service, &head);
            assert!(answer.status >= 400 && !is_short, "{head}");
        }
    }
}

/// What the short way does not find right, the long way refuses or answers: nothing is let in that
/// is not signed.
#[test]
fn what_is_not_rightly_signed_is_not_answered_at_once() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/private", &[], b"").status(200);
    client.put("/private/k", &bytes(8 << 10), Mode::Whole).status(200);
    wait_for_signed(&service, "/private/k");
    let forged = Client {
        secret: "wrong".to_owned(),
        ..client.clone()
    };
    let nobodys = Client {
        id: "TRCEAAAAAAAAAAAAAAAA".to_owned(),
        ..client.clone()
    };
    let in_query = presigned(client, "GET", "/private/k");
    let in_head = signed(client, "GET", "/private/k", &[]);
    let hash = in_head.split("sha256: ").nth(1).unwrap().split("\r\n").next().unwrap();
    for head in [
        presigned(&forged, "GET", "/private/k"),
        signed(&forged, "GET", "/private/k", &[]),
        presigned(&nobodys, "GET", "/private/k"),
        in_query.replace("Expires=600", "Expires=601"),
        in_query.replace("Signature=", "Signature=0"),
        in_query.replacen("GET", "HEAD", 1),
        in_query.replace("/private/k?", "/private/l?"),
        in_query.replace("Host: 127", "Host: 128"),
        in_query.replace("?X-Amz-Algorithm", "?x-id=a&X-Amz-Algorithm"),
        in_query.replacen("\r\n", "\r\nX-Amz-Checksum-Mode: ENABLED\r\n", 1),
        in_query.replacen(
            "\r\n",
            "\r\nX-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n",
            1,
        ),
        in_head.replace(hash, "UNSIGNED-PAYLOAD"),
        in_head.replace(hash, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        in_head.replace("/s3/aws4", "/sts/aws4"),
        in_head.replace("host;", ""),
        in_head.replace("/private/k ", "/private/k?x-id=b "),
    ] {
        assert!(head != in_query && head != in_head);
        let (answer, is_short) = compare_signed(&service, &head);
        assert!(answer.status >= 400 && !is_short, "{head}");
    }
    // What a policy says is not asked on the short way.
    let policy = r#"{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:GetObject",
        "Resource":"arn:aws:s3:::private/*","Condition":{"StringEquals":{"s3:authType":"REST-QUERY-STRING"}}}]}"#;
    client
        .send("PUT", "/private?policy", &[], policy.as_bytes())
        .status(204);
    let (answer, is_short) = compare_signed(&service, &presigned(client, "GET", "/private/k"));
    assert!(answer.status == 403 && !is_short);
    let (answer, is_short) = compare_signed(&service, &signed(client, "GET", "/private/k", &[]));
    assert!(answer.status == 200 && !is_short);
    place.run(&["key", "remove", &client.id]).code(0);
    let (answer, is_short) = compare_signed(&service, &presigned(client, "GET", "/private/k"));
    assert_eq!((code(&answer).1.as_str(), is_short), ("InvalidAccessKeyId", false));
}

/// On the short way, too, the address pays until the signature is known to be right, and then the
/// key.
#[test]
fn requests_answered_at_once_are_counted() {
    const RATE: usize = 20;
    let place = Place::new();
    let service = Service::start(&place, &["--s3-rate", &RATE.to_string()]);
    let client = &service.client;
    client.send("PUT", "/private", &[], b"").status(200);
    client.put("/private/k", &bytes(8 << 10), Mode::Whole).status(200);
    wait_for_signed(&service, "/private/k");
    // So long it takes until all may send as many again.
    thread::sleep(Duration::from_millis(1100));
    let get = || raw(&client.address, presigned(client, "GET", "/private/k").as_bytes());
    let before = at_once(&service);
    for _ in 0..RATE / 2 {
        get().status(200);
    }
    assert!(at_once(&service) > before);
    let is_slowed = |answer: Answer| code(&answer).1 == "SlowDown";
    let slowed = (0..RATE).filter(|_| is_slowed(plain(&client.address, "/none"))).count();
    assert_eq!(slowed, 0, "the address has got back what it paid");
    eventually("the key has a limit", || {
        (0..10 * RATE).any(|_| is_slowed(get())).then_some(())
    });
}
