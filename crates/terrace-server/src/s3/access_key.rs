//! Access keys: who may do what in which bucket.
//!
//! A key is a record below [`keyspace::ACCESS_KEYS`]: JSON with the secret, when it was made, and a
//! level for each bucket, or for all under the name `*`. A server keeps a copy of all of them
//! ([`Keys`]), and nobody else can change the store while it runs: `terrace key` asks it to.
//! Signatures are checked with the secret, so it must be there: encrypted where a key for that is
//! given ([`Secrets`]), else as it is, and then whoever can read the store's files can use it.

use super::{keyspace, secrets::Secrets};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
};
use terrace::{Error, ScanRange, Store};

/// The bucket name that stands for all of them.
pub const ALL_BUCKETS: &str = "*";
/// Letters of an access key's ID after its first four.
const ID_LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// What a key may do in a bucket; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// List and read objects.
    Read,
    /// Write and delete objects too.
    Write,
    /// Create, configure and delete the bucket too.
    Admin,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        })
    }
}

/// `BUCKET=LEVEL` on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// A bucket, or `*`.
    pub bucket: String,
    /// The level there.
    pub level: Level,
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: write it as BUCKET=read, BUCKET=write or BUCKET=admin; * is every bucket");
        let (bucket, level) = text.split_once('=').ok_or_else(wrong)?;
        let level = match level {
            "read" => Level::Read,
            "write" => Level::Write,
            "admin" => Level::Admin,
            _ => return Err(wrong()),
        };
        if bucket != ALL_BUCKETS && !s3s::path::check_bucket_name(bucket) {
            return Err(format!("`{bucket}` is not the name of a bucket"));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            level,
        })
    }
}

/// An access key as it is stored.
#[derive(Serialize, Deserialize)]
pub struct Stored {
    /// The secret, if it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The secret, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret_aes_256_gcm: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Level by bucket.
    pub grants: BTreeMap<String, Level>,
}

impl Stored {
    /// Stores a key.
    fn of(id: &str, key: &AccessKey, secrets: &Secrets) -> terrace::Result<Self> {
        let sealed = secrets.seal(id, &key.secret)?;
        Ok(Self {
            secret: sealed.is_none().then(|| key.secret.clone()),
            secret_aes_256_gcm: sealed,
            created_ms: key.created_ms,
            grants: key.grants.clone(),
        })
    }

    /// The key that was stored.
    fn open(self, id: &str, secrets: &Secrets) -> terrace::Result<AccessKey> {
        let secret = match (self.secret, &self.secret_aes_256_gcm) {
            (_, Some(sealed)) => secrets.open(id, sealed)?,
            (Some(secret), None) => secret,
            (None, None) => return Err(Error::corruption(format!("access key {id}"), "it has no secret")),
        };
        Ok(AccessKey {
            secret,
            created_ms: self.created_ms,
            grants: self.grants,
        })
    }
}

/// An access key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// The secret.
    pub secret: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Level by bucket.
    pub grants: BTreeMap<String, Level>,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret: this ends in logs.
        f.debug_struct("AccessKey")
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

impl AccessKey {
    /// A new key with an ID.
    pub fn generate(grants: &[Grant]) -> (String, Self) {
        let mut random = [0; 46];
        keyspace::fill_random(&mut random);
        let letters = random[..16]
            .iter()
            .map(|byte| char::from(ID_LETTERS[usize::from(byte % 32)]));
        let id = "TRCE".chars().chain(letters).collect();
        let key = Self {
            secret: STANDARD_NO_PAD.encode(&random[16..]),
            created_ms: keyspace::now_ms(),
            grants: grants.iter().map(|grant| (grant.bucket.clone(), grant.level)).collect(),
        };
        (id, key)
    }

    /// What it may do in `bucket`.
    pub fn level(&self, bucket: &str) -> Option<Level> {
        self.grants.get(bucket).max(self.grants.get(ALL_BUCKETS)).copied()
    }
}

/// Stores a key.
///
/// # Errors
/// The store's.
pub fn store(store: &Store, id: &str, key: &AccessKey, secrets: &Secrets) -> terrace::Result<()> {
    let json = serde_json::to_vec(&Stored::of(id, key, secrets)?).map_err(|error| Error::invalid(error.to_string()))?;
    store.put(keyspace::access_key(id), json).map(|_| ())
}

/// Removes a key. Whether it was there.
///
/// # Errors
/// The store's.
pub fn remove(store: &Store, id: &str) -> terrace::Result<bool> {
    let key = keyspace::access_key(id);
    if id.is_empty() || key.len() > terrace::KEY_BYTES_MAX || store.head(&key)?.is_none() {
        return Ok(false);
    }
    store.delete(key).map(|_| true)
}

/// All keys of a store as they are stored, by ID.
///
/// # Errors
/// The store's; [`Error::Corruption`] for a record that is none.
pub fn stored(store: &Store) -> terrace::Result<BTreeMap<String, Stored>> {
    let mut keys = BTreeMap::new();
    for item in store.scan(ScanRange::prefix(keyspace::ACCESS_KEYS))? {
        let item = item?;
        let id = String::from_utf8_lossy(&item.key[keyspace::ACCESS_KEYS.len()..]).into_owned();
        let key = serde_json::from_slice(&item.value()?)
            .map_err(|error| Error::corruption(format!("access key {id}"), error.to_string()))?;
        keys.insert(id, key);
    }
    Ok(keys)
}

/// The access keys of a store that a server has open: they are changed here, and nowhere else.
#[derive(Debug, Default)]
pub struct Keys {
    by_id: RwLock<HashMap<String, AccessKey>>,
    secrets: Secrets,
}

