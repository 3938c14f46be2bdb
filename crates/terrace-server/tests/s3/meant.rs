//! Policies are checked against what a request does, however it is written: each test is a
//! regression.

use crate::{
    Service, code,
    common::{Answer, Place},
    key_policies::key_with,
    sign::{Client, Mode},
};

/// A server with these buckets, of which the first has versioning.
fn filled(place: &Place, buckets: [&str; 2]) -> Service {
    let service = Service::start(place, &[]);
    for bucket in buckets {
        service.client.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
    }
    let enable = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let target = format!("/{}?versioning", buckets[0]);
    service.client.send("PUT", &target, &[], enable).status(200);
    service
}

#[track_caller]
fn denied(answer: &Answer) {
    assert_eq!(code(answer), (403, "AccessDenied".to_owned()), "{}", answer.text());
}

/// Deletes a version of `/from/k` by a list.
fn delete(client: &Client, query: &str, version: &str) -> String {
    let list = format!("<Delete><Object><Key>k</Key><VersionId>{version}</VersionId></Object></Delete>");
    let answer = client.send("POST", &format!("/from?delete{query}"), &[], list.as_bytes());
    answer.status(200).text()
}

/// A policy that asks about the version was told the one in the query: a copy or a list of objects
/// to delete, which name theirs elsewhere, could name another one there.
#[test]
fn versions_that_copies_and_lists_name() {
    let place = Place::new();
    let service = filled(&place, ["from", "into"]);
    let client = &service.client;
    let put = || client.put("/from/k", b"v", Mode::Whole).status(200);
    let [open, closed] = [put(), put()].map(|put| put.header("x-amz-version-id").unwrap().to_owned());
    let allowing = format!(
        r#"{{"Effect":"Allow","Action":["s3:GetObjectVersion","s3:DeleteObjectVersion"],"Resource":"arn:aws:s3:::from/*",
            "Condition":{{"StringEquals":{{"s3:VersionId":"{open}"}}}}}},
           {{"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::into/*"}}"#
    );
    let denying = format!(
        r#"{{"Effect":"Allow","Action":"s3:*","Resource":"*"}},
           {{"Effect":"Deny","Action":["s3:GetObjectVersion","s3:DeleteObjectVersion"],"Resource":"*",
            "Condition":{{"StringEquals":{{"s3:VersionId":"{closed}"}}}}}}"#
    );
    for statements in [allowing, denying] {
        let user = key_with(&place, &service, "terrace", &statements);
        let copy = |target: &str, version: &str| {
            let source = format!("/from/k?versionId={version}");
            user.send("PUT", target, &[("x-amz-copy-source", &source)], b"")
        };
        copy("/into/k", &open).status(200);
        denied(&copy("/into/k", &closed));
        denied(&copy(&format!("/into/k?versionId={open}"), &closed));
        assert!(delete(&user, "", &closed).contains("AccessDenied"));
        assert!(delete(&user, &format!("&versionId={open}"), &closed).contains("AccessDenied"));
        user.get(&format!("/from/k?versionId={open}")).status(200);
        denied(&user.get(&format!("/from/k?versionId={closed}")));
    }
    let user = key_with(
        &place,
        &service,
        "terrace",
        r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"}"#,
    );
    assert!(delete(&user, "", &open).contains("<Deleted>"));
}

/// A policy that denied copies of something was got around by a slash that was percent-encoded.
#[test]
fn sources_of_copies() {
    let place = Place::new();
    let service = filled(&place, ["from", "into"]);
    service.client.put("/from/shut/k", b"v", Mode::Whole).status(200);
    service.client.put("/from/open/k", b"v", Mode::Whole).status(200);
    let statements = r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"},
        {"Effect":"Deny","Action":"s3:PutObject","Resource":"arn:aws:s3:::into/*",
         "Condition":{"StringLike":{"s3:x-amz-copy-source":"from/shut/*"}}}"#;
    let user = key_with(&place, &service, "terrace", statements);
    for written in [
        "from/DIR/k",
        "/from/DIR/k",
        "%2Ffrom/DIR/k",
        "%2ffrom%2FDIR%2Fk",
        "/fro%6D/DIR/k",
    ] {
        let copy = |dir: &str| {
            let source = written.replace("DIR", dir);
            user.send("PUT", "/into/k", &[("x-amz-copy-source", source.as_str())], b"")
        };
        copy("open").status(200);
        denied(&copy("shut"));
    }
}

/// Regression: a client that may list a prefix named it in requests for other objects, and learned
/// from a 404 which of them are missing.
#[test]
fn prefixes_of_listings_only() {
    let place = Place::new();
    let service = filled(&place, ["mine", "other"]);
    for key in ["home/k", "shut/k"] {
        service
            .client
            .put(&format!("/mine/{key}"), b"v", Mode::Whole)
            .status(200);
    }
    let statements = r#"{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/home/*"},
        {"Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:aws:s3:::mine",
         "Condition":{"StringLike":{"s3:prefix":"home/*"}}}"#;
    let user = key_with(&place, &service, "terrace", statements);
    user.get("/mine?prefix=home%2F").status(200);
    user.get("/mine/home/k?prefix=x").status(200);
    for target in [
        "/mine",
        "/mine?prefix=shut%2F",
        "/mine/shut/k",
        "/mine/shut/none",
        "/mine/shut/k?prefix=home%2F",
        "/mine/shut/none?prefix=home%2F",
        "/mine/home/none?prefix=home%2F",
    ] {
        denied(&user.get(target));
    }
    assert_eq!(user.send("HEAD", "/mine?prefix=home%2F", &[], b"").status, 403);
}

/// A policy that demanded `If-None-Match: *` was got around by a second line of that header: it saw
/// both, and the copy went by the first.
#[test]
fn conditions_that_are_there_twice() {
    let place = Place::new();
    let service = filled(&place, ["from", "into"]);
    for target in ["/from/k", "/into/k"] {
        service.client.put(target, b"v", Mode::Whole).status(200);
    }
    let statements = r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"},
        {"Effect":"Deny","Action":"s3:PutObject","Resource":"arn:aws:s3:::into/*",
         "Condition":{"StringNotEquals":{"s3:if-none-match":"*"}}}"#;
    let user = key_with(&place, &service, "terrace", statements);
    let copy = |lines: &str| {
        let mut copy = user.sign("PUT", "/into/k", &[("x-amz-copy-source", "from/k")], b"", Mode::Whole);
        copy.head = copy.head.replace("connection:", &format!("{lines}connection:"));
        code(&user.exchange(&copy))
    };
    let refused = |status, code: &str| (status, code.to_owned());
    assert_eq!(copy(""), refused(403, "AccessDenied"));
    assert_eq!(copy("if-none-match: \"x\"\r\n"), refused(403, "AccessDenied"));
    assert_eq!(copy("if-none-match: *\r\n"), refused(412, "PreconditionFailed"));
    let twice = "if-none-match: \"x\"\r\nif-none-match: *\r\n";
    assert_eq!(copy(twice), refused(400, "InvalidArgument"));
}
