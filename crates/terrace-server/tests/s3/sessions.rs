//! Temporary credentials: what AssumeRole gives out, and what can be done with it.

use crate::{
    Service, anonymous, code,
    common::{Answer, Place},
    elements, key_policies,
    sign::{Client, Mode, raw},
};

/// Credentials that end.
pub struct Session {
    pub client: Client,
    pub token: String,
}

impl Session {
    pub fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let token = ("x-amz-security-token", self.token.as_str());
        self.client.send(method, target, &[headers, &[token]].concat(), body)
    }

    pub fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], b"")
    }
}

fn call(client: &Client, service: &'static str, fields: &[(&str, &str)]) -> Answer {
    let encoded = fields.iter().map(|(name, value)| {
        let value: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("{name}={value}")
    });
    let body = encoded.collect::<Vec<_>>().join("&");
    let kind = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
    client.exchange(&client.sign_for(service, "POST", "/", &kind, body.as_bytes(), Mode::Whole))
}

/// What a key may do, or what the policy allows of it.
pub fn session(client: &Client, policy: Option<&str>) -> Session {
    let mut fields = vec![
        ("Action", "AssumeRole"),
        ("Version", "2011-06-15"),
        ("RoleArn", "arn:aws:iam::terrace:role/any"),
        ("RoleSessionName", "a.session"),
        ("DurationSeconds", "900"),
    ];
    fields.extend(policy.map(|policy| ("Policy", policy)));
    let answer = call(client, "sts", &fields).status(200);
    let text = |name| elements(&answer, name).remove(0);
    assert!(text("Arn").ends_with("/a.session") && text("Expiration").ends_with('Z'));
    given(client, &answer)
}

/// The session that a call gave out.
fn given(client: &Client, answer: &Answer) -> Session {
    let text = |name| elements(answer, name).remove(0);
    Session {
        client: Client {
            address: client.address.clone(),
            id: text("AccessKeyId"),
            secret: text("SecretAccessKey"),
            clock: client.clock.clone(),
        },
        token: text("SessionToken"),
    }
}

#[track_caller]
fn is(answer: &Answer, status: u16, expected: &str) {
    assert_eq!(code(answer), (status, expected.to_owned()), "{}", answer.text());
}

#[track_caller]
fn denied(answer: &Answer) {
    is(answer, 403, "AccessDenied");
}

fn filled(place: &Place) -> Service {
    let service = Service::start(place, &[]);
    let own = &service.client;
    own.send("PUT", "/mine", &[], b"").status(200);
    for key in ["in/k", "out/k"] {
        own.send("PUT", &format!("/mine/{key}"), &[("x-amz-acl", "public-read")], b"v")
            .status(200);
    }
    service
}

/// A session has what its key has while that is there, and is nothing without its own token.
#[test]
fn sessions_stand_for_their_key() {
    let place = Place::new();
    let service = filled(&place);
    let own = service.client.clone();
    let (one, other) = (session(&own, None), session(&own, None));
    assert!(one.client.secret != own.secret && one.client.secret != other.client.secret);
    one.send("PUT", "/mine/in/new", &[], b"new").status(200);
    one.send("PUT", "/second", &[], b"").status(200);
    assert_eq!(elements(&one.get("/").status(200), "Name"), ["mine", "second"]);
    let presigned = |token: &str| {
        let target = format!("/mine/in/new?X-Amz-Security-Token={token}");
        let target = one.client.presigned("GET", &target);
        let address = &own.address;
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        raw(address, request.as_bytes())
    };
    assert_eq!(presigned(&one.token).status(200).text(), "new");
    is(&presigned(&other.token), 400, "InvalidToken");
    is(&one.client.get("/mine/in/k"), 400, "InvalidToken");
    let mixed = Session {
        client: one.client.clone(),
        token: other.token.clone(),
    };
    is(&mixed.get("/mine/in/k"), 400, "InvalidToken");
    let with_key = Session {
        client: own.clone(),
        token: one.token.clone(),
    };
    is(&with_key.get("/mine/in/k"), 400, "InvalidToken");
    is(&one.client.form("mine", &[("key", "form")], 0, 60), 400, "InvalidToken");
    let made_up = Session {
        client: Client {
            secret: own.secret.clone(),
            ..one.client.clone()
        },
        token: one.token.clone(),
    };
    is(&made_up.get("/mine/in/k"), 403, "SignatureDoesNotMatch");

    let service = service.restart(&place);
    let again = Session {
        client: Client {
            address: service.client.address.clone(),
            ..one.client.clone()
        },
        token: one.token.clone(),
    };
    again.get("/mine/in/k").status(200);
    place.run(&["key", "remove", &own.id]).code(0);
    is(&again.get("/mine/in/k"), 403, "InvalidAccessKeyId");
}

