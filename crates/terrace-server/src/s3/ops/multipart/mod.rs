//! Multipart uploads.
//!
//! An upload is a record; each part is a value of its own and a record that names it. Completing
//! writes the object, whose value lists the parts, and deletes the upload in one commit: no byte of
//! a part is moved, and the cost is linear in the number of parts. Registering a part rewrites the
//! upload's record, and completing requires that the record has not changed since the parts were
//! read; so a part that is sent again meanwhile is either in the object or refused, never half. A
//! completed or aborted upload accepts no parts, because its record is gone.

pub mod complete;
pub mod listings;
pub mod parts;

use super::{Answered, check_key, objects, said};
use crate::{
    description, encryption, locking,
    s3::{
        Gateway,
        crypt::{self, DataKey, Sealing, request::CustomerKey},
        digest::{Algorithm, Kind},
        errors::{self, Told as _},
        keyspace::{self, Id},
        kms::Caller,
        manifest::PARTS_MAX,
        record::Facts,
        secrets::Secrets,
    },
    set_encryption_of_new,
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType,
        CreateMultipartUploadInput, CreateMultipartUploadOutput,
    },
    s3_error,
};
use std::sync::Arc;
use terrace::{Attributes, Batch, Condition, Error, ObjectInfo, PutOptions, Store};
pub use terrace_objects::part::PartRecord;
use terrace_objects::{error::ObjectError, upload::UploadRecord};

/// An upload that is neither completed nor aborted.
#[derive(Debug, Clone)]
pub struct Upload {
    /// The key of its record.
    pub record: Vec<u8>,
    /// Its ID, and that of its values.
    pub id: Id,
    /// The record.
    pub info: ObjectInfo,
    /// The checksum algorithm of its parts.
    pub algorithm: Algorithm,
    /// Whether the client chose it.
    pub is_chosen: bool,
    /// The kind of the object's checksum.
    pub kind: Kind,
}

/// The upload was completed or aborted, or never existed.
pub fn no_such_upload() -> s3s::S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
    )
}

impl Upload {
    /// Finds an upload. Blocks.
    ///
    /// # Errors
    /// `NoSuchUpload`, errors of the store.
    pub fn find(store: &Store, bucket: &str, key: &str, id: &str) -> S3Result<Self> {
        let id = Id::parse(id).ok_or_else(no_such_upload)?;
        let record = keyspace::upload(bucket, key, id);
        let info = store
            .head(&record)
            .map_err(|error| errors::of_engine(&error, &record))?;
        let info = info.ok_or_else(no_such_upload)?;
        let UploadRecord {
            algorithm,
            kind,
            is_chosen,
        } = UploadRecord::read(&info.attributes);
        Ok(Self {
            is_chosen,
            record,
            id,
            algorithm,
            kind,
            info,
        })
    }

    /// The encryption of the parts, if there is one, for a client that gives this key, or none.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not the key with which the upload was begun.
    pub fn data_key(
        &self,
        secrets: &Secrets,
        customer: Option<&CustomerKey>,
        caller: impl FnOnce() -> Caller,
    ) -> S3Result<Option<DataKey>> {
        let facts = Facts::of(&self.info);
        let needs_key = facts.encryption == Some(crypt::Encryption::Customer);
        if needs_key && customer.is_none() {
            return Err(s3_error!(
                InvalidRequest,
                "The multipart upload initiate requested encryption. Subsequent part requests must include the appropriate encryption parameters."
            ));
        }
        if !needs_key && customer.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "The multipart upload initiate did not request encryption with a key of the client. Please resend the request without sending encryption parameters."
            ));
        }
        let name = keyspace::object_of(&self.record);
        crypt::unlock(&facts, name, secrets, customer, caller).map_err(|error| match error {
            ObjectError::Denied => s3_error!(
                InvalidRequest,
                "The provided encryption parameters did not match the ones used originally."
            ),
            error => errors::of_object(error),
        })
    }

    /// The client's description of the object, without the attributes that only uploads have.
    pub fn description(&self) -> Attributes {
        UploadRecord::description(&self.info.attributes)
    }
}

