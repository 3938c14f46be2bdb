//! Versioning through a crash. What clients do with it is in `boto.py`.

use crate::{
    Service, assert_nothing_left,
    common::{Answer, Place, bytes, eventually},
    elements,
    sign::Mode,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Changes that each writer makes at most: with those of the others they are in one page of the
/// listing.
const PUTS_MAX: usize = 200;
/// Puts that are acknowledged before the server is killed.
const ACKNOWLEDGED_MIN: usize = 12;

/// Every change of a bucket with versioning is whole or absent after a kill, and nothing is left
/// when all is deleted.
#[test]
fn versions_after_a_kill() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    let on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.put("/bucket/k", b"null", Mode::Whole).status(200);
    client.send("PUT", "/bucket?versioning", &[], on).status(200);
    let large = bytes(900_000);
    let version = |answer: &Answer| answer.header("x-amz-version-id").unwrap().to_owned();
    let first = version(&client.put("/bucket/k", &large, Mode::Whole).status(200));
    let stop = AtomicBool::new(false);
    let acknowledged = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 0..3 {
            let (client, stop, acknowledged, large, version) = (&client, &stop, &acknowledged, &large, &version);
            scope.spawn(move || {
                for number in 1..=PUTS_MAX {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let body = if number % 3 == 0 { &large[..] } else { b"small" };
                    // The server goes away in the middle of one of them.
                    let answer = catch_unwind(AssertUnwindSafe(|| client.put("/bucket/k", body, Mode::Whole)));
                    let Ok(answer) = answer else { return };
                    if answer.status == 200 {
                        acknowledged.lock().unwrap().push((version(&answer), body.len()));
                    }
                    if number % 4 == writer {
                        let _ = catch_unwind(AssertUnwindSafe(|| client.send("DELETE", "/bucket/k", &[], b"")));
                    }
                }
            });
        }
        eventually("some puts are acknowledged", || {
            (acknowledged.lock().unwrap().len() >= ACKNOWLEDGED_MIN).then_some(())
        });
        service.kill();
        stop.store(true, Ordering::Relaxed);
    });
    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    let client = &service.client;
    let acknowledged = acknowledged.into_inner().unwrap();
    let mut versions = vec!["null".to_owned(), first];
    for (version, length) in acknowledged {
        let got = client.get(&format!("/bucket/k?versionId={version}")).status(200);
        assert_eq!(got.body.len(), length);
    }
    let listed = client.get("/bucket?versions").status(200);
    let found = elements(&listed, "VersionId");
    versions.retain(|version| !found.contains(version));
    assert!(versions.is_empty(), "lost: {versions:?}");
    assert!(
        elements(&listed, "IsLatest")
            .iter()
            .filter(|latest| *latest == "true")
            .count()
            == 1
    );
    for version in found {
        let target = format!("/bucket/k?versionId={version}");
        client.send("DELETE", &target, &[], b"").status(204);
    }
    client.send("DELETE", "/bucket", &[], b"").status(204);
    assert_nothing_left(service, &place);
}

/// While versioning is suspended the answer to a PUT said `null`, which S3 does not.
#[test]
fn what_is_put_while_versioning_is_suspended() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    let version = |answer: &Answer| answer.header("x-amz-version-id").map(str::to_owned);
    for (status, is_named) in [("Enabled", true), ("Suspended", false)] {
        let xml = format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
        client
            .send("PUT", "/bucket?versioning", &[], xml.as_bytes())
            .status(200);
        let put = client.put("/bucket/k", b"v", Mode::Whole).status(200);
        assert_eq!(version(&put).is_some(), is_named, "{status}");
        let copied = client.send("PUT", "/bucket/copy", &[("x-amz-copy-source", "/bucket/k")], b"");
        assert_eq!(version(&copied.status(200)).is_some(), is_named, "{status}");
        let name = version(&client.get("/bucket/k").status(200)).unwrap();
        assert_eq!(name == "null", !is_named);
    }
    let deleted = client.send("DELETE", "/bucket/k", &[], b"").status(204);
    assert_eq!(version(&deleted).as_deref(), Some("null"), "of a marker it is said");
}
