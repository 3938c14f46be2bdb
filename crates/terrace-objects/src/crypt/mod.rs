//! Encryption of objects.
//!
//! Every object, and every upload, has a data key of its own, drawn when it is begun. It is stored
//! wrapped ([`SealedKey`]) among the attributes of its record: with the current master key for
//! SSE-S3, with the client's key for SSE-C. So no key of a client encrypts bytes itself, and a new
//! master key means that data keys are wrapped anew (`rewrap` of the server), and no byte of a long
//! value. Each value of an object is encrypted with a key derived from the data key, the number of
//! its part and a salt that is drawn when it is begun: a part that is sent again has another key.
//!
//! Bytes are encrypted in [`crate::write`] on their way in, in [`pieces`], and decrypted in
//! [`crate::read`] on their way out. An object that is open gives no byte before it is unlocked.
//!
//! What the wrapping covers besides the data key is the object's bucket and key, so that a record
//! that is moved to another key of the store cannot be read there. What is not encrypted: keys,
//! lengths, attributes (metadata, tags, checksums), and the entity tag, which for SSE-C is
//! therefore not the MD5 of the bytes.

pub mod pieces;

pub use crate::manifest::SALT_BYTES;
use crate::{
    error::{ObjectError, ObjectResult},
    keyspace::fill_random,
    secrets::{Current, KEY_BYTES, KeyId, Secrets, cipher},
};
use pieces::Damaged;
use ring::{
    aead::{Aad, LessSafeKey, NONCE_LEN, Nonce},
    hmac,
};
use std::fmt;
use terrace::{Attributes, Error};

/// The attribute of a record with the key of an object's bytes, wrapped, if they are encrypted.
pub const ENCRYPTION: &str = "s3-encryption";
/// Bytes of a data key that is wrapped: nonce, key and tag.
const WRAPPED_BYTES: usize = NONCE_LEN + KEY_BYTES + pieces::TAG_BYTES;
/// Bytes of a [`SealedKey`] as it is stored.
const SEALED_KEY_BYTES: usize = 4 + 8 + WRAPPED_BYTES;
/// How what is stored begins: its version.
const VERSION: u8 = 1;
/// What the additional data of a data key begins with.
const WRAPPING: &[u8] = b"terrace data key ";
/// What the key of a value is derived for.
const VALUE: &[u8] = b"terrace value ";
/// What an entity tag is derived for.
const ETAG: &[u8] = b"terrace etag ";
/// The number that the value of a record itself has among an object's values.
pub const RECORD_NUMBER: u16 = 0;

/// How an object is encrypted, as far as its record says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// SSE-S3: with a key that the master key wraps.
    Master,
    /// SSE-C: with a key that the client's wraps.
    Customer,
    /// In a way that this program does not know.
    Unknown,
}

impl Encryption {
    /// What attributes say.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        let bytes = attributes.get(ENCRYPTION)?;
        Some(SealedKey::decode(bytes).map_or(Self::Unknown, |sealed| sealed.encryption()))
    }
}

/// The key of the pieces of one value.
#[derive(Clone)]
pub struct PieceKey(LessSafeKey);

/// What the bytes of one object are encrypted with.
#[derive(Clone)]
pub struct DataKey {
    bytes: [u8; KEY_BYTES],
    /// Its entity tag tells nothing of the bytes.
    hides_md5: bool,
}

impl DataKey {
    fn new(hides_md5: bool) -> Self {
        let mut bytes = [0; KEY_BYTES];
        fill_random(&mut bytes);
        Self { bytes, hides_md5 }
    }

    /// One that is given.
    pub const fn of_bytes(bytes: [u8; KEY_BYTES], hides_md5: bool) -> Self {
        Self { bytes, hides_md5 }
    }

    fn derive(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes));
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }

    /// The key of one of the object's values.
    ///
    /// # Errors
    /// None that can happen: a derived key has the cipher's length.
    pub fn of_value(&self, number: u16, salt: &[u8; SALT_BYTES]) -> ObjectResult<PieceKey> {
        let derived = self.derive(&[VALUE, &number.to_be_bytes(), salt]);
        cipher(derived.as_ref()).map(PieceKey).ok_or(ObjectError::Impossible)
    }

    /// What stands for the MD5 of bytes in entity tags.
    pub fn etag(&self, md5: [u8; 16]) -> [u8; 16] {
        if !self.hides_md5 {
            return md5;
        }
        let mut tag = [0; 16];
        tag.copy_from_slice(&self.derive(&[ETAG, &md5]).as_ref()[..16]);
        tag
    }
}

