//! Buckets: their records, and a copy of all of them in memory.
//!
//! A record is JSON below [`keyspace::BUCKETS`]. Only this process writes to the store while it is
//! open, so the copy is always current and no request reads a record.
//!
//! Only an empty bucket can be deleted. A thread that commits an object holds [`Bucket::enter`],
//! and deleting waits for those threads and blocks new ones, so that no object is added between the
//! check and the deletion. Some of their commits may not be durable yet, and so not visible; the
//! deleting thread makes them durable before it checks.

mod owned;
pub mod unreadable;

pub use owned::NO_LISTS;

use crate::{
    collector,
    crypt::Wanted,
    error::{ObjectError, ObjectResult},
    keyspace,
    lasting::lasting,
    lifecycle::{self, Rule, Subject},
    lock, logging, notification,
    policy::Policy,
    record::Name,
    website,
};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use terrace::{Error, ScanRange, Store};
use unreadable::Unreadable;

/// Most buckets.
const BUCKETS_MAX: usize = 10_000;
/// Longest record of a bucket: room for more than a thousand lifecycle rules and all other settings
/// within S3's limits, at usual lengths. All records are in memory, and each change writes a whole
/// record.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Number of locks that serialise changes of the keys of a versioned bucket.
const TURNS: usize = 1024;

/// The stored record of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its policy lets every client read its objects.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_read: bool,
    /// Its policy lets every client list it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_list: bool,
    /// Its policy, as the client sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy parsed. `None` for the two flags above alone, which older records have instead.
    #[serde(skip)]
    pub rules: Option<Arc<Policy>>,
    /// Settings that decide access and cannot be parsed.
    #[serde(skip)]
    pub unreadable: Unreadable,
    /// Cross-origin rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<CorsRule>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
    /// Versioning state.
    #[serde(default, skip_serializing_if = "Versioning::is_never")]
    pub versioning: Versioning,
    /// Lifecycle rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lifecycle: Vec<Rule>,
    /// `TransitionDefaultMinimumObjectSize` of the lifecycle. Kept only to be returned: there are
    /// no archives here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lifecycle_minimum_varies: bool,
    /// Its access control list lets every client list it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub acl_public: bool,
    /// Its public access block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_access_block: Option<PublicAccessBlock>,
    /// Object lock settings. A bucket with them has versioning enabled permanently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<lock::Settings>,
    /// Where its access log is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<logging::Settings>,
    /// Its web site settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub website: Option<website::Settings>,
    /// Its event notification rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notifications: Vec<notification::Rule>,
    /// Encryption of objects whose request does not specify any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Object ownership, as the client sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
    /// Requester pays: requests of other accounts must state that they pay.
    #[serde(default, skip_serializing_if = "is_false")]
    pub requester_pays: bool,
    /// Its account, if not [`crate::account::DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The location constraint of the request that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Its access control list, if [`Record::acl_public`] cannot express it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<String>,
}

/// Default encryption of a bucket: with a key that the master key wraps, or with a KMS key of the
/// store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// `BucketKeyEnabled` as the client sent it. It has no effect here.
    pub bucket_key: bool,
    /// The KMS key as the client named it; empty for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kms_key: Option<String>,
}

impl Encryption {
    /// Converts to the form that `crypt` takes.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            kms_key: self.kms_key.as_deref(),
            bucket_key: self.bucket_key,
        }
    }
}

/// Public access block: overrides what lists and the policy allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicAccessBlock {
    /// `BlockPublicAcls`: public lists are refused.
    pub refuse_lists: bool,
    /// `IgnorePublicAcls`: public lists that exist have no effect.
    pub ignore_lists: bool,
    /// `BlockPublicPolicy`: public policies are refused.
    pub refuse_policies: bool,
    /// `RestrictPublicBuckets`: a public policy that exists has no effect.
    pub ignore_policies: bool,
}

impl Record {
    /// A public policy has effect.
    pub fn obeys_policy(&self) -> bool {
        !self.public_access_block.is_some_and(|block| block.ignore_policies)
    }

    /// Its policy has rules besides "every client may read all objects" and "every client may
    /// list", so each request is evaluated against it.
    pub fn has_more_rules(&self) -> bool {
        self.rules.is_some() && !self.public_read && !self.public_list
    }

