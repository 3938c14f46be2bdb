//! A bucket's access log settings.

use serde::{Deserialize, Serialize};

/// Access log settings, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The bucket that gets the log.
    pub target: String,
    /// Creation time of that bucket: a later bucket of the same name gets no log.
    pub target_created_ms: u64,
    /// Prefix of the log's keys.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The rest of the keys.
    #[serde(default)]
    pub format: Format,
    /// Only the target's policy permits the log, so each delivery checks it; otherwise the caller
    /// that enabled the log owns the target.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_policy: bool,
    /// The access control list of log objects, as stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub list: String,
}

/// Format of log keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Default, not in the settings: `PREFIXyyyy-mm-dd-hh-mm-ss-UNIQUE`.
    #[default]
    Default,
    /// The same format, in the settings.
    Simple,
    /// `PREFIXaccount/region/bucket/yyyy/mm/dd/yyyy-mm-dd-00-00-00-UNIQUE`, by the day of the
    /// requests.
    EventTime,
    /// The same, by the day of delivery.
    DeliveryTime,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
    fn settings_are_stored_like_this() {
        let json = r#"{"target":"logs","target_created_ms":5,"prefix":"p-","format":"event_time"}"#;
        assert_eq!(serde_json::to_string(&settings(Format::EventTime)).unwrap(), json);
        assert_eq!(
            serde_json::from_str::<Settings>(json).unwrap(),
            settings(Format::EventTime)
        );
        let of_policy = Settings {
            prefix: String::new(),
            by_policy: true,
            ..settings(Format::Default)
        };
        let json = r#"{"target":"logs","target_created_ms":5,"format":"default","by_policy":true}"#;
        assert_eq!(serde_json::to_string(&of_policy).unwrap(), json);
        assert_eq!(serde_json::from_str::<Settings>(json).unwrap(), of_policy);
        let granting = Settings {
            list: "terrace=FULL_CONTROL press=READ".to_owned(),
            ..settings(Format::Simple)
        };
        let json = r#"{"target":"logs","target_created_ms":5,"prefix":"p-","format":"simple","list":"terrace=FULL_CONTROL press=READ"}"#;
        assert_eq!(serde_json::to_string(&granting).unwrap(), json);
        assert_eq!(serde_json::from_str::<Settings>(json).unwrap(), granting);
    }
}
