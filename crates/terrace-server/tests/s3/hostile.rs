//! Hostile requests. The server answers each or closes the connection, stores nothing that was not
//! signed, and continues.

use crate::{
    Service, code,
    common::{PATIENCE, Place, bytes, eventually},
    elements,
    sign::{self, Client, Mode, Signed},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Sends bytes and reads what comes back, if anything does. The status, or 0 if the server only
/// closed.
fn raw(client: &Client, request: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    text.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

fn bytes_of(request: &Signed) -> Vec<u8> {
    [request.head.as_bytes(), &request.body].concat()
}

/// The keys in the bucket.
fn stored(client: &Client) -> Vec<String> {
    elements(&client.get("/bucket?list-type=2").status(200), "Key")
}

/// Bodies in chunks that lie about themselves.
fn lying_chunks(client: &Client) -> Vec<Vec<u8>> {
    let lying = |body: &str| {
        let mut request = client.sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Chunks);
        let length = format!("content-length: {}\r\n", request.body.len());
        request.head = request
            .head
            .replace(&length, &format!("content-length: {}\r\n", body.len()));
        request.body = body.as_bytes().to_vec();
        bytes_of(&request)
    };
    vec![
        lying("ffffffffffffffff;chunk-signature=0\r\n"),
        lying("-1;chunk-signature=0\r\n"),
        lying("a\r\n0123456789\r\n0\r\n\r\n"),
        lying(&format!("a;chunk-signature={}\r\n0123456789\r\n", "0".repeat(64))),
        lying(&"a;".repeat(100_000)),
        lying(""),
    ]
}

#[test]
fn requests_that_are_wrong_in_known_ways() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let host = &client.address;
    let put = client.sign("PUT", "/bucket/k", &[], b"body", Mode::Whole).head;
    let many = "x-amz-meta-a: b\r\n".repeat(200);
    let requests: Vec<Vec<u8>> = vec![
        // Two lengths, or a length and chunks: what smuggling is made of.
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!").into(),
        put.replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
            .into(),
        put.replace("content-length: 4", "content-length: -4").into(),
        put.replace("content-length: 4", "content-length: 4, 4").into(),
        // Signatures that are none.
        put.replace("Signature=", "Signature=0").into(),
        put.replace("SignedHeaders=", "SignedHeaders=;;").into(),
        put.replace("Credential=", "Credential=/////").into(),
        put.replace("us-east-1/s3/", "us-east-1/iam/").into(),
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256\r\n\r\n").into(),
        format!("PUT /bucket/k HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256 Credential\r\n\r\n").into(),
        format!("GET /bucket/k?X-Amz-Signature=1&X-Amz-Algorithm=AWS4-HMAC-SHA256 HTTP/1.1\r\nHost: {host}\r\n\r\n")
            .into(),
        // Paths that lead out.
        format!("GET /../../etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /bucket/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /%00s3/key/x HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        format!("GET /bucket/%ff%fe HTTP/1.1\r\nHost: {host}\r\n\r\n").into(),
        // A body that got lost: its length is signed, so it is missed.
        client
            .sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Chunks)
            .head
            .replace("content-length", "lost")
            .replace("x-amz-decoded-lost", "x-amz-decoded-content-length")
            .into(),
        client
            .sign("PUT", "/bucket/k", &[], b"0123456789", Mode::Whole)
            .head
            .replace("content-length", "lost")
            .into(),
        // Too much of everything.
        put.replace("\r\n\r\n", &format!("\r\n{many}\r\n")).into(),
        format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", "a/".repeat(200_000)).into(),
        format!("POST /bucket?delete HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999999\r\n\r\n").into(),
        b"\0\xff\x16\x03\x01\x02\x00\x01\x00\x01\xfc".to_vec(),
    ];
    for request in requests.into_iter().chain(lying_chunks(client)) {
        let status = raw(client, &request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(300)]).into_owned();
        assert!(
            status == 0 || (400..500).contains(&status) || status == 501,
            "{status} for {shown}"
        );
    }
    assert_eq!(stored(client), [] as [&str; 0]);
}

