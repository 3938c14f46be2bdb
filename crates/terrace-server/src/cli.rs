//! The command line, defined once: names, help, defaults.

pub use crate::bench::{BenchCommand, BenchCommandArgs};

use crate::{
    failure::EXIT_CODES,
    s3::{access_key::Grant, account},
    settings::{Layer, Listen, S3Listen, Switch},
    size::Size,
    time_span::TimeSpan,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use std::{ffi::OsString, path::PathBuf};

/// Keeps objects on the storage each deserves: RAM, flash, disk.
///
/// Small values and everything needed to list and describe objects live on flash. Large values live
/// on disk. One command imports a directory of images in several resolutions and serves them on a
/// page.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Where the store is and how it is opened.
    #[command(flatten)]
    pub layer: Layer,

    /// Configuration file [default: ./terrace.toml if there]
    #[arg(long, global = true, value_name = "FILE", help_heading = "General options")]
    pub config: Option<PathBuf>,

    /// Say more on standard error; twice for debugging
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "General options")]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the images of a store on a page, and everything over S3, after importing some if asked
    ///
    /// The page is up at once; an import runs beside it. Ctrl-C finishes requests in flight and
    /// closes the store. A second Ctrl-C ends at once; nothing that was acknowledged is lost.
    Serve(Box<ServeArgs>),
    /// Make, list, change and remove access keys of the S3 service
    ///
    /// A running `serve` is asked, and goes by the change at once. The first start of `serve` makes
    /// one that may do everything.
    Key(KeyCommandArgs),
    /// Make, list and change the keys that S3 clients name for SSE-KMS
    ///
    /// A running `serve` is asked, and goes by the change at once.
    Kms(KmsCommandArgs),
    /// Encrypt anew what former master keys, and former versions of named keys, encrypted
    ///
    /// Put the new master key above the former one, each on its line. A running `serve` is asked to
    /// do it; reads and writes go on meanwhile. Afterwards the former key is needed no more. Bytes
    /// of long objects are not touched.
    Rewrap(JsonArgs),
    /// Import the images of a directory in several resolutions
    ///
    /// Each image is committed whole: original, resolutions and attributes, or nothing. Images
    /// already there are skipped, so an import that was interrupted is simply run again.
    Import(ImportArgs),
    /// Store a file, or standard input, under a key
    Put(PutArgs),
    /// Write an object's value to standard output or a file
    Get(GetArgs),
    /// Show an object's version, size, home and attributes without reading its value
    Head(KeyArgs),
    /// List keys in order
    Ls(LsArgs),
    /// Delete an object, or all whose keys begin alike
    ///
    /// Deleting by prefix is one commit whatever is there, and asks first. Space comes back while
    /// some program has the store open for writing.
    Rm(RmArgs),
    /// Show figures about the whole store, or about one object
    Stat(StatArgs),
    /// Watch a store that a server has open: what each tier holds, answers and writes
    ///
    /// q ends it. Where standard output is no terminal it prints one view after another.
    Top(TopArgs),
    /// Read everything and check every checksum
    ///
    /// Changes nothing. Ends with code 5 if anything is damaged.
    Verify(JsonArgs),
    /// Rebuild index and block list from the segments and blocks alone
    ///
    /// For a store that does not open. Stop whatever uses it first. Says what it could not know.
    Repair(JsonArgs),
    /// Copy a store, running or not, to a directory of its own
    ///
    /// A running `serve` is asked to do it; reads and writes go on meanwhile. Files that never
    /// change are linked where the directory is on the store's file system. Complete when BACKUP is
    /// in it; one that was cut short begins again.
    Backup(BackupArgs),
    /// Copy a backup to a new store
    ///
    /// Give the new store's place with --store, or --flash and --large; it must be empty. The
    /// backup stays as it is.
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

/// Arguments of `capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Most the tier may occupy; `device`, for the large tier: what that has
    #[arg(value_name = "SIZE|device", value_parser = capacity)]
    pub size: Capacity,
    /// Whose: the blocks of the large tier, or the flash log
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

/// What a tier may occupy; `None` is what its device has.
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
    /// A directory without a flag: taken only to ask which of the two it is, pictures or the store.
    #[arg(value_name = "DIR", hide = true)]
    pub unnamed: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<Listen>,
    /// Name by which browsers reach the page, besides localhost and addresses; may be repeated, or
    /// a list with commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub host_name: Vec<String>,
    /// File with the password of the page, for any user name; needed where --listen is no loopback
    /// address
    #[arg(long, value_name = "FILE")]
    pub page_password_file: Option<PathBuf>,
    /// Address of the S3 service, or off; port 0 picks a free one [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub s3_listen: Option<S3Listen>,
    /// Domain below which S3 clients name buckets as hosts; may be repeated, or a list with commas
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Domain below which hosts are the web sites of buckets; may be repeated, or a list with
    /// commas
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    pub s3_website_domain: Vec<String>,
    /// Webhook that events of buckets may go to; may be repeated, or a list with commas
    #[arg(long, value_name = "NAME=URL", value_delimiter = ',')]
    pub s3_notify: Vec<String>,
    /// Certificates of the authorities that vouch for webhooks with https, in PEM, instead of the
    /// system's
    #[arg(long, value_name = "FILE")]
    pub s3_notify_ca: Option<PathBuf>,
    /// Log S3 requests to this file, a line of JSON each; - is standard output
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Serve page and S3 over TLS with this certificate and those that vouch for it, in PEM; needs
    /// --tls-key. SIGHUP reads both files again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM; needs --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Most S3 requests per second of one access key, or of one address without a key; more get 503
    /// [default: no limit]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub s3_rate: Option<u32>,
    /// Take S3 requests that are signed by version 2 [default: on]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub s3_signature_v2: Option<Switch>,
    /// Connections at a time, on each of the two addresses; more wait [default: 1024]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,
    /// Connections of one sender at a time, on each of the two addresses; more get 503 [default:
    /// idle ones make room]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sender_connections: Option<u32>,
    /// While reads of the large tier take longer than this, no more of them are begun: 503
    /// [default: never]
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
    /// Make an access key and print it with its secret, which is shown this once
    Create(KeyCreateArgs),
    /// List access keys and what they may do
    List(JsonArgs),
    /// Print the policy of an access key, or put another in place of what it may do
    Policy(KeyPolicyArgs),
    /// Remove an access key
    Remove(KeyRemoveArgs),
}

