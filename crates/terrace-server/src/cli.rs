//! The command line, defined once: names, help, defaults.

pub use crate::bench::{BenchCommand, BenchCommandArgs};

use crate::{
    failure::EXIT_CODES,
    s3::{access_key::Grant, account},
    settings::{Layer, Listen, S3Listen, Switch, Tags},
    size::Size,
    time_span::TimeSpan,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use std::{ffi::OsString, path::PathBuf};

/// Tiered object store: RAM, flash, disk
///
/// Small values, keys and attributes live on flash, large values on disk. Objects that are read
/// often are cached on flash and in RAM. `serve` offers S3 and an image browser; `import` stores a
/// directory of images in several resolutions.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Where the store is and how it is opened.
    #[command(flatten)]
    pub layer: Layer,

    /// Configuration file [default: ./terrace.toml if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "General options")]
    pub config: Option<PathBuf>,

    /// Log more to standard error; twice for debug output
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "General options")]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a store over S3 and on a web page; optionally import images meanwhile
    ///
    /// The page is available immediately; an import runs in the background. Ctrl-C finishes
    /// requests in flight and closes the store. A second Ctrl-C ends the process immediately; no
    /// acknowledged write is lost.
    Serve(Box<ServeArgs>),
    /// Create, list, change and remove access keys of the S3 service
    ///
    /// A running `serve` executes the command, and the change takes effect immediately. The first
    /// start of `serve` creates a key with all permissions.
    Key(KeyCommandArgs),
    /// Create, list and change the keys that S3 clients name for SSE-KMS
    ///
    /// A running `serve` executes the command, and the change takes effect immediately.
    Kms(KmsCommandArgs),
    /// Re-encrypt keys with the current master key and the current versions of named keys
    ///
    /// Put the new master key above the former one, each on its own line. A running `serve`
    /// executes the command while it serves requests. Afterwards the former key is no longer
    /// needed. The bytes of long objects are not rewritten.
    Rewrap(JsonArgs),
    /// Import the images of a directory in several resolutions
    ///
    /// Original, resolutions and attributes of an image are committed atomically. Images already
    /// stored are skipped, so an interrupted import can be run again.
    Import(ImportArgs),
    /// Store a file, or standard input, under a key
    Put(PutArgs),
    /// Write an object's value to standard output or a file
    Get(GetArgs),
    /// Show an object's version, size, home and attributes without reading its value
    Head(KeyArgs),
    /// List keys in order
    Ls(LsArgs),
    /// Delete an object, or all objects with a prefix
    ///
    /// Deleting a prefix is one commit for any number of objects, and asks for confirmation. Space
    /// is reclaimed while a process has the store open for writing.
    Rm(RmArgs),
    /// Show statistics of the store, or of one object
    Stat(StatArgs),
    /// Show live contents, reads and writes of each tier of a running server
    ///
    /// q quits. If standard output is not a terminal, views are printed one after another.
    Top(TopArgs),
    /// Read everything and verify every checksum
    ///
    /// Changes nothing. Exits with code 5 if anything is damaged.
    Verify(JsonArgs),
    /// Rebuild the index and the block list from segments and blocks
    ///
    /// For a store that does not open. Stop all processes that use it first. The report lists what
    /// could not be recovered. A tier whose directory is empty or missing is refused: mount it.
    Repair(RepairArgs),
    /// Back up a store, in use or not, to a directory
    ///
    /// A running `serve` executes the command while it serves requests. If the directory is on the
    /// store's file system, immutable files are hard-linked. A backup is complete when it has a
    /// file BACKUP; an interrupted backup starts over.
    Backup(BackupArgs),
    /// Restore a backup to a new store
    ///
    /// --store, or --flash and --large, name the new store's directories; they must be empty. The
    /// backup is not changed.
    Restore(RestoreArgs),
    /// Change the capacity of a tier while a server runs
    ///
    /// The large tier's up, or down to what lives in it, a tenth of that and two blocks more; the
    /// flash log's (--tier flash) up, or down to 8 segments. It holds until the server ends: change
    /// large-capacity or flash-capacity in the settings as well.
    Capacity(CapacityArgs),
    /// Measure an S3 server
    Bench(BenchCommandArgs),
}

