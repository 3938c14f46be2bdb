//! When a commit is visible: a `Buffered` one immediately, a `Sync` one when it is durable.
//!
//! Invariant: the commits of one key become visible in the order of their seqs, and no visible
//! commit depends on one that is not. So a `Buffered` commit that would break this is made a `Sync`
//! one.

use super::CommitLog;
use crate::{
    Durability, Error,
    log::format::{Body, Record},
    mutation::{Mutation, active},
};
use std::sync::atomic::Ordering;

/// Result of the conditions of a commit.
#[derive(Debug, Default)]
pub struct Judged {
    /// Why it is refused; `None` if it is not.
    pub refusal: Option<Error>,
    /// The newest commit that is not visible yet and on which the result depends; 0 if there is
    /// none.
    pub rests_on: u64,
}

/// A completed commit.
#[derive(Debug, Clone, Copy)]
pub struct Committed {
    /// Its seq.
    pub seq: u64,
    /// With `Sync` it is not visible before it is durable, and the call must not return before
    /// that.
    pub durability: Durability,
}

impl CommitLog {
    /// Seq of the last commit.
    pub fn committed_seq(&self) -> u64 {
        self.committed_seq.load(Ordering::Acquire)
    }

    /// A seq up to which every commit is visible, at which several keys can be read one after the
    /// other.
    pub fn moment(&self) -> u64 {
        // In this order: the kind of each commit that is shown by now was recorded before.
        let shown_seq = self.shown_seq.load(Ordering::Acquire);
        let durable_seq = self.writer.durable_seq();
        if self.sync_seq.load(Ordering::Acquire) <= durable_seq {
            shown_seq
        } else {
            shown_seq.min(durable_seq)
        }
    }

    /// Everything up to this seq is in the index.
    pub fn applied_seq(&self) -> u64 {
        self.applied_seq.load(Ordering::Acquire)
    }

    /// The durability of a commit that was requested with `durability`. Called under the tail's
    /// lock.
    pub(super) fn durability_of(
        &self,
        durability: Durability,
        records: &[(u64, Record<'_>)],
        rests_on: u64,
    ) -> Durability {
        if active(Mutation::CommitSync) {
            Durability::Buffered
        } else if rests_on > 0 || self.replaces_unfinished(records) {
            Durability::Sync
        } else {
            durability
        }
    }

    /// Whether one of the records replaces, or is not hidden by, a record that is not visible yet.
    /// Called under the tail's lock.
    fn replaces_unfinished(&self, records: &[(u64, Record<'_>)]) -> bool {
        let durable_seq = self.writer.durable_seq();
        if self.sync_seq.load(Ordering::Acquire) <= durable_seq {
            return false;
        }
        let in_range = self.ranges.unfinished_seq(durable_seq) > 0;
        let is_unfinished = |hash: u64, key: &[u8]| {
            let found = self
                .frames
                .find_committed(hash, key, durable_seq, |_, is_visible| !is_visible);
            found == Some(true)
        };
        records.iter().any(|(hash, record)| match record.body {
            Body::DeleteRange { .. } => true,
            body => body.answers_for_key() && (in_range || is_unfinished(*hash, record.key)),
        })
    }
}
