//! The threads of an open store. Each has one task and no state of importance: their decisions
//! follow from the log, the index and the ring.

use crate::{
    Error, Result,
    api::clock::NEVER_MS,
    blocks::LARGE_GATHER_MAX,
    engine::Engine,
    io::threads,
    maintenance::{
        block_gc::BlockGc, checkpoint, expire::Expirer, log_gc::LogGc, migrate::Migrator, mirror::Mirroring,
        order::Orderer, prefetch, promote::Promoter,
    },
    write::apply::Applier,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Buffered commits are durable after at most this time when the store is idle.
const SYNC_WHEN_IDLE: Duration = Duration::from_secs(1);
/// Wait before retrying an operation that failed on a full device.
const RETRY: Duration = Duration::from_millis(500);
/// If the index's first level has this many runs beyond those that are merged together, a merge may
/// use the reserve: a third of the number at which the applier waits.
const URGENT_RUNS: usize = 7;
/// Interval at which the charges of readers are checked while the index needs no merge.
const READERS_IDLE: Duration = Duration::from_millis(200);
/// The same while the store is idle: scans raise its event, charged gets do not.
const READERS_IDLE_MAX: Duration = Duration::from_secs(1);
/// Interval at which it checks for written frames to sync, and for new ones.
const FLUSH_IDLE: Duration = Duration::from_millis(100);
/// Interval at which it checks for segments to recycle, and for blocks to seal or delete.
const LOG_GC_IDLE: Duration = Duration::from_millis(50);
/// How long block GC waits before it checks the blocks again.
const BLOCK_GC_IDLE: Duration = Duration::from_millis(100);
/// Interval at which it checks whether objects have expired,
const EXPIRE_IDLE: Duration = Duration::from_millis(50);
/// the same while the store is idle, if any object expires at all,
const EXPIRY_IDLE_MAX: Duration = Duration::from_secs(1);
/// and whether a swept range can be forgotten.
const RANGES_IDLE: Duration = Duration::from_millis(2);
/// A store is idle when nothing has happened for this long: longer than any wait between two steps
/// of log GC and block GC.
const AT_REST_AFTER: Duration = Duration::from_secs(3);
/// Everything that creates work raises the store's event. So this is the maximum sleep of a worker
/// that was not woken, for changes without an event, such as a snapshot that exceeds its age limit.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Interval at which it checks for values to move because of changed rules, or of scans.
const MIGRATE_IDLE: Duration = Duration::from_millis(50);
/// Wait before a merge that met damage is tried again: it will most likely meet it again.
const DAMAGE_RETRY: Duration = Duration::from_secs(10);
/// Wait before a walk over the index starts over after a failure, since it may be long.
const WALK_RETRY: Duration = Duration::from_secs(5);

/// Threads that no caller waits for as long as there is room.
const GENTLE: [&str; 4] = ["terrace-compact", "terrace-log-gc", "terrace-promote", "terrace-expire"];
/// Their nice value, from 0 to 19.
const NICENESS: i32 = 5;

/// Starts the threads of a store, and adds each to `threads`.
///
/// # Errors
/// If a thread cannot be started. Those in `threads` run by then, and must be ended before the
/// store is opened again.
pub fn start(engine: &Arc<Engine>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
    // Before any thread that writes: it records the rules by which values are placed from here on.
    let migrator = (!engine.options.read_only).then(|| Migrator::new(Arc::clone(engine)));
    let applier = Applier::new(Arc::clone(engine))?;
    threads.push(spawn(engine, "terrace-apply", move || applier.run())?);
    if let Some(migrator) = migrator {
        for (name, body) in [
            ("terrace-flush", flush as fn(&Arc<Engine>)),
            ("terrace-index", flush_index),
            ("terrace-compact", compact_index),
            ("terrace-log-gc", log_gc),
            ("terrace-block-gc", block_gc),
            ("terrace-promote", |engine| Promoter::new(Arc::clone(engine)).run()),
            ("terrace-prefetch", |engine| prefetch::run(engine)),
            ("terrace-preload", preload),
            ("terrace-expire", expire),
            ("terrace-checkpoint", checkpoint),
        ] {
            let its = Arc::clone(engine);
            threads.push(spawn(engine, name, move || body(&its))?);
        }
        let its = Arc::clone(engine);
        threads.push(spawn(engine, "terrace-migrate", move || migrate(&its, migrator))?);
    }
    Ok(())
}

/// Lowers the thread's priority, on the processor and, where the kernel's I/O scheduler has
/// priorities, at the devices: it derives them from this one. If that is not allowed, nothing else
/// changes.
fn be_gentle() {
    let this = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(this), NICENESS);
}

/// A thread that panics stops all writing, since its work is no longer done.
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
    threads::start(name, guarded).map_err(|error| Error::io(format!("start the thread {name}"), &error))
}

/// The next step of a worker.
pub enum Next {
    /// Its next turn.
    Again,
    /// The same, after this time.
    In(Duration),
    /// Nothing to do. It checks again after `soon` while the store is in use, and after `late` or
    /// at the next event once the store is idle.
    Look { soon: Duration, late: Duration },
}

