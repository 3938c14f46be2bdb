//! Engine calls from asynchronous code: on threads for blocking work, a bounded number at a time.
//!
//! A permit is held for one call only, never while a client is being waited for: a hundred slow clients must not keep
//! the hundred and first from its page. When the engine is so busy that no permit comes free for a while, the answer is
//! 503 instead of an ever longer queue.

use super::refusal::Refusal;
use std::{sync::Arc, time::Duration};
use terrace::Store;
use tokio::sync::Semaphore;

/// Engine calls at a time.
const CALLS_MAX: usize = 64;
/// Longest wait for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The store, and permission to call it.
#[derive(Debug, Clone)]
pub struct Engine {
    store: Store,
    permits: Arc<Semaphore>,
}

impl Engine {
    /// Guards `store`.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            permits: Arc::new(Semaphore::new(CALLS_MAX)),
        }
    }

    /// Runs `work` where it may block.
    ///
    /// # Errors
    /// What `work` fails with; 503 if the engine is too busy; 500 if `work` panicked.
    pub async fn call<T, E>(&self, work: impl FnOnce(&Store) -> Result<T, E> + Send + 'static) -> Result<T, Refusal>
    where
        T: Send + 'static,
        E: Into<Refusal> + Send + 'static,
    {
        let permits = Arc::clone(&self.permits);
        let permit = match tokio::time::timeout(WAIT_MAX, permits.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err(Refusal::busy()),
        };
        let store = self.store.clone();
        let call = tokio::task::spawn_blocking(move || {
            // Moved in: a client that goes away drops this future, but the call still counts until it is over.
            let _permit = permit;
            work(&store)
        });
        match call.await {
            Ok(result) => result.map_err(Into::into),
            Err(error) => {
                tracing::error!(%error, "an engine call did not return");
                Err(Refusal::internal("an internal error; see the server's log"))
            }
        }
    }
}
