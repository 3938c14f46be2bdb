//! `cargo xtask tidy`: the house rules that neither rustfmt nor clippy checks.
//!
//! The tables at the top of this file are the policy; the modules apply it: [`lexer`] separates
//! code from comments and literals, [`functions`] measures functions, [`rules`] has the checks of
//! one file, [`rooms`] which room of the engine may use which, [`parts`] which
//! parts of an open store a module uses, [`crates`] which crate may name
//! which, and that rooms have no circular imports, [`walk`] whether functions named in documents
//! exist, [`links`] Markdown links, [`width`] the width of prose.
//!
//! Every file that git tracks, or would track (`git ls-files -co --exclude-standard`), is checked.
//! Findings go to standard output as `file:line: message`. A file that cannot be read or lexed is a
//! finding.

mod crates;
mod duplicates;
mod functions;
mod lexer;
mod links;
mod parts;
mod rooms;
mod rules;
#[cfg(test)]
mod tests;
mod walk;
mod width;

use std::{collections::BTreeSet, fmt, path::Path, path::PathBuf, process::Command, process::ExitCode};

/// Longest Rust file.
const FILE_LINES_MAX: usize = 600;
/// Longest function, from the line of its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Widest line of prose: comments of Rust, and Markdown.
const PROSE_COLUMNS_MAX: usize = 100;

/// A word of code (not of comments or literals) that is allowed in some places only.
struct Confined {
    /// The word.
    word: &'static str,
    /// Where the rule applies: a path prefix.
    scope: &'static str,
    /// Path prefixes within the scope where the word is allowed.
    home: &'static [&'static str],
    /// Whether tests may use it.
    tests_may: bool,
    /// What to do instead.
    advice: &'static str,
}

const EVERYWHERE: &str = "";
const ENGINE: &str = "crates/terrace/src/";
const SERVER: &str = "crates/terrace-server/src/";
const CLOCK: &[&str] = &["crates/terrace/src/api/clock.rs"];
/// The I/O room, and the engines in C and C++ that Terrace is measured against.
const UNSAFE: &[&str] = &["crates/terrace/src/io/", "crates/terrace-bench/src/rivals/"];

#[rustfmt::skip]
const CONFINED: &[Confined] = &[
    Confined { word: "todo!",           scope: EVERYWHERE, home: &[],                            tests_may: false, advice: "finish it or leave it out" },
    Confined { word: "unimplemented!",  scope: EVERYWHERE, home: &[],                            tests_may: false, advice: "finish it or leave it out" },
    Confined { word: "#[ignore",        scope: EVERYWHERE, home: &[],                            tests_may: false, advice: "a test that never runs proves nothing" },
    Confined { word: "lsm_tree",        scope: EVERYWHERE, home: &["crates/terrace/src/ordered_index/"], tests_may: false, advice: "go through the engine's index module" },
    Confined { word: "s3s::",           scope: SERVER,     home: &["crates/terrace-server/src/s3/"], tests_may: false, advice: "only the S3 room knows the protocol's library" },
    Confined { word: "unsafe",          scope: EVERYWHERE, home: UNSAFE,                         tests_may: false, advice: "only the I/O room and the rivals may" },
    Confined { word: "SystemTime::now", scope: ENGINE,     home: CLOCK,                          tests_may: true,  advice: "take the time from the clock module" },
    Confined { word: "rand::",          scope: ENGINE,     home: CLOCK,                          tests_may: true,  advice: "randomness is injected" },
    Confined { word: "fastrand::",      scope: ENGINE,     home: CLOCK,                          tests_may: true,  advice: "randomness is injected" },
    Confined { word: "getrandom::",     scope: ENGINE,     home: CLOCK,                          tests_may: true,  advice: "randomness is injected" },
];

/// Marks of unfinished work, refused in Rust code and comments.
const MARKS: &[&str] = &["FIXME", "XXX"];

