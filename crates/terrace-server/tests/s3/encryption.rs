//! Encryption of objects: what clients see of it, and what is on the devices.

use crate::{
    Service, anonymous, code,
    common::{Answer, Place, bytes, files},
    elements,
    sign::{Client, Mode, raw},
    upload::Upload,
};
use memchr::memmem;

pub const ALGORITHM: &str = "x-amz-server-side-encryption";
const CUSTOMER: &str = "x-amz-server-side-encryption-customer-";
const SOURCE: &str = "x-amz-copy-source-server-side-encryption-customer-";
/// Two keys of a client, each with its MD5.
const KEYS: [(&str, &str); 2] = [
    (
        "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
        "hRasmdxgYDKV3nvbahU1MA==",
    ),
    (
        "YW5vdGhlciBrZXkgb2YgdGhpcnR5LXR3byBieXRlcyE=",
        "3CLAWk22DVje5uUUnPx1Pw==",
    ),
];
/// An empty one, one that is in the index, one in the log, one of several pieces, the longest in a
/// record, and some in values of their own, the last of which is on the large tier.
const LENGTHS: [usize; 8] = [0, 11, 5000, 65_536, 65_537, 262_144, 262_145, 1_200_000];
pub const DEFAULT: &[u8] = b"<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault>\
    <SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>";

/// A client with some headers that go with every request.
pub struct With<'c> {
    pub client: &'c Client,
    pub headers: Vec<(String, String)>,
}

impl With<'_> {
    pub fn send(&self, method: &str, target: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<_> = own.chain(more.iter().copied()).collect();
        self.client.send(method, target, &all, body)
    }
}

/// The headers of SSE-C with one of the keys.
pub fn key_headers(prefix: &str, at: usize) -> Vec<(String, String)> {
    let (key, md5) = KEYS[at];
    [("algorithm", "AES256"), ("key", key), ("key-MD5", md5)]
        .map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()))
        .to_vec()
}

pub fn with_key(client: &Client, at: usize) -> With<'_> {
    With {
        client,
        headers: key_headers(CUSTOMER, at),
    }
}

pub fn plainly(client: &Client) -> With<'_> {
    With {
        client,
        headers: Vec::new(),
    }
}

pub fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
}

/// Writes a file with master keys, the current one first.
pub fn master_keys(place: &Place, digits: &[&str]) -> String {
    let lines: Vec<_> = digits.iter().map(|digits| digits.repeat(32)).collect();
    let path = place.write("master-key", lines.join("\n"));
    format!("--secrets-key-file={}", path.display())
}

