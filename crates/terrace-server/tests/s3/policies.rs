//! What the policies of buckets open and close.

use crate::{
    code,
    common::{Answer, Place},
    elements,
    operating::plain,
    protocol::bucket,
    sessions::session,
    sign::{Mode, post_form},
    upload::Upload,
};

fn denied(answer: &Answer) {
    assert_eq!(code(answer), (403, "AccessDenied".to_owned()));
}

/// Regression: a policy could make a bucket public, and nothing else.
#[test]
fn policies_open_and_close() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "other=read", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let guest = client.with_key(&made);
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
    // A denial applies to every key, whatever its level, and to every operation.
    for signer in [&guest, client] {
        denied(&signer.get("/bucket/secret/k"));
        denied(&signer.send(
            "PUT",
            "/bucket/in/copy",
            &[("x-amz-copy-source", "/bucket/secret/k")],
            b"",
        ));
        denied(&signer.send("PUT", "/bucket/in/open", &[("x-amz-acl", "public-read")], b"v"));
        let list = b"<Delete><Object><Key>in/new</Key></Object><Object><Key>secret/k</Key></Object></Delete>";
        let deleted = signer.send("POST", "/bucket?delete", &[], list).status(200);
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

/// A key that may do everything in a bucket cannot lock itself out of its policy; and what is no
/// policy is refused.
#[test]
fn policies_stay_in_the_owners_hands() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let nothing = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*",
        "Resource":["arn:aws:s3:::bucket","arn:aws:s3:::bucket/*"]}}"#;
    client.send("PUT", "/bucket?policy", &[], nothing).status(204);
    denied(&client.put("/bucket/k", b"v", Mode::Whole));
    let service = service.restart(&place);
    let client = &service.client;
    denied(&client.get("/bucket"));
    client.get("/bucket?policy").status(200);
    client.send("DELETE", "/bucket?policy", &[], b"").status(204);
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let wrong = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::other"}}"#;
    let answer = client.send("PUT", "/bucket?policy", &[], wrong);
    assert_eq!(code(&answer), (400, "MalformedPolicy".to_owned()));
    for (action, key, expected) in [
        ("s3:*", "s3:TlsVersion", (501, "NotImplemented")),
        ("s3:PutObject", "s3:ExistingObjectTag/a", (400, "MalformedPolicy")),
        ("s3:GetObject*", "s3:object-lock-mode", (400, "MalformedPolicy")),
    ] {
        let unknown = format!(
            r#"{{"Statement":{{"Effect":"Deny","Principal":"*","Action":"{action}","Resource":"arn:aws:s3:::bucket/*",
            "Condition":{{"StringEquals":{{"{key}":"1"}}}}}}}}"#
        );
        let answer = client.send("PUT", "/bucket?policy", &[], unknown.as_bytes());
        assert_eq!(code(&answer), (expected.0, expected.1.to_owned()), "{key}");
    }
}

