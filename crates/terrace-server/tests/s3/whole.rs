//! What a request says is taken whole, or refused: each test is a regression, in which a part of it
//! was dropped silently, and something else was done than what was asked.

use crate::{
    code,
    common::{Answer, Place},
    elements,
    protocol::bucket,
    sign::{Client, Mode},
    upload::Upload,
    version_2::ask,
};

#[track_caller]
fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
}

/// A lifecycle configuration with this filter.
fn rule(filter: &str) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>x</ID><Status>Enabled</Status>{filter}\
         <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"
    )
}

/// Text in CDATA was dropped, and text where elements belong: a lifecycle rule for `logs/` was one
/// for the whole bucket, and a list that names `photos/cat` deleted `photos/`. So was the text of
/// an element with a misspelt name: a block of public access blocked nothing.
#[test]
fn text_in_xml() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/photos/", &[], b"v").status(200);
    let block =
        |name: &str| format!("<PublicAccessBlockConfiguration><{name}>true</{name}></PublicAccessBlockConfiguration>");
    let delete = |object: &str| format!("<Delete><Object>{object}</Object></Delete>");
    let cors = |origin: &str| {
        format!(
            "<CORSConfiguration><CORSRule><AllowedOrigin>{origin}</AllowedOrigin>\
             <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>"
        )
    };
    for (method, target, xml) in [
        (
            "PUT",
            "/bucket?lifecycle",
            rule("<Filter><Prefix><![CDATA[a]]></Prefix></Filter>"),
        ),
        ("PUT", "/bucket?lifecycle", rule("<Filter>logs/</Filter>")),
        ("PUT", "/bucket?lifecycle", rule("<Filter><Prefx>a</Prefx></Filter>")),
        ("PUT", "/bucket?lifecycle", rule("logs/<Filter/>")),
        ("PUT", "/bucket?lifecycle", rule("<Filter>&#x6c;<Prefix/></Filter>")),
        ("PUT", "/bucket?lifecycle", format!("x{}", rule("<Filter/>"))),
        ("PUT", "/bucket?lifecycle", format!("{}x", rule("<Filter/>"))),
        ("PUT", "/bucket?lifecycle", format!("<!DOCTYPE a>{}", rule("<Filter/>"))),
        ("PUT", "/bucket?cors", cors("https://<![CDATA[app.]]>*")),
        ("PUT", "/bucket?publicAccessBlock", block("BlockPublicAcl")),
        ("POST", "/bucket?delete", delete("<Key>photos/<![CDATA[cat]]></Key>")),
        ("POST", "/bucket?delete", delete("<Key>photos/</Key><Versionid/>")),
        (
            "POST",
            "/bucket?delete",
            delete("<Key>photos/</Key><VersionId><![CDATA[1]]></VersionId>"),
        ),
    ] {
        for mode in [Mode::Whole, Mode::Chunks] {
            let answer = client.exchange(&client.sign(method, target, &[], xml.as_bytes(), mode));
            assert_eq!(code(&answer), (400, "MalformedXML".to_owned()), "{xml}");
        }
    }
    let acl = b"<AccessControlPolicy><Owner><ID>terrace</ID></Owner>x<AccessControlList/></AccessControlPolicy>";
    is(&client.send("PUT", "/bucket?acl", &[], acl), 400, "MalformedACLError");
    client.get("/bucket?lifecycle").status(404);
    client.get("/bucket?publicAccessBlock").status(404);
    client.get("/bucket/photos/").status(200);
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value><![CDATA[b]]></Value></Tag></TagSet></Tagging>";
    let form = client.form("bucket", &[("key", "form"), ("tagging", tags)], 0, 60);
    is(&form, 400, "MalformedXML");
}

/// A lifecycle configuration with this action.
fn acting(action: &str) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>x</ID><Status>Enabled</Status>\
         <Filter><Prefix>logs/</Prefix></Filter>{action}</Rule></LifecycleConfiguration>"
    )
}

/// One that deletes objects after so many days.
fn days(days: &str) -> String {
    acting(&format!("<Expiration><Days>{days}</Days></Expiration>"))
}

