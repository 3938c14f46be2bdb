//! Named keys for SSE-KMS (`aws:kms`): what a client means that names a key, without a key
//! management service.
//!
//! A key is a name with one or more versions, of 32 random bytes each. The latest wraps data keys,
//! the others open what they wrapped, until `terrace rewrap` has wrapped that anew and strikes
//! these out. A key is deleted only if it is disabled and nothing is encrypted with it. Both rest
//! on this: a thread that commits what a key wrapped asks for its latest version then, and holds a
//! lock until that is done ([`Current::hold`]), for which a thread that changes a key waits. They
//! are kept as secrets of access keys are: encrypted with the master key where one was given, else
//! as they are ([`super`]). A key may be for certain accounts and access keys only, and whoever is
//! none of them neither encrypts with it nor reads what it encrypts, whatever else lets them; that
//! is asked where a data key is wrapped or unwrapped, and nowhere else.

use super::{KEY_BYTES, KeyId, Secrets, StoredKey, wrapping_of};
use crate::{
    error::{ObjectError, ObjectResult},
    keyspace,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use ring::aead::LessSafeKey;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use terrace::{Condition, Durability, Error, PutOptions, ScanRange, Store};

/// The attribute of an object's record that names the key that wraps its data key, if one does.
pub const KMS_KEY: &str = "s3-kms-key";
/// The key of requests that name none, made when it is first asked for.
pub const DEFAULT: &str = "aws/s3";
/// What answers say of a key before its name.
const ARN: &str = "arn:aws:kms:us-east-1:terrace:key/";
/// Longest name.
const NAME_BYTES_MAX: usize = 128;

/// Who wants to use a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody whose signature says enough: none signed, or by version 2.
    Nobody,
    /// An access key, of an account.
    Key {
        /// Its account.
        account: Arc<str>,
        /// Its ID.
        id: String,
    },
    /// The server itself, or the command line.
    Server,
}

/// What is told of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Nothing is encrypted or decrypted with it.
    pub is_disabled: bool,
    /// Accounts and IDs of access keys that it is for; everybody's if there are none.
    pub principals: Vec<String>,
    /// How many versions it has.
    pub versions: usize,
}

/// What to do with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Make it, for these accounts and access keys, or for everybody.
    Create(Vec<String>),
    /// Give it another version.
    Rotate,
    /// Use it no more for now.
    Disable,
    /// Use it again.
    Enable,
    /// Forget it, if it is disabled and nothing is encrypted with it.
    Delete,
}

/// A key as it is stored.
#[derive(Serialize, Deserialize)]
struct Record {
    created_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    disabled: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    principals: Vec<String>,
    /// The latest is the last.
    versions: Vec<StoredKey>,
}

/// A key as it is used.
#[derive(Clone)]
struct Key {
    created_ms: u64,
    is_disabled: bool,
    principals: Vec<String>,
    /// None, if the master key is missing that they are encrypted with.
    versions: Vec<(KeyId, LessSafeKey)>,
    /// How many of them, the first ones, are not stored any more: for readers of a record that
    /// was wrapped anew meanwhile.
    struck: usize,
}

/// A key that something is to be encrypted with.
#[derive(Clone)]
pub struct Current {
    /// Its name.
    pub name: String,
    keys: KmsKeys,
}

impl Current {
    /// As long as this is held, [`Current::latest`] stays what it is. A thread that commits what
    /// that wrapped holds it until this is done.
    pub fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.keys.commits.read()
    }

    /// Its latest version, and what wraps with that.
    ///
    /// # Errors
    /// That it was disabled or deleted since it was chosen.
    pub fn latest(&self) -> ObjectResult<(KeyId, LessSafeKey)> {
        self.keys.latest(&self.name, &Caller::Server)
    }
}

/// The keys of a store. Clones are the same.
#[derive(Clone, Default)]
pub struct KmsKeys {
    by_name: Arc<RwLock<BTreeMap<String, Key>>>,
    /// Held by commits of what a key wrapped.
    commits: Arc<RwLock<()>>,
    /// Held by changes of them.
    changing: Arc<Mutex<()>>,
}

/// The name of a key that clients call by its name, alias, or ARN.
pub fn name_of(text: &str) -> &str {
    let name = match text.strip_prefix("arn:") {
        Some(rest) => rest.splitn(5, ':').nth(4).unwrap_or(""),
        None => text,
    };
    let bare = name.strip_prefix("key/").or_else(|| name.strip_prefix("alias/"));
    bare.unwrap_or(name)
}