/// What an answer says of encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// SSE-S3
    Master,
    /// SSE-C, and the MD5 of the key as the client gave it.
    Customer(String),
}

impl Told {
    /// Of an object, to whoever gave this key.
    pub fn of(encryption: Option<Encryption>, customer: Option<&CustomerKey>) -> Option<Self> {
        match encryption? {
            Encryption::Customer => customer.map(|customer| Self::Customer(customer.md5.clone())),
            Encryption::Master => Some(Self::Master),
            Encryption::Unknown => None,
        }
    }
}

/// A client's key.
#[derive(Clone)]
pub struct CustomerKey {
    bytes: [u8; KEY_BYTES],
    /// Its MD5 as the client wrote it.
    pub md5: String,
}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key: this ends in logs.
        f.debug_struct("CustomerKey").finish_non_exhaustive()
    }
}

impl CustomerKey {
    /// A key whose MD5 the client wrote so.
    pub const fn new(bytes: [u8; KEY_BYTES], md5: String) -> Self {
        Self { bytes, md5 }
    }

    /// What encrypts with it.
    fn cipher(&self) -> ObjectResult<LessSafeKey> {
        cipher(&self.bytes).ok_or(ObjectError::Impossible)
    }
}

/// What the data key of a new object is to be wrapped with.
#[derive(Clone)]
pub enum Protection {
    /// The current master key.
    Master(Secrets),
    /// The client's.
    Customer(CustomerKey),
}

/// The encryption of a new object.
#[derive(Clone)]
pub struct Sealing {
    /// What it is wrapped with.
    pub protection: Protection,
    /// What its bytes are encrypted with.
    pub data_key: DataKey,
}

impl Sealing {
    /// Draws a data key.
    pub fn new(protection: Protection) -> Self {
        let hides_md5 = matches!(protection, Protection::Customer(_));
        Self {
            protection,
            data_key: DataKey::new(hides_md5),
        }
    }

    /// What answers say of it.
    pub fn told(&self) -> Told {
        match &self.protection {
            Protection::Master(_) => Told::Master,
            Protection::Customer(customer) => Told::Customer(customer.md5.clone()),
        }
    }

    /// The master key, which must stay the current one until what is wrapped is committed.
    pub fn hold(&self) -> Option<Current<'_>> {
        match &self.protection {
            Protection::Master(secrets) => Some(secrets.current()),
            Protection::Customer(_) => None,
        }
    }

    /// The data key for the record of the object `name`, which is its bucket and key, wrapped with
    /// what [`Sealing::hold`] gave.
    ///
    /// # Errors
    /// `NotImplemented` if there is no master key any more.
    pub fn wrapped(&self, held: Option<&Current<'_>>, name: &[u8]) -> ObjectResult<SealedKey> {
        match &self.protection {
            Protection::Master(_) => {
                let (id, key) = held.and_then(Current::wrapping).ok_or(ObjectError::NoMasterKey)?;
                SealedKey::wrap(key, Some(id), name, &self.data_key)
            }
            Protection::Customer(customer) => SealedKey::wrap(&customer.cipher()?, None, name, &self.data_key),
        }
    }
}

/// A data key as it is stored: version `u8`, kind `u8` (1 SSE-S3, 2 SSE-C), two zero bytes, the
/// name of the master key (zero for SSE-C), and nonce, key and tag of AES-256-GCM.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedKey {
    /// Which master key; `None` if it is a client's.
    pub id: Option<KeyId>,
    wrapped: [u8; WRAPPED_BYTES],
}

impl SealedKey {
    const fn encryption(&self) -> Encryption {
        match self.id {
            Some(_) => Encryption::Master,
            None => Encryption::Customer,
        }
    }

