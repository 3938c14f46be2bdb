//! Restores the hash index and the filter from a checkpoint and the log behind it, in steps.
//!
//! Order of events: (1) the slots are taken over, except those in segments that began after the
//! checkpoint or are free; (2) the filter; (3) each partition gets room for as many objects as the
//! index has; (4) the keys of the log's records behind the checkpoint, up to the seq that the index
//! has persisted, are processed in order: a put sets the slot of its object, for anything else the
//! ordered index is looked up. Then the table is as of the last commit that the index has
//! persisted.
//!
//! Invariants: no reader sees the table before all of that is done. The log is read without a gap,
//! or the checkpoint is rejected.
//!
//! On failure: an error, and the hash index is to be filled by a walk.

use super::{TOUCHED_TOGETHER, fill::set_place};
use crate::{
    Error, HomeKind, Result,
    engine::Engine,
    hash_index::{
        checkpoint::{FILE, NEW_FILE, Newest, file::Source},
        key_filter::KeyFilter,
    },
    io::PAGE_BYTES,
    key_hash,
    log::{
        address::Address,
        format::{Body, Record, record_bytes_max},
        recover::first_needed,
        scan::{FoundFrame, SegmentImage},
        segments::SegmentState,
    },
    mutation::{Mutation, active},
    ordered_index::Home,
};
use std::{collections::VecDeque, path::Path};

/// Bytes of frames read in one step.
const STEP_BYTES: usize = 4 << 20;

/// A checkpoint that is being loaded.
#[derive(Debug)]
pub struct Loader {
    source: Source,
    /// By segment: whether slots that lead there are taken over.
    kept: Vec<bool>,
    contents_loaded: bool,
    /// Partitions that have room for the slots from the log after the checkpoint.
    roomy: usize,
    log: LogBehind,
}

/// The log behind the checkpoint.
#[derive(Debug)]
struct LogBehind {
    /// Segments still to be read, in log order.
    segments: VecDeque<u32>,
    image: Option<(SegmentImage, usize)>,
    /// Everything up to this seq is in the table.
    reached_seq: u64,
    /// The seq that the index had persisted at the open.
    persisted_seq: u64,
    read_bytes: u64,
}

/// Result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Keys elsewhere.
    pub filter: KeyFilter,
    /// The checkpoint.
    pub checkpoint: Newest,
}

fn stale(reason: impl Into<String>) -> Error {
    Error::corruption("the checkpoint of the hash index", reason)
}

impl Loader {
    /// Checks whether there is a checkpoint to load. To be called before any commit is made and any
    /// segment reused.
    ///
    /// # Errors
    /// If a checkpoint that must not be found again cannot be removed.
    pub fn begin(engine: &Engine) -> Result<Option<Self>> {
        let disk = &*engine.flash_disk;
        if !engine.options.read_only {
            // A leftover of a crash; the next checkpoint would remove it, too.
            let _ = disk.remove(Path::new(NEW_FILE));
        }
        let opened = match Source::open(disk, engine.options.tuning.direct_io) {
            Ok(None) => return Ok(None),
            Ok(Some(source)) => source,
            Err(error) => return Ok(refused(&error)),
        };
        let persisted_seq = engine.log.applied_seq();
        if opened.header().ended_seq > persisted_seq && !active(Mutation::CheckpointPersisted) {
            // The index is not the one it was taken of. Once other commits have these seqs it would
            // look like theirs.
            if !engine.options.read_only {
                disk.remove(Path::new(FILE))
                    .and_then(|()| disk.sync_dir(Path::new("")))
                    .map_err(|error| Error::io("remove a checkpoint that is ahead of the index", &error))?;
            }
            return Ok(refused(&stale("it is ahead of the index")));
        }
        let begun =
            check(engine, &opened).and_then(|()| LogBehind::begin(engine, opened.header().begun_seq, persisted_seq));
        Ok(match begun {
            Ok(log) => {
                engine.hash_index.hide();
                if opened.header().was_crowded {
                    engine.hash_index.restores_crowded();
                }
                Some(Self {
                    kept: kept_segments(engine, opened.header().generation_max),
                    source: opened,
                    contents_loaded: false,
                    roomy: 0,
                    log,
                })
            }
            Err(error) => refused(&error),
        })
    }

    /// Loads the next part. Returns whether that was the last.
    ///
    /// # Errors
    /// If the checkpoint cannot be used.
    pub fn step(&mut self, engine: &Engine) -> Result<bool> {
        if !self.contents_loaded {
            let segment_bytes = engine.log.segments.segment_bytes();
            let kept = &self.kept;
            let keep = |address: Address| {
                let number = usize::try_from(address.bytes() / segment_bytes).unwrap_or(usize::MAX);
                kept.get(number).is_some_and(|kept| *kept)
            };
            self.contents_loaded = self.source.step(Some(&engine.hash_index), keep)?;
            return Ok(false);
        }
        if self.roomy < engine.hash_index.shape().0 {
            let objects = engine.accounting.stats(HomeKind::Flash).objects;
            engine.hash_index.make_room(self.roomy, objects);
            self.roomy += 1;
            return Ok(false);
        }
        self.log.step(engine, self.source.filter())
    }

    /// The result, after the last step. The hash index is still hidden.
    pub fn finish(self) -> Loaded {
        let header = self.source.header();
        let checkpoint = Newest {
            begun_seq: header.begun_seq,
            file_bytes: header.file_bytes,
            behind_bytes: self.log.read_bytes,
            applied_bytes: 0,
        };
        Loaded {
            filter: self.source.into_filter(),
            checkpoint,
        }
    }
}

