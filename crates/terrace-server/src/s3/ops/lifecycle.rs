//! Lifecycle rules of a bucket: put, get, delete.

mod transitions;

use crate::s3::ops::{Answered, change_here, check_has_digest, said};
use crate::s3::{
    Gateway, errors,
    keyspace::KEY_BYTES_MAX,
    lifecycle::{Expire, Filter, Form, Noncurrent, Rule, new_id},
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        AbortIncompleteMultipartUpload, DeleteBucketLifecycleInput, DeleteBucketLifecycleOutput, ExpirationStatus,
        GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput, LifecycleExpiration,
        LifecycleRule, LifecycleRuleAndOperator, LifecycleRuleFilter, NoncurrentVersionExpiration,
        PutBucketLifecycleConfigurationInput, PutBucketLifecycleConfigurationOutput, Tag, Timestamp, TimestampFormat,
    },
    s3_error,
};
use std::{collections::BTreeSet, sync::Arc};

/// Most rules of a bucket.
const RULES_MAX: usize = 1000;
/// Longest name of a rule, in characters.
const ID_MAX: usize = 255;
/// Most versions a rule may keep besides the latest.
const KEEP_MAX: u32 = 100;
/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

/// PutBucketLifecycleConfiguration
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketLifecycleConfigurationInput>,
) -> Answered<PutBucketLifecycleConfigurationOutput> {
    check_has_digest(&request.headers)?;
    let input = request.input;
    let given = input
        .lifecycle_configuration
        .map(|given| given.rules)
        .unwrap_or_default();
    let rules = read_rules(given)?;
    let varies = transitions::read_minimum(input.transition_default_minimum_object_size.as_ref())?;
    set(gateway, input.bucket, rules, varies).await?;
    Ok(S3Response::new(PutBucketLifecycleConfigurationOutput {
        transition_default_minimum_object_size: Some(transitions::shown_minimum(varies)),
    }))
}

/// GetBucketLifecycleConfiguration
pub fn get(
    gateway: &Gateway,
    request: &S3Request<GetBucketLifecycleConfigurationInput>,
) -> Answered<GetBucketLifecycleConfigurationOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    if record.lifecycle.is_empty() {
        return Err(s3_error!(
            NoSuchLifecycleConfiguration,
            "The lifecycle configuration does not exist"
        ));
    }
    Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
        rules: Some(record.lifecycle.iter().map(shown).collect()),
        transition_default_minimum_object_size: Some(transitions::shown_minimum(record.lifecycle_minimum_varies)),
    }))
}

/// DeleteBucketLifecycle
pub async fn delete(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteBucketLifecycleInput>,
) -> Answered<DeleteBucketLifecycleOutput> {
    set(gateway, request.input.bucket, Vec::new(), false).await?;
    Ok(S3Response::new(DeleteBucketLifecycleOutput {}))
}

async fn set(gateway: &Arc<Gateway>, bucket: String, rules: Vec<Rule>, varies: bool) -> S3Result {
    gateway
        .run(move |gateway, store| {
            change_here(&gateway.buckets, store, &bucket, |record| {
                record.lifecycle = rules;
                record.lifecycle_minimum_varies = varies;
                Ok(())
            })?;
            gateway.lifecycle_changed.notify_one();
            Ok(())
        })
        .await
}

/// Rules as they are stored.
///
/// # Errors
/// Errors of the rules.
pub fn read_rules(given: Vec<LifecycleRule>) -> S3Result<Vec<Rule>> {
    if given.is_empty() || given.len() > RULES_MAX {
        return Err(errors::malformed_xml());
    }
    let rules = given.into_iter().map(read_rule).collect::<S3Result<Vec<_>>>()?;
    let mut ids = BTreeSet::new();
    if rules.iter().any(|rule| !ids.insert(rule.id.as_str())) {
        return Err(s3_error!(
            InvalidArgument,
            "Rule ID must be unique. Found same ID for more than one rule"
        ));
    }
    Ok(rules)
}

