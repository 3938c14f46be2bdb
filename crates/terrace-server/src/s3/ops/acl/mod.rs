//! Access control lists in requests and answers: canned ones, grants in headers, and XML.
//!
//! A list with grants to others than the owners of bucket and object is configuration, so putting
//! one needs the level `admin`, also where putting an object does not.

mod read;

use super::ownership::has_list;
use crate::s3::ops::{Answered, change_here, redescribe};
use crate::{
    asked_acl,
    s3::{
        Gateway,
        access::{By, decide::Action},
        access_key::Level,
        acl::{List, Permission},
        bucket::{Bucket, Record, unreadable},
        errors::Told as _,
        logging,
        record::{self, Facts},
        versions::{self, Name},
    },
};
pub use read::{Asked, Kind, Owners, shown};
use read::{Put, TO_BUCKET_OWNER};
#[cfg(feature = "fuzzing")]
pub use read::{read_grant, read_header, stored};
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        GetBucketAclInput, GetBucketAclOutput, GetObjectAclInput, GetObjectAclOutput, ObjectOwnership,
        PutBucketAclInput, PutBucketAclOutput, PutObjectAclInput, PutObjectAclOutput, TargetGrant,
    },
    s3_error,
};
use std::sync::Arc;

fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

fn no_lists() -> S3Error {
    s3_error!(AccessControlListNotSupported, "The bucket does not allow ACLs")
}

/// Checks that a list may be put in a bucket, by a caller that may or may not make it public.
fn check(record: &Record, list: List<'_>, may_open: bool) -> S3Result {
    let is_kept = list.is_public() && record.refuses_public_lists();
    if is_kept || (list.opens_beyond(&[list.owner, record.owner()]) && !may_open) {
        return Err(denied());
    }
    Ok(())
}

/// Whether the signer may make objects in a bucket public: by its own level, whatever the bucket's
/// account, or by its policy, which must allow this action.
fn may_open(gateway: &Gateway, by: By<'_>, bucket: &Bucket, action: &'static str) -> bool {
    let standing =
        by.1.and_then(|by| gateway.access_keys.standing(&by.access_key, &bucket.name, None));
    let has_level = standing.is_some_and(|standing| standing.level >= Some(Level::Admin));
    gateway.is_trusted(by, has_level, action, bucket)
}

/// The stored form of a new object's list, and the account that owns the object if it is not the
/// bucket's. Unsigned objects belong to the bucket's owner.
///
/// # Errors
/// `AccessControlListNotSupported`, `AccessDenied`, errors of the list.
pub fn of_new(gateway: &Gateway, by: By<'_>, bucket: &Bucket, asked: &Asked) -> S3Result<(String, Option<String>)> {
    let record = bucket.record();
    let writer = gateway.account(by.1);
    let of_bucket = record.owner();
    let owners = |owner| Owners {
        owner,
        of_bucket,
        keys: &gateway.access_keys,
    };
    if record.has_no_lists() {
        let is_taken = asked.is_nothing() || asked.is_to_bucket_owner(owners(of_bucket));
        return if is_taken {
            Ok((String::new(), None))
        } else {
            Err(no_lists())
        };
    }
    let is_preferred = record.ownership.as_deref() == Some(ObjectOwnership::BUCKET_OWNER_PREFERRED);
    let is_given = is_preferred && asked.canned.as_deref() == Some(TO_BUCKET_OWNER);
    let owner = writer.as_deref().filter(|_| !is_given).unwrap_or(of_bucket);
    let text = asked.list(Kind::Object, owners(owner))?;
    // Unsigned callers that the bucket's list lets write may choose the list of their objects, as
    // in S3, where they would own them. This grants no access to the owner's objects.
    let may_open = may_open(gateway, by, bucket, "s3:PutObjectAcl")
        || writer.is_none()
            && record
                .list()
                .allows(Permission::Write, None, record.obeys_public_lists());
    check(&record, List { text: &text, owner }, may_open)?;
    Ok((text, (owner != of_bucket).then(|| owner.to_owned())))
}

/// The stored form of the list of logs in a bucket, from `TargetGrants`.
///
/// # Errors
/// `AccessControlListNotSupported`, `AccessDenied`, errors of the grants.
pub fn of_logs(gateway: &Gateway, by: By<'_>, target: &Bucket, granted: &[TargetGrant]) -> S3Result<String> {
    let record = target.record();
    let owner = record.owner();
    if granted.is_empty() {
        return Ok(String::new());
    }
    if record.has_no_lists() {
        return Err(no_lists());
    }
    let text = read::of_logs(granted, owner, &gateway.access_keys)?;
    let list = List { text: &text, owner };
    check(&record, list, may_open(gateway, by, target, "s3:PutBucketAcl"))?;
    Ok(text)
}

