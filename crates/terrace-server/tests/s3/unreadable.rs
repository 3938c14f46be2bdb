//! Access settings of buckets that cannot be read any more.

use crate::{
    Service, anonymous, code,
    common::{Answer, Place},
    operating::plain,
    sign::Client,
};
use terrace::{Options, Store};
use terrace_objects::keyspace;

/// Has the records of buckets say something else, while no server has the store.
fn damage(place: &Place, service: Service, change: impl Fn(&str) -> String) -> Service {
    let client = service.client.clone();
    let mut service = service;
    service.end();
    let store = Store::open(Options::new(place.path("terrace-data"))).unwrap();
    let at = keyspace::bucket("mine");
    let record = String::from_utf8(store.get(&at).unwrap().unwrap().to_vec()).unwrap();
    let damaged = change(&record);
    assert_ne!(record, damaged);
    store.put(&at, damaged.into_bytes()).unwrap();
    store.close().unwrap();
    Service::with_key(place, &[], &client.id, &client.secret)
}

#[track_caller]
fn refused(answer: &Answer) {
    assert_eq!(code(answer), (500, "InternalError".to_owned()), "{}", answer.text());
}

fn policy(effect: &str) -> String {
    format!(
        r#"{{"Version":"2012-10-17","Statement":[
        {{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*"}},
        {{"Effect":"{effect}","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/kept/*"}}]}}"#
    )
}

/// Regression: an unreadable policy counted as none: its denials did not apply to keys with levels.
#[test]
fn a_policy_that_cannot_be_read_closes_its_bucket() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = service.client.clone();
    for bucket in ["mine", "other"] {
        own.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
        own.send(
            "PUT",
            &format!("/{bucket}/kept/k"),
            &[("x-amz-acl", "public-read")],
            b"v",
        )
        .status(200);
    }
    own.send("PUT", "/mine?policy", &[], policy("Deny").as_bytes())
        .status(204);
    assert_eq!(code(&own.get("/mine/kept/k")), (403, "AccessDenied".to_owned()));
    let service = damage(&place, service, |record| record.replace("Statement", "Statemend"));
    let own = &service.client;
    for target in [
        "/mine/kept/k",
        "/mine",
        "/mine?acl",
        "/mine?policy",
        "/mine/kept/k?versionId=null",
    ] {
        refused(&own.get(target));
    }
    refused(&own.send("PUT", "/mine/new", &[], b"v"));
    refused(&own.send("PUT", "/mine", &[], b""));
    refused(&own.send("DELETE", "/mine", &[], b""));
    refused(&own.send("PUT", "/mine?tagging", &[], b""));
    refused(&own.send("PUT", "/other/copy", &[("x-amz-copy-source", "/mine/kept/k")], b""));
    refused(&own.form("mine", &[("key", "form")], 0, 600));
    assert_eq!(anonymous(&own.address, "GET", "/mine/kept/k", ""), 500);
    assert_ne!(plain(service.page_address(), "/objects/mine/kept/k").status, 200);
    own.get("/other/kept/k").status(200);
    // Neither anonymous clients nor a key with fewer permissions can put it again.
    let made = place
        .run(&["key", "create", "--json", "--allow", "mine=write"])
        .code(0)
        .json();
    let writer: Client = own.with_key(&made);
    assert_eq!(
        code(&writer.send("DELETE", "/mine?policy", &[], b"")),
        (403, "AccessDenied".to_owned())
    );
    own.send("PUT", "/mine?policy", &[], policy("Allow").as_bytes())
        .status(204);
    own.get("/mine/kept/k").status(200);
    let service = service.restart(&place);
    service.client.get("/mine/kept/k").status(200);
}

/// The same of what keeps a bucket from being public, of its ownership and its list.
#[test]
fn other_settings_that_cannot_be_read() {
    let place = Place::new();
    let mut service = Service::start(&place, &[]);
    service.client.send("PUT", "/mine", &[], b"").status(200);
    service.client.send("PUT", "/mine/k", &[], b"v").status(200);
    for (setting, delete) in [
        (r#""public_access_block":{"refuse_lists":1}"#, "publicAccessBlock"),
        (r#""ownership":"BucketOwnerEnforces""#, "ownershipControls"),
    ] {
        service = damage(&place, service, |record| {
            record.replacen('{', &format!("{{{setting},"), 1)
        });
        let own = &service.client;
        refused(&own.get("/mine/k"));
        refused(&own.send("DELETE", "/mine?policy", &[], b""));
        own.send("DELETE", &format!("/mine?{delete}"), &[], b"").status(204);
        own.get("/mine/k").status(200);
    }
    service = damage(&place, service, |record| {
        record.replacen('{', r#"{"acl":"terrace=FULL","#, 1)
    });
    let own = &service.client;
    refused(&own.get("/mine/k"));
    own.send("PUT", "/mine?acl", &[("x-amz-acl", "private")], b"")
        .status(200);
    own.get("/mine/k").status(200);
}
