//! Notifications of a bucket: put, get.

use super::Answered;
use crate::s3::ops::change_here;
use crate::s3::{
    Gateway, errors,
    keyspace::{self, KEY_BYTES_MAX},
    lifecycle::new_id,
    notify::{self, EVENTS, Kind, Rule},
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        Event, FilterRule, FilterRuleName, GetBucketNotificationConfigurationInput,
        GetBucketNotificationConfigurationOutput, LambdaFunctionConfiguration, NotificationConfiguration,
        NotificationConfigurationFilter, PutBucketNotificationConfigurationInput,
        PutBucketNotificationConfigurationOutput, QueueConfiguration, S3KeyFilter, TopicConfiguration,
    },
    s3_error,
};
use std::{collections::BTreeSet, sync::Arc};

/// Most rules of a bucket, as S3 has it.
const RULES_MAX: usize = 100;

/// PutBucketNotificationConfiguration
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketNotificationConfigurationInput>,
) -> Answered<PutBucketNotificationConfigurationOutput> {
    let input = request.input;
    let rules = read(input.notification_configuration)?;
    let is_known = |rule: &Rule| gateway.targets.get(rule.target()).is_some();
    if !rules.iter().all(is_known) {
        return Err(s3_error!(
            InvalidArgument,
            "Unable to validate the following destination configurations"
        ));
    }
    let tested: BTreeSet<_> = rules.iter().map(|rule| rule.target().to_owned()).collect();
    let is_skipped = input.skip_destination_validation == Some(true);
    let bucket = input.bucket;
    gateway
        .run(move |gateway, store| {
            change_here(&gateway.buckets, store, &bucket, |record| {
                record.notifications = rules;
                Ok(())
            })?;
            for name in tested.into_iter().filter(|_| !is_skipped) {
                let Some(target) = gateway.targets.with_room(&name) else {
                    continue;
                };
                let key = keyspace::event(&name, gateway.targets.next_id(gateway.clock()));
                let event = notify::test_event(&bucket, "", gateway.clock().now_ms());
                store
                    .put(&key, event)
                    .map_err(|error| errors::of_engine(&error, &key))?;
                target.add();
            }
            Ok(())
        })
        .await?;
    Ok(S3Response::new(PutBucketNotificationConfigurationOutput {}))
}

/// Rules as they are stored.
///
/// # Errors
/// Errors of the rules.
pub fn read(given: NotificationConfiguration) -> S3Result<Vec<Rule>> {
    if given.event_bridge_configuration.is_some() {
        return Err(s3_error!(NotImplemented, "EventBridge is not implemented."));
    }
    let queues = given.queue_configurations.unwrap_or_default().into_iter();
    let queues = queues.map(|one| rule(Kind::Queue, one.id, one.queue_arn, one.events, one.filter));
    let topics = given.topic_configurations.unwrap_or_default().into_iter();
    let topics = topics.map(|one| rule(Kind::Topic, one.id, one.topic_arn, one.events, one.filter));
    let functions = given.lambda_function_configurations.unwrap_or_default().into_iter();
    let functions = functions.map(|one| rule(Kind::Function, one.id, one.lambda_function_arn, one.events, one.filter));
    let rules: Vec<_> = queues.chain(topics).chain(functions).collect::<S3Result<_>>()?;
    if rules.len() > RULES_MAX {
        return Err(s3_error!(
            InvalidArgument,
            "A bucket has {RULES_MAX} notification configurations at most."
        ));
    }
    let mut ids = BTreeSet::new();
    if rules.iter().any(|rule| !ids.insert(rule.id.as_str())) {
        return Err(s3_error!(
            InvalidArgument,
            "Same ID used for multiple configurations. IDs must be unique"
        ));
    }
    for (number, rule) in rules.iter().enumerate() {
        if rules[..number].iter().any(|other| rule.overlaps(other)) {
            return Err(s3_error!(
                InvalidArgument,
                "Configurations overlap. Configurations on the same bucket cannot share a common event type."
            ));
        }
    }
    Ok(rules)
}

