//! Emulated drives: block devices with the timing of a disk or an old SSD, whose power can be cut.
//!
//! A drive is a file in a FUSE file system of ours (`filesystem`), attached to a loop device, with
//! ext4 on it. Its daemon (`daemon`) answers each request when the physical model (`model`) says
//! so, keeps unflushed writes in memory (`media`), and counts (`counters`). Users hold a [`Drive`],
//! after one call of [`prepare`]; docs/drives.md has the parameters and their sources.
//!
//! Invariants: a cut loses nothing that was flushed. The same requests at the same times give the
//! same answers at the same times; the same seed gives the same cut. Failure: each module says what
//! happens on its own; nothing here leaves a mount or a process behind.

mod command;
mod control;
mod counters;
mod daemon;
mod engine;
mod fault;
mod filesystem;
pub mod fio;
mod handle;
mod measure;
mod media;
mod model;
mod place;
mod profile;
mod random;
mod system;
#[cfg(test)]
mod tests;

pub use command::{Arguments, run};
pub use counters::{Counters, Traffic};
pub use engine::Pace;
pub use fault::Fault;
pub use handle::{Drive, DriveSpec};
pub use measure::{MeasureArguments, measure};
pub use media::{CutReport, Survival};
pub use profile::Profile;

/// What calls return; the error says in words what to do.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// For the first line of `main` of a program that makes or mounts drives. The process behind a
/// drive is that program, started again: then this call serves the drive and does not return.
/// `program` names the directory of its drives, `/run/PROGRAM` unless the environment says another.
pub fn prepare(program: &'static str) {
    place::name_after(program);
    daemon::serve_if_asked();
}
