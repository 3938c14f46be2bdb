//! `terrace rewrap`: rotation of the master key, and of named keys.

use super::{Access, print, print_json, watched_call};
use crate::{admin, failure::Outcome, s3::rewrap::Report, settings::Settings, signals};

/// `terrace rewrap`: here, or, while a server has the store, by that server, which reads the master
/// keys again.
pub fn run(json: bool, settings: &Settings) -> Outcome {
    let stop = signals::install()?;
    let report = watched_call(settings, Access::Change, (&admin::REWRAP, ()), &stop, |_, _| {})?;
    if json {
        return print_json(&report);
    }
    let Report { data_keys, access_keys } = report;
    print(&format!(
        "keys of objects: {data_keys}, access keys: {access_keys}; former master keys, and former versions of named keys, are needed no more\n"
    ))
}
