//! The threads of an open store. Each does one thing and holds no state that matters: what they do is decided by the log,
//! the index and the ring.

use crate::{
    Error, Result,
    engine::Engine,
    flash_cache::{Promoter, read_ahead},
    hash_index::checkpoint,
    maintenance::{block_gc::Cleaner, expire::Sweeper, log_gc::Recycler, migrate::Settler},
    write::apply::Applier,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Buffered commits are durable after this long at the latest when the store is quiet.
const SYNC_WHEN_IDLE: Duration = Duration::from_secs(1);
/// Wait before trying again what a full device refused.
const RETRY: Duration = Duration::from_millis(500);
/// How long the index is left as it is before it is looked at what readers have paid for.
const READERS_IDLE: Duration = Duration::from_millis(200);
/// How long cleaning waits before it looks at the blocks again.
const CLEAN_IDLE: Duration = Duration::from_millis(100);
/// Wait before looking whether values are to be moved because of the rules.
const SETTLE_IDLE: Duration = Duration::from_millis(200);
/// Wait before a walk over the index begins anew after a failure: it may be a long one.
const SWEEP_RETRY: Duration = Duration::from_secs(5);

/// Threads that nobody waits for as long as there is room.
const GENTLE: [&str; 4] = ["terrace-compact", "terrace-recycle", "terrace-promote", "terrace-sweep"];
/// How much they stand back, from 0 to 19.
const NICENESS: i32 = 5;

/// Starts the threads of a store.
///
/// # Errors
/// If a thread cannot be started.
pub fn start(engine: &Arc<Engine>) -> Result<Vec<JoinHandle<()>>> {
    let applier = Applier::new(Arc::clone(engine))?;
    let mut threads = vec![spawn(engine, "terrace-apply", move || applier.run())?];
    if !engine.options.read_only {
        for (name, body) in [
            ("terrace-flush", flush as fn(&Arc<Engine>)),
            ("terrace-index", flush_index),
            ("terrace-compact", compact_index),
            ("terrace-recycle", recycle),
            ("terrace-clean", clean),
            ("terrace-promote", promote),
            ("terrace-ahead", |engine| read_ahead(engine)),
            ("terrace-warm", warm),
            ("terrace-sweep", sweep),
            ("terrace-checkpoint", checkpoint::run),
        ] {
            let its = Arc::clone(engine);
            threads.push(spawn(engine, name, move || body(&its))?);
        }
        // Now, since what is written from here on is placed by the rules that it notes.
        let settler = Settler::new(Arc::clone(engine));
        let its = Arc::clone(engine);
        threads.push(spawn(engine, "terrace-settle", move || settle(&its, settler))?);
    }
    Ok(threads)
}

/// Lets other threads go first, on the processor and, where the kernel's I/O scheduler knows priorities, at the devices: it derives them
/// from this one. Where that is not allowed everything works all the same.
fn be_gentle() {
    let this = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(this), NICENESS);
}

