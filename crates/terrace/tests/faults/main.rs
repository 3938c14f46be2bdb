//! Full devices, failing devices, damaged files: reading an acknowledged value returns it or an
//! error, never other bytes, and never panics.
#![allow(clippy::unwrap_used, missing_docs)]

mod awaited;
mod bench;
mod checkpoint;
mod clean;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod device;
mod every_file;
mod full;
mod full_model;
mod full_tiers;
#[path = "../common/held.rs"]
mod held;
mod refusals;
mod space;
mod visible;
mod way_out;
mod wrong;