/// Logs why a checkpoint is not used.
fn refused(error: &Error) -> Option<Loader> {
    tracing::info!(%error, "the hash index is filled from the ordered index");
    None
}

fn check(engine: &Engine, source: &Source) -> Result<()> {
    let header = source.header();
    let (partitions, buckets_min) = engine.hash_index.shape();
    if header.store_id != engine.manifest.store_id {
        return Err(stale("it is another store's"));
    }
    if header.segment_bytes != engine.log.segments.segment_bytes() {
        return Err(stale("its segments have another length"));
    }
    if (header.partitions as usize, header.buckets_min as usize) != (partitions, buckets_min) {
        return Err(stale("it is of a hash index of another shape"));
    }
    Ok(())
}

/// Segments, by number, with the uses in which a record of a commit before the checkpoint may be.
fn kept_segments(engine: &Engine, generation_max: u64) -> Vec<bool> {
    let mut kept = Vec::new();
    for segment in engine.log.segments.iter() {
        let holds_records = !matches!(segment.state(), SegmentState::Free | SegmentState::Copies);
        kept.resize(kept.len().max(segment.number as usize + 1), false);
        kept[segment.number as usize] = holds_records && segment.generation() <= generation_max;
    }
    kept
}

impl LogBehind {
    fn begin(engine: &Engine, begun_seq: u64, persisted_seq: u64) -> Result<Self> {
        let segments = &engine.log.segments;
        let used = segments.in_log_order(&[SegmentState::Sealed, SegmentState::Open]);
        let start = if begun_seq < persisted_seq {
            // A header's seq is no later than the first frame's: those behind it need not be read
            // to be left out.
            let last = used.iter().rposition(|segment| segment.first_seq() <= begun_seq + 1);
            let candidates = &used[..last.map_or(0, |last| last + 1)];
            first_needed(candidates, begun_seq, segments.segment_bytes())?
        } else {
            used.len()
        };
        Ok(Self {
            segments: used[start..].iter().map(|segment| segment.number).collect(),
            image: None,
            reached_seq: begun_seq,
            persisted_seq,
            read_bytes: 0,
        })
    }

    fn step(&mut self, engine: &Engine, filter: &KeyFilter) -> Result<bool> {
        if self.reached_seq >= self.persisted_seq {
            return Ok(true);
        }
        let (image, mut at) = match self.image.take() {
            Some(reading) => reading,
            None => (self.next_image(engine)?, PAGE_BYTES),
        };
        let from = at;
        while self.reached_seq < self.persisted_seq {
            let Some(frame) = image.next_frame(at) else {
                self.read_bytes += (at - from) as u64;
                return Ok(false);
            };
            if frame.header.first_seq > self.reached_seq + 1 {
                return Err(gap(self.reached_seq + 1));
            }
            if frame.header.last_seq > self.reached_seq {
                self.take_frame(engine, filter, &image, &frame)?;
                self.reached_seq = frame.header.last_seq;
            }
            at = frame.end();
            if at - from >= STEP_BYTES {
                break;
            }
        }
        self.read_bytes += (at - from) as u64;
        self.image = Some((image, at));
        Ok(self.reached_seq >= self.persisted_seq)
    }

    fn next_image(&mut self, engine: &Engine) -> Result<SegmentImage> {
        let segments = &engine.log.segments;
        let number = self.segments.pop_front();
        // Pinned, so that it is not recycled and overwritten while it is read.
        let segment = number.and_then(|number| segments.pin(number));
        let segment = segment.ok_or_else(|| gap(self.reached_seq + 1))?;
        SegmentImage::read(&segment, segments.segment_bytes())
    }

    fn take_frame(
        &self,
        engine: &Engine,
        filter: &KeyFilter,
        image: &SegmentImage,
        frame: &FoundFrame<'_>,
    ) -> Result<()> {
        let is_behind = |record: &Record<'_>| {
            let is_known = record.seq <= self.reached_seq || record.seq > self.persisted_seq;
            !is_known && !active(Mutation::CheckpointLog)
        };
        let records = image.records(frame);
        let behind: Vec<_> = records.filter(|(_, record)| is_behind(record)).collect();
        for together in behind.chunks(TOUCHED_TOGETHER) {
            let hashes = together.iter().map(|(_, record)| key_hash(record.key));
            engine.hash_index.touch(hashes);
            for (address, record) in together {
                take_record(engine, filter, record, *address)?;
            }
        }
        Ok(())
    }
}

fn gap(seq: u64) -> Error {
    stale(format!("the log does not have commit {seq} any more"))
}

/// Has the table say where the record's key is after it, or after a later record.
fn take_record(engine: &Engine, filter: &KeyFilter, record: &Record<'_>, address: Address) -> Result<()> {
    let place = match record.body {
        // Whatever was there before, this replaced it.
        Body::Put { .. } => Some((address, record.record_bytes() as u64)),
        Body::PutInline { .. } | Body::PutLarge { .. } | Body::Delete => None,
        // Its key is a bound. Hidden entries are found by their versions, and the drops that follow
        // remove them.
        Body::DeleteRange { .. } => return Ok(()),
        // Whether these took effect is read from the index's entry.
        Body::MoveToFlash { .. } | Body::MoveToBlock { .. } | Body::Drop { .. } => {
            engine.index.get(record.key)?.and_then(|entry| match entry.home {
                Home::Flash { address } => {
                    let bytes = record_bytes_max(record.key.len(), entry.attributes.len(), entry.length);
                    Some((Address::new(address)?, bytes))
                }
                Home::Inline(_) | Home::Block(_) => None,
            })
        }
    };
    set_place(&engine.hash_index, filter, key_hash(record.key), place);
    Ok(())
}
