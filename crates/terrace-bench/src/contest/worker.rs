//! The process in which a candidate runs, so that its processor time, RAM and I/O can be measured
//! separately, and it can be limited and killed.
//!
//! It reads its task as a line of JSON from standard input and writes lines of JSON to standard
//! output. It ends when it is done, at the first error, and when its parent has ended.

use super::{
    Meeting, Paths, flashstore,
    memory::MemoryLimit,
    micro, recovery,
    scale::{self, grow},
    ycsb,
};
use crate::Outcome;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Shortest interval of progress reports.
const SHARE_INTERVAL: Duration = Duration::from_millis(500);
/// The environment variable with jemalloc's settings, and the settings for a worker. RAM is
/// limited, so memory that one thread frees must be available to all, and unused memory is returned
/// within a second. This applies to all sizes: by default the allocator does not use memory from
/// larger allocations for requests below 16 KiB, so a cache that lends some of its memory would
/// take it twice. (That large allocations begin with a page is set for all builds, in
/// `.cargo/config.toml`.)
const ALLOCATOR_SETTINGS: (&str, &str) = (
    "MALLOC_CONF",
    "narenas:1,dirty_decay_ms:1000,lg_extent_max_active_fit:9",
);

/// A task, and the directories of the drives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Errand {
    /// Directories on the drives.
    pub paths: Paths,
    /// What to do.
    pub task: Task,
}

/// Tasks of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "task")]
pub enum Task {
    /// Single operations.
    Micro(micro::Settings),
    /// The six workloads.
    Ycsb(ycsb::Settings),
    /// A trace.
    FlashStore(flashstore::Settings),
    /// Fills a database and writes until killed.
    Fill(recovery::Settings),
    /// Opens the database after the kill.
    Recover(recovery::Settings),
    /// Grows a database step by step, then writes until killed.
    Grow(scale::Settings),
    /// Opens that database after the kill.
    Reopen(grow::Reopening),
}

/// Reports of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Share(f64),
    /// To be killed; with the results until then.
    Ready(Value),
    Done(Value),
    Failed(String),
}

/// Sends reports of a task.
pub struct Teller {
    told: Mutex<Instant>,
    tell: fn(&Line),
}

impl Teller {
    /// One that discards all reports.
    #[cfg(test)]
    pub fn silent() -> Self {
        Self::new(|_| {})
    }

    fn new(tell: fn(&Line)) -> Self {
        let told = Mutex::new(Instant::now());
        Self { told, tell }
    }

    /// Reports progress, from 0 to 1, at intervals.
    pub fn share(&self, share: f64) {
        if let Ok(mut told) = self.told.try_lock()
            && told.elapsed() >= SHARE_INTERVAL
        {
            *told = Instant::now();
            (self.tell)(&Line::Share(share));
        }
    }

    /// Reports that the task may be killed, and its results until then, if it has any.
    pub fn ready(&self, measured: Value) {
        (self.tell)(&Line::Ready(measured));
    }
}

impl Task {
    fn meeting(&mut self) -> &mut Meeting {
        match self {
            Self::Micro(settings) => &mut settings.meeting,
            Self::Ycsb(settings) => &mut settings.meeting,
            Self::FlashStore(settings) => &mut settings.meeting,
            Self::Fill(settings) | Self::Recover(settings) => &mut settings.meeting,
            Self::Grow(settings) => &mut settings.meeting,
            Self::Reopen(reopening) => &mut reopening.settings.meeting,
        }
    }
}

/// Performs a task.
pub fn perform(errand: Errand, teller: &Teller) -> Outcome<Value> {
    let Errand { paths, mut task } = errand;
    task.meeting().paths = paths;
    Ok(match &task {
        Task::Micro(settings) => serde_json::to_value(micro::measure(settings, teller)?)?,
        Task::Ycsb(settings) => serde_json::to_value(ycsb::measure(settings, teller)?)?,
        Task::FlashStore(settings) => serde_json::to_value(flashstore::measure(settings, teller)?)?,
        Task::Fill(settings) => serde_json::to_value(recovery::fill(settings, teller)?)?,
        Task::Recover(settings) => serde_json::to_value(recovery::recover(settings)?)?,
        Task::Grow(settings) => serde_json::to_value(grow::grow(settings, teller)?)?,
        Task::Reopen(reopening) => serde_json::to_value(grow::reopen(reopening)?)?,
    })
}

/// The hidden subcommand.
///
/// # Errors
/// If there is no task; a task's error is reported to the parent.
pub fn run() -> Outcome {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut task = String::new();
    std::io::stdin().read_line(&mut task)?;
    let errand: Errand = serde_json::from_str(&task)?;
    say(&match perform(errand, &Teller::new(say)) {
        Ok(outcome) => Line::Done(outcome),
        Err(error) => Line::Failed(error.to_string()),
    });
    Ok(())
}

fn say(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        // If the parent has gone, there is no receiver.
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

/// A worker process, for its parent.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// Dropped after the child.
    memory: Option<MemoryLimit>,
}

impl Worker {
    /// Starts a worker on a task, with this limit of RAM if possible.
    pub fn start(errand: &Errand, memory_bytes: Option<u64>) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("contest-worker")
            .env(ALLOCATOR_SETTINGS.0, ALLOCATOR_SETTINGS.1)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("the worker has no output")?);
        let mut input = child.stdin.take().ok_or("the worker has no input")?;
        let memory = memory_bytes.and_then(MemoryLimit::create);
        let memory = memory.filter(|memory| memory.hold(child.id()).is_ok());
        let worker = Self { child, lines, memory };
        // It starts when it gets its task, and then is within its limit.
        writeln!(input, "{}", serde_json::to_string(errand)?)?;
        Ok(worker)
    }

    /// Whether its RAM is limited.
    pub const fn is_bounded(&self) -> bool {
        self.memory.is_some()
    }

    fn line(&mut self) -> Outcome<Line> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            let bound = if self.memory.is_some() {
                "; it may have needed more RAM than it was given"
            } else {
                ""
            };
            return Err(format!("the worker ended ({status}){bound}").into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for its results.
    pub fn outcome<T: DeserializeOwned>(&mut self, share: impl Fn(f64)) -> Outcome<T> {
        match self.last_line(share)? {
            Line::Done(outcome) => Ok(T::deserialize(outcome)?),
            _ => Err("the worker waits to be killed".into()),
        }
    }

    /// Waits until it may be killed, and kills it. Returns its results before.
    pub fn killed_when_ready<T: DeserializeOwned>(mut self, share: impl Fn(f64)) -> Outcome<T> {
        let Line::Ready(measured) = self.last_line(share)? else {
            return Err("the worker ended before it could be killed".into());
        };
        self.child.kill()?;
        Ok(T::deserialize(measured)?)
    }

    fn last_line(&mut self, share: impl Fn(f64)) -> Outcome<Line> {
        loop {
            match self.line()? {
                Line::Share(done) => share(done),
                Line::Failed(error) => return Err(error.into()),
                last => return Ok(last),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
