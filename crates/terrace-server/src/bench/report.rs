//! Rows of results: as text, as lines of JSON, and compared with earlier ones.

use super::work::{Objects, Operation, Outcome};
use crate::failure::{Failure, Outcome as Result};
use serde::{Deserialize, Serialize};
use std::{fmt::Write as _, fs::OpenOptions, io::Write as _, path::Path, time::Duration};

/// Percentiles of the results.
const PERCENTILES: [f64; 7] = [1.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0];

/// Linux's unit of processor time for programs, on all processors of servers.
const TICKS_PER_SECOND: f64 = 100.0;

/// A row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The server's name.
    pub name: String,
    /// The operation.
    pub operation: String,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// How many there are.
    pub objects: u64,
    /// Connections.
    pub connections: u64,
    /// Whether caches were dropped before.
    pub cold: bool,
    /// Whether it went over TLS.
    pub tls: bool,
    /// Requests with right answers.
    pub count: u64,
    /// Failed requests.
    pub failed: u64,
    /// Duration.
    pub seconds: f64,
    /// Requests a second.
    pub per_second: f64,
    /// Throughput of values.
    pub mib_per_second: f64,
    /// Microseconds by percentile.
    pub latencies_us: Vec<(f64, u64)>,
    /// Processor time of the server for each request, if it was measured.
    pub server_us: Option<f64>,
    /// When it ended, in seconds since 1970.
    pub at: u64,
}

/// A row without its results.
pub struct About<'a> {
    /// The server's name.
    pub name: &'a str,
    /// The operation.
    pub operation: Operation,
    /// Its objects.
    pub objects: Objects,
    /// Connections.
    pub connections: usize,
    /// Whether caches were dropped before.
    pub cold: bool,
    /// Whether it went over TLS.
    pub tls: bool,
}

impl Row {
    /// The row of an outcome.
    pub fn new(about: &About<'_>, outcome: &Outcome, server: Option<Duration>) -> Self {
        let (count, seconds) = (outcome.latencies.len(), outcome.elapsed.as_secs_f64().max(1e-9));
        let value = |percentile: f64| (percentile, outcome.latencies.value_at_percentile(percentile));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            name: about.name.to_owned(),
            operation: about.operation.to_string(),
            object_bytes: about.objects.bytes,
            objects: about.objects.count,
            connections: about.connections as u64,
            cold: about.cold,
            tls: about.tls,
            count,
            failed: outcome.failed,
            seconds,
            per_second: count as f64 / seconds,
            mib_per_second: outcome.bytes as f64 / f64::from(1 << 20) / seconds,
            latencies_us: PERCENTILES.map(value).to_vec(),
            server_us: server
                .filter(|_| count > 0)
                .map(|time| time.as_secs_f64() * 1e6 / count as f64),
            at: now.map_or(0, |since| since.as_secs()),
        }
    }

    /// Milliseconds within which this percentage of requests was answered; 0 if not recorded.
    pub fn percentile_ms(&self, wanted: f64) -> f64 {
        let found = self
            .latencies_us
            .iter()
            .find(|(percentile, _)| percentile.total_cmp(&wanted).is_eq());
        found.map_or(0.0, |(_, micros)| *micros as f64 / 1e3)
    }

    /// The operation, its objects and connections in words.
    pub fn title(&self) -> String {
        let more = [(self.tls, ", TLS"), (self.cold, ", cold")];
        let more: String = more.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        format!(
            "{} {}, {}{more}",
            self.operation,
            size(self.object_bytes),
            self.connections
        )
    }

    /// Whether both rows measure the same, on one server or on two.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        let facts = |row: &Self| (row.object_bytes, row.objects, row.connections, row.cold, row.tls);
        self.operation == other.operation && facts(self) == facts(other)
    }

    /// A line of text, with the ratio to the latest row of each other server.
    pub fn line(&self, earlier: &[Self]) -> String {
        let temperature = if self.cold { "cold" } else { "" };
        let mut line = format!(
            "{:9} {:>9} {:>4} {:4} {:>10.1} {:>9.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
            self.operation,
            size(self.object_bytes),
            self.connections,
            temperature,
            self.per_second,
            self.mib_per_second,
            self.percentile_ms(50.0),
            self.percentile_ms(99.0),
            self.percentile_ms(99.9),
            self.percentile_ms(100.0),
        );
        // Writing to a String cannot fail.
        let _ = match self.server_us {
            Some(micros) => write!(line, " {micros:>9.1}"),
            None => write!(line, " {:>9}", "-"),
        };
        let mut named: Vec<&str> = Vec::new();
        for other in earlier.iter().rev().filter(|other| self.asks_the_same(other)) {
            if other.name != self.name && !named.contains(&other.name.as_str()) {
                named.push(&other.name);
                let _ = write!(
                    line,
                    "  {:.2} x {}",
                    self.per_second / other.per_second.max(1e-9),
                    other.name
                );
            }
        }
        if self.failed > 0 {
            let _ = write!(line, "  {} FAILED", self.failed);
        }
        line
    }
}

