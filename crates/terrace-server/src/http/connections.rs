//! Limits on connections, in total and per sender.
//!
//! If all places are taken, the server closes the connection that has been idle for longest, of the
//! sender with most connections. A connection whose client has not received all of the last answer
//! is not idle: the answer is in memory until then, so its place must not be given to another. If
//! none is idle, the next connection waits in the operating system's queue. A connection of a
//! sender that has its share is answered with a refusal and closed immediately; if no setting chose
//! the share, an idle connection is closed first, as above. Refusals and waits are logged, at most
//! once a second.

use super::budget::{Exhausted, Pool, Ticket};
use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::{
    cmp::Reverse,
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::timeout};

/// Default number of connections.
pub const CONNECTIONS_DEFAULT: u32 = 1024;
/// Longest wait for a connection that was asked to close, before another one is chosen: a request
/// may have arrived on it at the same moment.
const ROOM_TIME_MAX: Duration = Duration::from_secs(1);
/// A body that has given this many bytes waits until a write was tried.
const GIVEN_BYTES: usize = 64 << 10;
/// hyper tries a write before it gathers more than this (`max_buf_size`).
pub const GATHERED_BYTES_MAX: usize = 128 << 10;
/// Shortest time between two log lines of the same kind.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub all: u32,
    /// Connections of one sender at a time. `None` leaves a quarter of all to others.
    pub of_one: Option<u32>,
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    pool: Arc<Pool>,
    held: Mutex<Held>,
    /// A connection ended, or became idle.
    changed: Notify,
    began: Instant,
    full: Mutex<Teller>,
    refused: Mutex<Teller>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    by_number: HashMap<u64, (Ticket, Arc<Activity>)>,
}

/// The state of a connection.
#[derive(Debug)]
struct Activity {
    /// Requests under way; with HTTP/1 it is one, or none.
    requests: AtomicU64,
    /// The last answer is complete, and a part of it is not yet with the operating system.
    is_sending: AtomicBool,
    /// The operating system accepts no bytes now.
    is_blocked: AtomicBool,
    /// The body of an answer waits for that.
    is_body_waiting: AtomicBool,
    /// Start of the idle time, in milliseconds since the listener began.
    idle_since_ms: AtomicU64,
    /// It was asked to close.
    is_leaving: AtomicBool,
    leave: Notify,
}

impl Activity {
    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && !self.is_sending.load(Ordering::Acquire)
    }
}

/// A connection's place, which is freed when it is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    number: u64,
    activity: Arc<Activity>,
}

