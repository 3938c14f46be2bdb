//! Arguments of `terrace bench`.

use super::{Mix, Operation};
use crate::size::Size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchCommandArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Benchmark any S3 server: rates, latencies, processor time
    ///
    /// Writes objects of each size to a bucket, requests them in several ways over several
    /// connections, verifies every response, and deletes the objects. Run it once per server, with
    /// --name and --results; --beside compares the results.
    S3(Box<BenchArgs>),
}

/// Arguments of `bench s3`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// URL of the server, like http://127.0.0.1:7071
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// ID of an access key [default: AWS_ACCESS_KEY_ID]
    #[arg(long, value_name = "ID")]
    pub access_key: Option<String>,
    /// Secret of the access key; AWS_SECRET_ACCESS_KEY hides it from other users of the machine
    #[arg(long, value_name = "SECRET")]
    pub secret_key: Option<String>,
    /// Region in signatures
    #[arg(long, value_name = "NAME", default_value = "us-east-1")]
    pub region: String,
    /// CA certificates for an https endpoint, in PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Bucket, created if it does not exist; its objects below bench-SIZE/ are overwritten and
    /// deleted
    #[arg(long, value_name = "NAME", default_value = "terrace-bench")]
    pub bucket: String,
    /// Operations to measure
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "put,get,range,head,list,mixed,multipart,delete"
    )]
    pub operations: Vec<Operation>,
    /// Object sizes
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "4KiB,1MiB,16MiB")]
    pub sizes: Vec<Size>,
    /// Numbers of connections
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_value = "1,32,256", value_parser = connections)]
    pub connections: Vec<usize>,
    /// Seconds per row
    #[arg(long, value_name = "NUMBER", default_value = "5")]
    pub seconds: f64,
    /// Use each object once per row, however long it takes: with put, fill the bucket
    #[arg(long, conflicts_with = "seconds")]
    pub once: bool,
    /// Leave the objects in the bucket
    #[arg(long)]
    pub keep: bool,
    /// Maximum total bytes of the objects of one size
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub bytes: Size,
    /// Maximum number of objects of one size
    #[arg(long, value_name = "NUMBER", default_value = "10000", value_parser = clap::value_parser!(u64).range(1..))]
    pub objects: u64,
    /// Length of ranges
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub range: Size,
    /// Part size of multipart uploads; objects shorter than two parts are not uploaded in parts
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    pub part_size: Size,
    /// Shares of operations in the mixed load
    #[arg(long, value_name = "NAME=SHARE,...", default_value = "get=70,put=20,head=5,range=5")]
    pub mix: Mix,
    /// Shell command that drops the server's caches; adds a row after it for get, range and head,
    /// in which each object is requested once
    #[arg(long, value_name = "COMMAND")]
    pub cold: Option<String>,
    /// Process ID of the server, to measure its processor time
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Name of the server in results [default: its host and port]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Append each row to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// File of earlier results, by --results, to compare with; repeatable
    #[arg(long, value_name = "FILE")]
    pub beside: Vec<PathBuf>,
    /// Write a chart of the rows, and of those of --beside, as SVG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=10_000) => Ok(number),
        _ => Err("write a number from 1 to 10000".to_owned()),
    }
}
