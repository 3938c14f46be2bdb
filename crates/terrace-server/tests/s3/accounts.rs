//! Owners of keys, buckets and objects, and grants between accounts.

use crate::{
    Service, code,
    common::{Answer, PATIENCE, Place},
    elements,
    operating::plain,
    sign::{Client, Mode, post_form},
    upload::Upload,
};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// A key of an account with these grants, and the account's canonical ID.
pub fn key_of(place: &Place, service: &Service, account: &str, grants: &[&str]) -> (Client, String) {
    key_with(place, service, grants, &["--account", account])
}

fn key_with(place: &Place, service: &Service, grants: &[&str], more: &[&str]) -> (Client, String) {
    let mut args = vec!["key", "create", "--json"];
    args.extend(grants.iter().flat_map(|grant| ["--allow", grant]));
    args.extend(more);
    let made = place.run(&args).code(0).json();
    let id = made["account_id"].as_str().unwrap().to_owned();
    (service.client.with_key(&made), id)
}

#[track_caller]
fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()));
}

#[track_caller]
fn denied(answer: &Answer) {
    is(answer, 403, "AccessDenied");
}

/// Regression: there was one owner of everything: each key saw all buckets, and a name that another
/// account had taken counted as one's own.
#[test]
fn buckets_have_owners() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = service.client.clone();
    let (press, press_id) = key_of(&place, &service, "press", &["*=admin"]);
    assert!(press_id.len() == 64 && press_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    own.send("PUT", "/mine", &[], b"").status(200);
    press.send("PUT", "/theirs", &[], b"").status(200);
    press.send("PUT", "/theirs", &[], b"").status(200);
    is(&press.send("PUT", "/mine", &[], b""), 409, "BucketAlreadyExists");
    is(&own.send("PUT", "/theirs", &[], b""), 409, "BucketAlreadyExists");
    own.put("/mine/k", b"v", Mode::Whole).status(200);
    press.put("/theirs/k", b"w", Mode::Whole).status(200);
    let service = service.restart(&place);
    let at = |client: &Client| Client {
        address: service.client.address.clone(),
        ..client.clone()
    };
    let (own, press) = (at(&own), at(&press));
    for (client, bucket, id, name, other) in [
        (&own, "mine", "terrace", "terrace", "theirs"),
        (&press, "theirs", press_id.as_str(), "press", "mine"),
    ] {
        let listed = client.get("/").status(200);
        assert_eq!(elements(&listed, "Name"), [bucket]);
        assert_eq!(
            (elements(&listed, "ID"), elements(&listed, "DisplayName")),
            (vec![id.to_owned()], vec![name.to_owned()])
        );
        for listing in ["", "?list-type=2&fetch-owner=true", "?versions"] {
            let target = format!("/{bucket}{listing}");
            let target = target.replace("?list-type=2&fetch-owner=true", "?fetch-owner=true&list-type=2");
            assert_eq!(elements(&client.get(&target).status(200), "ID"), [id], "{listing}");
        }
        assert_eq!(
            elements(&client.get(&format!("/{bucket}?acl")).status(200), "ID"),
            [id, id]
        );
        let upload = Upload::begin(client, &format!("/{bucket}/u"), &[]);
        assert_eq!(
            elements(&client.get(&format!("/{bucket}?uploads")).status(200), "ID"),
            [id, id]
        );
        let parts = client.get(&upload.target()).status(200);
        assert_eq!(elements(&parts, "ID"), [id, id]);
        denied(&client.get(&format!("/{other}/k")));
        denied(&client.get(&format!("/{other}")));
        denied(&client.send("DELETE", &format!("/{other}/k"), &[], b""));
    }
    expected_owners(&own, &press_id);
}

/// Clients give the owner that they expect, so that they do not put into another's bucket.
fn expected_owners(own: &Client, press_id: &str) {
    let header = "x-amz-expected-bucket-owner";
    for (owner, is_right) in [
        ("terrace", true),
        ("press", false),
        (press_id, false),
        ("123456789012", false),
    ] {
        for (method, target) in [
            ("GET", "/mine/k"),
            ("GET", "/mine?location"),
            ("GET", "/mine"),
            ("PUT", "/mine/k2"),
        ] {
            let answer = own.send(method, target, &[(header, owner)], b"");
            if is_right {
                answer.status(200);
            } else {
                denied(&answer);
            }
        }
        let copy = [
            ("x-amz-copy-source", "/mine/k"),
            ("x-amz-source-expected-bucket-owner", owner),
        ];
        let answer = own.send("PUT", "/mine/copy", &copy, b"");
        assert_eq!(answer.status, if is_right { 200 } else { 403 }, "{owner}");
    }
    plain(&own.address, "/mine/k").status(403);
}

