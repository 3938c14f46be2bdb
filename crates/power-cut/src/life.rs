//! One life of the writer process: start it, read its reports, cut or kill it.
//!
//! Reports before the cut count in full. Of those read after the cut, acknowledgements count,
//! because they are of writes that were durable before it; failed calls do not, because the power
//! was off.

use super::{
    journal::{Check, Journal, State, Survived, Violation},
    machine::Machine,
    mutations::Mutant,
    protocol::{Counts, Said},
    workload::MOODS,
    writer::Task,
};
use crate::Outcome;
use emulated_drives::Survival;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

/// Longest time without a report: twice the longest wait of a call for space or for a sweep.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Longest time of writing in one life.
const WRITING_MAX: Duration = Duration::from_millis(2_500);

/// Polling interval of the drive's cache.
const WATCH_INTERVAL: Duration = Duration::from_millis(1);

/// When a life ends.
#[derive(Debug, Clone)]
pub enum Moment {
    /// This long after its start, possibly during recovery; at once when the store is open.
    Opening(Duration),
    /// This long after the first write.
    Time(Duration),
    /// Right after this many acknowledgements.
    Acknowledgements(u64),
    /// A short time after the nth occurrence of an engine event.
    Event {
        /// Name of the event.
        name: &'static str,
        /// Which occurrence.
        nth: u64,
        /// The delay.
        delay: Duration,
    },
    /// Once a drive has this many writes in its cache only, but not before `after`.
    Unflushed {
        /// Whether it is the large drive.
        is_large: bool,
        /// How many.
        writes: u64,
        /// Earliest time after the first write.
        after: Duration,
    },
    /// When all objects were checked, without a write.
    Checked,
}

/// Parameters of a life.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its number.
    pub life: u64,
    /// The writers' mood.
    pub mood: usize,
    /// The writers' seed.
    pub seed: u64,
    /// Whether the log uses the page cache.
    pub page_cache: bool,
    /// Memtable size: with small ones there are many flushes, with large ones the log wraps around
    /// before a flush.
    pub memtable_bytes: u64,
    /// Whether another process occasionally syncs the file systems.
    pub has_neighbour: bool,
    /// When it ends.
    pub moment: Moment,
    /// Whether the power is cut; otherwise only the process is killed.
    pub is_cut: bool,
    /// What happens to writes in the drives' caches.
    pub survival: Survival,
    /// Whether the large drive is cut first, shortly before the other.
    pub large_first: bool,
}

/// Result of a life.
#[derive(Debug, Default)]
pub struct Life {
    /// What the next life's store is checked against.
    pub journal: Journal,
    /// Result of the check after the previous life, if it was reached.
    pub survived: Option<Survived>,
    /// Whether it ended before all objects had been listed.
    pub ended_in_recovery: bool,
    /// Acknowledged operations, by kind.
    pub done: BTreeMap<String, u64>,
    /// `Sync` operations among them.
    pub durable: u64,
    /// New versions found by the reader.
    pub reads: u64,
    /// Occurrences of each event.
    pub events: BTreeMap<String, u64>,
    /// Writes in the drives' caches when the power was cut.
    pub pending_writes: u64,
    /// Counters in the last report.
    pub counts: Counts,
    /// Objects at its start.
    pub objects: u64,
    /// The failure, if there was one.
    pub violation: Option<Violation>,
    /// The last warnings of the engine.
    pub notes: Vec<String>,
}

struct Heard {
    at: Instant,
    said: Option<Said>,
}

/// A writer process and its reports.
struct Writer {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Heard>,
    errors: Option<std::thread::JoinHandle<String>>,
}

