//! The index's newest state on flash, held for a copy of it.
//!
//! Invariants: the result is the bytes of one state and the tables it names, and their mark. Tables
//! are written once and removed when the last state that has them is dropped; the image holds its
//! state, so its files stay.
//!
//! On failure: nothing was changed.

use super::{IndexMark, OrderedIndex, files, open::CURRENT_FILE, state_copy::State};
use crate::{Error, Result, Tier};
use lsm_tree::AbstractTree as _;
use std::{
    any::Any,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Attempts to read the state while a compaction replaces it, and the time between them.
const ATTEMPTS: usize = 2_000;
const ATTEMPT_WAIT: Duration = Duration::from_millis(1);

/// One state of the index as it is on flash.
pub struct IndexImage {
    /// Its mark; `None` while nothing was ever flushed.
    pub mark: Option<IndexMark>,
    /// Small files: path in the index's directory, and bytes.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Tables: path in the index's directory.
    pub tables: Vec<PathBuf>,
    /// Keeps the tables' files: the library's state, whose type has no public name.
    _state: Box<dyn Any + Send>,
}

impl OrderedIndex {
    /// Pins the newest state on flash.
    ///
    /// # Errors
    /// `Failed` after a failure that left it unknown which state that is, `Io`, `Corruption`.
    pub fn image(&self) -> Result<IndexImage> {
        // No flush installs a state meanwhile, so the persisted mark is the state's. A compaction
        // may; it keeps the mark.
        let _one = self.flushing.lock();
        self.check_usable()?;
        let mark = self.marks.lock().persisted.clone();
        let path = self.dir.join(CURRENT_FILE);
        let failed = |error| Error::io_on(Tier::Flash, format!("reading {}", path.display()), &error);
        for _ in 0..ATTEMPTS {
            let state = self.tree.current_version();
            let current = fs::read(&path).map_err(failed)?;
            // Between a state's being named on flash and its being the current one in memory they
            // differ; it may have been replaced and removed since.
            if let Some(named) = State::named_by(&self.dir, &current)?.filter(|named| named.number == state.id()) {
                return Ok(IndexImage {
                    mark,
                    files: vec![
                        (PathBuf::from(named.name()), named.listed),
                        (PathBuf::from(CURRENT_FILE), current),
                    ],
                    tables: state
                        .iter_tables()
                        .map(|table| files::table(Path::new(""), table.id()))
                        .collect(),
                    _state: Box::new(state),
                });
            }
            std::thread::sleep(ATTEMPT_WAIT);
        }
        Err(Error::Unavailable(
            "the index's state changed each time it was looked at; try again",
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::ordered_index::{
        Applier, IndexOptions, OrderedIndex,
        tests::{flash_entry, mark, open},
    };
    use std::fs;

    fn flush(index: &OrderedIndex, applier: &mut Applier, seq: u64) {
        for n in 0..200 {
            applier.insert(format!("{n:04}").as_bytes(), &flash_entry(seq), seq);
        }
        applier.applied(seq);
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq).unwrap();
    }

    #[test]
    fn what_an_image_names_stays_while_it_is_held_and_opens_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let mut applier = index.applier().unwrap();
        for seq in 1..=3 {
            flush(&index, &mut applier, seq);
        }
        let image = index.image().unwrap();
        assert_eq!(image.mark, Some(mark(3)));
        assert!(!image.tables.is_empty());
        // Enough for the tables of then to be merged away.
        for seq in 4..=40 {
            flush(&index, &mut applier, seq);
            while index.compact(seq).unwrap() {}
        }
        let now = index.image().unwrap();
        assert!(
            image.tables.iter().all(|table| !now.tables.contains(table)),
            "all tables are new"
        );
        let copy = tempfile::tempdir().unwrap();
        fs::create_dir(copy.path().join("tables")).unwrap();
        for table in &image.tables {
            fs::hard_link(dir.path().join(table), copy.path().join(table)).unwrap();
        }
        for (path, bytes) in &image.files {
            fs::write(copy.path().join(path), bytes).unwrap();
        }
        let (copied, found) = OrderedIndex::open(copy.path(), IndexOptions::default()).unwrap();
        assert_eq!(found, Some(mark(3)));
        assert_eq!(copied.get(b"0007").unwrap(), Some(flash_entry(3)));
        let tables = image.tables.clone();
        drop(image);
        assert!(
            tables.iter().all(|table| !dir.path().join(table).exists()),
            "they went with it"
        );
        assert!(tables.iter().all(|table| copy.path().join(table).exists()));
    }
}
