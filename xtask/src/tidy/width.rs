//! Checks that prose is at most [`PROSE_COLUMNS_MAX`] columns wide: comments of Rust on lines of
//! their own, and Markdown. Exempt is what cannot be wrapped: rows of tables, definitions of links,
//! code, and a line that is one word. Also refuses personal pronouns for threads, programs and
//! clients.

use super::{PROSE_COLUMNS_MAX, Report};

/// Pronouns for persons.
const PRONOUNS: [&str; 5] = ["he", "him", "his", "himself", "she"];

/// Checks comments on lines of their own.
pub fn check_rust(report: &mut Report<'_>, source: &str) {
    let mut is_code = false;
    for (index, line) in source.lines().enumerate() {
        let comment = line.trim_start();
        if let Some(rest) = comment.strip_prefix("//") {
            let text = rest.trim_start_matches(['/', '!']).trim_start();
            is_code ^= is_fence(text);
            check_line(report, index + 1, line, text, is_code);
        } else {
            is_code = false;
        }
    }
}

/// Checks a Markdown document.
pub fn check_markdown(report: &mut Report<'_>, document: &str) {
    let mut is_code = false;
    // Indented code begins after an empty line.
    let mut may_begin = true;
    for (index, line) in document.lines().enumerate() {
        let text = line.trim_start();
        is_code ^= is_fence(text);
        let is_indented = may_begin && line.starts_with("    ");
        may_begin = is_indented || text.is_empty();
        check_line(report, index + 1, line, text, is_code || is_indented);
    }
}

fn is_fence(text: &str) -> bool {
    text.starts_with("```") || text.starts_with("~~~")
}

fn check_line(report: &mut Report<'_>, number: usize, line: &str, text: &str, is_code: bool) {
    let columns = line.chars().count();
    let is_definition = text.starts_with('[') && text.contains("]: ");
    let is_fixed = is_code || is_definition || text.starts_with('|') || !text.contains(' ');
    if columns > PROSE_COLUMNS_MAX && !is_fixed {
        let message = format!("{columns} columns; prose wraps at {PROSE_COLUMNS_MAX}");
        report.add(number, message);
    }
    let mut words = text.split(|letter: char| !letter.is_alphanumeric());
    if let Some(word) = words.find(|word| PRONOUNS.contains(&word.to_lowercase().as_str()))
        && !is_code
    {
        report.add(number, format!("`{word}`: a thread, program or client is `it`"));
    }
}
