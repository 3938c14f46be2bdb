//! Decodes bodies in chunks (`aws-chunked`) for `s3s`, which buffers a whole chunk of any announced
//! length before it passes any of it on.
//!
//! Unsigned chunks are split into pieces as they arrive, so none is buffered. For signed chunks the
//! [`signatures`] are checked here, and `s3s` gets a request with an unsigned body, whose head is
//! signed again for that; so none is buffered, and each is hashed once. If a body turns out to be
//! wrong, the bytes passed on are dropped with it, as when a client disconnects: an object exists
//! only when its whole body was valid.
//!
//! Only for a head that is not in canonical form ([`super::verified`]) the signatures are left to
//! `s3s`. Then its signed chunks have a length limit, and a long one is counted in the memory for
//! all requests.
//!
//! If a request is not signed by version 4, `s3s` does not parse chunks and gets their contents
//! ([`unsigned`]).
//!
//! A malformed chunk, or an end without the last, empty chunk, fails the body here, since `s3s`
//! would accept them in part.

mod signatures;
mod unsigned;

use super::{digest::Digests, errors, head::Head, verified::Verified};
use crate::http::budget::{Ticket, cost_of_frame};
use bytes::{Buf as _, Bytes};
use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
};
use s3s::{S3Result, s3_error};
pub use signatures::Signatures;
use std::{collections::VecDeque, mem, sync::Arc};
pub use unsigned::{Trailer, length as unsigned_length};

/// `x-amz-content-sha256` of signed chunks, without suffix.
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_WITH_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// The same of unsigned chunks with a trailer.
const UNSIGNED_WITH_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// The same of an unsigned body without chunks.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// The header with one of these.
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// Length of a body without the frames of its chunks.
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";
/// Longest chunk passed on with its signature. Clients send some tens of KiB, or a MiB.
const SIGNED_BYTES_MAX: u64 = 16 << 20;
/// Signed chunks up to this length are not counted, since any body has as much read ahead.
const FREE_BYTES_MAX: u64 = 64 << 10;
/// Longest line before a chunk: its length, and a signature of 64 digits.
const LINE_BYTES_MAX: usize = 128;
/// Maximum digits of a length; `s3s` accepts no more.
const LENGTH_DIGITS_MAX: usize = 8;
/// Decoded pieces queued at a time. A received buffer may contain a hundred thousand chunks of one
/// byte, whose list would take megabytes.
const READY_MAX: usize = 256;
/// Longest trailer, as in `s3s`.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// Decoder of a body in chunks.
pub struct Chunks {
    is_signed: bool,
    /// Checks the signatures. `None` if the key is unknown.
    signatures: Option<Signatures>,
    form: Form,
    at: At,
    /// Receives the trailer, if `s3s` does not handle it.
    trailer: Option<Trailer>,
    /// Digests of the contents, if they are to be checked.
    pub digests: Option<Digests>,
    ticket: Arc<Ticket>,
    /// Memory counted for this chunk.
    taken: u64,
    counts: bool,
}

/// The form of the body that `s3s` gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The chunks as received, with their signatures.
    Signed,
    /// Rewritten unsigned chunks, and the trailer.
    Unsigned,
    /// The contents only.
    Bare,
}

/// Position in a body.
enum At {
    /// In the line before a chunk.
    Line(Vec<u8>),
    /// In a chunk with this many bytes to come.
    Data(u64),
    /// After a chunk, with this many bytes of its line end to come.
    End(u8),
    /// In the trailer, if `s3s` does not get it as it is.
    Trailer(Vec<u8>),
}

impl Chunks {
    /// The decoder for the chunks that a head announces; changes the headers to what `s3s` gets.
    /// `None` if there are none to decode.
    pub fn of(
        head: &Head,
        headers: &mut HeaderMap,
        ticket: &Arc<Ticket>,
        secret: impl Fn(&str) -> Option<String>,
        now_ms: u64,
    ) -> Option<Self> {
        let said = headers
            .get(CONTENT_HASH)
            .filter(|_| headers.contains_key(header::AUTHORIZATION));
        let said = said.and_then(|said| said.to_str().ok());
        let Some(said) = said.filter(|said| said.starts_with("STREAMING-")) else {
            unsigned::announce(head, headers)?;
            let trailer = Some(Trailer::default());
            let begun = Self::begun(ticket, Form::Bare);
            return Some(Self { trailer, ..begun });
        };
        let is_signed = said != UNSIGNED_WITH_TRAILER;
        let (mut form, mut signatures) = (Form::Unsigned, None);
        if is_signed {
            (form, signatures) = match unsign(head, headers, &secret, now_ms) {
                Some((form, announced, signatures)) => {
                    *headers = announced;
                    (form, Some(signatures))
                }
                None => (Form::Signed, Signatures::of(headers, secret)),
            };
        }
        Some(Self {
            is_signed,
            signatures,
            ..Self::begun(ticket, form)
        })
    }

