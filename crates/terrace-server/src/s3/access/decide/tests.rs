//! The whole table of decisions, against one that is written down by hand.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::s3::{
    access_key::{AccessKey, Grant, Level},
    bucket::PublicAccessBlock,
    secrets::Secrets,
};
use terrace::{Attributes, HomeKind, ObjectInfo, Options, Store, Version};

const ACTIONS: [Action; 5] = [
    Action::Read,
    Action::List,
    Action::Inspect,
    Action::Write,
    Action::Configure,
];

fn facts(is_of_s3: bool, is_public: bool) -> Facts {
    let mut attributes = Attributes::new();
    if is_of_s3 {
        crate::s3::record::stamp(&mut attributes, "e", 1);
    }
    Facts::of(&ObjectInfo {
        expires_at: None,
        version: Version(1),
        length: 1,
        checksum: 1,
        home: HomeKind::Inline,
        attributes: crate::s3::record::with_public(&attributes, is_public),
    })
}

fn bucket(record: Record) -> Arc<Bucket> {
    Arc::new(Bucket::apart("abc".to_owned(), record))
}

/// Which of [`ACTIONS`] are allowed, as a letter each, or `-`.
fn allowed(principal: &Principal, subject: Subject<'_>, record: &Record) -> String {
    let bucket = bucket(record.clone());
    let letter = |(action, letter)| match Claim::new(principal.clone(), action, &bucket).decide(subject) {
        Ok(permit) => {
            assert!(Arc::ptr_eq(permit.bucket(), &bucket));
            assert_eq!(permit.to_write().is_ok(), "WC".contains(letter), "{action:?}");
            letter
        }
        Err(Denied::Missing) => '4',
        Err(Denied::Forbidden) => '-',
    };
    ACTIONS.into_iter().zip("RLIWC".chars()).map(letter).collect()
}

fn keys(dir: &tempfile::TempDir) -> (Arc<Keys>, Vec<Principal>) {
    let store = Store::open(Options::new(dir.path())).unwrap();
    let made: Vec<_> = ["other=admin", "abc=read", "abc=write", "abc=admin", "*=admin"]
        .iter()
        .map(|grant| {
            let (id, key) = AccessKey::generate(&[grant.parse::<Grant>().unwrap()]);
            crate::s3::access_key::store(&store, &id, &key, &Secrets::default()).unwrap();
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
        (&Principal::Everybody, "-----", "-----"),
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
fn what_is_open_to_everybody() {
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
        for principal in [Principal::Everybody, Principal::Page] {
            assert_eq!(allowed(&principal, Subject::Version(&private), &record), of_private);
            assert_eq!(allowed(&principal, Subject::Version(&public), &record), of_public);
            assert_eq!(allowed(&principal, Subject::Nothing, &record), of_nothing);
        }
        let page = allowed(&Principal::Page, Subject::Version(&imported), &record);
        assert!(page.starts_with('R'), "what was imported is on the page");
        let everybody = allowed(&Principal::Everybody, Subject::Version(&imported), &record);
        assert_eq!(everybody, of_private, "and S3 obeys the bucket");
    }
}

/// The bucket was closed, and then a private object was put: the answer to a request that began
/// before has to be the closed bucket's, since what it opens was put behind closed doors.
#[test]
fn the_bucket_is_judged_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let buckets = crate::s3::bucket::Buckets::load(&store).unwrap();
    let open = Record {
        public_read: true,
        ..Record::default()
    };
    buckets.create(&store, "abc", open).unwrap();
    let claim = Claim::new(Principal::Everybody, Action::Read, &buckets.get("abc").unwrap());
    assert!(claim.may_begin().is_ok() && claim.on(&facts(true, false)).is_ok());
    let close = |record: &mut Record| {
        record.public_read = false;
        Ok(())
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
    let named = Claim::new(Principal::Everybody, Action::reading(true), &open);
    assert_eq!(named.may_begin(), Err(Denied::Forbidden));
    assert_eq!(named.on(&facts(true, true)).unwrap_err(), Denied::Forbidden);
    let told = named.on_nothing(crate::s3::versions::no_such_version());
    assert_eq!(told.code().as_str(), "AccessDenied", "not even that there is none");
    let current = Claim::new(Principal::Everybody, Action::reading(false), &open);
    assert_eq!(current.on_nothing(no_such_key()).code().as_str(), "NoSuchKey");
}

#[test]
fn what_is_not_known_needs_everything() {
    assert_eq!(Action::of("GetObject"), Action::Read);
    assert_eq!(Action::of("UploadPart").level(), Level::Write);
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
