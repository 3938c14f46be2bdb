//! Asynchronous writes: committed on the thread that received them, and awaited.
//!
//! A `Sync` write waits for a device, and a thread that waits costs two context switches. A server
//! with many requests on few threads instead commits immediately, if everything the commit needs is
//! in RAM, and awaits a [`Committing`], which the end of a round of group commit wakes. The flusher
//! leads the rounds that no other thread leads.
//!
//! A write that would have to wait, for a device, for room or until other commits are durable, is
//! not committed here: the caller repeats it where it may block. So nothing is decided here that
//! [`super::write_batch`] would decide differently, and no refusal comes from here.

use super::{commit_placed, condition::Precheck, is_large, last_of_each_key, place_all};
use crate::{
    Batch, Durability, Result, Version,
    engine::Engine,
    log::commit::{Committed, Committer},
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

/// A committed write: a future that resolves to its version when it has the requested durability.
/// For any runtime. Dropping it does not affect the write.
///
/// # Errors
/// [`crate::Error::Failed`]: whether it was written is unknown.
#[derive(Debug)]
#[must_use = "what is asked for as `Sync` is durable only when this is ready"]
pub struct Committing {
    engine: Arc<Engine>,
    committed: Committed,
    began: Instant,
    /// The log has a waker of this.
    is_waiting: bool,
}

/// Commits a batch if that needs no device and no wait. `None`: nothing was written.
pub fn try_batch(engine: &Arc<Engine>, batch: &Batch, durability: Durability) -> Option<Committing> {
    let began = Instant::now();
    engine.check_writable().ok()?;
    let log = &engine.log;
    // Once the store has been full, new data is admitted only on the path that may wait; batches
    // that free space may use the rest of the segment being written.
    let committer = if batch.frees_space() {
        Committer::FreeingAtOnce
    } else if log.has_been_full() {
        return None;
    } else {
        Committer::AtOnce
    };
    let operations = last_of_each_key(batch).ok()?;
    if log.is_behind() || operations.is_empty() || operations.iter().any(|operation| is_large(engine, operation)) {
        return None;
    }
    let placed = place_all(engine, &operations).ok()?;
    let by = |commit: &super::Commit<'_>| commit(committer);
    let committed = commit_placed(engine, batch, &placed, durability, Precheck::in_ram, by).ok()?;
    if committed.durability == Durability::Sync {
        log.promise_durable(committed.seq);
    }
    Some(Committing {
        engine: Arc::clone(engine),
        committed,
        began,
        is_waiting: false,
    })
}

impl Future for Committing {
    type Output = Result<Version>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Committed { seq, durability } = self.committed;
        let mut outcome = Ok(());
        if durability == Durability::Sync {
            self.is_waiting = true;
            outcome = ready!(self.engine.log.writer.poll_durable(seq, context.waker()));
            self.is_waiting = false;
        }
        self.engine.metrics.write.record_since(self.began, outcome.is_err());
        Poll::Ready(outcome.map(|()| Version(seq)))
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        if self.is_waiting {
            self.engine.log.writer.forget(self.committed.seq);
        }
    }
}
