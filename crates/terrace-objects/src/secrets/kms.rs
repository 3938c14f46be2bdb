//! Named keys for SSE-KMS (`aws:kms`): what a client means that names a key, without a key
//! management service.
//!
//! A key is a name with one or more versions, of 32 random bytes each. The latest wraps data keys,
//! the others open what they wrapped; none is ever deleted, so rotating one loses nothing. They are
//! kept as secrets of access keys are: encrypted with the master key where one was given, else as
//! they are ([`super`]). A key may be for certain accounts and access keys only, and
//! whoever is none of them neither encrypts with it nor reads what it encrypts, whatever else lets
//! them; that is asked where a data key is wrapped or unwrapped, and nowhere else.

use super::{KEY_BYTES, KeyId, Secrets, StoredKey, wrapping_of};
use crate::{
    error::{ObjectError, ObjectResult},
    keyspace,
};
use parking_lot::{Mutex, RwLock};
use ring::aead::LessSafeKey;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use terrace::{Condition, Durability, Error, PutOptions, ScanRange, Store};

/// The key of who names none, made when it is first asked for.
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
}

/// A key that something is to be encrypted with.
#[derive(Clone)]
pub struct Current {
    /// Its name.
    pub name: String,
    /// Its latest version.
    pub id: KeyId,
    /// What wraps with that.
    pub cipher: LessSafeKey,
}

/// The keys of a store. Clones are the same.
#[derive(Clone, Default)]
pub struct KmsKeys {
    by_name: Arc<RwLock<BTreeMap<String, Key>>>,
    /// Held by who changes them.
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
    /// [`Error::Invalid`] if it is there already, or not there, or can have no such name; the
    /// store's.
    pub fn change(&self, store: &Store, secrets: &Secrets, name: &str, change: Change) -> terrace::Result<Summary> {
        if !is_name(name) {
            return Err(Error::invalid(format!(
                "{name:?} can be no name of a key: letters, digits and -_./, {NAME_BYTES_MAX} at most"
            )));
        }
        let _alone = self.changing.lock();
        loop {
            let (record, condition) = match (&change, store.head(place(name))?) {
                (Change::Create(_), Some(_)) => return Err(Error::invalid(format!("there is a key {name} already"))),
                (Change::Create(principals), None) => {
                    (Record::new(name, principals.clone(), secrets)?, Condition::Absent)
                }
                (_, None) => return Err(Error::invalid(format!("there is no key {name}"))),
                (_, Some(info)) => {
                    let json = store.get(place(name))?;
                    let mut record = Record::read(name, json.as_deref().unwrap_or_default())?;
                    match change {
                        Change::Rotate => record.rotate(name, secrets)?,
                        Change::Disable => record.disabled = true,
                        Change::Enable | Change::Create(_) => record.disabled = false,
                    }
                    (record, Condition::VersionIs(info.version))
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

    /// Makes the key of who names none, if it is not there. Blocks.
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

    fn take(&self, name: &str, key: Key) -> terrace::Result<Summary> {
        let summary = key.summary(name);
        self.by_name.write().insert(name.to_owned(), key);
        Ok(summary)
    }

    /// What wraps data keys for this caller with the key of this name.
    ///
    /// # Errors
    /// That there is none, that it is disabled, or not for them.
    pub fn wrapping(&self, name: &str, caller: &Caller) -> ObjectResult<Current> {
        let keys = self.by_name.read();
        let key = keys.get(name).ok_or_else(|| ObjectError::KmsNotFound(arn(name)))?;
        key.check(name, caller)?;
        let (id, cipher) = key.versions.last().cloned().ok_or(ObjectError::MasterKeyMissing)?;
        let name = name.to_owned();
        Ok(Current { name, id, cipher })
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
            versions: self.versions.len(),
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
