//! The S3 service: the protocol by `s3s`, which only this room knows, over the engine.
//!
//! The way of one request: the listener accepts it; [`head`] reads its head, which all that comes
//! after asks; [`front`] adds what every answer carries, [`refuse`] refuses what the service does
//! not have; `s3s` checks its signature and asks [`access`] whether it may; [`service`] hands it to
//! its operation in [`ops`]; [`at_once`] answers plain GETs from RAM without it. Operations call
//! the engine through [`Gateway::run`], on threads for blocking work, a bounded number at a time.
//!
//! Below the operations: [`keyspace`] says where everything is, [`record`] and [`manifest`] what an
//! object's record holds, [`receive`] takes bodies in, [`commit`] replaces objects, [`read`] reads
//! them, [`versions`] finds those that are not the current ones, [`list`] lists them, [`collector`]
//! frees what they leave behind, [`lifecycle`] deletes what the rules of a bucket want gone,
//! [`logging`] writes what was asked of a bucket into another, [`website`] shows objects to
//! browsers, [`notify`] tells webhooks what happens. docs/s3.md has the layout and the operations.

mod access;
pub mod access_log;
mod at_once;
mod body;
mod byteranges;
mod chunks;
mod cors;
mod crypt;
pub mod digest;
mod errors;
mod exchange;
pub mod figures;
mod form;
mod front;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hashing;
mod head;
mod judged;
mod lifecycle;
mod limit;
mod logging;
pub mod notify;
mod ops;
mod read;
mod receive;
mod record;
mod refuse;
pub mod rewrap;
mod service;
pub mod signature;
mod sts;
mod turn;
pub mod verified;
mod version_2;
mod website;

use errors::Told as _;
pub use errors::said;
pub use terrace_objects::secrets::kms;
pub use terrace_objects::{access_key, account, keyspace, secrets};
use terrace_objects::{acl, bucket, class, collector, commit, list, lock, manifest, policy, session, versions};

use crate::http::{Listener, budget::Pool, engine::Engine, read_ahead::ReadAhead};
use access::Domains;
use access_key::Keys;
use access_log::AccessLog;
use bucket::{Bucket, Buckets};
use collector::Collector;
use figures::Figures;
use hashing::Hashing;
use limit::{Limiter, Sender};
use logging::delivery::{self, Delivery};
use notify::Targets;
use parking_lot::RwLock;
use s3s::S3Result;
use secrets::Secrets;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use terrace::{Committing, Durability, ReadOptions, Store};
use terrace_objects::{access::decide::Permit, commit::Place, local::Reading};
use tokio::{sync::Notify, task::JoinHandle};

/// Where to listen if nothing else is said.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7071);
/// Time for requests under way when the server shuts down: uploads may take some.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(60);
/// The region this server says it is in. Signatures for any region are taken.
const REGION: &str = "us-east-1";

/// What all requests share.
pub struct Gateway {
    engine: Engine,
    buckets: Buckets,
    access_keys: Arc<Keys>,
    collector: Arc<Collector>,
    /// A request changed the lifecycle rules of a bucket.
    lifecycle_changed: Notify,
    durability: Durability,
    figures: Figures,
    access_log: Option<AccessLog>,
    /// Logs of buckets, on their way into others.
    delivery: Delivery,
    /// Hosts below these are web sites.
    websites: Domains,
    /// Where events go.
    targets: Arc<Targets>,
    limiter: Option<Limiter>,
    /// Signatures of version 2 are refused.
    no_version_2: bool,
    /// What requests may make the server collect.
    memory: Arc<Pool>,
    /// What bodies of objects have on their way.
    uploads: Arc<Pool>,
    /// Held by the request that collects since the large tier is full.
    making_room: tokio::sync::Mutex<()>,
    hashing: Arc<Hashing>,
    shared: Shared,
}

/// What the page and the service share. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// What the service counts.
    pub figures: Figures,
    /// A request that reads values of their own has them kept here meanwhile.
    collector: Arc<Collector>,
    /// How long reads of the large tier may take before no more are begun.
    large_wait: Option<Duration>,
    /// Memory of downloads.
    pub ahead: ReadAhead,
    /// The master keys.
    pub secrets: Secrets,
    /// Held by a thread that writes the record of an upload again, and alone by the one that wraps
    /// its key anew.
    wrapping: Arc<RwLock<()>>,
}

