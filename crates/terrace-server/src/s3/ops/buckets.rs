//! Buckets: list, create, head, delete, location, versioning.

use super::{Answered, acl, change_here, ownership, said, set, tagging};
use crate::asked_acl;
use crate::s3::{
    Gateway, REGION, access, account,
    bucket::{Record, Versioning},
    errors::{self, Told as _},
    judged::Asker,
    lock::Settings,
    xml,
};
use hyper::{HeaderMap, StatusCode, http::Extensions};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        Bucket, BucketLocationConstraint, BucketVersioningStatus, CreateBucketInput, CreateBucketOutput,
        DeleteBucketInput, DeleteBucketOutput, DeleteBucketReplicationInput, DeleteBucketReplicationOutput,
        GetBucketAccelerateConfigurationInput, GetBucketAccelerateConfigurationOutput, GetBucketLocationInput,
        GetBucketLocationOutput, GetBucketReplicationInput, GetBucketReplicationOutput, GetBucketRequestPaymentInput,
        GetBucketRequestPaymentOutput, GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput,
        HeadBucketOutput, ListBucketsInput, ListBucketsOutput, Payer, PutBucketRequestPaymentInput,
        PutBucketRequestPaymentOutput, PutBucketVersioningInput, PutBucketVersioningOutput,
    },
    s3_error,
};
use std::sync::Arc;
use terrace_objects::error::ObjectError;

/// ListBuckets: those of the key's account that it may use.
pub fn list(gateway: &Gateway, request: S3Request<ListBucketsInput>) -> Answered<ListBucketsOutput> {
    let input = request.input;
    let limit = input.max_buckets.map_or(Ok(10_000), |limit| match limit {
        1..=10_000 => usize::try_from(limit).map_err(|_| ()),
        _ => Err(()),
    });
    let limit = limit.map_err(|()| s3_error!(InvalidArgument, "max-buckets must be between 1 and 10000"))?;
    let prefix = input.prefix.as_deref().unwrap_or("");
    let after = input.continuation_token.as_deref().unwrap_or("");
    let region = input.bucket_region.as_deref();
    // Answers have the region of a bucket if the request has any parameter.
    let has_parameter =
        input.prefix.is_some() || input.max_buckets.is_some() || input.continuation_token.is_some() || region.is_some();
    let key = request.credentials.as_ref().map_or("", |by| by.access_key.as_str());
    let account = gateway.access_keys.account(key);
    let account = account.as_deref().unwrap_or(account::DEFAULT);
    let mut seen = gateway.buckets.all().into_iter().filter(|bucket| {
        region.is_none_or(|region| region == region_of(&bucket.record()))
            && bucket.name.starts_with(prefix)
            && bucket.name.as_str() > after
            && bucket.record().owner() == account
            && gateway.access_keys.sees(key, &bucket.name)
    });
    let buckets: Vec<_> = seen
        .by_ref()
        .take(limit)
        .map(|bucket| Bucket {
            bucket_region: has_parameter.then(|| region_of(&bucket.record()).to_owned()),
            creation_date: Some(said::time(bucket.record().created_ms)),
            name: Some(bucket.name.clone()),
        })
        .collect();
    let more = seen.next().is_some();
    let last = buckets.last().and_then(|bucket| bucket.name.clone());
    Ok(S3Response::new(ListBucketsOutput {
        continuation_token: last.filter(|_| more),
        prefix: input.prefix.clone(),
        owner: Some(super::shown(account)),
        buckets: Some(buckets),
    }))
}

