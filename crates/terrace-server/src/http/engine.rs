//! Engine calls of the page: failures become statuses.

use super::refusal::Refusal;
use terrace::Store;
#[cfg(test)]
pub use terrace_objects::engine::CALLS_MAX;
pub use terrace_objects::engine::{Engine, NotRun};

/// Calls whose errors become answers.
pub trait Calls {
    /// Runs `work` where it may block.
    ///
    /// # Errors
    /// Errors of `work`; 503 if the engine is too busy; 500 if `work` panicked.
    async fn call<T, E>(&self, work: impl FnOnce(&Store) -> Result<T, E> + Send + 'static) -> Result<T, Refusal>
    where
        T: Send + 'static,
        E: Into<Refusal> + Send + 'static;
}

impl Calls for Engine {
    async fn call<T, E>(&self, work: impl FnOnce(&Store) -> Result<T, E> + Send + 'static) -> Result<T, Refusal>
    where
        T: Send + 'static,
        E: Into<Refusal> + Send + 'static,
    {
        match self.run(work).await {
            Ok(result) => result.map_err(Into::into),
            Err(NotRun::Busy) => Err(Refusal::busy()),
            Err(NotRun::Panicked) => Err(Refusal::internal("an internal error; see the server's log")),
        }
    }
}