/// Arguments of `repair`.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// One tier is lost for good: keep only what the other has
    ///
    /// Everything that was on the lost tier is forgotten. Its directory may be empty or missing.
    #[arg(long)]
    pub without_tier: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Most the tier may occupy; `device`, for the large tier: what that has
    #[arg(value_name = "SIZE|device", value_parser = capacity)]
    pub size: Capacity,
    /// The tier: the blocks of the large one, or the flash log
    #[arg(long, value_enum, default_value = "large")]
    pub tier: TierName,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A tier, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TierName {
    /// The flash log.
    Flash,
    /// Blocks.
    Large,
}

/// The capacity of a tier; `None` for that of its device.
#[derive(Debug, Clone, Copy)]
pub struct Capacity(pub Option<Size>);

fn capacity(text: &str) -> Result<Capacity, String> {
    match text {
        "device" => Ok(Capacity(None)),
        _ => text.parse().map(|size| Capacity(Some(size))),
    }
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Import this directory first
    #[arg(long, value_name = "DIR")]
    pub import: Option<PathBuf>,
    /// A directory without a flag: accepted only for an error message that offers both flags.
    #[arg(value_name = "DIR", hide = true)]
    pub unnamed: Option<PathBuf>,
    /// Address of the page; port 0 picks a free port [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<Listen>,
    /// Host name of the page for browsers, besides localhost and addresses; repeatable, or a
    /// comma-separated list
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub host_name: Vec<String>,
    /// File with the password of the page, for any user name; required unless --listen is a
    /// loopback address
    #[arg(long, value_name = "FILE")]
    pub page_password_file: Option<PathBuf>,
    /// Address of the S3 service, or off; port 0 picks a free port [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub s3_listen: Option<S3Listen>,
    /// Domain for virtual-hosted-style S3 requests (BUCKET.DOMAIN); repeatable, or a
    /// comma-separated list
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Domain for web sites of buckets (BUCKET.DOMAIN); repeatable, or a comma-separated list
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    pub s3_website_domain: Vec<String>,
    /// Webhook for events of buckets; repeatable, or a comma-separated list
    #[arg(long, value_name = "NAME=URL", value_delimiter = ',')]
    pub s3_notify: Vec<String>,
    /// CA certificates for https webhooks, in PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub s3_notify_ca: Option<PathBuf>,
    /// Log S3 requests to this file, one line of JSON per request; - is standard output
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Certificate chain for TLS on page and S3, in PEM; requires --tls-key. SIGHUP reloads both
    /// files
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM; requires --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Maximum S3 requests per second per access key, or per address without a key; more get 503
    /// [default: no limit]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub s3_rate: Option<u32>,
    /// Accept S3 requests with signature version 2 [default: on]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub s3_signature_v2: Option<Switch>,
    /// Entity tags of objects that come without Content-MD5: random ones take half of the processor
    /// time of a long upload, but clients cannot compare them with an MD5 [default: md5]
    #[arg(long, value_name = "md5|random", value_enum, hide_possible_values = true)]
    pub s3_etags: Option<Tags>,
    /// Maximum concurrent connections on each of the two addresses; more wait [default: 1024]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,
    /// Maximum concurrent connections of one sender on each of the two addresses; more get 503
    /// [default: three quarters; idle ones are closed for new ones]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sender_connections: Option<u32>,
    /// While reads of the large tier take longer than this, new ones are refused with 503 [default:
    /// never]
    #[arg(long, value_name = "SPAN")]
    pub large_wait: Option<TimeSpan>,
    /// How images are imported.
    #[command(flatten)]
    pub tuning: ImportTuning,
}

/// Arguments of `key`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct KeyCommandArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeyCommand,
}

/// What to do with access keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create an access key and print it with its secret, which is shown only once
    Create(KeyCreateArgs),
    /// List access keys and their permissions
    List(JsonArgs),
    /// Print, replace or remove the policy of an access key
    Policy(KeyPolicyArgs),
    /// Remove an access key
    Remove(KeyRemoveArgs),
}

