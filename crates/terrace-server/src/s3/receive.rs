//! Bodies of uploads on their way into the store.
//!
//! A body is taken in pieces of [`PIECE_BYTES`]. While one is hashed and written, in two calls side
//! by side, the next is taken from the connection, and no further one: those two are all the memory
//! a request has, and how a fast client is held back. No thread waits for a client.
//!
//! A small body stays in memory and becomes the value of its object. A larger one goes into a value
//! of its own, which is committed without waiting for the device; the commit of the object that
//! follows waits, and the log's order covers both. Bytes that are to be encrypted are hashed as
//! they came and encrypted where they are written.
//!
//! Whatever goes wrong before that commit, even if it is the client that goes away, what was
//! written is discarded ([`Unfinished`]).

use super::{
    Gateway,
    collector::{Collector, Unfinished},
    crypt::{
        DataKey, RECORD_NUMBER, SALT_BYTES,
        pieces::{self, Sealer, sealed_length},
    },
    digest::{Algorithm, Checksum, Computed, Digests},
    errors::{self, Told as _},
    keyspace::{self, Id},
    manifest::Part,
};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use s3s::{Body, S3Result, TrailingHeaders, dto::StreamingBlob, s3_error};
use std::{future::poll_fn, pin::Pin, sync::Arc};
use terrace::{Condition, Durability, Error, PutOptions, Store, VALUE_BYTES_MAX, ValueWriter, WriterOptions};
use terrace_objects::error::{ObjectError, ObjectResult};

/// Bytes taken from a connection at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// Longest body that becomes the value of its object itself.
pub const WHOLE_BYTES_MAX: usize = PIECE_BYTES;
/// Shorter frames are copied: each one kept costs memory of its own.
const FRAME_BYTES_MIN: usize = 4 << 10;
/// Up to here hashing takes less than handing it to another thread.
const HASH_HERE_BYTES_MAX: usize = 16 << 10;

/// How often a nonce is drawn: two that are the same come once in 2^32 draws.
const DRAWS: usize = 16;

/// A body, and what is said of it.
pub struct Incoming {
    /// The bytes.
    pub body: Option<StreamingBlob>,
    /// Their number, if it was announced.
    pub length: Option<u64>,
    /// `Content-MD5`
    pub md5: Option<[u8; 16]>,
    /// A checksum in the request's head.
    pub declared: Option<Checksum>,
    /// A checksum that is to come after the body.
    pub trailing: Option<(Algorithm, TrailingHeaders)>,
    /// Further checksums to compute.
    pub algorithms: Vec<Algorithm>,
    /// What the bytes are to be encrypted with.
    pub data_key: Option<DataKey>,
}

/// Where a body goes.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// It becomes an object.
    Object,
    /// It becomes a part of this upload.
    Part(Id, u16),
}

/// A body that has arrived whole and is what it was said to be.
pub enum Received {
    /// It is in memory, encrypted if it is to be.
    Whole(Bytes, Computed),
    /// It is a value, to which nothing refers yet.
    Stored(Stored),
}

/// A value to which nothing refers yet.
pub struct Stored {
    /// The ID it is under.
    pub id: Id,
    /// Its place in a manifest, without checksum.
    pub part: Part,
    /// What was computed on the way.
    pub computed: Computed,
    /// To be finished when something refers to it.
    pub unfinished: Unfinished,
}

/// The checksum that is announced to come after the body.
pub fn trailing(headers: &hyper::HeaderMap, trailers: Option<TrailingHeaders>) -> Option<(Algorithm, TrailingHeaders)> {
    let announced = headers.get("x-amz-trailer")?.to_str().ok()?;
    let names = announced.split(',').map(|name| name.trim().to_ascii_lowercase());
    let known = |name: String| Algorithm::ALL.into_iter().find(|algorithm| algorithm.header() == name);
    let algorithm = names.into_iter().find_map(known)?;
    trailers.map(|trailers| (algorithm, trailers))
}

/// How long the body is that a request announces, without the frame of chunks. That header is
/// signed, while `Content-Length` may have been lost on the way, and then there would be no body to
/// miss.
pub fn announced(headers: &hyper::HeaderMap, content_length: Option<i64>) -> Option<u64> {
    let decoded = headers.get("x-amz-decoded-content-length");
    let decoded = decoded.and_then(|value| value.to_str().ok()?.parse().ok());
    decoded.or_else(|| content_length.and_then(|length| u64::try_from(length).ok()))
}

impl Incoming {
    /// The checksums to compute: what is declared, what is asked for, or what S3 computes when
    /// nothing is.
    fn all_algorithms(&self) -> Vec<Algorithm> {
        let declared = self.declared.iter().map(|checksum| checksum.algorithm);
        let trailing = self.trailing.iter().map(|(algorithm, _)| *algorithm);
        let mut all: Vec<_> = declared
            .chain(trailing)
            .chain(self.algorithms.iter().copied())
            .collect();
        if all.is_empty() {
            all.push(Algorithm::Crc64Nvme);
        }
        all
    }

