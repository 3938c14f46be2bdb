//! Failures of commands: the message printed after `error:`, and the exit code.
//!
//! The codes are part of the interface: scripts branch on them. docs/cli.md lists them.

use serde::{Deserialize, Serialize};
use std::{fmt, io, process::ExitCode};
use terrace::Error;

/// Shorthand for what commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Exit codes, named by what the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Code {
    /// Something failed: I/O, a directory that holds no store, an address in use.
    Error = 1,
    /// The command line, environment or configuration file is wrong.
    Usage = 2,
    /// No object has this key.
    NotFound = 3,
    /// The condition of a conditional write did not hold.
    Condition = 4,
    /// Stored bytes are damaged.
    Corruption = 5,
    /// Another process has the store open.
    InUse = 6,
    /// A tier is full.
    OutOfSpace = 7,
    /// An import finished, but some files could not be imported.
    Partial = 8,
    /// Ended by a signal before the work was done.
    Interrupted = 130,
}

/// The codes and what they mean, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed: input or output, no store there, address in use, …
  2    wrong usage: command line, environment or configuration file
  3    no object has this key
  4    the condition of a write did not hold (put --if-absent)
  5    stored bytes are damaged
  6    another process has the store open
  7    a tier is full
  8    import: some files could not be imported
  130  interrupted";

/// A failed command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// The message to print; empty if the command has printed it already.
    pub message: String,
}

impl Failure {
    /// A failure with `code`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A general error.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Code::Error, message)
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// An operating-system error with the operation that failed.
    pub fn io(context: impl fmt::Display, error: &io::Error) -> Self {
        // Engine errors travel through `std::io::Read` inside an io::Error; their kind decides the
        // code.
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(inner) => inner.clone().into(),
            None => Self::error(format!("{context}: {error}")),
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid(_) => Code::Usage,
            Error::ConditionFailed { .. } => Code::Condition,
            Error::OutOfSpace { .. } => Code::OutOfSpace,
            Error::Corruption { .. } => Code::Corruption,
            Error::Locked(_) => Code::InUse,
            _ => Code::Error,
        };
        Self::new(code, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_errors_keep_their_code_through_io() {
        let wrapped = io::Error::other(Error::corruption("block 7", "checksum"));
        assert_eq!(Failure::io("reading", &wrapped).code, Code::Corruption);
        let plain = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(Failure::io("reading", &plain).code, Code::Error);
    }
}
