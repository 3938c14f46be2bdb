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
    let service = service.restart(&place);
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
    let service = service.restart(&place);
    let client = &service.client;
    assert!(!lines(client, "log-terrace/us-east-1/bucket/2").is_empty());
    let off = b"<BucketLoggingStatus xmlns=\"http://doc.s3.amazonaws.com/2006-03-01\"/>";
    client.send("PUT", "/bucket?logging", &[], off).status(200);
    let before = lines(client, "log-").len();
    client.get("/bucket/a%20b").status(200);
    let service = service.restart(&place);
    assert_eq!(lines(&service.client, "log-").len(), before);
}

/// Of the keys of a DeleteObjects nothing was in the log.
#[test]
fn each_key_that_is_deleted_together_has_a_line() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/logs", &[], b"").status(200);
    put(client, "logs", "").status(200);
    let policy = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:DeleteObject",
        "Resource":"arn:aws:s3:::bucket/kept"}}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
    client.put("/bucket/a%20b", b"value", Mode::Whole).status(200);
    let list = b"<Delete><Object><Key>a b</Key></Object><Object><Key>none</Key></Object>\
        <Object><Key>kept</Key></Object></Delete>";
    let deleted = client.send("POST", "/bucket?delete", &[], list).status(200);
    assert_eq!(elements(&deleted, "Code"), ["AccessDenied"]);
    let number = deleted.header("x-amz-request-id").unwrap().to_owned();
    // Where nothing is logged, nothing is.
    client.send("POST", "/logs?delete", &[], list).status(200);
    let service = service.restart(&place);
    let all = lines(&service.client, "log-2");
    let mut batch: Vec<_> = all.iter().filter(|line| line.contains(&number)).collect();
    assert_eq!(batch.len(), 4, "{all:#?}");
    assert!(
        batch
            .remove(0)
            .contains(" REST.POST.MULTI_OBJECT_DELETE - \"POST /bucket?delete HTTP/1.1\" 200 ")
    );
    for (line, key) in batch
        .iter()
        .zip(["a%20b - 204 - ", "none - 204 - ", "kept - 403 AccessDenied "])
    {
        let what = format!("{number} BATCH.DELETE.OBJECT {key}");
        assert!(line.contains(&what), "{what} is not in {line}");
    }
    assert_eq!(all.iter().filter(|line| line.contains(" BATCH.")).count(), 3);
}

/// `TargetGrants` were refused. Logs are as open as they say, and no more than the target allows
/// when they are written.
#[test]
fn logs_are_granted_to_others() {
    let place = Place::new();
    let service = bucket(&place);
    let client = service.client.clone();
    let (press, id) = crate::accounts::key_of(&place, &service, "press", &["*=read"]);
    client.send("PUT", "/logs", &[], b"").status(200);
    let grants = |permission: &str, all: &str| {
        format!(
            "<TargetGrants><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
             xsi:type=\"CanonicalUser\"><ID>{id}</ID></Grantee><Permission>{permission}</Permission></Grant>{all}\
             </TargetGrants>"
        )
    };
    for wrong in [
        grants("READ_ACP", ""),
        grants("EVERYTHING", ""),
        grants("READ", "<Grant><Permission>READ</Permission></Grant>"),
    ] {
        assert_eq!(code(&put(&client, "logs", &wrong)).0, 400, "{wrong}");
    }
    put(&client, "logs", &grants("READ", "")).status(200);
    let shown = client.get("/bucket?logging").status(200);
    assert_eq!(
        (elements(&shown, "ID"), elements(&shown, "Permission")),
        (vec![id.clone()], vec!["READ".to_owned()])
    );
    client.get("/bucket?location").status(200);
    let service = service.restart(&place);
    let at = |client: &Client, service: &crate::Service| Client {
        address: service.client.address.clone(),
        ..client.clone()
    };
    let (client, press) = (at(&client, &service), at(&press, &service));
    let keys = |client: &Client| elements(&client.get("/logs?list-type=2").status(200), "Key");
    let before = keys(&client);
    let read = before
        .iter()
        .map(|key| press.get(&format!("/logs/{key}")).status(200).text());
    assert!(read.collect::<String>().contains("LOGGING_STATUS"));

    // Public reads, until the target forbids them.
    let all = "<Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"Group\">\
        <URI>http://acs.amazonaws.com/groups/global/AllUsers</URI></Grantee><Permission>READ</Permission></Grant>";
    put(&client, "logs", &grants("FULL_CONTROL", all)).status(200);
    let block =
        b"<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>";
    client.send("PUT", "/logs?publicAccessBlock", &[], block).status(200);
    let refused = put(&client, "logs", &grants("READ", all));
    assert_eq!(code(&refused), (403, "AccessDenied".to_owned()));
    let number = refused.header("x-amz-request-id").unwrap().to_owned();
    let service = service.restart(&place);
    let (client, press) = (at(&client, &service), at(&press, &service));
    // What tells of that was written later.
    let log_of = |key: &String| client.get(&format!("/logs/{key}")).status(200).text();
    let second = keys(&client).into_iter().find(|key| log_of(key).contains(&number));
    let second = second.unwrap();
    assert!(!before.contains(&second));
    assert_eq!(plain(&client.address, &format!("/logs/{second}")).status, 403);
    press.get(&format!("/logs/{second}")).status(403);
}

/// Regression: a client that may configure a bucket could have its log written into another
/// account's bucket.
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
    let service = service.restart(&place);
    let client = &service.client;
    let before = lines(client, "log-").len();
    assert!(before > 0);
    // The policy is asked again for every log.
    client.send("DELETE", "/logs?policy", &[], b"").status(204);
    client.get("/bucket").status(200);
    let service = service.restart(&place);
    assert_eq!(lines(&service.client, "log-").len(), before);
}

/// Regression: the bucket of a log was looked up by the path as received, so requests that encoded
/// a letter of the bucket's name were not logged.
#[test]
fn a_bucket_is_logged_however_it_is_written() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/logs", &[], b"").status(200);
    put(client, "logs", "").status(200);
    plain(&client.address, "/b%75cket/none").status(403);
    let service = service.restart(&place);
    let all = lines(&service.client, "log-2");
    let is_there = all
        .iter()
        .any(|line| line.contains("REST.GET.OBJECT none \"GET /b%75cket/none HTTP/1.1\" 403"));
    assert!(is_there, "{all:#?}");
}

/// A bucket whose requester pays was taken for logs, and one with a default retention, which would
/// lock them; S3 documents neither.
#[test]
fn buckets_that_take_no_logs() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let refused = (400, "InvalidTargetBucketForLogging".to_owned());
    client.send("PUT", "/payed", &[], b"").status(200);
    put(client, "payed", "").status(200);
    let payer = |name: &str| {
        let xml = format!("<RequestPaymentConfiguration><Payer>{name}</Payer></RequestPaymentConfiguration>");
        client
            .send("PUT", "/payed?requestPayment", &[], xml.as_bytes())
            .status(200);
    };
    payer("Requester");
    assert_eq!(code(&put(client, "payed", "")), refused);
    payer("BucketOwner");
    put(client, "payed", "").status(200);
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/locked", &locked, b"").status(200);
    put(client, "locked", "").status(200);
    let rule = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
        <Mode>GOVERNANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    client
        .send("PUT", "/locked?object-lock", &[], rule.as_bytes())
        .status(200);
    assert_eq!(code(&put(client, "locked", "")), refused);
}
