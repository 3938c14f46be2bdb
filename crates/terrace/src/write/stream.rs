//! Values on their way to the large space, and the stream a caller writes one object through.

use super::{check_key, check_length, commit_large, put_stored, stall};
use crate::{
    Durability, Error, PutOptions, Result, Version, WriterOptions,
    api::{expiry, object::Extent},
    blocks::{LargeValue, LargeWriter, Length},
    engine::Engine,
    metrics::{count, counters::StreamClock},
    mutation::{Mutation, unless},
};
use std::{io, sync::Arc};

/// A value that is in the large space, or on its way there, but in no commit yet. Dropped
/// uncommitted, it is abandoned.
pub struct PendingLarge<'a> {
    engine: &'a Engine,
    place: LargeValue,
    turn: u64,
    is_committed: bool,
}

impl<'a> PendingLarge<'a> {
    /// Writes a whole value; with `behind`, it may be written after this returns.
    ///
    /// # Errors
    /// The large space's.
    pub fn write(engine: &'a Engine, key: &[u8], attributes: &[u8], value: &[u8], behind: bool) -> Result<Self> {
        let ticket = engine.log.committed_seq() + 1;
        let write = || {
            let writer = engine
                .large
                .writer(key, attributes, Length::Known(value.len() as u64), ticket)?;
            let mut writer = if behind { writer.behind() } else { writer };
            writer.write(value)?;
            writer.finish()
        };
        let written = engine.large_result(write())?;
        Ok(Self::new(engine, written))
    }

    /// Takes over a value written by a stream.
    pub const fn new(engine: &'a Engine, value: LargeValue) -> Self {
        Self {
            engine,
            place: value,
            turn: 0,
            is_committed: false,
        }
    }

    /// Where it is.
    pub const fn extent(&self) -> Extent {
        self.place.extent()
    }

    /// CRC-32C of the value.
    pub const fn checksum(&self) -> u32 {
        self.place.checksum
    }

    /// Called inside its commit, which can then be refused only for lack of room in the log: from
    /// now on no frame is written before the value is durable. It is not called earlier, so that a
    /// failed write of the value affects no other commit. May be called again.
    pub fn enter(&self) {
        if self.turn > 0 {
            self.engine.unsynced.add(self.turn, self.place);
        }
    }

    /// Before the commit of these: makes them durable with one sync per block, together with others
    /// that finish at the same time, or defers that to the frame of their records.
    ///
    /// # Errors
    /// The large space's; if that refuses writes from now on, so does the store.
    pub fn prepare(engine: &Engine, pending: &mut [&mut Self], durability: Durability) -> Result<()> {
        if durability == Durability::Buffered {
            pending
                .iter_mut()
                .for_each(|pending| pending.turn = engine.unsynced.turn());
            return Ok(());
        }
        let places: Vec<LargeValue> = pending.iter().map(|pending| pending.place).collect();
        let synced = unless(Mutation::LargeBeforeSyncRecord, || engine.large.sync_all(&places));
        engine.large_result(synced)
    }

    /// Up to which turn the frame of its record must have the large space synced; 0 if it need not.
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// A commit points to it.
    pub fn committed(mut self, version: Version) {
        self.is_committed = true;
        self.engine.large.committed(&self.place, version.0);
        count(&self.engine.metrics.user_bytes, self.place.length);
    }
}

impl Drop for PendingLarge<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.engine.unsynced.forget(self.turn);
            self.engine.large.abandoned(&self.place);
        }
    }
}

/// A stream of unknown length is kept in RAM up to this size, and then gets a block of its own.
const SPOOL_BYTES_MAX: u64 = 1 << 20;

/// A spool shorter than this is kept by a stream that rests.
const RESTING_BYTES_MAX: usize = 16 << 10;

const FAILED_EARLIER: Error = Error::Unavailable("the stream failed earlier; start a new one");

/// A stream into one value. Nothing is visible before [`ValueWriter::finish`]; dropping it without
/// leaves only space that cleaning reclaims.
pub struct ValueWriter {
    engine: Arc<Engine>,
    key: Vec<u8>,
    options: WriterOptions,
    /// In stored form, encoded once: the block and the record must have the same bytes.
    attributes: Vec<u8>,
    stage: Stage,
    length: u64,
    clock: Arc<StreamClock>,
}

enum Stage {
    /// May yet be a short value, which is written like any other.
    Spooled(Vec<u8>),
    Large(LargeWriter),
    /// A write failed; there is nothing to finish.
    Failed,
}

/// Begins to write a value into the large space.
fn large_writer(engine: &Engine, key: &[u8], attributes: &[u8], length: Length) -> Result<LargeWriter> {
    stall::hold_back(engine);
    let ticket = engine.log.committed_seq() + 1;
    stall::find_room(engine, || {
        engine.large_result(engine.large.writer(key, attributes, length, ticket))
    })
}

