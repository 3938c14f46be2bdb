//! Events as S3 writes them ("Event message structure" in its guide).

use super::{Cause, Happened, Rule, What};
use crate::s3::{
    REGION, account,
    bucket::Bucket,
    ops::{listings::Encoding, said::date_text},
};
use serde_json::{Value, json};
use terrace::Clock;

/// The event name in rules. `None` if rules cannot name it.
pub fn name(happened: &Happened<'_>, cause: &Cause) -> Option<&'static str> {
    let operation = cause.operation.as_str();
    // Changes without an operation are made by lifecycle rules.
    let is_rule = operation.is_empty();
    Some(match (&happened.what, operation) {
        (What::Written(..), "PostObject") => "s3:ObjectCreated:Post",
        (What::Written(..) | What::Described(..), "CopyObject") => "s3:ObjectCreated:Copy",
        (What::Written(..), "CompleteMultipartUpload") => "s3:ObjectCreated:CompleteMultipartUpload",
        (What::Written(..), _) => "s3:ObjectCreated:Put",
        (What::Described(..), "PutObjectTagging") => "s3:ObjectTagging:Put",
        (What::Described(..), "DeleteObjectTagging") => "s3:ObjectTagging:Delete",
        (What::Described(..), "PutObjectAcl") => "s3:ObjectAcl:Put",
        (What::Described(..), _) if is_rule => "s3:LifecycleTransition",
        (What::Described(..), _) => return None,
        (What::Deleted, _) if is_rule => "s3:LifecycleExpiration:Delete",
        (What::Deleted, _) => "s3:ObjectRemoved:Delete",
        (What::Marked, _) if is_rule => "s3:LifecycleExpiration:DeleteMarkerCreated",
        (What::Marked, _) => "s3:ObjectRemoved:DeleteMarkerCreated",
    })
}

/// A key as events encode it: like a field of a form.
fn form_encoded(key: &str) -> String {
    Encoding::URL.apply(key).replace("%20", "+")
}

/// An event as stored: all of it except `sequencer`, which is the number of its commit.
pub fn record(cause: &Cause, event: &str, bucket: &Bucket, rule: &Rule, happened: &Happened<'_>) -> String {
    let name = event.strip_prefix("s3:").unwrap_or(event);
    let is_newer = !name.starts_with("ObjectCreated") && !name.starts_with("ObjectRemoved");
    let principal = cause.key.clone().unwrap_or_else(|| {
        let anonymous = if cause.operation.is_empty() {
            "s3.amazonaws.com"
        } else {
            "Anonymous"
        };
        anonymous.to_owned()
    });
    let mut object = json!({ "key": form_encoded(happened.key) });
    if let What::Written(length, etag) | What::Described(length, etag, _) = &happened.what {
        object["size"] = Value::from(*length);
        object["eTag"] = Value::from(etag.as_str());
    }
    if let Some(version) = happened.version {
        object["versionId"] = Value::from(version.to_string());
    }
    let mut record = json!({
        "eventVersion": if is_newer { "2.3" } else { "2.1" },
        "eventSource": "aws:s3",
        "awsRegion": REGION,
        "eventTime": date_text(Clock::of_ms(cause.clock.now_ms())),
        "eventName": name,
        "userIdentity": { "principalId": principal },
        "requestParameters": {
            "sourceIPAddress": cause.address.map(|address| address.to_string()).unwrap_or_default(),
        },
        "responseElements": { "x-amz-request-id": cause.number, "x-amz-id-2": "" },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": rule.id,
            "bucket": {
                "name": bucket.name,
                "ownerIdentity": { "principalId": account::canonical_id(bucket.record().owner()) },
                "arn": format!("arn:aws:s3:::{}", bucket.name),
            },
            "object": object,
        },
    });
    if let (What::Described(.., class), "LifecycleTransition") = (&happened.what, name) {
        record["lifecycleEventData"] = json!({
            "transitionEventData": { "destinationStorageClass": class.name() },
        });
    }
    json!({ "Records": [record] }).to_string()
}

/// The test event that a target gets when a rule names it.
pub fn test_event(bucket: &str, number: &str, now_ms: u64) -> String {
    let event = json!({
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": date_text(Clock::of_ms(now_ms)),
        "Bucket": bucket,
        "RequestId": number,
        "HostId": "",
    });
    event.to_string()
}