/// A server with a master key and a bucket.
pub fn serve(place: &Place) -> (Service, String) {
    let key = master_keys(place, &["0f"]);
    let service = Service::start(place, &[&key]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    (service, key)
}

pub fn stop(mut service: Service) -> Client {
    service.end();
    service.client.clone()
}

#[test]
fn with_a_key_of_the_client() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let (own, other, none) = (with_key(client, 0), with_key(client, 1), plainly(client));
    for length in LENGTHS {
        let (target, body) = (format!("/bucket/{length}"), bytes(length));
        let put = own.send("PUT", &target, &[], &body).status(200);
        let plain = none.send("PUT", "/bucket/plain", &[], &body).status(200);
        assert_ne!(put.header("etag"), plain.header("etag"), "it would tell the MD5");
        for answer in [&put, &own.send("HEAD", &target, &[], b"").status(200)] {
            assert_eq!(answer.header(&format!("{CUSTOMER}algorithm")), Some("AES256"));
            assert_eq!(answer.header(&format!("{CUSTOMER}key-md5")), Some(KEYS[0].1));
            assert_eq!(answer.header(ALGORITHM), None);
            assert_eq!(answer.header("etag"), put.header("etag"));
        }
        let got = own.send("GET", &target, &[], b"").status(200);
        assert!(got.body == body, "{length}");
        assert_eq!(got.header("content-length"), Some(length.to_string().as_str()));
        is(&none.send("GET", &target, &[], b""), 400, "InvalidRequest");
        is(&other.send("GET", &target, &[], b""), 403, "AccessDenied");
        none.send("HEAD", &target, &[], b"").status(400);
        other.send("HEAD", &target, &[], b"").status(403);
        // A client without the key does not learn whether a condition holds.
        let tag = put.header("etag").unwrap();
        own.send("GET", &target, &[("if-none-match", tag)], b"").status(304);
        none.send("GET", &target, &[("if-none-match", tag)], b"").status(400);
        own.send("GET", &target, &[("if-match", "\"x\"")], b"").status(412);
    }
    let listed = client.get("/bucket?list-type=2").status(200);
    let mut lengths = elements(&listed, "Size");
    lengths.sort();
    let mut expected: Vec<_> = LENGTHS.iter().chain([&LENGTHS[7]]).map(usize::to_string).collect();
    expected.sort();
    assert_eq!(lengths, expected);
    is(&own.send("GET", "/bucket/plain", &[], b""), 400, "InvalidRequest");
    own.send("HEAD", "/bucket/plain", &[], b"").status(400);
    let attributes = [("x-amz-object-attributes", "ObjectSize")];
    let shown = own.send("GET", "/bucket/5000?attributes", &attributes, b"").status(200);
    assert_eq!(elements(&shown, "ObjectSize"), ["5000"]);
    is(
        &none.send("GET", "/bucket/5000?attributes", &attributes, b""),
        400,
        "InvalidRequest",
    );
    // What is written without the bytes needs no key.
    let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    client.send("PUT", "/bucket/5000?tagging", &[], tags).status(200);
    client.send("PUT", "/bucket/1200000?tagging", &[], tags).status(200);
    for length in [5000, 1_200_000] {
        let got = own.send("GET", &format!("/bucket/{length}"), &[], b"").status(200);
        assert!(got.body == bytes(length), "{length}");
    }
}

#[test]
fn ranges_of_what_is_encrypted() {
    let place = Place::new();
    let (service, _) = serve(&place);
    let own = with_key(&service.client, 0);
    let by_master = With {
        client: &service.client,
        headers: Vec::new(),
    };
    for (target, length) in [("/bucket/short", 200_000), ("/bucket/long", 1_200_000)] {
        let body = bytes(length);
        own.send("PUT", &format!("{target}-c"), &[], &body).status(200);
        by_master
            .send("PUT", target, &[(ALGORITHM, "AES256")], &body)
            .status(200);
        for (start, end) in [
            (0, 1),
            (0, 65_536),
            (1, 65_535),
            (65_535, 65_537),
            (65_536, 131_072),
            (100_000, 199_999),
            (0, length),
            (length - 1, length),
            (length - 70_000, length),
        ] {
            let range = format!("bytes={start}-{}", end - 1);
            for (with, target) in [(&own, format!("{target}-c")), (&by_master, target.to_owned())] {
                let part = with.send("GET", &target, &[("range", &range)], b"").status(206);
                assert!(part.body == body[start..end], "{target} {range}");
                let said = format!("bytes {start}-{}/{length}", end - 1);
                assert_eq!(part.header("content-range"), Some(said.as_str()));
            }
        }
        // Several ranges are for unsigned requests.
        let public = [(ALGORITHM, "AES256"), ("x-amz-acl", "public-read")];
        by_master.send("PUT", target, &public, &body).status(200);
        let address = &service.client.address;
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {address}\r\nRange: bytes=0-9,65530-65540,199990-199999\r\n\
             Connection: close\r\n\r\n"
        );
        let answer = raw(address, request.as_bytes()).status(206);
        for range in [0..10, 65_530..65_541, 199_990..200_000] {
            let wanted = &body[range];
            assert!(answer.body.windows(wanted.len()).any(|found| found == wanted));
        }
        by_master
            .send("GET", target, &[("range", "bytes=9999999-")], b"")
            .status(416);
    }
}