/// A thread that ends by a panic ends all writing: what it did for the store is done by nobody any more.
fn spawn(engine: &Arc<Engine>, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let engine = Arc::clone(engine);
    let guarded = move || {
        if GENTLE.contains(&name) {
            be_gentle();
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            engine
                .log
                .writer
                .fail(&format!("the thread {name} panicked: a bug, please report it"));
            engine.log.notify_progress();
            resume_unwind(panic);
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
        .map_err(|error| Error::io(format!("start the thread {name}"), &error))
}

/// Writes frames that are full or old enough.
fn flush(engine: &Arc<Engine>) {
    let log = &engine.log;
    let mut busy_at = Instant::now();
    while !log.is_closed() {
        match log.flush_turn(engine.options.coalesce_interval, Duration::from_millis(100)) {
            Ok(true) => busy_at = Instant::now(),
            Ok(false) => {
                if log.writer.backlog().1 > 0 && busy_at.elapsed() >= SYNC_WHEN_IDLE {
                    // An error is kept by the writer and reported to the next commit.
                    let _ = log.make_durable(log.committed_seq());
                }
            }
            Err(_) => engine.pause(RETRY),
        }
    }
}

/// Flushes sealed memtables. The applier made the log durable up to their marks before it sealed them.
fn flush_index(engine: &Arc<Engine>) {
    let mut seen = 0;
    while !engine.log.is_closed() {
        if engine.index.sealed_count() == 0 {
            engine.wait_for_index_work(&mut seen, Duration::from_millis(200));
            continue;
        }
        let Err(error) = flush_index_once(engine) else { continue };
        if let Error::OutOfSpace { reason, .. } = &error {
            tracing::warn!(%error, "the index cannot be flushed; writes will be refused when memory is used up");
            engine.log.index_full.flush_ended(Some(reason.clone()));
        } else {
            engine.log.writer.fail(&format!("flushing the index: {error}"));
        }
        engine.pause(RETRY);
    }
}

/// One flush of what is sealed.
///
/// # Errors
/// The log's or the index's.
pub fn flush_index_once(engine: &Engine) -> Result<()> {
    let mark = engine.index.flush_sealed(engine.watermark_seq())?;
    engine.log.index_full.flush_ended(None);
    if let Some(mark) = mark {
        engine.persisted_seq.fetch_max(mark.applied_seq, Ordering::AcqRel);
        tracing::debug!(seq = mark.applied_seq, "flushed the index");
        engine.log.notify_progress();
        engine.wake_recycler();
    }
    Ok(())
}

/// Does what the index needs to be merged, then what readers have paid for.
fn compact_index(engine: &Arc<Engine>) {
    let mut seen = 0;
    let mut committed_seq = 0;
    while !engine.log.is_closed() {
        let watermark = engine.watermark_seq();
        if let Err(error) = engine.index.forget_states(watermark) {
            tracing::warn!(%error, "files of the index that nobody needs are still there; trying again");
        }
        let compacted = engine.index.compact(watermark);
        match compacted.map(|changed| changed || merge_for_readers(engine, watermark)) {
            Ok(true) => {
                tracing::debug!("compacted the index");
                engine.log.index_full.compaction_ended(None);
            }
            Ok(false) => {
                engine.log.index_full.compaction_ended(None);
                let before = std::mem::replace(&mut committed_seq, engine.log.committed_seq());
                if before == committed_seq && engine.index.take_fare_of_flush() {
                    engine.want_mark();
                }
                engine.wait_for_index_work(&mut seen, READERS_IDLE);
            }
            Err(error) => {
                if let Error::OutOfSpace { reason, .. } = &error {
                    engine.log.index_full.compaction_ended(Some(reason.clone()));
                }
                tracing::warn!(%error, "compacting the index failed; trying again");
                engine.pause(RETRY);
            }
        }
    }
}

/// Nothing but readers' time depends on it: a device that is full is not made fuller for that, and a failure is none of anybody else's.
fn merge_for_readers(engine: &Engine, watermark: u64) -> bool {
    let has_room = engine.log.index_full.reason().is_none();
    has_room
        && engine.index.merge_for_readers(watermark).unwrap_or_else(|error| {
            tracing::warn!(%error, "merging the index for readers failed");
            false
        })
}

/// Ends when it is done.
fn warm(engine: &Arc<Engine>) {
    let is_over = || engine.log.is_closing();
    engine.index.warm(is_over);
    engine.large.warm(is_over, |work| engine.large_step(0, work));
}

fn promote(engine: &Arc<Engine>) {
    Promoter::new(Arc::clone(engine)).run();
}

fn recycle(engine: &Arc<Engine>) {
    let mut recycler = Recycler::new(Arc::clone(engine));
    while !engine.log.is_closed() {
        match recycler.turn() {
            Ok(true) => {}
            Ok(false) => engine.wait_for_recycle_work(Duration::from_millis(50)),
            Err(error) => {
                tracing::warn!(%error, "recycling is held up");
                engine.pause(RETRY);
            }
        }
    }
}

fn clean(engine: &Arc<Engine>) {
    let mut cleaner = Cleaner::new(Arc::clone(engine));
    while !engine.log.is_closed() {
        match cleaner.turn() {
            Ok(true) => {}
            Ok(false) => engine.cleaning.wait_for_work(CLEAN_IDLE),
            Err(error) => {
                cleaner.failed();
                if !engine.log.is_closing() {
                    tracing::warn!(%error, "cleaning is held up");
                }
                engine.pause(RETRY);
            }
        }
    }
}

fn settle(engine: &Arc<Engine>, mut settler: Settler) {
    while !engine.log.is_closed() {
        match settler.turn() {
            Ok(true) => {}
            Ok(false) => engine.pause(SETTLE_IDLE),
            Err(error) => {
                if !engine.log.is_closing() {
                    tracing::warn!(%error, "moving values to where they belong is held up");
                }
                engine.pause(SWEEP_RETRY);
            }
        }
    }
}

fn sweep(engine: &Arc<Engine>) {
    let mut sweeper = Sweeper::new(Arc::clone(engine));
    while !engine.log.is_closed() {
        match sweeper.turn() {
            Ok(true) => {}
            Ok(false) => {
                let soon = engine.log.ranges.count() > 0;
                engine.pause(Duration::from_millis(if soon { 2 } else { 50 }));
            }
            Err(error) => {
                if !engine.log.is_closing() {
                    tracing::warn!(%error, "sweeping is held up");
                }
                engine.pause(SWEEP_RETRY);
            }
        }
    }
}
