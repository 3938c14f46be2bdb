//! Access keys and their permissions in each bucket.
//!
//! A key is a JSON record below [`keyspace::ACCESS_KEYS`]: its secret, creation time, account and
//! expiry, and its permissions: either a level for each bucket, each prefix `BUCKET/PREFIX` or all
//! buckets (`*`), or a policy, never both. The server keeps a copy of all keys ([`Keys`]). No other
//! process can change the store while the server runs, so `terrace key` sends its changes to the
//! server. The secret is needed to check signatures. It is stored encrypted if a master key is
//! given ([`Secrets`]), else as plain text that any reader of the store's files can use.

use super::{
    account::{self, Accounts},
    keyspace::{self, is_bucket_name},
    lasting::lasting,
    policy::Policy,
    secrets::Secrets,
    session::{self, Bounds, Made, NoSession, Session, Sessions},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
    sync::Arc,
};
use terrace::{Clock, Error, ScanRange, Store};

/// The bucket name that means all of them.
pub const ALL_BUCKETS: &str = "*";
/// Random letters in an access key's ID, after its four-letter prefix.
const ID_LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Permission level in a bucket; each level includes those before it.
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

/// `BUCKET=LEVEL` or `BUCKET/PREFIX=LEVEL` on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// A bucket name, `BUCKET/PREFIX`, or `*`.
    pub bucket: String,
    /// The level there.
    pub level: Level,
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}`: write it as BUCKET=read, BUCKET=write or BUCKET=admin; * is every bucket, BUCKET/PREFIX what \
                 begins with PREFIX"
            )
        };
        let (bucket, level) = text.rsplit_once('=').ok_or_else(wrong)?;
        let level = match level {
            "read" => Level::Read,
            "write" => Level::Write,
            "admin" => Level::Admin,
            _ => return Err(wrong()),
        };
        let name = bucket.split_once('/').map_or(bucket, |(name, _)| name);
        if bucket != ALL_BUCKETS && !is_bucket_name(name) {
            return Err(format!("`{name}` is not the name of a bucket"));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            level,
        })
    }
}

/// Parameters of a new key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Its permissions.
    pub grants: Vec<Grant>,
    /// Name of its account.
    pub account: String,
    /// A new e-mail address for that account, if it gets one.
    pub email: Option<String>,
    /// Expiry time in milliseconds since 1970; `None` if it never expires.
    pub expires_ms: Option<u64>,
    /// A policy, instead of grants.
    #[serde(default)]
    pub policy: Option<String>,
}

impl NewKey {
    /// A key of the default account without expiry.
    pub fn of_default(grants: &[Grant]) -> Self {
        Self {
            grants: grants.to_vec(),
            account: account::DEFAULT.to_owned(),
            email: None,
            expires_ms: None,
            policy: None,
        }
    }

    /// Checks that permissions are given either as grants or as a policy, and that a policy is
    /// valid.
    ///
    /// # Errors
    /// [`Error::Invalid`]
    fn check(&self) -> terrace::Result<()> {
        if self.policy.is_some() && !self.grants.is_empty() {
            return Err(Error::invalid("an access key has levels or a policy, not both"));
        }
        self.policy.as_deref().map_or(Ok(()), check_policy)
    }
}

fn check_policy(text: &str) -> terrace::Result<()> {
    Policy::of_key(text).map(drop).map_err(Error::invalid)
}

/// An access key as it is stored.
#[derive(Serialize, Deserialize)]
pub struct Stored {
    /// The secret, if it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The secret, if it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret_aes_256_gcm: Option<String>,
    /// Creation time, in milliseconds since 1970.
    pub created_ms: u64,
    /// Level by bucket.
    pub grants: BTreeMap<String, Level>,
    /// Its account, if not [`account::DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    /// Expiry time, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Its policy as the client sent it. A key with a policy has no grants, so an older program,
    /// which ignores policies, allows it nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

impl Stored {
    /// The account that it belongs to.
    pub fn account(&self) -> &str {
        self.account.as_deref().unwrap_or(account::DEFAULT)
    }

    /// Converts a key to its record.
    fn of(id: &str, key: &AccessKey, secrets: &Secrets) -> terrace::Result<Self> {
        let sealed = secrets.seal(id, &key.secret)?;
        Ok(Self {
            secret: sealed.is_none().then(|| key.secret.clone()),
            secret_aes_256_gcm: sealed,
            created_ms: key.created_ms,
            grants: key.grants.clone(),
            account: Some(key.account.to_string()).filter(|name| name != account::DEFAULT),
            expires_ms: key.expires_ms,
            policy: key.policy.as_ref().map(|policy| policy.text.clone()),
        })
    }

