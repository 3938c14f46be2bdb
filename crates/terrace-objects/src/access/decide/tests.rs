//! Tests of all decisions against a table written by hand.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    access_key::{AccessKey, Level, NewKey},
    bucket::PublicAccessBlock,
    policy::Policy,
    secrets::Secrets,
};
use terrace::{Attributes, Clock, HomeKind, ObjectInfo, Options, Store, Version};

const ACTIONS: [Action; 5] = [
    Action::Read,
    Action::List,
    Action::Inspect,
    Action::Write,
    Action::Configure,
];
/// The other actions: read a version, list more, read and change the lists of object and bucket.
const MORE_ACTIONS: [(Action, char); 6] = [
    (Action::ReadVersion, 'v'),
    (Action::ListMore, 'm'),
    (Action::ReadAcl, 'a'),
    (Action::WriteAcl, 'c'),
    (Action::ReadBucketAcl, 'A'),
    (Action::WriteBucketAcl, 'C'),
];

fn facts(is_of_s3: bool, is_public: bool) -> Facts {
    let mut attributes = Attributes::new();
    if is_of_s3 {
        crate::record::stamp(&mut attributes, "e", 1);
    }
    Facts::of(&ObjectInfo {
        expires_at: None,
        version: Version(1),
        length: 1,
        checksum: 1,
        home: HomeKind::Inline,
        attributes: crate::record::with_list(&attributes, if is_public { "public-read" } else { "" }),
    })
}

fn bucket(record: Record) -> Arc<Bucket> {
    Arc::new(Bucket::apart("abc".to_owned(), record))
}

/// The allowed ones of [`ACTIONS`], as a letter each, or `-`.
fn allowed(principal: &Principal, subject: Subject<'_>, record: &Record) -> String {
    let bucket = bucket(record.clone());
    let letter = |(action, letter)| match Claim::new(principal.clone(), action, &bucket).decide(subject) {
        Ok(permit) => {
            assert!(Arc::ptr_eq(permit.bucket(), &bucket));
            assert_eq!(permit.to_write().is_ok(), "WC".contains(letter), "{action:?}");
            letter
        }
        Err(Denied::Missing) => '4',
        Err(Denied::Forbidden | Denied::Unknown) => '-',
    };
    ACTIONS.into_iter().zip("RLIWC".chars()).map(letter).collect()
}

fn keys(dir: &tempfile::TempDir) -> (Arc<Keys>, Vec<Principal>) {
    let store = Store::open(Options::new(dir.path())).unwrap();
    let made: Vec<_> = ["other=admin", "abc=read", "abc=write", "abc=admin", "*=admin"]
        .iter()
        .map(|grant| {
            let (id, key) = AccessKey::generate(&NewKey::of_default(&[grant.parse().unwrap()]), &Clock::default());
            crate::access_key::store(&store, &id, &key, &Secrets::default()).unwrap();
            id
        })
        .collect();
    let keys = Arc::new(Keys::load(&store, Secrets::default()).unwrap());
    let principals = made.iter().map(|id| Principal::Key {
        id: Arc::from(id.as_str()),
        keys: Arc::clone(&keys),
    });
    let principals = principals.collect();
    (keys, principals)
}

/// The allowed ones of all actions, as letters.
fn all_allowed(principal: &Principal, subject: Subject<'_>, record: &Record) -> String {
    let bucket = bucket(record.clone());
    let letters = ACTIONS.into_iter().zip("RLIWX".chars()).chain(MORE_ACTIONS);
    let is_allowed =
        |(action, _): &(Action, char)| Claim::new(principal.clone(), *action, &bucket).decide(subject).is_ok();
    letters.filter(is_allowed).map(|(_, letter)| letter).collect()
}

/// An object with this list, and of this account if not the bucket's.
fn object(list: &str, account: Option<&str>) -> Facts {
    let mut facts = facts(true, false);
    facts.attributes = crate::record::with_list(&facts.attributes, list);
    facts.attributes = crate::record::of_account(&facts.attributes, account);
    facts
}

