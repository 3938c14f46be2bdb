//! The life of the master key, and what is tampered with on the devices.

use crate::{
    Service,
    common::{Place, bytes, files, wait},
    elements,
    encryption::{ALGORITHM, DEFAULT, master_keys, serve, stop, with_key},
    sign::{Client, Mode},
    upload::Upload,
};
use memchr::memmem;
use std::process::Stdio;
use terrace::{Options, PutOptions, Store};

/// Nothing is lost by a server that lacks the key, or has another one: it says which it needs, and
/// does not start.
#[test]
fn a_master_key_that_is_missing() {
    let place = Place::new();
    let (service, key) = serve(&place);
    let put = [(ALGORITHM, "AES256")];
    service.client.send("PUT", "/bucket/k", &put, b"value").status(200);
    let client = stop(service);
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let refused = place.run(&serve).code(2);
    assert!(
        refused.error().contains("no master key is given"),
        "{}",
        refused.error()
    );
    let other = place.write("other", "0e".repeat(32));
    let other = format!("--secrets-key-file={}", other.display());
    let refused = place.run(&[&serve[..], &[&other]].concat()).code(2);
    assert!(refused.error().contains("another key is given"), "{}", refused.error());
    for command in ["false", "echo key"] {
        let command = format!("--key-command={command}");
        let refused = place.run(&[&serve[..], &[&command]].concat()).code(2);
        assert!(refused.error().contains("key"), "{}", refused.error());
    }
    let both = place
        .run(&[&serve[..], &[&other, "--key-command=true"]].concat())
        .code(2);
    assert!(both.error().contains("drop one of them"), "{}", both.error());
    // The same key by a command is the same key.
    let command = format!("--key-command=cat {}", place.path("master-key").display());
    for source in [command, key] {
        let service = Service::with_key(&place, &[&source], &client.id, &client.secret);
        assert_eq!(service.client.get("/bucket/k").status(200).body, b"value");
        stop(service);
    }
}

/// Whether a file of the store has these bytes.
fn has(place: &Place, text: &[u8]) -> bool {
    files(&place.path("terrace-data")).iter().any(|path| {
        let content = std::fs::read(path).unwrap_or_default();
        memmem::find(&content, text).is_some()
    })
}

/// Clients that asked for SSE-S3 of a server without a master key were refused (501). Now the store
/// draws a key for it, and keeps that with what it wraps: a restart, the command line and a backup
/// know it.
#[test]
fn a_store_without_a_master_key_has_its_own() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    client.put("/bucket/plain", b"plain", Mode::Whole).status(200);
    let own_key = |place: &Place| place.run(&["ls"]).code(0).text().contains("own-master-key");
    let client = stop(service);
    assert!(!own_key(&place), "no request has needed it");

    let service = Service::program_with_key(&place, &[], &client.id, &client.secret);
    let by_master = [(ALGORITHM, "AES256")];
    let secret = b"plain text that must not be on the devices";
    let put = service.client.send("PUT", "/bucket/k", &by_master, secret).status(200);
    assert_eq!(put.header(ALGORITHM), Some("AES256"));
    let client = service.client.clone();
    client.send("PUT", "/bucket?encryption", &[], DEFAULT).status(200);
    client.put("/bucket/long", &bytes(1_200_000), Mode::Whole).status(200);
    let upload = Upload::begin(&client, "/bucket/parts", &[]);
    let part = client.send("PUT", &upload.part(1), &[], b"a part").status(200);
    service.kill();
    assert!(own_key(&place) && !has(&place, secret));
    assert_eq!(place.run(&["get", "bucket/k"]).code(0).0.stdout, secret);
    // The default of the bucket counts for the command line, too.
    let file = place.write("file", b"put by the command line");
    place.run(&["put", "bucket/put", file.to_str().unwrap()]).code(0);
    let (backup, restored) = (place.path("backup"), place.path("restored"));
    let (backup, restored) = (backup.to_str().unwrap(), restored.to_str().unwrap());
    place.run(&["backup", backup]).code(0);
    place.run(&["restore", backup, "--store", restored]).code(0);
    let got = place.run(&["get", "bucket/put", "--store", restored]).code(0);
    assert_eq!(got.text(), "put by the command line");

    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    let client = service.client.clone();
    let tag = part.header("etag").unwrap().to_owned();
    upload.complete(&client, &[], &[tag]).status(200);
    let all = |client: &Client| {
        for (key, body) in [
            ("k", secret.to_vec()),
            ("long", bytes(1_200_000)),
            ("parts", b"a part".to_vec()),
            ("put", b"put by the command line".to_vec()),
        ] {
            let got = client.get(&format!("/bucket/{key}")).status(200);
            assert!(got.body == body && got.header(ALGORITHM) == Some("AES256"), "{key}");
        }
        assert_eq!(client.get("/bucket/plain").status(200).header(ALGORITHM), None);
    };
    all(&client);
    let client = stop(service);

    // Later there is a master key. Everything is still there, and then wrapped by it alone.
    let key = master_keys(&place, &["0f"]);
    let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
    all(&service.client);
    let done = place.run(&["rewrap", "--json"]).code(0).json();
    assert_eq!(done["data_keys"].as_u64(), Some(4));
    all(&service.client);
    stop(service);
    let refused = place.run(&["serve", "--listen", "127.0.0.1:0"]).code(2);
    assert!(
        refused.error().contains("no master key is given"),
        "{}",
        refused.error()
    );
}

