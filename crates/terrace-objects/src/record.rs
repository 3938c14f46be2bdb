//! Metadata of an object: attributes of its record, which the ordered index keeps, so that listing
//! and describing objects reads no value.
//!
//! Attributes have the names of the headers they come from. Other attributes are specific to this
//! server: time of modification; length and [`Id`] of separate values; the version ID in a
//! versioned bucket. An object that was not put through S3 has none of them: its length is its
//! value's, and its entity tag is computed from version and checksum, as for the page.

use crate::{
    class::{Class, STORAGE_CLASS},
    crypt::{ENCRYPTION, Encryption},
    digest::{self, Algorithm, Computed},
    error::{ObjectError, ObjectResult},
    keyspace::Id,
};
use std::{collections::HashMap, fmt, time::SystemTime};
use terrace::{Attributes, Clock, ObjectInfo, Version};

/// Entity tag with quotes; the same attribute as imports write.
const ETAG: &str = "etag";
/// Milliseconds since 1970.
const MODIFIED_MS: &str = "s3-modified-ms";
/// Length of an object whose record's value is not its bytes.
const LENGTH: &str = "s3-length";
/// The [`Id`] of its separate values.
const VALUES: &str = "s3-values";
/// The [`Id`] that orders the object's versions. It is the version's ID, unless this is the `null`
/// version.
const VERSION: &str = "s3-version";
/// The ID of the version without an [`Id`].
const NULL_NAME: &str = "null";
/// Present on a `null` version that has an order.
const NULL: &str = "s3-null";
/// Present on a delete marker.
const DELETED: &str = "s3-delete-marker";
/// Prefix of user metadata.
pub const METADATA_PREFIX: &str = "x-amz-meta-";
/// Tags, in query encoding.
pub const TAGGING: &str = "x-amz-tagging";
/// Access control list in [`crate::acl`]'s form, if not the default.
const ACL: &str = "x-amz-acl";
/// Its account, if not the bucket's.
const ACCOUNT: &str = "s3-account";
/// Media type.
const CONTENT_TYPE: &str = "content-type";
/// S3's media type for objects put without one.
pub const CONTENT_TYPE_DEFAULT: &str = "binary/octet-stream";
/// Headers stored as they are.
pub const KEPT: [&str; 8] = [
    CONTENT_TYPE,
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    EXPIRES,
    REDIRECT,
    STORAGE_CLASS,
];
/// `Expires` for caches.
pub const EXPIRES: &str = "expires";
/// Where a web site redirects requests for the object.
pub const REDIRECT: &str = "x-amz-website-redirect-location";

/// Adds the server's attributes to an object received in one piece.
pub fn complete(attributes: &mut Attributes, computed: &Computed, values: Option<Id>, modified_ms: u64) {
    stamp(attributes, &computed.tag.text(), modified_ms);
    for checksum in &computed.checksums {
        attributes.set(checksum.algorithm.header(), checksum.text());
    }
    if let Some(id) = values {
        place(attributes, id, computed.length);
    }
}

/// Sets entity tag, without quotes, and time.
pub fn stamp(attributes: &mut Attributes, etag: &str, modified_ms: u64) {
    attributes.set(ETAG, format!("\"{etag}\""));
    attributes.set(MODIFIED_MS, modified_ms.to_string());
}

/// Adds the wrapped data key and the length before encryption.
pub fn encrypt(attributes: &mut Attributes, sealed_key: &[u8], length: u64) {
    attributes.set(LENGTH, length.to_string());
    attributes.set(ENCRYPTION, sealed_key);
}

/// Adds ID and length of separate values.
pub fn place(attributes: &mut Attributes, id: Id, length: u64) {
    attributes.set(LENGTH, length.to_string());
    attributes.set(VALUES, id.to_string());
}

/// The ID of its separate values, if it has them.
pub fn values(attributes: &Attributes) -> Option<Id> {
    attributes.get_str(VALUES).and_then(Id::parse)
}

/// Sets the order of a version, and whether it is the `null` version.
pub fn set_version(attributes: &mut Attributes, order: Id, is_null: bool) {
    attributes.set(VERSION, order.to_string());
    if is_null {
        attributes.set(NULL, "");
    }
}

/// The attributes of a delete marker.
pub fn delete_marker(order: Id, is_null: bool, modified_ms: u64) -> Attributes {
    let mut attributes = Attributes::new().with(DELETED, "");
    attributes.set(MODIFIED_MS, modified_ms.to_string());
    set_version(&mut attributes, order, is_null);
    attributes
}

/// A copy with other tags.
pub fn with_tagging(attributes: &Attributes, tagging: Option<&str>) -> Attributes {
    with(attributes, TAGGING, tagging.filter(|tagging| !tagging.is_empty()))
}

