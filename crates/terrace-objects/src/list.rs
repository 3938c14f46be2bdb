//! Pages of listings: of objects, of their versions, and of uploads.
//!
//! A page is one scan of the ordered index at one snapshot; no value is read. After a few keys of a
//! common prefix the scan seeks behind it. A page ends only when it is full and there is a further
//! entry, so a page that is not truncated is the last, and no prefix is shown without a key.

use crate::error::{ObjectError, ObjectResult};
use std::ops::Bound;
use terrace::{ObjectInfo, ScanRange, Store};

/// Keys of a common prefix to read before seeking behind it: a seek costs as much as several steps.
const STEPS_BEFORE_SEEK: usize = 16;

/// Parameters of a listing.
pub struct Query<'a> {
    /// Prefix of all keys of the listing in the store.
    pub base: &'a [u8],
    /// Only keys that begin with this.
    pub prefix: &'a str,
    /// Keys with this text after the prefix are grouped into a common prefix.
    pub delimiter: Option<&'a str>,
    /// Where to start, exclusive.
    pub after: Option<After<'a>>,
    /// Most entries.
    pub limit: usize,
}

/// Where a listing continues.
pub enum After<'a> {
    /// After an object's key, or after all keys of a common prefix that was shown.
    Shown(&'a str),
    /// A raw key without the base.
    Raw(Vec<u8>),
}

/// One entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry<T> {
    /// A key and its data.
    Key(T),
    /// A common prefix.
    Prefix(String),
}

/// A key without the base, and what `keep` returned for it.
pub type Stored<T> = (Vec<u8>, T);

/// A page.
#[derive(Debug)]
pub struct Page<T> {
    /// In key order.
    pub entries: Vec<Entry<T>>,
    /// There are further entries.
    pub truncated: bool,
}

/// Lists a page. `name_of` extracts the object's key from a raw key without the base; keys for
/// which it returns `None` are skipped. `keep` selects what to keep of each entry, since attributes
/// may be long and a page has a thousand entries.
///
/// # Errors
/// Errors of the store.
pub fn page<T>(
    store: &Store,
    query: &Query<'_>,
    name_of: impl Fn(&[u8]) -> Option<&str>,
    keep: impl Fn(&ObjectInfo) -> T,
) -> ObjectResult<Page<Stored<T>>> {
    let fail = |error| ObjectError::engine(&error, query.base);
    let snapshot = store.snapshot().map_err(fail)?;
    let first = first_range(query);
    let roll = Roll {
        prefix: query.prefix,
        delimiter: query.delimiter,
        limit: query.limit,
    };
    let (base_bytes, name_of, keep) = (query.base.len(), &name_of, &keep);
    let from = |passed: Option<&str>| {
        let range = match passed {
            None => first.clone(),
            Some(common) => ScanRange {
                start: behind(&[query.base, common.as_bytes()].concat()),
                end: first.end.clone(),
            },
        };
        let items = snapshot.scan(range)?.map(move |item| {
            let item = item?;
            let rest = item.key[base_bytes..].to_vec();
            let name = name_of(&rest).map(str::to_owned);
            Ok(name.map(|name| (name, (rest, keep(&item.info)))))
        });
        Ok(items.filter_map(Result::transpose))
    };
    roll_up(&roll, from).map_err(fail)
}

/// Grouping of names.
pub struct Roll<'a> {
    /// Prefix of all names.
    pub prefix: &'a str,
    /// Names with this text after the prefix are grouped into a common prefix.
    pub delimiter: Option<&'a str>,
    /// Most entries.
    pub limit: usize,
}

/// Fills a page from `from`, in the order of names. `from` is called first for the whole range, and
/// again where a seek behind a common prefix is cheaper than reading on.
///
/// # Errors
/// Errors of `from`.
pub fn roll_up<T, I: Iterator<Item = terrace::Result<(String, T)>>>(
    roll: &Roll<'_>,
    mut from: impl FnMut(Option<&str>) -> terrace::Result<I>,
) -> terrace::Result<Page<T>> {
    let mut page = Page {
        entries: Vec::new(),
        truncated: false,
    };
    let mut passed = None;
    let mut more = roll.limit > 0;
    while more {
        more = false;
        let mut steps = 0;
        for item in from(passed.as_deref())? {
            let (name, item) = item?;
            let common = roll
                .delimiter
                .and_then(|delimiter| common_prefix(&name, roll.prefix, delimiter));
            if let (Some(common), Some(Entry::Prefix(last))) = (common, page.entries.last())
                && common == last
            {
                steps += 1;
                if steps == STEPS_BEFORE_SEEK {
                    passed = Some(common.to_owned());
                    more = true;
                    break;
                }
                continue;
            }
            if page.entries.len() == roll.limit {
                page.truncated = true;
                break;
            }
            steps = 0;
            page.entries.push(match common {
                Some(common) => Entry::Prefix(common.to_owned()),
                None => Entry::Key(item),
            });
        }
    }
    Ok(page)
}

