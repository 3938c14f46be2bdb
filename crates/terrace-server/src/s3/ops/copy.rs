//! CopyObject, and the reads of UploadPartCopy.
//!
//! A copy has bytes of its own: small ones in its record, large ones in a value that is written
//! piece by piece while the source is read. An object copied onto itself, which is how S3 changes
//! metadata, keeps its bytes where they are.

use super::{ATTEMPTS, Answered, Conditions, Verdict, check_key, objects, precondition_failed, reading, requirement};
use crate::s3::ops::said;
use crate::s3::{errors, ops::tag};
use crate::{
    description, encryption, locking,
    s3::{
        Gateway,
        access::{
            self, By,
            decide::{Action, Claim, Permit},
        },
        bucket::Versioning,
        class::Class,
        commit::{self, NewObject, Place, Requirement, Tag},
        crypt::{DataKey, Sealing, request::CustomerKey},
        digest::{self, Algorithm, Digests},
        errors::Told as _,
        judged,
        lifecycle::Subject,
        lock,
        read::Opened,
        receive::{self, Received, Stored, Target, WHOLE_BYTES_MAX},
        record,
        versions::{self, Name},
    },
    set_checksums, set_encryption_of_new, source_conditions, source_customer,
};
use hyper::{
    HeaderMap, header,
    header::{HeaderName, HeaderValue},
};
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, ETag, ETagCondition},
    s3_error,
};
use std::sync::Arc;
use terrace::{Attributes, VALUE_BYTES_MAX};
use terrace_objects::error::ObjectError;
use terrace_objects::keep::Kept;

/// The source of a copy.
pub struct Source {
    /// The claim to read it.
    pub claim: Claim,
    /// Its key.
    pub key: String,
    /// The version, if not the current one.
    pub name: Option<Name>,
    /// The client's key, if the source is encrypted with one.
    pub customer: Option<CustomerKey>,
}

/// Finds the source in a bucket of the expected owner. Permission to read it is checked on the
/// opened object ([`open`]).
///
/// # Errors
/// `AccessDenied` if it is denied, `NoSuchBucket`, `NotImplemented` for access points.
pub fn source(
    gateway: &Gateway,
    by: By<'_>,
    source: &CopySource,
    owner: Option<&str>,
    customer: Option<CustomerKey>,
) -> S3Result<Source> {
    let CopySource::Bucket {
        bucket,
        key,
        version_id,
    } = source
    else {
        return Err(s3_error!(NotImplemented, "Access points are not implemented."));
    };
    let name = Name::parse(version_id.as_deref()).told()?;
    if key.is_empty() {
        return Err(s3_error!(InvalidArgument, "Invalid copy source object key"));
    }
    let bucket = gateway.bucket(bucket)?;
    access::check_owner(&bucket, owner)?;
    let claim = reading(gateway, by, &bucket, key, name);
    claim.may_begin().told()?;
    Ok(Source {
        claim,
        key: key.to_string(),
        name,
        customer,
    })
}

/// The version of the source in answers.
pub fn source_version(source: &Source, opened: &Opened) -> Option<String> {
    source.claim.bucket().shown(Name::of(&opened.facts))
}

/// Opens the source if the request's conditions on it hold.
///
/// # Errors
/// `AccessDenied`, `NoSuchKey`, `NoSuchVersion`, `InvalidRequest` for a delete marker,
/// `PreconditionFailed`, errors of the store.
pub async fn open(gateway: &Arc<Gateway>, source: &Source, conditions: Conditions) -> S3Result<Opened> {
    let (claim, key, name) = (source.claim.clone(), source.key.clone(), source.name);
    let customer = source.customer.clone();
    gateway
        .run(move |gateway, store| {
            let opened = versions::open(store, &gateway.collector, &claim, &key, name);
            let mut opened = opened.map_err(|error| match error {
                ObjectError::IsDeleteMarker(_) => s3_error!(
                    InvalidRequest,
                    "The source of a copy request may not specifically refer to a delete marker by version id."
                ),
                error => errors::of_object(error),
            })?;
            opened.unlock(&gateway.shared.secrets, customer.as_ref()).told()?;
            match conditions.judge(&opened.facts) {
                Verdict::Answer => Ok(opened),
                // A 304 of a GET is a failed condition of a copy.
                Verdict::NotModified | Verdict::Failed => Err(precondition_failed()),
            }
        })
        .await
}

