//! DeleteObject and DeleteObjects.

use super::{Answered, check_has_digest, check_key};
use crate::s3::{
    Gateway,
    access::decide::{Action, Claim, Permit},
    bucket::{Bucket, Versioning},
    commit::{self, Done, Outcome, Place, Requirement},
    errors::{self, Told as _},
    keyspace,
    logging::Each,
    versions::Name,
};
use crate::s3::{
    commit::Tag,
    ops::{reading, requirement, tag, time_of},
};
use hyper::http::Extensions;
use s3s::{
    S3Request, S3Response, S3Result,
    auth::Credentials,
    dto::{
        DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, Error,
        ObjectIdentifier,
    },
    s3_error,
};
use std::sync::Arc;
use terrace::{Durability, Store};

/// Most keys of one DeleteObjects.
const DELETE_KEYS_MAX: usize = 1000;
/// Keys that are deleted in one call of the engine: some milliseconds' work.
const DELETE_SLICE_KEYS: usize = 50;

/// DeleteObject
pub async fn delete(gateway: &Arc<Gateway>, request: S3Request<DeleteObjectInput>) -> Answered<DeleteObjectOutput> {
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let by = (&request.extensions, request.credentials.as_ref());
    let permit = gateway.permit(by, Action::Write, &input.bucket)?;
    check_bypass(permit.bucket(), input.bypass_governance_retention)?;
    let reading = || reading(gateway, by, permit.bucket(), &input.key, name);
    let requirement = Requirement {
        bypasses: bypasses(
            &gateway.claim(by, Action::Configure, permit.bucket()),
            &input.key,
            input.bypass_governance_retention,
        ),
        modified: input.if_match_last_modified_time.map(time_of),
        length: input.if_match_size,
        ..requirement(reading, input.if_match.map(tag), None)?
    };
    let place = gateway.place(&permit, &input.key);
    if name.is_none()
        && check_key(&input.key).is_ok()
        && let Some(committing) = commit::try_change(place, &requirement, None)
    {
        gateway.committed(committing, &input.key).await?;
        return Ok(S3Response::new(DeleteObjectOutput::default()));
    }
    let held = Arc::clone(permit.bucket());
    let done = gateway
        .run_in_turn(&held, &input.key.clone(), move |gateway, store| {
            let durability = gateway.durability;
            let done = delete_one(store, durability, &permit, &input.key, name, &requirement)?;
            if done.garbage {
                gateway.collector.wake();
            }
            Ok(done)
        })
        .await?;
    Ok(S3Response::new(DeleteObjectOutput {
        delete_marker: done.is_delete_marker.then_some(true),
        version_id: done.version.map(|name| name.to_string()),
        request_charged: None,
    }))
}

/// Refuses a bypass in a bucket without lock. DeleteObjects accepts it, since clients send it with
/// every list.
///
/// # Errors
/// `InvalidArgument`
fn check_bypass(bucket: &Bucket, asked: Option<bool>) -> S3Result {
    if asked.is_none() || bucket.record().lock.is_some() {
        return Ok(());
    }
    Err(s3_error!(
        InvalidArgument,
        "x-amz-bypass-governance-retention is only applicable to Object Lock enabled buckets."
    ))
}

/// Whether the principal may bypass governance for a key's versions.
pub fn bypasses(claim: &Claim, key: &str, asked: Option<bool>) -> bool {
    let may = || claim.clone().about("s3:BypassGovernanceRetention", key).on_bucket();
    asked == Some(true) && may().is_ok()
}

/// Deletes the current object, or a version. A missing one is no error.
fn delete_one(
    store: &Store,
    durability: Durability,
    permit: &Permit,
    key: &str,
    name: Option<Name>,
    requirement: &Requirement,
) -> S3Result<Done> {
    check_key(key)?;
    let place = Place {
        store,
        durability,
        permit,
        key,
    };
    let outcome = match name {
        None => commit::change(place, requirement, None, &|_| {}).told()?,
        Some(name) => commit::delete_version(place, name, requirement).told()?,
    };
    Ok(match outcome {
        Outcome::Done(done) => done,
        Outcome::Nothing | Outcome::OtherCondition => Done {
            version: name.filter(|_| permit.bucket().versioning() != Versioning::Never),
            ..Done::default()
        },
    })
}

