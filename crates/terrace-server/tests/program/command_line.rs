//! The commands, driven as a person or script would: what they print, what they end with.

use crate::common::{Place, bytes, files, signal, wait};
use memchr::memmem;
use serde_json::json;
use std::{
    ffi::OsStr,
    io::Read as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    process::Stdio,
};

#[test]
fn put_get_head_ls_rm() {
    let place = Place::new();
    place.write("tiny.txt", "hello");
    let medium = bytes(50_000);
    let large = bytes(3 << 20);
    place.write("medium.bin", &medium);
    place.write("large.jpg", &large);
    place
        .run(&[
            "put",
            "notes/tiny",
            "tiny.txt",
            "--attribute",
            "author=Ada",
            "--attribute",
            "empty=",
        ])
        .code(0);
    place.run(&["put", "notes/medium", "medium.bin"]).code(0);
    place.run(&["put", "photos/large", "large.jpg"]).code(0);

    assert_eq!(place.run(&["get", "notes/tiny"]).code(0).0.stdout, b"hello");
    assert_eq!(place.run(&["get", "notes/medium"]).code(0).0.stdout, medium);
    place.run(&["get", "photos/large", "-o", "out.jpg"]).code(0);
    assert_eq!(std::fs::read(place.path("out.jpg")).unwrap(), large);
    assert!(
        files(place.dir.path())
            .iter()
            .all(|path| !path.to_string_lossy().ends_with(".part"))
    );

    let head = place.run(&["head", "notes/tiny", "--json"]).code(0).json();
    assert_eq!(head["key"], "notes/tiny");
    assert_eq!(head["bytes"], 5);
    assert_eq!(head["home"], "inline");
    assert_eq!(
        head["attributes"],
        json!({ "author": "Ada", "content-type": "text/plain", "empty": "" })
    );
    assert_eq!(place.run(&["head", "notes/medium", "--json"]).json()["home"], "flash");
    let large_head = place.run(&["stat", "photos/large", "--json"]).code(0).json();
    assert_eq!(
        (&large_head["home"], &large_head["attributes"]["content-type"]),
        (&json!("block"), &json!("image/jpeg"))
    );
    assert!(
        place
            .run(&["head", "photos/large"])
            .code(0)
            .text()
            .contains("home      block")
    );

    assert_eq!(
        place.run(&["ls"]).code(0).text(),
        "notes/medium\nnotes/tiny\nphotos/large\n"
    );
    assert_eq!(
        place.run(&["ls", "notes/"]).code(0).text(),
        "notes/medium\nnotes/tiny\n"
    );
    assert_eq!(place.run(&["ls", "none/"]).code(0).text(), "");
    let lines = place.run(&["ls", "--json", "photos/"]).code(0);
    assert_eq!(lines.json()["bytes"], 3 << 20);

    lists_and_removes(&place);
}

fn lists_and_removes(place: &Place) {
    let removed = place.run(&["rm", "notes/tiny", "--json"]).code(0).json();
    assert_eq!(removed["key"], "notes/tiny");
    place.run(&["rm", "notes/tiny"]).code(3);
    let missing = place.run(&["get", "notes/tiny"]).code(3);
    assert_eq!(
        (missing.text().as_str(), missing.error().as_str()),
        ("", "error: no object has the key notes/tiny\n")
    );
    place.run(&["head", "notes/tiny"]).code(3);
    place.run(&["stat", "notes/tiny", "--json"]).code(3);
    assert_eq!(place.run(&["ls"]).text(), "notes/medium\nphotos/large\n");
}

