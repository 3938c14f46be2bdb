//! Objects on their way to a client.
//!
//! What RAM has of a body is sent as it is. The rest is read in long reads, one engine call each,
//! while what was read before is sent in pieces through a short channel that the connection drains;
//! a client that goes away or takes nothing for a while closes it, and with it goes what was
//! pinned. If there is damage half-way the connection is cut, so that nobody takes half an object
//! for a whole one.

pub use terrace_objects::read::*;

use super::{Gateway, byteranges::Byteranges, errors::Told as _};
use crate::http::{CLIENT_TIME_MAX, body::PieceBody};
use bytes::Bytes;
use s3s::{Body, S3Result, dto::StreamingBlob};
use std::{
    collections::VecDeque,
    io,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{sync::mpsc, task::JoinHandle};

/// Pieces that wait between the engine and the client.
const PIECES_AHEAD: usize = 1;
/// Most pieces of a body that is in RAM and is handed to the connection at once.
const PIECES_AT_ONCE: usize = 2 * PIECES_AT_HAND + 1;

/// A body for what is left of `opened`, of which `first` has been read already.
pub fn stream(gateway: &Arc<Gateway>, mut opened: Opened, first: Bytes) -> StreamingBlob {
    let bytes = opened.left() + first.len() as u64;
    let mut at_hand = VecDeque::new();
    // What must be decrypted is not waited for with the first piece in hand.
    if opened.facts.encryption.is_some() && opened.left() > 0 {
        return StreamingBlob::from(Body::http_body(Decrypted {
            gateway: Arc::clone(gateway),
            first: Some(first),
            from: Decrypting::Ram(Box::new(opened)),
            left: bytes,
        }));
    }
    opened.take_from_ram(&mut at_hand, PIECES_AT_ONCE - 1);
    if opened.left() == 0 {
        if at_hand.is_empty() {
            return StreamingBlob::from(Body::from(first));
        }
        at_hand.push_front(first);
        return StreamingBlob::from(Body::http_body(PieceBody::ready(at_hand)));
    }
    StreamingBlob::from(Body::http_body(fed(gateway, opened, at_hand, first, bytes)))
}

/// A body of so many bytes that a task of its own feeds.
fn fed(gateway: &Arc<Gateway>, opened: Opened, at_hand: VecDeque<Bytes>, first: Bytes, bytes: u64) -> PieceBody {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { feed(&gateway, opened, at_hand, &sender).await });
    PieceBody::new(first, pieces, bytes)
}

/// Where the rest of a body comes from that must be decrypted.
enum Decrypting {
    /// RAM has what comes next, as far as is known.
    Ram(Box<Opened>),
    /// Some of it had to be read.
    Task(PieceBody),
    /// It was taken, or is.
    Nothing,
}

/// A body that is decrypted where the connection asks for it, for as long as RAM has it: while one
/// piece is, the client reads those before. Handing each piece from a task to the connection's cost
/// as much as a fourth of decrypting it.
struct Decrypted {
    gateway: Arc<Gateway>,
    first: Option<Bytes>,
    from: Decrypting,
    left: u64,
}

impl http_body::Body for Decrypted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<http_body::Frame<Bytes>>>> {
        let mut piece = self.first.take();
        if piece.is_none()
            && let Decrypting::Ram(opened) = &mut self.from
        {
            piece = opened.piece_in_ram();
        }
        if piece.is_none()
            && matches!(self.from, Decrypting::Ram(_))
            && let Decrypting::Ram(opened) = std::mem::replace(&mut self.from, Decrypting::Nothing)
            && opened.left() > 0
        {
            let left = opened.left();
            let rest = fed(&self.gateway, *opened, VecDeque::new(), Bytes::new(), left);
            self.from = Decrypting::Task(rest);
        }
        match (piece, &mut self.from) {
            (Some(piece), _) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
            }
            (None, Decrypting::Task(rest)) => {
                let next = Pin::new(rest).poll_frame(context);
                if let Poll::Ready(Some(Ok(frame))) = &next {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    self.left = self.left.saturating_sub(bytes as u64);
                }
                next
            }
            (None, Decrypting::Ram(_) | Decrypting::Nothing) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.left)
    }
}

/// A body of several ranges of `opened`, which is at the first of them, with `first` read already.
pub fn stream_several(gateway: &Arc<Gateway>, opened: Opened, first: Bytes, several: Byteranges) -> StreamingBlob {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let bytes = several.bytes();
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { feed_several(&gateway, opened, first, several, &sender).await });
    StreamingBlob::from(Body::http_body(PieceBody::new(Bytes::new(), pieces, bytes)))
}

type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// Sends a piece, unless nobody takes it. Whether it was taken.
async fn send(sender: &Pieces, piece: io::Result<Bytes>) -> bool {
    let sent = tokio::time::timeout(CLIENT_TIME_MAX, sender.send(piece)).await;
    matches!(sent, Ok(Ok(())))
}

/// Sends what is at hand and the rest of the range. What RAM does not have is read while what was
/// read before is on its way. `None` if it could not be read, or nobody takes it.
async fn feed(gateway: &Arc<Gateway>, opened: Opened, mut at_hand: VecDeque<Bytes>, sender: &Pieces) -> Option<Opened> {
    let mut opened = Some(opened);
    let mut reading = None;
    loop {
        if let Some(mut now) = opened.take() {
            now.take_from_ram(&mut at_hand, PIECES_AT_HAND);
            if at_hand.len() <= PIECES_LOW && now.left() > 0 {
                reading = Some(begin_reading(gateway, now, None));
            } else {
                opened = Some(now);
            }
        }
        if let Some(piece) = at_hand.pop_front() {
            if !send(sender, Ok(piece)).await {
                return None;
            }
        } else if let Some(begun) = reading.take() {
            let (now, piece) = read_to_end(begun, sender).await?;
            at_hand.push_back(piece);
            opened = Some(now);
        } else {
            return opened;
        }
    }
}

async fn feed_several(
    gateway: &Arc<Gateway>,
    mut opened: Opened,
    mut first: Bytes,
    several: Byteranges,
    sender: &Pieces,
) -> Option<()> {
    let (ranges, end) = several.into_ranges();
    for (number, (head, range)) in ranges.into_iter().enumerate() {
        if number > 0 {
            let reading = begin_reading(gateway, opened, Some(range));
            (opened, first) = read_to_end(reading, sender).await?;
        }
        if !send(sender, Ok(head)).await {
            return None;
        }
        let at_hand = VecDeque::from([std::mem::take(&mut first)]);
        opened = feed(gateway, opened, at_hand, sender).await?;
    }
    send(sender, Ok(end)).await.then_some(())
}

type Reading = JoinHandle<S3Result<(Opened, Bytes)>>;

/// Begins to read the next piece, or the first of another range, and what is read with it.
fn begin_reading(gateway: &Arc<Gateway>, mut opened: Opened, range: Option<Range<u64>>) -> Reading {
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move {
        let read = gateway.run(move |_, store| {
            if let Some(range) = range {
                opened.seek(range).told()?;
            }
            let piece = opened.next_piece(store).told()?;
            Ok((opened, piece))
        });
        read.await
    })
}

/// Waits for what was begun. If it failed the client is cut off.
async fn read_to_end(reading: Reading, sender: &Pieces) -> Option<(Opened, Bytes)> {
    let read = reading.await.ok().and_then(Result::ok);
    if read.is_none() {
        send(sender, Err(io::Error::other("the object could not be read to its end"))).await;
    }
    read
}
