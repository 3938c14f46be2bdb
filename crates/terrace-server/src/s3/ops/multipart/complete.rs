//! CompleteMultipartUpload.

use super::{PartRecord, Upload, no_such_upload};
use crate::s3::ops::{Answered, reading, requirement, tag};
use crate::s3::{lifecycle::Expiration, ops::said};
use crate::{
    declared_fields,
    s3::{
        Gateway,
        access::decide::{Action, Claim, Permit},
        bucket::{Bucket, Versioning},
        collector,
        commit::{self, NewObject, Outcome, Place, Requirement},
        crypt::request::{AES256, KMS, Told},
        digest::{self, Algorithm, Checksum, KIND_ATTRIBUTE, Kind},
        errors::{self, Told as _},
        keyspace::{self, Id},
        lifecycle::Subject,
        manifest::{self, Part},
        read, record,
        versions::Name,
    },
    set_checksums,
};
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, ETag, ServerSideEncryption},
    s3_error,
};
use std::{collections::BTreeMap, sync::Arc};
use terrace::{Attributes, Condition, ReadOptions, ScanRange, Store};
use terrace_objects::tag::Tag;

/// Shortest part, except the last.
const PART_BYTES_MIN: u64 = 5 << 20;
/// Longest object.
const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// How often completing is retried because a part arrived meanwhile.
const ATTEMPTS: usize = 64;

/// The request of a client.
struct Asked {
    key: String,
    upload_id: String,
    parts: Vec<CompletedPart>,
    requirement: Requirement,
    /// In the order of [`Algorithm::ALL`].
    checksums: digest::Declared,
    kind: Option<String>,
    length: Option<i64>,
}

/// CompleteMultipartUpload
pub async fn complete(
    gateway: &Arc<Gateway>,
    request: S3Request<CompleteMultipartUploadInput>,
) -> Answered<CompleteMultipartUploadOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let permit = gateway.permit(by, Action::Write, &request.input.bucket)?;
    let mut input = request.input;
    let location = said::location(&request.extensions, &request.headers, &input.bucket, &input.key);
    let asked = Asked {
        key: input.key.clone(),
        upload_id: input.upload_id,
        parts: input
            .multipart_upload
            .and_then(|upload| upload.parts)
            .unwrap_or_default(),
        requirement: requirement(
            || reading(gateway, by, permit.bucket(), &input.key, None),
            input.if_match.map(tag),
            input.if_none_match.map(tag),
        )?,
        checksums: declared_fields!(input),
        kind: input.checksum_type.map(|kind| kind.as_str().to_owned()),
        length: input.mpu_object_size,
    };
    check_order(&asked.parts)?;
    let held = Arc::clone(permit.bucket());
    let completed = gateway
        .run_in_turn(&held, &input.key, move |gateway, store| {
            commit_object(gateway, store, &permit, &asked)
        })
        .await?;
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        location: Some(location),
        e_tag: Some(ETag::Strong(completed.etag)),
        expiration: completed.expiration.and_then(said::expiration),
        version_id: said::made(completed.version),
        ..CompleteMultipartUploadOutput::default()
    };
    match Told::of(&completed.attributes, None) {
        None | Some(Told::Customer(_)) => {}
        Some(Told::Master) => output.server_side_encryption = Some(ServerSideEncryption::from_static(AES256)),
        Some(Told::Kms { arn, bucket_key, .. }) => {
            output.server_side_encryption = Some(ServerSideEncryption::from_static(KMS));
            output.ssekms_key_id = Some(arn);
            output.bucket_key_enabled = bucket_key.then_some(true);
        }
    }
    set_checksums!(output, digest::stored(&completed.attributes));
    output.checksum_type = digest::stored(&completed.attributes).checksum_type;
    Ok(S3Response::new(output))
}

