//! The checks of one file.

use super::{
    BYTES, CONFINED, Confined, FILE_LINES_MAX, FUNCTION_LINES_MAX, MARKS, PERSONS, Report, WITHOUT_PERSONS, WORKPLACES,
    functions::{functions, is_test_path, test_ranges},
    lexer::{Views, find_word, line_of, views},
    rooms, width,
};
use std::ops::Range;

/// What a file is, by name and first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `.rs`
    Rust,
    /// `.md`
    Markdown,
    /// `.toml`
    Toml,
    /// `.sh`, or a first line that names a shell.
    Shell,
    /// Any other text.
    Text,
    /// Not text: nothing is checked.
    Bytes,
}

impl Kind {
    /// Classifies a file.
    pub fn of(file: &str, bytes: &[u8]) -> Self {
        if BYTES.iter().any(|prefix| file.starts_with(prefix)) {
            return Self::Bytes;
        }
        let first_line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        match file.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "rs" => Self::Rust,
            "md" => Self::Markdown,
            "toml" => Self::Toml,
            "sh" => Self::Shell,
            _ if first_line.starts_with(b"#!") && first_line.ends_with(b"sh") => Self::Shell,
            _ if bytes.contains(&0) || std::str::from_utf8(bytes).is_err() => Self::Bytes,
            _ => Self::Text,
        }
    }
}

/// White space and the end of the file.
pub fn check_text(report: &mut Report<'_>, kind: Kind, text: &str) {
    let line_count = text.lines().count();
    if !text.is_empty() && !text.ends_with('\n') {
        report.add(line_count, "does not end with a newline");
    }
    if text == "\n" || text.ends_with("\n\n") {
        report.add(line_count, "ends with an empty line");
    }
    if kind == Kind::Text {
        return;
    }
    for (index, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            report.add(index + 1, "trailing white space");
        } else if line.contains('\t') {
            report.add(index + 1, "tab; indent with spaces");
        }
    }
}

/// Everything that concerns Rust alone.
pub fn check_rust(report: &mut Report<'_>, source: &str) {
    let line_count = source.lines().count();
    if line_count > FILE_LINES_MAX {
        let message = format!("{line_count} lines; split the file, {FILE_LINES_MAX} are the most");
        report.add(FILE_LINES_MAX + 1, message);
    }
    if !source.starts_with("//!") {
        report.add(
            1,
            "does not start with a `//!` header: purpose, invariants, what happens on failure",
        );
    }
    let Views { code, spoken } = match views(source) {
        Ok(views) => views,
        Err(line) => return report.add(line, "a comment or literal starts here and never ends"),
    };
    for function in functions(&code) {
        if function.lines > FUNCTION_LINES_MAX {
            let message = format!(
                "function `{}` has {} lines; {FUNCTION_LINES_MAX} are the most",
                function.name, function.lines
            );
            report.add(function.line, message);
        }
    }
    for mark in MARKS {
        for offset in find_word(&spoken, mark) {
            report.add(line_of(&spoken, offset), format!("`{mark}`: do it, or open an issue"));
        }
    }
    check_persons(report, source);
    let whole = Range {
        start: 0,
        end: source.len(),
    };
    let tests = if is_test_path(report.file) {
        vec![whole]
    } else {
        test_ranges(&code)
    };
    for rule in CONFINED {
        check_confined(report, rule, &code, &tests);
    }
    rooms::check(report, &code);
    width::check_rust(report, source);
    check_workplaces(report, Kind::Rust, source, &tests);
}

/// Words for persons: threads, callers, clients and readers act in the checked crates.
fn check_persons(report: &mut Report<'_>, source: &str) {
    if !WITHOUT_PERSONS.iter().any(|prefix| report.file.starts_with(prefix)) {
        return;
    }
    let lowercase = source.to_ascii_lowercase();
    for word in PERSONS {
        for offset in find_word(&lowercase, word) {
            let message = format!("`{word}`: name the thread, caller, reader or value that is meant");
            report.add(line_of(source, offset), message);
        }
    }
}

fn check_confined(report: &mut Report<'_>, rule: &Confined, code: &str, tests: &[Range<usize>]) {
    let file = report.file;
    if !file.starts_with(rule.scope) || rule.home.iter().any(|home| file.starts_with(home)) {
        return;
    }
    for offset in find_word(code, rule.word) {
        if !(rule.tests_may && tests.iter().any(|test| test.contains(&offset))) {
            report.add(line_of(code, offset), format!("`{}` here: {}", rule.word, rule.advice));
        }
    }
}

/// Absolute paths of one machine, except in tests and where a shell script makes a temporary file.
pub fn check_workplaces(report: &mut Report<'_>, kind: Kind, text: &str, tests: &[Range<usize>]) {
    for directory in WORKPLACES {
        let path = format!("/{directory}/");
        for (offset, _) in text.match_indices(&path) {
            // After a name, a variable or a dot it is part of a longer, relative path.
            let before = text[..offset].chars().next_back();
            if before.is_some_and(|character| character.is_alphanumeric() || "_-.~})>".contains(character)) {
                continue;
            }
            let line = line_of(text, offset);
            let makes_temporary =
                kind == Kind::Shell && text.lines().nth(line - 1).is_some_and(|line| line.contains("mktemp"));
            if !makes_temporary && !tests.iter().any(|test| test.contains(&offset)) {
                report.add(line, format!("absolute path `{path}…` of one machine"));
            }
        }
    }
}
