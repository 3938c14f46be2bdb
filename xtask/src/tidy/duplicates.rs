//! Checks that deny.toml lists exactly the crates of which the lock file has several versions, with
//! reasons: a new duplicate is noticed, and an entry is removed with its duplicate. `cargo deny`
//! checks it too, where it is installed; this needs neither it nor a network.

use super::Finding;
use std::{collections::BTreeMap, path::Path};

/// Names every crate with its versions.
const LOCK: &str = "Cargo.lock";
/// A lock file that may have fewer duplicates, but no others.
const FUZZ_LOCK: &str = "fuzz/Cargo.lock";
/// The file with the list,
const LISTED_IN: &str = "deny.toml";
/// whose entries begin so: a crate, `@`, the beginning of a version, and a reason.
const ENTRY: &str = "{ crate = \"";

/// An entry of the list: every version of a crate but the newest has one.
struct Entry<'a> {
    line: usize,
    name: &'a str,
    version: &'a str,
    has_reason: bool,
}

impl Entry<'_> {
    fn is_of(&self, name: &str, version: &str) -> bool {
        let rest = version.strip_prefix(self.version);
        self.name == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Compares the lock files with the list.
pub fn check(root: &Path) -> Vec<Finding> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let findings = differences(&read(LOCK), &read(FUZZ_LOCK), &read(LISTED_IN)).into_iter();
    findings
        .map(|(line, message)| Finding {
            file: LISTED_IN.to_owned(),
            line,
            message,
        })
        .collect()
}

/// What is wrong with the list, and where.
fn differences(lock: &str, fuzz_lock: &str, list: &str) -> Vec<(usize, String)> {
    let (older, entries) = (older_versions(lock), entries(list));
    let unlisted = |file: &'static str, older: &[(&str, &str)]| -> Vec<(usize, String)> {
        let missing = older
            .iter()
            .filter(|(name, version)| !entries.iter().any(|entry| entry.is_of(name, version)));
        let message = |name, version| format!("{file} has `{name}` {version} and a newer one: say why, or keep one");
        missing.map(|&(name, version)| (1, message(name, version))).collect()
    };
    let mut found = unlisted(LOCK, &older);
    found.extend(unlisted(FUZZ_LOCK, &older_versions(fuzz_lock)));
    for entry in &entries {
        let Entry { name, version, .. } = entry;
        if !older.iter().any(|(name, version)| entry.is_of(name, version)) {
            let message = format!("there is no `{name}` {version} beside a newer one: remove the entry");
            found.push((entry.line, message));
        }
        if !entry.has_reason {
            found.push((entry.line, format!("`{name}` {version} has no reason")));
        }
    }
    found
}

/// Every version but the newest of each crate.
fn older_versions(lock: &str) -> Vec<(&str, &str)> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(found) = quoted(line, "name = ") {
            name = found;
        } else if let Some(version) = quoted(line, "version = ").filter(|_| !name.is_empty()) {
            versions.entry(name).or_default().push(version);
            name = "";
        }
    }
    let numbers = |version: &&str| -> Vec<u64> {
        let parts = version.split(['.', '-', '+']);
        parts.take(3).map(|part| part.parse().unwrap_or(0)).collect()
    };
    let mut older = Vec::new();
    for (name, mut versions) in versions {
        versions.sort_by_key(numbers);
        versions.pop();
        older.extend(versions.into_iter().map(|version| (name, version)));
    }
    older
}

/// What stands in quotes after a key, in a line that has nothing else.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix('"')?.strip_suffix('"')
}

/// The entries of the list.
fn entries(list: &str) -> Vec<Entry<'_>> {
    list.lines()
        .enumerate()
        .filter_map(|(at, line)| {
            let (crate_, rest) = line.trim_start().strip_prefix(ENTRY)?.split_once('"')?;
            let (name, version) = crate_.split_once('@')?;
            let reason = rest.split_once("reason = \"").map_or("", |(_, reason)| reason);
            Some(Entry {
                line: at + 1,
                name,
                version,
                has_reason: !reason.starts_with('"') && !reason.is_empty(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.9.3\"\n\n\
                        [[package]]\nname = \"a\"\nversion = \"0.10.1\"\ndependencies = [\n \"b\",\n]\n\n\
                        [[package]]\nname = \"b\"\nversion = \"1.0.0\"\n";

    fn list(entries: &str) -> String {
        format!("[bans]\nskip = [\n{entries}]\n")
    }

    fn entry(of: &str, reason: &str) -> String {
        format!("    {{ crate = \"{of}\", reason = \"{reason}\" }},\n")
    }

    #[test]
    fn older_versions_are_listed_with_a_reason_and_nothing_else_is() {
        let found = |list: &str| differences(LOCK, LOCK, list);
        assert_eq!(found(&list(&entry("a@0.9", "0.9: x; 0.10: y"))), []);
        assert_eq!(found(&list("")).len(), 2, "a is missing, for both lock files");
        assert_eq!(found("").len(), 2, "there is no list");
        let newest = list(&(entry("a@0.9", "x") + &entry("a@0.10", "y")));
        assert_eq!(
            found(&newest).first().map(|(line, _)| *line),
            Some(4),
            "the newest is no duplicate"
        );
        let once = list(&(entry("a@0.9", "x") + &entry("b@1", "y")));
        assert_eq!(found(&once).len(), 1, "b is there once");
        assert_eq!(found(&list(&entry("a@0.9", ""))).len(), 1, "there is no reason");
        let other = list(&entry("a@0.90", "x"));
        assert_eq!(found(&other).len(), 3, "0.90 is not 0.9, and 0.9 is missing");
    }

    #[test]
    fn a_third_version_is_noticed_in_either_lock_file() {
        let third = format!("{LOCK}\n[[package]]\nname = \"a\"\nversion = \"0.8.0\"\n");
        let list = list(&entry("a@0.9", "x"));
        assert_eq!(differences(&third, LOCK, &list).len(), 1);
        assert_eq!(differences(LOCK, &third, &list).len(), 1);
        assert_eq!(differences(LOCK, "", &list), [], "the other lock file may have fewer");
    }
}
