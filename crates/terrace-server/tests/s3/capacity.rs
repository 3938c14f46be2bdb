//! The large tier's capacity, changed while the server runs.

use crate::{
    Service,
    common::{Place, bytes, signal, wait},
    sign::Mode,
};

const VALUE_BYTES: usize = 1_000_000;

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

    let told = place.run(&["capacity", "24MiB", "--json"]).code(0).json();
    assert_eq!(told["capacity_bytes"], 24 << 20);
    let second = fill(&service, "second");
    assert!(second >= 8, "{second} after {first}");
    let below = place.run(&["capacity", "12MiB"]);
    assert!(
        below.0.status.code() != Some(0) && below.error().contains("delete first"),
        "{}",
        below.error()
    );
    let text = place.run(&["capacity", "64MiB"]).code(0).text();
    assert!(text.contains("may have: 64"), "{text}");
    for number in 0..first {
        let found = service.client.get(&format!("/bucket/first-{number}")).status(200);
        assert!(found.body == bytes(VALUE_BYTES), "{number}");
    }
    place.run(&["capacity", "device"]).code(0);
    assert!(fill_some(&service) == 10, "without a bound the device has room");
    signal(&service.child, "TERM");
    assert!(wait(&mut service.child).success());
    let nobody = place.run(&["capacity", "24MiB"]).code(1);
    assert!(
        nobody.error().contains("no server has this store open"),
        "{}",
        nobody.error()
    );
    place.run(&["capacity", "much"]).code(2);
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
