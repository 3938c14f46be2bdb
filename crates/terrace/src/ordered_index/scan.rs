//! Scans over the ordered index.
//!
//! A scan holds the tables and memtables it started with, so it sees one state however long it takes, and
//! neither flush nor compaction waits for it.
//!
//! Invariants: the mark is never shown. Keys come in order from both ends, each once.
//!
//! On failure: the error is returned once and the scan is over.

use super::{Entry, errors, mark::MARK_KEY, read_triggered::Fare};
use crate::{Error, Result};
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
}

impl IndexScan {
    pub(super) const fn empty() -> Self {
        Self {
            inner: None,
            fare: None,
        }
    }

    pub(super) fn new(inner: Inner) -> Self {
        Self {
            inner: Some(inner),
            fare: None,
        }
    }

    /// The same scan, that pays for its steps.
    pub(super) fn paying(mut self, fare: Fare) -> Self {
        self.fare = Some(fare);
        self
    }

    fn step(&mut self, advance: impl Fn(&mut Inner) -> Option<IterGuardImpl>) -> Option<Result<(Bytes, Entry)>> {
        let inner = self.inner.as_mut()?;
        if let Some(fare) = &mut self.fare {
            fare.step();
        }
        let item = errors::guarded_read("scanning the index", || {
            while let Some(guard) = advance(inner) {
                let pair = guard.into_inner()?;
                if !is_mark(&pair.0) {
                    return Ok(Some(pair));
                }
            }
            Ok(None)
        });
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
        self.step(Iterator::next)
    }
}

impl DoubleEndedIterator for IndexScan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(DoubleEndedIterator::next_back)
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

fn is_mark(key: &[u8]) -> bool {
    key.len() == MARK_KEY.len() && key == MARK_KEY.as_slice()
}

/// The same bounds, none of them behind the mark. `None` if nothing can be between them. Without an upper one the library need
/// not look for it in each block it reads; so the mark is passed over instead of ending before it.
pub(super) fn clamp((lower, upper): KeyBounds) -> Option<KeyBounds> {
    let upper = match upper {
        Bound::Included(key) if key.as_slice() < MARK_KEY.as_slice() => Bound::Included(key),
        Bound::Excluded(key) if key.as_slice() < MARK_KEY.as_slice() => Bound::Excluded(key),
        _ => Bound::Unbounded,
    };
    let empty = match (&lower, &upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
        _ => false,
    };
    (!empty).then_some((lower, upper))
}
