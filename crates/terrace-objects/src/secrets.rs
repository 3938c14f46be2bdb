//! The master keys, and what they encrypt directly: secrets of access keys in the store. They also
//! wrap data keys ([`crate::crypt`]).
//!
//! Several keys may be given. The first is the current one and encrypts everything new. The others
//! only decrypt existing data, until `terrace rewrap` has encrypted that again.
//!
//! The cipher is AES-256-GCM from `ring`, with a random nonce per secret and the access key's ID as
//! additional data, so that a secret cannot be moved to another ID. Nonce, ciphertext and tag are
//! stored as base64 (docs/s3.md). Data keys are wrapped with a key derived from the master key, so
//! the two uses share no nonces; each may use 2^32.
//!
//! The store records which master keys have been used ([`Secrets::register`]), so a server that
//! lacks one fails at start and not when a request reads.
//!
//! If none is given, the store generates a master key when a request first asks for SSE-S3
//! ([`Secrets::draw_own`]) and stores it beside the data that it wraps. Any reader of all the
//! store's files then has the key. It wraps data keys only; encrypting secrets of access keys with
//! it would protect nothing.

pub mod kms;

use super::{keyspace, lasting::lasting, text};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use kms::KmsKeys;
use parking_lot::{RwLock, RwLockReadGuard};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};
use terrace::{Condition, Durability, Error, PutOptions, ScanRange, Store};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Most master keys: the current one, and former ones of unfinished rotations.
const KEYS_MAX: usize = 16;
/// Prefix of the additional data.
const CONTEXT: &str = "terrace access key ";
/// Context for deriving the key that wraps data keys.
const WRAPPING: &[u8] = b"terrace wrapping key";
/// Context for deriving the ID of a master key.
const NAMING: &[u8] = b"terrace master key id";

/// The field of a generated key's record that holds it encrypted.
pub const SEALED: &str = "key_aes_256_gcm";
/// ID under which the store's own master key is encrypted; no access key has it.
pub const OWN_ID: &str = "own-master-key";

/// A key that the store generated, as stored: 64 hex digits, or the encrypted key.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_aes_256_gcm: Option<String>,
}

impl StoredKey {
    /// Encrypts `key` under `id`, if a master key is given.
    ///
    /// # Errors
    /// As [`Secrets::seal`].
    pub fn of(id: &str, key: &[u8; KEY_BYTES], secrets: &Secrets) -> terrace::Result<Self> {
        let key = text::hex(key);
        let sealed = secrets.seal(id, &key)?;
        Ok(Self {
            key: sealed.is_none().then_some(key),
            key_aes_256_gcm: sealed,
        })
    }

    /// The key, and whether it is stored unencrypted.
    ///
    /// # Errors
    /// As [`Secrets::open`].
    pub fn open(&self, id: &str, secrets: &Secrets) -> terrace::Result<([u8; KEY_BYTES], bool)> {
        let wrong = |what: &str| Error::corruption(format!("the {id} of the store"), what.to_owned());
        let text = match (&self.key, &self.key_aes_256_gcm) {
            (_, Some(sealed)) => secrets.open(id, sealed)?,
            (Some(key), None) => key.clone(),
            (None, None) => return Err(wrong("it is not there")),
        };
        let key = of_hex(&text).and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| wrong("it is not 64 hex digits"))?;
        Ok((key, self.key_aes_256_gcm.is_none()))
    }

    /// Encrypts it with the current master key. `None` if it is already, or there is no master key.
    ///
    /// # Errors
    /// As [`Secrets::open`].
    pub fn sealed_anew(&self, id: &str, secrets: &Secrets) -> terrace::Result<Option<Self>> {
        let key_aes_256_gcm = match (&self.key, &self.key_aes_256_gcm) {
            (_, Some(sealed)) => secrets.sealed_anew(id, sealed)?,
            (Some(key), None) => secrets.seal(id, key)?,
            (None, None) => None,
        };
        Ok(key_aes_256_gcm.is_some().then_some(Self {
            key: None,
            key_aes_256_gcm,
        }))
    }
}

/// Where a store keeps a key that it generated, and the ID for its encryption.
#[derive(Clone, Copy)]
pub(crate) struct Drawn {
    /// The key of its record.
    pub place: &'static str,
    /// An ID that no access key has.
    pub id: &'static str,
}

const OWN: Drawn = Drawn {
    place: keyspace::OWN_MASTER_KEY,
    id: OWN_ID,
};