    /// What is stored.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, id) = self.id.map_or((2, [0; 8]), |id| (1, id.0));
        let mut out = Vec::with_capacity(SEALED_KEY_BYTES);
        out.extend_from_slice(&[VERSION, kind, 0, 0]);
        out.extend_from_slice(&id);
        out.extend_from_slice(&self.wrapped);
        out
    }

    /// Reads what is stored. `None` if it is nothing that this program knows.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SEALED_KEY_BYTES] = bytes.try_into().ok()?;
        let id: [u8; 8] = bytes[4..12].try_into().ok()?;
        let id = match bytes[..4] {
            [VERSION, 1, 0, 0] => Some(KeyId(id)),
            [VERSION, 2, 0, 0] if id == [0; 8] => None,
            _ => return None,
        };
        let wrapped = bytes[12..].try_into().ok()?;
        Some(Self { id, wrapped })
    }

    fn wrap(key: &LessSafeKey, id: Option<KeyId>, name: &[u8], data_key: &DataKey) -> ObjectResult<Self> {
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce);
        Self::wrap_with(nonce, key, id, name, data_key)
    }

    fn wrap_with(
        nonce: [u8; NONCE_LEN],
        key: &LessSafeKey,
        id: Option<KeyId>,
        name: &[u8],
        data_key: &DataKey,
    ) -> ObjectResult<Self> {
        let mut bytes = data_key.bytes;
        let aad = Aad::from([WRAPPING, name].concat());
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes);
        let tag = tag.map_err(|_| ObjectError::Impossible)?;
        let mut wrapped = [0; WRAPPED_BYTES];
        wrapped[..NONCE_LEN].copy_from_slice(&nonce);
        wrapped[NONCE_LEN..NONCE_LEN + KEY_BYTES].copy_from_slice(&bytes);
        wrapped[NONCE_LEN + KEY_BYTES..].copy_from_slice(tag.as_ref());
        Ok(Self { id, wrapped })
    }

    /// The data key, if it was wrapped with this key for the object of this name.
    fn unwrap_with(&self, key: &LessSafeKey, name: &[u8]) -> Option<DataKey> {
        let (nonce, sealed) = self.wrapped.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = *<&[u8; KEY_BYTES + pieces::TAG_BYTES]>::try_from(sealed).ok()?;
        let aad = Aad::from([WRAPPING, name].concat());
        let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut sealed);
        let bytes = opened.ok()?.try_into().ok()?;
        Some(DataKey {
            bytes,
            hides_md5: self.id.is_none(),
        })
    }

    /// The data key, if this client's key wrapped it.
    ///
    /// # Errors
    /// None that can happen.
    pub fn unwrap_by(&self, customer: &CustomerKey, name: &[u8]) -> ObjectResult<Option<DataKey>> {
        Ok(self.unwrap_with(&customer.cipher()?, name))
    }

    /// The same data key wrapped with the current master key. `None` if it is, or is a client's.
    ///
    /// # Errors
    /// If it cannot be unwrapped.
    pub fn anew(&self, secrets: &Secrets, name: &[u8]) -> ObjectResult<Option<Self>> {
        let current = secrets.ids().first().copied();
        let Some(id) = self.id.filter(|id| Some(*id) != current) else {
            return Ok(None);
        };
        let data_key = self.unwrap_by_master(id, secrets, name)?;
        let held = secrets.current();
        let (id, key) = held.wrapping().ok_or(ObjectError::NoMasterKey)?;
        Self::wrap(key, Some(id), name, &data_key).map(Some)
    }

    /// The data key, if a master key wrapped it.
    ///
    /// # Errors
    /// [`ObjectError::MasterKeyMissing`]; damage.
    pub fn unwrap_by_master(&self, id: KeyId, secrets: &Secrets, name: &[u8]) -> ObjectResult<DataKey> {
        let key = secrets.unwrapping(id).ok_or_else(|| {
            tracing::error!(%id, "an object is encrypted with a master key that is not given");
            ObjectError::MasterKeyMissing
        })?;
        self.unwrap_with(&key, name)
            .ok_or_else(|| damaged(name, "its key cannot be unwrapped"))
    }
}

/// How an object is encrypted of which a request says nothing, in a bucket that wants it, or not.
///
/// # Errors
/// [`ObjectError::NoMasterKey`] if the bucket wants it encrypted and there is no master key.
pub fn by_default(secrets: &Secrets, is_wanted: bool) -> ObjectResult<Option<Sealing>> {
    is_wanted.then(|| by_master(secrets)).transpose()
}

