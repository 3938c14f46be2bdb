//! SSE-KMS: keys of the store that clients name, their permissions, and their life.

use crate::{
    Service,
    access::key,
    common::{Answer, Place, bytes, files},
    encryption::{ALGORITHM, is, master_keys, stop},
    operating::plain,
    sign::{Client, Mode},
    upload::Upload,
};
use memchr::memmem;
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
const KMS: (&str, &str) = (ALGORITHM, "aws:kms");
const KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";

fn put(client: &Client, target: &str, key: &str, body: &[u8]) -> Answer {
    client.send("PUT", target, &[KMS, (KEY_ID, key)], body)
}

/// Whether a file of the store has these bytes.
fn has(place: &Place, text: &[u8]) -> bool {
    files(&place.path("terrace-data")).iter().any(|path| {
        let content = std::fs::read(path).unwrap_or_default();
        memmem::find(&content, text).is_some()
    })
}

#[test]
fn keys_that_are_named() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    is(&put(client, "/bucket/k", "photos", b"v"), 400, "KMS.NotFoundException");
    place.run(&["kms", "create", "photos"]).code(0);
    place.run(&["kms", "create", "photos"]).code(2);
    place.run(&["kms", "create", "a b"]).code(2);
    place.run(&["kms", "rotate", "none"]).code(2);
    let long = bytes(1_200_000);
    for (at, body) in [&b""[..], b"the plain text of a value", &bytes(70_000), &long]
        .into_iter()
        .enumerate()
    {
        let target = format!("/bucket/{at}");
        let stored = put(client, &target, "photos", body).status(200);
        assert_eq!(stored.header(ALGORITHM), Some("aws:kms"));
        assert_eq!(stored.header(KEY_ID), Some("arn:aws:kms:us-east-1:terrace:key/photos"));
        let got = client.get(&target).status(200);
        assert!(got.body == body && got.header("etag") == stored.header("etag"));
        assert_eq!(got.header(KEY_ID), stored.header(KEY_ID));
    }
    // A new version encrypts from now on, and the former one opens what it encrypted.
    place.run(&["kms", "rotate", "photos"]).code(0);
    put(client, "/bucket/new", "alias/photos", b"new").status(200);
    let upload = Upload::begin(client, "/bucket/parts", &[KMS, (KEY_ID, "photos")]);
    let tag = upload.put(client, 1, &long, Mode::Chunks);
    upload.complete(client, &[], &[tag]).status(200);
    let read_all = |client: &Client| {
        assert_eq!(client.get("/bucket/1").status(200).text(), "the plain text of a value");
        assert_eq!(client.get("/bucket/new").status(200).text(), "new");
        assert!(
            client.get("/bucket/3").status(200).body == long && client.get("/bucket/parts").status(200).body == long
        );
    };
    read_all(client);
    // While it is disabled nothing is read, and nothing written.
    place.run(&["kms", "disable", "photos"]).code(0);
    is(&client.get("/bucket/1"), 400, "KMS.DisabledException");
    is(&put(client, "/bucket/k", "photos", b"v"), 400, "KMS.DisabledException");
    let copied = client.send("PUT", "/bucket/copy", &[("x-amz-copy-source", "/bucket/1")], b"");
    is(&copied, 400, "KMS.DisabledException");
    client.send("HEAD", "/bucket/1", &[], b"").status(200);
    let listed = place.run(&["kms", "list"]).code(0).text();
    assert!(
        listed.contains("photos  for every key, versions: 2, disabled"),
        "{listed}"
    );
    let service = service.kill_and_restart(&place);
    let client = &service.client;
    is(&client.get("/bucket/1"), 400, "KMS.DisabledException");
    place.run(&["kms", "enable", "photos"]).code(0);
    read_all(client);
    let json = place.run(&["kms", "list", "--json"]).code(0).json();
    assert_eq!(json[0]["versions"], 2);
    assert!(!has(&place, b"the plain text of a value"));
}

/// Operations on such an object besides reading it, and the keys that may do them.
#[test]
fn named_keys_beside_s3() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    place.run(&["kms", "create", "photos"]).code(0);
    put(client, "/bucket/1", "photos", b"the plain text of a value").status(200);
    // Tags and lists stay with it, and it with them.
    let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    client.send("PUT", "/bucket/1?tagging", &[], tags).status(200);
    assert_eq!(client.get("/bucket/1").status(200).text(), "the plain text of a value");
    // The command line has the store's keys; the page does not show objects whose readers must be
    // known.
    let public = [KMS, (KEY_ID, "photos"), ("x-amz-acl", "public-read")];
    client.send("PUT", "/images", &[], b"").status(200);
    client.send("PUT", "/images/1/small", &public, b"public").status(200);
    let shown = plain(service.page_address(), "/images/1/small").status(400);
    assert!(shown.text().contains("SSE-KMS"), "{}", shown.text());
    stop(service);
    let got = place.run(&["get", "bucket/1"]).code(0);
    assert_eq!(got.text(), "the plain text of a value");
    place.run(&["kms", "disable", "photos"]).code(0);
    let refused = place.run(&["get", "bucket/1"]);
    assert!(refused.error().contains("disabled"), "{}", refused.error());
}