impl Next {
    /// Nothing to do, and no work that only depends on time.
    pub const fn look(soon: Duration) -> Self {
        Self::Look { soon, late: IDLE_MAX }
    }
}

/// Runs turns until the store is closed. `rest` waits while the store is in use.
fn work(engine: &Engine, mut rest: impl FnMut(Duration), mut turn: impl FnMut() -> Next) {
    let activity = &engine.log.activity;
    let mut seen = activity.count();
    let mut busy_at = Instant::now();
    loop {
        // Before any check: an event from here on ends the wait, including the end of the store.
        let now = activity.count();
        if engine.log.is_closed() {
            return;
        }
        if now != seen {
            (seen, busy_at) = (now, Instant::now());
        }
        match turn() {
            Next::Again => busy_at = Instant::now(),
            Next::In(wait) => engine.pause(wait),
            Next::Look { late, .. } if busy_at.elapsed() >= AT_REST_AFTER => activity.wait_beyond(seen, late),
            Next::Look { soon, .. } => rest(soon),
        }
    }
}

/// The next step after a turn that returns whether it found something to do.
fn after(outcome: Result<bool>, engine: &Engine, what: &str, idle: Next, retry: Duration) -> Next {
    match outcome {
        Ok(true) => Next::Again,
        Ok(false) => idle,
        Err(error) => {
            if !engine.log.is_closing() {
                tracing::warn!(%error, "{what} is held up");
            }
            Next::In(retry)
        }
    }
}

/// Writes frames that are full or old enough. Woken when a frame is begun or sealed.
fn flush(engine: &Arc<Engine>) {
    let log = &engine.log;
    let mut busy_at = Instant::now();
    while !log.is_closed() {
        let is_all_durable = log.writer.backlog().1 == 0;
        let idle = if is_all_durable { IDLE_MAX } else { FLUSH_IDLE };
        let interval = engine.options.tuning.coalesce_interval;
        // On a disk that seeks, each sync of values costs readers several seeks.
        let of_large = || {
            if engine.large.seeks() {
                interval.max(LARGE_GATHER_MAX)
            } else {
                interval
            }
        };
        match log.flush_turn(interval, of_large, idle) {
            Ok(true) => busy_at = Instant::now(),
            Ok(false) => {
                if log.writer.backlog().1 > 0 && busy_at.elapsed() >= SYNC_WHEN_IDLE {
                    // The writer keeps an error and returns it to the next commit.
                    let _ = log.make_durable(log.committed_seq());
                }
            }
            Err(_) => engine.pause(RETRY),
        }
    }
}

/// Flushes sealed memtables. The applier has made the log durable up to their marks before sealing
/// them.
fn flush_index(engine: &Arc<Engine>) {
    let mut seen = 0;
    while !engine.log.is_closed() {
        if engine.index.sealed_count() == 0 {
            engine.index_work.wait(&mut seen, IDLE_MAX);
            continue;
        }
        let Err(error) = flush_index_once(engine) else { continue };
        if let Error::OutOfSpace { reason, .. } = &error {
            if engine.log.reserve.give_up() {
                continue;
            }
            if engine.log.index_full.flush_ended(Some(reason.clone())) {
                tracing::warn!(%error, "the index cannot be flushed; writes will be refused when memory is used up");
            }
        } else if matches!(error, Error::Unavailable(_)) && !engine.log.is_closing() {
            tracing::warn!(%error, "the index is not flushed; trying again");
        } else {
            engine.log.writer.fail(&format!("flushing the index: {error}"));
        }
        engine.pause(RETRY);
    }
}

/// One flush of the sealed memtables.
///
/// # Errors
/// Errors of the log or the index.
pub fn flush_index_once(engine: &Engine) -> Result<()> {
    engine.check_place_of_index()?;
    let mark = engine.index.flush_sealed(engine.watermark_seq())?;
    engine.log.index_full.flush_ended(None);
    if let Some(mark) = mark {
        engine.persisted_seq.fetch_max(mark.applied_seq, Ordering::AcqRel);
        engine.share_flash();
        tracing::debug!(seq = mark.applied_seq, "flushed the index");
        if engine.mark_wanted.load(Ordering::Acquire) > mark.applied_seq {
            engine.log.wake_applier();
        }
        engine.log.notify_progress();
        engine.recycle_work.raise();
    }
    Ok(())
}

