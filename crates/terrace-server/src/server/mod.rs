//! A server, from its settings to its end: listeners, store, background work.
//!
//! It listens before the store is opened, so that an address in use costs no recovery, and refuses
//! requests until it is open ([`crate::http::opening`]). It serves the page during an import.
//! Shutdown is in order: no new requests, answers in progress finish, the import commits its images
//! in flight, the store is closed. An open is not waited for: it is left as by a crash.
//!
//! Invariant: nothing here belongs to the whole process. Signals, standard output and the
//! allocator are the command's (`commands/serve.rs`), so a process may have several servers
//! ([`Serving`]).
//!
//! On failure to start, the store is closed when its last handle is dropped.

mod descriptors;
mod import;
mod listeners;
mod serving;

pub use import::{check_directory, options as import_options};
pub use serving::Serving;

use crate::{
    admin::{self, Served},
    cli::ServeArgs,
    failure::{Failure, Outcome},
    http::{self, App, Beside, Door, Traffic, opening::Opening, read_ahead::ReadAhead},
    memory, output,
    s3::{
        self, Front, Gateway, Shared,
        access_key::{self, AccessKey, Grant, Keys, Level, NewKey},
        access_log::AccessLog,
        kms,
        notify::Targets,
        secrets::Secrets,
    },
    settings::{Settings, Switch, Tags},
    signals::Stop,
    time_span::TimeSpan,
};
pub use descriptors::raise_file_limit;
use import::Import;
use listeners::Listeners;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use terrace::{Options, Store};
use terrace_objects::{bucket::Buckets, lasting};
use tokio::{runtime::Runtime, task, time::timeout};

/// An open that takes longer is logged.
const QUIET_OPEN: Duration = Duration::from_secs(1);

/// A server that answers requests. Its background work begins with [`Server::run`].
pub struct Server {
    runtime: Runtime,
    addresses: Addresses,
    is_encrypted: bool,
    serving: task::JoinHandle<()>,
    gateway: Arc<Gateway>,
    keeper: Option<memory::Keeper>,
    admin: Option<task::JoinHandle<()>>,
    import: Option<Import>,
    stop: Stop,
    store: Store,
}

/// The addresses of the page and of S3.
type Addresses = (SocketAddr, Option<SocketAddr>);

/// What a server needs from its process.
pub struct Surroundings<'p> {
    /// Threads for requests.
    pub runtime: Runtime,
    /// Ends it.
    pub stop: Stop,
    /// Called with the ID and the secret of an access key with all permissions, which is made if
    /// the store has none. They are not known afterwards: if they cannot be shown, no key is
    /// stored.
    pub show_first_key: &'p mut dyn FnMut(&str, &str) -> Outcome,
}

/// Threads for the requests of a server.
///
/// # Errors
/// Errors of the operating system.
pub fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting threads", &error))
}

impl Server {
    /// Listens, and opens the store. None if it was stopped before that had ended.
    ///
    /// # Errors
    /// Wrong settings, an address in use, errors of the store.
    pub fn open(args: ServeArgs, mut settings: Settings, surroundings: Surroundings<'_>) -> Outcome<Option<Self>> {
        let Surroundings {
            runtime,
            stop,
            show_first_key,
        } = surroundings;
        let import = Import::of(&args)?;
        let secrets = settings.secrets()?;
        let bounds = memory::Bounds::of_this_process();
        let plan = memory::fit(&mut settings, &bounds);
        // Before the store is opened: an address in use or a wrong file name must not cost a
        // recovery.
        let door = door(&args, &settings)?;
        let listeners = runtime.block_on(async { Listeners::bind(&args, &settings, &stop) })?;
        let choices = choices(&args, &settings, listeners.s3().is_some(), secrets.clone(), plan)?;
        let shared = choices.shared.clone();
        let (addresses, is_encrypted) = ((listeners.page(), listeners.s3()), listeners.is_encrypted());
        let traffic = plan.cache_bytes.map(|_| memory::Keeper::traffic(&bounds)).transpose();
        let traffic = traffic.map_err(|error| Failure::io("counting traffic", &error))?;
        let (page, s3) = (Opening::begin(), Opening::begin());
        let serving = runtime.spawn(listeners.serve(page.clone(), s3.clone(), traffic.clone()));
        let Some(store) = open_store(&runtime, &settings.options, &stop, addresses)? else {
            runtime.shutdown_background();
            return Ok(None);
        };
        let keeper = keep_cache(&store, plan, bounds, traffic)?;
        let access_keys = access_keys(&store, addresses.1, secrets, show_first_key)?;
        let served = Served {
            store: store.clone(),
            running: Some((Arc::clone(&access_keys), shared.clone())),
            settings: settings.clone(),
            stop: Arc::clone(stop.flag()),
        };
        let admin = runtime.block_on(async { admin::serve(served, &settings.options.flash_dir, stop.clone()) });
        if let Err(failure) = &admin {
            output::tell(format_args!(
                "warning: backups and changes of access keys need the server to be stopped: {failure}"
            ));
        }
        let choices = s3::Choices { access_keys, ..choices };
        let gateway = Gateway::open(&store, settings.durability, choices)?;
        let watch = import.as_ref().map(Import::watch);
        let domains = named(&args.domain, &settings.domains).to_vec();
        s3.end(Front::new(Arc::clone(&gateway), domains, is_encrypted));
        let beside = beside(&shared, gateway.buckets());
        page.end(http::page(App::new(store.clone(), watch, beside, door)));
        Ok(Some(Self {
            runtime,
            addresses,
            is_encrypted,
            serving,
            gateway,
            keeper,
            admin: admin.ok(),
            import,
            stop,
            store,
        }))
    }

