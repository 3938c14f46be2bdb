//! ListObjects, ListObjectsV2, ListObjectVersions.
//!
//! Without versioning every object has one version, named `null`; clients that empty a bucket list
//! versions.

use super::{Answered, signed};
use crate::http::budget::Ticket;
use crate::s3::digest;
use crate::s3::{
    Gateway,
    bucket::{Bucket, Record},
    errors::{self, Told as _},
    keyspace,
    list::{self, After, Entry, Page, Query, Stored},
    record::Facts,
    versions::{self, Name, Version},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hyper::http::Extensions;
use s3s::dto::{ETag, Timestamp};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        ChecksumAlgorithm, CommonPrefix, DeleteMarkerEntry, EncodingType, ListObjectVersionsInput,
        ListObjectVersionsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object,
        ObjectStorageClass, ObjectVersion, ObjectVersionStorageClass, Owner,
    },
    s3_error,
};
use std::sync::Arc;
use terrace_objects::text::percent_encode;

/// Most entries of a page.
const PAGE_MAX: i32 = 1000;

/// How names are written in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    is_url: bool,
}

impl Encoding {
    /// Percent-encoded.
    pub const URL: Self = Self { is_url: true };

    /// Reads the requested encoding.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but `url`.
    pub fn of(asked: Option<&EncodingType>) -> S3Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self { is_url: false }),
            Some("url") => Ok(Self { is_url: true }),
            Some(_) => Err(s3_error!(
                InvalidArgument,
                "Invalid Encoding Method specified in Request"
            )),
        }
    }

    /// A name for the answer.
    pub fn apply(self, name: &str) -> String {
        if !self.is_url {
            return name.to_owned();
        }
        percent_encode(name)
    }
}

/// The requested maximum number of entries.
///
/// # Errors
/// `InvalidArgument` if negative.
pub fn limit(asked: Option<i32>, name: &str) -> S3Result<i32> {
    match asked.unwrap_or(PAGE_MAX) {
        ..0 => Err(s3_error!(
            InvalidArgument,
            "Argument {name} must be an integer between 0 and 2147483647"
        )),
        limit => Ok(limit.min(PAGE_MAX)),
    }
}

/// The fields that all listings of a bucket's objects have.
#[derive(Clone)]
struct Asked {
    bucket: Arc<Bucket>,
    prefix: String,
    delimiter: Option<String>,
    encoding: Encoding,
    limit: i32,
}

/// Takes it out of an input; the three have the same fields.
macro_rules! asked {
    ($gateway:expr, $input:expr) => {
        Asked {
            bucket: $gateway.bucket(&$input.bucket)?,
            prefix: $input.prefix.take().unwrap_or_default(),
            delimiter: given($input.delimiter.take()),
            encoding: Encoding::of($input.encoding_type.as_ref())?,
            limit: limit($input.max_keys, "max-keys")?,
        }
    };
}

impl Asked {
    fn most(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(0)
    }

    fn shown_prefix(&self) -> Option<String> {
        Some(self.encoding.apply(&self.prefix))
    }

    fn shown_delimiter(&self) -> Option<String> {
        self.delimiter.as_deref().map(|text| self.encoding.apply(text))
    }
}

/// The owners that a listing shows.
struct Owners {
    record: Arc<Record>,
    /// The owner of the bucket, and so of most objects.
    usual: Owner,
}

impl Owners {
    fn of_bucket(bucket: &Bucket) -> Self {
        let record = bucket.record();
        Self {
            usual: super::shown(record.owner()),
            record,
        }
    }

    fn of(&self, facts: &Facts) -> Owner {
        let owner = self.record.owner_of(facts);
        if owner == self.record.owner() {
            self.usual.clone()
        } else {
            super::shown(owner)
        }
    }
}

/// A page for the answers.
struct Shown {
    objects: Vec<(String, Facts)>,
    prefixes: Vec<String>,
    /// The last entry, if more follow.
    next: Option<String>,
}

