//! Writes that free more than they add, on a full device.
//!
//! New data is refused there, and a delete may use the reserve. A write that replaces at least
//! twice its own length frees room as well, but leaves live data in the log: so there are segments
//! of the reserve for such writes, separate from those of deletes (`log::commit::room`). Whether a
//! write is one is looked up only where there is no room: after it was refused as an ordinary one,
//! or before, where it would wait in vain until then.

use crate::{
    Batch, Error, Result, Tier,
    engine::Engine,
    log::commit::{Committed, Committer},
};

/// A write must free this many times its length.
const FACTOR: u64 = 2;

/// Bytes that a write takes and frees.
#[derive(Debug, Clone)]
pub struct Exchange<'a> {
    /// Bytes of keys, values and attributes that it puts.
    pub put_bytes: u64,
    /// Keys whose values it replaces or deletes.
    pub keys: Vec<&'a [u8]>,
    /// Bytes that its caller declares to free elsewhere.
    pub freed_bytes: u64,
}

impl Exchange<'_> {
    /// Whether it frees room, judged by the entries of its keys in the index.
    fn makes_room(&self, engine: &Engine) -> Result<bool> {
        let mut freed_bytes = self.freed_bytes;
        for key in &self.keys {
            freed_bytes += engine.index.get(key)?.map_or(0, |entry| entry.length);
        }
        Ok(freed_bytes >= self.put_bytes.saturating_mul(FACTOR))
    }
}

/// Commits a batch with these keys: as one that frees space if it does, else as an ordinary one.
///
/// # Errors
/// As [`commit`].
pub fn commit_batch<'a>(
    engine: &Engine,
    batch: &Batch,
    keys: impl FnOnce() -> Vec<&'a [u8]>,
    commit_as: impl Fn(Committer) -> Result<Committed>,
) -> Result<Committed> {
    if batch.frees_space() {
        return commit_as(Committer::Freeing);
    }
    let exchange = || Exchange {
        put_bytes: batch.put_bytes() as u64,
        keys: keys(),
        freed_bytes: batch.freed_bytes,
    };
    commit(engine, exchange, commit_as)
}

/// Commits as a caller's write, and if the log has no room for that, as one that frees room. The
/// values it replaces are looked up only then.
///
/// If the log was seen to be full it commits as one that frees room immediately: otherwise each
/// would wait until log GC has found again, after the previous commit, that it can free nothing.
///
/// # Errors
/// Errors of `commit` or of the index.
pub fn commit<'a>(
    engine: &Engine,
    exchange: impl FnOnce() -> Exchange<'a>,
    commit: impl Fn(Committer) -> Result<Committed>,
) -> Result<Committed> {
    let is_full = |outcome: &Result<Committed>| matches!(outcome, Err(Error::OutOfSpace { tier: Tier::Flash, .. }));
    if engine.log.has_been_full() {
        if exchange().makes_room(engine)? {
            let replaced = commit(Committer::Replacing);
            if !is_full(&replaced) {
                return replaced;
            }
        }
        return commit(Committer::User);
    }
    let outcome = commit(Committer::User);
    if is_full(&outcome) && exchange().makes_room(engine)? {
        return commit(Committer::Replacing);
    }
    outcome
}
