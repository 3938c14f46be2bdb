//! The body of an answer that is being read from the store, for the page and for S3.
//!
//! The reader sends pieces ahead. If it ends before all bytes came, the client gets an error and no
//! short answer that looks whole.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// A body of known length, in pieces.
pub struct PieceBody {
    /// Those that are there already.
    ready: VecDeque<Bytes>,
    /// The others.
    pieces: Option<mpsc::Receiver<io::Result<Bytes>>>,
    left: u64,
    /// Why it ends here: told once what came before is on its way.
    failed: Option<io::Error>,
}

impl PieceBody {
    /// A body of so many bytes: the first of them, and what comes as `pieces`.
    pub fn new(first: Bytes, pieces: mpsc::Receiver<io::Result<Bytes>>, bytes: u64) -> Self {
        Self {
            ready: Some(first).filter(|first| !first.is_empty()).into_iter().collect(),
            pieces: Some(pieces),
            left: bytes,
            failed: None,
        }
    }

    /// A body that is there.
    pub fn ready(ready: VecDeque<Bytes>) -> Self {
        Self {
            left: ready.iter().map(|piece| piece.len() as u64).sum(),
            ready,
            pieces: None,
            failed: None,
        }
    }
}

impl Body for PieceBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let next = match (self.ready.pop_front(), &mut self.pieces) {
            (Some(piece), _) => Poll::Ready(Some(Ok(piece))),
            (None, Some(pieces)) => pieces.poll_recv(context),
            (None, None) => Poll::Ready(None),
        };
        match next {
            Poll::Ready(Some(Ok(piece))) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            // hyper drops what it has not sent with the connection: the head of the answer, too. It
            // sends that while there is nothing to take.
            Poll::Ready(Some(Err(error))) => {
                self.failed = Some(error);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            // The feeder gave up on a client that took too long.
            Poll::Ready(None) if self.left > 0 => Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
