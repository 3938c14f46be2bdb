//! Lifecycle rules over the wire: what is taken, what is refused, and what answers say of what is
//! due.

use crate::{code, common::Place, elements, protocol::bucket};

fn rules(rules: &str) -> String {
    format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>")
}

fn rule(filter: &str, action: &str) -> String {
    rules(&format!(
        "<Rule><ID>r</ID><Status>Enabled</Status><Filter>{filter}</Filter>{action}</Rule>"
    ))
}

const DAYS: &str = "<Expiration><Days>3</Days></Expiration>";

/// What a rule is about by all of its conditions is what answers say will expire, and nothing else.
#[test]
fn answers_say_what_will_expire() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let filter = "<And><Prefix>logs/</Prefix><Tag><Key>class</Key><Value>short</Value></Tag>\
        <Tag><Key>x</Key><Value>y</Value></Tag><ObjectSizeGreaterThan>2</ObjectSizeGreaterThan>\
        <ObjectSizeLessThan>10</ObjectSizeLessThan></And>";
    let given = rule(filter, DAYS);
    client
        .send("PUT", "/bucket?lifecycle", &[], given.as_bytes())
        .status(200);
    let shown = client.get("/bucket?lifecycle").status(200);
    assert_eq!(elements(&shown, "Key"), ["class", "x"]);
    assert_eq!(elements(&shown, "ObjectSizeLessThan"), ["10"]);
    for (key, tags, body, is_due) in [
        ("logs/a", "class=short&x=y&more=1", "12345", true),
        ("logs/b", "class=short", "12345", false),
        ("logs/c", "class=short&x=y", "12", false),
        ("logs/d", "class=short&x=y", "1234567890", false),
        ("log", "class=short&x=y", "12345", false),
    ] {
        let target = format!("/bucket/{key}");
        let put = client
            .send("PUT", &target, &[("x-amz-tagging", tags)], body.as_bytes())
            .status(200);
        let get = client.get(&target).status(200);
        let head = client.send("HEAD", &target, &[], b"").status(200);
        for answer in [&put, &get, &head] {
            let expiration = answer.header("x-amz-expiration");
            assert_eq!(expiration.is_some(), is_due, "{key}");
            assert!(
                expiration.is_none_or(|text| text.ends_with("00:00:00 GMT\", rule-id=\"r\"")),
                "{expiration:?}"
            );
        }
    }
    client.send("DELETE", "/bucket?lifecycle", &[], b"").status(204);
    assert_eq!(
        client.get("/bucket/logs/a").status(200).header("x-amz-expiration"),
        None
    );
}

/// Rules that are wrong are refused as S3 refuses them.
#[test]
fn rules_that_are_wrong() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let abort =
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
    let tag = "<Tag><Key>a</Key><Value>b</Value></Tag>";
    let long = format!("<Tag><Key>{}</Key><Value>b</Value></Tag>", "k".repeat(129));
    let marker = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
    let zero = "<Expiration><Days>0</Days></Expiration>";
    let noon = "<Expiration><Date>2030-01-01T12:00:00Z</Date></Expiration>";
    let many = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
        <NewerNoncurrentVersions>101</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
    for (filter, action, error, message) in [
        ("", "", "InvalidRequest", "At least one action"),
        (
            "",
            zero,
            "InvalidArgument",
            "'Days' for Expiration action must be a positive integer",
        ),
        ("", noon, "InvalidArgument", "'Date' must be at midnight GMT"),
        ("", many, "InvalidArgument", "NewerNoncurrentVersions"),
        (
            tag,
            abort,
            "InvalidRequest",
            "AbortIncompleteMultipartUpload cannot be specified with Tags",
        ),
        (
            tag,
            marker,
            "InvalidRequest",
            "ExpiredObjectDeleteMarker cannot be specified with Tags",
        ),
        (&long, DAYS, "InvalidTag", "TagKey"),
        (
            &format!("<And>{tag}{tag}</And>"),
            DAYS,
            "InvalidRequest",
            "Duplicate Tag Keys are not allowed",
        ),
        (&format!("<Prefix>a</Prefix>{tag}"), DAYS, "MalformedXML", ""),
    ] {
        let answer = client.send("PUT", "/bucket?lifecycle", &[], rule(filter, action).as_bytes());
        assert_eq!(code(&answer), (400, error.to_owned()), "{filter} {action}");
        let text = answer.text().replace("&apos;", "'");
        assert!(text.contains(message), "{text}");
    }
    let one = format!("<Rule><ID>r</ID><Status>Enabled</Status><Filter/>{DAYS}</Rule>");
    let twice = rules(&format!("{one}{one}"));
    let answer = client.send("PUT", "/bucket?lifecycle", &[], twice.as_bytes());
    assert_eq!(code(&answer), (400, "InvalidArgument".to_owned()));
    assert!(answer.text().contains("Found same ID for more than one rule"));
}
