//! What S3's documentation says of answers, one sentence at a time.

use crate::{
    Service, assert_nothing_left, code,
    common::{Place, bytes},
    elements,
    operating::plain,
    sign::Mode,
    upload::Upload,
};

/// A server with an empty bucket.
pub fn bucket(place: &Place) -> Service {
    let service = Service::start(place, &[]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    service
}

/// Making one's own bucket again was an error, which it is not in the region that this server says
/// it is in.
#[test]
fn ones_own_bucket_again() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    client
        .send("PUT", "/bucket", &[("x-amz-acl", "public-read")], b"")
        .status(200);
    plain(&client.address, "/bucket").status(200);
    client.send("PUT", "/bucket", &[], b"").status(200);
    plain(&client.address, "/bucket").status(403);
    assert_eq!(client.get("/bucket/k").status(200).text(), "v");
}

/// Making a bucket again set a public list although its block of public access refuses these.
#[test]
fn a_bucket_made_again_obeys_its_block() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let block =
        b"<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>";
    client.send("PUT", "/bucket?publicAccessBlock", &[], block).status(200);
    let again = client.send("PUT", "/bucket", &[("x-amz-acl", "public-read")], b"");
    assert_eq!(code(&again), (403, "AccessDenied".to_owned()));
    client.send("PUT", "/bucket", &[], b"").status(200);
    plain(&client.address, "/bucket").status(403);
}

/// A bucket in which an upload was given up could not be deleted; S3 deletes both.
#[test]
fn a_bucket_with_an_unfinished_upload_goes() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let begun = client.send("POST", "/bucket/k?uploads", &[], b"").status(200);
    // Only what the client chose was named.
    assert_eq!(begun.header("x-amz-checksum-algorithm"), Some("CRC64NVME"));
    assert_eq!(begun.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
    let part = Upload::of("/bucket/k", &begun).part(1);
    client.put(&part, &bytes(300_000), Mode::Whole).status(200);
    client.send("DELETE", "/bucket", &[], b"").status(204);
    client.send("PUT", "/bucket", &[], b"").status(200);
    assert_eq!(
        code(&client.put(&part, b"x", Mode::Whole)),
        (404, "NoSuchUpload".to_owned())
    );
    client.send("DELETE", "/bucket", &[], b"").status(204);
    assert_nothing_left(service, &place);
}

/// Each was another way than S3 says it: no count of tags in HEAD, quotes around the entity tag
/// among attributes, an encoding written anew, an empty token refused, a header about a lock that
/// is not there refused.
#[test]
fn answers_about_objects() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let said = [
        ("content-encoding", "aws-chunked, deflate, gzip"),
        ("x-amz-meta-word", "=?UTF-8?Q?gr=C3=BCn?="),
        ("x-amz-tagging", "z=1&a=2&m=3"),
    ];
    client.send("PUT", "/bucket/k", &said, b"v").status(200);
    for method in ["GET", "HEAD"] {
        let answer = client.send(method, "/bucket/k", &[], b"").status(200);
        assert_eq!(answer.header("x-amz-tagging-count"), Some("3"), "{method}");
        assert_eq!(answer.header("content-encoding"), Some("deflate, gzip"), "{method}");
        let word = answer.header("x-amz-meta-word").unwrap();
        assert!(
            word.eq_ignore_ascii_case("=?UTF-8?B?Z3LDvG4=?=") || word == "=?UTF-8?Q?gr=C3=BCn?=",
            "{word}"
        );
    }
    let tags = client.get("/bucket/k?tagging").status(200);
    assert_eq!(elements(&tags, "Key"), ["z", "a", "m"]);
    let asked = [("x-amz-object-attributes", "ETag,ObjectSize")];
    let attributes = client.send("GET", "/bucket/k?attributes", &asked, b"").status(200);
    assert_eq!(elements(&attributes, "ETag"), ["9e3669d19b675bd57058fd4664205d2a"]);
    let all = client.get("/bucket?continuation-token=&list-type=2").status(200);
    assert_eq!(
        (elements(&all, "Key").len(), all.text().contains("<ContinuationToken")),
        (1, true)
    );
    let list = b"<Delete><Object><Key>k</Key></Object></Delete>";
    let deleted = client
        .send(
            "POST",
            "/bucket?delete",
            &[("x-amz-bypass-governance-retention", "true")],
            list,
        )
        .status(200);
    assert_eq!(elements(&deleted, "Key"), ["k"]);
}

