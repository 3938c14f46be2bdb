//! Notifications: what happens to the objects of a bucket, told to webhooks.
//!
//! Rules of a bucket say which events go to which target. Targets are addresses that the server's
//! settings name ([`Targets`]), so that nobody can have the server call any other. An event is a
//! record below [`keyspace::EVENTS`], written in the commit of what it is about ([`Cause`]): there
//! is none without the other, whatever crashes. A worker for each target sends them and deletes
//! what was taken ([`delivery`]), so each is delivered at least once. How many wait has a bound;
//! beyond it events are lost, and counted.

pub mod delivery;
mod event;
pub mod targets;
pub mod tls;

pub use event::{Happened, What, test_event};
pub use targets::{Target, Targets};

use super::{bucket::Bucket, keyspace};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, sync::Arc};
use terrace::Batch;

/// Events that rules can be about.
pub const EVENTS: [&str; 11] = [
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectRemoved:Delete",
    "s3:ObjectRemoved:DeleteMarkerCreated",
    "s3:ObjectTagging:Put",
    "s3:ObjectTagging:Delete",
    "s3:ObjectAcl:Put",
    "s3:LifecycleExpiration:Delete",
    "s3:LifecycleExpiration:DeleteMarkerCreated",
];

/// What a target is called by whoever puts a rule: all the same here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A queue.
    Queue,
    /// A topic.
    Topic,
    /// A function.
    Function,
}

/// A rule, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name, unique in the bucket.
    pub id: String,
    /// As what it was put.
    pub kind: Kind,
    /// Where events go, as it was put: the target's name is behind the last colon.
    pub arn: String,
    /// Of which kinds: of [`EVENTS`], or several of these by a `*` at the end.
    pub events: Vec<String>,
    /// Of keys that begin with this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Of keys that end with this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suffix: String,
}

impl Rule {
    /// The name of the target.
    pub fn target(&self) -> &str {
        self.arn.rsplit_once(':').map_or("", |(_, name)| name)
    }

    /// Whether it is about an event of a key.
    fn is_about(&self, event: &str, key: &str) -> bool {
        self.events.iter().any(|wanted| fits(wanted, event))
            && key.starts_with(&self.prefix)
            && key.ends_with(&self.suffix)
    }

    /// Whether some event may be what both are about.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shares = EVENTS.iter().any(|event| {
            let wants = |rule: &Self| rule.events.iter().any(|wanted| fits(wanted, event));
            wants(self) && wants(other)
        });
        let (a, b) = (self, other);
        shares
            && (a.prefix.starts_with(&b.prefix) || b.prefix.starts_with(&a.prefix))
            && (a.suffix.ends_with(&b.suffix) || b.suffix.ends_with(&a.suffix))
    }
}

/// Whether an event is a kind that a rule names.
pub fn fits(wanted: &str, event: &str) -> bool {
    wanted
        .strip_suffix('*')
        .map_or(wanted == event, |start| event.starts_with(start))
}

/// Why something is changed, as events tell it. It goes with the permit to change it.
#[derive(Debug, Clone)]
pub struct Cause {
    /// Where events go.
    pub targets: Arc<Targets>,
    /// S3's name of the operation; empty for what no request asked for.
    pub operation: String,
    /// The access key of whoever asked.
    pub key: Option<String>,
    /// Where the request came from.
    pub address: Option<IpAddr>,
    /// The request's number.
    pub number: String,
}

impl Cause {
    /// Adds the events of something to the batch that it happens in. Which targets they are for.
    pub fn add_events(&self, batch: &mut Batch, bucket: &Bucket, happened: &Happened<'_>) -> Vec<Arc<Target>> {
        let record = bucket.record();
        let Some(event) = happened.event(self) else {
            return Vec::new();
        };
        let rules = record.notifications.iter();
        let meant = rules.filter(|rule| rule.is_about(event, happened.key));
        meant
            .filter_map(|rule| {
                let target = self.targets.with_room(rule.target())?;
                let text = event::record(self, event, bucket, rule, happened);
                batch.put(keyspace::event(&target.name, self.targets.next_id()), text);
                Some(target)
            })
            .collect()
    }
}

/// Says that events are in the store.
pub fn added(targets: &[Arc<Target>]) {
    targets.iter().for_each(|target| target.add());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(events: &[&str], prefix: &str, suffix: &str) -> Rule {
        Rule {
            id: "r".to_owned(),
            kind: Kind::Queue,
            arn: "arn:aws:sqs:us-east-1:terrace:hook".to_owned(),
            events: events.iter().map(|event| (*event).to_owned()).collect(),
            prefix: prefix.to_owned(),
            suffix: suffix.to_owned(),
        }
    }

    #[test]
    fn rules_are_stored_like_this() {
        let json = r#"{"id":"r","kind":"queue","arn":"arn:aws:sqs:us-east-1:terrace:hook","events":["s3:ObjectCreated:*"],"suffix":".jpg"}"#;
        let rule = rule(&["s3:ObjectCreated:*"], "", ".jpg");
        assert_eq!(serde_json::to_string(&rule).unwrap(), json);
        assert_eq!(serde_json::from_str::<Rule>(json).unwrap(), rule);
        assert_eq!(rule.target(), "hook");
    }

    #[test]
    fn what_rules_are_about() {
        let created = rule(&["s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"], "in/", ".jpg");
        for (event, key, expected) in [
            ("s3:ObjectCreated:Put", "in/a.jpg", true),
            ("s3:ObjectRemoved:Delete", "in/a.jpg", true),
            ("s3:ObjectRemoved:DeleteMarkerCreated", "in/a.jpg", false),
            ("s3:ObjectCreated:Put", "in/a.png", false),
            ("s3:ObjectCreated:Put", "a.jpg", false),
        ] {
            assert_eq!(created.is_about(event, key), expected, "{event} {key}");
        }
        let put = |prefix, suffix| rule(&["s3:ObjectCreated:Put"], prefix, suffix);
        assert!(created.overlaps(&put("", "")) && created.overlaps(&put("in/deep/", "")));
        assert!(!created.overlaps(&put("out/", "")) && !created.overlaps(&put("", ".png")));
        assert!(!created.overlaps(&rule(&["s3:ObjectTagging:*"], "", "")));
    }
}
