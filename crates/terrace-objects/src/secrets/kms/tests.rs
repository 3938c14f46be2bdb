//! Tests of KMS keys: permission to use them, and their changes.
#![allow(clippy::unwrap_used)]
use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(terrace::Options::new(dir.path())).unwrap();
    (dir, store)
}

fn caller(account: &str, id: &str) -> Caller {
    Caller::Key {
        account: Arc::from(account),
        id: id.to_owned(),
    }
}

fn key(digits: &str) -> Secrets {
    Secrets::with_key(&digits.repeat(32)).unwrap()
}

fn stored(store: &Store, name: &str) -> String {
    String::from_utf8(store.get(place(name)).unwrap().unwrap().to_vec()).unwrap()
}

#[test]
fn names() {
    for (text, name) in [
        ("k", "k"),
        ("alias/k", "k"),
        ("aws/s3", "aws/s3"),
        ("alias/aws/s3", "aws/s3"),
        ("arn:aws:kms:us-east-1:123456789012:key/k", "k"),
        ("arn:aws:kms:eu-west-1:1:alias/a/b", "a/b"),
        ("arn:aws:kms", ""),
    ] {
        assert_eq!(name_of(text), name, "{text}");
    }
    assert_eq!(name_of(&arn("a/b")), "a/b");
    for wrong in ["", "a b", "a\0", "ü", &"a".repeat(NAME_BYTES_MAX + 1)] {
        assert!(!is_name(wrong), "{wrong}");
    }
}

#[test]
fn a_key_is_for_its_principals() {
    let (_dir, store) = store();
    let (keys, secrets) = (KmsKeys::default(), Secrets::default());
    let make = |name, principals: &[&str]| {
        let principals = principals.iter().map(|name| (*name).to_owned()).collect();
        keys.change(&store, &secrets, name, Change::Create(principals))
    };
    make("all", &[]).unwrap();
    make("some", &["press", "TRCE7"]).unwrap();
    assert!(make("all", &[]).is_err() && make("a b", &[]).is_err());
    let may = |name: &str, caller: &Caller| keys.wrapping(name, caller).map(drop);
    for caller in [caller("other", "TRCE1"), Caller::Server] {
        assert!(may("all", &caller).is_ok());
    }
    assert!(matches!(
        may("all", &Caller::Anonymous),
        Err(ObjectError::KmsNeedsVersion4)
    ));
    for (caller, is_theirs) in [
        (caller("press", "TRCE1"), true),
        (caller("other", "TRCE7"), true),
        (caller("TRCE7", "TRCE1"), true),
        (caller("other", "TRCE1"), false),
        (Caller::Server, true),
    ] {
        let refused = may("some", &caller).err();
        assert_eq!(refused.is_none(), is_theirs, "{caller:?}");
        assert!(refused.is_none_or(|refused| matches!(refused, ObjectError::KmsDenied(_))));
    }
    assert!(matches!(may("none", &Caller::Server), Err(ObjectError::KmsNotFound(_))));
    let id = keys.wrapping("all", &Caller::Server).unwrap().latest().unwrap().0;
    assert!(
        keys.change(&store, &secrets, "all", Change::Disable)
            .unwrap()
            .is_disabled
    );
    assert!(matches!(may("all", &Caller::Server), Err(ObjectError::KmsDisabled(_))));
    assert!(keys.unwrapping("all", id, &Caller::Server).is_err());
    keys.change(&store, &secrets, "all", Change::Enable).unwrap();
    assert!(keys.change(&store, &secrets, "none", Change::Rotate).is_err());
    keys.have_default(&store, &secrets).unwrap();
    keys.have_default(&store, &secrets).unwrap();
    assert_eq!(
        keys.all().iter().map(|key| key.name.as_str()).collect::<Vec<_>>(),
        ["all", DEFAULT, "some"]
    );
}

/// A former version unwraps data keys that it wrapped, also after a restart.
#[test]
fn rotation_loses_nothing() {
    let (_dir, store) = store();
    let (keys, secrets) = (KmsKeys::default(), Secrets::default());
    keys.change(&store, &secrets, "k", Change::Create(Vec::new())).unwrap();
    let old = keys.wrapping("k", &Caller::Server).unwrap().latest().unwrap().0;
    assert_eq!(keys.change(&store, &secrets, "k", Change::Rotate).unwrap().versions, 2);
    let new = keys.wrapping("k", &Caller::Server).unwrap().latest().unwrap().0;
    assert_ne!(old, new);
    let again = KmsKeys::default();
    again.load(&store, &secrets).unwrap();
    assert_eq!(again.wrapping("k", &Caller::Server).unwrap().latest().unwrap().0, new);
    assert!(again.unwrapping("k", old, &Caller::Server).is_ok());
    assert!(again.unwrapping("k", KeyId([0; 8]), &Caller::Server).is_err());
    assert_eq!(again.all(), keys.all());
}

