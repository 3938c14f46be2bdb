//! Tests of access keys: making, reading, storing, limits.
#![allow(clippy::unwrap_used)]
use super::*;
use terrace::Options;

fn new(grants: &[&str]) -> NewKey {
    let grants: Vec<_> = grants.iter().map(|grant| grant.parse().unwrap()).collect();
    NewKey::of_default(&grants)
}

fn generate(grants: &[&str]) -> (String, AccessKey) {
    AccessKey::generate(&new(grants), &Clock::default())
}

/// The stored record, byte for byte, and one from before accounts existed.
#[test]
fn golden() {
    let new = NewKey {
        account: "press".to_owned(),
        expires_ms: Some(9),
        ..new(&["mine/a/=read"])
    };
    let (_, key) = AccessKey::generate(&new, &Clock::default());
    let key = AccessKey {
        secret: "s".to_owned(),
        created_ms: 7,
        ..key
    };
    let json = |key: &AccessKey| {
        let stored = Stored::of("TRCEA", key, &Secrets::default()).unwrap();
        serde_json::to_string(&stored).unwrap()
    };
    let golden = r#"{"secret":"s","created_ms":7,"grants":{"mine/a/":"read"},"account":"press","expires_ms":9}"#;
    assert_eq!(json(&key), golden);
    let mut with_policy = key.clone();
    with_policy.set_policy("TRCEA", Some("{}"));
    let golden = r#"{"secret":"s","created_ms":7,"grants":{},"account":"press","expires_ms":9,"policy":"{}"}"#;
    assert_eq!(json(&with_policy), golden);
    let old = r#"{"secret":"plain","created_ms":7,"grants":{"*":"admin"}}"#;
    let found: Stored = serde_json::from_str(old).unwrap();
    let opened = found.open("TRCEOLD", &Secrets::default()).unwrap();
    assert_eq!(
        (&*opened.account, opened.is_good(&Clock::default())),
        (account::DEFAULT, true)
    );
    assert_eq!(json(&opened), old);
}

const POLICY: &str = r#"{"Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::mine/*"}}"#;

/// A key has levels or a policy; the last setting applies, in the server and in the store.
#[test]
fn policies_take_the_place_of_levels() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let with = |policy: &str| NewKey {
        policy: Some(policy.to_owned()),
        ..new(&[])
    };
    let keys = Keys::load(&opened, Secrets::default()).unwrap();
    let (id, made) = keys.create(&opened, &with(POLICY)).unwrap();
    assert_eq!(made.policy.unwrap().text, POLICY);
    let (other, _) = keys.create(&opened, &new(&["mine=admin", "mine/in/=read"])).unwrap();
    let policy = |keys: &Keys, id: &str| keys.standing(id, "mine", None).unwrap().policy.is_some();
    assert!(policy(&keys, &id) && !policy(&keys, &other) && keys.sees(&id, "any"));
    let changed = keys.set_policy(&opened, &other, Some(POLICY)).unwrap().unwrap();
    assert!(changed.grants.is_empty() && policy(&keys, &other) && !keys.is_limited(&other, "mine"));
    keys.set_policy(&opened, &id, None).unwrap();
    let unknown = keys.set_policy(&opened, "TRCENOBODY", Some(POLICY)).unwrap();
    assert!(unknown.is_none() && !keys.sees(&id, "mine"));
    let loaded = Keys::load(&opened, Secrets::default()).unwrap();
    assert_eq!(loaded.all(), keys.all());
    assert!(
        set_policy(&opened, &id, Some(POLICY))
            .unwrap()
            .unwrap()
            .policy
            .is_some()
    );
    assert!(set_policy(&opened, "TRCENOBODY", None).unwrap().is_none());
    assert!(policy(&Keys::load(&opened, Secrets::default()).unwrap(), &id));

    let twice = NewKey {
        policy: Some(POLICY.to_owned()),
        ..new(&["*=read"])
    };
    for wrong in [&twice, &with("{}"), &with("none")] {
        assert!(matches!(keys.create(&opened, wrong), Err(Error::Invalid { .. })));
        assert!(matches!(
            create(&opened, wrong, &Secrets::default()),
            Err(Error::Invalid { .. })
        ));
    }
    assert!(keys.set_policy(&opened, &id, Some("{}")).is_err() && set_policy(&opened, &id, Some("{}")).is_err());
}

