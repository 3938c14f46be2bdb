//! LevelDB, the paper's baseline: Debian's library, values inline, compression off, other settings
//! at their defaults.
//!
//! The crates with bindings build a LevelDB of their own or have had no release for years, and all
//! of them make `unsafe` calls into C++. So a C++ program of our own (`leveldb.cc`) is compiled
//! with the system's library on first use, and communicates over pipes: Terrace's build needs
//! neither C++ nor LevelDB, a crash of the program is an error here, and it measures the times
//! itself, so the pipes do not count. Any error of the program ends the run.

use super::engine::{Engine, EngineFigures, Sizes, is_large};
use crate::{
    Outcome,
    harness::{driver::LoopOutcome, values::Values},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

const SOURCE: &str = include_str!("leveldb.cc");

/// Compiles the driver into a directory.
///
/// # Errors
/// If there is no C++ compiler or LevelDB's headers are missing; the message names the packages.
pub fn compile(directory: &Path) -> Outcome<PathBuf> {
    let (source, program) = (directory.join("leveldb.cc"), directory.join("leveldb-driver"));
    fs::write(&source, SOURCE)?;
    let advice = "install the packages g++ and libleveldb-dev, or give --no-leveldb";
    let output = Command::new("c++")
        .args(["-std=c++17", "-O2", "-Wall", "-o"])
        .args([&program, &source])
        .arg("-lleveldb")
        .output()
        .map_err(|error| format!("c++ cannot be started ({error}); {advice}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the LevelDB driver cannot be compiled; {advice}\n{}", said.trim()).into());
    }
    Ok(program)
}

/// An open database in a process of its own.
#[derive(Debug)]
pub struct LevelDb {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    directory: PathBuf,
    sizes: Sizes,
}

impl LevelDb {
    /// Opens the database in a directory, or creates one.
    ///
    /// # Errors
    /// If the driver cannot be started or the database cannot be opened.
    pub fn open(program: &Path, directory: &Path, values: &Values, sizes: Sizes) -> Outcome<Self> {
        let mut child = Command::new(program)
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the LevelDB driver cannot be started: {error}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("the LevelDB driver has no output")?;
        let mut database = Self {
            child,
            input,
            output: BufReader::new(output),
            directory: directory.to_owned(),
            sizes,
        };
        database.answer()?;
        let pool = values.pool();
        database.request(&format!("pool {}\n", pool.len()), pool)?;
        Ok(database)
    }

    fn answer(&mut self) -> Outcome<Vec<u64>> {
        let mut line = String::new();
        (&mut self.output).take(4096).read_line(&mut line)?;
        let count = match line.trim_end().split_once(' ') {
            Some(("ok", count)) => count.parse::<usize>()?,
            Some(("error", why)) => return Err(format!("LevelDB: {why}").into()),
            _ => return Err("the LevelDB driver ended".into()),
        };
        if count > 1 << 20 {
            return Err("the LevelDB driver answered too many numbers".into());
        }
        let mut bytes = vec![0; count * 8];
        self.output.read_exact(&mut bytes)?;
        let numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        Ok(numbers.collect())
    }

    fn request(&mut self, line: &str, bytes: &[u8]) -> Outcome<Vec<u64>> {
        let input = self.input.as_mut().ok_or("the LevelDB driver is closed")?;
        input.write_all(line.as_bytes())?;
        input.write_all(bytes)?;
        input.flush()?;
        self.answer()
    }

    fn numbers(&mut self, verb: &str, numbers: &[u64]) -> Outcome<Vec<u64>> {
        let Sizes {
            small_bytes,
            large_bytes,
        } = self.sizes;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let times = self.request(
            &format!("{verb} {} {small_bytes} {large_bytes}\n", numbers.len()),
            &bytes,
        )?;
        if times.len() != numbers.len() {
            return Err("the LevelDB driver answered fewer times than asked".into());
        }
        Ok(times)
    }
}

/// Converts consecutive times to the measurements of a loop with one thread.
fn as_loop(times: impl Iterator<Item = (usize, u64)>, kinds: usize) -> LoopOutcome {
    let mut outcome = LoopOutcome::empty(kinds);
    for (kind, ns) in times {
        outcome.kinds[kind].record(Duration::from_nanos(ns));
        outcome.seconds += ns as f64 / 1e9;
    }
    outcome
}

impl Engine for LevelDb {
    fn insert(&mut self, groups: &[u64]) -> Outcome<LoopOutcome> {
        let times = self.numbers("insert", groups)?;
        Ok(as_loop(times.into_iter().map(|ns| (0, ns)), 1))
    }

    fn read(&mut self, objects: &[u64]) -> Outcome<LoopOutcome> {
        let times = self.numbers("read", objects)?;
        let kinds = objects.iter().map(|&object| usize::from(is_large(object)));
        Ok(as_loop(kinds.zip(times), 2))
    }

    fn flush(&mut self) -> Outcome {
        self.request("sync\n", &[]).map(drop)
    }

    fn tables(&mut self) -> Outcome<u64> {
        let answer = self.request("tables\n", &[])?;
        answer
            .first()
            .copied()
            .ok_or_else(|| "the LevelDB driver answered nothing".into())
    }

    fn close(mut self: Box<Self>) -> Outcome<EngineFigures> {
        drop(self.input.take());
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the LevelDB driver ended with {status}").into());
        }
        let log = fs::read_to_string(self.directory.join("LOG")).unwrap_or_default();
        Ok(figures(&log))
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        drop(self.input.take());
        // After an error the driver may still be running; its end is not awaited.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Counts events in LevelDB's log: "Level-0 table #5: 4096 bytes OK", "Compacted 1@0 + 2@1 files =>
/// 4096 bytes".
fn figures(log: &str) -> EngineFigures {
    let bytes = |line: &str| -> Option<u64> { line.split(" bytes").next()?.rsplit(' ').next()?.parse().ok() };
    let (mut flushes, mut compactions, mut table_bytes) = (0, 0, 0);
    for line in log.lines() {
        let is_flush = line.contains("Level-0 table #") && line.contains(" bytes ");
        let is_compaction = line.contains("Compacted ") && line.contains(" => ");
        flushes += u64::from(is_flush);
        compactions += u64::from(is_compaction);
        if is_flush || is_compaction {
            table_bytes += bytes(line).unwrap_or(0);
        }
    }
    EngineFigures {
        flushes: Some(flushes),
        compactions: Some(compactions),
        table_bytes: Some(table_bytes),
        ..EngineFigures::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn compactions_are_counted_from_the_log() {
        let log = "2026/11/20-10:00:00.000000 7f Level-0 table #5: started\n\
                   2026/11/20-10:00:00.100000 7f Level-0 table #5: 4194304 bytes OK\n\
                   2026/11/20-10:00:01.000000 7f Compacting 4@0 + 0@1 files\n\
                   2026/11/20-10:00:01.200000 7f Generated table #7@0: 100 keys, 1000 bytes\n\
                   2026/11/20-10:00:01.300000 7f Compacted 4@0 + 0@1 files => 16777216 bytes\n";
        let figures = figures(log);
        assert_eq!((figures.flushes, figures.compactions), (Some(1), Some(1)));
        assert_eq!(figures.table_bytes, Some(4_194_304 + 16_777_216));
    }
}
