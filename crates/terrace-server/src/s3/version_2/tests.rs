//! Signatures of version 2: the examples of the documentation, and invalid ones.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::s3::head::tests::head;
use hyper::Request;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const ID: &str = "AKIAIOSFODNN7EXAMPLE";
/// The examples' bucket as a host.
const HOST: (&str, &str) = ("host", "johnsmith.s3.example.net");
const NO_HOST: (&str, &str) = ("host", "localhost");
/// 27 March 2007, 19:36:42, of the first example.
const THEN_S: u64 = 1_175_024_202;

fn secret(id: &str) -> Option<String> {
    (id == ID).then(|| SECRET.to_owned())
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The rewritten request, or the code of its error.
fn carried(method: &str, uri: &str, headers: &[(&str, &str)], now: SystemTime) -> Result<Parts, String> {
    let (head, left, clear) = head(method, uri, headers);
    let (mut parts, ()) = Request::builder()
        .method(method)
        .uri(uri)
        .body(())
        .unwrap()
        .into_parts();
    parts.headers = left;
    let outcome = clear.and_then(|()| check(&head, &parts.headers));
    let outcome = outcome.and_then(|()| carry(&head, &mut parts, secret, now));
    match outcome {
        Ok(()) => Ok(parts),
        Err(refusal) => Err(refusal.code().as_str().to_owned()),
    }
}

fn code(method: &str, uri: &str, headers: &[(&str, &str)], now: SystemTime) -> String {
    carried(method, uri, headers, now).err().unwrap_or_default()
}

/// The time of a date whose header is valid then.
fn then(date: &str) -> SystemTime {
    time_of(date).unwrap()
}

/// The header of a request with this string to sign.
fn signed(text: &str) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    format!("AWS {ID}:{}", STANDARD.encode(mac.finalize().into_bytes()))
}

