//! `terrace key`: access keys of the S3 service.

use super::{Access, close, open, print, print_json};
use crate::{
    cli::{KeyCommand, KeyCreateArgs},
    failure::{Code, Failure, Outcome},
    s3::access_key::{self, AccessKey},
    settings::Settings,
};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Write as _};

/// `terrace key create|list|remove`
pub fn run(command: KeyCommand, settings: Settings) -> Outcome {
    match command {
        KeyCommand::Create(args) => create(&args, settings),
        KeyCommand::List(args) => list(args.json, settings),
        KeyCommand::Remove(args) => remove(&args.id, settings),
    }
}

fn create(args: &KeyCreateArgs, settings: Settings) -> Outcome {
    let store = open(&settings, Access::Create)?;
    let (id, key) = AccessKey::generate(&args.allow);
    access_key::store(&store, &id, &key)?;
    close(&store)?;
    if args.json {
        return print_json(&json!({ "access_key_id": id, "secret_access_key": key.secret, "grants": key.grants }));
    }
    print(&credentials(&id, &key))
}

/// A new key as it is shown, once.
pub fn credentials(id: &str, key: &AccessKey) -> String {
    format!("access key ID:     {id}\nsecret access key: {}\n", key.secret)
}

fn list(json: bool, settings: Settings) -> Outcome {
    let keys: BTreeMap<_, _> = access_key::load(&open(&settings, Access::Look)?)?.into_iter().collect();
    if json {
        let list: Vec<_> = keys
            .iter()
            .map(|(id, key)| json!({ "access_key_id": id, "created_ms": key.created_ms, "grants": key.grants }))
            .collect();
        return print_json(&list);
    }
    let mut text = String::new();
    for (id, key) in keys {
        let grants: Vec<_> = key
            .grants
            .iter()
            .map(|(bucket, level)| format!("{bucket}={level}"))
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{id}  {}", grants.join(" "));
    }
    print(&text)
}

fn remove(id: &str, settings: Settings) -> Outcome {
    let store = open(&settings, Access::Change)?;
    let was_there = access_key::remove(&store, id)?;
    close(&store)?;
    if was_there {
        return Ok(());
    }
    Err(Failure::new(Code::NotFound, format!("there is no access key {id}")))
}
