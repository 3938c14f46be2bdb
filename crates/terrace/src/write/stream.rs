//! Values on their way to the large space, and the stream a caller writes one object through.

use super::{check_key, check_length, commit_large, fallback, put_stored};
use crate::{
    Durability, Error, PutOptions, Result, Version, WriterOptions,
    api::expiry,
    blocks::{LargeSpace, LargeValue, LargeWriter},
    engine::Engine,
    log::format::Extent,
    metrics::counters::StreamClock,
    mutation::{Mutation, unless},
};
use parking_lot::Mutex;
use std::{io, sync::Arc};

/// Values that commits point to, or will, and that are not known to be durable. Each gets a turn, rising; a frame with
/// records of such values has them synced, up to the last of their turns, before it is written.
#[derive(Debug)]
pub struct UnsyncedLarge {
    large: LargeSpace,
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    last_turn: u64,
    waiting: Vec<(u64, LargeValue)>,
}

impl UnsyncedLarge {
    /// None yet.
    pub fn new(large: LargeSpace) -> Self {
        Self {
            large,
            values: Mutex::default(),
        }
    }

    /// Takes a value in. Returns its turn, above 0.
    fn add(&self, value: LargeValue) -> u64 {
        let mut values = self.values.lock();
        values.last_turn += 1;
        let turn = values.last_turn;
        values.waiting.push((turn, value));
        turn
    }

    /// No record will point to the value with this turn.
    fn forget(&self, turn: u64) {
        self.values.lock().waiting.retain(|(other, _)| *other != turn);
    }

    /// Makes those up to `turn` durable, waiting for their writes, with one sync per block. Later ones are not waited
    /// for: their writes go on meanwhile.
    ///
    /// # Errors
    /// The large space's. No frame may then be written any more: its records could point to bytes that are not there.
    pub fn sync(&self, turn: u64) -> Result<()> {
        let due = |(other, _): &mut (u64, LargeValue)| *other <= turn;
        let values: Vec<LargeValue> = {
            let mut values = self.values.lock();
            values.waiting.extract_if(.., due).map(|(_, value)| value).collect()
        };
        self.large.sync_all(&values)
    }
}

/// A value that is in the large space, or on its way there, but in no commit yet. Dropped uncommitted, it is abandoned.
pub struct PendingLarge<'a> {
    engine: &'a Engine,
    value: Option<LargeValue>,
    place: LargeValue,
    turn: u64,
}

impl<'a> PendingLarge<'a> {
    /// Writes a whole value; `behind`, so that it need not be written when this returns.
    ///
    /// # Errors
    /// The large space's.
    pub fn write(engine: &'a Engine, key: &[u8], attributes: &[u8], value: &[u8], behind: bool) -> Result<Self> {
        let ticket = engine.log.committed_seq() + 1;
        let write = || {
            let writer = engine.large.writer(key, attributes, Some(value.len() as u64), ticket)?;
            let mut writer = if behind { writer.behind() } else { writer };
            writer.write(value)?;
            writer.finish()
        };
        let written = engine.large_result(write())?;
        Ok(Self::new(engine, written))
    }

    /// Takes over a value that a stream has written.
    pub const fn new(engine: &'a Engine, value: LargeValue) -> Self {
        Self {
            engine,
            value: Some(value),
            place: value,
            turn: 0,
        }
    }

    /// Where it is.
    pub const fn extent(&self) -> Extent {
        Extent {
            block: self.place.block,
            offset: self.place.offset,
            extent_bytes: self.place.extent_bytes,
            length: self.place.length,
        }
    }

    /// CRC-32C of the value.
    pub const fn checksum(&self) -> u32 {
        self.place.checksum
    }

    /// Before its commit: makes it durable, together with others that finish now, or has that done with the frame of its
    /// record.
    ///
    /// # Errors
    /// The large space's; if that refuses writes from now on, so does the store.
    pub fn prepare(&mut self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Sync => {
                let synced = unless(Mutation::LargeBeforeSyncRecord, || self.engine.large.sync(&self.place));
                self.engine.large_result(synced)
            }
            Durability::Buffered => {
                self.turn = self.engine.unsynced.add(self.place);
                Ok(())
            }
        }
    }

    /// Up to which turn the frame of its record must have the large space synced; 0 if it need not.
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// A commit points to it.
    pub fn committed(mut self, version: Version) {
        if let Some(value) = self.value.take() {
            self.engine.large.committed(&value, version.0);
            let user_bytes = value.length;
            self.engine
                .metrics
                .user_bytes
                .fetch_add(user_bytes, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl Drop for PendingLarge<'_> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.engine.unsynced.forget(self.turn);
            self.engine.large.abandoned(&value);
        }
    }
}

/// A stream into one value. Nothing is visible before [`ValueWriter::finish`]; dropping it without leaves only space that
/// cleaning reclaims.
pub struct ValueWriter {
    engine: Arc<Engine>,
    key: Vec<u8>,
    options: WriterOptions,
    /// In stored form, made once: the block and the record must say the same.
    attributes: Vec<u8>,
    stage: Stage,
    length: u64,
    clock: Arc<StreamClock>,
}

