//! The S3 service: the protocol by `s3s`, which only this room uses, over the engine.
//!
//! The path of a request: the listener accepts it; [`head`] parses its head, which all later code
//! uses; [`front`] adds what every answer has; [`refuse`] refuses features that the service does
//! not have; `s3s` checks its signature and calls [`access`] for permission; [`service`] calls its
//! operation in [`ops`]; [`at_once`] answers plain GETs from RAM without `s3s`. Operations call the
//! engine through [`Gateway::run`], a bounded number at a time, on threads for blocking work.
//!
//! The object model is `terrace_objects`. [`receive`] takes bodies in, [`lifecycle`] starts walks,
//! [`logging`] writes the log of a bucket into another, [`website`] serves objects to browsers,
//! [`notify`] sends events to webhooks. docs/s3.md has the layout and the operations.

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
mod xml;

use errors::Told as _;
pub use errors::said;
pub use front::Front;
pub use terrace_objects::secrets::kms;
pub use terrace_objects::{access_key, account, keyspace, secrets};
use terrace_objects::{acl, bucket, class, collector, commit, list, lock, manifest, policy, session, versions};

use crate::http::{
    self, Listener,
    budget::Pool,
    engine::Engine,
    opening::{self, Opening},
    read_ahead::ReadAhead,
};
use access::Domains;
use access_key::Keys;
use access_log::AccessLog;
use bucket::{Bucket, Buckets};
use collector::Collector;
use exchange::Counted;
use figures::Figures;
use futures_util::future::{Either, ready};
use hashing::Hashing;
use hyper::service::{Service as _, service_fn};
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
use terrace::{Clock, Committing, Durability, ReadOptions, Store};
use terrace_objects::{access::decide::Permit, commit::Place, local::Reading};
use tokio::{sync::Notify, task::JoinHandle};

/// Default address.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7071);
/// Time for requests under way at shutdown, since uploads take long.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(60);
/// The reported region. Signatures for any region are accepted.
const REGION: &str = "us-east-1";

/// State shared by all requests.
pub struct Gateway {
    engine: Engine,
    buckets: Arc<Buckets>,
    access_keys: Arc<Keys>,
    collector: Arc<Collector>,
    /// A request changed the lifecycle rules of a bucket.
    lifecycle_changed: Notify,
    durability: Durability,
    figures: Figures,
    access_log: Option<AccessLog>,
    /// Logs of buckets, to be written.
    delivery: Delivery,
    /// Domains of web sites.
    websites: Domains,
    /// Targets of events.
    targets: Arc<Targets>,
    limiter: Option<Limiter>,
    /// Refuse signatures of version 2.
    no_version_2: bool,
    /// Entity tags are random unless a client declares an MD5.
    has_random_tags: bool,
    /// Memory for collected requests.
    memory: Arc<Pool>,
    /// Memory for bodies of objects.
    uploads: Arc<Pool>,
    /// Held by the request that collects garbage because the large tier is full.
    making_room: tokio::sync::Mutex<()>,
    hashing: Arc<Hashing>,
    shared: Shared,
}

/// Shared by the page and the service. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// The service's statistics.
    pub figures: Figures,
    /// Holds the values being read.
    collector: Arc<Collector>,
    /// Reads of the large tier are refused while its expected wait is longer.
    large_wait: Option<Duration>,
    /// Memory of downloads.
    pub ahead: ReadAhead,
    /// The master keys.
    pub secrets: Secrets,
    /// Read-locked by threads that rewrite an upload's record, write-locked by the one that rewraps
    /// its key.
    wrapping: Arc<RwLock<()>>,
}

impl Shared {
    /// With empty statistics.
    pub fn new(large_wait: Option<Duration>, secrets: Secrets) -> Self {
        Self {
            large_wait,
            secrets,
            ..Self::default()
        }
    }

    /// Read options for requests that are refused rather than queued while the large tier is busy.
    pub const fn reading(&self) -> ReadOptions {
        ReadOptions {
            large_wait_max: self.large_wait,
        }
    }

    /// The page's reading state.
    pub fn to_read(&self) -> Reading {
        Reading {
            collector: Arc::clone(&self.collector),
            large_wait: self.large_wait,
            secrets: self.secrets.clone(),
        }
    }
}

/// Options of the service.
#[derive(Debug, Default)]
pub struct Choices {
    /// The access keys.
    pub access_keys: Arc<Keys>,
    /// State shared with the page.
    pub shared: Shared,
    /// The access log.
    pub access_log: Option<AccessLog>,
    /// Requests per second of one sender.
    pub rate: Option<u32>,
    /// Refuse signatures of version 2.
    pub no_version_2: bool,
    /// Entity tags are random unless a client declares an MD5.
    pub has_random_tags: bool,
    /// Domains of web sites.
    pub websites: Vec<String>,
    /// Targets of events.
    pub targets: Arc<Targets>,
    /// Memory for collected requests.
    pub collected_bytes: u64,
    /// Memory for bodies of objects.
    pub uploads_bytes: u64,
}