fn read_rule(given: LifecycleRule) -> S3Result<Rule> {
    let enabled = match given.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        _ => return Err(errors::malformed_xml()),
    };
    let id = given.id.filter(|id| !id.is_empty()).unwrap_or_else(new_id);
    if id.chars().count() > ID_MAX {
        return Err(s3_error!(
            InvalidArgument,
            "ID length should not exceed allowed limit of {ID_MAX}"
        ));
    }
    let rule = Rule {
        id,
        enabled,
        filter: read_filter(given.prefix, given.filter)?,
        expire: given.expiration.map(|given| read_expiration(&given)).transpose()?,
        noncurrent: given
            .noncurrent_version_expiration
            .map(|given| read_noncurrent(&given))
            .transpose()?,
        transitions: given
            .transitions
            .unwrap_or_default()
            .iter()
            .map(transitions::read)
            .collect::<S3Result<_>>()?,
        noncurrent_transitions: given
            .noncurrent_version_transitions
            .unwrap_or_default()
            .iter()
            .map(transitions::read_noncurrent)
            .collect::<S3Result<_>>()?,
        abort_days: given
            .abort_incomplete_multipart_upload
            .map(|given| {
                days(
                    given.days_after_initiation,
                    "'DaysAfterInitiation' for AbortIncompleteMultipartUpload action",
                )
            })
            .transpose()?,
    };
    check_rule(&rule)?;
    Ok(rule)
}

fn check_rule(rule: &Rule) -> S3Result {
    let filter = &rule.filter;
    if filter
        .prefix
        .as_ref()
        .is_some_and(|prefix| prefix.len() > KEY_BYTES_MAX)
    {
        return Err(s3_error!(
            InvalidRequest,
            "The maximum size of a prefix is {KEY_BYTES_MAX}."
        ));
    }
    let moves = !rule.transitions.is_empty() || !rule.noncurrent_transitions.is_empty();
    if rule.expire.is_none() && rule.noncurrent.is_none() && rule.abort_days.is_none() && !moves {
        return Err(s3_error!(
            InvalidRequest,
            "At least one action needs to be specified in a rule."
        ));
    }
    transitions::check(rule)?;
    let by_object = !filter.tags.is_empty() || filter.longer.is_some() || filter.shorter.is_some();
    if by_object && rule.abort_days.is_some() {
        return Err(s3_error!(
            InvalidRequest,
            "AbortIncompleteMultipartUpload cannot be specified with Tags or object sizes."
        ));
    }
    if !filter.tags.is_empty() && matches!(rule.expire, Some(Expire::Markers(_))) {
        return Err(s3_error!(
            InvalidRequest,
            "ExpiredObjectDeleteMarker cannot be specified with Tags."
        ));
    }
    if let (Some(longer), Some(shorter)) = (filter.longer, filter.shorter)
        && longer >= shorter
    {
        return Err(s3_error!(
            InvalidRequest,
            "ObjectSizeGreaterThan must be less than ObjectSizeLessThan."
        ));
    }
    Ok(())
}

fn read_date(date: &Timestamp) -> S3Result<Expire> {
    let ms = milliseconds(date).filter(|ms| ms % DAY_MS == 0);
    let ms = ms.ok_or_else(|| s3_error!(InvalidArgument, "'Date' must be at midnight GMT"))?;
    Ok(Expire::DateMs(ms))
}

/// A number of days, which is at least one.
fn days(given: Option<i32>, name: &str) -> S3Result<u32> {
    let given = given.ok_or_else(errors::malformed_xml)?;
    let days = u32::try_from(given).ok().filter(|days| *days > 0);
    days.ok_or_else(|| s3_error!(InvalidArgument, "{name} must be a positive integer"))
}

fn read_expiration(given: &LifecycleExpiration) -> S3Result<Expire> {
    match (given.days, &given.date, given.expired_object_delete_marker) {
        (Some(_), None, None) => days(given.days, "'Days' for Expiration action").map(Expire::Days),
        (None, Some(date), None) => read_date(date),
        (None, None, Some(wanted)) => Ok(Expire::Markers(wanted)),
        _ => Err(errors::malformed_xml()),
    }
}

/// A time since 1970; `None` for one before.
pub fn milliseconds(time: &Timestamp) -> Option<u64> {
    let mut text = Vec::new();
    time.format(TimestampFormat::EpochSeconds, &mut text).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let seconds: u64 = seconds.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    seconds.checked_mul(1000)?.checked_add(fraction)
}

/// How many versions besides the latest a rule keeps.
fn read_keep(given: Option<i32>) -> S3Result<u32> {
    let Some(given) = given else { return Ok(0) };
    let keep = u32::try_from(given).ok().filter(|keep| (1..=KEEP_MAX).contains(keep));
    keep.ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "'NewerNoncurrentVersions' must be between 1 and {KEEP_MAX}"
        )
    })
}