impl Writer {
    fn start(machine: &Machine, plan: &Plan, mutant: Option<&Mutant>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("power-cut-writer");
        command.env_remove(terrace::mutation::VARIABLE);
        let without_fsync = mutant.is_some_and(|mutant| mutant.prepare(&mut command));
        let task = Task {
            flash: machine.flash(),
            large: machine.large(),
            life: plan.life,
            mood: plan.mood,
            seed: plan.seed,
            memtable_bytes: plan.memtable_bytes,
            page_cache: plan.page_cache,
            neighbour: plan.has_neighbour,
            without_fsync,
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        let mut stdin = child.stdin.take().ok_or("the writer has no input")?;
        writeln!(stdin, "{}", serde_json::to_string(&task)?)?;
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || listen(stdout, &sender));
        }
        let errors = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = stderr.read_to_string(&mut text);
                text
            })
        });
        Ok(Self {
            child,
            stdin,
            lines,
            errors,
        })
    }

    /// Kills it and returns its standard error.
    fn kill(&mut self) -> Outcome<String> {
        self.child.kill()?;
        self.child.wait()?;
        let errors = self.errors.take().and_then(|thread| thread.join().ok());
        Ok(errors.unwrap_or_default())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // No process is left if this one ends early.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines until the end of the stream, which it sends as `None`.
fn listen(stdout: impl Read, sender: &Sender<Heard>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Ok(said) = serde_json::from_str(&line) else {
            continue;
        };
        let heard = Heard {
            at: Instant::now(),
            said: Some(said),
        };
        if sender.send(heard).is_err() {
            return;
        }
    }
    let at = Instant::now();
    let _ = sender.send(Heard { at, said: None });
}

struct Course<'a> {
    plan: &'a Plan,
    life: Life,
    /// Objects listed so far.
    found: State,
    kinds: BTreeMap<u64, (String, bool)>,
    acknowledged: u64,
    /// Time of the cut, once known.
    due: Option<Instant>,
    /// Start of polling the drive's cache.
    watched_from: Option<Instant>,
    cut_at: Option<Instant>,
}

/// Starts a writer, reads its reports and ends it as planned; switches the power on again after a
/// cut.
///
/// # Errors
/// If the test machinery fails, which says nothing about the store.
pub fn run(machine: &mut Machine, plan: &Plan, journal: Journal, mutant: Option<&Mutant>) -> Outcome<Life> {
    let started = Instant::now();
    let mut writer = Writer::start(machine, plan, mutant)?;
    let mut course = Course {
        plan,
        life: Life {
            journal,
            ended_in_recovery: true,
            ..Life::default()
        },
        found: State::new(),
        kinds: BTreeMap::new(),
        acknowledged: 0,
        due: match plan.moment {
            Moment::Opening(delay) => Some(started + delay),
            _ => None,
        },
        watched_from: None,
        cut_at: None,
    };
    let ended_early = course.listen(&mut writer, machine)?;
    course.cut_at = Some(Instant::now());
    if plan.is_cut {
        course.life.pending_writes = machine.cut(plan.large_first, plan.survival)?;
    }
    let errors = writer.kill()?;
    while let Ok(Heard { at, said: Some(said) }) = writer.lines.recv() {
        course.hear(at, said);
    }
    let mut life = course.life;
    if ended_early && life.violation.is_none() {
        let last: Vec<&str> = errors.lines().rev().take(5).collect();
        life.violation = Some(Violation {
            check: Check::Running,
            what: format!("the writer ended by itself: {}", last.join(" | ")),
        });
    }
    if plan.is_cut && life.violation.is_none() {
        machine.restore()?;
    }
    Ok(life)
}