/// Names are encoded wherever they are in a listing.
#[test]
fn listings_with_encoded_names() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    for key in ["a%20b/c", "a%20b+d", "x"] {
        client
            .put(&format!("/bucket/{}", key.replace('+', "%2B")), b"", Mode::Whole)
            .status(200);
        client
            .send(
                "POST",
                &format!("/bucket/{}?uploads=", key.replace('+', "%2B")),
                &[],
                b"",
            )
            .status(200);
    }
    for list in ["", "&list-type=2", "&uploads=", "&versions="] {
        let target = format!("/bucket?delimiter=%2B&encoding-type=url{list}&prefix=a%20");
        // The query is signed in order.
        let target = match list {
            "&uploads=" | "&versions=" => format!("/bucket?delimiter=%2B&encoding-type=url&prefix=a%20{list}"),
            _ => target,
        };
        let answer = client.get(&target).status(200);
        assert_eq!(elements(&answer, "Key"), ["a%20b/c"], "{list}");
        assert_eq!(elements(&answer, "Delimiter"), ["%2B"], "{list}");
        let prefixes = elements(&answer, "Prefix");
        assert!(
            prefixes.contains(&"a%20".to_owned()) && prefixes.contains(&"a%20b%2B".to_owned()),
            "{prefixes:?}"
        );
        assert_eq!(elements(&answer, "EncodingType"), ["url"], "{list}");
    }
}

#[test]
fn buckets_in_pages() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    for name in ["aaa", "bb1", "bb2", "bb3", "ccc"] {
        client.send("PUT", &format!("/{name}"), &[], b"").status(200);
    }
    let first = client.get("/?max-buckets=2&prefix=bb").status(200);
    assert_eq!(elements(&first, "Name"), ["bb1", "bb2"]);
    assert_eq!(elements(&first, "Prefix"), ["bb"]);
    assert_eq!(elements(&first, "BucketRegion"), ["us-east-1", "us-east-1"]);
    let token = elements(&first, "ContinuationToken").remove(0);
    let second = client
        .get(&format!("/?continuation-token={token}&max-buckets=2&prefix=bb"))
        .status(200);
    assert_eq!(elements(&second, "Name"), ["bb3"]);
    assert!(elements(&second, "ContinuationToken").is_empty());
    let elsewhere = client.get("/?bucket-region=eu-west-1").status(200);
    assert!(elements(&elsewhere, "Name").is_empty());
    assert_eq!(elements(&client.get("/").status(200), "Name").len(), 5);
}

/// Regression: invalid ranges, and invalid dates in conditions, were refused where the signature
/// covers the header, as that of every SDK does. S3 ignores them; and a changed signed header is
/// still refused.
#[test]
fn what_says_nothing_is_not_refused_where_it_is_signed() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"value").status(200);
    client.send("PUT", "/bucket/empty", &[], b"").status(200);
    let ranges = [
        "bytes=4-3",
        "bytes=a-b",
        "octets=1-2",
        "bytes=1",
        "bytes=-",
        "bytes=0-1,3-4",
    ];
    let dates = ["yesterday", "2026-11-29T00:00:00Z", "0"];
    let given = ranges.map(|range| ("range", range)).into_iter();
    let conditions = ["if-modified-since", "if-unmodified-since"];
    let given = given.chain(conditions.into_iter().flat_map(|name| dates.map(|date| (name, date))));
    for (name, value) in given {
        let whole = client.send("GET", "/bucket/k", &[(name, value)], b"").status(200);
        assert_eq!(whole.text(), "value", "{name}: {value}");
        client.send("HEAD", "/bucket/k", &[(name, value)], b"").status(200);
        let listed = client
            .send("GET", "/bucket?list-type=2&prefix=k", &[(name, value)], b"")
            .status(200);
        assert!(listed.text().contains("<Key>k</Key>"));
        let mut signed = client.sign("GET", "/bucket/k", &[(name, value)], b"", Mode::Whole);
        let changed = signed
            .head
            .replace(&format!("{name}: {value}"), &format!("{name}: {value}x"));
        assert_ne!(signed.head, changed);
        signed.head = changed;
        let refused = client.exchange(&signed);
        assert_eq!(
            code(&refused),
            (403, "SignatureDoesNotMatch".to_owned()),
            "{name}: {value}"
        );
    }
    let part = client
        .send("GET", "/bucket/k", &[("range", "bytes=1-2")], b"")
        .status(206);
    assert_eq!(part.text(), "al");
    let past = ("if-unmodified-since", "Sat, 01 Jan 2000 00:00:00 GMT");
    client
        .send("GET", "/bucket/k", &[past, ("range", "bytes=x")], b"")
        .status(412);
    client
        .send("GET", "/bucket/empty", &[("range", "bytes=0-0")], b"")
        .status(416);
    client
        .send("GET", "/bucket/empty", &[("range", "bytes=x")], b"")
        .status(200);
}

