//! Settings: one struct, from four sources. A flag overrides a variable, a variable overrides the
//! file, the file overrides the default.
//!
//! [`Layer`] has the settings of one source: the command line fills it through clap, `TERRACE_*`
//! variables and `terrace.toml` through serde, so a setting is defined once and has the same name
//! everywhere (`--size-threshold`, `TERRACE_SIZE_THRESHOLD`, `size-threshold = …`). The location of
//! a store is one setting: a source that has `store` hides `flash` and `large` of lower sources,
//! and vice versa. Unknown or contradictory settings are a usage failure that names the source.

mod listen;
mod pins;
mod sources;
#[cfg(test)]
mod tests;

use crate::{
    failure::{Failure, Outcome},
    s3::secrets::Secrets,
    size::Size,
    time_span::TimeSpan,
};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use std::{
    fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use terrace::{Durability, Options};

pub use listen::{Listen, S3Listen};
pub use pins::Pins;
pub use sources::gather;

/// Heading of the global options in `--help`.
const STORE_HEADING: &str = "Store options (also TERRACE_* variables and terrace.toml)";

/// Default location of a store.
const STORE_DEFAULT: &str = "terrace-data";

/// Settings of one source. Fields that it does not have are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = STORE_HEADING)]
pub struct Layer {
    /// Directory that holds both tiers [default: ./terrace-data]
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Directory of the flash tier; needs --large
    #[arg(long, global = true, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Directory of the large tier (disk); needs --flash
    #[arg(long, global = true, value_name = "DIR")]
    pub large: Option<PathBuf>,
    /// Values of at least this size go to the large tier [default: 128KiB]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub size_threshold: Option<Size>,
    /// A block of the large tier is sealed at this length [default: by the device]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub split_threshold: Option<Size>,
    /// Values up to this size live in the ordered index [default: 64]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub inline_limit: Option<Size>,
    /// Size of a flash segment, fixed when the store is created [default: by the device]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub segment_size: Option<Size>,
    /// Most the flash log may occupy [default: 64GiB]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub flash_capacity: Option<Size>,
    /// Maximum size of all blocks of the large tier, at least 4 blocks [default: the device's size]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub large_capacity: Option<Size>,
    /// RAM for the value cache, 0 for none [default: 256MiB; `serve`: a quarter of the memory of
    /// the machine or of its control group, given back when memory is short]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub cache: Option<Size>,
    /// RAM for objects being read from disk, for readers and for copies on flash; with 0 nothing is
    /// copied to flash [default: 64MiB]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub staging: Option<Size>,
    /// Prefixes whose objects always or never live on flash, like thumbs/=flash,archive/=disk
    /// [default: none]
    #[arg(long, global = true, value_name = "RULES", hide_short_help = true)]
    pub pin: Option<Pins>,
    /// Maximum bytes moved per second after size-threshold or pin was changed, 0 for none [default:
    /// 8MiB]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub migrate_rate: Option<Size>,
    /// Maximum bytes written per second to put scanned values in key order, 0 for none [default:
    /// 64MiB]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub order_rate: Option<Size>,
    /// Maximum RAM for the hash index [default: as needed, 9 bytes per value in the log]
    #[arg(long, global = true, value_name = "SIZE", hide_short_help = true)]
    pub hash_index: Option<Size>,
    /// Maximum age of a snapshot or scan, like 6h; older ones fail [default: no limit]
    #[arg(long, global = true, value_name = "SPAN", hide_short_help = true)]
    pub snapshot_max_age: Option<TimeSpan>,
    /// When a write returns [default: sync]
    #[arg(long, global = true, value_name = "WHEN", hide_short_help = true)]
    pub durability: Option<DurabilityChoice>,
    /// File with the master key that encrypts secrets of access keys and data keys: 64 hex digits,
    /// and former keys on the lines below [default: none]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub secrets_key_file: Option<PathBuf>,
    /// The key itself; for a variable.
    #[arg(skip)]
    pub secrets_key: Option<String>,
    /// Shell command that prints the master key, instead of a file [default: none]
    #[arg(long, global = true, value_name = "COMMAND", hide_short_help = true)]
    pub key_command: Option<String>,
    /// Address `serve` listens on; its own flag is `serve --listen`.
    #[arg(skip)]
    pub listen: Option<Listen>,
    /// Address of the S3 service, or off; its own flag is `serve --s3-listen`.
    #[arg(skip)]
    pub s3_listen: Option<S3Listen>,
    /// Domains of the S3 service, separated by commas; its own flag is `serve --domain`.
    #[arg(skip)]
    pub domain: Option<String>,
    /// Domains of web sites, separated by commas; its own flag is `serve --s3-website-domain`.
    #[arg(skip)]
    pub s3_website_domain: Option<String>,
    /// Targets of events, `NAME=URL` separated by commas; its own flag is `serve --s3-notify`.
    #[arg(skip)]
    pub s3_notify: Option<String>,
    /// File with the CA certificates for these; its own flag is `serve --s3-notify-ca`.
    #[arg(skip)]
    pub s3_notify_ca: Option<PathBuf>,
    /// Names of the page's host, separated by commas; its own flag is `serve --host-name`.
    #[arg(skip)]
    pub host_name: Option<String>,
    /// File with the page's password; its own flag is `serve --page-password-file`.
    #[arg(skip)]
    pub page_password_file: Option<PathBuf>,
    /// The password itself; for a variable.
    #[arg(skip)]
    pub page_password: Option<String>,
    /// File for the S3 service's access log, or - for standard output; its own flag is `serve
    /// --access-log`.
    #[arg(skip)]
    pub access_log: Option<PathBuf>,
    /// Certificate for TLS, in PEM; its own flag is `serve --tls-cert`.
    #[arg(skip)]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM; its own flag is `serve --tls-key`.
    #[arg(skip)]
    pub tls_key: Option<PathBuf>,
    /// S3 requests per second of one sender; its own flag is `serve --s3-rate`.
    #[arg(skip)]
    #[serde(default, deserialize_with = "number_or_text")]
    pub s3_rate: Option<u32>,
    /// Whether signatures of version 2 are accepted; its own flag is `serve --s3-signature-v2`.
    #[arg(skip)]
    pub s3_signature_v2: Option<Switch>,
    /// Entity tags of uploads without Content-MD5; its own flag is `serve --s3-etags`.
    #[arg(skip)]
    pub s3_etags: Option<Tags>,
    /// Connections at a time on each address; its own flag is `serve --connections`.
    #[arg(skip)]
    #[serde(default, deserialize_with = "number_or_text")]
    pub connections: Option<u32>,
    /// The same of one sender; its own flag is `serve --sender-connections`.
    #[arg(skip)]
    #[serde(default, deserialize_with = "number_or_text")]
    pub sender_connections: Option<u32>,
    /// Latency of the large tier's reads above which new ones are refused; its own flag is `serve
    /// --large-wait`.
    #[arg(skip)]
    pub large_wait: Option<TimeSpan>,
}

/// A number, or a number as text, as variables have it.
fn number_or_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u32),
        Text(String),
    }
    let number = match Either::deserialize(from)? {
        Either::Number(number) => Some(number),
        Either::Text(text) => text.parse().ok(),
    };
    match number {
        Some(number) if number > 0 => Ok(Some(number)),
        _ => Err(serde::de::Error::custom("write a number that is at least 1")),
    }
}

