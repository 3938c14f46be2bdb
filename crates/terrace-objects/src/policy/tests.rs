//! Tests of policies with the documentation's examples.
#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::{Value, json};

mod model;

const OWN: Caller<'_> = Caller {
    account: "owner",
    name: "anna",
};
const OTHER: Caller<'_> = Caller {
    account: "other",
    name: "bert",
};

fn policy(statements: Value) -> Policy {
    let text = json!({ "Version": "2012-10-17", "Statement": statements }).to_string();
    Policy::of_bucket(&text, "abc").unwrap()
}

fn judge(policy: &Policy, caller: Option<Caller<'_>>, action: &str, key: &str, context: &[(&str, &str)]) -> Verdict {
    let mut all = Context::default();
    context.iter().for_each(|(key, value)| all.add(key, *value));
    let resource = match key {
        "" => "arn:aws:s3:::abc".to_owned(),
        key => format!("arn:aws:s3:::abc/{key}"),
    };
    policy.judge(&Question {
        caller,
        action,
        resource: &resource,
        context: &all,
    })
}

/// A key's policy has the restrictions of a session's, and only conditions that can be evaluated.
#[test]
fn policies_of_keys() {
    let of_key =
        |statement: Value| Policy::of_key(&json!({ "Version": "2012-10-17", "Statement": statement }).to_string());
    let plain = json!({ "Effect": "Allow", "NotAction": "s3:Delete*", "NotResource": "arn:aws:s3:::kept*" });
    assert!(of_key(plain.clone()).is_ok());
    let with = |field: &str, value: Value| {
        let mut statement = plain.clone();
        statement[field] = value;
        of_key(statement).unwrap_err()
    };
    for field in ["Principal", "NotPrincipal"] {
        assert_eq!(
            with(field, json!("*")),
            "Policy document should not specify a principal."
        );
    }
    let asking = |key: &str| with("Condition", json!({ "StringEquals": { key: "a" } }));
    assert!(asking("s3:Anything").contains("invalid condition key"));
    for key in ["s3:TlsVersion", "s3:locationconstraint"] {
        assert!(asking(key).contains(&key.to_lowercase()), "{}", asking(key));
    }
    let long = |letters: usize| json!({ "Effect": "Allow", "Action": "s3:*", "Resource": format!("arn:aws:s3:::{}", "b".repeat(letters)) });
    assert!(of_key(long(6000)).is_ok() && of_key(long(6144)).unwrap_err().contains("6144"));
    let spaced = format!(
        "{}{}",
        " ".repeat(7000),
        r#"{"Statement":{"Effect":"Deny","Action":"*","Resource":"*"}}"#
    );
    assert!(Policy::of_key(&spaced).is_ok());
    assert_eq!(
        judge(&Policy::denying_all(), Some(OWN), "s3:GetObject", "k", &[]),
        Verdict::Denied
    );
}

#[test]
fn a_denial_decides() {
    let policy = policy(json!([
        { "Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": ["arn:aws:s3:::abc", "arn:aws:s3:::abc/*"] },
        { "Effect": "Deny", "NotPrincipal": { "AWS": ["arn:aws:iam::owner:user/anna", "owner"] }, "Action": "s3:PutObject",
          "Resource": "arn:aws:s3:::abc/kept/*" },
        { "Effect": "Deny", "Principal": { "AWS": "*" }, "NotAction": "s3:List*", "Resource": "*".replace('*', "arn:aws:s3:::abc*"),
          "Condition": { "Bool": { "aws:SecureTransport": false } } },
    ]));
    assert_eq!(judge(&policy, None, "s3:GetObject", "k", &[]), Verdict::Allowed);
    assert_eq!(judge(&policy, None, "s3:PutObject", "kept/k", &[]), Verdict::Denied);
    assert_eq!(
        judge(&policy, Some(OTHER), "s3:PutObject", "kept/k", &[]),
        Verdict::Denied
    );
    assert_eq!(
        judge(&policy, Some(OWN), "s3:PutObject", "kept/k", &[]),
        Verdict::Allowed
    );
    let plain = [("aws:securetransport", "false")];
    assert_eq!(judge(&policy, Some(OWN), "s3:GetObject", "k", &plain), Verdict::Denied);
    assert_eq!(judge(&policy, Some(OWN), "s3:ListBucket", "", &plain), Verdict::Allowed);
}

