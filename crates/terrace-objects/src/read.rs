//! Reads objects.
//!
//! A reader sees one version of an object to its end: its reader pins the record's value, and
//! separate values are held ([`Hold`]). Pieces in RAM are returned without copying; the rest is
//! read in long reads, one call each. An encrypted object returns no byte before it is unlocked
//! ([`Opened::unlock`]). It is decrypted a few pieces at a time: on the reading thread, or, for
//! pieces in RAM, on the sending thread.

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

/// Bytes per device read, after the first.
const READ_BYTES_MAX: usize = 1 << 20;
/// Encrypted pieces decrypted per call, while earlier ones are being sent. They have as many bytes
/// as a piece that is not encrypted, so that a connection, which gathers 408 KiB before it sends,
/// sends both kinds in equal runs: with 448 KiB a client got a third less (docs/s3.md).
const DECRYPTED_PIECES: u64 = (PIECE_BYTES / pieces::PIECE_BYTES) as u64;
/// Longest piece for a reader that holds little memory: the bytes that a connection sends at a
/// time.
pub const SHORT_PIECE_BYTES: usize = 64 << 10;
/// Most pieces of one object per device read.
pub const PIECES_PER_READ: usize = READ_BYTES_MAX / PIECE_BYTES;
/// Retries of opening an object that is replaced meanwhile.
const ATTEMPTS: usize = 64;

/// An open object.
pub struct Opened {
    /// Its metadata.
    pub facts: Facts,
    /// Its parts, if it has separate values.
    pub parts: Option<Vec<Part>>,
    /// The engine's metadata of its record.
    pub info: ObjectInfo,
    key: Vec<u8>,
    source: Source,
    permit: Permit,
    /// The remaining range.
    range: Range<u64>,
    /// Length of the next read.
    read_bytes: usize,
    /// The reader must hold little memory.
    holds_little: bool,
    /// Its data key, once unlocked.
    data_key: Option<DataKey>,
    /// Decrypts the current value.
    opener: Option<Opener>,
    /// Options of the first read.
    reading: ReadOptions,
}

enum Source {
    Record(Reader),
    Values {
        id: Id,
        /// The open part.
        current: Option<(usize, Reader)>,
        _hold: Hold,
    },
}

/// Opens the object at a key of the store if the claim is good for the version found. `None` if
/// there is none. `reading` applies up to the first piece; an answer that has begun is finished.
///
/// # Errors
/// `AccessDenied`, errors of the store; `SlowDown` as `reading` asks for.
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

/// Describes the object at a key if its record is in RAM and the claim is good, without waiting.
/// `None` means nothing.
pub fn describe_in_ram(store: &Store, key: &[u8], claim: &Claim) -> Option<Facts> {
    // The caller retries with a call that may wait, which reports errors.
    let facts = Facts::of(&store.head_in_ram(key).ok()?.found()?);
    claim.on(&facts).ok()?;
    Some(facts)
}