fn ownership(client: &Client, form: &str) {
    let xml = format!("<OwnershipControls><Rule><ObjectOwnership>{form}</ObjectOwnership></Rule></OwnershipControls>");
    client
        .send("PUT", "/mine?ownershipControls", &[], xml.as_bytes())
        .status(200);
}

/// The owner of an object, by the lists of its bucket and its own list.
fn owner(client: &Client, key: &str) -> String {
    let listed = client.get(&format!("/mine?prefix={key}")).status(200);
    elements(&listed, "ID").remove(0)
}

/// Objects of other accounts in a bucket belong to them, or to the bucket's owner, by the bucket's
/// setting.
#[test]
fn objects_in_anothers_bucket() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    let (press, id) = key_of(&place, &service, "press", &["*=admin"]);
    own.send("PUT", "/mine", &[], b"").status(200);
    let grantee = format!("id=\"{id}\"");
    own.send("PUT", "/mine?acl", &[("x-amz-grant-write", &grantee)], b"")
        .status(200);

    the_writers(own, &press, &id);
    // The bucket owner's, if the writer gives it away.
    ownership(own, "BucketOwnerPreferred");
    press.put("/mine/k2", b"theirs", Mode::Whole).status(200);
    assert_eq!(owner(own, "k2"), id);
    press.send("PUT", "/mine/given", &TO_OWNER, b"given").status(200);
    assert_eq!(owner(own, "given"), "terrace");
    own.get("/mine/given").status(200);
    denied(&press.get("/mine/given"));
    the_bucket_owners(own, &press, &grantee);
}

const TO_OWNER: [(&str, &str); 1] = [("x-amz-acl", "bucket-owner-full-control")];

/// The writer's, whatever it grants; the owner of the bucket may delete it.
fn the_writers(own: &Client, press: &Client, id: &str) {
    press.put("/mine/k", b"theirs", Mode::Whole).status(200);
    press.get("/mine/k").status(200);
    denied(&own.get("/mine/k"));
    denied(&own.get("/mine/k?acl"));
    denied(&own.send("PUT", "/mine/k?acl", &[("x-amz-acl", "public-read")], b""));
    assert_eq!(owner(own, "k"), id);
    assert_eq!(elements(&press.get("/mine/k?acl").status(200), "ID"), [id, id]);
    press.send("PUT", "/mine/given", &TO_OWNER, b"given").status(200);
    own.get("/mine/given").status(200);
    assert_eq!(owner(own, "given"), id);
    let acl = own.get("/mine/given?acl").status(200);
    assert_eq!(elements(&acl, "ID"), [id, "terrace", id]);
    own.send("DELETE", "/mine/given", &[], b"").status(204);
    // A copy belongs to the account that copies, and so does an upload.
    press
        .send("PUT", "/mine/copy", &[("x-amz-copy-source", "/mine/k")], b"")
        .status(200);
    assert_eq!(owner(own, "copy"), id);
    denied(&own.send("PUT", "/mine/own", &[("x-amz-copy-source", "/mine/k")], b""));
    let upload = Upload::begin(press, "/mine/parts", &[]);
    let tag = upload.put(press, 1, b"part", Mode::Whole);
    upload.complete(press, &[], &[tag]).status(200);
    assert_eq!(owner(own, "parts"), id);
    denied(&own.get("/mine/parts"));
}