/// Settings with a number that is none, or with another value with something behind it; with where
/// they are put.
fn wrong_settings() -> Vec<(&'static str, String)> {
    let numbers = [
        "1O",
        "1 0",
        "1.5",
        "1\n",
        "1-",
        "1<!-- -->+5",
        "1&#48;",
        "-",
        "",
        "99999999999999999999",
    ];
    let actions = [
        "<Expiration><Date>2099-01-01T00:00:00ZZ</Date></Expiration>",
        "<Expiration><Date>2099-01-01</Date></Expiration>",
        "<Expiration><ExpiredObjectDeleteMarker>truely</ExpiredObjectDeleteMarker></Expiration>",
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7d</DaysAfterInitiation>\
         </AbortIncompleteMultipartUpload>",
        "<NoncurrentVersionExpiration><NoncurrentDays>3d</NoncurrentDays></NoncurrentVersionExpiration>",
        "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays>\
         <NewerNoncurrentVersions>2x</NewerNoncurrentVersions></NoncurrentVersionExpiration>",
    ];
    let locks = |time: &str| {
        format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
             <Mode>GOVERNANCE</Mode>{time}</DefaultRetention></Rule></ObjectLockConfiguration>"
        )
    };
    let cors = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>\
         <MaxAgeSeconds>9e9</MaxAgeSeconds></CORSRule></CORSConfiguration>";
    let filter = "<Filter><ObjectSizeGreaterThan>5MB</ObjectSizeGreaterThan></Filter>";
    let block = "<PublicAccessBlockConfiguration><BlockPublicAcls>true1</BlockPublicAcls>\
         </PublicAccessBlockConfiguration>";
    let rules = numbers.map(days).into_iter().chain(actions.map(acting));
    let mut wrong: Vec<_> = rules
        .chain([rule(filter)])
        .map(|xml| ("/bucket?lifecycle", xml))
        .collect();
    wrong.extend([
        ("/bucket?cors", cors.to_owned()),
        ("/bucket?publicAccessBlock", block.to_owned()),
        ("/locked?object-lock", locks("<Days>1O</Days>")),
        ("/locked?object-lock", locks("<Years>1y</Years>")),
    ]);
    wrong
}

/// A number was read up to its first letter: objects due after `1O` days, with the letter O, were
/// deleted after one. Dates and truths were read whole, and are still.
#[test]
fn numbers_in_xml() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/locked", &locked, b"").status(200);
    let upload = Upload::begin(client, "/bucket/k", &[]);
    let etag = upload.put(client, 1, b"v", Mode::Whole);
    let complete = upload.target();
    let parts = |number: &str| {
        format!(
            "<CompleteMultipartUpload><Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>\
             </CompleteMultipartUpload>"
        )
    };
    let delete = "<Delete><Object><Key>a</Key><Size>1k</Size></Object></Delete>";
    let put = |(target, xml)| ("PUT", target, xml);
    let mut wrong: Vec<(&str, &str, String)> = wrong_settings().into_iter().map(put).collect();
    wrong.push(("POST", "/bucket?delete", delete.to_owned()));
    wrong.push(("POST", &complete, parts("1st")));
    for (method, target, xml) in wrong {
        let answer = client.send(method, target, &[], xml.as_bytes());
        assert_eq!(code(&answer), (400, "MalformedXML".to_owned()), "{xml}");
    }
    let target = "/bucket?lifecycle";
    client.get(target).status(404);
    for number in ["10", "+10", "1<!-- x -->0"] {
        client.send("PUT", target, &[], days(number).as_bytes()).status(200);
        assert_eq!(elements(&client.get(target).status(200), "Days"), ["10"], "{number}");
    }
    let negative = client.send("PUT", target, &[], days("-1").as_bytes());
    is(&negative, 400, "InvalidArgument");
    client.send("POST", &complete, &[], parts("1").as_bytes()).status(200);
}

