//! A request's body on its way in: it fails when nothing comes for too long, and when it is not what the request's head says.

use super::{
    digest::{self, Algorithm, Checksum, Digests},
    errors,
    form::is_form,
    refuse::{is_xml, names},
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::{body::Incoming, http::request::Parts};
use s3s::{S3Error, S3Result};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

/// Longest silence in the middle of a request's body.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What the head of a request says of a body in XML. `s3s` reads such bodies whole before an operation begins, and does not
/// compare. Bodies of objects are compared where they are received.
pub struct Promise {
    digests: Digests,
    md5: Option<[u8; 16]>,
    checksum: Option<Checksum>,
}

impl Promise {
    /// What a head says. `None` if it says nothing, or the body is no XML.
    ///
    /// # Errors
    /// `InvalidDigest`, `InvalidRequest`.
    pub fn of(parts: &Parts) -> S3Result<Option<Self>> {
        let query = parts.uri.query().unwrap_or("");
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let is_chunked = text("x-amz-content-sha256").is_some_and(|text| text.starts_with("STREAMING-"));
        if is_form(&parts.method, &parts.headers) || !is_xml(&parts.method, query) || is_chunked {
            return Ok(None);
        }
        let md5 = digest::content_md5(text("content-md5"))?;
        // Who completes an upload names the checksum of the object.
        let checksum = if names(query).any(|name| name == "uploadId") {
            None
        } else {
            digest::declared(Algorithm::ALL.map(|algorithm| text(algorithm.header()).map(str::to_owned)))?
        };
        let algorithms: Vec<_> = checksum.iter().map(|checksum| checksum.algorithm).collect();
        Ok((md5.is_some() || checksum.is_some()).then(|| Self {
            digests: Digests::new(&algorithms),
            md5,
            checksum,
        }))
    }

    fn check(self) -> S3Result {
        self.digests.finish().verify(self.md5.as_ref(), self.checksum.as_ref())
    }
}

/// Why a body was not what its head says, once that is known: `s3s` hands the reason on only as the error of a body.
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

/// A body that fails when nothing comes for too long.
pub struct Attentive {
    body: Incoming,
    promise: Option<(Promise, Broken)>,
    /// Set once something is read, which is when hyper sends "100 Continue". Never if there is nothing to read.
    was_read: Arc<AtomicBool>,
    /// Bytes that came.
    received: Arc<AtomicU64>,
    /// Runs only while the client is waited for: it must not pay for the time the store takes.
    waiting: bool,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl Attentive {
    /// Watches `body`. `was_read` is set once something is read; `received` counts bytes.
    pub fn new(
        body: Incoming,
        promise: Option<(Promise, Broken)>,
        was_read: Arc<AtomicBool>,
        received: Arc<AtomicU64>,
    ) -> Self {
        Self {
            body,
            promise,
            was_read,
            received,
            waiting: false,
            deadline: Box::pin(tokio::time::sleep(SILENCE_MAX)),
        }
    }
}

impl http_body::Body for Attentive {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if !self.body.is_end_stream() {
            self.was_read.store(true, Ordering::Relaxed);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = false;
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                self.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                if let Some((promise, _)) = &mut self.promise {
                    promise.digests.update(data);
                }
            } else if frame.is_none()
                && let Some((promise, broken)) = self.promise.take()
                && let Err(error) = promise.check()
            {
                broken.set(error);
                return Poll::Ready(Some(Err(io::Error::other("the body is not what its head says"))));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(tokio::time::Instant::now() + SILENCE_MAX);
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, errors::STALLED)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.promise.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