/// The bucket owner's, all of it, and there are no lists.
fn the_bucket_owners(own: &Client, press: &Client, grantee: &str) {
    let refused = own.send(
        "PUT",
        "/mine?ownershipControls",
        &[],
        b"<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>",
    );
    is(&refused, 400, "InvalidBucketAclWithObjectOwnership");
    own.send("PUT", "/mine?acl", &[("x-amz-acl", "private")], b"")
        .status(200);
    ownership(own, "BucketOwnerEnforced");
    assert_eq!(owner(own, "k2"), "terrace");
    assert_eq!(own.get("/mine/k").status(200).text(), "theirs");
    denied(&press.get("/mine/k"));
    for (target, header, value) in [
        ("/mine/new", "x-amz-acl", "public-read"),
        ("/mine/new", "x-amz-acl", "private"),
        ("/mine/new", "x-amz-grant-read", grantee),
        ("/mine/k?acl", "x-amz-acl", "private"),
        ("/mine?acl", "x-amz-acl", "private"),
    ] {
        let answer = own.send("PUT", target, &[(header, value)], b"");
        is(&answer, 400, "AccessControlListNotSupported");
    }
    own.send("PUT", "/mine/new", &TO_OWNER, b"").status(200);
    own.send("PUT", "/mine/new", &[("x-amz-grant-full-control", "id=terrace")], b"")
        .status(200);
    assert_eq!(
        elements(&own.get("/mine/k?acl").status(200), "ID"),
        ["terrace", "terrace"]
    );
    own.send("DELETE", "/mine?ownershipControls", &[], b"").status(204);
    denied(&own.get("/mine/k"));
    press.get("/mine/k").status(200);
}

/// Regression: a list could grant public reads, and nothing else.
#[test]
fn lists_grant_by_id_group_and_address() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    let (press, id) = key_with(
        &place,
        &service,
        &["*=admin"],
        &["--account", "press", "--email", "Press@example.org"],
    );
    let (other, _) = key_of(&place, &service, "other", &["*=admin"]);
    let taken = [
        "key",
        "create",
        "--allow",
        "*=read",
        "--account",
        "other",
        "--email",
        "press@example.org",
    ];
    place.run(&taken).code(2);
    own.send("PUT", "/mine", &[], b"").status(200);
    for (header, grantee, to_press, to_other, to_all) in [
        ("x-amz-grant-read", format!("id={id}"), true, false, false),
        (
            "x-amz-grant-full-control",
            "emailAddress=\"press@example.org\"".to_owned(),
            true,
            false,
            false,
        ),
        ("x-amz-grant-read", group("AuthenticatedUsers"), true, true, false),
        (
            "x-amz-grant-read",
            format!("{}, id={id}", group("AllUsers")),
            true,
            true,
            true,
        ),
        ("x-amz-grant-read-acp", group("AllUsers"), false, false, false),
    ] {
        own.send("PUT", "/mine/k", &[(header, &grantee)], b"v").status(200);
        for (answer, may) in [
            (press.get("/mine/k"), to_press),
            (other.get("/mine/k"), to_other),
            (plain(&own.address, "/mine/k"), to_all),
        ] {
            assert_eq!(answer.status, if may { 200 } else { 403 }, "{header} {grantee}");
        }
    }
    lists_and_the_block(own, &press, &other, &id);
    // A key that may only write cannot grant access to others.
    let (writer, _) = key_of(&place, &service, "terrace", &["mine=write"]);
    denied(&writer.send("PUT", "/mine/k", &[("x-amz-grant-read", &format!("id={id}"))], b"v"));
    writer
        .send("PUT", "/mine/k", &[("x-amz-acl", "bucket-owner-read")], b"v")
        .status(200);
    let both = [("x-amz-acl", "private"), ("x-amz-grant-read", "id=terrace")];
    is(&own.send("PUT", "/mine/k", &both, b"v"), 400, "InvalidRequest");
    anonymous_clients_may_write(own);
}

/// Anonymous clients may write where the list grants it, and unsigned objects belong to the
/// bucket's owner.
fn anonymous_clients_may_write(own: &Client) {
    own.send("PUT", "/mine?acl", &[("x-amz-acl", "public-read-write")], b"")
        .status(200);
    let request = format!(
        "PUT /mine/theirs HTTP/1.1\r\nHost: {}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        own.address
    );
    crate::sign::raw(&own.address, request.as_bytes()).status(200);
    assert_eq!(own.get("/mine/theirs").status(200).text(), "x");
    post_form(&own.address, "mine", &[("key", "form")]).status(204);
    own.send("PUT", "/mine?acl", &[("x-amz-acl", "public-read")], b"")
        .status(200);
    denied(&post_form(&own.address, "mine", &[("key", "form")]));
}

fn group(name: &str) -> String {
    format!("uri=\"http://acs.amazonaws.com/groups/global/{name}\"")
}

