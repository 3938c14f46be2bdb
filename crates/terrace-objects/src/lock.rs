//! Object lock: retention until a time, legal hold, and a bucket's default retention.
//!
//! Locks are attributes of the version and are checked in the commit that would delete it.
//! Lifecycle rules and commands delete by the same commit, and the collector deletes only values of
//! versions that no longer exist, so nothing bypasses a lock. A bucket with locks has versioning,
//! and it cannot be suspended.

use serde::{Deserialize, Serialize};
use terrace::Attributes;

/// Attribute: retention mode.
const MODE: &str = "x-amz-object-lock-mode";
/// Attribute: end of retention, in milliseconds since 1970.
const UNTIL_MS: &str = "s3-retain-until-ms";
/// Attribute: legal hold.
const HOLD: &str = "x-amz-object-lock-legal-hold";

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Days of a year in default retentions.
const YEAR_DAYS: u64 = 365;

/// How a version is retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A caller with permission may delete it.
    #[serde(rename = "GOVERNANCE")]
    Governance,
    /// No caller may delete it.
    #[serde(rename = "COMPLIANCE")]
    Compliance,
}

impl Mode {
    /// Its name in the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Governance => "GOVERNANCE",
            Self::Compliance => "COMPLIANCE",
        }
    }

    /// The mode of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Governance, Self::Compliance]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// Retention of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Its mode.
    pub mode: Mode,
    /// Its end, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A bucket's default retention for new versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Default {
    /// Its mode.
    pub mode: Mode,
    /// How long, in days or in years.
    pub period: Period,
}

/// Length of retention from the time of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// Days.
    Days(u32),
    /// Years.
    Years(u32),
}

/// Object lock settings of a bucket.
#[derive(Debug, Clone, Copy, std::default::Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The default retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Default>,
}

impl Settings {
    /// Gives a version written now the default retention, unless it has its own.
    pub fn apply(&self, attributes: &mut Attributes, now_ms: u64) {
        let Some(default) = self.default.filter(|_| retention(attributes).is_none()) else {
            return;
        };
        let days = match default.period {
            Period::Days(days) => u64::from(days),
            Period::Years(years) => u64::from(years) * YEAR_DAYS,
        };
        let until_ms = now_ms.saturating_add(days * DAY_MS);
        set_retention(
            attributes,
            Some(Retention {
                mode: default.mode,
                until_ms,
            }),
        );
    }
}

/// The retention of a version, ended or not.
pub fn retention(attributes: &Attributes) -> Option<Retention> {
    Some(Retention {
        mode: Mode::parse(attributes.get_str(MODE)?)?,
        until_ms: attributes.get_str(UNTIL_MS)?.parse().ok()?,
    })
}

/// Whether a version has a legal hold. `None` if no request ever set it.
pub fn legal_hold(attributes: &Attributes) -> Option<bool> {
    attributes.get_str(HOLD).map(|text| text == "ON")
}

/// Sets the retention.
pub fn set_retention(attributes: &mut Attributes, retention: Option<Retention>) {
    *attributes = without(attributes, &[MODE, UNTIL_MS]);
    if let Some(retention) = retention {
        attributes.set(MODE, retention.mode.name());
        attributes.set(UNTIL_MS, retention.until_ms.to_string());
    }
}

/// Sets the legal hold.
pub fn set_legal_hold(attributes: &mut Attributes, is_held: bool) {
    attributes.set(HOLD, if is_held { "ON" } else { "OFF" });
}

/// Copies lock attributes.
pub fn copy(from: &Attributes, to: &mut Attributes) {
    set_retention(to, retention(from));
    if let Some(is_held) = legal_hold(from) {
        set_legal_hold(to, is_held);
    }
}

fn without(attributes: &Attributes, names: &[&str]) -> Attributes {
    let kept = attributes.iter().filter(|(name, _)| !names.contains(name));
    kept.fold(Attributes::new(), |all, (name, value)| all.with(name, value))
}

/// Whether a version may not be deleted now. `bypasses` if the caller may ignore governance.
pub fn is_kept(attributes: &Attributes, bypasses: bool, now_ms: u64) -> bool {
    let is_retained = retention(attributes).is_some_and(|retention| retention.binds(bypasses, now_ms));
    is_retained || legal_hold(attributes) == Some(true)
}

impl Retention {
    fn binds(self, bypasses: bool, now_ms: u64) -> bool {
        let counts = self.mode == Mode::Compliance || !bypasses;
        counts && self.until_ms > now_ms
    }

    /// Whether it may be replaced: a binding retention may only be extended.
    pub fn may_become(self, new: Option<Self>, bypasses: bool, now_ms: u64) -> bool {
        let is_longer = new.is_some_and(|new| new.mode == self.mode && new.until_ms >= self.until_ms);
        is_longer || !self.binds(bypasses, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn at(mode: Mode, from_now_ms: i64) -> Retention {
        Retention {
            mode,
            until_ms: NOW_MS.saturating_add_signed(from_now_ms),
        }
    }

    #[test]
    fn what_is_kept() {
        let hour = 3_600_000;
        for (retention, hold, bypasses, kept) in [
            (None, None, false, false),
            (None, Some(true), true, true),
            (None, Some(false), false, false),
            (Some(at(Mode::Governance, hour)), None, false, true),
            (Some(at(Mode::Governance, hour)), None, true, false),
            (Some(at(Mode::Governance, -hour)), None, false, false),
            (Some(at(Mode::Compliance, hour)), None, true, true),
            (Some(at(Mode::Compliance, -hour)), Some(false), false, false),
            (Some(at(Mode::Governance, hour)), Some(true), true, true),
        ] {
            let mut attributes = Attributes::new().with("x", "y");
            set_retention(&mut attributes, retention);
            if let Some(hold) = hold {
                set_legal_hold(&mut attributes, hold);
            }
            assert_eq!(super::retention(&attributes), retention);
            assert_eq!(
                is_kept(&attributes, bypasses, NOW_MS),
                kept,
                "{retention:?} {hold:?} {bypasses}"
            );
        }
    }

    #[test]
    fn what_a_retention_may_become() {
        let (hour, day) = (3_600_000, 86_400_000);
        let (governance, compliance) = (at(Mode::Governance, hour), at(Mode::Compliance, hour));
        let longer = |retention: Retention| Some(at(retention.mode, day));
        assert!(
            governance.may_become(longer(governance), false, NOW_MS)
                && compliance.may_become(longer(compliance), false, NOW_MS)
        );
        assert!(!governance.may_become(None, false, NOW_MS) && governance.may_become(None, true, NOW_MS));
        assert!(
            !governance.may_become(Some(compliance), false, NOW_MS)
                && governance.may_become(Some(compliance), true, NOW_MS)
        );
        assert!(!compliance.may_become(None, true, NOW_MS) && !compliance.may_become(Some(governance), true, NOW_MS));
        assert!(at(Mode::Compliance, -hour).may_become(None, false, NOW_MS));
    }

    #[test]
    fn defaults_are_for_what_has_none() {
        let settings = Settings {
            default: Some(Default {
                mode: Mode::Compliance,
                period: Period::Years(1),
            }),
        };
        let mut attributes = Attributes::new();
        settings.apply(&mut attributes, NOW_MS);
        let given = retention(&attributes).map(|retention| retention.until_ms.abs_diff(NOW_MS + 365 * DAY_MS));
        assert!(given.is_some_and(|ms| ms < 60_000));
        let own = at(Mode::Governance, 5_000);
        set_retention(&mut attributes, Some(own));
        settings.apply(&mut attributes, NOW_MS);
        assert_eq!(retention(&attributes), Some(own));
    }
}