impl Gateway {
    /// Loads the buckets, and marks values that a crash may have left.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open(store: &Store, durability: Durability, choices: Choices) -> terrace::Result<Arc<Self>> {
        let shared = choices.shared;
        shared.collector.recover(store)?;
        choices.targets.count(store)?;
        Ok(Arc::new(Self {
            engine: Engine::new(store.clone()),
            buckets: Arc::new(Buckets::load(store)?),
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
            has_random_tags: choices.has_random_tags,
            memory: Pool::memory(choices.collected_bytes),
            uploads: Pool::memory(choices.uploads_bytes),
            making_room: tokio::sync::Mutex::default(),
            hashing: Arc::default(),
            shared,
        }))
    }

    /// All buckets, as they are.
    pub fn buckets(&self) -> Arc<Buckets> {
        Arc::clone(&self.buckets)
    }

    /// The store's clock.
    fn clock(&self) -> &Clock {
        self.engine.now().clock()
    }

    /// The bucket of this name.
    ///
    /// # Errors
    /// `NoSuchBucket`
    fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.buckets.get(name).told()
    }

    /// Counts a request of a sender, if there is a limit.
    ///
    /// # Errors
    /// `SlowDown`
    fn admit(&self, sender: Sender, now: Instant) -> S3Result {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.admit(sender, now).inspect_err(|_| {
            self.figures.limited.inc();
        })
    }

    /// Removes a request that counts for another sender.
    fn give_back(&self, sender: &Sender) {
        if let Some(limiter) = &self.limiter {
            limiter.give_back(sender);
        }
    }

    /// Runs `work` on a thread that may block.
    ///
    /// # Errors
    /// Errors of `work`; `SlowDown` if the engine is too busy.
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

    /// The place of a change on a thread that must not block.
    fn place<'a>(&'a self, permit: &'a Permit, key: &'a str) -> Place<'a> {
        Place {
            store: self.engine.now(),
            durability: self.durability,
            permit,
            key,
        }
    }

    /// Waits until a commit about `key` is as durable as required.
    ///
    /// # Errors
    /// Errors of the store.
    async fn committed(&self, committing: Committing, key: &str) -> S3Result {
        let outcome = committing.await;
        outcome
            .map(drop)
            .map_err(|error| errors::of_engine(&error, key.as_bytes()))
    }

    /// Like [`Gateway::run`], for a change of versions of `key`, one at a time. A waiting request
    /// holds no permit, so many changes of one key do not block other requests.
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
            // Moved in: the place is released when the work is done, even if the client
            // disconnects.
            let _queued = queued;
            work(gateway, store)
        };
        self.run(done).await
    }

    /// Collects garbage, for a request that found the large tier full after `begun` runs of the
    /// collector. One request does it, with one permit; others wait without a permit.
    async fn make_room(self: &Arc<Self>, begun: u64) {
        let _one = self.making_room.lock().await;
        let collector = Arc::clone(&self.collector);
        // If collecting fails, the caller reports the full tier.
        let _ = self
            .engine
            .run(move |store| collector.collect_after(store, begun))
            .await;
    }
}

/// Background work, while this lives: collects garbage and runs lifecycle rules. A server that has
/// the store open runs it whether or not it listens for S3.
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
        // The next start completes it.
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Serves until `stop` resolves, then finishes requests under way.
pub async fn run(opening: Opening<Front>, listener: Listener, stop: impl Future<Output = ()>) {
    let service_for = |peer: SocketAddr| {
        let opening = opening.clone();
        service_fn(move |request| match opening.service() {
            Some(front) => front.to(peer.ip()).call(request),
            None => {
                let answer = front::into_response(errors::not_open()).map(Counted::not);
                Either::Left(ready(Ok(opening::refused(&request, answer))))
            }
        })
    };
    http::serve(service_for, listener, stop, SHUTDOWN_TIME_MAX).await;
    if let Some(front) = opening.service() {
        // All requests have ended, so their log lines are complete.
        delivery::write(front.gateway(), true).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::engine::CALLS_MAX;
    use bucket::{Record, Versioning};

    /// Polls each future; returns how many are ready.
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

    /// Regression: each upload to a full large tier collected garbage within its permit, behind one
    /// mutex: 64 of them held all permits, and GETs were refused though the disk could be read.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn uploads_that_wait_for_room_leave_the_engine_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(terrace::Options::new(dir.path())).unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        let begun = gateway.collector.begun_so_far();
        // Another thread is collecting.
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

    /// Regression: as many changes of one key as there are permits held all of these while they
    /// waited for one another, so no other request reached the engine.
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
        // Another thread is in the middle of a change, as during a commit.
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
