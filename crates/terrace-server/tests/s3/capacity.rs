//! The large tier's capacity, changed while the server runs.

use crate::{
    Service,
    common::{Place, bytes, eventually, files},
    operating::plain,
    sign::Mode,
    upload::Upload,
};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::MetadataExt as _,
    time::Duration,
};

const VALUE_BYTES: usize = 1_000_000;
/// What `du` may count beside what the figures say, and 2 %: manifests, the lock, the socket, the
/// small files that name the index's state, what the file system keeps of long files.
const BESIDE_BYTES: u64 = 1 << 20;

/// Puts values until one is refused; says how many went in.
fn fill(service: &Service, name: &str) -> usize {
    let value = bytes(VALUE_BYTES);
    for number in 0..100 {
        let answer = service
            .client
            .put(&format!("/bucket/{name}-{number}"), &value, Mode::Whole);
        if answer.status != 200 {
            assert_eq!(answer.status, 507, "{}", answer.text());
            return number;
        }
    }
    panic!("there is no end of room");
}

/// What the first line of an answer begins with, where the client waits for "100 Continue" with a
/// body that it never sends, and all of the answer if that is the last one.
fn told_at_the_head(service: &Service, target: &str, headers: &[(&str, &str)]) -> String {
    let client = &service.client;
    let mut request = client.sign("PUT", target, headers, &bytes(VALUE_BYTES), Mode::Whole);
    request.head = request.head.replace("connection: close", "expect: 100-continue");
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.head.as_bytes()).unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).unwrap();
    if answer != b"HTTP/1.1 100" {
        stream.read_to_end(&mut answer).unwrap();
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A full store took a piece of each value before it refused it: a client that waits for "100
/// Continue" was told to send what had no room.
#[test]
fn a_value_without_room_is_refused_at_its_head() {
    let place = Place::new();
    let service = Service::start(&place, &["--split-threshold", "1MiB", "--large-capacity", "12MiB"]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    assert_eq!(told_at_the_head(&service, "/bucket/first", &[]), "HTTP/1.1 100");
    let first = fill(&service, "first");
    assert!(first >= 4, "{first}");

    let refused = told_at_the_head(&service, "/bucket/more", &[]);
    assert!(refused.starts_with("HTTP/1.1 507"), "{refused}");
    assert!(refused.contains("connection: close\r\n"), "{refused}");
    // With what there is and may be, and what to do. Only which tier it is was said.
    assert!(refused.contains("The large tier of the store is full: "), "{refused}");
    assert!(refused.contains(" of 12 MiB are used, "), "{refused}");
    assert!(refused.contains("Delete objects"), "{refused}");
    // What is wrong besides is said first.
    let missing = told_at_the_head(&service, "/none/more", &[]);
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
    let unmet = told_at_the_head(&service, "/bucket/first-0", &[("if-none-match", "*")]);
    assert!(unmet.starts_with("HTTP/1.1 412"), "{unmet}");
    // A client that sends all the same reads the answer.
    let sent = service.client.put("/bucket/more", &bytes(VALUE_BYTES), Mode::Whole);
    assert_eq!(sent.status, 507, "{}", sent.text());
    // What is short needs no room there.
    service
        .client
        .put("/bucket/short", &bytes(1_000), Mode::Whole)
        .status(200);

    // Room that is on its way is waited for.
    for number in 0..first {
        let key = format!("/bucket/first-{number}");
        service.client.send("DELETE", &key, &[], b"").status(204);
    }
    assert_eq!(told_at_the_head(&service, "/bucket/more", &[]), "HTTP/1.1 100");
    service
        .client
        .put("/bucket/more", &bytes(VALUE_BYTES), Mode::Whole)
        .status(200);
}

#[test]
fn a_full_store_is_given_more_while_it_serves() {
    let place = Place::new();
    let mut service = Service::start(&place, &["--large-capacity", "12MiB"]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    let first = fill(&service, "first");
    assert!(first >= 5, "{first}");
    let refused = place.run(&["capacity", "1MiB"]);
    assert!(
        refused.0.status.code() != Some(0) && refused.error().contains("at least 4 blocks"),
        "{}",
        refused.error()
    );

    // A part of an upload that is not completed counts as well.
    let part = Upload::begin(&service.client, "/bucket/upload", &[]).part(1);

    let told = place.run(&["capacity", "24MiB", "--json"]).code(0).json();
    service.client.put(&part, &bytes(VALUE_BYTES), Mode::Whole).status(200);
    says_what_du_says(&place, &service);
    assert_eq!(told["capacity_bytes"], 24 << 20);
    let second = fill(&service, "second");
    assert!(second >= 8, "{second} after {first}");
    let below = place.run(&["capacity", "12MiB"]);
    assert!(
        below.0.status.code() != Some(0) && below.error().contains("delete first"),
        "{}",
        below.error()
    );
    // Of what is deleted, blocks are cleaned until what is left is within the capacity.
    for number in 0..second {
        let path = format!("/bucket/second-{number}");
        service.client.send("DELETE", &path, &[], b"").status(204);
    }
    eventually("16 MiB are enough for what is left", || {
        let lowered = place.run(&["capacity", "16MiB"]);
        (lowered.0.status.code() == Some(0)).then_some(())
    });
    eventually("the blocks are within 16 MiB", || {
        let stats = plain(service.page_address(), "/api/stats").status(200).json();
        (stats["large"]["allocated_bytes"].as_u64().unwrap() <= 16 << 20).then_some(())
    });
    says_what_du_says(&place, &service);
    let text = place.run(&["capacity", "64MiB"]).code(0).text();
    assert!(text.contains("may have: 64"), "{text}");
    for number in 0..first {
        let found = service.client.get(&format!("/bucket/first-{number}")).status(200);
        assert!(found.body == bytes(VALUE_BYTES), "{number}");
    }
    place.run(&["capacity", "device"]).code(0);
    assert!(fill_some(&service) == 10, "without a bound the device has room");
    service.end();
    let without_server = place.run(&["capacity", "24MiB"]).code(1);
    assert!(
        without_server.error().contains("no server has this store open"),
        "{}",
        without_server.error()
    );
    place.run(&["capacity", "much"]).code(2);
}

/// Regression: the log never gave back segments that were there, and its capacity did not count the
/// other files of the tier.
#[test]
fn the_flash_tier_is_made_smaller_and_larger_while_the_server_runs() {
    let place = Place::new();
    let mut service = Service::start(&place, &["--flash-capacity", "64MiB"]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    let value = bytes(60_000);
    let put = |number: usize| {
        let path = format!("/bucket/{number}");
        service.client.put(&path, &value, Mode::Whole).status(200);
    };
    (0..700).for_each(put);
    // As `du` shows it.
    let flash = |place: &Place| {
        let found = files(&place.path("terrace-data").join("flash"));
        found
            .iter()
            .map(|path| path.metadata().map_or(0, |file| file.blocks()))
            .sum::<u64>()
            * 512
    };
    assert!(flash(&place) > 30 << 20, "{}", flash(&place));
    // The shortest log and the reserve take 15.1 MiB. Of 16 MiB the index had too little left for
    // the runs that it has before a merge: a put was refused.
    let told = place
        .run(&["capacity", "20MiB", "--tier", "flash", "--json"])
        .code(0)
        .json();
    assert_eq!(told["capacity_bytes"], 20 << 20);
    eventually("a tier within 20 MiB", || (flash(&place) <= 20 << 20).then_some(()));
    (700..800).for_each(put);
    assert!(flash(&place) <= 20 << 20, "{}", flash(&place));
    let text = place.run(&["capacity", "48MiB", "--tier", "flash"]).code(0).text();
    assert!(
        text.contains("files of the flash tier have") && text.contains("may have: 48"),
        "{text}"
    );
    (800..1_200).for_each(put);
    assert!(flash(&place) > 24 << 20, "{}", flash(&place));
    for number in [0, 350, 699, 750, 1_100] {
        let found = service.client.get(&format!("/bucket/{number}")).status(200);
        assert!(found.body == value, "{number}");
    }
    let refused = place.run(&["capacity", "1MiB", "--tier", "flash"]);
    assert!(refused.error().contains("at least 8 segments"), "{}", refused.error());
    place.run(&["capacity"]).code(2);
    place.run(&["capacity", "device", "--tier", "flash"]).code(2);
    service.end();
}

/// Holds the figures of both tiers against the files.
fn says_what_du_says(place: &Place, service: &Service) {
    for tier in ["flash", "large"] {
        // Tables and blocks that were replaced go a little later than they are counted.
        eventually(&format!("what du says of {tier}"), || {
            let stats = plain(service.page_address(), "/api/stats").status(200).json();
            let told = stats["space"][tier]["disk_bytes"].as_u64().unwrap();
            let blocks = |path: &std::path::PathBuf| path.metadata().map_or(0, |file| file.blocks());
            let found = files(&place.path("terrace-data").join(tier))
                .iter()
                .map(blocks)
                .sum::<u64>()
                * 512;
            (found > 1 << 20 && told.abs_diff(found) <= found / 50 + BESIDE_BYTES).then_some(())
        });
    }
}

/// Ten values that would not fit into the first capacity.
fn fill_some(service: &Service) -> usize {
    let value = bytes(VALUE_BYTES);
    let put = |number: &usize| {
        service
            .client
            .put(&format!("/bucket/some-{number}"), &value, Mode::Whole)
            .status
    };
    (0..10).filter(|number| put(number) == 200).count()
}
