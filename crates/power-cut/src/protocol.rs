//! Reports of the writer process: one line each on its standard output.
//!
//! Each line is written by one call and fits into a pipe's atomic write, so lines of several
//! threads do not mix, and the last one before a kill is whole or absent. A line that does not
//! parse is ignored.

use std::{
    fmt,
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

/// One change of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Length of the value of a put; `None` for a delete.
    pub put: Option<u64>,
}

/// An object in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its version.
    pub version: u64,
    /// The operation that wrote it.
    pub op: u64,
    /// Length of its value.
    pub length: u64,
}

/// Counters of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flat = |text: &str| text.replace('\n', " ").chars().take(1_000).collect::<String>();
        match self {
            Self::Opened => write!(f, "opened"),
            Self::Holds(key, held) => write!(f, "holds {key} {} {} {}", held.version, held.op, held.length),
            Self::Ready => write!(f, "ready"),
            Self::Try {
                op,
                is_sync,
                kind,
                changes,
            } => {
                write!(f, "try {op} {} {kind}", if *is_sync { "sync" } else { "buffered" })?;
                for change in changes {
                    match change.put {
                        Some(length) => write!(f, " +{}:{length}", change.key)?,
                        None => write!(f, " -{}", change.key)?,
                    }
                }
                Ok(())
            }
            Self::Done { op, version } => write!(f, "done {op} {version}"),
            Self::Read { op, version } => write!(f, "read {op} {version}"),
            Self::Refused { op } => write!(f, "refused {op}"),
            Self::Broken(text) => write!(f, "broken {}", flat(text)),
            Self::Failed(text) => write!(f, "failed {}", flat(text)),
            Self::Event(text) => write!(f, "event {}", flat(text)),
            Self::Note(text) => write!(f, "note {}", flat(text)),
            Self::Counts(counts) => write!(
                f,
                "counts {} {} {} {}",
                counts.recycled, counts.flushes, counts.reinserted_bytes, counts.destaged_bytes
            ),
        }
    }
}

impl Said {
    /// Parses a line. `None` if it is not a report.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(match word {
            "opened" => Self::Opened,
            "ready" => Self::Ready,
            "done" => Self::Done {
                op: number()?,
                version: number()?,
            },
            "read" => Self::Read {
                op: number()?,
                version: number()?,
            },
            "refused" => Self::Refused { op: number()? },
            "counts" => Self::Counts(Counts {
                recycled: number()?,
                flushes: number()?,
                reinserted_bytes: number()?,
                destaged_bytes: number()?,
            }),
            "holds" => {
                let (key, numbers) = rest.split_once(' ')?;
                let numbers: Vec<u64> = numbers
                    .split(' ')
                    .map(|word| word.parse().ok())
                    .collect::<Option<_>>()?;
                let &[version, op, length] = &numbers[..] else {
                    return None;
                };
                Self::Holds(key.to_owned(), Held { version, op, length })
            }
            "try" => {
                let op = number()?;
                let is_sync = match words.next()? {
                    "sync" => true,
                    "buffered" => false,
                    _ => return None,
                };
                Self::Try {
                    op,
                    is_sync,
                    kind: words.next()?.to_owned(),
                    changes: words.map(Change::parse).collect::<Option<_>>()?,
                }
            }
            "broken" => Self::Broken(rest.to_owned()),
            "failed" => Self::Failed(rest.to_owned()),
            "event" => Self::Event(rest.to_owned()),
            "note" => Self::Note(rest.to_owned()),
            _ => return None,
        })
    }

    /// Writes the report. If the parent has gone, this process ends.
    pub fn say(&self) {
        // In one call: no other line may be mixed in, and a kill may not split it.
        static UNHEARD: AtomicU64 = AtomicU64::new(0);
        let line = format!("{self}\n");
        let mut out = std::io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err()
            && UNHEARD.fetch_add(1, Ordering::Relaxed) == 0
        {
            std::process::exit(1);
        }
    }
}

impl Change {
    fn parse(word: &str) -> Option<Self> {
        if let Some(key) = word.strip_prefix('-') {
            let key = key.to_owned();
            return Some(Self { key, put: None });
        }
        let (key, length) = word.strip_prefix('+')?.split_once(':')?;
        Some(Self {
            key: key.to_owned(),
            put: Some(length.parse().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let held = Held {
            version: 7,
            op: 9,
            length: 300,
        };
        let changes = vec![
            Change {
                key: "a/1".to_owned(),
                put: Some(24),
            },
            Change {
                key: "a/2".to_owned(),
                put: None,
            },
        ];
        let all = [
            Said::Opened,
            Said::Holds("a/1".to_owned(), held),
            Said::Ready,
            Said::Try {
                op: 3,
                is_sync: true,
                kind: "batch".to_owned(),
                changes,
            },
            Said::Done { op: 3, version: 12 },
            Said::Read { op: 3, version: 12 },
            Said::Refused { op: 4 },
            Said::Broken("value: two words".to_owned()),
            Said::Failed("put: no space".to_owned()),
            Said::Event("drained a segment".to_owned()),
            Said::Note("something".to_owned()),
            Said::Counts(Counts {
                recycled: 1,
                flushes: 2,
                reinserted_bytes: 3,
                destaged_bytes: 4,
            }),
        ];
        for said in all {
            assert_eq!(Said::parse(&said.to_string()), Some(said));
        }
    }

    #[test]
    fn remnants_are_nothing() {
        for line in [
            "",
            "hold",
            "holds a/1 7",
            "try 3",
            "try 3 sync put a",
            "done 3",
            "done 3 x",
        ] {
            assert_eq!(Said::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_text_stays_on_one_line() {
        assert_eq!(Said::Broken("one\ntwo".to_owned()).to_string(), "broken one two");
    }
}
