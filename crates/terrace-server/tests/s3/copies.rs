//! Copies of objects onto themselves, while others change them.

use crate::{common::Place, elements, protocol::bucket, sign::Client};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Changes of metadata that one client makes while another changes tags: enough that some meet.
const CHANGES: usize = 150;

/// An object's copy onto itself with this metadata.
fn describe(client: &Client, number: &str, more: &[(&str, &str)]) -> crate::common::Answer {
    let headers = [
        &[
            ("x-amz-copy-source", "/bucket/k"),
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-number", number),
        ],
        more,
    ];
    client.send("PUT", "/bucket/k", &headers.concat(), b"")
}

/// Regression: one client replaced the metadata of an object by copying it onto itself, another
/// one its tags. The first got 409 whenever a change of the other came in between. Both go
/// through, and neither undoes the other: what is committed is made of what was read last.
#[test]
fn a_copy_onto_itself_outlasts_other_changes() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/k", &[], b"bytes").status(200);
    let is_over = AtomicBool::new(false);
    let retag = || {
        let mut number = 0;
        while !is_over.load(Ordering::SeqCst) {
            number += 1;
            let tags =
                format!("<Tagging><TagSet><Tag><Key>number</Key><Value>{number}</Value></Tag></TagSet></Tagging>");
            let put = client.send("PUT", "/bucket/k?tagging", &[], tags.as_bytes());
            let got = client.get("/bucket/k?tagging");
            let is_kept = elements(&got, "Value") == [number.to_string()];
            if put.status != 200 || !is_kept {
                is_over.store(true, Ordering::SeqCst);
                panic!("tags {number}: {} {}", put.text(), got.text());
            }
        }
    };
    thread::scope(|scope| {
        let tagger = scope.spawn(retag);
        let mut refused = Vec::new();
        for number in 0..CHANGES {
            let number = number.to_string();
            let copied = describe(client, &number, &[]);
            if copied.status != 200 {
                refused.push(copied.text());
                continue;
            }
            let got = client.get("/bucket/k").status(200);
            assert_eq!(got.header("x-amz-meta-number"), Some(number.as_str()));
            assert_eq!(got.text(), "bytes");
        }
        is_over.store(true, Ordering::SeqCst);
        tagger.join().unwrap();
        assert!(refused.is_empty(), "{} of {CHANGES}: {}", refused.len(), refused[0]);
    });
}

/// Regression: the answer to a copy of an object onto itself said when the object would have
/// expired with the tags and the time that it had before, not with those that it got.
#[test]
fn a_copy_onto_itself_says_when_the_copy_expires() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let rules = b"<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><Tag><Key>class</Key><Value>short</Value></Tag></Filter>\
        <Expiration><Days>3</Days></Expiration></Rule></LifecycleConfiguration>";
    client.send("PUT", "/bucket?lifecycle", &[], rules).status(200);
    client.send("PUT", "/bucket/k", &[], b"bytes").status(200);
    let retags = |tags| [("x-amz-tagging-directive", "REPLACE"), ("x-amz-tagging", tags)];
    for (tags, is_due) in [("class=short", true), ("class=long", false)] {
        let copied = describe(client, "1", &retags(tags)).status(200);
        let got = client.get("/bucket/k").status(200);
        for answer in [&copied, &got] {
            assert_eq!(answer.header("x-amz-expiration").is_some(), is_due, "{tags}");
        }
    }
}
