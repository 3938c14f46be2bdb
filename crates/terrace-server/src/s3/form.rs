//! Uploads by HTML forms: what is done so that `s3s` can take them.
//!
//! `s3s` reads a form, checks its policy and the policy's signature, and holds the file in memory meanwhile. So files have a
//! limit, and few forms are taken at a time; and since it parses all it has at each piece that comes, it gets pieces that are not
//! small. What a form asks for that the service does not have is refused as in headers; there it would have been before.

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::{HeaderMap, Method, header};
use s3s::{S3Result, dto::PostObjectInput, s3_error};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest form, with its fields and what surrounds them.
pub const FORM_BYTES_MAX: u64 = FILE_BYTES_MAX + FIELDS_BYTES_MAX as u64;
/// Longest fields, and what of the file comes in the same piece.
pub const FIELDS_BYTES_MAX: usize = 1 << 20;
/// Longest field.
pub const FIELD_BYTES_MAX: usize = 64 << 10;
/// Most fields.
pub const FIELDS_MAX: usize = 100;
/// Forms at a time.
const FORMS_MAX: usize = 8;
/// Shortest piece of a form but for the last.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Whether a request is a form.
pub fn is_form(method: &Method, headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_form = |kind: &str| {
        kind.trim_start()
            .to_ascii_lowercase()
            .starts_with("multipart/form-data")
    };
    *method == Method::POST && kind.is_some_and(is_form)
}

/// Permission to hold a form in memory.
#[derive(Debug)]
pub struct Forms(Semaphore);

impl Default for Forms {
    fn default() -> Self {
        Self(Semaphore::new(FORMS_MAX))
    }
}

impl Forms {
    /// Takes one, to be kept until its answer is there.
    ///
    /// # Errors
    /// `SlowDown` if there are as many as there may be.
    pub fn admit(&self) -> S3Result<SemaphorePermit<'_>> {
        self.0
            .try_acquire()
            .map_err(|_| s3_error!(SlowDown, "Too many forms are being uploaded at once. Try again."))
    }
}

/// Refuses what a form asks for and the service does not have.
///
/// # Errors
/// `NotImplemented`, `InvalidStorageClass`.
pub fn refuse(input: &PostObjectInput) -> S3Result {
    let is_encrypted = input.server_side_encryption.is_some()
        || input.sse_customer_algorithm.is_some()
        || input.sse_customer_key.is_some()
        || input.ssekms_key_id.is_some();
    let is_locked = input.object_lock_mode.is_some()
        || input.object_lock_legal_hold_status.is_some()
        || input.object_lock_retain_until_date.is_some();
    let has_grants = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write_acp.is_some();
    if is_encrypted || is_locked || has_grants {
        return Err(s3_error!(
            NotImplemented,
            "A field you provided implies functionality that is not implemented."
        ));
    }
    if input
        .storage_class
        .as_ref()
        .is_some_and(|class| class.as_str() != "STANDARD")
    {
        return Err(s3_error!(
            InvalidStorageClass,
            "The storage class you specified is not valid"
        ));
    }
    if input.key.contains("${filename}") {
        return Err(s3_error!(NotImplemented, "${{filename}} in a key is not implemented."));
    }
    Ok(())
}

/// A body whose pieces are not small.
pub struct Gathered<B> {
    body: B,
    piece: BytesMut,
    is_over: bool,
}

impl<B> Gathered<B> {
    /// Gathers what comes.
    pub fn new(body: B) -> Self {
        Self {
            body,
            piece: BytesMut::new(),
            is_over: false,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Gathered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        while !self.is_over && self.piece.len() < PIECE_BYTES_MIN {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                // Forms have no trailers.
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.piece.extend_from_slice(&data);
                    }
                }
                Poll::Ready(None) => self.is_over = true,
            }
        }
        if self.piece.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.piece.split().freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.body.size_hint();
        let here = self.piece.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + here);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + here);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{collections::VecDeque, convert::Infallible, future::poll_fn};

    struct Dripping(VecDeque<Bytes>);

    impl Body for Dripping {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    #[test]
    fn small_pieces_become_larger_ones() {
        let all: Vec<u8> = (0..100_000u32).map(|number| number.to_le_bytes()[0]).collect();
        let pieces = all.chunks(7).map(Bytes::copy_from_slice).collect();
        let mut body = Gathered::new(Dripping(pieces));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut lengths = Vec::new();
        let mut back = Vec::new();
        runtime.block_on(async {
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let data = frame.unwrap().into_data().unwrap();
                lengths.push(data.len());
                back.extend_from_slice(&data);
            }
        });
        assert_eq!(back, all);
        let (last, others) = lengths.split_last().unwrap();
        assert!(*last > 0 && others.iter().all(|length| *length >= PIECE_BYTES_MIN));
        assert!(body.is_end_stream());
    }

    #[test]
    fn forms_are_few() {
        let forms = Forms::default();
        let held: Vec<_> = (0..FORMS_MAX).map(|_| forms.admit().unwrap()).collect();
        assert_eq!(forms.admit().unwrap_err().code().as_str(), "SlowDown");
        drop(held);
        assert!(forms.admit().is_ok());
    }

    #[test]
    fn what_is_a_form() {
        let is_form = |method, kind: &'static str| {
            let headers = [(header::CONTENT_TYPE, header::HeaderValue::from_static(kind))];
            is_form(&method, &headers.into_iter().collect())
        };
        assert!(is_form(Method::POST, " Multipart/Form-Data; boundary=x"));
        assert!(!is_form(Method::PUT, "multipart/form-data; boundary=x"));
        assert!(!is_form(Method::POST, "application/xml"));
    }
}
