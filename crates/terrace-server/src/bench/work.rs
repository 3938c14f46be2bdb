//! The load on the server: one operation, for a time, by several connections.

use super::{
    client::{Answer, Call, Client, Sent, Target, is_for_now},
    sign::query,
};
use hdrhistogram::Histogram;
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Keys of a listing.
pub const LISTED: u64 = 1000;
/// Longest latency that is distinguished.
const LATENCY_MAX_US: u64 = 3_600_000_000;
/// A connection gives up after this many failures in a row.
const FAILURES_MAX: u32 = 20;
/// How long a request that must succeed is retried while it is refused temporarily.
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// Kept bytes of an answer other than a value: the answer to a multipart upload.
const ANSWER_KEPT: usize = 64 << 10;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Writes whole values.
    Put,
    /// Reads whole values.
    Get,
    /// Reads a part of a value.
    Range,
    /// Reads an object's metadata.
    Head,
    /// Reads a page of keys.
    List,
    /// Uploads in parts: begin, one part after another, complete.
    Multipart,
    /// Random reads and writes.
    Mixed,
    /// Deletes objects.
    Delete,
}

/// All, in the order of the rows.
pub const OPERATIONS: [Operation; 8] = [
    Operation::Put,
    Operation::Get,
    Operation::Range,
    Operation::Head,
    Operation::List,
    Operation::Mixed,
    Operation::Multipart,
    Operation::Delete,
];

impl Operation {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Range => "range",
            Self::Head => "head",
            Self::List => "list",
            Self::Multipart => "multipart",
            Self::Mixed => "mixed",
            Self::Delete => "delete",
        }
    }

    /// Whether it may be served from caches.
    pub const fn can_be_cold(self) -> bool {
        matches!(self, Self::Get | Self::Range | Self::Head)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = OPERATIONS.iter().find(|operation| operation.name() == text);
        found.copied().ok_or_else(|| {
            let names = OPERATIONS.map(Self::name).join(", ");
            format!("`{text}` is none of {names}")
        })
    }
}

/// The composition of a mixed load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix(Vec<(Operation, u64)>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (name, share) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}`: write NAME=SHARE"))?;
            let operation: Operation = name.trim().parse()?;
            if matches!(operation, Operation::Mixed | Operation::Multipart | Operation::Delete) {
                return Err(format!("`{operation}` cannot be a part of a mixed load"));
            }
            let share: u64 = share
                .trim()
                .parse()
                .map_err(|_| format!("`{part}`: the share is no number"))?;
            Ok((operation, share))
        };
        let parts: Vec<_> = text.split(',').map(part).collect::<Result<_, String>>()?;
        if parts.iter().map(|(_, share)| share).sum::<u64>() == 0 {
            return Err(format!("`{text}` has no part above 0"));
        }
        Ok(Self(parts))
    }
}

impl Mix {
    /// The operation for a random number.
    fn pick(&self, chance: u64) -> Operation {
        let all: u64 = self.0.iter().map(|(_, share)| share).sum();
        let mut left = chance % all;
        for (operation, share) in &self.0 {
            if left < *share {
                return *operation;
            }
            left -= share;
        }
        Operation::Get
    }
}

/// Settings of all rows.
pub struct Work {
    /// The server.
    pub target: Arc<Target>,
    /// Its bucket.
    pub bucket: String,
    /// The composition of a mixed load.
    pub mix: Mix,
    /// Bytes of a range.
    pub range_bytes: u64,
    /// Bytes of a part of an upload.
    pub part_bytes: u64,
}

/// Objects of one size.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// Bytes of each.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// The end of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// When each object from a number on was used once, or after a time, whichever is first.
    Once(u64, Duration),
    /// When each object from a number on was used: temporary refusals are retried.
    Done(u64),
}

/// The result of a row.
pub struct Outcome {
    /// Microseconds.
    pub latencies: Histogram<u64>,
    /// Bytes of values, sent or received.
    pub bytes: u64,
    /// Failed requests.
    pub failed: u64,
    /// The first error.
    pub reason: Option<String>,
    /// Duration.
    pub elapsed: Duration,
    /// Objects that were begun.
    pub begun: u64,
}

impl Outcome {
    fn new() -> Self {
        // The bounds are constants that fit.
        #[allow(clippy::expect_used)]
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("bounds fit");
        Self {
            latencies,
            bytes: 0,
            failed: 0,
            reason: None,
            elapsed: Duration::ZERO,
            begun: 0,
        }
    }

    fn add(&mut self, other: Self) {
        // Both have the same bounds.
        let _ = self.latencies.add(&other.latencies);
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.reason = self.reason.take().or(other.reason);
    }
}

