//! The words of the interface: options, objects, batches, errors, figures, rules of placement.

pub(crate) mod batch;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod group;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod placement;
pub(crate) mod ram;
pub(crate) mod stats;