fn url_of(signature: &str) -> String {
    signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

/// A request of the examples: method, target, host, date, other headers, signature.
type Example = (
    &'static str,
    &'static str,
    (&'static str, &'static str),
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

const PUT_HEADERS: [(&str, &str); 3] = [
    ("content-type", "image/jpeg"),
    ("content-length", "94328"),
    ("user-agent", "Mozilla/5.0"),
];
/// The examples of "Signing and authenticating REST requests" in S3's user guide, with the bucket
/// and the signatures at the time of writing.
const EXAMPLES: &[Example] = &[
    (
        "GET",
        "/photos/puppy.jpg",
        HOST,
        "Tue, 27 Mar 2007 19:36:42 +0000",
        &[],
        "bWq2s1WEIj+Ydj0vQ697zp+IXMU=",
    ),
    (
        "PUT",
        "/photos/puppy.jpg",
        HOST,
        "Tue, 27 Mar 2007 21:15:45 +0000",
        &PUT_HEADERS,
        "MyyxeRY7whkBe+bq8fHCL/2kKUg=",
    ),
    (
        "GET",
        "/?prefix=photos&max-keys=50&marker=puppy",
        HOST,
        "Tue, 27 Mar 2007 19:42:41 +0000",
        &[],
        "htDYFYduRNen8P9ZfE/s9SuKy0U=",
    ),
    (
        "GET",
        "/?acl",
        HOST,
        "Tue, 27 Mar 2007 19:44:46 +0000",
        &[],
        "c2WLPFtWHVgbEmeEG93a4cG37dM=",
    ),
    (
        "GET",
        "/",
        NO_HOST,
        "Wed, 28 Mar 2007 01:29:59 +0000",
        &[],
        "qGdzdERIC03wnaRNKh6OqZehG9s=",
    ),
    (
        "GET",
        "/dictionary/fran%C3%A7ais/pr%c3%a9f%c3%a8re",
        NO_HOST,
        "Wed, 28 Mar 2007 01:49:49 +0000",
        &[],
        "DNEZGsoieTZ92F3bUfSPQcbGmlM=",
    ),
];

#[test]
fn the_examples_of_the_documentation() {
    for (method, uri, host, date, more, signature) in EXAMPLES.iter().copied() {
        let said = format!("AWS {ID}:{signature}");
        let headers = [&[host, ("date", date), ("authorization", &said)], more].concat();
        assert_eq!(code(method, uri, &headers, then(date)), "", "{uri}");
        let other = format!("AWS {ID}:A{}", &signature[1..]);
        let headers = [&[host, ("date", date), ("authorization", &other)], more].concat();
        assert_eq!(
            code(method, uri, &headers, then(date)),
            "SignatureDoesNotMatch",
            "{uri}"
        );
    }
}

#[test]
fn the_example_of_an_upload() {
    // "Upload", with one header on two lines.
    let date = "Tue, 27 Mar 2007 21:06:08 +0000";
    let said = format!("AWS {ID}:ilyl83RwaSoYIEdixDQcA4OnAnc=");
    let upload = [
        ("host", "static.johnsmith.net.s3.example.net"),
        ("date", date),
        ("x-amz-acl", "public-read"),
        ("content-type", "application/x-download"),
        ("Content-MD5", "4gJE4saaMU4BqNR0kLY+lw=="),
        ("X-Amz-Meta-ReviewedBy", "joe@johnsmith.net"),
        ("X-Amz-Meta-ReviewedBy", "jane@johnsmith.net"),
        ("X-Amz-Meta-FileChecksum", "0x02661779"),
        ("X-Amz-Meta-ChecksumAlgorithm", "crc32"),
        ("Content-Disposition", "attachment; filename=database.dat"),
        ("authorization", &said),
    ];
    assert_eq!(code("PUT", "/db-backup.dat.gz", &upload, then(date)), "");
    // Every signed part matters, and nothing else.
    for (at, code_of_change) in [(2, true), (3, true), (4, true), (5, true), (7, true), (9, false)] {
        let mut changed = upload;
        changed[at].1 = "other";
        let code = code("PUT", "/db-backup.dat.gz", &changed, then(date));
        assert_eq!(code == "SignatureDoesNotMatch", code_of_change, "{at}: {code}");
    }
    let more = [&upload[..], &[("x-amz-copy-source", "/johnsmith/secret")]].concat();
    assert_eq!(
        code("PUT", "/db-backup.dat.gz", &more, then(date)),
        "SignatureDoesNotMatch"
    );
}

#[test]
fn the_example_of_a_url() {
    // "Query string request authentication example".
    let target =
        format!("/photos/puppy.jpg?AWSAccessKeyId={ID}&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620");
    assert_eq!(code("GET", &target, &[HOST], at(1_175_139_620)), "");
    assert_eq!(code("GET", &target, &[HOST], at(1_175_139_621)), "AccessDenied");
    for (part, other) in [
        ("puppy", "kitty"),
        ("Expires=1175139620", "Expires=1175139621"),
        ("?", "?acl&"),
        ("?", "?versionId=null&"),
        ("?", "?encryption&"),
        ("?", "?retention&"),
        ("?", "?response-content-type=text/html&"),
        ("?", "?x-amz-acl=public-read&"),
    ] {
        let changed = target.replace(part, other);
        assert_eq!(
            code("GET", &changed, &[HOST], at(0)),
            "SignatureDoesNotMatch",
            "{changed}"
        );
    }
    assert_eq!(code("HEAD", &target, &[HOST], at(0)), "SignatureDoesNotMatch");
    assert_eq!(code("GET", &target, &[NO_HOST], at(0)), "SignatureDoesNotMatch");
}

#[test]
fn what_is_wrong_with_a_header() {
    let date = "Tue, 27 Mar 2007 19:36:42 GMT";
    let now = at(THEN_S);
    let right = signed(&format!("GET\n\n\n{date}\n/b/k"));
    let code_of = |said: &str, date: &str, now| {
        let headers = [NO_HOST, ("authorization", said), ("date", date)];
        code("GET", "/b/k", &headers, now)
    };
    assert_eq!(code_of(&right, date, now), "");
    assert_eq!(code_of(&right, date, at(THEN_S + 900)), "");
    assert_eq!(code_of(&right, date, at(THEN_S - 900)), "");
    assert_eq!(code_of(&right, date, at(THEN_S + 901)), "RequestTimeTooSkewed");
    assert_eq!(code_of(&right, date, at(THEN_S - 901)), "RequestTimeTooSkewed");
    // The 27th of March 2007 was a Tuesday; the signed date has another day, and that is accepted.
    let other_day = date.replace("Tue", "Thu");
    let signed_so = signed(&format!("GET\n\n\n{other_day}\n/b/k"));
    assert_eq!(code_of(&signed_so, &other_day, now), "");
    assert_eq!(
        code_of(&signed_so, &other_day, at(THEN_S + 901)),
        "RequestTimeTooSkewed"
    );
    assert_eq!(
        code_of(&right.replace(ID, "AKIAOTHER"), date, now),
        "InvalidAccessKeyId"
    );
    for wrong in ["AWS ", "AWS x", "AWS :y", "AWS x:"] {
        assert_eq!(code_of(wrong, date, now), "InvalidArgument", "{wrong}");
    }
    for wrong in ["", "yesterday", "2007-03-27", "Tue, 99 Mar 2007 19:36:42 GMT"] {
        assert_eq!(code_of(&right, wrong, now), "AccessDenied", "{wrong}");
    }
    let without = [NO_HOST, ("authorization", right.as_str())];
    assert_eq!(code("GET", "/b/k", &without, now), "AccessDenied");
    // With `x-amz-date` the date's line is empty, and the header is among S3's.
    let text = format!("GET\n\n\n\nx-amz-date:{date}\n/b/k");
    let (said, other) = (signed(&text), "Tue, 27 Mar 2001 00:00:00 GMT");
    let headers = [NO_HOST, ("authorization", &said), ("x-amz-date", date), ("date", other)];
    assert_eq!(code("GET", "/b/k", &headers, now), "");
    // Another lifetime, another method of signing, or a second signature.
    for (uri, more, expected) in [
        ("/b/k?X-Amz-Signature=0", ("x-other", ""), "InvalidArgument"),
        ("/b/k?Signature=0", ("x-other", ""), "InvalidArgument"),
        ("/b/k?a&a", ("x-other", ""), "InvalidArgument"),
        ("/b/k", ("authorization", "AWS x:y"), "InvalidArgument"),
        (
            "/b/k",
            ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            "InvalidRequest",
        ),
        ("/b/k", ("content-encoding", "gzip, aws-chunked"), "InvalidRequest"),
        ("/b/k", ("x-amz-decoded-content-length", "1"), "InvalidRequest"),
    ] {
        let headers = [NO_HOST, ("authorization", &right), ("date", date), more];
        assert_eq!(code("GET", uri, &headers, now), expected, "{uri} {more:?}");
    }
}

#[test]
fn what_is_wrong_with_a_url() {
    let text = "PUT\n\n\n2000000000\nx-amz-acl:private\nx-amz-meta-a:b c\n/b/k?uploadId=u&versionId=";
    let signature = signed(&text.replace("&versionId=", ""));
    let signature = url_of(signature.rsplit(':').next().unwrap());
    let names = format!("AWSAccessKeyId={ID}&Expires=2000000000&Signature={signature}");
    let whole = format!("/b/k?uploadId=u&x-amz-acl=private&x-amz-meta-a=b+c&{names}");
    let code_of = |uri: &str, more| code("PUT", uri, &[NO_HOST, more], at(0));
    let other = ("x-other", "");
    assert_eq!(code_of(&whole, other), "");
    assert_eq!(code_of(&whole, ("x-amz-acl", "private")), "", "it may be there, too");
    assert_eq!(code_of(&whole, ("x-amz-acl", "public-read")), "InvalidArgument");
    assert_eq!(code_of(&whole, ("x-amz-copy-source", "/b/o")), "SignatureDoesNotMatch");
    assert_eq!(
        code_of(&whole.replace("=private", "=public-read"), other),
        "SignatureDoesNotMatch"
    );
    let carried = carried("PUT", &whole, &[NO_HOST], at(0)).unwrap();
    assert_eq!(carried.uri, "/b/k?uploadId=u", "nothing of a signature is left");
    assert_eq!(carried.headers["x-amz-acl"], "private");
    assert_eq!(carried.headers["x-amz-meta-a"], "b c");
    for (part, with, expected) in [
        (signature.as_str(), "", "AccessDenied"),
        ("&Expires=2000000000", "", "AccessDenied"),
        ("AWSAccessKeyId=", "x=", "AccessDenied"),
        ("=2000000000", "=soon", "AccessDenied"),
        ("=2000000000", "=-1", "AccessDenied"),
        ("=2000000000", "=%2B2000000000", "AccessDenied"),
        ("=2000000000", "=99999999999999999999999", "AccessDenied"),
        ("=2000000000", "=18446744073709551615", "SignatureDoesNotMatch"),
        (ID, "AKIAOTHER", "InvalidAccessKeyId"),
        ("uploadId", "uploadid", "SignatureDoesNotMatch"),
        ("?", "?uploadId=v&", "InvalidArgument"),
        ("?", "?Signature=x&", "InvalidArgument"),
        ("?", "?Expires=x&", "InvalidArgument"),
        ("?", "?X-Amz-Credential=x&", "InvalidArgument"),
        ("?", "?x-amz-meta-%0A=x&", "InvalidArgument"),
        ("=b+c", "=b%0D%0Ac", "InvalidArgument"),
    ] {
        let changed = whole.replace(part, with);
        assert_ne!(changed, whole);
        assert_eq!(code_of(&changed, other), expected, "{changed}");
    }
    assert_eq!(code_of(&whole, ("authorization", "AWS x:y")), "InvalidArgument");
    let version_4 = "AWS4-HMAC-SHA256 Credential=ID/20200102/r/s3/aws4_request, SignedHeaders=host, Signature=0";
    assert_eq!(code_of(&whole, ("authorization", version_4)), "InvalidArgument");
}

/// A path is signed as sent, and `s3s` gets it decoded.
#[test]
fn paths_as_they_came() {
    let date = "Tue, 27 Mar 2007 19:36:42 GMT";
    for (path, meant) in [
        ("/b/a+b", "/b/a%2Bb"),
        ("/b/a%2Bb", "/b/a%2Bb"),
        ("/b/a%20b", "/b/a%20b"),
        ("/b/%c3%bc!'()*", "/b/%C3%BC%21%27%28%29%2A"),
        ("/b//k", "/b//k"),
        ("/b/%2F", "/b//"),
        ("/b/a/../c", "/b/a/../c"),
    ] {
        let said = signed(&format!("GET\n\n\n{date}\n{path}"));
        let headers = [NO_HOST, ("authorization", said.as_str()), ("date", date)];
        let carried = carried("GET", path, &headers, at(THEN_S)).unwrap();
        assert_eq!(carried.uri.path(), meant);
        let said = carried.headers[header::AUTHORIZATION].to_str().unwrap();
        assert!(
            said.starts_with("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20070327/us-east-1/s3/aws4_request,")
        );
        assert_eq!(carried.headers["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
        assert_eq!(carried.headers["x-amz-date"], "20070327T193642Z");
    }
    let odd = signed(&format!("GET\n\n\n{date}\n/b/a b"));
    let headers = [NO_HOST, ("authorization", odd.as_str()), ("date", date)];
    assert_eq!(code("GET", "/b/a%20b", &headers, at(THEN_S)), "SignatureDoesNotMatch");
}

/// botocore signs a bucket's path with a slash at the end, which it does not send.
#[test]
fn paths_of_buckets() {
    let date = "Tue, 27 Mar 2007 19:36:42 GMT";
    let code_of = |uri: &str, signed_as: &str| {
        let said = signed(&format!("GET\n\n\n{date}\n{signed_as}"));
        let headers = [NO_HOST, ("authorization", said.as_str()), ("date", date)];
        code("GET", uri, &headers, at(THEN_S))
    };
    for (uri, signed_as) in [("/b", "/b"), ("/b", "/b/"), ("/b?acl", "/b/?acl"), ("/b/", "/b/")] {
        assert_eq!(code_of(uri, signed_as), "", "{uri} {signed_as}");
    }
    for (uri, signed_as) in [
        ("/b/", "/b"),
        ("/b/k", "/b/k/"),
        ("/b", "/b//"),
        ("/b/k/", "/b/k"),
        ("/", "//"),
    ] {
        assert_eq!(code_of(uri, signed_as), "SignatureDoesNotMatch", "{uri} {signed_as}");
    }
}

/// A signature for one operation is valid for no other that this server has.
#[test]
fn every_subresource_is_covered() {
    let date = "Tue, 27 Mar 2007 19:36:42 GMT";
    let said = signed(&format!("PUT\n\n\n{date}\n/b/k"));
    let headers = [NO_HOST, ("authorization", said.as_str()), ("date", date)];
    for name in SUBRESOURCES.iter().chain(&COVERED) {
        let uri = format!("/b/k?{name}");
        assert_eq!(
            code("PUT", &uri, &headers, at(THEN_S)),
            "SignatureDoesNotMatch",
            "{uri}"
        );
        let said = signed(&format!("PUT\n\n\n{date}\n{uri}"));
        let headers = [NO_HOST, ("authorization", said.as_str()), ("date", date)];
        assert_eq!(code("PUT", &uri, &headers, at(THEN_S)), "", "{uri}");
    }
}
