//! `terrace serve` and `terrace import`.
//!
//! `serve` listens first, so the page is available during an import. Shutdown is in order: no new
//! requests, answers in progress finish, the import commits its images in flight, the store is
//! closed.

use super::{Access, close, keys, open, print, print_json};
use crate::{
    admin::{self, Served},
    cli::{ImportArgs, ImportTuning, ServeArgs},
    failure::{Code, Failure, Outcome},
    http::{self, App, Beside, Door, ImportWatch, read_ahead::ReadAhead, tls::Tls},
    key_text, memory,
    s3::{
        self, Gateway, Shared,
        access_key::{self, AccessKey, Grant, Keys, Level, NewKey},
        access_log::AccessLog,
        kms,
        notify::Targets,
        secrets::Secrets,
    },
    settings::{self, S3Listen, Settings, Switch},
    signals::{self, Received, Stopping},
    time_span::TimeSpan,
};
use std::{
    net::SocketAddr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};
use terrace::Store;
use terrace_images::{self as import, ImportOptions, ImportReport, Progress, Resolution, TerminalBar};
use tokio::net::TcpListener;

/// `terrace import DIR`
pub fn import(args: &ImportArgs, settings: Settings) -> Outcome {
    let options = import_options(&args.tuning)?;
    check_directory(&args.dir)?;
    let stop = signals::install()?;
    let store = open(&settings, Access::Create)?;
    let progress = Arc::new(Progress::default());
    let bar = TerminalBar::start(Arc::clone(&progress));
    let result = import::import(&args.dir, &store, &options, &progress, &stop);
    drop(bar);
    let report = result?;
    if args.json {
        print_json(&report_json(&report))?;
    } else {
        eprintln!("{report}");
    }
    let judged = judge(&report);
    close(&store)?;
    judged
}

/// `terrace serve [--import DIR]`
pub fn serve(args: ServeArgs, mut settings: Settings) -> Outcome {
    refuse_unnamed(&args)?;
    let options = import_options(&args.tuning)?;
    if let Some(dir) = &args.import {
        check_directory(dir)?;
    }
    let stop = signals::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting threads", &error))?;
    let secrets = settings.secrets()?;
    let bounds = memory::Bounds::of_this_process();
    let plan = memory::fit(&mut settings, &bounds);
    set_allocator(plan);
    // Before the store is opened: an address in use or a wrong file name must not cost a recovery.
    let door = door(&args, &settings)?;
    let listeners = runtime.block_on(async { Listeners::bind(&args, &settings, &stop) })?;
    let choices = choices(&args, &settings, listeners.s3.is_some(), secrets.clone(), plan)?;
    let shared = choices.shared.clone();
    let store = open(&settings, Access::Create)?;
    let keeper = keep_cache(&store, plan, bounds)?;
    let access_keys = access_keys(&store, listeners.s3.as_ref().map(|(_, address)| *address), secrets)?;
    let served = Served {
        store: store.clone(),
        running: Some((Arc::clone(&access_keys), shared.clone())),
        settings: settings.clone(),
        stop: Arc::clone(&stop),
    };
    let admin = runtime.block_on(async { admin::serve(served, &settings.options.flash_dir, Stopping::of(&stop)?) });
    if let Err(failure) = &admin {
        eprintln!("warning: backups and changes of access keys need the server to be stopped: {failure}");
    }
    let choices = s3::Choices { access_keys, ..choices };
    let gateway = Gateway::open(&store, settings.durability, choices)?;
    listeners.announce()?;

    let watch = args.import.is_some().then(|| Arc::new(ImportWatch::default()));
    let app = App::new(store.clone(), watch.clone(), beside(&shared), door);
    let domains = named(&args.domain, &settings.domains).to_vec();
    let importing = match args.import.zip(watch) {
        Some((dir, watch)) => Some(import_beside(dir, store.clone(), options, watch, Arc::clone(&stop))?),
        None => None,
    };
    runtime.block_on(listeners.serve(app, gateway, domains, keeper.as_ref().map(memory::Keeper::traffic)));
    eprintln!("stopping; once more ends at once");
    if let Some(importing) = importing {
        // It checks the flag itself; a panic in it has been printed already.
        let _ = importing.join();
    }
    if let Ok(admin) = admin {
        // A panic in it has been printed already.
        let _ = runtime.block_on(admin);
    }
    drop(keeper);
    // Waits for engine calls in progress, so that the store is unused when it is closed.
    drop(runtime);
    close(&store)
}