#[test]
fn xml_that_is_wrong() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/kept", b"kept", Mode::Whole).status(200);
    let deep = format!("<Delete>{}</Delete>", "<Object>".repeat(50_000));
    // Entities that multiply are not expanded.
    let entities = "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">]>\
                    <Delete><Object><Key>&b;</Key></Object></Delete>";
    for body in [
        "",
        "<",
        "<Delete>",
        "<Other/>",
        "<Delete><Object/></Delete>",
        "\0",
        &deep,
        entities,
    ] {
        let (status, code) = code(&client.send("POST", "/bucket?delete", &[], body.as_bytes()));
        assert!(
            (400..500).contains(&status),
            "{status} {code} for {:?}",
            &body[..body.len().min(100)]
        );
    }
    // A list in chunks of which one is another than was signed: it was the server that had failed,
    // as far as the answer said, and later that the list had ended early.
    let list = b"<Delete><Object><Key>kept</Key></Object></Delete>";
    let mut changed = bytes_of(&client.sign("POST", "/bucket?delete", &[], list, Mode::Chunks));
    let at = changed.windows(4).position(|bytes| bytes == b"kept").unwrap();
    changed[at] = b'K';
    let answer = sign::raw(&client.address, &changed);
    assert_eq!(code(&answer), (403, "SignatureDoesNotMatch".to_owned()));
    let large = format!("<Delete>{}</Delete>", " ".repeat(9 << 20));
    let (status, _) = code(&client.send("POST", "/bucket?delete", &[], large.as_bytes()));
    assert!(status == 400 || status == 413, "{status}");
    assert_eq!(stored(client), ["kept"]);
}

/// A request with any byte of its head or body changed stores what was signed, where it was signed
/// for, or nothing.
#[test]
fn requests_changed_at_random() {
    let mut random = StdRng::seed_from_u64(11);
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let body = bytes(2000);
    for mode in [Mode::Whole, Mode::Chunks, Mode::ChunksWithTrailer] {
        for _ in 0..150 {
            let mut request = bytes_of(&client.sign("PUT", "/bucket/k", &[("x-amz-meta-a", "b")], &body, mode));
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..request.len());
                request[at] = random.random();
            }
            raw(client, &request);
            for key in stored(client) {
                assert_eq!(key, "k");
                let got = client.get("/bucket/k").status(200);
                let head = String::from_utf8_lossy(&request[..request.len().min(900)]);
                assert!(got.body == body, "{} other bytes were stored by {head}", got.body.len());
                assert_eq!(got.header("x-amz-meta-a"), Some("b"));
                client.send("DELETE", "/bucket/k", &[], b"").status(204);
            }
        }
    }
}