fn check_order(parts: &[CompletedPart]) -> S3Result {
    if parts.is_empty() || parts.len() > manifest::PARTS_MAX {
        return Err(errors::malformed_xml());
    }
    let rising = parts.windows(2).all(|pair| pair[0].part_number < pair[1].part_number);
    if !rising || parts.iter().any(|part| part.part_number.is_none()) {
        return Err(s3_error!(
            InvalidPartOrder,
            "The list of parts was not in ascending order. The parts list must be specified in order by part number."
        ));
    }
    Ok(())
}

/// The completed object.
struct Completed {
    /// Entity tag without quotes.
    etag: String,
    attributes: Attributes,
    /// The version for the answer.
    version: Option<Name>,
    /// The expiry for the answer.
    expiration: Option<Expiration>,
}

fn commit_object(gateway: &Gateway, store: &Store, permit: &Permit, asked: &Asked) -> S3Result<Completed> {
    let bucket = permit.bucket();
    for _ in 0..ATTEMPTS {
        let upload = match Upload::find(store, &bucket.name, &asked.key, &asked.upload_id) {
            Err(error) => return completed_before(gateway, store, bucket, asked)?.ok_or(error),
            Ok(upload) => upload,
        };
        let chosen = choose(&parts_of(store, upload.id)?, asked, &upload)?;
        let now_ms = gateway.clock().now_ms();
        let (mut object, etag) = assemble(&upload, &chosen, asked, now_ms)?;
        if let Some(settings) = bucket.record().lock {
            settings.apply(&mut object.attributes, now_ms);
        }
        let also = |batch: &mut terrace::Batch| {
            batch.delete_if(&upload.record, Condition::VersionIs(upload.info.version));
        };
        let place = Place {
            store,
            durability: gateway.durability,
            permit,
            key: &asked.key,
        };
        match commit::change(place, &asked.requirement, Some(&object), &also).told()? {
            Outcome::Done(done) => {
                if done.garbage {
                    gateway.collector.wake();
                }
                tidy(store, upload.id, &chosen);
                let expiration = bucket.expiration(Subject {
                    key: &asked.key,
                    length: chosen.iter().map(|part| part.length).sum(),
                    tagging: record::tagging(&object.attributes),
                    written_ms: now_ms,
                });
                return Ok(Completed {
                    expiration,
                    etag,
                    attributes: object.attributes,
                    version: done.version,
                });
            }
            // A part arrived meanwhile, or another request completed or aborted the upload.
            Outcome::OtherCondition | Outcome::Nothing => {}
        }
    }
    Err(s3_error!(
        OperationAborted,
        "Parts of this upload keep arriving. Try again."
    ))
}

/// Answers a repeated request whose first answer was lost. `None` if the current object is not the
/// result of the upload.
///
/// # Errors
/// `InvalidPart` if the request lists other parts than those of the object.
fn completed_before(
    gateway: &Gateway,
    store: &Store,
    bucket: &Arc<Bucket>,
    asked: &Asked,
) -> S3Result<Option<Completed>> {
    let Some(id) = Id::parse(&asked.upload_id) else {
        return Ok(None);
    };
    let object = keyspace::object(&bucket.name, &asked.key);
    // A caller that may complete the upload gets the result, but not the contents.
    let claim = Claim::of_system(bucket);
    let opened = read::open(store, &ReadOptions::default(), &gateway.collector, &object, &claim).told()?;
    let Some(opened) = opened.filter(|opened| opened.facts.values == Some(id)) else {
        return Ok(None);
    };
    let numbers = opened.parts.iter().flatten().map(|part| Some(i32::from(part.number)));
    let tags = asked.parts.iter().map(|part| Tag::parse(part.e_tag.as_ref()?.value()));
    let etag = tags
        .collect::<Option<Vec<_>>>()
        .map(|tags| digest::multipart_etag(&tags));
    if !numbers.eq(asked.parts.iter().map(|part| part.part_number)) || etag.as_ref() != Some(&opened.facts.etag) {
        return Err(invalid_part());
    }
    let facts = opened.facts.clone();
    Ok(Some(Completed {
        version: (bucket.versioning() != Versioning::Never).then(|| Name::of(&facts)),
        expiration: bucket.expiration(Subject::of(&asked.key, &facts)),
        etag: facts.etag,
        attributes: facts.attributes,
    }))
}

