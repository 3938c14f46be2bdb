//! A request's body: fails if the client is silent or slow for too long, if collected bytes exceed
//! the memory for them, or if it does not match the request's head.

use super::{
    chunks::Chunks,
    digest::{self, Algorithm, Checksum, Digests},
    errors::{self, Told as _},
    head::Head,
    xml::Document,
};
use crate::http::budget::{Ticket, cost_of_frame};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::HeaderMap;
use s3s::{S3Error, S3Result};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

/// Limits of the time for a client's body.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Longest silence.
    silence_max: Duration,
    /// Time allowed for any body.
    grace: Duration,
    /// Lowest rate after that: a modem's. A slower client only occupies a connection.
    bytes_per_second_min: u64,
    /// Longest time for a body that is collected.
    collected_time_max: Duration,
}

/// The pace that clients must keep.
const PACE: Pace = Pace {
    silence_max: Duration::from_secs(60),
    grace: Duration::from_secs(60),
    bytes_per_second_min: 1 << 10,
    collected_time_max: Duration::from_secs(600),
};

impl Pace {
    /// Longest time for a client that has sent this many bytes.
    fn time_max(self, bytes: u64, is_collected: bool) -> Duration {
        let time = self.grace + Duration::from_millis(bytes.saturating_mul(1000) / self.bytes_per_second_min);
        if is_collected {
            time.min(self.collected_time_max)
        } else {
            time
        }
    }
}

/// Memory of a body that is collected before the operation.
pub struct Collected {
    /// The request's share of the memory.
    pub ticket: Arc<Ticket>,
    /// Memory per byte.
    pub weight: u64,
}

/// Digests of an XML body in the request's head. `s3s` reads such bodies completely before an
/// operation and does not compare them. Bodies of objects are compared where they are received.
pub struct Promise {
    /// The digests of a body in chunks, computed as it arrives.
    digests: Option<Digests>,
    md5: Option<[u8; 16]>,
    checksum: Option<Checksum>,
}

impl Promise {
    /// Reads a head. `None` if it has no digests, or the body is not XML.
    ///
    /// # Errors
    /// `InvalidDigest`, `InvalidRequest`.
    pub fn of(head: &Head, headers: &HeaderMap) -> S3Result<Option<Self>> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if head.is_form || !head.is_xml {
            return Ok(None);
        }
        let md5 = digest::content_md5(text("content-md5"))?;
        // In CompleteMultipartUpload the checksum header is the object's.
        let checksum = if head.has("uploadId") {
            None
        } else {
            digest::declared(Algorithm::ALL.map(|algorithm| text(algorithm.header()).map(str::to_owned)))?
        };
        let algorithms: Vec<_> = checksum.iter().map(|checksum| checksum.algorithm).collect();
        Ok((md5.is_some() || checksum.is_some()).then(|| Self {
            digests: Some(Digests::new(&algorithms)),
            md5,
            checksum,
        }))
    }

    fn check(self) -> S3Result {
        let computed = self.digests.map(Digests::finish);
        let computed = computed.ok_or(s3s::S3ErrorCode::InternalError)?;
        computed.verify(self.md5.as_ref(), self.checksum.as_ref()).told()
    }
}

/// Why a body failed: `s3s` passes the reason on only as an error of the body.
#[derive(Debug, Clone, Default)]
pub struct Broken(Arc<Mutex<Option<S3Error>>>);

