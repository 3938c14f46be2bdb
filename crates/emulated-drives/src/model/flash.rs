//! A flash SSD: a link, a write buffer, a mapping table, parallel channels, and garbage collection.
//!
//! - A random read waits for processing, each channel it touches, the slowest chip, and the link. A
//!   sequential reader is served from prefetched pages.
//! - A write is answered from the buffer. Pages are programmed after some time, for a flush, and
//!   when the buffer fills; each goes to the channel that is free first. A write waits while the
//!   buffer is full.
//! - A channel with too few free erase blocks collects garbage before it programs: see
//!   [`super::mapping`].
//! - A flush waits until all buffered writes are programmed.
//!
//! Invariants: those of [`super`]. Times are decided on arrival, except for writes that stay in the
//! buffer.

use super::mapping::{Mapping, Moved};
use super::{Agenda, Event, Internals, Link, Model, Nanoseconds, Operation, Request, microseconds, transfer};
use crate::profile::FlashProfile;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Number of sequential readers that are detected.
const STREAMS: usize = 8;
/// Filled share of the buffer at which pages are programmed at once.
const FILLED: f64 = 0.5;

/// A sequential reader: its next position, the end of its prefetched pages, and when they are
/// ready.
#[derive(Debug, Clone, Default)]
struct Stream {
    next: u64,
    prefetched: VecDeque<(u64, Nanoseconds)>,
}

/// A write in the buffer.
#[derive(Debug, Clone, Copy)]
struct Buffered {
    request: Request,
    /// When it is programmed without other events.
    due: Nanoseconds,
}

/// See the module.
#[derive(Debug)]
pub struct Flash {
    profile: FlashProfile,
    bytes: u64,
    mapping: Mapping,
    channels: Vec<Nanoseconds>,
    link: Link,
    buffer: VecDeque<Buffered>,
    /// Bytes in the buffer: not programmed, or being programmed.
    buffered_bytes: u64,
    /// When bytes leave the buffer.
    leaving: BinaryHeap<Reverse<(Nanoseconds, u64)>>,
    streams: VecDeque<Stream>,
    agenda: Agenda,
    internals: Internals,
}

impl Flash {
    /// An idle drive, erased except for its aged share.
    pub fn new(profile: FlashProfile, bytes: u64, seed: u64) -> Self {
        Self {
            mapping: Mapping::new(&profile, bytes, seed),
            channels: vec![0; profile.channels],
            profile,
            bytes,
            link: Link::default(),
            buffer: VecDeque::new(),
            buffered_bytes: 0,
            leaving: BinaryHeap::new(),
            streams: VecDeque::new(),
            agenda: Agenda::default(),
            internals: Internals::default(),
        }
    }

    fn pages(&self, request: &Request) -> std::ops::Range<u64> {
        request.offset / self.profile.page_bytes..request.end().div_ceil(self.profile.page_bytes)
    }

    /// End of a transfer over the link that may begin at `ready`, for a request that arrived at
    /// `at`.
    fn link(&mut self, at: Nanoseconds, ready: Nanoseconds, bytes: u64) -> Nanoseconds {
        self.link.book(at, ready, transfer(bytes, self.profile.link_mb_per_s))
    }

    /// Reads pages into the chips' registers: when the first and the last is there.
    fn sense(&mut self, at: Nanoseconds, pages: std::ops::Range<u64>) -> (Nanoseconds, Nanoseconds) {
        let page_read = microseconds(self.profile.page_read_us);
        let (mut first, mut last) = (Nanoseconds::MAX, at);
        for page in pages {
            let channel = &mut self.channels[self.mapping.channel(page)];
            *channel = at.max(*channel) + page_read;
            first = first.min(*channel);
            last = last.max(*channel);
            self.internals.busy_nanoseconds += page_read;
        }
        (first.min(last), last)
    }

    fn read(&mut self, at: Nanoseconds, request: &Request) {
        let end = request.end();
        let position = self.streams.iter().position(|stream| stream.next == request.offset);
        let stream = position.and_then(|position| self.streams.remove(position));
        let ready = stream.as_ref().and_then(|stream| {
            let there = stream.prefetched.iter().find(|(until, _)| *until >= end);
            there.map(|(_, at)| *at)
        });
        let is_buffered = self
            .buffer
            .iter()
            .rev()
            .take(64)
            .any(|buffered| buffered.request.offset <= request.offset && end <= buffered.request.end());
        let done = if let Some(ready) = ready.or(is_buffered.then_some(at)) {
            self.internals.cache_hits += 1;
            let begun = at + microseconds(self.profile.hit_us);
            self.link(at, begun, request.bytes).max(ready)
        } else {
            let pages = self.pages(request);
            let mut touched: Vec<usize> = pages.clone().map(|page| self.mapping.channel(page)).collect();
            touched.sort_unstable();
            touched.dedup();
            let set_up = self.profile.read_command_us + self.profile.channel_us * touched.len() as f64;
            let (first, last) = self.sense(at + microseconds(set_up), pages);
            self.internals.positionings += 1;
            self.link(at, first, request.bytes).max(last)
        };
        self.agenda.complete(done, request.id);
        // A reader that continues where it ended is sequential; prefetching starts with its second
        // read.
        let mut stream = stream.unwrap_or_default();
        let is_sequential = position.is_some();
        stream.next = end;
        stream.prefetched.retain(|(until, _)| *until > end);
        if is_sequential {
            self.prefetch(at, &mut stream);
        }
        self.streams.push_back(stream);
        while self.streams.len() > STREAMS {
            self.streams.pop_front();
        }
    }

