//! `terrace bench s3`: measures an S3 server, this one or any other, with the operations of
//! applications. The same command with another `--endpoint` measures another server.
//!
//! For each size there is a set of objects, which are written first. Each row is one operation on
//! them by some connections, each of which sends its next request after it has read the previous
//! answer. Every answer is checked: its status, its length, and the beginning of a value.

mod args;
mod client;
mod picture;
mod report;
mod sign;
mod work;

pub use args::{BenchArgs, BenchCommand, BenchCommandArgs};
pub use work::{Mix, Operation};

use crate::{
    failure::{Code, Failure, Outcome},
    output,
    s3::notify::{targets::Address, tls},
    size::Size,
};
use client::{Client, Sent, Target};
use report::{About, Row};
use std::{
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};
use work::{OPERATIONS, Objects, Until, Work, call_of, expect};

/// Connections for unmeasured writes and deletions.
const HELPERS: usize = 16;
/// How long a server may take to answer after `--cold`.
const COLD_WAIT_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts.
const COLD_POLL: Duration = Duration::from_millis(100);
/// Least number of parts of an upload.
const PARTS_MIN: u64 = 2;

/// Runs all requested rows.
///
/// # Errors
/// If the server cannot be reached, or requests failed.
pub fn run(args: &BenchArgs) -> Outcome {
    let bench = Bench::new(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting threads", &error))?;
    runtime.block_on(bench.run())
}

struct Bench<'a> {
    args: &'a BenchArgs,
    work: Arc<Work>,
    earlier: Vec<Row>,
    name: String,
}

/// The objects of one size.
struct Stage {
    objects: Objects,
    /// Number of written objects, from the first.
    written: u64,
    /// Whether they were read since they were written.
    warm: bool,
}

