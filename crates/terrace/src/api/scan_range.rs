//! The key range of a scan or a range deletion.

use std::ops::{Bound, RangeBounds};

/// The key range of a scan. A bound need not be a valid key: it may be empty, or longer than a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRange {
    /// Lower bound.
    pub start: Bound<Vec<u8>>,
    /// Upper bound.
    pub end: Bound<Vec<u8>>,
}

impl ScanRange {
    /// Every key.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            start: Bound::Unbounded,
            end: Bound::Unbounded,
        }
    }

    /// Keys that begin with `prefix`.
    #[must_use]
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        let prefix = prefix.as_ref();
        // The end is the next key of the same length; a prefix of 0xff bytes has no such key.
        let mut end = prefix.to_vec();
        while end.pop_if(|byte| *byte == 0xff).is_some() {}
        let end = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Self {
            start: Bound::Included(prefix.to_vec()),
            end,
        }
    }

    /// Keys in `range`.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> Self {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Self {
            start: owned(range.start_bound()),
            end: owned(range.end_bound()),
        }
    }

    /// The same range from after `key` on, for the next page.
    #[must_use]
    pub fn after(mut self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        let already_later = match &self.start {
            Bound::Included(start) => start.as_slice() > key,
            Bound::Excluded(start) => start.as_slice() >= key,
            Bound::Unbounded => false,
        };
        if !already_later {
            self.start = Bound::Excluded(key.to_vec());
        }
        self
    }
}
