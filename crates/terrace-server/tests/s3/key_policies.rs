//! Policies of access keys: made and changed by the command line, and judged with those of buckets
//! and sessions. What each operation takes is in [`crate::table`].

use crate::{
    Service, code,
    common::{Answer, Place},
    elements,
    sessions::session,
    sign::Client,
};
use std::{fs, path::PathBuf};

/// A file with a policy of these statements.
pub fn policy_file(place: &Place, statements: &str) -> String {
    let file: PathBuf = place.dir.path().join("key-policy.json");
    fs::write(
        &file,
        format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#),
    )
    .unwrap();
    file.to_str().unwrap().to_owned()
}

/// A key with a policy of these statements, of this account.
pub fn key_with(place: &Place, service: &Service, account: &str, statements: &str) -> Client {
    let file = policy_file(place, statements);
    let made = place.run(&["key", "create", "--json", "--account", account, "--policy", &file]);
    service.client.with_key(&made.code(0).json())
}

#[track_caller]
fn denied(answer: &Answer) {
    assert_eq!(code(answer), (403, "AccessDenied".to_owned()), "{}", answer.text());
}

fn filled(place: &Place) -> Service {
    let service = Service::start(place, &[]);
    let own = &service.client;
    for bucket in ["mine", "second"] {
        own.send("PUT", &format!("/{bucket}"), &[], b"").status(200);
        for key in ["in/k", "out/k"] {
            own.send("PUT", &format!("/{bucket}/{key}"), &[("x-amz-tagging", "a=b")], b"v")
                .status(200);
        }
    }
    service
}

const READ_IN: &str = r#"{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/in/*"}"#;

/// What a key may do could only be said in levels.
#[test]
fn a_key_does_what_its_policy_says() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let reader = key_with(&place, &service, "terrace", READ_IN);
    reader.get("/mine/in/k").status(200);
    for target in [
        "/mine/out/k",
        "/second/in/k",
        "/mine",
        "/mine/in/none",
        "/mine?policy",
        "/",
    ] {
        denied(&reader.get(target));
    }
    denied(&reader.send("PUT", "/mine/in/k", &[], b"w"));
    // It may do what is public, unless its policy denies it.
    own.send("PUT", "/mine/out/open", &[("x-amz-acl", "public-read")], b"open")
        .status(200);
    reader.get("/mine/out/open").status(200);

    let but = r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"},
        {"Effect":"Deny","NotAction":["s3:Get*","s3:List*"],"NotResource":["arn:aws:s3:::mine/in/*","arn:aws:s3:::new"]},
        {"Effect":"Deny","Action":"s3:GetObject","Resource":"*",
         "Condition":{"StringEquals":{"s3:ExistingObjectTag/a":"secret"}}},
        {"Effect":"Deny","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/out/open"}"#;
    let most = key_with(&place, &service, "terrace", but);
    assert_eq!(elements(&most.get("/").status(200), "Name"), ["mine", "second"]);
    most.send("PUT", "/new", &[], b"").status(200);
    most.send("PUT", "/mine/in/new", &[], b"v").status(200);
    most.get("/second/out/k").status(200);
    assert_eq!(code(&most.get("/mine/none")), (404, "NoSuchKey".to_owned()));
    denied(&most.send("PUT", "/mine/new", &[], b"v"));
    denied(&most.send("DELETE", "/mine", &[], b""));
    denied(&most.get("/mine/out/open"));
    own.send("PUT", "/mine/in/k", &[("x-amz-tagging", "a=secret")], b"v")
        .status(200);
    denied(&most.get("/mine/in/k"));
    let list = b"<Delete><Object><Key>in/new</Key></Object><Object><Key>out/k</Key></Object></Delete>";
    let deleted = most.send("POST", "/mine?delete", &[], list).status(200);
    assert_eq!(elements(&deleted, "Code"), ["AccessDenied"]);
    assert_eq!(elements(&deleted, "Deleted").len(), 1);
    // A copy reads its source, in whatever bucket.
    let copy = r#"{"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::mine/*"},
        {"Effect":"Allow","Action":["s3:GetObject","s3:GetObjectTagging","s3:PutObjectTagging"],"Resource":"arn:aws:s3:::*/out/*"}"#;
    let copier = key_with(&place, &service, "terrace", copy);
    let from = |source: &str| copier.send("PUT", "/mine/out/copy", &[("x-amz-copy-source", source)], b"");
    from("/second/out/k").status(200);
    denied(&from("/second/in/k"));
    denied(&from("/mine/in/form"));
    // By a presigned URL, and as a form.
    most.form("mine", &[("key", "in/form")], 0, 600).status(204);
    denied(&most.form("mine", &[("key", "out/form")], 0, 600));
}

