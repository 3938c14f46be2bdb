//! Access control lists, as far as they say that everybody may read: of buckets and of objects. And what keeps buckets from
//! being public: the public access block, and object ownership without lists.
//!
//! There are no users, so a list can say two things: only the owner, or everybody may read as well. A bucket that everybody may
//! read can be listed; its objects are open one by one. Opening something to everybody is configuring, so it needs the level
//! `admin`, also where putting an object does not.

use super::owner;
use crate::s3::{
    Gateway,
    access::decide::Action,
    access_key::Level,
    bucket::{Bucket, PublicAccessBlock, Record},
    commit::{self, NewObject, Place},
    errors, record,
    versions::{self, Name},
};
use hyper::StatusCode;
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    auth::Credentials,
    dto::{
        AccessControlPolicy, DeleteBucketOwnershipControlsInput, DeleteBucketOwnershipControlsOutput,
        DeletePublicAccessBlockInput, DeletePublicAccessBlockOutput, GetBucketAclInput, GetBucketAclOutput,
        GetBucketOwnershipControlsInput, GetBucketOwnershipControlsOutput, GetObjectAclInput, GetObjectAclOutput,
        GetPublicAccessBlockInput, GetPublicAccessBlockOutput, Grant, Grantee, ObjectOwnership, OwnershipControls,
        OwnershipControlsRule, Permission, PublicAccessBlockConfiguration, PutBucketAclInput, PutBucketAclOutput,
        PutBucketOwnershipControlsInput, PutBucketOwnershipControlsOutput, PutObjectAclInput, PutObjectAclOutput,
        PutPublicAccessBlockInput, PutPublicAccessBlockOutput, Type,
    },
    s3_error,
};
use std::sync::Arc;

/// Everybody, in a grant.
const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
/// How often rewriting a record starts again because it was replaced meanwhile.
const ATTEMPTS: usize = 64;

/// Whether a canned list says that everybody may read.
///
/// # Errors
/// `NotImplemented` for lists that say something else, `InvalidArgument` for what is none.
pub fn canned(name: Option<&str>) -> S3Result<bool> {
    match name {
        None | Some("private" | "bucket-owner-full-control" | "bucket-owner-read") => Ok(false),
        Some("public-read") => Ok(true),
        Some("public-read-write" | "authenticated-read" | "aws-exec-read" | "log-delivery-write") => Err(s3_error!(
            NotImplemented,
            "Only the canned ACLs private and public-read are implemented."
        )),
        Some(_) => Err(s3_error!(InvalidArgument, "The canned ACL is not valid.")),
    }
}

/// Checks that whoever asks may put such a list here.
///
/// # Errors
/// `AccessControlListNotSupported`, `AccessDenied`.
pub fn check(gateway: &Gateway, credentials: Option<&Credentials>, bucket: &Arc<Bucket>, is_public: bool) -> S3Result {
    if !is_public {
        return Ok(());
    }
    let record = bucket.record();
    if record.has_no_lists() {
        return Err(s3_error!(
            AccessControlListNotSupported,
            "The bucket does not allow ACLs"
        ));
    }
    let may_open = gateway.level(credentials, &bucket.name) >= Some(Level::Admin);
    if !may_open || record.public_access_block.is_some_and(|block| block.refuse_lists) {
        return Err(s3_error!(AccessDenied, "Access Denied"));
    }
    Ok(())
}

/// What a list in XML says.
fn read_list(list: &AccessControlPolicy) -> S3Result<bool> {
    let is_other = |id: Option<&str>| id.is_some_and(|id| Some(id) != owner().id.as_deref());
    if is_other(list.owner.as_ref().and_then(|owner| owner.id.as_deref())) {
        return Err(s3_error!(AccessDenied, "Access Denied"));
    }
    let mut is_public = false;
    for grant in list.grants.iter().flatten() {
        let permission = grant.permission.as_ref().map(Permission::as_str);
        let grantee = grant.grantee.as_ref().ok_or_else(malformed)?;
        if grantee.email_address.is_some() {
            return Err(s3_error!(
                UnresolvableGrantByEmailAddress,
                "The e-mail address you provided does not match any account on record."
            ));
        }
        // There is one owner and nobody else.
        if is_other(grantee.id.as_deref()) {
            return Err(s3_error!(InvalidArgument, "Invalid id"));
        }
        let is_owner = grantee.id.is_some();
        match (grantee.uri.as_deref(), permission) {
            (Some(ALL_USERS), Some(Permission::READ)) => is_public = true,
            (None, Some(Permission::FULL_CONTROL)) if is_owner => {}
            (_, None) => return Err(malformed()),
            _ => {
                return Err(s3_error!(
                    NotImplemented,
                    "Only grants of FULL_CONTROL to the owner and of READ to everybody are implemented."
                ));
            }
        }
    }
    Ok(is_public)
}

