//! The master keys, and what is encrypted with them directly: secrets of access keys as the store
//! keeps them. What else they wrap is keys of objects (`crypt` of the server).
//!
//! Several keys may be given. The first is the current one, with which everything new is encrypted;
//! the others only open what is there, until `terrace rewrap` has encrypted that anew.
//!
//! AES-256-GCM by `ring`, a nonce drawn for each secret, and the access key's ID as additional
//! data, so that no secret can be moved to another ID. What is stored is base64 of nonce,
//! ciphertext and tag (docs/s3.md). Data keys are wrapped with a key derived from the master key,
//! so the two uses share no nonces. 2^32 nonces may be drawn for each.
//!
//! The store notes which master keys have been used ([`Secrets::register`]), so that a server that
//! lacks one says so when it starts, and not when a request reads.
//!
//! Where none is given, the store draws a master key of its own when a request first asks for
//! SSE-S3 ([`Secrets::draw_own`]), and keeps it beside what it wraps. That is what "the server has
//! the key" means to a client of SSE-S3; whoever has all of the store's files has the key, too. It
//! wraps data keys only: encrypting secrets of access keys with it would protect nothing.

pub mod kms;

use super::{keyspace, text};
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
/// Most master keys at a time: the current one, and those of rotations that are not done.
const KEYS_MAX: usize = 16;
/// What the additional data begins with.
const CONTEXT: &str = "terrace access key ";
/// What the key is derived for that wraps data keys.
const WRAPPING: &[u8] = b"terrace wrapping key";
/// What the name of a master key is derived for.
const NAMING: &[u8] = b"terrace master key id";

/// How the record of a key that a store has drawn calls it, if it is encrypted.
pub const SEALED: &str = "key_aes_256_gcm";
/// What a store's own master key is encrypted as the secret of; no access key has this ID.
pub const OWN_ID: &str = "own-master-key";

/// A key that a store has drawn, as it is stored: 64 hex digits, encrypted or not.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_aes_256_gcm: Option<String>,
}

impl StoredKey {
    /// A key that is encrypted as the secret of `id`, if a master key is given.
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

    /// The key, and whether it is stored as it is.
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

    /// The same encrypted with the current master key. `None` if it is, or there is none.
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

/// Where a store keeps a key that it has drawn, and what that is encrypted as the secret of.
#[derive(Clone, Copy)]
pub(crate) struct Drawn {
    /// The key of its record.
    pub place: &'static str,
    /// The ID of an access key that there is none of.
    pub id: &'static str,
}

const OWN: Drawn = Drawn {
    place: keyspace::OWN_MASTER_KEY,
    id: OWN_ID,
};

impl Drawn {
    /// Draws a key and stores it. It is durable when this returns.
    ///
    /// # Errors
    /// The store's: [`Error::ConditionFailed`] if there is one.
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
        store.put_with(self.place, json, &options).map(drop)
    }

    /// The key, if there is one, and whether it is stored as it is.
    ///
    /// # Errors
    /// The store's, and as [`Secrets::open`].
    pub fn stored(self, store: &Store, secrets: &Secrets) -> terrace::Result<Option<([u8; KEY_BYTES], bool)>> {
        let Some(json) = store.get(self.place)? else {
            return Ok(None);
        };
        let wrong = |what: &str| Error::corruption(format!("the {} of the store", self.id), what.to_owned());
        let record: StoredKey = serde_json::from_slice(&json).map_err(|error| wrong(&error.to_string()))?;
        record.open(self.id, secrets).map(Some)
    }

    /// The same, encrypted from now on if a master key is given.
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

/// The bytes that hex digits are.
fn of_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let pair = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

/// Names a master key without telling anything of it.
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

/// One master key, as what it is used for.
#[derive(Clone)]
struct MasterKey {
    id: KeyId,
    secrets: LessSafeKey,
    wrapping: LessSafeKey,
    /// The store has drawn it, and keeps it.
    is_own: bool,
}

impl MasterKey {
    /// Reads 64 hex digits.
    fn parse(text: &str) -> Option<Self> {
        Self::of(&of_hex(text)?)
    }

    /// `None` if it has another length.
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

/// The name of a key, and what wraps data keys with it; `None` if it has another length.
pub(crate) fn wrapping_of(bytes: &[u8]) -> Option<(KeyId, LessSafeKey)> {
    MasterKey::of(bytes).map(|key| (key.id, key.wrapping))
}

/// The cipher of a key; `None` if it has another length.
pub fn cipher(key: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new)
}

/// The master keys, if there are any. Clones are the same.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<MasterKey>>>, KmsKeys);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the keys: this ends in logs.
        f.debug_struct("Secrets").field("ids", &self.ids()).finish()
    }
}