/// Headers that do more than put an object need what they ask for, in the key's policy or in the
/// bucket's, and that is enough, as in S3.
#[test]
fn what_headers_ask_for_needs_the_policy() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    own.send("PUT", "/locked", &[("x-amz-bucket-object-lock-enabled", "true")], b"")
        .status(200);
    let until = "2099-01-01T00:00:00Z";
    let headers: [&[(&str, &str)]; 5] = [
        &[("x-amz-acl", "public-read")],
        &[("x-amz-tagging", "c=d")],
        &[("x-amz-object-lock-legal-hold", "ON")],
        &[
            ("x-amz-object-lock-mode", "GOVERNANCE"),
            ("x-amz-object-lock-retain-until-date", until),
        ],
        &[("x-amz-copy-source", "/mine/in/k")],
    ];
    let actions = [
        r#""s3:PutObjectAcl""#,
        r#""s3:PutObjectTagging""#,
        r#""s3:PutObjectLegalHold""#,
        r#""s3:PutObjectRetention""#,
        r#""s3:GetObject","s3:GetObjectTagging","s3:PutObjectTagging""#,
    ];
    for (more, action) in headers.iter().zip(actions) {
        let allow = |actions: &str| format!(r#"{{"Effect":"Allow","Action":[{actions}],"Resource":"*"}}"#);
        let put = r#""s3:PutObject","s3:GetObject""#;
        let without = key_with(&place, &service, "terrace", &allow(put));
        denied(&without.send("PUT", "/locked/k", more, b""));
        let with = key_with(&place, &service, "terrace", &allow(&format!("{put},{action}")));
        with.send("PUT", "/locked/k", more, b"").status(200);
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":{{"Effect":"Allow","Principal":"*","Action":[{action}],
                "Resource":"arn:aws:s3:::locked/*"}}}}"#
        );
        own.send("PUT", "/locked?policy", &[], policy.as_bytes()).status(204);
        // Public lists, and locks, need permission by the key's own policy.
        let of_bucket = without.send("PUT", "/locked/k", more, b"");
        if more[0].0 == "x-amz-tagging" {
            of_bucket.status(200);
        } else if more[0].0 != "x-amz-copy-source" {
            denied(&of_bucket);
        }
        own.send("DELETE", "/locked?policy", &[], b"").status(204);
    }
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    let versions = own.get("/locked?versions").status(200);
    let version = elements(&versions, "VersionId").remove(1);
    let target = format!("/locked/k?versionId={version}");
    let allow = |actions: &str| {
        let statement = format!(r#"{{"Effect":"Allow","Action":[{actions}],"Resource":"arn:aws:s3:::locked/*"}}"#);
        key_with(&place, &service, "terrace", &statement)
    };
    denied(&allow(r#""s3:DeleteObjectVersion""#).send("DELETE", &target, &bypass, b""));
    allow(r#""s3:DeleteObjectVersion","s3:BypassGovernanceRetention""#)
        .send("DELETE", &target, &bypass, b"")
        .status(204);
}

/// Policies of key, bucket and session meet as AWS has it.
#[test]
fn policies_meet() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let of_bucket = |effect: &str, principal: &str| {
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":{{"Effect":"{effect}","Principal":{{"AWS":"{principal}"}},
                "Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*"}}}}"#
        );
        own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
    };
    let reader = key_with(&place, &service, "terrace", READ_IN);
    let press = key_with(&place, &service, "press", READ_IN);
    denied(&press.get("/mine/in/k"));
    of_bucket("Allow", "press");
    press.get("/mine/in/k").status(200);
    denied(&press.get("/mine/out/k"));
    denied(&reader.get("/mine/out/k"));
    of_bucket("Allow", "terrace");
    reader.get("/mine/out/k").status(200);
    of_bucket("Deny", "terrace");
    denied(&reader.get("/mine/in/k"));
    own.send("DELETE", "/mine?policy", &[], b"").status(204);
    // A session does what both allow.
    let both = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Action":"s3:*","Resource":"arn:aws:s3:::mine/*"},
        {"Effect":"Deny","Action":"s3:GetObjectTagging","Resource":"*"}]}"#;
    let (plain, bound) = (session(&reader, None), session(&reader, Some(both)));
    for one in [&plain, &bound] {
        one.get("/mine/in/k").status(200);
        denied(&one.get("/mine/out/k"));
        denied(&one.get("/mine/in/k?tagging"));
        denied(&one.get("/second/in/k"));
    }
    let elsewhere = r#"{"Statement":{"Effect":"Allow","Action":"s3:*","Resource":"arn:aws:s3:::second*"}}"#;
    let nothing = session(&reader, Some(elsewhere));
    denied(&nothing.get("/mine/in/k"));
    denied(&nothing.get("/second/in/k"));
}

/// The command line makes, shows and changes policies, with a server and without.
#[test]
fn policies_by_the_command_line() {
    let place = Place::new();
    let service = filled(&place);
    let reader = key_with(&place, &service, "terrace", READ_IN);
    let id = reader.id.as_str();
    let line = |text: String| text.lines().find(|line| line.starts_with(id)).unwrap().to_owned();
    let listed = || line(place.run(&["key", "list"]).code(0).text());
    assert_eq!(listed(), format!("{id}  (policy)"));
    let json = place.run(&["key", "list", "--json"]).code(0).json();
    let key = json.as_array().unwrap().iter().find(|key| key["access_key_id"] == id);
    assert!(key.unwrap()["policy"].as_str().unwrap().contains(READ_IN));
    let shown = || place.run(&["key", "policy", id]).code(0).text();
    assert!(shown().contains(READ_IN));
    let set = |statements: &str| place.run(&["key", "policy", id, "--set", &policy_file(&place, statements)]);
    set(&READ_IN.replace("/in/", "/out/")).code(0);
    denied(&reader.get("/mine/in/k"));
    reader.get("/mine/out/k").status(200);
    let named = r#"{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"*"}"#;
    let refused = set(named).code(2);
    assert!(
        refused.error().contains("should not specify a principal"),
        "{}",
        refused.error()
    );
    set(r#"{"Effect":"Allow","Action":"s3:Everything","Resource":"*"}"#).code(2);
    reader.get("/mine/out/k").status(200);
    // A policy takes the place of levels.
    let made = place
        .run(&["key", "create", "--json", "--allow", "mine=admin"])
        .code(0)
        .json();
    let levels = service.client.with_key(&made);
    levels.get("/mine?acl").status(200);
    let file = policy_file(&place, READ_IN);
    place.run(&["key", "policy", &levels.id]).code(3);
    place.run(&["key", "policy", &levels.id, "--set", &file]).code(0);
    denied(&levels.get("/mine?acl"));
    levels.get("/mine/in/k").status(200);
    place.run(&["key", "policy", "TRCENOBODY", "--set", &file]).code(3);
    place.run(&["key", "policy", id, "--set", &file, "--remove"]).code(2);
    place
        .run(&["key", "create", "--allow", "mine=read", "--policy", &file])
        .code(2);
    place.run(&["key", "create"]).code(2);

    let own = service.client.clone();
    drop(service);
    place.run(&["key", "policy", id, "--remove"]).code(0);
    place.run(&["key", "policy", id]).code(3);
    place
        .run(&[
            "key",
            "policy",
            &levels.id,
            "--set",
            &policy_file(&place, &READ_IN.replace("mine", "second")),
        ])
        .code(0);
    let service = Service::with_key(&place, &[], &own.id, &own.secret);
    let at = |client: &Client| Client {
        address: service.client.address.clone(),
        ..client.clone()
    };
    denied(&at(&reader).get("/mine/out/k"));
    denied(&at(&levels).get("/mine/in/k"));
    at(&levels).get("/second/in/k").status(200);
}

/// Regression: a key that may make buckets could set the list of an existing one against its
/// policy: the bucket was treated as missing.
#[test]
fn a_bucket_that_is_made_again_has_a_policy() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let maker = r#"{"Effect":"Allow","Action":["s3:CreateBucket","s3:PutBucketAcl"],"Resource":"*"}"#;
    let maker = key_with(&place, &service, "terrace", maker);
    let open = [("x-amz-acl", "public-read")];
    maker.send("PUT", "/new", &open, b"").status(200);
    maker.send("PUT", "/new", &open, b"").status(200);
    let policy = format!(
        r#"{{"Statement":{{"Effect":"Deny","Principal":{{"AWS":"arn:aws:iam::terrace:user/{}"}},"Action":"s3:PutBucketAcl",
        "Resource":"arn:aws:s3:::mine"}}}}"#,
        maker.id
    );
    own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
    denied(&maker.send("PUT", "/mine?acl", &open, b""));
    denied(&maker.send("PUT", "/mine", &open, b""));
    assert!(!own.get("/mine?acl").status(200).text().contains("AllUsers"));
    maker.send("PUT", "/mine", &[], b"").status(200);
}

/// The tags in the body of CreateBucket need the action that sets them, as those in a request of
/// their own.
#[test]
fn tags_of_a_new_bucket_need_their_action() {
    let place = Place::new();
    let service = filled(&place);
    let statement = |actions: &str| format!(r#"{{"Effect":"Allow","Action":[{actions}],"Resource":"*"}}"#);
    let maker = key_with(&place, &service, "terrace", &statement(r#""s3:CreateBucket""#));
    let both = statement(r#""s3:CreateBucket","s3:PutBucketTagging""#);
    let tagger = key_with(&place, &service, "terrace", &both);
    let tagged = "<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>1</Value></Tag></Tags>\
        </CreateBucketConfiguration>";
    denied(&maker.send("PUT", "/new", &[], tagged.as_bytes()));
    service.client.get("/new?location").status(404);
    tagger.send("PUT", "/new", &[], tagged.as_bytes()).status(200);
    maker
        .send("PUT", "/other", &[], b"<CreateBucketConfiguration/>")
        .status(200);
}

/// Regression: they were judged by a bucket of the default account, for each caller. A denial for
/// one's own account was passed by, and a permission for it did not reach.
#[test]
fn tags_of_a_new_bucket_are_judged_by_its_account() {
    let place = Place::new();
    let service = filled(&place);
    let own = r#""Resource":"*","Condition":{"StringEquals":{"aws:ResourceAccount":"press"}}"#;
    let allowed = format!(r#"{{"Effect":"Allow","Action":"s3:*",{own}}}"#);
    let tagged = "<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>1</Value></Tag></Tags>\
        </CreateBucketConfiguration>";
    key_with(&place, &service, "press", &allowed)
        .send("PUT", "/theirs", &[], tagged.as_bytes())
        .status(200);
    let all = r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"}"#;
    let refused = format!(r#"{all},{{"Effect":"Deny","Action":"s3:PutBucketTagging",{own}}}"#);
    let refused = key_with(&place, &service, "press", &refused);
    denied(&refused.send("PUT", "/untagged", &[], tagged.as_bytes()));
    refused.get("/untagged?location").status(404);
}