impl Broken {
    /// The reason.
    pub fn take(&self) -> Option<S3Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, error: S3Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// The checks of a body.
#[derive(Default)]
pub struct Watch {
    /// Digests in the head.
    pub promise: Option<Promise>,
    /// Set once something is read, which is when hyper sends "100 Continue"; never for an empty
    /// body.
    pub was_read: Arc<AtomicBool>,
    /// Counts received bytes.
    pub received: Arc<AtomicU64>,
    /// It is in chunks.
    pub chunks: Option<Chunks>,
    /// It is XML.
    pub document: Option<Document>,
    /// It is collected.
    pub collected: Option<Collected>,
    /// The reason of a failure.
    pub broken: Broken,
}

/// A body with checks.
pub struct Attentive<B> {
    body: B,
    watch: Watch,
    pace: Pace,
    /// Decoded chunks, not read yet.
    ready: VecDeque<Bytes>,
    /// Received bytes, not decoded yet.
    rest: Bytes,
    /// Start of the current wait for the client; the time that the store takes does not count.
    waiting_since: Option<Instant>,
    /// Sum of earlier waits.
    waited: Duration,
    bytes: u64,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl<B> Attentive<B> {
    /// Watches `body`.
    pub fn new(body: B, watch: Watch) -> Self {
        let mut watch = watch;
        if let (Some(chunks), Some(promise)) = (&mut watch.chunks, &mut watch.promise) {
            // The digests are of the decoded bytes.
            chunks.digests = promise.digests.take();
        }
        Self {
            body,
            watch,
            pace: PACE,
            ready: VecDeque::new(),
            rest: Bytes::new(),
            waiting_since: None,
            waited: Duration::ZERO,
            bytes: 0,
            deadline: Box::pin(tokio::time::sleep(PACE.silence_max)),
        }
    }

    /// Handles received bytes.
    fn take(&mut self, data: Bytes) -> S3Result {
        self.bytes += data.len() as u64;
        self.watch.received.fetch_add(data.len() as u64, Ordering::Relaxed);
        if let Some(digests) = self.watch.promise.as_mut().and_then(|promise| promise.digests.as_mut()) {
            digests.update(&data);
        }
        if let Some(Collected { ticket, weight }) = &self.watch.collected {
            ticket
                .take(cost_of_frame(data.len(), *weight))
                .map_err(errors::of_memory)?;
        }
        if self.watch.chunks.is_some() {
            self.rest = data;
            return self.take_chunks();
        }
        self.ready.push_back(data);
        Ok(())
    }

    /// Decodes chunks.
    fn take_chunks(&mut self) -> S3Result {
        let Some(chunks) = &mut self.watch.chunks else {
            return Ok(());
        };
        chunks.take(&mut self.rest, &mut self.ready)
    }

    /// Handles the end of the body.
    fn take_end(&mut self) -> S3Result {
        if let Some(mut chunks) = self.watch.chunks.take() {
            let digests = chunks.digests.take();
            if let Some(promise) = &mut self.watch.promise {
                promise.digests = digests;
            }
            chunks.end(&mut self.ready)?;
        }
        self.watch.promise.take().map_or(Ok(()), Promise::check)
    }

    /// Fails the body with an error for the client.
    fn broken(&self, error: S3Error) -> io::Error {
        self.watch.broken.set(error);
        io::Error::other("the body is not what it should be")
    }

    /// The client has sent something, or the end.
    fn end_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
    }

