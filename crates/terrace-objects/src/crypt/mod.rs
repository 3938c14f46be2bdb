//! Encryption of objects.
//!
//! Every object and every upload has its own random data key. It is stored wrapped ([`SealedKey`])
//! in the attributes of its record: with the current master key for SSE-S3, with the client's key
//! for SSE-C. So a client's key encrypts no data itself, and a new master key requires rewrapping
//! data keys (the server's `rewrap`) but no values. Each value of an object is encrypted with a key
//! derived from the data key, its part number and a random salt, so a part that is sent again has
//! another key.
//!
//! Bytes are encrypted in [`crate::write`] and decrypted in [`crate::read`], both by [`pieces`]. An
//! open object returns no byte before it is unlocked.
//!
//! The additional data of the wrapping is the object's bucket and key, so a record moved to another
//! key of the store cannot be read. Not encrypted: keys, lengths, attributes (metadata, tags,
//! checksums), and the entity tag, which for SSE-C is therefore not the MD5 of the bytes.

pub mod pieces;

use crate::{
    error::{ObjectError, ObjectResult},
    keyspace::fill_random,
    secrets::{
        Current, KEY_BYTES, KeyId, Secrets, cipher,
        kms::{self, Caller},
    },
    tag::Tag,
};
pub use crate::{manifest::SALT_BYTES, secrets::kms::KMS_KEY};
use parking_lot::RwLockReadGuard;
use pieces::Damaged;
use ring::{
    aead::{Aad, LessSafeKey, NONCE_LEN, Nonce},
    hmac,
};
use std::fmt;
use terrace::{Attributes, Error};

/// The attribute with an encrypted object's wrapped data key.
pub const ENCRYPTION: &str = "s3-encryption";
/// The attribute with the client's encryption context.
const KMS_CONTEXT: &str = "s3-kms-context";
/// The attribute of an object whose request asked for a bucket key.
const BUCKET_KEY: &str = "s3-bucket-key";
/// Bytes of a wrapped data key: nonce, key and tag.
const WRAPPED_BYTES: usize = NONCE_LEN + KEY_BYTES + pieces::TAG_BYTES;
/// Bytes of a [`SealedKey`] as it is stored.
const SEALED_KEY_BYTES: usize = 4 + 8 + WRAPPED_BYTES;
/// Version of the stored format.
const VERSION: u8 = 1;
/// Prefix of a data key's additional data.
const WRAPPING: &[u8] = b"terrace data key ";
/// Context for deriving the key of a value.
const VALUE: &[u8] = b"terrace value ";
/// Context for deriving an entity tag.
const ETAG: &[u8] = b"terrace etag ";
/// The part number of the value of a record itself.
pub const RECORD_NUMBER: u16 = 0;

/// Encryption of an object, from its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// SSE-S3: the master key wraps the data key.
    Master,
    /// SSE-C: the client's key wraps it.
    Customer,
    /// SSE-KMS: a KMS key of the store, which the client named, wraps it.
    Kms,
    /// Unknown to this program.
    Unknown,
}

impl Encryption {
    /// Reads attributes.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        let bytes = attributes.get(ENCRYPTION)?;
        Some(SealedKey::decode(bytes).map_or(Self::Unknown, |sealed| sealed.encryption()))
    }
}

/// The key of one value's pieces.
#[derive(Clone)]
pub struct PieceKey(LessSafeKey);

/// The key of one object's bytes.
#[derive(Clone)]
pub struct DataKey {
    bytes: [u8; KEY_BYTES],
    /// Its entity tag is not the MD5 of the bytes.
    hides_md5: bool,
}

impl DataKey {
    fn new(hides_md5: bool) -> Self {
        let mut bytes = [0; KEY_BYTES];
        fill_random(&mut bytes);
        Self { bytes, hides_md5 }
    }

    /// A given key.
    pub const fn of_bytes(bytes: [u8; KEY_BYTES], hides_md5: bool) -> Self {
        Self { bytes, hides_md5 }
    }

    fn derive(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes));
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }

    /// Derives the key of one of the object's values.
    ///
    /// # Errors
    /// None in practice: a derived key has the cipher's length.
    pub fn of_value(&self, number: u16, salt: &[u8; SALT_BYTES]) -> ObjectResult<PieceKey> {
        let derived = self.derive(&[VALUE, &number.to_be_bytes(), salt]);
        cipher(derived.as_ref()).map(PieceKey).ok_or(ObjectError::Impossible)
    }

    /// Replaces the MD5 in entity tags, if it is to be hidden.
    pub fn tag(&self, tag: Tag) -> Tag {
        if !self.hides_md5 || tag.is_random {
            return tag;
        }
        let mut hidden = [0; 16];
        hidden.copy_from_slice(&self.derive(&[ETAG, &tag.bytes]).as_ref()[..16]);
        Tag::of_md5(hidden)
    }
}