/// What exchanges are made of: words of the protocol where they belong, and where they do not.
/// A bar is between two.
mod words {
    pub const METHODS: &str = "GET|GET|PUT|PUT|POST|DELETE|HEAD|OPTIONS|PATCH|get";
    pub const PATHS: &str = "/|/bucket|/bucket/|/bucket/k|/bucket/k|/bucket/k|/bucket/a%20b|/bucket/%C3%BC%2F|\
        /other/k|/bucket/%2e%2e/k|/bucket/%|//bucket/k";
    /// In the order of their names: a signature has them so.
    pub const QUERY: &str = "acl|attributes|continuation-token|cors|delete|delimiter|encoding-type|encryption|\
        fetch-owner|key-marker|legal-hold|lifecycle|list-type|location|logging|marker|\
        max-keys|max-parts|max-uploads|notification|object-lock|ownershipControls|\
        part-number-marker|partNumber|policy|policyStatus|prefix|publicAccessBlock|\
        replication|requestPayment|response-content-type|response-expires|restore|retention|\
        select|start-after|tagging|uploadId|uploads|version-id-marker|versionId|versioning|\
        versions|website";
    pub const HEADERS: &str = "cache-control|content-disposition|content-encoding|content-language|content-md5|\
        content-type|date|expect|expires|if-match|if-modified-since|if-none-match|if-range|\
        if-unmodified-since|origin|range|te|transfer-encoding|upgrade|x-amz-acl|\
        x-amz-bypass-governance-retention|x-amz-checksum-algorithm|x-amz-checksum-crc32|\
        x-amz-checksum-mode|x-amz-checksum-type|x-amz-content-sha256|x-amz-copy-source|\
        x-amz-copy-source-if-match|x-amz-copy-source-range|x-amz-date|\
        x-amz-expected-bucket-owner|x-amz-grant-read|x-amz-meta-a|x-amz-metadata-directive|\
        x-amz-object-attributes|x-amz-object-lock-mode|x-amz-object-lock-retain-until-date|\
        x-amz-sdk-checksum-algorithm|x-amz-security-token|x-amz-server-side-encryption|\
        x-amz-server-side-encryption-customer-key|x-amz-storage-class|x-amz-tagging|\
        x-amz-trailer|x-amz-website-redirect-location|x-amz-write-offset-bytes";
    pub const VALUES: &str = "|0|1|2|-1|1000|99999999999999999999|true|null|*|\"|\"etag\"|a|a=b&c=d|a=b&a=b|%|%00|\
        ../..|/bucket/k|/bucket/k?versionId=null|bucket/none|bytes=0-0|bytes=5-2|bytes=-0|\
        bytes=0-1,3-4|AES256|aws:kms|COPY|REPLACE|CRC32|SHA256|AAAAAA==|GOVERNANCE|ON|\
        2090-01-01T00:00:00Z|Thu, 01 Jan 1970 00:00:00 GMT|public-read|id=terrace|chunked|url";
    pub const ELEMENTS: &str = "AccessControlList|AccessControlPolicy|AllowedMethod|AllowedOrigin|And|\
        CORSConfiguration|CORSRule|CompleteMultipartUpload|CreateBucketConfiguration|Date|\
        Days|DefaultRetention|Delete|ETag|Event|Expiration|Filter|Grant|Grantee|ID|\
        IndexDocument|Key|LegalHold|LifecycleConfiguration|LoggingEnabled|Mode|\
        NotificationConfiguration|Object|ObjectLockConfiguration|ObjectLockEnabled|Owner|\
        OwnershipControls|Part|PartNumber|Permission|Prefix|PublicAccessBlockConfiguration|\
        QueueConfiguration|Retention|Rule|ServerSideEncryptionConfiguration|Status|Suffix|\
        Tag|TagSet|Tagging|Value|VersioningConfiguration";
}

/// Makes exchanges from words.
struct Maker(StdRng);

