//! `terrace kms`: the keys that S3 clients name for SSE-KMS.

use super::{Access, here_or_asked, print, print_json};
use crate::{
    cli::KmsCommand,
    control::{Answer, KmsRequest, Request},
    failure::Outcome,
    s3::kms::{Change, Summary},
    settings::Settings,
};
use std::{fmt::Write as _, sync::atomic::AtomicBool};
use terrace::Store;

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
    ask(settings, KmsRequest::Change(name, change)).map(drop)
}

fn list(json: bool, settings: &Settings) -> Outcome {
    let keys = ask(settings, KmsRequest::List)?;
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

/// Runs a request on the keys of a store: here, or, while a server has the store, by that server.
fn ask(settings: &Settings, request: KmsRequest) -> Outcome<Vec<Summary>> {
    let access = match &request {
        KmsRequest::List => Access::Look,
        KmsRequest::Change(_, Change::Create(_)) => Access::Create,
        KmsRequest::Change(..) => Access::Change,
    };
    let here = |store: &Store| {
        let secrets = settings.secrets()?;
        secrets.check(store)?;
        secrets.kms().load(store, &secrets)?;
        let KmsRequest::Change(name, change) = request.clone() else {
            return Ok(secrets.kms().all());
        };
        // Before anything is encrypted with it.
        secrets.register(store)?;
        Ok(vec![secrets.kms().change(store, &secrets, &name, change)?])
    };
    let told = |answer| match answer {
        Answer::Kms(keys) => Some(keys),
        _ => None,
    };
    let asked = Request::Kms(request.clone());
    here_or_asked(settings, access, &asked, &AtomicBool::new(false), here, told)
}
