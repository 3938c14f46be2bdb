//! Objects on their way out.
//!
//! A reader sees one object to its end, however it changes meanwhile: the value of a record is
//! pinned by its reader, and values of their own are held ([`Hold`]). What RAM has of a body is
//! handed out as it is; the rest is read in long reads, one call each. What is encrypted gives no
//! byte before it is unlocked ([`Opened::unlock`]), and is decrypted a few pieces at a time: where
//! it is read, or, if RAM has it, where it is sent.

use crate::{
    access::decide::{Claim, Permit},
    collector::{Collector, Hold},
    crypt::{
        CustomerKey, DataKey, ENCRYPTION, Encryption, RECORD_NUMBER, SALT_BYTES, SealedKey, Wrapper, damaged,
        pieces::{self, Opener, sealed_length},
    },
    error::{ObjectError, ObjectResult},
    keyspace::{self, Id},
    manifest::{self, MANIFEST_BYTES_MAX, Part},
    record::Facts,
    secrets::{Secrets, kms::Caller},
    write::PIECE_BYTES,
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};
use terrace::{Error, HomeKind, ObjectInfo, ReadOptions, Reader, Store};

/// Bytes read at a time, once an object is read on.
const READ_BYTES_MAX: usize = 1 << 20;
/// Pieces of what is encrypted that are decrypted at a time: what was decrypted before is on its
/// way meanwhile. As many bytes as a piece of what is not encrypted has, so that a connection,
/// which gathers 408 KiB before it sends, sends both in the same runs: with 448 KiB a client got a
/// third less (docs/s3.md).
const DECRYPTED_PIECES: u64 = (PIECE_BYTES / pieces::PIECE_BYTES) as u64;
/// Length of pieces for a reader that holds little, at most: what a connection sends at a time.
pub const SHORT_PIECE_BYTES: usize = 64 << 10;
/// Most pieces of one object that one read of a device brings.
pub const PIECES_PER_READ: usize = READ_BYTES_MAX / PIECE_BYTES;
/// How often opening starts again because the object was replaced meanwhile.
const ATTEMPTS: usize = 64;

/// An object that is open.
pub struct Opened {
    /// What is known of it.
    pub facts: Facts,
    /// Its parts, if it has values of its own.
    pub parts: Option<Vec<Part>>,
    /// What the store knows of its record.
    pub info: ObjectInfo,
    key: Vec<u8>,
    source: Source,
    permit: Permit,
    /// Where it is read on, and up to where.
    range: Range<u64>,
    /// How much to read next.
    read_bytes: usize,
    /// Little of it is to be in RAM at a time.
    holds_little: bool,
    /// What decrypts it, once it is unlocked.
    data_key: Option<DataKey>,
    /// What decrypts the value that is being read.
    opener: Option<Opener>,
    /// How the first piece is read.
    reading: ReadOptions,
}

enum Source {
    Record(Reader),
    Values {
        id: Id,
        /// Which part is open.
        current: Option<(usize, Reader)>,
        _hold: Hold,
    },
}

/// Opens the object at a key of the store for whoever may read exactly what is there. `None` if
/// there is none. Up to its first piece it is read by `reading`; an answer that has begun goes on.
///
/// # Errors
/// `AccessDenied`, the store's; `SlowDown` as `reading` asks for.
pub fn open(
    store: &Store,
    reading: &ReadOptions,
    collector: &Arc<Collector>,
    key: &[u8],
    claim: &Claim,
) -> ObjectResult<Option<Opened>> {
    let fail = |error: Error| ObjectError::engine(&error, key);
    for _ in 0..ATTEMPTS {
        let Some(reader) = store.reader_with(key, reading).map_err(fail)? else {
            return Ok(None);
        };
        let facts = Facts::of(reader.info());
        let permit = claim.on(&facts)?;
        let Some(id) = facts.values else {
            let opened = Opened::of_record(reader, facts, key, permit);
            return Ok(Some(opened));
        };
        let hold = collector.hold(id);
        let unchanged = store.head(key).map_err(fail)?.map(|info| info.version) == Some(facts.version);
        if !unchanged {
            continue;
        }
        let source = Source::Values {
            id,
            current: None,
            _hold: hold,
        };
        return Ok(Some(Opened {
            parts: Some(read_parts(&reader, key, facts.length)?),
            reading: *reading,
            ..Opened::new(reader.info().clone(), source, facts, key, permit)
        }));
    }
    Err(ObjectError::AlwaysReplaced)
}

