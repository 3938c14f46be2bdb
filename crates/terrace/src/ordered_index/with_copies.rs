//! A merge of all tables that adds copies of short values to their entries.
//!
//! Entries pass in key order, all versions of each, and a source with values in that order gives
//! each its copy. So all copies are written once, in one run, without the applier or a memtable.
//!
//! Invariants: an entry is changed only by adding a copy; one that has a copy, or has its home
//! elsewhere than in the log, is unchanged. No other merge adds copies.
//!
//! On failure, or when the source ends early: as for any merge, the tables are as before.

use super::{Entry, OrderedIndex, background::Choice, entry::may_gain_copy};
use crate::Result;
use bytes::Bytes;
use lsm_tree::{
    AbstractTree as _, UserValue,
    compaction::{CompactionFilter, Factory, ItemAccessor, Verdict, filter::Context},
};
use parking_lot::Mutex;
use std::{io, panic::AssertUnwindSafe, sync::Arc};

/// Where copies come from.
pub trait CopySource: Send {
    /// The value of an entry in the log that has no copy, if it is to get one. Keys ascend.
    fn copy_of(&mut self, key: &[u8], entry: &Entry) -> Option<Bytes>;

    /// Whether a thread waits for the merge to end, so that it is ended early: the rest of a large
    /// index takes minutes. Called for every entry.
    fn is_over(&mut self) -> bool;
}

/// Where the merge that is under way has its copies from.
#[derive(Default)]
pub(super) struct CopySlot(AssertUnwindSafe<Mutex<Option<Box<dyn CopySource>>>>);

impl CopySlot {
    /// Merges that begin from now on make no copies.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }
}

/// The library's way to it.
pub(super) struct CopyFilters(pub Arc<CopySlot>);

impl Factory for CopyFilters {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(CopyFilter {
            source: self.0.0.lock().take(),
            bytes: Vec::new(),
        })
    }
}

struct CopyFilter {
    source: Option<Box<dyn CopySource>>,
    bytes: Vec<u8>,
}

impl CompactionFilter for CopyFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        let Some(source) = &mut self.source else {
            return Ok(Verdict::Keep);
        };
        if source.is_over() {
            // Of a kind that tells of no damage.
            let given_up = io::Error::new(io::ErrorKind::Interrupted, "the merge was given up");
            return Err(lsm_tree::Error::Io(given_up));
        }
        let value = item.value()?;
        let entry = may_gain_copy(&value).then(|| Entry::decode(&value)).flatten();
        let Some(mut entry) = entry else {
            return Ok(Verdict::Keep);
        };
        entry.copy = source
            .copy_of(item.key(), &entry)
            .filter(|copy| copy.len() as u64 == entry.length);
        if entry.copy.is_none() {
            return Ok(Verdict::Keep);
        }
        entry.encode_into(&mut self.bytes);
        Ok(Verdict::ReplaceValue(UserValue::from(self.bytes.as_slice())))
    }
}

