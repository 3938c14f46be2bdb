//! Headers in the query of a URL that is presigned by version 4.

use crate::{Service, access::key, code, common::Place, operating::plain, sign::time, version_2::ask};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Presigners put headers into the query that they sign, as that of JavaScript does with all and
/// Go's with most. They were taken for nothing: what was to be public was private, what was to be
/// encrypted was not, and all of it answered 200.
#[test]
fn headers_in_the_query_of_a_presigned_url() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    let address = &client.address;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let url = client.presigned(
        "PUT",
        "/bucket/k?X-Amz-Acl=public-read&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-meta-a=1%2F2&\
         x-amz-server-side-encryption=AES256&x-amz-storage-class=STANDARD_IA&x-amz-tagging=a%3Db&x-id=PutObject",
    );
    ask(client, "PUT", &url, "", b"body").status(200);
    let got = plain(address, "/bucket/k").status(200);
    let shown = ["x-amz-meta-a", "x-amz-server-side-encryption", "x-amz-storage-class"];
    let shown = shown.map(|name| got.header(name));
    assert_eq!(shown, [Some("1/2"), Some("AES256"), Some("STANDARD_IA")]);
    assert_eq!(got.text(), "body");
    // The list `public-read` grants reading the object but not its tags.
    assert_eq!(got.header("x-amz-tagging-count"), None);
    let owners = client.send("GET", "/bucket/k", &[], b"").status(200);
    assert_eq!(owners.header("x-amz-tagging-count"), Some("1"));
    // It is signed as the rest of the query is, and there is one opinion of it.
    let other = url.replace("X-Amz-Acl=public-read", "X-Amz-Acl=private");
    assert_eq!(code(&ask(client, "PUT", &other, "", b"")).1, "SignatureDoesNotMatch");
    let without = url.replace("X-Amz-Acl=public-read&", "");
    assert_eq!(code(&ask(client, "PUT", &without, "", b"")).1, "SignatureDoesNotMatch");
    for (header, expected) in [
        ("x-amz-acl: private\r\n", "InvalidArgument"),
        ("x-amz-acl: public-read\r\nx-amz-acl: private\r\n", "InvalidArgument"),
        ("x-amz-meta-a: 1/2\r\nx-amz-meta-a: 3\r\n", "InvalidArgument"),
        ("x-amz-meta-b: 3\r\n", "AccessDenied"),
        ("x-amz-copy-source: /bucket/k\r\n", "AccessDenied"),
    ] {
        assert_eq!(code(&ask(client, "PUT", &url, header, b"")).1, expected, "{header}");
    }
    ask(
        client,
        "PUT",
        &url,
        "x-amz-acl: public-read\r\nx-amz-meta-a: 1/2\r\n",
        b"body",
    )
    .status(200);
    let twice = client.presigned("PUT", "/bucket/k?X-Amz-Acl=private&x-amz-acl=public-read");
    assert_eq!(code(&ask(client, "PUT", &twice, "", b"")).1, "InvalidArgument");
    let line = client.presigned("PUT", "/bucket/k?x-amz-meta-a=1%0D%0Ax-amz-acl%3Aprivate");
    assert_eq!(code(&ask(client, "PUT", &line, "", b"")).1, "InvalidArgument");
}

/// Levels see them as they see headers; and a query that is not signed says nothing by them.
#[test]
fn permissions_for_headers_in_a_query() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let url = client.presigned("PUT", "/bucket/k?x-amz-acl=public-read");
    let writer = key(&place, &service, "bucket=write");
    let copied = writer.presigned("PUT", "/bucket/copy?x-amz-copy-source=%2Fbucket%2Fk");
    assert!(
        ask(client, "PUT", &copied, "", b"")
            .status(200)
            .text()
            .contains("<CopyObjectResult")
    );
    let open = writer.presigned("PUT", "/bucket/open?x-amz-acl=public-read");
    assert_eq!(
        code(&ask(client, "PUT", &open, "", b"")),
        (403, "AccessDenied".to_owned())
    );
    client
        .send("PUT", "/bucket?acl", &[("x-amz-acl", "public-read-write")], b"")
        .status(200);
    ask(client, "PUT", "/bucket/plain?x-amz-meta-a=1", "", b"").status(200);
    let got = client.send("HEAD", "/bucket/plain", &[], b"").status(200);
    assert_eq!(got.header("x-amz-meta-a"), None);
    let forged = format!("/bucket/plain?{}", url.split_once('?').unwrap().1);
    assert_eq!(code(&ask(client, "PUT", &forged, "", b"")).1, "SignatureDoesNotMatch");
    let signed = client.send("PUT", "/bucket/signed?x-amz-meta-a=1", &[], b"");
    assert_eq!(signed.status, 200);
    assert_eq!(client.get("/bucket/signed").header("x-amz-meta-a"), None);
}

/// A checksum in the query is verified, except that of an empty body: a presigner does not know the
/// body, and the SDK of JavaScript takes it for empty.
#[test]
fn checksums_in_the_query_of_a_presigned_url() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let put = |checksum: &str| {
        let url = client.presigned(
            "PUT",
            &format!("/bucket/k?{checksum}x-amz-sdk-checksum-algorithm=CRC32"),
        );
        code(&ask(client, "PUT", &url, "", b"body"))
    };
    assert_eq!(put("").0, 200);
    assert_eq!(put("x-amz-checksum-crc32=AAAAAA%3D%3D&").0, 200);
    assert_eq!(
        put("x-amz-checksum-sha256=47DEQpj8HBSa%2B%2FTImW%2B5JCeuQeRkm5NMpJWZG3hSuFU%3D&").0,
        200
    );
    assert_eq!(put("x-amz-checksum-crc32=2hZIQA%3D%3D&").1, "BadDigest");
    let crc32 = STANDARD.encode(&crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, b"body").to_be_bytes()[4..]);
    assert_eq!(
        put(&format!(
            "x-amz-checksum-crc32={}&",
            crc32.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F")
        ))
        .0,
        200
    );
}

/// Regression: an unsigned header could replace the time of a presigned URL, and a policy that
/// permits ten minutes took that for its age.
#[test]
fn how_old_a_signature_is_its_url_says() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    let policy =
        br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"NumericGreaterThan":{"s3:signatureAge":"60000"}}}}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
    let (old, new) = (
        client.presigned_at("GET", "/bucket/k", -120),
        client.presigned("GET", "/bucket/k"),
    );
    ask(client, "GET", &new, "", b"").status(200);
    let refused = (403, "AccessDenied".to_owned());
    assert_eq!(code(&ask(client, "GET", &old, "", b"")), refused);
    let now = format!("x-amz-date: {}\r\n", time(0));
    assert_eq!(code(&ask(client, "GET", &old, &now, b"")), refused);
}

/// What a presigned URL chooses of the answer is in the head of the answer, where a line break
/// would end it.
#[test]
fn headers_that_a_url_chooses_have_no_line_breaks() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket/k", &[], b"v").status(200);
    for name in ["content-disposition", "content-type", "cache-control"] {
        for method in ["GET", "HEAD"] {
            let url = client.presigned(method, &format!("/bucket/k?response-{name}=a%0D%0Ax-other%3A%201"));
            let answer = ask(client, method, &url, "", b"");
            assert_eq!(
                (answer.status, answer.header("x-other")),
                (400, None),
                "{method} {name}"
            );
        }
    }
}
