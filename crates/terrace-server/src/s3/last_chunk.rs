//! Bodies in signed chunks must end with the last chunk, which has no bytes and signs that there
//! are no more. `s3s` takes a body that ends without it for whole.
//!
//! Only where no trailer is announced: one that does not come is missed anyway.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::HeaderMap;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

/// Value of `x-amz-content-sha256` of a body in chunks without a trailer.
const CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// Longest line of a last chunk, with what surrounds it: a zero or several, and a signature.
const LINE_BYTES_MAX: usize = 128;

/// A body that fails if its last chunk does not come.
pub struct ToLastChunk<B> {
    body: B,
    /// The last bytes that came. `None` if the body has no chunks.
    tail: Option<Vec<u8>>,
}

impl<B> ToLastChunk<B> {
    /// The body of a request with these headers.
    pub fn new(headers: &HeaderMap, body: B) -> Self {
        let has_chunks = headers.get("x-amz-content-sha256").is_some_and(|value| value == CHUNKS);
        Self {
            body,
            tail: has_chunks.then(Vec::new),
        }
    }
}

fn keep(tail: &mut Vec<u8>, data: &[u8]) {
    tail.extend_from_slice(&data[data.len().saturating_sub(LINE_BYTES_MAX)..]);
    let surplus = tail.len().saturating_sub(LINE_BYTES_MAX);
    tail.drain(..surplus);
}

/// Whether bytes end with the line of a chunk without bytes. An empty line after it may be left
/// out.
fn is_last(tail: &[u8]) -> bool {
    let line = tail.strip_suffix(b"\r\n").unwrap_or_default();
    let line = line.strip_suffix(b"\r\n").unwrap_or(line);
    let line = line.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    !size.is_empty() && size.iter().all(|byte| *byte == b'0')
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> Body for ToLastChunk<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            if let Some(tail) = &mut self.tail {
                keep(tail, data);
            }
        } else if frame.is_none() && self.tail.take().is_some_and(|tail| !is_last(&tail)) {
            let missing = io::Error::new(io::ErrorKind::UnexpectedEof, "the last chunk is missing");
            return Poll::Ready(Some(Err(missing)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.tail.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_last_chunk_is() {
        let signature = format!("chunk-signature={}", "0a".repeat(32));
        let last = format!("0;{signature}\r\n\r\n");
        for whole in [last.clone(), format!("a\r\n{last}"), format!("a\r\n00;{signature}\r\n")] {
            let mut tail = Vec::new();
            for piece in whole.as_bytes().chunks(7) {
                keep(&mut tail, piece);
            }
            assert!(is_last(&tail), "{whole}");
            assert!(tail.len() <= LINE_BYTES_MAX);
        }
        for broken in [
            "",
            "\r\n",
            "a;x\r\n0\r\n0123\r\n",
            "10;x\r\n\r\n",
            "0;x",
            "\r\n0;x\r\n\r\nmore",
        ] {
            assert!(!is_last(broken.as_bytes()), "{broken}");
        }
        let mut tail = Vec::new();
        keep(&mut tail, &[b'x'; 10_000]);
        assert_eq!(tail.len(), LINE_BYTES_MAX);
    }
}