/// When a write counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityChoice {
    /// When it is on the device
    Sync,
    /// Immediately; a crash may lose the latest writes
    Buffered,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Enabled
    On,
    /// Disabled
    Off,
}

/// Entity tags of uploads without Content-MD5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tags {
    /// The MD5 of the bytes
    Md5,
    /// Random
    Random,
}

/// The resulting settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How the store is opened.
    pub options: Options,
    /// Whether the size of the cache was given; otherwise `serve` adjusts it to the machine.
    pub cache_given: bool,
    /// The same of staging.
    pub staging_given: bool,
    /// When a write counts as done.
    pub durability: Durability,
    /// Configured address.
    pub listen: Option<Listen>,
    /// Configured address of the S3 service.
    pub s3_listen: Option<S3Listen>,
    /// Domains of the S3 service.
    pub domains: Vec<String>,
    /// Targets of events, `NAME=URL` each.
    pub notify: Vec<String>,
    /// File with the authorities that vouch for them.
    pub notify_ca: Option<PathBuf>,
    /// Domains of web sites.
    pub website_domains: Vec<String>,
    /// Names of the page's host.
    pub host_names: Vec<String>,
    /// The page's password.
    page_password: Given,
    /// The master key.
    secrets_key: Given,
    /// Where the S3 service logs requests.
    pub access_log: Option<PathBuf>,
    /// Certificate and key for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// S3 requests per second that one sender may make.
    pub s3_rate: Option<u32>,
    /// Whether signatures of version 2 are taken.
    pub s3_signature_v2: Option<Switch>,
    /// Entity tags of uploads without Content-MD5.
    pub s3_etags: Option<Tags>,
    /// Connections at a time on each address.
    pub connections: Option<u32>,
    /// The same of one sender.
    pub sender_connections: Option<u32>,
    /// How long reads of the large tier may take before S3 begins no more.
    pub large_wait: Option<TimeSpan>,
}

