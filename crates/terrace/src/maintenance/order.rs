//! Writes values in the order of their keys that scans have paid for.
//!
//! A move is a record like any other: it holds the value, and counts only if the entry still has
//! the version that moved. Until it is applied the value's old place answers. So nothing here has
//! to be ordered with anything (docs/durability.md, section 5).
//!
//! On failure: the values stay where they are, and scans pay again.

use crate::{
    Error, Result,
    engine::Engine,
    log::move_queue::Moving,
    maintenance::moves::{self, Moved, commit_bytes},
    metrics::{bucket::Bucket, count},
};
use std::sync::Arc;

/// The worker's state.
pub struct Orderer {
    engine: Arc<Engine>,
    /// Bytes that may be written.
    bucket: Bucket,
}

impl Orderer {
    /// For a store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            bucket: Bucket::per_second(Some(engine.options.tuning.order_bytes_per_second)),
            engine,
        }
    }

    /// Moves what waits. `false` if nothing did.
    ///
    /// # Errors
    /// The log's.
    pub fn turn(&mut self) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        let order = &engine.scan_order;
        order.queue.applied(engine.log.applied_seq());
        let taken = order.take();
        let mut rest = &taken[..];
        while !rest.is_empty() {
            if !engine.log.has_room_for_moves() {
                count(&order.counters.dropped_no_room, rest.len() as u64);
                break;
            }
            let (part, others) = rest.split_at(values_of_commit(rest, commit_bytes(&engine)));
            rest = others;
            match self.move_part(part) {
                Ok(()) => {}
                Err(Error::OutOfSpace { .. }) => break,
                Err(error) => {
                    order.queue.forget(rest);
                    return Err(error);
                }
            }
        }
        order.queue.forget(rest);
        Ok(!taken.is_empty())
    }

    /// Commits the moves of some values, and waits until what they write is earned.
    fn move_part(&mut self, part: &[Moving]) -> Result<()> {
        let engine = &self.engine;
        let order = &engine.scan_order;
        let presence = engine.presence();
        let (dead, living): (Vec<_>, Vec<_>) = part.iter().cloned().partition(|value| {
            let why = presence.dead(&value.key, value.version, &value.attributes);
            why.is_some()
        });
        order.queue.forget(&dead);
        let done = moves::commit_taken(engine, &order.queue, &living);
        let written = order.count_moved(&living[..done.moves], done.bytes as u64);
        done.outcome?;
        let wait = self.bucket.overdraw(written);
        engine.pause(wait);
        Ok(())
    }
}

/// How many values, at least one, have records that fit into one commit.
fn values_of_commit(values: &[Moving], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fitting = values.iter().take_while(|value| {
        bytes += Moved::of_waiting(value).to_flash().1.record_bytes();
        bytes <= bytes_max
    });
    fitting.count().max(1)
}
