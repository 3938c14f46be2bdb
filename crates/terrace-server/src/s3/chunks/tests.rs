//! Bodies in chunks, valid and invalid, in pieces of every length.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::{
    http::budget::{COLLECTED_BYTES_MAX, Pool},
    s3::head::tests::head,
};
use signatures::tests::{EXAMPLE, headers, secret};

/// The time of the documentation's example: 24 May 2013, 00:00.
const THEN_MS: u64 = 1_369_353_600_000;
/// At any other time the example's signature is unknown.
const NOW_MS: u64 = 0;

fn chunks_at(said: &str, pool: &Arc<Pool>, now_ms: u64) -> (Chunks, HeaderMap) {
    let (head, ..) = head("PUT", "/examplebucket/chunkObject.txt", &[]);
    let ticket = Arc::new(pool.ticket([127, 0, 0, 1].into()));
    let mut headers = headers(said);
    let chunks = Chunks::of(&head, &mut headers, &ticket, secret, now_ms).unwrap();
    (chunks, headers)
}

/// Takes all decoded bytes.
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

/// What `s3s` gets of a body that arrives in pieces of this length, and the error that ended it.
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

/// Regression: one chunk of 700 MiB took 700 MiB of memory, since it was collected before it was
/// written.
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

/// `s3s` would collect and hash each chunk once more, and compare signatures up to the first
/// difference. It gets the contents of the chunks, and a head for them.
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

/// A head whose signature is unknown is left to `s3s` unchanged, with its chunks.
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

/// `s3s` processes a chunk once it has the end of its line.
#[test]
fn a_wrong_signature_does_not_get_to_where_it_is_compared() {
    for wrong in 0..EXAMPLE.len() {
        for piece_bytes in [1, 1000, 1 << 20] {
            let (out, taken) = read_at(SIGNED, &example(Some(wrong)), piece_bytes, NOW_MS);
            assert_eq!(code(taken), "SignatureDoesNotMatch");
            let whole = |(bytes, _): &(usize, &str)| format!("{bytes:x};chunk-signature=\r\n\r\n").len() + 64 + bytes;
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

/// `s3s` accepts a body without its last chunk as complete.
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
    // The empty line at the end may be missing.
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
    // The next chunk begins when the previous one has been handed on.
    let rest = [&b"\r\n"[..], line(&one).as_bytes(), &data].concat();
    take(&mut one, rest, &mut out).unwrap();
}

/// Regression: a list of all pieces of a received buffer took megabytes if each had one byte, and
/// was kept.
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

/// `s3s` does not parse chunks in unsigned requests.
#[test]
fn unsigned_bodies_are_taken_out_of_their_chunks() {
    let given = [
        ("content-encoding", "aws-chunked"),
        ("content-length", "70"),
        ("x-amz-decoded-content-length", "13"),
        ("x-amz-content-sha256", UNSIGNED_WITH_TRAILER),
    ];
    let (head, mut headers, _) = head("PUT", "/b/k", &given);
    let ticket = Arc::new(Pool::memory(COLLECTED_BYTES_MAX).ticket([127, 0, 0, 1].into()));
    for piece_bytes in [1, 7, 1000] {
        let mut chunks = Chunks::of(&head, &mut headers, &ticket, secret, NOW_MS).unwrap();
        assert_eq!(headers["content-length"], "13");
        assert!(!headers.contains_key(CONTENT_HASH));
        headers.insert(CONTENT_HASH, HeaderValue::from_static(UNSIGNED_WITH_TRAILER));
        let (trailer, mut out) = (chunks.trailer().unwrap(), VecDeque::new());
        let body = b"000a\r\n0123456789\r\n3\r\nabc\r\n0\r\nX-Amz-Checksum-Crc32: AAAAAA==\r\n\r\n";
        for piece in body.chunks(piece_bytes) {
            take(&mut chunks, piece.to_vec(), &mut out).unwrap();
        }
        assert_eq!(trailer.value("x-amz-checksum-crc32"), None, "not before the end");
        chunks.end(&mut out).unwrap();
        assert_eq!(Vec::from(out).concat(), b"0123456789abc");
        assert_eq!(trailer.value("x-amz-checksum-crc32").as_deref(), Some("AAAAAA=="));
    }
}
