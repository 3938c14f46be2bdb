//! Rewrites values in key order once scans have been charged for it ([`crate::scan_order`]): short
//! ones as copies into their entries, longer ones to the log in key order.
//!
//! A copy is derived: no record has it, and the applier makes it, in the batch of a commit that
//! changes nothing, if the value is still the key's. A move is a record like any other: it holds
//! the value, and counts only if the entry still has the version that moved. Until it is applied
//! the value's old place serves reads. So nothing here has to be ordered with anything
//! (docs/durability.md, sections 4 and 5).
//!
//! On failure: the values stay where they are, and scans are charged again.

mod sweep;

use crate::{
    Error, Result,
    engine::Engine,
    log::{commit::Committer, move_queue::Moving},
    maintenance::moves::{self, Moved, commit_bytes},
    metrics::{bucket::Bucket, count},
    scan_order::{Form, copy_bytes, form},
};
use std::{sync::Arc, time::Duration};

/// Copies in one turn of the applier: waiting work waits some milliseconds longer.
const COPIED_TOGETHER: usize = 4096;
/// Wait before looking again whether the index has caught up.
const INDEX_LOOK: Duration = Duration::from_millis(2);

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

    /// Executes queued moves and copies, and sweeps the log if its price has been charged. `false`
    /// if there was nothing to do.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn turn(&mut self) -> Result<bool> {
        let engine = Arc::clone(&self.engine);
        let order = &engine.scan_order;
        if !order.queue.is_on() {
            return Ok(false);
        }
        order.queue.applied(engine.log.applied_seq());
        let is_short = |value: &Moving| form(value.value.len() as u64) == Some(Form::Copied);
        let (short, longer): (Vec<_>, Vec<_>) = order.take().into_iter().partition(is_short);
        let has_taken = !short.is_empty() || !longer.is_empty();
        let hashes: Vec<_> = short.iter().map(|value| value.hash).collect();
        self.copy(short);
        order.queue.forget_hashes(hashes);
        self.move_all(&longer)?;
        Ok(self.sweep() || has_taken)
    }

    /// Requests that the applier copies short values into their entries, in key order, and waits
    /// until the bytes written by that are earned. Returns whether it was done.
    fn copy(&mut self, values: Vec<Moving>) -> bool {
        let mut values = values.into_iter();
        while values.len() > 0 {
            let part = values.by_ref().take(COPIED_TOGETHER).collect();
            if !self.copy_part(part) {
                return false;
            }
        }
        true
    }

    /// The same of at least one, and no more than the applier copies in one turn.
    fn copy_part(&mut self, values: Vec<Moving>) -> bool {
        let engine = &self.engine;
        let count_of_values = values.len() as u64;
        let is_full = || !engine.index.is_usable() || engine.log.index_full.reason().is_some();
        let is_over = || engine.log.is_closing() || engine.log.writer.has_failed();
        while !engine.index.keeps_up() && !is_full() && !is_over() {
            engine.pause(INDEX_LOOK);
        }
        let bytes = values
            .iter()
            .map(|value| copy_bytes(value.key.len(), value.value.len() as u64));
        // With the merge that brings them together.
        let has_room = has_room(engine, bytes.sum::<u64>() + engine.index.disk_bytes());
        if is_full() || !has_room || !engine.log.reserve.is_whole() || is_over() {
            count(&engine.scan_order.counters.dropped_no_room, count_of_values);
            return false;
        }
        let copies = &engine.scan_order.copies;
        let key = values[0].key.clone();
        let copied = copies.hand_over(values, || make_turn(engine, &key), is_over);
        count(&engine.scan_order.counters.copied, copied.values);
        let wait = self.bucket.overdraw(copied.index_bytes);
        engine.pause(wait);
        !is_over()
    }

    /// Moves values, which come in the order of their keys.
    fn move_all(&mut self, values: &[Moving]) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let order = &engine.scan_order;
        let mut rest = values;
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
        Ok(())
    }

    /// Commits the moves of some values, and waits until the rate limit has earned their bytes.
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

/// Commits a drop of a version that no value has, which changes nothing: copies are applied with a
/// commit, and no other commit may come.
pub fn make_turn(engine: &Engine, key: &[u8]) {
    let nothing = std::iter::once(moves::to_nowhere(key, 0));
    let committed = moves::commit(engine, Committer::Background, nothing);
    if committed.outcome.is_err() {
        engine.scan_order.copies.give_up();
    }
}

/// Whether the device has room for this many bytes of tables without using the space that new data
/// must leave: otherwise scans would use up the reserve of a nearly full device, and new data would
/// be refused.
fn has_room(engine: &Engine, bytes: u64) -> bool {
    let left_bytes = engine.log.segments.left_to_others_bytes();
    let available = engine.flash_disk.available_bytes();
    available.is_ok_and(|available| available >= bytes.saturating_add(left_bytes))
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
