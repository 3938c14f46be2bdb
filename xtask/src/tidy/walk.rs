//! Checks that functions which ARCHITECTURE.md and docs/durability.md name with their file exist.
//!
//! They are written as `` `Type::function` (`room/file.rs`) ``; paths are below the engine's
//! sources.

use super::{Report, rooms::SOURCES};
use std::path::Path;

/// The documents with such names.
pub const WALKED_IN: [&str; 2] = ["ARCHITECTURE.md", "docs/durability.md"];
/// Between a function and its file.
const BETWEEN: &str = "` (`";

/// Checks every function that the document names together with its file.
pub fn check(report: &mut Report<'_>, text: &str, root: &Path) {
    for (index, line) in text.lines().enumerate() {
        for (function, file) in steps(line) {
            match std::fs::read_to_string(root.join(SOURCES).join(file)) {
                Err(error) => report.add(index + 1, format!("`{file}` cannot be read: {error}")),
                Ok(source) if !defines(&source, function) => {
                    report.add(index + 1, format!("`{file}` has no function `{function}`"));
                }
                Ok(_) => {}
            }
        }
    }
}

/// The functions of a line, without their types, each with its file.
fn steps(line: &str) -> Vec<(&str, &str)> {
    line.match_indices(BETWEEN)
        .filter_map(|(at, _)| {
            let named = &line[line[..at].rfind('`')? + 1..at];
            let file = line[at + BETWEEN.len()..].split('`').next()?;
            file.ends_with(".rs")
                .then_some((named.rsplit("::").next().unwrap_or(named), file))
        })
        .collect()
}

fn defines(source: &str, function: &str) -> bool {
    let head = format!("fn {function}");
    source
        .match_indices(&head)
        .any(|(at, _)| source[at + head.len()..].starts_with(['(', '<']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_function_with_its_file() {
        let line = "1. `CommitLog::commit` (`log/commit.rs`) takes the tail; then `seal` (see below) and `a` (`b.md`)";
        assert_eq!(steps(line), [("commit", "log/commit.rs")]);
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        assert!(defines("pub fn commit<'a>(", "commit"));
        assert!(!defines("pub fn commit_large(", "commit"));
    }
}
