//! Types of the public interface: options, objects, batches, errors, statistics, placement rules.

pub(crate) mod batch;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod group;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod placement;
pub(crate) mod ram;
pub(crate) mod scan_range;
pub(crate) mod stats;
