//! The S3 service: the protocol by `s3s`, which only this room knows, over the engine.
//!
//! The way of one request: the listener accepts it; [`front`] adds what every answer carries, [`refuse`] refuses what
//! the service does not have; `s3s` checks its signature and asks [`access`] whether it may; [`service`] hands it to its operation
//! in [`ops`]. Operations call the engine through [`Gateway::run`], on threads for blocking work, a bounded number at a
//! time.
//!
//! Below the operations: [`keyspace`] says where everything is, [`record`] and [`manifest`] what an object's record
//! holds, [`receive`] takes bodies in, [`commit`] replaces objects, [`read`] reads them, [`list`] lists them,
//! [`collector`] frees what they leave behind. docs/s3.md has the layout and the operations.

mod access;
pub mod access_key;
mod bucket;
mod collector;
mod commit;
mod cors;
mod digest;
mod errors;
mod front;
pub mod keyspace;
mod list;
mod manifest;
pub mod offline;
mod ops;
mod read;
mod receive;
mod record;
mod refuse;
mod service;

use crate::http::engine::Engine;
use access_key::AccessKey;
use bucket::Buckets;
use collector::Collector;
use s3s::S3Result;
use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};
use terrace::{Durability, Store};
use tokio::net::TcpListener;

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
    access_keys: HashMap<String, AccessKey>,
    collector: Arc<Collector>,
    durability: Durability,
}

impl Gateway {
    /// Reads buckets and access keys, and what a crash may have left behind.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: &Store, durability: Durability) -> terrace::Result<Arc<Self>> {
        let collector = Arc::new(Collector::default());
        collector.recover(store)?;
        Ok(Arc::new(Self {
            engine: Engine::new(store.clone()),
            buckets: Buckets::load(store)?,
            access_keys: access_key::load(store)?,
            collector,
            durability,
        }))
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

/// Serves until `stop` resolves, then finishes requests under way.
pub async fn run(gateway: Arc<Gateway>, domains: Vec<String>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let collector = tokio::spawn(Arc::clone(&gateway.collector).run(gateway.engine.clone()));
    crate::http::serve(front::Front::new(gateway, domains), listener, stop, SHUTDOWN_TIME_MAX).await;
    // What it leaves undone it does at the next start.
    collector.abort();
}
