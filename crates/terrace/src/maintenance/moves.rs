//! Moves of values from one home to another, for all kinds of background work: a record each, with
//! the version that moves.
//!
//! Invariants:
//! - The applier takes a move only if the entry still has the version, so a move never overrides a
//!   concurrent write. Two concurrent moves of one value do no harm: the later one counts, and the
//!   place of the other is dead.
//! - A value is durable at its new place before its move is committed.
//! - A written value without a move is abandoned; one whose move may be in the log never is.
//!
//! On failure: committed moves count, the rest is unchanged. It can be tried again.

use crate::{
    Error, Result,
    blocks::{DestageItem, LargeValue, Origin},
    engine::Engine,
    key_hash,
    log::{
        commit::Committer,
        format::{Body, Record},
        move_queue::{MoveQueue, Moving},
    },
    mutation::{Mutation, unless},
    ordered_index::Entry,
};
use std::ops::Range;

/// Why a value that does not match its entry is not moved.
pub const NOT_ITS_CHECKSUM: &str = "its value does not match the checksum in its entry";
/// Record bytes of one commit of moves, where segments are not shorter than a few of them.
const MOVES_BYTES: usize = 256 << 10;
/// Commits of moves that fit into a segment, at least.
const COMMITS_OF_SEGMENT: usize = 16;

/// Record bytes of one commit of moves. A commit is in one segment, and the rest of a segment into
/// which it does not fit is lost: pinned values in a log of short segments took more room each time
/// they were rewritten.
// A segment has at most 1 GiB.
pub fn commit_bytes(engine: &Engine) -> usize {
    MOVES_BYTES.min(engine.log.segments.segment_bytes() as usize / COMMITS_OF_SEGMENT)
}

/// Which of a list of moves are in the log.
#[derive(Debug)]
pub struct Committed {
    /// How many, from the first.
    pub moves: usize,
    /// Their bytes in the log.
    pub bytes: usize,
    /// Seq of the last of their commits.
    pub last_seq: Option<u64>,
    /// Whether that is all of them.
    pub outcome: Result<()>,
}

impl Committed {
    const fn nothing() -> Self {
        Self {
            moves: 0,
            bytes: 0,
            last_seq: None,
            outcome: Ok(()),
        }
    }
}

/// Commits moves in parts.
pub fn commit<'a>(engine: &Engine, committer: Committer, moves: impl Iterator<Item = (u64, Record<'a>)>) -> Committed {
    let mut done = Committed::nothing();
    let most = commit_bytes(engine);
    let mut moves = moves.peekable();
    while done.outcome.is_ok() && moves.peek().is_some() {
        let mut part: Vec<(u64, Record<'a>)> = Vec::new();
        let mut part_bytes = 0;
        while let Some(item) =
            moves.next_if(|(_, record)| part.is_empty() || part_bytes + record.record_bytes() <= most)
        {
            part_bytes += item.1.record_bytes();
            part.push(item);
        }
        match engine.flash_step(part_bytes, || engine.log.commit(committer, &part, 0, || Ok(()))) {
            Ok(seq) => {
                done.moves += part.len();
                done.bytes += part_bytes;
                done.last_seq = Some(seq);
            }
            // Nothing of this part is in the log.
            Err(error) => done.outcome = Err(error),
        }
    }
    done
}

/// Commits the moves to the log of values that were taken from a queue, in their order. Those that
/// find no place in it stay where they are.
pub fn commit_taken(engine: &Engine, queue: &MoveQueue, values: &[Moving]) -> Committed {
    let moves = values.iter().map(|value| Moved::of_waiting(value).to_flash());
    let done = commit(engine, Committer::Background, moves);
    let (committed, others) = values.split_at(done.moves);
    queue.forget(others);
    if let Some(seq) = done.last_seq {
        queue.committed(seq, committed);
    }
    done
}

/// The record by which the value of a version is dropped.
pub fn to_nowhere(key: &[u8], version: u64) -> (u64, Record<'_>) {
    (key_hash(key), Record::new(key, &[], Body::Drop { version }))
}

/// A value that is to live elsewhere from now on.
#[derive(Debug, Clone, Copy)]
pub struct Moved<'a> {
    /// The value, with its key.
    pub item: DestageItem<'a>,
    /// CRC-32C of the value.
    pub checksum: u32,
}