/// An object with a named key is readable only with permission for that key.
#[test]
fn keys_need_permission() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let (one, other) = (
        key(&place, &service, "bucket=write"),
        key(&place, &service, "bucket=admin"),
    );
    let press = place
        .run(&["key", "create", "--json", "--account", "press", "--allow", "*=admin"])
        .code(0)
        .json();
    let press = client.with_key(&press);
    place
        .run(&["kms", "create", "ours", "--allow", &one.id, "--allow", "press"])
        .code(0);
    put(&one, "/bucket/k", "ours", b"secret").status(200);
    for stranger in [&other, client] {
        is(&put(stranger, "/bucket/l", "ours", b"v"), 403, "AccessDenied");
        is(&stranger.get("/bucket/k"), 403, "AccessDenied");
        let copied = stranger.send("PUT", "/bucket/copy", &[("x-amz-copy-source", "/bucket/k")], b"");
        is(&copied, 403, "AccessDenied");
        let part = Upload::begin(&one, "/bucket/parts", &[KMS, (KEY_ID, "ours")]).part(1);
        is(&stranger.put(&part, b"v", Mode::Whole), 403, "AccessDenied");
        let from = [("x-amz-copy-source", "/bucket/k")];
        is(&stranger.send("PUT", &part, &from, b""), 403, "AccessDenied");
        assert_eq!(one.put(&part, b"v", Mode::Whole).status, 200);
    }
    assert_eq!(one.get("/bucket/k").status(200).text(), "secret");
    // The account that may use the key may not read the bucket, until its policy lets it.
    is(&press.get("/bucket/k"), 403, "AccessDenied");
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*"}}"#;
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    assert_eq!(press.get("/bucket/k").status(200).text(), "secret");
    is(&other.get("/bucket/k"), 403, "AccessDenied");
    is(&plain(&client.address, "/bucket/k"), 400, "InvalidArgument");
    // Permission to write is enough to delete it, and to see that it exists: that needs no key.
    other.send("HEAD", "/bucket/k", &[], b"").status(200);
    other.send("DELETE", "/bucket/k", &[], b"").status(204);
}

/// A master key that is given later encrypts the named keys, and a rotation of it takes them along.
#[test]
fn named_keys_are_kept_as_secrets_are() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client
        .send("PUT", "/bucket/default", &[KMS], b"of the default key")
        .status(200);
    place.run(&["kms", "create", "photos"]).code(0);
    put(client, "/bucket/k", "photos", b"value").status(200);
    let client = client.clone();
    stop(service);
    let read = |service: &Service| {
        assert_eq!(
            service.client.get("/bucket/default").status(200).text(),
            "of the default key"
        );
        assert_eq!(service.client.get("/bucket/k").status(200).text(), "value");
    };
    let start = |digits: &[&str]| {
        let keys = master_keys(&place, digits);
        Service::with_key(&place, &[&keys], &client.id, &client.secret)
    };
    let service = start(&["0f"]);
    read(&service);
    let listed = place.run(&["kms", "list"]).code(0).text();
    assert!(listed.contains("aws/s3") && listed.contains("photos"), "{listed}");
    // The new one above the old one; then the old one can go.
    master_keys(&place, &["0e", "0f"]);
    place.run(&["rewrap"]).code(0);
    stop(service);
    let service = start(&["0e"]);
    read(&service);
    stop(service);
    let key = master_keys(&place, &["0e"]);
    assert_eq!(place.run(&["get", "bucket/k", &key]).code(0).text(), "value");
}

