//! Where the requests of a bucket are logged, as its record has it.

use serde::{Deserialize, Serialize};

/// Where the requests of a bucket are logged, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The bucket that gets the log.
    pub target: String,
    /// When that bucket was created: another one that has its name later gets nothing.
    pub target_created_ms: u64,
    /// What the log's keys begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// How the keys go on.
    #[serde(default)]
    pub format: Format,
    /// Only the target's policy lets the log in, so it must go on to do that; else whoever switched
    /// logging on owns the target.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_policy: bool,
    /// The list that logs get, as lists are stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub list: String,
}

/// How keys of logs are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Not named by the settings: `PREFIXyyyy-mm-dd-hh-mm-ss-UNIQUE`.
    #[default]
    Default,
    /// The same, named by the settings.
    Simple,
    /// `PREFIXaccount/region/bucket/yyyy/mm/dd/yyyy-mm-dd-00-00-00-UNIQUE`, by the day of the
    /// requests.
    EventTime,
    /// The same by the time it is written.
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