/// What splits a text without being one does not change it, and a policy is not XML.
#[test]
fn comments_in_xml() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    for xml in [
        rule("<Filter><Prefix>lo<!-- x -->g<?x y?>s&#47;</Prefix></Filter>"),
        format!(
            "\u{feff}<?xml version=\"1.0\"?>\n<!-- x -->\n{}\n",
            rule("\n <Filter><Prefix>logs/</Prefix></Filter>")
        ),
    ] {
        client.send("PUT", "/bucket?lifecycle", &[], xml.as_bytes()).status(200);
        let kept = client.get("/bucket?lifecycle").status(200);
        assert_eq!(elements(&kept, "Prefix"), ["logs/"], "{}", kept.text());
    }
    let policy = br#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/<"}}"#;
    client.send("PUT", "/bucket?policy", &[], policy).status(204);
}

/// A header without a value counted as absent: conditions, checksums, owners and locks were not
/// heeded.
#[test]
fn headers_without_a_value() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let put = || client.send("PUT", "/bucket/k", &[], b"old").status(200);
    put();
    let copied = ("x-amz-copy-source", "/bucket/k");
    let upload = Upload::begin(client, "/bucket/k", &[]);
    let tags = [upload.put(client, 1, b"new", Mode::Whole)];
    let part = upload.part(2);
    for (method, target, name) in [
        ("PUT", "/bucket/k", "if-match"),
        ("PUT", "/bucket/k", "if-none-match"),
        ("PUT", "/bucket/k", "x-amz-checksum-sha256"),
        ("PUT", "/bucket/k", "x-amz-object-lock-legal-hold"),
        ("PUT", "/bucket/k", "x-amz-object-lock-mode"),
        ("PUT", "/bucket/k", "x-amz-acl"),
        ("DELETE", "/bucket/k", "if-match"),
        ("DELETE", "/bucket/k", "x-amz-if-match-size"),
        ("DELETE", "/bucket/k", "x-amz-if-match-last-modified-time"),
        ("GET", "/bucket/k", "if-match"),
        ("GET", "/bucket/k", "if-none-match"),
    ] {
        is(&client.send(method, target, &[(name, "")], b""), 400, "InvalidArgument");
        is(
            &client.send(method, target, &[(name, " ")], b""),
            400,
            "InvalidArgument",
        );
    }
    is(
        &upload.complete(client, &[("if-match", "")], &tags),
        400,
        "InvalidArgument",
    );
    for (target, name) in [
        ("/bucket/copy", "if-none-match"),
        ("/bucket/copy", "x-amz-copy-source-if-match"),
        (part.as_str(), "x-amz-copy-source-range"),
    ] {
        let answer = client.send("PUT", target, &[copied, (name, "")], b"");
        assert_eq!(code(&answer), (400, "InvalidArgument".to_owned()), "{name}");
    }
    let owner = ("x-amz-source-expected-bucket-owner", "");
    is(
        &client.send("PUT", "/bucket/copy", &[copied, owner], b""),
        400,
        "InvalidBucketOwnerAWSAccountID",
    );
    assert_eq!(client.get("/bucket/k").status(200).text(), "old");
    // What may be empty: nothing is said by it.
    for name in ["x-amz-meta-a", "x-amz-tagging", "content-type", "cache-control"] {
        client.send("PUT", "/bucket/k", &[(name, "")], b"old").status(200);
    }
}

