//! The write path: check → place (by size) → commit → publish → apply.
//!
//! 1. *Place*: a value of at least SizeThreshold goes to the large space first (`blocks`),
//!    everything else into the log with its record; unless its prefix is pinned (`placement`).
//! 2. *Commit* (`log`): the records get their seq and their place in the open frame. Those of a
//!    `Buffered` write are visible.
//! 3. *Durable*: a `Sync` write waits for the frame's fdatasync (`log::writer`), grouped with
//!    others, and is visible then. A caller that must not block is notified ([`committing`]).
//! 4. *Apply* (`apply`): one thread folds frames into the indexes, in seq order.
//!
//! A value is durable before the record that points to it is written: a `Sync` write syncs its
//! value before it commits. A `Buffered` write does not even wait for its value to be written; the
//! large space is synced up to that value's turn before the frame is written, and the writes of
//! later values continue meanwhile.

pub mod apply;
pub mod committing;
pub mod condition;
mod delete_range;
mod replace;
pub(crate) mod stall;
pub mod stream;

use crate::log::commit::{Committed, Committer, Judged};
use crate::{
    Batch, Condition, Durability, Error, KEY_BYTES_MAX, PutOptions, Result, VALUE_BYTES_MAX, Version,
    api::{
        batch::{Change, Operation},
        expiry,
    },
    engine::Engine,
    key_hash,
    log::format::{Body, Record},
    metrics::count,
    mutation::{Mutation, active},
    ordered_index::{Entry, Home},
};
use bytes::Bytes;
use condition::Precheck;
pub use delete_range::delete_range;
use replace::Exchange;
use std::collections::HashMap;
use stream::PendingLarge;

/// Checks a key's length.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::invalid("the key is empty; a key has 1 byte to 4 KiB")),
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Error::invalid(format!(
            "the key has {bytes} bytes; a key has 1 byte to 4 KiB"
        ))),
    }
}

/// Checks a value's length.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_length(bytes: u64) -> Result<()> {
    if bytes > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the value has {bytes} bytes; a value has at most 5 GiB ({VALUE_BYTES_MAX} bytes)"
        )));
    }
    Ok(())
}

/// Puts one object.
pub fn put(engine: &Engine, key: &[u8], value: &[u8], options: &PutOptions) -> Result<Version> {
    engine.check_writable()?;
    check_key(key)?;
    check_length(value.len() as u64)?;
    let expires_ms = options.expiry.resolve(&engine.options.clock);
    let attributes = expiry::encode(&options.attributes, expires_ms)?;
    put_stored(engine, key, value, &attributes, options.condition, options.durability)
}

/// Puts one object whose attributes are in stored form.
fn put_stored(
    engine: &Engine,
    key: &[u8],
    value: &[u8],
    attributes: &[u8],
    condition: Condition,
    durability: Durability,
) -> Result<Version> {
    let bytes = value.len() as u64;
    if bytes >= engine.placement.large_from(key) {
        stall::hold_back(engine);
        // A caller that waits for the device anyway writes for itself.
        let behind = durability == Durability::Buffered;
        let write = || PendingLarge::write(engine, key, attributes, value, behind);
        let pending = stall::find_room(engine, write)?;
        return commit_large(engine, key, attributes, pending, condition, durability);
    }
    let record = Record::new(key, attributes, small_body(engine, value));
    commit_one(engine, record, condition, durability)
}

/// Where a small value's home is.
fn small_body<'a>(engine: &Engine, value: &'a [u8]) -> Body<'a> {
    if value.len() as u64 <= engine.options.tuning.inline_bytes_max {
        Body::PutInline { value }
    } else {
        Body::Put { value }
    }
}

/// Deletes one key.
pub fn delete(engine: &Engine, key: &[u8], condition: Condition, durability: Durability) -> Result<Version> {
    engine.check_writable()?;
    check_key(key)?;
    let record = Record::new(key, &[], Body::Delete);
    commit_one(engine, record, condition, durability)
}

/// Commits the record of a value that is in the large space.
pub fn commit_large(
    engine: &Engine,
    key: &[u8],
    attributes: &[u8],
    mut pending: PendingLarge<'_>,
    condition: Condition,
    durability: Durability,
) -> Result<Version> {
    PendingLarge::prepare(engine, &mut [&mut pending], durability)?;
    let committed = commit_record(
        engine,
        record_of_large(key, attributes, &pending),
        Some(&pending),
        condition,
        durability,
    )?;
    pending.committed(Version(committed.seq));
    finish(engine, committed)
}

