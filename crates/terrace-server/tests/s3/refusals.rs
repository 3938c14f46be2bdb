//! Refusals, in the words that S3's documentation and its clients know.

use crate::{
    code,
    common::{Answer, Place},
    protocol::bucket,
    sign::{Client, Mode},
    upload::Upload,
    version_2::ask,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

fn is(answer: &Answer, status: u16, expected: &str, message: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
    assert!(answer.text().contains(message), "{}", answer.text());
}

/// Regression: a refused preflight request got `AccessDenied` in all cases, which did not tell
/// whether the bucket has no rules or none that fits.
#[test]
fn preflights() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let asked = "Origin: https://a.example\r\nAccess-Control-Request-Method: GET\r\n";
    let preflight = |target: &str| ask(client, "OPTIONS", target, asked, b"");
    let disabled = "<Message>CORSResponse: CORS is not enabled for this bucket.</Message>";
    is(&preflight("/bucket/k"), 403, "AccessForbidden", disabled);
    // Whether there is such a bucket is not told.
    is(&preflight("/none/k"), 403, "AccessForbidden", disabled);
    let rule = "<CORSConfiguration><CORSRule><AllowedOrigin>https://b.example</AllowedOrigin>\
        <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
    client.send("PUT", "/bucket?cors", &[], rule.as_bytes()).status(200);
    let other = "<Message>CORSResponse: This CORS request is not allowed. ";
    is(&preflight("/bucket/k"), 403, "AccessForbidden", other);
}

/// Lists whose XML lacks what the schema has without `minOccurs="0"`.
#[test]
fn lists_without_an_owner() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let owner = "<Owner><ID>terrace</ID></Owner>";
    let list = "<AccessControlList/>";
    for target in ["/bucket?acl", "/bucket/k?acl"] {
        let put = |inner: &str| {
            let xml = format!("<AccessControlPolicy>{inner}</AccessControlPolicy>");
            client.send("PUT", target, &[], xml.as_bytes())
        };
        for inner in [list, owner, &format!("<Owner/>{list}")] {
            is(&put(inner), 400, "MalformedACLError", "not well-formed");
        }
        put(&format!("{owner}{list}")).status(200);
    }
}

/// What cannot be an account of Terrace's is not another account.
#[test]
fn expected_owners_that_are_no_accounts() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let of = |owner: &str| client.send("GET", "/bucket", &[("x-amz-expected-bucket-owner", owner)], b"");
    let unknown = "a".repeat(64);
    let longer = format!("{unknown}foo");
    for other in ["press", "000000000000", unknown.as_str(), longer.as_str()] {
        is(&of(other), 403, "AccessDenied", "");
    }
    of("terrace").status(200);
    for wrong in ["", "a/b", "arn:aws:iam::press:root", "a b"] {
        let message = "The value of the expected bucket owner parameter must be an AWS Account ID... [";
        is(&of(wrong), 400, "InvalidBucketOwnerAWSAccountID", message);
    }
    let copy = |owner: &str| {
        let source = [
            ("x-amz-copy-source", "/bucket/k"),
            ("x-amz-source-expected-bucket-owner", owner),
        ];
        client.send("PUT", "/bucket/copy", &source, b"")
    };
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    is(&copy("press"), 403, "AccessDenied", "");
    is(&copy("a/b"), 400, "InvalidBucketOwnerAWSAccountID", "");
    copy("terrace").status(200);
}

/// Two messages spoke of something else than what was wrong.
#[test]
fn tags_that_are_wrong() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let tags = |count: usize| {
        let tag = |at| format!("<Tag><Key>{at}</Key><Value/></Tag>");
        let all: String = (0..count).map(tag).collect();
        format!("<Tagging><TagSet>{all}</TagSet></Tagging>")
    };
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let put = |target: &str, count| client.send("PUT", target, &[], tags(count).as_bytes());
    put("/bucket?tagging", 50).status(200);
    let message = "<Message>Bucket tag count cannot be greater than 50</Message>";
    is(&put("/bucket?tagging", 51), 400, "BadRequest", message);
    let message = "<Message>Object tags cannot be greater than 10</Message>";
    is(&put("/bucket/k?tagging", 11), 400, "BadRequest", message);
    let copy = |header: &str| {
        let headers = [("x-amz-copy-source", "/bucket/k"), (header, "MOVE")];
        client.send("PUT", "/bucket/copy", &headers, b"")
    };
    for (header, message) in [
        ("x-amz-metadata-directive", "Unknown metadata directive."),
        ("x-amz-tagging-directive", "Unknown tagging directive."),
    ] {
        is(&copy(header), 400, "InvalidArgument", message);
    }
}