/// A stored policy that cannot be parsed denies its key everything; the server starts.
#[test]
fn a_policy_that_cannot_be_read_denies() {
    use crate::policy::{Context, Question, Verdict};
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let record = br#"{"secret":"s","created_ms":7,"grants":{},"policy":"{\"Statement\":damaged"}"#;
    opened.put(keyspace::access_key("TRCEA"), &record[..]).unwrap();
    let keys = Keys::load(&opened, Secrets::default()).unwrap();
    let question = Question {
        caller: None,
        action: "s3:GetObject",
        resource: "arn:aws:s3:::mine/k",
        context: &Context::default(),
    };
    assert_eq!(keys.policy("TRCEA").unwrap().judge(&question), Verdict::Denied);
    keys.set_policy(&opened, "TRCEA", Some(POLICY)).unwrap();
    assert_eq!(keys.policy("TRCEA").unwrap().judge(&question), Verdict::Allowed);
}

/// The session key is generated once, stored, and encrypted if there is a master key.
#[test]
fn sessions_outlive_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let keys = Keys::load(&opened, Secrets::default()).unwrap();
    let (id, key) = keys.create(&opened, &new(&["mine=read"])).unwrap();
    assert!(opened.get(keyspace::SESSION_KEY).unwrap().is_none());
    let bounds = Bounds {
        expires_ms: u64::MAX,
        policy: None,
        tags: Vec::new(),
    };
    let made = keys.assume(&opened, &id, &bounds).unwrap().unwrap();
    let record = || String::from_utf8(opened.get(keyspace::SESSION_KEY).unwrap().unwrap().to_vec()).unwrap();
    assert!(record().starts_with(r#"{"key":""#) && record().trim_end().len() == 64 + 10);
    let known = |keys: &Keys| {
        assert_eq!(keys.secret(&made.id).as_deref(), Some(made.secret.as_str()));
        assert!(made.secret != key.secret && keys.session(&made.id, &made.token).is_ok());
        let standing = keys.standing(&made.id, "mine", None).unwrap();
        assert_eq!(
            (standing.level, &*standing.account),
            (Some(Level::Read), account::DEFAULT)
        );
    };
    known(&keys);
    known(&Keys::load(&opened, Secrets::default()).unwrap());
    let sealed = || Secrets::with_key(&"0f".repeat(32)).unwrap();
    known(&Keys::load(&opened, sealed()).unwrap());
    assert!(record().starts_with(r#"{"key_aes_256_gcm":""#));
    let keys = Keys::load(&opened, sealed()).unwrap();
    known(&keys);
    assert!(Keys::load(&opened, Secrets::default()).is_err());
    // A session ends when its key is removed.
    keys.remove(&opened, &id).unwrap();
    assert!(keys.secret(&made.id).is_none() && keys.standing(&made.id, "mine", None).is_none());
}

#[test]
fn prefixes_and_expiry_limit_keys() {
    let (_, key) = generate(&["mine=read", "mine/in/=write", "mine2/=admin"]);
    let level = |key: &AccessKey, place| key.level("mine", place);
    assert_eq!(level(&key, None), Some(Level::Read));
    assert_eq!(level(&key, Some("in/a")), Some(Level::Write));
    assert_eq!(level(&key, Some("in")), Some(Level::Read));
    assert_eq!(level(&key, Some("")), Some(Level::Read));
    let (_, limited) = generate(&["mine/in/=write"]);
    assert_eq!((level(&limited, None), level(&limited, Some("x"))), (None, None));
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let keys = Keys::load(&opened, Secrets::default()).unwrap();
    let (id, _) = keys.create(&opened, &new(&["mine/in/=write"])).unwrap();
    assert!(keys.is_limited(&id, "mine") && keys.sees(&id, "mine"));
    assert!(!keys.is_limited(&id, "other") && !keys.sees(&id, "other"));
    let ended = NewKey {
        expires_ms: Some(Clock::default().now_ms()),
        ..new(&["*=admin"])
    };
    let (id, _) = keys.create(&opened, &ended).unwrap();
    assert!(keys.secret(&id).is_none() && keys.standing(&id, "mine", None).is_none());
}

#[test]
fn grants_are_read() {
    let grant: Grant = "photos=write".parse().unwrap();
    assert_eq!((grant.bucket.as_str(), grant.level), ("photos", Level::Write));
    assert_eq!("*=admin".parse::<Grant>().unwrap().bucket, ALL_BUCKETS);
    let grant: Grant = "photos/a=b/=read".parse().unwrap();
    assert_eq!((grant.bucket.as_str(), grant.level), ("photos/a=b/", Level::Read));
    for text in [
        "",
        "photos",
        "photos=",
        "photos=all",
        "=read",
        "A_b=read",
        "**=read",
        "*/a=read",
        "/a=read",
    ] {
        assert!(text.parse::<Grant>().is_err(), "{text}");
    }
}

#[test]
fn the_higher_level_counts() {
    let (_, key) = generate(&["*=read", "mine=admin"]);
    assert_eq!(key.level("mine", None), Some(Level::Admin));
    assert_eq!(key.level("other", None), Some(Level::Read));
    let (_, key) = generate(&["mine=write"]);
    assert_eq!(
        (key.level("mine", None), key.level("other", None)),
        (Some(Level::Write), None)
    );
}

#[test]
fn keys_are_kept_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let (id, key) = generate(&["*=admin"]);
    assert_eq!(id.len(), 20);
    assert!(!format!("{key:?}").contains(&key.secret));
    let none = Secrets::default();
    store(&opened, &id, &key, &none).unwrap();
    let loaded = |secrets| Keys::load(&opened, secrets).map(|keys| keys.all());
    assert_eq!(loaded(Secrets::default()).unwrap(), BTreeMap::from([(id.clone(), key)]));
    assert!(remove(&opened, &id).unwrap());
    assert!(!remove(&opened, &id).unwrap());
    assert!(stored(&opened).unwrap().is_empty());
    let keys = Keys::load(&opened, none).unwrap();
    let (id, key) = keys.create(&opened, &new(&["mine=read"])).unwrap();
    assert_eq!(keys.secret(&id), Some(key.secret.clone()));
    let level = |bucket| keys.standing(&id, bucket, None).unwrap().level;
    assert_eq!((level("mine"), level("other")), (Some(Level::Read), None));
    assert_eq!(loaded(Secrets::default()).unwrap(), BTreeMap::from([(id.clone(), key)]));
    assert!(keys.remove(&opened, &id).unwrap() && !keys.remove(&opened, &id).unwrap());
    assert!(keys.secret(&id).is_none() && stored(&opened).unwrap().is_empty());
}

/// Regression: secrets were stored unencrypted.
#[test]
fn secrets_are_encrypted_where_there_is_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(Options::new(dir.path())).unwrap();
    let secrets = |digits: &str| Secrets::with_key(&digits.repeat(32)).unwrap();
    let record = br#"{"secret":"plain","created_ms":7,"grants":{"*":"admin"}}"#;
    opened.put(keyspace::access_key("TRCEOLD"), &record[..]).unwrap();
    let keys = Keys::load(&opened, secrets("0f")).unwrap();
    let (new, made) = keys.create(&opened, &new(&["mine=read"])).unwrap();
    for (id, found) in stored(&opened).unwrap() {
        assert!(found.secret.is_none() && found.secret_aes_256_gcm.is_some(), "{id}");
    }
    let keys = Keys::load(&opened, secrets("0f")).unwrap();
    assert_eq!(keys.secret("TRCEOLD").as_deref(), Some("plain"));
    assert_eq!(keys.secret(&new), Some(made.secret));
    let refused = |secrets| Keys::load(&opened, secrets).unwrap_err().to_string();
    assert!(refused(secrets("0e")).contains("another key"));
    assert!(refused(Secrets::default()).contains("TERRACE_SECRETS_KEY"));
}