/// Makes the allocator keep little freed memory, and none if memory is small.
fn set_allocator(plan: memory::Plan) {
    let set = if plan.keeps_freed {
        memory::allocator::keep_briefly()
    } else {
        memory::allocator::keep_nothing()
    };
    if let Err(error) = set {
        eprintln!("warning: the allocator keeps what is freed for some seconds: {error}");
    }
}

/// Adjusts the cache, if its size was not given.
fn keep_cache(store: &Store, plan: memory::Plan, bounds: memory::Bounds) -> Outcome<Option<memory::Keeper>> {
    let keeper = plan
        .cache_bytes
        .map(|most| memory::Keeper::start(store.clone(), bounds, most));
    keeper
        .transpose()
        .map_err(|error| Failure::io("starting threads", &error))
}

/// A directory without a flag is ambiguous.
fn refuse_unnamed(args: &ServeArgs) -> Outcome {
    if let Some(dir) = &args.unnamed {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "is {dir} pictures, or the store? Write --import {dir} to import from it, --store {dir} to serve the store in it"
        )));
    }
    Ok(())
}

/// The access keys of a store, and at least one if S3 is served.
fn access_keys(store: &Store, s3: Option<SocketAddr>, secrets: Secrets) -> Outcome<Arc<Keys>> {
    secrets.check(store)?;
    if let Some(address) = s3 {
        first_key(store, address, &secrets)?;
    }
    let keys = Keys::load(store, secrets.clone())?;
    secrets.keep_own(store)?;
    secrets.kms().load(store, &secrets)?;
    // Not before the keys are known to decrypt the store: a registered key is required from then
    // on.
    secrets.register(store)?;
    if secrets.is_given() {
        kms::seal_anew(store, &secrets, true)?;
    }
    Ok(Arc::new(keys))
}

struct Listeners {
    page: (TcpListener, SocketAddr),
    s3: Option<(TcpListener, SocketAddr)>,
    /// TLS of both, and the signal to read the certificate again.
    tls: Option<(Arc<Tls>, Received)>,
    limits: http::Limits,
    /// Their stop signals.
    stopping: [Stopping; 2],
}

impl Listeners {
    /// Must be called within a runtime.
    fn bind(args: &ServeArgs, settings: &Settings, stop: &Arc<AtomicBool>) -> Outcome<Self> {
        let files = settings::pair(args.tls_cert.clone(), args.tls_key.clone())?.or_else(|| settings.tls.clone());
        let tls = match files {
            None => None,
            Some((certificate, key)) => Some((Tls::load(certificate, key)?, Received::hang_up()?)),
        };
        let page = bind(page_address(args, settings), "--listen")?;
        let s3 = match args.s3_listen.or(settings.s3_listen) {
            Some(S3Listen::Off) => None,
            Some(S3Listen::At(address)) => Some(bind(address, "--s3-listen")?),
            None => Some(bind(s3::LISTEN_DEFAULT, "--s3-listen")?),
        };
        let all = args.connections.or(settings.connections);
        let limits = http::Limits {
            all: all.unwrap_or(http::CONNECTIONS_DEFAULT),
            of_one: args.sender_connections.or(settings.sender_connections),
        };
        Ok(Self {
            page,
            s3,
            tls,
            limits,
            stopping: [Stopping::of(stop)?, Stopping::of(stop)?],
        })
    }

    /// Prints the addresses in one write: a program that reads the first line may close the pipe
    /// after it.
    fn announce(&self) -> Outcome {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (_, address) = &self.page;
        let s3 = self
            .s3
            .as_ref()
            .map(|(_, address)| format!("{scheme}://{address}/ (S3)\n"));
        print(&format!("{scheme}://{address}/\n{}", s3.unwrap_or_default()))?;
        if !address.ip().is_loopback() && self.tls.is_none() {
            eprintln!(
                "warning: without TLS, hosts on the network path to {address} can read the page's password; see --tls-cert"
            );
        }
        Ok(())
    }

    /// Serves until it is stopped. `traffic` counts the bytes of all connections.
    async fn serve(
        self,
        app: Arc<App>,
        gateway: Arc<Gateway>,
        domains: Vec<String>,
        traffic: Option<Arc<http::Traffic>>,
    ) {
        let tls = self.tls.map(|(tls, told)| {
            tokio::spawn(Arc::clone(&tls).reload_on(told));
            tls
        });
        let with_tls = |listener| http::Listener {
            listener,
            tls: tls.clone(),
            limits: self.limits,
            traffic: traffic.clone(),
        };
        let [of_page, of_s3] = self.stopping;
        let page = http::run(app, with_tls(self.page.0), of_page.begun());
        let _upkeep = s3::Upkeep::start(&gateway);
        match self.s3 {
            None => page.await,
            Some((listener, _)) => {
                tokio::join!(page, s3::run(gateway, domains, with_tls(listener), of_s3.begun()));
            }
        }
    }
}

