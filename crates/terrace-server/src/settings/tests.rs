//! Precedence, contradictions and their messages.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::failure::Code;
use std::{ffi::OsString, fs, path::Path};

fn from(flags: Layer, variables: &[(&str, &str)], file: Option<&str>) -> Outcome<Layer> {
    let dir = tempfile::tempdir().unwrap();
    let config = file.map(|text| {
        let path = dir.path().join("terrace.toml");
        fs::write(&path, text).unwrap();
        path
    });
    let variables = variables
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    gather(flags, config, variables, &mut |_| {})
}

fn message(outcome: Outcome<Layer>) -> String {
    let failure = outcome.and_then(|layer| layer.resolve()).unwrap_err();
    assert_eq!(failure.code, Code::Usage, "{failure}");
    failure.message
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let file = Some("cache = \"1MiB\"\nsplit-threshold = \"1MiB\"\nsize-threshold = 1000\n");
    let variables = [
        ("TERRACE_CACHE", "2MiB"),
        ("TERRACE_SPLIT_THRESHOLD", "2MiB"),
        ("OTHER", "x"),
    ];
    let flags = Layer {
        cache: Some(Size(3 << 20)),
        ..Layer::default()
    };
    let options = from(flags, &variables, file).unwrap().resolve().unwrap().options;
    assert_eq!(options.cache_bytes, 3 << 20);
    assert_eq!(options.split_threshold_bytes, 2 << 20);
    assert_eq!(options.size_threshold_bytes, 1000);
    assert_eq!(
        options.tuning.inline_bytes_max,
        Options::new("x").tuning.inline_bytes_max
    );
    assert_eq!(options.flash_dir, Path::new("terrace-data/flash"));
}

/// Every setting, in file and environment.
const SETTINGS: [(&str, &str); 35] = [
    ("flash", "/f"),
    ("large", "/l"),
    ("size-threshold", "1KiB"),
    ("split-threshold", "1MiB"),
    ("inline-limit", "10"),
    ("segment-size", "1MiB"),
    ("flash-capacity", "8 MiB"),
    ("large-capacity", "4 MiB"),
    ("cache", "0"),
    ("staging", "0"),
    ("pin", "thumbs/=flash,old/=disk"),
    ("migrate-rate", "1MiB"),
    ("order-rate", "2MiB"),
    ("hash-index", "64MiB"),
    ("snapshot-max-age", "15m"),
    ("durability", "buffered"),
    ("listen", "127.0.0.1:80"),
    ("s3-listen", "127.0.0.1:81"),
    ("domain", "s3.example.org, localhost"),
    ("s3-website-domain", "web.example.org"),
    ("s3-notify", "hook=http://localhost:8080/"),
    ("s3-notify-ca", "/authorities"),
    ("host-name", "pictures.example.org"),
    ("page-password-file", "/password"),
    ("secrets-key", "0f"),
    ("key-command", "echo 0f"),
    ("access-log", "/log"),
    ("tls-cert", "/crt"),
    ("tls-key", "/key"),
    ("s3-rate", "7"),
    ("s3-signature-v2", "off"),
    ("s3-etags", "random"),
    ("connections", "8"),
    ("sender-connections", "9"),
    ("large-wait", "250ms"),
];