/// Policies that ask for tags and locks were refused. What they say of an object's tags is decided
/// on the version that is opened, and what they say of a request's on what it stores, whatever else
/// its headers claim.
#[test]
fn policies_see_tags_and_locks() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "other=read", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let guest = client.with_key(&made);
    let tagged = |key: &str, tags: &str| {
        client.send("PUT", key, &[("x-amz-tagging", tags)], b"v").status(200);
    };
    tagged("/bucket/open", "class=open");
    tagged("/bucket/shut", "class=shut&x=y");
    client.put("/bucket/bare", b"v", Mode::Whole).status(200);
    let user = format!(r#""Principal":{{"AWS":"arn:aws:iam::terrace:user/{}"}}"#, guest.id);
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[
        {{"Effect":"Allow",{user},"Action":["s3:GetObject","s3:GetObjectTagging"],"Resource":"arn:aws:s3:::bucket/*",
          "Condition":{{"StringEquals":{{"s3:ExistingObjectTag/class":"open"}}}}}},
        {{"Effect":"Allow",{user},"Action":["s3:PutObject","s3:PutObjectTagging"],"Resource":"arn:aws:s3:::bucket/*",
          "Condition":{{"StringEquals":{{"s3:RequestObjectTag/class":"open"}},"ForAllValues:StringEquals":{{"s3:RequestObjectTagKeys":["class"]}}}}}},
        {{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
          "Condition":{{"StringEquals":{{"s3:ExistingObjectTag/x":"y"}}}}}}]}}"#
    );
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    for _ in 0..2 {
        assert_eq!(guest.get("/bucket/open").status(200).text(), "v");
        denied(&guest.get("/bucket/bare"));
        denied(&guest.get("/bucket/shut"));
        denied(&client.get("/bucket/shut"));
        client.get("/bucket/bare").status(200);
    }
    guest.get("/bucket/open?tagging").status(200);
    denied(&guest.get("/bucket/shut?tagging"));
    denied(&guest.get("/bucket/open?acl"));
    denied(&guest.get("/bucket/none"));
    denied(&guest.send("PUT", "/bucket/copy", &[("x-amz-copy-source", "/bucket/shut")], b""));
    let set =
        |class: &str| format!("<Tagging><TagSet><Tag><Key>class</Key><Value>{class}</Value></Tag></TagSet></Tagging>");
    let decoy = [("x-amz-tagging", "class=open")];
    denied(&guest.send("PUT", "/bucket/bare?tagging", &decoy, set("shut").as_bytes()));
    guest
        .send("PUT", "/bucket/bare?tagging", &[], set("open").as_bytes())
        .status(200);
    assert_eq!(guest.get("/bucket/bare").status(200).text(), "v");
    denied(&guest.put("/bucket/new", b"v", Mode::Whole));
    denied(&guest.send("PUT", "/bucket/new", &[("x-amz-tagging", "class=open&more=1")], b"v"));
    guest.send("PUT", "/bucket/new", &decoy, b"v").status(200);
    let copy = ("x-amz-copy-source", "/bucket/open");
    denied(&guest.send("PUT", "/bucket/copy", &[copy, decoy[0]], b""));
    let replaced = [copy, decoy[0], ("x-amz-tagging-directive", "REPLACE")];
    guest.send("PUT", "/bucket/copy", &replaced, b"").status(200);
    let field = ("tagging", &*set("shut"));
    denied(&guest.form("bucket", &[("key", "form"), field], 0, 60));
    guest
        .form("bucket", &[("key", "form"), ("tagging", &set("open"))], 0, 60)
        .status(204);
}

/// Regression: policies with conditions on locks were refused, and could not prevent locks of a
/// hundred years.
#[test]
fn policies_see_what_is_to_be_locked() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/locked", &locked, b"").status(200);
    let policy = br#"{"Statement":[{"Effect":"Deny","Principal":"*","Action":["s3:PutObject","s3:PutObjectRetention"],
        "Resource":"arn:aws:s3:::locked/*","Condition":{"NumericGreaterThan":{"s3:object-lock-remaining-retention-days":"10"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObjectLegalHold",
        "Resource":"arn:aws:s3:::locked/*","Condition":{"StringEquals":{"s3:object-lock-legal-hold":"ON"}}}]}"#;
    client.send("PUT", "/locked?policy", &[], policy).status(204);
    for (days, may) in [(9, true), (11, false)] {
        let until = day_after(days);
        let headers = [
            ("x-amz-object-lock-mode", "GOVERNANCE"),
            ("x-amz-object-lock-retain-until-date", &*until),
        ];
        let put = client.send("PUT", "/locked/k", &headers, b"v");
        client.put("/locked/later", b"v", Mode::Whole).status(200);
        let retention =
            format!("<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>");
        let kept = client.send("PUT", "/locked/later?retention", &[], retention.as_bytes());
        for answer in [put, kept] {
            if may {
                answer.status(200);
            } else {
                denied(&answer);
            }
        }
    }
    let hold = |status: &str| {
        let body = format!("<LegalHold><Status>{status}</Status></LegalHold>");
        client.send("PUT", "/locked/later?legal-hold", &[], body.as_bytes())
    };
    denied(&hold("ON"));
    hold("OFF").status(200);
}

/// A day so many from now, as ISO 8601 has it.
fn day_after(days: i64) -> String {
    let text = crate::sign::time(days * 24 * 3600);
    let (date, time) = text.split_once('T').unwrap();
    let (hours, rest) = time.split_at(2);
    format!(
        "{}-{}-{}T{hours}:{}:{}",
        &date[..4],
        &date[4..6],
        &date[6..],
        &rest[..2],
        &rest[2..]
    )
}