/// A policy bounds a session, whatever its key may do, and whatever is public.
#[test]
fn policies_bound_sessions() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Action":["s3:GetObject","s3:PutObject","s3:DeleteObject"],"Resource":"arn:aws:s3:::mine/in/*"},
        {"Effect":"Deny","Action":"s3:PutObject","Resource":"arn:aws:s3:::mine/in/kept/*"}]}"#;
    let bound = session(own, Some(policy));
    bound.get("/mine/in/k").status(200);
    bound.send("PUT", "/mine/in/new", &[], b"v").status(200);
    bound
        .send("PUT", "/mine/in/copy", &[("x-amz-copy-source", "/mine/in/k")], b"")
        .status(200);
    for target in [
        "/mine/out/k",
        "/mine",
        "/",
        "/mine?acl",
        "/mine?policy",
        "/mine/in/k?acl",
        "/mine/in/k?versionId=null",
    ] {
        denied(&bound.get(target));
    }
    denied(&bound.send("PUT", "/mine/out/new", &[], b"v"));
    denied(&bound.send("PUT", "/mine/in/kept/k", &[], b"v"));
    denied(&bound.send("PUT", "/mine/in/copy", &[("x-amz-copy-source", "/mine/out/k")], b""));
    denied(&bound.send("PUT", "/other", &[], b""));
    denied(&bound.send("DELETE", "/mine", &[], b""));
    for header in [
        ("x-amz-acl", "public-read"),
        ("x-amz-acl", "private"),
        ("x-amz-grant-read", "id=terrace"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-object-lock-legal-hold", "ON"),
    ] {
        denied(&bound.send("PUT", "/mine/in/new", &[header], b"v"));
    }
    let list = b"<Delete><Object><Key>in/new</Key></Object><Object><Key>out/k</Key></Object></Delete>";
    let deleted = bound.send("POST", "/mine?delete", &[], list).status(200);
    assert_eq!(elements(&deleted, "Code"), ["AccessDenied"]);
    own.get("/mine/in/new").status(404);
    let all = r#"{"Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
    let free = session(own, Some(all));
    assert_eq!(elements(&free.get("/").status(200), "Name"), ["mine"]);
    free.send("PUT", "/mine/out/k", &[("x-amz-acl", "private")], b"v")
        .status(200);
    free.send("PUT", "/other", &[], b"").status(200);
    free.get("/mine?prefix=in%2F").status(200);
}

/// Forms could not be signed by sessions. A form of one is judged as a PUT is: by its token, by
/// the session's policy, and by what that says of the fields that do more.
#[test]
fn forms_of_sessions() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let (one, other) = (session(own, None), session(own, None));
    let token = |session: &Session| session.token.clone();
    let form = |client: &Client, token: &str, fields: &[(&str, &str)]| {
        let all = [fields, &[("x-amz-security-token", token)]].concat();
        client.form("mine", &all, 0, 600)
    };
    form(&one.client, &token(&one), &[("key", "in/form")]).status(204);
    assert_eq!(own.get("/mine/in/form").status(200).body, b"file");
    is(&form(&one.client, &token(&other), &[("key", "x")]), 400, "InvalidToken");
    is(&form(own, &token(&one), &[("key", "x")]), 400, "InvalidToken");
    is(&one.client.form("mine", &[("key", "x")], 0, 600), 400, "InvalidToken");
    let in_head = format!("x-amz-security-token: {}\r\n", one.token);
    is(
        &one.client.form_with_head(&in_head, "mine", &[("key", "x")], 0, 600),
        400,
        "InvalidToken",
    );
    let forged = Client {
        secret: own.secret.clone(),
        ..one.client.clone()
    };
    is(
        &form(&forged, &token(&one), &[("key", "x")]),
        403,
        "SignatureDoesNotMatch",
    );
    own.get("/mine/x").status(404);

    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::mine/in/*"},
        {"Effect":"Allow","Action":"s3:PutObjectTagging","Resource":"arn:aws:s3:::mine/in/*"},
        {"Effect":"Deny","Action":"s3:PutObject","Resource":"arn:aws:s3:::mine/in/kept/*"}]}"#;
    let bound = session(own, Some(policy));
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    let post = |fields: &[(&str, &str)]| form(&bound.client, &token(&bound), fields);
    post(&[("key", "in/${filename}")]).status(204);
    own.get("/mine/in/f").status(200);
    post(&[("key", "in/tagged"), ("tagging", tags)]).status(204);
    denied(&post(&[("key", "out/k")]));
    denied(&post(&[("key", "in/kept/k")]));
    for more in [
        ("acl", "public-read"),
        ("acl", "private"),
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=terrace"),
    ] {
        denied(&post(&[("key", "in/more"), more]));
    }
    own.get("/mine/in/more").status(404);
    let all = r#"{"Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
    let free = session(own, Some(all));
    form(
        &free.client,
        &token(&free),
        &[("key", "in/open"), ("acl", "public-read")],
    )
    .status(204);
    assert_eq!(anonymous(&own.address, "GET", "/mine/in/open", ""), 200);
}

/// A call is refused as STS does it.
#[track_caller]
fn refused(answer: &Answer, status: u16, expected: &str) {
    is(answer, status, expected);
    let text = answer.text();
    let start = "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error>";
    assert!(text.starts_with(start), "{text}");
    let number = answer.header("x-amz-request-id").unwrap();
    assert_eq!(elements(answer, "RequestId"), [number]);
    assert_eq!(elements(answer, "Type"), ["Sender"]);
    assert_eq!(answer.header("content-type"), Some("text/xml"));
}

/// What is wrong with the signature of a call was told in the XML of S3, which no client of STS
/// reads.
#[test]
fn signatures_of_calls_that_are_wrong() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let action = ("Action", "AssumeRole");
    refused(&call(own, "s3", &[action]), 403, "SignatureDoesNotMatch");
    let forged = Client {
        secret: "wrong".to_owned(),
        ..own.clone()
    };
    refused(&call(&forged, "sts", &[action]), 403, "SignatureDoesNotMatch");
    let unknown = Client {
        id: "TRCENOBODY".to_owned(),
        ..own.clone()
    };
    refused(&call(&unknown, "sts", &[action]), 403, "InvalidClientTokenId");
    let unsigned = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 17\r\n\
         Connection: close\r\n\r\nAction=AssumeRole",
        own.address
    );
    refused(
        &raw(&own.address, unsigned.as_bytes()),
        403,
        "MissingAuthenticationToken",
    );
    let one = session(own, None);
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let kinds = [kind, ("x-amz-security-token", "other")];
    let call = one
        .client
        .sign_for("sts", "POST", "/", &kinds, b"Action=GetCallerIdentity", Mode::Whole);
    refused(&one.client.exchange(&call), 403, "InvalidClientTokenId");
}

#[test]
fn calls_that_are_refused() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let action = ("Action", "AssumeRole");
    let list = own.sign_for("sts", "GET", "/", &[], b"", Mode::Whole);
    is(&own.exchange(&list), 400, "AuthorizationHeaderMalformed");
    let object = own.sign_for("sts", "POST", "/mine/in/k?uploads=", &[], b"", Mode::Whole);
    is(&own.exchange(&object), 400, "AuthorizationHeaderMalformed");
    let principal = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"*"}}"#;
    let unknown = r#"{"Statement":{"Effect":"Allow","Action":"s3:Everything","Resource":"*"}}"#;
    let key = r#"{"Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*","Condition":{"Bool":{"s3:Any":true}}}}"#;
    let long = format!("{principal}{}", " ".repeat(2048));
    for (name, value, expected) in [
        ("DurationSeconds", "899", "ValidationError"),
        ("DurationSeconds", "43201", "ValidationError"),
        ("DurationSeconds", "soon", "ValidationError"),
        ("RoleSessionName", "a<b", "ValidationError"),
        ("Policy", principal, "MalformedPolicyDocument"),
        ("Policy", unknown, "MalformedPolicyDocument"),
        ("Policy", key, "MalformedPolicyDocument"),
        ("Policy", "none", "MalformedPolicyDocument"),
        ("Policy", &long, "PackedPolicyTooLarge"),
        ("Tags.member.1.Key", "", "ValidationError"),
        ("Tags.member.1.Key", "a!", "ValidationError"),
        ("Action", "<Nothing>", "InvalidAction"),
    ] {
        let fields: Vec<_> = [action]
            .into_iter()
            .filter(|_| name != "Action")
            .chain([(name, value)])
            .collect();
        refused(&call(own, "sts", &fields), 400, expected);
    }
    let identity = call(own, "sts", &[("Action", "GetCallerIdentity")]).status(200);
    assert_eq!(
        elements(&identity, "Arn"),
        [format!("arn:aws:iam::terrace:user/{}", own.id)]
    );
    // An ID that is not stored belongs to no session.
    let id = format!("TRCS{}{}", &own.id[4..], "A".repeat(16));
    let unknown = Session {
        client: Client { id, ..own.clone() },
        token: "x".to_owned(),
    };
    is(&unknown.get("/mine/in/k"), 403, "InvalidAccessKeyId");
    let one = session(own, None);
    let token = ("x-amz-security-token", one.token.as_str());
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let call = one
        .client
        .sign_for("sts", "POST", "/", &[kind, token], b"Action=AssumeRole", Mode::Whole);
    refused(&one.client.exchange(&call), 403, "AccessDenied");
    is(&unknown.get("/mine/in/k"), 403, "SignatureDoesNotMatch");
}

/// They were taken and forgotten, so a policy that denies something to a tag denied nothing.
#[test]
fn policies_ask_for_tags_of_sessions() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let with = |tags: &[(&str, &str)]| {
        let fields = [("Action", "AssumeRole"), ("RoleSessionName", "tagged")];
        let answer = call(own, "sts", &[&fields[..], tags].concat());
        (answer.status == 200).then(|| given(own, &answer))
    };
    let team = ("Tags.member.1.Key", "Team");
    let red = with(&[
        team,
        ("Tags.member.1.Value", "red"),
        ("Tags.member.2.Key", "in"),
        ("Tags.member.2.Value", "in"),
    ]);
    let blue = with(&[team, ("Tags.member.1.Value", "blue")]);
    let (red, blue, none) = (red.unwrap(), blue.unwrap(), session(own, None));
    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*",
         "Condition":{"StringEquals":{"aws:PrincipalTag/team":"blue"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","NotResource":"arn:aws:s3:::mine/${aws:PrincipalTag/in}/*",
         "Condition":{"Null":{"aws:PrincipalTag/in":"false"}}}]}"#;
    own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
    denied(&blue.get("/mine/in/k"));
    for session in [&red, &none] {
        session.get("/mine/in/k").status(200);
    }
    red.send("PUT", "/mine/in/new", &[], b"").status(200);
    denied(&red.send("PUT", "/mine/out/new", &[], b""));
    none.send("PUT", "/mine/out/new", &[], b"").status(200);
    let twice = with(&[team, ("Tags.member.2.Key", "team")]);
    assert!(twice.is_none(), "no tag is there twice, in whatever letters");
    let long = "v".repeat(250);
    let names: Vec<_> = (1..10)
        .map(|number| {
            [
                format!("Tags.member.{number}.Key"),
                format!("Tags.member.{number}.Value"),
            ]
        })
        .collect();
    let keys: Vec<_> = (1..10).map(|number| format!("k{number}")).collect();
    let fields = names.iter().zip(&keys);
    let many: Vec<_> = fields
        .flat_map(|([name, value], key)| [(name.as_str(), key.as_str()), (value, &long)])
        .collect();
    let fields = [&[("Action", "AssumeRole")], &many[..]].concat();
    refused(&call(own, "sts", &fields), 400, "PackedPolicyTooLarge");
}

/// Clients that ask for a token without a role got InvalidAction.
#[test]
fn a_token_without_a_role() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let action = ("Action", "GetSessionToken");
    let made = call(own, "sts", &[action, ("DurationSeconds", "129600")]).status(200);
    assert!(
        made.text().contains("<GetSessionTokenResult><Credentials>"),
        "{}",
        made.text()
    );
    let text = |name| elements(&made, name).remove(0);
    let session = Session {
        client: Client {
            address: own.address.clone(),
            id: text("AccessKeyId"),
            secret: text("SecretAccessKey"),
            clock: own.clock.clone(),
        },
        token: text("SessionToken"),
    };
    session.get("/mine/in/k").status(200);
    session.send("PUT", "/mine/in/new", &[], b"v").status(200);
    for seconds in ["899", "129601", "x"] {
        let refused = call(own, "sts", &[action, ("DurationSeconds", seconds)]);
        assert_eq!(refused.status, 400, "{seconds}");
    }
    let token = ("x-amz-security-token", session.token.as_str());
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let again = [kind, token];
    let again = session
        .client
        .sign_for("sts", "POST", "/", &again, b"Action=GetSessionToken", Mode::Whole);
    assert_eq!(session.client.exchange(&again).status, 403);
}

/// A query that one of its readers could not decode was an empty one to it: a session read versions
/// that its policy does not let it read, since the policy was asked of the current object.
#[test]
fn what_a_policy_is_asked_is_what_is_done() {
    let place = Place::new();
    let service = filled(&place);
    let policy = r#"{"Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*"}}"#;
    let bound = session(&service.client, Some(policy));
    bound.get("/mine/in/k").status(200);
    denied(&bound.get("/mine/in/k?versionId=null"));
    let token = [("x-amz-security-token", bound.token.as_str())];
    let target = "/mine/in/k?versionId=null&x=%25zz";
    let mut signed = bound.client.sign("GET", target, &token, b"", Mode::Whole);
    // It means the same, and the signature is right.
    signed.head = signed.head.replace("%25zz", "%zz");
    denied(&bound.client.exchange(&signed));
}

/// Regression: a session that may only configure the logging of one bucket could have the log
/// written into any bucket of its key's account, and made public: the session's permissions in the
/// target were not checked.
#[test]
fn logs_go_where_a_session_may_write() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    own.send("PUT", "/other", &[], b"").status(200);
    let logged = |target: &str, more: &str| {
        format!(
            "<BucketLoggingStatus><LoggingEnabled><TargetBucket>{target}</TargetBucket><TargetPrefix>x</TargetPrefix>{more}\
             </LoggingEnabled></BucketLoggingStatus>"
        )
    };
    let only = r#"{"Statement":{"Effect":"Allow","Action":"s3:PutBucketLogging","Resource":"arn:aws:s3:::mine"}}"#;
    let bound = session(own, Some(only));
    let put = |session: &Session, xml: &str| session.send("PUT", "/mine?logging", &[], xml.as_bytes());
    is(&put(&bound, &logged("other", "")), 400, "InvalidTargetBucketForLogging");
    let open = "<TargetGrants><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"Group\">\
        <URI>http://acs.amazonaws.com/groups/global/AllUsers</URI></Grantee><Permission>READ</Permission></Grant></TargetGrants>";
    denied(&put(&bound, &logged("mine", open)));
    put(&session(own, None), &logged("other", open)).status(200);
    // The target's policy permits logs of every caller.
    let policy =
        br#"{"Statement":{"Effect":"Allow","Principal":{"Service":"logging.s3.amazonaws.com"},"Action":"s3:PutObject",
        "Resource":"arn:aws:s3:::other/*"}}"#;
    own.send("PUT", "/other?policy", &[], policy).status(204);
    put(&bound, &logged("other", "")).status(200);
}

/// A client that chooses tags chooses what policies permit it.
#[test]
fn tags_are_for_keys_that_may_everything() {
    let place = Place::new();
    let service = filled(&place);
    let own = &service.client;
    let policy = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Principal":"*","Action":"s3:PutObject",
        "Resource":"arn:aws:s3:::mine/*","Condition":{"StringEquals":{"aws:PrincipalTag/team":"red"}}}}"#;
    own.send("PUT", "/mine?policy", &[], policy.as_bytes()).status(204);
    let fields = [("Action", "AssumeRole"), ("RoleSessionName", "tagged")];
    let tag = [("Tags.member.1.Key", "team"), ("Tags.member.1.Value", "red")];
    let made = |grants: &[&str]| {
        let args = [&["key", "create", "--json"], grants].concat();
        own.with_key(&place.run(&args).code(0).json())
    };
    let read = r#"{"Effect":"Allow","Action":"s3:*","Resource":"*"}"#;
    for limited in [
        made(&["--allow", "mine=read"]),
        made(&["--allow", "mine=admin"]),
        made(&["--allow", "*=write"]),
        key_policies::key_with(&place, &service, "terrace", read),
    ] {
        refused(
            &call(&limited, "sts", &[&fields[..], &tag].concat()),
            403,
            "AccessDenied",
        );
        assert_eq!(call(&limited, "sts", &fields).status, 200, "without tags");
    }
    assert_eq!(call(own, "sts", &[&fields[..], &tag].concat()).status, 200);
}