    /// Converts a record to a key.
    fn open(self, id: &str, secrets: &Secrets) -> terrace::Result<AccessKey> {
        let account = Arc::from(self.account());
        let secret = match (self.secret, &self.secret_aes_256_gcm) {
            (_, Some(sealed)) => secrets.open(id, sealed)?,
            (Some(secret), None) => secret,
            (None, None) => return Err(Error::corruption(format!("access key {id}"), "it has no secret")),
        };
        Ok(AccessKey {
            secret,
            created_ms: self.created_ms,
            grants: self.grants,
            account,
            expires_ms: self.expires_ms,
            policy: self.policy.map(|text| Own::open(id, text)),
        })
    }
}

/// A key's policy.
#[derive(Clone, PartialEq)]
pub struct Own {
    /// As the client sent it.
    pub text: String,
    /// Parsed.
    pub rules: Arc<Policy>,
}

impl Own {
    /// Parses a stored policy. One that cannot be parsed denies everything.
    fn open(id: &str, text: String) -> Self {
        let rules = Policy::of_key(&text).unwrap_or_else(|wrong| {
            tracing::error!(
                id,
                wrong,
                "the policy of an access key cannot be read; the key may do nothing until it has another"
            );
            Policy::denying_all()
        });
        Self {
            text,
            rules: Arc::new(rules),
        }
    }
}

/// An access key.
#[derive(Clone, PartialEq)]
pub struct AccessKey {
    /// The secret.
    pub secret: String,
    /// Creation time, in milliseconds since 1970.
    pub created_ms: u64,
    /// Level by bucket.
    pub grants: BTreeMap<String, Level>,
    /// The account that it belongs to.
    pub account: Arc<str>,
    /// Expiry time, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// A policy, instead of levels.
    pub policy: Option<Own>,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret: this output ends in logs.
        f.debug_struct("AccessKey")
            .field("account", &self.account)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

impl AccessKey {
    /// Makes a key with a new ID.
    pub fn generate(new: &NewKey, clock: &Clock) -> (String, Self) {
        let mut random = [0; 46];
        keyspace::fill_random(&mut random);
        let id = format!("TRCE{}", letters(&random[..16]));
        let key = Self {
            secret: STANDARD_NO_PAD.encode(&random[16..]),
            created_ms: clock.now_ms(),
            grants: new
                .grants
                .iter()
                .map(|grant| (grant.bucket.clone(), grant.level))
                .collect(),
            account: Arc::from(new.account.as_str()),
            expires_ms: new.expires_ms,
            policy: new.policy.clone().map(|text| Own::open(&id, text)),
        };
        (id, key)
    }

    /// Level in all of `bucket`, or for the object `key`, or for keys with that prefix.
    pub fn level(&self, bucket: &str, key: Option<&str>) -> Option<Level> {
        let whole = self.grants.get(bucket).max(self.grants.get(ALL_BUCKETS)).copied();
        let Some(key) = key else { return whole };
        let reaches = |prefix: &str| key.starts_with(prefix);
        self.prefixes(bucket)
            .filter(|(prefix, _)| reaches(prefix))
            .map(|(_, level)| Some(level))
            .fold(whole, Option::max)
    }

    /// The prefixes in a bucket for which it has a level.
    fn prefixes(&self, bucket: &str) -> impl Iterator<Item = (&str, Level)> {
        self.grants.iter().filter_map(move |(place, level)| {
            let prefix = place.strip_prefix(bucket)?.strip_prefix('/')?;
            Some((prefix, *level))
        })
    }

    fn rules(&self) -> Option<Arc<Policy>> {
        self.policy.as_ref().map(|policy| Arc::clone(&policy.rules))
    }

    /// Replaces its permissions by a policy, or by none.
    fn set_policy(&mut self, id: &str, text: Option<&str>) {
        self.grants.clear();
        self.policy = text.map(|text| Own::open(id, text.to_owned()));
    }

    fn is_good(&self, clock: &Clock) -> bool {
        self.expires_ms.is_none_or(|at| clock.now_ms() < at)
    }
}

fn letters(random: &[u8]) -> String {
    let letters = random.iter().map(|byte| ID_LETTERS[usize::from(byte % 32)]);
    letters.map(char::from).collect()
}

/// A key's permissions for the subject of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The account that it belongs to.
    pub account: Arc<str>,
    /// Its level there.
    pub level: Option<Level>,
    /// Its policy, instead of a level.
    pub policy: Option<Arc<Policy>>,
}

