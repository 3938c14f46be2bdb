//! Resource usage of a run: processor time, RAM, and bytes to and from devices, from the kernel's
//! accounting of its processes.
//!
//! A figure that is not available is absent, never zero.

use serde::{Deserialize, Serialize};
use std::fs;

/// Ticks per second of the times in /proc/PID/stat; 100 in user space on every Linux platform
/// (time(7), USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// Resource usage of processes since their start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// In user and kernel mode.
    pub cpu_seconds: Option<f64>,
    /// RAM now, without mapped files.
    pub ram_bytes: Option<u64>,
    /// Peak RAM, including mapped files.
    pub ram_bytes_max: Option<u64>,
    /// Bytes read from devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to devices, or to the kernel's cache of them.
    pub written_bytes: Option<u64>,
}

impl Usage {
    /// Of this process, and of an engine's process if it has one.
    pub fn now(engine: Option<u32>) -> Self {
        let own = Self::of("self");
        match engine {
            None => own,
            Some(process) => own.plus(&Self::of(&process.to_string())),
        }
    }

    fn of(process: &str) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        let (status, io) = (read("status"), read("io"));
        let kib = |name| number(&status, name).map(|kib| kib << 10);
        Self {
            cpu_seconds: cpu_seconds(&read("stat")),
            ram_bytes: kib("RssAnon"),
            ram_bytes_max: kib("VmHWM"),
            read_bytes: number(&io, "read_bytes"),
            written_bytes: number(&io, "write_bytes"),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, other| one + other, |one, other| one + other)
    }

    /// Usage since an earlier reading; RAM is as of now.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ram_bytes: self.ram_bytes,
            ram_bytes_max: self.ram_bytes_max,
            ..self.with(earlier, |now, then| (now - then).max(0.0), u64::saturating_sub)
        }
    }

    fn with(&self, other: &Self, seconds: fn(f64, f64) -> f64, bytes: fn(u64, u64) -> u64) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(bytes(one?, other?));
        Self {
            cpu_seconds: self
                .cpu_seconds
                .zip(other.cpu_seconds)
                .map(|(one, other)| seconds(one, other)),
            ram_bytes: both(self.ram_bytes, other.ram_bytes),
            ram_bytes_max: both(self.ram_bytes_max, other.ram_bytes_max),
            read_bytes: both(self.read_bytes, other.read_bytes),
            written_bytes: both(self.written_bytes, other.written_bytes),
        }
    }
}

/// The number after `name:`.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15 of proc_pid_stat(5). The name before them is in parentheses and may contain
/// anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn work_is_seen_in_the_usage() {
        let before = Usage::now(None);
        let start = Instant::now();
        // On a busy machine it may take long until this thread's time shows.
        let used = loop {
            let used = Usage::now(None).since(&before);
            if used.cpu_seconds.is_some_and(|seconds| seconds > 0.0) {
                break used;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{used:?}");
        };
        assert!(used.ram_bytes.is_some_and(|bytes| bytes > 100 << 10), "{used:?}");
        let twice = before.plus(&before);
        assert_eq!(twice.ram_bytes, before.ram_bytes.map(|bytes| 2 * bytes));
        assert!(Usage::now(Some(std::process::id())).ram_bytes > Some(100 << 10));
        assert_eq!(Usage::now(Some(u32::MAX)).ram_bytes, None);
    }

    #[test]
    fn fields_of_stat_are_found_behind_any_name() {
        let stat = "4242 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 100";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(number("read_bytes: 4096\nwrite_bytes: 8\n", "write_bytes"), Some(8));
    }
}