    /// Prefetches another piece for a reader when less than half is left.
    fn prefetch(&mut self, at: Nanoseconds, stream: &mut Stream) {
        let piece = (self.profile.read_ahead_bytes / 2).max(self.profile.page_bytes);
        loop {
            let from = stream.prefetched.back().map_or(stream.next, |(until, _)| *until);
            if from >= stream.next + piece || from >= self.bytes {
                return;
            }
            let until = (from + piece).min(self.bytes);
            let pages = from / self.profile.page_bytes..until.div_ceil(self.profile.page_bytes);
            let (_, ready) = self.sense(at, pages);
            stream.prefetched.push_back((until, ready));
        }
    }

    fn write(&mut self, at: Nanoseconds, request: &Request) {
        // A full buffer accepts the write when enough bytes have left it.
        let mut accepted = at;
        self.leave(at);
        while self.buffered_bytes + request.bytes > self.profile.write_buffer_bytes && self.buffered_bytes > 0 {
            if self.leaving.is_empty() {
                self.program_all(accepted);
            }
            let Some(Reverse((left, bytes))) = self.leaving.pop() else {
                break;
            };
            self.buffered_bytes -= bytes;
            accepted = accepted.max(left);
        }
        let begun = accepted + microseconds(self.profile.write_command_us);
        let done = self.link(at, begun, request.bytes);
        self.agenda.complete(done, request.id);
        self.buffered_bytes += request.bytes;
        let due = accepted + microseconds(self.profile.write_back_ms * 1_000.0);
        let request = *request;
        self.buffer.push_back(Buffered { request, due });
        for stream in &mut self.streams {
            stream
                .prefetched
                .retain(|(until, _)| request.end() <= stream.next || request.offset >= *until);
        }
        if self.buffered_bytes as f64 > self.profile.write_buffer_bytes as f64 * FILLED {
            self.program_all(accepted);
        }
    }

    fn leave(&mut self, at: Nanoseconds) {
        while let Some(Reverse((_, bytes))) = self.leaving.peek().copied().filter(|Reverse((left, _))| *left <= at) {
            self.leaving.pop();
            self.buffered_bytes -= bytes;
        }
    }

    fn program_all(&mut self, at: Nanoseconds) {
        while let Some(buffered) = self.buffer.pop_front() {
            self.program(at, &buffered.request);
        }
    }

    /// Programs a buffered write; returns when it is done.
    fn program(&mut self, at: Nanoseconds, request: &Request) {
        let (read, program) = (
            microseconds(self.profile.page_read_us),
            microseconds(self.profile.page_program_us),
        );
        let mut done = at;
        for page in self.pages(request) {
            let whole = request.offset <= page * self.profile.page_bytes
                && (page + 1) * self.profile.page_bytes <= request.end();
            let channel = self.mapping.pick(&self.channels);
            let Moved { pages, blocks } = self.mapping.write(page, channel);
            let erase = microseconds(self.profile.erase_ms * 1_000.0);
            // A write of part of a page must read the rest.
            let cost = program + if whole { 0 } else { read } + pages * (read + program) + blocks * erase;
            let free = &mut self.channels[channel];
            *free = at.max(*free) + cost;
            done = done.max(*free);
            self.internals.busy_nanoseconds += cost;
            self.internals.pages_moved += pages;
            self.internals.blocks_erased += blocks;
        }
        self.agenda.settle(done, request.id);
        self.leaving.push(Reverse((done, request.bytes)));
    }

    fn flush(&mut self, at: Nanoseconds, id: u64) {
        self.program_all(at);
        let programmed = self.leaving.iter().map(|Reverse((left, _))| *left).max().unwrap_or(at);
        self.agenda
            .complete(programmed.max(at) + microseconds(self.profile.flush_us), id);
    }
}

impl Model for Flash {
    fn submit(&mut self, at: Nanoseconds, request: Request) {
        match request.operation {
            Operation::Read => self.read(at, &request),
            Operation::Write => self.write(at, &request),
            Operation::Flush => self.flush(at, request.id),
        }
    }

    fn advance(&mut self, until: Nanoseconds, events: &mut Vec<Event>) {
        while let Some(buffered) = self.buffer.front().copied().filter(|buffered| buffered.due <= until) {
            self.buffer.pop_front();
            self.program(buffered.due, &buffered.request);
        }
        self.agenda.drain(until, events);
    }

    fn next_event(&self) -> Option<Nanoseconds> {
        let due = self.buffer.front().map(|buffered| buffered.due);
        self.agenda.next().into_iter().chain(due).min()
    }

    fn power_cycle(&mut self, at: Nanoseconds) {
        self.channels.fill(at);
        self.link = Link::default();
        self.buffer.clear();
        self.buffered_bytes = 0;
        self.leaving.clear();
        self.streams.clear();
        self.agenda = Agenda::default();
    }

    fn internals(&self) -> Internals {
        self.internals
    }
}