/// CreateBucket
pub async fn create(gateway: &Arc<Gateway>, request: S3Request<CreateBucketInput>) -> Answered<CreateBucketOutput> {
    let mut input = request.input;
    let asked = asked_acl!(input).with_write(input.grant_write.take());
    let name = input.bucket;
    if !s3s::path::check_bucket_name(&name) || is_reserved(&name) {
        return Err(s3_error!(InvalidBucketName, "The specified bucket is not valid."));
    }
    let location = format!("/{name}");
    let configuration = input.create_bucket_configuration.take();
    let constraint = configuration.and_then(|given| given.location_constraint);
    let region = request.region.as_ref().map_or(REGION, |region| region.as_str());
    let constraint = read_constraint(constraint.as_ref().map(|text| text.as_str()), region)?;
    let has_locks = input.object_lock_enabled_for_bucket == Some(true);
    let account = gateway.account(request.credentials.as_ref());
    let account = account.filter(|account| **account != *account::DEFAULT);
    let mut record = Record {
        lock: has_locks.then(Settings::default),
        versioning: if has_locks {
            Versioning::Enabled
        } else {
            Versioning::Never
        },
        created_ms: gateway.clock().now_ms(),
        ownership: input.object_ownership.as_ref().map(ownership::ownership).transpose()?,
        account: account.as_deref().map(str::to_owned),
        location: constraint,
        ..Record::default()
    };
    record.tags = tags_of(&request.extensions, &record, &name)?;
    acl::of_new_bucket(gateway, &mut record, &asked)?;
    gateway
        .run(move |gateway, store| {
            let (list, is_public) = (record.list().text.to_owned(), record.list().is_public());
            let owner = record.owner().to_owned();
            match gateway.buckets.create(store, &name, record) {
                // In S3's first region, which this server uses by default, making an existing
                // bucket of one's own again succeeds and sets the list, and nothing else
                // ("CreateBucket" in the API reference).
                Err(ObjectError::BucketExists) => {
                    change_here(&gateway.buckets, store, &name, |record| {
                        // It may have been replaced.
                        if record.owner() != owner {
                            return Err(ObjectError::BucketIsTaken).told();
                        }
                        if is_public && record.refuses_public_lists() {
                            return Err(s3_error!(AccessDenied, "Access Denied"));
                        }
                        if !record.has_no_lists() {
                            record.set_list(list);
                        }
                        Ok(())
                    })
                }
                outcome => outcome.told(),
            }
        })
        .await?;
    Ok(S3Response::new(CreateBucketOutput {
        location: Some(location),
    }))
}

/// The tags that a request to make a bucket gives it, if it may: judged by the record of that
/// bucket, since a policy may name the account in it.
///
/// # Errors
/// `AccessDenied`, and as PutBucketTagging.
fn tags_of(extensions: &Extensions, record: &Record, bucket: &str) -> S3Result<Vec<(String, String)>> {
    let xml = extensions.get::<xml::Kept>();
    let tags = xml.map_or_else(|| Ok(Vec::new()), |xml| tagging::of_new_bucket(xml.bytes()))?;
    let may_tag = |asker: &Asker| asker.may_also("s3:PutBucketTagging", record, bucket);
    if !tags.is_empty() && !extensions.get::<Asker>().is_none_or(may_tag) {
        return Err(access::denied());
    }
    Ok(tags)
}

/// The location of a bucket that was requested in this region: the given constraint, if it names
/// this region, or none. S3 has no constraint for its first region, but other servers accept one.
fn read_constraint(given: Option<&str>, region: &str) -> S3Result<Option<String>> {
    let Some(given) = given.filter(|given| !given.is_empty() && *given != REGION) else {
        return Ok(None);
    };
    // The first name of the region of Ireland.
    if given == region || (given == "EU" && region == "eu-west-1") {
        return Ok(Some(given.to_owned()));
    }
    if !is_region(given) {
        return Err(s3_error!(
            InvalidLocationConstraint,
            "The specified location-constraint is not valid"
        ));
    }
    Err(s3_error!(
        IllegalLocationConstraintException,
        "The {given} location constraint is incompatible for the region specific endpoint this request was sent to."
    ))
}

/// Whether this can be the name of an AWS region: `EU`, or words and a number with hyphens between.
fn is_region(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.rsplit_once('-');
    let is_written_so =
        |(words, number): (&str, &str)| words.contains('-') && words.split('-').all(is_word) && is_number(number);
    text == "EU" || parts.is_some_and(is_written_so)
}

