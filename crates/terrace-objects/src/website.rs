//! What a web site is like, as it is stored.

use serde::{Deserialize, Serialize};

/// A web site.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What is behind the keys of folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The key of what is shown where something goes wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where all requests go; then there is nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_to: Option<AllTo>,
    /// Where some requests go. The first that is for one counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Where all requests go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllTo {
    /// The host.
    pub host: String,
    /// `http` or `https`, if it is not that of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Where some requests go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Those for keys that begin with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Those that would be answered with this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Where to.
    pub redirect: Redirect,
}

/// Where a rule sends requests. What is not said stays as it is in the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The status, if it is not 301.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What takes the place of the rule's prefix in the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// What takes the place of the whole key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Settings {
    /// The rule for a key: before it is looked for, or after it was answered with a status.
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
