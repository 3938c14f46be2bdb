//! Policies as the documentation shows them, and any policies against a model that is written the
//! plain way.
#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::{Value, json};

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

/// Before the object is open its tags are not known: what may be allowed then, and what may be
/// denied then, goes on.
#[test]
fn what_is_not_known_yet_refuses_nobody() {
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
fn everybody_has_a_place_of_his_own() {
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

/// Of two conditions with one name both must hold.
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

/// Numbers that look like chance, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn of<'v>(&mut self, values: &[&'v str]) -> &'v str {
        values[self.below(values.len())]
    }

    fn some(&mut self, values: &[&str]) -> Vec<String> {
        (0..=self.below(2)).map(|_| self.of(values).to_owned()).collect()
    }
}

const ACTIONS: [&str; 5] = [
    "s3:GetObject",
    "s3:GetObjectAcl",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:PutObjectAcl",
];
const ACTION_PATTERNS: [&str; 6] = [
    "s3:*",
    "*",
    "s3:Get*",
    "s3:?utObject",
    "S3:putobject*",
    "s3:DeleteObject",
];
const KEYS: [&str; 5] = ["a", "a/b", "a/b/c", "ab", "ü"];
const KEY_PATTERNS: [&str; 7] = ["*", "a", "a/*", "*b", "a?b", "*/*/*", "?"];
const OPERATORS: [&str; 10] = [
    "StringEquals",
    "StringNotEquals",
    "StringLike",
    "StringNotLike",
    "StringEqualsIfExists",
    "StringNotLikeIfExists",
    "ForAnyValue:StringLike",
    "ForAllValues:StringLike",
    "ForAnyValue:StringNotEquals",
    "ForAllValues:StringNotEquals",
];
const VALUES: [&str; 5] = ["x", "xy", "x*", "?", "*"];

/// Whether a text is what a pattern says, by trying everything.
fn glob(pattern: &[char], text: &[char]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some('*'), _) => glob(&pattern[1..], text) || (!text.is_empty() && glob(pattern, &text[1..])),
        (Some('?'), Some(_)) => glob(&pattern[1..], &text[1..]),
        (Some(wanted), Some(found)) if wanted == found => glob(&pattern[1..], &text[1..]),
        _ => false,
    }
}

fn is_like(pattern: &str, text: &str) -> bool {
    let letters = |text: &str| text.chars().collect::<Vec<_>>();
    glob(&letters(pattern), &letters(text))
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(list) => list.iter().map(|one| one.as_str().unwrap()).collect(),
        one => vec![one.as_str().unwrap()],
    }
}

/// What a statement in JSON says of a request, sentence by sentence.
fn model_means(statement: &Value, caller: &str, action: &str, key: &str, given: &[&str]) -> bool {
    let listed = |name: &str, fits: &dyn Fn(&str) -> bool| {
        let not = format!("Not{name}");
        match (statement.get(name), statement.get(&not)) {
            (Some(value), _) => texts(value).into_iter().any(fits),
            (_, Some(value)) => !texts(value).into_iter().any(fits),
            _ => panic!("{statement}"),
        }
    };
    let is_caller = |value: &Value| match value {
        Value::String(_) => true,
        value => texts(&value["AWS"]).contains(&caller),
    };
    let is_called = match (statement.get("Principal"), statement.get("NotPrincipal")) {
        (Some(value), _) => is_caller(value),
        (_, Some(value)) => !is_caller(value),
        _ => panic!("{statement}"),
    };
    let is_condition = |operator: &str, values: &[&str]| {
        let bare = operator.trim_end_matches("IfExists");
        let (set, plain) = bare.split_once(':').unwrap_or(("", bare));
        if given.is_empty() {
            return operator.ends_with("IfExists")
                || set == "ForAllValues"
                || (set.is_empty() && plain.contains("Not"));
        }
        let one = |given: &str| {
            let is_among = values.iter().any(|value| {
                if plain.contains("Like") {
                    is_like(value, given)
                } else {
                    *value == given
                }
            });
            is_among != plain.contains("Not")
        };
        let count = given.iter().filter(|given| one(given)).count();
        let needs_all = set == "ForAllValues" || (set.is_empty() && plain.contains("Not"));
        count == given.len() || (count > 0 && !needs_all)
    };
    let conditions = statement.get("Condition").and_then(Value::as_object);
    let holds = conditions
        .into_iter()
        .flatten()
        .all(|(operator, keys)| is_condition(operator, &texts(&keys["s3:prefix"])));
    is_called
        && listed("Action", &|pattern| {
            is_like(&pattern.to_lowercase(), &action.to_lowercase())
        })
        && listed("Resource", &|pattern| {
            is_like(pattern, &format!("arn:aws:s3:::abc/{key}"))
        })
        && holds
}

fn random_statement(chance: &mut Chance) -> Value {
    let mut statement = json!({ "Effect": chance.of(&["Allow", "Allow", "Deny"]) });
    let not = |chance: &mut Chance, name: &str| {
        if chance.below(4) == 0 {
            format!("Not{name}")
        } else {
            name.to_owned()
        }
    };
    let principal = match chance.below(3) {
        0 => json!("*"),
        _ => json!({ "AWS": chance.some(&["owner", "other", "third"]) }),
    };
    statement[not(chance, "Principal")] = principal;
    statement[not(chance, "Action")] = json!(chance.some(&ACTION_PATTERNS));
    let resources: Vec<_> = chance
        .some(&KEY_PATTERNS)
        .iter()
        .map(|key| format!("arn:aws:s3:::abc/{key}"))
        .collect();
    statement[not(chance, "Resource")] = json!(resources);
    for _ in 0..chance.below(3) {
        statement["Condition"][chance.of(&OPERATORS)] = json!({ "s3:prefix": chance.some(&VALUES) });
    }
    statement
}

/// Twenty thousand questions about random policies have the answers of the model.
#[test]
fn random_policies_as_the_model_has_it() {
    let mut chance = Chance(7);
    let mut seen = [0; 3];
    for _ in 0..2_000 {
        let statements: Vec<_> = (0..=chance.below(3)).map(|_| random_statement(&mut chance)).collect();
        let policy = policy(json!(statements));
        for _ in 0..10 {
            let caller = [None, Some(OWN), Some(OTHER)][chance.below(3)];
            let (action, key) = (chance.of(&ACTIONS), chance.of(&KEYS));
            let given: Vec<_> = (0..chance.below(3)).map(|_| chance.of(&VALUES)).collect();
            let context: Vec<_> = given.iter().map(|value| ("s3:prefix", *value)).collect();
            let account = caller.map_or("", |caller| caller.account);
            let means = |statement: &&Value| model_means(statement, account, action, key, &given);
            let meant: Vec<_> = statements.iter().filter(means).collect();
            let expected = if meant.iter().any(|statement| statement["Effect"] == "Deny") {
                Verdict::Denied
            } else if meant.is_empty() {
                Verdict::Silent
            } else {
                Verdict::Allowed
            };
            let found = judge(&policy, caller, action, key, &context);
            assert_eq!(found, expected, "{statements:?} {account} {action} {key} {given:?}");
            seen[expected as usize] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 1_000), "{seen:?}");
}
