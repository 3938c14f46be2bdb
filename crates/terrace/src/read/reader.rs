//! A stream over one value, verified as it goes; and reading a part of a value.

use super::{find_entry, object_info, read_for_caller, small_value};
use crate::{
    Error, HomeKind, ObjectInfo, Result,
    engine::Engine,
    expiry,
    heat::COPY_BYTES_MIN,
    index::{Entry, Home},
    large::ValueReader,
    metrics::StreamClock,
};
use bytes::Bytes;
use std::{io, ops::Range, sync::Arc, time::Duration};

/// A stream over one value. What it reads from stays pinned until it is dropped, so it sees one version to the end however
/// the object changes meanwhile.
#[derive(Debug)]
pub struct Reader {
    info: ObjectInfo,
    source: Source,
    /// Of a stream that counts as an operation of its own.
    clock: Option<StreamClock>,
}

#[derive(Debug)]
enum Source {
    /// Small values are read at once.
    Memory {
        value: Bytes,
        position: usize,
    },
    Block(Box<ValueReader>),
}

impl Reader {
    /// Opens a stream over what `lookup` finds. With `patience`, not from the large tier's device while that is busier.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        key: &[u8],
        lookup: impl Fn(&[u8]) -> Result<Option<Entry>>,
        patience: Option<Duration>,
    ) -> Result<Option<Self>> {
        // The home may move between lookup and reading; once more then.
        let mut last_error = None;
        for _ in 0..super::ATTEMPTS {
            let Some(entry) = lookup(key)? else { return Ok(None) };
            match Self::of_entry(engine, key, &entry, patience) {
                Ok(reader) => return Ok(Some(reader)),
                Err(error @ Error::Corruption { .. }) => {
                    // A move that is not applied yet may lead to a sound value.
                    engine.log.wait_applied()?;
                    last_error = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last_error.unwrap_or(Error::Unavailable("the value could not be opened")))
    }

    /// Opens the newest version. A small value is found as by a get: one flash read, and it counts as use.
    pub(crate) fn newest(engine: &Arc<Engine>, key: &[u8], patience: Option<Duration>) -> Result<Option<Self>> {
        if let Some(hit) = small_value(engine, key)? {
            let expires_at = expiry::of(&hit.attributes).map(expiry::from_ms);
            let hit = hit.into_object()?;
            let checksum = crc32c::crc32c(&hit.value);
            let home = if hit.value.len() as u64 <= engine.options.inline_bytes_max {
                HomeKind::Inline
            } else {
                HomeKind::Flash
            };
            let info = ObjectInfo {
                version: hit.version,
                length: hit.value.len() as u64,
                checksum,
                home,
                expires_at,
                attributes: hit.attributes,
            };
            let source = Source::Memory {
                value: hit.value,
                position: 0,
            };
            return Ok(Some(Self {
                info,
                source,
                clock: None,
            }));
        }
        Self::open(engine, key, |key| find_entry(engine, key), patience)
    }

    fn of_entry(engine: &Arc<Engine>, key: &[u8], entry: &Entry, patience: Option<Duration>) -> Result<Self> {
        let info = object_info(entry)?;
        let busy = patience.filter(|wait_max| engine.paces.large.is_busy(*wait_max));
        let refuse = || busy.map_or(Ok(()), |wait_max| Err(Error::Busy { wait_max }));
        let source = match &entry.home {
            Home::Block {
                block,
                offset,
                extent_bytes,
            } if *extent_bytes >= COPY_BYTES_MIN => {
                let reader = engine
                    .large
                    .open_for(key, *block, *offset, *extent_bytes, entry.length)?;
                if !reader.is_near() {
                    refuse()?;
                }
                if reader.header()?.key != key {
                    return Err(Error::corruption(
                        format!("block {block:x} at {offset}"),
                        "the value there is another key's",
                    ));
                }
                super::count_large_hit(engine, &reader, entry.length);
                Source::Block(Box::new(reader))
            }
            home => {
                if matches!(home, Home::Block { .. }) {
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
            #[allow(clippy::cast_possible_truncation)] // within a value in memory
            Source::Memory { position, .. } => *position = offset as usize,
            Source::Block(reader) => reader.seek(offset),
        }
        Ok(())
    }

    /// Reads on; 0 only at the end, or for an empty `out`.
    ///
    /// # Errors
    /// [`Error::Corruption`], the device's.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize> {
        match &mut self.source {
            Source::Memory { value, position } => {
                let count = out.len().min(value.len() - *position);
                out[..count].copy_from_slice(&value[*position..*position + count]);
                *position += count;
                Ok(count)
            }
            Source::Block(reader) => timed(self.clock.as_ref(), || reader.read(out)),
        }
    }

    /// Reads on, into a buffer of its own: `bytes` of the value, or what of it is best read with them (64 KiB more at most), or fewer if
    /// the end comes before or if `bytes` is more than 1 MiB. Empty only at the end. Copies once less than [`Reader::read_some`].
    ///
    /// # Errors
    /// [`Error::Corruption`], the device's.
    pub fn read_piece(&mut self, bytes: usize) -> Result<Bytes> {
        match &mut self.source {
            Source::Memory { value, position } => {
                let start = *position;
                *position = value.len().min(start.saturating_add(bytes));
                Ok(value.slice(start..*position))
            }
            Source::Block(reader) => timed(self.clock.as_ref(), || reader.read_piece(bytes)),
        }
    }

    /// Reads a range, cut to the value's length, wherever the stream is.
    ///
    /// # Errors
    /// [`Error::Corruption`], the device's.
    pub fn read_range(&self, range: Range<u64>) -> Result<Bytes> {
        let end = range.end.min(self.info.length);
        let start = range.start.min(end);
        match &self.source {
            #[allow(clippy::cast_possible_truncation)] // within a value in memory
            Source::Memory { value, .. } => Ok(value.slice(start as usize..end as usize)),
            Source::Block(reader) => {
                let mut out = Vec::new();
                timed(self.clock.as_ref(), || reader.read_range(start..end, &mut out))?;
                Ok(out.into())
            }
        }
    }
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