impl Drawn {
    /// Generates a key and stores it durably.
    ///
    /// # Errors
    /// Errors of the store; [`Error::ConditionFailed`] if there is one already.
    pub fn draw(self, store: &Store, secrets: &Secrets) -> terrace::Result<[u8; KEY_BYTES]> {
        let mut key = [0; KEY_BYTES];
        keyspace::fill_random(&mut key);
        self.store(store, &key, secrets, Condition::Absent)?;
        Ok(key)
    }

    fn store(
        self,
        store: &Store,
        key: &[u8; KEY_BYTES],
        secrets: &Secrets,
        condition: Condition,
    ) -> terrace::Result<()> {
        let record = StoredKey::of(self.id, key, secrets)?;
        let json = serde_json::to_vec(&record).map_err(|error| Error::invalid(error.to_string()))?;
        let options = PutOptions {
            durability: Durability::Sync,
            condition,
            ..PutOptions::default()
        };
        store.put_with(self.place, lasting(json), &options).map(drop)
    }

    /// The stored key, if there is one, and whether it is unencrypted.
    ///
    /// # Errors
    /// Errors of the store, and as [`Secrets::open`].
    pub fn stored(self, store: &Store, secrets: &Secrets) -> terrace::Result<Option<([u8; KEY_BYTES], bool)>> {
        let Some(json) = store.get(self.place)? else {
            return Ok(None);
        };
        let wrong = |what: &str| Error::corruption(format!("the {} of the store", self.id), what.to_owned());
        let record: StoredKey = serde_json::from_slice(&json).map_err(|error| wrong(&error.to_string()))?;
        record.open(self.id, secrets).map(Some)
    }

    /// The stored key, if there is one. Encrypts it in the store if a master key is given.
    ///
    /// # Errors
    /// As [`Drawn::stored`].
    pub fn kept(self, store: &Store, secrets: &Secrets) -> terrace::Result<Option<[u8; KEY_BYTES]>> {
        let Some((key, is_plain)) = self.stored(store, secrets)? else {
            return Ok(None);
        };
        if is_plain && secrets.is_given() {
            self.store(store, &key, secrets, Condition::Present)?;
        }
        Ok(Some(key))
    }
}

/// Decodes hex digits.
fn of_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let pair = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

/// Identifies a master key without revealing it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl KeyId {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 16)?;
        u64::from_str_radix(text, 16)
            .ok()
            .map(|number| Self(number.to_be_bytes()))
    }
}

/// One master key, as the keys derived from it.
#[derive(Clone)]
struct MasterKey {
    id: KeyId,
    secrets: LessSafeKey,
    wrapping: LessSafeKey,
    /// The store generated it.
    is_own: bool,
}

impl MasterKey {
    /// Reads 64 hex digits.
    fn parse(text: &str) -> Option<Self> {
        Self::of(&of_hex(text)?)
    }

    /// `None` if the length is wrong.
    fn of(bytes: &[u8]) -> Option<Self> {
        let master = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let mut id = [0; 8];
        id.copy_from_slice(&hmac::sign(&master, NAMING).as_ref()[..8]);
        Some(Self {
            id: KeyId(id),
            secrets: cipher(bytes)?,
            wrapping: cipher(hmac::sign(&master, WRAPPING).as_ref())?,
            is_own: false,
        })
    }

    fn own(bytes: &[u8]) -> Option<Self> {
        let is_own = true;
        Self::of(bytes).map(|key| Self { is_own, ..key })
    }
}

/// The ID of a key, and the derived key that wraps data keys; `None` if the length is wrong.
pub(crate) fn wrapping_of(bytes: &[u8]) -> Option<(KeyId, LessSafeKey)> {
    MasterKey::of(bytes).map(|key| (key.id, key.wrapping))
}

/// The cipher of a key; `None` if the length is wrong.
pub fn cipher(key: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new)
}

/// The master keys. Clones share them.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<MasterKey>>>, KmsKeys);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the keys: this output ends in logs.
        f.debug_struct("Secrets").field("ids", &self.ids()).finish()
    }
}

/// The current master key, which is not replaced while this lives.
pub struct Current<'s>(RwLockReadGuard<'s, Vec<MasterKey>>);

impl Current<'_> {
    /// Its ID and the key that wraps data keys. `None` if there is no master key.
    pub fn wrapping(&self) -> Option<(KeyId, &LessSafeKey)> {
        self.0.first().map(|key| (key.id, &key.wrapping))
    }
}