fn read_noncurrent(given: &NoncurrentVersionExpiration) -> S3Result<Noncurrent> {
    let keep = read_keep(given.newer_noncurrent_versions)?;
    Ok(Noncurrent {
        days: days(
            given.noncurrent_days,
            "'NoncurrentDays' for NoncurrentVersionExpiration action",
        )?,
        keep,
    })
}

fn read_filter(prefix: Option<String>, filter: Option<LifecycleRuleFilter>) -> S3Result<Filter> {
    let size = |given: Option<i64>| given.map(u64::try_from).transpose();
    let wrong_size = |_| s3_error!(InvalidArgument, "An object size must not be negative.");
    match (prefix, filter) {
        (Some(_), Some(_)) | (None, None) => Err(errors::malformed_xml()),
        (prefix, None) => Ok(Filter {
            form: Form::Prefix,
            prefix,
            ..Filter::default()
        }),
        (None, Some(filter)) => {
            let conditions = usize::from(filter.prefix.is_some())
                + usize::from(filter.tag.is_some())
                + usize::from(filter.object_size_greater_than.is_some())
                + usize::from(filter.object_size_less_than.is_some())
                + usize::from(filter.and.is_some());
            if conditions > 1 {
                return Err(errors::malformed_xml());
            }
            let Some(and) = filter.and else {
                return Ok(Filter {
                    form: Form::One,
                    prefix: filter.prefix,
                    tags: read_tags(filter.tag.into_iter().collect())?,
                    longer: size(filter.object_size_greater_than).map_err(wrong_size)?,
                    shorter: size(filter.object_size_less_than).map_err(wrong_size)?,
                });
            };
            Ok(Filter {
                form: Form::And,
                prefix: and.prefix,
                tags: read_tags(and.tags.unwrap_or_default())?,
                longer: size(and.object_size_greater_than).map_err(wrong_size)?,
                shorter: size(and.object_size_less_than).map_err(wrong_size)?,
            })
        }
    }
}

fn read_tags(given: Vec<Tag>) -> S3Result<Vec<(String, String)>> {
    let mut tags = Vec::with_capacity(given.len());
    for tag in given {
        let name = tag
            .key
            .filter(|name| !name.is_empty())
            .ok_or_else(errors::malformed_xml)?;
        if tags.iter().any(|(other, _)| *other == name) {
            return Err(s3_error!(InvalidRequest, "Duplicate Tag Keys are not allowed."));
        }
        let value = tag.value.unwrap_or_default();
        super::tagging::check_one(&name, &value)?;
        tags.push((name, value));
    }
    Ok(tags)
}

/// A rule for answers.
pub fn shown(rule: &Rule) -> LifecycleRule {
    let filter = &rule.filter;
    let tag = |(name, value): &(String, String)| Tag {
        key: Some(name.clone()),
        value: Some(value.clone()),
    };
    let size = |bytes: Option<u64>| bytes.map(super::signed);
    let shown_filter = match filter.form {
        Form::Prefix => None,
        Form::One => Some(LifecycleRuleFilter {
            prefix: filter.prefix.clone(),
            tag: filter.tags.first().map(tag),
            object_size_greater_than: size(filter.longer),
            object_size_less_than: size(filter.shorter),
            ..LifecycleRuleFilter::default()
        }),
        Form::And => Some(LifecycleRuleFilter {
            and: Some(LifecycleRuleAndOperator {
                prefix: filter.prefix.clone(),
                tags: Some(filter.tags.iter().map(tag).collect::<Vec<_>>()).filter(|tags| !tags.is_empty()),
                object_size_greater_than: size(filter.longer),
                object_size_less_than: size(filter.shorter),
            }),
            ..LifecycleRuleFilter::default()
        }),
    };
    LifecycleRule {
        abort_incomplete_multipart_upload: rule.abort_days.map(|days| AbortIncompleteMultipartUpload {
            days_after_initiation: i32::try_from(days).ok(),
        }),
        expiration: rule.expire.map(shown_expiration),
        filter: shown_filter,
        id: Some(rule.id.clone()),
        noncurrent_version_expiration: rule.noncurrent.map(|noncurrent| NoncurrentVersionExpiration {
            newer_noncurrent_versions: i32::try_from(noncurrent.keep).ok().filter(|keep| *keep > 0),
            noncurrent_days: i32::try_from(noncurrent.days).ok(),
        }),
        noncurrent_version_transitions: transitions::shown_list(
            &rule.noncurrent_transitions,
            transitions::shown_noncurrent,
        ),
        prefix: filter.prefix.clone().filter(|_| filter.form == Form::Prefix),
        status: ExpirationStatus::from_static(if rule.enabled {
            ExpirationStatus::ENABLED
        } else {
            ExpirationStatus::DISABLED
        }),
        transitions: transitions::shown_list(&rule.transitions, transitions::shown),
    }
}

