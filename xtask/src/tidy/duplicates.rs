//! Checks that docs/dependencies.md lists exactly the crates of which there are several versions,
//! with reasons: a new duplicate is noticed, and a list entry is removed with its duplicate.

use super::{Finding, Report};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Names every crate with its version.
const LOCK: &str = "Cargo.lock";
/// The document with the list,
const LISTED_IN: &str = "docs/dependencies.md";
/// in the section with this heading, in rows that begin with the crate.
const HEADING: &str = "## More than one version";

/// Compares the lock file with the list.
pub fn check(root: &Path) -> Vec<Finding> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut report = Report {
        file: LISTED_IN,
        findings: Vec::new(),
    };
    for message in differences(&read(LOCK), &read(LISTED_IN)) {
        report.add(1, message);
    }
    report.findings
}

fn differences(lock: &str, document: &str) -> Vec<String> {
    let (found, listed) = (in_several_versions(lock), listed(document));
    let missing = found
        .iter()
        .filter(|name| !listed.contains(*name))
        .map(|name| format!("`{name}` is there in several versions, and not in \"{HEADING}\""));
    let gone = listed
        .iter()
        .filter(|name| !found.contains(*name))
        .map(|name| format!("`{name}` is in \"{HEADING}\", and there is one version of it"));
    missing.chain(gone).collect()
}

fn in_several_versions(lock: &str) -> BTreeSet<&str> {
    let mut counts = BTreeMap::new();
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"')) {
            *counts.entry(name).or_insert(0_u32) += 1;
        }
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|(name, _)| name)
        .collect()
}

fn listed(document: &str) -> BTreeSet<&str> {
    let section = document.split_once(HEADING).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n\n\
                        [[package]]\nname = \"b\"\nversion = \"1.0.0\"\n";

    #[test]
    fn what_is_there_twice_is_listed_and_nothing_else() {
        let document =
            |rows: &str| format!("# Crates\n\n{HEADING}\n\n| crate | why |\n|---|---|\n{rows}\n## Next\n\n| `c` | |\n");
        assert!(differences(LOCK, &document("| `a` | 1: x; 2: y |\n")).is_empty());
        assert_eq!(differences(LOCK, &document("")).len(), 1, "a is missing");
        assert_eq!(
            differences(LOCK, &document("| `a` | |\n| `b` | |\n")).len(),
            1,
            "b is there once"
        );
        assert_eq!(differences(LOCK, "").len(), 1, "there is no list");
    }
}
