//! What S3 knows of an object: attributes of its record in the store, which the ordered index
//! keeps, so listing and describing objects reads no value.
//!
//! Attributes are named like the headers they come from and go to. Some are our own: when it was
//! last modified; for an object whose bytes are in values of their own, their length and the [`Id`]
//! those values are under; and which version it is, for what is written in a bucket with
//! versioning. An object that was not put through S3 lacks all of this; its length is its value's,
//! and its entity tag is made of version and checksum, as the page does it.

use crate::{
    class::{Class, STORAGE_CLASS},
    crypt::{ENCRYPTION, Encryption},
    digest::{self, Algorithm, Computed},
    error::{ObjectError, ObjectResult},
    keyspace::{self, Id},
};
use std::{
    collections::HashMap,
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use terrace::{Attributes, ObjectInfo, Version};

/// Entity tag with its quotes; the same name and form as imports use.
const ETAG: &str = "etag";
/// Milliseconds since 1970.
const MODIFIED_MS: &str = "s3-modified-ms";
/// Length of an object whose bytes are elsewhere, or encrypted.
const LENGTH: &str = "s3-length";
/// The ID of the values that hold the bytes.
const VALUES: &str = "s3-values";
/// The [`Id`] that orders the versions of an object, and names this one unless it is the `null`
/// version.
const VERSION: &str = "s3-version";
/// The name of the version that has no ID.
const NULL_NAME: &str = "null";
/// There if this is the `null` version although it has an [`Id`].
const NULL: &str = "s3-null";
/// There if this version says that the object is deleted.
const DELETED: &str = "s3-delete-marker";
/// What names of user metadata begin with.
pub const METADATA_PREFIX: &str = "x-amz-meta-";
/// Tags, encoded as a query.
pub const TAGGING: &str = "x-amz-tagging";
/// Access control list as [`crate::acl`] has it, if it says anything.
const ACL: &str = "x-amz-acl";
/// The account that it belongs to, if not to that of its bucket.
const ACCOUNT: &str = "s3-account";
/// Media type.
const CONTENT_TYPE: &str = "content-type";
/// What S3 answers for objects that were put without a media type.
pub const CONTENT_TYPE_DEFAULT: &str = "binary/octet-stream";
/// Headers that are kept as they are.
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
/// When caches are to forget the object.
pub const EXPIRES: &str = "expires";
/// Where a web site redirects requests for the object.
pub const REDIRECT: &str = "x-amz-website-redirect-location";

/// Adds what the server knows of an object that was received in one piece. Returns its time, in
/// milliseconds since 1970.
pub fn complete(attributes: &mut Attributes, computed: &Computed, values: Option<Id>) -> u64 {
    let modified_ms = keyspace::now_ms();
    stamp(attributes, &computed.etag(), modified_ms);
    for checksum in &computed.checksums {
        attributes.set(checksum.algorithm.header(), checksum.text());
    }
    if let Some(id) = values {
        place(attributes, id, computed.length);
    }
    modified_ms
}

/// Sets entity tag, without quotes, and time.
pub fn stamp(attributes: &mut Attributes, etag: &str, modified_ms: u64) {
    attributes.set(ETAG, format!("\"{etag}\""));
    attributes.set(MODIFIED_MS, modified_ms.to_string());
}

/// Says that the bytes are encrypted, with what, and how many they are otherwise.
pub fn encrypt(attributes: &mut Attributes, sealed_key: &[u8], length: u64) {
    attributes.set(LENGTH, length.to_string());
    attributes.set(ENCRYPTION, sealed_key);
}

/// Says that the bytes are in the values under `id`.
pub fn place(attributes: &mut Attributes, id: Id, length: u64) {
    attributes.set(LENGTH, length.to_string());
    attributes.set(VALUES, id.to_string());
}

/// The ID of the values that hold the bytes, if that is where they are.
pub fn values(attributes: &Attributes) -> Option<Id> {
    attributes.get_str(VALUES).and_then(Id::parse)
}

/// Says which version it is: the [`Id`] that orders it, and whether it goes by that name or is the
/// `null` version.
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

/// The same attributes with other tags.
pub fn with_tagging(attributes: &Attributes, tagging: Option<&str>) -> Attributes {
    with(attributes, TAGGING, tagging.filter(|tagging| !tagging.is_empty()))
}

/// The same attributes with another access control list.
pub fn with_list(attributes: &Attributes, list: &str) -> Attributes {
    with(attributes, ACL, Some(list).filter(|list| !list.is_empty()))
}

/// The same attributes of what belongs to an account, or to that of its bucket.
pub fn of_account(attributes: &Attributes, account: Option<&str>) -> Attributes {
    with(attributes, ACCOUNT, account)
}

/// The same attributes with the list, and of the account, that other attributes say.
pub fn owned_as(attributes: &Attributes, other: &Attributes) -> Attributes {
    of_account(&with_list(attributes, list(other)), account(other))
}

/// The same attributes, redirecting where other attributes say.
pub fn with_redirect(attributes: &Attributes, other: &Attributes) -> Attributes {
    with(attributes, REDIRECT, other.get_str(REDIRECT))
}

/// The same attributes in another storage class.
pub fn with_class(attributes: &Attributes, class: Class) -> Attributes {
    with(attributes, STORAGE_CLASS, class.stored())
}

/// The same attributes with another wrapped key.
pub fn with_encryption(attributes: &Attributes, sealed_key: &[u8]) -> Attributes {
    with(attributes, ENCRYPTION, Some(sealed_key))
}

/// The same attributes with another value of one of them, or without it.
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

/// Length and entity tag, without quotes, of an object with these attributes, whose record has a
/// value of so many bytes.
pub fn length_and_tag(attributes: &Attributes, value_bytes: usize) -> (u64, String) {
    let elsewhere = values(attributes).and_then(|_| attributes.get_str(LENGTH)?.parse().ok());
    let etag = attributes.get_str(ETAG).unwrap_or("").trim_matches('"');
    (elsewhere.unwrap_or(value_bytes as u64), etag.to_owned())
}

/// The [`Id`] that a version goes by, if it is not the `null` version.
pub fn version_id(attributes: &Attributes) -> Option<Id> {
    let id = attributes.get_str(VERSION).and_then(Id::parse);
    id.filter(|_| attributes.get(NULL).is_none())
}

/// The tags among attributes, encoded as a query.
pub fn tagging(attributes: &Attributes) -> Option<&str> {
    attributes.get_str(TAGGING)
}

/// The attributes of an object that keeps its bytes and gets another description and time.
pub fn redescribed(facts: &Facts, description: &Attributes, modified_ms: u64) -> Attributes {
    let own = facts.attributes.iter().filter(|(name, _)| !is_description(name));
    let all = own.chain(description.iter());
    let mut attributes = all.fold(Attributes::new(), |all, (name, value)| all.with(name, value));
    stamp(&mut attributes, &facts.etag, modified_ms);
    attributes
}

/// Whether a name can be a header's.
fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether a text of user metadata goes into a header as it is; any other goes by RFC 2047.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn is_description(name: &str) -> bool {
    KEPT.contains(&name) || name.starts_with(METADATA_PREFIX) || name == TAGGING
}

/// An object as S3 shows it.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The commit that wrote the record.
    pub version: Version,
    /// Length in bytes.
    pub length: u64,
    /// Entity tag without quotes.
    pub etag: String,
    /// When it was last modified; 1970 if that was not noted.
    pub modified: SystemTime,
    /// When it was last modified, in milliseconds since 1970; 0 if that was not noted.
    pub modified_ms: u64,
    /// Where its bytes are if they are not the record's value.
    pub values: Option<Id>,
    /// What orders it among the object's versions. `None` if it was put where there was no
    /// versioning.
    pub order: Option<Id>,
    /// It goes by the name `null`.
    pub is_null: bool,
    /// It says that the object is deleted.
    pub is_delete_marker: bool,
    /// How its bytes are encrypted, if they are.
    pub encryption: Option<Encryption>,
    /// All of it.
    pub attributes: Attributes,
}