#[test]
fn with_the_master_key() {
    let place = Place::new();
    let (service, key) = serve(&place);
    let client = &service.client;
    let marker = b"plain text that must not be on the device".repeat(32);
    for length in LENGTHS {
        let mut body = bytes(length);
        let marked = marker.len().min(length);
        body[..marked].copy_from_slice(&marker[..marked]);
        let target = format!("/bucket/{length}");
        let put = client.send("PUT", &target, &[(ALGORITHM, "AES256")], &body).status(200);
        let plain = client.send("PUT", "/bucket/plain", &[], &bytes(length)).status(200);
        let same = client
            .send("PUT", "/bucket/same", &[(ALGORITHM, "AES256")], &bytes(length))
            .status(200);
        assert_eq!(same.header("etag"), plain.header("etag"), "the MD5 of the bytes");
        let got = client.get(&target).status(200);
        assert!(got.body == body, "{length}");
        for answer in [&put, &got, &client.send("HEAD", &target, &[], b"").status(200)] {
            assert_eq!(answer.header(ALGORITHM), Some("AES256"));
        }
        assert_eq!(plain.header(ALGORITHM), None);
    }
    let own = with_key(client, 0);
    is(&own.send("GET", "/bucket/5000", &[], b""), 400, "InvalidRequest");
    is(
        &client.send("GET", "/bucket/5000", &[(ALGORITHM, "AES256")], b""),
        400,
        "InvalidArgument",
    );
    client
        .send(
            "PUT",
            "/bucket/public",
            &[(ALGORITHM, "AES256"), ("x-amz-acl", "public-read")],
            b"open",
        )
        .status(200);
    assert_eq!(anonymous(&client.address, "GET", "/bucket/public", ""), 200);
    assert_eq!(anonymous(&client.address, "HEAD", "/bucket/public", ""), 200);
    own.send("PUT", "/bucket/theirs", &[], b"secret").status(200);
    drop(stop(service));

    for file in files(&place.path("terrace-data")) {
        let stored = std::fs::read(&file).unwrap();
        let found = memmem::find(&stored, &marker[..31]).is_some();
        assert!(!found, "{}", file.display());
    }
    let got = place.run(&["get", "bucket/5000", &key]).code(0);
    assert_eq!(&got.0.stdout[marker.len()..], &bytes(5000)[marker.len()..]);
    let got = place.run(&["get", "bucket/1200000", &key]).code(0);
    assert_eq!(got.0.stdout.len(), 1_200_000);
    assert_ne!(place.run(&["get", "bucket/5000"]).0.status.code(), Some(0));
    let refused = place.run(&["get", "bucket/theirs", &key]);
    assert!(refused.error().contains("SSE-C"), "{}", refused.error());
    assert!(refused.0.stdout.is_empty());
    let file = place.write("file", b"v");
    let file = file.to_str().unwrap();
    let refused = place
        .run(&["put", "bucket/k", file, "--attribute", "s3-encryption=x"])
        .code(2);
    assert!(refused.error().contains("only the server gives"), "{}", refused.error());
}

#[test]
fn what_cannot_be_encrypted_so() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let header = |name: &'static str| format!("{CUSTOMER}{name}");
    let (algorithm, key, md5) = (header("algorithm"), header("key"), header("key-MD5"));
    let (right, digest) = KEYS[0];
    let full = [
        (algorithm.as_str(), "AES256"),
        (key.as_str(), right),
        (md5.as_str(), digest),
    ];
    for (headers, status, expected) in [
        (vec![(ALGORITHM, "aws:kms:dsse")], 501, "NotImplemented"),
        (vec![(ALGORITHM, "AES512")], 400, "InvalidArgument"),
        (full[1..].to_vec(), 400, "InvalidArgument"),
        (full[..2].to_vec(), 400, "InvalidArgument"),
        (vec![full[0], full[2]], 400, "InvalidArgument"),
        (
            vec![(algorithm.as_str(), "AES128"), full[1], full[2]],
            400,
            "InvalidEncryptionAlgorithmError",
        ),
        (vec![full[0], (key.as_str(), "AAAA"), full[2]], 400, "InvalidArgument"),
        (
            vec![full[0], full[1], (md5.as_str(), KEYS[1].1)],
            400,
            "InvalidArgument",
        ),
        (
            vec![full[0], full[1], full[2], (ALGORITHM, "AES256")],
            400,
            "InvalidArgument",
        ),
    ] {
        is(&client.send("PUT", "/bucket/k", &headers, b"v"), status, expected);
        is(
            &client.send("POST", "/bucket/k?uploads", &headers, b""),
            status,
            expected,
        );
    }
    client.get("/bucket/k").status(404);
    let not_found = "ServerSideEncryptionConfigurationNotFoundError";
    is(&client.get("/bucket?encryption"), 404, not_found);
}