/// Does the merges that the index needs, then those that only help readers.
fn compact_index(engine: &Arc<Engine>) {
    let mut seen = 0;
    let mut committed_seq = 0;
    let rest = |wait| engine.index_work.wait(&mut seen, wait);
    work(engine, rest, || {
        let watermark = engine.watermark_seq();
        let compacted = engine.check_place_of_index().and_then(|()| {
            if let Err(error) = engine.index.forget_states(watermark) {
                tracing::warn!(%error, "files of the index that are no longer needed are still there; trying again");
            }
            engine.index.compact(watermark)
        });
        match compacted.map(|changed| changed || merge_for_scans(engine, watermark)) {
            Ok(true) => {
                engine.share_flash();
                tracing::debug!("compacted the index");
                engine.log.index_full.compaction_ended(None);
                Next::Again
            }
            Ok(false) => {
                engine.log.index_full.compaction_ended(None);
                let before = std::mem::replace(&mut committed_seq, engine.log.committed_seq());
                let is_paid = before == committed_seq && engine.index.take_fare_of_flush();
                if is_paid || engine.index.wants_tombstones_flushed() {
                    engine.want_mark(engine.log.applied_seq());
                }
                Next::Look {
                    soon: READERS_IDLE,
                    late: READERS_IDLE_MAX,
                }
            }
            Err(error) => {
                if let Error::OutOfSpace { reason, .. } = &error {
                    if engine.index.runs_behind() >= URGENT_RUNS && engine.log.reserve.give_up() {
                        return Next::Again;
                    }
                    if !engine.log.index_full.compaction_ended(Some(reason.clone())) {
                        // The warning was logged when the device became full.
                        return Next::In(RETRY);
                    }
                }
                tracing::warn!(%error, "compacting the index failed; trying again");
                let is_damage = matches!(error, Error::Corruption { .. });
                Next::In(if is_damage { DAMAGE_RETRY } else { RETRY })
            }
        }
    });
}

/// Merges charged to deletions and to readers. Only the latency of reads depends on them: they do
/// not use the space of a full device, and a failure does not affect other work.
fn merge_for_scans(engine: &Engine, watermark: u64) -> bool {
    let index = &engine.index;
    if engine.log.index_full.reason().is_some() || !engine.log.reserve.is_whole() {
        return false;
    }
    let merge = || Ok(index.merge_for_tombstones(watermark)? || index.merge_for_readers(watermark)?);
    merge().unwrap_or_else(|error: Error| {
        tracing::warn!(%error, "merging the index for readers failed");
        false
    })
}

/// Runs once, until it is done.
fn preload(engine: &Arc<Engine>) {
    let is_over = || engine.log.is_closing();
    engine.index.warm(is_over);
    engine.large.warm(is_over, |work| engine.large_step(0, work));
}

fn log_gc(engine: &Arc<Engine>) {
    let mut gc = LogGc::new(Arc::clone(engine));
    // Events raised during the turn do not count: otherwise an urgent turn would request the next
    // mark at once, with every flush.
    let rest = |wait| engine.recycle_work.wait_beyond(engine.recycle_work.count(), wait);
    work(engine, rest, || {
        engine.look_at_fill();
        after(gc.turn(), engine, "recycling", Next::look(LOG_GC_IDLE), RETRY)
    });
}

fn block_gc(engine: &Arc<Engine>) {
    let mut gc = BlockGc::new(Arc::clone(engine));
    let rest = |wait| engine.block_gc.wait_for_work(engine.has_held_writers(), wait);
    work(engine, rest, || {
        let outcome = match gc.turn_within_its_room() {
            Err(Error::OutOfSpace { .. }) if engine.log.reserve.is_shared() && engine.log.reserve.give_up() => Ok(true),
            outcome => outcome.inspect_err(|_| engine.block_gc.failed()),
        };
        after(outcome, engine, "cleaning", Next::look(BLOCK_GC_IDLE), RETRY)
    });
}

fn migrate(engine: &Arc<Engine>, mut migrator: Migrator) {
    let what = "moving values to where they belong";
    let rest = |wait| engine.pause(wait);
    let mut orderer = Orderer::new(Arc::clone(engine));
    work(engine, rest, || {
        let outcome = orderer.turn().and_then(|moved| Ok(migrator.turn()? || moved));
        after(outcome, engine, what, Next::look(MIGRATE_IDLE), WALK_RETRY)
    });
}

fn expire(engine: &Arc<Engine>) {
    let mut expirer = Expirer::new(Arc::clone(engine));
    let rest = |wait| engine.pause(wait);
    work(engine, rest, || {
        let outcome = expirer.turn();
        let has_ranges = engine.log.ranges.count() > 0;
        let may_expire = engine.expiring.earliest_ms() < NEVER_MS;
        let idle = Next::Look {
            soon: if has_ranges { RANGES_IDLE } else { EXPIRE_IDLE },
            late: if may_expire { EXPIRY_IDLE_MAX } else { IDLE_MAX },
        };
        after(outcome, engine, "sweeping", idle, WALK_RETRY)
    });
}

/// Checkpoints of the hash index, and between them copies of the ordered one's tables.
fn checkpoint(engine: &Arc<Engine>) {
    let rest = |wait| engine.pause(wait);
    let mut mirroring = Mirroring::default();
    work(engine, rest, || match checkpoint::turn(engine) {
        Next::Look { .. } if mirroring.turn(engine) => Next::Again,
        next => next,
    });
}
