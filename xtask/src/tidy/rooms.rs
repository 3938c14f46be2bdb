//! The rooms of the engine, and which may use which. ARCHITECTURE.md has the same table.
//!
//! A room may use only rooms above it in [`ROOMS`], and of those only the ones that its row names.
//! So the table cannot contain a circle.

use super::{
    Report,
    functions::{is_test_path, test_ranges},
    lexer::{find_word, is_word, line_of},
};
use std::collections::BTreeMap;

/// Directory of the rooms.
pub const SOURCES: &str = "crates/terrace/src/";
/// The document with the table.
const DRAWN_IN: &str = "ARCHITECTURE.md";
/// Usable by every room: rules that tests can break by name.
const FREE: &str = "mutation";

/// A room, and the rooms that it may use.
struct Room {
    name: &'static str,
    uses: &'static [&'static str],
}

#[rustfmt::skip]
const ROOMS: &[Room] = &[
    Room { name: "mutation",      uses: &[] },
    Room { name: "metrics",       uses: &[] },
    Room { name: "codec",         uses: &[] },
    Room { name: "io",            uses: &["metrics"] },
    Room { name: "api",           uses: &["metrics", "io"] },
    Room { name: "visibility",    uses: &["codec", "metrics", "api"] },
    Room { name: "log",           uses: &["codec", "metrics", "io", "api", "visibility"] },
    Room { name: "cache",         uses: &["codec", "metrics", "api", "log"] },
    Room { name: "hash_index",    uses: &["codec", "io", "api", "log"] },
    Room { name: "ordered_index", uses: &["codec", "metrics", "io", "api", "visibility", "hash_index"] },
    Room { name: "blocks",        uses: &["codec", "metrics", "io", "api"] },
    Room { name: "flash_cache",   uses: &["codec", "metrics", "io", "api", "log", "ordered_index", "blocks"] },
    Room { name: "accounting",    uses: &["metrics", "api"] },
    Room { name: "manifest",      uses: &["codec", "io", "api"] },
    Room { name: "scan_order",    uses: &["api", "log"] },
    Room { name: "engine",        uses: &["codec", "metrics", "io", "api", "visibility", "log", "cache", "hash_index",
                                          "ordered_index", "blocks", "flash_cache", "accounting", "manifest", "scan_order"] },
    Room { name: "figures",       uses: &["metrics", "api", "visibility", "log", "blocks", "engine"] },
    Room { name: "write",         uses: &["metrics", "io", "api", "visibility", "log", "cache", "hash_index",
                                          "ordered_index", "blocks", "flash_cache", "scan_order", "engine"] },
    Room { name: "read",          uses: &["metrics", "io", "api", "visibility", "log", "cache", "hash_index", "ordered_index",
                                          "blocks", "flash_cache", "scan_order", "engine", "write"] },
    Room { name: "maintenance",   uses: &["metrics", "io", "api", "visibility", "log", "hash_index", "ordered_index", "blocks",
                                          "flash_cache", "manifest", "scan_order", "engine", "read", "write"] },
    Room { name: "admin",         uses: &["metrics", "io", "api", "visibility", "log", "hash_index", "ordered_index", "blocks",
                                          "accounting", "manifest", "engine", "read", "write", "maintenance"] },
    Room { name: "store",         uses: &["metrics", "io", "api", "visibility", "hash_index", "manifest", "engine", "figures",
                                          "read", "write", "maintenance", "admin"] },
    Room { name: "fuzzing",       uses: &["io", "api", "visibility", "log", "hash_index", "manifest", "engine", "admin"] },
];

/// Names that the crate's root exports from other rooms than `api`.
#[rustfmt::skip]
const EXPORTED: &[(&str, &str)] = &[
    ("Store", "store"), ("Reader", "read"), ("Scan", "read"), ("ScanItem", "read"), ("Snapshot", "read"),
    ("ValueWriter", "write"), ("RepairReport", "admin"), ("VerifyReport", "admin"), ("BackupCheck", "admin"),
    ("BackupOptions", "admin"), ("BackupProgress", "admin"), ("BackupReport", "admin"), ("RestoreOptions", "admin"),
    ("RestoreReport", "admin"),
];

/// Checks what a file of the engine uses of other rooms. `code` has neither comments nor literals.
pub fn check(report: &mut Report<'_>, code: &str) {
    let Some(path) = report.file.strip_prefix(SOURCES) else {
        return;
    };
    if path == "lib.rs" || is_test_path(report.file) {
        return;
    }
    let path = path.to_owned();
    let own = room_of(&path);
    let Some(room) = ROOMS.iter().find(|room| room.name == own) else {
        return report.add(1, format!("`{own}` is no room of the table in xtask/src/tidy/rooms.rs"));
    };
    let tests = test_ranges(code);
    let mut used = BTreeMap::new();
    for (offset, name) in uses(&path, code) {
        let is_test = tests.iter().any(|test| test.contains(&offset));
        if let Some(other) = room_named(&name).filter(|other| *other != own && !is_test) {
            used.entry(other).or_insert(offset);
        }
    }
    for (other, offset) in &used {
        if *other != FREE && !room.uses.contains(other) {
            let message = format!("`{own}` may not use `{other}`: see the table of rooms in xtask/src/tidy/rooms.rs");
            report.add(line_of(code, *offset), message);
        }
    }
}