/// A wrong key, given once to a store that had noted none yet, was noted as used: after that the
/// right one was refused.
#[test]
fn a_wrong_master_key_is_not_noted() {
    let place = Place::new();
    let key = master_keys(&place, &["0f"]);
    let made = place
        .run(&["key", "create", "--allow", "*=admin", "--json", &key])
        .code(0)
        .json();
    let text = |name: &str| made[name].as_str().unwrap();
    master_keys(&place, &["0e"]);
    let refused = place.run(&["serve", "--listen", "127.0.0.1:0", &key]).code(2);
    assert!(refused.error().contains("another key"), "{}", refused.error());
    let refused = place.run(&["rewrap", &key]).code(2);
    assert!(refused.error().contains("another key"), "{}", refused.error());
    master_keys(&place, &["0f"]);
    let service = Service::with_key(&place, &[&key], text("access_key_id"), text("secret_access_key"));
    service.client.send("PUT", "/bucket", &[], b"").status(200);
}

/// Objects to rotate: short and long ones, versions, and an upload that goes on.
fn fill(client: &Client) -> Upload {
    let by_master = [(ALGORITHM, "AES256")];
    let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/bucket?versioning", &[], versioning).status(200);
    for number in 0..60 {
        let target = format!("/bucket/{}", number % 40);
        let body = bytes(if number % 20 == 0 { 300_000 } else { 1000 + number });
        client.send("PUT", &target, &by_master, &body).status(200);
    }
    with_key(client, 0).send("PUT", "/bucket/own", &[], b"own").status(200);
    client.put("/bucket/plain", b"plain", Mode::Whole).status(200);
    let upload = Upload::begin(client, "/bucket/parts", &by_master);
    client.send("PUT", &upload.part(1), &[], &bytes(5 << 20)).status(200);
    upload
}

/// Everything that [`fill`] put is there.
fn check(client: &Client) {
    let listed = client.get("/bucket?versions").status(200);
    assert_eq!(elements(&listed, "VersionId").len(), 62);
    let (keys, ids) = (elements(&listed, "Key"), elements(&listed, "VersionId"));
    let sizes = elements(&listed, "Size");
    for ((key, id), size) in keys.iter().zip(&ids).zip(&sizes) {
        let target = format!("/bucket/{key}?versionId={id}");
        let got = match key.as_str() {
            "own" => with_key(client, 0).send("GET", &target, &[], b"").status(200),
            _ => client.get(&target).status(200),
        };
        let expected = match key.as_str() {
            "own" => b"own".to_vec(),
            "plain" => b"plain".to_vec(),
            _ => bytes(size.parse().unwrap()),
        };
        assert!(got.body == expected, "{key}");
    }
}

#[test]
fn a_new_master_key_while_the_store_serves() {
    let place = Place::new();
    let (service, key) = serve(&place);
    let upload = fill(&service.client);
    let client = &service.client;
    // The file has the new key on top; the server reads it when it is asked to.
    master_keys(&place, &["0e", "0f"]);
    let done = place.run(&["rewrap", "--json"]).code(0).json();
    // 60 versions, an upload, and the secret of an access key.
    assert_eq!(
        (done["data_keys"].as_u64(), done["access_keys"].as_u64()),
        (Some(61), Some(1))
    );
    check(client);
    client
        .send("PUT", "/bucket/new", &[(ALGORITHM, "AES256")], b"new")
        .status(200);
    // The upload goes on with its key wrapped anew.
    let put = client.send("PUT", &upload.part(2), &[], b"the last part").status(200);
    let parts = client.get(&upload.target()).status(200);
    assert_eq!(elements(&parts, "ETag").len(), 2);
    let client = stop(service);
    master_keys(&place, &["0e"]);
    let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
    let again = place.run(&["rewrap", "--json"]).code(0).json();
    assert_eq!(again["data_keys"].as_u64(), Some(0));
    let client = &service.client;
    let tags = [
        elements(&parts, "ETag").remove(0),
        put.header("etag").unwrap().to_owned(),
    ];
    upload.complete(client, &[], &tags).status(200);
    assert!(client.get("/bucket/parts").status(200).body[5 << 20..] == *b"the last part");
    assert_eq!(client.get("/bucket/new").status(200).body, b"new");
    drop(stop(service));
    master_keys(&place, &["0f"]);
    place.run(&["serve", "--listen", "127.0.0.1:0", &key]).code(2);
}