/// The entry for a record, with the value at this home.
pub fn entry_at(record: &Record<'_>, home: Home, length: u64) -> Entry {
    Entry {
        version: Version(record.version()),
        length,
        checksum: record.checksum,
        home,
        attributes: Bytes::copy_from_slice(record.attributes),
        copy: None,
    }
}

/// The record of a key's value in the large space.
fn record_of_large<'a>(key: &'a [u8], attributes: &'a [u8], pending: &PendingLarge<'_>) -> Record<'a> {
    let extent = pending.extent();
    Record {
        checksum: pending.checksum(),
        ..Record::new(key, attributes, Body::PutLarge { extent })
    }
}

fn commit_one(engine: &Engine, record: Record<'_>, condition: Condition, durability: Durability) -> Result<Version> {
    finish(engine, commit_record(engine, record, None, condition, durability)?)
}

/// Returns when a commit is as durable as it must be.
fn finish(engine: &Engine, committed: Committed) -> Result<Version> {
    if committed.durability == Durability::Sync {
        engine.log.make_durable(committed.seq)?;
    }
    Ok(Version(committed.seq))
}

fn commit_record(
    engine: &Engine,
    record: Record<'_>,
    pending: Option<&PendingLarge<'_>>,
    condition: Condition,
    durability: Durability,
) -> Result<Committed> {
    let records = [(key_hash(record.key), record)];
    let conditions = [(record.key, Precheck::new(engine, record.key, condition)?)];
    let large_bytes = pending.map_or(0, |pending| pending.extent().length);
    let exchange = || Exchange {
        put_bytes: user_bytes(&records) + large_bytes,
        keys: vec![record.key],
        freed_bytes: 0,
    };
    let by = |commit: &Commit<'_>| match record.body {
        Body::Delete => commit(Committer::Freeing),
        _ => replace::commit(engine, exchange, commit),
    };
    commit_all(engine, &records, &conditions, pending.as_slice(), durability, by)
}

