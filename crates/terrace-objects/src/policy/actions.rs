//! The actions of policies ("Actions defined by Amazon S3" in the service authorization reference),
//! and the action of each operation.

/// Actions on buckets.
pub const OF_BUCKETS: [&str; 50] = [
    "s3:CreateBucket",
    "s3:DeleteBucket",
    "s3:DeleteBucketPolicy",
    "s3:DeleteBucketWebsite",
    "s3:GetAccelerateConfiguration",
    "s3:GetAnalyticsConfiguration",
    "s3:GetBucketAcl",
    "s3:GetBucketCORS",
    "s3:GetBucketLocation",
    "s3:GetBucketLogging",
    "s3:GetBucketNotification",
    "s3:GetBucketObjectLockConfiguration",
    "s3:GetBucketOwnershipControls",
    "s3:GetBucketPolicy",
    "s3:GetBucketPolicyStatus",
    "s3:GetBucketPublicAccessBlock",
    "s3:GetBucketRequestPayment",
    "s3:GetBucketTagging",
    "s3:GetBucketVersioning",
    "s3:GetBucketWebsite",
    "s3:GetEncryptionConfiguration",
    "s3:GetIntelligentTieringConfiguration",
    "s3:GetInventoryConfiguration",
    "s3:GetLifecycleConfiguration",
    "s3:GetMetricsConfiguration",
    "s3:GetReplicationConfiguration",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:ListBucketVersions",
    "s3:PutAccelerateConfiguration",
    "s3:PutAnalyticsConfiguration",
    "s3:PutBucketAcl",
    "s3:PutBucketCORS",
    "s3:PutBucketLogging",
    "s3:PutBucketNotification",
    "s3:PutBucketObjectLockConfiguration",
    "s3:PutBucketOwnershipControls",
    "s3:PutBucketPolicy",
    "s3:PutBucketPublicAccessBlock",
    "s3:PutBucketRequestPayment",
    "s3:PutBucketTagging",
    "s3:PutBucketVersioning",
    "s3:PutBucketWebsite",
    "s3:PutEncryptionConfiguration",
    "s3:PutIntelligentTieringConfiguration",
    "s3:PutInventoryConfiguration",
    "s3:PutLifecycleConfiguration",
    "s3:PutMetricsConfiguration",
    "s3:PutReplicationConfiguration",
    "s3:ListAllMyBuckets",
];

/// Actions on objects.
pub const OF_OBJECTS: [&str; 32] = [
    "s3:AbortMultipartUpload",
    "s3:BypassGovernanceRetention",
    "s3:DeleteObject",
    "s3:DeleteObjectTagging",
    "s3:DeleteObjectVersion",
    "s3:DeleteObjectVersionTagging",
    "s3:GetObject",
    "s3:GetObjectAcl",
    "s3:GetObjectAttributes",
    "s3:GetObjectLegalHold",
    "s3:GetObjectRetention",
    "s3:GetObjectTagging",
    "s3:GetObjectTorrent",
    "s3:GetObjectVersion",
    "s3:GetObjectVersionAcl",
    "s3:GetObjectVersionAttributes",
    "s3:GetObjectVersionTagging",
    "s3:GetObjectVersionTorrent",
    "s3:ListMultipartUploadParts",
    "s3:ObjectOwnerOverrideToBucketOwner",
    "s3:PutObject",
    "s3:PutObjectAcl",
    "s3:PutObjectLegalHold",
    "s3:PutObjectRetention",
    "s3:PutObjectTagging",
    "s3:PutObjectVersionAcl",
    "s3:PutObjectVersionTagging",
    "s3:ReplicateDelete",
    "s3:ReplicateObject",
    "s3:ReplicateTags",
    "s3:RestoreObject",
    "s3:InitiateReplication",
];

/// Prefix of condition keys for an object's tags.
pub const OBJECT_TAGS: &str = "s3:existingobjecttag/";
/// Prefix of condition keys for the tags in a request.
pub const REQUEST_TAGS: &str = "s3:requestobjecttag";
/// Prefix of condition keys for the lock in a request.
pub const REQUEST_LOCKS: &str = "s3:object-lock-";