/// Memory of an entry besides its key while the answer is sent: the entry, the answer's element,
/// and its XML.
const ENTRY_COST_BYTES: u64 = 512;
/// Copies of the key's bytes: each of the above has one, and the XML may have it encoded.
const KEY_COST: u64 = 6;

/// Counts the memory of a page until its answer is sent, if requests have a ticket.
///
/// # Errors
/// `SlowDown`
pub fn pay<'k>(extensions: &Extensions, keys: impl Iterator<Item = &'k str>) -> S3Result {
    let cost = keys.map(|key| ENTRY_COST_BYTES + KEY_COST * key.len() as u64).sum();
    let ticket = extensions.get::<Arc<Ticket>>();
    ticket.map_or(Ok(()), |ticket| ticket.take(cost).map_err(errors::of_memory))
}

async fn show(
    gateway: &Arc<Gateway>,
    asked: &Asked,
    after: Option<String>,
    extensions: &Extensions,
) -> S3Result<Shown> {
    let asked = asked.clone();
    let shown = gateway
        .run(move |_, store| {
            let base = keyspace::objects(&asked.bucket.name);
            let query = Query {
                base: &base,
                prefix: &asked.prefix,
                delimiter: asked.delimiter.as_deref(),
                after: after.as_deref().map(After::Shown),
                limit: asked.most(),
            };
            // Keys that are not UTF-8 cannot be requested, and no S3 client has put them.
            let page = list::page(store, &query, |key| std::str::from_utf8(key).ok(), Facts::listed).told()?;
            Ok(Shown::of(page))
        })
        .await?;
    let keys = shown.objects.iter().map(|(key, _)| key).chain(&shown.prefixes);
    pay(extensions, keys.map(String::as_str))?;
    Ok(shown)
}

impl Shown {
    fn of(page: Page<Stored<Facts>>) -> Self {
        let (mut objects, mut prefixes, mut next) = (Vec::new(), Vec::new(), None);
        for entry in page.entries {
            match entry {
                Entry::Prefix(prefix) => {
                    next = Some(prefix.clone());
                    prefixes.push(prefix);
                }
                Entry::Key((key, facts)) => {
                    let key = String::from_utf8_lossy(&key).into_owned();
                    next = Some(key.clone());
                    objects.push((key, facts));
                }
            }
        }
        Self {
            objects,
            prefixes,
            next: next.filter(|_| page.truncated),
        }
    }

    fn contents(&self, encoding: Encoding, owners: Option<&Owners>) -> Option<Vec<Object>> {
        let contents: Vec<_> = self
            .objects
            .iter()
            .map(|(key, facts)| Object {
                checksum_algorithm: checksum_algorithm(facts),
                checksum_type: digest::stored(&facts.attributes).checksum_type,
                e_tag: Some(ETag::Strong(facts.etag.clone())),
                key: Some(encoding.apply(key)),
                last_modified: Some(Timestamp::from(facts.modified)),
                owner: owners.map(|owners| owners.of(facts)),
                size: Some(signed(facts.length)),
                storage_class: Some(ObjectStorageClass::from_static(facts.class().name())),
                ..Object::default()
            })
            .collect();
        (!contents.is_empty()).then_some(contents)
    }

    fn common_prefixes(&self, encoding: Encoding) -> Option<Vec<CommonPrefix>> {
        common_prefixes(&self.prefixes, encoding)
    }
}

fn common_prefixes(prefixes: &[String], encoding: Encoding) -> Option<Vec<CommonPrefix>> {
    let prefixes: Vec<_> = prefixes
        .iter()
        .map(|prefix| CommonPrefix {
            prefix: Some(encoding.apply(prefix)),
        })
        .collect();
    (!prefixes.is_empty()).then_some(prefixes)
}