/// Keys could not be deleted. One that something needs must not be: that would be lost.
#[test]
fn a_key_is_deleted_when_nothing_needs_it() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket?versioning", &[], VERSIONING).status(200);
    for name in ["photos", "other"] {
        place.run(&["kms", "create", name]).code(0);
    }
    put(client, "/bucket/other", "other", b"of another").status(200);
    let first = put(client, "/bucket/k", "photos", b"first").status(200);
    let upload = Upload::begin(client, "/bucket/parts", &[KMS, (KEY_ID, "photos")]);
    let refused = |why: &str| {
        let refused = place.run(&["kms", "delete", "photos"]).code(2);
        assert!(refused.error().contains(why), "{}", refused.error());
    };
    refused("disable");
    place.run(&["kms", "disable", "photos"]).code(0);
    refused("is encrypted with the key");
    // A version is enough, and so is an upload that is not complete.
    client.send("DELETE", "/bucket/k", &[], b"").status(204);
    client.send("DELETE", &upload.target(), &[], b"").status(204);
    refused("bucket/k");
    let version = first.header("x-amz-version-id").unwrap();
    client
        .send("DELETE", &format!("/bucket/k?versionId={version}"), &[], b"")
        .status(204);
    place.run(&["kms", "delete", "photos"]).code(0);
    place.run(&["kms", "delete", "photos"]).code(2);
    place.run(&["kms", "enable", "photos"]).code(2);
    is(&put(client, "/bucket/k", "photos", b"v"), 400, "KMS.NotFoundException");
    let service = service.kill_and_restart(&place);
    let client = &service.client;
    is(&put(client, "/bucket/k", "photos", b"v"), 400, "KMS.NotFoundException");
    assert_eq!(client.get("/bucket/other").status(200).text(), "of another");
    // Another key of the name is another key; without a server it goes as well.
    stop(service);
    place.run(&["kms", "create", "photos"]).code(0);
    place.run(&["kms", "disable", "photos"]).code(0);
    place.run(&["kms", "delete", "photos"]).code(0);
    let listed = place.run(&["kms", "list"]).code(0).text();
    assert!(listed.contains("other") && !listed.contains("photos"), "{listed}");
}

/// An object that was put while its key was being disabled and deleted would have been lost.
#[test]
fn a_put_begun_with_a_key_that_is_deleted_is_refused() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    place.run(&["kms", "create", "photos"]).code(0);
    let mut request = client.sign(
        "PUT",
        "/bucket/slow",
        &[KMS, (KEY_ID, "photos")],
        b"0123456789",
        Mode::Whole,
    );
    request.head = request.head.replacen("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n", 1);
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.write_all(request.head.as_bytes()).unwrap();
    // Its body is asked for when its key has been chosen.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    place.run(&["kms", "disable", "photos"]).code(0);
    place.run(&["kms", "delete", "photos"]).code(0);
    stream.write_all(&request.body).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    is(&Answer::parse(&bytes), 400, "KMS.NotFoundException");
    client.get("/bucket/slow").status(404);
}

/// After a rotation old objects kept the former version for ever.
#[test]
fn former_versions_of_a_key_are_struck_out() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.send("PUT", "/bucket?versioning", &[], VERSIONING).status(200);
    place.run(&["kms", "create", "photos"]).code(0);
    let long = bytes(300_000);
    let version = put(client, "/bucket/k", "photos", b"first").status(200);
    let version = format!("/bucket/k?versionId={}", version.header("x-amz-version-id").unwrap());
    put(client, "/bucket/k", "photos", &long).status(200);
    let context = ("x-amz-server-side-encryption-context", "eyJhIjoiYiJ9");
    client
        .send("PUT", "/bucket/bound", &[KMS, (KEY_ID, "photos"), context], b"bound")
        .status(200);
    let upload = Upload::begin(client, "/bucket/parts", &[KMS, (KEY_ID, "photos")]);
    let part = |number, body: &[u8]| upload.put(client, number, body, Mode::Whole);
    let mut tags = vec![part(1, &bytes(5 << 20))];
    // Without a master key there was nothing to do.
    place.run(&["kms", "rotate", "photos"]).code(0);
    let count = || place.run(&["kms", "list", "--json"]).code(0).json()[0]["versions"].as_u64();
    assert_eq!(count(), Some(2));
    let done = place.run(&["rewrap", "--json"]).code(0).json();
    assert_eq!(done["data_keys"], 4);
    assert_eq!(count(), Some(1));
    tags.push(part(2, b"end"));
    upload.complete(client, &[], &tags).status(200);
    place.run(&["kms", "rotate", "photos"]).code(0);
    // A disabled key's objects are rewrapped all the same, but cannot be read.
    place.run(&["kms", "disable", "photos"]).code(0);
    let service = service.kill_and_restart(&place);
    place.run(&["rewrap"]).code(0);
    assert_eq!(count(), Some(1));
    is(&service.client.get("/bucket/bound"), 400, "KMS.DisabledException");
    place.run(&["kms", "enable", "photos"]).code(0);
    let service = service.restart(&place);
    let client = &service.client;
    assert_eq!(client.get(&version).status(200).text(), "first");
    assert_eq!(client.get("/bucket/bound").status(200).text(), "bound");
    assert!(client.get("/bucket/k").status(200).body == long);
    let parts = client.get("/bucket/parts").status(200).body;
    assert!(parts.len() == (5 << 20) + 3 && parts.ends_with(b"end"));
    stop(service);
    // And without a server.
    place.run(&["kms", "rotate", "photos"]).code(0);
    place.run(&["rewrap"]).code(0);
    assert_eq!(count(), Some(1));
    assert_eq!(place.run(&["get", "bucket/bound"]).code(0).text(), "bound");
    place.run(&["rewrap"]).code(2);
}