/// Arguments of `key create`.
#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    /// Permission: BUCKET=read, =write (includes read) or =admin (also create, configure,
    /// delete); * is every bucket, BUCKET/PREFIX limits it to keys with PREFIX
    #[arg(long, value_name = "BUCKET=LEVEL", required_unless_present = "policy")]
    pub allow: Vec<Grant>,
    /// File with an IAM policy (JSON, without Principal), instead of --allow
    #[arg(long, value_name = "FILE", conflicts_with = "allow")]
    pub policy: Option<PathBuf>,
    /// Account that owns the key and the buckets it creates; created if it does not exist. A key
    /// has no access to resources of other accounts unless they grant it
    #[arg(long, value_name = "NAME", default_value = account::DEFAULT, value_parser = account::read_name)]
    pub account: String,
    /// E-mail address of the account, for grants by e-mail
    #[arg(long, value_name = "ADDRESS", value_parser = account::read_email)]
    pub email: Option<String>,
    /// Time until the key expires, like 12h or 30d [default: never]
    #[arg(long, value_name = "TIME")]
    pub expires: Option<TimeSpan>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `key policy`.
#[derive(Debug, Args)]
pub struct KeyPolicyArgs {
    /// ID of the access key
    pub id: String,
    /// File with a policy that replaces the current policy or levels
    #[arg(long, value_name = "FILE", conflicts_with = "remove")]
    pub set: Option<PathBuf>,
    /// Remove the policy: the key then has only what bucket policies and ACLs grant
    #[arg(long)]
    pub remove: bool,
}

/// Arguments of `key remove`.
#[derive(Debug, Args)]
pub struct KeyRemoveArgs {
    /// ID of the access key
    pub id: String,
}

/// Arguments of `kms`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct KmsCommandArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KmsCommand,
}

/// What to do with keys for SSE-KMS.
#[derive(Debug, Subcommand)]
pub enum KmsCommand {
    /// Create a key
    Create(KmsCreateArgs),
    /// List keys, the accounts that may use them, and their number of versions
    List(JsonArgs),
    /// Encrypt with a new version of a key from now on; former versions still decrypt, until
    /// `terrace rewrap` has re-encrypted everything
    Rotate(KmsNameArgs),
    /// Disable a key: no encryption and no decryption with it
    Disable(KmsNameArgs),
    /// Enable a disabled key
    Enable(KmsNameArgs),
    /// Delete a disabled key that encrypts nothing
    Delete(KmsNameArgs),
}

/// Arguments of `kms create`.
#[derive(Debug, Args)]
pub struct KmsCreateArgs {
    /// Name that clients use: letters, digits and -_./
    pub name: String,
    /// Account, or ID of an access key, that may use it [default: every access key]
    #[arg(long, value_name = "ACCOUNT|ID")]
    pub allow: Vec<String>,
}

