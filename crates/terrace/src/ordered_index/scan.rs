//! Scans over the ordered index.
//!
//! A scan holds the tables and memtables with which it started, so it sees one state however long
//! it takes, and neither flush nor compaction waits for it.
//!
//! Invariants: a scan ends before the mark, so it never reads items that are inserted into its
//! memtable later. Keys come in order from both ends, each once.
//!
//! On failure: the error is returned once and the scan is over. So it is where entries are lost.

use super::{Entry, errors, lost::Gap, mark::MARK_KEY, read_triggered::Fare};
use crate::{Error, KEY_BYTES_MAX, Result};
use bytes::Bytes;
use lsm_tree::{Guard as _, IterGuardImpl};
use std::ops::Bound;

/// Keys from where to where.
pub type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

type Inner = Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send + 'static>;

/// Entries of a range in key order.
pub struct IndexScan {
    /// `None` when there is nothing (more) to show.
    inner: Option<Inner>,
    fare: Option<Fare>,
    /// Where entries are lost.
    gap: Option<Gap>,
}

impl IndexScan {
    pub(super) const fn empty() -> Self {
        Self {
            inner: None,
            fare: None,
            gap: None,
        }
    }

    pub(super) fn new(inner: Inner, gap: Option<Gap>) -> Self {
        Self {
            inner: Some(inner),
            fare: None,
            gap,
        }
    }

    /// The same scan, with its steps charged.
    pub(super) fn paying(mut self, fare: Fare) -> Self {
        self.fare = Some(fare);
        self
    }

    fn step(
        &mut self,
        advance: impl Fn(&mut Inner) -> Option<IterGuardImpl>,
        hits: impl Fn(&Gap, Option<&[u8]>) -> Option<Error>,
    ) -> Option<Result<(Bytes, Entry)>> {
        let inner = self.inner.as_mut()?;
        if let Some(fare) = &mut self.fare {
            fare.step();
        }
        let item = errors::guarded_read("scanning the index", || {
            advance(inner).map(IterGuardImpl::into_inner).transpose()
        });
        let key = item.as_ref().map(|item| item.as_ref().map(|(key, _)| &**key));
        if let (Some(gap), Ok(key)) = (&self.gap, key)
            && let Some(error) = hits(gap, key)
        {
            self.inner = None;
            return Some(Err(error));
        }
        let result = match item {
            Ok(Some((key, value))) => match Entry::decode(&value) {
                Some(entry) => return Some(Ok((Bytes::copy_from_slice(&key), entry))),
                None => Some(Err(undecodable(&key))),
            },
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        };
        self.inner = None;
        result
    }
}

impl Iterator for IndexScan {
    type Item = Result<(Bytes, Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Iterator::next, Gap::hit_by_next)
    }
}

impl DoubleEndedIterator for IndexScan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(DoubleEndedIterator::next_back, Gap::hit_by_next_back)
    }
}

impl std::fmt::Debug for IndexScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexScan")
            .field("over", &self.inner.is_none())
            .finish()
    }
}

/// The error for a key whose entry is not one, though its block's checksum was right.
pub(super) fn undecodable(key: &[u8]) -> Error {
    Error::corruption(
        format!("index entry of key {:?}", String::from_utf8_lossy(key)),
        "it is not an entry this version knows",
    )
}

/// The same bounds in terms of keys: no longer than a key may be, and before the mark. `None` if
/// nothing can be between them.
///
/// Without an upper bound the library's iterator would meet the mark, which is inserted into the
/// memtable behind a scan's position. Read from both ends, the iterator takes an item that is not
/// before the one in hand for another version of the same key, and the one in hand is lost. All
/// other later items have a seqno that the scan does not see.
pub(super) fn clamp((lower, upper): KeyBounds) -> Option<KeyBounds> {
    // No key is equal to a longer bound; it is above one if it is above what the bound's first
    // bytes spell.
    let cut = |mut key: Vec<u8>| {
        key.truncate(KEY_BYTES_MAX);
        key
    };
    let is_too_long = |key: &[u8]| key.len() > KEY_BYTES_MAX;
    let lower = match lower {
        Bound::Included(key) | Bound::Excluded(key) if is_too_long(&key) => Bound::Excluded(cut(key)),
        as_given => as_given,
    };
    let upper = match upper {
        Bound::Included(key) | Bound::Excluded(key) if is_too_long(&key) => Bound::Included(cut(key)),
        Bound::Unbounded => Bound::Excluded(MARK_KEY.to_vec()),
        as_given => as_given,
    };
    let empty = match (&lower, &upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
        _ => false,
    };
    (!empty).then_some((lower, upper))
}