#[test]
fn a_time_to_live_ends_and_is_shown_until_then() {
    let place = Place::new();
    place
        .run_with_input(&["put", "long", "-", "--ttl", "1d12h"], b"for long")
        .code(0);
    place
        .run_with_input(&["put", "short", "-", "--ttl", "1ms"], b"not for long")
        .code(0);
    place.run_with_input(&["put", "for ever", "-"], b"v").code(0);
    let head = place.run(&["head", "long", "--json"]).code(0).json();
    let expires_at = head["expires_at"].as_str().unwrap();
    assert!(
        expires_at.starts_with("20") && expires_at.ends_with('Z'),
        "{expires_at}"
    );
    let text = place.run(&["stat", "long"]).code(0).text();
    assert!(text.contains(&format!("expires   {expires_at}\n")), "{text}");
    assert_eq!(
        place.run(&["head", "for ever", "--json"]).json()["expires_at"],
        json!(null)
    );
    // The commands since then have taken longer than it lives.
    place.run(&["get", "short"]).code(3);
    place.run(&["head", "short"]).code(3);
    place.run(&["rm", "short"]).code(3);
    assert_eq!(place.run(&["ls"]).text(), "for ever\nlong\n");
    let again = place.run_with_input(&["put", "short", "-", "--if-absent"], b"new");
    assert_eq!(again.code(0).text(), "");
    assert_eq!(place.run(&["get", "short"]).code(0).text(), "new");
    assert!(place.run(&["stat", "--json"]).json()["expire"]["earliest_expiry"].is_string());
    for wrong in ["1", "1.5h", "0s", "soon"] {
        let refused = place.run_with_input(&["put", "k", "-", "--ttl", wrong], b"v").code(2);
        assert!(refused.error().contains("write it like"), "{}", refused.error());
    }
}

#[test]
fn rm_by_prefix_asks_first() {
    let place = Place::new();
    for key in ["a/1", "a/2", "a", "b/1"] {
        place.run_with_input(&["put", key, "-"], b"v").code(0);
    }
    for (input, answer) in [(&b""[..], "end of input"), (b"n\n", "no"), (b"maybe\n", "another")] {
        let refused = place.run_with_input(&["rm", "--prefix", "a/"], input).code(2);
        assert!(refused.error().contains("key begins with `a/`? [y/N]"), "{answer}");
        assert!(refused.error().contains("nothing was deleted"), "{answer}");
    }
    assert_eq!(place.run(&["ls"]).text(), "a\na/1\na/2\nb/1\n");
    place.run_with_input(&["rm", "--prefix", "a/"], b"y\n").code(0);
    assert_eq!(place.run(&["ls"]).text(), "a\nb/1\n");
    place.run(&["get", "a/1"]).code(3);
    place.run(&["rm", "--prefix", "a/", "--yes"]).code(3);
    place.run_with_input(&["put", "a/1", "-"], b"back").code(0);
    assert_eq!(place.run(&["get", "a/1"]).code(0).text(), "back");
    let all = place.run(&["rm", "--prefix", "", "--yes", "--json"]).code(0).json();
    assert_eq!(all["prefix"], "");
    assert!(all["version"].as_u64() > Some(5));
    assert_eq!(place.run(&["ls"]).code(0).text(), "");
    place.run(&["verify"]).code(0);
    assert!(place.run(&["stat", "--json"]).json()["expire"]["ranges_outstanding"].is_u64());
    place.run(&["rm"]).code(2);
    place.run(&["rm", "k", "--prefix", "k"]).code(2);
    place.run(&["rm", "k", "--yes"]).code(3);
}

#[test]
fn put_from_standard_input_of_any_length() {
    let place = Place::new();
    for length in [0, 1, 100_000, 128 << 10, 5 << 20] {
        let value = bytes(length);
        place.run_with_input(&["put", "key.json", "-"], &value).code(0);
        assert_eq!(
            place.run(&["get", "key.json", "-o", "-"]).code(0).0.stdout,
            value,
            "{length} bytes"
        );
    }
    let head = place.run(&["head", "key.json", "--json"]).json();
    assert_eq!(head["attributes"]["content-type"], "application/json");
}

/// Regression: `get -o` renamed a new file over whatever had the name. As root, `-o /dev/null` left
/// a regular file in the place of the device, for every program of the machine; a named pipe and a
/// symbolic link were replaced too, and their reader and their target got nothing; a file that only
/// its owner could read became readable for all.
#[test]
fn get_keeps_what_has_the_name_of_its_file() {
    let place = Place::new();
    place.run_with_input(&["put", "k", "-"], b"value").code(0);
    let mode = |name: &str| std::fs::symlink_metadata(place.path(name)).unwrap().mode();

    let pipe = place.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    // Open for both, so that neither side waits for the other.
    let mut ends = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(&pipe)
        .unwrap();
    place.run(&["get", "k", "-o", "pipe"]).code(0);
    assert!(
        std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(),
        "the pipe was replaced"
    );
    let mut got = [0; 16];
    assert_eq!(ends.read(&mut got).unwrap(), 5);
    assert_eq!(&got[..5], b"value");

    place.write("target", "former, and longer");
    std::os::unix::fs::symlink("target", place.path("link")).unwrap();
    place.run(&["get", "k", "-o", "link"]).code(0);
    assert!(place.path("link").is_symlink(), "the link was replaced");
    assert_eq!(std::fs::read(place.path("target")).unwrap(), b"value");

    let private = place.write("private", "former");
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600)).unwrap();
    place.run(&["get", "k", "-o", "private"]).code(0);
    assert_eq!(mode("private") & 0o777, 0o600);
    assert_eq!(std::fs::read(private).unwrap(), b"value");
}

