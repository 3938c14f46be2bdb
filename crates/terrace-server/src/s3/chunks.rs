//! Bodies in chunks (`aws-chunked`) on their way to `s3s`, which keeps a whole chunk in memory
//! before it hands on any of it, however long the client says that it is.
//!
//! Chunks that are not signed are cut into as many as there are pieces, so nothing of them is kept.
//! A signed chunk can only be judged whole: it has a bound, and what is kept of a long one is taken
//! from the memory there is for all requests. What is no chunk ends the body here: `s3s` would read
//! it in a way of its own.

use super::errors;
use crate::http::budget::{Ticket, cost_of_frame};
use bytes::{Buf as _, Bytes};
use hyper::{HeaderMap, header};
use s3s::{S3Result, s3_error};
use std::{collections::VecDeque, mem, sync::Arc};

/// Longest signed chunk. Clients send some tens of KiB, or a MiB.
const SIGNED_BYTES_MAX: u64 = 16 << 20;
/// Signed chunks up to here are no more than what any body has on its way.
const FREE_BYTES_MAX: u64 = 1 << 20;
/// Longest line before a chunk: its length, and a signature of 64 digits.
const LINE_BYTES_MAX: usize = 128;
/// Most digits of a length; `s3s` knows no more.
const LENGTH_DIGITS_MAX: usize = 8;

/// The chunks of a body.
pub struct Chunks {
    is_signed: bool,
    at: At,
    ticket: Arc<Ticket>,
    /// What was taken with the ticket for this chunk.
    taken: u64,
    counts: bool,
}

/// Where in a body.
enum At {
    /// In the line before a chunk.
    Line(Vec<u8>),
    /// In a chunk of which so much is missing.
    Data(u64),
    /// Behind a chunk, before so many bytes of its line's end.
    End(u8),
    /// Behind the last chunk.
    Trailer,
}

impl Chunks {
    /// The chunks a head announces. `None` if `s3s` will not look for any.
    pub fn of(headers: &HeaderMap, ticket: &Arc<Ticket>) -> Option<Self> {
        headers.get(header::AUTHORIZATION)?;
        let form = headers.get("x-amz-content-sha256")?.to_str().ok()?;
        let is_signed = form.strip_prefix("STREAMING-")? != "UNSIGNED-PAYLOAD-TRAILER";
        Some(Self {
            is_signed,
            at: At::Line(Vec::new()),
            ticket: Arc::clone(ticket),
            taken: 0,
            counts: false,
        })
    }

    /// Takes what has come, and adds what `s3s` is to read to `out`.
    ///
    /// # Errors
    /// `InvalidRequest`, `EntityTooLarge`, `SlowDown`.
    pub fn take(&mut self, mut data: Bytes, out: &mut VecDeque<Bytes>) -> S3Result {
        while !data.is_empty() {
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
                            out.push_back(Bytes::from_static(b"\r\n"));
                        }
                    }
                }
                At::Trailer => out.push_back(mem::take(&mut data)),
            }
        }
        Ok(())
    }

    /// Begins a chunk.
    fn begin(&mut self, line: &[u8], out: &mut VecDeque<Bytes>) -> S3Result {
        self.ticket.give_back(mem::take(&mut self.taken));
        let (bytes, is_signed) = read_line(line).ok_or_else(malformed)?;
        if is_signed != self.is_signed {
            return Err(malformed());
        }
        if is_signed && bytes > SIGNED_BYTES_MAX {
            return Err(s3_error!(
                EntityTooLarge,
                "A signed chunk may have {SIGNED_BYTES_MAX} bytes at most; send shorter chunks."
            ));
        }
        self.counts = is_signed && bytes > FREE_BYTES_MAX;
        self.at = if bytes == 0 { At::Trailer } else { At::Data(bytes) };
        if is_signed || bytes == 0 {
            out.push_back(Bytes::copy_from_slice(line));
        }
        Ok(())
    }

    /// Hands on a piece of a chunk.
    fn pass(&mut self, piece: Bytes, out: &mut VecDeque<Bytes>) -> S3Result {
        if self.is_signed {
            if self.counts {
                let cost = cost_of_frame(piece.len(), 1);
                self.ticket.take(cost).map_err(errors::of_memory)?;
                self.taken += cost;
            }
            out.push_back(piece);
            return Ok(());
        }
        out.push_back(Bytes::from(format!("{:x}\r\n", piece.len())));
        out.push_back(piece);
        out.push_back(Bytes::from_static(b"\r\n"));
        Ok(())
    }
}

/// A chunk's length, and whether it is signed.
fn read_line(line: &[u8]) -> Option<(u64, bool)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let (length, extension) = match line.split_once(';') {
        None => (line, None),
        Some((length, extension)) => (length, Some(extension)),
    };
    let is_hex = (1..=LENGTH_DIGITS_MAX).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = u64::from_str_radix(length, 16).ok().filter(|_| is_hex)?;
    match extension {
        None => Some((bytes, false)),
        Some(extension) => extension.starts_with("chunk-signature=").then_some((bytes, true)),
    }
}