/// A policy that demands a header was satisfied by one without a value; and one that demands that
/// nothing is overwritten by `If-None-Match` with an entity tag, which S3 does not take.
#[test]
fn headers_that_policies_demand() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/k", b"old", Mode::Whole).status(200);
    let deny = |start: &str, key: &str| {
        format!(
            r#"{{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/{start}*",
            "Condition":{{"Null":{{"{key}":"true"}},"Bool":{{"s3:ObjectCreationOperation":"true"}}}}}}"#
        )
    };
    let statements = [
        deny("once", "s3:if-none-match"),
        deny("secret", "s3:x-amz-server-side-encryption-customer-algorithm"),
        deny("form", "s3:x-amz-grant-read"),
    ];
    let policy = format!(r#"{{"Version":"2012-10-17","Statement":[{}]}}"#, statements.join(","));
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    let put = |target: &str, name, value| client.send("PUT", target, &[(name, value)], b"new");
    put("/bucket/once", "if-none-match", "*").status(200);
    is(&put("/bucket/once", "if-none-match", "\"x\""), 501, "NotImplemented");
    is(&put("/bucket/once", "if-none-match", ""), 400, "InvalidArgument");
    let upload = Upload::begin(client, "/bucket/once", &[]);
    let tags = [upload.put(client, 1, b"new", Mode::Whole)];
    is(
        &upload.complete(client, &[("if-none-match", "\"x\"")], &tags),
        501,
        "NotImplemented",
    );
    let copy = [("x-amz-copy-source", "/bucket/k"), ("if-none-match", "\"x\"")];
    is(&client.send("PUT", "/bucket/once", &copy, b""), 501, "NotImplemented");
    let algorithm = "x-amz-server-side-encryption-customer-algorithm";
    is(&put("/bucket/secret", algorithm, ""), 400, "InvalidArgument");
    // Reading, a tag is what a cache has.
    let known = [("if-none-match", "\"x\"")];
    client.send("GET", "/bucket/k", &known, b"").status(200);
    for (field, status, expected) in [
        (("if-none-match", "\"x\""), 501, "NotImplemented"),
        (("if-none-match", ""), 400, "InvalidArgument"),
        (("if-none-match", "*"), 412, "PreconditionFailed"),
    ] {
        let answer = client.form("bucket", &[("key", "once"), field], 0, 60);
        is(&answer, status, expected);
    }
    let empty = client.form("bucket", &[("key", "form"), ("x-amz-grant-read", "")], 0, 60);
    is(&empty, 403, "AccessDenied");
    assert_eq!(client.get("/bucket/once").status(200).text(), "new");
    client.get("/bucket/secret").status(404);
}

/// A carriage return in a key was written as it is, and every reader of XML takes that for a line
/// feed: a client that deleted what was listed deleted another object.
#[test]
fn carriage_returns_in_keys() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.send("PUT", "/bucket/a%0Db", &[], b"v").status(200);
    let upload = Upload::begin(client, "/bucket/a%0Db", &[]);
    let list = b"<Delete><Object><Key>a&#13;b</Key></Object></Delete>";
    for (method, target, body) in [
        ("GET", "/bucket", &b""[..]),
        ("GET", "/bucket?list-type=2", b""),
        ("GET", "/bucket?versions", b""),
        ("GET", "/bucket?uploads", b""),
        ("GET", upload.target().as_str(), b""),
        ("POST", "/bucket?delete", list),
        ("GET", "/bucket/a%0Db", b""),
    ] {
        let answer = client.send(method, target, &[], body);
        assert!(!answer.text().contains('\r'), "{target}: {}", answer.text());
        assert_eq!(elements(&answer, "Key"), ["a&#13;b"], "{target}: {}", answer.text());
    }
}

/// A signed request for a range whose end is beyond 2^63 got the whole object: a last position
/// beyond the end means the end (RFC 9110, section 14.1.2).
#[test]
fn ranges_that_end_far_away() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let public = [("x-amz-acl", "public-read")];
    client.send("PUT", "/bucket/k", &public, b"0123456789").status(200);
    for (range, status, expected) in [
        ("5-9223372036854775807", 206, "bytes 5-9/10"),
        ("5-9223372036854775808", 206, "bytes 5-9/10"),
        ("5-18446744073709551615", 206, "bytes 5-9/10"),
        ("5-99999999999999999999", 206, "bytes 5-9/10"),
        ("-99999999999999999999", 206, "bytes 0-9/10"),
        ("9223372036854775808-", 416, "bytes */10"),
        ("99999999999999999999-", 416, "bytes */10"),
    ] {
        let value = format!("bytes={range}");
        let header = [("range", value.as_str())];
        let line = format!("Range: {value}\r\n");
        let url = client.presigned("GET", "/bucket/k");
        let signed = |client: &Client, method| client.send(method, "/bucket/k", &header, b"");
        for answer in [
            signed(client, "GET"),
            signed(client, "HEAD"),
            ask(client, "GET", "/bucket/k", &line, b""),
            ask(client, "HEAD", "/bucket/k", &line, b""),
            ask(client, "GET", &url, &line, b""),
        ] {
            assert_eq!(answer.status, status, "{range}: {}", answer.text());
            assert_eq!(answer.header("content-range"), Some(expected), "{range}");
        }
    }
}