fn shown_expiration(expire: Expire) -> LifecycleExpiration {
    let mut shown = LifecycleExpiration::default();
    match expire {
        Expire::Days(days) => shown.days = i32::try_from(days).ok(),
        Expire::DateMs(ms) => {
            shown.date = Some(said::time(ms));
        }
        Expire::Markers(wanted) => shown.expired_object_delete_marker = Some(wanted),
    }
    shown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use s3s::dto;
    use std::time::{Duration, UNIX_EPOCH};

    fn rule(change: impl FnOnce(&mut LifecycleRule)) -> LifecycleRule {
        let mut rule = LifecycleRule {
            expiration: Some(LifecycleExpiration {
                days: Some(3),
                ..LifecycleExpiration::default()
            }),
            filter: Some(LifecycleRuleFilter::default()),
            id: Some("a".to_owned()),
            abort_incomplete_multipart_upload: None,
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        };
        change(&mut rule);
        rule
    }

    fn refused(change: impl FnOnce(&mut LifecycleRule)) -> String {
        let result = read_rules(vec![rule(change)]);
        result
            .err()
            .map(|error| error.code().as_str().to_owned())
            .unwrap_or_default()
    }

    fn tag(name: &str) -> Tag {
        Tag {
            key: Some(name.to_owned()),
            value: Some("v".to_owned()),
        }
    }

    #[test]
    fn rules_come_back_as_they_were_put() {
        let midnight = Timestamp::from(UNIX_EPOCH + Duration::from_millis(20_000 * DAY_MS));
        let given = vec![
            rule(|_| {}),
            rule(|rule| {
                rule.id = Some("b".to_owned());
                rule.filter = None;
                rule.prefix = Some("old/".to_owned());
                rule.expiration = Some(LifecycleExpiration {
                    date: Some(midnight),
                    ..LifecycleExpiration::default()
                });
            }),
            rule(|rule| {
                rule.id = Some("c".to_owned());
                rule.expiration = None;
                rule.status = ExpirationStatus::from_static(ExpirationStatus::DISABLED);
                rule.noncurrent_version_expiration = Some(NoncurrentVersionExpiration {
                    newer_noncurrent_versions: Some(2),
                    noncurrent_days: Some(1),
                });
                rule.filter = Some(LifecycleRuleFilter {
                    and: Some(LifecycleRuleAndOperator {
                        prefix: Some("p".to_owned()),
                        tags: Some(vec![tag("x"), tag("y")]),
                        object_size_greater_than: Some(1),
                        object_size_less_than: Some(9),
                    }),
                    ..LifecycleRuleFilter::default()
                });
            }),
        ];
        let mut given = given;
        given.push(rule(|rule| {
            rule.id = Some("d".to_owned());
            rule.transitions = Some(vec![to(Some(0), "INTELLIGENT_TIERING"), to(Some(2), "GLACIER_IR")]);
            rule.noncurrent_version_transitions = Some(vec![dto::NoncurrentVersionTransition {
                newer_noncurrent_versions: Some(3),
                noncurrent_days: Some(30),
                storage_class: Some("ONEZONE_IA".to_owned().into()),
            }]);
        }));
        let stored = read_rules(given.clone()).unwrap();
        let json = serde_json::to_string(&stored).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Rule>>(&json).unwrap(), stored);
        assert_eq!(stored.iter().map(shown).collect::<Vec<_>>(), given);
    }

    fn to(days: Option<i32>, class: &str) -> dto::Transition {
        dto::Transition {
            date: None,
            days,
            storage_class: Some(class.to_owned().into()),
        }
    }

    #[test]
    fn transitions_that_are_wrong() {
        let with = |list: Vec<dto::Transition>| refused(|rule| rule.transitions = Some(list));
        for (list, code) in [
            (vec![to(Some(2), "GLACIER_IR")], ""),
            (vec![to(Some(3), "GLACIER_IR")], "InvalidArgument"),
            (vec![to(Some(-1), "GLACIER_IR")], "InvalidArgument"),
            (vec![to(Some(2), "STANDARD_IA")], "InvalidArgument"),
            (vec![to(Some(1), "GLACIER")], "NotImplemented"),
            (vec![to(Some(1), "DEEP_ARCHIVE")], "NotImplemented"),
            (vec![to(Some(-1), "GLACIER")], "InvalidArgument"),
            (vec![to(Some(1), "STANDARD")], "MalformedXML"),
            (vec![to(Some(1), "REDUCED_REDUNDANCY")], "MalformedXML"),
            (vec![to(Some(1), "glacier_ir")], "MalformedXML"),
            (vec![to(None, "GLACIER_IR")], "MalformedXML"),
            (
                vec![to(Some(1), "GLACIER_IR"), to(Some(2), "GLACIER_IR")],
                "InvalidRequest",
            ),
        ] {
            let text = format!("{list:?}");
            assert_eq!(with(list), code, "{text}");
        }
        let midnight = Timestamp::from(UNIX_EPOCH + Duration::from_millis(DAY_MS));
        let by_date = dto::Transition {
            date: Some(midnight),
            ..to(None, "GLACIER_IR")
        };
        assert_eq!(
            with(vec![by_date.clone()]),
            "InvalidRequest",
            "the expiration is by days"
        );
        assert_eq!(
            refused(|rule| {
                rule.expiration = None;
                rule.transitions = Some(vec![by_date]);
            }),
            "",
            "it is an action"
        );
        let noncurrent = |days| {
            refused(|rule| {
                rule.noncurrent_version_expiration = Some(NoncurrentVersionExpiration {
                    newer_noncurrent_versions: None,
                    noncurrent_days: Some(31),
                });
                rule.noncurrent_version_transitions = Some(vec![dto::NoncurrentVersionTransition {
                    newer_noncurrent_versions: None,
                    noncurrent_days: days,
                    storage_class: Some("STANDARD_IA".to_owned().into()),
                }]);
            })
        };
        let codes = [Some(30), Some(31), Some(29), None].map(noncurrent);
        assert_eq!(codes, ["", "InvalidArgument", "InvalidArgument", "MalformedXML"]);
    }

    #[test]
    fn rules_that_are_wrong() {
        assert_eq!(read_rules(Vec::new()).unwrap_err().code().as_str(), "MalformedXML");
        assert_eq!(refused(|rule| rule.id = Some("x".repeat(256))), "InvalidArgument");
        assert_eq!(
            refused(|rule| rule.status = ExpirationStatus::from("enabled".to_owned())),
            "MalformedXML"
        );
        assert_eq!(refused(|rule| rule.filter = None), "MalformedXML");
        assert_eq!(refused(|rule| rule.prefix = Some(String::new())), "MalformedXML");
        assert_eq!(refused(|rule| rule.expiration = None), "InvalidRequest");
        let days = |days| {
            refused(|rule| {
                rule.expiration = Some(LifecycleExpiration {
                    days: Some(days),
                    ..LifecycleExpiration::default()
                });
            })
        };
        assert_eq!(
            (days(0), days(-1), days(1)),
            (
                "InvalidArgument".to_owned(),
                "InvalidArgument".to_owned(),
                String::new()
            )
        );
        let late = Timestamp::from(UNIX_EPOCH + Duration::from_millis(DAY_MS + 1));
        let expiration = LifecycleExpiration {
            date: Some(late),
            ..LifecycleExpiration::default()
        };
        assert_eq!(refused(|rule| rule.expiration = Some(expiration)), "InvalidArgument");
        let both = LifecycleExpiration {
            days: Some(1),
            expired_object_delete_marker: Some(true),
            ..LifecycleExpiration::default()
        };
        assert_eq!(refused(|rule| rule.expiration = Some(both)), "MalformedXML");
        let two = LifecycleRuleFilter {
            prefix: Some("a".to_owned()),
            tag: Some(tag("b")),
            ..LifecycleRuleFilter::default()
        };
        assert_eq!(refused(|rule| rule.filter = Some(two)), "MalformedXML");
        let same = read_rules(vec![rule(|_| {}), rule(|_| {})]);
        assert_eq!(same.unwrap_err().code().as_str(), "InvalidArgument");
        let upload = AbortIncompleteMultipartUpload {
            days_after_initiation: Some(1),
        };
        let tagged = LifecycleRuleFilter {
            tag: Some(tag("b")),
            ..LifecycleRuleFilter::default()
        };
        assert_eq!(
            refused(|rule| {
                rule.abort_incomplete_multipart_upload = Some(upload);
                rule.filter = Some(tagged);
            }),
            "InvalidRequest"
        );
    }
}
