//! Deletes a key range by one record, for any number of keys. The range is added to the set of the
//! log inside its commit; expiry removes the entries later.
//!
//! On failure: as any commit. If expiry cannot keep up, the call waits for it before it commits
//! anything.

use super::finish;

use crate::log::commit::{Committed, Committer, Judged};
use crate::{
    Durability, Error, Result, ScanRange, Version,
    engine::Engine,
    key_hash,
    log::format::{Body, Record},
    metrics::stalls::StallReason,
    visibility::range_tombstones,
};
use parking_lot::MutexGuard;
use std::time::{Duration, Instant};

/// How long a call waits for expiry to forget a range.
const SWEEP_WAIT_MAX: Duration = Duration::from_secs(60);

/// Deletes all objects in a range.
///
/// # Errors
/// As for a delete; [`Error::Unavailable`] if too many ranges are outstanding for too long.
pub fn delete_range(engine: &Engine, range: &ScanRange, durability: Durability) -> Result<Version> {
    engine.check_writable()?;
    let Some((start, end)) = range_tombstones::first_and_end(range) else {
        return nothing(engine, durability);
    };
    let admission = admit(engine, SWEEP_WAIT_MAX)?;
    let record = Record::new(&start, &[], Body::DeleteRange { end: &end });
    let records = [(key_hash(&start), record)];
    let judge = || Ok(Judged::default());
    let committed = engine
        .log
        .commit_as(Committer::Freeing, durability, &records, 0, judge)?;
    drop(admission);
    finish(engine, committed)
}

/// No key can be in the range. The version is that of the last commit, which is durable on return
/// if that was requested.
fn nothing(engine: &Engine, durability: Durability) -> Result<Version> {
    let seq = engine.log.committed_seq();
    finish(engine, Committed { seq, durability })
}

/// The turn to commit a range, once there is room for it. A caller that waits for room does not
/// keep others from waiting.
fn admit(engine: &Engine, wait_max: Duration) -> Result<MutexGuard<'_, ()>> {
    let (began, log) = (Instant::now(), &engine.log);
    let look = || match log.ranges.has_room() {
        true => Ok(Some(())),
        false if began.elapsed() >= wait_max => Err(Error::Unavailable(
            "too many range deletions wait for expiry, which makes no progress; see the log",
        )),
        false => Ok(None),
    };
    loop {
        if !log.ranges.has_room() {
            log.stall(StallReason::Ranges, &log.progress, look)?;
        }
        let admission = log.ranges.admit();
        if log.ranges.has_room() {
            return Ok(admission);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Options, PutOptions, Store, visibility::range_tombstones::DeletedRange};

    /// Regression: callers waited for expiry while holding the turn: of several, each began to wait
    /// when the one before gave up.
    #[test]
    fn callers_wait_for_room_side_by_side() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let engine = store.engine();
        // No sweep begins before such commits are applied.
        let far = |n| u64::MAX / 2 + n;
        for n in 0..range_tombstones::RANGES_MAX as u64 {
            let (start, end) = ([b"a".as_slice(), &n.to_be_bytes()].concat(), b"b".to_vec());
            let range = DeletedRange {
                seq: far(n),
                start: start.into(),
                end: end.into(),
            };
            engine.log.ranges.add(range, Durability::Buffered);
        }
        let (told, answer) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| admit(engine, Duration::from_secs(3600)).map(drop));
            // Callers with short timeouts are refused while that one continues to wait.
            scope.spawn(move || {
                for _ in 0..20 {
                    let _ = told.send(admit(engine, Duration::ZERO).map(drop));
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let answers: Vec<_> = (0..20)
                .map_while(|_| answer.recv_timeout(Duration::from_secs(60)).ok())
                .collect();
            engine.log.ranges.forget(&[far(0)]);
            patient.join().unwrap().unwrap();
            assert_eq!(answers.len(), 20, "they waited for the turn");
            let is_refused = |answer: &Result<()>| matches!(answer, Err(Error::Unavailable(_)));
            assert!(answers.iter().all(is_refused), "{answers:?}");
        });
        let stalled = store.stats().stalls[StallReason::Ranges as usize];
        assert_eq!(
            (stalled.count, stalled.waiting),
            (1, 0),
            "a caller that was refused at once has not waited"
        );
        drop(admit(engine, Duration::from_secs(60)).unwrap());
    }

    /// The version returned was that of the last commit, buffered or not, and the caller took it
    /// for durable because durability was requested.
    #[test]
    fn nothing_to_delete_makes_durable_what_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buffered = PutOptions {
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        let put = store.put_with("k", "v", &buffered).unwrap();
        let nothing = ScanRange::range("b".."a");
        let version = store.delete_range(nothing, Durability::Sync).unwrap();
        assert_eq!(version, put);
        assert!(store.stats().queue.durable_seq >= version.0);
    }
}