fn page_address(args: &ServeArgs, settings: &Settings) -> SocketAddr {
    let page = args.listen.or(settings.listen);
    page.map_or(http::LISTEN_DEFAULT, |listen| listen.0)
}

/// The names in flags, otherwise those in the settings.
fn named<'a>(flags: &'a [String], settings: &'a [String]) -> &'a [String] {
    if flags.is_empty() { settings } else { flags }
}

/// The page's access check. A password is required unless the address is loopback.
fn door(args: &ServeArgs, settings: &Settings) -> Outcome<Door> {
    let password = settings.page_password(args.page_password_file.as_deref())?;
    let address = page_address(args, settings);
    if password.is_none() && !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "the page does not listen on {address} without a password, since it shows images and figures to every client; put \
             one into a file for --page-password-file, or into TERRACE_PAGE_PASSWORD, or give --listen a loopback address"
        )));
    }
    let names = named(&args.host_name, &settings.host_names);
    Ok(Door::new(names.to_vec(), password.as_deref()))
}

/// Settings of the S3 service.
fn choices(
    args: &ServeArgs,
    settings: &Settings,
    has_s3: bool,
    secrets: Secrets,
    plan: memory::Plan,
) -> Outcome<s3::Choices> {
    let large_wait = args.large_wait.or(settings.large_wait);
    let mut shared = Shared::new(large_wait.map(|TimeSpan(wait)| wait), secrets);
    shared.ahead = ReadAhead::new(plan.downloads_bytes);
    let path = args.access_log.as_deref().or(settings.access_log.as_deref());
    let access_log = path.filter(|_| has_s3).map(|path| {
        AccessLog::open(path, shared.figures.clone())
            .map_err(|error| Failure::io(format!("opening the access log {}", path.display()), &error))
    });
    let authorities = args.s3_notify_ca.as_deref().or(settings.notify_ca.as_deref());
    let targets = Targets::parse(
        named(&args.s3_notify, &settings.notify),
        authorities,
        shared.figures.clone(),
    );
    let targets = targets.map_err(|wrong| Failure::usage(format!("--s3-notify: {wrong}")))?;
    Ok(s3::Choices {
        access_keys: Arc::default(),
        collected_bytes: plan.collected_bytes,
        uploads_bytes: plan.uploads_bytes,
        shared,
        access_log: access_log.transpose()?,
        rate: args.s3_rate.or(settings.s3_rate),
        no_version_2: args.s3_signature_v2.or(settings.s3_signature_v2) == Some(Switch::Off),
        targets: Arc::new(targets),
        websites: named(&args.s3_website_domain, &settings.website_domains).to_vec(),
    })
}

/// Binds an address, and returns the bound one.
fn bind(address: SocketAddr, flag: &str) -> Outcome<(TcpListener, SocketAddr)> {
    let listener = http::bind(address, flag)?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::io("listening", &error))?;
    Ok((listener, address))
}

/// Makes an access key with all permissions if there is none, and prints it once. Not for an
/// address beyond loopback: there, keys must be made explicitly.
fn first_key(store: &Store, address: SocketAddr, secrets: &Secrets) -> Outcome {
    if !access_key::stored(store)?.is_empty() {
        return Ok(());
    }
    if !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "the S3 service does not listen on {address} before there are access keys; make one with \
             `terrace key create --allow '*=admin'`, or give --s3-listen a loopback address, or off"
        )));
    }
    let everything = Grant {
        bucket: access_key::ALL_BUCKETS.to_owned(),
        level: Level::Admin,
    };
    let (id, key) = AccessKey::generate(&NewKey::of_default(&[everything]), store.clock());
    access_key::store(store, &id, &key, secrets)?;
    eprint!(
        "This access key may do everything over S3. Its secret is shown this once:\n{}",
        keys::credentials(&id, &key.secret)
    );
    Ok(())
}