/// Makes a key in a store that no other process has open.
///
/// # Errors
/// Errors of the store; [`Error::Invalid`] if another account has the e-mail address.
pub fn create(opened: &Store, new: &NewKey, secrets: &Secrets) -> terrace::Result<(String, AccessKey)> {
    new.check()?;
    Accounts::load(opened)?.join(opened, &new.account, new.email.as_deref())?;
    let (id, key) = AccessKey::generate(new, opened.clock());
    store(opened, &id, &key, secrets)?;
    Ok((id, key))
}

/// Stores a key.
///
/// # Errors
/// Errors of the store.
pub fn store(store: &Store, id: &str, key: &AccessKey, secrets: &Secrets) -> terrace::Result<()> {
    put(store, id, &Stored::of(id, key, secrets)?)
}

fn put(store: &Store, id: &str, key: &Stored) -> terrace::Result<()> {
    let json = serde_json::to_vec(key).map_err(|error| Error::invalid(error.to_string()))?;
    store.put(keyspace::access_key(id), lasting(json)).map(|_| ())
}

/// Replaces the permissions of a key by a policy, or by none, in a store that no other process has
/// open. Returns the new record; `None` if there is no such key.
///
/// # Errors
/// [`Error::Invalid`] if the policy is not valid for a key; errors of the store.
pub fn set_policy(store: &Store, id: &str, text: Option<&str>) -> terrace::Result<Option<Stored>> {
    text.map_or(Ok(()), check_policy)?;
    let Some(mut found) = stored(store)?.remove(id) else {
        return Ok(None);
    };
    found.grants.clear();
    found.policy = text.map(str::to_owned);
    put(store, id, &found)?;
    Ok(Some(found))
}

/// Removes a key. Returns whether it existed.
///
/// # Errors
/// Errors of the store.
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
/// Errors of the store; [`Error::Corruption`] for a record that cannot be decoded.
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

/// The access keys of a store that a server has open. All changes go through this type.
#[derive(Debug, Default)]
pub struct Keys {
    by_id: RwLock<HashMap<String, AccessKey>>,
    accounts: RwLock<Accounts>,
    /// Derives temporary credentials; `None` until the first session.
    sessions: RwLock<Option<Arc<Sessions>>>,
    /// Held while a key is made.
    making: Mutex<()>,
    secrets: Secrets,
    /// The store's.
    clock: Clock,
}

impl Keys {
    /// Reads all keys, and encrypts plain secrets if a master key is given.
    ///
    /// # Errors
    /// As [`stored`] and [`Secrets::open`].
    pub fn load(opened: &Store, secrets: Secrets) -> terrace::Result<Self> {
        let mut by_id = HashMap::new();
        for (id, found) in stored(opened)? {
            let is_plain = found.secret_aes_256_gcm.is_none();
            let key = found.open(&id, &secrets)?;
            if is_plain && secrets.is_given() {
                store(opened, &id, &key, &secrets)?;
                tracing::info!(id, "the secret of an access key is encrypted from now on");
            }
            by_id.insert(id, key);
        }
        Ok(Self {
            by_id: RwLock::new(by_id),
            accounts: RwLock::new(Accounts::load(opened)?),
            sessions: RwLock::new(Sessions::stored(opened, &secrets)?.map(Arc::new)),
            making: Mutex::default(),
            secrets,
            clock: opened.clock().clone(),
        })
    }

    /// Calls `ask` with a key that exists and has not expired. A session's ID selects its key.
    fn of<T>(&self, id: &str, ask: impl FnOnce(&AccessKey) -> T) -> Option<T> {
        let parent = session::parent(id);
        let id = parent.as_deref().unwrap_or(id);
        self.by_id
            .read()
            .get(id)
            .filter(|key| key.is_good(&self.clock))
            .map(ask)
    }

    /// The secret of a key, or of a session of one, if there is such a key.
    pub fn secret(&self, id: &str) -> Option<String> {
        if session::parent(id).is_some() {
            // A session has its key's permissions, but a secret of its own.
            self.of(id, |_| ())?;
            return Some(self.sessions.read().as_ref()?.secret(id));
        }
        self.of(id, |key| key.secret.clone())
    }

    /// The session with this ID and token.
    ///
    /// # Errors
    /// [`NoSession`]
    pub fn session(&self, id: &str, token: &str) -> Result<Session, NoSession> {
        let sessions = self.sessions.read().clone();
        sessions.ok_or(NoSession::Invalid)?.open(id, token, &self.clock)
    }

