//! UploadPart, UploadPartCopy.

use super::{PartRecord, Upload, no_such_upload, part_number};
use crate::s3::ops::Answered;
use crate::{
    customer, declared_fields,
    s3::{
        Gateway,
        crypt::{Encryption, request::Told},
        digest::{self, Algorithm, Kind},
        errors::{self, Told as _},
        head::Head,
        keyspace,
        ops::{copy, objects, said},
        receive::{self, Incoming, Received, Stored, Target},
    },
    set_checksums, set_encryption, source_conditions, source_customer,
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{CopyPartResult, ETag, Range, UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput},
    s3_error,
};
use std::sync::Arc;
use terrace::{Attributes, Batch, Condition, Error, Store};

/// How often registering a part is retried because the same part was sent at the same time.
const ATTEMPTS: usize = 64;

/// UploadPart
pub async fn put(gateway: &Arc<Gateway>, request: S3Request<UploadPartInput>) -> Answered<UploadPartOutput> {
    let trailing = receive::trailing(&request);
    let mut input = request.input;
    let number = part_number(input.part_number)?;
    let customer = customer!(input).read()?;
    let upload = find(gateway, &input.bucket, &input.key, &input.upload_id).await?;
    let by = (&request.extensions, request.credentials.as_ref());
    let data_key = upload.data_key(&gateway.shared.secrets, customer.as_ref(), || gateway.kms_caller(by))?;
    let told = Told::of(&upload.info.attributes, customer.as_ref());
    let mut incoming = Incoming {
        sender: Head::of(&request.extensions)?.sender(),
        body: input.body.take(),
        length: receive::announced(&request.headers, input.content_length),
        md5: digest::content_md5(input.content_md5.as_deref())?,
        declared: digest::declared(declared_fields!(input))?,
        trailing,
        algorithms: objects::asked_algorithm(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()))?,
        data_key,
    };
    check_algorithm(&upload, &incoming)?;
    incoming.algorithms.push(upload.algorithm);
    let (received, _held) = receive::receive(gateway, incoming, Target::Part(upload.id, number)).await?;
    let Received::Stored(stored) = received else {
        return Err(s3s::S3ErrorCode::InternalError.into());
    };
    let part = gateway
        .run(move |gateway, store| register(gateway, store, &upload, stored))
        .await?;
    let mut output = UploadPartOutput {
        e_tag: Some(ETag::Strong(part.tag.text())),
        ..UploadPartOutput::default()
    };
    set_encryption!(output, told);
    set_checksums!(output, digest::stored(&part.attributes));
    Ok(S3Response::new(output))
}

/// A client that chose an algorithm for the upload must use it, and must send the checksum of each
/// part if the object's is made of them.
fn check_algorithm(upload: &Upload, incoming: &Incoming) -> S3Result {
    let declared = incoming.declared.as_ref().map(|checksum| checksum.algorithm);
    let used = declared.or(incoming.trailing.as_ref().map(|(algorithm, _)| *algorithm));
    let is_right = match used {
        Some(used) => used == upload.algorithm,
        None => upload.kind != Kind::Composite,
    };
    if is_right || !upload.is_chosen {
        return Ok(());
    }
    Err(s3_error!(
        InvalidRequest,
        "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
        upload.algorithm.name().to_ascii_lowercase(),
        used.map_or("null".to_owned(), |used| used.name().to_ascii_lowercase())
    ))
}

async fn find(gateway: &Arc<Gateway>, bucket: &str, key: &str, id: &str) -> S3Result<Upload> {
    let bucket = gateway.bucket(bucket)?;
    let (key, id) = (key.to_owned(), id.to_owned());
    gateway
        .run(move |_, store| Upload::find(store, &bucket.name, &key, &id))
        .await
}

