//! The operations of S3, as `s3s` calls them. Others answer `NotImplemented`.

use super::{
    Gateway,
    exchange::note_begun,
    ops::{
        self, Answered, acl, attributes, buckets, configure, copy, delete, encryption, lifecycle, listings, lock,
        logging, multipart, notifications, objects, ownership, tagging, website,
    },
};
use s3s::{S3, S3Request, dto};
use std::sync::Arc;

/// The service.
pub struct Service(pub Arc<Gateway>);

/// One method per operation: the trait's name, the protocol's name, and the function, which is
/// called only if the bucket is still the one for which access was granted.
macro_rules! operations {
    ($service:ident: $($method:ident $input:ident -> $output:ident = |$request:ident| $call:expr;)*) => {
        #[async_trait::async_trait]
        impl S3 for Service {
            $(async fn $method(&self, $request: S3Request<dto::$input>) -> Answered<dto::$output> {
                let $service = &self.0;
                note_begun();
                $service.is_as_judged(&$request.extensions)?;
                $call
            })*
        }
    };
}

operations! { gateway:
    list_buckets ListBucketsInput -> ListBucketsOutput = |request| buckets::list(gateway, request);
    create_bucket CreateBucketInput -> CreateBucketOutput = |request| buckets::create(gateway, request).await;
    head_bucket HeadBucketInput -> HeadBucketOutput = |request| buckets::head(gateway, &request);
    delete_bucket DeleteBucketInput -> DeleteBucketOutput = |request| buckets::delete(gateway, request).await;
    get_bucket_location GetBucketLocationInput -> GetBucketLocationOutput = |request| buckets::location(gateway, &request);
    get_bucket_accelerate_configuration GetBucketAccelerateConfigurationInput -> GetBucketAccelerateConfigurationOutput = |request| buckets::acceleration(gateway, &request);
    get_bucket_request_payment GetBucketRequestPaymentInput -> GetBucketRequestPaymentOutput = |request| buckets::payer(gateway, &request);
    put_bucket_request_payment PutBucketRequestPaymentInput -> PutBucketRequestPaymentOutput = |request| buckets::set_payer(gateway, request).await;
    get_bucket_replication GetBucketReplicationInput -> GetBucketReplicationOutput = |request| buckets::replication(gateway, &request);
    delete_bucket_replication DeleteBucketReplicationInput -> DeleteBucketReplicationOutput = |request| buckets::delete_replication(gateway, &request);
    get_bucket_versioning GetBucketVersioningInput -> GetBucketVersioningOutput = |request| buckets::versioning(gateway, &request);
    put_bucket_versioning PutBucketVersioningInput -> PutBucketVersioningOutput = |request| buckets::set_versioning(gateway, request).await;
    put_object PutObjectInput -> PutObjectOutput = |request| objects::put(gateway, request).await;
    get_object GetObjectInput -> GetObjectOutput = |request| objects::get(gateway, request).await;
    head_object HeadObjectInput -> HeadObjectOutput = |request| objects::head(gateway, request).await;
    delete_object DeleteObjectInput -> DeleteObjectOutput = |request| delete::delete(gateway, request).await;
    delete_objects DeleteObjectsInput -> DeleteObjectsOutput = |request| delete::delete_many(gateway, request).await;
    copy_object CopyObjectInput -> CopyObjectOutput = |request| copy::object(gateway, request).await;
    get_object_attributes GetObjectAttributesInput -> GetObjectAttributesOutput = |request| attributes::get(gateway, request).await;
    list_objects ListObjectsInput -> ListObjectsOutput = |request| listings::first(gateway, request).await;
    list_objects_v2 ListObjectsV2Input -> ListObjectsV2Output = |request| listings::second(gateway, request).await;
    list_object_versions ListObjectVersionsInput -> ListObjectVersionsOutput = |request| listings::versions(gateway, request).await;
    create_multipart_upload CreateMultipartUploadInput -> CreateMultipartUploadOutput = |request| multipart::create(gateway, request).await;
    upload_part UploadPartInput -> UploadPartOutput = |request| multipart::parts::put(gateway, request).await;
    upload_part_copy UploadPartCopyInput -> UploadPartCopyOutput = |request| multipart::parts::copy(gateway, request).await;
    list_parts ListPartsInput -> ListPartsOutput = |request| multipart::listings::parts(gateway, request).await;
    list_multipart_uploads ListMultipartUploadsInput -> ListMultipartUploadsOutput = |request| multipart::listings::uploads(gateway, request).await;
    complete_multipart_upload CompleteMultipartUploadInput -> CompleteMultipartUploadOutput = |request| multipart::complete::complete(gateway, request).await;
    abort_multipart_upload AbortMultipartUploadInput -> AbortMultipartUploadOutput = |request| multipart::abort(gateway, request).await;
    get_object_tagging GetObjectTaggingInput -> GetObjectTaggingOutput = |request| tagging::get(gateway, request).await;
    put_object_tagging PutObjectTaggingInput -> PutObjectTaggingOutput = |request| tagging::put(gateway, request).await;
    delete_object_tagging DeleteObjectTaggingInput -> DeleteObjectTaggingOutput = |request| tagging::delete(gateway, request).await;
    get_bucket_tagging GetBucketTaggingInput -> GetBucketTaggingOutput = |request| tagging::get_of_bucket(gateway, &request);
    put_bucket_tagging PutBucketTaggingInput -> PutBucketTaggingOutput = |request| tagging::put_of_bucket(gateway, request).await;
    delete_bucket_tagging DeleteBucketTaggingInput -> DeleteBucketTaggingOutput = |request| ops::set(gateway, request.input.bucket, |record| record.tags.clear()).await;
    get_bucket_cors GetBucketCorsInput -> GetBucketCorsOutput = |request| configure::get_cors(gateway, &request);
    put_bucket_cors PutBucketCorsInput -> PutBucketCorsOutput = |request| configure::put_cors(gateway, request).await;
    delete_bucket_cors DeleteBucketCorsInput -> DeleteBucketCorsOutput = |request| ops::set(gateway, request.input.bucket, |record| record.cors.clear()).await;
    get_bucket_encryption GetBucketEncryptionInput -> GetBucketEncryptionOutput = |request| encryption::get(gateway, &request);
    put_bucket_encryption PutBucketEncryptionInput -> PutBucketEncryptionOutput = |request| encryption::put(gateway, request).await;
    delete_bucket_encryption DeleteBucketEncryptionInput -> DeleteBucketEncryptionOutput = |request| ops::set(gateway, request.input.bucket, |record| record.encryption = None).await;
    get_bucket_policy GetBucketPolicyInput -> GetBucketPolicyOutput = |request| configure::get_policy(gateway, &request);
    get_bucket_policy_status GetBucketPolicyStatusInput -> GetBucketPolicyStatusOutput = |request| configure::policy_status(gateway, &request);
    put_bucket_policy PutBucketPolicyInput -> PutBucketPolicyOutput = |request| configure::put_policy(gateway, request).await;
    delete_bucket_policy DeleteBucketPolicyInput -> DeleteBucketPolicyOutput = |request| configure::delete_policy(gateway, request).await;
    get_bucket_lifecycle_configuration GetBucketLifecycleConfigurationInput -> GetBucketLifecycleConfigurationOutput = |request| lifecycle::get(gateway, &request);
    put_bucket_lifecycle_configuration PutBucketLifecycleConfigurationInput -> PutBucketLifecycleConfigurationOutput = |request| lifecycle::put(gateway, request).await;
    delete_bucket_lifecycle DeleteBucketLifecycleInput -> DeleteBucketLifecycleOutput = |request| lifecycle::delete(gateway, request).await;
    get_bucket_notification_configuration GetBucketNotificationConfigurationInput -> GetBucketNotificationConfigurationOutput = |request| notifications::get(gateway, &request);
    put_bucket_notification_configuration PutBucketNotificationConfigurationInput -> PutBucketNotificationConfigurationOutput = |request| notifications::put(gateway, request).await;
    get_bucket_website GetBucketWebsiteInput -> GetBucketWebsiteOutput = |request| website::get(gateway, &request);
    put_bucket_website PutBucketWebsiteInput -> PutBucketWebsiteOutput = |request| website::put(gateway, request).await;
    delete_bucket_website DeleteBucketWebsiteInput -> DeleteBucketWebsiteOutput = |request| ops::set(gateway, request.input.bucket, |record| record.website = None).await;
    get_bucket_logging GetBucketLoggingInput -> GetBucketLoggingOutput = |request| logging::get(gateway, &request);
    put_bucket_logging PutBucketLoggingInput -> PutBucketLoggingOutput = |request| logging::put(gateway, request).await;
    get_object_lock_configuration GetObjectLockConfigurationInput -> GetObjectLockConfigurationOutput = |request| lock::get_configuration(gateway, &request);
    put_object_lock_configuration PutObjectLockConfigurationInput -> PutObjectLockConfigurationOutput = |request| lock::put_configuration(gateway, request).await;
    get_object_retention GetObjectRetentionInput -> GetObjectRetentionOutput = |request| lock::get_retention(gateway, request).await;
    put_object_retention PutObjectRetentionInput -> PutObjectRetentionOutput = |request| lock::put_retention(gateway, request).await;
    get_object_legal_hold GetObjectLegalHoldInput -> GetObjectLegalHoldOutput = |request| lock::get_legal_hold(gateway, request).await;
    put_object_legal_hold PutObjectLegalHoldInput -> PutObjectLegalHoldOutput = |request| lock::put_legal_hold(gateway, request).await;
    get_bucket_acl GetBucketAclInput -> GetBucketAclOutput = |request| acl::bucket(gateway, &request);
    get_object_acl GetObjectAclInput -> GetObjectAclOutput = |request| acl::object(gateway, request).await;
    put_bucket_acl PutBucketAclInput -> PutBucketAclOutput = |request| acl::put_bucket(gateway, request).await;
    put_object_acl PutObjectAclInput -> PutObjectAclOutput = |request| acl::put_object(gateway, request).await;
    get_public_access_block GetPublicAccessBlockInput -> GetPublicAccessBlockOutput = |request| ownership::public_access_block(gateway, &request);
    put_public_access_block PutPublicAccessBlockInput -> PutPublicAccessBlockOutput = |request| ownership::put_public_access_block(gateway, request).await;
    delete_public_access_block DeletePublicAccessBlockInput -> DeletePublicAccessBlockOutput = |request| ops::set(gateway, request.input.bucket, ownership::no_public_access_block).await;
    get_bucket_ownership_controls GetBucketOwnershipControlsInput -> GetBucketOwnershipControlsOutput = |request| ownership::ownership_controls(gateway, &request);
    put_bucket_ownership_controls PutBucketOwnershipControlsInput -> PutBucketOwnershipControlsOutput = |request| ownership::put_ownership_controls(gateway, request).await;
    delete_bucket_ownership_controls DeleteBucketOwnershipControlsInput -> DeleteBucketOwnershipControlsOutput = |request| ops::set(gateway, request.input.bucket, ownership::no_ownership_controls).await;
}
