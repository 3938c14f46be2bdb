//! Checks which crates a `Cargo.toml` may name, and that the rooms of a crate have no circular
//! imports. docs/adr/0022-crates.md has the reasons.

use super::{
    Finding, Report,
    functions::{is_test_path, test_ranges},
    lexer::views,
    rooms::{room_of, uses},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Crates, and the directory of the only crate that may name them. Tests may.
#[rustfmt::skip]
const AT_HOME: &[(&str, &[&str])] = &[
    ("crates/terrace",         &["lsm-tree"]),
    ("crates/emulated-drives", &["fuser"]),
    ("crates/power-cut",       &["seccompiler"]),
    ("crates/terrace-images",  &["fast_image_resize", "image", "jpeg-encoder", "kamadak-exif", "zune-core", "zune-jpeg"]),
    ("crates/terrace-server",  &["axum", "http-body", "hyper", "hyper-util", "s3s"]),
];

/// Crates' directories, and prefixes that names in their dependencies may not have.
const STRANGERS: &[(&str, &str)] = &[
    ("crates/emulated-drives", "terrace"),
    ("crates/terrace", "terrace-"),
    ("crates/terrace-images", "terrace-"),
    ("crates/terrace-objects", "terrace-"),
    ("crates/terrace-bench", "terrace-server"),
];

/// Checked by [`rooms`](super::rooms) instead.
const ENGINE: &str = "crates/terrace";

/// Checks what a `Cargo.toml` names outside of tests.
pub fn check(report: &mut Report<'_>, text: &str) {
    let Some(own) = report.file.strip_suffix("/Cargo.toml").map(str::to_owned) else {
        return;
    };
    let mut in_dependencies = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
            continue;
        }
        let name = line.split(['=', '.']).next().unwrap_or_default().trim();
        if !in_dependencies || name.is_empty() || name.starts_with('#') {
            continue;
        }
        let home = AT_HOME.iter().find(|(_, names)| names.contains(&name));
        if let Some((home, _)) = home.filter(|(home, _)| *home != own) {
            report.add(
                index + 1,
                format!("`{name}` is at home in {home} alone: see xtask/src/tidy/crates.rs"),
            );
        }
        if STRANGERS
            .iter()
            .any(|(directory, start)| *directory == own && name.starts_with(start))
        {
            report.add(
                index + 1,
                format!("{own} may not name `{name}`: see xtask/src/tidy/crates.rs"),
            );
        }
    }
}

/// The rooms of a crate, and those that each uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Finds circles of rooms in every crate.
pub fn circles(root: &Path, files: &BTreeSet<String>) -> Vec<Finding> {
    let mut graphs: BTreeMap<String, Graph> = BTreeMap::new();
    for file in files.iter().filter(|file| file.ends_with(".rs") && !is_test_path(file)) {
        let Some((own, path)) = file
            .split_once("/src/")
            .filter(|(own, _)| own.starts_with("crates/") && *own != ENGINE)
        else {
            continue;
        };
        if let Ok(source) = std::fs::read_to_string(root.join(file)) {
            add(graphs.entry(own.to_owned()).or_default(), path, &source);
        }
    }
    let found = graphs.iter().filter_map(|(own, graph)| {
        let rooms = circle(graph)?.join(", ");
        Some(Finding {
            file: format!("{own}/Cargo.toml"),
            line: 1,
            message: format!("these rooms use each other in a circle: {rooms}"),
        })
    });
    found.collect()
}

/// Adds the imports of a file, without its tests. The root may use everything.
fn add(graph: &mut Graph, path: &str, source: &str) {
    let own = room_of(path);
    let Some(views) = views(source).ok().filter(|_| !["lib", "main"].contains(&own)) else {
        return;
    };
    let tests = test_ranges(&views.code);
    let used = uses(path, &views.code).into_iter();
    let used = used.filter(|(offset, name)| name != own && !tests.iter().any(|test| test.contains(offset)));
    graph
        .entry(own.to_owned())
        .or_default()
        .extend(used.map(|(_, name)| name));
}

/// The rooms of one circle, in the order of their names.
fn circle(graph: &Graph) -> Option<Vec<&str>> {
    let leads_back = |from: &String| {
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![from]);
        while let Some(room) = ahead.pop() {
            for next in graph.get(room).into_iter().flatten() {
                if next == from {
                    return true;
                }
                if graph.contains_key(next) && seen.insert(next) {
                    ahead.push(next);
                }
            }
        }
        false
    };
    let rooms: Vec<&str> = graph
        .keys()
        .filter(|room| leads_back(room))
        .map(String::as_str)
        .collect();
    (!rooms.is_empty()).then_some(rooms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> usize {
        let mut report = Report {
            file,
            findings: Vec::new(),
        };
        check(&mut report, text);
        report.findings.len()
    }

    #[test]
    fn a_crate_that_is_named_where_it_is_not_at_home_is_found() {
        let text = "[package]\nname = \"s3s\"\n[dependencies]\n# s3s = 1\ns3s = \"1\"\nhyper.workspace = true\n";
        assert_eq!(findings("crates/terrace-objects/Cargo.toml", text), 2);
        assert_eq!(findings("crates/terrace-server/Cargo.toml", text), 0);
        let image = "[dev-dependencies]\nimage = \"1\"\n";
        assert_eq!(findings("crates/terrace-server/Cargo.toml", image), 0);
        let image = "[target.'cfg(unix)'.dependencies]\nimage = \"1\"\n";
        assert_eq!(findings("crates/terrace-server/Cargo.toml", image), 1);
        let terrace = "[dependencies]\nterrace = { path = \"../terrace\" }\n";
        assert_eq!(findings("crates/emulated-drives/Cargo.toml", terrace), 1);
        assert_eq!(findings("crates/terrace-images/Cargo.toml", terrace), 0);
    }

    #[test]
    fn rooms_that_use_each_other_are_found_and_tests_do_not_count() {
        let mut graph = Graph::new();
        add(&mut graph, "lib.rs", "use crate::{a, b, c};");
        add(&mut graph, "a/mod.rs", "use crate::b::B;");
        add(
            &mut graph,
            "b.rs",
            "use super::c::C;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        );
        add(&mut graph, "c.rs", "use crate::{Outcome, d};");
        assert_eq!(circle(&graph), None);
        add(&mut graph, "c/deep.rs", "use super::super::a::A;");
        assert_eq!(circle(&graph), Some(vec!["a", "b", "c"]));
    }
}
