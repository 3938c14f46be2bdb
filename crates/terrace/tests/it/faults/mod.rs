//! Full devices, failing devices, damaged files: reading an acknowledged value returns it or an
//! error, never other bytes, and never panics.

mod awaited;
mod bench;
mod checkpoint;
mod clean;
mod damage;
mod device;
mod every_file;
mod full;
mod full_model;
mod full_tiers;
mod held;
mod missing;
mod refusals;
mod replaced;
mod space;
mod visible;
mod way_out;
mod wrong;
