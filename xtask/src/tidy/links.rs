//! Checks that relative links of Markdown files lead to a file or directory of the repository.
//!
//! Checked are inline links and images `[text](target)` and reference definitions `[name]: target`,
//! outside code. Addresses with a scheme and fragments of the same page are not checked.

use super::Report;
use std::collections::BTreeSet;

/// Checks every link of a page. `files` are the repository's.
pub fn check(report: &mut Report<'_>, text: &str, files: &BTreeSet<String>) {
    let directory = report
        .file
        .rsplit_once('/')
        .map_or("", |(directory, _)| directory)
        .to_owned();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let opener = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark));
        match (fence, opener) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => {
                for target in targets(&without_code(line)) {
                    if let Err(reason) = resolve(&directory, &target, files) {
                        report.add(index + 1, format!("link to `{target}`: {reason}"));
                    }
                }
            }
            _ => {}
        }
    }
}

/// The line without code in backquotes.
fn without_code(line: &str) -> String {
    if line.matches('`').count() % 2 == 1 {
        return line.to_owned(); // a single backquote is text
    }
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The targets of the links of one line.
pub(super) fn targets(line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (offset, _) in line.match_indices("](") {
        let rest = &line[offset + 2..];
        let mut depth = 1_usize;
        let end = rest.find(|character| {
            depth = match character {
                '(' => depth + 1,
                ')' => depth - 1,
                _ => depth,
            };
            depth == 0
        });
        found.extend(end.map(|end| rest[..end].to_owned()));
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        found.push(target.to_owned());
    }
    // A title may follow the target; the target may be in angle brackets.
    let target = |link: String| {
        link.split_whitespace()
            .next()
            .map(|target| target.trim_matches(['<', '>']).to_owned())
    };
    found.into_iter().filter_map(target).collect()
}

fn resolve(directory: &str, target: &str, files: &BTreeSet<String>) -> Result<(), &'static str> {
    let path = target.split('#').next().unwrap_or_default();
    let has_scheme = path.split('/').next().is_some_and(|first| first.contains(':'));
    if path.is_empty() || has_scheme {
        return Ok(());
    }
    if path.starts_with('/') {
        return Err("absolute; write it relative to this page");
    }
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or("leads out of the repository")?;
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let below = format!("{path}/");
    let is_directory = || {
        files
            .range(below.clone()..)
            .next()
            .is_some_and(|file| file.starts_with(&below))
    };
    if path.is_empty() || files.contains(&path) || is_directory() {
        Ok(())
    } else {
        Err("no such file in the repository")
    }
}
