//! `terrace kms`: the keys that S3 clients name for SSE-KMS.

use super::{Access, call, print, print_json};
use crate::{
    admin::{self, KmsChange},
    cli::KmsCommand,
    failure::Outcome,
    s3::kms::Change,
    settings::Settings,
};
use std::fmt::Write as _;

/// `terrace kms create|list|rotate|disable|enable|delete`
pub fn run(command: KmsCommand, settings: &Settings) -> Outcome {
    let (name, change) = match command {
        KmsCommand::List(args) => return list(args.json, settings),
        KmsCommand::Create(args) => (args.name, Change::Create(args.allow)),
        KmsCommand::Rotate(args) => (args.name, Change::Rotate),
        KmsCommand::Disable(args) => (args.name, Change::Disable),
        KmsCommand::Enable(args) => (args.name, Change::Enable),
        KmsCommand::Delete(args) => (args.name, Change::Delete),
    };
    let access = if matches!(change, Change::Create(_)) {
        Access::Create
    } else {
        Access::Change
    };
    call(settings, access, &admin::KMS_CHANGE, KmsChange { name, change }).map(drop)
}

fn list(json: bool, settings: &Settings) -> Outcome {
    let keys = call(settings, Access::Look, &admin::KMS, ())?;
    if json {
        return print_json(&keys);
    }
    let mut text = String::new();
    for key in keys {
        let state = if key.is_disabled { ", disabled" } else { "" };
        let whose = if key.principals.is_empty() {
            "every key".to_owned()
        } else {
            key.principals.join(" ")
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}  for {whose}, versions: {}{state}", key.name, key.versions);
    }
    print(&text)
}
