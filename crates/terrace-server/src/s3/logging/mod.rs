//! Server access logging: the requests of a bucket, written as objects into another one.
//!
//! As in S3 it is best effort. Lines are gathered in memory, with a bound ([`delivery`]), and
//! written every minute, when there are enough for an object, and when the server stops; a crash
//! loses gathered lines. Access to the target is checked when logging is enabled, and again for
//! every object that is written.
//!
//! Writes of logs are not requests, so they are not logged, also if a bucket's log is in the bucket
//! itself.

pub mod delivery;
mod line;

pub use line::{Each, Entry, Logged};
pub use terrace_objects::logging::{Format, Settings};

use super::{
    REGION,
    access::asker,
    acl::List,
    bucket::Record,
    keyspace::{self, KEY_BYTES_MAX},
    ops::said::date_text,
    policy::Verdict,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The principal that writes logs, in policies.
pub const SERVICE: &str = "logging.s3.amazonaws.com";
/// Longest part of a log's key after its prefix: account, region, bucket, day and name.
const BEHIND_PREFIX_BYTES_MAX: usize = 256;
/// Longest prefix of a log's keys.
pub const PREFIX_BYTES_MAX: usize = KEY_BYTES_MAX - BEHIND_PREFIX_BYTES_MAX;
/// Random digits in the name of a log: two that are written in the same second must differ.
const UNIQUE_DIGITS: usize = 16;

/// Where a bucket's logging settings have its log written.
pub trait Logging {
    /// Whether the target, which has this record, accepts the log of a bucket of `owner` under a
    /// key now. As in S3, both must be of one account.
    fn may(&self, source: &str, owner: &str, target: &Record, key: &str, now_ms: u64) -> bool;

    /// The list of a log in the target, which has this record: none if lists are disabled there, or
    /// if public lists are no longer accepted.
    fn list_in(&self, target: &Record) -> &str;

    /// The key of a log of one day's requests, in days since 1970, to a bucket of `owner`.
    fn key(&self, source: &str, owner: &str, day: u64, now: SystemTime) -> String;
}

impl Logging for Settings {
    fn may(&self, source: &str, owner: &str, target: &Record, key: &str, now_ms: u64) -> bool {
        let verdict = asker::of_service(SERVICE, source, (target, &self.target), key, now_ms);
        let is_let = match verdict {
            Verdict::Denied => false,
            Verdict::Allowed => true,
            Verdict::Silent => !self.by_policy,
        };
        is_let && target.owner() == owner && target.created_ms == self.target_created_ms
    }

    fn list_in(&self, target: &Record) -> &str {
        let owner = target.owner();
        let list = List {
            text: &self.list,
            owner,
        };
        let is_refused = target.has_no_lists() || (list.is_public() && target.refuses_public_lists());
        if is_refused { "" } else { &self.list }
    }

    fn key(&self, source: &str, owner: &str, day: u64, now: SystemTime) -> String {
        let mut unique = keyspace::unique_text().to_ascii_uppercase();
        unique.truncate(UNIQUE_DIGITS);
        let is_of_event = self.format == Format::EventTime;
        let time = if is_of_event {
            UNIX_EPOCH + day_length() * u32::try_from(day).unwrap_or(0)
        } else {
            now
        };
        let text = seconds_text(time);
        // `2026-01-31T12:30:00`
        let name = text.replace(['T', ':'], "-");
        match self.format {
            Format::Default | Format::Simple => format!("{}{name}-{unique}", self.prefix),
            Format::EventTime | Format::DeliveryTime => {
                let path = text.split('T').next().unwrap_or("").replace('-', "/");
                format!("{}{owner}/{REGION}/{source}/{path}/{name}-{unique}", self.prefix)
            }
        }
    }
}

/// Length of a log's day.
const fn day_length() -> Duration {
    Duration::from_secs(24 * 3600)
}

/// The day of a time, since 1970.
fn day_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / day_length().as_secs()
}