enum Stage {
    /// May yet be a small value.
    Buffered(Vec<u8>),
    /// A large value for which the large tier has no room: it goes to the log, if it has none in the end either.
    Instead(Vec<u8>),
    Large(LargeWriter),
    /// A write failed; there is nothing to finish.
    Failed,
}

/// Begins to write a value into the large space.
fn large_writer(engine: &Engine, key: &[u8], attributes: &[u8], length: Option<u64>) -> Result<LargeWriter> {
    let ticket = engine.log.committed_seq() + 1;
    engine.large_result(engine.large.writer(key, attributes, length, ticket))
}

/// Writes more of a value, for which there may be no room before something else is deleted.
fn write(engine: &Engine, writer: &mut LargeWriter, data: &[u8]) -> Result<()> {
    engine
        .cleaning
        .find_room(engine, || engine.large_result(writer.make_room(data.len())))?;
    engine.large_result(writer.write(data))
}

impl std::fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueWriter")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl ValueWriter {
    /// Starts a stream.
    ///
    /// # Errors
    /// [`Error::Invalid`], or the large space's if the length is known and there is no room.
    pub(crate) fn new(
        engine: Arc<Engine>,
        key: &[u8],
        options: WriterOptions,
        clock: Arc<StreamClock>,
    ) -> Result<Self> {
        engine.check_writable()?;
        check_key(key)?;
        check_length(options.length.unwrap_or(0))?;
        let expires_ms = options.put.expiry.resolve(&engine.options.clock);
        let attributes = expiry::encode(&options.put.attributes, expires_ms)?;
        let stage = match options.length {
            Some(length) if length >= engine.placement.large_from(key) => {
                engine.cleaning.hold_back(&engine, length);
                let begin = || large_writer(&engine, key, &attributes, Some(length));
                let begun = fallback::place(&engine, length, 0, begin)?;
                begun.map_or_else(|| Stage::Instead(Vec::new()), Stage::Large)
            }
            _ => Stage::Buffered(Vec::new()),
        };
        Ok(Self {
            engine,
            key: key.to_vec(),
            options,
            attributes,
            stage,
            length: 0,
            clock,
        })
    }

    /// Appends to the value.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the announced or the largest length, or the large space's. The stream is then over.
    pub fn append(&mut self, data: &[u8]) -> Result<()> {
        let clock = Arc::clone(&self.clock);
        let outcome = clock.time(|| self.try_append(data));
        if outcome.is_err() {
            self.stage = Stage::Failed;
        }
        outcome
    }

    fn try_append(&mut self, data: &[u8]) -> Result<()> {
        self.length += data.len() as u64;
        if let Some(announced) = self.options.length.filter(|announced| self.length > *announced) {
            return Err(Error::invalid(format!(
                "the stream is longer than the {announced} bytes announced"
            )));
        }
        check_length(self.length)?;
        let threshold = self.engine.placement.large_from(&self.key);
        match &mut self.stage {
            Stage::Buffered(buffer) if self.length < threshold => {
                buffer.extend_from_slice(data);
                Ok(())
            }
            Stage::Instead(buffer) => {
                buffer.extend_from_slice(data);
                Ok(())
            }
            Stage::Buffered(buffer) => {
                self.engine.cleaning.hold_back(&self.engine, self.length);
                let mut writer = large_writer(&self.engine, &self.key, &self.attributes, None)?;
                write(&self.engine, &mut writer, buffer)?;
                write(&self.engine, &mut writer, data)?;
                self.stage = Stage::Large(writer);
                Ok(())
            }
            Stage::Large(writer) => write(&self.engine, writer, data),
            Stage::Failed => Err(Error::Unavailable("the stream failed earlier; start a new one")),
        }
    }

    /// Commits the object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if fewer bytes came than announced, [`Error::ConditionFailed`], and as for a put.
    pub fn finish(self) -> Result<Version> {
        let clock = Arc::clone(&self.clock);
        clock.last(|| self.commit())
    }

    fn commit(self) -> Result<Version> {
        if let Some(announced) = self.options.length.filter(|announced| self.length != *announced) {
            return Err(Error::invalid(format!(
                "the stream has {} bytes; {announced} were announced",
                self.length
            )));
        }
        let PutOptions {
            durability, condition, ..
        } = &self.options.put;
        let attributes = &self.attributes[..];
        match self.stage {
            Stage::Buffered(value) | Stage::Instead(value) => {
                put_stored(&self.engine, &self.key, &value, attributes, *condition, *durability)
            }
            Stage::Large(mut writer) => {
                let make_room = || self.engine.large_result(writer.make_room_for_end());
                self.engine.cleaning.find_room(&self.engine, make_room)?;
                let writer = match durability {
                    Durability::Sync => writer,
                    Durability::Buffered => writer.behind(),
                };
                let value = self.engine.large_result(writer.finish())?;
                let pending = PendingLarge::new(&self.engine, value);
                commit_large(&self.engine, &self.key, attributes, pending, *condition, *durability)
            }
            Stage::Failed => Err(Error::Unavailable("the stream failed earlier; start a new one")),
        }
    }

    /// Whether the value is to be durable when `finish` returns.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.options.put.durability == Durability::Sync
    }
}

impl io::Write for ValueWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.append(data).map_err(io::Error::other)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
