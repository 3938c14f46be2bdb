//! Default encryption of a bucket's objects.

use super::{Answered, set};
use crate::s3::{
    Gateway,
    bucket::Encryption,
    crypt::request::{AES256, KMS, Method, check_method, have_kms_key, have_master_key},
    errors,
};
use s3s::{
    S3Request, S3Response,
    dto::{
        GetBucketEncryptionInput, GetBucketEncryptionOutput, PutBucketEncryptionInput, PutBucketEncryptionOutput,
        ServerSideEncryption, ServerSideEncryptionByDefault, ServerSideEncryptionConfiguration,
        ServerSideEncryptionRule,
    },
    s3_error,
};
use std::sync::Arc;

/// GetBucketEncryption
pub fn get(gateway: &Gateway, request: &S3Request<GetBucketEncryptionInput>) -> Answered<GetBucketEncryptionOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let encryption = record.encryption.clone().ok_or_else(errors::missing(
        "ServerSideEncryptionConfigurationNotFoundError",
        "The server side encryption configuration was not found",
    ))?;
    let algorithm = if encryption.kms_key.is_some() { KMS } else { AES256 };
    let rule = ServerSideEncryptionRule {
        apply_server_side_encryption_by_default: Some(ServerSideEncryptionByDefault {
            kms_master_key_id: encryption.kms_key.filter(|key| !key.is_empty()),
            sse_algorithm: ServerSideEncryption::from_static(algorithm),
        }),
        bucket_key_enabled: Some(encryption.bucket_key),
    };
    Ok(S3Response::new(GetBucketEncryptionOutput {
        server_side_encryption_configuration: Some(ServerSideEncryptionConfiguration { rules: vec![rule] }),
    }))
}

/// PutBucketEncryption
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketEncryptionInput>,
) -> Answered<PutBucketEncryptionOutput> {
    let input = request.input;
    let rules = input.server_side_encryption_configuration.rules;
    let [rule] = <[ServerSideEncryptionRule; 1]>::try_from(rules).map_err(|_| errors::malformed_xml())?;
    let default = rule
        .apply_server_side_encryption_by_default
        .ok_or_else(errors::malformed_xml)?;
    if default.kms_master_key_id.is_some() && default.sse_algorithm.as_str() == AES256 {
        return Err(s3_error!(
            InvalidArgument,
            "a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms or aws:kms:dsse"
        ));
    }
    let method = check_method(Some(default.sse_algorithm.as_str()), false).map_err(|error| match error.code() {
        s3s::S3ErrorCode::InvalidArgument => errors::malformed_xml(),
        _ => error,
    })?;
    let kms_key = default.kms_master_key_id.unwrap_or_default();
    let kms_key = (method == Some(Method::Kms)).then_some(kms_key);
    match &kms_key {
        None => have_master_key(gateway).await?,
        Some(key) => have_kms_key(gateway, key).await?,
    }
    let encryption = Encryption {
        bucket_key: rule.bucket_key_enabled.unwrap_or(false),
        kms_key,
    };
    set(gateway, input.bucket, |record| record.encryption = Some(encryption)).await
}