impl Maker {
    fn one(&mut self, words: &'static str) -> &'static str {
        let count = words.split('|').count();
        words.split('|').nth(self.0.random_range(0..count)).unwrap()
    }

    fn value(&mut self) -> String {
        match self.0.random_range(0..20) {
            0 => "v".repeat(self.0.random_range(0..3000)),
            _ => self.one(words::VALUES).to_owned(),
        }
    }

    fn target(&mut self) -> String {
        let mut names: Vec<_> = (0..self.0.random_range(0..4)).map(|_| self.one(words::QUERY)).collect();
        names.sort_unstable();
        names.dedup();
        let pairs: Vec<_> = names
            .into_iter()
            .map(|name| match self.0.random_range(0..2) {
                0 => name.to_owned(),
                _ => {
                    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
                    let value: Vec<u8> = self.value().bytes().filter(plain).collect();
                    format!("{name}={}", String::from_utf8_lossy(&value))
                }
            })
            .collect();
        let path = self.one(words::PATHS);
        if pairs.is_empty() {
            path.to_owned()
        } else {
            format!("{path}?{}", pairs.join("&"))
        }
    }

    fn element(&mut self, depth: usize) -> String {
        let name = self.one(words::ELEMENTS);
        let count = self.0.random_range(0..4);
        let inner: String = match depth {
            0 => self.value().replace('&', "&amp;"),
            depth => (0..count).map(|_| self.element(depth - 1)).collect(),
        };
        match self.0.random_range(0..40) {
            0 => format!("<{name}>{inner}"),
            1 => format!("<{name}/>"),
            _ => format!("<{name}>{inner}</{name}>"),
        }
    }

    fn body(&mut self) -> Vec<u8> {
        match self.0.random_range(0..5) {
            0 => Vec::new(),
            1 => (0..self.0.random_range(0..300)).map(|_| self.0.random()).collect(),
            2 => bytes(self.0.random_range(0..100_000)),
            3 => self.element(4).into_bytes(),
            _ => format!(
                r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"{}","Principal":{{"AWS":"{}"}},"Action":"s3:{}","Resource":"arn:aws:s3:::{}"}}]}}"#,
                self.one("Allow|Deny"), self.one(words::VALUES).replace('"', ""), self.one("*|GetObject|x"),
                self.one("bucket/*|bucket|*")
            )
            .into_bytes(),
        }
    }

    /// A request: signed in its head or its query, or unsigned, and sometimes with an error in it.
    fn request(&mut self, client: &Client) -> Vec<u8> {
        let (method, target, body) = (self.one(words::METHODS), self.target(), self.body());
        let headers: Vec<_> = (0..self.0.random_range(0..5))
            .map(|_| (self.one(words::HEADERS), self.value()))
            .collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let modes = [Mode::Whole, Mode::Unsigned, Mode::Chunks, Mode::ChunksWithTrailer];
        let mode = modes[self.0.random_range(0..modes.len())];
        let mut request = match self.0.random_range(0..6) {
            0 => {
                let target = client.presigned(method, &target);
                let lines: String = headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\r\n"))
                    .collect();
                let length = body.len();
                let head = format!(
                    "{method} {target} HTTP/1.1\r\nhost: {}\r\n{lines}content-length: {length}\r\nconnection: close\r\n\r\n",
                    client.address
                );
                [head.as_bytes(), &body].concat()
            }
            1 => {
                let signed = client.sign(method, &target, &headers, &body, mode);
                let unsigned = signed.head.replace("authorization:", "x-not:");
                [unsigned.as_bytes(), &signed.body].concat()
            }
            _ => bytes_of(&client.sign(method, &target, &headers, &body, mode)),
        };
        if self.0.random_range(0..8) == 0 {
            let at = self.0.random_range(0..request.len());
            match self.0.random_range(0..3) {
                0 => request[at] = self.0.random(),
                1 => request.truncate(at),
                _ => request.insert(at, b'\n'),
            }
        }
        request
    }
}

/// The fault of an answer, if it is not a proper answer to a valid or invalid request.
fn wrong_with(answer: &[u8]) -> Option<&'static str> {
    // A request that is none may get none.
    if answer.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(answer);
    // A line break in it makes two of one request. The last answer is behind what continues, too.
    let (_, last) = text.rsplit_once("HTTP/1.").unwrap_or_default();
    let status: u16 = last.get(2..5).and_then(|status| status.parse().ok()).unwrap_or(0);
    let has_body = last.contains("\r\n\r\n<");
    match status {
        200..=399 => None,
        400..=499 | 501 | 503 if has_body && !last.contains("<Code>") => Some("an error without a code"),
        400..=499 | 501 | 503 => None,
        _ => Some("a status that no request may cause"),
    }
}

