//! A store whose log was recycled, and whose index has lost entries: what is served, what is
//! refused by name, and what `repair` brings back. With copies of its tables nothing is lost.

use crate::{
    Service, code,
    common::{Place, bytes, eventually, files},
    sign::{Client, Mode},
    upload::Upload,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
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
    recycled_after(place, |own| {
        for n in 0..=OBJECTS {
            own.send("PUT", &path(n), &[], &value(n)).status(200);
        }
    })
}

/// A store whose log was recycled after some requests.
fn recycled_after(place: &Place, requests: impl FnOnce(&Client)) -> Client {
    let mut service = Service::start(place, &[]);
    let own = service.client.clone();
    own.send("PUT", "/mine", &[], b"").status(200);
    requests(&own);
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

/// A place amid the entries of objects, in a table that has some.
fn amid_entries(table: &[u8]) -> Option<usize> {
    // Some keys are stored whole, others without what they share with the key before.
    let key = &path(0).into_bytes()[1.."/mine/object-".len()];
    let seen = table.windows(key.len()).enumerate().filter(|(_, seen)| *seen == key);
    let places: Vec<_> = seen.map(|(at, _)| at).collect();
    places.get(places.len() / 2).copied()
}

fn flip(table: &Path, place: impl Fn(&[u8]) -> Option<usize>) {
    let mut bytes = fs::read(table).unwrap();
    if let Some(at) = place(&bytes) {
        bytes[at] ^= 1;
        fs::write(table, bytes).unwrap();
    }
}

/// A bit is flipped amid the entries of objects: what else the table has is served.
#[test]
fn objects_whose_entries_are_lost_are_errors_and_all_others_are_served() {
    let place = Place::new();
    let own = recycled(&place);
    tables(&place).iter().for_each(|table| flip(table, amid_entries));

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

/// Bytes that differ by number.
fn numbered(n: usize, length: usize) -> Vec<u8> {
    let mut value = bytes(length);
    value[..8].copy_from_slice(&(n as u64).to_le_bytes());
    value
}

/// One of each kind. Tiny values, and the manifests of long ones, are in the index alone.
fn of_each_kind(n: usize) -> Vec<Vec<u8>> {
    let length = match n % 20 {
        0 => 300 << 10,
        1..10 => 20,
        _ => 200 + n * 37 % 9_000,
    };
    if n % 100 == 50 {
        vec![numbered(n, 5 << 20), numbered(n, 300 << 10)]
    } else {
        vec![numbered(n, length)]
    }
}

fn is_deleted(n: usize) -> bool {
    n % 7 == 1
}

/// Puts objects of each kind, and deletes some.
fn put_each_kind(own: &Client) {
    for n in 0..OBJECTS {
        let parts = of_each_kind(n);
        if let [whole] = &parts[..] {
            own.send("PUT", &path(n), &[], whole).status(200);
            continue;
        }
        let upload = Upload::begin(own, &path(n), &[]);
        let parts = (1..).zip(&parts);
        let tags: Vec<_> = parts.map(|(at, part)| upload.put(own, at, part, Mode::Whole)).collect();
        upload.complete(own, &[], &tags).status(200);
    }
    for n in (0..OBJECTS).filter(|n| is_deleted(*n)) {
        own.send("DELETE", &path(n), &[], b"").status(204);
    }
}

/// Lets the store copy all tables of its index.
fn mirror(place: &Place) {
    let count =
        |directory| fs::read_dir(place.path("terrace-data/flash/index").join(directory)).map_or(0, Iterator::count);
    let options = || options(place).tuned(|tuning| tuning.index_mirror_after = Some(Duration::ZERO));
    // The index may be flushed or merged once more at a close.
    eventually("each table has a copy after a close", || {
        let store = Store::open(options()).unwrap();
        eventually("a copy of each table", || {
            let index = store.stats().index;
            (count("mirror") as u64 == index.tables && index.mirror_bytes >= index.bytes).then_some(())
        });
        store.close().unwrap();
        (count("mirror") > 0 && count("mirror") == count("tables")).then_some(())
    });
}

/// How many of the objects are refused for damage. All others must be right.
fn refused(client: &Client) -> usize {
    let is_refused = |n: &usize| {
        let answer = client.get(&path(*n));
        match (answer.status, is_deleted(*n)) {
            (200, false) => assert!(answer.body == of_each_kind(*n).concat(), "object {n}"),
            (404, true) => {}
            (500, _) => assert_eq!(code(&answer).1, "InternalError", "object {n}"),
            (status, _) => panic!("object {n}: {status}"),
        }
        answer.status == 500
    };
    (0..OBJECTS).filter(is_refused).count()
}

fn cut(table: &Path) {
    let file = fs::OpenOptions::new().write(true).open(table).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// All tables of the index are damaged in each way: a start puts their copies in their places.
#[test]
fn an_index_whose_tables_have_copies_loses_no_object() {
    let place = Place::new();
    let own = recycled_after(&place, put_each_kind);
    let start = || {
        let _ = fs::remove_file(place.path("terrace-data/flash/CHECKPOINT"));
        Service::with_key(&place, &[], &own.id, &own.secret)
    };
    let damage = |way: &dyn Fn(&Path)| {
        mirror(&place);
        tables(&place).iter().for_each(|table| way(table));
        place.run(&["verify"]).code(5);
    };
    let all_are_right = || {
        let mut service = start();
        assert_eq!(refused(&service.client), 0);
        let answer = service.client.get("/mine?list-type=2").status(200).text();
        let listed = (0..OBJECTS).filter(|n| !is_deleted(*n)).count();
        assert_eq!(answer.matches("<Key>").count(), listed);
        service.end();
        place.run(&["verify"]).code(0);
    };
    damage(&cut);
    all_are_right();
    damage(&|table| fs::remove_file(table).unwrap());
    all_are_right();
    damage(&|table| flip(table, |bytes| amid_entries(bytes).or(Some(bytes.len() / 2))));
    // The start reads not every block: damage that is found later is mended by the next start.
    let mut service = start();
    refused(&service.client);
    service.end();
    all_are_right();
}