fn checksum_algorithm(facts: &Facts) -> Option<Vec<ChecksumAlgorithm>> {
    use crate::s3::digest::Algorithm;
    let found = Algorithm::ALL
        .into_iter()
        .find(|algorithm| facts.attributes.get(algorithm.header()).is_some())?;
    Some(vec![ChecksumAlgorithm::from_static(found.name())])
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// ListObjects
pub async fn first(gateway: &Arc<Gateway>, request: S3Request<ListObjectsInput>) -> Answered<ListObjectsOutput> {
    let mut input = request.input;
    let asked = asked!(gateway, input);
    let marker = input.marker.unwrap_or_default();
    let shown = show(gateway, &asked, given(Some(marker.clone())), &request.extensions).await?;
    // S3 names the next marker only with a delimiter; without one it is the last key.
    let next_marker = shown.next.as_deref().filter(|_| asked.delimiter.is_some());
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: asked.shown_prefix(),
        marker: Some(asked.encoding.apply(&marker)),
        max_keys: Some(asked.limit),
        is_truncated: Some(shown.next.is_some()),
        contents: shown.contents(asked.encoding, Some(&Owners::of_bucket(&asked.bucket))),
        common_prefixes: shown.common_prefixes(asked.encoding),
        delimiter: asked.shown_delimiter(),
        next_marker: next_marker.map(|text| asked.encoding.apply(text)),
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

/// ListObjectsV2
pub async fn second(gateway: &Arc<Gateway>, request: S3Request<ListObjectsV2Input>) -> Answered<ListObjectsV2Output> {
    let mut input = request.input;
    let asked = asked!(gateway, input);
    let after = match input.continuation_token.as_deref() {
        // Some clients begin with an empty token.
        Some(token) if !token.is_empty() => Some(read_token(token)?),
        _ => given(input.start_after.clone()),
    };
    let shown = show(gateway, &asked, after, &request.extensions).await?;
    let owners = (input.fetch_owner == Some(true)).then(|| Owners::of_bucket(&asked.bucket));
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: asked.shown_prefix(),
        max_keys: Some(asked.limit),
        key_count: i32::try_from(shown.objects.len() + shown.prefixes.len()).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(shown.next.is_some()),
        next_continuation_token: shown.next.as_deref().map(|last| URL_SAFE_NO_PAD.encode(last)),
        contents: shown.contents(asked.encoding, owners.as_ref()),
        common_prefixes: shown.common_prefixes(asked.encoding),
        delimiter: asked.shown_delimiter(),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|text| asked.encoding.apply(&text)),
        request_charged: None,
    }))
}

/// A token is the last entry of the previous page.
///
/// # Errors
/// `InvalidArgument`
pub fn read_token(token: &str) -> S3Result<String> {
    let last = URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    last.filter(|last| !last.is_empty())
        .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))
}

/// ListObjectVersions
pub async fn versions(
    gateway: &Arc<Gateway>,
    request: S3Request<ListObjectVersionsInput>,
) -> Answered<ListObjectVersionsOutput> {
    let mut input = request.input;
    let asked = asked!(gateway, input);
    let marker = input.key_marker.unwrap_or_default();
    let name = Name::parse(input.version_id_marker.as_deref()).told()?;
    if name.is_some() && marker.is_empty() {
        return Err(s3_error!(
            InvalidArgument,
            "A version-id marker cannot be specified without a key marker."
        ));
    }
    let (question, after) = (asked.clone(), marker.clone());
    let page = gateway
        .run(move |_, store| {
            let query = versions::Query {
                bucket: &question.bucket.name,
                prefix: &question.prefix,
                delimiter: question.delimiter.as_deref(),
                after: match (after.as_str(), name) {
                    ("", _) => versions::After::Nothing,
                    (key, None) => versions::After::Key(key),
                    (key, Some(name)) => versions::After::Version(key, name),
                },
                limit: question.most(),
            };
            versions::page_to_show(store, &query).told()
        })
        .await?;
    let keys = page.entries.iter().map(|entry| match entry {
        Entry::Prefix(prefix) => prefix,
        Entry::Key(version) => &version.key,
    });
    pay(&request.extensions, keys.map(String::as_str))?;
    let shown = ShownVersions::of(page, asked.encoding, &Owners::of_bucket(&asked.bucket));
    Ok(S3Response::new(ListObjectVersionsOutput {
        common_prefixes: common_prefixes(&shown.prefixes, asked.encoding),
        delete_markers: Some(shown.markers).filter(|markers| !markers.is_empty()),
        delimiter: asked.shown_delimiter(),
        encoding_type: input.encoding_type,
        is_truncated: Some(shown.next.is_some()),
        key_marker: Some(asked.encoding.apply(&marker)),
        max_keys: Some(asked.limit),
        name: Some(input.bucket),
        next_key_marker: shown.next.as_ref().map(|(key, _)| asked.encoding.apply(key)),
        next_version_id_marker: shown.next.and_then(|(_, name)| name.map(|name| name.to_string())),
        prefix: asked.shown_prefix(),
        version_id_marker: input.version_id_marker,
        versions: Some(shown.versions).filter(|versions| !versions.is_empty()),
        ..ListObjectVersionsOutput::default()
    }))
}

