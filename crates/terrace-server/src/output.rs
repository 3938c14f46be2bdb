//! Output of commands.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write as _},
};

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

/// Prints a line to standard error. A pipe without a reader, or a log on a full disk, is no reason
/// to end: `eprintln!` would panic.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A reader that went away (`terrace ls | head`) is the end of the work, not an error.
///
/// # Errors
/// Errors of the operating system, but for that one.
pub fn finish_output(result: io::Result<()>) -> Outcome {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::io("writing the output", &error)),
        Ok(()) => Ok(()),
    }
}