/// Opens the object at a key if all of it is in RAM and `decide`, which is called after that,
/// permits it, without waiting. `None` means nothing.
pub fn open_in_ram(store: &Store, key: &[u8], decide: impl FnOnce(&Facts) -> Option<Permit>) -> Option<Opened> {
    // The caller retries with a call that may wait, which reports errors.
    let reader = store.reader_in_ram(key).ok()??;
    let facts = Facts::of(reader.info());
    let permit = decide(&facts)?;
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

/// Notes that an object is read from its beginning, and prefetches the next one if its reader reads
/// in order. Only for objects on the large tier. The engine does this for values by their keys, but
/// keys of separate values have no such order.
pub fn note(store: &Store, reading: &ReadOptions, opened: &Opened) {
    if opened.home() != HomeKind::Block {
        return;
    }
    let Some(next) = store.note_read(opened.place()) else {
        return;
    };
    // A failed prefetch is no error of a request.
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

/// Notes the same of an object that was answered from RAM, and prefetches nothing. So the reader's
/// order is known when it comes to an object that is not in RAM.
pub fn note_in_ram(store: &Store, opened: &Opened) {
    if opened.home() == HomeKind::Block {
        store.note_read(opened.place());
    }
}

/// Length of the first device read. A short object is read whole, since a second read on a disk
/// costs a seek; of a longer one little is read, so that the answer begins soon.
const fn first_read_bytes(length: u64) -> usize {
    if length <= READ_BYTES_MAX as u64 {
        READ_BYTES_MAX
    } else {
        PIECE_BYTES
    }
}

impl Opened {
    /// An object stored in its record's value.
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

    /// Unlocks it with the client's key, if one is given. No effect if it is not encrypted.
    ///
    /// # Errors
    /// As [`unlock`].
    pub fn unlock(&mut self, secrets: &Secrets, customer: Option<&CustomerKey>) -> ObjectResult {
        let name = keyspace::object_of(&self.key);
        let caller = || self.permit.caller();
        self.data_key = unlock(&self.facts, name, secrets, customer, caller)?;
        Ok(())
    }

    /// The remaining range.
    pub const fn rest(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// The permit with which it was opened.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// The key of its record in the store.
    pub fn place(&self) -> &[u8] {
        &self.key
    }

    /// The value of the record itself: the bytes, or the manifest. For rewriting the record with
    /// other attributes.
    ///
    /// # Errors
    /// Errors of the store; `NotImplemented` for a value that was not put through S3 and is too
    /// long for memory.
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

    /// The home of the bytes read last.
    pub fn home(&self) -> HomeKind {
        match &self.source {
            Source::Record(reader) => reader.info().home,
            Source::Values { current, .. } => current
                .as_ref()
                .map_or(self.info.home, |(_, reader)| reader.info().home),
        }
    }

    /// Restricts reading to this range.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn seek(&mut self, range: Range<u64>) -> ObjectResult {
        self.opener = None;
        match &mut self.source {
            // The position in an encrypted value is computed when it is read.
            Source::Record(_) if self.facts.encryption.is_some() => {}
            Source::Record(reader) => reader
                .seek_to(range.start)
                .map_err(|error| ObjectError::engine(&error, &self.key))?,
            // Opened again at the beginning of the range.
            Source::Values { current, .. } => *current = None,
        }
        self.range = range;
        Ok(())
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// Errors of the store.
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
        // After the first read, reads are long.
        self.read_bytes = READ_BYTES_MAX;
        if piece.is_empty() {
            let error = Error::corruption("a value", "it is shorter than the store says");
            return Err(ObjectError::engine(&error, &self.key));
        }
        Ok(self.of_range(piece))
    }

    /// The next bytes of an encrypted object: one read's worth, decrypted on this thread, which may
    /// block.
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

    /// The next piece, if it is in RAM and its part is open. Decrypts an encrypted one here, which
    /// takes about 0.1 ms.
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
            // The caller retries with a call that may wait, which reports damage.
            opener.open(at_once).ok().filter(|piece| !piece.is_empty())?
        } else {
            reader.piece_in_ram()?
        };
        Some(self.of_range(piece))
    }

    /// Cuts a piece to the range.
    fn of_range(&mut self, mut piece: Bytes) -> Bytes {
        let left = self.range.end - self.range.start;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.range.start += piece.len() as u64;
        piece
    }

    /// With `little`, at most a short piece is in RAM for this reader at a time: a slow reader then
    /// pins no cache memory and has nothing prefetched.
    pub const fn hold_little(&mut self, little: bool) {
        self.holds_little = little;
    }

    /// Length of the next device read.
    fn bytes_to_read(&self) -> usize {
        if self.holds_little {
            // Goes through the cache.
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

/// Takes the next pieces to decrypt, as far as they are in RAM.
fn take_sealed_in_ram(opener: &mut Opener, reader: &mut Reader, pieces: u64) {
    while !opener.has(pieces)
        && let Some(sealed) = reader.piece_in_ram()
    {
        opener.push(sealed);
    }
}

/// Opens the part with the byte at `position`, if it is not open, and seeks there unless it is
/// encrypted. Returns its reader, the part, and the offset in it.
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
        // The length of an encrypted one is checked on decryption.
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

/// The data key of an object whose bucket and key are `name`, for this caller and, if given, this
/// client's key. `None` if it is not encrypted.
///
/// # Errors
/// `InvalidRequest` if a client's key is missing or not needed; `AccessDenied` if it is the wrong
/// one.
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

/// Checks that a client's key is given exactly if one is needed.
fn check(facts: &Facts, customer: Option<&CustomerKey>) -> ObjectResult {
    match (facts.encryption, customer) {
        (Some(Encryption::Customer), None) => Err(ObjectError::KeyNeeded),
        (Some(Encryption::Master | Encryption::Kms) | None, Some(_)) => Err(ObjectError::KeyNotNeeded),
        _ => Ok(()),
    }
}

/// Checks a client's key for a request that reads only the metadata.
///
/// # Errors
/// As [`unlock`].
pub fn check_key(facts: &Facts, name: &[u8], secrets: &Secrets, customer: Option<&CustomerKey>) -> ObjectResult {
    match facts.encryption {
        // KMS keys are not checked here.
        Some(Encryption::Customer) => unlock(facts, name, secrets, customer, || Caller::Anonymous).map(drop),
        _ => check(facts, customer),
    }
}
