//! Private decoders, for fuzz targets only.

use crate::{
    access_key::Stored,
    account::Account,
    bucket::{Bucket, Record},
    crypt::{
        DataKey, RECORD_NUMBER, SALT_BYTES,
        pieces::{self, Opener},
    },
    policy::Policy,
    secrets::StoredKey,
    session::Bounds,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::ops::Range;

/// Decodes and encodes the record of a bucket.
pub fn bucket(json: &[u8]) -> Option<Vec<u8>> {
    let record: Record = serde_json::from_slice(json).ok()?;
    let again = serde_json::to_vec(&record).ok();
    // Also parse its policy and owner, as a server does.
    let bucket = Bucket::apart("bucket".to_owned(), record);
    let record = bucket.record();
    assert!(
        record.policy.is_some() || record.rules.is_none(),
        "rules come of a policy"
    );
    assert!(
        !record.owner().is_empty() || record.account.is_some(),
        "everything has an owner"
    );
    record.list().grants().count();
    again
}

/// Decodes and encodes the record of an access key.
pub fn access_key(json: &[u8]) -> Option<Vec<u8>> {
    let key: Stored = serde_json::from_slice(json).ok()?;
    // Also parse its policy, as a server does.
    if let Some(text) = &key.policy {
        let _ = Policy::of_key(text);
    }
    serde_json::to_vec(&key).ok()
}

/// Decodes and encodes the record of an account.
pub fn account(json: &[u8]) -> Option<Vec<u8>> {
    again::<Account>(json)
}

/// Decodes and encodes the record of the session key.
pub fn session_key(json: &[u8]) -> Option<Vec<u8>> {
    again::<StoredKey>(json)
}

/// Decodes and encodes the bounds in a session's token.
pub fn session_bounds(json: &[u8]) -> Option<Vec<u8>> {
    again::<Bounds>(json)
}

fn again<T: Serialize + DeserializeOwned>(json: &[u8]) -> Option<Vec<u8>> {
    let value: T = serde_json::from_slice(json).ok()?;
    serde_json::to_vec(&value).ok()
}

fn data_key() -> DataKey {
    DataKey::of_bytes([7; 32], false)
}

/// Encrypts bytes as they are stored, with a fixed key.
pub fn sealed(plain: &[u8]) -> Option<Vec<u8>> {
    let key = data_key().of_value(RECORD_NUMBER, &[0; SALT_BYTES]).ok()?;
    pieces::seal(key, plain).ok()
}

/// Decrypts a range of a value of `length` bytes from its stored form with that key. `None` if it
/// is damaged or incomplete.
pub fn opened(stored: &[u8], length: u64, range: Range<u64>) -> Option<Vec<u8>> {
    let key = data_key().of_value(RECORD_NUMBER, &[0; SALT_BYTES]).ok()?;
    let mut opener = Opener::new(key, length, &range);
    let from = stored.get(usize::try_from(opener.start()).ok()?..)?;
    let wanted = usize::try_from(opener.wanted()).ok()?;
    opener.push(Bytes::copy_from_slice(from.get(..wanted)?));
    let mut plain = Vec::new();
    while !opener.is_over() {
        let piece = opener.open(1).ok()?;
        plain.extend_from_slice(&piece);
    }
    plain.truncate(usize::try_from(range.end - range.start).ok()?);
    Some(plain)
}