/// The public access block concerns grants that name no account.
fn lists_and_the_block(own: &Client, press: &Client, other: &Client, id: &str) {
    let acl = own.get("/mine/k?acl").status(200);
    let block = b"<PublicAccessBlockConfiguration><IgnorePublicAcls>true</IgnorePublicAcls><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>";
    own.send(
        "PUT",
        "/mine/k?acl",
        &[("x-amz-grant-read", &format!("id={id},{}", group("AllUsers")))],
        b"",
    )
    .status(200);
    own.send("PUT", "/mine?publicAccessBlock", &[], block).status(200);
    denied(&plain(&own.address, "/mine/k"));
    denied(&other.get("/mine/k"));
    press.get("/mine/k").status(200);
    denied(&own.send("PUT", "/mine/k", &[("x-amz-acl", "authenticated-read")], b"v"));
    denied(&own.send("PUT", "/mine/k?acl", &[], acl.text().as_bytes()));
    own.send("PUT", "/mine/k", &[("x-amz-grant-read", &format!("id={id}"))], b"v")
        .status(200);
    own.send("DELETE", "/mine?publicAccessBlock", &[], b"").status(204);
    own.send("PUT", "/mine/k?acl", &[], acl.text().as_bytes()).status(200);
    assert_eq!(own.get("/mine/k?acl").status(200).text(), acl.text());
}

/// A policy could name keys of one account only.
#[test]
fn policies_reach_across_accounts() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    let (press, id) = key_of(&place, &service, "press", &["*=admin"]);
    let (reader, _) = key_of(&place, &service, "press", &["mine=read"]);
    let (stranger, _) = key_of(&place, &service, "press", &["other=admin"]);
    own.send("PUT", "/mine", &[], b"").status(200);
    own.put("/mine/k", b"v", Mode::Whole).status(200);
    for principal in [
        r#"{"AWS":"arn:aws:iam::press:root"}"#.to_owned(),
        r#"{"AWS":"press"}"#.to_owned(),
        format!(r#"{{"CanonicalUser":"{id}"}}"#),
        r#""*""#.to_owned(),
    ] {
        let policy = format!(
            r#"{{"Statement":[{{"Effect":"Allow","Principal":{principal},"Action":["s3:GetObject","s3:PutObject"],
            "Resource":"arn:aws:s3:::mine/*","Condition":{{"StringEquals":{{"s3:ResourceAccount":"terrace","aws:PrincipalAccount":"press"}}}}}}]}}"#
        );
        own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
        press.get("/mine/k").status(200);
        press.put("/mine/theirs", b"w", Mode::Whole).status(200);
        denied(&own.get("/mine/theirs"));
        reader.get("/mine/k").status(200);
        // The key's own level is a bound for what another account's policy allows.
        denied(&reader.put("/mine/theirs", b"w", Mode::Whole));
        denied(&stranger.get("/mine/k"));
        denied(&press.get("/mine"));
        denied(&press.get("/mine?policy"));
        denied(&press.send("DELETE", "/mine", &[], b""));
    }
    // A denial is for the owner of an object, too.
    let policy = r#"{"Statement":[{"Effect":"Deny","Principal":{"AWS":"press"},"Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*"}]}"#;
    own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
    denied(&press.get("/mine/theirs"));
    own.get("/mine/k").status(200);
}

/// Regression: a key's permissions were the same for all of a bucket, and without an end.
#[test]
fn keys_are_limited_to_prefixes_and_times() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    own.send("PUT", "/mine", &[], b"").status(200);
    for key in ["in/k", "out/k"] {
        own.put(&format!("/mine/{key}"), b"v", Mode::Whole).status(200);
    }
    let (limited, _) = key_with(&place, &service, &["mine/in/=write"], &["--expires", "1h"]);
    assert_eq!(elements(&limited.get("/").status(200), "Name"), ["mine"]);
    limited.get("/mine/in/k").status(200);
    limited.put("/mine/in/new", b"v", Mode::Whole).status(200);
    limited.get("/mine?prefix=in%2F").status(200);
    limited.get("/mine?list-type=2&prefix=in%2Fk").status(200);
    limited
        .send("PUT", "/mine/in/copy", &[("x-amz-copy-source", "/mine/in/k")], b"")
        .status(200);
    limited.form("mine", &[("key", "in/form")], 0, 60).status(204);
    for target in [
        "/mine/out/k",
        "/mine",
        "/mine?prefix=",
        "/mine?prefix=i",
        "/mine?prefix=out%2F",
        "/mine?location",
        "/mine?prefix=in%2F&prefix=",
    ] {
        denied(&limited.get(target));
    }
    denied(&limited.put("/mine/out/new", b"v", Mode::Whole));
    denied(&limited.send("PUT", "/mine/in/copy", &[("x-amz-copy-source", "/mine/out/k")], b""));
    denied(&limited.form("mine", &[("key", "out/form")], 0, 60));
    let list = b"<Delete><Object><Key>in/new</Key></Object><Object><Key>out/k</Key></Object></Delete>";
    let deleted = limited.send("POST", "/mine?delete", &[], list).status(200);
    assert_eq!(
        (elements(&deleted, "Deleted").len(), elements(&deleted, "Code")),
        (1, vec!["AccessDenied".to_owned()])
    );
    own.get("/mine/out/k").status(200);
    own.get("/mine/in/new").status(404);
    let (ended, _) = key_with(&place, &service, &["*=admin"], &["--expires", "1ms"]);
    is(&ended.get("/mine/in/k"), 403, "InvalidAccessKeyId");
    // Another key of the account takes the place of one that goes, and nothing is refused
    // meanwhile.
    let (next, _) = key_of(&place, &service, "terrace", &["mine/in/=write"]);
    next.get("/mine/in/k").status(200);
    place.run(&["key", "remove", &limited.id]).code(0);
    next.get("/mine/in/k").status(200);
    is(&limited.get("/mine/in/k"), 403, "InvalidAccessKeyId");
}

