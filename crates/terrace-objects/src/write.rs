//! Writes values to the store.
//!
//! A small body becomes the value of its object's record. A larger one becomes a separate value,
//! which is committed without waiting for the device; the object's commit waits, and the order of
//! the log covers both. Encrypted bytes are encrypted as they are written.
//!
//! If anything fails before the object's commit, the value is deleted ([`Unfinished`]).

use crate::{
    collector::{Collector, Unfinished},
    crypt::{
        DataKey, RECORD_NUMBER, SALT_BYTES,
        pieces::{self, Sealer, sealed_length},
    },
    digest::Computed,
    error::{ObjectError, ObjectResult},
    keyspace::{self, Id},
    manifest::Part,
};
use bytes::Bytes;
use std::sync::Arc;
use terrace::{Condition, Durability, Error, PutOptions, Store, VALUE_BYTES_MAX, ValueWriter, WriterOptions};

/// Bytes read from a connection at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// Longest body that becomes the value of its object's record.
pub const WHOLE_BYTES_MAX: usize = PIECE_BYTES;
/// How often a nonce is drawn: two are equal once in 2^32.
const DRAWS: usize = 16;

/// The use of a body.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// It becomes an object.
    Object,
    /// It becomes a part of this upload.
    Part(Id, u16),
}

/// A complete body that matches the client's digests.
pub enum Received {
    /// In memory, encrypted if required.
    Whole(Bytes, Computed),
    /// A separate value to which nothing refers yet.
    Stored(Stored),
}

/// A separate value to which nothing refers yet.
pub struct Stored {
    /// The ID it is under.
    pub id: Id,
    /// Its entry in a manifest, without checksum.
    pub part: Part,
    /// Its digests.
    pub computed: Computed,
    /// To be finished when something refers to the value.
    pub unfinished: Unfinished,
}

/// A body in memory, encrypted if there is a data key.
///
/// # Errors
/// None in practice.
pub fn whole(bytes: Bytes, mut computed: Computed, data_key: Option<&DataKey>) -> ObjectResult<Received> {
    let Some(data_key) = data_key else {
        return Ok(Received::Whole(bytes, computed));
    };
    // The record's own value is the object's only one.
    let sealed = pieces::seal(data_key.of_value(RECORD_NUMBER, &[0; SALT_BYTES])?, &bytes)?;
    computed.tag = data_key.tag(computed.tag);
    Ok(Received::Whole(sealed.into(), computed))
}

/// A separate value being written.
pub struct Writing {
    id: Id,
    number: u16,
    nonce: u32,
    key: Vec<u8>,
    length: Option<u64>,
    writer: ValueWriter,
    written: u64,
    encrypting: Option<Encrypting>,
    // Dropped last, so that the writer is dropped before its value is deleted.
    unfinished: Unfinished,
}

/// Encryption of a value being written.
struct Encrypting {
    data_key: DataKey,
    salt: [u8; SALT_BYTES],
    sealer: Sealer,
}

impl Encrypting {
    fn begin(data_key: &DataKey, number: u16) -> ObjectResult<Self> {
        let mut salt = [0; SALT_BYTES];
        keyspace::fill_random(&mut salt);
        Ok(Self {
            data_key: data_key.clone(),
            salt,
            sealer: Sealer::new(data_key.of_value(number, &salt)?),
        })
    }
}

