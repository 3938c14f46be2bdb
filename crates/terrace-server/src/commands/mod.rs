//! One function per command. Commands that only read open the store read-only.

mod backup;
mod capacity;
mod import;
mod keys;
mod kms;
mod listing;
mod objects;
mod rewrap;
mod serve;
mod store;
mod top;

use crate::{
    admin::{self, Call, Served, Work},
    bench,
    cli::{BenchCommand, Command},
    failure::{Code, Failure, Outcome},
    key_text,
    output::{finish_output, print, print_json, tell},
    settings::Settings,
    time_span::Moment,
};
use rustix::fs::Mode;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};
use terrace::{ObjectInfo, Store};

/// Runs a command.
///
/// # Errors
/// The command's; `main` prints it and exits with its code.
pub fn run(command: Command, settings: Settings) -> Outcome {
    // Files of a store are for its user only, including those that libraries create. The output of
    // `get` has the user's own mask.
    if !matches!(command, Command::Get(_)) {
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    match command {
        Command::Serve(args) => serve::serve(*args, settings),
        Command::Key(args) => keys::run(args.command, &settings),
        Command::Kms(args) => kms::run(args.command, &settings),
        Command::Rewrap(args) => rewrap::run(args.json, &settings),
        Command::Import(args) => import::run(&args, settings),
        Command::Put(args) => objects::put(&args, settings),
        Command::Get(args) => objects::get(&args, settings),
        Command::Head(args) => objects::head(&args, settings),
        Command::Rm(args) => objects::remove(&args, settings),
        Command::Ls(args) => listing::list(&args, settings),
        Command::Stat(args) => match &args.key {
            Some(key) => objects::describe(key, args.json, settings),
            None => store::stat(args.json, settings),
        },
        Command::Top(args) => top::top(&args, &settings),
        Command::Verify(args) => store::verify(args.json, settings),
        Command::Repair(args) => store::repair(&args, settings),
        Command::Backup(args) => backup::backup(&args, &settings),
        Command::Restore(args) => backup::restore(&args, &settings),
        Command::Capacity(args) => capacity::run(&args, &settings),
        Command::Bench(args) => match args.command {
            BenchCommand::S3(args) => bench::run(&args),
        },
    }
}

/// How a command uses the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Reads.
    Look,
    /// Changes an existing store.
    Change,
    /// Changes it, and creates it if it does not exist.
    Create,
}

fn open(settings: &Settings, access: Access) -> Outcome<Store> {
    let mut options = settings.options.clone();
    options.read_only = access == Access::Look;
    options.create = access == Access::Create;
    let store = Store::open(options)?;
    if access != Access::Look {
        warn_of_owner(&settings.options.flash_dir);
    }
    Ok(store)
}

/// Warns if root has opened another user's store: a server of that user could not read the files
/// which root makes now.
fn warn_of_owner(flash_dir: &Path) {
    let owner = flash_dir.metadata().map_or(0, |found| found.uid());
    if owner != 0 && rustix::process::geteuid().is_root() {
        tell(format_args!(
            "warning: the store belongs to the user with ID {owner}, and what root writes to it now is hidden from it; run \
             this as that user, or give it the files: chown -R --from=root {owner} {}",
            flash_dir.display()
        ));
    }
}

/// Makes a call of the admin table: here, or, while a server has the store, by that server.
fn call<T: Serialize + Send, G: DeserializeOwned + Send>(
    settings: &Settings,
    access: Access,
    call: &Call<T, G>,
    takes: T,
) -> Outcome<G> {
    watched_call(settings, access, (call, takes), &Arc::default(), |_, _| {})
}

/// The same, until `stop`; `show` gets the progress.
fn watched_call<T: Serialize + Send, G: DeserializeOwned + Send>(
    settings: &Settings,
    access: Access,
    (call, takes): (&Call<T, G>, T),
    stop: &Arc<AtomicBool>,
    show: impl Fn(u64, u64),
) -> Outcome<G> {
    match open(settings, access) {
        Ok(store) => {
            let served = Served {
                store,
                running: None,
                settings: settings.clone(),
                stop: Arc::clone(stop),
            };
            let (work, run) = (Work::default(), call.work);
            let done = backup::watched(&work.backup, stop, &show, || run(&served, takes, &work));
            if access != Access::Look {
                close(&served.store)?;
            }
            done
        }
        Err(failure) if failure.code == Code::InUse => {
            let answer = admin::ask(&settings.options.flash_dir, call, &takes, stop, show)?;
            answer.ok_or(failure)
        }
        Err(failure) => Err(failure),
    }
}

/// Closes a store that was written to, so that a failure is reported.
fn close(store: &Store) -> Outcome {
    Ok(store.close()?)
}

fn not_found(key: &[u8]) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("no object has the key {}", key_text::escape(key)),
    )
}

/// An object's facts as JSON.
fn info_json(key: &[u8], info: &ObjectInfo) -> serde_json::Value {
    let attributes: serde_json::Map<_, _> = info
        .attributes
        .iter()
        .map(|(name, value)| (name.to_owned(), key_text::to_json(value)))
        .collect();
    serde_json::json!({
        "key": key_text::to_json(key),
        "version": info.version.0,
        "bytes": info.length,
        "home": info.home.to_string(),
        "checksum": format!("{:08x}", info.checksum),
        "expires_at": info.expires_at.map(|time| Moment(time).to_string()),
        "attributes": attributes,
    })
}

/// An object's facts as text.
fn info_text(key: &[u8], info: &ObjectInfo) -> String {
    let mut text = format!(
        "key       {}\nversion   {}\nbytes     {}\nhome      {}\nchecksum  {:08x}\n",
        key_text::escape(key),
        info.version,
        info.length,
        info.home,
        info.checksum
    );
    if let Some(time) = info.expires_at {
        text.push_str(&format!("expires   {}\n", Moment(time)));
    }
    if !info.attributes.is_empty() {
        text.push_str("attributes\n");
    }
    for (name, value) in info.attributes.iter() {
        text.push_str(&format!(
            "  {} = {}\n",
            key_text::escape(name.as_bytes()),
            key_text::escape(value)
        ));
    }
    text
}