/// How an object is encrypted by the server.
///
/// # Errors
/// [`ObjectError::NoMasterKey`]
pub fn by_master(secrets: &Secrets) -> ObjectResult<Sealing> {
    if !secrets.has_key() {
        return Err(ObjectError::NoMasterKey);
    }
    Ok(Sealing::new(Protection::Master(secrets.clone())))
}

/// An encrypted object is not what was encrypted.
pub fn damaged(name: &[u8], reason: &'static str) -> ObjectError {
    ObjectError::engine(&Error::corruption("an encrypted object", reason), name)
}

impl From<Damaged> for ObjectError {
    fn from(_: Damaged) -> Self {
        let error = Error::corruption("an encrypted object", "a piece is not what was encrypted");
        ObjectError::engine(&error, b"")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secrets(digits: &[&str]) -> Secrets {
        let lines: Vec<_> = digits.iter().map(|digits| digits.repeat(32)).collect();
        Secrets::with_key(&lines.join("\n")).unwrap()
    }

    fn wrapped(secrets: &Secrets) -> SealedKey {
        let held = secrets.current();
        let (id, key) = held.wrapping().unwrap();
        SealedKey::wrap_with(
            [7; NONCE_LEN],
            key,
            Some(id),
            b"b/k",
            &DataKey::of_bytes([9; 32], false),
        )
        .unwrap()
    }

    /// What is stored, byte for byte: a server of tomorrow must open it.
    #[test]
    fn golden() {
        let secrets = secrets(&["0f"]);
        let sealed = wrapped(&secrets);
        let bytes = sealed.encode();
        assert_eq!(crate::text::hex(&bytes), GOLDEN);
        assert!(SealedKey::decode(&bytes).unwrap() == sealed);
        let opened = sealed.unwrap_by_master(sealed.id.unwrap(), &secrets, b"b/k").unwrap();
        assert_eq!(opened.bytes, [9; 32]);
        for at in 0..bytes.len() {
            assert!(SealedKey::decode(&bytes[..at]).is_none());
        }
        for (at, value) in [(0, 2), (1, 3), (1, 2), (2, 1), (3, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert!(SealedKey::decode(&wrong).is_none(), "byte {at}");
        }
    }

    // Computed with Python's `cryptography` from what the module says of the format.
    const GOLDEN: &str = "010100000cfd17a06a5ae0ec0707070707070707070707079dc31ef167b101fb316feb532964be88\
                          a824b4d3e00668aafbc96e2e2d0ee02295d8687694ef30cb55131302cbc2b6c9";

    #[test]
    fn a_key_opens_its_own_object_only() {
        let old = secrets(&["0f"]);
        let sealed = wrapped(&old);
        let id = sealed.id.unwrap();
        assert!(sealed.unwrap_by_master(id, &old, b"b/other").is_err());
        assert!(sealed.unwrap_by_master(id, &secrets(&["0e"]), b"b/k").is_err());
        for at in 12..SEALED_KEY_BYTES {
            let mut bytes = sealed.encode();
            bytes[at] ^= 1;
            let wrong = SealedKey::decode(&bytes).unwrap();
            assert!(wrong.unwrap_by_master(id, &old, b"b/k").is_err(), "byte {at}");
        }
        let both = secrets(&["0e", "0f"]);
        let anew = sealed.anew(&both, b"b/k").unwrap().unwrap();
        assert!(anew.anew(&both, b"b/k").unwrap().is_none() && sealed.anew(&old, b"b/k").unwrap().is_none());
        let opened = anew
            .unwrap_by_master(anew.id.unwrap(), &secrets(&["0e"]), b"b/k")
            .unwrap();
        assert_eq!(opened.bytes, [9; 32]);
    }

    #[test]
    fn only_keys_of_clients_hide_the_md5() {
        let md5 = [5; 16];
        assert_eq!(DataKey::of_bytes([9; 32], false).etag(md5), md5);
        let hidden = DataKey::of_bytes([9; 32], true).etag(md5);
        assert_ne!(hidden, md5);
        assert_eq!(DataKey::of_bytes([9; 32], true).etag(md5), hidden);
        assert_ne!(DataKey::of_bytes([8; 32], true).etag(md5), hidden);
    }
}
