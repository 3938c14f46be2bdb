//! Tests of the drives as a whole.
#![allow(clippy::unwrap_used)]

/// The daemon process of the drives of tests, if a test started it; otherwise nothing. See
/// [`super::daemon`].
#[test]
fn daemon_process() {
    super::daemon::serve_if_asked();
}

mod engine;
mod media;
mod whole;
