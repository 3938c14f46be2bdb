//! Receives bodies of uploads.
//!
//! A body is received in pieces of [`PIECE_BYTES`]. While one is hashed, together with those of
//! other uploads ([`super::hashing`]), and written, in two concurrent calls, the next is received,
//! and no further one: TCP holds a fast client back. No thread waits for a client. There is memory
//! for a limited number of bodies; the others wait for their turn ([`super::turn`]).
//!
//! A small body stays in memory and becomes the value of its object's record. A larger one becomes
//! a separate value, which is committed without waiting for the device; the object's commit waits,
//! and the order of the log covers both. Bytes to be encrypted are hashed as received and encrypted
//! as they are written.
//!
//! If anything fails before that commit, including a disconnected client, the value is deleted
//! ([`terrace_objects::collector::Unfinished`]).

pub use terrace_objects::write::*;

use super::{
    Gateway,
    chunks::Trailer,
    crypt::DataKey,
    digest::{Algorithm, Checksum, Computed, Digests},
    errors::{self, Told as _},
    turn::{LONG_BYTES, PIECE_BYTES, Turn},
};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use hyper::StatusCode;
use s3s::{Body, S3Request, S3Result, TrailingHeaders, dto::StreamingBlob};
use std::{future::poll_fn, net::IpAddr, pin::Pin, sync::Arc};
use terrace::{Store, VALUE_BYTES_MAX};
use terrace_objects::error::{ObjectError, ObjectResult};

/// Shorter frames are copied, since each buffer costs memory.
const FRAME_BYTES_MIN: usize = 4 << 10;
/// Up to this length hashing is faster than handing it to another thread.
const HASH_HERE_BYTES_MAX: usize = 16 << 10;

/// A body, and its announced properties.
pub struct Incoming {
    /// The sender's address.
    pub sender: IpAddr,
    /// The bytes.
    pub body: Option<StreamingBlob>,
    /// Their number, if announced.
    pub length: Option<u64>,
    /// `Content-MD5`
    pub md5: Option<[u8; 16]>,
    /// A checksum in the head.
    pub declared: Option<Checksum>,
    /// A checksum in the trailer.
    pub trailing: Option<(Algorithm, Behind)>,
    /// Further checksums to compute.
    pub algorithms: Vec<Algorithm>,
    /// The key that the bytes are encrypted with.
    pub data_key: Option<DataKey>,
}

/// Source of a trailer.
pub enum Behind {
    /// Parsed by `s3s`.
    Theirs(TrailingHeaders),
    /// Parsed by our code.
    Ours(Trailer),
}

impl Behind {
    fn value(&self, name: &str) -> Option<String> {
        match self {
            Self::Ours(trailer) => trailer.value(name),
            Self::Theirs(trailers) => {
                let text = trailers.read(|headers| Some(headers.get(name)?.to_str().ok()?.to_owned()));
                text.flatten()
            }
        }
    }
}

/// The checksum announced for the trailer.
pub fn trailing<T>(request: &S3Request<T>) -> Option<(Algorithm, Behind)> {
    let announced = request.headers.get("x-amz-trailer")?.to_str().ok()?;
    let names = announced.split(',').map(|name| name.trim().to_ascii_lowercase());
    let known = |name: String| Algorithm::ALL.into_iter().find(|algorithm| algorithm.header() == name);
    let algorithm = names.into_iter().find_map(known)?;
    let ours = request.extensions.get().cloned().map(Behind::Ours);
    let behind = ours.or_else(|| request.trailing_headers.clone().map(Behind::Theirs));
    behind.map(|behind| (algorithm, behind))
}

/// The announced length of a body without the frames of its chunks. That header is signed, while
/// `Content-Length` may be lost on the way, and then a missing body would not be noticed.
pub fn announced(headers: &hyper::HeaderMap, content_length: Option<i64>) -> Option<u64> {
    let decoded = headers.get("x-amz-decoded-content-length");
    let decoded = decoded.and_then(|value| value.to_str().ok()?.parse().ok());
    decoded.or_else(|| content_length.and_then(|length| u64::try_from(length).ok()))
}

impl Incoming {
    /// The checksums to compute: declared, requested, or S3's default.
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