fn malformed() -> s3s::S3Error {
    s3_error!(
        InvalidRequest,
        "The body is not in the chunked form that was announced."
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::budget::{COLLECTED_BYTES_MAX, Pool};
    use hyper::header::HeaderValue;

    fn chunks(form: &'static str, pool: &Arc<Pool>) -> Chunks {
        let headers = [
            (header::AUTHORIZATION, HeaderValue::from_static("AWS4")),
            (
                header::HeaderName::from_static("x-amz-content-sha256"),
                HeaderValue::from_static(form),
            ),
        ];
        let ticket = Arc::new(pool.ticket([127, 0, 0, 1].into()));
        Chunks::of(&headers.into_iter().collect(), &ticket).unwrap()
    }

    /// What `s3s` gets of a body that comes in pieces of so many bytes.
    fn read(form: &'static str, body: &[u8], piece_bytes: usize) -> S3Result<Vec<Bytes>> {
        let mut chunks = chunks(form, &Pool::memory(COLLECTED_BYTES_MAX));
        let mut out = VecDeque::new();
        for piece in body.chunks(piece_bytes) {
            chunks.take(Bytes::copy_from_slice(piece), &mut out)?;
        }
        Ok(out.into())
    }

    const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

    /// One chunk of 700 MiB took 700 MiB of memory, since all of it was collected before any of it
    /// was written.
    #[test]
    fn what_is_not_signed_is_cut_as_it_comes() {
        let trailer = b"x-amz-checksum-crc32c:AAAAAA==\r\n\r\n";
        let body = [b"000a\r\n0123456789\r\n3\r\nabc\r\n0\r\n", &trailer[..]].concat();
        for piece_bytes in [1, 2, 3, 7, 1000] {
            let out = read(UNSIGNED, &body, piece_bytes).unwrap().concat();
            let (mut data, mut rest) = (Vec::new(), &out[..]);
            loop {
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap() + 1;
                let (bytes, _) = read_line(&rest[..end]).unwrap();
                rest = &rest[end..];
                if bytes == 0 {
                    break;
                }
                assert!(
                    bytes <= piece_bytes as u64,
                    "a chunk is no longer than what came at once"
                );
                let bytes = usize::try_from(bytes).unwrap();
                data.extend_from_slice(&rest[..bytes]);
                rest = rest[bytes..].strip_prefix(b"\r\n").unwrap();
            }
            assert_eq!((&data[..], rest), (&b"0123456789abc"[..], &trailer[..]));
        }
    }

    #[test]
    fn what_is_signed_stays_as_it_is_and_has_a_bound() {
        let signature = "0".repeat(64);
        let body = format!("a;chunk-signature={signature}\r\n0123456789\r\n0;chunk-signature={signature}\r\n\r\n");
        for piece_bytes in [1, 5, 1000] {
            let out = read(SIGNED, body.as_bytes(), piece_bytes).unwrap();
            assert_eq!(out.concat(), body.as_bytes());
        }
        let long = format!("{:x};chunk-signature={signature}\r\n", SIGNED_BYTES_MAX + 1);
        assert_eq!(
            read(SIGNED, long.as_bytes(), 1000).unwrap_err().code().as_str(),
            "EntityTooLarge"
        );
    }

    #[test]
    fn long_signed_chunks_share_a_budget() {
        let pool = Pool::new(6 << 20, 6 << 20);
        let line = format!("{:x};chunk-signature={}\r\n", 4 << 20, "0".repeat(64));
        let data = Bytes::from(vec![0; 4 << 20]);
        let mut out = VecDeque::new();
        let (mut one, mut two) = (chunks(SIGNED, &pool), chunks(SIGNED, &pool));
        for chunks in [&mut one, &mut two] {
            chunks.take(Bytes::from(line.clone()), &mut out).unwrap();
        }
        one.take(data.clone(), &mut out).unwrap();
        assert_eq!(
            two.take(data.clone(), &mut out).unwrap_err().code().as_str(),
            "SlowDown"
        );
        // The next chunk begins when the one before has been handed on.
        one.take(Bytes::from(format!("\r\n{line}")), &mut out).unwrap();
        one.take(data, &mut out).unwrap();
    }

    #[test]
    fn what_is_no_chunk() {
        let signature = "0".repeat(64);
        for (form, body) in [
            (UNSIGNED, format!("1;chunk-signature={signature}\r\na\r\n")),
            (SIGNED, "1\r\na\r\n".to_owned()),
            (UNSIGNED, "fffffffff\r\n".to_owned()),
            (UNSIGNED, "1x\r\n".to_owned()),
            (UNSIGNED, "+1\r\na\r\n".to_owned()),
            (UNSIGNED, "\r\n".to_owned()),
            (UNSIGNED, "1\na".to_owned()),
            (UNSIGNED, "1\r\nab".to_owned()),
            (UNSIGNED, "0".repeat(200)),
        ] {
            assert_eq!(
                read(form, body.as_bytes(), 1000).unwrap_err().code().as_str(),
                "InvalidRequest",
                "{body}"
            );
        }
    }
}