/// Checks that the document names every room.
pub fn check_drawing(report: &mut Report<'_>, text: &str) {
    if report.file != DRAWN_IN {
        return;
    }
    for room in ROOMS {
        let drawn = |line: &str| line.starts_with(&format!("| `{}` |", room.name));
        if !text.lines().any(drawn) {
            report.add(1, format!("the room `{}` has no row in the table of rooms", room.name));
        }
    }
}

/// The room of a file, by its path below the sources.
pub fn room_of(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or_default()
}

/// The room of a name at the crate's root: a room itself, or one from which the root exports the
/// name.
fn room_named(name: &str) -> Option<&'static str> {
    if let Some(room) = ROOMS.iter().find(|room| room.name == name) {
        return Some(room.name);
    }
    let is_word_of_the_interface = name.starts_with(char::is_uppercase);
    let exported = EXPORTED.iter().find(|(word, _)| *word == name).map(|(_, room)| *room);
    exported.or(is_word_of_the_interface.then_some("api"))
}

/// Names of the crate's root that a file uses, with offsets: `crate::NAME`, every first name in
/// `crate::{…}`, and the same by as many `super` as lead to the root.
pub fn uses(path: &str, code: &str) -> Vec<(usize, String)> {
    let depth = path.trim_end_matches("/mod.rs").matches('/').count() + 1;
    let by_super = "super::".repeat(depth);
    let roots = find_word(code, "crate").map(|offset| (offset, "crate::".len()));
    let roots = roots.chain(
        code.match_indices(&by_super)
            .filter(|(offset, _)| !code[..*offset].ends_with("::"))
            .map(|(offset, found)| (offset, found.len())),
    );
    let mut names = Vec::new();
    for (offset, length) in roots {
        let rest = code.get(offset + length..).unwrap_or_default();
        if !code[offset..].starts_with("crate::") && !code[offset..].starts_with("super::") || rest.starts_with("super")
        {
            continue;
        }
        match rest.strip_prefix('{') {
            Some(group) => names.extend(first_names(group).into_iter().map(|name| (offset, name))),
            None => names.push((offset, word(rest))),
        }
    }
    names
}

/// The first name of each part of a `use` group, up to its closing brace.
fn first_names(group: &str) -> Vec<String> {
    let (mut depth, mut begins, mut names) = (0usize, true, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !character.is_whitespace() => {
                names.push(word(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> String {
    let end = text.bytes().position(|byte| !is_word(byte)).unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, code: &str) -> Vec<String> {
        let mut report = Report {
            file,
            findings: Vec::new(),
        };
        check(&mut report, code);
        report.findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_room_uses_only_rooms_before_it_in_the_table() {
        for (at, room) in ROOMS.iter().enumerate() {
            for used in room.uses {
                assert!(
                    ROOMS[..at].iter().any(|before| before.name == *used),
                    "{} uses {used}",
                    room.name
                );
            }
        }
    }

    #[test]
    fn an_import_that_the_table_does_not_allow_is_found_however_it_is_written() {
        let file = "crates/terrace/src/log/frame.rs";
        assert!(findings(file, "use crate::{Error, io::{Disk, PAGE}, visibility::Dead};").is_empty());
        for code in [
            "use crate::engine::Engine;",
            "use crate::{Error, io::{Disk, PAGE}, engine::Engine};",
            "fn f(engine: &crate::engine::Engine) {}",
            "use super::super::engine::Engine;",
            "use crate::{\n    Error,\n    Store,\n};",
        ] {
            assert_eq!(findings(file, code).len(), 1, "{code}");
        }
        assert!(findings("crates/terrace/src/log/tests.rs", "use crate::engine::Engine;").is_empty());
        let in_tests = "#[cfg(test)]\nmod tests {\n    use crate::engine::Engine;\n}\n";
        assert!(findings(file, in_tests).is_empty());
        assert_eq!(findings("crates/terrace/src/cellar/wine.rs", "").len(), 1);
        assert_eq!(
            findings("crates/terrace/src/log/mod.rs", "use super::engine::Engine;").len(),
            1
        );
    }

    #[test]
    fn a_room_that_is_not_drawn_is_found() {
        let mut report = Report {
            file: DRAWN_IN,
            findings: Vec::new(),
        };
        check_drawing(&mut report, "| `log` | the flash log |\n");
        assert_eq!(report.findings.len(), ROOMS.len() - 1);
    }
}
