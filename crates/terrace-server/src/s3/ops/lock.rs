//! Object lock: of buckets, and of versions.

use super::{Answered, change_bucket, check_has_digest, redescribe, said};
use crate::s3::judged;
use crate::s3::{
    Gateway,
    access::{By, decide::Action},
    bucket::{Bucket, Versioning, unreadable},
    errors::{self, Told as _},
    lock::{self, Mode, Period, Retention, Settings},
    record::Facts,
    versions::{self, Name},
};
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue},
};
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        DefaultRetention, GetObjectLegalHoldInput, GetObjectLegalHoldOutput, GetObjectLockConfigurationInput,
        GetObjectLockConfigurationOutput, GetObjectRetentionInput, GetObjectRetentionOutput, ObjectLockConfiguration,
        ObjectLockEnabled, ObjectLockLegalHold, ObjectLockLegalHoldStatus, ObjectLockRetention,
        ObjectLockRetentionMode, ObjectLockRule, PutObjectLegalHoldInput, PutObjectLegalHoldOutput,
        PutObjectLockConfigurationInput, PutObjectLockConfigurationOutput, PutObjectRetentionInput,
        PutObjectRetentionOutput, Timestamp,
    },
    s3_error,
};
use std::sync::Arc;
use terrace::{Attributes, Clock};

/// Longest default retention.
const DAYS_MAX: u32 = 36_500;
/// The same in years.
const YEARS_MAX: u32 = 100;

/// A bucket with object lock.
fn lockable(gateway: &Gateway, name: &str) -> S3Result<Arc<Bucket>> {
    let bucket = gateway.bucket(name)?;
    if bucket.record().lock.is_none() {
        return Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"));
    }
    Ok(bucket)
}

fn none_there() -> S3Error {
    errors::custom(
        "NoSuchObjectLockConfiguration",
        StatusCode::NOT_FOUND,
        "The specified object does not have a ObjectLock configuration",
    )
}

/// Milliseconds since 1970 of a time after `now_ms`.
fn future(time: &Timestamp, now_ms: u64) -> S3Result<u64> {
    let ms = super::lifecycle::milliseconds(time).unwrap_or(0);
    if ms <= now_ms {
        return Err(s3_error!(
            InvalidArgument,
            "The retain until date must be in the future!"
        ));
    }
    Ok(ms)
}

/// The end of a retention.
pub fn until(retention: Retention) -> Timestamp {
    said::time(retention.until_ms)
}

/// Takes the lock fields out of an input; three inputs have the same fields.
#[macro_export]
macro_rules! locking {
    ($input:expr) => {
        $crate::s3::ops::lock::Asked {
            mode: $input.object_lock_mode.take().map(|mode| mode.as_str().to_owned()),
            until: $input.object_lock_retain_until_date.take(),
            hold: $input
                .object_lock_legal_hold_status
                .take()
                .map(|status| status.as_str().to_owned()),
        }
    };
}

/// The same as headers have it.
pub fn until_text(retention: Retention) -> String {
    said::date_text(Clock::of_ms(retention.until_ms))
}

/// A retention as headers of a request.
fn as_headers(retention: Retention) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        "x-amz-object-lock-mode",
        HeaderValue::from_static(retention.mode.name()),
    );
    let until = HeaderValue::from_str(&until_text(retention)).ok();
    headers.extend(until.map(|until| (HeaderName::from_static("x-amz-object-lock-retain-until-date"), until)));
    headers
}

/// The lock fields of a request that writes an object.
#[derive(Debug, Default)]
pub struct Asked {
    /// `x-amz-object-lock-mode`
    pub mode: Option<String>,
    /// `x-amz-object-lock-retain-until-date`
    pub until: Option<Timestamp>,
    /// `x-amz-object-lock-legal-hold`
    pub hold: Option<String>,
}