impl<'a> Moved<'a> {
    fn new(key: &'a [u8], attributes: &'a [u8], value: &'a [u8], version: u64, checksum: u32) -> Self {
        let item = DestageItem {
            key,
            attributes,
            value,
            version,
        };
        Self { item, checksum }
    }

    /// The value that a record holds.
    pub fn of(record: &Record<'a>) -> Self {
        let (value, version) = (record.body.value(), record.version());
        Self::new(record.key, record.attributes, value, version, record.checksum)
    }

    /// A value that waits to be moved.
    pub fn of_waiting(of: &'a Moving) -> Self {
        Self::new(&of.key, &of.attributes, &of.value, of.version, of.checksum)
    }

    /// The value that an entry points to.
    pub fn by_entry(key: &'a [u8], entry: &'a Entry, value: &'a [u8]) -> Self {
        Self::new(key, &entry.attributes, value, entry.version.0, entry.checksum)
    }

    /// The record by which it lives in the log from here on.
    pub fn to_flash(self) -> (u64, Record<'a>) {
        self.record(Body::MoveToFlash {
            version: self.item.version,
            value: self.item.value,
        })
    }

    fn record(self, body: Body<'a>) -> (u64, Record<'a>) {
        let record = Record {
            seq: 0,
            generation: 0,
            key: self.item.key,
            attributes: self.item.attributes,
            checksum: self.checksum,
            body,
        };
        (key_hash(self.item.key), record)
    }
}

/// Writes values to blocks and commits their moves. If the tier becomes full, those that had room
/// are kept, from the first. Abandoning them as well would make a dead block of each attempt, whose
/// room the next attempt would take again.
pub fn to_blocks(engine: &Engine, committer: Committer, origin: Origin, values: &[Moved<'_>]) -> Committed {
    let items: Vec<_> = values.iter().map(|moved| moved.item).collect();
    let (written, outcome) = write_regions(engine, origin, &items);
    let mut done = point_to(engine, committer, values, &written);
    done.outcome = done.outcome.and(outcome);
    done
}

/// Writes values to the large space, a region after the other, and lets callers' reads go first.
fn write_regions(engine: &Engine, origin: Origin, items: &[DestageItem<'_>]) -> (Vec<LargeValue>, Result<()>) {
    let large = &engine.large;
    let mut written = Vec::with_capacity(items.len());
    for region in large.regions(items) {
        let bytes = region.iter().map(|item| item.value.len()).sum();
        match engine.large_result(engine.large_step(bytes, || large.write_batch(region, origin))) {
            Ok(values) => written.extend(values),
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// The same for a value of this length that is read as it is written, and is not in `moved`. The
/// inner error is that of reading it.
///
/// # Errors
/// As [`to_blocks`].
pub fn stream_to_block(
    engine: &Engine,
    committer: Committer,
    origin: Origin,
    moved: Moved<'_>,
    length: u64,
    read: impl FnMut(Range<u64>, &mut Vec<u8>) -> Result<()>,
) -> Result<Result<()>> {
    let written = engine.large.write_streamed(&moved.item, length, origin, read);
    let written = match engine.large_result(written)? {
        Ok(written) => written,
        Err(error) => return Ok(Err(error)),
    };
    if written.checksum != moved.checksum {
        engine.large.abandoned(&written);
        return Ok(Err(Error::corrupt_value(moved.item.key, NOT_ITS_CHECKSUM)));
    }
    point_to(engine, committer, &[moved], &[written]).outcome.map(Ok)
}

/// Makes written values durable and commits the moves to them; `values` begins with those.
fn point_to(engine: &Engine, committer: Committer, values: &[Moved<'_>], written: &[LargeValue]) -> Committed {
    let large = &engine.large;
    if written.is_empty() {
        return Committed::nothing();
    }
    let synced = unless(Mutation::DestagedBeforeMove, || large.sync_all(written));
    if let Err(error) = engine.large_result(synced) {
        written.iter().for_each(|value| large.abandoned(value));
        return Committed {
            outcome: Err(error),
            ..Committed::nothing()
        };
    }
    let moves = values.iter().zip(written).map(|(moved, value)| {
        moved.record(Body::MoveToBlock {
            version: moved.item.version,
            extent: value.extent(),
        })
    });
    let committed = commit(engine, committer, moves);
    let (pointed_to, orphans) = written.split_at(committed.moves);
    orphans.iter().for_each(|value| large.abandoned(value));
    for (moved, value) in values.iter().zip(pointed_to) {
        large.committed(value, moved.item.version);
    }
    committed
}