fn invalid_part() -> S3Error {
    s3_error!(
        InvalidPart,
        "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag."
    )
}

/// The parts of an upload, by number.
fn parts_of(store: &Store, id: Id) -> S3Result<BTreeMap<u16, PartRecord>> {
    let prefix = keyspace::parts(id);
    let fail = |error| errors::of_engine(&error, &prefix);
    let mut parts = BTreeMap::new();
    for item in store.scan(ScanRange::prefix(&prefix)).map_err(fail)? {
        let item = item.map_err(fail)?;
        let part = PartRecord::read(&item.key, &item.info).told()?;
        parts.insert(part.number, part);
    }
    Ok(parts)
}

/// The parts that the client lists.
fn choose(parts: &BTreeMap<u16, PartRecord>, asked: &Asked, upload: &Upload) -> S3Result<Vec<PartRecord>> {
    let mut chosen = Vec::with_capacity(asked.parts.len());
    for listed in &asked.parts {
        let number = listed.part_number.and_then(|number| u16::try_from(number).ok());
        let part = number.and_then(|number| parts.get(&number)).ok_or_else(invalid_part)?;
        if listed.e_tag.as_ref().is_none_or(|tag| tag.value() != part.tag.text()) {
            return Err(invalid_part());
        }
        check_part_checksums(listed, part, upload)?;
        chosen.push(part.clone());
    }
    let (_, but_last) = chosen.split_last().ok_or_else(no_such_upload)?;
    if but_last.iter().any(|part| part.length < PART_BYTES_MIN) {
        return Err(s3_error!(
            EntityTooSmall,
            "Your proposed upload is smaller than the minimum allowed object size."
        ));
    }
    let length: u64 = chosen.iter().map(|part| part.length).sum();
    if length > OBJECT_BYTES_MAX {
        return Err(s3_error!(
            EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed object size."
        ));
    }
    if asked.length.is_some_and(|said| u64::try_from(said) != Ok(length)) {
        return Err(s3_error!(
            InvalidRequest,
            "The provided 'x-amz-mp-object-size' header does not match what was computed."
        ));
    }
    Ok(chosen)
}

fn check_part_checksums(listed: &CompletedPart, part: &PartRecord, upload: &Upload) -> S3Result {
    let fields = [
        &listed.checksum_crc32,
        &listed.checksum_crc32c,
        &listed.checksum_crc64nvme,
        &listed.checksum_sha1,
        &listed.checksum_sha256,
    ];
    for (algorithm, said) in Algorithm::ALL.into_iter().zip(fields) {
        let is_needed = upload.is_chosen && upload.kind == Kind::Composite && upload.algorithm == algorithm;
        let Some(said) = said else {
            if !is_needed {
                continue;
            }
            return Err(s3_error!(
                InvalidRequest,
                "The upload was created using a {} checksum. The complete request must include the checksum for each \
                 part. It was missing for part {} in the request.",
                algorithm.name().to_ascii_lowercase(),
                part.number
            ));
        };
        let matches = part.attributes.get_str(algorithm.header()) == Some(said.as_str());
        // A part without this checksum cannot be compared.
        let is_known = part.attributes.get(algorithm.header()).is_some();
        if !matches && (is_known || upload.is_chosen) {
            return Err(s3_error!(
                InvalidPart,
                "One or more of the specified parts could not be found. The checksum of part {} does not match.",
                part.number
            ));
        }
    }
    Ok(())
}