/// The region of a bucket in answers.
fn region_of(record: &Record) -> &str {
    match record.location.as_deref() {
        Some("EU") => "eu-west-1",
        location => location.unwrap_or(REGION),
    }
}

/// Names that S3 reserves ("General purpose bucket naming rules"), and names that are no host names
/// because a label begins or ends with a hyphen.
fn is_reserved(name: &str) -> bool {
    let starts = ["xn--", "sthree-", "amzn-s3-demo-"];
    let ends = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    let is_taken = starts.iter().any(|start| name.starts_with(start)) || ends.iter().any(|end| name.ends_with(end));
    is_taken || name.contains(".-") || name.contains("-.")
}

/// HeadBucket
pub fn head(gateway: &Gateway, request: &S3Request<HeadBucketInput>) -> Answered<HeadBucketOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let output = HeadBucketOutput {
        access_point_alias: Some(false),
        bucket_region: Some(region_of(&record).to_owned()),
        ..HeadBucketOutput::default()
    };
    Ok(S3Response::with_headers(output, HeaderMap::new()))
}

/// DeleteBucket
pub async fn delete(gateway: &Arc<Gateway>, request: S3Request<DeleteBucketInput>) -> Answered<DeleteBucketOutput> {
    let name = request.input.bucket;
    gateway
        .run(move |gateway, store| gateway.buckets.delete(store, &name).told())
        .await?;
    // Uploads may have been aborted.
    gateway.collector.wake();
    Ok(S3Response::new(DeleteBucketOutput {}))
}

/// GetBucketLocation: the constraint of the request that made the bucket, otherwise empty.
pub fn location(gateway: &Gateway, request: &S3Request<GetBucketLocationInput>) -> Answered<GetBucketLocationOutput> {
    let location = gateway.bucket(&request.input.bucket)?.record().location.clone();
    Ok(S3Response::new(GetBucketLocationOutput {
        location_constraint: location.map(BucketLocationConstraint::from),
    }))
}

/// GetBucketAccelerateConfiguration: no bucket is accelerated.
pub fn acceleration(
    gateway: &Gateway,
    request: &S3Request<GetBucketAccelerateConfigurationInput>,
) -> Answered<GetBucketAccelerateConfigurationOutput> {
    gateway.bucket(&request.input.bucket)?;
    Ok(S3Response::new(GetBucketAccelerateConfigurationOutput::default()))
}

/// GetBucketRequestPayment: the owner of the bucket, unless set otherwise.
pub fn payer(
    gateway: &Gateway,
    request: &S3Request<GetBucketRequestPaymentInput>,
) -> Answered<GetBucketRequestPaymentOutput> {
    let payer = if gateway.bucket(&request.input.bucket)?.record().requester_pays {
        Payer::REQUESTER
    } else {
        Payer::BUCKET_OWNER
    };
    Ok(S3Response::new(GetBucketRequestPaymentOutput {
        payer: Some(Payer::from_static(payer)),
    }))
}

/// PutBucketRequestPayment: there are no payments, but requests without the header are refused.
pub async fn set_payer(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketRequestPaymentInput>,
) -> Answered<PutBucketRequestPaymentOutput> {
    let requester_pays = match request.input.request_payment_configuration.payer.as_str() {
        Payer::BUCKET_OWNER => false,
        Payer::REQUESTER => true,
        _ => return Err(errors::malformed_xml()),
    };
    set(gateway, request.input.bucket, move |record| {
        record.requester_pays = requester_pays
    })
    .await
}

/// GetBucketReplication: there is none.
pub fn replication(
    gateway: &Gateway,
    request: &S3Request<GetBucketReplicationInput>,
) -> Answered<GetBucketReplicationOutput> {
    gateway.bucket(&request.input.bucket)?;
    Err(errors::missing(
        "ReplicationConfigurationNotFoundError",
        "The replication configuration was not found",
    )())
}

