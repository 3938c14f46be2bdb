//! Server access logging of a bucket: put, get.

use super::{Answered, acl, set};
use crate::s3::logging::Logging as _;
use crate::s3::{
    Gateway,
    access::By,
    access_key::Level,
    errors,
    logging::{Format, PREFIX_BYTES_MAX, Settings},
};
use hyper::StatusCode;
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        GetBucketLoggingInput, GetBucketLoggingOutput, LoggingEnabled, PartitionDateSource, PartitionedPrefix,
        PutBucketLoggingInput, PutBucketLoggingOutput, SimplePrefix, TargetObjectKeyFormat,
    },
    s3_error,
};
use std::sync::Arc;

fn no_target(message: &'static str) -> S3Error {
    errors::custom("InvalidTargetBucketForLogging", StatusCode::BAD_REQUEST, message)
}

fn read_format(given: Option<TargetObjectKeyFormat>) -> S3Result<Format> {
    let Some(given) = given else {
        return Ok(Format::Default);
    };
    match (given.simple_prefix, given.partitioned_prefix) {
        (Some(_), None) => Ok(Format::Simple),
        (None, Some(partitioned)) => match partitioned.partition_date_source.as_ref().map(|source| source.as_str()) {
            Some(PartitionDateSource::EVENT_TIME) => Ok(Format::EventTime),
            Some(PartitionDateSource::DELIVERY_TIME) => Ok(Format::DeliveryTime),
            _ => Err(errors::malformed_xml()),
        },
        _ => Err(errors::malformed_xml()),
    }
}

fn shown_format(format: Format) -> Option<TargetObjectKeyFormat> {
    let partitioned = |source| TargetObjectKeyFormat {
        partitioned_prefix: Some(PartitionedPrefix {
            partition_date_source: Some(PartitionDateSource::from_static(source)),
        }),
        simple_prefix: None,
    };
    match format {
        Format::Default => None,
        Format::Simple => Some(TargetObjectKeyFormat {
            partitioned_prefix: None,
            simple_prefix: Some(SimplePrefix::default()),
        }),
        Format::EventTime => Some(partitioned(PartitionDateSource::EVENT_TIME)),
        Format::DeliveryTime => Some(partitioned(PartitionDateSource::DELIVERY_TIME)),
    }
}

/// PutBucketLogging
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketLoggingInput>,
) -> Answered<PutBucketLoggingOutput> {
    let bucket = request.input.bucket;
    let settings = match request.input.bucket_logging_status.logging_enabled {
        None => None,
        Some(given) => {
            let by = (&request.extensions, request.credentials.as_ref());
            Some(read(gateway, by, &bucket, given)?)
        }
    };
    set(gateway, bucket, |record| record.logging = settings).await
}

/// The settings that a request puts.
fn read(gateway: &Gateway, by: By<'_>, source: &str, given: LoggingEnabled) -> S3Result<Settings> {
    let prefix = given.target_prefix;
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains('\0') {
        return Err(s3_error!(
            InvalidArgument,
            "TargetPrefix has {PREFIX_BYTES_MAX} bytes at most, and no zero byte."
        ));
    }
    let target = gateway.buckets.get(&given.target_bucket);
    let target = target.map_err(|_| no_target("The target bucket for logging does not exist"))?;
    let record = target.record();
    let source_record = gateway.bucket(source)?.record();
    if record.owner() != source_record.owner() {
        return Err(no_target(
            "The owner for the bucket to be logged and the target bucket must be the same.",
        ));
    }
    if record.requester_pays {
        return Err(no_target("The target bucket for logging must not have Requester Pays."));
    }
    if record.lock.as_ref().is_some_and(|lock| lock.default.is_some()) {
        return Err(no_target(
            "The target bucket for logging must not have a default retention period.",
        ));
    }
    let level = gateway.level(by.1, &target);
    let mut settings = Settings {
        target: given.target_bucket,
        target_created_ms: record.created_ms,
        prefix,
        format: read_format(given.target_object_key_format)?,
        // The target's owner may permit logs; other accounts need its policy.
        by_policy: level < Some(Level::Admin),
        list: acl::of_logs(gateway, by, &target, given.target_grants.as_deref().unwrap_or_default())?,
    };
    let clock = gateway.clock();
    let key = settings.key(source, record.owner(), 0, clock.now());
    settings.by_policy |= !gateway.may_put_within(by, &target, &key);
    if !settings.may(source, record.owner(), &record, &key, clock.now_ms()) {
        return Err(no_target(
            "You must give the log-delivery group WRITE and READ_ACP permissions to the target bucket",
        ));
    }
    Ok(settings)
}

/// GetBucketLogging
pub fn get(gateway: &Gateway, request: &S3Request<GetBucketLoggingInput>) -> Answered<GetBucketLoggingOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let shown = record.logging.as_ref().map(|settings| LoggingEnabled {
        target_bucket: settings.target.clone(),
        target_grants: acl::grants_of_logs(settings, record.owner()),
        target_object_key_format: shown_format(settings.format),
        target_prefix: settings.prefix.clone(),
    });
    Ok(S3Response::new(GetBucketLoggingOutput { logging_enabled: shown }))
}
