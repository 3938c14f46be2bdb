//! Lifecycle rules of a bucket.
//!
//! The rules are in the bucket's record. A walk ([`crate::walk`]) visits the versions of each
//! bucket with rules when the server starts, when rules are put, and once an hour. It deletes what
//! is due by the same commits as requests: separate values are deleted with their record, and in a
//! versioned bucket a delete marker replaces an expired object. The engine's time to live is not
//! used: it is set when an object is written, but rules apply to existing objects and to tags that
//! change later, and an object of many values would need the same expiry on each.
//!
//! Nothing is deleted early: an object is due at the first midnight (UTC) after its days have
//! passed, and exactly the version that was evaluated is deleted, up to an hour later. An object
//! that was not put through S3 has no time and never expires by days.

use crate::{class::Class, keyspace, record::Facts, tags};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Shortest object whose class a rule without size conditions changes.
const MOVED_BYTES_MIN: u64 = 128 << 10;

/// A rule, as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name, unique in the bucket.
    pub id: String,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Its filter.
    #[serde(default)]
    pub filter: Filter,
    /// Expiry of current objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire: Option<Expire>,
    /// Expiry of versions that are not the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noncurrent: Option<Noncurrent>,
    /// Class changes of current objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// Class changes of versions that are not the latest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noncurrent_transitions: Vec<NoncurrentTransition>,
    /// Days after which an incomplete upload is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_days: Option<u32>,
}

/// Expiry of current objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expire {
    /// Days after it was written.
    Days(u32),
    /// At this time, in milliseconds since 1970.
    DateMs(u64),
    /// Never; if true, a delete marker that is its object's only version is deleted.
    Markers(bool),
}

/// Expiry of versions that are not the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noncurrent {
    /// Days after the next version was written.
    pub days: u32,
    /// Number of newer versions, besides the latest, that must exist.
    #[serde(default)]
    pub keep: u32,
}

/// Class change of a current object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// When. [`Expire::Markers`] does not occur here.
    pub when: Expire,
    /// The class.
    pub class: String,
}

/// Class change of a version that is not the latest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoncurrentTransition {
    /// When.
    pub when: Noncurrent,
    /// The class.
    pub class: String,
}

/// The form in which a client wrote a filter, so that it is returned in the same form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A prefix without a filter: the older form.
    Prefix,
    /// At most one condition.
    #[default]
    One,
    /// Several conditions, all of which must hold.
    And,
}

/// A rule's filter: all conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Its form in the request.
    #[serde(default)]
    pub form: Form,
    /// Only keys with this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Only objects with all of these tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
    /// Only objects longer than this, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longer: Option<u64>,
    /// Only objects shorter than this, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorter: Option<u64>,
}

/// The properties of a version that rules check.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its length in bytes.
    pub length: u64,
    /// Its tags, in query encoding.
    pub tagging: Option<&'a str>,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: u64,
}

impl<'a> Subject<'a> {
    /// A version.
    pub fn of(key: &'a str, facts: &'a Facts) -> Self {
        Self {
            key,
            length: facts.length,
            tagging: facts.tagging(),
            written_ms: facts.modified_ms,
        }
    }
}

impl Filter {
    /// Whether the filter's prefix matches a key.
    fn has_prefix(&self, key: &str) -> bool {
        key.starts_with(self.prefix.as_deref().unwrap_or(""))
    }

    /// Whether the filter matches a version.
    fn matches(&self, subject: Subject<'_>) -> bool {
        let has_length = self.longer.is_none_or(|bytes| subject.length > bytes)
            && self.shorter.is_none_or(|bytes| subject.length < bytes);
        self.has_prefix(subject.key) && has_length && self.has_tags(subject.tagging.unwrap_or(""))
    }

    fn has_tags(&self, tagging: &str) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        let tags = tags::decode(tagging).unwrap_or_default();
        self.tags.iter().all(|tag| tags.contains(tag))
    }
}

/// The first midnight at least `days` days after a time; never, if that overflows.
fn midnight_after(ms: u64, days: u32) -> u64 {
    let time = ms.saturating_add(u64::from(days).saturating_mul(DAY_MS));
    time.div_ceil(DAY_MS).saturating_mul(DAY_MS)
}

impl Rule {
    /// When this rule expires a current object, in milliseconds since 1970.
    pub fn expiry_ms(&self, subject: Subject<'_>) -> Option<u64> {
        if !self.enabled || !self.filter.matches(subject) {
            return None;
        }
        match self.expire? {
            // The time is unknown: it was not put through S3.
            Expire::Days(_) if subject.written_ms == 0 => None,
            Expire::Days(days) => Some(midnight_after(subject.written_ms, days)),
            Expire::DateMs(ms) => Some(ms),
            Expire::Markers(_) => None,
        }
    }