/// The object made of the parts.
fn assemble(upload: &Upload, chosen: &[PartRecord], asked: &Asked, now_ms: u64) -> S3Result<(NewObject, String)> {
    let parts: Vec<_> = chosen
        .iter()
        .map(|part| Part {
            number: part.number,
            nonce: part.nonce,
            length: part.length,
            salt: part.salt,
            checksum: part.checksum(upload.algorithm),
        })
        .collect();
    let tags: Vec<_> = chosen.iter().map(|part| part.tag).collect();
    let etag = digest::multipart_etag(&tags);
    let mut attributes = upload.description();
    record::stamp(&mut attributes, &etag, now_ms);
    record::place(&mut attributes, upload.id, chosen.iter().map(|part| part.length).sum());
    let checksums: Option<Vec<_>> = chosen
        .iter()
        .map(|part| part.checksum(upload.algorithm).map(|checksum| (checksum, part.length)))
        .collect();
    let whole = checksums.and_then(|checksums| digest::multipart_checksum(upload.algorithm, upload.kind, &checksums));
    if let Some(text) = &whole {
        attributes.set(upload.algorithm.header(), text);
        if upload.kind == Kind::Composite {
            attributes.set(KIND_ATTRIBUTE, upload.kind.name());
        }
    }
    check_whole(upload, whole.as_deref(), asked)?;
    // The list has checksums of parts only if the object's is made of them.
    let of_parts = (upload.kind == Kind::Composite || upload.is_chosen).then_some(upload.algorithm);
    let value = manifest::encode(&parts, of_parts).into();
    Ok((NewObject { value, attributes }, etag))
}

/// Compares with the client's checksum of the whole object.
fn check_whole(upload: &Upload, whole: Option<&str>, asked: &Asked) -> S3Result {
    if asked.kind.as_deref().is_some_and(|kind| kind != upload.kind.name()) && upload.is_chosen {
        return Err(s3_error!(
            InvalidRequest,
            "The upload was created using the {} checksum mode. The complete request must use the same checksum mode.",
            upload.kind.name()
        ));
    }
    for (algorithm, said) in Algorithm::ALL.into_iter().zip(&asked.checksums) {
        let Some(said) = said else { continue };
        Checksum::parse(algorithm, said.split_once('-').map_or(said, |(bare, _)| bare)).map_err(errors::of_wrong)?;
        // A composite checksum may lack the number of parts.
        let bare = whole.map(|whole| whole.rsplit_once('-').map_or(whole, |(bare, _)| bare));
        let matches = algorithm == upload.algorithm && (whole == Some(said) || bare == Some(said));
        if !matches {
            return Err(s3_error!(
                BadDigest,
                "The {} you specified did not match the calculated checksum.",
                algorithm.name()
            ));
        }
    }
    Ok(())
}

