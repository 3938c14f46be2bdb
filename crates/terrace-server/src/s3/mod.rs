//! The S3 service: the protocol by `s3s`, which only this room knows, over the engine.
//!
//! The way of one request: the listener accepts it; [`front`] adds what every answer carries, [`refuse`] refuses what
//! the service does not have; `s3s` checks its signature and asks [`access`] whether it may; [`service`] hands it to its operation
//! in [`ops`]; [`at_once`] answers plain GETs from RAM without it. Operations call the engine through [`Gateway::run`], on threads for blocking work, a bounded number at a
//! time.
//!
//! Below the operations: [`keyspace`] says where everything is, [`record`] and [`manifest`] what an object's record
//! holds, [`receive`] takes bodies in, [`commit`] replaces objects, [`read`] reads them, [`versions`] finds those that are not
//! the current ones, [`list`] lists them, [`collector`] frees what they leave behind, [`lifecycle`] deletes what
//! the rules of a bucket want gone. docs/s3.md has the layout and the operations.

mod access;
pub mod access_key;
pub mod access_log;
mod at_once;
mod body;
mod bucket;
mod byteranges;
mod collector;
mod commit;
mod cors;
mod digest;
mod errors;
mod exchange;
pub mod figures;
mod form;
mod front;
mod judged;
pub mod keyspace;
mod lifecycle;
mod limit;
mod list;
mod lock;
mod manifest;
pub mod offline;
mod ops;
mod policy;
mod read;
mod receive;
mod record;
mod refuse;
mod service;
mod signature;
mod versions;

use crate::http::{Listener, engine::Engine};
use access_key::Keys;
use access_log::AccessLog;
use bucket::Buckets;
use collector::Collector;
use figures::Figures;
use limit::{Limiter, Sender};
use s3s::S3Result;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use terrace::{Durability, Store};
use tokio::{sync::Notify, task::JoinHandle};

/// Where to listen if nothing else is said.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7071);
/// Time for requests under way when the server shuts down: uploads may take some.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(60);
/// The region this server says it is in. Signatures for any region are taken.
const REGION: &str = "us-east-1";
/// Who owns everything: there are keys, but no users.
const OWNER: &str = "terrace";

/// What all requests share.
pub struct Gateway {
    engine: Engine,
    buckets: Buckets,
    access_keys: Arc<Keys>,
    collector: Arc<Collector>,
    /// Somebody changed the lifecycle rules of a bucket.
    lifecycle_changed: Notify,
    durability: Durability,
    figures: Figures,
    access_log: Option<AccessLog>,
    limiter: Option<Limiter>,
    shared: Shared,
}

/// What the page and the service share. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// What the service counts.
    pub figures: Figures,
    /// Whoever reads values of their own has them kept here meanwhile.
    collector: Arc<Collector>,
    /// How long reads of the large tier may take before no more are begun.
    large_wait: Option<Duration>,
}

impl Shared {
    /// Nothing counted and nothing kept yet.
    pub fn new(large_wait: Option<Duration>) -> Self {
        Self {
            large_wait,
            ..Self::default()
        }
    }

    /// The store for requests that are refused rather than made to wait while the large tier is busy.
    pub fn guarded(&self, store: &Store) -> Store {
        self.large_wait
            .map_or_else(|| store.clone(), |wait_max| store.impatient(wait_max))
    }
}

/// What can be chosen of the service.
#[derive(Debug, Default)]
pub struct Choices {
    /// Who may use it.
    pub access_keys: Arc<Keys>,
    /// What it shares with the page.
    pub shared: Shared,
    /// Where it logs requests.
    pub access_log: Option<AccessLog>,
    /// Requests a second that one sender may make.
    pub rate: Option<u32>,
}

impl Gateway {
    /// Reads the buckets, and what a crash may have left behind.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: &Store, durability: Durability, choices: Choices) -> terrace::Result<Arc<Self>> {
        let shared = choices.shared;
        shared.collector.recover(store)?;
        Ok(Arc::new(Self {
            engine: Engine::new(store.clone()),
            buckets: Buckets::load(store)?,
            access_keys: choices.access_keys,
            collector: Arc::clone(&shared.collector),
            lifecycle_changed: Notify::new(),
            durability,
            figures: shared.figures.clone(),
            access_log: choices.access_log,
            limiter: choices.rate.map(Limiter::new),
            shared,
        }))
    }

    /// Counts a request of somebody who may not send too many.
    ///
    /// # Errors
    /// `SlowDown`
    fn admit(&self, sender: Sender, now: Instant) -> S3Result {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.admit(sender, now).inspect_err(|_| {
            self.figures.limited.inc();
        })
    }

    /// Runs `work` where it may block.
    ///
    /// # Errors
    /// What `work` fails with; `SlowDown` if the engine is too busy.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>, &Store) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let gateway = Arc::clone(self);
        match self.engine.run(move |store| work(&gateway, store)).await {
            Ok(result) => result,
            Err(reason) => Err(errors::of_call(reason)),
        }
    }
}

/// What goes on without requests, for as long as this lives: what nothing refers to is deleted, and what rules want gone. A
/// server that has the store open does it, whether it listens for S3 or not.
#[derive(Debug)]
pub struct Upkeep([JoinHandle<()>; 2]);

impl Upkeep {
    /// Begins.
    pub fn start(gateway: &Arc<Gateway>) -> Self {
        let collector = Arc::clone(&gateway.collector).run(gateway.engine.clone());
        let lifecycle = lifecycle::run(Arc::clone(gateway));
        Self([tokio::spawn(collector), tokio::spawn(lifecycle)])
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        // What they leave undone they do at the next start.
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Serves until `stop` resolves, then finishes requests under way.
pub async fn run(gateway: Arc<Gateway>, domains: Vec<String>, listener: Listener, stop: impl Future<Output = ()>) {
    let front = front::Front::new(gateway, domains, listener.tls.is_some());
    crate::http::serve(|peer| front.to(peer.ip()), listener, stop, SHUTDOWN_TIME_MAX).await;
}
