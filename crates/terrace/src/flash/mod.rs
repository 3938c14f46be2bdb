//! The flash tier.

pub mod address;
pub mod index;