#[test]
fn every_setting_can_come_from_the_environment_and_the_file() {
    let tiers = Layer {
        store: None,
        flash: Some("/f".into()),
        large: Some("/l".into()),
        size_threshold: Some(Size(1 << 10)),
        split_threshold: Some(Size(1 << 20)),
        inline_limit: Some(Size(10)),
        segment_size: Some(Size(1 << 20)),
        flash_capacity: Some(Size(8 << 20)),
        large_capacity: Some(Size(4 << 20)),
        staging: Some(Size(0)),
        cache: Some(Size(0)),
        pin: Some("thumbs/=flash,old/=disk".parse().unwrap()),
        migrate_rate: Some(Size(1 << 20)),
        order_rate: Some(Size(2 << 20)),
        hash_index: Some(Size(64 << 20)),
        snapshot_max_age: Some(TimeSpan(std::time::Duration::from_secs(900))),
        durability: Some(DurabilityChoice::Buffered),
        listen: Some(Listen(([127, 0, 0, 1], 80).into())),
        s3_listen: Some(S3Listen::At(([127, 0, 0, 1], 81).into())),
        domain: Some("s3.example.org, localhost".to_owned()),
        s3_notify: Some("hook=http://localhost:8080/".to_owned()),
        s3_notify_ca: Some("/authorities".into()),
        s3_website_domain: Some("web.example.org".to_owned()),
        host_name: Some("pictures.example.org".to_owned()),
        page_password_file: Some("/password".into()),
        page_password: None,
        secrets_key_file: None,
        secrets_key: Some("0f".to_owned()),
        key_command: Some("echo 0f".to_owned()),
        access_log: Some("/log".into()),
        tls_cert: Some("/crt".into()),
        tls_key: Some("/key".into()),
        s3_rate: Some(7),
        s3_signature_v2: Some(Switch::Off),
        s3_etags: Some(Tags::Random),
        connections: Some(8),
        sender_connections: Some(9),
        large_wait: Some(TimeSpan(std::time::Duration::from_millis(250))),
    };
    let file: String = SETTINGS
        .iter()
        .map(|(name, value)| format!("{name} = \"{value}\"\n"))
        .collect();
    assert_eq!(from(Layer::default(), &[], Some(&file)).unwrap(), tiers);
    let names = SETTINGS.map(|(name, _)| format!("TERRACE_{}", name.to_uppercase().replace('-', "_")));
    let variables: Vec<_> = names
        .iter()
        .zip(SETTINGS)
        .map(|(name, (_, value))| (name.as_str(), value))
        .collect();
    assert_eq!(from(Layer::default(), &variables, None).unwrap(), tiers);
    let settings = tiers.resolve().unwrap();
    assert_eq!(settings.domains, ["s3.example.org", "localhost"]);
    assert_eq!(settings.notify, ["hook=http://localhost:8080/"]);
    assert_eq!(
        settings.notify_ca.as_deref(),
        Some(std::path::Path::new("/authorities"))
    );
    assert_eq!(settings.website_domains, ["web.example.org"]);
    let options = settings.options;
    assert_eq!(options.pins.len(), 2);
    assert_eq!(options.tuning.migrate_bytes_per_second, 1 << 20);
    assert_eq!(options.tuning.order_bytes_per_second, 2 << 20);
    assert_eq!(options.tuning.hash_index_bytes_max, Some(64 << 20));
}

#[test]
fn the_s3_service_can_be_off() {
    let off = from(Layer::default(), &[("TERRACE_S3_LISTEN", "off")], None).unwrap();
    assert_eq!(off.s3_listen, Some(S3Listen::Off));
    let wrong = message(from(Layer::default(), &[("TERRACE_S3_LISTEN", "7071")], None));
    assert!(wrong.contains("127.0.0.1:7071, or off"), "{wrong}");
}

#[test]
fn naming_the_store_higher_up_hides_the_other_way_below() {
    let flags = Layer {
        store: Some("/s".into()),
        ..Layer::default()
    };
    let tiers = [("TERRACE_FLASH", "/f"), ("TERRACE_LARGE", "/l")];
    let options = from(flags, &tiers, None).unwrap().resolve().unwrap().options;
    assert_eq!(options.large_dir, Path::new("/s/large"));

    let options = from(Layer::default(), &tiers, Some("store = \"/s\""))
        .unwrap()
        .resolve()
        .unwrap()
        .options;
    assert_eq!(options.flash_dir, Path::new("/f"));
    assert_eq!(options.large_dir, Path::new("/l"));
}