/// Arguments of `kms rotate` and its like.
#[derive(Debug, Args)]
pub struct KmsNameArgs {
    /// Name of the key
    pub name: String,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Directory that is searched recursively for JPEG, PNG, WebP, TIFF and GIF files
    pub dir: PathBuf,
    /// How images are imported.
    #[command(flatten)]
    pub tuning: ImportTuning,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// How images are imported.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Import options")]
pub struct ImportTuning {
    /// JPEG quality of the resolutions, 1 to 100
    #[arg(long, value_name = "1-100", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub quality: Option<u8>,
    /// Resolution to create, NAME=WIDTHxHEIGHT, for either orientation; repeatable [default:
    /// thumbnail=100x100 small=600x800 large=2048x3072]
    #[arg(long, value_name = "NAME=WxH")]
    pub resolution: Vec<String>,
    /// Refuse images with more pixels than this, in millions
    #[arg(long, value_name = "MEGAPIXELS")]
    pub pixel_limit: Option<u32>,
    /// Threads for decoding and resizing [default: all cores]
    #[arg(long, value_name = "NUMBER")]
    pub threads: Option<usize>,
}

/// Arguments of `put`.
#[derive(Debug, Args)]
pub struct PutArgs {
    /// Key, 1 to 4096 bytes
    pub key: OsString,
    /// File to store, or - for standard input
    pub file: PathBuf,
    /// Store only if no object has this key, else exit with code 4
    #[arg(long)]
    pub if_absent: bool,
    /// Time until the object expires, such as 90s, 15m, 1h30m or 7d
    #[arg(long, value_name = "TIME")]
    pub ttl: Option<TimeSpan>,
    /// Attribute to store with the object; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub attribute: Vec<String>,
    /// Content type [default: guessed from the extension of FILE or KEY]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Print the new version as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Key
    pub key: OsString,
    /// Write atomically to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `head`.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// Key
    pub key: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Key
    #[arg(required_unless_present = "prefix")]
    pub key: Option<OsString>,
    /// Delete every object with this key prefix; '' for all objects
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<OsString>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    /// Print the version of the deletion as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only keys with this prefix
    pub prefix: Option<OsString>,
    /// Show version, size and home beside each key
    #[arg(long, short)]
    pub long: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Show one object instead of the whole store
    pub key: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Time between views [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub interval: Option<TimeSpan>,
    /// Print this many views as text and exit
    #[arg(long, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// Print text, even to a terminal
    #[arg(long)]
    pub plain: bool,
}

/// Arguments of `backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Directory of the backup, new or empty
    pub dir: PathBuf,
    /// Earlier backup on the same file system; unchanged files are linked from it
    #[arg(long, value_name = "EARLIER")]
    pub onto: Option<PathBuf>,
    /// Hard-link no files of the store, so that later damage to them does not affect the backup
    #[arg(long)]
    pub copy: bool,
    /// Maximum bytes copied per second
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Verify the backup in DIR instead: read everything and check every checksum
    #[arg(long, conflicts_with_all = ["onto", "copy", "rate"])]
    pub verify: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Directory of a complete backup
    pub backup: PathBuf,
    /// Continue if a file of the backup is damaged; its damaged contents are lost
    #[arg(long)]
    pub keep_damaged: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of commands that only differ in how they print.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  terrace serve --import ~/Pictures
  terrace serve --flash /mnt/ssd/terrace --large /mnt/disk/terrace
  terrace put notes/today today.txt
  tar c src | terrace put backup/src.tar -
  terrace get notes/today -o today.txt
  terrace put --ttl 1h cache/page page.html
  terrace ls --long notes/
  terrace rm --prefix cache/
  terrace stat --json

Keys are arbitrary bytes: printable UTF-8 as it is, \\\\ for a backslash, \\xNN for any other byte. ls
prints keys the same way.

Sizes: 64MiB, 128 KiB, 1GB or 4096. KiB, MiB, … are powers of 1024; KB, MB, … are powers of 1000.";

/// The command with the parts of its help that are built from the definitions above.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let variables: Vec<_> = command
        .get_arguments()
        .filter(|argument| {
            argument
                .get_help_heading()
                .is_some_and(|heading| heading.starts_with("Store options"))
        })
        .filter_map(clap::Arg::get_long)
        .chain([
            "listen",
            "s3-listen",
            "domain",
            "host-name",
            "page-password",
            "secrets-key",
            "config",
        ])
        .map(|name| format!("  TERRACE_{}", name.to_uppercase().replace('-', "_")))
        .collect();
    let help = format!(
        "{EXAMPLES}\n\nEnvironment variables, each for the option of the same name:\n{}\n  \
         TERRACE_LOG (log filter for standard error, e.g. terrace=debug)\n\n\
         Flags override variables, variables override terrace.toml, which has the same names:\n  \
         store = \"/srv/terrace\"\n  size-threshold = \"128KiB\"\n\n{EXIT_CODES}",
        variables.join("\n")
    );
    command
        .after_long_help(help)
        .after_help("See --help for examples, all options, variables and exit codes.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent_and_lists_its_variables() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        for text in [
            "TERRACE_SIZE_THRESHOLD",
            "TERRACE_STORE",
            "TERRACE_LISTEN",
            "TERRACE_S3_LISTEN",
            "Exit codes:",
            "5    stored bytes",
        ] {
            assert!(help.contains(text), "{text}");
        }
    }
}