/// Arguments of `key create`.
#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    /// What it may do: BUCKET=read, =write (and read) or =admin (and create, configure, delete); *
    /// is every bucket, BUCKET/PREFIX the objects whose keys begin with PREFIX
    #[arg(long, value_name = "BUCKET=LEVEL", required_unless_present = "policy")]
    pub allow: Vec<Grant>,
    /// File with a policy that says what it may do, in place of --allow: JSON as IAM has it,
    /// without Principal
    #[arg(long, value_name = "FILE", conflicts_with = "allow")]
    pub policy: Option<PathBuf>,
    /// Account that the key, and the buckets it creates, belong to; made if it is not there. A key
    /// may do nothing with what belongs to other accounts, unless they grant it
    #[arg(long, value_name = "NAME", default_value = account::DEFAULT, value_parser = account::read_name)]
    pub account: String,
    /// E-mail address of the account, by which others can grant it something
    #[arg(long, value_name = "ADDRESS", value_parser = account::read_email)]
    pub email: Option<String>,
    /// Time after which the key is good no more, like 12h or 30d [default: never]
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
    /// File with a policy that says from now on what it may do, in place of the former or of levels
    #[arg(long, value_name = "FILE", conflicts_with = "remove")]
    pub set: Option<PathBuf>,
    /// Take its policy away: then it may do only what policies and lists of buckets let it
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
    /// Make a key
    Create(KmsCreateArgs),
    /// List keys, whose they are, and how many versions they have
    List(JsonArgs),
    /// Encrypt with a new version of a key from now on; former versions open what they encrypted,
    /// until `terrace rewrap` has encrypted that anew
    Rotate(KmsNameArgs),
    /// Neither encrypt nor decrypt with a key
    Disable(KmsNameArgs),
    /// Use a key again that was disabled
    Enable(KmsNameArgs),
    /// Delete a key that is disabled, if nothing is encrypted with it
    Delete(KmsNameArgs),
}

/// Arguments of `kms create`.
#[derive(Debug, Args)]
pub struct KmsCreateArgs {
    /// Name, as clients write it: letters, digits and -_./
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
    /// Directory to walk for JPEG, PNG, WebP, TIFF and GIF files
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
    /// A resolution to make, NAME=WIDTHxHEIGHT, either way round; may be repeated
    /// [default: thumbnail=100x100 small=600x800 large=2048x3072]
    #[arg(long, value_name = "NAME=WxH")]
    pub resolution: Vec<String>,
    /// Refuse images with more pixels than this, in millions
    #[arg(long, value_name = "MEGAPIXELS")]
    pub pixel_limit: Option<u32>,
    /// Threads that decode and resize [default: all cores]
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
    /// Only if no object has this key; else end with code 4
    #[arg(long)]
    pub if_absent: bool,
    /// Delete the object by itself after this time, such as 90s, 15m, 1h30m or 7d
    #[arg(long, value_name = "TIME")]
    pub ttl: Option<TimeSpan>,
    /// Attribute to store with the object; may be repeated
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
    /// Write to this file, whole or not at all, instead of standard output
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
    /// Delete every object whose key begins with this, instead of one; '' for all
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<OsString>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print the version of the deletion as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only keys that begin with this
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
    /// Key of one object instead of the whole store
    pub key: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Time between two views [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub interval: Option<TimeSpan>,
    /// Print so many views as text and end
    #[arg(long, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// Print text even to a terminal
    #[arg(long)]
    pub plain: bool,
}

/// Arguments of `backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Directory of the backup, new or empty
    pub dir: PathBuf,
    /// Earlier backup on the same file system: take from there what has not changed
    #[arg(long, value_name = "EARLIER")]
    pub onto: Option<PathBuf>,
    /// Link nothing from the store, so that damage to the store's files is not the backup's
    #[arg(long)]
    pub copy: bool,
    /// Copy at most this much per second
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Check the backup in DIR instead: every checksum, and everything read as from a store
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
    /// Go on where a file of the backup is damaged; what is in it is lost
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

Keys are any bytes. Printable text stands for itself, \\\\ for a backslash, \\xNN for any other byte;
ls prints keys the same way.

Sizes are written 64MiB, 128 KiB, 1GB or 4096: KiB and MiB count in 1024s, KB and MB in 1000s.";

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
        "{EXAMPLES}\n\nEnvironment variables, each for the option of that name:\n{}\n  \
         TERRACE_LOG (what to log on standard error, e.g. terrace=debug)\n\n\
         A flag beats a variable, a variable beats terrace.toml, which has the same names:\n  \
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
