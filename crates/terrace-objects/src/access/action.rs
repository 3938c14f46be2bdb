//! Actions, and the permission for each: the level of a key, or a grant of a list.

use crate::{access_key::Level, acl::Permission};

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read the current object.
    Read,
    /// Read a version by its ID.
    ReadVersion,
    /// List the bucket.
    List,
    /// List its versions or uploads.
    ListMore,
    /// Read tags, parts or settings, which no list grants.
    Inspect,
    /// Write and delete objects.
    Write,
    /// Change tags, which no list grants.
    Describe,
    /// Read the access control list of an object.
    ReadAcl,
    /// Change it.
    WriteAcl,
    /// Read the access control list of the bucket.
    ReadBucketAcl,
    /// Change it.
    WriteBucketAcl,
    /// Create, configure and delete the bucket, and make objects public.
    Configure,
}

/// The subject whose list can grant an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Object,
    Bucket,
}

impl Action {
    /// The action of an S3 operation. Operations not in this table need the highest level, so one
    /// that is added later, or only answers `NotImplemented`, is never open by mistake.
    pub fn of(operation: &str) -> Self {
        match operation {
            "GetObject" | "HeadObject" => Self::Read,
            "ListObjects" | "ListObjectsV2" | "HeadBucket" => Self::List,
            "ListObjectVersions" | "ListMultipartUploads" => Self::ListMore,
            "PutObjectTagging" | "DeleteObjectTagging" => Self::Describe,
            "GetObjectAcl" => Self::ReadAcl,
            "PutObjectAcl" => Self::WriteAcl,
            "GetBucketAcl" => Self::ReadBucketAcl,
            "PutBucketAcl" => Self::WriteBucketAcl,
            "GetObjectAttributes" | "GetObjectTagging" | "GetBucketLocation" | "GetBucketVersioning" | "ListParts" => {
                Self::Inspect
            }
            "PutObject"
            | "PostObject"
            | "CopyObject"
            | "DeleteObject"
            | "DeleteObjects"
            | "CreateMultipartUpload"
            | "UploadPart"
            | "UploadPartCopy"
            | "CompleteMultipartUpload"
            | "AbortMultipartUpload" => Self::Write,
            _ => Self::Configure,
        }
    }

    /// The action of reading an object, or a version by its ID. Reading by ID needs a key to the
    /// bucket.
    pub const fn reading(is_named: bool) -> Self {
        if is_named { Self::ReadVersion } else { Self::Read }
    }

    /// The level of a key that allows it.
    pub(super) const fn level(self) -> Level {
        match self {
            Self::Read | Self::ReadVersion | Self::List | Self::ListMore | Self::Inspect | Self::ReadAcl => Level::Read,
            Self::Write | Self::Describe | Self::WriteAcl => Level::Write,
            Self::ReadBucketAcl | Self::WriteBucketAcl | Self::Configure => Level::Admin,
        }
    }

    /// The permission and the list that grant it ("Mapping of ACL permissions and access policy
    /// permissions" in the S3 guide).
    pub(super) const fn granted_by(self) -> Option<(Listed, Permission)> {
        Some(match self {
            Self::Read | Self::ReadVersion => (Listed::Object, Permission::Read),
            Self::ReadAcl => (Listed::Object, Permission::ReadAcp),
            Self::WriteAcl => (Listed::Object, Permission::WriteAcp),
            Self::List | Self::ListMore => (Listed::Bucket, Permission::Read),
            Self::Write => (Listed::Bucket, Permission::Write),
            Self::ReadBucketAcl => (Listed::Bucket, Permission::ReadAcp),
            Self::WriteBucketAcl => (Listed::Bucket, Permission::WriteAcp),
            Self::Inspect | Self::Describe | Self::Configure => return None,
        })
    }

    /// Whether it needs a key, whatever lists grant to every client.
    pub(super) const fn needs_key(self) -> bool {
        matches!(self, Self::ReadVersion | Self::ListMore)
    }

    /// Whether it concerns an existing object, so that the object's owner grants it.
    pub(super) fn is_of_object(self) -> bool {
        matches!(self.granted_by(), Some((Listed::Object, _)))
    }
}