/// A secret, or where to read it.
#[derive(Clone, Default)]
struct Given {
    file: Option<PathBuf>,
    text: Option<String>,
    /// A command that prints it.
    command: Option<String>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret: this may be logged.
        f.debug_struct("Given")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Given {
    const fn of(file: Option<PathBuf>, text: Option<String>) -> Self {
        Self {
            file,
            text,
            command: None,
        }
    }

    /// Reads the given secret, if there is one.
    fn read(&self) -> Outcome<Option<String>> {
        if let Some(command) = &self.command {
            return printed(command).map(Some);
        }
        let from_file = self.file.as_deref().map(read_secret).transpose()?;
        Ok(from_file.or_else(|| self.text.clone()))
    }
}

/// The output of a command.
fn printed(command: &str) -> Outcome<String> {
    let fail = |reason: &str| Failure::usage(format!("the command for the key, `{command}`, {reason}"));
    let run = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| fail(&format!("cannot be run: {error}")))?;
    if !run.status.success() {
        return Err(fail(&format!("failed ({})", run.status)));
    }
    // Without its output: this may be logged.
    String::from_utf8(run.stdout).map_err(|_| fail("does not print text"))
}

/// The text of a file, without the line end.
fn read_secret(path: &Path) -> Outcome<String> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(Failure::usage(format!("{}: there is nothing in it", path.display())));
    }
    Ok(text.to_owned())
}

impl Settings {
    /// The page's password: that of `file`, or the configured one.
    ///
    /// # Errors
    /// A usage failure if a file cannot be read, or the password is empty, which would let in
    /// everyone.
    pub fn page_password(&self, file: Option<&Path>) -> Outcome<Option<String>> {
        let password = file.map_or_else(|| self.page_password.read(), |path| read_secret(path).map(Some))?;
        if password.as_deref() == Some("") {
            return Err(Failure::usage(
                "`page-password` is empty; give the page a password, or leave the setting out",
            ));
        }
        Ok(password)
    }

    /// The master keys, which encrypt secrets of access keys and keys of objects. Read again each
    /// time.
    ///
    /// # Errors
    /// A usage failure if a file cannot be read, a command fails, or a key is invalid.
    pub fn secrets(&self) -> Outcome<Secrets> {
        let given = self.secrets_key.read()?;
        given.map_or_else(
            || Ok(Secrets::default()),
            |text| Secrets::with_key(&text).map_err(Failure::usage),
        )
    }
}

impl Layer {
    /// `self` if it has a setting, otherwise `below`.
    fn or(self, below: Self) -> Self {
        let (flash, large) = if self.store.is_some() {
            (self.flash, self.large)
        } else {
            (self.flash.or(below.flash), self.large.or(below.large))
        };
        // The higher source decides between the two ways to give a location.
        let store = if flash.is_some() || large.is_some() {
            self.store
        } else {
            self.store.or(below.store)
        };
        // A secret and the file of one are one setting, too.
        let (page_password_file, page_password) = if self.page_password_file.is_some() || self.page_password.is_some() {
            (self.page_password_file, self.page_password)
        } else {
            (below.page_password_file, below.page_password)
        };
        let gives_key = self.secrets_key_file.is_some() || self.secrets_key.is_some() || self.key_command.is_some();
        let (secrets_key_file, secrets_key, key_command) = if gives_key {
            (self.secrets_key_file, self.secrets_key, self.key_command)
        } else {
            (below.secrets_key_file, below.secrets_key, below.key_command)
        };
        /// The fields of each source, and those decided above.
        macro_rules! merged {
            ($($field:ident)*; $($decided:ident)*) => {
                Self { $($field: self.$field.or(below.$field),)* $($decided,)* }
            };
        }
        merged! {
            size_threshold split_threshold inline_limit segment_size flash_capacity large_capacity cache staging
            pin migrate_rate order_rate hash_index snapshot_max_age durability listen s3_listen domain s3_notify
            s3_notify_ca s3_website_domain host_name access_log tls_cert tls_key s3_rate s3_signature_v2 s3_etags
            connections sender_connections large_wait;
            store flash large page_password_file page_password secrets_key_file secrets_key key_command
        }
    }