/// The bucket's account is `terrace`, the keys' is `press`.
#[test]
fn what_another_account_may() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let keys = Arc::new(Keys::load(&store, Secrets::default()).unwrap());
    let principal = |grant: &str| {
        let new = NewKey {
            account: "press".to_owned(),
            ..NewKey::of_default(&[grant.parse().unwrap()])
        };
        Principal::Key {
            id: Arc::from(keys.create(&store, &new).unwrap().0),
            keys: Arc::clone(&keys),
        }
    };
    let (admin, reader, stranger) = (principal("*=admin"), principal("abc=read"), principal("other=admin"));
    let record = |list: &str, ignore| {
        let mut record = Record::default();
        record.set_list(list.to_owned());
        record.public_access_block = Some(PublicAccessBlock {
            ignore_lists: ignore,
            ..PublicAccessBlock::default()
        });
        record
    };
    for (list, to_admin, to_reader, to_stranger, to_all) in [
        ("", "", "", "", ""),
        ("public-read", "Lm", "Lm", "L", "L"),
        ("press=READ", "Lm", "Lm", "", ""),
        ("press=WRITE", "W", "", "", ""),
        ("press=READ_ACP @authenticated=WRITE_ACP", "AC", "", "", ""),
        ("@all=WRITE", "W", "W", "W", "W"),
        ("press=FULL_CONTROL", "LWmAC", "Lm", "", ""),
        ("-", "", "", "", ""),
    ] {
        let record = record(list, false);
        for (principal, expected) in [(&admin, to_admin), (&reader, to_reader), (&stranger, to_stranger)] {
            assert_eq!(all_allowed(principal, Subject::Bucket, &record), expected, "{list}");
        }
        assert_eq!(
            all_allowed(&Principal::Anonymous, Subject::Bucket, &record),
            to_all,
            "{list}"
        );
    }
    what_lists_of_objects_allow(&admin, &reader);
    let public = object("public-read", None);
    assert_eq!(all_allowed(&admin, Subject::Version(&public), &record("", true)), "");
    let named = object("press=READ @all=READ_ACP", None);
    assert_eq!(
        all_allowed(&admin, Subject::Version(&named), &record("press=READ", true)),
        "RLvm"
    );
}

fn what_lists_of_objects_allow(admin: &Principal, reader: &Principal) {
    let closed = Record::default();
    for (list, account, to_admin, to_reader, to_all) in [
        ("", None, "", "", ""),
        ("public-read", None, "Rv", "Rv", "R"),
        ("press=READ", None, "Rv", "Rv", ""),
        ("press=WRITE", None, "", "", ""),
        ("press=READ_ACP press=WRITE_ACP", None, "ac", "a", ""),
        ("@authenticated=READ", None, "Rv", "Rv", ""),
        // Its own object in another account's bucket.
        ("", Some("press"), "Rvac", "Rva", ""),
        ("-", Some("press"), "Rvac", "Rva", ""),
        ("", Some("other"), "", "", ""),
    ] {
        let facts = object(list, account);
        let version = Subject::Version(&facts);
        for (principal, expected) in [(admin, to_admin), (reader, to_reader), (&Principal::Anonymous, to_all)] {
            assert_eq!(all_allowed(principal, version, &closed), expected, "{list} {account:?}");
        }
        let enforced = Record {
            ownership: Some("BucketOwnerEnforced".to_owned()),
            ..Record::default()
        };
        assert_eq!(
            all_allowed(admin, version, &enforced),
            "",
            "no lists, and all is the bucket owner's"
        );
    }
}

/// Objects of other accounts belong to them: the bucket's owner may only delete them.
#[test]
fn what_the_owner_of_the_bucket_may() {
    let dir = tempfile::tempdir().unwrap();
    let (_, principals) = keys(&dir);
    let open = Record {
        public_read: true,
        ..Record::default()
    };
    let theirs = object("", Some("press"));
    let owner = &principals[3];
    assert_eq!(
        all_allowed(owner, Subject::Version(&theirs), &Record::default()),
        "LIWXmAC"
    );
    let given = object("press=FULL_CONTROL terrace=FULL_CONTROL", Some("press"));
    assert_eq!(
        all_allowed(owner, Subject::Version(&given), &Record::default()),
        "RLIWXvmacAC"
    );
    for principal in [owner, &Principal::Anonymous] {
        let may = all_allowed(principal, Subject::Version(&theirs), &open);
        assert!(
            !may.contains('R'),
            "the policy of a bucket says nothing of others' objects"
        );
    }
    assert!(all_allowed(&Principal::Anonymous, Subject::Version(&object("", None)), &open).contains('R'));
}

#[test]
fn what_each_level_may() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, principals) = keys(&dir);
    let closed = Record::default();
    let version = facts(true, false);
    for (principal, of_bucket, of_nothing) in [
        (&principals[0], "-----", "-----"),
        (&principals[1], "RLI--", "444--"),
        (&principals[2], "RLIW-", "4444-"),
        (&principals[3], "RLIWC", "44444"),
        (&principals[4], "RLIWC", "44444"),
        (&Principal::System, "RLIWC", "44444"),
        (&Principal::Anonymous, "-----", "-----"),
        (&Principal::Page, "-----", "-----"),
    ] {
        assert_eq!(allowed(principal, Subject::Bucket, &closed), of_bucket);
        assert_eq!(allowed(principal, Subject::Version(&version), &closed), of_bucket);
        assert_eq!(allowed(principal, Subject::Nothing, &closed), of_nothing);
    }
    let removed = Principal::Key {
        id: Arc::from("none"),
        keys,
    };
    assert_eq!(allowed(&removed, Subject::Bucket, &closed), "-----");
}