/// A running row.
struct Row {
    work: Arc<Work>,
    operation: Operation,
    objects: Objects,
    until: Until,
    next: AtomicU64,
    began: Instant,
}

impl Row {
    /// The number of the next object, if there is one.
    fn next(&self) -> Option<u64> {
        let (from, time) = match self.until {
            Until::Time(time) => (0, time),
            Until::Once(from, time) => (from, time),
            Until::Done(from) => (from, Duration::MAX),
        };
        // The first one is done however late it is.
        if self.next.load(Ordering::Relaxed) > 0 && self.began.elapsed() >= time {
            return None;
        }
        let number = from + self.next.fetch_add(1, Ordering::Relaxed);
        match self.until {
            Until::Once(..) | Until::Done(_) => (number < self.objects.count).then_some(number),
            Until::Time(_) if matches!(self.operation, Operation::Put | Operation::Multipart) => {
                Some(number % self.objects.count)
            }
            // Reads are spread over all objects.
            Until::Time(_) => Some(scattered(number) % self.objects.count),
        }
    }

    /// Whether a request with this error is retried.
    fn is_repeated(&self, reason: &str) -> bool {
        matches!(self.until, Until::Done(_)) && is_for_now(reason)
    }
}

/// Runs an operation on this many connections.
pub async fn run(
    work: &Arc<Work>,
    operation: Operation,
    objects: Objects,
    connections: usize,
    until: Until,
) -> Outcome {
    let row = Arc::new(Row {
        work: Arc::clone(work),
        operation,
        objects,
        until,
        next: AtomicU64::new(0),
        began: Instant::now(),
    });
    let callers: Vec<_> = (0..connections).map(|_| tokio::spawn(call(Arc::clone(&row)))).collect();
    let mut all = Outcome::new();
    for caller in callers {
        match caller.await {
            Ok(outcome) => all.add(outcome),
            // A panic in it has been printed.
            Err(_) => all.failed += 1,
        }
    }
    all.elapsed = row.began.elapsed();
    all.begun = row.next.load(Ordering::Relaxed);
    all
}