    /// Refuses contradictions within one source.
    fn check(&self, place: &str) -> Outcome {
        if self.store.is_some() && (self.flash.is_some() || self.large.is_some()) {
            return Err(Failure::usage(format!(
                "{place}: `store` puts both tiers in one directory, so `flash` and `large` cannot be given with it; \
                 drop `store`, or drop the other two"
            )));
        }
        if self.key_command.is_some() && self.secrets_key_file.is_some() {
            return Err(Failure::usage(format!(
                "{place}: `key-command` and `secrets-key-file` both give the master key; drop one of them"
            )));
        }
        Ok(())
    }

    /// The resulting settings, with defaults.
    ///
    /// # Errors
    /// A usage failure if they contradict each other.
    pub fn resolve(self) -> Outcome<Settings> {
        let refuse = |message| Err(Failure::usage(message));
        let (cache_given, staging_given) = (self.cache.is_some(), self.staging.is_some());
        let mut options = match (self.store, self.flash, self.large) {
            (Some(dir), None, None) => Options::new(dir),
            (None, None, None) => Options::new(STORE_DEFAULT),
            (None, Some(flash), Some(large)) => Options::on_tiers(flash, large),
            (None, Some(_), None) => return refuse("`flash` is given without `large`; give both, or `store`"),
            (None, None, Some(_)) => return refuse("`large` is given without `flash`; give both, or `store`"),
            (Some(_), ..) => return refuse("`store` is given with `flash` or `large`; drop one of them"),
        };
        if options.flash_dir == options.large_dir {
            return refuse(
                "`flash` and `large` are the same directory; give two, or use `store` to keep both tiers in one",
            );
        }
        for (given, option) in [
            (self.size_threshold, &mut options.size_threshold_bytes),
            (self.split_threshold, &mut options.split_threshold_bytes),
            (self.inline_limit, &mut options.tuning.inline_bytes_max),
            (self.segment_size, &mut options.segment_bytes),
            (self.flash_capacity, &mut options.flash_capacity_bytes),
            (self.cache, &mut options.cache_bytes),
            (self.staging, &mut options.tuning.staging_bytes),
            (self.migrate_rate, &mut options.tuning.migrate_bytes_per_second),
            (self.order_rate, &mut options.tuning.order_bytes_per_second),
        ] {
            if let Some(Size(bytes)) = given {
                *option = bytes;
            }
        }
        options.large_capacity_bytes = self.large_capacity.map(|Size(bytes)| bytes);
        options.tuning.hash_index_bytes_max = self.hash_index.map(|Size(bytes)| bytes);
        options.pins = self.pin.map(|Pins(pins)| pins).unwrap_or_default();
        options.snapshot_max_age = self.snapshot_max_age.map(|TimeSpan(span)| span);
        options.validate()?;
        let durability = match self.durability {
            None | Some(DurabilityChoice::Sync) => Durability::Sync,
            Some(DurabilityChoice::Buffered) => Durability::Buffered,
        };
        Ok(Settings {
            options,
            cache_given,
            staging_given,
            durability,
            listen: self.listen,
            s3_listen: self.s3_listen,
            domains: domains(&self.domain.unwrap_or_default()),
            notify: domains(&self.s3_notify.unwrap_or_default()),
            notify_ca: self.s3_notify_ca,
            website_domains: domains(&self.s3_website_domain.unwrap_or_default()),
            host_names: domains(&self.host_name.unwrap_or_default()),
            page_password: Given::of(self.page_password_file, self.page_password),
            secrets_key: Given {
                command: self.key_command,
                ..Given::of(self.secrets_key_file, self.secrets_key)
            },
            access_log: self.access_log,
            tls: pair(self.tls_cert, self.tls_key)?,
            s3_rate: self.s3_rate,
            s3_signature_v2: self.s3_signature_v2,
            s3_etags: self.s3_etags,
            connections: self.connections,
            sender_connections: self.sender_connections,
            large_wait: self.large_wait,
        })
    }
}

/// A certificate and its key: both, or neither.
///
/// # Errors
/// A usage failure that names the missing one.
pub fn pair(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Outcome<Option<(PathBuf, PathBuf)>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Failure::usage("`tls-cert` is given without `tls-key`; give both")),
        (None, Some(_)) => Err(Failure::usage("`tls-key` is given without `tls-cert`; give both")),
    }
}

/// The domains of a comma-separated list.
fn domains(list: &str) -> Vec<String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}