impl Asked {
    /// Writes them into the attributes of the new object, if `may` permits the actions.
    ///
    /// # Errors
    /// `InvalidRequest` if the bucket has no locks, `InvalidArgument`, `AccessDenied`.
    pub fn apply(
        self,
        may: impl Fn(&'static str) -> bool,
        bucket: &Bucket,
        attributes: &mut Attributes,
        now_ms: u64,
    ) -> S3Result {
        if self.mode.is_none() && self.until.is_none() && self.hold.is_none() {
            return Ok(());
        }
        if bucket.record().lock.is_none() {
            return Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"));
        }
        // Permission to write is not enough for objects that cannot be deleted.
        let retains = self.mode.is_some() || self.until.is_some();
        if (retains && !may("s3:PutObjectRetention")) || (self.hold.is_some() && !may("s3:PutObjectLegalHold")) {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        match (self.mode, self.until) {
            (None, None) => {}
            (Some(mode), Some(until)) => {
                let mode =
                    Mode::parse(&mode).ok_or_else(|| s3_error!(InvalidArgument, "Unknown wormMode directive."))?;
                let until_ms = future(&until, now_ms)?;
                lock::set_retention(attributes, Some(Retention { mode, until_ms }));
            }
            _ => {
                return Err(s3_error!(
                    InvalidArgument,
                    "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied"
                ));
            }
        }
        match self.hold.as_deref() {
            None => {}
            Some("ON") => lock::set_legal_hold(attributes, true),
            Some("OFF") => lock::set_legal_hold(attributes, false),
            Some(_) => {
                return Err(s3_error!(InvalidArgument, "Legal Hold must be either of 'ON' or 'OFF'"));
            }
        }
        Ok(())
    }
}

/// A bucket's configuration in the protocol's terms.
pub fn shown(settings: Settings) -> ObjectLockConfiguration {
    let rule = settings.default.map(|default| {
        let (days, years) = match default.period {
            Period::Days(days) => (i32::try_from(days).ok(), None),
            Period::Years(years) => (None, i32::try_from(years).ok()),
        };
        ObjectLockRule {
            default_retention: Some(DefaultRetention {
                days,
                mode: Some(ObjectLockRetentionMode::from_static(default.mode.name())),
                years,
            }),
        }
    });
    ObjectLockConfiguration {
        object_lock_enabled: Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED)),
        rule,
    }
}

/// Reads a bucket's configuration.
///
/// # Errors
/// `MalformedXML`, `InvalidRetentionPeriod`.
pub fn read(given: &ObjectLockConfiguration) -> S3Result<Settings> {
    if given.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str) != Some(ObjectLockEnabled::ENABLED) {
        return Err(errors::malformed_xml());
    }
    let Some(rule) = &given.rule else {
        return Ok(Settings::default());
    };
    let retention = rule.default_retention.as_ref().ok_or_else(errors::malformed_xml)?;
    let mode = retention.mode.as_ref().and_then(|mode| Mode::parse(mode.as_str()));
    let mode = mode.ok_or_else(errors::malformed_xml)?;
    let within = |number: i32, most: u32| {
        let number = u32::try_from(number).ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| {
            errors::custom(
                "InvalidRetentionPeriod",
                StatusCode::BAD_REQUEST,
                "Default retention period must be a positive integer value",
            )
        })
    };
    let period = match (retention.days, retention.years) {
        (Some(days), None) => Period::Days(within(days, DAYS_MAX)?),
        (None, Some(years)) => Period::Years(within(years, YEARS_MAX)?),
        _ => return Err(errors::malformed_xml()),
    };
    Ok(Settings {
        default: Some(lock::Default { mode, period }),
    })
}

/// GetObjectLockConfiguration
pub fn get_configuration(
    gateway: &Gateway,
    request: &S3Request<GetObjectLockConfigurationInput>,
) -> Answered<GetObjectLockConfigurationOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let settings = record.lock.ok_or_else(errors::missing(
        "ObjectLockConfigurationNotFoundError",
        "Object Lock configuration does not exist for this bucket",
    ))?;
    Ok(S3Response::new(GetObjectLockConfigurationOutput {
        object_lock_configuration: Some(shown(settings)),
    }))
}

/// PutObjectLockConfiguration
pub async fn put_configuration(
    gateway: &Arc<Gateway>,
    request: S3Request<PutObjectLockConfigurationInput>,
) -> Answered<PutObjectLockConfigurationOutput> {
    check_has_digest(&request.headers)?;
    let input = request.input;
    let settings = read(&input.object_lock_configuration.ok_or_else(errors::malformed_xml)?)?;
    let change = move |record: &mut crate::s3::bucket::Record| {
        if record.versioning != Versioning::Enabled {
            return Err(errors::custom(
                "InvalidBucketState",
                StatusCode::CONFLICT,
                "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
            ));
        }
        record.lock = Some(settings);
        record.repaired(unreadable::LOCK);
        Ok(())
    };
    change_bucket(gateway, input.bucket, change).await
}

/// The stored lock of a version, for callers that may configure locks.
async fn described(
    gateway: &Arc<Gateway>,
    by: By<'_>,
    bucket: &str,
    key: String,
    version_id: Option<&str>,
) -> S3Result<Facts> {
    let bucket = lockable(gateway, bucket)?;
    let name = Name::parse(version_id).told()?;
    let claim = gateway.claim(by, Action::Configure, &bucket);
    gateway
        .run(move |_, store| versions::describe(store, &claim, &key, name).told())
        .await
}

