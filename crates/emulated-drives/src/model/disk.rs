//! A disk: seeks, rotation, a cache with read-ahead and write-back, and a queue served in the order
//! of shortest positioning.
//!
//! - Positioning is a seek plus the wait for the first sector; the platter's angle follows from the
//!   time.
//! - After a read the head continues into the cache until another request needs it, so a sequential
//!   reader gets the media rate. The buffer hides the time to start again after it was full.
//! - A write is answered from the cache. The drive writes back when the cache is filled to a share,
//!   when it has been idle for some time, and for a flush. Adjacent writes are written to the media
//!   together.
//! - A flush is a barrier, like ATA's FLUSH CACHE: later requests wait.
//!
//! Invariants: those of [`super`]. The media do one thing at a time. Dirty extents are never
//! adjacent.

use super::extents::{Dirty, Extent};
use super::geometry::Geometry;
use super::{Agenda, Event, Internals, Link, Model, Nanoseconds, Operation, Request, microseconds, transfer};
use crate::profile::DiskProfile;
use std::collections::VecDeque;

/// Longest piece written back at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Dirty extents on each side of the head considered for the shortest positioning.
const NEIGHBOURS: usize = 32;
/// A read older than this is served first, whatever its positioning time.
const STARVING: Nanoseconds = 1_000_000_000;
/// Windows of read data the cache is divided into.
const WINDOWS: u64 = 8;

/// A read-ahead.
#[derive(Debug, Clone, Copy)]
struct Stream {
    start: u64,
    /// Position of the head...
    front: u64,
    /// ...at this time...
    at: Nanoseconds,
    /// ...and where it stops.
    limit: u64,
}

/// The current work of the media.
#[derive(Debug)]
enum Work {
    Read(Request),
    WriteBack {
        piece: Extent,
    },
    /// Read-ahead for which a reader waits.
    Stream,
}

/// See the module.
#[derive(Debug)]
pub struct Disk {
    profile: DiskProfile,
    geometry: Geometry,
    bytes: u64,
    /// Time of the last event; nothing happens before it.
    now: Nanoseconds,
    head: u64,
    link: Link,
    last_arrival: Nanoseconds,
    /// Reads from the media, with their arrival times.
    reads: Vec<(Nanoseconds, Request)>,
    /// Writes for which the cache has no space.
    writes: VecDeque<Request>,
    /// A flush under way; later requests wait.
    flush: Option<u64>,
    behind_flush: VecDeque<Request>,
    windows: VecDeque<(u64, u64)>,
    stream: Option<Stream>,
    dirty: Dirty,
    work: Option<(Nanoseconds, Work)>,
    /// Whether the last work was a read.
    was_read: bool,
    agenda: Agenda,
    internals: Internals,
}

impl Disk {
    /// An idle disk with its head at the outer edge.
    pub fn new(profile: DiskProfile, bytes: u64) -> Self {
        Self {
            geometry: Geometry::new(&profile, bytes),
            profile,
            bytes,
            now: 0,
            head: 0,
            link: Link::default(),
            last_arrival: 0,
            reads: Vec::new(),
            writes: VecDeque::new(),
            flush: None,
            behind_flush: VecDeque::new(),
            windows: VecDeque::new(),
            stream: None,
            dirty: Dirty::default(),
            work: None,
            was_read: false,
            agenda: Agenda::default(),
            internals: Internals::default(),
        }
    }

    fn command(&self) -> Nanoseconds {
        microseconds(self.profile.command_us)
    }

    /// End of a transfer between cache and host that may begin at `at`.
    fn link(&mut self, at: Nanoseconds, bytes: u64) -> Nanoseconds {
        let duration = self.command() + transfer(bytes, self.profile.link_mb_per_s);
        self.link.book(at, at, duration)
    }

    fn arrive(&mut self, at: Nanoseconds, request: Request) {
        if self.flush.is_some() {
            self.behind_flush.push_back(request);
            return;
        }
        match request.operation {
            Operation::Read => self.arrive_read(at, request),
            Operation::Write => {
                self.writes.push_back(request);
                self.accept_writes(at);
            }
            Operation::Flush => self.flush = Some(request.id),
        }
        if self.work.is_none() {
            self.begin(at);
        }
    }

    fn arrive_read(&mut self, at: Nanoseconds, request: Request) {
        let (start, end) = (request.offset, request.end());
        let is_cached = self.windows.iter().any(|(from, to)| *from <= start && end <= *to);
        if is_cached || self.dirty.covers(start, end) {
            self.internals.cache_hits += 1;
            let done = self.link(at, request.bytes);
            self.agenda.complete(done, request.id);
            return;
        }
        match self.follow_stream(at, start, end) {
            Some(ready) => {
                self.internals.cache_hits += 1;
                let done = self.link(at, request.bytes).max(ready);
                self.agenda.complete(done, request.id);
            }
            None => self.reads.push((at, request)),
        }
    }

