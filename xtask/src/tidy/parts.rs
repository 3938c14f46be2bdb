//! Which parts of an open store a module of the engine uses: fields of `Engine`, the struct that
//! callers and workers share.
//!
//! [`PARTS`] names them for each module. A field that its row does not name is a finding, and so is
//! a named one that the module does not use: the table says what has to be known for a change, and
//! what a change of a part can affect. Methods of `Engine` combine parts and are not counted.

use super::{
    Finding, Report,
    functions::{is_test_path, test_ranges},
    lexer::{find_word, is_word, line_of, views},
    rooms::SOURCES,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// File with the struct.
const DEFINED_IN: &str = "crates/terrace/src/engine/mod.rs";
/// A module that needs more is several; one is not, which collects the counters of all.
const PARTS_MAX: usize = 15;
const COLLECTS_ALL: &str = "figures";

/// Parts by module: a file, and the files below it that have no row of their own.
#[rustfmt::skip]
const PARTS: &[(&str, &str)] = &[
    ("admin/backup/image",         "index large log snapshots"),
    ("admin/backup/take",          "flash_disk index large log manifest options"),
    ("admin/verify",               "damage flash_disk hash_index index large log options snapshots"),
    ("figures",                    "accounting block_gc cache checkpoints damage expire_counters expiring flash_cache flash_disk hash_index index large \
                                  log mended metrics migration paces persisted_seq refilling scan_cache scan_order snapshots"),
    ("maintenance/block_gc",       "block_gc index large log options"),
    ("maintenance/checkpoint",     "checkpoints flash_disk hash_index log manifest options"),
    ("maintenance/expire",         "expire_counters expiring log options"),
    ("maintenance/log_gc",         "block_gc checkpoints flash_cache hash_index large log metrics \
                                  persisted_seq placement refilling scan_order"),
    ("maintenance/log_gc/blocks",  "block_gc index large log metrics persisted_seq"),
    ("maintenance/log_gc/live",    "hash_index index log placement"),
    ("maintenance/migrate",        "flash_cache flash_disk log manifest migration options placement recovered_seq"),
    ("maintenance/mirror",         "index log options"),
    ("maintenance/moves",          "large log"),
    ("maintenance/order",          "flash_disk index log options scan_order"),
    ("maintenance/order/sweep",    "accounting cache flash_disk hash_index index log options read_queue \
                                  refilling scan_order"),
    ("maintenance/prefetch",       "flash_cache large log"),
    ("maintenance/promote",        "flash_cache log options"),
    ("maintenance/small_moves",    "flash_cache index log"),
    ("maintenance/workers",        "block_gc expiring index index_work large log \
                                  mark_wanted options persisted_seq recycle_work"),
    ("read",                       "cache hash_index index large log metrics paces scan_cache"),
    ("read/describe",              "cache hash_index index log"),
    ("read/from_log",              "log metrics paces read_queue"),
    ("read/in_order",              "options scan_order"),
    ("read/multi_get",             "cache log metrics read_queue"),
    ("read/pieces",                "cache metrics"),
    ("read/reader",                "large paces"),
    ("read/scan",                  "index options"),
    ("read/scan/chunks",           "index metrics scan_cache"),
    ("read/small_reads",           "flash_cache options placement"),
    ("read/snapshot",              "index log snapshots"),
    ("store",                      "block_gc cache flash_cache index_work large log metrics options recycle_work"),
    ("write",                      "log metrics options placement"),
    ("write/apply",                "accounting checkpoints expire_counters expiring hash_index index index_work large \
                                  log mark_wanted options persisted_seq recovered_seq refilling scan_cache"),
    ("write/apply/cache_transfer", "cache log"),
    ("write/apply/copies",         "hash_index log scan_order"),
    ("write/apply/load",           "accounting flash_disk hash_index index log manifest options"),
    ("write/committing",           "log metrics"),
    ("write/condition",            "cache hash_index index log"),
    ("write/delete_range",         "log"),
    ("write/replace",              "index log"),
    ("write/stall",                "block_gc large log options"),
    ("write/stream",               "large log metrics options placement unsynced"),
];

/// Checks the modules of the engine against the table.
pub fn check(root: &Path, files: &BTreeSet<String>) -> Vec<Finding> {
    let source = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let Ok(defined) = views(&source(DEFINED_IN)) else {
        return Vec::new();
    };
    let parts = fields(&defined.code);
    let mut unused: BTreeSet<(&str, &str)> = PARTS
        .iter()
        .flat_map(|(module, row)| row.split(' ').map(move |part| (*module, part)))
        .collect();
    let mut findings = Vec::new();
    for file in files {
        let is_checked = file.starts_with(SOURCES) && file.ends_with(".rs") && !is_test_path(file);
        let module = module_of(file);
        if !is_checked || module.starts_with("engine") || module == "fuzzing" {
            continue;
        }
        // What cannot be lexed is another check's finding.
        let Ok(views) = views(&source(file)) else { continue };
        let mut report = Report {
            file,
            findings: Vec::new(),
        };
        let row = row_of(module);
        for (part, offset) in used(&views.code, &parts) {
            if let Some(row) = row.filter(|row| has(row, part)) {
                unused.remove(&(row.0, part));
            } else {
                let message = format!("`{module}` may not use the part `{part}`: see xtask/src/tidy/parts.rs");
                report.add(line_of(&views.code, offset), message);
            }
        }
        findings.append(&mut report.findings);
    }
    let in_table = |message| Finding {
        file: "xtask/src/tidy/parts.rs".to_owned(),
        line: 1,
        message,
    };
    findings.extend(
        unused
            .into_iter()
            .map(|(module, part)| in_table(format!("`{module}` does not use the part `{part}`"))),
    );
    let too_many = PARTS
        .iter()
        .filter(|row| row.0 != COLLECTS_ALL && row.1.split(' ').count() > PARTS_MAX);
    findings.extend(too_many.map(|row| in_table(format!("`{}` uses more than {PARTS_MAX} parts", row.0))));
    findings
}

type Row = (&'static str, &'static str);

fn has(row: &Row, part: &str) -> bool {
    row.1.split(' ').any(|name| name == part)
}

/// The path below the sources, without what Rust adds to a module's name.
fn module_of(file: &str) -> &str {
    let path = file.trim_start_matches(SOURCES).trim_end_matches(".rs");
    path.trim_end_matches("/mod")
}

/// The row of a module, or of the nearest one above it.
fn row_of(module: &str) -> Option<&'static Row> {
    let is_above = |row: &&Row| module == row.0 || module.strip_prefix(row.0).is_some_and(|rest| rest.starts_with('/'));
    PARTS.iter().filter(is_above).max_by_key(|row| row.0.len())
}

