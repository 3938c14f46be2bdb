//! `terrace key`: access keys of the S3 service.

use super::{Access, here_or_asked, print, print_json};
use crate::{
    cli::{KeyCommand, KeyCreateArgs, KeyPolicyArgs},
    control::{Answer, KeyRequest, KeySummary, Request},
    failure::{Code, Failure, Outcome},
    s3::{
        access_key::{self, NewKey},
        account, keyspace,
    },
    settings::Settings,
};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, sync::atomic::AtomicBool};
use terrace::Store;
use terrace_objects::policy::Policy;

/// `terrace key create|list|policy|remove`
pub fn run(command: KeyCommand, settings: Settings) -> Outcome {
    match command {
        KeyCommand::Create(args) => create(&args, &settings),
        KeyCommand::List(args) => list(args.json, &settings),
        KeyCommand::Policy(args) => policy(&args, &settings),
        KeyCommand::Remove(args) => remove(&args.id, &settings),
    }
}

/// Runs a request on the keys of a store: here, or, while a server has the store, by that server.
fn with_keys(
    settings: &Settings,
    access: Access,
    request: KeyRequest,
    here: impl FnOnce(&Store) -> Outcome<Vec<KeySummary>>,
) -> Outcome<Vec<KeySummary>> {
    let told = |answer| match answer {
        Answer::Keys(keys) => Some(keys),
        _ => None,
    };
    here_or_asked(
        settings,
        access,
        &Request::Key(request),
        &AtomicBool::new(false),
        here,
        told,
    )
}

fn create(args: &KeyCreateArgs, settings: &Settings) -> Outcome {
    let lives_ms = args
        .expires
        .map(|span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX));
    let new = NewKey {
        grants: args.allow.clone(),
        account: args.account.clone(),
        email: args.email.clone(),
        expires_ms: lives_ms.map(|lives| keyspace::now_ms().saturating_add(lives)),
        policy: args.policy.as_deref().map(read_policy).transpose()?,
    };
    let made = with_keys(settings, Access::Create, KeyRequest::Create(new.clone()), |store| {
        let (id, key) = access_key::create(store, &new, &settings.secrets()?)?;
        Ok(vec![KeySummary::of_new(id, &key)])
    })?;
    let [
        KeySummary {
            id,
            secret: Some(secret),
            grants,
            account,
            expires_ms,
            policy,
            ..
        },
    ] = made.as_slice()
    else {
        return Err(Failure::error("the server's answer is not understood"));
    };
    let canonical_id = account::canonical_id(account);
    if args.json {
        return print_json(&json!({
            "access_key_id": id, "secret_access_key": secret, "grants": grants, "expires_ms": expires_ms,
            "account": account, "account_id": canonical_id, "policy": policy,
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
    with_keys(settings, Access::Look, KeyRequest::List, |store| {
        let keys = access_key::stored(store)?.into_iter();
        Ok(keys.map(|(id, key)| KeySummary::of_stored(id, &key)).collect())
    })
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
    let request = KeyRequest::SetPolicy(id.clone(), policy.clone());
    let changed = with_keys(settings, Access::Change, request, |store| {
        let changed = access_key::set_policy(store, id, policy.as_deref())?.into_iter();
        Ok(changed.map(|key| KeySummary::of_stored(id.clone(), &key)).collect())
    })?;
    if changed.is_empty() {
        return Err(no_key(id));
    }
    Ok(())
}

fn remove(id: &str, settings: &Settings) -> Outcome {
    let removed = with_keys(settings, Access::Change, KeyRequest::Remove(id.to_owned()), |store| {
        let was_there = access_key::remove(store, id)?;
        let removed = was_there.then(|| KeySummary {
            id: id.to_owned(),
            secret: None,
            created_ms: 0,
            grants: BTreeMap::new(),
            account: String::new(),
            expires_ms: None,
            policy: None,
        });
        Ok(removed.into_iter().collect())
    })?;
    if removed.is_empty() {
        return Err(no_key(id));
    }
    Ok(())
}
