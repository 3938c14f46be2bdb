//! Tests of the lexer and of each check.
#![allow(clippy::unwrap_used)]

use super::{
    Report, check_bytes,
    functions::{Function, functions, is_test_path, test_ranges},
    lexer::{find_word, views},
    links::targets,
    rules::Kind,
};
use std::collections::BTreeSet;

fn code(source: &str) -> String {
    views(source).unwrap().code
}

/// Names and lengths of the functions of a source.
fn measured(source: &str) -> Vec<(String, usize)> {
    let found = functions(&code(source)).into_iter();
    found.map(|Function { name, lines, .. }| (name, lines)).collect()
}

/// The messages for one file, with their lines.
fn findings_among(file: &str, text: &str, files: &[&str]) -> Vec<(usize, String)> {
    let mut report = Report {
        file,
        findings: Vec::new(),
    };
    let files: BTreeSet<String> = files.iter().map(|&file| file.to_owned()).collect();
    check_bytes(&mut report, text.as_bytes(), &files);
    report.findings.sort();
    report
        .findings
        .into_iter()
        .map(|finding| (finding.line, finding.message))
        .collect()
}

fn findings(file: &str, text: &str) -> Vec<(usize, String)> {
    findings_among(file, text, &[])
}

/// The lines of the findings in a Rust file with a header put before it.
fn rust_lines(file: &str, body: &str) -> Vec<usize> {
    let found = findings(file, &format!("//! Header.\n{body}")).into_iter();
    found.map(|(line, _)| line - 1).collect()
}

#[test]
fn views_keep_length_and_lines() {
    let source = "let a = \"ü\n}\"; // }\n/* {\n{ */ let b = 'é';\n";
    let found = views(source).unwrap();
    assert_eq!(found.code.len(), source.len());
    assert_eq!(found.spoken.len(), source.len());
    assert_eq!(found.code.lines().count(), source.lines().count());
    assert!(!found.code.contains(['{', '}']));
    assert!(found.spoken.contains("// }") && !found.spoken.contains('é'));
}

#[test]
fn literals_are_blanked() {
    for literal in [
        r#""{""#,
        r#""\"{""#,
        r#""\\""#,
        r##"r"{\""##,
        r###"r#"{"{"#"###,
        r####"r##"{"#{"##"####,
        r#"b"{""#,
        r##"br#"{"{"#"##,
        r#"c"{""#,
        "'{'",
        r"'\''",
        r"'\\'",
        "'\"'",
        "b'{'",
        r"b'\''",
        r"'\u{7b}'",
        "'…'",
        "'🦀'",
        "\"line\n{\"",
        "\"\\\n {\"",
    ] {
        let source = format!("let a = {literal}; after");
        let code = code(&source);
        assert!(code.starts_with("let a = "), "{literal}");
        assert!(code.ends_with("; after"), "{literal}: {code}");
        assert!(!code.contains(['{', '}', '"', '\'']), "{literal}: {code}");
    }
}

#[test]
fn lifetimes_and_labels_are_code() {
    for source in [
        "fn f<'a>(x: &'a str) -> &'a str { x }",
        "impl<'de: 'a, 'a> T<'de> for U<'_> {}",
        "'outer: loop { break 'outer; }",
        "fn f(x: &'static [u8]) { g('a', 'b') }",
    ] {
        assert_eq!(
            code(source).replace("   ", "'?'").matches('{').count(),
            source.matches('{').count()
        );
    }
    assert!(code("fn f(x: &'static str) {}").contains("&'static str) {}"));
    assert!(code("f::<'a>('b', x)").starts_with("f::<'a>(   , x)"));
}

#[test]
fn raw_identifiers_and_lookalike_prefixes() {
    assert_eq!(code("let r#fn = r#type;"), "let r#fn = r#type;");
    assert!(code("for\"{\" in b").starts_with("for    in b"));
    assert_eq!(code("super_b\"}\""), "super_b   ");
    assert_eq!(code("1b'a'; 0x5f"), "1b   ; 0x5f");
    assert_eq!(measured("fn f() { let r#fn = 1; g(r#fn); }"), [("f".to_owned(), 1)]);
}