impl Shared {
    /// Nothing counted and nothing kept yet.
    pub fn new(large_wait: Option<Duration>, secrets: Secrets) -> Self {
        Self {
            large_wait,
            secrets,
            ..Self::default()
        }
    }

    /// How values are read for requests that are refused rather than made to wait while the large
    /// tier is busy.
    pub const fn reading(&self) -> ReadOptions {
        ReadOptions {
            large_wait_max: self.large_wait,
        }
    }

    /// What the page needs of it.
    pub fn to_read(&self) -> Reading {
        Reading {
            collector: Arc::clone(&self.collector),
            large_wait: self.large_wait,
            secrets: self.secrets.clone(),
        }
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
    /// Whether it refuses signatures of version 2.
    pub no_version_2: bool,
    /// Domains below which hosts are web sites.
    pub websites: Vec<String>,
    /// Where events of buckets may go.
    pub targets: Arc<Targets>,
    /// Memory that requests may make the server collect.
    pub collected_bytes: u64,
    /// Memory that bodies of objects may have on their way.
    pub uploads_bytes: u64,
}

impl Gateway {
    /// Reads the buckets, and what a crash may have left behind.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: &Store, durability: Durability, choices: Choices) -> terrace::Result<Arc<Self>> {
        let shared = choices.shared;
        shared.collector.recover(store)?;
        choices.targets.count(store)?;
        Ok(Arc::new(Self {
            engine: Engine::new(store.clone()),
            buckets: Buckets::load(store)?,
            access_keys: choices.access_keys,
            collector: Arc::clone(&shared.collector),
            lifecycle_changed: Notify::new(),
            durability,
            figures: shared.figures.clone(),
            access_log: choices.access_log,
            delivery: Delivery::default(),
            websites: Domains(choices.websites),
            targets: choices.targets,
            limiter: choices.rate.map(Limiter::new),
            no_version_2: choices.no_version_2,
            memory: Pool::memory(choices.collected_bytes),
            uploads: Pool::memory(choices.uploads_bytes),
            making_room: tokio::sync::Mutex::default(),
            hashing: Arc::default(),
            shared,
        }))
    }

    /// The bucket of this name.
    ///
    /// # Errors
    /// `NoSuchBucket`
    fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.buckets.get(name).told()
    }

    /// Counts a request of a sender that may not send too many.
    ///
    /// # Errors
    /// `SlowDown`
    fn admit(&self, sender: Sender, now: Instant) -> S3Result {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.admit(sender, now).inspect_err(|_| {
            self.figures.limited.inc();
        })
    }

    /// Counts a request for another sender after all.
    fn give_back(&self, sender: &Sender) {
        if let Some(limiter) = &self.limiter {
            limiter.give_back(sender);
        }
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

    /// Where an object is changed on a thread that must not be held up.
    fn place<'a>(&'a self, permit: &'a Permit, key: &'a str) -> Place<'a> {
        Place {
            store: self.engine.now(),
            durability: self.durability,
            permit,
            key,
        }
    }

    /// Returns when what was committed there, about `key`, is as durable as it must be.
    ///
    /// # Errors
    /// The store's.
    async fn committed(&self, committing: Committing, key: &str) -> S3Result {
        let outcome = committing.await;
        outcome
            .map(drop)
            .map_err(|error| errors::of_engine(&error, key.as_bytes()))
    }

    /// The same for a change of versions of `key`, of which there is one at a time: a request that
    /// waits for it holds no permit, so many changes of one key keep no other request from the
    /// engine.
    ///
    /// # Errors
    /// As [`Gateway::run`].
    async fn run_in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &str,
        work: impl FnOnce(&Arc<Self>, &Store) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let queued = bucket.queue(key).await;
        let done = move |gateway: &Arc<Self>, store: &Store| {
            // Moved in: it is the next one's turn when the work is done, even if the client has
            // gone.
            let _queued = queued;
            work(gateway, store)
        };
        self.run(done).await
    }

    /// Collects what is not needed any more, for a request that found the large tier full after the
    /// collector had begun so often. One does it, with one permit; one that comes meanwhile waits
    /// without.
    async fn make_room(self: &Arc<Self>, begun: u64) {
        let _one = self.making_room.lock().await;
        let collector = Arc::clone(&self.collector);
        // What cannot be collected is no room, and the caller says that there is none.
        let _ = self
            .engine
            .run(move |store| collector.collect_after(store, begun))
            .await;
    }
}

