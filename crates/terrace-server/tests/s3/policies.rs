//! What the policies of buckets open and close.

use crate::{
    code,
    common::{Answer, Place},
    elements,
    operating::plain,
    protocol::bucket,
    sign::{Client, Mode, post_form},
};

fn denied(answer: &Answer) {
    assert_eq!(code(answer), (403, "AccessDenied".to_owned()));
}

/// A policy could open a bucket to everybody, and say nothing else.
#[test]
fn policies_open_and_close() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "other=read", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    let guest = Client {
        address: client.address.clone(),
        id: text("access_key_id"),
        secret: text("secret_access_key"),
    };
    client.put("/bucket/in/k", b"v", Mode::Whole).status(200);
    client.put("/bucket/secret/k", b"v", Mode::Whole).status(200);
    denied(&guest.get("/bucket/in/k"));
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[
        {{"Effect":"Allow","Principal":{{"AWS":"arn:aws:iam::terrace:user/{}"}},"Action":["s3:GetObject","s3:PutObject","s3:DeleteObject"],
          "Resource":"arn:aws:s3:::bucket/*"}},
        {{"Effect":"Allow","Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::bucket",
          "Condition":{{"StringLike":{{"s3:prefix":"in/*"}}}}}},
        {{"Effect":"Deny","Principal":"*","NotAction":"s3:PutObject","Resource":"arn:aws:s3:::bucket/secret/*"}},
        {{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*",
          "Condition":{{"StringEquals":{{"s3:x-amz-acl":"public-read"}},"Bool":{{"aws:SecureTransport":"false"}}}}}}]}}"#,
        guest.id
    );
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    assert_eq!(client.get("/bucket?policy").status(200).text(), policy);
    let status = client.get("/bucket?policyStatus").status(200);
    assert_eq!(elements(&status, "IsPublic"), ["true"]);

    assert_eq!(guest.get("/bucket/in/k").status(200).text(), "v");
    guest.put("/bucket/in/new", b"w", Mode::Whole).status(200);
    denied(&guest.get("/bucket?versions="));
    denied(&guest.get("/bucket?acl="));
    // A denial is for everybody, whatever the level of the key, and whatever the way.
    for who in [&guest, client] {
        denied(&who.get("/bucket/secret/k"));
        denied(&who.send(
            "PUT",
            "/bucket/in/copy",
            &[("x-amz-copy-source", "/bucket/secret/k")],
            b"",
        ));
        denied(&who.send("PUT", "/bucket/in/open", &[("x-amz-acl", "public-read")], b"v"));
        let list = b"<Delete><Object><Key>in/new</Key></Object><Object><Key>secret/k</Key></Object></Delete>";
        let deleted = who.send("POST", "/bucket?delete", &[], list).status(200);
        assert_eq!(elements(&deleted, "Code"), ["AccessDenied"]);
    }
    client.put("/bucket/secret/k", b"v2", Mode::Whole).status(200);
    plain(&client.address, "/bucket?prefix=in%2Fx").status(200);
    plain(&client.address, "/bucket?prefix=secret%2F").status(403);
    plain(&client.address, "/bucket/in/k").status(403);
    let restrict = b"<PublicAccessBlockConfiguration><RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>";
    client
        .send("PUT", "/bucket?publicAccessBlock", &[], restrict)
        .status(200);
    plain(&client.address, "/bucket?prefix=in%2Fx").status(403);
    guest.get("/bucket/in/k").status(200);
}

/// Whoever may do everything in a bucket cannot lock himself out of its policy; and what is no policy is refused.
#[test]
fn policies_stay_in_the_owners_hands() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let nothing = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*",
        "Resource":["arn:aws:s3:::bucket","arn:aws:s3:::bucket/*"]}}"#;
    client.send("PUT", "/bucket?policy", &[], nothing).status(204);
    denied(&client.put("/bucket/k", b"v", Mode::Whole));
    let service = service.restart(&place, "TERM");
    let client = &service.client;
    denied(&client.get("/bucket"));
    client.get("/bucket?policy").status(200);
    client.send("DELETE", "/bucket?policy", &[], b"").status(204);
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let wrong = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::other"}}"#;
    let answer = client.send("PUT", "/bucket?policy", &[], wrong);
    assert_eq!(code(&answer), (400, "MalformedPolicy".to_owned()));
    let unknown = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"StringEquals":{"s3:ExistingObjectTag/a":"b"}}}}"#;
    let answer = client.send("PUT", "/bucket?policy", &[], unknown);
    assert_eq!(code(&answer), (501, "NotImplemented".to_owned()));
}

/// Whom a policy let at versions by their names was refused all the same. And what everybody may
/// read by its list was answered from RAM before the bucket's policy was asked.
#[test]
fn policies_are_asked_of_what_is_opened() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "other=read", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    let guest = Client {
        address: client.address.clone(),
        id: text("access_key_id"),
        secret: text("secret_access_key"),
    };
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/bucket?versioning", &[], enabled).status(200);
    let put = client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let version = format!("/bucket/k?versionId={}", put.header("x-amz-version-id").unwrap());
    let open = [("x-amz-acl", "public-read")];
    client.send("PUT", "/bucket/open", &open, b"open").status(200);
    for _ in 0..2 {
        plain(&client.address, "/bucket/open").status(200);
    }
    let policy = format!(
        r#"{{"Statement":[{{"Effect":"Allow","Principal":{{"AWS":"arn:aws:iam::terrace:user/{0}"}},
        "Action":"s3:GetObjectVersion","Resource":"arn:aws:s3:::bucket/k"}},
        {{"Effect":"Allow","Principal":{{"AWS":"arn:aws:iam::terrace:user/{0}"}},"Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/form/*"}},
        {{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/open"}}]}}"#,
        guest.id
    );
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    assert_eq!(guest.get(&version).status(200).text(), "v");
    denied(&guest.get("/bucket/k"));
    denied(&guest.get("/bucket/none?versionId=null"));
    for _ in 0..2 {
        plain(&client.address, "/bucket/open").status(403);
    }
    denied(&client.get("/bucket/open"));
    // The key of a form is in it.
    guest.form("bucket", &[("key", "form/k")], 0, 60).status(204);
    denied(&guest.form("bucket", &[("key", "k")], 0, 60));
    client.form("bucket", &[("key", "k")], 0, 60).status(204);
    denied(&post_form(&client.address, "bucket", &[("key", "form/k")]));
}