impl Course<'_> {
    /// Reads reports until the planned end. Returns whether the writer ended by itself.
    fn listen(&mut self, writer: &mut Writer, machine: &Machine) -> Outcome<bool> {
        let mut heard_at = Instant::now();
        loop {
            let now = Instant::now();
            if self.due.is_some_and(|due| due <= now) || self.life.violation.is_some() {
                return Ok(false);
            }
            let mut wait = self.due.map_or(SILENCE_MAX, |due| due - now);
            if let Some(from) = self.watched_from
                && let Moment::Unflushed { is_large, writes, .. } = self.plan.moment
            {
                wait = wait.min(WATCH_INTERVAL.max(from.saturating_duration_since(now)));
                if from <= now
                    && machine
                        .pending_writes(is_large)?
                        .is_none_or(|pending| pending >= writes)
                {
                    return Ok(false);
                }
            }
            match writer.lines.recv_timeout(wait) {
                Ok(Heard { at, said: Some(said) }) => {
                    heard_at = at;
                    let is_ready = said == Said::Ready;
                    self.hear(at, said);
                    if is_ready && self.life.violation.is_none() {
                        self.go(writer)?;
                    }
                }
                Ok(Heard { said: None, .. }) | Err(RecvTimeoutError::Disconnected) => return Ok(true),
                Err(RecvTimeoutError::Timeout) if heard_at.elapsed() >= SILENCE_MAX => {
                    self.violate(Check::Hang, format!("nothing was said for {SILENCE_MAX:?}"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Tells the writer to start writing, and fixes the time of the end.
    fn go(&mut self, writer: &mut Writer) -> Outcome {
        let now = Instant::now();
        self.due = Some(match self.plan.moment {
            Moment::Opening(_) | Moment::Checked => now,
            Moment::Time(delay) => now + delay,
            Moment::Acknowledgements(_) | Moment::Event { .. } | Moment::Unflushed { .. } => now + WRITING_MAX,
        });
        if let Moment::Unflushed { after, .. } = self.plan.moment {
            self.watched_from = Some(now + after);
        }
        Ok(writer.stdin.write_all(b"go\n")?)
    }

    fn violate(&mut self, check: Check, what: String) {
        self.life.violation.get_or_insert(Violation { check, what });
    }

    fn expect(&mut self, outcome: Result<(), Violation>) {
        self.life.violation = self.life.violation.take().or(outcome.err());
    }

    fn is_off(&self, at: Instant) -> bool {
        self.cut_at.is_some_and(|cut_at| at >= cut_at)
    }

    fn hear(&mut self, at: Instant, said: Said) {
        match said {
            Said::Opened => {}
            Said::Holds(key, held) => drop(self.found.insert(key, held)),
            Said::Ready => self.judge(),
            Said::Try {
                op,
                is_sync,
                kind,
                changes,
            } => {
                self.kinds.insert(op, (kind, is_sync));
                self.life.journal.announced(op, is_sync, changes);
            }
            Said::Done { op, version } => self.done(op, version),
            Said::Read { op, version } => {
                self.life.reads += 1;
                let outcome = self.life.journal.read(op, version);
                self.expect(outcome);
            }
            Said::Refused { op } => {
                self.kinds.remove(&op);
                self.life.journal.refused(op);
            }
            // With the power off every call fails, and `verify` can read nothing.
            Said::Failed(_) if self.is_off(at) => {}
            Said::Broken(what) if what.starts_with("verify:") && self.is_off(at) => {}
            Said::Broken(what) | Said::Failed(what) => {
                let check = match what.split_once(':').map_or("", |(kind, _)| kind) {
                    "open" => Check::Open,
                    "value" => Check::Value,
                    "verify" | "stats" => Check::Verify,
                    _ => Check::Running,
                };
                self.violate(check, what);
            }
            Said::Event(name) => self.happened(at, &name),
            Said::Note(text) => {
                if self.life.notes.len() >= 12 {
                    self.life.notes.remove(0);
                }
                self.life.notes.push(text);
            }
            Said::Counts(counts) => self.life.counts = counts,
        }
    }

    /// The store is open and all objects listed: checks them against the journal.
    fn judge(&mut self) {
        let found = std::mem::take(&mut self.found);
        self.life.objects = found.len() as u64;
        self.life.ended_in_recovery = false;
        match std::mem::take(&mut self.life.journal).judge(&found) {
            Ok(survived) => {
                self.life.survived = Some(survived);
                self.life.journal = Journal::starting_with(found);
            }
            Err(violation) => {
                self.life.violation.get_or_insert(violation);
            }
        }
    }

    fn done(&mut self, op: u64, version: u64) {
        let outcome = self.life.journal.done(op, version);
        self.expect(outcome);
        if let Some((kind, is_sync)) = self.kinds.remove(&op) {
            *self.life.done.entry(kind).or_default() += 1;
            self.life.durable += u64::from(is_sync);
        }
        self.acknowledged += 1;
        if let Moment::Acknowledgements(count) = self.plan.moment
            && self.acknowledged == count
        {
            self.due = Some(Instant::now());
        }
    }

    fn happened(&mut self, at: Instant, event: &str) {
        let times = self.life.events.entry(event.to_owned()).or_default();
        *times += 1;
        if let Moment::Event { name, nth, delay } = &self.plan.moment
            && *name == event
            && *nth == *times
            && !self.life.ended_in_recovery
        {
            self.due = Some(at + *delay);
        }
    }
}

impl Plan {
    /// Name of the mood, for output.
    pub fn mood_name(&self) -> &'static str {
        MOODS.get(self.mood).map_or("?", |mood| mood.name)
    }
}
