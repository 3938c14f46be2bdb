//! Where tables, their copies and damaged ones are in the directory of the index: only this module
//! puts their paths together.
//!
//! Nothing here reads or writes; docs/format.md describes the contents.

use lsm_tree::TableId;
use std::path::{Path, PathBuf};

/// Tables.
pub const TABLES_DIR: &str = "tables";
/// Copies of tables.
pub const MIRROR_DIR: &str = "mirror";
/// Damaged tables, as they were.
pub const KEPT_DIR: &str = "damaged-tables";

/// A table of the index in `dir`.
pub fn table(dir: &Path, id: TableId) -> PathBuf {
    dir.join(TABLES_DIR).join(id.to_string())
}

/// The name of a table's copy: a table with another checksum is another table.
pub fn copy_name(id: TableId, checksum: u128) -> String {
    format!("{id}{}", copy_ending(checksum))
}

/// How the names of copies with this checksum end.
pub fn copy_ending(checksum: u128) -> String {
    format!("-{checksum:032x}")
}

/// The copy of a table of the index in `dir`.
pub fn copy(dir: &Path, id: TableId, checksum: u128) -> PathBuf {
    dir.join(MIRROR_DIR).join(copy_name(id, checksum))
}

/// Where a damaged table of a state is kept.
pub fn kept(dir: &Path, id: TableId, state: u64) -> PathBuf {
    dir.join(KEPT_DIR).join(format!("{id}-of-v{state}"))
}

/// Where something is kept that was among the tables, and is none.
pub fn kept_stray(dir: &Path, name: &str, number: u64) -> PathBuf {
    dir.join(KEPT_DIR).join(format!("{name}-stray-{number}"))
}
