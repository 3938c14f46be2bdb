//! `terrace key`: access keys of the S3 service.

use super::{Access, call, print, print_json};
use crate::{
    admin::{self, KeyPolicy, KeySummary},
    cli::{KeyCommand, KeyCreateArgs, KeyPolicyArgs},
    failure::{Code, Failure, Outcome},
    s3::{access_key::NewKey, account},
    settings::Settings,
};
use serde_json::json;
use std::{fmt::Write as _, fs, path::Path};
use terrace_objects::policy::Policy;

/// `terrace key create|list|policy|remove`
pub fn run(command: KeyCommand, settings: &Settings) -> Outcome {
    match command {
        KeyCommand::Create(args) => create(&args, settings),
        KeyCommand::List(args) => list(args.json, settings),
        KeyCommand::Policy(args) => policy(&args, settings),
        KeyCommand::Remove(args) => remove(&args.id, settings),
    }
}

fn create(args: &KeyCreateArgs, settings: &Settings) -> Outcome {
    let lives_ms = args
        .expires
        .map(|span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX));
    let new = NewKey {
        grants: args.allow.clone(),
        account: args.account.clone(),
        email: args.email.clone(),
        expires_ms: lives_ms.map(|lives| settings.options.clock.now_ms().saturating_add(lives)),
        policy: args.policy.as_deref().map(read_policy).transpose()?,
    };
    let made = call(settings, Access::Create, &admin::KEY_CREATE, new)?;
    let (id, account) = (&made.id, &made.account);
    let secret = made.secret.as_deref().unwrap_or_default();
    let canonical_id = account::canonical_id(account);
    if args.json {
        return print_json(&json!({
            "access_key_id": id, "secret_access_key": secret, "grants": made.grants,
            "expires_ms": made.expires_ms, "account": account, "account_id": canonical_id, "policy": made.policy,
        }));
    }
    print(&format!(
        "{}account:           {account}\ncanonical ID:      {canonical_id}\n",
        credentials(id, secret)
    ))
}

/// The text with a new key, which is printed once.
pub fn credentials(id: &str, secret: &str) -> String {
    format!("access key ID:     {id}\nsecret access key: {secret}\n")
}

fn all(settings: &Settings) -> Outcome<Vec<KeySummary>> {
    call(settings, Access::Look, &admin::KEYS, ())
}

fn list(json: bool, settings: &Settings) -> Outcome {
    let mut keys = all(settings)?;
    keys.sort_by(|one, other| one.id.cmp(&other.id));
    if json {
        let list: Vec<_> = keys
            .iter()
            .map(|key| {
                json!({
                    "access_key_id": key.id, "created_ms": key.created_ms, "grants": key.grants,
                    "expires_ms": key.expires_ms, "account": key.account,
                    "account_id": account::canonical_id(&key.account), "policy": key.policy,
                })
            })
            .collect();
        return print_json(&list);
    }
    let mut text = String::new();
    for key in keys {
        let grants: Vec<_> = key
            .grants
            .iter()
            .map(|(bucket, level)| format!("{bucket}={level}"))
            .chain(key.policy.iter().map(|_| "(policy)".to_owned()))
            .collect();
        // Writing to a String cannot fail.
        let _ = write!(text, "{}  {}", key.id, grants.join(" "));
        let _ = if key.account == account::DEFAULT {
            writeln!(text)
        } else {
            writeln!(text, "  of {}", key.account)
        };
    }
    print(&text)
}

/// Reads a key's policy from a file.
fn read_policy(file: &Path) -> Outcome<String> {
    let text = fs::read_to_string(file).map_err(|error| Failure::io(file.display().to_string(), &error))?;
    Policy::of_key(&text).map_err(|wrong| Failure::usage(format!("{}: {wrong}", file.display())))?;
    Ok(text)
}

fn no_key(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("there is no access key {id}"))
}

fn found(id: &str, is_there: bool) -> Outcome {
    if is_there { Ok(()) } else { Err(no_key(id)) }
}

fn policy(args: &KeyPolicyArgs, settings: &Settings) -> Outcome {
    let id = &args.id;
    if args.set.is_none() && !args.remove {
        let mut keys = all(settings)?;
        keys.retain(|key| key.id == *id);
        let policy = keys.pop().ok_or_else(|| no_key(id))?.policy;
        let none = || Failure::new(Code::NotFound, format!("the access key {id} has no policy"));
        return print(&format!("{}\n", policy.ok_or_else(none)?.trim_end()));
    }
    let policy = args.set.as_deref().map(read_policy).transpose()?;
    let request = KeyPolicy { id: id.clone(), policy };
    found(id, call(settings, Access::Change, &admin::KEY_POLICY, request)?)
}

fn remove(id: &str, settings: &Settings) -> Outcome {
    found(id, call(settings, Access::Change, &admin::KEY_REMOVE, id.to_owned())?)
}