impl Secrets {
    /// Parses keys of 64 hex digits each, separated by white space. The first encrypts, all
    /// decrypt.
    ///
    /// # Errors
    /// A message that describes valid keys.
    pub fn with_key(text: &str) -> Result<Self, String> {
        let keys: Option<Vec<_>> = text.split_ascii_whitespace().map(MasterKey::parse).collect();
        let keys = keys.filter(|keys| (1..=KEYS_MAX).contains(&keys.len()));
        keys.map(|keys| Self(Arc::new(RwLock::new(keys)), KmsKeys::default()))
            .ok_or_else(|| {
                "the key for secrets must be 64 hex digits, like `openssl rand -hex 32` prints them; below it may be \
             former ones, a line each"
                    .to_owned()
            })
    }

    /// The KMS keys.
    pub const fn kms(&self) -> &KmsKeys {
        &self.1
    }

    /// Whether there is a master key, given or the store's own.
    pub fn has_key(&self) -> bool {
        !self.0.read().is_empty()
    }

    /// Whether a master key was given.
    pub fn is_given(&self) -> bool {
        self.0.read().iter().any(|key| !key.is_own)
    }

    /// The IDs of all keys, the current one first.
    pub fn ids(&self) -> Vec<KeyId> {
        self.0.read().iter().map(|key| key.id).collect()
    }

    /// The IDs of the given keys, the current one first.
    fn given(&self) -> Vec<KeyId> {
        let keys = self.0.read();
        keys.iter().filter(|key| !key.is_own).map(|key| key.id).collect()
    }

    /// Loads the store's own master key, if there is one, after the given ones, so that it only
    /// decrypts if any are given. Does nothing if it is encrypted with a key that is not given;
    /// operations that need it then fail. Blocks, and writes nothing.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn load_own(&self, store: &Store) -> terrace::Result<()> {
        match OWN.stored(store, self) {
            Ok(Some((own, _))) => self.add_own(&own),
            Ok(None) | Err(Error::Invalid(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Like [`Secrets::load_own`], and encrypts it in the store if a master key is given.
    ///
    /// # Errors
    /// Errors of the store, and as [`Secrets::open`].
    pub fn keep_own(&self, store: &Store) -> terrace::Result<()> {
        if let Some(own) = OWN.kept(store, self)? {
            self.add_own(&own);
        }
        Ok(())
    }

    /// Ensures that there is a master key: generates one if none is given. It is durable before
    /// anything is wrapped with it. Blocks.
    ///
    /// # Errors
    /// As [`Secrets::load_own`].
    pub fn draw_own(&self, store: &Store) -> terrace::Result<()> {
        // If two threads do this at once, the second loads the first one's key.
        match OWN.draw(store, self) {
            Ok(own) => {
                self.add_own(&own);
                tracing::info!(
                    "the store has generated a master key of its own for SSE-S3, which is stored in its files; \
                     `--secrets-key-file` and `terrace rewrap` keep it elsewhere"
                );
                Ok(())
            }
            Err(Error::ConditionFailed { .. }) => self.load_own(store),
            Err(error) => Err(error),
        }
    }

    fn add_own(&self, own: &[u8; KEY_BYTES]) {
        let mut keys = self.0.write();
        if let Some(key) = MasterKey::own(own).filter(|key| keys.iter().all(|known| known.id != key.id)) {
            keys.push(key);
        }
    }

    /// The current key. A thread holds this until what it wrapped with the key is committed.
    pub fn current(&self) -> Current<'_> {
        Current(self.0.read())
    }

    /// The key that unwraps data keys wrapped by the master key with this ID.
    pub fn unwrapping(&self, id: KeyId) -> Option<LessSafeKey> {
        let keys = self.0.read();
        keys.iter().find(|key| key.id == id).map(|key| key.wrapping.clone())
    }

    /// Replaces the given keys by those of `other` and keeps the store's own, after all commits
    /// that hold [`Current`]. Blocks.
    pub fn replace(&self, other: &Self) {
        let mut new = other.0.read().clone();
        new.retain(|key| !key.is_own);
        let mut keys = self.0.write();
        new.extend(keys.iter().filter(|key| key.is_own).cloned());
        *keys = new;
    }

    /// Compares with the IDs of used master keys in the store. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is missing; errors of the store.
    pub fn check(&self, store: &Store) -> terrace::Result<()> {
        let ids = self.given();
        let used = used(store)?;
        if let Some(missing) = used.iter().find(|id| !ids.contains(id)) {
            let given = match ids.first() {
                None => "no master key is given".to_owned(),
                Some(current) => format!("another key is given, {current}"),
            };
            return Err(Error::invalid(format!(
                "this store has keys that are encrypted with the master key {missing}, and {given}; give it by \
                 `--secrets-key-file`, TERRACE_SECRETS_KEY or `--key-command`, below a newer one if there is one"
            )));
        }
        Ok(())
    }

    /// Like [`Secrets::check`], and records the current key as used. Blocks.
    ///
    /// # Errors
    /// As [`Secrets::check`].
    pub fn register(&self, store: &Store) -> terrace::Result<()> {
        self.check(store)?;
        let Some(current) = self.given().first().copied() else {
            return Ok(());
        };
        if used(store)?.contains(&current) {
            return Ok(());
        }
        let durable = PutOptions {
            durability: Durability::Sync,
            ..PutOptions::default()
        };
        store
            .put_with(
                keyspace::master_key(&current.to_string()),
                lasting(Vec::new()),
                &durable,
            )
            .map(drop)
    }

    /// Records that nothing is encrypted with any but the current master key. Blocks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn forget_former(&self, store: &Store) -> terrace::Result<()> {
        let current = self.given().first().copied();
        for id in used(store)?.into_iter().filter(|id| Some(*id) != current) {
            store.delete(keyspace::master_key(&id.to_string()))?;
        }
        Ok(())
    }

    /// Encrypts the secret of the access key `id`. `None` if no master key was given.
    ///
    /// # Errors
    /// The cryptographic library's, which has no details.
    pub fn seal(&self, id: &str, secret: &str) -> terrace::Result<Option<String>> {
        let mut nonce = [0; NONCE_LEN];
        keyspace::fill_random(&mut nonce);
        self.seal_with(nonce, id, secret)
    }

    fn seal_with(&self, nonce: [u8; NONCE_LEN], id: &str, secret: &str) -> terrace::Result<Option<String>> {
        let keys = self.0.read();
        let Some(MasterKey { secrets: key, .. }) = keys.first().filter(|key| !key.is_own) else {
            return Ok(None);
        };
        let mut text = secret.as_bytes().to_vec();
        let sealed = key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad(id), &mut text);
        sealed.map_err(|_| Error::invalid(format!("the secret of access key {id} cannot be encrypted")))?;
        Ok(Some(STANDARD_NO_PAD.encode([&nonce[..], &text].concat())))
    }