    /// Chunks that are not signed, before the first.
    fn begun(ticket: &Arc<Ticket>, form: Form) -> Self {
        Self {
            is_signed: false,
            signatures: None,
            form,
            at: At::Line(Vec::new()),
            trailer: None,
            digests: None,
            ticket: Arc::clone(ticket),
            taken: 0,
            counts: false,
        }
    }

    /// Where the trailer is after the end of the body.
    pub fn trailer(&self) -> Option<Trailer> {
        self.trailer.clone()
    }

    /// Decodes received bytes into `out`, until that has enough.
    ///
    /// # Errors
    /// `InvalidRequest`, `EntityTooLarge`, `SlowDown`, `SignatureDoesNotMatch`.
    pub fn take(&mut self, data: &mut Bytes, out: &mut VecDeque<Bytes>) -> S3Result {
        while !data.is_empty() && out.len() < READY_MAX {
            match &mut self.at {
                At::Line(line) => {
                    let end = data.iter().position(|byte| *byte == b'\n');
                    let piece = data.split_to(end.map_or(data.len(), |end| end + 1));
                    if line.len() + piece.len() > LINE_BYTES_MAX {
                        return Err(malformed());
                    }
                    line.extend_from_slice(&piece);
                    if end.is_some() {
                        let line = mem::take(line);
                        self.begin(&line, out)?;
                    }
                }
                At::Data(left) => {
                    let piece = data.split_to(data.len().min(usize::try_from(*left).unwrap_or(usize::MAX)));
                    *left -= piece.len() as u64;
                    if let Some(signatures) = &mut self.signatures {
                        signatures.update(&piece);
                    }
                    if *left == 0 {
                        self.at = At::End(2);
                    }
                    self.pass(piece, out)?;
                }
                At::End(missing) => {
                    let expected = if *missing == 2 { b'\r' } else { b'\n' };
                    if data[0] != expected {
                        return Err(malformed());
                    }
                    data.advance(1);
                    *missing -= 1;
                    if *missing == 0 {
                        self.at = At::Line(Vec::new());
                        if self.is_signed {
                            self.end_signed()?;
                        }
                        if self.form == Form::Signed {
                            // `s3s` needs the line end to process the chunk.
                            out.push_back(Bytes::from_static(b"\r\n"));
                        }
                    }
                }
                At::Trailer(_) if self.form == Form::Unsigned && !self.is_signed => out.push_back(mem::take(data)),
                At::Trailer(trailer) => {
                    if trailer.len() + data.len() > TRAILER_BYTES_MAX {
                        return Err(malformed());
                    }
                    trailer.extend_from_slice(data);
                    data.clear();
                }
            }
        }
        Ok(())
    }

    /// Handles the end of the body.
    ///
    /// # Errors
    /// `IncompleteBody`, `InvalidRequest`, `SignatureDoesNotMatch`.
    pub fn end(self, out: &mut VecDeque<Bytes>) -> S3Result {
        let At::Trailer(trailer) = self.at else {
            return Err(s3_error!(
                IncompleteBody,
                "The body ended before its last chunk, which has no bytes."
            ));
        };
        if let Some(place) = &self.trailer {
            place.set(fields_of(&trailer)?);
        }
        let Some(signatures) = &self.signatures else {
            return Ok(());
        };
        let fields = signatures.check_trailer(&trailer)?;
        match self.form {
            Form::Signed => out.push_back(trailer.into()),
            Form::Unsigned => out.push_back((fields + "\r\n").into()),
            Form::Bare => {}
        }
        Ok(())
    }

    /// Ends a signed chunk.
    fn end_signed(&mut self) -> S3Result {
        match &mut self.signatures {
            Some(signatures) => signatures.end(),
            None => Err(s3_error!(
                SignatureDoesNotMatch,
                "The body is signed with no key that is known."
            )),
        }
    }