/// How answers call a key.
pub fn arn(name: &str) -> String {
    format!("{ARN}{name}")
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// What a version of a key is encrypted as the secret of; no access key has such an ID.
fn sealed_as(name: &str) -> String {
    format!("kms-key {name}")
}

fn place(name: &str) -> String {
    format!("{}{name}", keyspace::KMS_KEYS)
}

impl Record {
    /// One with a version that is drawn now.
    fn new(name: &str, principals: Vec<String>, secrets: &Secrets) -> terrace::Result<Self> {
        let mut record = Self {
            created_ms: keyspace::now_ms(),
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

    /// The one that is stored, and the condition that it is still that one. `None`: there is none.
    fn stored(store: &Store, name: &str) -> terrace::Result<Option<(Self, Condition)>> {
        let Some(object) = store.get(place(name))? else {
            return Ok(None);
        };
        let record = Self::read(name, &object)?;
        Ok(Some((record, Condition::VersionIs(object.version))))
    }

    /// Stores it. It is durable when this returns, and nothing is wrapped with it before.
    fn store(&self, store: &Store, name: &str, condition: Condition) -> terrace::Result<()> {
        let json = serde_json::to_vec(self).map_err(|error| Error::invalid(error.to_string()))?;
        let options = PutOptions {
            durability: Durability::Sync,
            condition,
            ..PutOptions::default()
        };
        store.put_with(place(name), json, &options).map(drop)
    }

    /// The same, ready for use.
    fn open(&self, name: &str, secrets: &Secrets) -> terrace::Result<Key> {
        let versions = self.versions.iter().map(|version| {
            let (bytes, _) = version.open(&sealed_as(name), secrets)?;
            wrapping_of(&bytes).ok_or_else(|| Error::corruption(format!("the key {name}"), "its length"))
        });
        let versions: terrace::Result<Vec<_>> = versions.collect();
        let versions = match versions {
            // As with a store's own master key: what needs it says so.
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
    /// Reads the keys of a store. Blocks.
    ///
    /// # Errors
    /// The store's.
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

    /// What there is.
    pub fn all(&self) -> Vec<Summary> {
        let keys = self.by_name.read();
        keys.iter().map(|(name, key)| key.summary(name)).collect()
    }

    /// Changes a key, or makes one. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is there already, or not there, or can have no such name, or is to
    /// be deleted and cannot be; the store's.
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
                    (Record::new(name, principals.clone(), secrets)?, Condition::Absent)
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
                // It was encrypted anew meanwhile: what was read of it must not come back.
                Err(Error::ConditionFailed { .. }) => {}
                stored => {
                    stored?;
                    return self.take(name, record.open(name, secrets)?);
                }
            }
        }
    }

    /// Makes the key of requests that name none, if it is not there. Blocks.
    ///
    /// # Errors
    /// The store's.
    pub fn have_default(&self, store: &Store, secrets: &Secrets) -> terrace::Result<()> {
        match self.change(store, secrets, DEFAULT, Change::Create(Vec::new())) {
            // Of two that come at once one makes it.
            Err(Error::Invalid(_)) if self.has(DEFAULT) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Uses a key as it is now, once everything is committed that was wrapped with it as it was.
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

    /// Deletes a key that is disabled, with which nothing is encrypted. Since it is disabled,
    /// nothing has been, and what was begun before that was committed before, or refused.
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

    /// The versions of all keys that others have followed.
    pub fn former(&self) -> BTreeSet<KeyId> {
        let keys = self.by_name.read();
        let former = keys.values().filter_map(|key| key.versions.split_last());
        former
            .flat_map(|(_, former)| former.iter().map(|(id, _)| *id))
            .collect()
    }

    /// Strikes out versions with which nothing is wrapped any more. Blocks.
    ///
    /// # Errors
    /// The store's; as [`Secrets::open`].
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
                // It was encrypted anew meanwhile; the next time they go.
                Err(Error::ConditionFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The key of this name, for this caller to wrap data keys with.
    ///
    /// # Errors
    /// That there is none, that it is disabled, or not for them.
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

    /// The version of a key that is to wrap anew what another wrapped, what unwraps that, and what
    /// wraps with it; be the key disabled or not. `None` if that version is the latest, or one of
    /// them is not there.
    pub fn anew(&self, name: &str, id: KeyId) -> Option<(LessSafeKey, KeyId, LessSafeKey)> {
        let keys = self.by_name.read();
        let versions = &keys.get(name)?.versions;
        let (_, former) = versions.iter().find(|(known, _)| *known == id)?;
        let (latest, cipher) = versions.last().filter(|(latest, _)| *latest != id)?;
        Some((former.clone(), *latest, cipher.clone()))
    }

    /// What unwraps for this caller what a version of a key wrapped.
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
            Caller::Nobody => return Err(ObjectError::KmsNeedsVersion4),
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

/// Encrypts anew, with the current master key, what a former one encrypted, or none; or only tries
/// whether it can be. How many keys were written. Blocks.
///
/// # Errors
/// As [`Secrets::open`]; the store's.
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
            // It was changed, and encrypted with the current master key.
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests;