/// Encryption headers of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// SSE-S3
    Master,
    /// SSE-C, and the MD5 of the key as the client sent it.
    Customer(String),
    /// SSE-KMS
    Kms {
        /// The key's name as an ARN.
        arn: String,
        /// The encryption context, as the client sent it.
        context: Option<String>,
        /// The request specified a bucket key.
        bucket_key: bool,
    },
}

impl Told {
    /// The headers for an object; `customer` is the key in the request.
    pub fn of(attributes: &Attributes, customer: Option<&CustomerKey>) -> Option<Self> {
        match Encryption::of(attributes)? {
            Encryption::Customer => customer.map(|customer| Self::Customer(customer.md5.clone())),
            Encryption::Master => Some(Self::Master),
            Encryption::Kms => Some(Self::Kms {
                arn: kms::arn(attributes.get_str(KMS_KEY).unwrap_or_default()),
                context: attributes.get_str(KMS_CONTEXT).map(str::to_owned),
                bucket_key: attributes.get(BUCKET_KEY).is_some(),
            }),
            Encryption::Unknown => None,
        }
    }
}

/// A KMS key and the encryption context.
#[derive(Clone)]
pub struct KmsProtection {
    /// The key.
    pub key: kms::Current,
    /// The encryption context, JSON in base64, as the client sent it.
    pub context: Option<String>,
    /// The request specified a bucket key, which has no effect here.
    pub bucket_key: bool,
}

/// Additional data of a data key that a KMS key wraps. Names of objects and of keys contain no zero
/// bytes, which separate the fields.
fn bound(name: &[u8], key: &str, context: &str) -> Vec<u8> {
    [name, b"\0kms\0", key.as_bytes(), b"\0", context.as_bytes()].concat()
}

/// A client's key.
#[derive(Clone)]
pub struct CustomerKey {
    bytes: [u8; KEY_BYTES],
    /// Its MD5, as the client sent it.
    pub md5: String,
}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key: this output ends in logs.
        f.debug_struct("CustomerKey").finish_non_exhaustive()
    }
}

impl CustomerKey {
    /// A key and the MD5 that the client sent.
    pub const fn new(bytes: [u8; KEY_BYTES], md5: String) -> Self {
        Self { bytes, md5 }
    }

    /// Its cipher.
    fn cipher(&self) -> ObjectResult<LessSafeKey> {
        cipher(&self.bytes).ok_or(ObjectError::Impossible)
    }
}

/// The key that wraps the data key of a new object.
#[derive(Clone)]
pub enum Protection {
    /// The current master key.
    Master(Secrets),
    /// The client's key.
    Customer(CustomerKey),
    /// A KMS key that the client named.
    Kms(Box<KmsProtection>),
}

/// The encryption of a new object.
#[derive(Clone)]
pub struct Sealing {
    /// The key that wraps the data key.
    pub protection: Protection,
    /// The data key.
    pub data_key: DataKey,
}

impl Sealing {
    /// Generates a data key.
    pub fn new(protection: Protection) -> Self {
        let hides_md5 = !matches!(protection, Protection::Master(_));
        Self {
            protection,
            data_key: DataKey::new(hides_md5),
        }
    }

    /// The headers of a response.
    pub fn told(&self) -> Told {
        match &self.protection {
            Protection::Master(_) => Told::Master,
            Protection::Customer(customer) => Told::Customer(customer.md5.clone()),
            Protection::Kms(kms) => Told::Kms {
                arn: kms::arn(&kms.key.name),
                context: kms.context.clone(),
                bucket_key: kms.bucket_key,
            },
        }
    }

    /// Adds the encryption attributes, except the data key, to a record.
    pub fn describe(&self, attributes: &mut Attributes) {
        let Protection::Kms(kms) = &self.protection else { return };
        attributes.set(KMS_KEY, kms.key.name.as_str());
        if let Some(context) = &kms.context {
            attributes.set(KMS_CONTEXT, context.as_str());
        }
        if kms.bucket_key {
            attributes.set(BUCKET_KEY, "");
        }
    }

