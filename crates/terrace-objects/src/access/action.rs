//! What somebody can want to do, and what it takes: the level of a key, or what a list grants.

use crate::{access_key::Level, acl::Permission};

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read an object as it is now.
    Read,
    /// Read a version by its name.
    ReadVersion,
    /// List the bucket.
    List,
    /// List its versions, or uploads.
    ListMore,
    /// Read what no list opens: tags, parts, settings.
    Inspect,
    /// Write and delete objects.
    Write,
    /// Change tags: what no list opens.
    Describe,
    /// Read the list of an object.
    ReadAcl,
    /// Change it.
    WriteAcl,
    /// Read the list of the bucket.
    ReadBucketAcl,
    /// Change it.
    WriteBucketAcl,
    /// Create, configure and delete the bucket, and make objects public.
    Configure,
}

/// Whose list can allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Object,
    Bucket,
}

impl Action {
    /// What an operation of S3 is. One that is not in this table needs the highest level, so an
    /// operation that is added later, or that only answers `NotImplemented`, is never open by
    /// mistake.
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

    /// What it is to read an object, or a version by its name: names of versions are for those who
    /// have a key to the bucket.
    pub const fn reading(is_named: bool) -> Self {
        if is_named { Self::ReadVersion } else { Self::Read }
    }

    /// The level that allows it to a key.
    pub(super) const fn level(self) -> Level {
        match self {
            Self::Read | Self::ReadVersion | Self::List | Self::ListMore | Self::Inspect | Self::ReadAcl => Level::Read,
            Self::Write | Self::Describe | Self::WriteAcl => Level::Write,
            Self::ReadBucketAcl | Self::WriteBucketAcl | Self::Configure => Level::Admin,
        }
    }

    /// What has to be granted for it, in which list ("Mapping of ACL permissions and access policy
    /// permissions" in the guide).
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

    /// It is for those who have a key, whatever is granted to everybody.
    pub(super) const fn needs_key(self) -> bool {
        matches!(self, Self::ReadVersion | Self::ListMore)
    }

    /// It is of an object that is there, so the object's owner grants it.
    pub(super) fn is_of_object(self) -> bool {
        matches!(self.granted_by(), Some((Listed::Object, _)))
    }
}