    /// Every client may read all of its objects.
    pub fn is_read_by_all(&self) -> bool {
        self.public_read && self.obeys_policy()
    }

    /// Its policy lets every client list it.
    pub fn is_listed_by_all(&self) -> bool {
        self.public_list && self.obeys_policy()
    }
}

/// Whether replaced and deleted objects are kept as versions. Once enabled, it can only be
/// suspended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Versioning {
    /// It was never enabled: every object has one version, `null`.
    #[default]
    Never,
    /// Every change makes a new version.
    Enabled,
    /// Every change replaces the version `null`; the others stay.
    Suspended,
}

impl Versioning {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
const fn is_false(value: &bool) -> bool {
    !*value
}

/// One cross-origin rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorsRule {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Origins, each with at most one `*`.
    pub origins: Vec<String>,
    /// Methods.
    pub methods: Vec<String>,
    /// Request headers that may be sent, each with at most one `*`.
    pub headers: Vec<String>,
    /// Response headers that scripts may read.
    pub expose: Vec<String>,
    /// How long a browser may cache the answer, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<i32>,
}

/// A bucket.
#[derive(Debug)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    record: RwLock<Arc<Record>>,
    /// False once it has been deleted.
    exists: RwLock<bool>,
    /// Held while the record is changed or the bucket deleted.
    changing: Mutex<()>,
    /// See [`Bucket::turn`].
    turns: OnceLock<Box<[Turn]>>,
    /// Chooses the turn of a key. Its seed is random, so that clients cannot choose keys that
    /// collide.
    hasher: RandomState,
}

/// Serialises threads that change versions of the same key.
#[derive(Debug, Default)]
struct Turn {
    /// Where requests wait before they take an engine permit.
    queue: Arc<tokio::sync::Mutex<()>>,
    change: Mutex<()>,
}

/// A place at the head of a queue; see [`Bucket::queue`].
pub type Queued = tokio::sync::OwnedMutexGuard<()>;

fn decode(name: &str, json: &[u8]) -> terrace::Result<Record> {
    serde_json::from_slice(json).or_else(|error| {
        let rest = unreadable::read_without(json);
        rest.ok_or_else(|| Error::corruption(format!("bucket {name}"), error.to_string()))
    })
}

impl Bucket {
    /// Makes a bucket that is not in [`Buckets`].
    pub fn apart(name: String, mut record: Record) -> Self {
        record.read_texts(&name);
        Self {
            name,
            record: RwLock::new(Arc::new(record)),
            exists: RwLock::new(true),
            changing: Mutex::default(),
            turns: OnceLock::new(),
            hasher: RandomState::new(),
        }
    }

    /// The current record.
    pub fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record.read())
    }

    /// Keeps the bucket from being deleted for as long as the guard lives. Blocks while it is being
    /// deleted.
    ///
    /// # Errors
    /// `NoSuchBucket` if it was deleted.
    pub fn enter(&self) -> ObjectResult<RwLockReadGuard<'_, bool>> {
        let guard = self.exists.read();
        if *guard {
            Ok(guard)
        } else {
            Err(ObjectError::NoSuchBucket)
        }
    }

    /// Like [`Bucket::enter`], without waiting. `None` while it is being deleted, or afterwards.
    pub fn try_enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        self.exists.try_read().filter(|exists| **exists)
    }

    /// Waits until all threads that have entered are done, makes their commits durable and so
    /// visible, and blocks other threads while the guard lives. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket` if it was deleted, errors of the store.
    fn alone(&self, store: &Store) -> ObjectResult<RwLockWriteGuard<'_, bool>> {
        let alone = self.exists.write();
        if !*alone {
            return Err(ObjectError::NoSuchBucket);
        }
        store
            .sync()
            .map_err(|error| ObjectError::engine(&error, &keyspace::bucket(&self.name)))?;
        Ok(alone)
    }

    /// When the lifecycle rules will delete a current object.
    pub fn expiration(&self, subject: Subject<'_>) -> Option<lifecycle::Expiration> {
        lifecycle::expiration(&self.record.read().lifecycle, subject)
    }

    /// When the lifecycle rules will abort an upload begun at this time.
    pub fn abortion(&self, key: &str, begun_ms: u64) -> Option<lifecycle::Expiration> {
        lifecycle::abortion(&self.record.read().lifecycle, key, begun_ms)
    }

    /// The version ID for a response: `None` if versioning was never enabled.
    pub fn shown(&self, name: Name) -> Option<String> {
        (self.versioning() != Versioning::Never).then(|| name.to_string())
    }

    /// The versioning state. It cannot change while a thread has entered ([`Bucket::enter`]).
    pub fn versioning(&self) -> Versioning {
        self.record.read().versioning
    }

    /// Waits until no other thread changes versions of `key`, and excludes others while the guard
    /// lives. A change of versions concerns several records, some of which do not exist and so
    /// cannot be named in a condition. Take it after [`Bucket::enter`], one at a time. Blocks.
    pub fn turn(&self, key: &str) -> MutexGuard<'_, ()> {
        self.turn_of(key).change.lock()
    }

    /// Waits, without a thread or an engine permit, until [`Bucket::turn`] is nearly free. `None`
    /// where no turn is needed.
    pub async fn queue(&self, key: &str) -> Option<Queued> {
        if self.versioning() == Versioning::Never {
            return None;
        }
        Some(Arc::clone(&self.turn_of(key).queue).lock_owned().await)
    }

    fn turn_of(&self, key: &str) -> &Turn {
        let turns = self.turns.get_or_init(|| (0..TURNS).map(|_| Turn::default()).collect());
        &turns[self.place(key)]
    }

    fn place(&self, key: &str) -> usize {
        self.hasher.hash_one(key) as usize % TURNS
    }
}

