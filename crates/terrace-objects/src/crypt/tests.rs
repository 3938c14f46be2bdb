//! Tests of stored data keys.
#![allow(clippy::unwrap_used)]
use super::*;

fn secrets(digits: &[&str]) -> Secrets {
    let lines: Vec<_> = digits.iter().map(|digits| digits.repeat(32)).collect();
    Secrets::with_key(&lines.join("\n")).unwrap()
}

fn wrapped(secrets: &Secrets) -> SealedKey {
    let held = secrets.current();
    let (id, key) = held.wrapping().unwrap();
    SealedKey::wrap_with(
        [7; NONCE_LEN],
        key,
        Wrapper::Master(id),
        b"b/k",
        &DataKey::of_bytes([9; 32], false),
    )
    .unwrap()
}

/// The stored bytes: a later server must unwrap them.
#[test]
fn golden() {
    let secrets = secrets(&["0f"]);
    let sealed = wrapped(&secrets);
    let bytes = sealed.encode();
    assert_eq!(crate::text::hex(&bytes), GOLDEN);
    assert!(SealedKey::decode(&bytes).unwrap() == sealed);
    let opened = sealed
        .unwrap_by_master(sealed.master().unwrap(), &secrets, b"b/k")
        .unwrap();
    assert_eq!(opened.bytes, [9; 32]);
    for at in 0..bytes.len() {
        assert!(SealedKey::decode(&bytes[..at]).is_none());
    }
    for (at, value) in [(0, 2), (1, 4), (1, 2), (2, 1), (3, 1)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert!(SealedKey::decode(&wrong).is_none(), "byte {at}");
    }
}

// Computed with Python's `cryptography` from the format in the module's description.
const GOLDEN: &str = "010100000cfd17a06a5ae0ec0707070707070707070707079dc31ef167b101fb316feb532964be88\
                      a824b4d3e00668aafbc96e2e2d0ee02295d8687694ef30cb55131302cbc2b6c9";

/// The same for a KMS key, with its encryption context.
#[test]
fn golden_of_a_key_of_the_store() {
    let (id, cipher) = crate::secrets::wrapping_of(&[0x0f; 32]).unwrap();
    let name = bound(b"b/k", "photos", "eyJhIjoiYiJ9");
    let data_key = DataKey::of_bytes([9; 32], true);
    let sealed = SealedKey::wrap_with([7; NONCE_LEN], &cipher, Wrapper::Kms(id), &name, &data_key).unwrap();
    let bytes = sealed.encode();
    assert_eq!(crate::text::hex(&bytes), GOLDEN_KMS);
    let read = SealedKey::decode(&bytes).unwrap();
    assert!(read == sealed && read.encryption() == Encryption::Kms && read.master().is_none());
    assert!(
        read.anew(&secrets(&["0e"]), &Attributes::new(), b"b/k")
            .unwrap()
            .is_none(),
        "no master key wraps it"
    );
    assert_eq!(read.unwrap_with(&cipher, &name).unwrap().bytes, [9; 32]);
    for (object, key, context) in [
        ("b/l", "photos", "eyJhIjoiYiJ9"),
        ("b/k", "photo", "eyJhIjoiYiJ9"),
        ("b/k", "photos", "eyJhIjoiYyJ9"),
        ("b/k", "photos", ""),
    ] {
        let other = bound(object.as_bytes(), key, context);
        assert!(read.unwrap_with(&cipher, &other).is_none(), "{object} {key} {context}");
    }
    assert!(read.unwrap_with(&cipher, b"b/k").is_none());
}

// Computed with Python's `cryptography` from the format in the module's description.
const GOLDEN_KMS: &str = "010300000cfd17a06a5ae0ec0707070707070707070707079dc31ef167b101fb316feb532964be88\
                          a824b4d3e00668aafbc96e2e2d0ee022bb03b685901a1e8e0fc0c13e779f9687";

#[test]
fn a_key_opens_its_own_object_only() {
    let old = secrets(&["0f"]);
    let sealed = wrapped(&old);
    let id = sealed.master().unwrap();
    assert!(sealed.unwrap_by_master(id, &old, b"b/other").is_err());
    assert!(sealed.unwrap_by_master(id, &secrets(&["0e"]), b"b/k").is_err());
    for at in 12..SEALED_KEY_BYTES {
        let mut bytes = sealed.encode();
        bytes[at] ^= 1;
        let wrong = SealedKey::decode(&bytes).unwrap();
        assert!(wrong.unwrap_by_master(id, &old, b"b/k").is_err(), "byte {at}");
    }
    let both = secrets(&["0e", "0f"]);
    let again = |sealed: &SealedKey, keys| sealed.anew(keys, &Attributes::new(), b"b/k").unwrap();
    let anew = again(&sealed, &both).unwrap();
    assert!(again(&anew, &both).is_none() && again(&sealed, &old).is_none());
    let opened = anew
        .unwrap_by_master(anew.master().unwrap(), &secrets(&["0e"]), b"b/k")
        .unwrap();
    assert_eq!(opened.bytes, [9; 32]);
}

#[test]
fn only_keys_of_clients_hide_the_md5() {
    let of_md5 = Tag::of_md5([5; 16]);
    assert_eq!(DataKey::of_bytes([9; 32], false).tag(of_md5), of_md5);
    let hidden = DataKey::of_bytes([9; 32], true).tag(of_md5);
    assert_ne!(hidden, of_md5);
    assert_eq!(DataKey::of_bytes([9; 32], true).tag(of_md5), hidden);
    assert_ne!(DataKey::of_bytes([8; 32], true).tag(of_md5), hidden);
    let random = Tag::random();
    assert_eq!(DataKey::of_bytes([9; 32], true).tag(random), random);
}