impl Facts {
    /// Reads what the store knows.
    pub fn of(info: &ObjectInfo) -> Self {
        Self::with(info, info.attributes.clone())
    }

    /// The same with those attributes only that a listing shows.
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
            // Whole seconds: headers have no fractions, and listings must not differ from them.
            modified: UNIX_EPOCH + Duration::from_secs(modified_ms / 1000),
            modified_ms,
            values,
            order,
            is_null: order.is_none() || text(NULL).is_some(),
            is_delete_marker: text(DELETED).is_some(),
            encryption,
            attributes,
        }
    }

    /// The headers that were put with it and go out as they came, by their names, and its user
    /// metadata, but for what must be encoded.
    pub fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        let shown = self.attributes.iter().filter(|(name, _)| {
            // `Expires` is shown only if it is a date.
            (KEPT.contains(name) && *name != EXPIRES) || name.starts_with(METADATA_PREFIX)
        });
        shown.filter_map(|(name, value)| {
            let text = std::str::from_utf8(value).ok()?;
            (!name.starts_with(METADATA_PREFIX) || is_plain(text)).then_some((name, text))
        })
    }

    /// A header that was put with it.
    pub fn header(&self, name: &str) -> Option<String> {
        self.attributes.get_str(name).map(str::to_owned)
    }

    /// The media type.
    pub fn content_type(&self) -> String {
        self.header(CONTENT_TYPE)
            .unwrap_or_else(|| CONTENT_TYPE_DEFAULT.to_owned())
    }

    /// User metadata that must be encoded to go into a header.
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

    /// It was put over S3, which notes when that was; no import and no command does.
    pub fn is_of_s3(&self) -> bool {
        self.attributes.get(MODIFIED_MS).is_some()
    }

    /// Its access control list as it is stored.
    pub fn list(&self) -> &str {
        list(&self.attributes)
    }

    /// The account that it belongs to, if not to that of its bucket.
    pub fn account(&self) -> Option<&str> {
        account(&self.attributes)
    }

    /// Tags, encoded as a query.
    pub fn tagging(&self) -> Option<&str> {
        tagging(&self.attributes)
    }

    /// What a copy takes along that a client could have said.
    pub fn description(&self) -> Attributes {
        let kept = self.attributes.iter().filter(|(name, _)| is_description(name));
        kept.fold(Attributes::new(), |all, (name, value)| all.with(name, value))
    }
}

/// What a version is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `null`
    Null,
    /// Its ID.
    Id(Id),
}

impl Name {
    /// What a request names. `None` if it names none.
    ///
    /// # Errors
    /// `InvalidArgument` for what no version can be called.
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

    /// The name of a version.
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
