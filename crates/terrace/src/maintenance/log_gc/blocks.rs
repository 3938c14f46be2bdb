//! Deletes blocks without live values.
//!
//! Invariant: a block is deleted only when the index has persisted everything up to the commit that
//! made it dead, no snapshot is older, no reader has it, and a lookup of every key in it confirms
//! that no entry points there; for a block that it drained, block GC has made these lookups.

use super::LogGc;
use crate::{
    Result,
    mutation::{Mutation, active},
    ordered_index::Home,
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Minimum interval of checks of all blocks,
const BLOCKS_INTERVAL: Duration = Duration::from_millis(50);
/// and this often on an idle store.
const BLOCKS_IDLE: Duration = Duration::from_secs(1);
/// How long a dead block that could not be read is left alone: each attempt is logged.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Most dead blocks that are deleted together, for the syncs of one.
const TOGETHER_MAX: usize = 16;
/// Those found so far are deleted after this time: looking through a block may take long on a disk.
const TOGETHER_WITHIN: Duration = Duration::from_millis(100);

/// A block without live values; it stays so.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeadBlock {
    /// The committed seq when it was found dead.
    pub seen: u64,
    /// Whether the index confirms it, if it was looked up successfully.
    is_dead: Option<bool>,
    /// When the lookup failed.
    failed_at: Option<Instant>,
}

/// How far commits, the index and snapshots had got. While that stands still no block dies or may
/// be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    committed_seq: u64,
    applied_seq: u64,
    persisted_seq: u64,
    watermark_seq: u64,
}

impl LogGc {
    /// Whether to check the blocks, which may be a hundred thousand: if anything has happened since
    /// the last time, and periodically for events that are not counted here (an abandoned stream, a
    /// reader that released a block).
    pub(super) fn blocks_are_due(&mut self) -> bool {
        let engine = &self.engine;
        let now = Progress {
            committed_seq: engine.log.committed_seq(),
            applied_seq: engine.log.applied_seq(),
            persisted_seq: engine.persisted_seq.load(Ordering::Acquire),
            watermark_seq: engine.watermark_seq(),
        };
        if let Some((seen, at)) = self.blocks_seen {
            let wait = if seen == now { BLOCKS_IDLE } else { BLOCKS_INTERVAL };
            if at.elapsed() < wait {
                return false;
            }
        }
        self.blocks_seen = Some((now, Instant::now()));
        true
    }

    /// Deletes blocks without live values that no reader can reach any more.
    pub(super) fn delete_dead_blocks(&mut self) -> Result<()> {
        let dead = self.engine.large.dead_blocks();
        // Read after the list was made: the commit that made a block dead is no later than this.
        // (The applied seq would not do: a block dies while its last commit is being applied.)
        let seen = self.engine.log.committed_seq();
        self.dead_blocks.retain(|block, _| dead.contains(block));
        let mut outcome = Ok(());
        let mut together = Vec::new();
        let mut began = Instant::now();
        for number in dead {
            let first_seen = DeadBlock {
                seen,
                ..DeadBlock::default()
            };
            let mut block = *self.dead_blocks.entry(number).or_insert(first_seen);
            if !self.may_reuse(block.seen) && !active(Mutation::BlockBeforePersisted) {
                continue;
            }
            // Known: a reader has kept it, or it is needed. No reason to look through it again and
            // again.
            if block.is_dead.is_none() {
                self.look_through(number, &mut block);
                self.dead_blocks.insert(number, block);
            }
            if block.is_dead == Some(true) {
                together.push((number, block.seen));
            }
            if together.len() == TOGETHER_MAX || began.elapsed() >= TOGETHER_WITHIN {
                outcome = self.delete_together(&mut together);
                began = Instant::now();
            }
            if outcome.is_err() {
                break;
            }
        }
        outcome = outcome.and_then(|()| self.delete_together(&mut together));
        self.count_held_blocks();
        outcome
    }

    /// Deletes these, except those that are being read.
    fn delete_together(&mut self, blocks: &mut Vec<(u64, u64)>) -> Result<()> {
        let large = &self.engine.large;
        let deleted = self.engine.large_result(large.delete(&std::mem::take(blocks)))?;
        if deleted.is_empty() {
            return Ok(());
        }
        for block in deleted {
            tracing::debug!(block, "deleted a dead block");
            self.dead_blocks.remove(&block);
        }
        // The log may use their space as well.
        self.engine.log.segments.retry_device();
        self.made_room();
        // Now, not after the last: on a slow disk many take longer than writers wait for something
        // to happen.
        self.engine.block_gc.progress();
        Ok(())
    }

    /// Looks up in the index whether a block is dead. If that fails, it costs space, blocks nothing
    /// else, and is tried again.
    fn look_through(&self, number: u64, block: &mut DeadBlock) {
        // Block GC has just looked up the same keys, and has moved the live values. Reading the
        // block once more took a second of a disk's time, at the cost of its readers.
        if self.engine.block_gc.has_emptied(number) {
            block.is_dead = Some(true);
        } else if block.failed_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN) {
            match self.nothing_points_to(number) {
                Ok(is_dead) => block.is_dead = Some(is_dead),
                Err(error) => {
                    tracing::error!(block = number, %error, "the block seems dead but cannot be looked through; trying again");
                    block.failed_at = Some(Instant::now());
                }
            }
        }
    }

    /// Counts the dead blocks that only a snapshot keeps, and those that only readers keep.
    fn count_held_blocks(&self) {
        let persisted_seq = self.engine.persisted_seq.load(Ordering::Acquire);
        let watermark_seq = self.engine.watermark_seq();
        let bytes_of = |is_meant: &dyn Fn(&DeadBlock) -> bool| {
            let meant = self.dead_blocks.iter().filter(|(_, block)| is_meant(block));
            let numbers: Vec<u64> = meant.map(|(number, _)| *number).collect();
            self.engine.large.bytes_of(&numbers)
        };
        let metrics = &self.engine.metrics;
        let is_seen = |block: &DeadBlock| block.seen <= persisted_seq && block.seen > watermark_seq;
        let held = bytes_of(&is_seen);
        metrics.held_block_bytes.store(held, Ordering::Relaxed);
        let is_kept = |block: &DeadBlock| block.is_dead.is_some() || block.failed_at.is_some();
        let pinned = bytes_of(&is_kept);
        metrics.pinned_block_bytes.store(pinned, Ordering::Relaxed);
        self.engine.large.set_held(|number| {
            let block = self.dead_blocks.get(&number);
            block.is_some_and(|block| is_kept(block) || is_seen(block))
        });
    }

    /// Looks at the index before a block is deleted: a miscount must cost space, never data.
    fn nothing_points_to(&self, block: u64) -> Result<bool> {
        for extent in self.engine.large.scan_headers(block)? {
            // Damage here was not read by any caller, or was reported by `verify`.
            let Ok(extent) = extent else { continue };
            let entry = self.engine.index.get(&extent.header.key)?;
            if entry.is_some_and(|entry| matches!(entry.home, Home::Block(extent) if extent.block == block)) {
                tracing::error!(block, "the block is counted dead but an entry points to it; it is kept");
                return Ok(false);
            }
        }
        Ok(true)
    }
}
