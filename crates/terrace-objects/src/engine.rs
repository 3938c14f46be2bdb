//! Engine calls from asynchronous code: on threads for blocking work, a bounded number at a time.
//!
//! A permit is held for one call only, never while a client is being waited for: a hundred slow
//! clients must not keep the hundred and first from its page. When the engine is so busy that no
//! permit comes free for a while, the answer is 503 instead of an ever longer queue.

use std::{any::Any, sync::Arc, time::Duration};
use terrace::Store;
use tokio::sync::Semaphore;

/// Engine calls at a time.
pub const CALLS_MAX: usize = 64;
/// Probes at a time.
const PROBES_MAX: usize = 4;
/// Longest wait for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What a call returns, of whatever type.
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
    /// Guards `store`.
    pub fn new(store: Store) -> Self {
        Self::with_calls(store, CALLS_MAX)
    }

    /// Guards `store` for requests that ask how the server is: they come first when it is busiest,
    /// and read nothing of a device.
    pub fn for_probes(store: Store) -> Self {
        Self::with_calls(store, PROBES_MAX)
    }

    fn with_calls(store: Store, calls_max: usize) -> Self {
        Self {
            store,
            permits: Arc::new(Semaphore::new(calls_max)),
        }
    }

    /// The store, for calls that neither ask a device nor wait for another thread. They cost less
    /// than to hand them to another thread.
    pub const fn now(&self) -> &Store {
        &self.store
    }

    /// Runs `work` where it may block, and hands back whatever it returns.
    ///
    /// # Errors
    /// [`NotRun`] if there is no result.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T, NotRun> {
        let done = self.run_boxed(Box::new(move |store| Box::new(work(store)))).await?;
        done.downcast().map(|done| *done).map_err(|_| NotRun::Panicked)
    }

    /// The same for any work: what is made of it to run beside others is compiled once, not for
    /// each of a hundred operations.
    async fn run_boxed(&self, work: Work) -> Result<Done, NotRun> {
        let permits = Arc::clone(&self.permits);
        let permit = match tokio::time::timeout(WAIT_MAX, permits.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err(NotRun::Busy),
        };
        let store = self.store.clone();
        let call = tokio::task::spawn_blocking(move || {
            // Moved in: a client that goes away drops this future, but the call still counts until
            // it is over.
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
    /// The engine was too busy for too long.
    Busy,
    /// The call panicked, or the server is ending.
    Panicked,
}