/// Condition key: whether a [`PUT`] operation creates an object.
pub const CREATION: &str = "s3:objectcreationoperation";
/// The action of operations that write objects, in one step or several.
pub const PUT: &str = "s3:PutObject";

/// Actions on existing objects, which policies may decide by tags.
const ON_TAGGED: [&str; 13] = [
    "s3:DeleteObjectTagging",
    "s3:DeleteObjectVersionTagging",
    "s3:GetObject",
    "s3:GetObjectAcl",
    "s3:GetObjectAttributes",
    "s3:GetObjectTagging",
    "s3:GetObjectVersion",
    "s3:GetObjectVersionAcl",
    "s3:GetObjectVersionTagging",
    "s3:PutObjectAcl",
    "s3:PutObjectTagging",
    "s3:PutObjectVersionAcl",
    "s3:PutObjectVersionTagging",
];
/// Actions that can lock or unlock a version.
const LOCKING: [&str; 4] = [
    "s3:BypassGovernanceRetention",
    "s3:PutObject",
    "s3:PutObjectLegalHold",
    "s3:PutObjectRetention",
];

/// The actions to which a condition key applies; `None` if to all.
pub fn with_key(key: &str) -> Option<&'static [&'static str]> {
    if key.starts_with(OBJECT_TAGS) {
        return Some(&ON_TAGGED);
    }
    if key == CREATION {
        return Some(&[PUT]);
    }
    key.starts_with(REQUEST_LOCKS).then_some(&LOCKING)
}

/// Whether a [`PUT`] operation creates an object, or is an earlier step of an upload ("Enforce
/// conditional writes" in the S3 guide). `None` for other operations.
pub fn is_creation(operation: &str) -> Option<bool> {
    let is_step = matches!(operation, "CreateMultipartUpload" | "UploadPart" | "UploadPartCopy");
    (of_operation(operation, false) == Some(PUT)).then_some(!is_step)
}

/// Whether a condition key has its value only once the object is open or the body read.
pub fn is_known_later(action: &str, key: &str) -> bool {
    let of_body: &[&str] = match action {
        "s3:PutObjectTagging" | "s3:PutObjectVersionTagging" => &[REQUEST_TAGS],
        "s3:PutObjectRetention" | "s3:PutObjectLegalHold" => &[REQUEST_LOCKS],
        _ => &[],
    };
    let is_of_body = of_body.iter().any(|start| key.starts_with(start));
    is_of_body || (key.starts_with(OBJECT_TAGS) && ON_TAGGED.contains(&action))
}