/// All buckets.
#[derive(Debug, Default)]
pub struct Buckets {
    by_name: RwLock<BTreeMap<String, Arc<Bucket>>>,
    /// Held while a bucket is created. Taken before the lock of any bucket.
    creating: Mutex<()>,
    /// Some bucket has an access log. Once true, it stays true until the server stops.
    is_any_logged: AtomicBool,
}

impl Buckets {
    /// Reads all buckets.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Corruption`] for a record that cannot be decoded.
    pub fn load(store: &Store) -> terrace::Result<Self> {
        let mut by_name = BTreeMap::new();
        let mut is_any_logged = false;
        for item in store.scan(ScanRange::prefix(keyspace::BUCKETS))? {
            let item = item?;
            let name = String::from_utf8_lossy(&item.key[keyspace::BUCKETS.len()..]).into_owned();
            let record = decode(&name, &item.value()?)?;
            is_any_logged |= record.logging.is_some();
            by_name.insert(name.clone(), Arc::new(Bucket::apart(name, record)));
        }
        Ok(Self {
            by_name: RwLock::new(by_name),
            creating: Mutex::default(),
            is_any_logged: AtomicBool::new(is_any_logged),
        })
    }

    /// The bucket of this name.
    ///
    /// # Errors
    /// `NoSuchBucket`.
    pub fn get(&self, name: &str) -> ObjectResult<Arc<Bucket>> {
        self.by_name
            .read()
            .get(name)
            .map(Arc::clone)
            .ok_or(ObjectError::NoSuchBucket)
    }

    /// Whether this bucket exists: false if it was deleted, even if another of the same name was
    /// created since.
    pub fn is_there(&self, bucket: &Arc<Bucket>) -> bool {
        self.get(&bucket.name).is_ok_and(|found| Arc::ptr_eq(&found, bucket))
    }

