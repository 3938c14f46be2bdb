//! Fuzzes on stable Rust: mutates the seeds of a target for some seconds, and saves an input that
//! breaks it.
//!
//! Each input is in `artifacts/NAME/in-flight` while it runs, so that one that kills the process
//! (an abort, a memory limit, an endless loop ended by a signal) is not lost either. An input that
//! panics is saved as `artifacts/NAME/crash-…`. Runs follow from the printed seed.
//!
//! Exit codes: 0 nothing found, 1 an input broke a target, 2 the run itself could not be made.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use terrace_fuzz::{
    TARGETS, Target,
    mutation::{Generator, Pool},
    names,
};

const USAGE: &str = "\
usage: mutate [--target NAME|all] [--seconds N] [--inputs N] [--seed N]   mutate seeds, each target that long
       mutate --target NAME --input FILE                                  run one input, as saved by a finding
       mutate --list                                                      names of the targets";

/// Longest time one input may take, on a machine that is busy with other things.
const INPUT_SECONDS_MAX: u64 = 60;

struct Settings {
    targets: Vec<(&'static str, Target)>,
    seconds: u64,
    inputs: u64,
    seed: u64,
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        TARGETS.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let settings = match settings(&arguments) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match &settings.input {
        Some(path) => run_input(&settings, path),
        None => settings
            .targets
            .iter()
            .try_fold(true, |well, (name, target)| Ok(fuzz(name, *target, &settings)? && well)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutate: {error}");
            ExitCode::from(2)
        }
    }
}

fn settings(arguments: &[String]) -> Result<Settings, String> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut settings = Settings {
        targets: TARGETS.to_vec(),
        seconds: 20,
        inputs: u64::MAX,
        seed: u64::from(clock.subsec_nanos()) ^ clock.as_secs(),
        input: None,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name}: a value is missing, or the option is unknown"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--target" if value == "all" => settings.targets = TARGETS.to_vec(),
            "--target" => {
                let (known, target) = TARGETS
                    .iter()
                    .find(|(known, _)| known == value)
                    .ok_or_else(|| format!("no target {value}; there are: {}", names()))?;
                settings.targets = vec![(known, *target)];
            }
            "--seconds" => settings.seconds = number()?,
            "--inputs" => settings.inputs = number()?,
            "--seed" => settings.seed = number()?,
            "--input" => settings.input = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    if settings.input.is_some() && settings.targets.len() != 1 {
        return Err("--input needs --target NAME".to_owned());
    }
    Ok(settings)
}

/// Runs one input with its panic shown.
fn run_input(settings: &Settings, path: &Path) -> io::Result<bool> {
    let data = fs::read(path).map_err(|error| within(path, &error))?;
    let (name, target) = settings.targets[0];
    let accepted = target(&data);
    println!(
        "{name}: {} bytes {}",
        data.len(),
        if accepted { "accepted" } else { "refused" }
    );
    Ok(true)
}

/// Fuzzes one target. `Ok(false)` if an input broke it.
fn fuzz(name: &str, target: Target, settings: &Settings) -> io::Result<bool> {
    let seeds = read_seeds(&here().join("seeds").join(name))?;
    let artifacts = here().join("artifacts").join(name);
    fs::create_dir_all(&artifacts).map_err(|error| within(&artifacts, &error))?;
    let in_flight = InFlight::create(artifacts.join("in-flight"))?;
    println!("{name}: {} seed inputs, --seed {}", seeds.len(), settings.seed);
    io::stdout().flush()?;

    // A panic is a finding here, and told once; its message comes back from `attempt`.
    panic::set_hook(Box::new(|_| {}));
    let mut generator = Generator::new(settings.seed);
    let (mut input, mut inputs, mut accepted) = (Vec::new(), 0_u64, 0_u64);
    let started = Instant::now();
    let mut broken = None;
    // The seeds first, as they are; a seed that a decoder refuses is worth little, and says so.
    for seed in &seeds {
        inputs += 1;
        match attempt(target, seed, &in_flight)? {
            Ok(true) => accepted += 1,
            Ok(false) => {}
            Err(message) => broken = Some((seed.clone(), message)),
        }
    }
    println!("{name}: {accepted} of the seed inputs accepted");
    let mut pool = Pool::new(seeds);
    while broken.is_none() && inputs < settings.inputs && started.elapsed() < Duration::from_secs(settings.seconds) {
        for _ in 0..64 {
            pool.next_input(&mut input, &mut generator);
            inputs += 1;
            match attempt(target, &input, &in_flight)? {
                Ok(true) => {
                    accepted += 1;
                    pool.keep(&input, &mut generator);
                }
                Ok(false) => {}
                Err(message) => {
                    broken = Some((input.clone(), message));
                    break;
                }
            }
        }
    }
    in_flight.remove()?;
    println!(
        "{name}: {inputs} inputs in {:.1} s, {accepted} accepted",
        started.elapsed().as_secs_f64()
    );
    let Some((input, message)) = broken else {
        return Ok(true);
    };
    let path = artifacts.join(format!("crash-{:016x}", fingerprint(&input)));
    fs::write(&path, &input).map_err(|error| within(&path, &error))?;
    println!(
        "{name}: BROKEN by {} bytes, saved as {}: {message}",
        input.len(),
        path.display()
    );
    println!("run it again with: mutate --target {name} --input {}", path.display());
    Ok(false)
}

/// Runs a target on an input; a panic comes back as its message.
fn attempt(target: Target, input: &[u8], in_flight: &InFlight) -> io::Result<Result<bool, String>> {
    in_flight.begin(input)?;
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| target(input)));
    in_flight.end();
    Ok(outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("panicked")
            .to_owned()
    }))
}

/// The input now running, on disk; a watchdog ends the process if it runs too long.
struct InFlight {
    path: PathBuf,
    file: File,
    /// Milliseconds after `epoch` at which the running input started; 0 while none runs.
    started_ms: Arc<AtomicU64>,
    epoch: Instant,
}

impl InFlight {
    fn create(path: PathBuf) -> io::Result<Self> {
        let file = File::create(&path).map_err(|error| within(&path, &error))?;
        let (started_ms, epoch) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let (watched, shown) = (Arc::downgrade(&started_ms), path.clone());
        thread::spawn(move || {
            while let Some(started_ms) = watched.upgrade() {
                let started = started_ms.load(Ordering::Relaxed);
                if started != 0 && elapsed_ms(epoch).saturating_sub(started) > INPUT_SECONDS_MAX * 1000 {
                    eprintln!(
                        "an input runs longer than {INPUT_SECONDS_MAX} s; it is {}",
                        shown.display()
                    );
                    std::process::exit(1);
                }
                drop(started_ms);
                thread::sleep(Duration::from_millis(200));
            }
        });
        Ok(Self {
            path,
            file,
            started_ms,
            epoch,
        })
    }

    fn begin(&self, input: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(input, 0)?;
        self.started_ms.store(elapsed_ms(self.epoch).max(1), Ordering::Relaxed);
        Ok(())
    }

    fn end(&self) {
        self.started_ms.store(0, Ordering::Relaxed);
    }

    fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path).map_err(|error| within(&self.path, &error))
    }
}

fn elapsed_ms(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The files of a directory, in name order, so that a seed means the same run everywhere.
fn read_seeds(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(directory).map_err(|error| within(directory, &error))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read(path).map_err(|error| within(path, &error)))
        .collect()
}

/// The fuzz directory: cargo says it at run time; what it was at compile time serves without cargo.
fn here() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

fn within(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A name for an input (FNV-1a).
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
