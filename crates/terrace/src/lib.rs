//! Terrace: a tiered object store. See ARCHITECTURE.md for a walk through one put and one get.
mod batch;
mod error;
#[doc(hidden)]
pub mod flash;
pub mod io;
mod object;
mod options;
mod stats;
mod store;

pub use batch::Batch;
pub use error::{Error, Result, Tier};
pub use object::{
    ATTRIBUTES_BYTES_MAX, Attributes, HomeKind, KEY_BYTES_MAX, Object, ObjectInfo, VALUE_BYTES_MAX, Version,
};
pub use options::{Condition, Durability, Options, PutOptions, WriterOptions};
pub use stats::*;
pub use store::{Reader, RepairReport, Scan, ScanItem, ScanRange, Snapshot, Store, ValueWriter, VerifyReport};
