//! `terrace rewrap`: rotation of the master key, and of named keys.

use super::{Access, here_or_asked, print, print_json};
use crate::{
    control::{Answer, Request},
    failure::Outcome,
    s3::{
        Shared,
        rewrap::{self, Report},
    },
    settings::Settings,
    signals,
};
use terrace::Store;

/// `terrace rewrap`: here, or, while a server has the store, by that server, which reads the master
/// keys again.
pub fn run(json: bool, settings: &Settings) -> Outcome {
    let stop = signals::install()?;
    let here = |store: &Store| {
        let secrets = settings.secrets()?;
        secrets.load_own(store)?;
        secrets.kms().load(store, &secrets)?;
        let shared = Shared::new(None, secrets);
        Ok(rewrap::run(store, &shared, None, &stop, &mut |_| {})?)
    };
    let told = |answer| match answer {
        Answer::Rewrapped(report) => Some(report),
        _ => None,
    };
    let report = here_or_asked(settings, Access::Change, &Request::Rewrap, &stop, here, told)?;
    if json {
        return print_json(&report);
    }
    let Report { data_keys, access_keys } = report;
    print(&format!(
        "keys of objects: {data_keys}, access keys: {access_keys}; former master keys, and former versions of named keys, are needed no more\n"
    ))
}
