//! One life of the writer process: started, heard, cut off, killed.
//!
//! What it said before the cut counts in full. What it says after the cut counts as far as it was
//! true before it: an acknowledgement then is of something that was durable in time; a call that
//! fails then is none of the store's faults.

use super::{
    journal::{Check, Journal, State, Survived, Violation},
    machine::Machine,
    mutations::Mutant,
    protocol::{Counts, Said},
    workload::MOODS,
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

/// Longest silence of a writer that is not suspicious: twice as long as a call of the store may
/// wait for room or for a sweep.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Longest time of writing in one life.
const WRITING_MAX: Duration = Duration::from_millis(2_500);

/// How often the drive's memory is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(1);

/// When a life ends.
#[derive(Debug, Clone)]
pub enum Moment {
    /// This long after its start, perhaps while it recovers; if it is through earlier, then right
    /// away.
    Opening(Duration),
    /// This long after the first write.
    Time(Duration),
    /// Right after so many acknowledgements.
    Acknowledgements(u64),
    /// A little after something happened in the engine for the nth time.
    Event {
        /// What.
        name: &'static str,
        /// Which time.
        nth: u64,
        /// How much later.
        delay: Duration,
    },
    /// Once a drive has so many writes only in memory, but not earlier than this.
    Unflushed {
        /// Which drive.
        is_large: bool,
        /// How many.
        writes: u64,
        /// Not earlier than this after the first write.
        after: Duration,
    },
    /// When everything was checked, without a write.
    Checked,
}

/// How a life goes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its number.
    pub life: u64,
    /// Which mood the writers have.
    pub mood: usize,
    /// Where their random choices start.
    pub seed: u64,
    /// Whether the log goes through the page cache.
    pub page_cache: bool,
    /// RAM of a memtable: small ones make many flushes, large ones let the log come round before
    /// one.
    pub memtable_bytes: u64,
    /// Whether somebody else on the machine syncs the file systems every now and then.
    pub has_neighbour: bool,
    /// When it ends.
    pub moment: Moment,
    /// Whether the power goes, or only the process.
    pub is_cut: bool,
    /// What becomes of what the drives have only in memory.
    pub survival: Survival,
    /// Which drive's power goes first, a moment before the other's.
    pub large_first: bool,
}

/// What a life came to.
#[derive(Debug, Default)]
pub struct Life {
    /// What the next life's store is judged by.
    pub journal: Journal,
    /// What the judgement of the life before found, if this life came to it.
    pub survived: Option<Survived>,
    /// Whether it ended before the store was seen whole.
    pub ended_in_recovery: bool,
    /// Operations acknowledged, by kind.
    pub done: BTreeMap<String, u64>,
    /// Of these, `Sync` ones.
    pub durable: u64,
    /// Versions that the reader found anew.
    pub reads: u64,
    /// Times each event happened.
    pub events: BTreeMap<String, u64>,
    /// Writes that were not on the drives when the power went.
    pub pending_writes: u64,
    /// Counters when last heard.
    pub counts: Counts,
    /// Objects found at its start.
    pub objects: u64,
    /// What went wrong, if something did.
    pub violation: Option<Violation>,
    /// Warnings of the engine, the last ones.
    pub notes: Vec<String>,
}

struct Heard {
    at: Instant,
    said: Option<Said>,
}

/// A writer process and its voice.
struct Writer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Heard>,
    errors: Option<std::thread::JoinHandle<String>>,
}

impl Writer {
    fn start(machine: &Machine, plan: &Plan, mutant: Option<&Mutant>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("power-cut-writer");
        command.arg("--flash").arg(machine.flash());
        command.arg("--large").arg(machine.large());
        command.args(["--life", &plan.life.to_string()]);
        command.args(["--mood", &plan.mood.to_string()]);
        command.args(["--seed", &plan.seed.to_string()]);
        command.args(["--memtable-bytes", &plan.memtable_bytes.to_string()]);
        if plan.page_cache {
            command.arg("--page-cache");
        }
        if plan.has_neighbour {
            command.arg("--neighbour");
        }
        command.env_remove(terrace::mutation::VARIABLE);
        if let Some(mutant) = mutant {
            mutant.prepare(&mut command);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        let stdin = child.stdin.take();
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

    /// Kills it and returns what it said to its standard error.
    fn kill(&mut self) -> Outcome<String> {
        self.child.kill()?;
        self.child.wait()?;
        let errors = self.errors.take().and_then(|thread| thread.join().ok());
        Ok(errors.unwrap_or_default())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Nothing is left behind if this process ends early.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines until the end, which is told by a `None`.
fn listen(stdout: impl Read, sender: &Sender<Heard>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some(said) = Said::parse(&line) else { continue };
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

/// What a life is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Writing,
}

struct Course<'a> {
    plan: &'a Plan,
    life: Life,
    phase: Phase,
    /// The objects told so far.
    found: State,
    kinds: BTreeMap<u64, (String, bool)>,
    acknowledged: u64,
    /// When the cut is due, once that is known.
    due: Option<Instant>,
    /// From when on the drive's memory is watched.
    watched_from: Option<Instant>,
    cut_at: Option<Instant>,
}

/// Starts a writer, hears it, ends it as planned; gives the power back if it went.
///
/// # Errors
/// If the machinery fails, which says nothing of the store.
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
        phase: Phase::Opening,
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
    /// Hears the writer until it is to end. Returns whether it ended by itself.
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

    /// Gives the word to write, and decides when it ends.
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
        if let Some(stdin) = &mut writer.stdin {
            stdin.write_all(b"go\n")?;
        }
        Ok(())
    }

    fn violate(&mut self, check: Check, what: String) {
        self.life.violation.get_or_insert(Violation { check, what });
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
                if let Err(violation) = self.life.journal.read(op, version) {
                    self.life.violation.get_or_insert(violation);
                }
            }
            Said::Refused { op } => {
                self.kinds.remove(&op);
                self.life.journal.refused(op);
            }
            // It reports what it cannot read, and with the power gone it can read nothing.
            Said::Broken(what) if what.starts_with("verify:") && self.cut_at.is_some_and(|cut_at| at >= cut_at) => {}
            Said::Broken(what) => {
                let check = match what.split_once(':').map_or("", |(kind, _)| kind) {
                    "value" => Check::Value,
                    "verify" | "stats" => Check::Verify,
                    _ => Check::Running,
                };
                self.violate(check, what);
            }
            // With the power gone every call fails.
            Said::Failed(what) if self.cut_at.is_none_or(|cut_at| at < cut_at) => {
                let check = match what.split_once(':').map_or("", |(kind, _)| kind) {
                    "open" => Check::Open,
                    "value" => Check::Value,
                    _ => Check::Running,
                };
                self.violate(check, what);
            }
            Said::Failed(_) => {}
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

    /// The store is open and told whole: judges it by what was done before.
    fn judge(&mut self) {
        let found = std::mem::take(&mut self.found);
        self.life.objects = found.len() as u64;
        self.life.ended_in_recovery = false;
        self.phase = Phase::Writing;
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
        if let Err(violation) = self.life.journal.done(op, version) {
            self.life.violation.get_or_insert(violation);
        }
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
            && self.phase == Phase::Writing
        {
            self.due = Some(at + *delay);
        }
    }
}

/// Names of the mood a plan has.
impl Plan {
    /// For a line in the output.
    pub fn mood_name(&self) -> &'static str {
        MOODS.get(self.mood).map_or("?", |mood| mood.name)
    }
}
