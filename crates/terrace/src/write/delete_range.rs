//! Deletes a range of keys by one record, whatever is in it. The range joins the set of the log inside its commit; the sweeper
//! takes the entries out later.
//!
//! On failure: as any commit. If the sweeper cannot keep up, the call waits for it before it commits anything.

use crate::log::commit::Committer;
use crate::{
    Durability, Error, Result, ScanRange, Version,
    engine::Engine,
    key_hash,
    log::format::{Body, Record},
    mutation::{Mutation, unless},
    visibility::range_tombstones,
};
use std::time::{Duration, Instant};

/// How long a call waits for the sweeper to forget a range.
const SWEEP_WAIT_MAX: Duration = Duration::from_secs(60);

/// Deletes all objects in a range.
///
/// # Errors
/// As for a delete; [`Error::Unavailable`] if too many ranges are outstanding for too long.
pub fn delete_range(engine: &Engine, range: &ScanRange, durability: Durability) -> Result<Version> {
    engine.check_writable()?;
    let Some((start, end)) = range_tombstones::first_and_end(range) else {
        return Ok(Version(engine.log.committed_seq()));
    };
    let admission = engine.log.ranges.admit();
    wait_for_room(engine)?;
    let record = Record {
        seq: 0,
        generation: 0,
        key: &start,
        attributes: &[],
        checksum: crc32c::crc32c(&end),
        body: Body::DeleteRange { end: &end },
    };
    let records = [(key_hash(&start), record)];
    let seq = engine.log.commit(Committer::Freeing, &records, 0, || Ok(()))?;
    drop(admission);
    if durability == Durability::Sync {
        unless(Mutation::CommitSync, || engine.log.make_durable(seq))?;
    }
    Ok(Version(seq))
}

fn wait_for_room(engine: &Engine) -> Result<()> {
    let deadline = Instant::now() + SWEEP_WAIT_MAX;
    engine.log.wait_until(|| {
        if engine.log.ranges.has_room() {
            return Ok(true);
        }
        if engine.log.is_closing() {
            return Err(Error::Unavailable("the store is closed"));
        }
        if Instant::now() >= deadline {
            return Err(Error::Unavailable(
                "too many range deletions wait for the sweeper, which makes no progress; see the log",
            ));
        }
        Ok(false)
    })
}