/// Tags of a new bucket were refused as malformed XML. They are the bucket's, as by
/// PutBucketTagging, and what that refuses makes no bucket.
#[test]
fn tags_of_a_new_bucket() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let make = |name: &str, tags: &str, mode: Mode| {
        let xml = format!(
            "<CreateBucketConfiguration><LocationConstraint>us-east-1</LocationConstraint>\
             <Tags>{tags}</Tags></CreateBucketConfiguration>"
        );
        client.exchange(&client.sign("PUT", &format!("/{name}"), &[], xml.as_bytes(), mode))
    };
    let tag = |name: &str, value: &str| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>");
    let two = tag("team", "a&#43;b") + &tag("cost", "12");
    for (name, mode) in [("whole", Mode::Whole), ("chunks", Mode::Chunks)] {
        make(name, &two, mode).status(200);
        let kept = client.get(&format!("/{name}?tagging")).status(200);
        assert_eq!(elements(&kept, "Key"), ["team", "cost"]);
        assert_eq!(elements(&kept, "Value"), ["a+b", "12"]);
    }
    make("without", "", Mode::Whole).status(200);
    is(&client.get("/without?tagging"), 404, "NoSuchTagSet");
    // A bucket that exists keeps its tags.
    make("whole", &tag("other", "1"), Mode::Whole).status(200);
    assert_eq!(
        elements(&client.get("/whole?tagging").status(200), "Key"),
        ["team", "cost"]
    );
    let twice = tag("a", "1") + &tag("a", "2");
    let many: String = (0..51).map(|number| tag(&number.to_string(), "x")).collect();
    for (tags, expected) in [
        (twice.as_str(), "InvalidTag"),
        (&tag("aws:x", "1"), "InvalidTag"),
        (&tag("a", "!"), "InvalidTag"),
        (&many, "BadRequest"),
        ("<Tag><Key>a</Key><Worth>1</Worth></Tag>", "MalformedXML"),
        ("<Key>a</Key>", "MalformedXML"),
    ] {
        is(&make("wrong", tags, Mode::Whole), 400, expected);
        client.get("/wrong?tagging").status(404);
    }
    is(&client.get("/wrong?location"), 404, "NoSuchBucket");
}

/// Lines of metadata with the same name were refused, where S3 joins their values with commas, in
/// order. The signature covers them joined, so a line that is added is not covered.
#[test]
fn lines_of_metadata() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let lines = [
        ("x-amz-meta-seen", "paris"),
        ("x-amz-meta-other", "1"),
        ("X-Amz-Meta-Seen", "Aachen, twice"),
    ];
    let is_joined = |target: &str| {
        let got = client.get(target).status(200);
        assert_eq!(got.header("x-amz-meta-seen"), Some("paris,Aachen, twice"), "{target}");
    };
    client.send("PUT", "/bucket/k", &lines, b"v").status(200);
    is_joined("/bucket/k");
    let upload = Upload::begin(client, "/bucket/parts", &lines);
    let tags = [upload.put(client, 1, b"v", Mode::Whole)];
    upload.complete(client, &[], &tags).status(200);
    is_joined("/bucket/parts");
    let mut copy = vec![
        ("x-amz-copy-source", "/bucket/parts"),
        ("x-amz-metadata-directive", "REPLACE"),
    ];
    copy.extend(lines);
    client.send("PUT", "/bucket/copy", &copy, b"").status(200);
    is_joined("/bucket/copy");
    let mut added = client.sign("PUT", "/bucket/added", &lines, b"v", Mode::Whole);
    added.head = added
        .head
        .replacen("x-amz-meta-other", "x-amz-meta-seen: rome\r\nx-amz-meta-other", 1);
    is(&client.exchange(&added), 403, "SignatureDoesNotMatch");
    client.get("/bucket/added").status(404);
    let long = "x".repeat(700);
    let long = [("x-amz-meta-a", long.as_str()); 3];
    is(
        &client.send("PUT", "/bucket/long", &long, b"v"),
        400,
        "MetadataTooLarge",
    );
}