#[test]
fn the_master_key_encrypts_them() {
    let (_dir, store) = store();
    let (keys, none) = (KmsKeys::default(), Secrets::default());
    keys.change(&store, &none, "k", Change::Create(Vec::new())).unwrap();
    let id = keys.wrapping("k", &Caller::Server).unwrap().latest().unwrap().0;
    assert!(stored(&store, "k").contains("\"key\""), "nothing could encrypt it");
    let old = key("0f");
    assert_eq!(seal_anew(&store, &old, false).unwrap(), 0);
    assert!(stored(&store, "k").contains("\"key\""));
    assert_eq!(seal_anew(&store, &old, true).unwrap(), 1);
    assert_eq!(seal_anew(&store, &old, true).unwrap(), 0);
    let sealed = stored(&store, "k");
    assert!(
        !sealed.contains("\"key\"") && sealed.contains("key_aes_256_gcm"),
        "{sealed}"
    );
    // A rotation of the master key.
    assert!(
        seal_anew(&store, &key("0e"), true).is_err(),
        "the former one is missing"
    );
    let both = Secrets::with_key(&format!("{}\n{}", "0e".repeat(32), "0f".repeat(32))).unwrap();
    assert_eq!(seal_anew(&store, &both, true).unwrap(), 1);
    assert_ne!(stored(&store, "k"), sealed);
    let opened = KmsKeys::default();
    opened.load(&store, &key("0e")).unwrap();
    assert!(opened.unwrapping("k", id, &Caller::Server).is_ok());
    // Without the master key it exists and unwraps nothing.
    opened.load(&store, &none).unwrap();
    assert!(matches!(
        opened.wrapping("k", &Caller::Server),
        Err(ObjectError::MasterKeyMissing)
    ));
}

/// Data keys wrapped by a key are committed before the key changes; later commits use the new
/// version.
#[test]
fn a_change_of_a_key_waits_for_commits() {
    let (_dir, store) = store();
    let (keys, secrets) = (KmsKeys::default(), Secrets::default());
    keys.change(&store, &secrets, "k", Change::Create(Vec::new())).unwrap();
    let chosen = keys.wrapping("k", &Caller::Server).unwrap();
    let (before, _) = chosen.latest().unwrap();
    let held = chosen.hold();
    std::thread::scope(|scope| {
        let rotated = scope.spawn(|| keys.change(&store, &secrets, "k", Change::Rotate).unwrap());
        // The new version is stored, and the change waits.
        while !stored(&store, "k").contains("},{") {
            std::thread::yield_now();
        }
        assert!(!rotated.is_finished());
        assert_eq!(chosen.latest().unwrap().0, before);
        drop(held);
        assert_eq!(rotated.join().unwrap().versions, 2);
    });
    assert_ne!(chosen.latest().unwrap().0, before);
    assert!(
        keys.change(&store, &secrets, "k", Change::Delete).is_err(),
        "it is in use"
    );
    keys.change(&store, &secrets, "k", Change::Disable).unwrap();
    assert!(matches!(chosen.latest(), Err(ObjectError::KmsDisabled(_))));
    keys.change(&store, &secrets, "k", Change::Delete).unwrap();
    assert!(matches!(chosen.latest(), Err(ObjectError::KmsNotFound(_))));
    assert!(keys.all().is_empty() && store.get(place("k")).unwrap().is_none());
}

/// The stored record: a later server must read it.
#[test]
fn golden() {
    let (_dir, store) = store();
    let json = format!(
        r#"{{"created_ms":5,"disabled":true,"principals":["press"],"versions":[{{"key":"{}"}},{{"key":"{}"}}]}}"#,
        "0a".repeat(32),
        "0b".repeat(32)
    );
    store.put("\0s3/kms-key/k", json.clone()).unwrap();
    let (keys, secrets) = (KmsKeys::default(), Secrets::default());
    keys.load(&store, &secrets).unwrap();
    let summary = Summary {
        name: "k".to_owned(),
        created_ms: 5,
        is_disabled: true,
        principals: vec!["press".to_owned()],
        versions: 2,
    };
    assert_eq!(keys.all(), [summary]);
    keys.change(&store, &secrets, "k", Change::Disable).unwrap();
    assert_eq!(stored(&store, "k"), json);
    // IDs are made as for master keys: the first bytes of HMAC-SHA256(key, "terrace master key
    // id").
    keys.change(&store, &secrets, "k", Change::Enable).unwrap();
    assert_eq!(
        keys.wrapping("k", &Caller::Server)
            .unwrap()
            .latest()
            .unwrap()
            .0
            .to_string(),
        GOLDEN_ID
    );
}

// Computed with Python's `hmac`.
const GOLDEN_ID: &str = "50659a22d2d488e9";