#[test]
fn a_condition_that_fails_writes_nothing() {
    let place = Place::new();
    let version = place
        .run_with_input(&["put", "k", "-", "--if-absent", "--json"], b"one")
        .code(0)
        .json()["version"]
        .clone();
    let refused = place.run_with_input(&["put", "k", "-", "--if-absent"], b"two").code(4);
    assert!(refused.error().contains("--if-absent"), "{}", refused.error());
    assert_eq!(place.run(&["get", "k"]).text(), "one");
    let next = place
        .run_with_input(&["put", "k", "-", "--json"], b"three")
        .code(0)
        .json()["version"]
        .clone();
    assert!(next.as_u64() > version.as_u64());
}

#[test]
fn keys_are_any_bytes() {
    let place = Place::new();
    let hostile = b"a\n\x1b[31m\xff\\b".as_slice();
    let escaped = "a\\x0a\\x1b[31m\\xff\\\\b";
    place.run_with_input(&["put", escaped, "-"], b"v").code(0);
    assert_eq!(place.run(&["ls"]).code(0).text(), format!("{escaped}\n"));
    assert_eq!(place.run(&["get", escaped]).code(0).text(), "v");
    // The raw bytes work too, apart from the backslash, which begins an escape.
    let raw = [b"a\n\x1b[31m\xff\\\\b".as_slice()].map(OsStr::from_bytes);
    assert_eq!(place.run(&[OsStr::new("get"), raw[0]]).code(0).text(), "v");
    let listed = place.run(&["ls", "--json"]).code(0).json();
    assert_eq!(listed["key"], json!({ "base64": base64_of(hostile) }));
    place.run(&["rm", "bad\\escape"]).code(2);
    place.run_with_input(&["put", "", "-"], b"v").code(2);
    place.run_with_input(&["put", &"k".repeat(4097), "-"], b"v").code(2);
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn settings_come_from_flag_variable_and_file() {
    let place = Place::new();
    place
        .run_with_input(&["--store", "one", "put", "k", "-"], b"one")
        .code(0);
    place
        .run_with_input(&["put", "k", "-", "--flash", "two-f", "--large", "two-l"], b"two")
        .code(0);
    assert_eq!(place.run(&["get", "k", "--store", "one"]).code(0).text(), "one");
    let by_variable = place
        .command(&["get", "k"])
        .env("TERRACE_STORE", "one")
        .output()
        .unwrap();
    assert_eq!(by_variable.stdout, b"one");
    place.write("terrace.toml", "flash = \"two-f\"\nlarge = \"two-l\"\n");
    assert_eq!(place.run(&["get", "k"]).code(0).text(), "two");
    let both = place
        .command(&["get", "k"])
        .env("TERRACE_STORE", "one")
        .output()
        .unwrap();
    assert_eq!(both.stdout, b"one");
    assert_eq!(
        place
            .run(&["get", "k", "--flash", "two-f", "--large", "two-l"])
            .code(0)
            .text(),
        "two"
    );
}

#[test]
fn wrong_usage_says_what_to_do_and_creates_nothing() {
    let place = Place::new();
    let cases: [(&[&str], &str); 12] = [
        (&["put", "k", "-", "--store", "a", "--flash", "b"], "drop `store`"),
        (&["put", "k", "-", "--flash", "b"], "without `large`"),
        (&["put", "k", "-", "--large", "b"], "without `flash`"),
        (
            &["put", "k", "-", "--inline-limit", "4096", "--size-threshold", "2048"],
            "below the size threshold",
        ),
        (&["put", "k", "-", "--cache", "lots"], "write it like 64MiB"),
        (&["put", "k", "-", "--attribute", "x"], "NAME=VALUE"),
        (&["put", "k", "."], "is a directory"),
        (&["ls", "--config", "none.toml"], "none.toml"),
        (&["frob"], "unrecognized subcommand"),
        (&["serve", "--listen", "7070"], "like 127.0.0.1:7070"),
        (&["serve", "pictures"], "--import pictures"),
        (&["import", ".", "--resolution", "big"], "NAME=WIDTHxHEIGHT"),
    ];
    for (args, says) in cases {
        let run = place.run(args).code(2);
        assert!(run.error().contains(says), "{args:?}: {}", run.error());
        assert_eq!(run.text(), "");
    }
    place.run(&["put", "k", "no-such-file"]).code(1);
    place.run(&["import", "no-such-dir"]).code(1);
    place.write("terrace.toml", "stoer = \"x\"\n");
    let unknown = place.run(&["ls"]).code(2);
    assert!(
        unknown.error().contains("stoer") && unknown.error().contains("terrace.toml"),
        "{}",
        unknown.error()
    );
    assert_eq!(files(place.dir.path()), [place.path("terrace.toml")]);
}

#[test]
fn a_log_that_is_not_on_a_terminal_has_no_colours() {
    let place = Place::new();
    let run = place.run(&["put", "k", "-", "-vv"]).code(0);
    assert!(run.error().contains("DEBUG"), "{}", run.error());
    assert!(!run.error().contains('\x1b'), "{}", run.error());
}

#[test]
fn commands_that_look_do_not_create_a_store() {
    let place = Place::new();
    for args in [&["ls"][..], &["get", "k"], &["rm", "k"], &["stat"], &["verify"]] {
        let run = place.run(args).code(1);
        assert!(run.error().starts_with("error: "), "{}", run.error());
    }
    assert!(files(place.dir.path()).is_empty());
}

#[test]
fn help_tells_examples_variables_and_codes() {
    let place = Place::new();
    let help = place.run(&["--help"]).code(0).text();
    for text in [
        "Examples:",
        "TERRACE_STORE",
        "Exit codes:",
        "terrace.toml",
        "--size-threshold",
    ] {
        assert!(help.contains(text), "{text}");
    }
    for command in [
        "serve", "import", "put", "get", "head", "ls", "rm", "stat", "verify", "repair",
    ] {
        assert!(help.contains(command));
        place.run(&[command, "--help"]).code(0);
    }
    place.run::<&str>(&[]).code(2);
    assert!(place.run(&["--version"]).code(0).text().starts_with("terrace "));
}

#[test]
fn stat_verify_and_repair() {
    let place = Place::new();
    let large = bytes(1 << 20);
    place.run_with_input(&["put", "large", "-"], &large).code(0);
    place.run_with_input(&["put", "small", "-"], b"small").code(0);
    let stat = place.run(&["stat", "--json"]).code(0).json();
    assert_eq!(stat["homes"]["block"], json!({ "objects": 1, "bytes": 1 << 20 }));
    assert_eq!(stat["homes"]["inline"]["objects"], 1);
    assert!(place.run(&["stat"]).code(0).text().contains("block"));

    let sound = place.run(&["verify", "--json"]).code(0).json();
    assert_eq!((&sound["sound"], &sound["objects"]), (&json!(true), &json!(2)));

    flip_a_byte_of(&large, &place);
    let damaged = place.run(&["verify", "--json"]).code(5);
    assert_eq!(damaged.json()["sound"], false);
    assert!(!damaged.json()["errors"].as_array().unwrap().is_empty());
    place.run(&["get", "large", "-o", "out"]).code(5);
    assert!(!place.path("out").exists());
    assert_eq!(place.run(&["get", "small"]).code(0).text(), "small");

    flip_a_byte_of(&large, &place);
    place.run(&["verify"]).code(0);
    assert_eq!(place.run(&["repair", "--json"]).code(0).json()["objects"], 2);
    assert_eq!(place.run(&["get", "large"]).code(0).0.stdout, large);
}

/// Regression: `repair` of a store whose large tier was not mounted printed a note, ended with 0,
/// and everything on that tier was forgotten.
#[test]
fn repair_of_half_a_store_must_be_asked_for() {
    let place = Place::new();
    let large = bytes(1 << 20);
    place.run_with_input(&["put", "large", "-"], &large).code(0);
    place.run_with_input(&["put", "small", "-"], b"small").code(0);
    let (tier, away) = (place.path("terrace-data/large"), place.path("away"));
    std::fs::rename(&tier, &away).unwrap();
    std::fs::create_dir(&tier).unwrap();
    let error = place.run(&["repair"]).code(2).error();
    for said in ["terrace-data/large", "mounted", "--without-tier"] {
        assert!(error.contains(said), "{said}: {error}");
    }
    std::fs::remove_dir_all(&tier).unwrap();
    std::fs::rename(&away, &tier).unwrap();
    assert_eq!(place.run(&["get", "large"]).code(0).0.stdout, large);
    std::fs::remove_dir_all(&tier).unwrap();
    place.run(&["repair"]).code(2);
    place.run(&["repair", "--without-tier"]).code(0);
    assert_eq!(place.run(&["get", "small"]).code(0).text(), "small");
}

#[test]
fn stat_tells_what_opening_found_damaged() {
    let place = Place::new();
    place.run_with_input(&["put", "large", "-"], &bytes(1 << 20)).code(0);
    assert_eq!(place.run(&["stat", "--json"]).code(0).json()["damage"], json!([]));
    for path in files(&place.path("terrace-data/large/blocks")) {
        std::fs::remove_file(path).unwrap();
    }
    let stat = place.run(&["stat", "--json"]).code(0).json();
    let findings = stat["damage"].as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.as_str().unwrap().contains("is gone")),
        "{stat}"
    );
    let text = place.run(&["stat"]).code(0).text();
    assert!(text.contains(findings[0].as_str().unwrap()), "{text}");
}