/// S3 says where a list of parts ended on its last page, too.
#[test]
fn where_lists_of_parts_end() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let upload = Upload::begin(client, "/bucket/k", &[]);
    let list = |query: &str| client.get(&upload.target().replace('?', query)).status(200);
    let ends = |query: &str| {
        (
            elements(&list(query), "NextPartNumberMarker"),
            elements(&list(query), "IsTruncated"),
        )
    };
    let is = |end: &str, truncated: &str| (vec![end.to_owned()], vec![truncated.to_owned()]);
    assert_eq!(ends("?"), is("0", "false"));
    for number in [2, 5] {
        upload.put(client, number, b"part", Mode::Whole);
    }
    assert_eq!(ends("?"), is("5", "false"));
    assert_eq!(ends("?max-parts=1&"), is("2", "true"));
    assert_eq!(ends("?max-parts=1&part-number-marker=2&"), is("5", "false"));
}

/// A part without a checksum was taken for an upload whose checksum is made of its parts'.
#[test]
fn parts_of_a_composite_checksum_have_theirs() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let begin = |kind: &str| {
        let chosen = [("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", kind)];
        Upload::begin(client, "/bucket/k", &chosen).part(1)
    };
    let composite = begin("COMPOSITE");
    let refused = client.put(&composite, b"hello", Mode::Whole);
    assert_eq!(code(&refused), (400, "InvalidRequest".to_owned()));
    let told = "expected checksum Type: crc32, actual checksum Type: null";
    assert!(refused.text().contains(told), "{}", refused.text());
    let own = [("x-amz-checksum-crc32", "NhCmhg==")];
    client.send("PUT", &composite, &own, b"hello").status(200);
    client.put(&begin("FULL_OBJECT"), b"hello", Mode::Whole).status(200);
}

/// What was announced to come behind a body and is another checksum than the SDK says, or comes in
/// the head as well, was taken; and what did not come was told like any request that is wrong.
#[test]
fn what_comes_behind_a_body() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let put = |headers: &[(&str, &str)], behind: &str| {
        let mut request = client.sign("PUT", "/bucket/k", headers, b"v", Mode::UnsignedWithTrailer);
        let body = String::from_utf8(request.body).unwrap();
        request.body = body.replace("x-amz-checksum-crc32c", behind).into_bytes();
        client.exchange(&request)
    };
    let (is, other) = ("x-amz-checksum-crc32c", "x-amz-checksum-crc64x");
    assert_eq!(code(&put(&[], other)), (400, "MalformedTrailerError".to_owned()));
    for headers in [
        [("x-amz-sdk-checksum-algorithm", "SHA1")],
        [("x-amz-checksum-sha1", "ek8vfi3H8rO3LpWZSONrSpg2iEs=")],
        [("x-amz-checksum-crc32c", "AAAAAA==")],
    ] {
        assert_eq!(
            code(&put(&headers, is)),
            (400, "InvalidRequest".to_owned()),
            "{headers:?}"
        );
    }
    client.get("/bucket/k").status(404);
    put(&[("x-amz-sdk-checksum-algorithm", "CRC32C")], is).status(200);
    put(&[], is).status(200);
}