/// A copy with another access control list.
pub fn with_list(attributes: &Attributes, list: &str) -> Attributes {
    with(attributes, ACL, Some(list).filter(|list| !list.is_empty()))
}

/// A copy with another account, or with the bucket's.
pub fn of_account(attributes: &Attributes, account: Option<&str>) -> Attributes {
    with(attributes, ACCOUNT, account)
}

/// A copy with list and account of `other`.
pub fn owned_as(attributes: &Attributes, other: &Attributes) -> Attributes {
    of_account(&with_list(attributes, list(other)), account(other))
}

/// A copy with the redirect of `other`.
pub fn with_redirect(attributes: &Attributes, other: &Attributes) -> Attributes {
    with(attributes, REDIRECT, other.get_str(REDIRECT))
}

/// A copy with another storage class.
pub fn with_class(attributes: &Attributes, class: Class) -> Attributes {
    with(attributes, STORAGE_CLASS, class.stored())
}

/// A copy with another wrapped key.
pub fn with_encryption(attributes: &Attributes, sealed_key: &[u8]) -> Attributes {
    with(attributes, ENCRYPTION, Some(sealed_key))
}

/// A copy with one attribute set or removed.
fn with(attributes: &Attributes, name: &str, value: Option<impl AsRef<[u8]>>) -> Attributes {
    if value.is_none() && attributes.get(name).is_none() {
        return attributes.clone();
    }
    let others = attributes.iter().filter(|(known, _)| *known != name);
    let mut changed = others.fold(Attributes::new(), |all, (name, value)| all.with(name, value));
    if let Some(value) = value {
        changed.set(name, value);
    }
    changed
}

/// The access control list among attributes.
fn list(attributes: &Attributes) -> &str {
    attributes.get_str(ACL).unwrap_or("")
}

/// The account among attributes.
pub fn account(attributes: &Attributes) -> Option<&str> {
    attributes.get_str(ACCOUNT)
}

/// Length and entity tag, without quotes, of an object with these attributes whose record's value
/// has `value_bytes` bytes.
pub fn length_and_tag(attributes: &Attributes, value_bytes: usize) -> (u64, String) {
    let elsewhere = values(attributes).and_then(|_| attributes.get_str(LENGTH)?.parse().ok());
    let etag = attributes.get_str(ETAG).unwrap_or("").trim_matches('"');
    (elsewhere.unwrap_or(value_bytes as u64), etag.to_owned())
}

/// The version's [`Id`], unless it is the `null` version.
pub fn version_id(attributes: &Attributes) -> Option<Id> {
    let id = attributes.get_str(VERSION).and_then(Id::parse);
    id.filter(|_| attributes.get(NULL).is_none())
}

/// The tags, in query encoding.
pub fn tagging(attributes: &Attributes) -> Option<&str> {
    attributes.get_str(TAGGING)
}

/// Attributes of an object whose bytes stay and whose metadata and time are replaced.
pub fn redescribed(facts: &Facts, description: &Attributes, modified_ms: u64) -> Attributes {
    let own = facts.attributes.iter().filter(|(name, _)| !is_description(name));
    let all = own.chain(description.iter());
    let mut attributes = all.fold(Attributes::new(), |all, (name, value)| all.with(name, value));
    stamp(&mut attributes, &facts.etag, modified_ms);
    attributes
}

/// Whether a text is a valid header name.
fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether a metadata value can be sent in a header as it is; otherwise it is encoded by RFC 2047.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn is_description(name: &str) -> bool {
    KEPT.contains(&name) || name.starts_with(METADATA_PREFIX) || name == TAGGING
}

/// An object as S3 describes it.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The store's version of the record.
    pub version: Version,
    /// Length in bytes.
    pub length: u64,
    /// Entity tag without quotes.
    pub etag: String,
    /// Time of modification; 1970 if unknown.
    pub modified: SystemTime,
    /// Time of modification, in milliseconds since 1970; 0 if unknown.
    pub modified_ms: u64,
    /// The ID of its separate values, if it has them.
    pub values: Option<Id>,
    /// Its order among the object's versions. `None` if it was put before versioning was enabled.
    pub order: Option<Id>,
    /// It is the `null` version.
    pub is_null: bool,
    /// It is a delete marker.
    pub is_delete_marker: bool,
    /// How its bytes are encrypted, if they are.
    pub encryption: Option<Encryption>,
    /// All attributes.
    pub attributes: Attributes,
}

impl Facts {
    /// Reads the engine's metadata.
    pub fn of(info: &ObjectInfo) -> Self {
        Self::with(info, info.attributes.clone())
    }

