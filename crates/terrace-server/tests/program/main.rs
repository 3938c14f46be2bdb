//! The program as people and scripts use it: commands, the service of the page, backups. What it
//! answers to S3 clients is in `s3/` beside this directory.
#![allow(clippy::unwrap_used, missing_docs)]

mod admin;
mod backup;
mod command_line;
#[path = "../common/mod.rs"]
mod common;
mod serve;