/// What goes on without requests, for as long as this lives: what nothing refers to is deleted, and
/// what rules want gone. A server that has the store open does it, whether it listens for S3 or
/// not.
#[derive(Debug)]
pub struct Upkeep(Vec<JoinHandle<()>>);

impl Upkeep {
    /// Begins.
    pub fn start(gateway: &Arc<Gateway>) -> Self {
        let collector = Arc::clone(&gateway.collector).run(gateway.engine.clone());
        let lifecycle = lifecycle::run(Arc::clone(gateway));
        let logs = delivery::run(Arc::clone(gateway));
        let mut all = vec![tokio::spawn(collector), tokio::spawn(lifecycle), tokio::spawn(logs)];
        for target in gateway.targets.all() {
            let events = notify::delivery::run(Arc::clone(gateway), Arc::clone(target));
            all.push(tokio::spawn(events));
        }
        Self(all)
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
    let front = front::Front::new(Arc::clone(&gateway), domains, listener.tls.is_some());
    crate::http::serve(|peer| front.to(peer.ip()), listener, stop, SHUTDOWN_TIME_MAX).await;
    // What is gathered is of requests that are through.
    delivery::write(&gateway, true).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::engine::CALLS_MAX;
    use bucket::{Record, Versioning};

    /// Has each go as far as it gets; says how many are through.
    async fn ready<F: Future>(calls: &mut [std::pin::Pin<Box<F>>]) -> usize {
        let poll = |context: &mut std::task::Context<'_>| {
            let through = calls.iter_mut().filter_map(|call| match call.as_mut().poll(context) {
                std::task::Poll::Ready(outcome) => Some(outcome),
                std::task::Poll::Pending => None,
            });
            std::task::Poll::Ready(through.count())
        };
        std::future::poll_fn(poll).await
    }

    async fn others_get_to_the_engine(gateway: &Arc<Gateway>) {
        let other = gateway.run(|_, _| Ok(()));
        tokio::time::timeout(Duration::from_secs(120), other)
            .await
            .unwrap()
            .unwrap();
    }

    /// Each upload to a full large tier collected garbage within its permit, behind one mutex: 64
    /// of them held all permits, and GETs were refused though the disk could be read.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn uploads_that_wait_for_room_leave_the_engine_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(terrace::Options::new(dir.path())).unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        let begun = gateway.collector.begun_so_far();
        // Somebody is in the middle of it.
        let one = gateway.making_room.lock().await;
        let mut waiting: Vec<_> = (0..CALLS_MAX + 8)
            .map(|_| {
                let gateway = Arc::clone(&gateway);
                Box::pin(async move { gateway.make_room(begun).await })
            })
            .collect();
        assert_eq!(ready(&mut waiting).await, 0);
        others_get_to_the_engine(&gateway).await;
        drop(one);
        for call in waiting {
            call.await;
        }
        assert_eq!(gateway.collector.begun_so_far(), begun + 1, "one did it for all");
    }

    /// As many changes of one key as there are permits held all of these while they waited for one
    /// another: no other request got to the engine.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn changes_of_one_key_leave_the_engine_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(terrace::Options::new(dir.path())).unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        let record = Record {
            versioning: Versioning::Enabled,
            ..Record::default()
        };
        gateway.buckets.create(&store, "bucket", record).unwrap();
        let bucket = gateway.buckets.get("bucket").unwrap();
        // Somebody is in the middle of a change, as the commit is.
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let change = std::thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || {
                let _turn = bucket.turn("k");
                begun.send(()).unwrap();
                let _ = is_done.recv();
            }
        });
        begins.recv().unwrap();
        let mut changes: Vec<_> = (0..CALLS_MAX + 8)
            .map(|_| {
                let (gateway, bucket) = (Arc::clone(&gateway), Arc::clone(&bucket));
                let held = Arc::clone(&bucket);
                let work = move |_: &Arc<Gateway>, _: &Store| {
                    drop(held.turn("k"));
                    Ok(())
                };
                Box::pin(async move { gateway.run_in_turn(&bucket, "k", work).await })
            })
            .collect();
        assert_eq!(ready(&mut changes).await, 0);
        others_get_to_the_engine(&gateway).await;
        drop(done);
        for change in changes {
            change.await.unwrap();
        }
        change.join().unwrap();
    }
}
