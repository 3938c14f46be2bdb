//! Downloads of an object of which RAM has every second piece.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::http::read_ahead::{AHEAD_BYTES, LOOK_INTERVAL, ReadAhead};
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace::Options;
use terrace_objects::write::PIECE_BYTES;

const LENGTH: usize = 5 * PIECE_BYTES + 1000;

/// An object of pieces, of which RAM has the even ones.
struct Pieces {
    rest: Range<u64>,
    is_encrypted: bool,
    holds_little: bool,
    /// Most bytes that were returned at once.
    longest: Arc<AtomicUsize>,
    /// Where reading fails.
    damaged: u64,
}

fn byte_at(position: u64) -> u8 {
    (position % 251) as u8
}

impl Pieces {
    fn take(&mut self) -> Bytes {
        let piece = PIECE_BYTES as u64;
        let end = (self.rest.start / piece + 1) * piece;
        let most = if self.holds_little { 1000 } else { piece };
        let end = end.min(self.rest.end).min(self.rest.start + most);
        let bytes: Bytes = (self.rest.start..end).map(byte_at).collect();
        self.rest.start = end;
        self.longest.fetch_max(bytes.len(), Ordering::Relaxed);
        bytes
    }
}

impl Source for Pieces {
    fn length(&self) -> u64 {
        LENGTH as u64
    }

    fn rest(&self) -> Range<u64> {
        self.rest.clone()
    }

    fn seek(&mut self, range: Range<u64>) -> io::Result<()> {
        self.rest = range;
        Ok(())
    }

    fn hold_little(&mut self, little: bool) {
        self.holds_little = little;
    }

    fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    fn piece_in_ram(&mut self) -> Option<Bytes> {
        let is_there = (self.rest.start / PIECE_BYTES as u64).is_multiple_of(2) && self.rest.start < self.damaged;
        (is_there && !self.rest.is_empty()).then(|| self.take())
    }

    fn next_piece(&mut self, _: &Store) -> io::Result<Bytes> {
        if self.rest.start >= self.damaged {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(self.take())
    }
}

struct Server {
    engine: Engine,
    ahead: ReadAhead,
    longest: Arc<AtomicUsize>,
    _dir: tempfile::TempDir,
}

impl Server {
    fn new(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        Self {
            engine: Engine::new(store),
            ahead: ReadAhead::new(bytes),
            longest: Arc::default(),
            _dir: dir,
        }
    }

    fn source(&self, range: Range<u64>) -> Pieces {
        Pieces {
            rest: range,
            is_encrypted: false,
            holds_little: false,
            longest: Arc::clone(&self.longest),
            damaged: u64::MAX,
        }
    }

    fn begin(&self, mut source: Pieces) -> Download<Pieces> {
        let rest = source.rest();
        let held = self
            .ahead
            .begin([10, 0, 0, 1].into(), &mut source, rest.end - rest.start);
        let first = source.take();
        Download::new(&self.engine, source, first, held)
    }