    /// Makes temporary credentials for a key. `None` if its ID has another form. Blocks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn assume(&self, opened: &Store, id: &str, bounds: &Bounds) -> terrace::Result<Option<Made>> {
        let mut random = [0; 16];
        keyspace::fill_random(&mut random);
        self.to_make_sessions(opened)?.make(id, &letters(&random), bounds)
    }

    fn to_make_sessions(&self, opened: &Store) -> terrace::Result<Arc<Sessions>> {
        let _making = self.making.lock();
        let known = self.sessions.read().clone();
        if let Some(sessions) = known {
            return Ok(sessions);
        }
        let sessions = Arc::new(Sessions::begin(opened, &self.secrets)?);
        *self.sessions.write() = Some(Arc::clone(&sessions));
        Ok(sessions)
    }

    /// The account of a key, if there is such a key.
    pub fn account(&self, id: &str) -> Option<Arc<str>> {
        self.of(id, |key| Arc::clone(&key.account))
    }

    /// Permissions of a key in all of `bucket`, or for the object `key`, or for keys with that
    /// prefix.
    pub fn standing(&self, id: &str, bucket: &str, key: Option<&str>) -> Option<Standing> {
        self.of(id, |found| Standing {
            account: Arc::clone(&found.account),
            level: found.level(bucket, key),
            policy: found.rules(),
        })
    }

    /// The policy of a key, if it has one.
    pub fn policy(&self, id: &str) -> Option<Arc<Policy>> {
        self.of(id, AccessKey::rules).flatten()
    }

    /// Whether a key has every permission in all buckets of its account, and no policy that limits
    /// it.
    pub fn may_everything(&self, id: &str) -> bool {
        let may = |key: &AccessKey| key.policy.is_none() && key.grants.get(ALL_BUCKETS) == Some(&Level::Admin);
        self.of(id, may) == Some(true)
    }

    /// Whether the permissions of a key in `bucket` differ between objects.
    pub fn is_limited(&self, id: &str, bucket: &str) -> bool {
        self.of(id, |key| key.prefixes(bucket).next().is_some()) == Some(true)
    }

    /// Whether `bucket` is in a key's list of buckets: it has a permission there, or its policy
    /// allows it to list buckets.
    pub fn sees(&self, id: &str, bucket: &str) -> bool {
        let sees = |key: &AccessKey| {
            key.policy.is_some() || key.level(bucket, None).is_some() || key.prefixes(bucket).next().is_some()
        };
        self.of(id, sees) == Some(true)
    }

    /// Calls `ask` with the accounts.
    pub fn accounts<T>(&self, ask: impl FnOnce(&Accounts) -> T) -> T {
        ask(&self.accounts.read())
    }

    /// All of them, by ID.
    pub fn all(&self) -> BTreeMap<String, AccessKey> {
        let keys = self.by_id.read();
        keys.iter().map(|(id, key)| (id.clone(), key.clone())).collect()
    }

    /// Makes a key. It is valid when this returns. Blocks.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Invalid`] if another account has the e-mail address.
    pub fn create(&self, opened: &Store, new: &NewKey) -> terrace::Result<(String, AccessKey)> {
        new.check()?;
        let _making = self.making.lock();
        // Works on a copy, so that no reader of the list waits for a disk.
        let mut accounts = self.accounts.read().clone();
        accounts.join(opened, &new.account, new.email.as_deref())?;
        *self.accounts.write() = accounts;
        let (id, key) = AccessKey::generate(new, opened.clock());
        store(opened, &id, &key, &self.secrets)?;
        self.by_id.write().insert(id.clone(), key.clone());
        Ok((id, key))
    }

    /// Replaces the permissions of a key by a policy, or by none, for all later requests. Returns
    /// the new key; `None` if it does not exist. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the policy is not valid for a key; errors of the store.
    pub fn set_policy(&self, opened: &Store, id: &str, text: Option<&str>) -> terrace::Result<Option<AccessKey>> {
        text.map_or(Ok(()), check_policy)?;
        let _making = self.making.lock();
        let Some(mut key) = self.by_id.read().get(id).cloned() else {
            return Ok(None);
        };
        key.set_policy(id, text);
        store(opened, id, &key, &self.secrets)?;
        self.by_id.write().insert(id.to_owned(), key.clone());
        Ok(Some(key))
    }

    /// Removes a key: later requests are refused, those under way finish. Returns whether it
    /// existed. Blocks.
    ///
    /// # Errors
    /// Errors of the store. This server refuses the key nevertheless.
    pub fn remove(&self, opened: &Store, id: &str) -> terrace::Result<bool> {
        let _making = self.making.lock();
        self.by_id.write().remove(id);
        remove(opened, id)
    }
}

#[cfg(test)]
mod tests;