    /// Decrypts a secret.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the key is missing or wrong, or the stored text is damaged.
    pub fn open(&self, id: &str, sealed: &str) -> terrace::Result<String> {
        self.open_by(id, sealed).map(|(secret, _)| secret)
    }

    /// Encrypts a stored secret with the current key. `None` if it is already.
    ///
    /// # Errors
    /// As [`Secrets::open`].
    pub fn sealed_anew(&self, id: &str, sealed: &str) -> terrace::Result<Option<String>> {
        let (secret, is_current) = self.open_by(id, sealed)?;
        if is_current { Ok(None) } else { self.seal(id, &secret) }
    }

    /// The secret, and whether it was encrypted with the current key.
    fn open_by(&self, id: &str, sealed: &str) -> terrace::Result<(String, bool)> {
        let keys = self.0.read();
        if keys.is_empty() {
            return Err(Error::invalid(format!(
                "the secret of access key {id} is encrypted; give the key it was encrypted with in a file by \
                 `--secrets-key-file`, or in TERRACE_SECRETS_KEY"
            )));
        }
        let opened = STANDARD_NO_PAD.decode(sealed).ok().and_then(|bytes| {
            let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>()?;
            keys.iter().enumerate().find_map(|(at, key)| {
                let mut text = text.to_vec();
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let opened = key.secrets.open_in_place(nonce, aad(id), &mut text).ok()?;
                Some((String::from_utf8(opened.to_vec()).ok()?, at == 0))
            })
        });
        opened.ok_or_else(|| {
            Error::invalid(format!(
                "the secret of access key {id} was encrypted with another key than the one of `--secrets-key-file` or \
                 TERRACE_SECRETS_KEY; give that one"
            ))
        })
    }
}

/// The IDs of used master keys in the store.
fn used(store: &Store) -> terrace::Result<Vec<KeyId>> {
    let mut ids = Vec::new();
    for item in store.scan(ScanRange::prefix(keyspace::MASTER_KEYS))? {
        let key = item?.key;
        let id = KeyId::parse(&key[keyspace::MASTER_KEYS.len()..]);
        ids.push(id.ok_or_else(|| Error::corruption("name of a master key", "it is none"))?);
    }
    Ok(ids)
}

fn aad(id: &str) -> Aad<Vec<u8>> {
    Aad::from(format!("{CONTEXT}{id}").into_bytes())
}

#[cfg(test)]
mod tests;
