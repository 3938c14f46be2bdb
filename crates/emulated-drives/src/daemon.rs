//! The daemon process of a drive: it has the drive's cache, its clock and the FUSE connection, and
//! outlives its creator.
//!
//! On `stop`, SIGTERM or SIGINT it writes its cache to the media, stores the counters and exits,
//! which closes the FUSE device: the kernel then fails all pending requests, so nothing hangs.
//! Failure: errors at start are written to its log, which the spawning command shows.

use super::control::{self, Status};
use super::engine::Engine;
use super::filesystem;
use super::media::Media;
use super::place::Place;
use crate::Outcome;
use parking_lot::Mutex;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for a daemon's start, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Environment variable of a daemon: the runtime directory of its drive.
const DIRECTORY: &str = "EMULATED_DRIVES_DAEMON";
/// Environment variable of the intermediate process: start the daemon and end.
const DETACH: &str = "EMULATED_DRIVES_DETACH";
/// Whether this program, when started again, can become a daemon.
static IS_PREPARED: AtomicBool = AtomicBool::new(false);

/// Starts the daemon of a drive, waits until it serves, and returns its process ID.
///
/// # Errors
/// If it does not start; the message contains its log.
pub fn spawn(place: &Place) -> Outcome<u32> {
    let log = File::create(place.log())?;
    let status = command(place.directory())?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .status()?;
    let said = || std::fs::read_to_string(place.log()).unwrap_or_default();
    if !status.success() {
        return Err(format!("the drive's daemon did not start: {}", said().trim()).into());
    }
    let begun = Instant::now();
    loop {
        match control::ask(&place.socket(), &control::Command::Status) {
            Ok(Status { process, .. }) => return Ok(process),
            _ if begun.elapsed() < START_PATIENCE && said().is_empty() => std::thread::sleep(Duration::from_millis(5)),
            _ => return Err(format!("the drive's daemon did not start: {}", said().trim()).into()),
        }
    }
}

/// The command that starts a daemon and ends at once: this program, which reads its task from the
/// environment ([`serve_if_asked`]). The arguments are only for lists of processes.
fn command(directory: &Path) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    if cfg!(test) {
        // The running program is the test harness; one of its tests becomes the daemon.
        command.args(["--exact", "tests::daemon_process", "--nocapture", "--quiet"]);
    } else if IS_PREPARED.load(Ordering::Relaxed) {
        command.args(["drive", "daemon"]).arg(directory);
    } else {
        // Without this check the program would start itself without end.
        return Err("this program has no daemons of drives: it must call emulated_drives::prepare first".into());
    }
    command.env(DIRECTORY, directory).env(DETACH, "1");
    Ok(command)
}

/// If this process was started as a drive's daemon, runs the daemon and exits. Otherwise allows
/// this process to start daemons from now on.
pub fn serve_if_asked() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        IS_PREPARED.store(true, Ordering::Relaxed);
        return;
    };
    let outcome = match std::env::var_os(DETACH) {
        Some(_) => detach(),
        None => run(directory),
    };
    if let Err(error) = &outcome {
        eprintln!("{error}");
    }
    std::process::exit(i32::from(outcome.is_err()));
}

/// Starts the daemon as a grandchild, so that the caller need not wait for its end.
fn detach() -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env_remove(DETACH);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    drop(child);
    Ok(())
}

/// Runs the daemon of a drive in this process until it is stopped.
fn run(directory: PathBuf) -> Outcome {
    // In a session of its own, so that no terminal's signals reach it. This fails harmlessly if it
    // is a session leader already.
    let _ = rustix::process::setsid();
    // This process must not free memory by writing to the drives that it serves. It needs a
    // capability that root may lack; without it only a machine out of memory could hang.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    // The drive must not slow down when the host's processors are busy.
    let _ = rustix::process::setpriority_process(None, -20);
    // Where the kernel schedules sessions first, priority counts only within this one.
    let _ = std::fs::write("/proc/self/autogroup", "-20");
    let place = Place::at(directory);
    let description = place.description()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&description.backing_file)?;
    let media = Media::new(file, description.profile.sector_bytes);
    let counters = place.counters();
    let engine = Engine::new(
        description.profile,
        description.bytes,
        description.seed,
        media,
        counters,
    );
    let engine = Arc::new(engine);

    let _ = std::fs::remove_file(place.socket());
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let session = filesystem::mount(engine.clone(), &place.fuse(), &description.name)
        .map_err(|error| format!("cannot mount FUSE at {}: {error}", place.fuse().display()))?;
    let listener = UnixListener::bind(place.socket())
        .map_err(|error| format!("cannot listen at {}: {error}", place.socket().display()))?;

    let ending = Arc::new(Ending {
        engine: engine.clone(),
        place,
        is_ending: Mutex::new(false),
    });
    let timing = engine.clone();
    std::thread::Builder::new()
        .name("clock".into())
        .spawn(move || timing.keep_time())?;
    let by_signal = ending.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            by_signal.end(None);
        }
    })?;
    let by_command = ending.clone();
    std::thread::Builder::new().name("control".into()).spawn(move || {
        control::serve(&listener, &engine, move |stream| by_command.end(Some(&stream)));
    })?;
    // Returns when the file system is unmounted.
    let outcome = session.run();
    if let Err(error) = outcome {
        eprintln!("the FUSE session ended: {error}");
    }
    ending.end(None);
    Ok(())
}

struct Ending {
    engine: Arc<Engine>,
    place: Place,
    is_ending: Mutex<bool>,
}

impl Ending {
    /// Shuts down cleanly and exits the process.
    fn end(&self, asked_by: Option<&std::os::unix::net::UnixStream>) {
        let mut is_ending = self.is_ending.lock(); // held until the exit: only one thread gets here
        if std::mem::replace(&mut *is_ending, true) {
            return;
        }
        let closed = self.engine.close();
        let closed = closed.map_err(|error| format!("writes in memory are lost: {error}"));
        if let Err(error) = &closed {
            eprintln!("{error}");
        }
        if let Err(error) = self.place.keep_counters(&self.engine.counters()) {
            eprintln!("{error}");
        }
        let _ = std::fs::remove_file(self.place.socket());
        if let Some(stream) = asked_by {
            let _ = control::send(stream, closed.map(|()| Value::Null).map_err(Into::into));
        }
        std::process::exit(0);
    }
}