/// Words for persons, refused in the sources of [`WITHOUT_PERSONS`]. `whose` is not among them: it
/// is right for things, as in "a block whose header is durable".
const PERSONS: &[&str] = &["who", "whom", "whoever", "somebody", "anybody", "everybody", "nobody"];
/// Path prefixes of the sources in which only threads, callers, clients and programs act.
const WITHOUT_PERSONS: &[&str] = &[
    "crates/emulated-drives/",
    "crates/power-cut/",
    "crates/terrace/",
    "crates/terrace-bench/",
    "crates/terrace-images/",
    "crates/terrace-objects/",
    "crates/terrace-server/",
];

/// Top directories of a developer's machine: paths below them are refused.
const WORKPLACES: &[&str] = &["work", "root", "home", "tmp"];

/// Path prefixes of binary files, whatever their contents look like.
const BYTES: &[&str] = &["fuzz/seeds/"];

/// A violation of a rule. Ordered by file and line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// The findings so far in one file.
struct Report<'a> {
    file: &'a str,
    findings: Vec<Finding>,
}

impl Report<'_> {
    fn add(&mut self, line: usize, message: impl Into<String>) {
        self.findings.push(Finding {
            file: self.file.to_owned(),
            line,
            message: message.into(),
        });
    }
}

/// Checks the repository around the current directory and prints the findings.
pub fn run() -> ExitCode {
    let (root, files) = match tracked_files() {
        Ok(found) => found,
        Err(message) => {
            eprintln!("tidy: {message}");
            return ExitCode::from(2);
        }
    };
    let mut findings: Vec<Finding> = files.iter().flat_map(|file| check_file(&root, file, &files)).collect();
    findings.extend(crates::circles(&root, &files));
    findings.extend(duplicates::check(&root));
    findings.extend(parts::check(&root, &files));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing to complain about", files.len());
        ExitCode::SUCCESS
    } else {
        println!("tidy: {} findings in {} files", findings.len(), files.len());
        ExitCode::FAILURE
    }
}

/// The repository's root and its files, relative to it with `/` between the parts.
fn tracked_files() -> Result<(PathBuf, BTreeSet<String>), String> {
    let root = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-toplevel"])?.trim_end());
    let listing = git(&root, &["ls-files", "-co", "--exclude-standard", "-z"])?;
    let files: BTreeSet<String> = listing
        .split('\0')
        .filter(|file| !file.is_empty() && root.join(file).is_file())
        .map(str::to_owned)
        .collect();
    if files.is_empty() {
        return Err(format!("git lists no files in {}", root.display()));
    }
    Ok((root, files))
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .current_dir(directory)
        .args(arguments)
        .output()
        .map_err(|error| format!("git could not be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git {} failed: {}", arguments.join(" "), said.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|_| "a file name is not UTF-8".to_owned())
}

fn check_file(root: &Path, file: &str, files: &BTreeSet<String>) -> Vec<Finding> {
    let mut report = Report {
        file,
        findings: Vec::new(),
    };
    match std::fs::read(root.join(file)) {
        Err(error) => report.add(1, format!("cannot be read: {error}")),
        Ok(bytes) => {
            check_bytes(&mut report, &bytes, files);
            if walk::WALKED_IN.contains(&file) {
                walk::check(&mut report, &String::from_utf8_lossy(&bytes), root);
            }
        }
    }
    report.findings
}

fn check_bytes(report: &mut Report<'_>, bytes: &[u8], files: &BTreeSet<String>) {
    let kind = rules::Kind::of(report.file, bytes);
    if kind == rules::Kind::Bytes {
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        report.add(1, "is not UTF-8");
        return;
    };
    rules::check_text(report, kind, text);
    match kind {
        rules::Kind::Rust => rules::check_rust(report, text),
        rules::Kind::Markdown => {
            rules::check_workplaces(report, kind, text, &[]);
            rooms::check_drawing(report, text);
            links::check(report, text, files);
            width::check_markdown(report, text);
        }
        rules::Kind::Toml => {
            rules::check_workplaces(report, kind, text, &[]);
            crates::check(report, text);
        }
        _ => rules::check_workplaces(report, kind, text, &[]),
    }
}
