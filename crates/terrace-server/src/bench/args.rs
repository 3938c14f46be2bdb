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
    /// Measure any S3 server: rates, latencies, and its processor time
    ///
    /// Writes objects of each size into a bucket, asks for them in several ways by several
    /// connections, checks every answer, and deletes them again. Run it once for each server, with
    /// --name and --results; --beside shows how the next one compares.
    S3(Box<BenchArgs>),
}

/// Arguments of `bench s3`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The server, like http://127.0.0.1:7071
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// ID of an access key [default: AWS_ACCESS_KEY_ID]
    #[arg(long, value_name = "ID")]
    pub access_key: Option<String>,
    /// Its secret, better given as AWS_SECRET_ACCESS_KEY, which other users of the machine do not
    /// see
    #[arg(long, value_name = "SECRET")]
    pub secret_key: Option<String>,
    /// Region that is signed for
    #[arg(long, value_name = "NAME", default_value = "us-east-1")]
    pub region: String,
    /// Authorities that vouch for an https endpoint, in PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Bucket, made if it is not there; objects below bench-SIZE/ in it are overwritten and deleted
    #[arg(long, value_name = "NAME", default_value = "terrace-bench")]
    pub bucket: String,
    /// What is measured
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "put,get,range,head,list,mixed,multipart,delete"
    )]
    pub operations: Vec<Operation>,
    /// Sizes of objects
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "4KiB,1MiB,16MiB")]
    pub sizes: Vec<Size>,
    /// Numbers of connections
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_value = "1,32,256", value_parser = connections)]
    pub connections: Vec<usize>,
    /// Time of each row
    #[arg(long, value_name = "NUMBER", default_value = "5")]
    pub seconds: f64,
    /// Objects of one size take so much at most
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub bytes: Size,
    /// And are so many at most
    #[arg(long, value_name = "NUMBER", default_value = "10000", value_parser = clap::value_parser!(u64).range(1..))]
    pub objects: u64,
    /// Length of ranges
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub range: Size,
    /// Length of the parts of uploads; what has less than two of them is not uploaded in parts
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    pub part_size: Size,
    /// What a mixed load consists of, by shares
    #[arg(long, value_name = "NAME=SHARE,...", default_value = "get=70,put=20,head=5,range=5")]
    pub mix: Mix,
    /// Command that drops the server's caches, run by sh: get, range and head then have a row right
    /// after it, in which each object is asked for once
    #[arg(long, value_name = "COMMAND")]
    pub cold: Option<String>,
    /// Process whose processor time is measured
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// What the server is called in results [default: its host and port]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File that each row is appended to, as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// File of earlier results, by --results, to show the rates beside; may be repeated
    #[arg(long, value_name = "FILE")]
    pub beside: Vec<PathBuf>,
    /// Picture of the rows, and of those of --beside, as SVG
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