/// An event as sent: with the number of its commit, which orders the events of a key.
pub fn with_sequencer(stored: &[u8], commit: u64) -> Vec<u8> {
    let Ok(mut event) = serde_json::from_slice::<Value>(stored) else {
        return stored.to_vec();
    };
    if let Some(object) = event.pointer_mut("/Records/0/s3/object").and_then(Value::as_object_mut) {
        object.insert("sequencer".to_owned(), Value::from(format!("{commit:016X}")));
    }
    event.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{
        class::Class,
        notify::{Kind, Targets},
        versions::Name,
    };
    use std::{
        sync::Arc,
        time::{Duration, UNIX_EPOCH},
    };

    fn cause(operation: &str) -> Cause {
        Cause {
            targets: Arc::new(Targets::default()),
            clock: Clock::new(|| UNIX_EPOCH + Duration::from_millis(1_700_000_000_120)),
            operation: operation.to_owned(),
            key: Some("TRCE1".to_owned()),
            address: Some([192, 0, 2, 3].into()),
            number: "1F".to_owned(),
        }
    }

    #[test]
    fn events_are_stored_like_this() {
        let rule = Rule {
            id: "r".to_owned(),
            kind: Kind::Queue,
            arn: String::new(),
            events: Vec::new(),
            prefix: String::new(),
            suffix: String::new(),
        };
        let happened = Happened {
            key: "a b/ü+",
            version: Some(Name::Null),
            what: What::Written(3, "900150983cd24fb0d6963f7d28e17f72".to_owned()),
        };
        let stored = record(
            &cause("PutObject"),
            "s3:ObjectCreated:Put",
            &Bucket::apart("photos".to_owned(), crate::s3::bucket::Record::default()),
            &rule,
            &happened,
        );
        let expected = concat!(
            r#"{"Records":[{"awsRegion":"us-east-1","eventName":"ObjectCreated:Put","eventSource":"aws:s3","#,
            r#""eventTime":"2023-11-14T22:13:20.120Z","eventVersion":"2.1","requestParameters":{"sourceIPAddress":"192.0.2.3"},"#,
            r#""responseElements":{"x-amz-id-2":"","x-amz-request-id":"1F"},"s3":{"bucket":{"arn":"arn:aws:s3:::photos","#,
            r#""name":"photos","ownerIdentity":{"principalId":"terrace"}},"configurationId":"r","object":"#,
            r#"{"eTag":"900150983cd24fb0d6963f7d28e17f72","key":"a+b/%C3%BC%2B","size":3,"versionId":"null"},"#,
            r#""s3SchemaVersion":"1.0"},"userIdentity":{"principalId":"TRCE1"}}]}"#
        );
        assert_eq!(stored, expected);
        let sent: Value = serde_json::from_slice(&with_sequencer(stored.as_bytes(), 0x1f)).unwrap();
        assert_eq!(sent["Records"][0]["s3"]["object"]["sequencer"], "000000000000001F");
        assert_eq!(with_sequencer(b"no JSON", 1), b"no JSON");
    }

    #[test]
    fn what_happens_has_a_name() {
        let written = || What::Written(0, String::new());
        let described = || What::Described(0, String::new(), Class::GlacierIr);
        for (what, operation, expected) in [
            (written(), "PutObject", Some("s3:ObjectCreated:Put")),
            (written(), "CopyObject", Some("s3:ObjectCreated:Copy")),
            (described(), "CopyObject", Some("s3:ObjectCreated:Copy")),
            (described(), "PutObjectAcl", Some("s3:ObjectAcl:Put")),
            (described(), "PutObjectRetention", None),
            (described(), "", Some("s3:LifecycleTransition")),
            (What::Deleted, "DeleteObjects", Some("s3:ObjectRemoved:Delete")),
            (
                What::Marked,
                "DeleteObject",
                Some("s3:ObjectRemoved:DeleteMarkerCreated"),
            ),
            (What::Marked, "", Some("s3:LifecycleExpiration:DeleteMarkerCreated")),
        ] {
            let happened = Happened {
                key: "k",
                version: None,
                what,
            };
            let event = name(&happened, &cause(operation));
            assert_eq!(event, expected, "{operation}");
            assert!(event.is_none_or(|event| crate::s3::notify::EVENTS.contains(&event)));
        }
    }
}