/// Describes the object at a key of the store if RAM has its record and the claim is good, without
/// waiting for anything. `None` says nothing about the key.
pub fn describe_in_ram(store: &Store, key: &[u8], claim: &Claim) -> Option<Facts> {
    // What is wrong with it is found out again by a caller that may wait.
    let facts = Facts::of(&store.head_in_ram(key).ok()?.found()?);
    claim.on(&facts).ok()?;
    Some(facts)
}

/// Opens the object at a key of the store if RAM has all of it and the claim is good, without
/// waiting for anything. `None` says nothing about the key.
pub fn open_in_ram(store: &Store, key: &[u8], claim: &Claim) -> Option<Opened> {
    // What is wrong with it is found out again by a caller that may wait.
    let reader = store.reader_in_ram(key).ok()??;
    let facts = Facts::of(reader.info());
    let permit = claim.on(&facts).ok()?;
    facts
        .values
        .is_none()
        .then(|| Opened::of_record(reader, facts, key, permit))
}

fn read_parts(reader: &Reader, key: &[u8], length: u64) -> ObjectResult<Vec<Part>> {
    let damaged = |reason| ObjectError::engine(&Error::corruption("list of parts", reason), key);
    let bytes = reader.info().length;
    if bytes > MANIFEST_BYTES_MAX {
        return Err(damaged("it is longer than any list"));
    }
    let list = reader
        .read_range(0..bytes)
        .map_err(|error| ObjectError::engine(&error, key))?;
    let parts = manifest::decode(&list).ok_or_else(|| damaged("it does not decode"))?;
    if parts.iter().map(|part| part.length).sum::<u64>() != length {
        return Err(damaged("its parts are not as long as the object"));
    }
    Ok(parts)
}

/// Notes that an object is read from its beginning, and has the next one read ahead, if its reader
/// goes in order. Only where its bytes are on the large tier. The engine does the same for values
/// by their keys; but those of longer objects have no order.
pub fn note(store: &Store, reading: &ReadOptions, opened: &Opened) {
    if opened.home() != HomeKind::Block {
        return;
    }
    let Some(next) = store.note_read(opened.place()) else {
        return;
    };
    // What cannot be read now is not an error of any request yet.
    let facts = store.head(&next).ok().flatten().map(|info| Facts::of(&info));
    let Some((id, length)) = facts.and_then(|facts| Some((facts.values?, facts.length))) else {
        return;
    };
    let reader = store.reader_with(&next, reading).ok().flatten();
    let parts = reader.and_then(|reader| read_parts(&reader, &next, length).ok());
    if let Some(part) = parts.as_deref().and_then(<[Part]>::first) {
        store.read_ahead(keyspace::value(id, part.number, part.nonce));
    }
}

/// How many bytes of an object of this length the first read of a device has: all of it, if one
/// read can bring that, since on a disk a second one is a seek; of a longer one little, so that it
/// begins soon.
const fn first_read_bytes(length: u64) -> usize {
    if length <= READ_BYTES_MAX as u64 {
        READ_BYTES_MAX
    } else {
        PIECE_BYTES
    }
}

impl Opened {
    /// An object whose bytes are its record's value.
    fn of_record(reader: Reader, facts: Facts, key: &[u8], permit: Permit) -> Self {
        Self::new(reader.info().clone(), Source::Record(reader), facts, key, permit)
    }

    fn new(info: ObjectInfo, source: Source, facts: Facts, key: &[u8], permit: Permit) -> Self {
        Self {
            parts: None,
            info,
            key: key.to_vec(),
            source,
            permit,
            range: 0..facts.length,
            read_bytes: first_read_bytes(facts.length),
            holds_little: false,
            facts,
            data_key: None,
            opener: None,
            reading: ReadOptions::default(),
        }
    }