/// PutObjectRetention
pub async fn put_retention(
    gateway: &Arc<Gateway>,
    request: S3Request<PutObjectRetentionInput>,
) -> Answered<PutObjectRetentionOutput> {
    check_has_digest(&request.headers)?;
    let input = request.input;
    let now_ms = gateway.clock().now_ms();
    let bucket = lockable(gateway, &input.bucket)?;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let given = input.retention.ok_or_else(errors::malformed_xml)?;
    let new = match (given.mode, given.retain_until_date) {
        (None, None) => None,
        (Some(mode), Some(until)) => {
            let mode = Mode::parse(mode.as_str()).ok_or_else(errors::malformed_xml)?;
            let until_ms = future(&until, now_ms)?;
            Some(Retention { mode, until_ms })
        }
        _ => return Err(errors::malformed_xml()),
    };
    let by = (&request.extensions, request.credentials.as_ref());
    let said = new.map_or_else(HeaderMap::new, as_headers);
    let claim = gateway
        .claim(by, Action::Configure, &bucket)
        .asking_anew(|asker| judged::saying(asker, &said));
    let bypasses = super::delete::bypasses(&claim, &input.key, input.bypass_governance_retention);
    let change = move |_: &Gateway, facts: &Facts| {
        let mut attributes = facts.attributes.clone();
        if lock::retention(&attributes).is_some_and(|old| !old.may_become(new, bypasses, now_ms)) {
            return Err(s3_error!(
                AccessDenied,
                "Access Denied because object protected by object lock."
            ));
        }
        lock::set_retention(&mut attributes, new);
        Ok(attributes)
    };
    redescribe(gateway, claim, (input.key, name), change).await?;
    Ok(S3Response::new(PutObjectRetentionOutput::default()))
}

/// GetObjectRetention
pub async fn get_retention(
    gateway: &Arc<Gateway>,
    request: S3Request<GetObjectRetentionInput>,
) -> Answered<GetObjectRetentionOutput> {
    let input = request.input;
    let by = (&request.extensions, request.credentials.as_ref());
    let facts = described(gateway, by, &input.bucket, input.key, input.version_id.as_deref()).await?;
    let retention = lock::retention(&facts.attributes).ok_or_else(none_there)?;
    Ok(S3Response::new(GetObjectRetentionOutput {
        retention: Some(ObjectLockRetention {
            mode: Some(ObjectLockRetentionMode::from_static(retention.mode.name())),
            retain_until_date: Some(until(retention)),
        }),
    }))
}

/// PutObjectLegalHold
pub async fn put_legal_hold(
    gateway: &Arc<Gateway>,
    request: S3Request<PutObjectLegalHoldInput>,
) -> Answered<PutObjectLegalHoldOutput> {
    check_has_digest(&request.headers)?;
    let input = request.input;
    let bucket = lockable(gateway, &input.bucket)?;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let status = input
        .legal_hold
        .and_then(|hold| hold.status)
        .ok_or_else(errors::malformed_xml)?;
    let is_held = match status.as_str() {
        ObjectLockLegalHoldStatus::ON => true,
        ObjectLockLegalHoldStatus::OFF => false,
        _ => return Err(errors::malformed_xml()),
    };
    let change = move |_: &Gateway, facts: &Facts| {
        let mut attributes = facts.attributes.clone();
        lock::set_legal_hold(&mut attributes, is_held);
        Ok(attributes)
    };
    let by = (&request.extensions, request.credentials.as_ref());
    let mut said = HeaderMap::new();
    said.insert(
        "x-amz-object-lock-legal-hold",
        HeaderValue::from_static(if is_held { "ON" } else { "OFF" }),
    );
    let claim = gateway
        .claim(by, Action::Configure, &bucket)
        .asking_anew(|asker| judged::saying(asker, &said));
    redescribe(gateway, claim, (input.key, name), change).await?;
    Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
}

/// GetObjectLegalHold
pub async fn get_legal_hold(
    gateway: &Arc<Gateway>,
    request: S3Request<GetObjectLegalHoldInput>,
) -> Answered<GetObjectLegalHoldOutput> {
    let input = request.input;
    let by = (&request.extensions, request.credentials.as_ref());
    let facts = described(gateway, by, &input.bucket, input.key, input.version_id.as_deref()).await?;
    let is_held = lock::legal_hold(&facts.attributes).ok_or_else(none_there)?;
    let status = if is_held {
        ObjectLockLegalHoldStatus::ON
    } else {
        ObjectLockLegalHoldStatus::OFF
    };
    Ok(S3Response::new(GetObjectLegalHoldOutput {
        legal_hold: Some(ObjectLockLegalHold {
            status: Some(ObjectLockLegalHoldStatus::from_static(status)),
        }),
    }))
}