/// The `TargetGrants` of logs of `owner`.
pub fn grants_of_logs(settings: &logging::Settings, owner: &str) -> Option<Vec<TargetGrant>> {
    let list = List {
        text: &settings.list,
        owner,
    };
    // The first grant is the owner's, which every log has.
    let grants = shown(list).into_iter().skip(1).map(|grant| TargetGrant {
        grantee: grant.grantee,
        permission: grant.permission.map(|permission| permission.as_str().to_owned().into()),
    });
    let grants: Vec<_> = grants.collect();
    (!grants.is_empty()).then_some(grants)
}

/// The stored form of the list of a new bucket of `owner`.
///
/// # Errors
/// `InvalidBucketAclWithObjectOwnership`, errors of the list.
pub fn of_new_bucket(gateway: &Gateway, record: &mut Record, asked: &Asked) -> S3Result {
    let owner = record.owner();
    let owners = Owners {
        owner,
        of_bucket: owner,
        keys: &gateway.access_keys,
    };
    let text = asked.list(Kind::Bucket, owners)?;
    if record.has_no_lists() && !text.is_empty() {
        return Err(has_list());
    }
    record.set_list(text);
    Ok(())
}

/// GetBucketAcl
pub fn bucket(gateway: &Gateway, request: &S3Request<GetBucketAclInput>) -> Answered<GetBucketAclOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(shown(record.list())),
        owner: Some(crate::s3::ops::shown(record.owner())),
    }))
}

/// PutBucketAcl
pub async fn put_bucket(gateway: &Arc<Gateway>, request: S3Request<PutBucketAclInput>) -> Answered<PutBucketAclOutput> {
    let mut input = request.input;
    let asked = asked_acl!(input).with_write(input.grant_write.take());
    let put = Put {
        asked,
        xml: input.access_control_policy.take(),
    };
    let bucket = gateway.bucket(&input.bucket)?;
    let by = (&request.extensions, request.credentials.as_ref());
    let may_open = may_open(gateway, by, &bucket, "s3:PutBucketAcl");
    gateway
        .run(move |gateway, store| {
            change_here(&gateway.buckets, store, &bucket.name, |record| {
                if record.has_no_lists() {
                    return Err(no_lists());
                }
                let owner = record.owner();
                let owners = Owners {
                    owner,
                    of_bucket: owner,
                    keys: &gateway.access_keys,
                };
                let text = put.list(Kind::Bucket, owners)?;
                check(record, List { text: &text, owner }, may_open)?;
                record.set_list(text);
                record.repaired(unreadable::LIST);
                Ok(())
            })
        })
        .await?;
    Ok(S3Response::new(PutBucketAclOutput {}))
}

/// GetObjectAcl
pub async fn object(gateway: &Arc<Gateway>, request: S3Request<GetObjectAclInput>) -> Answered<GetObjectAclOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let claim = gateway.claim(by, Action::ReadAcl, &bucket);
    let facts = gateway
        .run(move |_, store| versions::describe(store, &claim, &input.key, name).told())
        .await?;
    let record = bucket.record();
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(shown(record.list_of(&facts))),
        owner: Some(crate::s3::ops::shown(record.owner_of(&facts))),
        ..GetObjectAclOutput::default()
    }))
}

/// PutObjectAcl
pub async fn put_object(gateway: &Arc<Gateway>, request: S3Request<PutObjectAclInput>) -> Answered<PutObjectAclOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let mut input = request.input;
    let asked = asked_acl!(input).with_write(input.grant_write.take());
    let put = Put {
        asked,
        xml: input.access_control_policy.take(),
    };
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let may_open = may_open(
        gateway,
        by,
        &bucket,
        name.map_or("s3:PutObjectAcl", |_| "s3:PutObjectVersionAcl"),
    );
    let claim = gateway.claim(by, Action::WriteAcl, &bucket);
    let change = move |gateway: &Gateway, facts: &Facts| {
        let text = list_for(gateway, &put, &bucket, facts, may_open)?;
        Ok(record::with_list(&facts.attributes, &text))
    };
    redescribe(gateway, claim, (input.key, name), change).await?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

/// The new list of an object, if it is permitted.
fn list_for(gateway: &Gateway, put: &Put, bucket: &Bucket, facts: &Facts, may_open: bool) -> S3Result<String> {
    let record = bucket.record();
    if record.has_no_lists() {
        return Err(no_lists());
    }
    let owner = record.owner_of(facts);
    let owners = Owners {
        owner,
        of_bucket: record.owner(),
        keys: &gateway.access_keys,
    };
    let text = put.list(Kind::Object, owners)?;
    check(&record, List { text: &text, owner }, may_open)?;
    Ok(text)
}
