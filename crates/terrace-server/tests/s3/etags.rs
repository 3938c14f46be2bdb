//! Entity tags that are no MD5: `serve --s3-etags random`.

use crate::{
    common::{Answer, Place, bytes},
    elements,
    service::Service,
    sign::{Client, Mode},
    upload::Upload,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use terrace_objects::{digest, text::hex};

fn tag(answer: &Answer) -> String {
    answer.header("etag").unwrap().trim_matches('"').to_owned()
}

fn put(client: &Client, key: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
    tag(&client.send("PUT", &format!("/bucket/{key}"), headers, body).status(200))
}

fn md5(body: &[u8]) -> (String, String) {
    let md5 = digest::md5(body);
    (hex(&md5), STANDARD.encode(md5))
}

/// As MinIO does it: with an end that clients know from uploads in parts, which they do not compare
/// with an MD5.
fn assert_random(tag: &str, body: &[u8]) {
    let digits = tag.strip_suffix("-1").unwrap();
    assert!(
        digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{tag}"
    );
    assert_ne!(digits, md5(body).0);
}

#[test]
fn a_random_tag_identifies_an_object_like_any_other() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-etags", "random"]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    // In the object's record, and a value of its own.
    for body in [bytes(1_000), bytes(600_001)] {
        let one = put(client, "k", &[], &body);
        assert_random(&one, &body);
        let got = client.get("/bucket/k").status(200);
        assert!(got.body == body && tag(&got) == one);
        assert_eq!(tag(&client.send("HEAD", "/bucket/k", &[], b"").status(200)), one);
        let listed = elements(&client.get("/bucket?list-type=2").status(200), "ETag").remove(0);
        assert!(listed.contains(&one), "{listed}");
        let quoted = format!("\"{one}\"");
        let conditional = |name: &str| client.send("GET", "/bucket/k", &[(name, &quoted)], b"");
        conditional("if-match").status(200);
        conditional("if-none-match").status(304);
        let two = put(client, "k", &[("if-match", &quoted)], &body);
        assert_ne!(one, two, "the same bytes again are another object");
        conditional("if-match").status(412);
    }
    // Without the MD5 the checksum is still computed and checked.
    let wrong = [("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")];
    client.send("PUT", "/bucket/k", &wrong, &bytes(600_001)).status(400);
}

/// Clients that send an MD5 may compare it with the tag.
#[test]
fn a_declared_md5_is_checked_and_is_the_tag() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-etags", "random"]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    for body in [bytes(1_000), bytes(600_001)] {
        let (digits, encoded) = md5(&body);
        assert_eq!(put(client, "k", &[("content-md5", &encoded)], &body), digits);
        let other = md5(b"other").1;
        let refused = client.send("PUT", "/bucket/k", &[("content-md5", &other)], &body);
        assert!(refused.status(400).text().contains("BadDigest"));
    }
}

#[test]
fn an_upload_in_parts_with_random_tags_can_be_completed_twice_and_after_a_restart() {
    let place = Place::new();
    let service = Service::start(&place, &["--s3-etags", "random"]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    let parts = [bytes(5 << 20), bytes(1_001)];
    let upload = Upload::begin(&service.client, "/bucket/k", &[]);
    let mut tags = vec![upload.put(&service.client, 1, &parts[0], Mode::Whole)];
    assert_random(tags[0].trim_matches('"'), &parts[0]);
    // The setting may change in between.
    let service = service.restart(&place);
    let client = &service.client;
    tags.push(upload.put(client, 2, &parts[1], Mode::Whole));
    assert_eq!(tags[1].trim_matches('"'), md5(&parts[1]).0);
    let listed = elements(&client.get(&upload.target()).status(200), "ETag");
    assert!(
        listed
            .iter()
            .zip(&tags)
            .all(|(listed, tag)| listed.contains(tag.trim_matches('"')))
    );
    let changed = [tags[0].replace("-1", ""), tags[1].clone()];
    upload.complete(client, &[], &changed).status(400);
    let whole = elements(&upload.complete(client, &[], &tags).status(200), "ETag").remove(0);
    assert!(whole.contains("-2"), "{whole}");
    let again = elements(&upload.complete(client, &[], &tags).status(200), "ETag").remove(0);
    assert_eq!(again, whole);
    let got = client.get("/bucket/k").status(200);
    assert!(got.body == parts.concat() && whole.contains(&tag(&got)));
    place.run(&["serve", "--s3-etags", "sha"]).code(2);
}