#[test]
fn uploads_in_parts() {
    let place = Place::new();
    let (service, _) = serve(&place);
    let client = &service.client;
    let (first, last) = (bytes(5 << 20), bytes(300_001));
    let whole = [&first[..], &last].concat();
    let (own, other, none) = (with_key(client, 0), with_key(client, 1), plainly(client));

    let begun = own.send("POST", "/bucket/parts?uploads", &[], b"").status(200);
    let upload = Upload::of("/bucket/parts", &begun);
    is(&none.send("PUT", &upload.part(1), &[], b"x"), 400, "InvalidRequest");
    is(&other.send("PUT", &upload.part(1), &[], b"x"), 400, "InvalidRequest");
    own.send("PUT", &upload.part(1), &[], b"sent again below").status(200);
    let tags: Vec<_> = [&first, &last]
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let put = own.send("PUT", &upload.part(at + 1), &[], part).status(200);
            assert_eq!(put.header(&format!("{CUSTOMER}algorithm")), Some("AES256"));
            put.header("etag").unwrap().to_owned()
        })
        .collect();
    upload.complete(client, &[], &tags).status(200);
    upload.complete(client, &[], &tags).status(200);
    let got = own.send("GET", "/bucket/parts", &[], b"").status(200);
    assert!(got.body == whole && got.header("etag").unwrap().ends_with("-2\""));
    let range = [("range", "bytes=5242870-5242890")];
    let part = own.send("GET", "/bucket/parts", &range, b"").status(206);
    assert!(part.body == whole[5_242_870..=5_242_890], "across the parts");
    let part = own.send("GET", "/bucket/parts?partNumber=2", &[], b"").status(206);
    assert!(part.body == last);
    is(&none.send("GET", "/bucket/parts", &[], b""), 400, "InvalidRequest");
    is(&other.send("GET", "/bucket/parts", &[], b""), 403, "AccessDenied");

    // By the master key, and a part that is copied out of the object of before.
    own.send("PUT", "/bucket/source", &[], &first).status(200);
    let upload = Upload::begin(client, "/bucket/parts", &[(ALGORITHM, "AES256")]);
    is(&own.send("PUT", &upload.part(1), &[], b"x"), 400, "InvalidRequest");
    let source = With {
        client,
        headers: key_headers(SOURCE, 0),
    };
    let from = [("x-amz-copy-source", "/bucket/source")];
    is(&none.send("PUT", &upload.part(1), &from, b""), 400, "InvalidRequest");
    let copied = source.send("PUT", &upload.part(1), &from, b"").status(200);
    let put = none.send("PUT", &upload.part(2), &[], &last).status(200);
    for answer in [&copied, &put] {
        assert_eq!(answer.header(ALGORITHM), Some("AES256"));
    }
    let tags = [
        elements(&copied, "ETag").remove(0),
        put.header("etag").unwrap().to_owned(),
    ];
    let done = upload.complete(client, &[], &tags).status(200);
    assert_eq!(done.header(ALGORITHM), Some("AES256"));
    assert!(client.get("/bucket/parts").status(200).body == whole);

    // An upload without encryption takes no key.
    let upload = Upload::begin(client, "/bucket/parts", &[]);
    is(&own.send("PUT", &upload.part(1), &[], b"x"), 400, "InvalidRequest");
}