/// A checksum by another algorithm than the one that was said was taken: 200, and the client that
/// asked for the object's checksum by its algorithm got none.
#[test]
fn checksums_by_another_algorithm() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let created = client.send("POST", "/bucket/parts?uploads=", &[], b"").status(200);
    let part = Upload::of("/bucket/parts", &created).part(1);
    for target in ["/bucket/k", part.as_str()] {
        let put = |algorithm: &str| {
            let headers = [
                ("x-amz-sdk-checksum-algorithm", algorithm),
                ("x-amz-checksum-crc32", "AAAAAA=="),
            ];
            client.send("PUT", target, &headers, b"")
        };
        for (algorithm, is_right) in [("SHA256", false), ("CRC32C", false), ("crc32", true), ("CRC32", true)] {
            if is_right {
                put(algorithm).status(200);
            } else {
                let message = "Value for x-amz-sdk-checksum-algorithm header is invalid.";
                is(&put(algorithm), 400, "InvalidRequest", message);
            }
        }
    }
}

/// Regression: a URL that was signed by a fast clock got the error of a skewed request time, which
/// the holder of the URL cannot act on.
#[test]
fn presigned_urls_from_the_future() {
    let place = Place::new();
    let service = bucket(&place);
    let client: &Client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let get = |from_now| {
        let url = client.presigned_at("GET", "/bucket/k", from_now);
        ask(client, "GET", &url, "", b"")
    };
    get(0).status(200);
    get(10 * 60).status(200);
    for from_now in [20 * 60, 3 * 24 * 3600] {
        is(&get(from_now), 403, "AccessDenied", "Request is not yet valid");
    }
    is(&get(-20 * 60), 403, "AccessDenied", "Request has expired");
}

/// `s3s` took what writes a subresource that has no such write for the deletion of the object or
/// the bucket, or for a new one.
#[test]
fn subresources_are_not_written_by_other_methods() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    client.send("PUT", "/empty", &[], b"").status(200);
    for (method, target) in [
        ("DELETE", "/bucket/k?acl"),
        ("DELETE", "/bucket/k?retention"),
        ("DELETE", "/bucket/k?acl&tagging"),
        ("PUT", "/bucket/k?attributes"),
        ("PUT", "/bucket/k?versions"),
        ("DELETE", "/empty?versioning"),
        ("DELETE", "/empty?location"),
        ("PUT", "/new?location"),
    ] {
        let answer = client.send(method, target, &[], b"");
        is(&answer, 405, "MethodNotAllowed", "is not allowed against this resource");
    }
    assert_eq!(client.get("/bucket/k").status(200).text(), "v");
    client.get("/empty").status(200);
    client.get("/new").status(404);
}

/// What nothing is locked in cannot be bypassed; lists of keys come with the header all the same.
#[test]
fn nothing_to_bypass() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    let refused = client.send("DELETE", "/bucket/k", &bypass, b"");
    is(
        &refused,
        400,
        "InvalidArgument",
        "only applicable to Object Lock enabled buckets",
    );
    client.get("/bucket/k").status(200);
    let list = b"<Delete><Object><Key>k</Key></Object></Delete>";
    client.send("POST", "/bucket?delete", &bypass, list).status(200);
    client.get("/bucket/k").status(404);
}

/// What deletes many objects, or says how long they are kept, S3 takes only with a digest of its
/// body.
#[test]
fn bodies_that_need_a_digest() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client
        .send("PUT", "/locked", &[("x-amz-bucket-object-lock-enabled", "true")], b"")
        .status(200);
    client.send("PUT", "/locked/k", &[], b"v").status(200);
    let rule = "<LifecycleConfiguration><Rule><ID>a</ID><Status>Enabled</Status><Filter/>\
        <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
    for (method, target, xml) in [
        (
            "POST",
            "/bucket?delete",
            "<Delete><Object><Key>k</Key></Object></Delete>",
        ),
        ("PUT", "/bucket?lifecycle", rule),
        (
            "PUT",
            "/locked?object-lock",
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
        ),
        ("PUT", "/locked/k?retention", "<Retention/>"),
        (
            "PUT",
            "/locked/k?legal-hold",
            "<LegalHold><Status>OFF</Status></LegalHold>",
        ),
    ] {
        // What says how a checksum is made is none.
        let none = [("x-amz-checksum-algorithm", "CRC32")];
        let refused = client.send(method, target, &none, xml.as_bytes());
        let message = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
        is(&refused, 400, "InvalidRequest", message);
        client.send(method, target, &[], xml.as_bytes()).status(200);
        let digest = STANDARD.encode(Sha256::digest(xml));
        let checksum = [("x-amz-checksum-sha256", digest.as_str())];
        client.send(method, target, &checksum, xml.as_bytes()).status(200);
    }
}

/// `LocationConstraint` was taken whatever it said, and forgotten.
#[test]
fn where_buckets_are() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let make = |name: &str, region: &str| {
        let xml = format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        );
        client.send("PUT", &format!("/{name}"), &[], xml.as_bytes())
    };
    let incompatible = "The eu-west-1 location constraint is incompatible for the region specific endpoint";
    is(
        &make("elsewhere", "eu-west-1"),
        400,
        "IllegalLocationConstraintException",
        incompatible,
    );
    client.get("/elsewhere").status(404);
    let invalid = "The specified location-constraint is not valid";
    is(&make("elsewhere", "nowhere"), 400, "InvalidLocationConstraint", invalid);
    client.get("/elsewhere").status(404);
    for (name, region) in [("none", ""), ("first", "us-east-1")] {
        make(name, region).status(200);
        let told = client.get(&format!("/{name}?location")).status(200);
        assert!(told.text().contains("></LocationConstraint>"), "{}", told.text());
        let head = client.send("HEAD", &format!("/{name}"), &[], b"").status(200);
        assert_eq!(head.header("x-amz-bucket-region"), Some("us-east-1"));
        assert_eq!(head.header("x-amz-access-point-alias"), Some("false"));
    }
}