/// Bytes given by callers for records, without values in the large space.
fn user_bytes(records: &[(u64, Record<'_>)]) -> u64 {
    let bytes = |record: &Record<'_>| record.key.len() + record.attributes.len() + record.body.value().len();
    records.iter().map(|(_, record)| bytes(record) as u64).sum()
}

/// One key's part of a batch, placed and ready to commit.
struct Placed<'a> {
    operation: &'a Operation,
    attributes: Vec<u8>,
    pending: Option<PendingLarge<'a>>,
}

/// Commits a batch, whole or not at all.
pub fn write_batch(engine: &Engine, batch: &Batch, durability: Durability) -> Result<Version> {
    engine.check_writable()?;
    if batch.operations.is_empty() {
        return Err(Error::invalid("the batch is empty"));
    }
    let operations = last_of_each_key(batch)?;
    if operations.iter().any(|operation| is_large(engine, operation)) {
        stall::hold_back(engine);
    }
    let mut placed = place_all(engine, &operations)?;
    let pending = placed.iter_mut().filter_map(|placed| placed.pending.as_mut());
    PendingLarge::prepare(engine, &mut pending.collect::<Vec<_>>(), durability)?;
    let keys = || placed.iter().map(|placed| &placed.operation.key[..]).collect();
    let by = |commit: &Commit<'_>| replace::commit_batch(engine, batch, keys, commit);
    let committed = commit_placed(engine, batch, &placed, durability, Precheck::new, by)?;
    for pending in placed.into_iter().filter_map(|placed| placed.pending) {
        pending.committed(Version(committed.seq));
    }
    finish(engine, committed)
}

/// Operations of a batch: a later operation on a key replaces an earlier one.
///
/// # Errors
/// [`Error::Invalid`] for a bad key.
fn last_of_each_key(batch: &Batch) -> Result<Vec<&Operation>> {
    for operation in &batch.operations {
        check_key(&operation.key)?;
    }
    if let [operation] = &batch.operations[..] {
        return Ok(vec![operation]);
    }
    let mut last: HashMap<&[u8], usize> = HashMap::with_capacity(batch.operations.len());
    for (position, operation) in batch.operations.iter().enumerate() {
        last.insert(&operation.key, position);
    }
    let counted = batch.operations.iter().enumerate();
    let counted = counted.filter(|(position, operation)| last[&operation.key[..]] == *position);
    Ok(counted.map(|(_, operation)| operation).collect())
}

fn is_large(engine: &Engine, operation: &Operation) -> bool {
    operation.change.value_bytes() >= engine.placement.large_from(&operation.key)
}

fn place_all<'a>(engine: &'a Engine, operations: &[&'a Operation]) -> Result<Vec<Placed<'a>>> {
    operations.iter().map(|operation| place(engine, operation)).collect()
}

fn place<'a>(engine: &'a Engine, operation: &'a Operation) -> Result<Placed<'a>> {
    let (value, attributes) = match &operation.change {
        Change::Put {
            value,
            attributes,
            expiry,
        } => {
            let expires_ms = expiry.resolve(&engine.options.clock);
            (Some(value), expiry::encode(attributes, expires_ms)?)
        }
        Change::Delete => (None, Vec::new()),
    };
    let mut pending = None;
    if let Some(value) = value {
        check_length(value.len() as u64)?;
        if is_large(engine, operation) {
            // Even if the batch is to be durable, its values are written while the next ones are
            // copied.
            let write = || PendingLarge::write(engine, &operation.key, &attributes, value, true);
            pending = Some(stall::find_room(engine, write)?);
        }
    }
    Ok(Placed {
        operation,
        attributes,
        pending,
    })
}

/// Commits as one kind of committer.
type Commit<'a> = dyn Fn(Committer) -> Result<Committed> + 'a;

/// Commits a batch, as the kind of committer that `by` chooses. All conditions are evaluated on the
/// state before the batch, which `precheck` reads from the index.
fn commit_placed<'e>(
    engine: &'e Engine,
    batch: &Batch,
    placed: &'e [Placed<'_>],
    durability: Durability,
    precheck: impl Fn(&'e Engine, &[u8], Condition) -> Result<Precheck<'e>>,
    by: impl FnOnce(&Commit<'_>) -> Result<Committed>,
) -> Result<Committed> {
    let record = |placed: &'e Placed<'_>| {
        let key = &placed.operation.key[..];
        let record = match (&placed.operation.change, &placed.pending) {
            (_, Some(pending)) => record_of_large(key, &placed.attributes, pending),
            (Change::Put { value, .. }, None) => Record::new(key, &placed.attributes, small_body(engine, value)),
            (Change::Delete, None) => Record::new(key, &placed.attributes, Body::Delete),
        };
        (key_hash(key), record)
    };
    let records: Vec<_> = placed.iter().map(record).collect();
    let conditions = batch
        .operations
        .iter()
        .filter(|operation| operation.condition != Condition::None)
        .map(|operation| {
            let precheck = precheck(engine, &operation.key, operation.condition)?;
            Ok((&operation.key[..], precheck))
        })
        .collect::<Result<Vec<_>>>()?;
    let pending: Vec<_> = placed.iter().filter_map(|placed| placed.pending.as_ref()).collect();
    commit_all(engine, &records, &conditions, &pending, durability, by)
}

/// Commits records together, as the kind of committer that `by` chooses, if none of the conditions
/// refuses it.
fn commit_all(
    engine: &Engine,
    records: &[(u64, Record<'_>)],
    conditions: &[(&[u8], Precheck<'_>)],
    pending: &[&PendingLarge<'_>],
    durability: Durability,
    by: impl FnOnce(&Commit<'_>) -> Result<Committed>,
) -> Result<Committed> {
    let large_turn = pending.iter().map(|pending| pending.turn()).max().unwrap_or(0);
    let decide = || {
        let mut judged = Judged::default();
        for (key, precheck) in conditions {
            let one = precheck.decide(engine, key)?;
            judged.rests_on = judged.rests_on.max(one.rests_on);
            judged.refusal = judged.refusal.or(one.refusal);
        }
        if judged.refusal.is_none() {
            // From now on the frame of this commit waits for these values.
            pending.iter().for_each(|pending| pending.enter());
        }
        Ok(judged)
    };
    let commit = |committer| {
        let commit = |records: &[_], decide: &dyn Fn() -> Result<Judged>| {
            engine.log.commit_as(committer, durability, records, large_turn, decide)
        };
        if active(Mutation::BatchInOneCommit) {
            commit_one_by_one(records, &decide, commit)
        } else {
            commit(records, &decide)
        }
    };
    let committed = by(&commit)?;
    count(&engine.metrics.user_bytes, user_bytes(records));
    Ok(committed)
}

/// The behaviour under [`Mutation::BatchInOneCommit`]: each record is a commit of its own.
fn commit_one_by_one<T>(
    records: &[T],
    decide: &dyn Fn() -> Result<Judged>,
    commit: impl Fn(&[T], &dyn Fn() -> Result<Judged>) -> Result<Committed>,
) -> Result<Committed> {
    let (first, others) = records.split_at(1);
    let mut committed = commit(first, decide)?;
    for record in others {
        committed = commit(std::slice::from_ref(record), &|| Ok(Judged::default()))?;
    }
    Ok(committed)
}