    /// What the client says of the bytes, now that they are through.
    fn expected(&mut self) -> S3Result<Expected> {
        let mut declared = self.declared.take();
        if let Some((algorithm, trailers)) = self.trailing.take() {
            let text = trailers.read(|headers| {
                let value = headers.get(algorithm.header());
                value.and_then(|value| value.to_str().ok()).map(str::to_owned)
            });
            let text = text.flatten().ok_or_else(|| {
                s3_error!(
                    InvalidRequest,
                    "The trailer {} was announced and did not come.",
                    algorithm.header()
                )
            })?;
            declared = Some(Checksum::parse(algorithm, &text).map_err(errors::of_wrong)?);
        }
        Ok(Expected {
            length: self.length,
            md5: self.md5.take(),
            declared,
        })
    }
}

struct Expected {
    length: Option<u64>,
    md5: Option<[u8; 16]>,
    declared: Option<Checksum>,
}

impl Expected {
    fn verify(&self, computed: &Computed) -> ObjectResult {
        if self.length.is_some_and(|length| length != computed.length) {
            return Err(ObjectError::Incomplete);
        }
        computed.verify(self.md5.as_ref(), self.declared.as_ref())
    }
}

/// What is in memory, as it is to be received: encrypted, if there is a key for that.
///
/// # Errors
/// None that can happen.
pub fn whole(bytes: Bytes, mut computed: Computed, data_key: Option<&DataKey>) -> ObjectResult<Received> {
    let Some(data_key) = data_key else {
        return Ok(Received::Whole(bytes, computed));
    };
    // The object has no other value.
    let sealed = pieces::seal(data_key.of_value(RECORD_NUMBER, &[0; SALT_BYTES])?, &bytes)?;
    computed.md5 = data_key.etag(computed.md5);
    Ok(Received::Whole(sealed.into(), computed))
}

/// Takes a body in.
///
/// # Errors
/// What is wrong with it, or the store's.
pub async fn receive(gateway: &Arc<Gateway>, mut incoming: Incoming, target: Target) -> S3Result<Received> {
    if incoming.length.is_some_and(|length| length > VALUE_BYTES_MAX) {
        return Err(ObjectError::TooLong).told();
    }
    let algorithms = incoming.all_algorithms();
    let mut pieces = Pieces::of(incoming.body.take());
    let mut first = pieces.next().await?;
    let mut second = Piece::default();
    let may_be_whole = matches!(target, Target::Object) && first.bytes <= WHOLE_BYTES_MAX;
    if may_be_whole && !first.is_empty() {
        second = pieces.next().await?;
    }
    if may_be_whole && second.is_empty() {
        let first = first.joined();
        let computed = compute(gateway, &first, &algorithms).await?;
        incoming.expected()?.verify(&computed).told()?;
        return whole(first, computed, incoming.data_key.as_ref()).told();
    }
    let mut digests = Digests::new(&algorithms);
    let length = incoming.length;
    let mut writing = begin(gateway, target, length, incoming.data_key.take()).await?;
    while !first.is_empty() {
        let (frames, same) = (first.frames.clone(), first.frames);
        let write = gateway.run(move |_, _| writing.take(&frames).told());
        let hash = gateway.run(move |_, _| Ok(digests.with(&same)));
        let next = pieces.next_after(std::mem::take(&mut second));
        (writing, digests, first) = tokio::try_join!(write, hash, next)?;
    }
    let expected = incoming.expected()?;
    let computed = digests.finish();
    expected.verify(&computed).told()?;
    gateway
        .run(move |_, _| writing.finish(computed).told())
        .await
        .map(Received::Stored)
}

/// Begins to write a value. If the large tier is full, what was deleted before is room, too, once
/// it is collected.
///
/// # Errors
/// The store's.
pub async fn begin(
    gateway: &Arc<Gateway>,
    target: Target,
    length: Option<u64>,
    data_key: Option<DataKey>,
) -> S3Result<Writing> {
    let collections = gateway.collector.begun_so_far();
    let begin = move |gateway: &Arc<Gateway>, store: &Store| {
        Writing::begin(&gateway.collector, store, target, length, data_key.as_ref()).told()
    };
    match gateway.run(begin.clone()).await {
        Err(error) if errors::is_full(&error) => {
            gateway.make_room(collections).await;
            gateway.run(begin).await
        }
        begun => begun,
    }
}

async fn compute(gateway: &Arc<Gateway>, data: &Bytes, algorithms: &[Algorithm]) -> S3Result<Computed> {
    let mut digests = Digests::new(algorithms);
    if data.len() <= HASH_HERE_BYTES_MAX {
        digests.update(data);
        return Ok(digests.finish());
    }
    let data = data.clone();
    gateway
        .run(move |_, _| {
            digests.update(&data);
            Ok(digests.finish())
        })
        .await
}

