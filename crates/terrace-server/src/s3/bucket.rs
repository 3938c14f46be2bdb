//! Buckets: their records, and a copy of all of them in memory.
//!
//! A record is JSON below [`keyspace::BUCKETS`]. Only this process writes to the store while it is open, so the copy is
//! the truth for every request, and no request reads a record.
//!
//! A bucket can only be deleted empty. So that no object slips in while that is being looked at, whoever commits an object
//! holds [`Bucket::enter`] meanwhile, and deleting waits for all of them and keeps new ones out.

use super::{errors, keyspace};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use s3s::{S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use terrace::{Error, ScanRange, Store};

/// Most buckets.
const BUCKETS_MAX: usize = 10_000;

/// What is stored of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Anybody may read its objects.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_read: bool,
    /// Anybody may list it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub public_list: bool,
    /// The policy that says so, as it was put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Cross-origin rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<CorsRule>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
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
}

impl Bucket {
    /// Its record as it is now.
    pub fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record.read())
    }

    /// Keeps the bucket from being deleted for as long as the guard lives. Blocks while it is being deleted.
    ///
    /// # Errors
    /// `NoSuchBucket` if it is gone.
    pub fn enter(&self) -> S3Result<RwLockReadGuard<'_, bool>> {
        let guard = self.exists.read();
        if *guard { Ok(guard) } else { Err(no_such_bucket()) }
    }
}

/// All buckets.
#[derive(Debug, Default)]
pub struct Buckets {
    by_name: RwLock<BTreeMap<String, Arc<Bucket>>>,
    /// Held while the set of buckets, or a record, changes.
    changing: Mutex<()>,
}

fn no_such_bucket() -> s3s::S3Error {
    s3_error!(NoSuchBucket, "The specified bucket does not exist")
}

impl Buckets {
    /// Reads all of them.
    ///
    /// # Errors
    /// The store's; [`Error::Corruption`] for a record that is none.
    pub fn load(store: &Store) -> terrace::Result<Self> {
        let mut by_name = BTreeMap::new();
        for item in store.scan(ScanRange::prefix(keyspace::BUCKETS))? {
            let item = item?;
            let name = String::from_utf8_lossy(&item.key[keyspace::BUCKETS.len()..]).into_owned();
            let record: Record = serde_json::from_slice(&item.value()?)
                .map_err(|error| Error::corruption(format!("bucket {name}"), error.to_string()))?;
            by_name.insert(name.clone(), Arc::new(bucket_of(name, record)));
        }
        Ok(Self {
            by_name: RwLock::new(by_name),
            changing: Mutex::default(),
        })
    }

    /// The bucket of this name.
    ///
    /// # Errors
    /// `NoSuchBucket`.
    pub fn get(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.by_name.read().get(name).map(Arc::clone).ok_or_else(no_such_bucket)
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<Bucket>> {
        self.by_name.read().values().map(Arc::clone).collect()
    }

    /// Creates a bucket. Blocks.
    ///
    /// # Errors
    /// `BucketAlreadyOwnedByYou`, `TooManyBuckets`, the store's.
    pub fn create(&self, store: &Store, name: &str, record: Record) -> S3Result {
        let _changing = self.changing.lock();
        let count = {
            let by_name = self.by_name.read();
            if by_name.contains_key(name) {
                return Err(s3_error!(
                    BucketAlreadyOwnedByYou,
                    "Your previous request to create the named bucket succeeded and you already own it."
                ));
            }
            by_name.len()
        };
        if count >= BUCKETS_MAX {
            return Err(s3_error!(TooManyBuckets, "There are {BUCKETS_MAX} buckets already."));
        }
        write_record(store, name, &record)?;
        let bucket = Arc::new(bucket_of(name.to_owned(), record));
        self.by_name.write().insert(name.to_owned(), bucket);
        Ok(())
    }

    /// Changes a bucket's record. Blocks.
    ///
    /// # Errors
    /// `NoSuchBucket`, what `change` fails with, the store's.
    pub fn change(&self, store: &Store, name: &str, change: impl FnOnce(&mut Record) -> S3Result) -> S3Result {
        let _changing = self.changing.lock();
        let bucket = self.get(name)?;
        let mut record = Record::clone(&bucket.record());
        change(&mut record)?;
        write_record(store, name, &record)?;
        *bucket.record.write() = Arc::new(record);
        Ok(())
    }

    /// Deletes an empty bucket. Blocks, also for commits under way in it.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty` if it has objects or uploads, the store's.
    pub fn delete(&self, store: &Store, name: &str) -> S3Result {
        let _changing = self.changing.lock();
        let bucket = self.get(name)?;
        let mut exists = bucket.exists.write();
        for prefix in [keyspace::objects(name), keyspace::uploads(name)] {
            let mut scan = store
                .scan(ScanRange::prefix(&prefix))
                .map_err(|error| errors::of_engine(&error, &prefix))?;
            if scan.next().is_some() {
                return Err(s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty"));
            }
        }
        let key = keyspace::bucket(name);
        store.delete(&key).map_err(|error| errors::of_engine(&error, &key))?;
        *exists = false;
        self.by_name.write().remove(name);
        Ok(())
    }
}

fn bucket_of(name: String, record: Record) -> Bucket {
    Bucket {
        name,
        record: RwLock::new(Arc::new(record)),
        exists: RwLock::new(true),
    }
}

fn write_record(store: &Store, name: &str, record: &Record) -> S3Result {
    let key = keyspace::bucket(name);
    let json = serde_json::to_vec(record).map_err(|_| S3ErrorCode::InternalError)?;
    store.put(&key, json).map_err(|error| errors::of_engine(&error, &key))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::Options;

    fn code<T: std::fmt::Debug>(result: S3Result<T>) -> String {
        result.unwrap_err().code().as_str().to_owned()
    }

    #[test]
    fn a_life_of_a_bucket() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buckets = Buckets::load(&store).unwrap();
        assert_eq!(code(buckets.get("abc")), "NoSuchBucket");
        buckets.create(&store, "abc", Record::default()).unwrap();
        assert_eq!(
            code(buckets.create(&store, "abc", Record::default())),
            "BucketAlreadyOwnedByYou"
        );
        buckets
            .change(&store, "abc", |record| {
                record.public_read = true;
                Ok(())
            })
            .unwrap();
        assert!(Buckets::load(&store).unwrap().get("abc").unwrap().record().public_read);

        store.put("abc/x", "1").unwrap();
        store.put("abcd/x", "1").unwrap();
        assert_eq!(code(buckets.delete(&store, "abc")), "BucketNotEmpty");
        store.delete("abc/x").unwrap();
        let held = buckets.get("abc").unwrap();
        drop(held.enter().unwrap());
        buckets.delete(&store, "abc").unwrap();
        assert_eq!(held.enter().unwrap_err().code().as_str(), "NoSuchBucket");
        assert!(Buckets::load(&store).unwrap().all().is_empty());
    }
}
