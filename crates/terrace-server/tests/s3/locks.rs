//! Object lock: locked versions cannot be deleted, by any client and any operation.

use crate::{
    Service, access, code,
    common::{Answer, Place},
    elements,
    key_policies::key_with,
    operating::plain,
    sign::{Client, Mode},
};

const FAR: &str = "2099-01-01T00:00:00Z";

fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
}

fn retention(mode: &str, until: &str) -> String {
    format!("<Retention><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>")
}

fn named(key: &str, version: &str) -> String {
    format!("/bucket/{key}?versionId={version}")
}

fn hold(status: &str) -> String {
    format!("<LegalHold><Status>{status}</Status></LegalHold>")
}

/// A server with a bucket that may have locks.
fn lockable(place: &Place) -> Service {
    let service = Service::start(place, &[]);
    let locks = [("x-amz-bucket-object-lock-enabled", "true")];
    service.client.send("PUT", "/bucket", &locks, b"").status(200);
    service
}

/// A key that may do this with the objects of the bucket.
fn allowed(place: &Place, service: &Service, actions: &str) -> Client {
    let statements = format!(r#"{{"Effect":"Allow","Action":[{actions}],"Resource":"arn:aws:s3:::bucket/*"}}"#);
    key_with(place, service, "terrace", &statements)
}

/// Regression: GET and HEAD returned the number of tags to every reader of an object.
#[test]
fn tag_counts_need_permission() {
    let place = Place::new();
    let service = lockable(&place);
    let client = &service.client;
    let put = client
        .send("PUT", "/bucket/k", &[("x-amz-tagging", "a=1&b=2")], b"v")
        .status(200);
    let version = named("k", put.header("x-amz-version-id").unwrap());
    let told = |client: &Client| {
        let count = |method, target: &str| {
            let answer = client.send(method, target, &[], b"").status(200);
            answer.header("x-amz-tagging-count").map(str::to_owned)
        };
        assert_eq!(count("GET", "/bucket/k"), count("HEAD", "/bucket/k"));
        [count("GET", "/bucket/k"), count("GET", &version)].map(|count| count.is_some_and(|count| count == "2"))
    };
    let policy = |actions: &str| allowed(&place, &service, actions);
    assert_eq!(told(client), [true; 2]);
    assert_eq!(told(&access::key(&place, &service, "bucket=read")), [true; 2]);
    let reading = r#""s3:GetObject","s3:GetObjectVersion""#;
    assert_eq!(told(&policy(reading)), [false; 2]);
    let current = format!(r#"{reading},"s3:GetObjectTagging""#);
    assert_eq!(told(&policy(&current)), [true, false]);
    let named = format!(r#"{reading},"s3:GetObjectVersionTagging""#);
    assert_eq!(told(&policy(&named)), [false, true]);
    access::open_to_all(client, "bucket");
    let anonymous = plain(&client.address, "/bucket/k").status(200);
    assert_eq!(anonymous.header("x-amz-tagging-count"), None);
}

/// Regression: GET and HEAD returned the lock to every reader of an object, although reading a lock
/// needs the level `admin` or a policy.
#[test]
fn lock_headers_need_permission() {
    const NAMES: [&str; 3] = [
        "x-amz-object-lock-mode",
        "x-amz-object-lock-retain-until-date",
        "x-amz-object-lock-legal-hold",
    ];
    let place = Place::new();
    let service = lockable(&place);
    let client = &service.client;
    let locks = [(NAMES[0], "GOVERNANCE"), (NAMES[1], FAR), (NAMES[2], "ON")];
    let put = client.send("PUT", "/bucket/k", &locks, b"v").status(200);
    let version = named("k", put.header("x-amz-version-id").unwrap());
    let told = |client: &Client| {
        let told: Vec<_> = [("GET", "/bucket/k"), ("HEAD", "/bucket/k"), ("GET", version.as_str())]
            .into_iter()
            .map(|(method, target)| {
                let answer = client.send(method, target, &[], b"").status(200);
                NAMES.map(|name| answer.header(name).is_some())
            })
            .collect();
        assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
        told[0]
    };
    let policy = |actions: &str| allowed(&place, &service, actions);
    assert_eq!(told(client), [true; 3]);
    assert_eq!(told(&access::key(&place, &service, "bucket=write")), [false; 3]);
    let reader = policy(r#""s3:GetObject*""#);
    assert_eq!(told(&reader), [true; 3]);
    let reader = policy(r#""s3:GetObject","s3:GetObjectVersion","s3:GetObjectRetention""#);
    assert_eq!(told(&reader), [true, true, false]);
    let reader = policy(r#""s3:GetObject","s3:GetObjectVersion","s3:GetObjectLegalHold""#);
    assert_eq!(told(&reader), [false, false, true]);
    access::open_to_all(client, "bucket");
    let anonymous = plain(&client.address, "/bucket/k").status(200);
    assert!(NAMES.iter().all(|name| anonymous.header(name).is_none()));
    assert_eq!(told(client), [true; 3]);
}

#[test]
fn what_is_locked_stays() {
    let place = Place::new();
    let service = lockable(&place);
    let client = service.client.clone();
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    let put = |key: &str, headers: &[(&str, &str)]| {
        let answer = client.send("PUT", &format!("/bucket/{key}"), headers, b"v").status(200);
        answer.header("x-amz-version-id").unwrap().to_owned()
    };
    let governed = [
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-retain-until-date", FAR),
    ];
    let complied = [
        ("x-amz-object-lock-mode", "COMPLIANCE"),
        ("x-amz-object-lock-retain-until-date", FAR),
    ];
    let held = [("x-amz-object-lock-legal-hold", "ON")];
    let (governed, complied, held) = (
        put("governed", &governed),
        put("complied", &complied),
        put("held", &held),
    );
    let head = client.send("HEAD", "/bucket/governed", &[], b"").status(200);
    assert_eq!(head.header("x-amz-object-lock-mode"), Some("GOVERNANCE"));
    assert!(
        head.header("x-amz-object-lock-retain-until-date")
            .unwrap()
            .starts_with("2099-01-01T00:00:00")
    );
    for (key, version, more) in [
        ("governed", &governed, &[][..]),
        ("complied", &complied, &[]),
        ("complied", &complied, &bypass[..]),
        ("held", &held, &bypass),
    ] {
        is(
            &client.send("DELETE", &named(key, version), more, b""),
            403,
            "AccessDenied",
        );
        let list = format!("<Delete><Object><Key>{key}</Key><VersionId>{version}</VersionId></Object></Delete>");
        let deleted = client.send("POST", "/bucket?delete", more, list.as_bytes()).status(200);
        assert_eq!(elements(&deleted, "Code"), ["AccessDenied"]);
    }
    // Without a name a delete marker comes before it, and a new version may.
    client.send("DELETE", "/bucket/complied", &[], b"").status(204);
    client.put("/bucket/complied", b"w", Mode::Whole).status(200);
    drop(service.restart(&place));
    place.run(&["rm", "bucket/governed"]).code(0);
    place.run(&["rm", "--prefix", "bucket/", "--yes"]).code(0);
    let service = Service::with_key(&place, &[], &client.id, &client.secret);
    let again = service.client.clone();
    for (key, version) in [("governed", &governed), ("complied", &complied), ("held", &held)] {
        assert_eq!(again.get(&named(key, version)).status(200).text(), "v");
    }
    let target = format!("/bucket/held?legal-hold=&versionId={held}");
    assert_eq!(elements(&again.get(&target).status(200), "Status"), ["ON"]);
    again.send("PUT", &target, &[], hold("OFF").as_bytes()).status(200);
    is(
        &again.send("PUT", &target, &[], hold("MAYBE").as_bytes()),
        400,
        "MalformedXML",
    );
    again.send("DELETE", &named("held", &held), &[], b"").status(204);
    again
        .send("DELETE", &named("governed", &governed), &bypass, b"")
        .status(204);
    again.get(&named("complied", &complied)).status(200);
}

#[test]
fn what_a_retention_may_become() {
    let place = Place::new();
    let service = lockable(&place);
    let client = &service.client;
    client.put("/bucket/k", b"v", Mode::Whole).status(200);
    is(
        &client.get("/bucket/k?retention="),
        404,
        "NoSuchObjectLockConfiguration",
    );
    let set = |mode: &str, until: &str, more: &[(&str, &str)]| {
        client.send("PUT", "/bucket/k?retention=", more, retention(mode, until).as_bytes())
    };
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    is(&set("GOVERNANCE", "2001-01-01T00:00:00Z", &[]), 400, "InvalidArgument");
    is(&set("NOTHING", FAR, &[]), 400, "MalformedXML");
    set("GOVERNANCE", "2098-01-01T00:00:00Z", &[]).status(200);
    set("GOVERNANCE", FAR, &[]).status(200);
    is(&set("GOVERNANCE", "2097-01-01T00:00:00Z", &[]), 403, "AccessDenied");
    is(&set("COMPLIANCE", FAR, &[]), 403, "AccessDenied");
    set("GOVERNANCE", "2097-01-01T00:00:00Z", &bypass).status(200);
    set("COMPLIANCE", "2098-01-01T00:00:00Z", &bypass).status(200);
    is(&set("COMPLIANCE", "2097-01-01T00:00:00Z", &bypass), 403, "AccessDenied");
    set("COMPLIANCE", FAR, &[]).status(200);
    let found = client.get("/bucket/k?retention=").status(200);
    assert_eq!(elements(&found, "Mode"), ["COMPLIANCE"]);
}

/// A policy keeps even those from bypassing governance whose level would do.
#[test]
fn policies_decide_on_bypasses() {
    let place = Place::new();
    let service = lockable(&place);
    let client = &service.client;
    let governed = [
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-retain-until-date", FAR),
    ];
    let made = client.send("PUT", "/bucket/k", &governed, b"v").status(200);
    let target = named("k", made.header("x-amz-version-id").unwrap());
    let policy = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:BypassGovernanceRetention",
        "Resource":"arn:aws:s3:::bucket/*"}}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    is(&client.send("DELETE", &target, &bypass, b""), 403, "AccessDenied");
    let set = retention("GOVERNANCE", "2090-01-01T00:00:00Z");
    is(
        &client.send("PUT", "/bucket/k?retention=", &bypass, set.as_bytes()),
        403,
        "AccessDenied",
    );
    client.send("DELETE", "/bucket?policy", &[], b"").status(204);
    client.send("DELETE", &target, &bypass, b"").status(204);
}

#[test]
fn buckets_with_locks() {
    let place = Place::new();
    let service = lockable(&place);
    let client = &service.client;
    let configure = |bucket: &str, inner: &str| {
        let xml = format!("<ObjectLockConfiguration>{inner}</ObjectLockConfiguration>");
        client.send("PUT", &format!("/{bucket}?object-lock="), &[], xml.as_bytes())
    };
    let rule = |inner: &str| {
        format!(
            "<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>{inner}</DefaultRetention></Rule>"
        )
    };
    let mode = "<Mode>GOVERNANCE</Mode>";
    is(
        &configure("bucket", &rule(&format!("{mode}<Days>0</Days>"))),
        400,
        "InvalidRetentionPeriod",
    );
    is(
        &configure("bucket", &rule(&format!("{mode}<Days>1</Days><Years>1</Years>"))),
        400,
        "MalformedXML",
    );
    is(
        &configure("bucket", &rule("<Mode>X</Mode><Days>1</Days>")),
        400,
        "MalformedXML",
    );
    is(
        &configure("bucket", "<ObjectLockEnabled>No</ObjectLockEnabled>"),
        400,
        "MalformedXML",
    );
    configure("bucket", &rule(&format!("{mode}<Years>2</Years>"))).status(200);
    let found = client.get("/bucket?object-lock=").status(200);
    assert_eq!(
        (elements(&found, "Mode"), elements(&found, "Years")),
        (vec!["GOVERNANCE".to_owned()], vec!["2".to_owned()])
    );
    let suspend = b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
    is(
        &client.send("PUT", "/bucket?versioning=", &[], suspend),
        409,
        "InvalidBucketState",
    );
    let kept = client.put("/bucket/k", b"v", Mode::Whole).status(200);
    let version = kept.header("x-amz-version-id").unwrap();
    is(
        &client.send("DELETE", &format!("/bucket/k?versionId={version}"), &[], b""),
        403,
        "AccessDenied",
    );
}

#[test]
fn buckets_without_locks() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    client.send("PUT", "/plain", &[], b"").status(200);
    client.put("/plain/k", b"v", Mode::Whole).status(200);
    is(
        &client.get("/plain?object-lock="),
        404,
        "ObjectLockConfigurationNotFoundError",
    );
    let locks = b"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>";
    let answer = client.send("PUT", "/plain?object-lock=", &[], locks);
    is(&answer, 409, "InvalidBucketState");
    is(&client.get("/plain/k?retention="), 400, "InvalidRequest");
    is(
        &client.send("PUT", "/plain/k", &[("x-amz-object-lock-legal-hold", "ON")], b"v"),
        400,
        "InvalidRequest",
    );
}