/// Names of the public fields of `Engine`, and of the struct of those that recovery prepares.
fn fields(code: &str) -> BTreeSet<String> {
    let structs = ["pub struct Parts {", "pub struct Engine {"];
    let bodies = structs
        .iter()
        .filter_map(|head| code.split_once(head)?.1.split('}').next());
    let names = bodies
        .flat_map(str::lines)
        .filter_map(|line| line.trim().strip_prefix("pub "));
    names
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect()
}

/// Parts that the code uses outside tests, each with its first offset.
fn used<'a>(code: &str, parts: &'a BTreeSet<String>) -> BTreeMap<&'a str, usize> {
    let tests = test_ranges(code);
    let mut found = BTreeMap::new();
    for offset in find_word(code, "engine") {
        let rest = code[offset + "engine".len()..].trim_start_matches("()").trim_start();
        let Some(rest) = rest.strip_prefix('.') else { continue };
        let end = rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let is_method = after.starts_with('(');
        if let Some(part) = parts.get(name).filter(|_| !is_method)
            && !tests.iter().any(|test| test.contains(&offset))
        {
            found.entry(part.as_str()).or_insert(offset);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_however_they_are_written() {
        let code = "pub struct Parts {\n    pub log: CommitLog,\n}\npub struct Engine {\n    parts: Parts,\n    pub index: Index,\n}\npub x: u8";
        let parts = fields(code);
        assert_eq!(parts.iter().collect::<Vec<_>>(), ["index", "log"]);
        let code = "fn f(engine: &Engine) { engine\n    .log.seq(); self.engine().index.get(); engine.index(); log.x }";
        assert_eq!(used(code, &parts).into_keys().collect::<Vec<_>>(), ["index", "log"]);
        assert!(used("engine.index(); engine.logs; index.get()", &parts).is_empty());
        let in_tests = "#[cfg(test)]\nmod tests {\n    fn f() { engine.log.seq(); }\n}\n";
        assert!(used(in_tests, &parts).is_empty());
    }

    #[test]
    fn a_file_has_the_row_of_the_nearest_module() {
        let row = |file| row_of(module_of(file)).map(|row| row.0);
        assert_eq!(row("crates/terrace/src/read/mod.rs"), Some("read"));
        assert_eq!(
            row("crates/terrace/src/maintenance/log_gc/sorting.rs"),
            Some("maintenance/log_gc")
        );
        assert_eq!(
            row("crates/terrace/src/maintenance/log_gc/live.rs"),
            Some("maintenance/log_gc/live")
        );
        assert_eq!(row("crates/terrace/src/log/mod.rs"), None);
    }
}
