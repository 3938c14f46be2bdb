//! A bucket's web site settings.

use serde::{Deserialize, Serialize};

/// Web site settings, as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Suffix of the index page of a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Key of the error page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Redirect of all requests; then there are no other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_to: Option<AllTo>,
    /// Redirect rules. The first that matches applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Redirect of all requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllTo {
    /// The host.
    pub host: String,
    /// `http` or `https`; `None` for that of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// A redirect rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Only keys with this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Only responses with this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The target.
    pub redirect: Redirect,
}

/// Target of a redirect rule. Fields that are `None` stay as in the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The status; `None` for 301.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Replaces the rule's prefix of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// Replaces the whole key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Settings {
    /// The rule for a key: before it is read, or, with `status`, after it failed.
    pub fn rule_for(&self, key: &str, status: Option<u16>) -> Option<&Rule> {
        self.rules.iter().find(|rule| {
            let has_prefix = rule.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix));
            has_prefix && rule.status == status
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_are_stored_like_this() {
        let all = Settings {
            all_to: Some(AllTo {
                host: "example.org".to_owned(),
                protocol: Some("https".to_owned()),
            }),
            ..Settings::default()
        };
        let site = Settings {
            index: Some("index.html".to_owned()),
            error: Some("error.html".to_owned()),
            all_to: None,
            rules: vec![Rule {
                prefix: Some("docs/".to_owned()),
                status: Some(404),
                redirect: Redirect {
                    key_prefix: Some("documents/".to_owned()),
                    status: Some(302),
                    ..Redirect::default()
                },
            }],
        };
        for (settings, json) in [
            (all, r#"{"all_to":{"host":"example.org","protocol":"https"}}"#),
            (
                site,
                r#"{"index":"index.html","error":"error.html","rules":[{"prefix":"docs/","status":404,"redirect":{"status":302,"key_prefix":"documents/"}}]}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&settings).unwrap(), json);
            assert_eq!(serde_json::from_str::<Settings>(json).unwrap(), settings);
        }
    }
}
