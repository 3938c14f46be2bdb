//! Settings of a bucket that decide who may, and cannot be read.
//!
//! What a setting says that cannot be read is unknown: a policy may have denied, a block may have
//! kept the bucket from being public. So it does not count as none. The bucket refuses every
//! request until whoever owns it has put the setting anew, or deleted it; what else there is in the
//! record stays as it is, and so does what cannot be read, until then. Any other setting that
//! cannot be read keeps the server from starting.

use super::{NO_LISTS, Record};
use crate::{acl, policy::Policy};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};

/// The values of such settings as they are stored, by their names in the record.
pub type Unreadable = BTreeMap<&'static str, Value>;

/// The settings, with the operations that put or delete them. While the policy cannot be read, it
/// is what is to be put first: it may say something of the others.
const SETTINGS: [(&str, &[&str]); 5] = [
    (POLICY, &["PutBucketPolicy", "DeleteBucketPolicy"]),
    (ACCESS_BLOCK, &["PutPublicAccessBlock", "DeletePublicAccessBlock"]),
    (
        OWNERSHIP,
        &["PutBucketOwnershipControls", "DeleteBucketOwnershipControls"],
    ),
    (LIST, &["PutBucketAcl"]),
    (LOCK, &["PutObjectLockConfiguration"]),
];

/// The name of the policy in a record.
pub const POLICY: &str = "policy";
/// That of what keeps a bucket from being public.
pub const ACCESS_BLOCK: &str = "public_access_block";
/// That of object ownership.
pub const OWNERSHIP: &str = "ownership";
/// That of the access control list.
pub const LIST: &str = "acl";
/// That of object lock.
pub const LOCK: &str = "lock";
/// What [`Record::ownership`] says besides [`NO_LISTS`].
const WITH_LISTS: [&str; 2] = ["BucketOwnerPreferred", "ObjectWriter"];

/// The record that JSON is, but for such settings. `None` if it is none without them either.
pub fn read_without(json: &[u8]) -> Option<Record> {
    let mut fields: Map<String, Value> = serde_json::from_slice(json).ok()?;
    let mut unreadable = Unreadable::new();
    for (name, _) in SETTINGS {
        let alone = fields.get(name).map(|value| {
            let time = ("created_ms".to_owned(), Value::from(0));
            Value::from_iter([time, (name.to_owned(), value.clone())])
        });
        if alone.is_some_and(|alone| serde_json::from_value::<Record>(alone).is_err()) {
            unreadable.extend(fields.remove(name).map(|value| (name, value)));
        }
    }
    let mut record: Record = serde_json::from_value(Value::Object(fields)).ok()?;
    record.unreadable = unreadable;
    Some(record)
}

impl Record {
    /// Reads what the texts in it say.
    pub fn read_texts(&mut self, bucket: &str) {
        let policy = self.policy.as_ref().map(|text| Policy::of_bucket(text, bucket));
        // Of a policy from before policies were the two flags say what it says.
        let is_old = self.public_read || self.public_list;
        let is_broken = matches!(policy, Some(Err(_))) && !is_old;
        self.rules = policy.and_then(Result::ok).map(Arc::new);
        let keep = |text: &Option<String>| text.clone().map(Value::from);
        let ownership = self.ownership.as_deref();
        let is_known = ownership.is_none_or(|text| text == NO_LISTS || WITH_LISTS.contains(&text));
        let found = [
            (POLICY, keep(&self.policy).filter(|_| is_broken)),
            (OWNERSHIP, keep(&self.ownership).filter(|_| !is_known)),
            (
                LIST,
                keep(&self.acl).filter(|text| !text.as_str().is_some_and(acl::is_readable)),
            ),
        ];
        let found = found
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)));
        self.unreadable.extend(found);
        for name in self.unreadable.keys() {
            tracing::error!(
                bucket,
                setting = name,
                "a setting of a bucket cannot be read; the bucket's requests are refused until it is put anew or deleted"
            );
        }
    }

    /// Something cannot be read that decides who may.
    pub fn is_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// The policy cannot be read.
    pub fn has_unreadable_policy(&self) -> bool {
        self.unreadable.contains_key(POLICY)
    }

    /// Whether an operation may go on: everything can be read, or it puts anew what cannot be.
    pub fn is_open_to(&self, operation: &str) -> bool {
        let repairs = |name: &str| {
            let mut of_name = SETTINGS.iter().filter(|(known, _)| *known == name);
            of_name.any(|(_, operations)| operations.contains(&operation))
        };
        !self.is_unreadable()
            || if self.has_unreadable_policy() {
                repairs(POLICY)
            } else {
                self.unreadable.keys().any(|name| repairs(name))
            }
    }

    /// The setting of this name was put anew, or deleted.
    pub fn repaired(&mut self, name: &'static str) {
        self.unreadable.remove(name);
    }

    /// What is stored.
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        if !self.is_unreadable() {
            return serde_json::to_vec(self);
        }
        let mut value = serde_json::to_value(self)?;
        if let Value::Object(fields) = &mut value {
            let kept = self.unreadable.iter();
            fields.extend(kept.map(|(name, value)| ((*name).to_owned(), value.clone())));
        }
        serde_json::to_vec(&value)
    }
}
