//! Pages of versions: current objects and other versions of a bucket, merged in S3's order: by key,
//! then from the latest to the earliest.
//!
//! A page is two scans of one snapshot; no value is read. A page that continues within an object
//! does so by the order of its versions, so it misses none if versions are deleted or become
//! current between pages. Only the ID `null` has no order: if that version no longer exists, its
//! object is listed again from its beginning.

use super::{Name, null_order};
use crate::{
    error::{ObjectError, ObjectResult},
    keyspace::{self, Id},
    list::{Page, Roll, behind, common_prefix, roll_up},
    record::Facts,
};
use std::{iter::Peekable, ops::Bound};
use terrace::{ObjectInfo, ScanRange, Snapshot, Store};

/// Parameters of a listing.
pub struct Query<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// Only keys that begin with this.
    pub prefix: &'a str,
    /// Keys with this text after the prefix are grouped into a common prefix.
    pub delimiter: Option<&'a str>,
    /// Where to begin.
    pub after: After<'a>,
    /// Most entries.
    pub limit: usize,
}

/// Where a listing continues.
#[derive(Debug, Clone, Copy)]
pub enum After<'a> {
    /// At the beginning.
    Nothing,
    /// After all versions of a key, or after a common prefix that was shown.
    Key(&'a str),
    /// After one version of a key.
    Version(&'a str, Name),
    /// After this order among the versions of a key, whether or not that version still exists.
    Order(&'a str, Id),
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Version {
    /// The object's key.
    pub key: String,
    /// Its metadata.
    pub facts: Facts,
    /// Whether it is the latest version.
    pub is_latest: bool,
}

/// Lists a page, with all attributes of each version. Blocks.
///
/// # Errors
/// Errors of the store.
pub fn page(store: &Store, query: &Query<'_>) -> ObjectResult<Page<Version>> {
    page_with(store, query, Facts::of)
}

/// Lists a page, with the attributes that a listing shows. Blocks.
///
/// # Errors
/// Errors of the store.
pub fn page_to_show(store: &Store, query: &Query<'_>) -> ObjectResult<Page<Version>> {
    page_with(store, query, Facts::listed)
}

fn page_with(store: &Store, query: &Query<'_>, facts_of: fn(&ObjectInfo) -> Facts) -> ObjectResult<Page<Version>> {
    let list = || {
        let snapshot = store.snapshot()?;
        let roll = Roll {
            prefix: query.prefix,
            delimiter: query.delimiter,
            limit: query.limit,
        };
        let first = Start::of(&snapshot, query)?;
        let bases = [keyspace::objects(query.bucket), keyspace::versions(query.bucket)];
        roll_up(&roll, |passed| {
            let start = match passed {
                None => first.clone(),
                Some(common) => first.behind(&bases, common),
            };
            start.scan(&snapshot, &bases, facts_of)
        })
    };
    list().map_err(|error| ObjectError::engine(&error, query.bucket.as_bytes()))
}

/// Where the two scans begin.
#[derive(Debug, Clone)]
struct Start {
    current: ScanRange,
    others: ScanRange,
    /// The key whose later versions were listed, or skipped.
    begun: Option<String>,
}

impl Start {
    fn of(snapshot: &Snapshot, query: &Query<'_>) -> terrace::Result<Self> {
        let (bucket, prefix) = (query.bucket, query.prefix.as_bytes());
        let whole = Self {
            current: ScanRange::prefix([keyspace::objects(bucket).as_slice(), prefix].concat()),
            others: ScanRange::prefix([keyspace::versions(bucket).as_slice(), prefix].concat()),
            begun: None,
        };
        match query.after {
            After::Nothing => Ok(whole),
            After::Key(key) => {
                let is_common = key.starts_with(query.prefix)
                    && query
                        .delimiter
                        .is_some_and(|delimiter| common_prefix(key, query.prefix, delimiter) == Some(key));
                if is_common {
                    let bases = [keyspace::objects(bucket), keyspace::versions(bucket)];
                    return Ok(whole.behind(&bases, key));
                }
                Ok(Self {
                    current: whole.current.after(keyspace::object(bucket, key)),
                    others: whole.others.after(behind_versions(bucket, key)),
                    begun: None,
                })
            }
            After::Version(key, Name::Id(order)) | After::Order(key, order) => {
                whole.after_order(snapshot, bucket, key, order)
            }
            After::Version(key, Name::Null) => whole.after_null(snapshot, bucket, key),
        }
    }

    fn after_null(self, snapshot: &Snapshot, bucket: &str, key: &str) -> terrace::Result<Self> {
        let object = keyspace::object(bucket, key);
        let others = self.others.clone().after(keyspace::versions_of(bucket, key));
        let current = snapshot.head(&object)?.map(|info| Facts::of(&info));
        if current.is_some_and(|facts| facts.is_null) {
            return Ok(Self {
                current: self.current.after(&object),
                others,
                begun: Some(key.to_owned()),
            });
        }
        if let Some(order) = null_order(&|key| snapshot.head(key), bucket, key)? {
            return self.after_order(snapshot, bucket, key, order);
        }
        // The version no longer exists, so its object is listed from its beginning.
        Ok(Self {
            current: from(self.current, object),
            others,
            begun: None,
        })
    }

    fn after_order(self, snapshot: &Snapshot, bucket: &str, key: &str, order: Id) -> terrace::Result<Self> {
        let object = keyspace::object(bucket, key);
        let current = snapshot.head(&object)?.map(|info| Facts::of(&info));
        let place = keyspace::version(bucket, key, order);
        let before = snapshot
            .scan(ScanRange::prefix(keyspace::versions_of(bucket, key)))?
            .next()
            .transpose()?
            .is_some_and(|item| item.key <= place);
        // It may have become the current object since the last page.
        let its_order = current.as_ref().and_then(|facts| facts.order);
        let comes_later = its_order.is_some_and(|its| its < order);
        Ok(Self {
            current: if comes_later {
                from(self.current, object)
            } else {
                self.current.after(&object)
            },
            others: self.others.after(place),
            begun: (!comes_later && (before || current.is_some())).then(|| key.to_owned()),
        })
    }

    /// The start of the same listing after a common prefix.
    fn behind(&self, bases: &[Vec<u8>; 2], common: &str) -> Self {
        let start = |base: &[u8], range: &ScanRange| ScanRange {
            start: behind(&[base, common.as_bytes()].concat()),
            end: range.end.clone(),
        };
        Self {
            current: start(&bases[0], &self.current),
            others: start(&bases[1], &self.others),
            begun: None,
        }
    }

    fn scan(
        self,
        snapshot: &Snapshot,
        bases: &[Vec<u8>; 2],
        facts_of: fn(&ObjectInfo) -> Facts,
    ) -> terrace::Result<impl Iterator<Item = terrace::Result<(String, Version)>>> {
        let (current_base, others_base) = (bases[0].len(), bases[1].len());
        let current = snapshot.scan(self.current)?.map(move |item| {
            let item = item?;
            // Keys that are not UTF-8 cannot be requested, and no S3 client has put them.
            let key = std::str::from_utf8(&item.key[current_base..]).ok();
            Ok(key.map(|key| (key.to_owned(), facts_of(&item.info))))
        });
        let others = snapshot.scan(self.others)?.map(move |item| {
            let item = item?;
            let key = keyspace::parse_version(&item.key[others_base..]);
            Ok(key.map(|(key, _)| (key.to_owned(), facts_of(&item.info))))
        });
        Ok(Merged {
            current: current.filter_map(Result::transpose).peekable(),
            others: others.filter_map(Result::transpose).peekable(),
            begun: self.begun,
        })
    }
}

/// The bound after a key's versions: IDs are hex digits.
fn behind_versions(bucket: &str, key: &str) -> Vec<u8> {
    [keyspace::versions_of(bucket, key).as_slice(), b"\xff"].concat()
}

/// The part of a range from `key` on.
fn from(range: ScanRange, key: Vec<u8>) -> ScanRange {
    match &range.start {
        Bound::Included(start) if *start > key => range,
        _ => ScanRange {
            start: Bound::Included(key),
            end: range.end,
        },
    }
}

type Listed = terrace::Result<(String, Facts)>;

/// The two scans, merged.
struct Merged<C: Iterator<Item = Listed>, O: Iterator<Item = Listed>> {
    current: Peekable<C>,
    others: Peekable<O>,
    /// The key of the last version.
    begun: Option<String>,
}

impl<C: Iterator<Item = Listed>, O: Iterator<Item = Listed>> Iterator for Merged<C, O> {
    type Item = terrace::Result<(String, Version)>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_current = match (self.current.peek(), self.others.peek()) {
            (None, _) => false,
            (_, None) | (Some(Err(_)), _) => true,
            (_, Some(Err(_))) => false,
            (Some(Ok((one, _))), Some(Ok((other, _)))) => one <= other,
        };
        let item = if is_current {
            self.current.next()
        } else {
            self.others.next()
        };
        Some(item?.map(|(key, facts)| {
            let is_first = self.begun.as_deref() != Some(&key);
            let is_latest = is_current || (is_first && facts.is_delete_marker);
            self.begun = Some(key.clone());
            let version = Version {
                key: key.clone(),
                facts,
                is_latest,
            };
            (key, version)
        }))
    }
}