/// Regression: a request was permitted in one bucket, and executed in whichever had its name after
/// the body had arrived: a policy put begun in one's own bucket could change another account's.
#[test]
fn a_bucket_that_changed_hands() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    let (press, _) = key_of(&place, &service, "press", &["*=admin"]);
    own.send("PUT", "/mine", &[], b"").status(200);
    let policy =
        br#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::mine/*"}}"#;
    let put = own.sign(
        "PUT",
        "/mine?policy=",
        &[("expect", "100-continue")],
        policy,
        Mode::Whole,
    );
    let mut socket = TcpStream::connect(&own.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(put.head.as_bytes()).unwrap();
    // The body is asked for once the request was allowed.
    let mut asked = [0; 25];
    socket.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    own.send("DELETE", "/mine", &[], b"").status(204);
    press.send("PUT", "/mine", &[], b"").status(200);
    socket.write_all(&put.body).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("<Code>NoSuchBucket</Code>"), "{answer}");
    is(&press.get("/mine?policy"), 404, "NoSuchBucketPolicy");
}

/// Regression: fields of a form that grant were refused. They have the meaning, and the errors, of
/// headers of a PUT.
#[test]
fn forms_grant_as_puts_do() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let own = &service.client;
    let (press, id) = key_of(&place, &service, "press", &["*=write"]);
    own.send("PUT", "/mine", &[], b"").status(200);
    let grantee = format!("id=\"{id}\"");
    own.send("PUT", "/mine?acl", &[("x-amz-grant-write", &grantee)], b"")
        .status(200);
    let all = "uri=\"http://acs.amazonaws.com/groups/global/AllUsers\"";
    for (fields, status) in [
        (&[("x-amz-grant-read", grantee.as_str())][..], 200),
        (
            &[("x-amz-grant-read", all), ("x-amz-grant-full-control", &grantee)],
            200,
        ),
        (
            &[("x-amz-grant-write-acp", &grantee), ("x-amz-grant-read-acp", &grantee)],
            200,
        ),
        (&[("x-amz-acl", "authenticated-read")], 200),
        (&[("x-amz-acl", "aws-exec-read")], 200),
        (&[("x-amz-acl", "public-read"), ("x-amz-grant-read", all)], 400),
        (&[("x-amz-grant-read", "id=unknown")], 400),
        (&[("x-amz-grant-read", "emailAddress=a@b")], 400),
    ] {
        for client in [own, &press] {
            let put = client.send("PUT", "/mine/put", fields, b"file");
            let posted = client.form("mine", &[fields, &[("key", "form")]].concat(), 0, 600);
            let is_own = client.id == own.id;
            // Permission to write is not enough to grant access to others.
            let expected = if status == 200 && !is_own && !fields.iter().all(|(_, value)| *value == grantee) {
                403
            } else {
                status
            };
            assert_eq!(put.status, expected, "{fields:?}: {}", put.text());
            assert_eq!(
                (posted.status == 204, code(&posted).1),
                (expected == 200, code(&put).1),
                "{fields:?}"
            );
            if expected == 200 && is_own {
                let lists = ["/mine/put?acl", "/mine/form?acl"].map(|target| client.get(target).status(200).text());
                assert_eq!(lists[0], lists[1], "{fields:?}");
            }
        }
    }
}
