//! Buckets: their records, and a copy of all of them in memory.
//!
//! A record is JSON below [`keyspace::BUCKETS`]. Only this process writes to the store while it is
//! open, so the copy is the truth for every request, and no request reads a record.
//!
//! A bucket can only be deleted empty. So that no object slips in while that is being looked at, a
//! thread that commits an object holds [`Bucket::enter`] meanwhile, and deleting waits for all of
//! them and keeps new ones out. Of what they committed some may not be durable yet, and no reader
//! sees it: it is made durable before the look.

mod owned;
pub mod unreadable;

pub use owned::NO_LISTS;

use crate::{
    collector,
    crypt::Wanted,
    error::{ObjectError, ObjectResult},
    keyspace,
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
/// Longest record of a bucket: more than a thousand lifecycle rules and all else that S3's own
/// limits allow, in usual lengths. All of them are in memory, and each change writes a whole one.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Keys of a bucket with versioning that can be changed at the same time, at best.
const TURNS: usize = 1024;

/// What is stored of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its policy lets anybody read its objects.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_read: bool,
    /// Its policy lets anybody list it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_list: bool,
    /// The policy that says so, as it was put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The same as it is judged by. `None` of a policy from before policies were: it says what the
    /// two flags say.
    #[serde(skip)]
    pub rules: Option<Arc<Policy>>,
    /// What decides who may and cannot be read.
    #[serde(skip)]
    pub unreadable: Unreadable,
    /// Cross-origin rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<CorsRule>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
    /// Whether what is replaced and deleted stays as a version.
    #[serde(default, skip_serializing_if = "Versioning::is_never")]
    pub versioning: Versioning,
    /// What is deleted when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lifecycle: Vec<Rule>,
    /// Rules may put short objects into archives without saying that they mean them, of which there
    /// are none here: it is kept as it was put.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lifecycle_minimum_varies: bool,
    /// Its access control list says that everybody may list it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub acl_public: bool,
    /// What keeps it from being public.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_access_block: Option<PublicAccessBlock>,
    /// Its versions may be locked. Then it has versioning, and keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<lock::Settings>,
    /// Where its requests are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<logging::Settings>,
    /// Its web site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub website: Option<website::Settings>,
    /// Which targets are told of what happens in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notifications: Vec<notification::Rule>,
    /// Objects are encrypted of which a request does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Object ownership as it was put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
    /// Other accounts' requests are let in only if they say that they pay.
    #[serde(default, skip_serializing_if = "is_false")]
    pub requester_pays: bool,
    /// The account that it belongs to, if not [`crate::account::DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Where the request that made it said that it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Its access control list, if it says anything else than [`Record::acl_public`] can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<String>,
}

/// How objects of a bucket are encrypted: with a key that the master key wraps, or one of the
/// store's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// `BucketKeyEnabled` as it was put; it says something only of keys that are elsewhere.
    pub bucket_key: bool,
    /// The key of the store, as it was put; empty for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kms_key: Option<String>,
}

impl Encryption {
    /// The same as what encrypts asks for it.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            kms_key: self.kms_key.as_deref(),
            bucket_key: self.bucket_key,
        }
    }
}

/// What keeps a bucket from being public, whatever its lists and its policy say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicAccessBlock {
    /// Public lists are not taken.
    pub refuse_lists: bool,
    /// Public lists that are there do not count.
    pub ignore_lists: bool,
    /// Public policies are not taken.
    pub refuse_policies: bool,
    /// A public policy that is there does not count.
    pub ignore_policies: bool,
}

impl Record {
    /// A public policy counts for everybody.
    pub fn obeys_policy(&self) -> bool {
        !self.public_access_block.is_some_and(|block| block.ignore_policies)
    }

    /// Its policy says more than that everybody may read all of it, or list it, so each request has
    /// to be judged by it.
    pub fn has_more_rules(&self) -> bool {
        self.rules.is_some() && !self.public_read && !self.public_list
    }

    /// Everybody may read all of its objects.
    pub fn is_read_by_all(&self) -> bool {
        self.public_read && self.obeys_policy()
    }

    /// Its policy lets everybody list it.
    pub fn is_listed_by_all(&self) -> bool {
        self.public_list && self.obeys_policy()
    }
}

/// Whether a bucket keeps what is replaced and deleted. Once it was switched on it can only be
/// suspended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Versioning {
    /// It was never switched on: every object has one version, `null`.
    #[default]
    Never,
    /// Every change makes a new version.
    Enabled,
    /// Every change replaces the version `null`; the others stay.
    Suspended,
}

impl Versioning {
    #[allow(clippy::trivially_copy_pass_by_ref)] // what serde calls it with
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // what serde calls it with
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
    /// Answer headers that may be read.
    pub expose: Vec<String>,
    /// How long a browser may remember the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<i32>,
}

/// A bucket.
#[derive(Debug)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    record: RwLock<Arc<Record>>,
    /// False once it is deleted.
    exists: RwLock<bool>,
    /// Held while its record changes, or it is deleted.
    changing: Mutex<()>,
    /// See [`Bucket::turn`].
    turns: OnceLock<Box<[Turn]>>,
    /// Chooses among the turns; no client can know how.
    hasher: RandomState,
}

/// What threads that change versions of the same key take, one after the other.
#[derive(Debug, Default)]
struct Turn {
    /// Where they wait before they take anything of the engine's.
    queue: Arc<tokio::sync::Mutex<()>>,
    change: Mutex<()>,
}

