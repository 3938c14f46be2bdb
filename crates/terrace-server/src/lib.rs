//! The rooms behind the `terrace` command.

pub mod import;
