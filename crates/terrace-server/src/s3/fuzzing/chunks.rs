//! Bodies in chunks: for any split into pieces, the result is the same as that of a simple reader
//! of the whole body, or the body is rejected.

use super::{ID, SECRET, TIME, TIME_MS, head, secret, signed};
use crate::{
    http::budget::{COLLECTED_BYTES_MAX, Pool},
    s3::{chunks::Chunks, digest::hex, signature},
};
use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use ring::{digest, hmac};
use std::{collections::VecDeque, sync::Arc};

/// Longest line before a chunk, as `chunks` has it.
const LINE_BYTES_MAX: usize = 128;
/// Longest trailer that is kept.
const TRAILER_BYTES_MAX: usize = 16 << 10;
/// Maximum number of pieces that are ready at a time, with the framing of the last.
const READY_MAX: usize = 256 + 4;
const TARGET: &str = "/examplebucket/chunkObject.txt";
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Contents of a body: the bytes of its chunks, the rest after the last one, and whether it is
/// invalid.
struct Whole<'b> {
    chunks: Vec<&'b [u8]>,
    trailer: Option<&'b [u8]>,
    wrong: Option<&'static str>,
}

impl<'b> Whole<'b> {
    fn of(mut rest: &'b [u8]) -> Self {
        let mut chunks = Vec::new();
        let (mut trailer, mut wrong) = (None, None);
        let is_wrong = |is_short: bool| Some(if is_short { "IncompleteBody" } else { "InvalidRequest" });
        while wrong.is_none() && trailer.is_none() {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                wrong = is_wrong(rest.len() <= LINE_BYTES_MAX);
                break;
            };
            let Some(bytes) = length(&rest[..=end]) else {
                wrong = is_wrong(false);
                break;
            };
            rest = &rest[end + 1..];
            if bytes == 0 {
                trailer = Some(rest);
                break;
            }
            let (chunk, behind) = rest.split_at(bytes.min(rest.len()));
            chunks.push(chunk);
            match behind {
                [b'\r', b'\n', behind @ ..] => rest = behind,
                [] | [b'\r'] => wrong = is_wrong(true),
                _ => wrong = is_wrong(false),
            }
        }
        Self { chunks, trailer, wrong }
    }

    fn bytes(&self) -> Vec<u8> {
        self.chunks.concat()
    }
}

fn length(line: &[u8]) -> Option<usize> {
    let digits = line.strip_suffix(b"\r\n").filter(|_| line.len() <= LINE_BYTES_MAX)?;
    let is_short = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_short)?;
    usize::from_str_radix(digits, 16).ok()
}

/// Result of reading a body: the bytes passed on, and the code of the error.
type Taken = (Vec<u8>, Option<String>);

fn read(headers: &HeaderMap, body: &[u8], piece_bytes: usize, now_ms: u64) -> Option<Taken> {
    let (head, mut headers) = head("PUT", TARGET, headers.clone())?;
    let ticket = Arc::new(Pool::memory(COLLECTED_BYTES_MAX).ticket([127, 0, 0, 1].into()));
    let mut chunks = Chunks::of(&head, &mut headers, &ticket, secret, now_ms)?;
    let (mut all, mut out) = (Vec::new(), VecDeque::new());
    let mut taken = Ok(());
    for piece in body.chunks(piece_bytes) {
        let mut data = Bytes::copy_from_slice(piece);
        while !data.is_empty() && taken.is_ok() {
            let before = data.len();
            taken = chunks.take(&mut data, &mut out);
            assert!(out.len() <= READY_MAX, "{} pieces are ready", out.len());
            assert!(taken.is_err() || data.len() < before, "it goes on");
            out.drain(..).for_each(|piece: Bytes| all.extend_from_slice(&piece));
        }
    }
    let taken = taken.and_then(|()| chunks.end(&mut out));
    out.drain(..).for_each(|piece| all.extend_from_slice(&piece));
    Some((all, taken.err().map(|error| error.code().as_str().to_owned())))
}