/// A page of versions for the answer.
struct ShownVersions {
    versions: Vec<ObjectVersion>,
    markers: Vec<DeleteMarkerEntry>,
    prefixes: Vec<String>,
    /// Key and version of the last entry, if more follow.
    next: Option<(String, Option<Name>)>,
}

impl ShownVersions {
    fn of(page: Page<Version>, encoding: Encoding, owners: &Owners) -> Self {
        let mut shown = Self {
            versions: Vec::new(),
            markers: Vec::new(),
            prefixes: Vec::new(),
            next: None,
        };
        for entry in page.entries {
            match entry {
                Entry::Prefix(prefix) => {
                    shown.next = Some((prefix.clone(), None));
                    shown.prefixes.push(prefix);
                }
                Entry::Key(version) => {
                    shown.next = Some((version.key.clone(), Some(Name::of(&version.facts))));
                    if version.facts.is_delete_marker {
                        shown.markers.push(shown_marker(&version, encoding, owners));
                    } else {
                        shown.versions.push(shown_version(&version, encoding, owners));
                    }
                }
            }
        }
        shown.next = shown.next.filter(|_| page.truncated);
        shown
    }
}

fn shown_marker(version: &Version, encoding: Encoding, owners: &Owners) -> DeleteMarkerEntry {
    DeleteMarkerEntry {
        is_latest: Some(version.is_latest),
        key: Some(encoding.apply(&version.key)),
        last_modified: Some(Timestamp::from(version.facts.modified)),
        owner: Some(owners.of(&version.facts)),
        version_id: Some(Name::of(&version.facts).to_string()),
    }
}

fn shown_version(version: &Version, encoding: Encoding, owners: &Owners) -> ObjectVersion {
    let facts = &version.facts;
    ObjectVersion {
        checksum_algorithm: checksum_algorithm(facts),
        checksum_type: digest::stored(&facts.attributes).checksum_type,
        e_tag: Some(ETag::Strong(facts.etag.clone())),
        is_latest: Some(version.is_latest),
        key: Some(encoding.apply(&version.key)),
        last_modified: Some(Timestamp::from(facts.modified)),
        owner: Some(owners.of(facts)),
        size: Some(signed(facts.length)),
        storage_class: Some(ObjectVersionStorageClass::from_static(facts.class().name())),
        version_id: Some(Name::of(facts).to_string()),
        ..ObjectVersion::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_in_an_answer() {
        let url = Encoding { is_url: true };
        assert_eq!(url.apply("a/b-c_d.e~f"), "a/b-c_d.e~f");
        assert_eq!(url.apply("a b+ü\n%"), "a%20b%2B%C3%BC%0A%25");
        assert_eq!(Encoding { is_url: false }.apply("a b"), "a b");
    }

    #[test]
    fn tokens_and_limits() {
        assert_eq!(read_token(&URL_SAFE_NO_PAD.encode("a/ü")).unwrap(), "a/ü");
        for token in ["", "!", "_w"] {
            assert!(read_token(token).is_err(), "{token}");
        }
        assert_eq!(limit(None, "max-keys").unwrap(), 1000);
        assert_eq!(limit(Some(5000), "max-keys").unwrap(), 1000);
        assert_eq!(limit(Some(0), "max-keys").unwrap(), 0);
        assert!(limit(Some(-1), "max-keys").is_err());
    }
}