/// `2026-01-31T12:30:00`
fn seconds_text(time: SystemTime) -> String {
    let text = date_text(time);
    text.split(['.', 'Z']).next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::bucket::{Bucket, PublicAccessBlock};

    fn settings(format: Format) -> Settings {
        Settings {
            target: "logs".to_owned(),
            target_created_ms: 5,
            prefix: "p-".to_owned(),
            format,
            by_policy: false,
            list: String::new(),
        }
    }

    #[test]
    fn lists_are_judged_again() {
        let with = |list: &str| Settings {
            list: list.to_owned(),
            ..settings(Format::Simple)
        };
        let named = with("terrace=FULL_CONTROL press=READ");
        let public = with("public-read");
        let open = Record::default();
        assert_eq!(
            (named.list_in(&open), public.list_in(&open)),
            (&*named.list, "public-read")
        );
        let blocked = Record {
            public_access_block: Some(PublicAccessBlock {
                refuse_lists: true,
                ..PublicAccessBlock::default()
            }),
            ..Record::default()
        };
        assert_eq!((named.list_in(&blocked), public.list_in(&blocked)), (&*named.list, ""));
        let enforced = Record {
            ownership: Some("BucketOwnerEnforced".to_owned()),
            ..Record::default()
        };
        assert_eq!(named.list_in(&enforced), "");
    }

    #[test]
    fn keys_say_when() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let key = |format| {
            let mut key = settings(format).key("source", "terrace", 19_600, now);
            let unique = key.split_off(key.len() - UNIQUE_DIGITS);
            assert!(
                unique
                    .bytes()
                    .all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_lowercase())
            );
            key
        };
        assert_eq!(key(Format::Simple), "p-2023-11-14-22-13-20-");
        assert_eq!(
            key(Format::DeliveryTime),
            "p-terrace/us-east-1/source/2023/11/14/2023-11-14-22-13-20-"
        );
        assert_eq!(
            key(Format::EventTime),
            "p-terrace/us-east-1/source/2023/08/31/2023-08-31-00-00-00-"
        );
        assert_ne!(
            settings(Format::Simple).key("s", "terrace", 0, now),
            settings(Format::Simple).key("s", "terrace", 0, now)
        );
        let longest = "b".repeat(63);
        assert!(settings(Format::EventTime).key(&longest, &longest, 0, now).len() - 2 <= BEHIND_PREFIX_BYTES_MAX);
    }

    #[test]
    fn targets_that_accept_a_log() {
        let with = |policy: &str, created_ms| {
            let record = Record {
                created_ms,
                policy: Some(policy.to_owned()),
                ..Record::default()
            };
            Bucket::apart("logs".to_owned(), record).record()
        };
        let policy = |effect: &str, source: &str| {
            format!(
                r#"{{"Statement":{{"Effect":"{effect}","Principal":{{"Service":"logging.s3.amazonaws.com"}},
                "Action":"s3:PutObject","Resource":"arn:aws:s3:::logs/p-*",
                "Condition":{{"ArnLike":{{"aws:SourceArn":"arn:aws:s3:::{source}"}},
                "StringEquals":{{"aws:SourceAccount":"terrace"}}}}}}}}"#
            )
        };
        let own = settings(Format::Simple);
        let of_policy = Settings {
            by_policy: true,
            ..own.clone()
        };
        let none = Record {
            created_ms: 5,
            ..Record::default()
        };
        assert!(own.may("source", "terrace", &none, "p-1", 0) && !of_policy.may("source", "terrace", &none, "p-1", 0));
        let allowing = with(&policy("Allow", "source"), 5);
        assert!(of_policy.may("source", "terrace", &allowing, "p-1", 0));
        assert!(
            !of_policy.may("other", "terrace", &allowing, "p-1", 0)
                && !of_policy.may("source", "terrace", &allowing, "q-1", 0)
        );
        assert!(!own.may("source", "terrace", &with(&policy("Deny", "*"), 5), "p-1", 0));
        assert!(
            !own.may("source", "terrace", &with(&policy("Allow", "*"), 6), "p-1", 0),
            "made anew"
        );
        assert!(!own.may("source", "other", &none, "p-1", 0), "of another account");
        assert!(
            !of_policy.may("source", "other", &allowing, "p-1", 0),
            "whatever the policy says"
        );
    }
}
