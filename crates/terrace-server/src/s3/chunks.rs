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
//! What is no chunk ends the body here, and so does an end without the last chunk, which has no
//! bytes and says that there are no more: `s3s` would read these in a way of its own.

mod signatures;

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
    /// Behind the last chunk, with what came there of a body that is signed.
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
        headers.get(header::AUTHORIZATION)?;
        let said = headers.get(CONTENT_HASH)?.to_str().ok()?;
        let is_signed = said
            .starts_with("STREAMING-")
            .then_some(said != UNSIGNED_WITH_TRAILER)?;
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
            form,
            at: At::Line(Vec::new()),
            digests: None,
            ticket: Arc::clone(ticket),
            taken: 0,
            counts: false,
        })
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
                At::Trailer(_) if !self.is_signed => out.push_back(mem::take(data)),
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
    use crate::{
        http::budget::{COLLECTED_BYTES_MAX, Pool},
        s3::head::tests::head,
    };
    use signatures::tests::{EXAMPLE, headers, secret};

    /// When the example of the documentation was signed: 24 May 2013, 00:00.
    const THEN_MS: u64 = 1_369_353_600_000;
    /// At any other time its head is one of which nothing is known.
    const NOW_MS: u64 = 0;

    fn chunks_at(said: &str, pool: &Arc<Pool>, now_ms: u64) -> (Chunks, HeaderMap) {
        let (head, ..) = head("PUT", "/examplebucket/chunkObject.txt", &[]);
        let ticket = Arc::new(pool.ticket([127, 0, 0, 1].into()));
        let mut headers = headers(said);
        let chunks = Chunks::of(&head, &mut headers, &ticket, secret, now_ms).unwrap();
        (chunks, headers)
    }

    /// Takes all of what has come.
    fn take(chunks: &mut Chunks, data: impl Into<Bytes>, out: &mut VecDeque<Bytes>) -> S3Result {
        let (mut data, mut some) = (data.into(), VecDeque::new());
        while !data.is_empty() {
            let taken = chunks.take(&mut data, &mut some);
            assert!(some.len() < READY_MAX + 4, "{}", some.len());
            out.append(&mut some);
            taken?;
        }
        Ok(())
    }

    /// What `s3s` gets of a body that comes in pieces of so many bytes, and why there is no more of
    /// it.
    fn read_at(said: &str, body: &[u8], piece_bytes: usize, now_ms: u64) -> (Vec<u8>, S3Result) {
        let (mut chunks, _) = chunks_at(said, &Pool::memory(COLLECTED_BYTES_MAX), now_ms);
        let mut out = VecDeque::new();
        let mut pieces = body.chunks(piece_bytes);
        let taken = pieces.try_for_each(|piece| take(&mut chunks, piece.to_vec(), &mut out));
        let taken = taken.and_then(|()| chunks.end(&mut out));
        (Vec::from(out).concat(), taken)
    }

    fn read(said: &str, body: &[u8], piece_bytes: usize) -> S3Result<Vec<u8>> {
        let (out, taken) = read_at(said, body, piece_bytes, NOW_MS);
        taken.map(|()| out)
    }

    fn code(taken: S3Result) -> String {
        taken.unwrap_err().code().as_str().to_owned()
    }

    /// The body of the example, with the signature of one chunk changed.
    fn example(wrong: Option<usize>) -> Vec<u8> {
        let chunk = |(at, (bytes, signature)): (usize, (usize, &str))| {
            let signature = if wrong == Some(at) { &"0".repeat(64) } else { signature };
            format!("{bytes:x};chunk-signature={signature}\r\n{}\r\n", "a".repeat(bytes))
        };
        EXAMPLE
            .into_iter()
            .enumerate()
            .map(chunk)
            .collect::<String>()
            .into_bytes()
    }

    /// One chunk of 700 MiB took 700 MiB of memory, since all of it was collected before any of it
    /// was written.
    #[test]
    fn what_is_not_signed_is_cut_as_it_comes() {
        let trailer = b"x-amz-checksum-crc32c:AAAAAA==\r\n\r\n";
        let body = [b"000a\r\n0123456789\r\n3\r\nabc\r\n0\r\n", &trailer[..]].concat();
        for piece_bytes in [1, 2, 3, 7, 1000] {
            let out = read(UNSIGNED_WITH_TRAILER, &body, piece_bytes).unwrap();
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

    /// `s3s` would collect and hash each chunk once more, and compare signatures until the first
    /// byte that differs. It gets what is in the chunks, and a head that says so.
    #[test]
    fn what_is_signed_goes_on_without_signatures() {
        for piece_bytes in [1, 5, 1000, 1 << 20] {
            let (out, taken) = read_at(SIGNED, &example(None), piece_bytes, THEN_MS);
            taken.unwrap();
            assert_eq!(out, [b'a'; 66_560]);
        }
        let (_, announced) = chunks_at(SIGNED, &Pool::memory(COLLECTED_BYTES_MAX), THEN_MS);
        assert_eq!(announced[CONTENT_HASH], UNSIGNED);
        assert_eq!(announced["content-length"], "66560");
        let (head, ..) = head("PUT", "/examplebucket/chunkObject.txt", &[]);
        assert!(Verified::of(&head, &announced, secret, THEN_MS).is_some());
        let other = headers(UNSIGNED);
        assert!(
            Verified::of(&head, &other, secret, THEN_MS).is_none(),
            "the old signature"
        );
        for wrong in 0..EXAMPLE.len() {
            let (out, taken) = read_at(SIGNED, &example(Some(wrong)), 1000, THEN_MS);
            assert_eq!(code(taken), "SignatureDoesNotMatch");
            let bytes: usize = EXAMPLE[..wrong].iter().map(|(bytes, _)| bytes).sum();
            assert!(out.len() >= bytes);
        }
    }

    /// A head that is not known to be signed is left to `s3s`, as it is, with its chunks.
    #[test]
    fn what_may_be_read_in_two_ways_stays_as_it_is_and_has_a_bound() {
        let body = example(None);
        for piece_bytes in [1, 5, 1000, 1 << 20] {
            assert_eq!(read(SIGNED, &body, piece_bytes).unwrap(), body);
        }
        let (_, announced) = chunks_at(SIGNED, &Pool::memory(COLLECTED_BYTES_MAX), NOW_MS);
        assert_eq!(announced, headers(SIGNED));
        let long = format!("{:x};chunk-signature={}\r\n", SIGNED_BYTES_MAX + 1, "0".repeat(64));
        assert_eq!(code(read(SIGNED, long.as_bytes(), 1000).map(|_| ())), "EntityTooLarge");
    }

    /// `s3s` looks at a chunk once it has the end of its line.
    #[test]
    fn a_wrong_signature_does_not_get_to_where_it_is_compared() {
        for wrong in 0..EXAMPLE.len() {
            for piece_bytes in [1, 1000, 1 << 20] {
                let (out, taken) = read_at(SIGNED, &example(Some(wrong)), piece_bytes, NOW_MS);
                assert_eq!(code(taken), "SignatureDoesNotMatch");
                let whole =
                    |(bytes, _): &(usize, &str)| format!("{bytes:x};chunk-signature=\r\n\r\n").len() + 64 + bytes;
                let bytes: usize = EXAMPLE[..wrong].iter().map(whole).sum();
                assert!(example(None).starts_with(&out[..bytes]), "{wrong}");
                let more = &out[bytes..];
                if wrong == EXAMPLE.len() - 1 {
                    assert!(more.is_empty());
                } else {
                    assert!(more.ends_with(b"a"), "the end of its line is missing");
                }
            }
        }
        let ticket = Arc::new(Pool::memory(COLLECTED_BYTES_MAX).ticket([127, 0, 0, 1].into()));
        let (head, ..) = head("PUT", "/examplebucket/chunkObject.txt", &[]);
        let mut unknown = Chunks::of(&head, &mut headers(SIGNED), &ticket, |_| None, THEN_MS).unwrap();
        assert!(take(&mut unknown, example(None), &mut VecDeque::new()).is_err());
    }

    /// `s3s` takes a body that ends without its last chunk for whole.
    #[test]
    fn a_body_ends_with_its_last_chunk() {
        let body = example(None);
        let without_last = body.len() - "0;chunk-signature=\r\n\r\n".len() - 64;
        for (said, body) in [
            (SIGNED, &body[..without_last]),
            (SIGNED, b""),
            (UNSIGNED_WITH_TRAILER, b"1\r\na\r\n"),
            (UNSIGNED_WITH_TRAILER, b""),
        ] {
            for now_ms in [NOW_MS, THEN_MS] {
                let (_, taken) = read_at(said, body, 1000, now_ms);
                assert_eq!(code(taken), "IncompleteBody");
            }
        }
        // The empty line behind it may be left out.
        read(SIGNED, &body[..body.len() - 2], 1000).unwrap();
        let much = [&body[..], &[b'a'; TRAILER_BYTES_MAX]].concat();
        assert!(read(SIGNED, &much, 1000).is_err());
    }

    #[test]
    fn long_chunks_that_keep_their_signatures_share_a_budget() {
        let pool = Pool::new(6 << 20, 6 << 20);
        let data = Bytes::from(vec![0; 4 << 20]);
        let line = |chunks: &Chunks| {
            let signature = chunks.signatures.as_ref().unwrap().sign(&data);
            format!("{:x};chunk-signature={signature}\r\n", data.len())
        };
        let mut out = VecDeque::new();
        let ((mut one, _), (mut two, _)) = (chunks_at(SIGNED, &pool, NOW_MS), chunks_at(SIGNED, &pool, NOW_MS));
        for chunks in [&mut one, &mut two] {
            let line = line(chunks);
            take(chunks, line, &mut out).unwrap();
        }
        take(&mut one, data.clone(), &mut out).unwrap();
        assert_eq!(code(take(&mut two, data.clone(), &mut out)), "SlowDown");
        // The next chunk begins when the one before has been handed on.
        let rest = [&b"\r\n"[..], line(&one).as_bytes(), &data].concat();
        take(&mut one, rest, &mut out).unwrap();
    }

    /// A list of all pieces of what had come was megabytes long where each had a byte, and stayed.
    #[test]
    fn short_chunks_are_taken_some_at_a_time() {
        let body = [&b"1\r\na\r\n".repeat(60_000)[..], b"0\r\n\r\n"].concat();
        let out = read(UNSIGNED_WITH_TRAILER, &body, body.len()).unwrap();
        assert!(out == body, "{}", out.len());
    }

    #[test]
    fn what_is_no_chunk() {
        let signature = "0".repeat(64);
        for (said, body) in [
            (UNSIGNED_WITH_TRAILER, format!("1;chunk-signature={signature}\r\na\r\n")),
            (SIGNED, "1\r\na\r\n".to_owned()),
            (UNSIGNED_WITH_TRAILER, "fffffffff\r\n".to_owned()),
            (UNSIGNED_WITH_TRAILER, "1x\r\n".to_owned()),
            (UNSIGNED_WITH_TRAILER, "+1\r\na\r\n".to_owned()),
            (UNSIGNED_WITH_TRAILER, "\r\n".to_owned()),
            (UNSIGNED_WITH_TRAILER, "1\na".to_owned()),
            (UNSIGNED_WITH_TRAILER, "1\r\nab".to_owned()),
            (UNSIGNED_WITH_TRAILER, "0".repeat(200)),
        ] {
            for now_ms in [NOW_MS, THEN_MS] {
                let (_, taken) = read_at(said, body.as_bytes(), 1000, now_ms);
                assert_eq!(code(taken), "InvalidRequest", "{body}");
            }
        }
    }
}
