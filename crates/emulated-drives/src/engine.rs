//! A running drive: model, media, faults and counters behind one lock, and the thread that answers
//! requests on time.
//!
//! A request gets its virtual arrival time and is given to the model. Its data is transferred at
//! once; its answer is sent when the model says so. Answers may be out of order, are sent by any
//! thread that finds them due, and never under the lock.
//!
//! Virtual time is ahead of real time by the duration of an answer's way to the caller, and
//! arrivals are dated back by the duration of a request's way here. So for the caller, loop device
//! and FUSE take no time.
//!
//! Invariants: each request is answered exactly once. Without power no request is accepted, the
//! media do not change, and requests accepted before fail with EIO. A handle from before a cut
//! never reaches the media again. Failure: an error of the backing file fails the request with EIO;
//! a flush whose writes cannot be written to the media fails.

use super::counters::{Counters, Counting};
use super::fault::{Failure, Fault, Faults};
use super::media::{CutReport, Media, Survival};
use super::model::{self, Event, Internals, Model, Nanoseconds, Operation, Request};
use super::profile::Profile;
use super::random::Random;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receives the data of a read (empty for others), or the failure.
pub type Answer = Box<dyn FnOnce(Result<Vec<u8>, Failure>) + Send>;

/// The pace of time on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// As modelled.
    Model,
    /// As fast as possible, with every write on the media at once: for formatting.
    Instant,
}

struct Waiting {
    operation: Operation,
    arrival: Nanoseconds,
    answer: Answer,
    /// The data of a read, once it is complete.
    data: Option<Result<Vec<u8>, Failure>>,
    is_completed: bool,
}

/// An answer that is due, and its data.
type Due = (Answer, Result<Vec<u8>, Failure>);

/// Converts real time to virtual time, which is slower on a drive that a fault slows down.
#[derive(Debug, Clone, Copy)]
struct Clock {
    origin: Instant,
    virtual_origin: Nanoseconds,
    slowness: f64,
}

impl Clock {
    fn at(&self, real: Instant) -> Nanoseconds {
        let elapsed = real.saturating_duration_since(self.origin).as_nanos() as f64;
        self.virtual_origin + (elapsed / self.slowness) as Nanoseconds
    }

    fn real(&self, at: Nanoseconds) -> Instant {
        let elapsed = at.saturating_sub(self.virtual_origin) as f64 * self.slowness;
        self.origin + Duration::from_nanos(elapsed as u64)
    }
}

struct State {
    model: Box<dyn Model>,
    waiting: HashMap<u64, Waiting>,
    next_id: u64,
    is_on: bool,
    /// Incremented at each switch-on; requests with an older handle are refused.
    epoch: u64,
    pace: Pace,
    faults: Faults,
    random: Random,
    counting: Counting,
    /// Counts of earlier daemons.
    earlier: Internals,
    clock: Clock,
    busy_since: Option<Instant>,
    /// When the timer thread is to wake.
    alarm: Option<Instant>,
    is_closed: bool,
    events: Vec<Event>,
}

/// See the module.
pub struct Engine {
    profile: Profile,
    bytes: u64,
    seed: u64,
    media: Media,
    state: Mutex<State>,
    wake: Condvar,
}

impl Engine {
    /// A drive with its power on.
    pub fn new(profile: Profile, bytes: u64, seed: u64, media: Media, counters: Counters) -> Self {
        let clock = Clock {
            origin: Instant::now(),
            virtual_origin: 0,
            slowness: 1.0,
        };
        let state = State {
            model: model::build(&profile, bytes, seed),
            waiting: HashMap::new(),
            next_id: 1,
            is_on: true,
            epoch: 1,
            pace: Pace::Model,
            faults: Faults::default(),
            random: Random::branch(seed, 0),
            earlier: counters.internals,
            counting: Counting::new(counters),
            clock,
            busy_since: None,
            alarm: None,
            is_closed: false,
            events: Vec::new(),
        };
        Self {
            profile,
            bytes,
            seed,
            media,
            state: Mutex::new(state),
            wake: Condvar::new(),
        }
    }

    /// The drive's length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The current epoch, for a handle.
    pub fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Reads. The answer may be sent at once, on this thread.
    pub fn read(&self, epoch: u64, offset: u64, bytes: u64, answer: Answer) {
        let bytes = bytes.min(self.bytes.saturating_sub(offset));
        let Some(id) = self.accept(epoch, Operation::Read, offset, bytes, None, answer) else {
            return;
        };
        let data = self.media.read(offset, bytes as usize).map_err(|_| Failure::Input);
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting.get_mut(&id) else {
            return; // a cut has answered it
        };
        waiting.data = Some(data);
        let due = if waiting.is_completed {
            state.take(id)
        } else {
            self.pass_time(&mut state)
        };
        drop(state);
        send(due);
    }