/// Copies the rest of `opened` into a value of its own, piece by piece.
///
/// # Errors
/// Errors of the store.
pub async fn into_value(
    gateway: &Arc<Gateway>,
    opened: Opened,
    length: u64,
    (target, data_key): (Target, Option<DataKey>),
    algorithms: &[Algorithm],
) -> S3Result<Stored> {
    let digests = Digests::new(algorithms);
    let writing = receive::begin(gateway, target, Some(length), data_key).await?;
    let mut state = (writing, digests, opened);
    loop {
        let (mut writing, mut digests, mut opened) = state;
        let step = gateway.run(move |_, store| {
            let piece = [opened.next_piece(store).told()?];
            let is_end = piece[0].is_empty();
            if !is_end {
                digests.update(&piece[0]);
                writing = writing.take(&piece).told()?;
            }
            Ok(((writing, digests, opened), is_end))
        });
        let (next, is_end) = step.await?;
        if is_end {
            let (writing, digests, _) = next;
            return gateway.run(move |_, _| writing.finish(digests.finish()).told()).await;
        }
        state = next;
    }
}

/// CopyObject
pub async fn object(gateway: &Arc<Gateway>, request: S3Request<CopyObjectInput>) -> Answered<CopyObjectOutput> {
    let mut input = request.input;
    check_key(&input.key)?;
    let by = (&request.extensions, request.credentials.as_ref());
    let from = source(
        gateway,
        by,
        &input.copy_source,
        input.expected_source_bucket_owner.as_deref(),
        source_customer!(input).read()?,
    )?;
    let permit = gateway.permit(by, Action::Write, &input.bucket)?;
    let target = permit.bucket();
    let replaces = directive("metadata", input.metadata_directive.as_ref().map(|text| text.as_str()))?;
    let retags = directive("tagging", input.tagging_directive.as_ref().map(|text| text.as_str()))?;
    let is_same = from.claim.bucket().name == input.bucket && from.key == input.key && from.name.is_none();
    let says_more = input.website_redirect_location.is_some() || input.storage_class.is_some();
    let asked = encryption!(input);
    let encrypts = asked.is_any();
    let sealing = asked.sealing_by(gateway, by, target).await?;
    if is_same && !replaces && !retags && !says_more && !encrypts && input.checksum_algorithm.is_none() {
        return Err(s3_error!(
            InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes."
        ));
    }
    let of_source = source_conditions!(input);
    let algorithms = objects::asked_algorithm(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()))?;
    let given = objects::checked_description(gateway, by, target, description!(input), locking!(input))?;
    let (if_match, if_none_match) = conditions(&request.headers)?;
    let reading = || reading(gateway, by, target, &input.key, None);
    let requirement = requirement(reading, if_match, if_none_match)?;
    let asked = Asked {
        claim: gateway.claim(by, Action::Write, target),
        conditions: of_source,
        given,
        replaces,
        retags,
        requirement,
        sealing,
        algorithms,
    };
    let told = asked.sealing.as_ref().map(Sealing::told);
    let (kept, copied) = make(gateway, (permit, input.key), &from, is_same, asked).await?;
    let mut result = CopyObjectResult {
        e_tag: Some(ETag::Strong(kept.etag)),
        last_modified: Some(said::second(kept.modified_ms)),
        ..CopyObjectResult::default()
    };
    set_checksums!(result, digest::stored(&kept.attributes));
    result.checksum_type = digest::stored(&kept.attributes).checksum_type;
    let mut output = CopyObjectOutput {
        copy_object_result: Some(result),
        copy_source_version_id: copied,
        expiration: kept.expiration.and_then(said::expiration),
        version_id: said::made(kept.version),
        ..CopyObjectOutput::default()
    };
    set_encryption_of_new!(output, told);
    Ok(S3Response::new(output))
}