/// The common prefix of a name.
pub fn common_prefix<'n>(name: &'n str, prefix: &str, delimiter: &str) -> Option<&'n str> {
    let rest = name.get(prefix.len()..)?;
    let end = prefix.len() + rest.find(delimiter)? + delimiter.len();
    name.get(..end)
}

fn first_range(query: &Query<'_>) -> ScanRange {
    let range = ScanRange::prefix([query.base, query.prefix.as_bytes()].concat());
    match &query.after {
        None => range,
        Some(After::Raw(raw)) => range.after([query.base, raw].concat()),
        Some(After::Shown(shown)) => {
            let key = [query.base, shown.as_bytes()].concat();
            let is_common = shown.starts_with(query.prefix)
                && query
                    .delimiter
                    .is_some_and(|delimiter| common_prefix(shown, query.prefix, delimiter) == Some(*shown));
            if is_common {
                ScanRange {
                    start: behind(&key),
                    end: range.end,
                }
            } else {
                range.after(key)
            }
        }
    }
}

/// The bound behind all keys that begin with `prefix`.
pub fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    match ScanRange::prefix(prefix).end {
        Bound::Excluded(key) => Bound::Included(key),
        // A prefix of 0xff bytes only; a base is never that.
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;
    use terrace::{Batch, Durability, Options};

    fn place(keys: &[String]) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let mut batch = Batch::new();
        for key in keys {
            batch.put(format!("b/{key}"), "");
        }
        batch
            .put("a-/x", "")
            .put("b", "")
            .put("b0", "")
            .put("b-/x", "")
            .put(b"b/\xff", "");
        store.write(batch, Durability::Buffered).unwrap();
        (dir, store)
    }

    fn text(bytes: &[u8]) -> Option<&str> {
        std::str::from_utf8(bytes).ok()
    }

    fn shown(entry: &Entry<Stored<()>>) -> String {
        match entry {
            Entry::Key((key, _)) => String::from_utf8(key.clone()).unwrap(),
            Entry::Prefix(prefix) => format!("{prefix}*"),
        }
    }

    /// All pages of a listing.
    fn walk(store: &Store, prefix: &str, delimiter: Option<&str>, limit: usize) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let last = all.last().map(|last| last.strip_suffix('*').unwrap_or(last).to_owned());
            let query = Query {
                base: b"b/",
                prefix,
                delimiter,
                after: last.as_deref().map(After::Shown),
                limit,
            };
            let page = page(store, &query, text, |_| ()).unwrap();
            assert!(page.entries.len() <= limit);
            assert!(!page.truncated || page.entries.len() == limit);
            all.extend(page.entries.iter().map(shown));
            if !page.truncated {
                return all;
            }
        }
    }

    /// A listing as S3's documentation defines it, without pages or seeks.
    fn expected(keys: &[String], prefix: &str, delimiter: Option<&str>) -> Vec<String> {
        let mut all = BTreeSet::new();
        for key in keys.iter().filter(|key| key.starts_with(prefix)) {
            let common =
                delimiter.and_then(|delimiter| key[prefix.len()..].find(delimiter).map(|at| at + delimiter.len()));
            all.insert(match common {
                Some(end) => format!("{}*", &key[..prefix.len() + end]),
                None => key.clone(),
            });
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|one, other| one.trim_end_matches('*').cmp(other.trim_end_matches('*')));
        all
    }

    #[test]
    fn every_page_size_shows_the_same() {
        let mut keys: Vec<String> = ["a", "a/", "a/b", "a/b/c", "a//d", "b", "ü/x", "ü/y", "z//"]
            .map(str::to_owned)
            .into();
        keys.extend((0..40).map(|number| format!("many/{number:02}")));
        keys.extend((0..20).map(|number| format!("d{number:02}/only")));
        let (_dir, store) = place(&keys);
        for prefix in ["", "a", "a/", "a/b", "many/", "many/1", "nothing", "z/"] {
            for delimiter in [None, Some("/"), Some("//"), Some("n"), Some("/b")] {
                for limit in [1, 2, 3, 7, 1000] {
                    assert_eq!(
                        walk(&store, prefix, delimiter, limit),
                        expected(&keys, prefix, delimiter),
                        "prefix {prefix:?} delimiter {delimiter:?} limit {limit}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_key_to_begin_after_need_not_exist() {
        let keys = ["a", "b/1", "b/3", "c"].map(str::to_owned);
        let (_dir, store) = place(&keys);
        let from = |after: &str, delimiter| {
            let query = Query {
                base: b"b/",
                prefix: "",
                delimiter,
                after: Some(After::Shown(after)),
                limit: 10,
            };
            let page = page(&store, &query, text, |_| ()).unwrap();
            page.entries.iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(from("b/2", None), ["b/3", "c"]);
        assert_eq!(from("b/2", Some("/")), ["b/*", "c"]);
        assert_eq!(from("b/", Some("/")), ["c"]);
        assert_eq!(from("zzz", None), [] as [&str; 0]);
    }
}