#[test]
fn contradictions_say_what_to_do() {
    let both = Layer {
        store: Some("/s".into()),
        flash: Some("/f".into()),
        ..Layer::default()
    };
    assert!(message(from(both, &[], None)).starts_with("command line: `store`"));
    let variables = [("TERRACE_STORE", "/s"), ("TERRACE_LARGE", "/l")];
    assert!(message(from(Layer::default(), &variables, None)).starts_with("TERRACE_* variables: `store`"));
    assert!(
        message(from(Layer::default(), &[], Some("store = \"a\"\nlarge = \"b\""))).contains("terrace.toml: `store`")
    );

    let flash = Layer {
        flash: Some("/f".into()),
        ..Layer::default()
    };
    assert!(message(from(flash.clone(), &[], None)).contains("without `large`"));
    assert!(message(from(Layer::default(), &[("TERRACE_LARGE", "/l")], None)).contains("without `flash`"));
    let same = Layer {
        large: Some("/f".into()),
        ..flash
    };
    assert!(message(from(same, &[], None)).contains("same directory"));

    let tiny = Layer {
        large_capacity: Some(Size(1 << 20)),
        ..Layer::default()
    };
    assert!(message(from(tiny, &[], None)).contains("at least 4 blocks"));
    let inline = Layer {
        inline_limit: Some(Size(2048)),
        size_threshold: Some(Size(1024)),
        ..Layer::default()
    };
    assert!(message(from(inline, &[], None)).contains("below the size threshold"));
}

#[test]
fn the_file_is_checked() {
    let text = message(from(Layer::default(), &[], Some("cache = 1\nsize-treshold = 5\n")));
    assert!(text.contains("size-treshold") && text.contains("line 2"), "{text}");
    assert!(message(from(Layer::default(), &[], Some("cache = \"lots\""))).contains("`lots` is not a size"));
    assert!(message(from(Layer::default(), &[], Some("cache = -1"))).contains("negative"));
    assert!(message(from(Layer::default(), &[], Some("listen = \":80\""))).contains("like 127.0.0.1:7070"));
    assert!(message(from(Layer::default(), &[], Some("durability = \"maybe\""))).contains("maybe"));
    let missing = gather(
        Layer::default(),
        Some("/no/such/file".into()),
        std::iter::empty(),
        &mut |_| {},
    );
    assert!(message(missing).contains("/no/such/file"));
}

/// Regression: `page-password = ""` in the file counted as a password, so `serve` listened on every
/// address, and let in any browser that sent an empty one.
#[test]
fn an_empty_password_is_none_to_listen_with() {
    let layer = from(Layer::default(), &[], Some("page-password = \"\"")).unwrap();
    let refused = layer.resolve().unwrap().page_password(None).unwrap_err();
    assert_eq!(refused.code, Code::Usage);
    assert!(refused.to_string().contains("page-password"), "{refused}");
}

#[test]
fn paths_in_the_file_are_relative_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.toml");
    fs::write(&path, "store = \"data\"").unwrap();
    let variables = [(OsString::from("TERRACE_CONFIG"), path.into_os_string())];
    let layer = gather(Layer::default(), None, variables.into_iter(), &mut |_| {}).unwrap();
    assert_eq!(layer.store, Some(dir.path().join("data")));
}

#[test]
fn variables_are_checked_and_unknown_ones_warn() {
    assert!(
        message(from(Layer::default(), &[("TERRACE_CACHE", "x")], None)).starts_with("variable TERRACE_CACHE: `x`")
    );
    assert!(message(from(Layer::default(), &[("TERRACE_LISTEN", "7070")], None)).contains("like 127.0.0.1:7070"));
    let mut warnings = Vec::new();
    let variables = [("TERRACE_STROE", "/s"), ("TERRACE_CACHE", ""), ("TERRACE_LOG", "debug")]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let layer = gather(Layer::default(), None, variables.into_iter(), &mut |warning| {
        warnings.push(warning)
    })
    .unwrap();
    assert_eq!(layer, Layer::default());
    assert_eq!(warnings, ["variable TERRACE_STROE is not a setting and is ignored"]);
}