    fn taken(&self) -> u64 {
        let all = self.ahead.ticket([10, 0, 0, 1].into());
        let mut taken = 0;
        while all.take(PIECE_BYTES as u64).is_ok() {
            taken += PIECE_BYTES as u64;
        }
        AHEAD_BYTES - taken
    }
}

/// Memory for one download of one sender.
const ONE: u64 = AHEAD_BYTES.div_ceil(3) * 4;

async fn next<S: Source>(download: &mut Download<S>) -> Option<io::Result<Bytes>> {
    let frame = std::future::poll_fn(|context| Pin::new(&mut *download).poll_frame(context)).await;
    frame.map(|frame| frame.map(|frame| frame.into_data().unwrap()))
}

async fn rest(mut download: Download<Pieces>) -> Vec<u8> {
    let mut all = Vec::new();
    while !download.is_end_stream() {
        all.extend_from_slice(&next(&mut download).await.unwrap().unwrap());
    }
    all
}

fn expected(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

#[tokio::test]
async fn bodies_are_whole_with_memory_and_without() {
    for (bytes, longest) in [(ONE, PIECE_BYTES), (0, 1000)] {
        for is_encrypted in [false, true] {
            for range in [0..LENGTH as u64, 100..LENGTH as u64 - 1, 300_000..300_001] {
                let server = Server::new(bytes);
                let source = Pieces {
                    is_encrypted,
                    ..server.source(range.clone())
                };
                let download = server.begin(source);
                assert_eq!(download.size_hint().exact(), Some(range.end - range.start));
                assert!(rest(download).await == expected(range));
                assert!(server.longest.load(Ordering::Relaxed) <= longest);
            }
        }
    }
}

#[tokio::test]
async fn memory_goes_back_when_the_last_piece_was_sent() {
    let server = Server::new(ONE);
    let mut download = server.begin(server.source(0..LENGTH as u64));
    assert_eq!(server.taken(), AHEAD_BYTES / PIECE_BYTES as u64 * PIECE_BYTES as u64);
    let sending = next(&mut download).await.unwrap().unwrap();
    drop(download);
    assert!(server.taken() > 0, "the connection has it still");
    drop(sending);
    assert_eq!(server.taken(), 0);
}

/// Regression: 700 clients that read nothing held all prefetched pieces for a minute each.
#[tokio::test]
async fn a_stalled_download_loses_its_memory_to_others() {
    for pieces in 1..4 {
        let server = Server::new(ONE);
        let mut stalled = server.begin(server.source(0..LENGTH as u64));
        let mut begun = Vec::new();
        for _ in 0..pieces {
            begun.extend_from_slice(&next(&mut stalled).await.unwrap().unwrap());
        }
        // Further reads come from the device.
        while stalled
            .reading
            .lock()
            .read
            .as_ref()
            .is_some_and(|read| !read.is_finished())
        {
            tokio::task::yield_now().await;
        }
        let mut other = server.begin(server.source(0..LENGTH as u64));
        next(&mut other).await.unwrap().unwrap();
        assert!(!other.reading.lock().held.take(u64::MAX), "no download has stalled");
        let long_ago = Instant::now().checked_sub(STALL + LOOK_INTERVAL).unwrap();
        stalled.reading.lock().asked = long_ago;
        server.ahead.looked_at(long_ago);
        // The piece that may be in flight still belongs to the stalled one.
        assert!(other.reading.lock().held.take(4 * PIECE_BYTES as u64));
        assert!(stalled.reading.lock().at_hand.is_empty());
        begun.extend(rest(stalled).await);
        assert!(begun == expected(0..LENGTH as u64), "{pieces}");
        drop(other);
        assert_eq!(server.taken(), 0);
    }
}

#[tokio::test]
async fn several_ranges_below_their_heads() {
    for bytes in [ONE, 0] {
        let server = Server::new(bytes);
        let ranges = [10..20, 200_000..600_000, 5..6];
        let heads = ["a", "bc", ""].map(|head| Bytes::from_static(head.as_bytes()));
        let end = Bytes::from_static(b"end");
        let mut source = server.source(ranges[0].clone());
        let held = server.ahead.begin([10, 0, 0, 1].into(), &mut source, u64::MAX);
        let first = source.take();
        let all = heads.into_iter().zip(ranges.clone()).collect();
        let length = 3 + 10 + 400_000 + 1 + 3;
        let download = Download::new(&server.engine, source, first, held).with_others(all, end, length);
        let [a, b, c] = ranges.map(expected);
        assert!(rest(download).await == [b"a".to_vec(), a, b"bc".to_vec(), b, c, b"end".to_vec()].concat());
    }
}

#[tokio::test]
async fn damage_ends_a_body_behind_what_came_before() {
    for bytes in [ONE, 0] {
        let server = Server::new(bytes);
        let mut download = server.begin(Pieces {
            damaged: 2 * PIECE_BYTES as u64,
            ..server.source(0..LENGTH as u64)
        });
        let mut read = 0;
        let error = loop {
            match next(&mut download).await.unwrap() {
                Ok(piece) => read += piece.len(),
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.kind()), (2 * PIECE_BYTES, io::ErrorKind::InvalidData));
        assert!(!download.is_end_stream());
    }
}
