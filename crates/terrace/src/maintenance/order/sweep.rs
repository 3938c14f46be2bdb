//! The sweep: the log is read once in long pieces, and the short values in it are copied into their
//! entries.
//!
//! Segments that a sweep has been through are left out by the next one: all short values that live
//! there have copies, and what is written later is elsewhere. That is known in RAM only, so after
//! an open the first sweep has all before it again, and its full price.
//!
//! Invariants: no more is in RAM than what may wait for being moved. A segment is pinned while it
//! is read, and a value that was read is copied only if its key still lives at its place.
//!
//! On failure, or when there is no room: the segment counts as not swept.

use super::Orderer;
use crate::{
    Result,
    engine::Engine,
    hash_index::HashIndex,
    key_hash,
    log::{
        address::Address,
        format::{FRAME_HEADER_BYTES, Record, records},
        move_queue::Moving,
        scan::FrameWalk,
        segments::{Segment, SegmentState},
    },
    metrics::count,
    scan_order::{Form, Sweep, form},
    write::apply::TOUCHED_TOGETHER,
};
use bytes::Bytes;
use std::{collections::VecDeque, sync::Arc};

/// What a sweep has before it: segments that were full when it began, with their generations.
pub(super) struct Sweeping {
    segments: VecDeque<(u32, u64)>,
}

impl Orderer {
    /// Begins a sweep if scans have paid for it, or sweeps the next segment. `false` if there was
    /// nothing to do.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn sweep_on(&mut self) -> Result<bool> {
        let Some(mut sweeping) = self.sweeping.take().or_else(|| bought(&self.engine)) else {
            return Ok(false);
        };
        if let Some((number, generation)) = sweeping.segments.pop_front() {
            self.sweep(number, generation)?;
            self.sweeping = Some(sweeping);
        } else {
            self.engine.scan_order.swept();
        }
        Ok(true)
    }

    /// Copies the short values of a segment.
    fn sweep(&mut self, number: u32, generation: u64) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let segments = &engine.log.segments;
        let Some(segment) = segments.pin(number).filter(|segment| is_due(segment)) else {
            return Ok(());
        };
        if segment.generation() != generation {
            return Ok(());
        }
        let base = u64::from(number) * segments.segment_bytes();
        let step = |bytes, read: &mut dyn FnMut() -> Result<()>| {
            count(&engine.scan_order.counters.sweep_bytes, bytes as u64);
            engine.flash_step(bytes, read)
        };
        let mut walk = FrameWalk::new(&segment, segments.segment_bytes(), step);
        let (mut values, mut bytes) = (Vec::new(), 0);
        while let Some(frame) = walk.next_frame()? {
            let payload = &frame.bytes[FRAME_HEADER_BYTES..][..frame.header.payload_bytes as usize];
            let at = base + (frame.offset + FRAME_HEADER_BYTES) as u64;
            let short = records(payload).filter(|(_, record)| is_short(record));
            let found: Vec<_> = short
                .filter_map(|(offset, record)| Some((key_hash(record.key), Address::new(at + offset as u64)?, record)))
                .collect();
            for together in found.chunks(TOUCHED_TOGETHER) {
                engine.hash_index.touch(together.iter().map(|(hash, ..)| *hash));
                for (hash, address, record) in together {
                    if lives(&engine, record, *hash, *address) {
                        let value = moving(record, *hash, (*address, generation));
                        bytes += value.ram_bytes();
                        values.push(value);
                    }
                }
            }
            // No room in the log: recycling may wait for this very segment.
            if engine.log.is_closing() || !engine.log.has_room_for_moves() {
                return Ok(());
            }
            if bytes >= engine.scan_order.queue.bytes_max() {
                bytes = 0;
                if !self.copy_in_order(std::mem::take(&mut values)) {
                    return Ok(());
                }
            }
        }
        if self.copy_in_order(values) {
            segment.swept(generation);
        }
        Ok(())
    }

    fn copy_in_order(&mut self, mut values: Vec<Moving>) -> bool {
        values.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        self.copy(values)
    }
}

/// Whether a segment is full, and no sweep has been through it.
fn is_due(segment: &Segment) -> bool {
    segment.state() == SegmentState::Sealed && !segment.is_swept()
}

/// A sweep, if scans have paid for it.
fn bought(engine: &Engine) -> Option<Sweeping> {
    // Asked at each turn: where nobody scans the segments need not be walked.
    if !engine.scan_order.has_paid_for_sweep() {
        return None;
    }
    let due: Vec<_> = engine.log.segments.iter().filter(|segment| is_due(segment)).collect();
    let flash = engine.accounting.stats(crate::HomeKind::Flash);
    let mean_bytes = flash.bytes.checked_div(flash.objects).unwrap_or(0);
    // Segments count a value for what its slot says of the record.
    let live_bytes: u64 = due.iter().map(|segment| segment.live_bytes()).sum();
    let sweep = Sweep {
        bytes: due.iter().map(|segment| segment.end_bytes()).sum(),
        live_bytes: live_bytes / HashIndex::read_bytes_max_of_value(mean_bytes) * mean_bytes,
    };
    engine.scan_order.buys_sweep(sweep, mean_bytes).then(|| Sweeping {
        segments: due
            .iter()
            .map(|segment| (segment.number, segment.generation()))
            .collect(),
    })
}

/// Whether a record is the home of a short value.
fn is_short(record: &Record<'_>) -> bool {
    record.body.is_home() && form(record.body.value().len() as u64) == Some(Form::Copied)
}

/// Whether the hash index says that a value lives there. Of the few that it has lost scans buy
/// copies by themselves.
fn lives(engine: &Engine, record: &Record<'_>, hash: u64, address: Address) -> bool {
    let is_present = engine.hash_index.recency(hash, address).is_some();
    let is_dead = || {
        let presence = engine.presence();
        presence.dead(record.key, record.version(), record.attributes).is_some()
    };
    is_present && !is_dead()
}

/// A value that was read, with memory of its own.
fn moving(record: &Record<'_>, hash: u64, place: (Address, u64)) -> Moving {
    let (key, value) = (record.key, record.body.value());
    let together = Bytes::from([key, value].concat());
    Moving {
        key: together.slice(..key.len()),
        hash,
        version: record.version(),
        attributes: Bytes::copy_from_slice(record.attributes),
        value: together.slice(key.len()..),
        checksum: record.checksum,
        place: Some(place),
    }
}