/// Regression: versions that a policy permits to read were refused. And public objects were
/// answered from RAM before the bucket's policy was checked.
#[test]
fn policies_are_asked_of_what_is_opened() {
    let place = Place::new();
    let made = place
        .run(&["key", "create", "--allow", "other=read", "--json"])
        .code(0)
        .json();
    let service = bucket(&place);
    let client = &service.client;
    let guest = client.with_key(&made);
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

/// Regression: conditions on a form's headers, signature and encryption were checked against its
/// HTTP head, which is not signed and not used by operations: `If-None-Match` there satisfied the
/// condition, and a client's key in the fields was not seen.
#[test]
fn policies_ask_a_forms_fields() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let deny = |start: &str, condition: &str| {
        format!(
            r#"{{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/{start}/*",
            "Condition":{{{condition}}}}}"#
        )
    };
    let statements = [
        deny("once", r#""Null":{"s3:if-none-match":"true"}"#),
        deny(
            "plain",
            r#""Null":{"s3:x-amz-server-side-encryption-customer-algorithm":"false"}"#,
        ),
        deny("posted", r#""StringNotEquals":{"s3:authType":"POST"}"#),
        deny("fresh", r#""NumericGreaterThan":{"s3:signatureAge":"600000"}"#),
        deny("granted", r#""Null":{"s3:x-amz-grant-read":"true"}"#),
    ];
    let policy = format!(r#"{{"Version":"2012-10-17","Statement":[{}]}}"#, statements.join(","));
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    let post = |head: &str, fields: &[(&str, &str)], age| client.form_with_head(head, "bucket", fields, age, 600);

    let condition = ("if-none-match", "*");
    denied(&post("If-None-Match: *\r\n", &[("key", "once/k")], 0));
    post("", &[("key", "once/k"), condition], 0).status(204);
    assert_eq!(
        code(&post("", &[("key", "once/k"), condition], 0)),
        (412, "PreconditionFailed".to_owned()),
        "what is asked of it is done"
    );
    let encrypted: Vec<_> = crate::encryption::key_headers("x-amz-server-side-encryption-customer-", 0);
    let fields: Vec<_> = encrypted
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .chain([("key", "plain/k")])
        .collect();
    denied(&post("", &fields, 0));
    post("", &[("key", "plain/k")], 0).status(204);
    denied(&client.put("/bucket/posted/k", b"v", Mode::Whole));
    post("", &[("key", "posted/k")], 0).status(204);
    denied(&post("", &[("key", "fresh/k")], 3600));
    post("", &[("key", "fresh/k")], 0).status(204);
    denied(&post("x-amz-grant-read: id=terrace\r\n", &[("key", "granted/k")], 0));
    post("", &[("key", "granted/k"), ("x-amz-grant-read", "id=terrace")], 0).status(204);

    // Whose the bucket must be is a field, too.
    let owner = |name| [("key", "k"), ("x-amz-expected-bucket-owner", name)];
    denied(&post("", &owner("press"), 0));
    post("", &owner("terrace"), 0).status(204);
}

/// A policy's denial of what a header asks for besides was passed by: only policies of sessions
/// were asked.
#[test]
fn policies_deny_what_headers_ask_for() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/locked", &locked, b"").status(200);
    client.put("/bucket/source", b"v", Mode::Whole).status(200);
    let policy = br#"{"Statement":[
        {"Effect":"Allow","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*"},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObjectTagging","Resource":"arn:aws:s3:::bucket/in/*"},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObjectTagging","Resource":"arn:aws:s3:::bucket/some/*",
         "Condition":{"StringEquals":{"s3:RequestObjectTag/a":"b"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObjectAcl","Resource":"arn:aws:s3:::bucket/in/*"}]}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
    let tags = ("x-amz-tagging", "a=b");
    let copies = [
        ("x-amz-copy-source", "/bucket/source"),
        ("x-amz-tagging-directive", "REPLACE"),
    ];
    let form_tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    for header in [tags, ("x-amz-acl", "private"), ("x-amz-grant-read", "id=terrace")] {
        denied(&client.send("PUT", "/bucket/in/k", &[header], b"v"));
        denied(&client.send("PUT", "/bucket/in/k", &[copies[0], copies[1], header], b""));
        denied(&client.send("POST", "/bucket/in/k?uploads", &[header], b""));
    }
    for field in [
        ("tagging", form_tags),
        ("acl", "private"),
        ("x-amz-grant-read", "id=terrace"),
    ] {
        denied(&client.form("bucket", &[("key", "in/k"), field], 0, 60));
    }
    denied(&post_form(
        &client.address,
        "bucket",
        &[("key", "in/k"), ("tagging", form_tags)],
    ));
    client.get("/bucket/in/k").status(404);
    denied(&client.send("PUT", "/bucket/some/k", &[tags], b"v"));
    client
        .send("PUT", "/bucket/some/k", &[("x-amz-tagging", "a=c")], b"v")
        .status(200);
    // What asks for nothing else is put, and so is what is denied elsewhere.
    client.put("/bucket/in/k", b"v", Mode::Whole).status(200);
    client.send("PUT", "/bucket/in/k", &copies, b"").status(200);
    client.send("PUT", "/bucket/k", &[tags], b"v").status(200);
    client
        .form("bucket", &[("key", "k"), ("tagging", form_tags)], 0, 60)
        .status(204);

    let policy =
        br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":["s3:PutObjectRetention","s3:PutObjectLegalHold"],
        "Resource":"arn:aws:s3:::locked/*"}}"#;
    client.send("PUT", "/locked?policy", &[], policy).status(204);
    denied(&client.send("PUT", "/locked/k", &[("x-amz-object-lock-legal-hold", "ON")], b"v"));
    let until = day_after(1);
    let retention = [
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-retain-until-date", &*until),
    ];
    denied(&client.send("PUT", "/locked/k", &retention, b"v"));
    client.put("/locked/k", b"v", Mode::Whole).status(200);
}

/// Regression: a copy takes the tags of its source along: permission to read them there, and to set
/// them here, was not checked.
#[test]
fn policies_deny_tags_of_copies() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/other", &[], b"").status(200);
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/bucket?versioning", &[], enabled).status(200);
    let put = client
        .send("PUT", "/bucket/tagged", &[("x-amz-tagging", "a=b")], b"v")
        .status(200);
    let version = format!("/bucket/tagged?versionId={}", put.header("x-amz-version-id").unwrap());
    client
        .send("PUT", "/bucket/fine", &[("x-amz-tagging", "a=c")], b"v")
        .status(200);
    client
        .send("PUT", "/bucket/empty", &[("x-amz-tagging", "")], b"v")
        .status(200);
    client.put("/bucket/bare", b"v", Mode::Whole).status(200);
    let copy = |source: &str| client.send("PUT", "/other/k", &[("x-amz-copy-source", source)], b"");
    let set = |bucket: &str, action: &str, condition: &str| {
        let policy = format!(
            r#"{{"Statement":{{"Effect":"Deny","Principal":"*","Action":"{action}","Resource":"arn:aws:s3:::{bucket}/*"{condition}}}}}"#
        );
        client
            .send("PUT", &format!("/{bucket}?policy"), &[], policy.as_bytes())
            .status(204);
    };

    set("bucket", "s3:GetObjectTagging", "");
    denied(&copy("/bucket/tagged"));
    copy("/bucket/empty").status(200);
    copy("/bucket/bare").status(200);
    copy(&version).status(200);
    let replaced = [
        ("x-amz-copy-source", "/bucket/tagged"),
        ("x-amz-tagging-directive", "REPLACE"),
    ];
    client.send("PUT", "/other/k", &replaced, b"").status(200);
    let onto_itself = [
        ("x-amz-copy-source", "/bucket/tagged"),
        ("x-amz-metadata-directive", "REPLACE"),
    ];
    denied(&client.send("PUT", "/bucket/tagged", &onto_itself, b""));
    set("bucket", "s3:GetObjectVersionTagging", "");
    denied(&copy(&version));
    copy("/bucket/tagged").status(200);
    set(
        "bucket",
        "s3:GetObjectTagging",
        r#","Condition":{"StringEquals":{"s3:ExistingObjectTag/a":"b"}}"#,
    );
    denied(&copy("/bucket/tagged"));
    copy("/bucket/fine").status(200);
    client.send("DELETE", "/bucket?policy", &[], b"").status(204);

    set("other", "s3:PutObjectTagging", "");
    denied(&copy("/bucket/tagged"));
    copy("/bucket/bare").status(200);
    client.send("PUT", "/other/k", &replaced, b"").status(200);
    set(
        "other",
        "s3:PutObjectTagging",
        r#","Condition":{"StringEquals":{"s3:RequestObjectTag/a":"b"}}"#,
    );
    denied(&copy("/bucket/tagged"));
    copy("/bucket/fine").status(200);
    client.send("DELETE", "/other?policy", &[], b"").status(204);
}

/// The policy of a session has to allow both, as it has to allow tags in a header.
#[test]
fn policies_of_sessions_bound_tags_of_copies() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client
        .send("PUT", "/bucket/tagged", &[("x-amz-tagging", "a=b")], b"v")
        .status(200);
    client.put("/bucket/bare", b"v", Mode::Whole).status(200);
    for (more, may) in [
        ("", false),
        (r#","s3:GetObjectTagging""#, false),
        (r#","s3:PutObjectTagging""#, false),
        (r#","s3:GetObjectTagging","s3:PutObjectTagging""#, true),
    ] {
        let policy = format!(
            r#"{{"Statement":{{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject"{more}],"Resource":"*"}}}}"#
        );
        let bound = session(client, Some(&policy));
        let copy = |source: &str| bound.send("PUT", "/bucket/copy", &[("x-amz-copy-source", source)], b"");
        copy("/bucket/bare").status(200);
        if may {
            copy("/bucket/tagged").status(200);
        } else {
            denied(&copy("/bucket/tagged"));
        }
    }
}

/// A policy may demand a condition of what makes an object, and leave the other steps of an upload
/// alone: they have no conditions.
#[test]
fn policies_know_what_makes_an_object() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/source", b"v", Mode::Whole).status(200);
    let policy =
        br#"{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"Null":{"s3:if-none-match":"true"},"Bool":{"s3:ObjectCreationOperation":"true"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"StringNotEquals":{"aws:ResourceAccount":"terrace"}}}]}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
    let copy = ("x-amz-copy-source", "/bucket/source");
    let condition = ("if-none-match", "*");
    denied(&client.put("/bucket/put", b"v", Mode::Whole));
    client.send("PUT", "/bucket/put", &[condition], b"v").status(200);
    denied(&client.send("PUT", "/bucket/copied", &[copy], b""));
    client
        .send("PUT", "/bucket/copied", &[copy, condition], b"")
        .status(200);
    denied(&client.form("bucket", &[("key", "posted")], 0, 60));
    client
        .form("bucket", &[("key", "posted"), condition], 0, 60)
        .status(204);

    let upload = Upload::begin(client, "/bucket/parts", &[]);
    client.send("PUT", &upload.part(1), &[copy], b"").status(200);
    let tags = [upload.put(client, 1, b"v", Mode::Whole)];
    denied(&upload.complete(client, &[], &tags));
    upload.complete(client, &[condition], &tags).status(200);
}

/// A denial under a condition that no request can meet was taken, and denied nothing.
#[test]
fn policies_ask_about_what_there_is() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let policy = |key: &str| {
        format!(
            r#"{{"Statement":{{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*",
            "Condition":{{"StringEquals":{{"{key}":"1"}}}}}}}}"#
        )
    };
    for (key, expected) in [
        ("s3:Prefixes", (400, "MalformedPolicy")),
        ("s3:x-amz-tagging", (400, "MalformedPolicy")),
        ("s3:RequestObjectTag", (400, "MalformedPolicy")),
        ("s3:RequestObjectTag/", (400, "MalformedPolicy")),
        ("s3:prefix/a", (400, "MalformedPolicy")),
        ("s3:BucketTag/a", (501, "NotImplemented")),
        ("s3:ExistingJobOperation", (501, "NotImplemented")),
        ("s3:AccessGrantsInstanceArn", (501, "NotImplemented")),
    ] {
        let answer = client.send("PUT", "/bucket?policy", &[], policy(key).as_bytes());
        assert_eq!(code(&answer), (expected.0, expected.1.to_owned()), "{key}");
        assert!(answer.text().contains(&key.to_ascii_lowercase()), "{}", answer.text());
    }
    for key in [
        "aws:AnythingElse",
        "S3:X-Amz-Storage-Class",
        "s3:RequestObjectTag/a/b",
        "s3:DataAccessPointArn",
    ] {
        client
            .send("PUT", "/bucket?policy", &[], policy(key).as_bytes())
            .status(204);
    }
}
