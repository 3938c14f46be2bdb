//! The control socket of a drive's daemon: one JSON document per line, a command in, an answer out.
//!
//! Failure: a line that is not a command is answered with an error. The client distinguishes a
//! daemon that is gone from one that refuses.

use super::counters::Counters;
use super::engine::{Engine, Pace};
use super::fault::Fault;
use super::media::{CutReport, Survival};
use crate::Outcome;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands to a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Command {
    /// Asks for its process and whether the power is on.
    Status,
    /// Counters.
    Counters,
    /// Power off.
    Cut {
        /// What happens to unflushed writes.
        survival: Survival,
    },
    /// Power on.
    PowerOn,
    /// A fault.
    Fault {
        /// Which.
        fault: Fault,
    },
    /// Sets the pace of time.
    Pace {
        /// The pace.
        pace: Pace,
    },
    /// Writes everything to the media and ends the daemon.
    Stop,
}

/// Answers of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answer {
    /// Success.
    Done,
    /// To [`Command::Status`].
    Status {
        /// Whether the drive has power.
        is_on: bool,
        /// The daemon's process.
        process: u32,
    },
    /// To [`Command::Counters`].
    Counters {
        /// The counters now.
        counters: Box<Counters>,
    },
    /// To [`Command::Cut`].
    Cut {
        /// The result.
        report: CutReport,
    },
    /// To [`Fault::BitRot`].
    Rotten {
        /// Bytes with a flipped bit.
        offsets: Vec<u64>,
    },
    /// Failure.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Sends a command to the daemon at a socket.
///
/// # Errors
/// If it is not there, refuses, or does not answer.
pub fn ask(socket: &Path, command: &Command) -> Outcome<Answer> {
    let gone = |error: std::io::Error| format!("no daemon answers at {}: {error}", socket.display());
    let stream = UnixStream::connect(socket).map_err(gone)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(command)?;
    line.push('\n');
    (&stream).write_all(line.as_bytes()).map_err(gone)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(gone)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Refused { reason }) => Err(reason.into()),
        Ok(answer) => Ok(answer),
        Err(_) => Err(format!("the daemon at {} ended before it answered", socket.display()).into()),
    }
}

/// Serves commands until [`Command::Stop`]. `stop` then gets the stream, and sends the answer when
/// everything is done.
pub fn serve(listener: &UnixListener, engine: &Arc<Engine>, stop: impl Fn(UnixStream) + Clone + Send + 'static) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            continue;
        };
        let (engine, stop) = (engine.clone(), stop.clone());
        // One thread per client, so that an idle client does not block others.
        let spawned = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || serve_one(stream, &engine, stop));
        if let Err(error) = spawned {
            eprintln!("no thread for a control connection: {error}");
        }
    }
}

fn serve_one(stream: UnixStream, engine: &Engine, stop: impl Fn(UnixStream)) {
    let Ok(reading) = stream.try_clone() else {
        return;
    };
    for line in BufReader::new(reading).lines() {
        let Ok(line) = line else {
            return;
        };
        let answer = match serde_json::from_str(&line) {
            Ok(Command::Stop) => return stop(stream),
            Ok(command) => execute(&command, engine),
            Err(error) => Answer::Refused {
                reason: format!("not a command: {error}"),
            },
        };
        if send(&stream, &answer).is_err() {
            return;
        }
    }
}

/// Sends an answer.
///
/// # Errors
/// If the client is gone.
pub fn send(mut stream: &UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

fn execute(command: &Command, engine: &Engine) -> Answer {
    let outcome = match command {
        Command::Status => Ok(Answer::Status {
            is_on: engine.is_on(),
            process: std::process::id(),
        }),
        Command::Counters => Ok(Answer::Counters {
            counters: Box::new(engine.counters()),
        }),
        Command::Cut { survival } => engine.cut(*survival).map(|report| Answer::Cut { report }),
        Command::PowerOn => {
            engine.power_on();
            Ok(Answer::Done)
        }
        Command::Fault { fault } => engine.fault(*fault).map(|offsets| match fault {
            Fault::BitRot { .. } => Answer::Rotten { offsets },
            _ => Answer::Done,
        }),
        Command::Pace { pace } => engine.set_pace(*pace).map(|()| Answer::Done),
        Command::Stop => Ok(Answer::Done),
    };
    outcome.unwrap_or_else(|error| Answer::Refused {
        reason: error.to_string(),
    })
}