fn malformed() -> S3Error {
    s3_error!(
        MalformedACLError,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

fn malformed_xml() -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

/// What a request says: by a canned list or by one in XML.
fn read(name: Option<&str>, list: Option<&AccessControlPolicy>) -> S3Result<bool> {
    match (name, list) {
        (Some(_), Some(_)) => Err(s3_error!(
            UnexpectedContent,
            "A canned ACL and one in the body cannot be combined."
        )),
        (None, None) => Err(s3_error!(
            MissingSecurityHeader,
            "Your request was missing a required header: x-amz-acl"
        )),
        (Some(name), None) => canned(Some(name)),
        (None, Some(list)) => read_list(list),
    }
}

fn grants(is_public: bool) -> Vec<Grant> {
    let owner = owner();
    let mut grants = vec![Grant {
        grantee: Some(Grantee {
            display_name: owner.display_name,
            email_address: None,
            id: owner.id,
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }];
    if is_public {
        grants.push(Grant {
            grantee: Some(Grantee {
                display_name: None,
                email_address: None,
                id: None,
                type_: Type::from_static(Type::GROUP),
                uri: Some(ALL_USERS.to_owned()),
            }),
            permission: Some(Permission::from_static(Permission::READ)),
        });
    }
    grants
}

async fn change(gateway: &Arc<Gateway>, bucket: String, change: impl FnOnce(&mut Record) + Send + 'static) -> S3Result {
    gateway
        .run(move |gateway, store| {
            gateway.buckets.change(store, &bucket, |record| {
                change(record);
                Ok(())
            })
        })
        .await
}

/// GetBucketAcl
pub fn bucket(gateway: &Gateway, request: &S3Request<GetBucketAclInput>) -> S3Result<S3Response<GetBucketAclOutput>> {
    let record = gateway.buckets.get(&request.input.bucket)?.record();
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(grants(record.acl_public)),
        owner: Some(owner()),
    }))
}

/// PutBucketAcl
pub async fn put_bucket(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = request.input;
    let is_public = read(
        input.acl.as_ref().map(|acl| acl.as_str()),
        input.access_control_policy.as_ref(),
    )?;
    let bucket = gateway.buckets.get(&input.bucket)?;
    check(gateway, request.credentials.as_ref(), &bucket, is_public)?;
    change(gateway, input.bucket, move |record| record.acl_public = is_public).await?;
    Ok(S3Response::new(PutBucketAclOutput {}))
}

/// GetObjectAcl
pub async fn object(
    gateway: &Arc<Gateway>,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref())?;
    let bucket = gateway.buckets.get(&input.bucket)?;
    let claim = gateway.claim(by, Action::Inspect, &bucket);
    let facts = gateway
        .run(move |_, store| versions::describe(store, &claim, &input.key, name))
        .await?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(grants(facts.is_public())),
        owner: Some(owner()),
        ..GetObjectAclOutput::default()
    }))
}