/// The digests of a list of keys to delete, and of settings, were not looked at where it came in
/// chunks: what was not what its head or its trailer says was done all the same. Nor was that of
/// what a bucket is made with.
#[test]
fn digests_of_xml_in_chunks() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let list = b"<Delete><Object><Key>k</Key></Object></Delete>";
    let wrong = STANDARD.encode([0; 16]);
    let wrong = [("content-md5", wrong.as_str())];
    for mode in [Mode::Chunks, Mode::ChunksWithTrailer, Mode::UnsignedWithTrailer] {
        let request = client.sign("POST", "/bucket?delete", &wrong, list, mode);
        let refused = client.exchange(&request);
        assert_ne!(refused.status, 200, "{}", refused.text());
        client.get("/bucket/k").status(200);
    }
    let made = client.send("PUT", "/made", &wrong, b"<CreateBucketConfiguration/>");
    assert_eq!(code(&made), (400, "BadDigest".to_owned()));
    client.get("/made").status(404);
    client
        .exchange(&client.sign("POST", "/bucket?delete", &[], list, Mode::Chunks))
        .status(200);
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    let mut request = client.sign("PUT", "/bucket/k?tagging", &[], tags, Mode::UnsignedWithTrailer);
    let at = request.body.windows(3).position(|three| three == b">1<").unwrap();
    request.body[at + 1] = b'2';
    let refused = client.exchange(&request);
    assert_ne!(refused.status, 200, "{}", refused.text());
    let found = client.get("/bucket/k?tagging").status(200).text();
    assert!(!found.contains("<Value>"), "{found}");
}

/// Regression: an unsigned body in chunks was stored with its framing, and then refused. SDKs send
/// all objects so over TLS.
#[test]
fn unsigned_chunks() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client
        .send("PUT", "/bucket?acl", &[("x-amz-acl", "public-read-write")], b"")
        .status(200);
    let (hash, coding) = (
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n",
        "content-encoding: aws-chunked, gzip\r\n",
    );
    let (length, trailer) = (
        "x-amz-decoded-content-length: 4\r\n",
        "x-amz-trailer: x-amz-checksum-crc32\r\n",
    );
    let body = "1\r\nb\r\n3\r\nody\r\n0\r\nx-amz-checksum-crc32:26gLsg==\r\n\r\n";
    let put = |headers: &[&str], body: &str| ask(client, "PUT", "/bucket/k", &headers.concat(), body.as_bytes());
    for headers in [
        &[hash, length, trailer][..],
        &[coding, length, trailer],
        &[coding, hash, length],
    ] {
        client.put("/bucket/k", b"before", Mode::Whole).status(200);
        put(headers, body).status(200);
        let found = client.send("GET", "/bucket/k", &[("x-amz-checksum-mode", "ENABLED")], b"");
        assert_eq!(found.text(), "body", "{headers:?}");
        let kept = headers.contains(&coding).then_some("gzip");
        assert_eq!(found.header("content-encoding"), kept);
        let checksum = headers.contains(&trailer).then_some("26gLsg==");
        assert_eq!(found.header("x-amz-checksum-crc32"), checksum);
    }
    client.put("/bucket/k", b"before", Mode::Whole).status(200);
    let signed = hash.replace("UNSIGNED-PAYLOAD", "AWS4-HMAC-SHA256-PAYLOAD");
    let other = length.replace('4', "5");
    for (headers, body, expected) in [
        (&[coding, trailer][..], body, "InvalidRequest"),
        (&[length, trailer], body, "InvalidRequest"),
        (&[signed.as_str(), coding, length, trailer], body, "InvalidRequest"),
        (
            &[coding, "x-amz-decoded-content-length: four\r\n"],
            body,
            "InvalidRequest",
        ),
        (&[coding, other.as_str(), trailer], body, "IncompleteBody"),
        (&[coding, length, trailer], &body.replace("26gL", "26gM"), "BadDigest"),
        (
            &[coding, length, trailer],
            &body.replace("crc32:", "crc32c:"),
            "MalformedTrailerError",
        ),
        (&[coding, length, trailer], &body[..14], "IncompleteBody"),
        (&[coding, length], "body\r\n", "InvalidRequest"),
        (&[coding, length], "body", "IncompleteBody"),
    ] {
        let answer = put(headers, body);
        assert_eq!(code(&answer), (400, expected.to_owned()), "{headers:?} {body}");
        assert_eq!(client.get("/bucket/k").status(200).text(), "before");
    }
}
