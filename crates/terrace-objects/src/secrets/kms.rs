//! KMS keys: named keys for SSE-KMS (`aws:kms`), kept in the store instead of a key management
//! service.
//!
//! A key is a name and one or more versions of 32 random bytes. The latest version wraps data keys.
//! The others only unwrap, until `terrace rewrap` has wrapped those data keys again and removes
//! them. A key can be deleted only if it is disabled and wraps nothing. Both depend on one rule: a
//! thread that commits what a key wrapped asks for the latest version at that time and holds a lock
//! until the commit ([`Current::hold`]), and a change of a key waits for that lock. Keys are stored
//! like secrets of access keys: encrypted if a master key is given, else as plain text ([`super`]).
//! A key may be restricted to certain accounts and access keys; others can neither encrypt nor
//! decrypt with it, whatever else they may do. This is checked where a data key is wrapped or
//! unwrapped, and nowhere else.

use super::{KEY_BYTES, KeyId, Secrets, StoredKey, wrapping_of};
use crate::{
    error::{ObjectError, ObjectResult},
    keyspace,
    lasting::lasting,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use ring::aead::LessSafeKey;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use terrace::{Clock, Condition, Durability, Error, PutOptions, ScanRange, Store};

/// The attribute that names an object's KMS key.
pub const KMS_KEY: &str = "s3-kms-key";
/// The key for requests that name none, made on first use.
pub const DEFAULT: &str = "aws/s3";
/// Prefix of a key's ARN in responses.
const ARN: &str = "arn:aws:kms:us-east-1:terrace:key/";
/// Longest name.
const NAME_BYTES_MAX: usize = 128;

/// A caller that uses a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Unsigned, or signed by version 2, which covers too little.
    Anonymous,
    /// An access key.
    Key {
        /// Its account.
        account: Arc<str>,
        /// Its ID.
        id: String,
    },
    /// The server itself, or the command line.
    Server,
}

/// Public description of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Creation time, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether it is disabled.
    pub is_disabled: bool,
    /// The accounts and access key IDs that may use it; all may if there are none.
    pub principals: Vec<String>,
    /// Number of versions.
    pub versions: usize,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Create it, for these accounts and access keys, or for all if there are none.
    Create(Vec<String>),
    /// Add a version.
    Rotate,
    /// Disable it.
    Disable,
    /// Enable it.
    Enable,
    /// Delete it, if it is disabled and wraps nothing.
    Delete,
}

/// A key, as stored.
#[derive(Serialize, Deserialize)]
struct Record {
    created_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    disabled: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    principals: Vec<String>,
    /// In order of age, the latest last.
    versions: Vec<StoredKey>,
}

/// A key in memory.
#[derive(Clone)]
struct Key {
    created_ms: u64,
    is_disabled: bool,
    principals: Vec<String>,
    /// Empty if the master key that encrypts them is missing.
    versions: Vec<(KeyId, LessSafeKey)>,
    /// How many of the first versions are no longer stored. They are kept in memory for readers of
    /// records that were rewrapped meanwhile.
    struck: usize,
}

/// A key for encrypting.
#[derive(Clone)]
pub struct Current {
    /// Its name.
    pub name: String,
    keys: KmsKeys,
}

impl Current {
    /// While this is held, [`Current::latest`] does not change. A thread holds it until what it
    /// wrapped is committed.
    pub fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.keys.commits.read()
    }

    /// The latest version, and its wrapping key.
    ///
    /// # Errors
    /// That the key was disabled or deleted meanwhile.
    pub fn latest(&self) -> ObjectResult<(KeyId, LessSafeKey)> {
        self.keys.latest(&self.name, &Caller::Server)
    }
}

/// The KMS keys of a store. Clones share them.
#[derive(Clone, Default)]
pub struct KmsKeys {
    by_name: Arc<RwLock<BTreeMap<String, Key>>>,
    /// Read-locked by commits of wrapped data keys, write-locked by changes.
    commits: Arc<RwLock<()>>,
    /// Held while a key is changed.
    changing: Arc<Mutex<()>>,
}

/// The name of a key given by name, alias or ARN.
pub fn name_of(text: &str) -> &str {
    let name = match text.strip_prefix("arn:") {
        Some(rest) => rest.splitn(5, ':').nth(4).unwrap_or(""),
        None => text,
    };
    let bare = name.strip_prefix("key/").or_else(|| name.strip_prefix("alias/"));
    bare.unwrap_or(name)
}