#[test]
fn what_is_open_to_all() {
    let record = |read, list, acl, ignore| Record {
        public_read: read,
        public_list: list,
        acl_public: acl,
        public_access_block: Some(PublicAccessBlock {
            ignore_lists: ignore,
            ignore_policies: ignore,
            ..PublicAccessBlock::default()
        }),
        ..Record::default()
    };
    let (private, public, imported) = (facts(true, false), facts(true, true), facts(false, false));
    for (record, of_private, of_public, of_nothing) in [
        (record(false, false, false, false), "-----", "R----", "-----"),
        (record(true, false, false, false), "R----", "R----", "-----"),
        (record(false, true, false, false), "-L---", "RL---", "44---"),
        (record(false, false, true, false), "-L---", "RL---", "44---"),
        (record(true, true, true, false), "RL---", "RL---", "44---"),
        (record(true, true, true, true), "-----", "-----", "-----"),
    ] {
        for principal in [Principal::Anonymous, Principal::Page] {
            assert_eq!(allowed(&principal, Subject::Version(&private), &record), of_private);
            assert_eq!(allowed(&principal, Subject::Version(&public), &record), of_public);
            assert_eq!(allowed(&principal, Subject::Nothing, &record), of_nothing);
        }
        let page = allowed(&Principal::Page, Subject::Version(&imported), &record);
        assert!(page.starts_with('R'), "what was imported is on the page");
        let anonymous = allowed(&Principal::Anonymous, Subject::Version(&imported), &record);
        assert_eq!(anonymous, of_private, "and S3 obeys the bucket");
    }
}

/// The bucket was closed, and then a private object was put: a request that began before must be
/// judged by the closed bucket.
#[test]
fn the_bucket_is_judged_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let buckets = crate::bucket::Buckets::load(&store).unwrap();
    let open = Record {
        public_read: true,
        ..Record::default()
    };
    buckets.create(&store, "abc", open).unwrap();
    let claim = Claim::new(Principal::Anonymous, Action::Read, &buckets.get("abc").unwrap());
    assert!(claim.may_begin().is_ok() && claim.on(&facts(true, false)).is_ok());
    let close = |record: &mut Record| {
        record.public_read = false;
        ObjectResult::Ok(())
    };
    buckets.change(&store, "abc", close).unwrap();
    assert_eq!(claim.on(&facts(true, false)).unwrap_err(), Denied::Forbidden);
    assert!(claim.may_begin().is_ok(), "an object may have a list of its own");
}

#[test]
fn names_of_versions_need_a_key() {
    let open = bucket(Record {
        public_read: true,
        public_list: true,
        ..Record::default()
    });
    let named = Claim::new(Principal::Anonymous, Action::reading(true), &open);
    assert_eq!(named.may_begin(), Err(Denied::Forbidden));
    assert_eq!(named.on(&facts(true, true)).unwrap_err(), Denied::Forbidden);
    let told = named.on_nothing(ObjectError::NoSuchVersion);
    assert!(matches!(told, ObjectError::Denied), "not even that there is none");
    let current = Claim::new(Principal::Anonymous, Action::reading(false), &open);
    let told = current.on_nothing(ObjectError::no_such_key());
    assert!(matches!(told, ObjectError::NoSuchKey(None)));
}