#[test]
fn a_rotation_that_is_killed_is_done_again() {
    let place = Place::new();
    let (service, key) = serve(&place);
    fill(&service.client);
    let client = stop(service);
    let service = Service::program_with_key(&place, &[&key], &client.id, &client.secret);
    let client = service.client.clone();
    master_keys(&place, &["0e", "0f"]);
    let mut asking = place
        .command(&["rewrap"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Wherever it is by then; the store's own tests stop it at each record.
    for number in 0..20 {
        let target = format!("/bucket/{number}");
        client.get(&target).status(200);
    }
    service.kill();
    wait(&mut asking);
    let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
    check(&service.client);
    drop(stop(service));
    // Without a server now.
    place.run(&["rewrap", &key]).code(0);
    master_keys(&place, &["0e"]);
    let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
    check(&service.client);
}

/// Changes stored bytes; false if it leaves these alone.
type Change = Box<dyn Fn(&mut Vec<u8>) -> bool>;

/// Changes the stored bytes of every object of the bucket, and of their values.
fn damage(place: &Place, change: impl Fn(&mut Vec<u8>) -> bool) {
    let store = Store::open(Options::new(place.path("terrace-data"))).unwrap();
    let mut changed = Vec::new();
    for prefix in ["bucket/", "\0s3/data/"] {
        for item in store.scan(terrace::ScanRange::prefix(prefix)).unwrap() {
            let item = item.unwrap();
            let is_list = item.info.attributes.get("s3-values").is_some();
            let mut value = item.value().unwrap().to_vec();
            if !is_list && change(&mut value) {
                changed.push((item.key.to_vec(), value, item.info.attributes.clone()));
            }
        }
    }
    assert!(!changed.is_empty());
    for (key, value, attributes) in changed {
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        store.put_with(&key, value, &options).unwrap();
    }
    store.close().unwrap();
}

/// Bytes that were changed on the devices, with valid checksums, are not returned.
#[test]
fn what_was_tampered_with_is_refused() {
    const SEALED: usize = (64 << 10) + 16;
    let lengths = [11, 5000, 70_000, 140_000, 262_145, 1_000_000, 1_200_000];
    let flip = |at: fn(usize) -> usize| {
        move |value: &mut Vec<u8>| {
            let at = at(value.len());
            value[at] ^= 1;
            true
        }
    };
    let swap = |value: &mut Vec<u8>| {
        if value.len() < 2 * SEALED {
            return false;
        }
        let (first, second) = value[..2 * SEALED].split_at_mut(SEALED);
        first.swap_with_slice(second);
        true
    };
    let changes: [(&str, Change); 4] = [
        ("first", Box::new(flip(|_| 0))),
        ("middle", Box::new(flip(|length| length / 2))),
        ("last", Box::new(flip(|length| length - 1))),
        ("swapped", Box::new(swap)),
    ];
    for (what, change) in changes {
        let place = Place::new();
        let (service, key) = serve(&place);
        for length in lengths {
            let target = format!("/bucket/{length}");
            let by_master = [(ALGORITHM, "AES256")];
            service
                .client
                .send("PUT", &target, &by_master, &bytes(length))
                .status(200);
        }
        let client = stop(service);
        damage(&place, change);
        let service = Service::with_key(&place, &[&key], &client.id, &client.secret);
        for length in lengths {
            let got = service.client.get(&format!("/bucket/{length}"));
            let is_whole = got.status == 200 && got.body.len() == length;
            // Two pieces that can change places are in the longer ones only.
            let is_unchanged = what == "swapped" && length < 131_072;
            assert_eq!(is_whole, is_unchanged, "{what}: {length}: {}", got.status);
            // An answer that has begun is cut off, and nothing in it is wrong.
            assert!(
                got.status != 200 || bytes(length).starts_with(&got.body),
                "{what}: {length}"
            );
            // An object of up to 1 MiB was decrypted whole before a byte of it was sent. Now what
            // is before the damage has been sent when that is found, and the rest is not.
            if what == "last" && length >= 1_000_000 {
                assert!(
                    got.status == 200 && !got.body.is_empty() && got.body.len() < length,
                    "{length}: {}, {} bytes",
                    got.status,
                    got.body.len()
                );
                let target = format!("/bucket/{length}");
                let part = service.client.send("GET", &target, &[("range", "bytes=0-99999")], b"");
                assert!(
                    part.status(206).body == bytes(length)[..100_000],
                    "what is right can be read"
                );
            }
        }
    }
}
