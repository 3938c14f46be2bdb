//! Bodies of uploads on their way into the store.
//!
//! A body is taken in pieces of [`PIECE_BYTES`]. While one is hashed, with those of others that
//! wait for it ([`super::hashing`]), and written, in two calls side by side, the next is taken from
//! the connection, and no further one: those two are all the memory a request has, and how a fast
//! client is held back. No thread waits for a client.
//!
//! A small body stays in memory and becomes the value of its object. A larger one goes into a value
//! of its own, which is committed without waiting for the device; the commit of the object that
//! follows waits, and the log's order covers both. Bytes that are to be encrypted are hashed as
//! they came and encrypted where they are written.
//!
//! Whatever goes wrong before that commit, even if it is the client that goes away, what was
//! written is discarded ([`terrace_objects::collector::Unfinished`]).

pub use terrace_objects::write::*;

use super::{
    Gateway,
    crypt::DataKey,
    digest::{Algorithm, Checksum, Computed, Digests},
    errors::{self, Told as _},
};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use s3s::{Body, S3Result, TrailingHeaders, dto::StreamingBlob, s3_error};
use std::{future::poll_fn, pin::Pin, sync::Arc};
use terrace::{Store, VALUE_BYTES_MAX};
use terrace_objects::error::{ObjectError, ObjectResult};

/// Shorter frames are copied: each one kept costs memory of its own.
const FRAME_BYTES_MIN: usize = 4 << 10;
/// Up to here hashing takes less than handing it to another thread.
const HASH_HERE_BYTES_MAX: usize = 16 << 10;

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

/// Takes a body in.
///
/// # Errors
/// What is wrong with it, or the store's.
pub async fn receive(gateway: &Arc<Gateway>, mut incoming: Incoming, target: Target) -> S3Result<Received> {
    if incoming.length.is_some_and(|length| length > VALUE_BYTES_MAX) {
        return Err(ObjectError::TooLong).told();
    }
    let algorithms = incoming.all_algorithms();
    let length = incoming.length;
    // Before anything is read of what is announced to be long: where there is no room for it, a
    // client that waits for "100 Continue" need not send it.
    let is_long = length.is_some_and(|length| length > WHOLE_BYTES_MAX as u64);
    let mut begun = None;
    if is_long {
        begun = Some(begin(gateway, target, length, incoming.data_key.take()).await?);
    }
    let mut pieces = Pieces::of(incoming.body.take());
    let mut first = pieces.next().await?;
    let mut second = Piece::default();
    let may_be_whole = matches!(target, Target::Object) && !is_long && first.bytes <= WHOLE_BYTES_MAX;
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
    let mut writing = match begun {
        Some(begun) => begun,
        None => begin(gateway, target, length, incoming.data_key.take()).await?,
    };
    while !first.is_empty() {
        let (frames, same) = (first.frames.clone(), first.frames);
        let write = gateway.run(move |_, _| writing.take(&frames).told());
        let hash = gateway.hashing.update(digests, same);
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
/// it is collected. Where nothing was, it is as full as it was: on a full store most are refused.
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
    let collected = gateway.collector.collected_so_far();
    let begin = move |gateway: &Arc<Gateway>, store: &Store| {
        Writing::begin(&gateway.collector, store, target, length, data_key.as_ref()).told()
    };
    match gateway.run(begin.clone()).await {
        Err(error) if errors::is_full(&error) => {
            gateway.make_room(collections).await;
            if gateway.collector.collected_so_far() == collected {
                return Err(error);
            }
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
    let digests = gateway.hashing.update(digests, vec![data.clone()]).await?;
    Ok(digests.finish())
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