/// DeleteObjects: each object separately, and all durable before the answer. In slices, so that
/// other requests are served in between, and no more objects are deleted after the client has
/// disconnected.
pub async fn delete_many(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteObjectsInput>,
) -> Answered<DeleteObjectsOutput> {
    check_has_digest(&request.headers)?;
    let delete = request.input.delete;
    if delete.objects.is_empty() || delete.objects.len() > DELETE_KEYS_MAX {
        return Err(errors::malformed_xml());
    }
    let quiet = delete.quiet.unwrap_or(false);
    let asked = Arc::new(AskedMany {
        bucket: gateway.bucket(&request.input.bucket)?,
        bypass: request.input.bypass_governance_retention,
        each: request.extensions.get().cloned(),
        extensions: request.extensions,
        credentials: request.credentials,
    });
    let mut all = DeletedMany::default();
    let mut objects = delete.objects.into_iter();
    loop {
        let slice: Vec<_> = objects.by_ref().take(DELETE_SLICE_KEYS).collect();
        if slice.is_empty() {
            break;
        }
        let asked = Arc::clone(&asked);
        all = gateway
            .run(move |gateway, store| {
                for object in slice {
                    all.delete(gateway, store, &asked, object);
                }
                if std::mem::take(&mut all.garbage) {
                    gateway.collector.wake();
                }
                Ok(all)
            })
            .await?;
    }
    let DeletedMany {
        deleted, errors, last, ..
    } = all;
    gateway
        .run(move |gateway, store| make_durable(gateway, store, last))
        .await?;
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: (!quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        request_charged: None,
    }))
}

/// The claim of a DeleteObjects.
struct AskedMany {
    bucket: Arc<Bucket>,
    bypass: Option<bool>,
    /// Results for each key, if the bucket has a log.
    each: Option<Each>,
    extensions: Extensions,
    credentials: Option<Credentials>,
}

impl AskedMany {
    /// Checks permission for one object, and deletes it with a buffered commit.
    fn delete(&self, gateway: &Gateway, store: &Store, object: &ObjectIdentifier) -> S3Result<Done> {
        let by = (&self.extensions, self.credentials.as_ref());
        let key = &object.key;
        let name = Name::parse(object.version_id.as_deref()).told()?;
        let action = name.map_or("s3:DeleteObject", |_| "s3:DeleteObjectVersion");
        let claim = gateway.claim(by, Action::Write, &self.bucket);
        let version = name.map(|name| name.to_string());
        let claim = claim.about(action, key).of_version(version.as_deref());
        let permit = claim.on_bucket().told()?;
        let if_match = object.e_tag.clone().map(|tag| match tag.into_value() {
            any if any == "*" => Tag::Any,
            tag => Tag::Is(tag),
        });
        let reading = || reading(gateway, by, &self.bucket, key, name);
        let requirement = Requirement {
            bypasses: bypasses(&gateway.claim(by, Action::Configure, &self.bucket), key, self.bypass),
            modified: object.last_modified_time.clone().map(time_of),
            length: object.size,
            ..requirement(reading, if_match, None)?
        };
        delete_one(store, Durability::Buffered, &permit, key, name, &requirement)
    }
}

/// The progress of a DeleteObjects.
#[derive(Default)]
struct DeletedMany {
    deleted: Vec<DeletedObject>,
    errors: Vec<Error>,
    garbage: bool,
    /// The key in the store of the last object that was deleted.
    last: Option<Vec<u8>>,
}

impl DeletedMany {
    /// Deletes one more object.
    fn delete(&mut self, gateway: &Gateway, store: &Store, asked: &AskedMany, object: ObjectIdentifier) {
        match asked.delete(gateway, store, &object) {
            Ok(done) => {
                self.garbage |= done.garbage;
                self.last = Some(keyspace::object(&asked.bucket.name, &object.key));
                if let Some(each) = &asked.each {
                    each.done(&object.key, done.version.map(|name| name.to_string()));
                }
                self.deleted.push(deleted_object(object.key, object.version_id, done));
            }
            Err(error) => {
                if let Some(each) = &asked.each {
                    each.failed(&object.key, &error);
                }
                self.errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(object.key),
                    message: error.message().map(str::to_owned),
                    version_id: object.version_id,
                });
            }
        }
    }
}

fn deleted_object(key: String, asked: Option<String>, done: Done) -> DeletedObject {
    let marker = done.version.filter(|_| done.is_delete_marker);
    DeletedObject {
        delete_marker: marker.is_some().then_some(true),
        delete_marker_version_id: marker.map(|name| name.to_string()),
        key: Some(key),
        version_id: asked.filter(|name| !name.is_empty()),
    }
}

/// Makes buffered commits durable by a waiting one: the deletion of an empty marker, which is after
/// them in the log.
fn make_durable(gateway: &Gateway, store: &Store, last: Option<Vec<u8>>) -> S3Result {
    let Some(last) = last.filter(|_| gateway.durability == Durability::Sync) else {
        return Ok(());
    };
    let marker = keyspace::sync_marker();
    store
        .delete_with(&marker, terrace::Condition::None, Durability::Sync)
        .map_err(|error| crate::s3::errors::of_engine(&error, &last))?;
    Ok(())
}