/// The ARN of a key.
pub fn arn(name: &str) -> String {
    format!("{ARN}{name}")
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// ID under which a version of a key is encrypted; no access key has it.
fn sealed_as(name: &str) -> String {
    format!("kms-key {name}")
}

fn place(name: &str) -> String {
    format!("{}{name}", keyspace::KMS_KEYS)
}

impl Record {
    /// A key with one new version.
    fn new(name: &str, principals: Vec<String>, secrets: &Secrets, clock: &Clock) -> terrace::Result<Self> {
        let mut record = Self {
            created_ms: clock.now_ms(),
            disabled: false,
            principals,
            versions: Vec::new(),
        };
        record.rotate(name, secrets)?;
        Ok(record)
    }

    fn rotate(&mut self, name: &str, secrets: &Secrets) -> terrace::Result<()> {
        let mut bytes = [0; KEY_BYTES];
        keyspace::fill_random(&mut bytes);
        self.versions.push(StoredKey::of(&sealed_as(name), &bytes, secrets)?);
        Ok(())
    }

    fn read(name: &str, json: &[u8]) -> terrace::Result<Self> {
        let wrong = |error: serde_json::Error| Error::corruption(format!("the key {name}"), error.to_string());
        serde_json::from_slice(json).map_err(wrong)
    }

    /// Reads the stored key, and a condition that it has not changed. `None` if there is none.
    fn stored(store: &Store, name: &str) -> terrace::Result<Option<(Self, Condition)>> {
        let Some(object) = store.get(place(name))? else {
            return Ok(None);
        };
        let record = Self::read(name, &object)?;
        Ok(Some((record, Condition::VersionIs(object.version))))
    }

    /// Stores it durably. Nothing is wrapped with it before.
    fn store(&self, store: &Store, name: &str, condition: Condition) -> terrace::Result<()> {
        let json = serde_json::to_vec(self).map_err(|error| Error::invalid(error.to_string()))?;
        let options = PutOptions {
            durability: Durability::Sync,
            condition,
            ..PutOptions::default()
        };
        store.put_with(place(name), lasting(json), &options).map(drop)
    }

    /// Decrypts it for use.
    fn open(&self, name: &str, secrets: &Secrets) -> terrace::Result<Key> {
        let versions = self.versions.iter().map(|version| {
            let (bytes, _) = version.open(&sealed_as(name), secrets)?;
            wrapping_of(&bytes).ok_or_else(|| Error::corruption(format!("the key {name}"), "its length"))
        });
        let versions: terrace::Result<Vec<_>> = versions.collect();
        let versions = match versions {
            // As for the store's own master key: operations that need it fail.
            Err(Error::Invalid(_)) => Vec::new(),
            versions => versions?,
        };
        Ok(Key {
            created_ms: self.created_ms,
            is_disabled: self.disabled,
            principals: self.principals.clone(),
            versions,
            struck: 0,
        })
    }
}

impl KmsKeys {
    /// Loads all keys. Blocks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn load(&self, store: &Store, secrets: &Secrets) -> terrace::Result<()> {
        let mut all = BTreeMap::new();
        for item in store.scan(ScanRange::prefix(keyspace::KMS_KEYS))? {
            let item = item?;
            let name = String::from_utf8_lossy(&item.key[keyspace::KMS_KEYS.len()..]).into_owned();
            let key = Record::read(&name, &item.value()?)?.open(&name, secrets)?;
            all.insert(name, key);
        }
        *self.by_name.write() = all;
        Ok(())
    }

    /// Whether there is a key of this name.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.read().contains_key(name)
    }

    /// All keys.
    pub fn all(&self) -> Vec<Summary> {
        let keys = self.by_name.read();
        keys.iter().map(|(name, key)| key.summary(name)).collect()
    }

    /// Changes or creates a key. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it exists already, does not exist, has an invalid name, or cannot be
    /// deleted; errors of the store.
    pub fn change(&self, store: &Store, secrets: &Secrets, name: &str, change: Change) -> terrace::Result<Summary> {
        if !is_name(name) {
            return Err(Error::invalid(format!(
                "{name:?} can be no name of a key: letters, digits and -_./, {NAME_BYTES_MAX} at most"
            )));
        }
        let _alone = self.changing.lock();
        if change == Change::Delete {
            return self.delete(store, name);
        }
        loop {
            let (record, condition) = match (&change, Record::stored(store, name)?) {
                (Change::Create(_), Some(_)) => return Err(Error::invalid(format!("there is a key {name} already"))),
                (Change::Create(principals), None) => {
                    let record = Record::new(name, principals.clone(), secrets, store.clock())?;
                    (record, Condition::Absent)
                }
                (_, None) => return Err(Error::invalid(format!("there is no key {name}"))),
                (_, Some((mut record, condition))) => {
                    match change {
                        Change::Rotate => record.rotate(name, secrets)?,
                        Change::Disable => record.disabled = true,
                        Change::Enable | Change::Create(_) | Change::Delete => record.disabled = false,
                    }
                    (record, condition)
                }
            };
            match record.store(store, name, condition) {
                // It was re-encrypted meanwhile: retry with the new record.
                Err(Error::ConditionFailed { .. }) => {}
                stored => {
                    stored?;
                    return self.take(name, record.open(name, secrets)?);
                }
            }
        }
    }

    /// Creates the default key, if it does not exist. Blocks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn have_default(&self, store: &Store, secrets: &Secrets) -> terrace::Result<()> {
        match self.change(store, secrets, DEFAULT, Change::Create(Vec::new())) {
            // Another thread created it.
            Err(Error::Invalid(_)) if self.has(DEFAULT) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Replaces a key in memory, after all commits of data keys that it wrapped before.
    fn take(&self, name: &str, mut key: Key) -> terrace::Result<Summary> {
        let summary = key.summary(name);
        let _none_commits = self.commits.write();
        let mut keys = self.by_name.write();
        if let Some(before) = keys.get(name) {
            let mut struck = before.versions.clone();
            struck.retain(|(id, _)| key.versions.iter().all(|(other, _)| other != id));
            key.struck = struck.len();
            key.versions.splice(0..0, struck);
        }
        keys.insert(name.to_owned(), key);
        Ok(summary)
    }

    /// Deletes a disabled key that wraps nothing. Because it is disabled, nothing new is wrapped
    /// with it, and earlier uses have been committed or refused.
    fn delete(&self, store: &Store, name: &str) -> terrace::Result<Summary> {
        let Some(key) = self.by_name.read().get(name).cloned() else {
            return Err(Error::invalid(format!("there is no key {name}")));
        };
        if !key.is_disabled {
            return Err(Error::invalid(format!("disable the key {name} before you delete it")));
        }
        for item in store.scan(ScanRange::range(Vec::<u8>::new()..))? {
            let item = item?;
            if item.info.attributes.get_str(KMS_KEY) == Some(name) {
                let object = String::from_utf8_lossy(keyspace::object_of(&item.key)).into_owned();
                return Err(Error::invalid(format!(
                    "{object:?} is encrypted with the key {name}: with the key that and others like it are lost; \
                     delete these, all their versions and uploads too, or leave the key disabled"
                )));
            }
        }
        store.delete_with(place(name), Condition::Present, Durability::Sync)?;
        self.by_name.write().remove(name);
        Ok(key.summary(name))
    }

    /// The IDs of all versions that are not the latest.
    pub fn former(&self) -> BTreeSet<KeyId> {
        let keys = self.by_name.read();
        let former = keys.values().filter_map(|key| key.versions.split_last());
        former
            .flat_map(|(_, former)| former.iter().map(|(id, _)| *id))
            .collect()
    }

    /// Removes versions that wrap no data keys any more. Blocks.
    ///
    /// # Errors
    /// Errors of the store; as [`Secrets::open`].
    pub fn strike(&self, store: &Store, secrets: &Secrets, former: &BTreeSet<KeyId>) -> terrace::Result<()> {
        let _alone = self.changing.lock();
        let names: Vec<_> = self.by_name.read().keys().cloned().collect();
        for name in names {
            let Some((mut record, condition)) = Record::stored(store, &name)? else {
                continue;
            };
            let all = record.versions.len();
            let ids = record.open(&name, secrets)?.versions;
            if ids.len() != all {
                continue;
            }
            let mut ids = ids.iter();
            record
                .versions
                .retain(|_| ids.next().is_none_or(|(id, _)| !former.contains(id)));
            if record.versions.len() == all {
                continue;
            }
            match record.store(store, &name, condition) {
                Ok(()) => drop(self.take(&name, record.open(&name, secrets)?)?),
                // It was re-encrypted meanwhile; the next run removes them.
                Err(Error::ConditionFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A key for this caller to wrap data keys with.
    ///
    /// # Errors
    /// The key does not exist, is disabled, or is not for this caller.
    pub fn wrapping(&self, name: &str, caller: &Caller) -> ObjectResult<Current> {
        self.latest(name, caller)?;
        Ok(Current {
            name: name.to_owned(),
            keys: self.clone(),
        })
    }

    fn latest(&self, name: &str, caller: &Caller) -> ObjectResult<(KeyId, LessSafeKey)> {
        let keys = self.by_name.read();
        let key = keys.get(name).ok_or_else(|| ObjectError::KmsNotFound(arn(name)))?;
        key.check(name, caller)?;
        key.versions.last().cloned().ok_or(ObjectError::MasterKeyMissing)
    }

    /// The parameters for rewrapping a data key of version `id`, even with a disabled key: the
    /// cipher that unwraps it, and ID and cipher of the latest version. `None` if `id` is the
    /// latest, or either is missing.
    pub fn anew(&self, name: &str, id: KeyId) -> Option<(LessSafeKey, KeyId, LessSafeKey)> {
        let keys = self.by_name.read();
        let versions = &keys.get(name)?.versions;
        let (_, former) = versions.iter().find(|(known, _)| *known == id)?;
        let (latest, cipher) = versions.last().filter(|(latest, _)| *latest != id)?;
        Some((former.clone(), *latest, cipher.clone()))
    }

    /// The cipher that unwraps with a version of a key, for this caller.
    ///
    /// # Errors
    /// As [`KmsKeys::wrapping`].
    pub fn unwrapping(&self, name: &str, id: KeyId, caller: &Caller) -> ObjectResult<LessSafeKey> {
        let keys = self.by_name.read();
        let key = keys.get(name).ok_or_else(|| ObjectError::KmsNotFound(arn(name)))?;
        key.check(name, caller)?;
        let version = key.versions.iter().find(|(known, _)| *known == id);
        version
            .map(|(_, cipher)| cipher.clone())
            .ok_or(ObjectError::MasterKeyMissing)
    }
}

impl Key {
    fn summary(&self, name: &str) -> Summary {
        Summary {
            name: name.to_owned(),
            created_ms: self.created_ms,
            is_disabled: self.is_disabled,
            principals: self.principals.clone(),
            versions: self.versions.len() - self.struck,
        }
    }

    fn check(&self, name: &str, caller: &Caller) -> ObjectResult {
        match caller {
            Caller::Anonymous => return Err(ObjectError::KmsNeedsVersion4),
            Caller::Server => {}
            Caller::Key { account, id } => {
                let is_theirs = |known: &String| **known == **account || known == id;
                if !self.principals.is_empty() && !self.principals.iter().any(is_theirs) {
                    return Err(ObjectError::KmsDenied(arn(name)));
                }
            }
        }
        if self.is_disabled {
            return Err(ObjectError::KmsDisabled(arn(name)));
        }
        Ok(())
    }
}

/// Encrypts all keys with the current master key that are not yet; without `writes`, only checks
/// that it is possible. Returns the number written. Blocks.
///
/// # Errors
/// As [`Secrets::open`]; errors of the store.
pub fn seal_anew(store: &Store, secrets: &Secrets, writes: bool) -> terrace::Result<u64> {
    let mut written = 0;
    for item in store.scan(ScanRange::prefix(keyspace::KMS_KEYS))? {
        let item = item?;
        let name = String::from_utf8_lossy(&item.key[keyspace::KMS_KEYS.len()..]).into_owned();
        let mut record = Record::read(&name, &item.value()?)?;
        let mut is_other = false;
        for version in &mut record.versions {
            if let Some(anew) = version.sealed_anew(&sealed_as(&name), secrets)? {
                *version = anew;
                is_other = true;
            }
        }
        if !is_other || !writes {
            continue;
        }
        match record.store(store, &name, Condition::VersionIs(item.info.version)) {
            Ok(()) => written += 1,
            // It was changed, and so encrypted with the current master key.
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests;
