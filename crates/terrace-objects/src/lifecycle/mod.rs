//! Lifecycle: rules of a bucket that say what is deleted when.
//!
//! The rules are in the bucket's record. A walk ([`crate::walk`]) goes through the versions of each
//! bucket that has rules, when the server starts, when rules are put, and once an hour, and deletes
//! what is due by the same commits a client's request takes: so the values of an object go with its
//! record, and in a bucket with versioning a delete marker takes the place of what expires. The
//! engine's time to live is not used for this: it is set when an object is written, while rules
//! apply to what is there already and to tags that change later; and an object of many values would
//! need the same moment on every one of them.
//!
//! Nothing is deleted early: an object is due at the first midnight (UTC) after its days are over,
//! and what is deleted is exactly the version that was judged. It may be there for up to an hour
//! longer. What was not put through S3 has no time, and is not old by any number of days.

use crate::{class::Class, keyspace, record::Facts, tags};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Shortest object whose class a rule changes that says nothing of lengths.
const MOVED_BYTES_MIN: u64 = 128 << 10;

/// A rule, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name, unique in the bucket.
    pub id: String,
    /// It counts.
    pub enabled: bool,
    /// What it is about.
    #[serde(default)]
    pub filter: Filter,
    /// When the current object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire: Option<Expire>,
    /// When versions are deleted that are not the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noncurrent: Option<Noncurrent>,
    /// When the current object gets another storage class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// When versions get one that are not the latest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noncurrent_transitions: Vec<NoncurrentTransition>,
    /// Days after which an upload that is not complete is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_days: Option<u32>,
}

/// When the current object is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expire {
    /// So many days after it was written.
    Days(u32),
    /// At this time, in milliseconds since 1970.
    DateMs(u64),
    /// Never; but a delete marker that is all that is left of an object is deleted, if true.
    Markers(bool),
}

/// When versions are deleted that are not the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noncurrent {
    /// Days after the next version was written.
    pub days: u32,
    /// If there are at least so many between it and the latest.
    #[serde(default)]
    pub keep: u32,
}

/// When a current object gets another storage class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// When; delete markers have none.
    pub when: Expire,
    /// The class.
    pub class: String,
}

/// When a version gets another storage class that is not the latest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoncurrentTransition {
    /// When.
    pub when: Noncurrent,
    /// The class.
    pub class: String,
}

/// How a client wrote a filter, so that it gets it back that way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A prefix beside the filter's place, as it was before there were filters.
    Prefix,
    /// At most one condition.
    #[default]
    One,
    /// Several that all must hold.
    And,
}

/// What a rule is about: all of what is said must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// How it was written.
    #[serde(default)]
    pub form: Form,
    /// Keys that begin with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Objects with these tags, among others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
    /// Objects of more bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longer: Option<u64>,
    /// Objects of fewer bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorter: Option<u64>,
}

/// What rules judge a version by.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its length in bytes.
    pub length: u64,
    /// Its tags, as a query.
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
    /// Whether a key may be meant.
    fn has_prefix(&self, key: &str) -> bool {
        key.starts_with(self.prefix.as_deref().unwrap_or(""))
    }

    /// Whether a version is meant.
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

/// The first midnight that is so many days after a time, or later. Never, if there is no such time.
fn midnight_after(ms: u64, days: u32) -> u64 {
    let time = ms.saturating_add(u64::from(days).saturating_mul(DAY_MS));
    time.div_ceil(DAY_MS).saturating_mul(DAY_MS)
}

impl Rule {
    /// When a current object is deleted by this rule, in milliseconds since 1970.
    pub fn expiry_ms(&self, subject: Subject<'_>) -> Option<u64> {
        if !self.enabled || !self.filter.matches(subject) {
            return None;
        }
        match self.expire? {
            // When it was written was not noted: it was not put through S3.
            Expire::Days(_) if subject.written_ms == 0 => None,
            Expire::Days(days) => Some(midnight_after(subject.written_ms, days)),
            Expire::DateMs(ms) => Some(ms),
            Expire::Markers(_) => None,
        }
    }

    /// Whether a version that is not the latest is due: since when it is not, and how many there
    /// are between it and the latest.
    pub fn is_noncurrent_due(&self, subject: Subject<'_>, since_ms: u64, newer: u32, now_ms: u64) -> bool {
        let Some(noncurrent) = self.noncurrent.filter(|_| self.enabled) else {
            return false;
        };
        newer >= noncurrent.keep
            && since_ms > 0
            && now_ms >= midnight_after(since_ms, noncurrent.days)
            && self.filter.matches(subject)
    }

    /// The storage class that a current object has by this rule.
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

    /// The same of a version that is not the latest: since when it is not, and how many there are
    /// between it and the latest.
    pub fn noncurrent_class(&self, subject: Subject<'_>, since_ms: u64, newer: u32, now_ms: u64) -> Option<Class> {
        if !self.moves(subject) || since_ms == 0 {
            return None;
        }
        let due = self.noncurrent_transitions.iter().filter(|transition| {
            newer >= transition.when.keep && now_ms >= midnight_after(since_ms, transition.when.days)
        });
        due.filter_map(|transition| Class::parse(&transition.class)).max()
    }

    /// Whether it changes the class of a version. Of a short one only if it says something of
    /// lengths, as S3 has it.
    fn moves(&self, subject: Subject<'_>) -> bool {
        let asks_length = self.filter.longer.is_some() || self.filter.shorter.is_some();
        let is_long = asks_length || subject.length >= MOVED_BYTES_MIN;
        self.enabled && is_long && self.filter.matches(subject)
    }

    /// Whether a delete marker that is all that is left of an object is due.
    pub fn is_marker_due(&self, subject: Subject<'_>, now_ms: u64) -> bool {
        match self.expire {
            _ if !self.enabled || !self.filter.matches(subject) => false,
            Some(Expire::Markers(wanted)) => wanted,
            Some(Expire::Days(days)) => now_ms >= midnight_after(subject.written_ms, days),
            Some(Expire::DateMs(ms)) => now_ms >= ms,
            None => false,
        }
    }

    /// When an upload is aborted by this rule that was begun then, in milliseconds since 1970.
    fn abort_ms(&self, key: &str, begun_ms: u64) -> Option<u64> {
        let days = self.abort_days?;
        (self.enabled && self.filter.has_prefix(key)).then(|| midnight_after(begun_ms, days))
    }

    /// Whether an upload that was begun then is due.
    pub fn is_upload_due(&self, key: &str, begun_ms: u64, now_ms: u64) -> bool {
        self.abort_ms(key, begun_ms).is_some_and(|ms| now_ms >= ms)
    }
}

/// When a current object will be deleted, or an upload aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiration {
    /// The time.
    pub at: SystemTime,
    /// The name of the rule.
    pub rule: String,
}

/// When a current object will be deleted, by the first rule that wants it gone.
pub fn expiration(rules: &[Rule], subject: Subject<'_>) -> Option<Expiration> {
    first(rules, |rule| rule.expiry_ms(subject))
}

/// When an upload will be aborted that was begun then, by the first rule that wants it gone.
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

/// A name for a rule that came without one.
pub fn new_id() -> String {
    keyspace::Id::new().to_string()
}

#[cfg(test)]
mod tests;