/// A value that is being written.
pub struct Writing {
    id: Id,
    number: u16,
    nonce: u32,
    key: Vec<u8>,
    length: Option<u64>,
    writer: ValueWriter,
    written: u64,
    encrypting: Option<Encrypting>,
    // Last, so that the writer is gone before its value is discarded.
    unfinished: Unfinished,
}

/// How a value is encrypted on its way.
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
    /// Begins one, to be encrypted if there is a key for that.
    ///
    /// # Errors
    /// The store's.
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
            Target::Object => (Id::new(), 1),
            Target::Part(id, number) => (id, number),
        };
        let fail = |error: Error, key: &[u8]| ObjectError::engine(&error, key);
        for _ in 0..DRAWS {
            let nonce = draw();
            let key = keyspace::value(id, number, nonce);
            // A part that is sent again has an ID that is known: its nonce must be no other's.
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

    /// Begins at a place a value of this length, which is to be encrypted or not. `None` if another
    /// is being written there.
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
        // Room first: who is refused on a full device leaves nothing in the log. Until it is
        // finished it is no value.
        let options = WriterOptions {
            length: length.map(|length| if is_sealed { sealed_length(length) } else { length }),
            put: buffered.clone(),
        };
        let writer = store.writer(&key, options).map_err(fail)?;
        // The marker comes first in the log, so after a crash there is no value without one.
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

    /// Writes a piece.
    ///
    /// # Errors
    /// `IncompleteBody` beyond the announced length, `EntityTooLarge`, the store's.
    pub fn take(mut self, frames: &[Bytes]) -> ObjectResult<Self> {
        for frame in frames {
            self.append(frame)?;
        }
        Ok(self)
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

    /// Ends it, of whose bytes `computed` was computed.
    ///
    /// # Errors
    /// The store's.
    pub fn finish(mut self, mut computed: Computed) -> ObjectResult<Stored> {
        let fail = |error| ObjectError::engine(&error, &self.key);
        let mut salt = None;
        if let Some(encrypting) = self.encrypting {
            salt = Some(encrypting.salt);
            computed.md5 = encrypting.data_key.etag(computed.md5);
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

/// A part of a body, in the buffers it came in; short ones are gathered.
#[derive(Default)]
struct Piece {
    frames: Vec<Bytes>,
    gathered: BytesMut,
    bytes: usize,
}

impl Piece {
    const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        if frame.len() < FRAME_BYTES_MIN {
            self.gathered.extend_from_slice(&frame);
        } else {
            self.end_gathering();
            self.frames.push(frame);
        }
    }

    fn end_gathering(&mut self) {
        if !self.gathered.is_empty() {
            self.frames.push(self.gathered.split().freeze());
        }
    }

    /// All of it in one buffer.
    fn joined(self) -> Bytes {
        match <[Bytes; 1]>::try_from(self.frames) {
            Ok([only]) => only,
            Err(frames) => frames.concat().into(),
        }
    }
}

/// A body in pieces.
struct Pieces {
    body: Body,
    ended: bool,
}

impl Pieces {
    fn of(body: Option<StreamingBlob>) -> Self {
        Self {
            body: body.map_or_else(Body::empty, Body::from),
            ended: false,
        }
    }

    /// What was taken before, or else the next piece.
    async fn next_after(&mut self, taken: Piece) -> S3Result<Piece> {
        if taken.is_empty() { self.next().await } else { Ok(taken) }
    }

    /// The next piece; empty at the end. All but the last are at least [`PIECE_BYTES`] long.
    async fn next(&mut self) -> S3Result<Piece> {
        let mut piece = Piece::default();
        while !self.ended && piece.bytes < PIECE_BYTES {
            let Some(data) = self.frame().await? else {
                self.ended = true;
                break;
            };
            piece.push(data);
        }
        piece.end_gathering();
        Ok(piece)
    }

    async fn frame(&mut self) -> S3Result<Option<Bytes>> {
        loop {
            match poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(errors::of_body(&*error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::Choices;
    use terrace::Options;

    /// A part that was sent again and drew the nonce of the one before was written over it, and
    /// registering it deleted what it took for the other's value: its own.
    #[test]
    fn a_nonce_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        let id = Id::new();
        let begin = |drawn: &[u32]| {
            let mut drawn = drawn.iter().copied();
            let draw = || drawn.next().unwrap();
            Writing::begin_with(&gateway.collector, &store, Target::Part(id, 1), (None, false), draw)
        };
        let write = |writing: Writing, bytes: &'static [u8]| {
            let writing = writing.take(&[Bytes::from_static(bytes)]).unwrap();
            writing.finish(Digests::new(&[]).finish()).unwrap()
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
