//! Output of commands.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::io::{self, Write as _};

/// Prints a line of JSON.
///
/// # Errors
/// Errors of the operating system.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::error(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Prints to standard output.
///
/// # Errors
/// Errors of the operating system.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    finish_output(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// A reader that went away (`terrace ls | head`) is the end of the work, not an error.
///
/// # Errors
/// Errors of the operating system, but for that one.
pub fn finish_output(result: io::Result<()>) -> Outcome {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::io("writing standard output", &error)),
        Ok(()) => Ok(()),
    }
}