#[test]
fn copies_are_encrypted_anew() {
    let place = Place::new();
    let (service, _) = serve(&place);
    let client = &service.client;
    for length in [5000, 300_000] {
        let body = bytes(length);
        with_key(client, 0).send("PUT", "/bucket/a", &[], &body).status(200);
        let copy = |to: &str, headers: &[Vec<(String, String)>], from: &str, more: &[(&str, &str)]| {
            let with = With {
                client,
                headers: headers.concat(),
            };
            let from = [&[("x-amz-copy-source", from)], more].concat();
            with.send("PUT", to, &from, b"")
        };
        is(&copy("/bucket/b", &[], "/bucket/a", &[]), 400, "InvalidRequest");
        let wrong = copy("/bucket/b", &[key_headers(SOURCE, 1)], "/bucket/a", &[]);
        is(&wrong, 403, "AccessDenied");
        let keys = [key_headers(SOURCE, 0), key_headers(CUSTOMER, 1)];
        let copied = copy("/bucket/b", &keys, "/bucket/a", &[]).status(200);
        assert_eq!(copied.header(&format!("{CUSTOMER}key-md5")), Some(KEYS[1].1));
        let got = with_key(client, 1).send("GET", "/bucket/b", &[], b"").status(200);
        assert!(got.body == body);
        let by_master = [(ALGORITHM, "AES256")];
        let copied = copy("/bucket/c", &[key_headers(SOURCE, 1)], "/bucket/b", &by_master).status(200);
        assert_eq!(copied.header(ALGORITHM), Some("AES256"));
        let got = client.get("/bucket/c").status(200);
        assert!(got.body == body && got.header(ALGORITHM) == Some("AES256"));
        copy("/bucket/d", &[], "/bucket/c", &[]).status(200);
        let got = client.get("/bucket/d").status(200);
        assert!(
            got.body == body && got.header(ALGORITHM).is_none(),
            "as the bucket says"
        );
        // Onto itself: the encryption is a change, and what there is does not stay as it is.
        is(&copy("/bucket/d", &[], "/bucket/d", &[]), 400, "InvalidRequest");
        copy("/bucket/d", &[], "/bucket/d", &by_master).status(200);
        let got = client.get("/bucket/d").status(200);
        assert!(got.body == body && got.header(ALGORITHM) == Some("AES256"));
        let replaced = [("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-a", "b")];
        copy("/bucket/d", &[], "/bucket/d", &replaced).status(200);
        let got = client.get("/bucket/d").status(200);
        assert!(got.body == body && got.header("x-amz-meta-a") == Some("b"));
    }
}

