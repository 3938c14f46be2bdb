//! Reports of the writer process: one line of JSON each on its standard output.
//!
//! Each line is written by one call and fits into a pipe's atomic write, so lines of several
//! threads do not mix, and the last one before a kill is whole or absent. A line that does not
//! parse is ignored.

use serde::{Deserialize, Serialize};
use std::{
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

/// Longest text: a line fits into a pipe's atomic write.
const TEXT_CHARACTERS_MAX: usize = 1_000;

/// One change of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Length of the value of a put; `None` for a delete.
    pub put: Option<u64>,
}

impl Change {
    /// A change of this key.
    pub fn new(key: &str, put: Option<u64>) -> Self {
        let key = key.to_owned();
        Self { key, put }
    }
}

/// An object in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its version.
    pub version: u64,
    /// The operation that wrote it.
    pub op: u64,
    /// Length of its value.
    pub length: u64,
}

/// Counters of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Segments freed.
    pub recycled: u64,
    /// Flushes of the index.
    pub flushes: u64,
    /// Bytes written again into the log.
    pub reinserted_bytes: u64,
    /// Bytes destaged.
    pub destaged_bytes: u64,
}

/// A report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The store is open.
    Opened,
    /// An object in the store.
    Holds(String, Held),
    /// All objects were listed and `verify` has ended.
    Ready,
    /// An operation begins.
    Try {
        /// Its number.
        op: u64,
        /// Whether it is acknowledged only when durable.
        is_sync: bool,
        /// Its kind.
        kind: String,
        /// Its changes.
        changes: Vec<Change>,
    },
    /// An operation was acknowledged.
    Done {
        /// Its number.
        op: u64,
        /// The version it got.
        version: u64,
    },
    /// A reader found a value that an operation has written.
    Read {
        /// The operation's number.
        op: u64,
        /// The version that was found.
        version: u64,
    },
    /// An operation's condition did not hold.
    Refused {
        /// Its number.
        op: u64,
    },
    /// A check of the writer failed: loss or damage.
    Broken(String),
    /// A call returned an error: a failure, if the power was on.
    Failed(String),
    /// An event of the engine.
    Event(String),
    /// A warning of the engine.
    Note(String),
    /// Counters.
    Counts(Counts),
}

impl Said {
    /// Writes the report. If the parent has gone, this process ends.
    pub fn say(mut self) {
        // In one call: no other line may be mixed in, and a kill may not split it.
        static UNHEARD: AtomicU64 = AtomicU64::new(0);
        if let Self::Broken(text) | Self::Failed(text) | Self::Event(text) | Self::Note(text) = &mut self {
            *text = text.chars().take(TEXT_CHARACTERS_MAX).collect();
        }
        let line = serde_json::to_string(&self).unwrap_or_default() + "\n";
        let mut out = std::io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err()
            && UNHEARD.fetch_add(1, Ordering::Relaxed) == 0
        {
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A kill may not split a line: pipe(7), PIPE_BUF.
    #[test]
    fn the_longest_lines_fit_into_an_atomic_write() {
        let change = Change::new("shared/000000", Some(u64::MAX));
        let longest = [
            Said::Try {
                op: u64::MAX,
                is_sync: false,
                kind: "endless-stream".to_owned(),
                changes: vec![change; 16],
            },
            Said::Broken("'\n".repeat(TEXT_CHARACTERS_MAX / 2)),
        ];
        for said in longest {
            let line = serde_json::to_string(&said).unwrap();
            assert!(line.len() < 4096 && !line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Said>(&line).unwrap(), said);
            assert!(serde_json::from_str::<Said>(&line[..line.len() - 1]).is_err());
        }
    }
}