/// What a request asks of a copy, besides its source and its key.
struct Asked {
    /// The claim to write it, which is asked again about the tags that are copied.
    claim: Claim,
    /// Conditions on the source.
    conditions: Conditions,
    /// The description in the request, and whether it replaces the source's, and its tags.
    given: Attributes,
    replaces: bool,
    retags: bool,
    /// Conditions on the object that is replaced.
    requirement: Requirement,
    sealing: Option<Sealing>,
    algorithms: Vec<Algorithm>,
}

/// Makes the copy. Returns it, and the source's version for the answer.
///
/// An object that is copied onto itself may change between its reading and the commit. Then it is
/// read again, and everything is decided again from what was read: the commit fails unless that is
/// what is replaced.
async fn make(
    gateway: &Arc<Gateway>,
    (permit, key): (Permit, String),
    from: &Source,
    is_same: bool,
    asked: Asked,
) -> S3Result<(Kept, Option<String>)> {
    for _ in 0..ATTEMPTS {
        let opened = open(gateway, from, asked.conditions.clone()).await?;
        check_length(opened.facts.length)?;
        if let Some(tagging) = opened.facts.tagging().filter(|_| !asked.retags) {
            may_retag(from, &opened, &asked.claim, &key, tagging)?;
        }
        let attributes = merge(&opened.facts.description(), &asked.given, asked.replaces, asked.retags);
        let copied = source_version(from, &opened);
        // With versioning a copy has its own bytes. Encrypted sources and targets are written
        // again.
        let is_plain = asked.sealing.is_none() && opened.facts.encryption.is_none();
        let stays = is_same && is_plain && asked.algorithms.is_empty();
        if !stays || permit.bucket().versioning() != Versioning::Never {
            let as_asked = (attributes, asked.sealing, asked.requirement);
            let kept = duplicate(gateway, (permit, key), opened, as_asked, asked.algorithms).await?;
            return Ok((kept, copied));
        }
        asked.requirement.check(Some(&opened.facts)).told()?;
        let place = (permit.clone(), key.clone());
        if let Some(kept) = rewrite(gateway, place, opened, attributes).await? {
            return Ok((kept, copied));
        }
    }
    Err(s3_error!(
        OperationAborted,
        "The object is being replaced all the time while it is copied onto itself. Try again."
    ))
}

/// Refuses copies in one request that are too long for one put.
fn check_length(bytes: u64) -> S3Result {
    if bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "The specified copy source is larger than the maximum allowable size for a copy source: {VALUE_BYTES_MAX}"
    ))
}

/// The conditions on the object that a copy replaces, `If-Match` and `If-None-Match`; `s3s` does
/// not read them.
fn conditions(headers: &HeaderMap) -> S3Result<(Option<Tag>, Option<Tag>)> {
    let condition = |name: HeaderName| {
        let text = headers.get(&name).map(|value| value.to_str().unwrap_or(""));
        let wrong = |_| s3_error!(InvalidArgument, "The header {name} is not an entity tag.");
        text.map(|text| text.parse::<ETagCondition>().map(tag).map_err(wrong))
            .transpose()
    };
    Ok((condition(header::IF_MATCH)?, condition(header::IF_NONE_MATCH)?))
}

fn directive(what: &str, text: Option<&str>) -> S3Result<bool> {
    match text {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "Unknown {what} directive.")),
    }
}