/// A policy with this effect on everything.
fn saying(effect: &str) -> Option<String> {
    (!effect.is_empty()).then(|| {
        let (effect, action) = match effect {
            "silent" => ("Allow", "s3:DeleteObject"),
            other => (other, "s3:*"),
        };
        format!(r#"{{"Statement":{{"Effect":"{effect}","Action":"{action}","Resource":"arn:aws:s3:::abc*"}}}}"#)
    })
}

/// All combinations of the key's policy or level, the bucket's policy, the session's policy and the
/// bucket's account, against the rule of AWS ("Policy evaluation logic" in the IAM guide): a denial
/// is final; within an account either policy allows; across accounts both must; a session is
/// limited by its policy.
#[test]
fn policies_of_keys_buckets_and_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let keys = Arc::new(Keys::load(&store, Secrets::default()).unwrap());
    const SAYS: [&str; 4] = ["", "silent", "Allow", "Deny"];
    let mut tried = 0;
    for own in ["none=admin", "abc=read", "silent", "Allow", "Deny"] {
        let (grants, policy) = match own.parse() {
            Ok(grant) => (vec![grant], None),
            Err(_) => (Vec::new(), saying(own)),
        };
        let new = NewKey {
            policy,
            ..NewKey::of_default(&grants)
        };
        let (id, _) = keys.create(&store, &new).unwrap();
        let principal = Principal::of(Some(&id), &keys);
        for (of_bucket, of_session) in SAYS.iter().flat_map(|one| SAYS.map(|other| (*one, other))) {
            for is_same in [true, false] {
                let principals = r#""Principal":"*","Effect""#;
                let bucket = bucket(Record {
                    policy: saying(of_bucket).map(|text| text.replace(r#""Effect""#, principals)),
                    account: (!is_same).then(|| "press".to_owned()),
                    ..Record::default()
                });
                let asker = Asker {
                    caller: keys.account(&id).zip(Some(id.clone())),
                    action: Some("s3:GetObject"),
                    key: Some("k".to_owned()),
                    is_theirs: false,
                    bound: saying(of_session).map(|text| Arc::new(Policy::of_session(&text).unwrap())),
                    own: keys.policy(&id),
                    is_form: false,
                    now_ms: 0,
                    context: Arc::default(),
                };
                let claim = Claim::new(principal.clone(), Action::Read, &bucket).asking(Some(asker));
                let what = format!("{own}, {of_bucket}, {of_session}, {is_same}");
                let (identity, resource) = (matches!(own, "abc=read" | "Allow"), of_bucket == "Allow");
                let is_allowed = if is_same {
                    identity || resource
                } else {
                    identity && resource
                };
                let is_denied = [own, of_bucket, of_session].contains(&"Deny");
                let is_within = ["", "Allow"].contains(&of_session);
                let is_allowed = is_allowed && !is_denied && is_within;
                assert_eq!(claim.on(&facts(true, false)).is_ok(), is_allowed, "{what}");
                assert!(claim.may_begin().is_ok() || !is_allowed, "{what}");
                let also = claim.may_also("s3:GetObjectTagging", "k", None).is_ok();
                let may_also = !own.contains("silent") || resource;
                assert_eq!(also, may_also && !is_denied && is_within, "{what}, also");
                // A policy's denial applies to open buckets too.
                let public = claim.on(&facts(true, true)).is_ok();
                assert_eq!(public, !is_denied && is_within, "{what}, public");
                // Without a question to policies the least favourable result is assumed.
                let unasked = Claim::new(principal.clone(), Action::Read, &bucket);
                assert!(own.contains('=') || unasked.on(&facts(true, true)).is_err(), "{what}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 5 * 16 * 2);
}

#[test]
fn what_is_not_known_needs_everything() {
    assert_eq!(Action::of("GetObject"), Action::Read);
    assert_eq!(Action::of("UploadPart").level(), Level::Write);
    assert_eq!(Action::of("PutObjectAcl").level(), Level::Write);
    assert_eq!(Action::of("GetBucketAcl").level(), Level::Admin);
    for operation in [
        "CreateBucket",
        "DeleteBucket",
        "PutBucketPolicy",
        "PutObjectLegalHold",
        "Anything",
        "",
    ] {
        assert_eq!(Action::of(operation), Action::Configure, "{operation}");
        assert_eq!(Action::of(operation).level(), Level::Admin, "{operation}");
    }
}

/// Requester pays: open to keys that agree to pay, and to the bucket's own account.
#[test]
fn requesters_that_pay_are_admitted() {
    let dir = tempfile::tempdir().unwrap();
    let (_keys, principals) = keys(&dir);
    let record = Record {
        public_read: true,
        requester_pays: true,
        account: Some("press".to_owned()),
        ..Record::default()
    };
    let stranger = principals.last().unwrap();
    let object = facts(true, true);
    let may = |principal: &Principal, record: &Record, pays: bool| {
        let claim = Claim::new(principal.clone(), Action::Read, &bucket(record.clone())).paying(pays);
        claim.on(&object).is_ok()
    };
    assert!(may(stranger, &record, true) && !may(stranger, &record, false));
    for pays in [false, true] {
        assert!(
            !may(&Principal::Anonymous, &record, pays),
            "an unsigned request cannot pay"
        );
        assert!(!may(&Principal::Page, &record, pays));
        assert!(may(&Principal::System, &record, pays));
        let own = Record {
            account: None,
            ..record.clone()
        };
        assert!(may(stranger, &own, pays), "it is of the bucket's account");
        let free = Record {
            requester_pays: false,
            ..record.clone()
        };
        assert!(may(&Principal::Anonymous, &free, pays) && may(stranger, &free, pays));
    }
    // S3's settings do not apply to what an import published.
    assert!(
        Claim::new(Principal::Page, Action::Read, &bucket(record))
            .on(&facts(false, false))
            .is_ok()
    );
}
