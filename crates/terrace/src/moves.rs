//! Moves of values from one home to another, whoever wants them: a record each, with the version that moves.
//!
//! Invariants: a value is durable in its new place before the record that points there is written, or is in the record itself. The
//! applier takes a move only if the entry still has the version, so a move never loses to or beats a concurrent write, and two
//! moves of one value at the same time do no harm: the later one counts, and the place of the other is dead.
//!
//! On failure: some moves of a call may be committed and others not. What is written and not pointed to is orphaned space.

use crate::{
    Result,
    engine::Engine,
    flash::format::{Body, Extent, Record},
    large::DestageItem,
    mutation::{Mutation, unless},
    write::log::Committer,
};

/// Record bytes of one commit of moves.
const MOVES_BYTES: usize = 256 << 10;

/// Commits moves in parts, each with the hash of its key; returns their bytes in the log.
///
/// # Errors
/// The log's.
pub fn commit<'a>(engine: &Engine, who: Committer, moves: impl Iterator<Item = (u64, Record<'a>)>) -> Result<usize> {
    let mut part = Vec::new();
    let (mut part_bytes, mut total) = (0, 0);
    for item in moves {
        let bytes = item.1.record_bytes();
        if part_bytes + bytes > MOVES_BYTES && !part.is_empty() {
            engine.log.commit(who, &part, 0, || Ok(()))?;
            part.clear();
            part_bytes = 0;
        }
        part_bytes += bytes;
        total += bytes;
        part.push(item);
    }
    if !part.is_empty() {
        engine.log.commit(who, &part, 0, || Ok(()))?;
    }
    Ok(total)
}

/// The record that says that a value lives in the log from here on. `record` holds it, and names its version.
#[must_use]
pub fn to_flash<'a>(record: &Record<'a>) -> Record<'a> {
    let body = Body::MoveToFlash {
        version: record.version(),
        value: record.body.value(),
    };
    Record { body, ..*record }
}

/// Writes values that records hold to the large space, in the order given, and commits the moves.
///
/// # Errors
/// The large space's, and then none is moved; the log's.
pub fn destage(engine: &Engine, who: Committer, values: &[(u64, Record<'_>)]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let large = &engine.large;
    let items: Vec<_> = values
        .iter()
        .map(|(_, record)| DestageItem {
            key: record.key,
            attributes: record.attributes,
            value: record.body.value(),
            version: record.version(),
        })
        .collect();
    let written = engine.large_result(large.write_batch(&items))?;
    let synced = unless(Mutation::DestagedBeforeMove, || large.sync_all(&written));
    if let Err(error) = engine.large_result(synced) {
        written.iter().for_each(|value| large.abandoned(value));
        return Err(error);
    }
    let moves = values.iter().zip(&written).map(|((hash, record), value)| {
        let extent = Extent {
            block: value.block,
            offset: value.offset,
            extent_bytes: value.extent_bytes,
            length: value.length,
        };
        let body = Body::MoveToBlock {
            version: record.version(),
            extent,
        };
        (*hash, Record { body, ..*record })
    });
    // If this fails some moves may be committed, so none may be abandoned.
    commit(engine, who, moves)?;
    for ((_, record), value) in values.iter().zip(&written) {
        large.committed(value, record.version());
    }
    Ok(())
}
