//! After an open, an index that fits into the block cache is read once, sequentially.
//!
//! Lookups would otherwise read it block by block, in random order, each waiting for the device:
//! two thousand waits instead of one long read. The data stays in the kernel's cache, from which
//! the library reads it quickly.

use super::{OrderedIndex, files};
use lsm_tree::AbstractTree as _;
use std::{
    fs::File,
    io::{self, Read as _},
};

/// The kernel reads ahead by itself; after each step it is checked whether to continue.
const STEP_BYTES: usize = 256 << 10;

impl OrderedIndex {
    /// Reads all tables, if they take no more than the block cache may; until `is_over`. Damage is
    /// left to the reader that needs the block. Gives the bytes read.
    pub fn warm(&self, is_over: impl Fn() -> bool) -> u64 {
        if self.tree.disk_space() > self.options.cache_bytes {
            return 0;
        }
        let state = self.tree.current_version();
        let mut buffer = vec![0; STEP_BYTES];
        let mut bytes = 0;
        for table in state.iter_tables() {
            let path = files::table(&self.dir, table.id());
            let read = || -> io::Result<()> {
                let mut file = File::open(path)?;
                while !is_over() {
                    match file.read(&mut buffer)? {
                        0 => break,
                        read => bytes += read as u64,
                    }
                }
                Ok(())
            };
            // A reader that needs it will get the error.
            let _ = read();
        }
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{
        super::{
            IndexOptions,
            files::TABLES_DIR,
            tests::{SMALL, flash_entry, mark, open},
        },
        *,
    };
    use std::fs;

    #[test]
    fn all_tables_are_read_if_the_cache_could_hold_them() {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let mut applier = index.applier().unwrap();
        for seq in 1..=500 {
            applier.insert(format!("{seq:04}").as_bytes(), &flash_entry(seq), seq);
        }
        applier.applied(500);
        applier.rotate(mark(500)).unwrap();
        index.flush_sealed(0).unwrap();
        let files = fs::read_dir(dir.path().join(TABLES_DIR)).unwrap();
        let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes > 10_000, "{bytes}");
        assert_eq!(index.warm(|| false), bytes);
        assert_eq!(index.warm(|| true), 0, "the store is closing");
        drop((applier, index));
        let options = IndexOptions {
            cache_bytes: bytes / 2,
            ..SMALL
        };
        let (index, _) = OrderedIndex::open(dir.path(), options).unwrap();
        assert_eq!(index.warm(|| false), 0);
    }
}