#[test]
fn buckets_that_encrypt_what_comes() {
    let place = Place::new();
    let (service, key) = serve(&place);
    let client = &service.client;
    let encryption = "/bucket?encryption";
    client.send("PUT", encryption, &[], DEFAULT).status(200);
    let shown = client.get(encryption).status(200);
    assert_eq!(elements(&shown, "SSEAlgorithm"), ["AES256"]);
    assert_eq!(elements(&shown, "BucketKeyEnabled"), ["false"]);
    let text = String::from_utf8_lossy(DEFAULT);
    let kms = text.replace("AES256", "aws:kms:dsse");
    is(
        &client.send("PUT", encryption, &[], kms.as_bytes()),
        501,
        "NotImplemented",
    );
    let odd = text.replace("AES256", "AES512");
    is(
        &client.send("PUT", encryption, &[], odd.as_bytes()),
        400,
        "MalformedXML",
    );
    let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/bucket?versioning", &[], versioning).status(200);

    let versions: Vec<_> = [&bytes(400_000)[..], b"second", b"third"]
        .iter()
        .map(|body| {
            let put = client.put("/bucket/k", body, Mode::UnsignedWithTrailer).status(200);
            assert_eq!(put.header(ALGORITHM), Some("AES256"));
            put.header("x-amz-version-id").unwrap().to_owned()
        })
        .collect();
    let version = |at: usize| client.get(&format!("/bucket/k?versionId={}", versions[at]));
    assert!(version(0).status(200).body == bytes(400_000));
    assert_eq!(version(1).status(200).body, b"second");
    assert_eq!(client.get("/bucket/k").status(200).body, b"third");
    let last = format!("/bucket/k?versionId={}", versions[2]);
    client.send("DELETE", &last, &[], b"").status(204);
    assert_eq!(
        client.get("/bucket/k").status(200).body,
        b"second",
        "it is the latest again"
    );

    // What a request says counts.
    with_key(client, 0).send("PUT", "/bucket/own", &[], b"own").status(200);
    is(&client.get("/bucket/own"), 400, "InvalidRequest");
    let client = stop(service);

    let file = place.write("file", bytes(300_000));
    let file = file.to_str().unwrap();
    let refused = place.run(&["put", "bucket/command", file]);
    assert!(refused.error().contains("master key"), "{}", refused.error());
    place.run(&["put", "bucket/command", file, &key]).code(0);
    let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
    let client = &service.client;
    let got = client.get("/bucket/command").status(200);
    assert!(got.header(ALGORITHM) == Some("AES256") && got.body == bytes(300_000));
    client.send("DELETE", encryption, &[], b"").status(204);
    let put = client.put("/bucket/k", b"plain", Mode::Whole).status(200);
    assert_eq!(put.header(ALGORITHM), None);
    assert_eq!(client.get("/bucket/k").status(200).body, b"plain");
}

#[test]
fn forms_are_encrypted() {
    let place = Place::new();
    let (service, _) = serve(&place);
    let client = &service.client;
    client.send("PUT", "/bucket?encryption", &[], DEFAULT).status(200);
    let posted = client.form("bucket", &[("key", "form")], 0, 600);
    assert_eq!(posted.status, 204, "{}", posted.text());
    let got = client.get("/bucket/form").status(200);
    assert!(got.header(ALGORITHM) == Some("AES256") && got.body == b"file");
    let fields = [("key", "form"), (ALGORITHM, "AES256")];
    assert_eq!(client.form("bucket", &fields, 0, 600).status, 204);
    let (theirs, md5) = KEYS[0];
    let (algorithm, key_field, md5_field) = (
        format!("{CUSTOMER}algorithm"),
        format!("{CUSTOMER}key"),
        format!("{CUSTOMER}key-MD5"),
    );
    let fields = [
        ("key", "own-form"),
        (&algorithm, "AES256"),
        (&key_field, theirs),
        (&md5_field, md5),
    ];
    let posted = client.form("bucket", &fields, 0, 600);
    assert_eq!(posted.status, 204, "{}", posted.text());
    is(&client.get("/bucket/own-form"), 400, "InvalidRequest");
    let got = with_key(client, 0)
        .send("GET", "/bucket/own-form", &[], b"")
        .status(200);
    assert_eq!(got.body, b"file");
}

/// The page never shows stored ciphertext in place of the contents.
#[test]
fn the_page_shows_bytes_or_nothing() {
    let place = Place::new();
    let (service, _) = serve(&place);
    let client = &service.client;
    client.send("PUT", "/images", &[], b"").status(200);
    let page = service.page_address();
    let ask = |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
        raw(page, request.as_bytes())
    };
    let public = [("x-amz-acl", "public-read"), ("content-type", "image/png")];
    for length in [5000, 300_000] {
        let body = bytes(length);
        let by_master = [&[(ALGORITHM, "AES256")][..], &public].concat();
        client.send("PUT", "/images/1/small", &by_master, &body).status(200);
        assert!(ask("/images/1/small").status(200).body == body);
        with_key(client, 0)
            .send("PUT", "/images/1/own", &public, &body)
            .status(200);
        let refused = ask("/images/1/own").status(400);
        assert!(refused.text().contains("SSE-C"), "{}", refused.text());
        client
            .send("PUT", "/images/1/hidden", &[(ALGORITHM, "AES256")], &body)
            .status(200);
        ask("/images/1/hidden").status(404);
    }
}