    /// Writes. The data is in the cache when this returns.
    pub fn write(&self, epoch: u64, offset: u64, data: &[u8], answer: Answer) {
        let bytes = data.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return answer(Err(Failure::Full));
        }
        self.accept(epoch, Operation::Write, offset, bytes, Some(data.into()), answer);
    }

    /// Flushes: answered when all earlier writes are on the media.
    pub fn flush(&self, epoch: u64, answer: Answer) {
        self.accept(epoch, Operation::Flush, 0, 0, None, answer);
    }

    fn accept(
        &self,
        epoch: u64,
        operation: Operation,
        offset: u64,
        bytes: u64,
        data: Option<Arc<[u8]>>,
        answer: Answer,
    ) -> Option<u64> {
        let now = Instant::now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let failure = if !state.is_on || epoch != state.epoch {
            Some(Failure::Input)
        } else {
            state.faults.failure(operation, offset, bytes, &mut state.random)
        };
        if let Some(failure) = failure {
            state.counting.counters.failed += 1;
            drop(guard);
            answer(Err(failure));
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.counting.count(operation, offset, bytes);
        state.busy_since.get_or_insert(now);
        if let Some(data) = data {
            self.media.write(id, offset, data);
        }
        let arrival = state
            .clock
            .at(now)
            .saturating_sub(model::microseconds(self.profile.overhead_us.before));
        let waiting = Waiting {
            operation,
            arrival,
            answer,
            data: (operation != Operation::Read).then(|| Ok(Vec::new())),
            is_completed: false,
        };
        state.waiting.insert(id, waiting);
        let request = Request {
            id,
            operation,
            offset,
            bytes,
        };
        if state.pace == Pace::Instant {
            state.events.extend(at_once(arrival, request));
        } else {
            state.model.submit(arrival, request);
        }
        let due = self.pass_time(state);
        drop(guard);
        send(due);
        Some(id)
    }

    /// Advances the model to the present, handles its events, and returns the answers that are due.
    fn pass_time(&self, state: &mut State) -> Vec<Due> {
        let now = Instant::now();
        let after = model::microseconds(self.profile.overhead_us.after);
        // An answer sent now reaches its caller at this time.
        let caller_now = state.clock.at(now) + after;
        let mut events = std::mem::take(&mut state.events);
        state.model.advance(caller_now, &mut events);
        let mut due = Vec::new();
        for event in events.drain(..) {
            match event {
                Event::Settled { id, .. } => {
                    if let Err(error) = self.media.settle(id) {
                        eprintln!("write {id} cannot be put on the media: {error}");
                    }
                }
                Event::Completed { id, at } => {
                    state.counting.counters.late_nanoseconds += caller_now.saturating_sub(at);
                    due.extend(self.complete(state, id, at));
                }
            }
        }
        state.events = events;
        let since = state.busy_since.take_if(|_| state.waiting.is_empty());
        if let Some(since) = since {
            state.counting.counters.busy_nanoseconds += now.saturating_duration_since(since).as_nanos() as u64;
        }
        let next = state
            .model
            .next_event()
            .map(|at| state.clock.real(at.saturating_sub(after)));
        if next.is_some_and(|next| state.alarm.is_none_or(|alarm| next < alarm)) {
            state.alarm = next;
            self.wake.notify_one();
        }
        due
    }

    fn complete(&self, state: &mut State, id: u64, at: Nanoseconds) -> Vec<Due> {
        let Some(waiting) = state.waiting.get_mut(&id) else {
            return Vec::new();
        };
        waiting.is_completed = true;
        let waited = at.saturating_sub(waiting.arrival);
        match waiting.operation {
            Operation::Read => state.counting.counters.reads.waited_nanoseconds += waited,
            Operation::Write => state.counting.counters.writes.waited_nanoseconds += waited,
            Operation::Flush => {
                if self.media.settle_until(id).is_err() {
                    waiting.data = Some(Err(Failure::Input));
                }
            }
        }
        if waiting.data.is_some() {
            state.take(id)
        } else {
            Vec::new()
        }
    }

    /// Sends due answers until [`Engine::close`]. Runs on its own thread.
    pub fn keep_time(&self) {
        // Otherwise the kernel may wake this thread 50 µs late to save power.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut lateness = Duration::from_micros(20);
        let mut state = self.state.lock();
        while !state.is_closed {
            state.alarm = None;
            let due = self.pass_time(&mut state);
            if !due.is_empty() {
                MutexGuard::unlocked(&mut state, || send(due));
                continue;
            }
            let Some(alarm) = state.alarm else {
                self.wake.wait(&mut state);
                continue;
            };
            // Settlements alone need no wake-up.
            let alarm = if state.waiting.is_empty() {
                alarm + Duration::from_millis(1)
            } else {
                alarm
            };
            state.alarm = Some(alarm);
            let aim = alarm.checked_sub(lateness).unwrap_or(alarm);
            if Instant::now() < aim {
                if self.wake.wait_until(&mut state, aim).timed_out() {
                    let late = Instant::now()
                        .saturating_duration_since(aim)
                        .min(Duration::from_micros(50));
                    lateness = (lateness * 7 + late) / 8;
                }
            } else {
                MutexGuard::unlocked(&mut state, || spin_until(alarm));
            }
        }
    }

    /// Switches the power off, now.
    pub fn cut(&self, survival: Survival) -> io::Result<CutReport> {
        let mut state = self.state.lock();
        if !state.is_on {
            return Err(io::Error::other("the drive has no power already: restore it first"));
        }
        let due = self.pass_time(&mut state);
        state.is_on = false;
        state.counting.counters.cuts += 1;
        let mut random = Random::branch(self.seed, state.counting.counters.cuts);
        let report = self.media.cut(survival, &mut random);
        let lost: Vec<Waiting> = state.waiting.drain().map(|(_, waiting)| waiting).collect();
        state.counting.counters.failed += lost.len() as u64;
        let now = state.clock.at(Instant::now());
        state.model.power_cycle(now);
        state.busy_since = None;
        state.events.clear();
        drop(state);
        send(due);
        for waiting in lost {
            (waiting.answer)(Err(Failure::Input));
        }
        report
    }

    /// Switches the power on after a cut. Older handles stay invalid.
    pub fn power_on(&self) {
        let mut state = self.state.lock();
        state.is_on = true;
        state.epoch += 1;
    }

    /// Whether there is power.
    pub fn is_on(&self) -> bool {
        self.state.lock().is_on
    }

    /// Changes the pace of time. The cache is written to the media first.
    pub fn set_pace(&self, pace: Pace) -> io::Result<()> {
        let mut state = self.state.lock();
        self.media.settle_until(state.next_id)?;
        state.pace = pace;
        Ok(())
    }

    /// Adds a fault, or ends them all.
    pub fn fault(&self, fault: Fault) -> io::Result<Vec<u64>> {
        let mut state = self.state.lock();
        if let Fault::Slow { factor } = fault {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(io::Error::other("the factor must be above 0: 1 is the normal speed"));
            }
            state.set_slowness(factor);
        }
        if fault == Fault::None {
            state.set_slowness(1.0);
        }
        state.faults.add(fault);
        let mut flipped = Vec::new();
        if let Fault::BitRot { count } = fault {
            let mut random = Random::new(state.random.next());
            flipped = self.media.rot(count, &mut random)?;
        }
        let due = self.pass_time(&mut state);
        state.alarm = None;
        self.wake.notify_one();
        drop(state);
        send(due);
        Ok(flipped)
    }

    /// Counters up to now.
    pub fn counters(&self) -> Counters {
        let state = self.state.lock();
        let (pending_writes, pending_bytes) = self.media.pending();
        let mut counters = state.counting.counters;
        if let Some(since) = state.busy_since {
            counters.busy_nanoseconds += since.elapsed().as_nanos() as u64;
        }
        counters.internals = state.earlier.with(&state.model.internals(), |one, other| one + other);
        Counters {
            pending_writes,
            pending_bytes,
            ..counters
        }
    }

    /// Ends the timer thread and writes the cache to the media: a clean end is not a cut.
    pub fn close(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.is_on = false;
        self.wake.notify_all();
        self.media.settle_until(state.next_id)
    }
}

impl State {
    fn take(&mut self, id: u64) -> Vec<Due> {
        let waiting = self.waiting.remove(&id);
        let ready = waiting.and_then(|waiting| Some((waiting.answer, waiting.data?)));
        ready.into_iter().collect()
    }

    fn set_slowness(&mut self, slowness: f64) {
        let now = Instant::now();
        self.clock = Clock {
            origin: now,
            virtual_origin: self.clock.at(now),
            slowness,
        };
    }
}

fn at_once(at: Nanoseconds, request: Request) -> Vec<Event> {
    let id = request.id;
    match request.operation {
        Operation::Write => vec![Event::Settled { id, at }, Event::Completed { id, at }],
        Operation::Read | Operation::Flush => vec![Event::Completed { id, at }],
    }
}

fn send(due: Vec<Due>) {
    for (answer, data) in due {
        answer(data);
    }
}

/// Busy-waits for the last microseconds, since a sleep would end too late.
fn spin_until(alarm: Instant) {
    while Instant::now() < alarm {
        std::hint::spin_loop();
    }
}