/// Before the object is open its tags are unknown: a request that may be allowed then is not
/// refused.
#[test]
fn unknown_values_refuse_no_request() {
    let on_tag = |effect: &str, operator: &str| {
        policy(
            json!([{ "Effect": effect, "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::abc/*",
            "Condition": { operator: { "s3:ExistingObjectTag/a": "b" }, "StringEquals": { "aws:username": "anna" } } }]),
        )
    };
    let at_best = |policy: &Policy, name: &str| {
        let mut context = Context::default();
        context.add("aws:username", name);
        let question = Question {
            caller: None,
            action: "s3:GetObject",
            resource: "arn:aws:s3:::abc/k",
            context: &context,
        };
        policy.judge_at_best(&question, &|key| actions::is_known_later("s3:GetObject", key))
    };
    for operator in ["StringLike", "StringNotEquals", "StringLikeIfExists"] {
        assert_eq!(
            at_best(&on_tag("Allow", operator), "anna"),
            Verdict::Allowed,
            "{operator}"
        );
        assert_eq!(
            at_best(&on_tag("Allow", operator), "bert"),
            Verdict::Silent,
            "{operator}"
        );
        assert_eq!(
            at_best(&on_tag("Deny", operator), "anna"),
            Verdict::Silent,
            "{operator}"
        );
    }
    assert!(!on_tag("Deny", "StringLike").has_idle_conditions());
    assert!(!actions::is_known_later("s3:PutObject", "s3:existingobjecttag/a"));
    assert!(actions::is_known_later(
        "s3:PutObjectTagging",
        "s3:requestobjecttagkeys"
    ));
}

#[test]
fn each_principal_has_a_variable_of_its_own() {
    let policy = policy(json!({
        "Effect": "Allow", "Principal": { "CanonicalUser": "other", "Service": "x.amazonaws.com" }, "Action": ["s3:GetObject", "s3:PutObject"],
        "Resource": "arn:aws:s3:::abc/${aws:username}/*", "Condition": { "StringEquals": { "s3:RequestObjectTag/Kind": "x" } } }));
    let context = [("aws:username", "bert"), ("S3:RequestObjectTag/Kind", "x")];
    assert_eq!(
        judge(&policy, Some(OTHER), "s3:PutObject", "bert/k", &context),
        Verdict::Allowed
    );
    assert_eq!(
        judge(&policy, Some(OTHER), "s3:PutObject", "anna/k", &context),
        Verdict::Silent
    );
    assert_eq!(
        judge(&policy, Some(OWN), "s3:PutObject", "bert/k", &context),
        Verdict::Silent
    );
    assert_eq!(
        judge(&policy, Some(OTHER), "s3:DeleteObject", "bert/k", &context),
        Verdict::Silent
    );
    let tag = [("aws:username", "bert"), ("s3:RequestObjectTag/kind", "x")];
    assert_eq!(
        judge(&policy, Some(OTHER), "s3:PutObject", "bert/k", &tag),
        Verdict::Silent
    );
    assert!(!policy.is_public());
}