    /// Whether a version is due that has not been the latest since `since_ms` and has `newer`
    /// versions between it and the latest.
    pub fn is_noncurrent_due(&self, subject: Subject<'_>, since_ms: u64, newer: u32, now_ms: u64) -> bool {
        let Some(noncurrent) = self.noncurrent.filter(|_| self.enabled) else {
            return false;
        };
        newer >= noncurrent.keep
            && since_ms > 0
            && now_ms >= midnight_after(since_ms, noncurrent.days)
            && self.filter.matches(subject)
    }

    /// The storage class of a current object by this rule.
    pub fn class(&self, subject: Subject<'_>, now_ms: u64) -> Option<Class> {
        if !self.moves(subject) {
            return None;
        }
        let due = self.transitions.iter().filter(|transition| match transition.when {
            Expire::Days(days) => subject.written_ms > 0 && now_ms >= midnight_after(subject.written_ms, days),
            Expire::DateMs(ms) => now_ms >= ms,
            Expire::Markers(_) => false,
        });
        due.filter_map(|transition| Class::parse(&transition.class)).max()
    }

    /// The storage class by this rule of a version that has not been the latest since `since_ms`
    /// and has `newer` versions between it and the latest.
    pub fn noncurrent_class(&self, subject: Subject<'_>, since_ms: u64, newer: u32, now_ms: u64) -> Option<Class> {
        if !self.moves(subject) || since_ms == 0 {
            return None;
        }
        let due = self.noncurrent_transitions.iter().filter(|transition| {
            newer >= transition.when.keep && now_ms >= midnight_after(since_ms, transition.when.days)
        });
        due.filter_map(|transition| Class::parse(&transition.class)).max()
    }

    /// Whether it changes the class of a version. As in S3, short ones are included only if the
    /// rule has a size condition.
    fn moves(&self, subject: Subject<'_>) -> bool {
        let asks_length = self.filter.longer.is_some() || self.filter.shorter.is_some();
        let is_long = asks_length || subject.length >= MOVED_BYTES_MIN;
        self.enabled && is_long && self.filter.matches(subject)
    }

    /// Whether a delete marker that is its object's only version is due.
    pub fn is_marker_due(&self, subject: Subject<'_>, now_ms: u64) -> bool {
        match self.expire {
            _ if !self.enabled || !self.filter.matches(subject) => false,
            Some(Expire::Markers(wanted)) => wanted,
            Some(Expire::Days(days)) => now_ms >= midnight_after(subject.written_ms, days),
            Some(Expire::DateMs(ms)) => now_ms >= ms,
            None => false,
        }
    }

    /// When this rule aborts an upload begun at `begun_ms`, in milliseconds since 1970.
    fn abort_ms(&self, key: &str, begun_ms: u64) -> Option<u64> {
        let days = self.abort_days?;
        (self.enabled && self.filter.has_prefix(key)).then(|| midnight_after(begun_ms, days))
    }

    /// Whether an upload begun at `begun_ms` is due.
    pub fn is_upload_due(&self, key: &str, begun_ms: u64, now_ms: u64) -> bool {
        self.abort_ms(key, begun_ms).is_some_and(|ms| now_ms >= ms)
    }
}

/// When a current object will be deleted, or an upload aborted, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiration {
    /// The time.
    pub at: SystemTime,
    /// The name of the rule.
    pub rule: String,
}

/// When a current object will be deleted, by the earliest rule.
pub fn expiration(rules: &[Rule], subject: Subject<'_>) -> Option<Expiration> {
    first(rules, |rule| rule.expiry_ms(subject))
}

/// When an upload begun at `begun_ms` will be aborted, by the earliest rule.
pub fn abortion(rules: &[Rule], key: &str, begun_ms: u64) -> Option<Expiration> {
    first(rules, |rule| rule.abort_ms(key, begun_ms))
}

fn first(rules: &[Rule], due_ms: impl Fn(&Rule) -> Option<u64>) -> Option<Expiration> {
    let due = rules.iter().filter_map(|rule| Some((due_ms(rule)?, rule)));
    let (ms, rule) = due.min_by_key(|(ms, _)| *ms)?;
    Some(Expiration {
        at: UNIX_EPOCH.checked_add(Duration::from_millis(ms))?,
        rule: rule.id.clone(),
    })
}

/// A name for a rule without one.
pub fn new_id() -> String {
    keyspace::unique_text()
}

#[cfg(test)]
mod tests;