/// Deletes the rest of the upload: records of parts, and values of parts that the object does not
/// list. Remains are deleted with the object.
fn tidy(store: &Store, id: Id, chosen: &[PartRecord]) {
    let needed: std::collections::HashSet<_> = chosen
        .iter()
        .map(|part| keyspace::value(id, part.number, part.nonce))
        .collect();
    let outcome = collector::delete_range(store, &keyspace::parts(id), |_| true)
        .and_then(|()| collector::delete_range(store, &keyspace::values(id), |key| !needed.contains(key)));
    if let Err(error) = outcome {
        tracing::warn!(%error, %id, "what a completed upload left over could not be deleted");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{Choices, bucket::Buckets, read};
    use terrace::{Batch, Durability, Options};

    fn part(number: u16, length: u64) -> PartRecord {
        PartRecord {
            number,
            nonce: u32::from(number) * 7,
            length,
            salt: None,
            tag: Tag::of_md5([number.to_le_bytes()[0]; 16]),
            modified_ms: 0,
            attributes: Attributes::new(),
        }
    }

    fn asked(id: Id, parts: impl Iterator<Item = PartRecord>) -> Asked {
        let listed = parts.map(|part| CompletedPart {
            e_tag: Some(ETag::Strong(part.tag.text())),
            part_number: Some(i32::from(part.number)),
            ..CompletedPart::default()
        });
        Asked {
            key: "k".to_owned(),
            upload_id: id.to_string(),
            parts: listed.collect(),
            requirement: Requirement::default(),
            checksums: digest::Declared::default(),
            kind: None,
            length: None,
        }
    }

    fn code<T>(result: S3Result<T>) -> String {
        result.err().unwrap().code().as_str().to_owned()
    }

    /// The maximum number of parts, of which one was sent twice and one is not listed.
    #[test]
    fn ten_thousand_parts() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        Buckets::load(&store)
            .unwrap()
            .create(&store, "abc", Default::default())
            .unwrap();
        let gateway = Gateway::open(&store, Durability::Buffered, Choices::default()).unwrap();
        let permit = Claim::of_system(&gateway.buckets.get("abc").unwrap())
            .on_bucket()
            .unwrap();
        let id = Id::new(&terrace::Clock::default());
        store.put(keyspace::upload("abc", "k", id), "").unwrap();
        let mut batch = Batch::new();
        for number in 1..=10_000 {
            let part = part(number, PART_BYTES_MIN + u64::from(number));
            batch.put_with(keyspace::part(id, number), "", part.to_attributes(), Condition::None);
            batch.put(keyspace::value(id, number, part.nonce), "its bytes");
            if number % 500 == 0 {
                store.write(std::mem::take(&mut batch), Durability::Buffered).unwrap();
            }
        }
        store.put(keyspace::value(id, 5, 1), "sent before").unwrap();
        let listed = (1..=10_000)
            .filter(|number| *number != 77)
            .map(|number| part(number, 0));
        let asked = asked(id, listed);
        check_order(&asked.parts).unwrap();
        let etag = commit_object(&gateway, &store, &permit, &asked).unwrap().etag;
        assert!(etag.ends_with("-9999"));
        let opened = read::open(
            &store,
            &ReadOptions::default(),
            &gateway.collector,
            b"abc/k",
            &Claim::of_operator(),
        )
        .unwrap()
        .unwrap();
        let parts = opened.parts.unwrap();
        assert_eq!((parts.len(), parts[76].number), (9999, 78));
        let whole: u64 = (1..=10_000)
            .filter(|number| *number != 77)
            .map(|number| PART_BYTES_MIN + number)
            .sum();
        assert_eq!(opened.facts.length, whole);
        let count = |prefix: &[u8]| store.scan(ScanRange::prefix(prefix)).unwrap().count();
        assert_eq!(count(&keyspace::values(id)), 9999, "what is not listed is deleted");
        assert_eq!(count(&keyspace::parts(id)) + count(&keyspace::uploads("abc")), 0);
        let again = commit_object(&gateway, &store, &permit, &asked).unwrap();
        assert_eq!(again.etag, etag, "asked again, the same answer");
        // Regression: a repeated request with another list was answered as if the object was made
        // of it.
        let mut shorter = self::asked(id, (1..=9_000).map(|number| part(number, 0)));
        assert_eq!(code(commit_object(&gateway, &store, &permit, &shorter)), "InvalidPart");
        shorter.parts = asked.parts.clone();
        shorter.parts[3].e_tag = shorter.parts[4].e_tag.clone();
        assert_eq!(code(commit_object(&gateway, &store, &permit, &shorter)), "InvalidPart");
        shorter.parts = asked.parts.clone();
        shorter.parts[9_998].part_number = Some(9_999);
        assert_eq!(code(commit_object(&gateway, &store, &permit, &shorter)), "InvalidPart");
        store.delete("abc/k").unwrap();
        assert_eq!(code(commit_object(&gateway, &store, &permit, &asked)), "NoSuchUpload");
    }

    #[test]
    fn lists_that_are_wrong() {
        let id = Id::new(&terrace::Clock::default());
        let order = |numbers: &[u16]| check_order(&asked(id, numbers.iter().map(|number| part(*number, 0))).parts);
        assert!(order(&[1, 2, 10_000]).is_ok());
        assert_eq!(code(order(&[])), "MalformedXML");
        assert_eq!(code(order(&[2, 1])), "InvalidPartOrder");
        assert_eq!(code(order(&[1, 1])), "InvalidPartOrder");
    }
}