/// The action of an operation, which can depend on whether it names a version.
pub fn of_operation(operation: &str, has_version: bool) -> Option<&'static str> {
    let versioned = |plain, of_version| if has_version { of_version } else { plain };
    Some(match operation {
        "GetObject" | "HeadObject" => versioned("s3:GetObject", "s3:GetObjectVersion"),
        "GetObjectAcl" => versioned("s3:GetObjectAcl", "s3:GetObjectVersionAcl"),
        "GetObjectAttributes" => versioned("s3:GetObjectAttributes", "s3:GetObjectVersionAttributes"),
        "GetObjectTagging" => versioned("s3:GetObjectTagging", "s3:GetObjectVersionTagging"),
        "GetObjectRetention" => "s3:GetObjectRetention",
        "GetObjectLegalHold" => "s3:GetObjectLegalHold",
        "DeleteObject" => versioned("s3:DeleteObject", "s3:DeleteObjectVersion"),
        "DeleteObjectTagging" => versioned("s3:DeleteObjectTagging", "s3:DeleteObjectVersionTagging"),
        "PutObject"
        | "PostObject"
        | "CopyObject"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload" => PUT,
        "PutObjectAcl" => versioned("s3:PutObjectAcl", "s3:PutObjectVersionAcl"),
        "PutObjectTagging" => versioned("s3:PutObjectTagging", "s3:PutObjectVersionTagging"),
        "PutObjectRetention" => "s3:PutObjectRetention",
        "PutObjectLegalHold" => "s3:PutObjectLegalHold",
        "AbortMultipartUpload" => "s3:AbortMultipartUpload",
        "ListParts" => "s3:ListMultipartUploadParts",
        "ListObjects" | "ListObjectsV2" | "HeadBucket" => "s3:ListBucket",
        "ListObjectVersions" => "s3:ListBucketVersions",
        "ListMultipartUploads" => "s3:ListBucketMultipartUploads",
        "CreateBucket" => "s3:CreateBucket",
        "DeleteBucket" => "s3:DeleteBucket",
        "GetBucketLocation" => "s3:GetBucketLocation",
        "GetBucketAcl" => "s3:GetBucketAcl",
        "PutBucketAcl" => "s3:PutBucketAcl",
        "GetBucketCors" => "s3:GetBucketCORS",
        "PutBucketCors" | "DeleteBucketCors" => "s3:PutBucketCORS",
        "GetBucketPolicy" => "s3:GetBucketPolicy",
        "GetBucketPolicyStatus" => "s3:GetBucketPolicyStatus",
        "PutBucketPolicy" => "s3:PutBucketPolicy",
        "DeleteBucketPolicy" => "s3:DeleteBucketPolicy",
        "GetBucketTagging" => "s3:GetBucketTagging",
        "PutBucketTagging" | "DeleteBucketTagging" => "s3:PutBucketTagging",
        "GetBucketVersioning" => "s3:GetBucketVersioning",
        "PutBucketVersioning" => "s3:PutBucketVersioning",
        "GetBucketLifecycleConfiguration" => "s3:GetLifecycleConfiguration",
        "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => "s3:PutLifecycleConfiguration",
        "GetBucketNotificationConfiguration" => "s3:GetBucketNotification",
        "PutBucketNotificationConfiguration" => "s3:PutBucketNotification",
        "GetBucketWebsite" => "s3:GetBucketWebsite",
        "PutBucketWebsite" => "s3:PutBucketWebsite",
        "DeleteBucketWebsite" => "s3:DeleteBucketWebsite",
        "GetBucketLogging" => "s3:GetBucketLogging",
        "PutBucketLogging" => "s3:PutBucketLogging",
        "GetBucketEncryption" => "s3:GetEncryptionConfiguration",
        "PutBucketEncryption" | "DeleteBucketEncryption" => "s3:PutEncryptionConfiguration",
        "GetBucketAccelerateConfiguration" => "s3:GetAccelerateConfiguration",
        "GetBucketRequestPayment" => "s3:GetBucketRequestPayment",
        "PutBucketRequestPayment" => "s3:PutBucketRequestPayment",
        "GetBucketReplication" => "s3:GetReplicationConfiguration",
        "DeleteBucketReplication" => "s3:PutReplicationConfiguration",
        "GetPublicAccessBlock" => "s3:GetBucketPublicAccessBlock",
        "PutPublicAccessBlock" | "DeletePublicAccessBlock" => "s3:PutBucketPublicAccessBlock",
        "GetBucketOwnershipControls" => "s3:GetBucketOwnershipControls",
        "PutBucketOwnershipControls" | "DeleteBucketOwnershipControls" => "s3:PutBucketOwnershipControls",
        "GetObjectLockConfiguration" => "s3:GetBucketObjectLockConfiguration",
        "PutObjectLockConfiguration" => "s3:PutBucketObjectLockConfiguration",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_actions_that_policies_can_name() {
        for operation in [
            "GetObject",
            "PutObjectAcl",
            "ListObjectsV2",
            "DeleteBucketCors",
            "ListParts",
            "DeleteObject",
        ] {
            for has_version in [false, true] {
                let action = of_operation(operation, has_version);
                let is_known = |action: &&str| OF_BUCKETS.contains(action) || OF_OBJECTS.contains(action);
                assert!(action.as_ref().is_some_and(is_known), "{operation}");
            }
        }
        assert_eq!(of_operation("Anything", false), None);
        for (operation, expected) in [
            ("PostObject", Some(true)),
            ("CompleteMultipartUpload", Some(true)),
            ("UploadPartCopy", Some(false)),
            ("DeleteObject", None),
        ] {
            assert_eq!(is_creation(operation), expected, "{operation}");
        }
        for action in ON_TAGGED.iter().chain(&LOCKING) {
            assert!(OF_OBJECTS.contains(action), "{action}");
        }
    }
}
