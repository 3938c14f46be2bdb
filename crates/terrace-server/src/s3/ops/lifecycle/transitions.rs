//! Transitions of storage classes in lifecycle rules.

use super::{read_date, read_keep, shown_expiration};
use crate::s3::{
    class::Class,
    errors,
    lifecycle::{Expire, Noncurrent, NoncurrentTransition, Rule, Transition},
    refuse::ARCHIVES,
};
use s3s::{S3Result, dto, s3_error};
use std::collections::BTreeSet;

/// Fewest days before a transition to a class for rare access.
const RARE_DAYS_MIN: i32 = 30;

/// Checks that transitions are to different classes, each later than the previous one, and that
/// expirations come after them.
///
/// # Errors
/// `InvalidRequest`, `InvalidArgument`.
pub fn check(rule: &Rule) -> S3Result {
    let current = rule.transitions.iter().map(|transition| transition.class.as_str());
    let noncurrent = rule.noncurrent_transitions.iter();
    let noncurrent = noncurrent.map(|transition| transition.class.as_str());
    for (what, classes) in [
        ("Transition", current.collect::<Vec<_>>()),
        ("NoncurrentVersionTransition", noncurrent.collect()),
    ] {
        let different: BTreeSet<_> = classes.iter().collect();
        if different.len() < classes.len() {
            return Err(s3_error!(
                InvalidRequest,
                "'StorageClass' must be different for '{what}' actions in same 'Rule'"
            ));
        }
    }
    let days = |when: Expire| match when {
        Expire::Days(days) => Some(days),
        Expire::DateMs(_) | Expire::Markers(_) => None,
    };
    let by_date = |when: &Expire| matches!(when, Expire::DateMs(_));
    let whens = || rule.transitions.iter().map(|transition| transition.when);
    let all: Vec<_> = whens()
        .chain(rule.expire.filter(|when| !matches!(when, Expire::Markers(_))))
        .collect();
    if !rule.transitions.is_empty() && all.iter().any(by_date) && !all.iter().all(by_date) {
        return Err(s3_error!(
            InvalidRequest,
            "Found mixed 'Date' and 'Days' based Expiration and Transition actions in lifecycle rule"
        ));
    }
    if let Some(expire) = rule.expire.and_then(days)
        && whens().filter_map(days).any(|days| expire <= days)
    {
        return Err(s3_error!(
            InvalidArgument,
            "'Days' in the Expiration action must be greater than 'Days' in the Transition action"
        ));
    }
    let mut noncurrent = rule.noncurrent_transitions.iter();
    if let Some(expire) = rule.noncurrent
        && noncurrent.any(|transition| expire.days <= transition.when.days)
    {
        return Err(s3_error!(
            InvalidArgument,
            "'NoncurrentDays' in the NoncurrentVersionExpiration action must be greater than 'NoncurrentDays' in the NoncurrentVersionTransition action"
        ));
    }
    Ok(())
}

/// Reads the class of a transition and its days, at least 30 for some classes.
fn read_class(class: Option<&str>, days: Option<i32>, name: &str) -> S3Result<String> {
    let class = class.ok_or_else(errors::malformed_xml)?;
    if ARCHIVES.contains(&class) {
        return Err(s3_error!(
            NotImplemented,
            "Nothing is archived here, so that each object can be read at once: {class}"
        ));
    }
    let known = Class::parse(class).filter(|class| *class > Class::ReducedRedundancy);
    let known = known.ok_or_else(errors::malformed_xml)?;
    let is_late = matches!(known, Class::StandardIa | Class::OneZoneIa);
    if is_late && days.is_some_and(|days| days < RARE_DAYS_MIN) {
        return Err(s3_error!(
            InvalidArgument,
            "'{name}' action must be greater than or equal to {RARE_DAYS_MIN} for storageClass '{class}'"
        ));
    }
    Ok(class.to_owned())
}

/// A number of days, which may be 0.
fn days_or_none(given: i32, name: &str) -> S3Result<u32> {
    u32::try_from(given).map_err(|_| s3_error!(InvalidArgument, "{name} must be nonnegative"))
}

/// Reads a transition of current objects.
///
/// # Errors
/// As [`read_class`]; `MalformedXML`.
pub fn read(given: &dto::Transition) -> S3Result<Transition> {
    let name = "'Days' in Transition";
    let class = given.storage_class.as_ref().map(|class| class.as_str());
    // An invalid time is reported whatever the class.
    let when = match (given.days, &given.date) {
        (Some(days), None) => Expire::Days(days_or_none(days, name)?),
        (None, Some(date)) => read_date(date)?,
        _ => return Err(errors::malformed_xml()),
    };
    let class = read_class(class, given.days, name)?;
    Ok(Transition { when, class })
}

/// The same for noncurrent versions.
///
/// # Errors
pub fn read_noncurrent(given: &dto::NoncurrentVersionTransition) -> S3Result<NoncurrentTransition> {
    let name = "'NoncurrentDays' in NoncurrentVersionTransition";
    let class = given.storage_class.as_ref().map(|class| class.as_str());
    let days = days_or_none(given.noncurrent_days.ok_or_else(errors::malformed_xml)?, name)?;
    let keep = read_keep(given.newer_noncurrent_versions)?;
    let class = read_class(class, given.noncurrent_days, name)?;
    Ok(NoncurrentTransition {
        when: Noncurrent { days, keep },
        class,
    })
}

/// A list for answers, if it is not empty.
pub fn shown_list<T, U>(list: &[T], shown: impl Fn(&T) -> U) -> Option<Vec<U>> {
    (!list.is_empty()).then(|| list.iter().map(shown).collect())
}

/// A transition for answers.
pub fn shown(transition: &Transition) -> dto::Transition {
    let when = shown_expiration(transition.when);
    dto::Transition {
        date: when.date,
        days: when.days,
        storage_class: Some(transition.class.clone().into()),
    }
}

/// The same for noncurrent versions.
pub fn shown_noncurrent(transition: &NoncurrentTransition) -> dto::NoncurrentVersionTransition {
    let Noncurrent { days, keep } = transition.when;
    dto::NoncurrentVersionTransition {
        newer_noncurrent_versions: i32::try_from(keep).ok().filter(|keep| *keep > 0),
        noncurrent_days: i32::try_from(days).ok(),
        storage_class: Some(transition.class.clone().into()),
    }
}

/// Whether short objects may go into archives by rules that have no size: there are no archives, so
/// the values differ only in the answer.
///
/// # Errors
/// `InvalidArgument`
pub fn read_minimum(given: Option<&dto::TransitionDefaultMinimumObjectSize>) -> S3Result<bool> {
    match given.map(dto::TransitionDefaultMinimumObjectSize::as_str) {
        None | Some(dto::TransitionDefaultMinimumObjectSize::ALL_STORAGE_CLASSES_128K) => Ok(false),
        Some(dto::TransitionDefaultMinimumObjectSize::VARIES_BY_STORAGE_CLASS) => Ok(true),
        Some(other) => Err(s3_error!(
            InvalidArgument,
            "Invalid transition default minimum object size: {other}"
        )),
    }
}

/// The setting for answers.
pub fn shown_minimum(varies: bool) -> dto::TransitionDefaultMinimumObjectSize {
    dto::TransitionDefaultMinimumObjectSize::from_static(if varies {
        dto::TransitionDefaultMinimumObjectSize::VARIES_BY_STORAGE_CLASS
    } else {
        dto::TransitionDefaultMinimumObjectSize::ALL_STORAGE_CLASSES_128K
    })
}