    /// The bucket of a request, if it has an access log.
    pub fn logged<'n>(&self, name: impl FnOnce() -> Option<&'n str>) -> Option<Arc<Bucket>> {
        // Without such a bucket, this costs one load.
        if !self.is_any_logged.load(Ordering::Relaxed) {
            return None;
        }
        let bucket = self.get(name()?).ok()?;
        let is_logged = bucket.record.read().logging.is_some();
        is_logged.then_some(bucket)
    }

    /// All buckets, by name.
    pub fn all(&self) -> Vec<Arc<Bucket>> {
        self.by_name.read().values().map(Arc::clone).collect()
    }

    /// Creates a bucket. Blocks.
    ///
    /// # Errors
    /// `BucketAlreadyExists`, `BucketAlreadyOwnedByYou`, `TooManyBuckets`, errors of the store.
    pub fn create(&self, store: &Store, name: &str, record: Record) -> ObjectResult {
        let _creating = self.creating.lock();
        let count = {
            let by_name = self.by_name.read();
            if let Some(there) = by_name.get(name) {
                if there.record().owner() != record.owner() {
                    return Err(ObjectError::BucketIsTaken);
                }
                if there.record().is_unreadable() {
                    return Err(ObjectError::BucketUnreadable);
                }
                return Err(ObjectError::BucketExists);
            }
            by_name.len()
        };
        if count >= BUCKETS_MAX {
            return Err(ObjectError::TooManyBuckets(BUCKETS_MAX));
        }
        write_record(store, name, &record)?;
        let bucket = Arc::new(Bucket::apart(name.to_owned(), record));
        self.by_name.write().insert(name.to_owned(), bucket);
        Ok(())
    }

    /// Changes a bucket's record. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket`, errors of `change`, errors of the store.
    pub fn change<E: From<ObjectError>>(
        &self,
        store: &Store,
        name: &str,
        change: impl FnOnce(&mut Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let bucket = self.get(name)?;
        let _changing = bucket.changing.lock();
        let _entered = bucket.enter()?;
        apply(store, &bucket, change)?;
        if bucket.record.read().logging.is_some() {
            self.is_any_logged.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Enables or suspends versioning. Waits for running commits in the bucket: each commit uses
    /// one setting, and later ones use the new setting. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket`, errors of the store.
    pub fn set_versioning(&self, store: &Store, name: &str, versioning: Versioning) -> ObjectResult {
        let bucket = self.get(name)?;
        let _changing = bucket.changing.lock();
        let _alone = bucket.alone(store)?;
        apply(store, &bucket, |record| {
            if record.lock.is_some() && versioning != Versioning::Enabled {
                return Err(ObjectError::VersioningIsKept);
            }
            record.versioning = versioning;
            Ok(())
        })
    }

    /// Deletes an empty bucket and aborts its incomplete uploads, as S3 does. Waits for commits
    /// under way in the bucket; other buckets do not wait. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty` if it has objects or versions, errors of the store.
    pub fn delete(&self, store: &Store, name: &str) -> ObjectResult {
        let bucket = self.get(name)?;
        let _changing = bucket.changing.lock();
        // Checked first without blocking other requests: most buckets that clients try to delete
        // are not empty, and after many deletions the check takes long.
        check_empty(store, name)?;
        let mut exists = bucket.alone(store)?;
        check_empty(store, name)?;
        let uploads = keyspace::uploads(name);
        collector::abort_uploads(store, &uploads, |_| true).map_err(|error| ObjectError::engine(&error, &uploads))?;
        let key = keyspace::bucket(name);
        store.delete(&key).map_err(|error| ObjectError::engine(&error, &key))?;
        *exists = false;
        self.by_name.write().remove(name);
        Ok(())
    }
}

fn check_empty(store: &Store, name: &str) -> ObjectResult {
    for prefix in [keyspace::objects(name), keyspace::versions(name)] {
        let mut scan = store
            .scan(ScanRange::prefix(&prefix))
            .map_err(|error| ObjectError::engine(&error, &prefix))?;
        if scan.next().is_some() {
            return Err(ObjectError::BucketNotEmpty);
        }
    }
    Ok(())
}

/// Changes a record. The caller holds `changing`.
fn apply<E: From<ObjectError>>(
    store: &Store,
    bucket: &Bucket,
    change: impl FnOnce(&mut Record) -> Result<(), E>,
) -> Result<(), E> {
    let mut record = Record::clone(&bucket.record());
    change(&mut record)?;
    write_record(store, &bucket.name, &record)?;
    *bucket.record.write() = Arc::new(record);
    Ok(())
}

fn write_record(store: &Store, name: &str, record: &Record) -> ObjectResult {
    let key = keyspace::bucket(name);
    let json = record.to_json().map_err(|_| ObjectError::Impossible)?;
    if json.len() > RECORD_BYTES_MAX {
        return Err(ObjectError::SettingsTooLong(RECORD_BYTES_MAX));
    }
    store
        .put(&key, lasting(json))
        .map_err(|error| ObjectError::engine(&error, &key))?;
    Ok(())
}

#[cfg(test)]
mod tests;