    /// Holds the wrapping key: it stays current until the wrapped data key is committed.
    pub fn hold(&self) -> Held<'_> {
        match &self.protection {
            Protection::Master(secrets) => Held::Master(secrets.current()),
            Protection::Kms(kms) => Held::Kms(kms.key.hold()),
            Protection::Customer(_) => Held::Nothing,
        }
    }

    /// Wraps the data key for the object whose bucket and key are `name`, with the key from
    /// [`Sealing::hold`].
    ///
    /// # Errors
    /// `NotImplemented` if there no longer is a master key; an error if the KMS key was disabled or
    /// deleted meanwhile.
    pub fn wrapped(&self, held: &Held<'_>, name: &[u8]) -> ObjectResult<SealedKey> {
        match &self.protection {
            Protection::Master(_) => {
                let master = match held {
                    Held::Master(current) => current.wrapping(),
                    Held::Kms(_) | Held::Nothing => None,
                };
                let (id, key) = master.ok_or(ObjectError::NoMasterKey)?;
                SealedKey::wrap(key, Wrapper::Master(id), name, &self.data_key)
            }
            Protection::Customer(customer) => {
                SealedKey::wrap(&customer.cipher()?, Wrapper::Customer, name, &self.data_key)
            }
            Protection::Kms(kms) => {
                let name = bound(name, &kms.key.name, kms.context.as_deref().unwrap_or_default());
                let (id, cipher) = kms.key.latest()?;
                SealedKey::wrap(&cipher, Wrapper::Kms(id), &name, &self.data_key)
            }
        }
    }
}

/// A wrapping key, held until the data keys it wraps are committed.
pub enum Held<'s> {
    /// The current master key.
    Master(Current<'s>),
    /// The KMS keys.
    Kms(RwLockReadGuard<'s, ()>),
    /// A client's key, which needs no hold.
    Nothing,
}

/// The key that wraps a data key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapper {
    /// The master key with this ID.
    Master(KeyId),
    /// A client's key.
    Customer,
    /// The version with this ID of a KMS key, which an attribute names.
    Kms(KeyId),
}

/// A wrapped data key as stored: version `u8`, kind `u8` (1 SSE-S3, 2 SSE-C, 3 SSE-KMS), two zero
/// bytes, ID of the wrapping key (zero for SSE-C), then nonce, key and tag of AES-256-GCM.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedKey {
    /// The wrapping key.
    pub by: Wrapper,
    wrapped: [u8; WRAPPED_BYTES],
}

impl SealedKey {
    const fn encryption(&self) -> Encryption {
        match self.by {
            Wrapper::Master(_) => Encryption::Master,
            Wrapper::Customer => Encryption::Customer,
            Wrapper::Kms(_) => Encryption::Kms,
        }
    }

    /// The ID of the master key, if one wraps it.
    pub const fn master(&self) -> Option<KeyId> {
        match self.by {
            Wrapper::Master(id) => Some(id),
            Wrapper::Customer | Wrapper::Kms(_) => None,
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, id) = match self.by {
            Wrapper::Master(id) => (1, id.0),
            Wrapper::Customer => (2, [0; 8]),
            Wrapper::Kms(id) => (3, id.0),
        };
        let mut out = Vec::with_capacity(SEALED_KEY_BYTES);
        out.extend_from_slice(&[VERSION, kind, 0, 0]);
        out.extend_from_slice(&id);
        out.extend_from_slice(&self.wrapped);
        out
    }