/// The heading of the lines.
pub fn heading() -> String {
    format!(
        "{:9} {:>9} {:>4} {:4} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "operation", "object", "conn", "", "per s", "MiB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "server µs"
    )
}

fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1_u64 << shift));
    unit.map_or_else(
        || format!("{bytes} B"),
        |(shift, name)| format!("{} {name}", bytes >> shift),
    )
}

/// Reads the rows of a file.
///
/// # Errors
/// Naming the invalid line.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let fail = |error: std::io::Error| Failure::io(format!("reading {}", path.display()), &error);
    let text = std::fs::read_to_string(path).map_err(fail)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows = lines.map(|(number, line)| {
        serde_json::from_str(line)
            .map_err(|error| Failure::usage(format!("{}, line {}: {error}", path.display(), number + 1)))
    });
    rows.collect()
}

/// Appends a row to a file.
///
/// # Errors
/// Errors of the operating system.
pub fn append(path: &Path, row: &Row) -> Result {
    let fail = |error: std::io::Error| Failure::io(format!("writing {}", path.display()), &error);
    let mut line = serde_json::to_string(row).map_err(|error| Failure::error(error.to_string()))?;
    line.push('\n');
    let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(fail)?;
    file.write_all(line.as_bytes()).map_err(fail)
}

/// Processor time of a process so far (proc(5)). `None` if there is no such process.
pub fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_SECOND))
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub fn row(name: &str, per_second: f64) -> Row {
        Row {
            name: name.to_owned(),
            operation: "get".to_owned(),
            object_bytes: 4096,
            objects: 10,
            connections: 32,
            cold: false,
            tls: false,
            count: 100,
            failed: 0,
            seconds: 1.0,
            per_second,
            mib_per_second: 1.0,
            latencies_us: vec![(50.0, 1_500), (99.0, 20_000)],
            server_us: None,
            at: 0,
        }
    }

    #[test]
    fn rows_are_kept_and_stand_beside_the_latest_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rows");
        let mut unlike = row("other", 1.0);
        unlike.cold = true;
        for kept in [row("other", 400.0), row("other", 200.0), unlike, row("ours", 1.0)] {
            append(&file, &kept).unwrap();
        }
        let earlier = read(&file).unwrap();
        assert_eq!(earlier.len(), 4);
        let line = row("ours", 300.0).line(&earlier);
        assert!(line.contains("4 KiB") && line.contains("1.50     20.00"), "{line}");
        assert!(line.ends_with("  1.50 x other"), "{line}");
        std::fs::write(&file, "{}\n").unwrap();
        assert!(read(&file).unwrap_err().message.contains("line 1"));
    }

    #[test]
    fn processor_time_grows() {
        let own = std::process::id();
        let before = processor_time(own).unwrap();
        let began = std::time::Instant::now();
        while processor_time(own).unwrap() < before + Duration::from_millis(30) {
            assert!(began.elapsed() < Duration::from_secs(60), "busy for a minute");
        }
        assert_eq!(processor_time(u32::MAX), None);
    }

    #[test]
    fn sizes_are_whole() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
            (5 << 20, "5 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