/// Checks that no policy denies reading the tags of a copy's source, or setting them here.
fn may_retag(source: &Source, opened: &Opened, claim: &Claim, key: &str, tagging: &str) -> S3Result {
    let get = source
        .name
        .map_or("s3:GetObjectTagging", |_| "s3:GetObjectVersionTagging");
    let may_read = source.claim.may_also(get, &source.key, Some(&opened.facts));
    let said = HeaderMap::from_iter([(
        HeaderName::from_static("x-amz-tagging"),
        HeaderValue::from_str(tagging).map_err(S3Error::internal_error)?,
    )]);
    // These tags are not in the request's own headers.
    let claim = claim.clone().asking_anew(|asker| judged::saying(asker, &said));
    let may_set = claim.may_also("s3:PutObjectTagging", key, None);
    may_read.and(may_set).map_err(|_| access::denied())
}

/// The description of the copy: the source's or the given one, and the same for tags.
fn merge(of_source: &Attributes, given: &Attributes, replaces: bool, retags: bool) -> Attributes {
    let base = if replaces { given } else { of_source };
    let tags = if retags { given } else { of_source };
    let attributes = record::with_tagging(base, record::tagging(tags));
    // A copy does not inherit the source's list, redirect and class.
    let attributes = record::with_redirect(&attributes, given);
    let attributes = record::with_class(&attributes, Class::of(given));
    let mut attributes = record::owned_as(&attributes, given);
    lock::copy(given, &mut attributes);
    attributes
}

/// Replaces an object's attributes; its bytes stay. `None` if it is no longer the object that was
/// opened, for which the permission and the conditions were decided.
async fn rewrite(
    gateway: &Arc<Gateway>,
    (permit, key): (Permit, String),
    opened: Opened,
    description: Attributes,
) -> S3Result<Option<Kept>> {
    gateway
        .run(move |gateway, store| {
            let modified_ms = store.clock().now_ms();
            let attributes = record::redescribed(&opened.facts, &description, modified_ms);
            let attributes = record::owned_as(&attributes, &description);
            let new = NewObject {
                value: opened.record_value().told()?,
                attributes: attributes.clone(),
            };
            let place = Place {
                store,
                durability: gateway.durability,
                permit: &permit,
                key: &key,
            };
            // Its values belong to exactly this version.
            let is_done = commit::redescribe(place, opened.place(), opened.facts.version, &new).told()?;
            let expiration = permit.bucket().expiration(Subject {
                key: &key,
                length: opened.facts.length,
                tagging: record::tagging(&attributes),
                written_ms: modified_ms,
            });
            Ok(is_done.then_some(Kept {
                etag: opened.facts.etag.clone(),
                attributes,
                modified_ms,
                version: None,
                commit: None,
                expiration,
            }))
        })
        .await
}

async fn duplicate(
    gateway: &Arc<Gateway>,
    (permit, key): (Permit, String),
    mut opened: Opened,
    (attributes, sealing, requirement): (Attributes, Option<Sealing>, Requirement),
    mut algorithms: Vec<Algorithm>,
) -> S3Result<Kept> {
    let data_key = sealing.as_ref().map(|sealing| sealing.data_key.clone());
    if algorithms.is_empty() {
        let of_source = Algorithm::ALL
            .into_iter()
            .find(|algorithm| opened.facts.attributes.get(algorithm.header()).is_some());
        algorithms.push(of_source.unwrap_or(Algorithm::Crc64Nvme));
    }
    let length = opened.facts.length;
    let received = if length <= WHOLE_BYTES_MAX as u64 {
        let whole = move |_: &Arc<Gateway>, store: &terrace::Store| {
            let mut bytes = Vec::new();
            loop {
                let piece = opened.next_piece(store).told()?;
                if piece.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&piece);
            }
            let mut digests = Digests::new(&algorithms);
            digests.update(&bytes);
            receive::whole(bytes.into(), digests.finish(), data_key.as_ref()).told()
        };
        gateway.run(whole).await?
    } else {
        Received::Stored(into_value(gateway, opened, length, (Target::Object, data_key), &algorithms).await?)
    };
    objects::commit(gateway, permit, key, &requirement, attributes, (received, sealing)).await
}