fn rule(
    kind: Kind,
    id: Option<String>,
    arn: String,
    events: Vec<Event>,
    filter: Option<NotificationConfigurationFilter>,
) -> S3Result<Rule> {
    let id = id.filter(|id| !id.is_empty()).unwrap_or_else(new_id);
    if id.chars().count() > 255 || arn.len() > KEY_BYTES_MAX {
        return Err(s3_error!(
            InvalidArgument,
            "The ID of a configuration has 255 characters at most."
        ));
    }
    if !arn.starts_with("arn:") || arn.split(':').count() < 6 {
        return Err(s3_error!(InvalidArgument, "The ARN is not well formed"));
    }
    if events.is_empty() {
        return Err(errors::malformed_xml());
    }
    let events: Vec<_> = events.into_iter().map(String::from).collect();
    // A `*` replaces the last part of the name.
    let is_known = |wanted: &String| {
        let is_whole = wanted
            .strip_suffix('*')
            .is_none_or(|start| start.ends_with(':') && start.len() > 3);
        is_whole && EVENTS.iter().any(|event| notify::fits(wanted, event))
    };
    if let Some(unknown) = events.iter().find(|event| !is_known(event)) {
        return Err(s3_error!(
            InvalidArgument,
            "The event '{unknown}' is not supported for notifications"
        ));
    }
    let (prefix, suffix) = read_filter(filter)?;
    Ok(Rule {
        id,
        kind,
        arn,
        events,
        prefix,
        suffix,
    })
}

fn read_filter(filter: Option<NotificationConfigurationFilter>) -> S3Result<(String, String)> {
    let rules = filter.and_then(|filter| filter.key?.filter_rules).unwrap_or_default();
    let (mut prefix, mut suffix) = (None, None);
    for rule in rules {
        let name = rule.name.as_ref().map_or("", |name| name.as_str()).to_ascii_lowercase();
        let value = rule.value.unwrap_or_default();
        let place = match name.as_str() {
            "prefix" => &mut prefix,
            "suffix" => &mut suffix,
            _ => {
                return Err(s3_error!(
                    InvalidArgument,
                    "filter rule name must be either prefix or suffix"
                ));
            }
        };
        if value.len() > KEY_BYTES_MAX {
            return Err(s3_error!(
                InvalidArgument,
                "Size of filter rule value cannot exceed {KEY_BYTES_MAX} bytes"
            ));
        }
        if place.replace(value).is_some() {
            return Err(s3_error!(
                InvalidArgument,
                "Cannot specify more than one {name} rule in a filter."
            ));
        }
    }
    Ok((prefix.unwrap_or_default(), suffix.unwrap_or_default()))
}

fn shown_filter(rule: &Rule) -> Option<NotificationConfigurationFilter> {
    let named = [("Prefix", &rule.prefix), ("Suffix", &rule.suffix)];
    let rules: Vec<_> = named
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| FilterRule {
            name: Some(FilterRuleName::from_static(name)),
            value: Some(value.clone()),
        })
        .collect();
    let filter = |rules| NotificationConfigurationFilter {
        key: Some(S3KeyFilter {
            filter_rules: Some(rules),
        }),
    };
    (!rules.is_empty()).then(|| filter(rules))
}

/// GetBucketNotificationConfiguration
pub fn get(
    gateway: &Gateway,
    request: &S3Request<GetBucketNotificationConfigurationInput>,
) -> Answered<GetBucketNotificationConfigurationOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    Ok(S3Response::new(shown_rules(&record.notifications)))
}

/// Rules as they were put.
pub fn shown_rules(rules: &[Rule]) -> GetBucketNotificationConfigurationOutput {
    let (mut queues, mut topics, mut functions) = (Vec::new(), Vec::new(), Vec::new());
    for rule in rules {
        let (id, filter, arn) = (Some(rule.id.clone()), shown_filter(rule), rule.arn.clone());
        let events: Vec<_> = rule.events.iter().cloned().map(Event::from).collect();
        match rule.kind {
            Kind::Queue => queues.push(QueueConfiguration {
                events,
                filter,
                id,
                queue_arn: arn,
            }),
            Kind::Topic => topics.push(TopicConfiguration {
                events,
                filter,
                id,
                topic_arn: arn,
            }),
            Kind::Function => functions.push(LambdaFunctionConfiguration {
                events,
                filter,
                id,
                lambda_function_arn: arn,
            }),
        }
    }
    GetBucketNotificationConfigurationOutput {
        event_bridge_configuration: None,
        lambda_function_configurations: Some(functions).filter(|list| !list.is_empty()),
        queue_configurations: Some(queues).filter(|list| !list.is_empty()),
        topic_configurations: Some(topics).filter(|list| !list.is_empty()),
    }
}
