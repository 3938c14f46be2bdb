//! The command line of the drives: `emulated-drives …`, or a subcommand of another program.

use super::Counters;
use super::fault::Fault;
use super::handle::{Drive, DriveSpec};
use super::measure::{MeasureArguments, measure};
use super::media::Survival;
use super::place;
use super::profile::Profile;
use crate::Outcome;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `drive`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for runtime state [default: PROGRAM in $XDG_RUNTIME_DIR or /run, named after this
    /// program, or $PROGRAM_RUNTIME, its name in capitals].
    #[arg(long, global = true)]
    runtime: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a drive with an empty ext4 on it.
    Create {
        #[command(flatten)]
        spec: DriveSpec,
        /// Mount it too, and print where.
        #[arg(long)]
        mount: bool,
    },
    /// Mounts a drive's ext4 and prints where.
    Mount {
        /// The drive.
        name: String,
    },
    /// Unmounts a drive's ext4.
    Umount {
        /// The drive.
        name: String,
        /// End its daemon too; its contents are kept.
        #[arg(long)]
        stop: bool,
    },
    /// Shows all drives.
    List,
    /// Removes drives: mounts, loop devices, daemons, files.
    Remove {
        /// The drives.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Switches the power off: unflushed writes are at risk, and every request fails with EIO.
    Cut {
        /// The drive.
        name: String,
        /// What happens to unflushed writes.
        #[arg(long, default_value = "any")]
        survival: Survival,
    },
    /// Switches the power on after a cut; mount the drive after that.
    Restore {
        /// The drive.
        name: String,
    },
    /// Adds a fault, or ends them all.
    Fault {
        /// The drive.
        name: String,
        #[command(subcommand)]
        fault: Fault,
    },
    /// Prints a drive's counters over its whole life.
    Counters {
        /// The drive.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows the profiles that are compiled in.
    Profiles,
    /// Measures profiles with fio, on drives of its own, and compares with the targets.
    Measure(MeasureArguments),
}

/// Runs the subcommand.
///
/// # Errors
/// If the action fails.
pub fn run(arguments: Arguments) -> Outcome {
    let root = arguments.runtime.clone().unwrap_or_else(place::root);
    let open = |name: &str| match &arguments.runtime {
        Some(root) => Drive::open_in(root, name),
        None => Drive::open(name),
    };
    match arguments.action {
        Action::Create { spec, mount } => {
            let drive = Drive::create_in(&root, spec)?;
            if mount {
                println!("{}", drive.mount()?.display());
            }
            Ok(())
        }
        Action::Mount { name } => {
            println!("{}", open(&name)?.mount()?.display());
            Ok(())
        }
        Action::Umount { name, stop } if stop => open(&name)?.stop(),
        Action::Umount { name, .. } => open(&name)?.unmount(),
        Action::List => list(&Drive::all(&root)?),
        Action::Remove { names } => names.iter().try_for_each(|name| open(name)?.remove()),
        Action::Cut { name, survival } => {
            let report = open(&name)?.cut(survival)?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Action::Restore { name } => open(&name)?.restore(),
        Action::Fault { name, fault } => open(&name)?.fault(fault),
        Action::Counters { name, json } => show(&open(&name)?.counters()?, json),
        Action::Profiles => profiles(),
        Action::Measure(arguments) => measure(arguments),
    }
}

fn list(drives: &[Drive]) -> Outcome {
    println!(
        "{:<20} {:<16} {:>8} {:<8} {:<12} mounted at",
        "name", "profile", "GiB", "power", "device"
    );
    for drive in drives {
        let description = drive.description()?;
        let power = match drive.is_on() {
            Some(true) => "on",
            Some(false) => "off",
            None => "stopped",
        };
        let device = drive
            .device()
            .map_or_else(|| "-".to_owned(), |device| device.display().to_string());
        let point = if drive.is_mounted() {
            drive.mount_point().display().to_string()
        } else {
            "-".to_owned()
        };
        let gib = description.bytes as f64 / f64::from(1 << 30);
        let profile = description.profile.name;
        println!(
            "{:<20} {profile:<16} {gib:>8.1} {power:<8} {device:<12} {point}",
            drive.name()
        );
    }
    Ok(())
}

fn show(counters: &Counters, json: bool) -> Outcome {
    if json {
        println!("{}", serde_json::to_string(counters)?);
        return Ok(());
    }
    for (name, traffic) in [("reads", counters.reads), ("writes", counters.writes)] {
        println!(
            "{name:<8} {:>12} requests {:>16} bytes, {} sequential, {} random, {:.3} s waited",
            traffic.requests,
            traffic.bytes,
            traffic.sequential,
            traffic.random,
            traffic.waited_nanoseconds as f64 / 1e9
        );
    }
    println!("late     {:>12.3} s", counters.late_nanoseconds as f64 / 1e9);
    println!("flushes  {:>12}", counters.flushes);
    println!("failed   {:>12}", counters.failed);
    println!("cuts     {:>12}", counters.cuts);
    println!("busy     {:>12.3} s", counters.busy_nanoseconds as f64 / 1e9);
    println!(
        "in memory {:>11} writes {:>16} bytes",
        counters.pending_writes, counters.pending_bytes
    );
    let internals = &counters.internals;
    println!(
        "inside: {:.3} s at work, {} positionings, {} reads from its cache, {} pages moved, {} blocks erased",
        internals.busy_nanoseconds as f64 / 1e9,
        internals.positionings,
        internals.cache_hits,
        internals.pages_moved,
        internals.blocks_erased
    );
    Ok(())
}

fn profiles() -> Outcome {
    for name in Profile::names() {
        println!("{name:<16} {}", Profile::find(name)?.description);
    }
    Ok(())
}
