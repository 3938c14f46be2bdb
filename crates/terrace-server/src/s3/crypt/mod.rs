//! Encryption, as requests ask for it.

pub use terrace_objects::{
    crypt::*,
    read::{check_key, unlock},
};

pub mod request;