/// UploadPartCopy
pub async fn copy(gateway: &Arc<Gateway>, request: S3Request<UploadPartCopyInput>) -> Answered<UploadPartCopyOutput> {
    let mut input = request.input;
    let number = part_number(input.part_number)?;
    let by = (&request.extensions, request.credentials.as_ref());
    let from = copy::source(
        gateway,
        by,
        &input.copy_source,
        input.expected_source_bucket_owner.as_deref(),
        source_customer!(input).read()?,
    )?;
    let customer = customer!(input).read()?;
    let upload = find(gateway, &input.bucket, &input.key, &input.upload_id).await?;
    let data_key = upload.data_key(&gateway.shared.secrets, customer.as_ref(), || gateway.kms_caller(by))?;
    let told = Told::of(&upload.info.attributes, customer.as_ref());
    let conditions = source_conditions!(input);
    let mut opened = copy::open(gateway, &from, conditions).await?;
    let range = match input.copy_source_range.as_deref() {
        None => 0..opened.facts.length,
        Some(text) => range_of(text, opened.facts.length)?,
    };
    let length = range.end - range.start;
    let copied = copy::source_version(&from, &opened);
    opened.seek(range).told()?;
    let target = (Target::Part(upload.id, number), data_key);
    let algorithms: [Algorithm; 1] = [upload.algorithm];
    let stored = copy::into_value(gateway, opened, length, target, &algorithms).await?;
    let part = gateway
        .run(move |gateway, store| register(gateway, store, &upload, stored))
        .await?;
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.tag.text())),
        last_modified: Some(said::second(part.modified_ms)),
        ..CopyPartResult::default()
    };
    set_checksums!(result, digest::stored(&part.attributes));
    let mut output = UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: copied,
        ..UploadPartCopyOutput::default()
    };
    set_encryption!(output, told);
    Ok(S3Response::new(output))
}

/// `bytes=FIRST-LAST`, both within the source.
fn range_of(text: &str, length: u64) -> S3Result<std::ops::Range<u64>> {
    let wrong = || {
        s3_error!(
            InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy"
        )
    };
    match Range::parse(text) {
        Ok(Range::Int {
            first,
            last: Some(last),
        }) if last < length => Ok(first..last + 1),
        Ok(Range::Int { last: Some(_), .. }) => Err(s3_error!(
            InvalidRange,
            "Range specified is not valid for source object of size: {length}"
        )),
        _ => Err(wrong()),
    }
}

/// Makes a value a part of an upload, replacing the previous one. Blocks.
fn register(gateway: &Gateway, store: &Store, upload: &Upload, stored: Stored) -> S3Result<PartRecord> {
    let mut attributes = Attributes::new();
    for checksum in &stored.computed.checksums {
        attributes.set(checksum.algorithm.header(), checksum.text());
    }
    let part = PartRecord {
        number: stored.part.number,
        nonce: stored.part.nonce,
        length: stored.part.length,
        salt: stored.part.salt,
        tag: stored.computed.tag,
        modified_ms: gateway.clock().now_ms(),
        attributes,
    };
    let record = keyspace::part(upload.id, part.number);
    let fail = |error: Error| errors::of_engine(&error, &record);
    let upload_text = String::from_utf8_lossy(&upload.record).into_owned();
    // The upload's encryption is written again below: its key must not be rewrapped meanwhile.
    let encryption = Encryption::of(&upload.info.attributes);
    let is_by_server = matches!(encryption, Some(Encryption::Master | Encryption::Kms));
    let _kept = is_by_server.then(|| gateway.shared.wrapping.read());
    let mut upload_attributes = upload.info.attributes.clone();
    if is_by_server {
        let now = store.head(&upload.record).map_err(fail)?;
        upload_attributes = now.ok_or_else(no_such_upload)?.attributes;
    }
    for _ in 0..ATTEMPTS {
        let former = store.head(&record).map_err(fail)?;
        let condition = former
            .as_ref()
            .map_or(Condition::Absent, |info| Condition::VersionIs(info.version));
        let mut batch = Batch::new();
        batch.put_with(&record, "", part.to_attributes(), condition);
        // Rewritten, so that no request completes the upload with the former part.
        batch.put_with(&upload.record, "", upload_attributes.clone(), Condition::Present);
        let value = keyspace::value(upload.id, part.number, part.nonce);
        batch.delete(keyspace::pending_part(&value));
        if let Some(info) = former {
            let former = PartRecord::read(&record, &info).told()?;
            batch.delete(keyspace::value(upload.id, former.number, former.nonce));
        }
        match store.write(batch, gateway.durability) {
            Ok(_) => {
                stored.unfinished.finished();
                return Ok(part);
            }
            Err(Error::ConditionFailed { key, .. }) if key == upload_text => return Err(no_such_upload()),
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Err(s3_error!(
        OperationAborted,
        "This part is being sent several times at once. Try again."
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_of_a_source() {
        assert_eq!(range_of("bytes=0-0", 10).unwrap(), 0..1);
        assert_eq!(range_of("bytes=2-9", 10).unwrap(), 2..10);
        for text in [
            "bytes=2-10",
            "bytes=2-",
            "bytes=-1",
            "2-3",
            "bytes=3-2",
            "bytes=a-b",
            "",
        ] {
            assert!(range_of(text, 10).is_err(), "{text}");
        }
    }
}