impl Connections {
    /// A listener without connections.
    pub fn new(limits: Limits) -> Arc<Self> {
        let share = limits.of_one.unwrap_or(limits.all - limits.all / 4);
        Arc::new(Self {
            limits,
            pool: Pool::new(limits.all.into(), share.into()),
            held: Mutex::default(),
            changed: Notify::new(),
            began: Instant::now(),
            full: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Waits for a place for a connection from `peer`. `None` if its sender has its maximum.
    pub async fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let ticket = self.pool.ticket(peer);
        let sender = ticket.sender();
        loop {
            match ticket.take(1) {
                Ok(()) => return Some(self.place(ticket)),
                Err(Exhausted::Share) if self.limits.of_one.is_none() && self.make_room(Some(sender)) => {
                    let _ = timeout(ROOM_TIME_MAX, self.changed.notified()).await;
                }
                Err(Exhausted::Share) => {
                    if let Some(times) = self.refused.lock().tell(Instant::now()) {
                        tracing::warn!(%sender, times, "refused a connection of a sender that has as many as it may");
                    }
                    return None;
                }
                Err(Exhausted::All) if self.make_room(None) => {
                    let _ = timeout(ROOM_TIME_MAX, self.changed.notified()).await;
                }
                Err(Exhausted::All) => {
                    if let Some(times) = self.full.lock().tell(Instant::now()) {
                        let connections = self.limits.all;
                        tracing::warn!(connections, times, "all connections are busy; more wait until one ends");
                    }
                    self.changed.notified().await;
                }
            }
        }
    }

    fn place(self: &Arc<Self>, ticket: Ticket) -> Place {
        let activity = Arc::new(Activity {
            requests: AtomicU64::new(0),
            is_sending: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_body_waiting: AtomicBool::new(false),
            idle_since_ms: AtomicU64::new(self.now_ms()),
            is_leaving: AtomicBool::new(false),
            leave: Notify::new(),
        });
        let mut held = self.held.lock();
        let number = held.next;
        held.next += 1;
        held.by_number.insert(number, (ticket, Arc::clone(&activity)));
        Place {
            connections: Arc::clone(self),
            number,
            activity,
        }
    }

    /// Asks the connection to close that has been idle for longest, of `sender` or of the sender
    /// with most. Its place is free when it has closed: a request that arrived meanwhile is served,
    /// and takes memory like any other. False if none is idle.
    fn make_room(&self, sender: Option<IpAddr>) -> bool {
        let held = self.held.lock();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (ticket, _) in held.by_number.values() {
            *counts.entry(ticket.sender()).or_default() += 1;
        }
        let idle = held.by_number.iter().filter(|(_, (ticket, activity))| {
            activity.is_idle() && sender.is_none_or(|sender| ticket.sender() == sender)
        });
        let chosen = idle.max_by_key(|(number, (ticket, activity))| {
            let is_leaving = activity.is_leaving.load(Ordering::Relaxed);
            let since_ms = activity.idle_since_ms.load(Ordering::Relaxed);
            let count = counts.get(&ticket.sender()).copied();
            // A connection that is about to close counts before another one is asked.
            (is_leaving, count, Reverse((since_ms, **number)))
        });
        let Some((_, (_, activity))) = chosen else {
            return false;
        };
        if !activity.is_leaving.swap(true, Ordering::Relaxed) {
            activity.leave.notify_one();
        }
        true
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Place {
    /// Resolves when the connection is to end, since it is idle and its place is needed.
    pub async fn wanted_by_others(&self) {
        self.activity.leave.notified().await;
    }

    /// Whether it is not idle.
    pub fn is_busy(&self) -> bool {
        !self.activity.is_idle()
    }

    /// Begins a request on the connection. It is in progress while the result lives, and then until
    /// its answer is [sent](Sending::all_sent).
    pub fn begin(&self) -> UnderWay {
        self.activity.requests.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(&self.activity))
    }

    /// The observer of the connection's writes.
    pub fn sending(&self) -> Sending {
        Sending {
            connections: Arc::clone(&self.connections),
            activity: Arc::clone(&self.activity),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.held.lock().by_number.remove(&self.number);
        self.connections.changed.notify_one();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        // hyper has the end of the answer, and hands it to the operating system next.
        self.0.is_sending.store(true, Ordering::Release);
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Observes which bytes of a connection's answers are sent.
#[derive(Debug)]
pub struct Sending {
    connections: Arc<Connections>,
    activity: Arc<Activity>,
}

impl Sending {
    /// The operating system has all bytes up to now.
    pub fn all_sent(&self) {
        let activity = &self.activity;
        if !activity.is_sending.load(Ordering::Acquire) {
            return;
        }
        let now_ms = self.connections.now_ms();
        activity.idle_since_ms.store(now_ms, Ordering::Relaxed);
        activity.is_sending.store(false, Ordering::Release);
        self.connections.changed.notify_one();
    }

    /// The operating system accepted bytes, or none. Returns whether the body of an answer waited
    /// for that, so that the connection must be polled.
    pub fn tried(&self, was_taken: bool) -> bool {
        let activity = &self.activity;
        if activity.is_blocked.swap(!was_taken, Ordering::AcqRel) && was_taken {
            return activity.is_body_waiting.swap(false, Ordering::AcqRel);
        }
        false
    }
}

/// The body of an answer; its request is finished at its end.
///
/// hyper takes frames of a body until it has `max_buf_size` bytes, even while the operating system
/// accepts none. A body of short frames gives a few at a time, and none while writes fail, so that
/// clients that do not read hold little.
#[derive(Debug)]
pub struct Answering<B> {
    body: B,
    under_way: UnderWay,
    /// Bytes since the last attempt to write.
    given: usize,
    /// Its frames are so long that hyper takes at most two, for which it has memory.
    is_long: bool,
}

impl<B> Answering<B> {
    /// `under_way` until `body` is sent, or dropped.
    pub const fn new(body: B, under_way: UnderWay) -> Self {
        Self {
            body,
            under_way,
            given: 0,
            is_long: false,
        }
    }
}

impl<B: Body<Data: Buf> + Unpin> Body for Answering<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let activity = &self.under_way.0;
        if !self.is_long && activity.is_blocked.load(Ordering::Acquire) {
            activity.is_body_waiting.store(true, Ordering::Release);
            return Poll::Pending;
        }
        if !self.is_long && self.given >= GIVEN_BYTES {
            // While the body returns nothing, hyper sends its buffered data.
            self.given = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let bytes = frame.data_ref().map_or(0, Buf::remaining);
            self.is_long = bytes >= GATHERED_BYTES_MAX;
            self.given += bytes;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Limits the rate of a log line.
#[derive(Debug, Default)]
struct Teller {
    told: Option<Instant>,
    times: u64,
}

impl Teller {
    /// The number of events since the last line, if one is due.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self
            .told
            .is_some_and(|told| now.saturating_duration_since(told) < TELL_INTERVAL)
        {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::poll_fn;

    fn peer(number: u8) -> IpAddr {
        IpAddr::V4([10, 0, 0, number].into())
    }

    /// Whether a connection was asked to close.
    async fn is_told(place: &Place) -> bool {
        let mut told = std::pin::pin!(place.wanted_by_others());
        poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_ready())).await
    }

    async fn waits(connections: &Arc<Connections>, number: u8) -> bool {
        let mut admitted = std::pin::pin!(connections.admit(peer(number)));
        poll_fn(|context| Poll::Ready(admitted.as_mut().poll(context).is_pending())).await
    }

    /// A body of frames of this length.
    struct Endless(usize);

    impl Body for Endless {
        type Data = bytes::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<bytes::Bytes>, Self::Error>>> {
            Poll::Ready(Some(Ok(Frame::data(vec![0; self.0].into()))))
        }
    }

    /// The number of frames before it waits.
    async fn given(body: &mut Answering<Endless>) -> usize {
        let mut frames = 0;
        while poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context).is_ready())).await {
            frames += 1;
            if frames == 100 {
                break;
            }
        }
        frames
    }

    /// Regression: hyper gathered 128 KiB and a piece for each client that did not read.
    #[tokio::test]
    async fn a_body_gives_nothing_while_its_connection_cannot_send() {
        let connections = Connections::new(Limits { all: 1, of_one: None });
        let place = connections.admit(peer(1)).await.unwrap();
        let sending = place.sending();
        let mut body = Answering::new(Endless(32 << 10), place.begin());
        assert_eq!(given(&mut body).await, 2, "then they are sent");
        assert_eq!(given(&mut body).await, 2, "the operating system took them");
        assert!(!sending.tried(false) && !sending.tried(false));
        assert_eq!(given(&mut body).await, 0);
        assert!(sending.tried(true), "the body waits for that");
        assert!(!sending.tried(true) && !sending.tried(false) && !sending.tried(true));
        assert_eq!(given(&mut body).await, 2);
        // hyper takes at most two of such frames, and they are the download's memory.
        let mut body = Answering::new(Endless(GATHERED_BYTES_MAX), place.begin());
        assert_eq!(given(&mut body).await, 100);
        sending.tried(false);
        assert_eq!(given(&mut body).await, 100);
    }

    #[tokio::test]
    async fn each_sender_has_its_places() {
        let connections = Connections::new(Limits {
            all: 5,
            of_one: Some(2),
        });
        let mut held = Vec::new();
        for (number, expected) in [(1, true), (1, true), (1, false), (2, true)] {
            let place = connections.admit(peer(number)).await;
            assert_eq!(place.is_some(), expected, "{number}");
            held.extend(place);
        }
        assert_eq!(
            connections.held.lock().by_number.len(),
            3,
            "a refused connection takes no place"
        );
        held.clear();
        assert!(connections.held.lock().by_number.is_empty());
    }

    #[tokio::test]
    async fn one_connection_too_many_waits_while_all_are_busy() {
        let connections = Connections::new(Limits {
            all: 1,
            of_one: Some(1),
        });
        let first = connections.admit(peer(1)).await.unwrap();
        let under_way = first.begin();
        assert!(waits(&connections, 2).await);
        drop(under_way);
        // Not asked to close. Regression: of 256 clients that requested pages of listings from a
        // server with 32 places, some hundred had answers in memory whose places had been given
        // away.
        assert!(waits(&connections, 2).await, "the client has not taken the answer");
        first.sending().all_sent();
        assert!(waits(&connections, 2).await, "until it has ended");
        assert!(is_told(&first).await, "it is idle now");
        // A request that arrived on it meanwhile is answered, and counts.
        let under_way = first.begin();
        assert!(waits(&connections, 2).await && first.is_busy());
        drop((under_way, first));
        let second = connections.admit(peer(2)).await.unwrap();
        let under_way = second.begin();
        assert!(waits(&connections, 3).await);
        drop((under_way, second));
        connections.admit(peer(3)).await.unwrap();
    }

    /// Regression: 1,024 idle connections kept all other clients out indefinitely.
    #[tokio::test]
    async fn idle_connections_give_way() {
        let connections = Connections::new(Limits { all: 8, of_one: None });
        let mut many = Vec::new();
        for _ in 0..6 {
            many.push(connections.admit(peer(1)).await.unwrap());
        }
        let busy: Vec<_> = many[..2].iter().map(Place::begin).collect();
        let others = [
            connections.admit(peer(2)).await.unwrap(),
            connections.admit(peer(3)).await.unwrap(),
        ];
        assert!(waits(&connections, 4).await && waits(&connections, 5).await);
        assert!(
            is_told(&many[2]).await,
            "the oldest idle one of the sender that has most"
        );
        assert!(!is_told(&many[3]).await, "one is enough while it has not ended");
        drop(many.remove(2));
        let more = connections.admit(peer(4)).await.unwrap();
        assert!(waits(&connections, 1).await && is_told(&many[2]).await);
        drop(many.remove(2));
        let again = connections.admit(peer(1)).await;
        assert!(again.is_some(), "a sender that has many goes on at the cost of its own");
        for place in others.iter().chain([&more]).chain(&many[..2]) {
            assert!(!is_told(place).await);
        }
        drop(busy);
    }

    #[test]
    fn lines_are_few() {
        let mut teller = Teller::default();
        let start = Instant::now();
        assert_eq!(teller.tell(start), Some(1));
        assert_eq!((teller.tell(start), teller.tell(start)), (None, None));
        assert_eq!(teller.tell(start + TELL_INTERVAL), Some(3));
    }
}
