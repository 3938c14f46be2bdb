//! Tests of the drives as a whole.
#![allow(clippy::unwrap_used)]

/// The daemon of drives that tests create, when one of them started this; else nothing. See
/// [`super::daemon`].
#[test]
fn daemon_process() {
    super::daemon::serve_if_asked();
}

mod engine;
mod media;
mod whole;
