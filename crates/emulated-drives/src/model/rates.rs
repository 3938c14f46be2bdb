//! Rates of a model for a host with one request at a time, in virtual time: no FUSE, no root, no
//! waiting.

use super::{Event, Model, Nanoseconds, Operation, Request};
use crate::random::Random;

/// Size of the writes that fill the drive before reads are measured.
const FILL_BYTES: u64 = 1 << 20;
const SECOND: Nanoseconds = 1_000_000_000;

/// An access pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Read or write.
    pub operation: Operation,
    /// At random offsets, or sequentially.
    pub is_random: bool,
    /// Bytes per request.
    pub bytes: u64,
}

impl Access {
    /// An access by `fio`'s name; `None` if it is not one of `randread`, `read`, `randwrite`,
    /// `write`.
    pub fn parse(name: &str, bytes: u64) -> Option<Self> {
        let (operation, is_random) = match name {
            "randread" => (Operation::Read, true),
            "read" => (Operation::Read, false),
            "randwrite" => (Operation::Write, true),
            "write" => (Operation::Write, false),
            _ => return None,
        };
        Some(Self {
            operation,
            is_random,
            bytes,
        })
    }
}

/// A host that waits for each request.
struct Host<'a> {
    model: &'a mut dyn Model,
    now: Nanoseconds,
    next_id: u64,
    events: Vec<Event>,
}

impl Host<'_> {
    fn execute(&mut self, operation: Operation, offset: u64, bytes: u64) {
        let id = self.next_id;
        self.next_id += 1;
        self.model.submit(
            self.now,
            Request {
                id,
                operation,
                offset,
                bytes,
            },
        );
        while let Some(next) = self.model.next_event() {
            self.events.clear();
            self.model.advance(next, &mut self.events);
            let completed = self.events.iter().find_map(|event| match event {
                Event::Completed { at, .. } => Some(*at),
                Event::Settled { .. } => None,
            });
            if let Some(at) = completed {
                self.now = self.now.max(at);
                return;
            }
        }
    }
}

/// Fills the first `span` bytes, lets the drive become idle, and returns the rate of an access
/// within them over some seconds, in 10⁶ bytes per second.
pub fn rate(model: &mut dyn Model, access: Access, span: u64, seconds: u64, seed: u64) -> f64 {
    let mut host = Host {
        model,
        now: 0,
        next_id: 1,
        events: Vec::new(),
    };
    for offset in (0..span / FILL_BYTES).map(|piece| piece * FILL_BYTES) {
        host.execute(Operation::Write, offset, FILL_BYTES);
    }
    host.execute(Operation::Flush, 0, 0);
    host.now += SECOND;
    let mut random = Random::new(seed);
    let Access {
        operation,
        is_random,
        bytes,
    } = access;
    let places = (span / bytes).max(1);
    let (begun, mut place, mut total) = (host.now, 0, 0);
    while host.now < begun + seconds.max(1) * SECOND {
        place = if is_random {
            random.below(places)
        } else {
            (place + 1) % places
        };
        host.execute(operation, place * bytes, bytes);
        total += bytes;
    }
    total as f64 * 1_000.0 / (host.now - begun) as f64
}