impl OrderedIndex {
    /// Merges all tables into the last level, and adds the copies of `source` to entries. `false`
    /// if there was nothing to merge. For `watermark_seq` see [`OrderedIndex::flush_sealed`].
    ///
    /// # Errors
    /// As for [`OrderedIndex::compact`]; `Io` if the source ended early.
    pub fn merge_with_copies(&self, watermark_seq: u64, source: Box<dyn CopySource>) -> Result<bool> {
        self.compact_by(watermark_seq, || {
            let has_tables = self.tree.table_count() > 0;
            *self.copy_slot.0.lock() = Some(source).filter(|_| has_tables);
            has_tables.then(|| Choice::All {
                table_bytes: self.shape().table_bytes,
            })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        Version,
        ordered_index::{
            Home,
            tests::{flash_entry, mark, open},
        },
    };

    /// The value of a version, twice its length for key `long`.
    struct Values {
        asked: Arc<Mutex<Vec<(String, u64)>>>,
        /// It is over after this many calls.
        asked_max: usize,
    }

    impl Values {
        fn telling(asked: &Arc<Mutex<Vec<(String, u64)>>>) -> Box<Self> {
            Box::new(Self {
                asked: Arc::clone(asked),
                asked_max: usize::MAX,
            })
        }
    }

    fn value(version: u64) -> Vec<u8> {
        vec![version as u8; 100]
    }

    fn entry(version: u64) -> Entry {
        Entry {
            length: 100,
            checksum: crc32c::crc32c(&value(version)),
            version: Version(version),
            ..flash_entry(version)
        }
    }

    impl CopySource for Values {
        fn copy_of(&mut self, key: &[u8], entry: &Entry) -> Option<Bytes> {
            let key = String::from_utf8(key.to_vec()).unwrap();
            let copies = if key == "long" { 2 } else { 1 };
            self.asked.lock().push((key, entry.version.0));
            Some(value(entry.version.0).repeat(copies).into())
        }

        fn is_over(&mut self) -> bool {
            self.asked.lock().len() >= self.asked_max
        }
    }

    #[test]
    fn each_version_gets_its_own_copy_and_nothing_else_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let mut applier = index.applier().unwrap();
        let inline = Entry {
            home: Home::Inline(value(1).into()),
            ..entry(1)
        };
        let merge = || {
            let asked = Arc::default();
            let is_merged = index.merge_with_copies(0, Values::telling(&asked)).unwrap();
            (is_merged, std::mem::take(&mut *asked.lock()))
        };
        assert_eq!(merge(), (false, vec![]), "there is no table");
        for (seq, keys) in [(1, vec!["a", "b", "gone", "long"]), (2, vec!["a", "c"])] {
            for key in keys {
                applier.insert(key.as_bytes(), &entry(seq), seq);
            }
            match seq {
                1 => applier.insert(b"inline", &inline, seq),
                _ => applier.remove(b"gone", seq),
            }
            applier.applied(seq);
            applier.rotate(mark(seq)).unwrap();
            index.flush_sealed(0).unwrap();
        }
        let (is_merged, asked) = merge();
        let expected = [("a", 2), ("a", 1), ("b", 1), ("c", 2), ("gone", 1), ("long", 1)];
        assert_eq!(asked, expected.map(|(key, version)| (key.to_owned(), version)));
        assert!(is_merged && index.stats().tables == 1);
        // The former contents, with the copied value. A snapshot reads the former tables.
        let with_copy = |version| Entry {
            copy: Some(value(version).into()),
            ..entry(version)
        };
        for (key, seq, expected) in [
            ("a", 2, Some(with_copy(2))),
            ("a", 1, Some(entry(1))),
            ("b", 2, Some(with_copy(1))),
            ("c", 2, Some(with_copy(2))),
            ("gone", 1, Some(entry(1))),
            ("gone", 2, None),
            ("inline", 2, Some(inline)),
            ("long", 2, Some(entry(1))),
        ] {
            assert_eq!(index.get_at(key.as_bytes(), seq).unwrap(), expected, "{key} at {seq}");
        }
        assert_eq!(index.persisted_mark(), Some(mark(2)));
        // An entry with a copy is not visited again.
        assert_eq!(merge().1, [("long".to_owned(), 1)]);
    }

    #[test]
    fn no_other_merge_asks_for_copies() {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let asked = Arc::default();
        index.merge_with_copies(0, Values::telling(&asked)).unwrap();
        let mut applier = index.applier().unwrap();
        applier.insert(b"a", &entry(1), 1);
        applier.applied(1);
        applier.rotate(mark(1)).unwrap();
        index.flush_sealed(1).unwrap();
        let all = Choice::All { table_bytes: 1 << 20 };
        index.compact_by(1, || Some(all)).unwrap();
        assert!(asked.lock().is_empty());
        assert_eq!(index.get(b"a").unwrap(), Some(entry(1)));
    }

    /// A store that was closed during a sweep went on merging to the end of its index.
    #[test]
    fn a_merge_that_is_given_up_leaves_all_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let mut applier = index.applier().unwrap();
        for seq in 1..=3 {
            for number in 0..1000 {
                applier.insert(format!("{number:04}").as_bytes(), &entry(seq), seq);
            }
            applier.applied(seq);
            applier.rotate(mark(seq)).unwrap();
            index.flush_sealed(0).unwrap();
        }
        let files = || {
            let files = std::fs::read_dir(dir.path().join("tables")).unwrap();
            let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (before, tables) = (files(), index.stats().tables);
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let source = Values {
            asked_max: 700,
            ..*Values::telling(&asked)
        };
        let given_up = index.merge_with_copies(0, Box::new(source));
        assert!(matches!(given_up, Err(crate::Error::Io { .. })), "{given_up:?}");
        assert_eq!(asked.lock().len(), 700);
        assert_eq!((files(), index.stats().tables), (before, tables));
        assert!(!dir.path().join("damaged").exists(), "nothing is damaged");
        assert_eq!(index.get(b"0000").unwrap(), Some(entry(3)));
        // It can be done later.
        assert!(index.merge_with_copies(3, Values::telling(&Arc::default())).unwrap());
        assert!(index.get(b"0999").unwrap().unwrap().copy.is_some());
    }
}
