//! Counters, and the small structures that they and the policies are made of.

pub(crate) mod counters;
pub(crate) mod moving_average;
pub(crate) mod striped;