/// Flips a byte in the middle of where `value` is stored, or flips it back.
fn flip_a_byte_of(value: &[u8], place: &Place) {
    let marker = &value[1000..1100];
    for path in files(&place.path("terrace-data/large")) {
        let mut stored = std::fs::read(&path).unwrap();
        if let Some(at) = memmem::find(&stored, marker) {
            stored[at + 5000] ^= 1;
            std::fs::write(&path, stored).unwrap();
            return;
        }
    }
    panic!("the value is in no file");
}

#[test]
fn a_store_in_use_says_so() {
    let place = Place::new();
    let _server = place.serve(&[]);
    let run = place.run_with_input(&["put", "k", "-"], b"v").code(6);
    assert!(run.error().contains("in use by another process"), "{}", run.error());
    place.run(&["rm", "k"]).code(6);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    place.run_with_input(&["put", "big", "-"], &bytes(8 << 20)).code(0);
    let mut child = place
        .command(&["get", "big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert!(wait(&mut child).success());
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(error, "");
}

#[test]
fn an_interrupted_put_leaves_nothing_visible() {
    // With SIGINT as a terminal has it. What a shell without job control runs in the background
    // begins with SIGINT ignored, and the test waited for a program that had been told nothing.
    let place = Place::with_starter(&["env", "--default-signal=INT"]);
    place.run_with_input(&["put", "other", "-"], b"v").code(0);
    let mut child = place.command(&["put", "k", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &bytes(2 << 20)).unwrap();
    signal(&child, "INT");
    assert!(!wait(&mut child).success());
    assert_eq!(place.run(&["ls"]).code(0).text(), "other\n");
    place.run(&["verify"]).code(0);
}

/// With standard error on a full disk, or in a pipe that nothing reads, the program panicked and
/// ended with 101; and a first start stored an access key whose secret was not shown.
#[test]
fn without_standard_error_codes_are_the_same_and_no_unseen_key_is_stored() {
    let place = Place::new();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    place.write("value", "hello");
    place.run(&["put", "key", "value"]).code(0);
    let absent = place.command(&["get", "absent"]).stderr(full()).output().unwrap();
    assert_eq!(absent.status.code(), Some(3));
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"];
    let started = place.command(&arguments).stderr(full()).output().unwrap();
    assert_eq!(started.status.code(), Some(1));
    assert_eq!(
        place.run(&["key", "list", "--json"]).code(0).json(),
        json!([]),
        "a key whose secret was not shown"
    );
}

/// A backup by root, while the service was down, left files that the service could not read.
#[test]
fn root_is_warned_of_files_in_the_store_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root can give a store to another user");
        return;
    }
    let place = Place::new();
    place.write("value", "hello");
    place.run(&["put", "key", "value"]).code(0);
    let (user, store) = (Some(65_534), place.path("terrace-data"));
    std::os::unix::fs::chown(store.join("flash"), user, user).unwrap();
    let warning = "belongs to the user with ID 65534";
    assert!(place.run(&["put", "key", "value"]).code(0).error().contains(warning));
    assert!(!place.run(&["get", "key"]).code(0).error().contains(warning));
}
