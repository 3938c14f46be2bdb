//! The control socket of a drive's daemon: one JSON document per line, a command in, an answer or
//! why there is none out.
//!
//! Failure: a line that is not a command is answered with an error. The client distinguishes a
//! daemon that is gone from one that refuses.

use super::engine::{Engine, Pace};
use super::fault::Fault;
use super::media::Survival;
use crate::Outcome;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
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

/// Answer to [`Command::Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether the drive has power.
    pub is_on: bool,
    /// The daemon's process.
    pub process: u32,
}

/// Sends a command to the daemon at a socket, and returns its answer.
pub fn ask<T: DeserializeOwned>(socket: &Path, command: &Command) -> Outcome<T> {
    let gone = |error: std::io::Error| format!("no daemon answers at {}: {error}", socket.display());
    let stream = UnixStream::connect(socket).map_err(gone)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write_line(&stream, command).map_err(gone)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(gone)?;
    if answer.is_empty() {
        return Err(format!("the daemon at {} ended before it answered", socket.display()).into());
    }
    let answer: Result<T, String> = serde_json::from_str(&answer)
        .map_err(|_| format!("the daemon answered something else: {answer}; it may be of another version"))?;
    Ok(answer?)
}

/// Writes a value as a line.
fn write_line(mut stream: &UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    stream.write_all((serde_json::to_string(value)? + "\n").as_bytes())
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
            Err(error) => Err(format!("not a command: {error}").into()),
        };
        if send(&stream, answer).is_err() {
            return;
        }
    }
}

/// Sends an answer, or why there is none.
pub fn send(stream: &UnixStream, answer: Outcome<Value>) -> std::io::Result<()> {
    write_line(stream, &answer.map_err(|error| error.to_string()))
}

fn execute(command: &Command, engine: &Engine) -> Outcome<Value> {
    Ok(match command {
        Command::Status => serde_json::to_value(Status {
            is_on: engine.is_on(),
            process: std::process::id(),
        })?,
        Command::Counters => serde_json::to_value(engine.counters())?,
        Command::Cut { survival } => serde_json::to_value(engine.cut(*survival)?)?,
        Command::PowerOn => serde_json::to_value(engine.power_on())?,
        Command::Fault { fault } => serde_json::to_value(engine.fault(*fault)?)?,
        Command::Pace { pace } => serde_json::to_value(engine.set_pace(*pace)?)?,
        Command::Stop => Value::Null,
    })
}
