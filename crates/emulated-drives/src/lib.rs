//! Emulated drives: block devices with the timing of a disk or an old SSD, whose power can be cut.
//!
//! A drive is a file in our FUSE file system (`filesystem`), attached to a loop device, with ext4
//! on it. Its daemon (`daemon`) answers each request at the time of the physical model (`model`),
//! keeps unflushed writes in memory (`media`), and counts (`counters`). A program calls [`prepare`]
//! once and then uses [`Drive`]; docs/drives.md has the parameters and their sources.
//!
//! Invariants: a cut loses nothing that was flushed. The same requests at the same times give the
//! same answers at the same times; the same seed gives the same cut. Failure: each module documents
//! its own; no mount or process is left behind.

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

/// Results of this crate; errors are messages.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Must be called first in `main` of a program that creates or mounts drives. A drive's daemon is
/// the same program, started again; in that process this call serves the drive and does not return.
/// `program` names the directory of its drives: `/run/PROGRAM`, unless the environment has another.
pub fn prepare(program: &'static str) {
    place::name_after(program);
    daemon::serve_if_asked();
}