/// DeleteBucketReplication
pub fn delete_replication(
    gateway: &Gateway,
    request: &S3Request<DeleteBucketReplicationInput>,
) -> Answered<DeleteBucketReplicationOutput> {
    gateway.bucket(&request.input.bucket)?;
    Ok(S3Response::new(DeleteBucketReplicationOutput {}))
}

/// GetBucketVersioning: empty if it was never enabled.
pub fn versioning(
    gateway: &Gateway,
    request: &S3Request<GetBucketVersioningInput>,
) -> Answered<GetBucketVersioningOutput> {
    let status = match gateway.bucket(&request.input.bucket)?.versioning() {
        Versioning::Never => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    Ok(S3Response::new(GetBucketVersioningOutput {
        status: status.map(BucketVersioningStatus::from_static),
        ..GetBucketVersioningOutput::default()
    }))
}

/// PutBucketVersioning
pub async fn set_versioning(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketVersioningInput>,
) -> Answered<PutBucketVersioningOutput> {
    let asked = request.input.versioning_configuration;
    if asked
        .mfa_delete
        .is_some_and(|status| status.as_str().eq_ignore_ascii_case("Enabled"))
    {
        return Err(s3_error!(NotImplemented, "MFA delete is not implemented."));
    }
    let versioning = match asked.status.as_ref().map(BucketVersioningStatus::as_str) {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        Some(_) => return Err(errors::malformed_xml()),
        None => {
            return Err(errors::custom(
                "IllegalVersioningConfigurationException",
                StatusCode::BAD_REQUEST,
                "The Versioning element must be specified",
            ));
        }
    };
    let name = request.input.bucket;
    gateway
        .run(move |gateway, store| gateway.buckets.set_versioning(store, &name, versioning).told())
        .await?;
    Ok(S3Response::new(PutBucketVersioningOutput {}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Locations of buckets in the server's region.
    #[test]
    fn where_buckets_are() {
        let read = |given, region| read_constraint(given, region).unwrap();
        assert_eq!(read(None, "eu-west-1"), None);
        assert_eq!(read(Some(""), "us-east-1"), None);
        assert_eq!(read(Some("us-east-1"), "us-east-1"), None);
        for (given, region) in [("eu-west-1", "eu-west-1"), ("EU", "eu-west-1"), ("garage", "garage")] {
            let location = read(Some(given), region);
            assert_eq!(location.as_deref(), Some(given));
            let record = Record {
                location,
                ..Record::default()
            };
            assert_eq!(region_of(&record), region);
        }
        for (given, region) in [
            ("eu-west-1", "us-east-1"),
            ("EU", "us-east-1"),
            ("us-west-2", "eu-west-1"),
        ] {
            let refused = read_constraint(Some(given), region).unwrap_err();
            assert_eq!(refused.code().as_str(), "IllegalLocationConstraintException");
        }
        for given in ["nowhere", "us-east", "us--1", "-1", "us-east-1x", "US-EAST-1", "garage"] {
            let refused = read_constraint(Some(given), "us-east-1").unwrap_err();
            assert_eq!(refused.code().as_str(), "InvalidLocationConstraint", "{given}");
        }
        assert_eq!(region_of(&Record::default()), REGION);
    }

    /// The object model does not use `s3s`, so it has this rule of its own; keys may name only
    /// possible buckets.
    #[test]
    fn names_of_buckets_are_those_of_the_protocol() {
        let long = ["a".repeat(63), "a".repeat(64)];
        let names = [
            "", "ab", "abc", "a.b", "a..b", ".ab", "ab.", "-ab", "ab-", "a-b", "Abc", "a_b", "a b", "1.2.3.4", "1.2.3",
            "1234", "xn--ab", "axn--b", "äab", "a/b", "*",
        ];
        for name in names.into_iter().chain(long.iter().map(String::as_str)) {
            let ours = terrace_objects::keyspace::is_bucket_name(name);
            assert_eq!(ours, s3s::path::check_bucket_name(name), "{name}");
        }
    }
}
