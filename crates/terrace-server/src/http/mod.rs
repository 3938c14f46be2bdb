//! The HTTP service: a page, its JSON interface, the images, metrics.
//!
//! [`server`] accepts a request, [`guard`] checks its Host and adds the common headers of answers,
//! a handler in [`api`], [`value`], [`metrics`] or [`mod@page`] answers. Until the store is open,
//! [`opening`] answers. The engine blocks, so [`engine`] runs each call to it on a thread for
//! blocking work, a bounded number at a time.
//!
//! Nothing here writes to the store. It listens on the loopback address by default, and on other
//! addresses only with a password.

mod api;
pub mod budget;
pub mod conditional;
mod connections;
pub mod download;
pub mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod metrics;
pub mod opening;
mod outgoing;
mod page;
pub mod ranges;
pub mod read_ahead;
mod refusal;
mod server;
pub mod tls;
mod traffic;
mod value;

use axum::{Router, extract::Request, middleware, routing::get};
use std::sync::{Arc, OnceLock, atomic::AtomicBool};
use terrace::Store;
use terrace_images::Progress;

pub use budget::sender_of;
pub use connections::{CONNECTIONS_DEFAULT, Limits};
pub use guard::Door;
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use read_ahead::ReadAhead;
pub use server::{Accept, LISTEN_DEFAULT, Listener, bind, run, serve};
use terrace_objects::{bucket::Buckets, local::Reading};
pub use traffic::Traffic;

/// State of all handlers.
#[derive(Debug)]
pub struct App {
    engine: engine::Engine,
    /// Engine calls of probes.
    probes: engine::Engine,
    requests: metrics::Requests,
    /// The S3 service.
    beside: Beside,
    import: Option<Arc<ImportWatch>>,
    /// The access check.
    door: Door,
}

/// An import during the service.
#[derive(Debug, Default)]
pub struct ImportWatch {
    /// Its counters.
    pub progress: Arc<Progress>,
    /// Whether it is running.
    pub running: AtomicBool,
    /// The error that ended it.
    pub error: OnceLock<String>,
}

/// Access of the page to another service.
#[derive(Default)]
pub struct Beside {
    /// Its buckets: they say what the page may show.
    pub buckets: Arc<Buckets>,
    /// Reads its objects.
    pub reading: Reading,
    /// Memory of downloads, shared by both.
    pub ahead: ReadAhead,
    /// Registers its figures for `/metrics`.
    pub register: Option<Register>,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

/// Registers figures.
pub type Register = Box<dyn Fn(&mut Registry) + Send + Sync>;

impl App {
    /// An application over `store`.
    pub fn new(store: Store, import: Option<Arc<ImportWatch>>, beside: Beside, door: Door) -> Arc<Self> {
        let requests = metrics::Requests::default();
        Arc::new(Self {
            probes: engine::Engine::for_probes(store.clone()),
            engine: engine::Engine::new(store),
            requests,
            beside,
            import,
            door,
        })
    }
}

/// The page as a service, for [`run`].
pub type Page = TowerToHyperService<Router>;

/// The page over an open store.
pub fn page(app: Arc<App>) -> Page {
    TowerToHyperService::new(router(app))
}

/// The routes.
fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/page.css", get(page::style))
        .route("/page.js", get(page::script))
        .route("/favicon.svg", get(page::icon))
        .route("/api/images", get(api::images))
        .route("/api/images/{id}", get(api::image))
        .route("/api/stats", get(api::stats))
        .route("/images/{id}/{resolution}", get(value::get).head(value::head))
        .route("/metrics", get(metrics::text))
        .route("/healthz", get(api::health))
        .route("/readyz", get(api::ready))
        .fallback(refusal::no_such_page)
        .method_not_allowed_fallback(refusal::no_such_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

/// The route of a request, for counting.
fn route_of(request: &Request) -> String {
    request
        .extensions()
        .get::<axum::extract::MatchedPath>()
        .map_or("none", |path| path.as_str())
        .to_owned()
}