    /// If a read continues the read-ahead: the time when its data is there. The head stays until
    /// then.
    fn follow_stream(&mut self, at: Nanoseconds, start: u64, end: u64) -> Option<Nanoseconds> {
        let is_free = matches!(self.work, None | Some((_, Work::Stream)));
        let mut stream = self
            .stream
            .filter(|stream| stream.start <= start && start <= stream.limit && is_free)?;
        let rate = self.geometry.rate(start);
        let reached = stream.front + self.read_on(&stream, at);
        if reached == stream.limit {
            (stream.front, stream.at) = (reached, at.max(stream.at));
        }
        stream.limit = stream.limit.max(end + self.profile.read_ahead_bytes).min(self.bytes);
        let window = self.profile.read_cache_bytes / WINDOWS;
        stream.start = stream.start.max(end.saturating_sub(window));
        self.stream = Some(stream);
        let ready = stream.at + transfer(end.saturating_sub(stream.front), rate);
        if ready > at {
            let until = self.work.as_ref().map_or(ready, |(until, _)| ready.max(*until));
            self.work = Some((until, Work::Stream));
        }
        Some(ready)
    }

    /// Bytes read ahead from the stream's front at this time.
    fn read_on(&self, stream: &Stream, at: Nanoseconds) -> u64 {
        let rate = self.geometry.rate(stream.front);
        let bytes = (at.saturating_sub(stream.at) as f64 * rate / 1_000.0) as u64;
        bytes.min(stream.limit - stream.front)
    }

    /// The head leaves: what it read ahead stays in the cache.
    fn end_stream(&mut self, at: Nanoseconds) {
        if let Some(stream) = self.stream.take() {
            let end = stream.front + self.read_on(&stream, at);
            self.head = end;
            self.windows.push_back((stream.start, end));
            while self.windows.len() as u64 > WINDOWS {
                self.windows.pop_front();
            }
        }
    }

    /// Moves waiting writes to the cache while there is space.
    fn accept_writes(&mut self, at: Nanoseconds) {
        while let Some(request) = self.writes.front().copied() {
            let room = self.profile.write_cache_bytes.saturating_sub(self.dirty.bytes());
            if request.bytes > room && !self.dirty.is_empty() {
                return;
            }
            self.writes.pop_front();
            self.dirty.insert(request);
            if self.profile.write_cache_bytes > 0 {
                let done = self.link(at, request.bytes);
                self.agenda.complete(done, request.id);
            }
        }
    }

    /// Whether the cache should be written back now.
    fn wants_write_back(&self, at: Nanoseconds) -> bool {
        let filled = self.profile.write_cache_bytes as f64 * self.profile.write_back_share;
        let is_pressing = self.flush.is_some() || !self.writes.is_empty() || self.dirty.bytes() as f64 >= filled;
        let is_idle = self.reads.is_empty() && at >= self.idle_from();
        !self.dirty.is_empty() && (is_pressing || is_idle)
    }

    fn idle_from(&self) -> Nanoseconds {
        self.last_arrival + microseconds(self.profile.write_back_ms * 1_000.0)
    }

    /// Gives an idle head its next work.
    fn begin(&mut self, at: Nanoseconds) {
        if self.dirty.is_empty() && self.writes.is_empty() && self.reads.is_empty() {
            if let Some(id) = self.flush {
                self.agenda.complete(at + self.command(), id);
                self.end_flush(at);
            }
            return;
        }
        let read = self.best_read(at);
        let extent = if self.wants_write_back(at) {
            self.best_extent(at)
        } else {
            None
        };
        // Reads are awaited by the host; writes only if the cache is full or being flushed. Then
        // reads and writes alternate.
        let is_awaited = self.flush.is_some() || !self.writes.is_empty();
        match (read, extent) {
            (_, Some(start)) if read.is_none() || (is_awaited && self.was_read) => self.begin_write_back(at, start),
            (Some(index), _) => self.begin_read(at, index),
            (None, _) => {}
        }
    }

    fn begin_read(&mut self, at: Nanoseconds, index: usize) {
        let (arrival, request) = self.reads.remove(index);
        let begun = at.max(arrival + self.command());
        self.end_stream(begun);
        let positioned = begun + self.geometry.position(begun, self.head, request.offset, 0);
        let until = positioned + self.geometry.transfer(request.offset, request.bytes);
        self.was_read = true;
        self.occupy(at, until, Work::Read(request));
    }

