//! A store whose log was recycled, and whose index has lost entries: what is served, what is
//! refused by name, and what `repair` brings back.

use crate::{
    Service, code,
    common::{Place, bytes, files},
    sign::Client,
};
use std::{fs, path::PathBuf};
use terrace::{Durability, Options, PutOptions, Store};

/// There is one more, to be deleted.
const OBJECTS: usize = 400;
/// Bytes of other values written after the objects: so much of the log is recycled that
/// the index cannot be rebuilt from it.
const CHURN_BYTES: usize = 96 << 20;
const FILLER_BYTES: usize = 4 << 10;

fn options(place: &Place) -> Options {
    let mut options = Options::new(place.path("terrace-data"));
    options.flash_capacity_bytes = 64 << 20;
    options.segment_bytes = 1 << 20;
    options
}

fn tables(place: &Place) -> Vec<PathBuf> {
    files(&place.path("terrace-data/flash/index/tables"))
}

fn value(n: usize) -> Vec<u8> {
    bytes(200 + n * 37 % 9_000)
}

fn path(n: usize) -> String {
    format!("/mine/object-{n:04}")
}

/// A store with objects and a recycled log.
fn recycled(place: &Place) -> Client {
    let mut service = Service::start(place, &[]);
    let own = service.client.clone();
    own.send("PUT", "/mine", &[], b"").status(200);
    for n in 0..=OBJECTS {
        own.send("PUT", &path(n), &[], &value(n)).status(200);
    }
    service.end();
    let store = Store::open(options(place)).unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let filler = bytes(FILLER_BYTES);
    for n in 0..CHURN_BYTES / FILLER_BYTES {
        store
            .put_with(format!("filler/{:03}", n % 500), &filler, &buffered)
            .unwrap();
    }
    assert!(store.stats().log.segments_reclaimed > 0);
    store.delete_prefix("filler/", Durability::Sync).unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    own
}

/// Every table is cut: also what the server needs to know of buckets and keys is lost.
#[test]
fn lost_records_of_buckets_and_keys_keep_the_server_from_starting_until_repair() {
    let place = Place::new();
    let own = recycled(&place);
    for table in tables(&place) {
        let length = fs::metadata(&table).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&table)
            .unwrap()
            .set_len(length / 2)
            .unwrap();
    }
    for _ in 0..2 {
        let refused = place.run(&["serve", "--listen", "127.0.0.1:0"]).code(5).error();
        assert!(refused.contains("has lost entries from"), "{refused}");
        assert!(refused.contains("run `terrace repair`"), "{refused}");
    }
    place.run(&["repair"]).code(0);
    let service = Service::with_key(&place, &[], &own.id, &own.secret);
    for n in 0..OBJECTS {
        assert!(service.client.get(&path(n)).status(200).body == value(n), "object {n}");
    }
}

/// Flips a bit amid the entries of objects in each table that has some.
fn damage_entries(place: &Place) {
    // Some keys are stored whole, others without what they share with the key before.
    let key = &path(0).into_bytes()[1.."/mine/object-".len()];
    for table in tables(place) {
        let mut bytes = fs::read(&table).unwrap();
        let seen = bytes.windows(key.len()).enumerate().filter(|(_, seen)| *seen == key);
        let places: Vec<_> = seen.map(|(at, _)| at).collect();
        if let Some(at) = places.get(places.len() / 2) {
            bytes[*at] ^= 1;
            fs::write(table, bytes).unwrap();
        }
    }
}

/// A bit is flipped amid the entries of objects: what else the table has is served.
#[test]
fn objects_whose_entries_are_lost_are_errors_and_all_others_are_served() {
    let place = Place::new();
    let own = recycled(&place);
    damage_entries(&place);

    // Reads find the damage, and the next open sets it aside.
    let find = |service: &Service| {
        let statuses = (0..OBJECTS).map(|n| {
            let answer = service.client.get(&path(n));
            match code(&answer) {
                (200, _) => assert!(answer.body == value(n), "object {n}"),
                refused => assert_eq!(refused, (500, "InternalError".to_owned()), "object {n}"),
            }
            answer.status
        });
        let lost = statuses.enumerate().filter(|(_, status)| *status != 200);
        lost.map(|(n, _)| n).collect::<Vec<_>>()
    };
    let start = || {
        // With a checkpoint of the hash index objects in the log are found without the ordered
        // index.
        let _ = fs::remove_file(place.path("terrace-data/flash/CHECKPOINT"));
        Service::with_key(&place, &[], &own.id, &own.secret)
    };
    let mut service = start();
    let before = find(&service);
    assert!(
        !before.is_empty() && before.len() < OBJECTS,
        "{} are lost",
        before.len()
    );
    service.end();
    let service = start();
    let lost = find(&service);
    // More than before: of the first key behind a damaged block a newer entry may be in it.
    let is_lost = |n: &usize| lost.contains(n);
    assert!(
        before.iter().all(is_lost) && lost.len() < OBJECTS,
        "{lost:?}, before {before:?}"
    );

    let client = &service.client;
    for n in [lost[0], lost[lost.len() - 1]] {
        // Whether it exists decides what these do.
        assert_eq!(code(&client.send("PUT", &path(n), &[], b"new")).0, 500);
        assert_eq!(code(&client.send("DELETE", &path(n), &[], b"")).0, 500);
    }
    assert_eq!(code(&client.get("/mine?list-type=2")).0, 500, "an incomplete listing");
    client.send("PUT", "/other", &[], b"").status(200);
    client.send("PUT", "/other/new", &[], b"new").status(200);
    client.send("DELETE", &path(OBJECTS), &[], b"").status(204);
    let mut service = service;
    service.end();
    place.run(&["verify"]).code(5);
    place.run(&["repair"]).code(0);
    place.run(&["verify"]).code(0);
    let service = Service::with_key(&place, &[], &own.id, &own.secret);
    assert_eq!(find(&service), [] as [usize; 0]);
    service.client.get(&path(OBJECTS)).status(404);
    service.client.get("/other/new").status(200);
}