    /// Lets it be read by a client that gives this key, or none. Nothing to do if it is not
    /// encrypted.
    ///
    /// # Errors
    /// As [`unlock`].
    pub fn unlock(&mut self, secrets: &Secrets, customer: Option<&CustomerKey>) -> ObjectResult {
        let name = keyspace::object_of(&self.key);
        let caller = || self.permit.caller();
        self.data_key = unlock(&self.facts, name, secrets, customer, caller)?;
        Ok(())
    }

    /// What is left of its range.
    pub const fn rest(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// What it was opened by.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// The key of its record in the store.
    pub fn place(&self) -> &[u8] {
        &self.key
    }

    /// The value of the record itself: the bytes, or the list of parts. For rewriting a record with
    /// other attributes.
    ///
    /// # Errors
    /// The store's; `NotImplemented` for a value that was not put through S3 and is too long to
    /// hold.
    pub fn record_value(&self) -> ObjectResult<Bytes> {
        match (&self.source, &self.parts) {
            (Source::Record(reader), _) => {
                let bytes = reader.info().length;
                if bytes > MANIFEST_BYTES_MAX {
                    return Err(ObjectError::TooLongToDescribe);
                }
                reader
                    .read_range(0..bytes)
                    .map_err(|error| ObjectError::engine(&error, &self.key))
            }
            (Source::Values { .. }, parts) => {
                let parts = parts.as_deref().unwrap_or_default();
                let algorithm = parts.first().and_then(|part| part.checksum.as_ref());
                Ok(manifest::encode(parts, algorithm.map(|checksum| checksum.algorithm)).into())
            }
        }
    }

    /// Where the bytes are that were read last: the tier that serves a body, by its first piece.
    pub fn home(&self) -> HomeKind {
        match &self.source {
            Source::Record(reader) => reader.info().home,
            Source::Values { current, .. } => current
                .as_ref()
                .map_or(self.info.home, |(_, reader)| reader.info().home),
        }
    }

    /// Reads only these bytes from now on.
    ///
    /// # Errors
    /// The store's.
    pub fn seek(&mut self, range: Range<u64>) -> ObjectResult {
        self.opener = None;
        match &mut self.source {
            // Where it is in what is encrypted is known when it is read.
            Source::Record(_) if self.facts.encryption.is_some() => {}
            Source::Record(reader) => reader
                .seek_to(range.start)
                .map_err(|error| ObjectError::engine(&error, &self.key))?,
            // Opened again where the range begins.
            Source::Values { current, .. } => *current = None,
        }
        self.range = range;
        Ok(())
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// The store's.
    pub fn next_piece(&mut self, store: &Store) -> ObjectResult<Bytes> {
        let reading = std::mem::take(&mut self.reading);
        if let Some(piece) = self.piece_in_ram() {
            return Ok(piece);
        }
        let left = self.range.end - self.range.start;
        if left == 0 {
            return Ok(Bytes::new());
        }
        if self.facts.encryption.is_some() {
            return self.next_decrypted(store, &reading);
        }
        let (read_bytes, copied) = (self.bytes_to_read(), self.copied());
        let (reader, in_part) = match &mut self.source {
            Source::Record(reader) => (reader, left),
            Source::Values { id, current, .. } => {
                let parts = self.parts.as_deref().unwrap_or_default();
                let (reader, part, inside) =
                    open_part((store, &reading), &self.key, *id, parts, current, self.range.start)?;
                if part.salt.is_some() {
                    let error = Error::corruption("a part", "it is encrypted, and its object is not");
                    return Err(ObjectError::engine(&error, &self.key));
                }
                (reader, part.length - inside)
            }
        };
        let wanted = usize::try_from(left.min(in_part)).unwrap_or(usize::MAX);
        reader.copy_pieces(copied);
        let piece = reader
            .read_piece(wanted.min(read_bytes))
            .map_err(|error| ObjectError::engine(&error, &self.key))?;
        // A reader that goes on has the device read longer.
        self.read_bytes = READ_BYTES_MAX;
        if piece.is_empty() {
            let error = Error::corruption("a value", "it is shorter than the store says");
            return Err(ObjectError::engine(&error, &self.key));
        }
        Ok(self.of_range(piece))
    }

    /// The next bytes of an object that is encrypted: as many as one read brings, decrypted here,
    /// where one may take one's time.
    fn next_decrypted(&mut self, store: &Store, reading: &ReadOptions) -> ObjectResult<Bytes> {
        let damaged = |reason| ObjectError::engine(&Error::corruption("an encrypted object", reason), &self.key);
        let data_key = self.data_key.as_ref().ok_or_else(|| damaged("it was not unlocked"))?;
        let is_begun = self.opener.as_ref().is_some_and(|opener| !opener.is_over());
        let (read_bytes, copied, at_once) = (self.bytes_to_read(), self.copied(), self.decrypted_at_once());
        let (reader, number, salt, length, inside) = match &mut self.source {
            Source::Record(reader) => {
                let (length, start) = (self.facts.length, self.range.start);
                (reader, RECORD_NUMBER, [0; SALT_BYTES], length, start)
            }
            Source::Values { id, current, .. } => {
                let parts = self.parts.as_deref().unwrap_or_default();
                let (reader, part, inside) =
                    open_part((store, reading), &self.key, *id, parts, current, self.range.start)?;
                let salt = part.salt.ok_or_else(|| damaged("a part has no salt"))?;
                (reader, part.number, salt, part.length, inside)
            }
        };
        if reader.info().length != sealed_length(length) {
            return Err(damaged("a value has another length than the record says"));
        }
        if !is_begun {
            let end = inside + (self.range.end - self.range.start);
            let opener = Opener::new(data_key.of_value(number, &salt)?, length, &(inside..end));
            reader
                .seek_to(opener.start())
                .map_err(|error| ObjectError::engine(&error, &self.key))?;
            self.opener = Some(opener);
        }
        let opener = self.opener.as_mut().ok_or_else(|| damaged("it was not begun"))?;
        reader.copy_pieces(copied);
        while !opener.has(1) {
            let wanted = usize::try_from(opener.wanted()).unwrap_or(usize::MAX);
            let piece = reader
                .read_piece(wanted.min(read_bytes))
                .map_err(|error| ObjectError::engine(&error, &self.key))?;
            if piece.is_empty() {
                return Err(damaged("a value is shorter than the record says"));
            }
            opener.push(piece);
        }
        take_sealed_in_ram(opener, reader, at_once);
        let piece = opener.open(at_once)?;
        self.read_bytes = READ_BYTES_MAX;
        Ok(self.of_range(piece))
    }

    /// The next piece if it is in RAM, and nothing must be opened for it: what is encrypted is
    /// decrypted here, some 0.1 ms' work.
    pub fn piece_in_ram(&mut self) -> Option<Bytes> {
        if self.range.is_empty() {
            return None;
        }
        let (copied, at_once) = (self.copied(), self.decrypted_at_once());
        let reader = match &mut self.source {
            Source::Record(reader) => reader,
            Source::Values { current, .. } => &mut current.as_mut()?.1,
        };
        reader.copy_pieces(copied);
        let piece = if self.facts.encryption.is_some() {
            let opener = self.opener.as_mut()?;
            take_sealed_in_ram(opener, reader, at_once);
            // Damage is found again by a caller that may wait, and told.
            opener.open(at_once).ok().filter(|piece| !piece.is_empty())?
        } else {
            reader.piece_in_ram()?
        };
        Some(self.of_range(piece))
    }

    /// What of the next piece belongs to the range.
    fn of_range(&mut self, mut piece: Bytes) -> Bytes {
        let left = self.range.end - self.range.start;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.range.start += piece.len() as u64;
        piece
    }

    /// From now on, or no more, only a short piece of it is in RAM for this reader at a time: one
    /// that takes its time pins nothing of the cache then, and has nothing read ahead.
    pub const fn hold_little(&mut self, little: bool) {
        self.holds_little = little;
    }

    /// How much to read of a device.
    fn bytes_to_read(&self) -> usize {
        if self.holds_little {
            // What is read goes to the cache, and comes from there.
            PIECE_BYTES
        } else {
            self.read_bytes
        }
    }

    fn copied(&self) -> Option<usize> {
        self.holds_little.then_some(SHORT_PIECE_BYTES)
    }

    const fn decrypted_at_once(&self) -> u64 {
        if self.holds_little { 1 } else { DECRYPTED_PIECES }
    }
}

/// Has the next pieces that are to be decrypted at hand, as far as RAM has them.
fn take_sealed_in_ram(opener: &mut Opener, reader: &mut Reader, pieces: u64) {
    while !opener.has(pieces)
        && let Some(sealed) = reader.piece_in_ram()
    {
        opener.push(sealed);
    }
}

/// Opens the part that has the byte at `position`, if it is not open, and goes there unless it is
/// encrypted. Its reader, the part, and where in it the byte is.
fn open_part<'a>(
    (store, reading): (&Store, &ReadOptions),
    key: &[u8],
    id: Id,
    parts: &'a [Part],
    current: &'a mut Option<(usize, Reader)>,
    position: u64,
) -> ObjectResult<(&'a mut Reader, &'a Part, u64)> {
    let damaged = |reason| ObjectError::engine(&Error::corruption("a part", reason), key);
    let mut start = 0;
    let found = parts.iter().enumerate().find(|(_, part)| {
        let here = position < start + part.length;
        if !here {
            start += part.length;
        }
        here
    });
    let (at, part) = found.ok_or_else(|| damaged("there is none for this position"))?;
    let inside = position - start;
    if current.as_ref().is_none_or(|(open, _)| *open != at) {
        let value = keyspace::value(id, part.number, part.nonce);
        let fail = |error: Error| ObjectError::engine(&error, key);
        let mut reader = store
            .reader_with(&value, reading)
            .map_err(fail)?
            .ok_or_else(|| damaged("it is missing"))?;
        // How long it is otherwise is known where it is decrypted.
        if part.salt.is_none() {
            if reader.info().length != part.length {
                return Err(damaged("it has another length than the list says"));
            }
            reader.seek_to(inside).map_err(fail)?;
        }
        *current = Some((at, reader));
    }
    let (_, reader) = current.as_mut().ok_or_else(|| damaged("none is left"))?;
    Ok((reader, part, inside))
}

/// What decrypts an object, whose bucket and key are `name`, for a caller that gives this key, or
/// none. `None` if it is not encrypted.
///
/// # Errors
/// `InvalidRequest` if the object needs a client's key and none is given, or the other way round;
/// `AccessDenied` if it is another one.
pub fn unlock(
    facts: &Facts,
    name: &[u8],
    secrets: &Secrets,
    customer: Option<&CustomerKey>,
    caller: impl FnOnce() -> Caller,
) -> ObjectResult<Option<DataKey>> {
    check(facts, customer)?;
    if facts.encryption.is_none() {
        return Ok(None);
    }
    let stored = facts.attributes.get(ENCRYPTION);
    let sealed = stored.and_then(SealedKey::decode);
    let sealed = sealed.ok_or_else(|| damaged(name, "this program does not know how it is encrypted"))?;
    match (sealed.by, customer) {
        (Wrapper::Master(id), _) => sealed.unwrap_by_master(id, secrets, name).map(Some),
        (Wrapper::Kms(id), _) => {
            let data_key = sealed.unwrap_by_kms(id, secrets, &facts.attributes, name, &caller())?;
            Ok(Some(data_key))
        }
        (Wrapper::Customer, None) => Err(ObjectError::KeyNeeded),
        (Wrapper::Customer, Some(customer)) => {
            let data_key = sealed.unwrap_by(customer, name)?;
            data_key.map(Some).ok_or(ObjectError::Denied)
        }
    }
}

/// Whether a key is given where one is needed, and only there.
fn check(facts: &Facts, customer: Option<&CustomerKey>) -> ObjectResult {
    match (facts.encryption, customer) {
        (Some(Encryption::Customer), None) => Err(ObjectError::KeyNeeded),
        (Some(Encryption::Master | Encryption::Kms) | None, Some(_)) => Err(ObjectError::KeyNotNeeded),
        _ => Ok(()),
    }
}

/// The same where only the description of an object is read: whether this key opens it.
///
/// # Errors
/// As [`unlock`].
pub fn check_key(facts: &Facts, name: &[u8], secrets: &Secrets, customer: Option<&CustomerKey>) -> ObjectResult {
    match facts.encryption {
        // No key of the store is asked for it.
        Some(Encryption::Customer) => unlock(facts, name, secrets, customer, || Caller::Nobody).map(drop),
        _ => check(facts, customer),
    }
}