impl<'a> Bench<'a> {
    fn new(args: &'a BenchArgs) -> Outcome<Self> {
        let address = Address::parse(&args.endpoint).map_err(|wrong| Failure::usage(format!("--endpoint: {wrong}")))?;
        let config = match &address.server {
            Some(_) => Some(tls::config(args.ca.as_deref()).map_err(Failure::usage)?),
            None => None,
        };
        let given = |flag: &Option<String>, variable: &str| flag.clone().or_else(|| std::env::var(variable).ok());
        let id = given(&args.access_key, "AWS_ACCESS_KEY_ID");
        let secret = given(&args.secret_key, "AWS_SECRET_ACCESS_KEY");
        let (Some(id), Some(secret)) = (id, secret) else {
            return Err(Failure::usage(
                "requests are signed: give --access-key and --secret-key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        };
        let earlier = args.beside.iter().map(|file| report::read(file));
        let earlier: Vec<Vec<Row>> = earlier.collect::<Outcome<_>>()?;
        let name = args.name.clone().unwrap_or_else(|| address.authority.clone());
        let target = Target {
            address,
            tls: config,
            id,
            secret,
            region: args.region.clone(),
            block: Target::block(),
        };
        let work = Work {
            target: Arc::new(target),
            bucket: args.bucket.clone(),
            mix: args.mix.clone(),
            range_bytes: args.range.0.max(1),
            part_bytes: args.part_size.0.max(1),
        };
        Ok(Self {
            args,
            work: Arc::new(work),
            earlier: earlier.into_iter().flatten().collect(),
            name,
        })
    }

    async fn run(&self) -> Outcome {
        self.make_bucket().await?;
        if !self.args.json {
            output::print(&format!("{}\n", report::heading()))?;
        }
        let mut rows = Vec::new();
        for size in &self.args.sizes {
            let mut stage = Stage {
                objects: self.objects(*size),
                written: 0,
                warm: false,
            };
            for operation in OPERATIONS {
                if self.args.operations.contains(&operation) {
                    self.rows_of(operation, &mut stage, &mut rows).await?;
                }
            }
            if !self.args.keep {
                self.delete(&stage).await?;
            }
        }
        if self.args.json {
            output::print_json(&rows)?;
        }
        if let Some(file) = &self.args.picture {
            let all: Vec<Row> = self.earlier.iter().chain(&rows).cloned().collect();
            picture::write(file, &all)?;
        }
        let failed: u64 = rows.iter().map(|row| row.failed).sum();
        if failed > 0 {
            return Err(Failure::new(Code::Partial, format!("{failed} requests failed")));
        }
        Ok(())
    }

    /// The number of objects of a size, by the limit on bytes.
    fn objects(&self, Size(bytes): Size) -> Objects {
        let count = (self.args.bytes.0 / bytes.max(1)).clamp(1, self.args.objects);
        Objects { bytes, count }
    }

    /// Makes the bucket, or uses the existing one.
    async fn make_bucket(&self) -> Outcome {
        let path = format!("/{}", self.work.bucket);
        let mut client = Client::new(&self.work.target);
        let made = client.send(call_of("PUT", &path, "", Sent::Nothing), 1000).await;
        let is_there = |answer: &client::Answer| answer.status == 409;
        match made {
            Ok(answer) if is_there(&answer) => Ok(()),
            answer => expect(answer, 200)
                .map(|_| ())
                .map_err(|why| Failure::error(format!("making the bucket {}: {why}", self.work.bucket))),
        }
    }

    /// All rows of an operation on the objects of one size.
    async fn rows_of(&self, operation: Operation, stage: &mut Stage, rows: &mut Vec<Row>) -> Outcome {
        if operation == Operation::Multipart && stage.objects.bytes < PARTS_MIN * self.work.part_bytes {
            return Ok(());
        }
        let seconds = Duration::from_secs_f64(self.args.seconds.max(0.001));
        let each = if self.args.once {
            Until::Done(0)
        } else {
            Until::Once(0, seconds)
        };
        for connections in &self.args.connections {
            if !matches!(operation, Operation::Put | Operation::Multipart) {
                self.write(stage).await?;
            }
            if operation.can_be_cold()
                && let Some(command) = &self.args.cold
            {
                self.make_cold(command).await?;
                stage.warm = false;
                rows.push(self.row(operation, stage, *connections, each, true).await?);
            }
            if matches!(operation, Operation::Get | Operation::Range | Operation::Mixed) && !stage.warm {
                self.untimed(Operation::Get, stage.objects, 0).await?;
                stage.warm = true;
            }
            let until = match operation {
                Operation::Delete => each,
                _ if self.args.once => each,
                _ => Until::Time(seconds),
            };
            rows.push(self.row(operation, stage, *connections, until, false).await?);
        }
        Ok(())
    }

    /// Measures a row, prints it and keeps it.
    async fn row(
        &self,
        operation: Operation,
        stage: &mut Stage,
        connections: usize,
        until: Until,
        cold: bool,
    ) -> Outcome<Row> {
        let time = || self.args.server_pid.and_then(report::processor_time);
        let before = time();
        let outcome = work::run(&self.work, operation, stage.objects, connections, until).await;
        let server = time().zip(before).map(|(after, before)| after.saturating_sub(before));
        match operation {
            Operation::Put => stage.written = stage.written.max(outcome.begun.min(stage.objects.count)),
            Operation::Delete => stage.written = 0,
            _ => {}
        }
        if outcome.failed > 0 {
            // Failed writes may be missing, and failed deletions may remain.
            stage.written = 0;
            let reason = outcome.reason.as_deref().unwrap_or("unknown");
            output::tell(format_args!(
                "warning: {operation}: {} requests failed, the first with: {reason}",
                outcome.failed
            ));
        }
        let about = About {
            name: &self.name,
            operation,
            objects: stage.objects,
            connections,
            cold,
            tls: self.work.target.tls.is_some(),
        };
        let row = Row::new(&about, &outcome, server);
        if !self.args.json {
            output::print(&format!("{}\n", row.line(&self.earlier)))?;
        }
        if let Some(file) = &self.args.results {
            report::append(file, &row)?;
        }
        Ok(row)
    }

    /// Writes the missing objects.
    async fn write(&self, stage: &mut Stage) -> Outcome {
        if stage.written < stage.objects.count {
            self.untimed(Operation::Put, stage.objects, stage.written).await?;
            stage.written = stage.objects.count;
            stage.warm = false;
        }
        Ok(())
    }

    async fn delete(&self, stage: &Stage) -> Outcome {
        self.untimed(Operation::Delete, stage.objects, 0).await
    }

    /// Applies an unmeasured operation to each object from a number on, which must succeed.
    /// Connections of the previous row may be in the way for a moment.
    async fn untimed(&self, operation: Operation, objects: Objects, from: u64) -> Outcome {
        let outcome = work::run(&self.work, operation, objects, HELPERS, Until::Done(from)).await;
        match outcome.reason {
            None => Ok(()),
            Some(reason) => Err(Failure::error(format!("{operation} before or after a row: {reason}"))),
        }
    }

    /// Drops caches, and waits until the server answers.
    async fn make_cold(&self, command: &str) -> Outcome {
        let status = Command::new("sh")
            .args(["-c", command])
            .status()
            .map_err(|error| Failure::io("running the command of --cold", &error))?;
        if !status.success() {
            return Err(Failure::error(format!("the command of --cold failed: {status}")));
        }
        let began = Instant::now();
        let path = format!("/{}", self.work.bucket);
        loop {
            let mut client = Client::new(&self.work.target);
            let why = match client.send(call_of("HEAD", &path, "", Sent::Nothing), 0).await {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => answer.status.to_string(),
                Err(why) => why,
            };
            if began.elapsed() > COLD_WAIT_MAX {
                return Err(Failure::error(format!(
                    "the server does not answer after the command of --cold: {why}"
                )));
            }
            tokio::time::sleep(COLD_POLL).await;
        }
    }
}
