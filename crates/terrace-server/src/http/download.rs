//! The body of an answer that is read from the store, for the page and for S3.
//!
//! The connection requests a piece when it has room. Pieces in RAM are handed out as they are; the
//! rest is read in long reads, one engine call each, which begin while the previous pieces are
//! being sent. If an object cannot be read to its end, the client gets an error and not a short
//! answer that looks complete.
//!
//! Without memory ([`super::read_ahead`]) nothing is prefetched, and the connection gets copies of
//! short pieces, one at a time.

use super::read_ahead::{Held, Holder, PIECES_LOW, STALL};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    io,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Instant,
};
use terrace::Store;
use terrace_objects::{
    engine::Engine,
    read::{Opened, PIECES_PER_READ},
};
use tokio::task::JoinHandle;

/// The source of a download: one range of an object after the other.
pub trait Source: Send + 'static {
    /// Length of the object.
    fn length(&self) -> u64;

    fn rest(&self) -> Range<u64>;

    /// Reads this range next. Prefetched pieces are dropped.
    ///
    /// # Errors
    /// Errors of the store.
    fn seek(&mut self, range: Range<u64>) -> io::Result<()>;

    /// Whether to hold only a short piece in RAM at a time.
    fn hold_little(&mut self, little: bool);

    /// Whether pieces that RAM has must be decrypted.
    fn is_encrypted(&self) -> bool;

    /// The next piece, if RAM has it.
    fn piece_in_ram(&mut self) -> Option<Bytes>;

    /// The next piece, from the device with some that come after it; never empty. May block.
    ///
    /// # Errors
    /// Errors of the store.
    fn next_piece(&mut self, store: &Store) -> io::Result<Bytes>;
}

impl Source for Opened {
    fn length(&self) -> u64 {
        self.facts.length
    }

    fn rest(&self) -> Range<u64> {
        self.rest()
    }

    fn seek(&mut self, range: Range<u64>) -> io::Result<()> {
        self.seek(range).map_err(io::Error::other)
    }

    fn hold_little(&mut self, little: bool) {
        self.hold_little(little);
    }

    fn is_encrypted(&self) -> bool {
        self.facts.encryption.is_some()
    }

    fn piece_in_ram(&mut self) -> Option<Bytes> {
        self.piece_in_ram()
    }

    fn next_piece(&mut self, store: &Store) -> io::Result<Bytes> {
        self.next_piece(store).map_err(io::Error::other)
    }
}

/// The state of a body.
struct Reading<S> {
    engine: Engine,
    /// `None` while it is read on a blocking thread, and at the end.
    source: Option<S>,
    read: Option<JoinHandle<io::Result<(S, Bytes)>>>,
    /// Whether the device was needed.
    was_read: bool,
    /// Bytes before the next piece.
    text: Option<Bytes>,
    at_hand: VecDeque<Bytes>,
    /// The next ranges, with a head each, and the end of the body.
    ranges: VecDeque<(Bytes, Range<u64>)>,
    end: Option<Bytes>,
    held: Held,
    /// Time of the connection's last request.
    asked: Instant,
    /// The error that ends it, returned after the bytes before it.
    failed: Option<io::Error>,
}

/// A body of known length that is read as it is sent.
pub struct Download<S> {
    reading: Arc<Mutex<Reading<S>>>,
    left: u64,
    has_entered: bool,
}

impl<S: Source> Download<S> {
    /// A body for the range of `source`, of which `first` has been read.
    pub fn new(engine: &Engine, source: S, first: Bytes, held: Held) -> Self {
        let rest = source.rest();
        let left = first.len() as u64 + (rest.end - rest.start);
        let reading = Reading {
            engine: engine.clone(),
            source: Some(source),
            read: None,
            was_read: false,
            text: None,
            at_hand: VecDeque::from([first]),
            ranges: VecDeque::new(),
            end: None,
            held,
            asked: Instant::now(),
            failed: None,
        };
        Self {
            reading: Arc::new(Mutex::new(reading)),
            left,
            has_entered: false,
        }
    }

    /// Adds further ranges with a head each, and an end; the body has this many bytes in all.
    pub fn with_others(self, ranges: Vec<(Bytes, Range<u64>)>, end: Bytes, bytes: u64) -> Self {
        let mut ranges = VecDeque::from(ranges);
        let mut reading = self.reading.lock();
        reading.text = ranges.pop_front().map(|(head, _)| head);
        reading.ranges = ranges;
        reading.end = Some(end);
        drop(reading);
        Self { left: bytes, ..self }
    }
}