/// PutObjectAcl
pub async fn put_object(
    gateway: &Arc<Gateway>,
    request: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let is_public = read(
        input.acl.as_ref().map(|acl| acl.as_str()),
        input.access_control_policy.as_ref(),
    )?;
    let name = Name::parse(input.version_id.as_deref())?;
    let bucket = gateway.buckets.get(&input.bucket)?;
    check(gateway, by.1, &bucket, is_public)?;
    let claim = gateway.claim(by, Action::Write, &bucket);
    gateway
        .run(move |gateway, store| {
            for _ in 0..ATTEMPTS {
                let opened = versions::open(store, &gateway.collector, &claim, &input.key, name)?;
                let place = Place {
                    store,
                    durability: gateway.durability,
                    permit: opened.permit(),
                    key: &input.key,
                };
                let new = NewObject {
                    value: opened.record_value()?,
                    attributes: record::with_public(&opened.facts.attributes, is_public),
                };
                if commit::redescribe(place, opened.place(), opened.facts.version, &new)? {
                    return Ok(());
                }
            }
            Err(s3_error!(
                OperationAborted,
                "The object is being replaced all the time. Try again."
            ))
        })
        .await?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

/// GetPublicAccessBlock
pub fn public_access_block(
    gateway: &Gateway,
    request: &S3Request<GetPublicAccessBlockInput>,
) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
    let record = gateway.buckets.get(&request.input.bucket)?.record();
    let block = record.public_access_block.ok_or_else(|| {
        errors::custom(
            "NoSuchPublicAccessBlockConfiguration",
            StatusCode::NOT_FOUND,
            "The public access block configuration was not found",
        )
    })?;
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
) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
    let given = request.input.public_access_block_configuration;
    let block = PublicAccessBlock {
        refuse_lists: given.block_public_acls.unwrap_or(false),
        ignore_lists: given.ignore_public_acls.unwrap_or(false),
        refuse_policies: given.block_public_policy.unwrap_or(false),
        ignore_policies: given.restrict_public_buckets.unwrap_or(false),
    };
    change(gateway, request.input.bucket, move |record| {
        record.public_access_block = Some(block);
    })
    .await?;
    Ok(S3Response::new(PutPublicAccessBlockOutput {}))
}

/// DeletePublicAccessBlock
pub async fn delete_public_access_block(
    gateway: &Arc<Gateway>,
    request: S3Request<DeletePublicAccessBlockInput>,
) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
    change(gateway, request.input.bucket, |record| {
        record.public_access_block = None
    })
    .await?;
    Ok(S3Response::new(DeletePublicAccessBlockOutput {}))
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
) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
    let record = gateway.buckets.get(&request.input.bucket)?.record();
    let ownership = record.ownership.clone().ok_or_else(|| {
        errors::custom(
            "OwnershipControlsNotFoundError",
            StatusCode::NOT_FOUND,
            "The bucket ownership controls were not found",
        )
    })?;
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
) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
    let [rule] = request.input.ownership_controls.rules.as_slice() else {
        return Err(malformed_xml());
    };
    let ownership = ownership(&rule.object_ownership).map_err(|_| malformed_xml())?;
    change(gateway, request.input.bucket, |record| {
        record.ownership = Some(ownership)
    })
    .await?;
    Ok(S3Response::new(PutBucketOwnershipControlsOutput {}))
}

/// DeleteBucketOwnershipControls
pub async fn delete_ownership_controls(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteBucketOwnershipControlsInput>,
) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
    change(gateway, request.input.bucket, |record| record.ownership = None).await?;
    Ok(S3Response::new(DeleteBucketOwnershipControlsOutput {}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn code<T>(result: S3Result<T>) -> String {
        result
            .err()
            .map(|error| error.code().as_str().to_owned())
            .unwrap_or_default()
    }

    #[test]
    fn lists_say_two_things() {
        assert!(canned(Some("public-read")).unwrap());
        assert!(!canned(None).unwrap() && !canned(Some("private")).unwrap());
        assert_eq!(code(canned(Some("public-read-write"))), "NotImplemented");
        assert_eq!(code(canned(Some("Public-Read"))), "InvalidArgument");
        for is_public in [false, true] {
            let list = AccessControlPolicy {
                grants: Some(grants(is_public)),
                owner: Some(owner()),
            };
            assert_eq!(read(None, Some(&list)).unwrap(), is_public);
            assert_eq!(code(read(Some("private"), Some(&list))), "UnexpectedContent");
        }
    }

    #[test]
    fn other_grants_are_refused_whole() {
        let refused = |change: &dyn Fn(&mut Grant)| {
            let mut grants = grants(true);
            grants.iter_mut().rev().take(1).for_each(change);
            let list = AccessControlPolicy {
                grants: Some(grants),
                owner: None,
            };
            code(read_list(&list))
        };
        assert_eq!(
            refused(&|grant| grant.permission = Some(Permission::from_static(Permission::WRITE))),
            "NotImplemented"
        );
        assert_eq!(refused(&|grant| grant.permission = None), "MalformedACLError");
        assert_eq!(refused(&|grant| grant.grantee = None), "MalformedACLError");
        assert_eq!(
            refused(&|grant| {
                grant.grantee.as_mut().unwrap().uri = Some("http://acs.amazonaws.com/groups/global/x".to_owned());
            }),
            "NotImplemented"
        );
    }
}