/// Reads it in pieces of several lengths, which must not change the result. `same` is the part of
/// the passed bytes that they must not change.
fn read_in_pieces(headers: &HeaderMap, body: &[u8], now_ms: u64, same: impl Fn(&[u8]) -> Vec<u8>) -> Option<Taken> {
    let whole = read(headers, body, body.len().max(1), now_ms)?;
    for piece_bytes in [1, 2, 3, 7, 64] {
        let (handed_on, wrong) = read(headers, body, piece_bytes, now_ms)?;
        assert_eq!(wrong, whole.1, "in pieces of {piece_bytes} bytes");
        assert!(
            wrong.is_some() || same(&handed_on) == same(&whole.0),
            "in pieces of {piece_bytes} bytes"
        );
    }
    Some(whole)
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let fields = fields.iter().filter_map(|(name, value)| {
        let value = HeaderValue::from_str(value).ok()?;
        Some((HeaderName::from_static(name), value))
    });
    fields.collect()
}

/// A body in chunks that are not signed, of a request that is, and of one that is not.
pub fn unsigned_chunks(body: &[u8]) -> bool {
    let whole = Whole::of(body);
    let bytes = whole.bytes();
    let mut said = vec![
        ("host", "localhost"),
        ("content-encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "13"),
        ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    ];
    let unsigned = read_in_pieces(&headers(&said), body, 0, <[u8]>::to_vec);
    let (handed_on, wrong) = unsigned.unwrap_or_else(|| panic!("the head announces chunks"));
    assert!(bytes.starts_with(&handed_on), "nothing but what is in the chunks");
    let is_trailer = |trailer: &[u8]| {
        let text = std::str::from_utf8(trailer).ok();
        let is_field = |line: &str| line.is_empty() || line.contains(':');
        trailer.len() <= TRAILER_BYTES_MAX && text.is_some_and(|text| text.lines().all(is_field))
    };
    let expected = match whole.trailer {
        Some(trailer) if !is_trailer(trailer) => Some("InvalidRequest"),
        _ => whole.wrong,
    };
    assert_eq!(wrong.as_deref(), expected);
    assert!(wrong.is_some() || handed_on == bytes);

    // `s3s` gets other chunks with the same contents.
    said.push(("authorization", "AWS4-HMAC-SHA256 Credential=a, Signature=b"));
    let again = |handed_on: &[u8]| {
        let read = Whole::of(handed_on);
        [&read.bytes(), read.trailer.unwrap_or(b"none")].concat()
    };
    let (handed_on, wrong) =
        read_in_pieces(&headers(&said), body, 0, again).unwrap_or_else(|| panic!("the head announces chunks"));
    assert_eq!(wrong.as_deref(), whole.wrong);
    let read = Whole::of(&handed_on);
    assert!(bytes.starts_with(&read.bytes()) && read.wrong.is_none_or(|wrong| wrong == "IncompleteBody"));
    assert!(wrong.is_some() || (read.bytes() == bytes && read.trailer == whole.trailer));
    wrong.is_none()
}

/// A body whose chunks are signed for it, as a client signs them ("Signature calculations for the
/// Authorization header: transferring payload in multiple chunks" in S3's API reference), whole,
/// cut off, and with one bit changed. The first three bytes choose where.
pub fn signed_chunks(input: &[u8]) -> bool {
    let Some((change, body)) = input.split_first_chunk::<3>() else {
        return false;
    };
    let whole = Whole::of(body);
    let Some(trailer) = whole.trailer else { return false };
    let trailer = std::str::from_utf8(trailer).unwrap_or("");
    let is_field = |line: &&str| line.split_once(':').is_some_and(|(name, _)| !name.trim().is_empty());
    let fields: Vec<_> = trailer.lines().filter(is_field).collect();
    let kind = if fields.is_empty() { "" } else { "-TRAILER" };
    let payload = format!("STREAMING-AWS4-HMAC-SHA256-PAYLOAD{kind}");
    let mut headers = headers(&[
        ("host", "localhost"),
        ("content-encoding", "aws-chunked"),
        ("x-amz-content-sha256", &payload),
        ("x-amz-date", TIME),
    ]);
    headers.insert("x-amz-decoded-content-length", HeaderValue::from(whole.bytes().len()));
    let signature = signed::sign_in_header("PUT", TARGET, &[], &mut headers, TIME);
    let signed = Body::of(&whole, &fields, signature);

    let same = <[u8]>::to_vec;
    let read =
        |body: &[u8]| read_in_pieces(&headers, body, TIME_MS, same).unwrap_or_else(|| panic!("there are chunks"));
    // With a trailer `s3s` gets chunks, not signed.
    let bytes_of = |handed_on: &[u8]| {
        if fields.is_empty() {
            handed_on.to_vec()
        } else {
            Whole::of(handed_on).bytes()
        }
    };
    let in_pieces = |body: &[u8]| {
        let (handed_on, wrong) = read_in_pieces(&headers, body, TIME_MS, bytes_of).unwrap_or_else(|| read(body));
        (bytes_of(&handed_on), wrong)
    };
    assert_eq!(in_pieces(&signed), (whole.bytes(), None));
    // With an unknown head they stay unchanged.
    let left = read_in_pieces(&headers, &signed, 0, same);
    if let Some((handed_on, None)) = left {
        assert!(handed_on == signed || !fields.is_empty());
    }

    let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % signed.len();
    let mut changed = signed.clone();
    changed[at] ^= 1 << (change[2] % 8);
    for other in [&changed, &signed[..at]] {
        let (bytes, wrong) = in_pieces(other);
        assert!(
            wrong.is_some() || bytes == whole.bytes(),
            "what is not signed is taken for whole"
        );
    }
    true
}

/// Makes a signed body.
struct Body {
    key: hmac::Key,
    last: String,
}

impl Body {
    fn of(whole: &Whole<'_>, fields: &[&str], signature: String) -> Vec<u8> {
        let scope = signed::scope(TIME);
        let mut body = Self {
            key: signature::key(SECRET, scope.split('/')),
            last: signature,
        };
        debug_assert!(secret(ID).is_some());
        let mut text = Vec::new();
        for chunk in whole.chunks.iter().chain([&&b""[..]]) {
            let hash = hex(digest::digest(&digest::SHA256, chunk).as_ref());
            let signature = body.sign("PAYLOAD", &format!("{OF_NOTHING}\n{hash}"));
            text.extend(format!("{:x};chunk-signature={signature}\r\n", chunk.len()).into_bytes());
            text.extend_from_slice(chunk);
            if !chunk.is_empty() {
                text.extend_from_slice(b"\r\n");
            }
        }
        if !fields.is_empty() {
            let lower = |field: &&str| {
                let (name, value) = field.split_once(':').unwrap_or_default();
                (name.to_ascii_lowercase(), value.trim_ascii().to_owned())
            };
            let mut signed: Vec<_> = fields.iter().map(lower).collect();
            signed.sort_by(|(one, _), (other, _)| one.cmp(other));
            let signed: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
            let hash = hex(digest::digest(&digest::SHA256, signed.as_bytes()).as_ref());
            let signature = body.sign("TRAILER", &hash);
            fields
                .iter()
                .for_each(|field| text.extend(format!("{field}\r\n").into_bytes()));
            text.extend(format!("x-amz-trailer-signature:{signature}\r\n").into_bytes());
        }
        text.extend_from_slice(b"\r\n");
        text
    }

    fn sign(&mut self, kind: &str, hashes: &str) -> String {
        let (scope, last) = (signed::scope(TIME), &self.last);
        let signed = format!("AWS4-HMAC-SHA256-{kind}\n{TIME}\n{scope}\n{last}\n{hashes}");
        self.last = hex(hmac::sign(&self.key, signed.as_bytes()).as_ref());
        self.last.clone()
    }
}
