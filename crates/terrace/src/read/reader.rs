//! A stream over one value, verified while it is read; and reads of a part of a value.

use super::{
    Described, Hit, Located, describe::Brief, elsewhere_in_ram, find_entry, locate, locate_in_ram, pieces::Pieces,
    read_by_entry, read_flash, read_for_caller,
};
use crate::{
    Error, ObjectInfo, ReadOptions, Result, engine::Engine, flash_cache::COPY_BYTES_MIN, key_hash,
    metrics::counters::StreamClock, ordered_index::Home, write::check_key,
};
use bytes::Bytes;
use std::{io, ops::Range, sync::Arc};

/// A stream over one value. The value stays pinned until the stream is dropped, so it sees one
/// version to the end, even if the object is changed meanwhile.
#[derive(Debug)]
pub struct Reader {
    info: ObjectInfo,
    source: Source,
    /// The clock of a stream that counts as an operation of its own.
    clock: Option<StreamClock>,
    /// Pieces are returned as copies of at most this many bytes.
    copied: Option<usize>,
}

#[derive(Debug)]
enum Source {
    /// Small values are read at once.
    Memory {
        value: Bytes,
        position: usize,
    },
    Block(Box<Pieces>),
}

impl Reader {
    /// Opens a stream over what `lookup` finds. Where `options` bound the wait, not from the
    /// large tier's device while that is busier.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        key: &[u8],
        lookup: impl Fn() -> Result<Option<Described>>,
        options: &ReadOptions,
    ) -> Result<Option<Self>> {
        read_by_entry(engine, key, lookup, |found| Self::of_entry(engine, key, found, options))
    }

    /// Opens the newest version. A small value is found as by a get: one flash read, and it counts
    /// as use.
    pub(crate) fn newest(engine: &Arc<Engine>, key: &[u8], options: &ReadOptions) -> Result<Option<Self>> {
        check_key(key)?;
        let presence = engine.presence();
        match locate(engine, key_hash(key), key, &presence) {
            Located::Here(found) => return found.map(Self::of_hit).transpose(),
            Located::Record(found) => {
                if let Some(hit) = read_flash(engine, key, found.address, found.read_bytes_max, None)? {
                    return hit.living(key, &presence).map(Self::of_hit).transpose();
                }
            }
            Located::InBlock | Located::Elsewhere => {}
        }
        Self::open(engine, key, || find_entry(engine, key), options)
    }

    /// Opens the newest version if all of it is in RAM and available without waiting. `None` says
    /// nothing about the key.
    pub(crate) fn in_ram(engine: &Engine, key: &[u8]) -> Result<Option<Self>> {
        let presence = engine.presence();
        let hit = match locate_in_ram(engine, key, &presence)? {
            Located::Here(hit) => hit,
            Located::Elsewhere => elsewhere_in_ram(engine, key, &presence)?,
            Located::InBlock | Located::Record(_) => None,
        };
        hit.map(Self::of_hit).transpose()
    }

    /// Over a small value.
    fn of_hit(hit: Hit) -> Result<Self> {
        let value = hit.value.clone();
        Ok(Self {
            info: Brief::from(hit).info()?,
            source: Source::Memory { value, position: 0 },
            clock: None,
            copied: None,
        })
    }

    fn of_entry(engine: &Arc<Engine>, key: &[u8], found: &Described, options: &ReadOptions) -> Result<Self> {
        let info = found.info()?;
        let entry = &found.entry;
        let busy = options
            .large_wait_max
            .filter(|wait_max| engine.paces.large.is_busy(*wait_max));
        let refuse = || busy.map_or(Ok(()), |wait_max| Err(Error::Busy { wait_max }));
        let source = match &entry.home {
            Home::Block(extent) if extent.extent_bytes >= COPY_BYTES_MIN => {
                let pieces = Pieces::new(engine, engine.large.open_for(key, extent)?, key, entry);
                if !pieces.is_begun_in_ram() && !pieces.is_near() {
                    refuse()?;
                }
                Source::Block(Box::new(pieces))
            }
            home => {
                if matches!(home, Home::Block(_)) {
                    refuse()?;
                }
                Source::Memory {
                    value: read_for_caller(engine, key, entry)?.into_object()?.value,
                    position: 0,
                }
            }
        };
        Ok(Self {
            info,
            source,
            clock: None,
            copied: None,
        })
    }

    /// Counts the stream's calls.
    pub(crate) fn timed_by(mut self, clock: StreamClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The object.
    #[must_use]
    pub const fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// Continues at `offset` of the value.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the value's end.
    pub fn seek_to(&mut self, offset: u64) -> Result<()> {
        if offset > self.info.length {
            return Err(Error::invalid(format!(
                "offset {offset} is beyond the value's {} bytes",
                self.info.length
            )));
        }
        match &mut self.source {
            // Within a value in memory.
            Source::Memory { position, .. } => *position = offset as usize,
            Source::Block(pieces) => pieces.seek(offset),
        }
        Ok(())
    }

    /// Reads on; 0 only at the end, or for an empty `out`.
    ///
    /// # Errors
    /// [`Error::Corruption`], errors of the device.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize> {
        match &mut self.source {
            Source::Memory { value, position } => {
                let count = out.len().min(value.len() - *position);
                out[..count].copy_from_slice(&value[*position..*position + count]);
                *position += count;
                Ok(count)
            }
            Source::Block(pieces) => timed(self.clock.as_ref(), || pieces.read(out)),
        }
    }

    /// Continues reading, without a copy: the next piece of the value, which is at most 256 KiB of
    /// a long value and all of a small one. If it is not in RAM, up to 1 MiB of the requested
    /// `bytes` are read for it and for the pieces after it. If less than the piece is requested it
    /// may be shorter, but not shorter than the request, except at the end. Empty only at the end.
    ///
    /// # Errors
    /// [`Error::Corruption`], errors of the device.
    pub fn read_piece(&mut self, bytes: usize) -> Result<Bytes> {
        let piece = match &mut self.source {
            Source::Memory { value, position } => rest_of(value, position),
            Source::Block(pieces) => timed(self.clock.as_ref(), || pieces.next(bytes))?,
        };
        Ok(self.hand_out(piece))
    }

    /// The result of [`Reader::read_piece`] if that is in RAM and available without waiting; `None`
    /// at the end, too.
    pub fn piece_in_ram(&mut self) -> Option<Bytes> {
        let piece = match &mut self.source {
            Source::Memory { value, position } => rest_of(value, position),
            Source::Block(pieces) => pieces.next_in_ram()?,
        };
        Some(self.hand_out(piece)).filter(|piece| !piece.is_empty())
    }

    /// From now on pieces are copies of at most `bytes_max` bytes; with `None` they are again
    /// slices of the cache. A slice that a caller keeps stays in RAM after it is evicted: a caller
    /// that may keep many, or keep them long, takes copies.
    pub const fn copy_pieces(&mut self, bytes_max: Option<usize>) {
        self.copied = bytes_max;
    }

    /// A piece as the caller gets it. The rest is returned next.
    fn hand_out(&mut self, piece: Bytes) -> Bytes {
        let Some(bytes_max) = self.copied else { return piece };
        let copy = Bytes::copy_from_slice(&piece[..piece.len().min(bytes_max)]);
        let left = piece.len() - copy.len();
        match &mut self.source {
            Source::Memory { position, .. } => *position -= left,
            Source::Block(pieces) => pieces.step_back(left),
        }
        copy
    }

    /// Reads a range, truncated to the value's length, independent of the stream's position.
    ///
    /// # Errors
    /// [`Error::Corruption`], errors of the device.
    pub fn read_range(&self, range: Range<u64>) -> Result<Bytes> {
        let end = range.end.min(self.info.length);
        let start = range.start.min(end);
        match &self.source {
            // Within a value in memory.
            Source::Memory { value, .. } => Ok(value.slice(start as usize..end as usize)),
            Source::Block(pieces) => {
                let mut out = Vec::new();
                timed(self.clock.as_ref(), || {
                    pieces.checked()?.read_range(start..end, &mut out)
                })?;
                Ok(out.into())
            }
        }
    }
}

fn rest_of(value: &Bytes, position: &mut usize) -> Bytes {
    let rest = value.slice(*position..);
    *position = value.len();
    rest
}

fn timed<T>(clock: Option<&StreamClock>, call: impl FnOnce() -> Result<T>) -> Result<T> {
    match clock {
        Some(clock) => clock.time(call),
        None => call(),
    }
}

impl io::Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_some(out).map_err(io::Error::other)
    }
}