/// Whole exchanges made of the words of the protocol, by several clients at a time: each gets an
/// answer, soon, that says no worse than that the request is wrong; the server's memory stays
/// within its bound, and it still serves. `TERRACE_EXCHANGES` says how many there are, for longer
/// runs, and `TERRACE_MODEL_SEED` which.
#[test]
fn exchanges_of_all_kinds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) = (
        number("TERRACE_EXCHANGES").unwrap_or(3000),
        number("TERRACE_MODEL_SEED").unwrap_or(22),
    );
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                let mut maker = Maker(StdRng::seed_from_u64(seed * 4 + worker));
                for number in 0..count / 4 {
                    if number % 50 == 0 {
                        // It may have been deleted.
                        client.send("PUT", "/bucket", &[], b"");
                        client.put("/bucket/k", b"value", Mode::Whole);
                    }
                    let request = maker.request(client);
                    let began = Instant::now();
                    let answer = spoken(client, &request);
                    let shown = || String::from_utf8_lossy(&request[..request.len().min(2000)]).into_owned();
                    let wrong = wrong_with(&answer);
                    assert_eq!(
                        wrong,
                        None,
                        "seed {seed}: {}\n{}",
                        shown(),
                        String::from_utf8_lossy(&answer)
                    );
                    assert!(
                        began.elapsed() < ANSWER_TIME_MAX,
                        "seed {seed}: {:?}\n{}",
                        began.elapsed(),
                        shown()
                    );
                }
            });
        }
    });
    client.send("PUT", "/after", &[], b"").status(200);
    client.put("/after/k", b"value", Mode::Whole).status(200);
    assert_eq!(client.get("/after/k").status(200).body, b"value");
    let most = crate::budget::most_memory_bytes(&service);
    assert!(most < 300_000_000, "{most} bytes of memory");
}

/// Longest time for an answer to a request of which everything was sent.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Sends bytes, says that no more will come, and reads all that does.
fn spoken(client: &Client, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Regression: the owner of a bucket could have its policy compare a long header with a long text,
/// and variables a thousand times with their values: one unsigned request took seconds of a
/// processor, or gigabytes.
#[test]
fn policies_that_take_long() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let run = "a".repeat(3_000);
    let many = "${aws:UserAgent}".repeat(500);
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{{"StringLike":{{"aws:UserAgent":["*{run}b","*{run}c","{many}"]}}}}}}}}"#
    );
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    let before = crate::budget::most_memory_bytes(&service);
    let began = Instant::now();
    let ask = |bytes: usize, end: &str| {
        let agent = format!("User-Agent: {}{end}\r\n", "a".repeat(bytes));
        crate::version_2::ask(client, "GET", "/bucket/k", &agent, b"").status
    };
    for _ in 0..10 {
        assert_eq!((ask(8_000, ""), ask(8_000, "b"), ask(120_000, "b")), (403, 200, 400));
        // A head is no longer than what is read of a connection at a time.
        assert_eq!(ask(390_000, "b"), 431);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let more = crate::budget::most_memory_bytes(&service) - before;
    assert!(more < 64 << 20, "{more}");
}

/// A client that asked for a thousand objects to be deleted and went had them all deleted, in one
/// call of the engine on one permit: nothing saw that it had gone. Now some are at a time, and the
/// rest stay.
#[test]
fn after_a_disconnect_nothing_more_is_deleted() {
    const OBJECTS: usize = 600;
    /// Twice what is deleted in one call, which goes on to its end, and may have been the second.
    const BEGUN_MAX: usize = 100;
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let mut list = String::new();
    for number in 0..OBJECTS {
        client
            .put(&format!("/bucket/{number:03}"), b"a", Mode::Whole)
            .status(200);
        list += &format!("<Object><Key>{number:03}</Key></Object>");
    }
    let list = format!("<Delete>{list}</Delete>");
    let request = bytes_of(&client.sign("POST", "/bucket?delete", &[], list.as_bytes(), Mode::Whole));
    // It may go so early that nothing is begun: then it says nothing.
    let left = eventually("something is deleted", || {
        let mut stream = TcpStream::connect(&client.address).unwrap();
        stream.write_all(&request).unwrap();
        drop(stream);
        // What was begun goes on for some milliseconds.
        let mut left = stored(client).len();
        loop {
            thread::sleep(Duration::from_millis(300));
            let now = stored(client).len();
            if std::mem::replace(&mut left, now) == now {
                break;
            }
        }
        (left < OBJECTS).then_some(left)
    });
    assert!(left >= OBJECTS - BEGUN_MAX, "{left} of {OBJECTS} are left");
}
