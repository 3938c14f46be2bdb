//! Encryption settings of requests.

pub use terrace_objects::{
    crypt::*,
    read::{check_key, unlock},
};

pub mod request;
