//! A drive without mechanics: a fixed latency and a rate for each direction, parallel lanes, and a
//! volatile write buffer. The `nvme` profile uses it.
//!
//! Invariants: those of [`super`]. Writes settle in the order of arrival.

use super::{Agenda, Event, Internals, Link, Model, Nanoseconds, Operation, Request, microseconds, transfer};
use crate::profile::FlatProfile;
use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub struct Flat {
    profile: FlatProfile,
    /// When each lane is free.
    lanes: Vec<Nanoseconds>,
    link: Link,
    /// Buffered writes, and when they settle without a flush.
    buffered: VecDeque<(Nanoseconds, u64)>,
    agenda: Agenda,
    internals: Internals,
}

impl Flat {
    /// An idle drive.
    pub fn new(profile: FlatProfile) -> Self {
        let lanes = vec![0; profile.lanes.max(1)];
        Self {
            profile,
            lanes,
            link: Link::default(),
            buffered: VecDeque::new(),
            agenda: Agenda::default(),
            internals: Internals::default(),
        }
    }

    /// Occupies the lane that is free first, and the link for the transfer.
    fn occupy(&mut self, at: Nanoseconds, latency: Nanoseconds, link: Nanoseconds) -> Nanoseconds {
        let Some(lane) = self.lanes.iter_mut().min() else {
            return at + latency + link;
        };
        let accessed = at.max(*lane) + latency;
        let end = self.link.book(at, accessed, link);
        *lane = end;
        self.internals.busy_nanoseconds += latency + link;
        end
    }
}

impl Model for Flat {
    fn submit(&mut self, at: Nanoseconds, request: Request) {
        let profile = &self.profile;
        match request.operation {
            Operation::Read => {
                let (latency, rate) = (microseconds(profile.read_us), profile.read_mb_per_s);
                let end = self.occupy(at, latency, transfer(request.bytes, rate));
                self.agenda.complete(end, request.id);
            }
            Operation::Write => {
                let (latency, rate) = (microseconds(profile.write_us), profile.write_mb_per_s);
                let settle_after = microseconds(profile.write_back_ms * 1_000.0);
                let end = self.occupy(at, latency, transfer(request.bytes, rate));
                let last = self.buffered.back().map_or(0, |(at, _)| *at);
                self.buffered.push_back(((end + settle_after).max(last), request.id));
                self.agenda.complete(end, request.id);
            }
            Operation::Flush => {
                let end = self.occupy(at, microseconds(profile.flush_us), 0);
                for (_, id) in self.buffered.drain(..) {
                    self.agenda.settle(end, id);
                }
                self.agenda.complete(end, request.id);
            }
        }
    }

    fn advance(&mut self, until: Nanoseconds, events: &mut Vec<Event>) {
        while let Some((at, id)) = self.buffered.front().copied().filter(|(at, _)| *at <= until) {
            self.buffered.pop_front();
            self.agenda.settle(at, id);
        }
        self.agenda.drain(until, events);
    }

    fn next_event(&self) -> Option<Nanoseconds> {
        let settling = self.buffered.front().map(|(at, _)| *at);
        self.agenda.next().into_iter().chain(settling).min()
    }

    fn power_cycle(&mut self, at: Nanoseconds) {
        self.lanes.fill(at);
        self.link = Link::default();
        self.buffered.clear();
        self.agenda = Agenda::default();
    }

    fn internals(&self) -> Internals {
        self.internals
    }
}