    /// What is computed of the body. An MD5 that the client declares is checked in any case, and
    /// then makes the tag.
    fn digests(&self, has_random_tags: bool) -> Digests {
        let algorithms = self.all_algorithms();
        if has_random_tags && self.md5.is_none() {
            Digests::without_md5(&algorithms)
        } else {
            Digests::new(&algorithms)
        }
    }

    /// The client's digests, after the end of the body.
    fn expected(&mut self) -> S3Result<Expected> {
        let mut declared = self.declared.take();
        if let Some((algorithm, behind)) = self.trailing.take() {
            let text = behind.value(algorithm.header()).ok_or_else(|| {
                errors::custom(
                    "MalformedTrailerError",
                    StatusCode::BAD_REQUEST,
                    format!("The trailer {} was announced and did not come.", algorithm.header()),
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

/// Receives a body. Also returns its memory, to be held until it is committed.
///
/// # Errors
/// An invalid body, or errors of the store.
pub async fn receive(gateway: &Arc<Gateway>, mut incoming: Incoming, target: Target) -> S3Result<(Received, Turn)> {
    if incoming.length.is_some_and(|length| length > VALUE_BYTES_MAX) {
        return Err(ObjectError::TooLong).told();
    }
    let digests = incoming.digests(gateway.has_random_tags);
    let length = incoming.length;
    let is_long = length.is_some_and(|length| length > WHOLE_BYTES_MAX as u64);
    let turn = Turn::of(&gateway.uploads, incoming.sender);
    let mut pieces = Pieces::of(incoming.body.take(), turn, length);
    let mut ready = None;
    // Before anything is read of a long body: on a full tier, a client that waits for "100
    // Continue" need not send it.
    if matches!(target, Target::Object) && !is_long {
        let first = pieces.next().await?.unwrap_or_default();
        if first.bytes <= WHOLE_BYTES_MAX && pieces.is_at_end().await? {
            let first = first.joined();
            let computed = compute(gateway, &first, digests).await?;
            incoming.expected()?.verify(&computed).told()?;
            let whole = whole(first, computed, incoming.data_key.as_ref()).told()?;
            return Ok((whole, pieces.turn));
        }
        ready = Some(first);
    }
    let mut writing = begin(gateway, target, length, incoming.data_key.take()).await?;
    let mut digests = digests;
    loop {
        let Some(piece) = pieces.next_after(ready.take()).await? else {
            break;
        };
        let is_over = pieces.turn.is_over();
        let rests = is_over || !pieces.turn.covers(writing.spooled_bytes());
        let (frames, same) = (piece.frames.clone(), piece.frames);
        let write = gateway.run(move |_, _| {
            let mut writing = writing.take(&frames).told()?;
            drop(frames);
            if rests {
                writing.rest().told()?;
            }
            Ok(writing)
        });
        let hash = gateway.hashing.update(digests, same);
        if is_over {
            (writing, digests) = tokio::try_join!(write, hash)?;
            pieces.turn.end();
        } else {
            (writing, digests, ready) = tokio::try_join!(write, hash, pieces.next())?;
            if ready.is_none() {
                break;
            }
        }
    }
    let expected = incoming.expected()?;
    let computed = digests.finish();
    expected.verify(&computed).told()?;
    let stored = gateway.run(move |_, _| writing.finish(computed).told()).await?;
    Ok((Received::Stored(stored), pieces.turn))
}

/// Begins a value. If the large tier is full, collects garbage and retries if there was any; on a
/// full store there mostly is none.
///
/// # Errors
/// Errors of the store.
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

async fn compute(gateway: &Arc<Gateway>, data: &Bytes, mut digests: Digests) -> S3Result<Computed> {
    if data.len() <= HASH_HERE_BYTES_MAX {
        digests.update(data);
        return Ok(digests.finish());
    }
    let digests = gateway.hashing.update(digests, vec![data.clone()]).await?;
    Ok(digests.finish())
}

/// A piece of a body, in the received buffers; short ones are joined.
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

/// Receives a body in pieces, in turns.
struct Pieces {
    body: Body,
    ended: bool,
    turn: Turn,
    /// Memory of a turn.
    turn_bytes: usize,
    /// Received bytes of the next piece.
    rest: Bytes,
    /// Bytes of the announced length that are in no piece yet.
    missing: Option<u64>,
}

impl Pieces {
    fn of(body: Option<StreamingBlob>, turn: Turn, length: Option<u64>) -> Self {
        let short = length.and_then(|length| usize::try_from(length).ok());
        // In the received buffers, and in one.
        let short = short
            .filter(|length| *length <= WHOLE_BYTES_MAX)
            .map(|length| 2 * length);
        Self {
            body: body.map_or_else(Body::empty, Body::from),
            ended: false,
            turn,
            turn_bytes: short.unwrap_or(LONG_BYTES),
            rest: Bytes::new(),
            missing: length,
        }
    }

    /// The piece received before, otherwise the next one.
    async fn next_after(&mut self, taken: Option<Piece>) -> S3Result<Option<Piece>> {
        if taken.is_some() {
            return Ok(taken);
        }
        self.next().await
    }

    /// The next piece; `None` at the end. Without a turn, waits for one once bytes have arrived. A
    /// piece is shorter than [`PIECE_BYTES`], and possibly empty, if it is the last of the body or
    /// of a turn.
    async fn next(&mut self) -> S3Result<Option<Piece>> {
        let mut piece = Piece::default();
        while piece.bytes < PIECE_BYTES && !self.turn.is_over() && self.has_more().await? {
            if !self.turn.is_held() {
                self.turn.begin(self.turn_bytes).await;
            }
            let room = (PIECE_BYTES - piece.bytes).min(self.turn.left());
            let data = self.rest.split_to(self.rest.len().min(room));
            self.missing = self.missing.map(|missing| missing.saturating_sub(data.len() as u64));
            self.turn.took(data.len(), self.missing == Some(0));
            piece.push(data);
        }
        piece.end_gathering();
        let is_end = self.ended && self.rest.is_empty() && !self.turn.is_over();
        Ok((!(is_end && piece.is_empty())).then_some(piece))
    }

    /// Whether the body has ended. False if the turn ends before that is known.
    async fn is_at_end(&mut self) -> S3Result<bool> {
        Ok(!self.turn.is_over() && !self.has_more().await? && self.ended)
    }

    /// Waits for bytes. False at the end of the body or of the turn.
    async fn has_more(&mut self) -> S3Result<bool> {
        while self.rest.is_empty() && !self.ended {
            let body = &mut self.body;
            let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            match self.turn.wait(frame).await {
                None => return Ok(false),
                Some(None) => self.ended = true,
                Some(Some(Err(error))) => return Err(errors::of_body(&*error)),
                Some(Some(Ok(frame))) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        Ok(!self.rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::budget::Pool;
    use futures_util::{FutureExt as _, stream};
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };
    use tokio::{sync::mpsc, time::timeout};

    /// A client's sender, and the number of its frames that were received.
    type Client = (mpsc::UnboundedSender<Bytes>, Arc<AtomicUsize>);

    fn upload(pool: &Arc<Pool>, number: u8) -> (Client, Pieces) {
        let (client, sent) = mpsc::unbounded_channel::<Bytes>();
        let taken = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&taken);
        let frames = stream::unfold((sent, count), |(mut sent, count)| async move {
            let frame = sent.recv().await?;
            count.fetch_add(1, Ordering::Relaxed);
            Some((Ok::<_, Infallible>(frame), (sent, count)))
        });
        let body = Body::http_body_unsync(axum::body::Body::from_stream(frames));
        let turn = Turn::of(pool, [10, 0, 0, number].into());
        ((client, taken), Pieces::of(Some(body.into()), turn, None))
    }

    fn frame() -> Bytes {
        vec![7; 64 << 10].into()
    }

    /// Long enough for an upload that need not wait.
    const SOON: Duration = Duration::from_millis(200);

    /// Regression: 700 uploads whose clients stopped, or were slow, took 449 and 1346 MB.
    #[tokio::test]
    async fn a_stalled_upload_gives_its_turn_to_the_next() {
        let pool = Pool::new(LONG_BYTES as u64, LONG_BYTES as u64);
        let ((slow, _), mut stalled) = upload(&pool, 1);
        slow.send(frame()).unwrap();
        assert!(
            timeout(SOON, stalled.next()).await.is_err(),
            "no upload waits for its turn"
        );
        slow.send(frame()).unwrap();
        let mut others: Vec<_> = (2..4).map(|number| upload(&pool, number)).collect();
        for ((client, _), _) in &others {
            (0..20).for_each(|_| client.send(frame()).unwrap());
        }
        let (mut last, mut next) = (others.pop().unwrap(), others.pop().unwrap());
        let piece = tokio::select! {
            biased;
            _ = async { tokio::join!(next.1.next(), last.1.next()) } => panic!("there is no turn"),
            piece = stalled.next() => piece.unwrap().unwrap(),
        };
        assert!(stalled.turn.is_over() && piece.bytes <= 2 * frame().len());
        let taken = |client: &Client| client.1.load(Ordering::Relaxed);
        assert_eq!(
            (taken(&next.0), taken(&last.0)),
            (1, 1),
            "nothing is taken without a turn"
        );
        let (first, second) = tokio::join!(next.1.next(), async {
            tokio::task::yield_now().await;
            let mut waits = Box::pin(last.1.next());
            assert!(poll_fn(|context| std::task::Poll::Ready(waits.as_mut().poll(context).is_pending())).await);
            stalled.turn.end();
            timeout(SOON, waits).await.is_err()
        });
        assert_eq!(first.unwrap().unwrap().bytes, PIECE_BYTES);
        assert!(second, "it came later");
        assert_eq!(taken(&last.0), 1);
        // A client that disconnects returns its turn.
        drop(next);
        assert_eq!(last.1.next().await.unwrap().unwrap().bytes, PIECE_BYTES);
        // An upload without bytes is not in the queue.
        assert!(timeout(SOON, stalled.next()).await.is_err());
        assert!(!last.1.turn.is_over());
    }

    #[tokio::test]
    async fn a_turn_that_is_wanted_ends_after_a_write() {
        let pool = Pool::new(LONG_BYTES as u64, LONG_BYTES as u64);
        let ((client, _), mut fast) = upload(&pool, 1);
        (0..12 * PIECE_BYTES / frame().len()).for_each(|_| client.send(frame()).unwrap());
        for _ in 0..8 {
            assert_eq!(fast.next().await.unwrap().unwrap().bytes, PIECE_BYTES);
            assert!(!fast.turn.is_over());
        }
        let ((other, _), mut waits) = upload(&pool, 2);
        other.send(frame()).unwrap();
        assert!(timeout(SOON, waits.next()).await.is_err());
        let mut waiting = Box::pin(waits.next());
        assert!(poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        let mut bytes = 0;
        while !fast.turn.is_over() {
            bytes += fast.next().await.unwrap().unwrap().bytes;
        }
        assert_eq!(bytes, 4 * PIECE_BYTES);
        fast.turn.end();
        assert!(
            timeout(SOON, waiting).await.is_err(),
            "it is its turn, and more is to come"
        );
    }

    /// Of an announced length. An upload that waits need not wait for the commit of one that has
    /// arrived.
    #[tokio::test]
    async fn a_turn_that_is_wanted_ends_with_the_body() {
        let pool = Pool::new(LONG_BYTES as u64, LONG_BYTES as u64);
        let ((client, _), mut short) = upload(&pool, 1);
        let length = frame().len() * 5;
        short.missing = Some(length as u64);
        (0..4).for_each(|_| client.send(frame()).unwrap());
        assert!(timeout(SOON, short.next()).await.is_err(), "the piece is incomplete");
        let ((other, _), mut waits) = upload(&pool, 2);
        other.send(frame()).unwrap();
        assert!(timeout(SOON, waits.next()).await.is_err());
        let mut waiting = Box::pin(waits.next());
        assert!(poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        client.send(frame()).unwrap();
        // Immediately, not when its client has been silent for long enough.
        let piece = short.next().now_or_never().expect("no more of it is to come");
        assert!(short.turn.is_over());
        drop((piece, client));
        short.turn.end();
        assert!(short.next().await.unwrap().is_none());
        drop(other);
        assert_eq!(waiting.await.unwrap().unwrap().bytes, frame().len());
    }
}