impl Writing {
    /// Begins a value, encrypted if there is a data key.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn begin(
        collector: &Arc<Collector>,
        store: &Store,
        target: Target,
        length: Option<u64>,
        data_key: Option<&DataKey>,
    ) -> ObjectResult<Self> {
        let draw = || {
            let mut nonce = [0; 4];
            keyspace::fill_random(&mut nonce);
            u32::from_le_bytes(nonce)
        };
        let mut begun = Self::begin_with(collector, store, target, (length, data_key.is_some()), draw)?;
        begun.encrypting = data_key
            .map(|data_key| Encrypting::begin(data_key, begun.number))
            .transpose()?;
        Ok(begun)
    }

    fn begin_with(
        collector: &Arc<Collector>,
        store: &Store,
        target: Target,
        length: (Option<u64>, bool),
        mut draw: impl FnMut() -> u32,
    ) -> ObjectResult<Self> {
        let (id, number) = match target {
            Target::Object => (Id::new(store.clock()), 1),
            Target::Part(id, number) => (id, number),
        };
        let fail = |error: Error, key: &[u8]| ObjectError::engine(&error, key);
        for _ in 0..DRAWS {
            let nonce = draw();
            let key = keyspace::value(id, number, nonce);
            // A part that is sent again has a known ID: its nonce must differ from the earlier
            // one's.
            let is_taken = |store: &Store| store.head(&key).map(|info| info.is_some());
            if matches!(target, Target::Part(..)) && is_taken(store).map_err(|error| fail(error, &key))? {
                continue;
            }
            let place = (id, number, nonce);
            if let Some(begun) = Self::begin_at(collector, store, target, length, place)? {
                return Ok(begun);
            }
        }
        Err(ObjectError::Impossible)
    }

    /// Begins a value at a key. `None` if another is being written there.
    fn begin_at(
        collector: &Arc<Collector>,
        store: &Store,
        target: Target,
        (length, is_sealed): (Option<u64>, bool),
        (id, number, nonce): (Id, u16, u32),
    ) -> ObjectResult<Option<Self>> {
        let key = keyspace::value(id, number, nonce);
        let buffered = PutOptions {
            durability: Durability::Buffered,
            condition: Condition::None,
            ..PutOptions::default()
        };
        let fail = |error| ObjectError::engine(&error, &key);
        // Reserves space first: a write that is refused on a full device leaves nothing in the log.
        // The value exists only once it is finished.
        let options = WriterOptions {
            length: length.map(|length| if is_sealed { sealed_length(length) } else { length }),
            put: buffered.clone(),
        };
        let writer = store.writer(&key, options).map_err(fail)?;
        // The marker is committed first, so after a crash every value has one.
        let marker = match target {
            Target::Object => keyspace::pending(id),
            Target::Part(..) => keyspace::pending_part(&key),
        };
        let absent = PutOptions {
            condition: Condition::Absent,
            ..buffered
        };
        match store.put_with(marker, "", &absent) {
            Err(Error::ConditionFailed { .. }) => return Ok(None),
            put => put.map(drop).map_err(fail)?,
        }
        let unfinished = match target {
            Target::Object => collector.unfinished_values(id),
            Target::Part(..) => collector.unfinished_part(key.clone()),
        };
        Ok(Some(Self {
            id,
            number,
            nonce,
            key,
            length,
            writer,
            written: 0,
            encrypting: None,
            unfinished,
        }))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// `IncompleteBody` beyond the announced length, `EntityTooLarge`, errors of the store.
    pub fn take(mut self, frames: &[Bytes]) -> ObjectResult<Self> {
        for frame in frames {
            self.append(frame)?;
        }
        Ok(self)
    }

    /// Frees the memory of its buffers, except some KiB and a piece to be encrypted, until more
    /// bytes come.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn rest(&mut self) -> ObjectResult {
        let rested = self.writer.rest();
        rested.map_err(|error| ObjectError::engine(&error, &self.key))
    }

    /// RAM that its buffers take while it may still be a short value.
    pub const fn spooled_bytes(&self) -> usize {
        self.writer.spooled_bytes()
    }

    fn append(&mut self, frame: &[u8]) -> ObjectResult {
        self.written += frame.len() as u64;
        if self.length.is_some_and(|length| self.written > length) {
            return Err(ObjectError::Incomplete);
        }
        if self.written > VALUE_BYTES_MAX {
            return Err(ObjectError::TooLong);
        }
        let mut write = |bytes: &[u8]| {
            self.writer
                .append(bytes)
                .map_err(|error| ObjectError::engine(&error, &self.key))
        };
        match &mut self.encrypting {
            None => write(frame),
            Some(encrypting) => encrypting.sealer.push(frame, write),
        }
    }

    /// Finishes the value, whose digests are `computed`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn finish(mut self, mut computed: Computed) -> ObjectResult<Stored> {
        let fail = |error| ObjectError::engine(&error, &self.key);
        let mut salt = None;
        if let Some(encrypting) = self.encrypting {
            salt = Some(encrypting.salt);
            computed.tag = encrypting.data_key.tag(computed.tag);
            let writer = &mut self.writer;
            encrypting.sealer.finish(|bytes| writer.append(bytes).map_err(fail))?;
        }
        self.writer.finish().map_err(fail)?;
        let part = Part {
            number: self.number,
            nonce: self.nonce,
            length: computed.length,
            salt,
            checksum: None,
        };
        Ok(Stored {
            id: self.id,
            part,
            computed,
            unfinished: self.unfinished,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::Options;

    /// Regression: a part that was sent again drew the earlier part's nonce and overwrote its
    /// value; registering the part then deleted the replaced value, which was its own.
    #[test]
    fn a_nonce_is_used_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let collector = Arc::new(Collector::default());
        let id = Id::new(store.clock());
        let begin = |drawn: &[u32]| {
            let mut drawn = drawn.iter().copied();
            let draw = || drawn.next().unwrap();
            Writing::begin_with(&collector, &store, Target::Part(id, 1), (None, false), draw)
        };
        let write = |writing: Writing, bytes: &'static [u8]| {
            let writing = writing.take(&[Bytes::from_static(bytes)]).unwrap();
            writing.finish(crate::digest::Digests::new(&[]).finish()).unwrap()
        };
        let first = begin(&[7]).unwrap();
        let beside = begin(&[7, 8]).unwrap();
        assert_eq!((first.nonce, beside.nonce), (7, 8), "one that is being written");
        let (first, beside) = (write(first, b"one"), write(beside, b"two"));
        let again = begin(&[7, 8, 9]).unwrap();
        assert_eq!(again.nonce, 9, "and one that is");
        drop(write(again, b"three"));
        for (part, bytes) in [(&first, b"one"), (&beside, b"two")] {
            let value = store.get(keyspace::value(id, 1, part.part.nonce)).unwrap().unwrap();
            assert_eq!(&value[..], bytes);
        }
        assert!(begin(&[7; DRAWS]).is_err(), "not for ever");
    }
}