    /// Starts waiting for the client.
    fn begin_waiting(&mut self) {
        if self.waiting_since.is_some() {
            return;
        }
        let now = Instant::now();
        self.waiting_since = Some(now);
        let time_max = self.pace.time_max(self.bytes, self.watch.collected.is_some());
        let left = time_max.saturating_sub(self.waited).min(self.pace.silence_max);
        self.deadline.as_mut().reset(now + left);
    }
}

impl<B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin> Body for Attentive<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if !self.body.is_end_stream() {
            self.watch.was_read.store(true, Ordering::Relaxed);
        }
        loop {
            if let Some(data) = self.ready.pop_front() {
                if let Some(document) = &mut self.watch.document {
                    document.add(&data);
                }
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if !self.rest.is_empty() {
                if let Err(error) = self.take_chunks() {
                    return Poll::Ready(Some(Err(self.broken(error))));
                }
                continue;
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                self.begin_waiting();
                return match self.deadline.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, errors::STALLED)))),
                    Poll::Pending => Poll::Pending,
                };
            };
            self.end_waiting();
            let taken = match frame {
                None if self.watch.chunks.is_none() && self.watch.promise.is_none() => {
                    match self.watch.document.take() {
                        None => return Poll::Ready(None),
                        Some(document) => document.check(),
                    }
                }
                None => self.take_end(),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.take(data),
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
            };
            if let Err(error) = taken {
                return Poll::Ready(Some(Err(self.broken(error))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let watch = &self.watch;
        let is_taken = watch.promise.is_none() && watch.chunks.is_none() && watch.document.is_none();
        is_taken && self.ready.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The frames of chunks change the length.
        if self.watch.chunks.is_some() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::budget::{COLLECTED_BYTES_MAX, Pool};
    use futures_util::{Stream, StreamExt as _, stream};
    use std::{convert::Infallible, future::poll_fn};

    /// Reads a body to its end, or to why there is none.
    async fn read(
        pieces: impl Stream<Item = &'static [u8]> + Send + 'static,
        watch: Watch,
        pace: Pace,
    ) -> io::Result<u64> {
        let pieces = pieces.map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece)));
        let mut body = Attentive::new(axum::body::Body::from_stream(pieces), watch);
        body.pace = pace;
        let mut bytes = 0;
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            bytes += frame?.into_data().unwrap().len() as u64;
        }
        Ok(bytes)
    }

    /// Regression: eight connections that sent a byte every five seconds prevented all other form
    /// uploads indefinitely.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_a_byte_now_and_then_is_cut_off() {
        let pace = Pace {
            silence_max: Duration::from_secs(10),
            grace: Duration::from_millis(300),
            bytes_per_second_min: 1000,
            collected_time_max: Duration::from_millis(600),
        };
        let drip = || {
            stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((&b"a"[..], ()))
            })
        };
        let error = read(drip(), Watch::default(), pace).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let much = || drip().map(|_| &[0; 4000][..]);
        let seconds = |bytes, is_collected| pace.time_max(bytes, is_collected).as_secs_f64();
        assert_eq!(
            (seconds(0, false), seconds(160_000, false), seconds(160_000, true)),
            (0.3, 160.3, 0.6),
            "a long body may take longer"
        );
        let patient = Pace {
            grace: Duration::from_secs(3600),
            silence_max: Duration::from_secs(3600),
            ..pace
        };
        let all = read(much().take(40), Watch::default(), patient).await;
        assert_eq!(all.unwrap(), 160_000);
        let watch = Watch {
            collected: Some(Collected {
                ticket: Arc::new(Pool::memory(COLLECTED_BYTES_MAX).ticket([127, 0, 0, 1].into())),
                weight: 1,
            }),
            ..Watch::default()
        };
        let error = read(much(), watch, pace).await.unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::TimedOut,
            "what is collected has a time of its own"
        );
    }

    /// Regression: sixteen XML bodies of 8 MiB took 245 MB, since they were not counted together.
    #[tokio::test]
    async fn what_is_collected_is_paid_for() {
        let pool = Pool::new(1 << 20, 1 << 20);
        let read_with = |pieces: usize| {
            let broken = Broken::default();
            let watch = Watch {
                collected: Some(Collected {
                    ticket: Arc::new(pool.ticket([127, 0, 0, 1].into())),
                    weight: 8,
                }),
                broken: broken.clone(),
                ..Watch::default()
            };
            async move {
                let read = read(stream::iter(vec![&[0; 1000][..]; pieces]), watch, PACE).await;
                (read.ok(), broken.take().map(|error| error.code().as_str().to_owned()))
            }
        };
        assert_eq!(read_with(100).await, (Some(100_000), None));
        assert_eq!(read_with(200).await, (None, Some("SlowDown".to_owned())));
        assert_eq!(read_with(100).await, (Some(100_000), None), "all of it came back");
    }
}