#[test]
fn comments_nest_and_hide() {
    assert_eq!(
        code("a /* { /* } */ \" */ b").split_whitespace().collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(code("a // \" '\nb").split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        code("a / b /**/ c").split_whitespace().collect::<Vec<_>>(),
        ["a", "/", "b", "c"]
    );
    assert!(code("\"// not a comment\" x").ends_with(" x"));
}

#[test]
fn what_never_ends_is_refused() {
    assert_eq!(views("a\n/* /* */\nb"), Err(2));
    assert_eq!(views("a\n\nlet b = \"\\\";\n"), Err(3));
    assert_eq!(views("r#\"a\"\n"), Err(1));
    assert_eq!(views("a '"), Err(1));
    assert_eq!(views("\"a\\"), Err(1));
}

#[test]
fn words_have_borders() {
    assert_eq!(
        find_word("unsafe_code not_unsafe unsafe", "unsafe").collect::<Vec<_>>(),
        [23]
    );
    assert_eq!(find_word("fastrand::x rand::y", "rand::").collect::<Vec<_>>(), [12]);
    assert_eq!(find_word("XXXL XXX", "XXX").collect::<Vec<_>>(), [5]);
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let source = "#[inline]\npub async fn a(\n    b: u8,\n) -> u8\nwhere\n    u8: Copy,\n{\n    b\n}\n";
    assert_eq!(measured(source), [("a".to_owned(), 8)]);
    assert_eq!(functions(&code(source))[0].line, 2);
}

#[test]
fn braces_of_a_signature_are_not_the_body() {
    let source = "fn a(x: [u8; { 1 + 1 }]) -> W<{ N > 1 }> {\n    x\n}\nfn b() -> impl Fn(u8) -> Vec<Vec<u8>> {\n}\n";
    assert_eq!(measured(source), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
}

#[test]
fn declarations_and_pointers_are_no_functions() {
    assert_eq!(
        measured("trait T { fn a(&self); fn b(&self) {} }"),
        [("b".to_owned(), 1)]
    );
    assert_eq!(measured("type F = fn(u8) -> u8; struct S { f: fn(u8), }"), []);
    assert_eq!(measured("// fn a() {\nconst A: &str = \"fn b() {\";"), []);
}

#[test]
fn nested_functions_count_on_their_own() {
    let source = "fn a() {\n    fn b() {\n    }\n    let c = '}';\n    let d = \"}\";\n}\n";
    assert_eq!(measured(source), [("a".to_owned(), 6), ("b".to_owned(), 2)]);
    assert_eq!(
        measured("macro_rules! m { ($n:ident) => { fn $n() {\n} } }"),
        [("$n".to_owned(), 2)]
    );
}

#[test]
fn long_functions_and_files_are_found() {
    let function = |lines: usize| format!("fn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2));
    assert_eq!(rust_lines("a.rs", &function(70)), [] as [usize; 0]);
    assert_eq!(rust_lines("a.rs", &function(71)), [1]);
    assert_eq!(
        rust_lines("tests/a.rs", &format!("mod b {{\n{}}}\n", function(71))),
        [2]
    );
    assert_eq!(rust_lines("a.rs", &"use b;\n".repeat(599)), [] as [usize; 0]);
    assert_eq!(rust_lines("a.rs", &"use b;\n".repeat(600)), [600]);
}

#[test]
fn test_code_is_told_apart() {
    let source = "use a;\n#[cfg(test)]\n#[allow(x[1])]\nmod tests {\n    b\n}\nc\n#[cfg(test)]\nuse d;\n";
    let code = code(source);
    let ranges = test_ranges(&code);
    let is_test = |word: &str| ranges.iter().any(|range| range.contains(&code.find(word).unwrap()));
    assert!(is_test("b\n") && is_test("d;"));
    assert!(!is_test("use a") && !is_test("c\n#"));
    assert!(is_test_path("crates/a/tests/b.rs") && is_test_path("a/tests.rs") && is_test_path("a/b_tests.rs"));
    assert!(!is_test_path("crates/a/src/contests.rs") && !is_test_path("a/latest.rs"));
}

#[test]
fn confined_words_stay_at_home() {
    let engine = "crates/terrace/src/read.rs";
    assert_eq!(rust_lines(engine, "use lsm_tree::Tree;\n"), [1]);
    assert_eq!(
        rust_lines("crates/terrace/src/ordered_index/mod.rs", "use lsm_tree::Tree;\n"),
        [] as [usize; 0]
    );
    assert_eq!(rust_lines(engine, "let a = unsafe { b() };\n"), [1]);
    assert_eq!(
        rust_lines("crates/terrace/src/io/direct.rs", "unsafe { b() };\n"),
        [] as [usize; 0]
    );
    assert_eq!(
        rust_lines(engine, "// unsafe, lsm_tree and todo! are words\n"),
        [] as [usize; 0]
    );
    assert_eq!(rust_lines(engine, "let a = std::time::SystemTime::now();\n"), [1]);
    assert_eq!(
        rust_lines("crates/terrace/src/api/clock.rs", "SystemTime::now();\n"),
        [] as [usize; 0]
    );
    assert_eq!(
        rust_lines(engine, "#[cfg(test)]\nmod tests {\n    use rand::Rng;\n}\n"),
        [] as [usize; 0]
    );
    assert_eq!(rust_lines(engine, "use rand::Rng;\n"), [1]);
    assert_eq!(
        rust_lines("crates/terrace-server/src/main.rs", "use rand::Rng;\n"),
        [] as [usize; 0]
    );
    assert_eq!(
        rust_lines("tests/a.rs", "#[ignore = \"slow\"]\nfn a() { todo!() }\n"),
        [1, 2]
    );
}

#[test]
fn marks_of_unfinished_work_are_found() {
    assert_eq!(
        rust_lines("a.rs", "// FIXME later\nlet a = \"FIXME\";\n/* XXX */\n"),
        [1, 3]
    );
}

#[test]
fn a_header_is_asked_for() {
    assert_eq!(findings("a.rs", "use b;\n").len(), 1);
    assert_eq!(findings("a.rs", "//! Header.\nuse b;\n"), []);
}

#[test]
fn white_space_is_checked() {
    let lines = |file, text| {
        findings(file, text)
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines("a.md", "a \nb\n"), [1]);
    assert_eq!(lines("a.toml", "a\n\tb\n"), [2]);
    assert_eq!(lines("a.sh", "a\r\n"), [1]);
    assert_eq!(lines("run", "#!/usr/bin/env bash\na\t\n"), [2]);
    assert_eq!(lines("Makefile", "a:\n\tb\n"), [] as [usize; 0]);
    assert_eq!(lines("a.md", "a"), [1]);
    assert_eq!(lines("a.txt", "a\n\n"), [2]);
    assert_eq!(lines("a.txt", ""), [] as [usize; 0]);
    assert_eq!(Kind::of("fuzz/seeds/a/b", b"text"), Kind::Bytes);
    assert_eq!(Kind::of("a.bin", b"\0"), Kind::Bytes);
}

#[test]
fn paths_of_one_machine_are_found() {
    let home = ["", "home", "someone"].join("/");
    let temporary = ["", "tmp", "a"].join("/");
    assert_eq!(findings("a.md", &format!("see `{home}`\n")).len(), 1);
    assert_eq!(
        findings("a.md", &format!("see docs{home} and https://example.org{home}\n")),
        []
    );
    assert_eq!(rust_lines("a.rs", &format!("let a = \"{temporary}\";\n")), [1]);
    assert_eq!(
        rust_lines("tests/a.rs", &format!("let a = \"{temporary}\";\n")),
        [] as [usize; 0]
    );
    assert_eq!(findings("a.sh", &format!("a=$(mktemp -d {temporary}.XXXX)\n")), []);
    assert_eq!(findings("a.sh", &format!("a={temporary}\n")).len(), 1);
}

#[test]
fn links_lead_somewhere() {
    let files = ["README.md", "docs/adr/0001.md", "docs/a (b).md"];
    let lines = |file, text: &str| {
        let found = findings_among(file, text, &files).into_iter();
        found.map(|(line, _)| line).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(
            "README.md",
            "[a](docs/adr/) [b](docs/adr/0001.md#x) [c](https://example.org/x) [d](#e)\n"
        ),
        []
    );
    assert_eq!(
        lines("README.md", "![a](docs/b.png)\n\n[c]: docs/d.md \"Title\"\n"),
        [1, 3]
    );
    assert_eq!(lines("docs/adr/0001.md", "[a](../../README.md) [b](0001.md)\n"), []);
    assert_eq!(
        lines("docs/adr/0001.md", "[a](../../../README.md) [b](/README.md)\n"),
        [1, 1]
    );
    assert_eq!(lines("README.md", "`[a](b)` and\n```\n[a](b)\n```\n[a](b)\n"), [5]);
    assert_eq!(lines("README.md", "[a](docs/ad)\n"), [1]);
    assert_eq!(targets("[a](b(c).md) [d](<e> \"f\")"), ["b(c).md", "e"]);
}

#[test]
fn no_thread_is_a_person() {
    let body = "// A writer waits until he may.\n// It waits until its turn.\nlet he = 1;\n/// ```\n/// he\n/// ```\n";
    assert_eq!(rust_lines("crates/terrace/src/api/batch.rs", body), [1]);
    let found = findings("docs/page.md", "The header.\nHis turn.\n")
        .into_iter()
        .map(|(line, _)| line);
    assert_eq!(found.collect::<Vec<_>>(), [2]);
}

#[test]
fn comments_name_what_acts() {
    let body =
        "// Whoever reads it\nfn whoever_reads() {} // who\nconst A: &str = \"nobody waits\";\n// whose, knows\n";
    assert_eq!(rust_lines("crates/terrace/src/log/a.rs", body), [1, 2, 3]);
    assert_eq!(rust_lines("crates/terrace-objects/src/a.rs", body), [1, 2, 3]);
    assert_eq!(rust_lines("fuzz/src/a.rs", body), [0; 0]);
}

#[test]
fn prose_wraps_at_its_width_and_what_cannot_be_wrapped_does_not() {
    let wide = ["word"; 25].join(" ");
    let row = format!("| {wide} |");
    let link = format!("[name]: {}", "a/".repeat(60));
    let code = format!("let text = \"{wide}\"; // {wide}");
    let body = format!("// {wide}\n/// {row}\n/// ```text\n/// {wide}\n/// ```\n{code}\n    /// {wide}\n");
    assert_eq!(rust_lines("crates/terrace/src/api/batch.rs", &body), [1, 7]);
    let text = format!(
        "{wide}\n{row}\n```\n{wide}\n```\n- {wide}\n\n    {wide}\n{}\n",
        "x".repeat(120)
    );
    let found = findings("docs/page.md", &text).into_iter().map(|(line, _)| line);
    assert_eq!(found.collect::<Vec<_>>(), [1, 6]);
    assert!(
        findings_among("docs/page.md", &format!("{link}\n"), &[])
            .iter()
            .all(|found| !found.1.contains("columns"))
    );
}