/// The front of a queue; see [`Bucket::queue`].
pub type Queued = tokio::sync::OwnedMutexGuard<()>;

/// The record of a bucket as the store has it.
///
/// # Errors
/// The store's; [`Error::Corruption`] for a record that is none.
pub fn stored(store: &Store, name: &str) -> terrace::Result<Option<Record>> {
    let json = store.get(keyspace::bucket(name))?;
    json.map(|json| decode(name, &json)).transpose()
}

fn decode(name: &str, json: &[u8]) -> terrace::Result<Record> {
    serde_json::from_slice(json).or_else(|error| {
        let rest = unreadable::read_without(json);
        rest.ok_or_else(|| Error::corruption(format!("bucket {name}"), error.to_string()))
    })
}

impl Bucket {
    /// A bucket that no request finds by its name, yet or at all.
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

    /// Its record as it is now.
    pub fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record.read())
    }

    /// Keeps the bucket from being deleted for as long as the guard lives. Blocks while it is being
    /// deleted.
    ///
    /// # Errors
    /// `NoSuchBucket` if it is gone.
    pub fn enter(&self) -> ObjectResult<RwLockReadGuard<'_, bool>> {
        let guard = self.exists.read();
        if *guard {
            Ok(guard)
        } else {
            Err(ObjectError::NoSuchBucket)
        }
    }

    /// The same for a caller that must not be held up. `None` while it is being deleted, or gone.
    pub fn try_enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        self.exists.try_read().filter(|exists| **exists)
    }

    /// Waits for all that have entered, and for what they committed to be durable and so visible;
    /// keeps others out for as long as the guard lives. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket` if it is gone, the store's.
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

    /// When a current object will be deleted by the bucket's rules.
    pub fn expiration(&self, subject: Subject<'_>) -> Option<lifecycle::Expiration> {
        lifecycle::expiration(&self.record.read().lifecycle, subject)
    }

    /// When an upload will be aborted by the bucket's rules that was begun then.
    pub fn abortion(&self, key: &str, begun_ms: u64) -> Option<lifecycle::Expiration> {
        lifecycle::abortion(&self.record.read().lifecycle, key, begun_ms)
    }

    /// What answers say of which version they are about: nothing where there never was versioning.
    pub fn shown(&self, name: Name) -> Option<String> {
        (self.versioning() != Versioning::Never).then(|| name.to_string())
    }

    /// Its versioning, which stays what it is for as long as one is in ([`Bucket::enter`]).
    pub fn versioning(&self) -> Versioning {
        self.record.read().versioning
    }

    /// Waits until no other thread changes versions of `key`, and keeps others waiting for as long
    /// as the guard lives. A change of versions is about several records, of which not all are
    /// there to be named in a condition. Taken after [`Bucket::enter`], and one at a time. Blocks.
    pub fn turn(&self, key: &str) -> MutexGuard<'_, ()> {
        self.turn_of(key).change.lock()
    }

    /// Waits where no thread and no permit is held until it will not be long before
    /// [`Bucket::turn`] comes. `None` where no turn is needed.
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
    /// Held while a bucket is created. Taken before that of any bucket.
    creating: Mutex<()>,
    /// Requests of some bucket may be logged: once true, until the server stops.
    is_any_logged: AtomicBool,
}

impl Buckets {
    /// Reads all of them.
    ///
    /// # Errors
    /// The store's; [`Error::Corruption`] for a record that is none.
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

    /// Whether this is the bucket of its name: not if it was deleted, even if another was made
    /// since.
    pub fn is_there(&self, bucket: &Arc<Bucket>) -> bool {
        self.get(&bucket.name).is_ok_and(|found| Arc::ptr_eq(&found, bucket))
    }

    /// The bucket that a request is about, if its requests are logged.
    pub fn logged<'n>(&self, name: impl FnOnce() -> Option<&'n str>) -> Option<Arc<Bucket>> {
        // Most servers have no such bucket, and then this costs nothing.
        if !self.is_any_logged.load(Ordering::Relaxed) {
            return None;
        }
        let bucket = self.get(name()?).ok()?;
        let is_logged = bucket.record.read().logging.is_some();
        is_logged.then_some(bucket)
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<Bucket>> {
        self.by_name.read().values().map(Arc::clone).collect()
    }

    /// Creates a bucket. Blocks.
    ///
    /// # Errors
    /// `BucketAlreadyExists`, `BucketAlreadyOwnedByYou`, `TooManyBuckets`, the store's.
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
    /// `NoSuchBucket`, what `change` fails with, the store's.
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

    /// Switches versioning on, or suspends it. Blocks, also for commits under way in the bucket:
    /// each of them is done as one setting says, and a commit that begins after this goes by the
    /// new one.
    ///
    /// # Errors
    /// `NoSuchBucket`, the store's.
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

    /// Deletes an empty bucket, and aborts uploads that were not completed, as S3 does it. Blocks,
    /// also for commits under way in it; no other bucket waits.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty` if it has objects or versions, the store's.
    pub fn delete(&self, store: &Store, name: &str) -> ObjectResult {
        let bucket = self.get(name)?;
        let _changing = bucket.changing.lock();
        // Looked at before other requests are kept waiting: most buckets that a client tries to
        // delete are not empty, and where much was deleted the look takes long.
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

/// Changes a record; the caller keeps others from changing it meanwhile.
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
        .put(&key, json)
        .map_err(|error| ObjectError::engine(&error, &key))?;
    Ok(())
}

#[cfg(test)]
mod tests;
