//! Bodies in chunks (`aws-chunked`) on their way to `s3s`, which keeps a whole chunk in memory
//! before it hands on any of it, however long the client says that it is.
//!
//! Chunks that are not signed are cut into as many as there are pieces, so nothing of them is kept.
//! Of signed ones the [`signatures`] are checked here, and `s3s` gets the request as one whose body
//! is not signed, with a head that is signed again for that. So nothing of them is kept either, and
//! they are hashed once. What was handed on of a body that turns out to be wrong is dropped with
//! the body, as if the client had gone: an object is there when its whole body was.
//!
//! Only of a head that may be read in two ways ([`super::verified`]) is it left to `s3s` what is
//! signed. Then its chunks go on with their signatures, have a bound, and what is kept of a long
//! one is taken from the memory there is for all requests.
//!
//! Where a request is not signed by version 4 `s3s` looks for no chunks, and gets what is in them
//! ([`unsigned`]).
//!
//! What is no chunk ends the body here, and so does an end without the last chunk, which has no
//! bytes and says that there are no more: `s3s` would read these in a way of its own.

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

/// What says of a body in signed chunks how it is hashed.
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_WITH_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// The same of one in chunks that are not signed.
const UNSIGNED_WITH_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// The same of one that is neither in chunks nor signed.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Where that is said.
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// How long a body is without what surrounds its chunks.
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";
/// Longest chunk that goes on with its signature. Clients send some tens of KiB, or a MiB.
const SIGNED_BYTES_MAX: u64 = 16 << 20;
/// Signed chunks up to here are no more than what is read ahead of any body.
const FREE_BYTES_MAX: u64 = 64 << 10;
/// Longest line before a chunk: its length, and a signature of 64 digits.
const LINE_BYTES_MAX: usize = 128;
/// Most digits of a length; `s3s` knows no more.
const LENGTH_DIGITS_MAX: usize = 8;
/// Pieces of chunks that are ready at a time. What has come may be of a hundred thousand, if each
/// has a byte, and a list of so many has megabytes.
const READY_MAX: usize = 256;
/// Most bytes of what comes behind the last chunk; `s3s` takes no more.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// The chunks of a body.
pub struct Chunks {
    is_signed: bool,
    /// Those of signed chunks. `None` if there is no such key.
    signatures: Option<Signatures>,
    form: Form,
    at: At,
    /// Where what comes behind them goes, if `s3s` does not look for it.
    trailer: Option<Trailer>,
    /// Of what is in them, where that is promised.
    pub digests: Option<Digests>,
    ticket: Arc<Ticket>,
    /// What was taken with the ticket for this chunk.
    taken: u64,
    counts: bool,
}

/// What `s3s` gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Chunks as they came, with their signatures.
    Signed,
    /// Other chunks, not signed, and the trailer.
    Unsigned,
    /// What is in the chunks.
    Bare,
}

/// Where in a body.
enum At {
    /// In the line before a chunk.
    Line(Vec<u8>),
    /// In a chunk of which so much is missing.
    Data(u64),
    /// Behind a chunk, before so many bytes of its line's end.
    End(u8),
    /// Behind the last chunk, with what came there that `s3s` does not get as it is.
    Trailer(Vec<u8>),
}

impl Chunks {
    /// The chunks that a head announces, of which the headers are changed to announce what `s3s`
    /// gets. `None` if it will not look for any.
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

    /// Where what comes behind them is found when the body has ended.
    pub fn trailer(&self) -> Option<Trailer> {
        self.trailer.clone()
    }

    /// Takes of what has come, and adds what `s3s` is to read to `out`, until that is enough for
    /// now.
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
                            // Without it `s3s` does not look at the chunk.
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

    /// Takes the end of the body.
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

    /// Hands on a piece of a chunk.
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

/// What a request in signed chunks becomes whose body is not signed, with a signature of its own,
/// if its signature is right.
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

/// A chunk's length, and what it is said to be signed with.
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

/// The fields of what came behind the last chunk, named in small letters.
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