    /// Begins a chunk.
    fn begin(&mut self, line: &[u8], out: &mut VecDeque<Bytes>) -> S3Result {
        self.ticket.give_back(mem::take(&mut self.taken));
        let (bytes, claimed) = read_line(line).ok_or_else(malformed)?;
        let is_signed = claimed.is_some();
        if is_signed != self.is_signed {
            return Err(malformed());
        }
        if let Some((signatures, claimed)) = self.signatures.as_mut().zip(claimed) {
            signatures.begin(claimed);
        }
        if is_signed && bytes == 0 {
            self.end_signed()?;
        }
        let keeps = self.form == Form::Signed;
        if keeps && bytes > SIGNED_BYTES_MAX {
            return Err(s3_error!(
                EntityTooLarge,
                "A signed chunk may have {SIGNED_BYTES_MAX} bytes at most; send shorter chunks."
            ));
        }
        self.counts = keeps && bytes > FREE_BYTES_MAX;
        self.at = if bytes == 0 {
            At::Trailer(Vec::new())
        } else {
            At::Data(bytes)
        };
        match self.form {
            Form::Signed => out.push_back(Bytes::copy_from_slice(line)),
            Form::Unsigned if bytes == 0 => out.push_back(Bytes::from_static(b"0\r\n")),
            Form::Unsigned | Form::Bare => {}
        }
        Ok(())
    }

    /// Passes on a piece of a chunk.
    fn pass(&mut self, piece: Bytes, out: &mut VecDeque<Bytes>) -> S3Result {
        if let Some(digests) = &mut self.digests {
            digests.update(&piece);
        }
        if self.counts {
            let cost = cost_of_frame(piece.len(), 1);
            self.ticket.take(cost).map_err(errors::of_memory)?;
            self.taken += cost;
        }
        if self.form != Form::Unsigned {
            out.push_back(piece);
            return Ok(());
        }
        out.push_back(Bytes::from(format!("{:x}\r\n", piece.len())));
        out.push_back(piece);
        out.push_back(Bytes::from_static(b"\r\n"));
        Ok(())
    }
}

/// Signs the head again for an unsigned body, if its own signature is valid.
fn unsign(
    head: &Head,
    headers: &HeaderMap,
    secret: impl FnOnce(&str) -> Option<String>,
    now_ms: u64,
) -> Option<(Form, HeaderMap, Signatures)> {
    let verified = Verified::of(head, headers, secret, now_ms)?;
    let length = headers.get(DECODED_LENGTH)?;
    length.to_str().ok()?.parse::<u64>().ok()?;
    let mut announced = headers.clone();
    let (form, said) = match headers.get(CONTENT_HASH)?.to_str().ok()? {
        SIGNED => {
            announced.insert(header::CONTENT_LENGTH, length.clone());
            (Form::Bare, UNSIGNED)
        }
        SIGNED_WITH_TRAILER => (Form::Unsigned, UNSIGNED_WITH_TRAILER),
        _ => return None,
    };
    announced.insert(CONTENT_HASH, HeaderValue::from_static(said));
    verified.sign_again(&mut announced)?;
    Some((form, announced, verified.signatures()))
}

/// A chunk's length, and its signature.
fn read_line(line: &[u8]) -> Option<(u64, Option<&str>)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let (length, extension) = match line.split_once(';') {
        None => (line, None),
        Some((length, extension)) => (length, Some(extension)),
    };
    let is_hex = (1..=LENGTH_DIGITS_MAX).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = u64::from_str_radix(length, 16).ok().filter(|_| is_hex)?;
    match extension {
        None => Some((bytes, None)),
        Some(extension) => Some((bytes, Some(extension.strip_prefix("chunk-signature=")?))),
    }
}

/// The fields of the trailer, with names in lower case.
///
/// # Errors
/// `InvalidRequest`
fn fields_of(trailer: &[u8]) -> S3Result<Vec<(String, String)>> {
    let trailer = std::str::from_utf8(trailer).map_err(|_| malformed())?;
    let lines = trailer.lines().filter(|line| !line.is_empty());
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim_ascii().to_owned()))
    };
    lines.map(|line| field(line).ok_or_else(malformed)).collect()
}

fn malformed() -> s3s::S3Error {
    s3_error!(
        InvalidRequest,
        "The body is not in the chunked form that was announced."
    )
}

#[cfg(test)]
mod tests;