/// The current master key, which stays that for as long as this lives.
pub struct Current<'s>(RwLockReadGuard<'s, Vec<MasterKey>>);

impl Current<'_> {
    /// Its name, and what wraps with it. `None` without a key.
    pub fn wrapping(&self) -> Option<(KeyId, &LessSafeKey)> {
        self.0.first().map(|key| (key.id, &key.wrapping))
    }
}

impl Secrets {
    /// Encrypts with the first of these keys, and opens with all of them: 64 hex digits each, with
    /// white space between them.
    ///
    /// # Errors
    /// Saying what a key looks like.
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

    /// The keys that clients name.
    pub const fn kms(&self) -> &KmsKeys {
        &self.1
    }

    /// Whether there is a key, be it the store's own.
    pub fn has_key(&self) -> bool {
        !self.0.read().is_empty()
    }

    /// Whether a key was given.
    pub fn is_given(&self) -> bool {
        self.0.read().iter().any(|key| !key.is_own)
    }

    /// The names of all keys, the current one first.
    pub fn ids(&self) -> Vec<KeyId> {
        self.0.read().iter().map(|key| key.id).collect()
    }

    /// The names of those that were given, the current one first.
    fn given(&self) -> Vec<KeyId> {
        let keys = self.0.read();
        keys.iter().filter(|key| !key.is_own).map(|key| key.id).collect()
    }

    /// Takes the store's own master key, if it has drawn one: behind those that are given, so that
    /// it only opens what is there. Not if it is encrypted with a key that is not given: whatever
    /// needs it says so. Blocks, and writes nothing.
    ///
    /// # Errors
    /// The store's.
    pub fn load_own(&self, store: &Store) -> terrace::Result<()> {
        match OWN.stored(store, self) {
            Ok(Some((own, _))) => self.add_own(&own),
            Ok(None) | Err(Error::Invalid(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The same, which is encrypted from now on if a key is given.
    ///
    /// # Errors
    /// The store's, and as [`Secrets::open`].
    pub fn keep_own(&self, store: &Store) -> terrace::Result<()> {
        if let Some(own) = OWN.kept(store, self)? {
            self.add_own(&own);
        }
        Ok(())
    }

    /// Has a master key: if none is given the store draws one. It is durable before anything is
    /// wrapped with it. Blocks.
    ///
    /// # Errors
    /// As [`Secrets::load_own`].
    pub fn draw_own(&self, store: &Store) -> terrace::Result<()> {
        // Of two that come at once one draws, and the other takes that.
        match OWN.draw(store, self) {
            Ok(own) => {
                self.add_own(&own);
                tracing::info!(
                    "the store has drawn a master key of its own for SSE-S3: whoever has its files has the key; \
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

    /// The current key. A thread that commits what was wrapped with it holds this until that is
    /// done.
    pub fn current(&self) -> Current<'_> {
        Current(self.0.read())
    }

    /// What unwraps what the key of this name wrapped.
    pub fn unwrapping(&self, id: KeyId) -> Option<LessSafeKey> {
        let keys = self.0.read();
        keys.iter().find(|key| key.id == id).map(|key| key.wrapping.clone())
    }

    /// Takes the keys of `other`, once everything is committed that was wrapped with the current
    /// one, and keeps the store's own. Blocks.
    pub fn replace(&self, other: &Self) {
        let mut new = other.0.read().clone();
        new.retain(|key| !key.is_own);
        let mut keys = self.0.write();
        new.extend(keys.iter().filter(|key| key.is_own).cloned());
        *keys = new;
    }

    /// Compares with the master keys that the store says have been used. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is missing; the store's.
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

    /// The same, and notes the current one, if nothing says that it is the wrong one. Blocks.
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
            .put_with(keyspace::master_key(&current.to_string()), "", &durable)
            .map(drop)
    }

    /// Notes that nothing is encrypted with any but the current master key. Blocks.
    ///
    /// # Errors
    /// The store's.
    pub fn forget_former(&self, store: &Store) -> terrace::Result<()> {
        let current = self.given().first().copied();
        for id in used(store)?.into_iter().filter(|id| Some(*id) != current) {
            store.delete(keyspace::master_key(&id.to_string()))?;
        }
        Ok(())
    }

    /// The secret of the access key `id`, encrypted. `None` if no key was given.
    ///
    /// # Errors
    /// The library's, which says nothing.
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

    /// The secret that was encrypted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no key, or another one, or what is stored is damaged.
    pub fn open(&self, id: &str, sealed: &str) -> terrace::Result<String> {
        self.open_by(id, sealed).map(|(secret, _)| secret)
    }

    /// The same secret encrypted with the current key. `None` if it is.
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

/// The names of the master keys that the store says have been used.
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