    /// The addresses of the page and of S3.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Whether both have TLS.
    pub const fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Serves until it is stopped, calls `stopping`, and closes the store.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn run(self, stopping: impl FnOnce()) -> Outcome {
        let (store, stop) = (&self.store, &self.stop);
        let importing = self
            .import
            .map(|import| import.begin(store.clone(), stop))
            .transpose()?;
        let upkeep = self.runtime.block_on(async { s3::Upkeep::start(&self.gateway) });
        let served = self.runtime.block_on(self.serving);
        drop((upkeep, self.gateway));
        served.map_err(|_| Failure::error("the server panicked"))?;
        stopping();
        if let Some(importing) = importing {
            // It checks the flag itself; a panic in it has been printed already.
            let _ = importing.join();
        }
        if let Some(admin) = self.admin {
            // A panic in it has been printed already.
            let _ = self.runtime.block_on(admin);
        }
        drop(self.keeper);
        // Waits for engine calls in progress, so that the store is unused when it is closed.
        drop(self.runtime);
        Ok(self.store.close()?)
    }
}

/// Opens the store where it may block. None if the server was stopped meanwhile.
fn open_store(runtime: &Runtime, options: &Options, stop: &Stop, (page, s3): Addresses) -> Outcome<Option<Store>> {
    let options = Options {
        create: true,
        ..options.clone()
    };
    let mut opening = runtime.spawn_blocking(|| Store::open(options));
    let opened = async {
        if let Ok(opened) = timeout(QUIET_OPEN, &mut opening).await {
            return opened;
        }
        let s3 = s3.map(tracing::field::display);
        tracing::warn!(%page, s3, "the store is being opened; requests are answered with 503 until it is open");
        opening.await
    };
    let opened = runtime.block_on(async {
        tokio::select! {
            biased;
            opened = opened => Some(opened),
            () = stop.clone().begun() => None,
        }
    });
    let opened = opened.transpose();
    let opened = opened.map_err(|_| Failure::error("a panic while the store was being opened"))?;
    Ok(opened.transpose()?)
}

/// Adjusts the cache, if its size was not given.
fn keep_cache(
    store: &Store,
    plan: memory::Plan,
    bounds: memory::Bounds,
    traffic: Option<Arc<Traffic>>,
) -> Outcome<Option<memory::Keeper>> {
    let keeper = plan
        .cache_bytes
        .zip(traffic)
        .map(|(most, traffic)| memory::Keeper::start(store.clone(), bounds, most, traffic));
    keeper
        .transpose()
        .map_err(|error| Failure::io("starting threads", &error))
}

/// The access keys of a store, and at least one if S3 is served.
fn access_keys(
    store: &Store,
    s3: Option<SocketAddr>,
    secrets: Secrets,
    show_first: &mut dyn FnMut(&str, &str) -> Outcome,
) -> Outcome<Arc<Keys>> {
    secrets.check(store)?;
    if let Some(address) = s3 {
        first_key(store, address, &secrets, show_first)?;
    }
    let keys = Keys::load(store, secrets.clone())?;
    lasting::lengthen_all(store)?;
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

/// The names in flags, otherwise those in the settings.
fn named<'a>(flags: &'a [String], settings: &'a [String]) -> &'a [String] {
    if flags.is_empty() { settings } else { flags }
}

/// The page's access check. A password is required unless the address is loopback.
fn door(args: &ServeArgs, settings: &Settings) -> Outcome<Door> {
    let password = settings.page_password(args.page_password_file.as_deref())?;
    let address = listeners::page_address(args, settings);
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
        has_random_tags: args.s3_etags.or(settings.s3_etags) == Some(Tags::Random),
        targets: Arc::new(targets),
        websites: named(&args.s3_website_domain, &settings.website_domains).to_vec(),
    })
}

/// Makes an access key with all permissions if there is none, and shows it once. Not for an
/// address beyond loopback: there, keys must be made explicitly.
fn first_key(
    store: &Store,
    address: SocketAddr,
    secrets: &Secrets,
    show: &mut dyn FnMut(&str, &str) -> Outcome,
) -> Outcome {
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
    show(&id, &key.secret)?;
    access_key::store(store, &id, &key, secrets)?;
    Ok(())
}

/// The page's access to the S3 service.
fn beside(shared: &Shared, buckets: Arc<Buckets>) -> Beside {
    let figures = shared.figures.clone();
    Beside {
        buckets,
        reading: shared.to_read(),
        ahead: shared.ahead.clone(),
        register: Some(Box::new(move |registry| figures.register(registry))),
    }
}
