//! Which subresources can be written with which method.

use super::is_subresource;
use crate::s3::head::Head;
use hyper::Method;
use s3s::{S3Result, s3_error};

/// Subresources that can be written, by method, of buckets (`false`) and of objects.
const WRITES: [(Method, bool, &[&str]); 6] = [
    (
        Method::PUT,
        false,
        &[
            "accelerate",
            "acl",
            "analytics",
            "cors",
            "encryption",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "logging",
            "metrics",
            "notification",
            "object-lock",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "requestPayment",
            "tagging",
            "versioning",
            "website",
        ],
    ),
    (
        Method::DELETE,
        false,
        &[
            "analytics",
            "cors",
            "encryption",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "metadataTable",
            "metrics",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "tagging",
            "website",
        ],
    ),
    (Method::POST, false, &["delete", "metadataTable"]),
    (Method::PUT, true, &["acl", "legal-hold", "retention", "tagging"]),
    (Method::DELETE, true, &["tagging"]),
    (Method::POST, true, &["restore", "uploads"]),
];

/// Refuses writes of a subresource that has no such method: `s3s` would take `DELETE
/// /BUCKET/KEY?acl` for a deletion of the object, and `PUT /BUCKET?location` for a new bucket.
///
/// # Errors
/// `MethodNotAllowed`
pub fn refuse_others(head: &Head) -> S3Result {
    let of_object = head.is_of_object();
    let mut writes = WRITES
        .iter()
        .filter(|(method, is_of_object, _)| *method == head.method && *is_of_object == of_object);
    let Some((_, _, has)) = writes.next() else {
        return Ok(());
    };
    let mut named = head.query.iter().map(|(name, _)| name.as_str());
    if named.all(|name| !is_subresource(name) || has.contains(&name)) {
        return Ok(());
    }
    Err(s3_error!(
        MethodNotAllowed,
        "The specified method is not allowed against this resource."
    ))
}
