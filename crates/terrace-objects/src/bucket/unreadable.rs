//! Settings that decide access to a bucket and cannot be parsed.
//!
//! Their effect is unknown: a policy may deny, a public access block may apply. So they do not
//! count as absent. The bucket refuses every request until its owner replaces or deletes the
//! setting. Until then the stored setting is kept as it is, like the rest of the record. Any other
//! setting that cannot be parsed prevents the server from starting.

use super::{NO_LISTS, Record};
use crate::{acl, policy::Policy};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};

/// The stored values of such settings, by field name of the record.
pub type Unreadable = BTreeMap<&'static str, Value>;

/// The settings, and the operations that replace or delete them. The policy must be repaired first,
/// since it may decide about the others.
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

/// Field name of the policy.
pub const POLICY: &str = "policy";
/// Field name of the public access block.
pub const ACCESS_BLOCK: &str = "public_access_block";
/// Field name of object ownership.
pub const OWNERSHIP: &str = "ownership";
/// Field name of the access control list.
pub const LIST: &str = "acl";
/// Field name of object lock.
pub const LOCK: &str = "lock";
/// Values of [`Record::ownership`] besides [`NO_LISTS`].
const WITH_LISTS: [&str; 2] = ["BucketOwnerPreferred", "ObjectWriter"];

/// Decodes a record without these settings. `None` if it still cannot be decoded.
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
    /// Parses the settings that are stored as text.
    pub fn read_texts(&mut self, bucket: &str) {
        let policy = self.policy.as_ref().map(|text| Policy::of_bucket(text, bucket));
        // Older records have the two flags instead of a policy.
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

    /// A setting that decides access cannot be parsed.
    pub fn is_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// The policy cannot be parsed.
    pub fn has_unreadable_policy(&self) -> bool {
        self.unreadable.contains_key(POLICY)
    }

    /// Whether an operation may proceed: all settings are valid, or it replaces an invalid one.
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

    /// The setting of this name was replaced or deleted.
    pub fn repaired(&mut self, name: &'static str) {
        self.unreadable.remove(name);
    }

    /// The stored record.
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