/// Imports on a thread of its own, with the progress bar, and prints the last line.
fn import_beside(
    dir: PathBuf,
    store: Store,
    options: ImportOptions,
    watch: Arc<ImportWatch>,
    stop: Arc<AtomicBool>,
) -> Outcome<JoinHandle<()>> {
    watch.running.store(true, Ordering::Relaxed);
    let work = move || {
        let bar = TerminalBar::start(Arc::clone(&watch.progress));
        let result = import::import(&dir, &store, &options, &watch.progress, &stop);
        drop(bar);
        let error = match result {
            Ok(report) => {
                eprintln!("{report}");
                match report.outcome {
                    import::Outcome::StoreFailed(error) => Some(error.to_string()),
                    import::Outcome::Finished | import::Outcome::Stopped => None,
                }
            }
            Err(error) => {
                eprintln!("error: {error}");
                Some(error.to_string())
            }
        };
        if let Some(error) = error {
            // Set once, here.
            let _ = watch.error.set(error);
        }
        watch.running.store(false, Ordering::Relaxed);
    };
    thread::Builder::new()
        .name("import".to_owned())
        .spawn(work)
        .map_err(|error| Failure::io("starting the import", &error))
}

/// Checks the directory before a store is created.
fn check_directory(dir: &Path) -> Outcome {
    match std::fs::metadata(dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::error(format!("cannot import from {}: {error}", dir.display()))),
    }
}

fn import_options(tuning: &ImportTuning) -> Outcome<ImportOptions> {
    let mut options = ImportOptions::default();
    if let Some(quality) = tuning.quality {
        options.quality = quality;
    }
    if let Some(megapixels) = tuning.pixel_limit {
        options.pixel_limit = u64::from(megapixels) * 1_000_000;
    }
    if let Some(threads) = tuning.threads {
        options.threads = threads;
    }
    if !tuning.resolution.is_empty() {
        options.resolutions = tuning
            .resolution
            .iter()
            .map(|text| resolution(text))
            .collect::<Outcome<_>>()?;
    }
    options.validate()?;
    Ok(options)
}

/// `small=600x800`
fn resolution(text: &str) -> Outcome<Resolution> {
    let parsed = text.split_once('=').and_then(|(name, sides)| {
        let (width, height) = sides.split_once(['x', '×'])?;
        Some(Resolution::new(
            name,
            width.trim().parse().ok()?,
            height.trim().parse().ok()?,
        ))
    });
    parsed.ok_or_else(|| {
        Failure::usage(format!(
            "resolution `{text}`: write it as NAME=WIDTHxHEIGHT, like small=600x800"
        ))
    })
}

/// The exit code of an import's report.
fn judge(report: &ImportReport) -> Outcome {
    match &report.outcome {
        // The report has printed it.
        import::Outcome::StoreFailed(error) => Err(Failure {
            message: String::new(),
            ..Failure::from(error.clone())
        }),
        import::Outcome::Stopped => Err(Failure::new(Code::Interrupted, "")),
        import::Outcome::Finished if report.failed.is_empty() => Ok(()),
        import::Outcome::Finished => Err(Failure::new(Code::Partial, "")),
    }
}

fn report_json(report: &ImportReport) -> serde_json::Value {
    let path = |path: &Path| key_text::to_json(path.as_os_str().as_bytes());
    let (outcome, error) = match &report.outcome {
        import::Outcome::Finished => ("finished", None),
        import::Outcome::Stopped => ("stopped", None),
        import::Outcome::StoreFailed(error) => ("store failed", Some(error.to_string())),
    };
    let failed: Vec<_> = report
        .failed
        .iter()
        .map(|file| serde_json::json!({ "path": path(&file.path), "reason": file.reason }))
        .collect();
    let duplicates: Vec<_> = report
        .duplicates
        .iter()
        .map(|(file, first)| serde_json::json!({ "path": path(file), "same_as": path(first) }))
        .collect();
    serde_json::json!({
        "outcome": outcome,
        "error": error,
        "imported": report.imported,
        "skipped": report.skipped(),
        "already_stored": report.already_stored,
        "duplicates": duplicates,
        "not_images": report.not_images,
        "failed": failed,
        "original_bytes": report.original_bytes,
        "resolution_bytes": report.resolution_bytes,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
    })
}

/// The page's access to the S3 service.
fn beside(shared: &Shared) -> Beside {
    let figures = shared.figures.clone();
    Beside {
        reading: shared.to_read(),
        ahead: shared.ahead.clone(),
        register: Some(Box::new(move |registry| figures.register(registry))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn resolutions_are_read() {
        assert_eq!(resolution("small=600x800").unwrap(), Resolution::new("small", 600, 800));
        for text in ["small", "small=600", "small=x800", "small=600x800x1", "small=-1x2"] {
            assert!(resolution(text).is_err(), "{text}");
        }
    }
}