/// Two conditions with one name must both hold.
#[test]
fn no_condition_is_forgotten() {
    let text = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::abc/*",
        "Condition":{"StringEquals":{"s3:prefix":"a","s3:prefix":"b"}}}}"#;
    let policy = Policy::of_bucket(text, "abc").unwrap();
    for value in ["a", "b"] {
        let context = [("s3:prefix", value)];
        assert_eq!(judge(&policy, None, "s3:GetObject", "k", &context), Verdict::Silent);
    }
}

#[test]
fn what_is_public() {
    let with = |principal: Value, condition: Value| {
        policy(json!({ "Effect": "Allow", "Principal": principal, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::abc/*",
            "Condition": condition }))
        .is_public()
    };
    assert!(with(json!("*"), json!({})));
    assert!(with(
        json!({ "AWS": ["owner", "*"] }),
        json!({ "Bool": { "aws:SecureTransport": "true" } })
    ));
    assert!(!with(json!({ "AWS": "owner" }), json!({})));
    assert!(!with(
        json!("*"),
        json!({ "IpAddress": { "aws:SourceIp": "10.0.0.0/8" } })
    ));
    assert!(with(
        json!("*"),
        json!({ "IpAddress": { "aws:SourceIp": ["10.0.0.0/8", "0.0.0.0/1"] } })
    ));
    assert!(with(
        json!("*"),
        json!({ "NotIpAddress": { "aws:SourceIp": "10.0.0.0/8" } })
    ));
    assert!(!with(
        json!("*"),
        json!({ "StringEquals": { "aws:SourceAccount": "1" } })
    ));
    assert!(with(json!("*"), json!({ "StringLike": { "aws:SourceAccount": "1*" } })));
    let denies =
        json!({ "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::abc/*" });
    assert!(!policy(denies).is_public());
}

#[test]
fn what_is_no_policy() {
    let base =
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::abc/*" });
    let wrong = |field: &str, value: Value| {
        let mut changed = base.clone();
        if value.is_null() {
            changed.as_object_mut().unwrap().remove(field);
        } else {
            changed[field] = value;
        }
        let text = json!({ "Version": "2012-10-17", "Statement": [changed] }).to_string();
        Policy::of_bucket(&text, "abc").unwrap_err()
    };
    assert_eq!(wrong("Effect", json!("allow")), "Invalid effect: allow");
    assert_eq!(wrong("Effect", Value::Null), "Missing required field Effect");
    assert_eq!(wrong("Principal", Value::Null), "Missing required field Principal");
    assert_eq!(wrong("Action", Value::Null), "Missing required field Action");
    assert_eq!(wrong("Resource", Value::Null), "Missing required field Resource");
    for principal in [
        json!("anna"),
        json!({ "AWS": [] }),
        json!({ "AWS": "arn:aws:iam::1:user/*" }),
        json!({ "AWS": "arn:aws:iam:::user/*" }),
        json!({ "AWS": "arn:aws:iam:::role/a" }),
        json!({ "AWS": "arn:aws:iam:::root" }),
        json!({ "Other": "x" }),
    ] {
        assert_eq!(wrong("Principal", principal), "Invalid principal in policy");
    }
    for action in [
        json!("s3:Get"),
        json!("ec2:*"),
        json!([]),
        json!(["s3:GetObject", "GetObject"]),
    ] {
        assert_eq!(wrong("Action", action), "Policy has invalid action");
    }
    for resource in [
        json!("arn:aws:s3:::other/*"),
        json!("abc/*"),
        json!([]),
        json!("arn:aws:s3:::abcd/*"),
    ] {
        assert_eq!(wrong("Resource", resource), "Policy has invalid resource");
    }
    let applies = "Action does not apply to any resource(s) in statement";
    assert_eq!(wrong("Resource", json!("arn:aws:s3:::abc")), applies);
    assert_eq!(wrong("Action", json!(["s3:GetObject", "s3:ListBucket"])), applies);
    assert_eq!(
        wrong("NotAction", json!("s3:PutObject")),
        "Statement must not have both Action and NotAction"
    );
    assert!(wrong("Condition", json!({ "Equals": { "aws:k": "x" } })).contains("Equals"));
    assert!(wrong("Extra", json!("x")).contains("not known"));
    for text in [
        "",
        "[]",
        "x",
        "{",
        "{}",
        "{\"Statement\":[]}",
        "{\"Statement\":1}",
        "{\"Version\":\"2013-10-17\",\"Statement\":[]}",
    ] {
        assert!(Policy::of_bucket(text, "abc").is_err(), "{text}");
    }
    let long = format!("{{\"Id\":\"{}\"}}", "x".repeat(20 << 10));
    assert!(Policy::of_bucket(&long, "abc").unwrap_err().contains("maximum"));
}
