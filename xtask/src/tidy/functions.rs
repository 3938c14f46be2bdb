//! Finds functions in lexed code, their lengths, and code that is compiled for tests only.
//!
//! Both use the code view of [`super::lexer`], where every brace is a real one. A function without
//! an end is skipped, since rustc reports it.

use super::lexer::{find_word, line_of};
use std::ops::Range;

/// A function with a body, nested ones and those of macros and tests included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`.
    pub line: usize,
    /// Lines from there to its closing brace.
    pub lines: usize,
}

/// All functions, in order of their start.
pub fn functions(code: &str) -> Vec<Function> {
    find_word(code, "fn")
        .filter_map(|start| function(code, start))
        .collect()
}

fn function(code: &str, start: usize) -> Option<Function> {
    if code[..start].ends_with('#') {
        return None; // the raw identifier `r#fn`
    }
    let rest = code[start + 2..].trim_start();
    let is_name =
        |character: char| character == '$' || character == '#' || character.is_alphanumeric() || character == '_';
    let name = rest.split(|character| !is_name(character)).next()?;
    if name.is_empty() {
        return None; // the type of a function pointer
    }
    let end = closing_brace(code, body(code, start)?)?;
    let line = line_of(code, start);
    Some(Function {
        name: name.to_owned(),
        line,
        lines: line_of(code, end) - line + 1,
    })
}

/// The offset of the brace that opens the body of the item at `start`; `None` if the item ends
/// without one. Braces inside brackets of any kind belong to the signature: `[u8; { N + 1 }]`,
/// `Wrapper<{ N }>`.
fn body(code: &str, start: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut depth = 0_usize;
    let mut offset = start;
    while let Some(&byte) = bytes.get(offset) {
        match byte {
            b'{' if depth == 0 => return Some(offset),
            b';' if depth == 0 => return None,
            b'{' => offset = closing_brace(code, offset)?,
            b'(' | b'[' | b'<' => depth += 1,
            b'>' if matches!(bytes[offset - 1], b'-' | b'=') => {}
            b')' | b']' | b'>' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        offset += 1;
    }
    None
}

fn closing_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(offset);
        }
    }
    None
}

/// Ranges compiled for tests only: items with `#[cfg(test)]`, `#[cfg(all(test, …))]` or `#[test]`,
/// or the whole file with `#![cfg(test)]`.
pub fn test_ranges(code: &str) -> Vec<Range<usize>> {
    if code.contains("#![cfg(test)]") {
        return vec![Range {
            start: 0,
            end: code.len(),
        }];
    }
    let starts = ["#[cfg(test)]", "#[cfg(all(test,", "#[test]"];
    let found = starts.iter().flat_map(|start| code.match_indices(start));
    found
        .filter_map(|(start, _)| Some(start..item_end(code, start)?))
        .collect()
}

/// The end of the item with the attribute at `start`: its closing brace, or its semicolon.
fn item_end(code: &str, start: usize) -> Option<usize> {
    let mut offset = start;
    while code[offset..].trim_start().starts_with('#') {
        offset += code[offset..].find('[')?;
        offset += attribute_bytes(&code[offset..])?;
    }
    match body(code, offset) {
        Some(open) => closing_brace(code, open),
        None => code[offset..].find(';').map(|length| offset + length),
    }
}

/// Length of the bracketed text that `text` starts with.
fn attribute_bytes(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(offset + 1);
        }
    }
    None
}

/// Whether a path is a test's: in a directory `tests`, or a file `tests.rs`, `…_tests.rs` or
/// `…_test.rs`.
pub fn is_test_path(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let is_test_name = name == "tests.rs" || name.ends_with("_tests.rs") || name.ends_with("_test.rs");
    is_test_name || file.split('/').any(|part| part == "tests")
}