/// One connection's part of a row.
async fn call(row: Arc<Row>) -> Outcome {
    let mut client = Client::new(&row.work.target);
    let mut outcome = Outcome::new();
    let mut in_a_row = 0;
    // The object to retry, and the time of its first attempt.
    let mut again: Option<(u64, Instant)> = None;
    while let Some(number) = again.map(|(number, _)| number).or_else(|| row.next()) {
        let operation = match row.operation {
            Operation::Mixed => row
                .work
                .mix
                .pick(scattered(number ^ u64::from(outcome.latencies.len() as u32) << 32)),
            operation => operation,
        };
        let began = Instant::now();
        match row.work.step(&mut client, operation, row.objects, number).await {
            Ok(bytes) => {
                let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(LATENCY_MAX_US);
                outcome.latencies.saturating_record(micros.max(1));
                outcome.bytes += bytes;
                in_a_row = 0;
                again = None;
            }
            Err(reason) => {
                let since = again.map_or(began, |(_, since)| since);
                again = (row.is_repeated(&reason) && since.elapsed() < REFUSED_MAX).then_some((number, since));
                if again.is_none() {
                    outcome.failed += 1;
                    // An answer that asks for a later retry is not a failure of the connection.
                    in_a_row = if reason.starts_with("503") { 0 } else { in_a_row + 1 };
                    outcome.reason.get_or_insert(reason);
                    if in_a_row == FAILURES_MAX {
                        break;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    outcome
}

/// A pseudorandom number for each number.
const fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Work {
    /// The path of an object.
    pub fn path(&self, objects: Objects, number: u64) -> String {
        format!("/{}/bench-{}/{number:08}", self.bucket, objects.bytes)
    }

    /// Runs an operation once. Returns the bytes of values, sent or received.
    async fn step(
        &self,
        client: &mut Client,
        operation: Operation,
        objects: Objects,
        number: u64,
    ) -> Result<u64, String> {
        let path = self.path(objects, number);
        let value = self.target.value(number, objects.bytes);
        match operation {
            Operation::Put => {
                let answer = client
                    .send(call_of("PUT", &path, "", Sent::Value(value)), ANSWER_KEPT)
                    .await;
                expect(answer, 200).map(|_| objects.bytes)
            }
            Operation::Get | Operation::Mixed => {
                let beginning = value.beginning();
                let answer = client
                    .send(call_of("GET", &path, "", Sent::Nothing), beginning.len())
                    .await;
                let answer = expect(answer, 200)?;
                if answer.bytes != objects.bytes || answer.body != beginning {
                    return Err(format!(
                        "{path}: another value than was written, of {} bytes",
                        answer.bytes
                    ));
                }
                Ok(answer.bytes)
            }
            Operation::Range => {
                let bytes = self.range_bytes.min(objects.bytes);
                let places = objects.bytes / bytes.max(1);
                let first = scattered(number.wrapping_mul(31)) % places.max(1) * bytes;
                let range = Some((first, first + bytes - 1));
                let call = Call {
                    range,
                    ..call_of("GET", &path, "", Sent::Nothing)
                };
                let answer = expect(client.send(call, 0).await, 206)?;
                if answer.bytes == bytes {
                    Ok(bytes)
                } else {
                    Err(format!("{path}: {} bytes instead of {bytes}", answer.bytes))
                }
            }
            Operation::Head => {
                let answer = client.send(call_of("HEAD", &path, "", Sent::Nothing), 0).await;
                expect(answer, 200).map(|_| 0)
            }
            Operation::List => self.list(client, objects, number).await,
            Operation::Multipart => self.upload(client, &path, objects, number).await,
            Operation::Delete => {
                let answer = client
                    .send(call_of("DELETE", &path, "", Sent::Nothing), ANSWER_KEPT)
                    .await;
                expect(answer, 204).map(|_| 0)
            }
        }
    }

    /// Requests a page of keys, from a position on.
    async fn list(&self, client: &mut Client, objects: Objects, number: u64) -> Result<u64, String> {
        let prefix = format!("bench-{}/", objects.bytes);
        let after = format!("{prefix}{:08}", number.saturating_sub(LISTED) % objects.count);
        let keys = LISTED.to_string();
        let query = query(&[
            ("list-type", "2"),
            ("max-keys", &keys),
            ("prefix", &prefix),
            ("start-after", &after),
        ]);
        let path = format!("/{}", self.bucket);
        let answer = client.send(call_of("GET", &path, &query, Sent::Nothing), 0).await;
        expect(answer, 200).map(|_| 0)
    }

    async fn upload(&self, client: &mut Client, path: &str, objects: Objects, number: u64) -> Result<u64, String> {
        let begun = client
            .send(call_of("POST", path, "uploads=", Sent::Nothing), ANSWER_KEPT)
            .await;
        let begun = String::from_utf8_lossy(&expect(begun, 200)?.body).into_owned();
        let id = between(&begun, "<UploadId>", "</UploadId>").ok_or("an upload without an ID")?;
        let (mut parts, mut left, mut part) = (String::new(), objects.bytes, 0);
        while left > 0 || part == 0 {
            part += 1;
            let bytes = left.min(self.part_bytes);
            let query = query(&[("partNumber", &part.to_string()), ("uploadId", id)]);
            // The first bytes of the whole are those of a value that was put in one request.
            let value = self.target.value(number, objects.bytes).cut(bytes);
            let answer = client
                .send(call_of("PUT", path, &query, Sent::Value(value)), ANSWER_KEPT)
                .await;
            let etag = expect(answer, 200)?.etag.ok_or("a part without an entity tag")?;
            parts.push_str(&format!(
                "<Part><PartNumber>{part}</PartNumber><ETag>{etag}</ETag></Part>"
            ));
            left -= bytes;
        }
        let text = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let query = query(&[("uploadId", id)]);
        let done = client
            .send(call_of("POST", path, &query, Sent::Text(text.into())), ANSWER_KEPT)
            .await;
        let done = expect(done, 200)?;
        // The status is 200 before it is known whether it can be completed.
        if String::from_utf8_lossy(&done.body).contains("<Error>") {
            return Err(format!("completing: {}", shown(&done.body)));
        }
        Ok(objects.bytes)
    }
}

/// A request without a range.
pub const fn call_of<'a>(method: &'a str, path: &'a str, query: &'a str, body: Sent) -> Call<'a> {
    Call {
        method,
        path,
        query,
        range: None,
        body,
    }
}

/// Checks an answer's status.
pub fn expect(answer: Result<Answer, String>, status: u16) -> Result<Answer, String> {
    let answer = answer?;
    if answer.status == status {
        Ok(answer)
    } else {
        Err(format!("{}: {}", answer.status, shown(&answer.body)))
    }
}

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
    text.replace(['\r', '\n'], " ")
}

fn between<'t>(text: &'t str, before: &str, behind: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(behind).map(|(found, _)| found)
}

#[cfg(test)]
mod tests;