    /// Decodes the stored form. `None` if this version of the program cannot.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SEALED_KEY_BYTES] = bytes.try_into().ok()?;
        let id: [u8; 8] = bytes[4..12].try_into().ok()?;
        let by = match bytes[..4] {
            [VERSION, 1, 0, 0] => Wrapper::Master(KeyId(id)),
            [VERSION, 2, 0, 0] if id == [0; 8] => Wrapper::Customer,
            [VERSION, 3, 0, 0] => Wrapper::Kms(KeyId(id)),
            _ => return None,
        };
        let wrapped = bytes[12..].try_into().ok()?;
        Some(Self { by, wrapped })
    }

    fn wrap(key: &LessSafeKey, by: Wrapper, name: &[u8], data_key: &DataKey) -> ObjectResult<Self> {
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce);
        Self::wrap_with(nonce, key, by, name, data_key)
    }

    fn wrap_with(
        nonce: [u8; NONCE_LEN],
        key: &LessSafeKey,
        by: Wrapper,
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
        Ok(Self { by, wrapped })
    }

    /// Unwraps the data key. `None` if another key wrapped it, or it belongs to another object.
    fn unwrap_with(&self, key: &LessSafeKey, name: &[u8]) -> Option<DataKey> {
        let (nonce, sealed) = self.wrapped.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = *<&[u8; KEY_BYTES + pieces::TAG_BYTES]>::try_from(sealed).ok()?;
        let aad = Aad::from([WRAPPING, name].concat());
        let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut sealed);
        let bytes = opened.ok()?.try_into().ok()?;
        Some(DataKey {
            bytes,
            hides_md5: self.master().is_none(),
        })
    }

    /// Unwraps the data key with a client's key. `None` if another key wrapped it.
    ///
    /// # Errors
    /// None in practice.
    pub fn unwrap_by(&self, customer: &CustomerKey, name: &[u8]) -> ObjectResult<Option<DataKey>> {
        Ok(self.unwrap_with(&customer.cipher()?, name))
    }

    /// Wraps the data key of an object with these attributes again: with the current master key, or
    /// the latest version of its KMS key. `None` if it is already, or if a client's key wraps it.
    ///
    /// # Errors
    /// The data key cannot be unwrapped.
    pub fn anew(&self, secrets: &Secrets, attributes: &Attributes, name: &[u8]) -> ObjectResult<Option<Self>> {
        match self.by {
            Wrapper::Customer => Ok(None),
            Wrapper::Master(id) => self.anew_by_master(id, secrets, name),
            Wrapper::Kms(id) => {
                let key = attributes.get_str(KMS_KEY).unwrap_or_default();
                let Some((former, latest, cipher)) = secrets.kms().anew(key, id) else {
                    return Ok(None);
                };
                let name = bound(name, key, attributes.get_str(KMS_CONTEXT).unwrap_or_default());
                let data_key = self.unwrap_with(&former, &name);
                let data_key = data_key.ok_or_else(|| damaged(&name, "its key cannot be unwrapped"))?;
                Self::wrap(&cipher, Wrapper::Kms(latest), &name, &data_key).map(Some)
            }
        }
    }

    fn anew_by_master(&self, id: KeyId, secrets: &Secrets, name: &[u8]) -> ObjectResult<Option<Self>> {
        if secrets.ids().first() == Some(&id) {
            return Ok(None);
        }
        let data_key = self.unwrap_by_master(id, secrets, name)?;
        let held = secrets.current();
        let (id, key) = held.wrapping().ok_or(ObjectError::NoMasterKey)?;
        Self::wrap(key, Wrapper::Master(id), name, &data_key).map(Some)
    }

    /// Unwraps the data key of an object with these attributes, if a KMS key that this caller may
    /// use wraps it.
    ///
    /// # Errors
    /// As [`KmsKeys::unwrapping`](kms::KmsKeys::unwrapping); an error for damaged data.
    pub fn unwrap_by_kms(
        &self,
        id: KeyId,
        secrets: &Secrets,
        attributes: &Attributes,
        name: &[u8],
        caller: &Caller,
    ) -> ObjectResult<DataKey> {
        let key = attributes.get_str(KMS_KEY).unwrap_or_default();
        let cipher = secrets.kms().unwrapping(key, id, caller)?;
        let bound = bound(name, key, attributes.get_str(KMS_CONTEXT).unwrap_or_default());
        self.unwrap_with(&cipher, &bound)
            .ok_or_else(|| damaged(name, "its key cannot be unwrapped"))
    }

    /// Unwraps the data key, if a master key wraps it.
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

/// A bucket's default encryption.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The KMS key: by name, or empty for the default one. `None` for the master key.
    pub kms_key: Option<&'a str>,
    /// The bucket's default specifies bucket keys.
    pub bucket_key: bool,
}

/// Encryption of an object whose request specifies none, by the bucket's default.
///
/// # Errors
/// [`ObjectError::NoMasterKey`] if the bucket requires encryption and there is no master key; as
/// [`by_kms`].
pub fn by_default(secrets: &Secrets, wanted: Option<Wanted<'_>>, caller: &Caller) -> ObjectResult<Option<Sealing>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let sealing = match wanted.kms_key {
        None => by_master(secrets),
        Some(key) => by_kms(secrets, key, None, wanted.bucket_key, caller),
    };
    sealing.map(Some)
}

/// Encryption with a KMS key, by name, or the default one if the name is empty.
///
/// # Errors
/// As [`KmsKeys::wrapping`](kms::KmsKeys::wrapping).
pub fn by_kms(
    secrets: &Secrets,
    key: &str,
    context: Option<String>,
    bucket_key: bool,
    caller: &Caller,
) -> ObjectResult<Sealing> {
    let name = if key.is_empty() {
        kms::DEFAULT
    } else {
        kms::name_of(key)
    };
    let key = secrets.kms().wrapping(name, caller)?;
    Ok(Sealing::new(Protection::Kms(Box::new(KmsProtection {
        key,
        context,
        bucket_key,
    }))))
}

/// Encryption with the master key.
///
/// # Errors
/// [`ObjectError::NoMasterKey`]
pub fn by_master(secrets: &Secrets) -> ObjectResult<Sealing> {
    if !secrets.has_key() {
        return Err(ObjectError::NoMasterKey);
    }
    Ok(Sealing::new(Protection::Master(secrets.clone())))
}

/// The corruption error for a damaged encrypted object.
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
mod tests;