impl Keys {
    /// Reads all of them, and encrypts those that are not yet, if there is a key for that.
    ///
    /// # Errors
    /// As [`stored`] and [`Secrets::open`].
    pub fn load(opened: &Store, secrets: Secrets) -> terrace::Result<Self> {
        let mut by_id = HashMap::new();
        for (id, found) in stored(opened)? {
            let is_plain = found.secret_aes_256_gcm.is_none();
            let key = found.open(&id, &secrets)?;
            if is_plain && secrets.has_key() {
                store(opened, &id, &key, &secrets)?;
                tracing::info!(id, "the secret of an access key is encrypted from now on");
            }
            by_id.insert(id, key);
        }
        Ok(Self {
            by_id: RwLock::new(by_id),
            secrets,
        })
    }

    /// The secret of a key, if there is such a key.
    pub fn secret(&self, id: &str) -> Option<String> {
        self.by_id.read().get(id).map(|key| key.secret.clone())
    }

    /// What a key may do in `bucket`.
    pub fn level(&self, id: &str, bucket: &str) -> Option<Level> {
        self.by_id.read().get(id)?.level(bucket)
    }

    /// All of them, by ID.
    pub fn all(&self) -> BTreeMap<String, AccessKey> {
        let keys = self.by_id.read();
        keys.iter().map(|(id, key)| (id.clone(), key.clone())).collect()
    }

    /// Makes a key. It counts from now on. Blocks.
    ///
    /// # Errors
    /// The store's.
    pub fn create(&self, opened: &Store, grants: &[Grant]) -> terrace::Result<(String, AccessKey)> {
        let (id, key) = AccessKey::generate(grants);
        store(opened, &id, &key, &self.secrets)?;
        self.by_id.write().insert(id.clone(), key.clone());
        Ok((id, key))
    }

    /// Removes a key: requests that are not under way yet are refused. Whether it was there. Blocks.
    ///
    /// # Errors
    /// The store's. The key counts no more in this server all the same.
    pub fn remove(&self, opened: &Store, id: &str) -> terrace::Result<bool> {
        self.by_id.write().remove(id);
        remove(opened, id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::Options;

    #[test]
    fn grants_are_read() {
        let grant: Grant = "photos=write".parse().unwrap();
        assert_eq!((grant.bucket.as_str(), grant.level), ("photos", Level::Write));
        assert_eq!("*=admin".parse::<Grant>().unwrap().bucket, ALL_BUCKETS);
        for text in ["", "photos", "photos=", "photos=all", "=read", "A_b=read", "**=read"] {
            assert!(text.parse::<Grant>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_higher_level_counts() {
        let (_, key) = AccessKey::generate(&["*=read".parse().unwrap(), "mine=admin".parse().unwrap()]);
        assert_eq!(key.level("mine"), Some(Level::Admin));
        assert_eq!(key.level("other"), Some(Level::Read));
        let (_, key) = AccessKey::generate(&["mine=write".parse().unwrap()]);
        assert_eq!((key.level("mine"), key.level("other")), (Some(Level::Write), None));
    }

    #[test]
    fn keys_are_kept_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Store::open(Options::new(dir.path())).unwrap();
        let (id, key) = AccessKey::generate(&["*=admin".parse().unwrap()]);
        assert_eq!(id.len(), 20);
        assert!(!format!("{key:?}").contains(&key.secret));
        let none = Secrets::default();
        store(&opened, &id, &key, &none).unwrap();
        let loaded = |secrets| Keys::load(&opened, secrets).map(|keys| keys.all());
        assert_eq!(loaded(Secrets::default()).unwrap(), BTreeMap::from([(id.clone(), key)]));
        assert!(remove(&opened, &id).unwrap());
        assert!(!remove(&opened, &id).unwrap());
        assert!(stored(&opened).unwrap().is_empty());
        let keys = Keys::load(&opened, none).unwrap();
        let (id, key) = keys.create(&opened, &["mine=read".parse().unwrap()]).unwrap();
        assert_eq!(keys.secret(&id), Some(key.secret.clone()));
        assert_eq!(
            (keys.level(&id, "mine"), keys.level(&id, "other")),
            (Some(Level::Read), None)
        );
        assert_eq!(loaded(Secrets::default()).unwrap(), BTreeMap::from([(id.clone(), key)]));
        assert!(keys.remove(&opened, &id).unwrap() && !keys.remove(&opened, &id).unwrap());
        assert!(keys.secret(&id).is_none() && stored(&opened).unwrap().is_empty());
    }

    /// Secrets were in the store's files as they are.
    #[test]
    fn secrets_are_encrypted_where_there_is_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Store::open(Options::new(dir.path())).unwrap();
        let secrets = |digits: &str| Secrets::with_key(&digits.repeat(32)).unwrap();
        let record = br#"{"secret":"plain","created_ms":7,"grants":{"*":"admin"}}"#;
        opened.put(keyspace::access_key("TRCEOLD"), &record[..]).unwrap();
        let keys = Keys::load(&opened, secrets("0f")).unwrap();
        let (new, made) = keys.create(&opened, &["mine=read".parse().unwrap()]).unwrap();
        for (id, found) in stored(&opened).unwrap() {
            assert!(found.secret.is_none() && found.secret_aes_256_gcm.is_some(), "{id}");
        }
        let keys = Keys::load(&opened, secrets("0f")).unwrap();
        assert_eq!(keys.secret("TRCEOLD").as_deref(), Some("plain"));
        assert_eq!(keys.secret(&new), Some(made.secret));
        let refused = |secrets| Keys::load(&opened, secrets).unwrap_err().to_string();
        assert!(refused(secrets("0e")).contains("another key"));
        assert!(refused(Secrets::default()).contains("TERRACE_SECRETS_KEY"));
    }
}
