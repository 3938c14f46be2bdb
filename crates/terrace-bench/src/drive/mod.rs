//! Emulated drives: block devices with the timing of a disk or an old SSD, whose power can be cut.
//!
//! A drive is a file in a FUSE file system of ours ([`filesystem`]), attached to a loop device,
//! with ext4 on it. Its daemon ([`daemon`]) answers each request when the physical [`model`] says
//! so, keeps unflushed writes in memory ([`media`]), and counts ([`counters`]). Users hold a
//! [`Drive`]; docs/drives.md has the parameters and their sources.
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
mod figures;
mod filesystem;
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

// The interface for the parts of this program that run on drives; not all of it is used yet.
pub use command::{Arguments, run};
#[allow(unused_imports)]
pub use counters::{Counters, Traffic};
#[allow(unused_imports)]
pub use engine::Pace;
pub use fault::Fault;
#[allow(unused_imports)]
pub use handle::{Drive, DriveSpec};
pub use measure::{MeasureArguments, measure};
#[allow(unused_imports)]
pub use media::{CutReport, Survival};
#[allow(unused_imports)]
pub use profile::Profile;
