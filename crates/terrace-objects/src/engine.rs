//! Engine calls from asynchronous code: a bounded number at a time, on threads for blocking work.
//!
//! A permit is held for one engine call, never while waiting for a client, so slow clients do not
//! use up permits. If no permit becomes free in time, the call fails with [`NotRun::Busy`], which
//! becomes a 503: the queue stays bounded.

use std::{any::Any, sync::Arc, time::Duration};
use terrace::Store;
use tokio::sync::Semaphore;

/// Concurrent engine calls.
pub const CALLS_MAX: usize = 64;
/// Concurrent probes.
const PROBES_MAX: usize = 4;
/// Longest wait for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A call's result, type-erased.
type Done = Box<dyn Any + Send>;
/// A call.
type Work = Box<dyn FnOnce(&Store) -> Done + Send>;

/// The store, and permission to call it.
#[derive(Debug, Clone)]
pub struct Engine {
    store: Store,
    permits: Arc<Semaphore>,
}

impl Engine {
    /// Wraps a store.
    pub fn new(store: Store) -> Self {
        Self::with_calls(store, CALLS_MAX)
    }

    /// Wraps a store for health probes, which have permits of their own so that a busy server
    /// answers them, and read no device.
    pub fn for_probes(store: Store) -> Self {
        Self::with_calls(store, PROBES_MAX)
    }

    fn with_calls(store: Store, calls_max: usize) -> Self {
        Self {
            store,
            permits: Arc::new(Semaphore::new(calls_max)),
        }
    }

    /// The store, for calls that neither read a device nor wait. Running them here is cheaper than
    /// handing them to another thread.
    pub const fn now(&self) -> &Store {
        &self.store
    }

    /// Runs `work` on a thread that may block, and returns its result.
    ///
    /// # Errors
    /// [`NotRun`]
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T, NotRun> {
        let done = self.run_boxed(Box::new(move |store| Box::new(work(store)))).await?;
        done.downcast().map(|done| *done).map_err(|_| NotRun::Panicked)
    }

    /// Not generic, so that the code around the call is compiled once and not for each of a hundred
    /// operations.
    async fn run_boxed(&self, work: Work) -> Result<Done, NotRun> {
        let permits = Arc::clone(&self.permits);
        let permit = match tokio::time::timeout(WAIT_MAX, permits.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err(NotRun::Busy),
        };
        let store = self.store.clone();
        let call = tokio::task::spawn_blocking(move || {
            // Moved in: if the client disconnects, this future is dropped, but the permit stays
            // taken until the call ends.
            let _permit = permit;
            work(&store)
        });
        call.await.map_err(|error| {
            tracing::error!(%error, "an engine call did not return");
            NotRun::Panicked
        })
    }
}

/// Why a call gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRun {
    /// No permit became free in time.
    Busy,
    /// The call panicked, or the server is stopping.
    Panicked,
}
