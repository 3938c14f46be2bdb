//! Public access block and object ownership.

use super::{Answered, change_bucket, set};
use crate::s3::{
    Gateway,
    bucket::{PublicAccessBlock, Record, unreadable},
    errors,
};
use hyper::StatusCode;
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        GetBucketOwnershipControlsInput, GetBucketOwnershipControlsOutput, GetPublicAccessBlockInput,
        GetPublicAccessBlockOutput, ObjectOwnership, OwnershipControls, OwnershipControlsRule,
        PublicAccessBlockConfiguration, PutBucketOwnershipControlsInput, PutBucketOwnershipControlsOutput,
        PutPublicAccessBlockInput, PutPublicAccessBlockOutput,
    },
    s3_error,
};
use std::sync::Arc;

/// The error for disabling lists in a bucket whose list has grants.
pub fn has_list() -> S3Error {
    errors::custom(
        "InvalidBucketAclWithObjectOwnership",
        StatusCode::BAD_REQUEST,
        "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
    )
}

/// GetPublicAccessBlock
pub fn public_access_block(
    gateway: &Gateway,
    request: &S3Request<GetPublicAccessBlockInput>,
) -> Answered<GetPublicAccessBlockOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let block = record.public_access_block.ok_or_else(errors::missing(
        "NoSuchPublicAccessBlockConfiguration",
        "The public access block configuration was not found",
    ))?;
    Ok(S3Response::new(GetPublicAccessBlockOutput {
        public_access_block_configuration: Some(PublicAccessBlockConfiguration {
            block_public_acls: Some(block.refuse_lists),
            block_public_policy: Some(block.refuse_policies),
            ignore_public_acls: Some(block.ignore_lists),
            restrict_public_buckets: Some(block.ignore_policies),
        }),
    }))
}

/// PutPublicAccessBlock
pub async fn put_public_access_block(
    gateway: &Arc<Gateway>,
    request: S3Request<PutPublicAccessBlockInput>,
) -> Answered<PutPublicAccessBlockOutput> {
    let given = request.input.public_access_block_configuration;
    let block = PublicAccessBlock {
        refuse_lists: given.block_public_acls.unwrap_or(false),
        ignore_lists: given.ignore_public_acls.unwrap_or(false),
        refuse_policies: given.block_public_policy.unwrap_or(false),
        ignore_policies: given.restrict_public_buckets.unwrap_or(false),
    };
    set(gateway, request.input.bucket, move |record| {
        record.public_access_block = Some(block);
        record.repaired(unreadable::ACCESS_BLOCK);
    })
    .await
}

/// DeletePublicAccessBlock
pub fn no_public_access_block(record: &mut Record) {
    record.public_access_block = None;
    record.repaired(unreadable::ACCESS_BLOCK);
}

/// DeleteBucketOwnershipControls
pub fn no_ownership_controls(record: &mut Record) {
    record.ownership = None;
    record.repaired(unreadable::OWNERSHIP);
}

/// Checks an object ownership.
///
/// # Errors
/// `InvalidArgument`
pub fn ownership(given: &ObjectOwnership) -> S3Result<String> {
    match given.as_str() {
        known @ (ObjectOwnership::BUCKET_OWNER_ENFORCED
        | ObjectOwnership::BUCKET_OWNER_PREFERRED
        | ObjectOwnership::OBJECT_WRITER) => Ok(known.to_owned()),
        _ => Err(s3_error!(InvalidArgument, "Invalid x-amz-object-ownership.")),
    }
}

/// GetBucketOwnershipControls
pub fn ownership_controls(
    gateway: &Gateway,
    request: &S3Request<GetBucketOwnershipControlsInput>,
) -> Answered<GetBucketOwnershipControlsOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let ownership = record.ownership.clone().ok_or_else(errors::missing(
        "OwnershipControlsNotFoundError",
        "The bucket ownership controls were not found",
    ))?;
    Ok(S3Response::new(GetBucketOwnershipControlsOutput {
        ownership_controls: Some(OwnershipControls {
            rules: vec![OwnershipControlsRule {
                object_ownership: ObjectOwnership::from(ownership),
            }],
        }),
    }))
}

/// PutBucketOwnershipControls
pub async fn put_ownership_controls(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketOwnershipControlsInput>,
) -> Answered<PutBucketOwnershipControlsOutput> {
    let [rule] = request.input.ownership_controls.rules.as_slice() else {
        return Err(errors::malformed_xml());
    };
    let ownership = ownership(&rule.object_ownership).map_err(|_| errors::malformed_xml())?;
    change_bucket(gateway, request.input.bucket, |record| {
        let has_none = ownership == ObjectOwnership::BUCKET_OWNER_ENFORCED;
        if has_none && record.list().opens_beyond(&[record.owner()]) {
            return Err(has_list());
        }
        record.ownership = Some(ownership);
        record.repaired(unreadable::OWNERSHIP);
        Ok(())
    })
    .await
}
