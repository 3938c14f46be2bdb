//! Tests of master keys.
#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn keys_are_hex() {
    assert!(Secrets::with_key(&"0f".repeat(32)).is_ok());
    assert!(Secrets::with_key(&format!("{}\n", "0F".repeat(32))).is_ok());
    for text in ["", "password", &"0f".repeat(31), &"0g".repeat(32), &"+1".repeat(32)] {
        assert!(Secrets::with_key(text).is_err(), "{text}");
    }
    let many = vec!["0f".repeat(32); KEYS_MAX + 1];
    assert!(Secrets::with_key(&many.join("\n")).is_err());
    assert!(Secrets::with_key(&many[1..].join("\n")).is_ok());
}

/// Regression: a server without the store's master key started, and then failed each read.
#[test]
fn a_store_knows_its_master_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(terrace::Options::new(dir.path())).unwrap();
    let keys = |digits: &[&str]| {
        let lines: Vec<_> = digits.iter().map(|digits| digits.repeat(32)).collect();
        Secrets::with_key(&lines.join("\n")).unwrap()
    };
    Secrets::default().register(&store).unwrap();
    let old = keys(&["0f"]);
    old.register(&store).unwrap();
    old.register(&store).unwrap();
    let refused = Secrets::default().register(&store).unwrap_err().to_string();
    assert!(refused.contains("no master key is given"), "{refused}");
    assert!(refused.contains(&old.ids()[0].to_string()), "{refused}");
    let refused = keys(&["0e"]).register(&store).unwrap_err().to_string();
    assert!(refused.contains("another key is given"), "{refused}");
    let both = keys(&["0e", "0f"]);
    both.register(&store).unwrap();
    assert!(old.register(&store).is_err(), "the new one may have been used");
    both.forget_former(&store).unwrap();
    keys(&["0e"]).register(&store).unwrap();
    let sealed = old.seal("TRCEA", "secret").unwrap().unwrap();
    assert_eq!(both.open("TRCEA", &sealed).unwrap(), "secret");
    let anew = both.sealed_anew("TRCEA", &sealed).unwrap().unwrap();
    assert_eq!(keys(&["0e"]).open("TRCEA", &anew).unwrap(), "secret");
    assert_eq!(both.sealed_anew("TRCEA", &anew).unwrap(), None);
    old.replace(&both);
    assert_eq!(old.ids(), both.ids());
}

#[test]
fn a_store_draws_its_own_master_key_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(terrace::Options::new(dir.path())).unwrap();
    let record = || store.get(keyspace::OWN_MASTER_KEY).unwrap();
    let (one, other) = (Secrets::default(), Secrets::default());
    one.load_own(&store).unwrap();
    assert!(!one.has_key() && record().is_none());
    one.draw_own(&store).unwrap();
    other.draw_own(&store).unwrap();
    one.draw_own(&store).unwrap();
    assert_eq!(one.ids(), other.ids());
    assert_eq!(one.ids().len(), 1);
    assert!(one.has_key() && !one.is_given());
    // It protects no secrets, and the server can start without it.
    assert_eq!(one.seal("TRCEA", "secret").unwrap(), None);
    one.register(&store).unwrap();
    Secrets::default().check(&store).unwrap();

    let given = Secrets::with_key(&"0f".repeat(32)).unwrap();
    given.register(&store).unwrap();
    given.keep_own(&store).unwrap();
    assert_eq!(given.ids()[1..], one.ids(), "it only opens what is there");
    let stored = String::from_utf8(record().unwrap().to_vec()).unwrap();
    assert!(stored.contains(SEALED) && !stored.contains("\"key\""), "{stored}");
    let again = Secrets::with_key(&"0f".repeat(32)).unwrap();
    again.load_own(&store).unwrap();
    assert_eq!(again.ids(), given.ids());
    // Without the key that encrypts it, what needs neither key can still be read.
    for lacking in [Secrets::default(), Secrets::with_key(&"0e".repeat(32)).unwrap()] {
        let known = lacking.ids();
        lacking.load_own(&store).unwrap();
        assert_eq!(lacking.ids(), known);
    }
    one.replace(&Secrets::with_key(&"0e".repeat(32)).unwrap());
    assert_eq!(one.ids()[1..], other.ids());
}

/// The stored text: a later server must decrypt it.
#[test]
fn golden() {
    let secrets = Secrets::with_key(&"0f".repeat(32)).unwrap();
    let sealed = secrets.seal_with([7; NONCE_LEN], "TRCEA", "secret").unwrap().unwrap();
    assert_eq!(sealed, "BwcHBwcHBwcHBwcH8i3TODFHPIdu1UP0jU3V3mbMxc7hdw");
    assert_eq!(secrets.open("TRCEA", &sealed).unwrap(), "secret");
    let refused = |secrets: &Secrets, id: &str, sealed: &str| secrets.open(id, sealed).unwrap_err().to_string();
    assert!(refused(&secrets, "TRCEB", &sealed).contains("another key"));
    let other = Secrets::with_key(&"0e".repeat(32)).unwrap();
    assert!(refused(&other, "TRCEA", &sealed).contains("another key"));
    assert!(refused(&secrets, "TRCEA", "AAAA").contains("another key"));
    assert!(refused(&Secrets::default(), "TRCEA", &sealed).contains("--secrets-key-file"));
    assert!(Secrets::default().seal("TRCEA", "secret").unwrap().is_none());
    assert_ne!(
        secrets.seal("TRCEA", "secret").unwrap(),
        secrets.seal("TRCEA", "secret").unwrap()
    );
}