impl<S: Source> Reading<S> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.asked = Instant::now();
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let error = match ready!(self.poll_next(context)) {
            Ok(piece) => return Poll::Ready(piece.map(Ok)),
            Err(error) => error,
        };
        // After an error hyper drops unsent bytes, including the answer's head. It sends them while
        // the body returns nothing.
        self.failed = Some(error);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            if let Some(text) = self.text.take() {
                return Poll::Ready(Ok(Some(text)));
            }
            self.read_on();
            if let Some(piece) = self.at_hand.pop_front() {
                return Poll::Ready(Ok(Some(self.held.hold(piece))));
            }
            if let Some(read) = &mut self.read {
                let done = ready!(Pin::new(read).poll(context));
                self.read = None;
                self.take_read(done)?;
                continue;
            }
            match (self.ranges.pop_front(), &mut self.source) {
                (Some((head, range)), Some(source)) => {
                    source.seek(range)?;
                    self.text = Some(head);
                }
                // There is a source as long as there are ranges.
                _ => return Poll::Ready(Ok(self.end.take())),
            }
        }
    }

    /// Takes the next pieces from RAM. Those that RAM does not have are read while the previous
    /// ones are being sent.
    fn read_on(&mut self) {
        let Some(source) = &mut self.source else { return };
        let rest = source.rest();
        if rest.is_empty() || self.at_hand.len() > PIECES_LOW {
            return;
        }
        // Each range may have its own pieces.
        let bytes = self.end.as_ref().map_or(rest.end - rest.start, |_| u64::MAX);
        let reads_ahead = self.held.take(bytes);
        source.hold_little(!reads_ahead);
        let (most, low) = match (reads_ahead, source.is_encrypted()) {
            (false, _) => (1, 0),
            // Nothing further is decrypted before the client has received the present pieces.
            (true, true) if !self.was_read => (1, 0),
            (true, true) => (PIECES_LOW + 1, PIECES_LOW),
            (true, false) => (PIECES_PER_READ, PIECES_LOW),
        };
        while self.at_hand.len() < most
            && let Some(piece) = source.piece_in_ram()
        {
            self.at_hand.push_back(piece);
        }
        if self.at_hand.len() <= low && !source.rest().is_empty() {
            self.begin_read();
        }
    }

    fn begin_read(&mut self) {
        let Some(mut source) = self.source.take() else { return };
        let engine = self.engine.clone();
        self.was_read = true;
        self.read = Some(tokio::spawn(async move {
            let read = engine.run(move |store| {
                let piece = source.next_piece(store)?;
                Ok((source, piece))
            });
            read.await.unwrap_or_else(|_| Err(io::ErrorKind::ResourceBusy.into()))
        }));
    }

    fn take_read(&mut self, done: Result<io::Result<(S, Bytes)>, tokio::task::JoinError>) -> io::Result<()> {
        let (source, piece) = done.map_err(io::Error::other)??;
        self.at_hand.push_back(piece);
        self.source = Some(source);
        Ok(())
    }

    /// Drops prefetched pieces.
    fn drop_ahead(&mut self) -> io::Result<()> {
        let ahead: usize = self.at_hand.drain(..).map(|piece| piece.len()).sum();
        let Some(source) = &mut self.source else { return Ok(()) };
        let rest = source.rest();
        source.seek(rest.start - ahead as u64..rest.end)
    }
}

impl<S: Source> Holder for Mutex<Reading<S>> {
    fn give_up(&self) -> bool {
        // If the lock is taken, the download is active.
        let Some(mut reading) = self.try_lock() else {
            return false;
        };
        let reading = &mut *reading;
        if reading.asked.elapsed() < STALL {
            return false;
        }
        if let Some(read) = &mut reading.read {
            match Pin::new(read).poll(&mut Context::from_waker(Waker::noop())) {
                // The device is slow, and not the client.
                Poll::Pending => return false,
                Poll::Ready(done) => {
                    reading.read = None;
                    reading.failed = reading.take_read(done).err();
                }
            }
        }
        if !reading.held.give_back() {
            return false;
        }
        if let Err(error) = reading.drop_ahead() {
            reading.failed = Some(error);
        }
        true
    }
}

impl<S: Source> Body for Download<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut reading = self.reading.lock();
        let polled = reading.poll_piece(context);
        let ahead = reading.held.pool().filter(|_| !self.has_entered).cloned();
        drop(reading);
        if let Some(ahead) = ahead {
            let holder: Arc<dyn Holder> = Arc::<Mutex<Reading<S>>>::clone(&self.reading);
            ahead.enter(Arc::downgrade(&holder));
            self.has_entered = true;
        }
        let Some(piece) = ready!(polled) else {
            return Poll::Ready(None);
        };
        if let Ok(piece) = &piece {
            self.left = self.left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests;