    fn begin_write_back(&mut self, at: Nanoseconds, start: u64) {
        self.end_stream(at);
        let Some(piece) = self.dirty.take(start, PIECE_BYTES) else {
            return;
        };
        let positioned = at + self.geometry.position(at, self.head, piece.start, self.settle());
        let until = positioned + self.geometry.transfer(piece.start, piece.end - piece.start);
        self.was_read = false;
        self.occupy(at, until, Work::WriteBack { piece });
    }

    fn settle(&self) -> Nanoseconds {
        microseconds(self.profile.write_settle_ms * 1_000.0)
    }

    fn occupy(&mut self, from: Nanoseconds, until: Nanoseconds, work: Work) {
        self.internals.busy_nanoseconds += until - from;
        self.internals.positionings += 1;
        self.work = Some((until, work));
    }

    /// The queued read with the shortest positioning, or the oldest if it has waited too long.
    fn best_read(&self, at: Nanoseconds) -> Option<usize> {
        let (oldest, _) = self.reads.first()?;
        if at.saturating_sub(*oldest) > STARVING {
            return Some(0);
        }
        let seen = self.reads.iter().take(self.profile.queue).enumerate();
        let costs = seen.map(|(index, (_, read))| (self.geometry.position(at, self.head, read.offset, 0), index));
        costs.min().map(|(_, index)| index)
    }

    /// The dirty extent with the shortest positioning, among those near the head.
    fn best_extent(&self, at: Nanoseconds) -> Option<u64> {
        let near = self.dirty.near(self.head, NEIGHBOURS);
        let costs = near.map(|start| (self.geometry.position(at, self.head, start, self.settle()), start));
        costs.min().map(|(_, start)| start)
    }

    /// Handles the end of work on the media.
    fn end(&mut self, at: Nanoseconds, work: Work) {
        match work {
            Work::Read(request) => {
                self.head = request.end();
                self.agenda.complete(at, request.id);
                self.stream = Some(Stream {
                    start: request.offset,
                    front: request.end(),
                    at,
                    limit: (request.end() + self.profile.read_ahead_bytes).min(self.bytes),
                });
                self.reread(at);
            }
            Work::WriteBack { piece } => {
                self.head = piece.end;
                for id in piece.writes() {
                    self.agenda.settle(at, id);
                    if self.profile.write_cache_bytes == 0 {
                        self.agenda.complete(at, id);
                    }
                }
                self.accept_writes(at);
            }
            Work::Stream => {}
        }
        self.begin(at);
    }

    /// Queued reads in the new stream need no positioning.
    fn reread(&mut self, at: Nanoseconds) {
        let mut waiting = std::mem::take(&mut self.reads);
        waiting.sort_by_key(|(_, request)| request.offset);
        let front = self.stream.map_or(0, |stream| stream.front);
        for (arrival, request) in waiting {
            let is_next = self.stream.is_some_and(|stream| {
                (stream.start..=stream.front.max(front)).contains(&request.offset) || request.offset == stream.limit
            });
            if !is_next {
                self.reads.push((arrival, request));
                continue;
            }
            self.arrive_read(at, request);
        }
        self.reads.sort_by_key(|(arrival, request)| (*arrival, request.id));
    }

    fn end_flush(&mut self, at: Nanoseconds) {
        self.flush = None;
        let waiting = std::mem::take(&mut self.behind_flush);
        for request in waiting {
            self.arrive(at + self.command(), request);
        }
    }
}

impl Model for Disk {
    fn submit(&mut self, at: Nanoseconds, request: Request) {
        let at = at.max(self.now);
        self.last_arrival = self.last_arrival.max(at);
        self.arrive(at, request);
    }

    fn advance(&mut self, until: Nanoseconds, events: &mut Vec<Event>) {
        loop {
            let ends = self.work.as_ref().map(|(at, _)| *at).filter(|at| *at <= until);
            if let Some(at) = ends {
                if let Some((_, work)) = self.work.take() {
                    self.now = self.now.max(at);
                    self.end(at, work);
                }
                continue;
            }
            let idle = self.idle_from();
            if self.work.is_none() && !self.dirty.is_empty() && idle <= until {
                self.now = self.now.max(idle);
                self.begin(self.now);
                if self.work.is_some() {
                    continue;
                }
            }
            break;
        }
        self.agenda.drain(until, events);
    }

    fn next_event(&self) -> Option<Nanoseconds> {
        let work = self.work.as_ref().map(|(at, _)| *at);
        let idle = (work.is_none() && !self.dirty.is_empty()).then(|| self.idle_from());
        self.agenda.next().into_iter().chain(work).chain(idle).min()
    }

    fn power_cycle(&mut self, at: Nanoseconds) {
        let fresh = Self::new(self.profile.clone(), self.bytes);
        let (head, internals) = (self.head, self.internals);
        *self = Self {
            now: at,
            last_arrival: at,
            head,
            internals,
            ..fresh
        };
    }

    fn internals(&self) -> Internals {
        self.internals
    }
}