/// Writes more of a value, for which there may be no room before something else is deleted.
fn write(engine: &Engine, writer: &mut LargeWriter, data: &[u8]) -> Result<()> {
    stall::find_room(engine, || engine.large_result(writer.make_room(data.len() as u64)))?;
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
                Stage::Large(large_writer(&engine, key, &attributes, Length::Known(length))?)
            }
            _ => Stage::Spooled(Vec::new()),
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
    /// [`Error::Invalid`] beyond the announced or the largest length, or the large space's. The
    /// stream is then over.
    pub fn append(&mut self, data: &[u8]) -> Result<()> {
        self.timed(|stream| stream.try_append(data))
    }

    /// Runs a call. If it fails the stream is over.
    fn timed(&mut self, call: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (clock, engine) = (Arc::clone(&self.clock), Arc::clone(&self.engine));
        let outcome = clock.time(|| engine.told(call(self)));
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
        let is_short = self.length <= SPOOL_BYTES_MAX || self.length < self.engine.placement.large_from(&self.key);
        if let Stage::Spooled(spool) = &mut self.stage
            && is_short
        {
            spool.extend_from_slice(data);
            return Ok(());
        }
        let (engine, length) = (Arc::clone(&self.engine), Length::AtLeast(self.length));
        write(&engine, self.in_large_space(length)?, data)
    }

    /// The writer of a value of this length, with the spooled bytes appended.
    fn in_large_space(&mut self, length: Length) -> Result<&mut LargeWriter> {
        if let Stage::Spooled(spool) = &self.stage {
            let mut writer = large_writer(&self.engine, &self.key, &self.attributes, length)?;
            write(&self.engine, &mut writer, spool)?;
            self.stage = Stage::Large(writer);
        }
        match &mut self.stage {
            Stage::Large(writer) => Ok(writer),
            Stage::Spooled(_) | Stage::Failed => Err(FAILED_EARLIER),
        }
    }

    /// Frees the memory of the stream, except for some KiB, until more is appended. A value that
    /// would be short then goes to the large space.
    ///
    /// # Errors
    /// The large space's. The stream is then over.
    pub fn rest(&mut self) -> Result<()> {
        self.timed(Self::try_rest)
    }

    fn try_rest(&mut self) -> Result<()> {
        match &self.stage {
            Stage::Spooled(spool) if spool.len() < RESTING_BYTES_MAX => return Ok(()),
            Stage::Failed => return Ok(()),
            Stage::Spooled(_) | Stage::Large(_) => {}
        }
        let length = self.options.length.map_or(Length::AtLeast(self.length), Length::Known);
        let engine = Arc::clone(&self.engine);
        engine.large_result(self.in_large_space(length)?.rest())
    }

    /// RAM of a value that may turn out to be a short one.
    #[must_use]
    pub const fn spooled_bytes(&self) -> usize {
        match &self.stage {
            Stage::Spooled(spool) => spool.len(),
            _ => 0,
        }
    }

    /// Commits the object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there were fewer bytes than announced, [`Error::ConditionFailed`], and
    /// as for a put.
    pub fn finish(self) -> Result<Version> {
        let (clock, engine) = (Arc::clone(&self.clock), Arc::clone(&self.engine));
        clock.last(|| engine.told(self.commit()))
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
            Stage::Spooled(value) => put_stored(&self.engine, &self.key, &value, attributes, *condition, *durability),
            Stage::Large(writer) => {
                let writer = match durability {
                    Durability::Sync => writer,
                    Durability::Buffered => writer.behind(),
                };
                let value = self.engine.large_result(writer.finish())?;
                let pending = PendingLarge::new(&self.engine, value);
                commit_large(&self.engine, &self.key, attributes, pending, *condition, *durability)
            }
            Stage::Failed => Err(FAILED_EARLIER),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        Options, Store,
        io::{Fault, FaultKind, SimDisk},
        tests::{bytes, small_options},
    };

    /// A value whose write behind had failed, and whose commit was then refused, made the frame of
    /// other commits fail, and with it the store.
    #[test]
    fn a_failed_write_of_what_is_not_committed_fails_no_other_commit() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
        let options = Options {
            large_disk: Some(Arc::new(disk.clone())),
            ..small_options(dir.path())
        };
        let store = Store::open(options).unwrap();
        store.put("before", bytes(1, 20_000)).unwrap();
        let engine = store.engine();
        disk.set_fault(Some(Fault::new(FaultKind::Write).on(".blk")));
        let mut refused = PendingLarge::write(engine, b"refused", b"", &bytes(2, 20_000), true).unwrap();
        PendingLarge::prepare(engine, &mut [&mut refused], Durability::Buffered).unwrap();
        assert!(engine.large.sync_all(&[refused.place]).is_err(), "it is known by now");
        disk.set_fault(None);
        let buffered = PutOptions {
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        store.put_with("other", bytes(3, 20_000), &buffered).unwrap();
        store.flush().unwrap();
        drop(refused);
        store.put("after", bytes(4, 20_000)).unwrap();
        assert!(store.get("other").unwrap().unwrap().value == bytes(3, 20_000));
    }

    /// Seven hundred streams that no caller continued kept their bytes in RAM.
    #[test]
    fn a_stream_that_rests_keeps_little_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(small_options(dir.path())).unwrap();
        let values = [
            (None, 60_000),
            (Some(60_000), 60_000),
            (Some(3_000_000), 3_000_000),
            (None, 10),
        ];
        let streams = values.map(|(length, bytes_of_it)| {
            let options = WriterOptions {
                length,
                ..WriterOptions::default()
            };
            let mut writer = store.writer(format!("{length:?} {bytes_of_it}"), options).unwrap();
            let value = bytes(1, bytes_of_it);
            let (before, after) = value.split_at(bytes_of_it / 2);
            writer.append(before).unwrap();
            writer.rest().unwrap();
            assert!(writer.spooled_bytes() < RESTING_BYTES_MAX);
            (writer, after.to_vec())
        });
        let in_buffers = streams.iter().map(|(writer, _)| match &writer.stage {
            Stage::Large(writer) => writer.buffer_bytes(),
            _ => 0,
        });
        assert!(in_buffers.sum::<usize>() <= 3 * 4096);
        for (mut writer, after) in streams {
            writer.append(&after).unwrap();
            writer.finish().unwrap();
        }
        drop(store);
        let store = Store::open(small_options(dir.path())).unwrap();
        for (length, bytes_of_it) in values {
            let found = store.get(format!("{length:?} {bytes_of_it}")).unwrap().unwrap();
            assert!(found.value == bytes(1, bytes_of_it));
        }
    }
}
