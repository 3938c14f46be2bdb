//! A bucket's event notification rules.

use serde::{Deserialize, Serialize};

/// Events that rules can name.
pub const EVENTS: [&str; 12] = [
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
    "s3:LifecycleTransition",
];

/// Kind of target in the client's request; all kinds are handled alike.
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

/// A rule, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name, unique in the bucket.
    pub id: String,
    /// Kind in the client's request.
    pub kind: Kind,
    /// Target as the client wrote it; its name is after the last colon.
    pub arn: String,
    /// Events: names of [`EVENTS`], or prefixes of them that end with `*`.
    pub events: Vec<String>,
    /// Only keys with this prefix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Only keys with this suffix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suffix: String,
}

impl Rule {
    /// The name of the target.
    pub fn target(&self) -> &str {
        self.arn.rsplit_once(':').map_or("", |(_, name)| name)
    }

    /// Whether it applies to an event of a key.
    pub fn is_about(&self, event: &str, key: &str) -> bool {
        self.events.iter().any(|wanted| fits(wanted, event))
            && key.starts_with(&self.prefix)
            && key.ends_with(&self.suffix)
    }

    /// Whether some event matches both rules.
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

/// Whether an event matches a rule's name.
pub fn fits(wanted: &str, event: &str) -> bool {
    wanted
        .strip_suffix('*')
        .map_or(wanted == event, |start| event.starts_with(start))
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
