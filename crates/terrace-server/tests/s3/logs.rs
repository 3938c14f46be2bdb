//! Server access logging: the requests of a bucket in another one.

use crate::{
    code,
    common::{Answer, Place},
    elements,
    operating::plain,
    protocol::bucket,
    sign::{Client, Mode},
};

fn status(target: &str, more: &str) -> String {
    format!(
        "<BucketLoggingStatus xmlns=\"http://doc.s3.amazonaws.com/2006-03-01\"><LoggingEnabled>\
         <TargetBucket>{target}</TargetBucket><TargetPrefix>log-</TargetPrefix>{more}</LoggingEnabled></BucketLoggingStatus>"
    )
}

fn partitioned(source: &str) -> String {
    format!(
        "<TargetObjectKeyFormat><PartitionedPrefix><PartitionDateSource>{source}</PartitionDateSource>\
         </PartitionedPrefix></TargetObjectKeyFormat>"
    )
}

fn put(client: &Client, target: &str, more: &str) -> Answer {
    client.send("PUT", "/bucket?logging", &[], status(target, more).as_bytes())
}

/// All lines of the logs in a bucket whose keys begin like this.
fn lines(client: &Client, start: &str) -> Vec<String> {
    let keys = elements(&client.get("/logs?list-type=2").status(200), "Key");
    let logs = keys.iter().filter(|key| key.starts_with(start));
    logs.flat_map(|key| {
        let log = client.get(&format!("/logs/{key}")).status(200);
        assert_eq!(log.header("content-type"), Some("text/plain"));
        log.text().lines().map(str::to_owned).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn requests_are_in_the_log_that_was_asked_for() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let refused = (400, "InvalidTargetBucketForLogging".to_owned());
    assert_eq!(code(&put(client, "logs", "")), refused);
    client.send("PUT", "/logs", &[], b"").status(200);
    let none = client.get("/bucket?logging").status(200);
    assert!(elements(&none, "TargetBucket").is_empty());
    assert_eq!(
        code(&put(client, "logs", &partitioned("Never"))),
        (400, "MalformedXML".to_owned())
    );
    put(client, "logs", "").status(200);
    let shown = client.get("/bucket?logging").status(200);
    assert_eq!(elements(&shown, "TargetPrefix"), ["log-"]);
    assert!(elements(&shown, "PartitionDateSource").is_empty());

    client.put("/bucket/a%20b", b"value", Mode::Whole).status(200);
    client.get("/bucket/a%20b?versionId=null").status(200);
    client.exchange(&client.sign("GET", "/bucket/none", &[("referer", "http://x/\"y")], b"", Mode::Whole));
    plain(&client.address, "/bucket/a%20b").status(403);
    client.get("/logs?list-type=2").status(200);
    let presigned = client.presigned("GET", "/bucket/a%20b");
    plain(&client.address, &presigned).status(200);
    let service = service.restart(&place, "TERM");
    let client = &service.client;
    let all = lines(client, "log-2");
    let has = |what: &[&str]| {
        let found = all.iter().filter(|line| what.iter().all(|part| line.contains(part)));
        assert_eq!(found.count(), 1, "{what:?} in {all:#?}");
    };
    let user = format!("arn:aws:iam::terrace:user/{}", client.id);
    assert!(all.iter().all(|line| line.starts_with("terrace bucket [")), "{all:#?}");
    has(&[
        &user,
        " REST.PUT.OBJECT a%20b \"PUT /bucket/a%20b HTTP/1.1\" 200 - - 5 ",
        " SigV4 - AuthHeader ",
    ]);
    has(&["REST.GET.OBJECT a%20b \"GET /bucket/a%20b?versionId=null HTTP/1.1\" 200 - 5 5 "]);
    has(&["REST.GET.OBJECT none ", " 404 NoSuchKey ", "\"http://x/%22y\""]);
    has(&[" - ", " 403 AccessDenied "]);
    has(&[" 200 - 5 5 ", " SigV4 - QueryString "]);
    assert!(all.iter().all(|line| !line.contains("Signature=")), "{all:#?}");
    assert_eq!(
        all.iter().filter(|line| line.contains("LOGGING_STATUS")).count(),
        1,
        "what came after the first"
    );

    // By the day of the requests, and under a key that says so.
    put(client, "logs", &partitioned("EventTime")).status(200);
    let shown = client.get("/bucket?logging").status(200);
    assert_eq!(elements(&shown, "PartitionDateSource"), ["EventTime"]);
    let service = service.restart(&place, "TERM");
    let client = &service.client;
    assert!(!lines(client, "log-terrace/us-east-1/bucket/2").is_empty());
    let off = b"<BucketLoggingStatus xmlns=\"http://doc.s3.amazonaws.com/2006-03-01\"/>";
    client.send("PUT", "/bucket?logging", &[], off).status(200);
    let before = lines(client, "log-").len();
    client.get("/bucket/a%20b").status(200);
    let service = service.restart(&place, "TERM");
    assert_eq!(lines(&service.client, "log-").len(), before);
}

/// Whoever configures a bucket could have its log written into a bucket that is somebody else's.
#[test]
fn a_log_goes_only_where_it_may() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "bucket=admin", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let guest = client.with_key(&made);
    client.send("PUT", "/logs", &[], b"").status(200);
    let refused = (400, "InvalidTargetBucketForLogging".to_owned());
    assert_eq!(code(&put(&guest, "logs", "")), refused);
    let policy =
        br#"{"Statement":{"Effect":"Allow","Principal":{"Service":"logging.s3.amazonaws.com"},"Action":"s3:PutObject",
        "Resource":"arn:aws:s3:::logs/log-*","Condition":{"ArnLike":{"aws:SourceArn":"arn:aws:s3:::bucket"}}}}"#;
    client.send("PUT", "/logs?policy", &[], policy).status(204);
    put(&guest, "logs", "").status(200);
    guest.get("/bucket").status(200);
    let service = service.restart(&place, "TERM");
    let client = &service.client;
    let before = lines(client, "log-").len();
    assert!(before > 0);
    // The policy is asked again for every log.
    client.send("DELETE", "/logs?policy", &[], b"").status(204);
    client.get("/bucket").status(200);
    let service = service.restart(&place, "TERM");
    assert_eq!(lines(&service.client, "log-").len(), before);
}

/// What a log was looked up by was the path as it came, so whoever wrote a letter of the bucket's
/// name with a percent sign was not logged.
#[test]
fn a_bucket_is_logged_however_it_is_written() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/logs", &[], b"").status(200);
    put(client, "logs", "").status(200);
    plain(&client.address, "/b%75cket/none").status(403);
    let service = service.restart(&place, "TERM");
    let all = lines(&service.client, "log-2");
    let is_there = all
        .iter()
        .any(|line| line.contains("REST.GET.OBJECT none \"GET /b%75cket/none HTTP/1.1\" 403"));
    assert!(is_there, "{all:#?}");
}