    /// Like [`Facts::of`], with only the attributes that a listing shows.
    pub fn listed(info: &ObjectInfo) -> Self {
        let checksums = Algorithm::ALL.map(Algorithm::header);
        let shown = info.attributes.iter().filter(|(name, _)| {
            checksums.contains(name) || [digest::KIND_ATTRIBUTE, ACCOUNT, STORAGE_CLASS].contains(name)
        });
        let attributes = shown.fold(Attributes::new(), |all, (name, value)| all.with(name, value));
        Self::with(info, attributes)
    }

    fn with(info: &ObjectInfo, attributes: Attributes) -> Self {
        let text = |name| info.attributes.get_str(name);
        let number = |name| text(name).and_then(|text| text.parse::<u64>().ok());
        let values = values(&info.attributes);
        let encryption = Encryption::of(&info.attributes);
        let is_elsewhere = values.is_some() || encryption.is_some();
        let modified_ms = number(MODIFIED_MS).unwrap_or(0);
        let order = text(VERSION).and_then(Id::parse);
        let etag = text(ETAG).and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
        Self {
            version: info.version,
            length: number(LENGTH).filter(|_| is_elsewhere).unwrap_or(info.length),
            etag: etag.map_or_else(|| format!("{:x}-{:08x}", info.version.0, info.checksum), str::to_owned),
            // Whole seconds, so that listings and headers, which have no fractions, agree.
            modified: Clock::of_ms(modified_ms / 1000 * 1000),
            modified_ms,
            values,
            order,
            is_null: order.is_none() || text(NULL).is_some(),
            is_delete_marker: text(DELETED).is_some(),
            encryption,
            attributes,
        }
    }

    /// The headers that are returned as the client sent them, and the user metadata that needs no
    /// encoding.
    pub fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        let shown = self.attributes.iter().filter(|(name, _)| {
            // `Expires` is returned only if it is a valid date.
            (KEPT.contains(name) && *name != EXPIRES) || name.starts_with(METADATA_PREFIX)
        });
        shown.filter_map(|(name, value)| {
            let text = std::str::from_utf8(value).ok()?;
            (!name.starts_with(METADATA_PREFIX) || is_plain(text)).then_some((name, text))
        })
    }

    /// A header that the client sent with the object.
    pub fn header(&self, name: &str) -> Option<String> {
        self.attributes.get_str(name).map(str::to_owned)
    }

    /// The media type.
    pub fn content_type(&self) -> String {
        self.header(CONTENT_TYPE)
            .unwrap_or_else(|| CONTENT_TYPE_DEFAULT.to_owned())
    }

    /// User metadata that must be encoded for a header.
    pub fn encoded_metadata(&self) -> Option<HashMap<String, String>> {
        let named = self.attributes.iter().filter_map(|(name, value)| {
            is_token(name).then_some(())?;
            let name = name.strip_prefix(METADATA_PREFIX)?;
            let text = std::str::from_utf8(value).ok()?;
            (!is_plain(text)).then(|| (name.to_owned(), text.to_owned()))
        });
        let metadata: HashMap<_, _> = named.collect();
        (!metadata.is_empty()).then_some(metadata)
    }

    /// Its storage class.
    pub fn class(&self) -> Class {
        Class::of(&self.attributes)
    }

    /// Whether it was put through S3, which records the time; imports and commands do not.
    pub fn is_of_s3(&self) -> bool {
        self.attributes.get(MODIFIED_MS).is_some()
    }

    /// Its access control list as stored.
    pub fn list(&self) -> &str {
        list(&self.attributes)
    }

    /// Its account, if not its bucket's.
    pub fn account(&self) -> Option<&str> {
        account(&self.attributes)
    }

    /// Its tags, in query encoding.
    pub fn tagging(&self) -> Option<&str> {
        tagging(&self.attributes)
    }

    /// The attributes that a copy keeps: those that a client can set.
    pub fn description(&self) -> Attributes {
        let kept = self.attributes.iter().filter(|(name, _)| is_description(name));
        kept.fold(Attributes::new(), |all, (name, value)| all.with(name, value))
    }
}

/// A version ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `null`
    Null,
    /// An ID of its own.
    Id(Id),
}

impl Name {
    /// Parses a request's version ID. `None` if it has none.
    ///
    /// # Errors
    /// `InvalidArgument` for text that is no version ID.
    pub fn parse(text: Option<&str>) -> ObjectResult<Option<Self>> {
        match text {
            None | Some("") => Ok(None),
            Some(NULL_NAME) => Ok(Some(Self::Null)),
            Some(text) => match Id::parse(text) {
                Some(id) => Ok(Some(Self::Id(id))),
                None => Err(ObjectError::NoVersionName),
            },
        }
    }

    /// The version ID of an object.
    pub fn of(facts: &Facts) -> Self {
        match facts.order {
            Some(order) if !facts.is_null => Self::Id(order),
            _ => Self::Null,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str(NULL_NAME),
            Self::Id(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