/// Checks the number of a part.
///
/// # Errors
/// `InvalidArgument`
pub fn part_number(number: i32) -> S3Result<u16> {
    let number = u16::try_from(number)
        .ok()
        .filter(|number| (1..=PARTS_MAX).contains(&usize::from(*number)));
    number.ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "Part number must be an integer between 1 and {PARTS_MAX}, inclusive"
        )
    })
}

/// CreateMultipartUpload
pub async fn create(
    gateway: &Arc<Gateway>,
    request: S3Request<CreateMultipartUploadInput>,
) -> Answered<CreateMultipartUploadOutput> {
    let mut input = request.input;
    check_key(&input.key)?;
    let bucket = gateway.bucket(&input.bucket)?;
    let chosen = objects::asked_algorithm(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()))?;
    let chosen = chosen.first().copied();
    let asked_kind = input.checksum_type.as_ref().map(|kind| kind.as_str().to_owned());
    if chosen.is_none() && asked_kind.is_some() {
        return Err(s3_error!(
            InvalidRequest,
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header."
        ));
    }
    let algorithm = chosen.unwrap_or(Algorithm::Crc64Nvme);
    let kind = algorithm.kind(asked_kind.as_deref()).map_err(errors::of_wrong)?;
    let by = (&request.extensions, request.credentials.as_ref());
    let description = objects::checked_description(gateway, by, &bucket, description!(input), locking!(input))?;
    let said = UploadRecord {
        algorithm,
        kind,
        is_chosen: chosen.is_some(),
    };
    let sealing = encryption!(input).sealing_by(gateway, by, &bucket).await?;
    let told = sealing.as_ref().map(Sealing::told);
    let id = Id::new(gateway.clock());
    let record = keyspace::upload(&bucket.name, &input.key, id);
    let (abort_date, abort_rule_id) = said::abortion(&bucket, &input.key, id);
    let mut options = PutOptions {
        attributes: said.to_attributes(description),
        durability: gateway.durability,
        condition: Condition::Absent,
        ..PutOptions::default()
    };
    gateway
        .run(move |_, store| {
            // In the order of all commits: the key before the bucket.
            let held = sealing.as_ref().map(Sealing::hold);
            let _entered = bucket.enter().told()?;
            if let Some((sealing, held)) = sealing.as_ref().zip(held.as_ref()) {
                let sealed = sealing.wrapped(held, keyspace::object_of(&record)).told()?;
                options.attributes.set(crypt::ENCRYPTION, sealed.encode());
                sealing.describe(&mut options.attributes);
            }
            let put = store.put_with(&record, "", &options);
            put.map_err(|error| errors::of_engine(&error, &record)).map(|_| ())
        })
        .await?;
    let mut output = CreateMultipartUploadOutput {
        abort_date,
        abort_rule_id,
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id.to_string()),
        checksum_algorithm: Some(ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: Some(ChecksumType::from_static(kind.name())),
        ..CreateMultipartUploadOutput::default()
    };
    set_encryption_of_new!(output, told);
    Ok(S3Response::new(output))
}

/// AbortMultipartUpload
pub async fn abort(
    gateway: &Arc<Gateway>,
    request: S3Request<AbortMultipartUploadInput>,
) -> Answered<AbortMultipartUploadOutput> {
    let input = request.input;
    let bucket = gateway.bucket(&input.bucket)?;
    gateway
        .run(move |gateway, store| {
            let upload = Upload::find(store, &bucket.name, &input.key, &input.upload_id)?;
            let mut batch = Batch::new();
            batch
                .delete_if(&upload.record, Condition::Present)
                .put(keyspace::garbage(upload.id), "");
            match store.write(batch, gateway.durability) {
                Ok(_) => {
                    gateway.collector.wake();
                    Ok(())
                }
                Err(Error::ConditionFailed { .. }) => Err(no_such_upload()),
                Err(error) => Err(errors::of_engine(&error, &upload.record)),
            }
        })
        .await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}
