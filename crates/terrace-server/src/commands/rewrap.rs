//! `terrace rewrap`: rotation of the master key, and of named keys.

use super::{Access, close, open, print, print_json};
use crate::{
    control::{self, Asked, Request},
    failure::{Code, Outcome},
    s3::{
        Shared,
        rewrap::{self, Report},
    },
    settings::Settings,
    signals,
};

/// `terrace rewrap`: by itself, or, while a server has the store, by asking that, which reads the
/// master keys again from where it has them.
pub fn run(json: bool, settings: &Settings) -> Outcome {
    let stop = signals::install()?;
    let report = match open(settings, Access::Change) {
        Ok(store) => {
            let secrets = settings.secrets()?;
            secrets.load_own(&store)?;
            secrets.kms().load(&store, &secrets)?;
            let shared = Shared::new(None, secrets);
            let report = rewrap::run(&store, &shared, None, &stop, &mut |_| {})?;
            close(&store)?;
            report
        }
        Err(failure) if failure.code == Code::InUse => {
            match control::ask(&settings.options.flash_dir, &Request::Rewrap, &stop, |_, _| {})? {
                Asked::Rewrapped(report) => report,
                Asked::Nobody
                | Asked::BackedUp(_)
                | Asked::Stats(_)
                | Asked::Keys(_)
                | Asked::Capacity(_)
                | Asked::Kms(_) => {
                    return Err(failure);
                }
            }
        }
        Err(failure) => return Err(failure),
    };
    if json {
        return print_json(&report);
    }
    let Report { data_keys, access_keys } = report;
    print(&format!(
        "keys of objects: {data_keys}, access keys: {access_keys}; former master keys, and former versions of named keys, are needed no more\n"
    ))
}
