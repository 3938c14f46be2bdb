//! Checks a request's XML before `s3s` parses it. `s3s` drops what it does not expect: text in
//! CDATA sections, text where elements belong, elements with unknown names, what follows the digits
//! of a number. Each changes what the rest means: a lifecycle rule without its prefix is one for
//! the whole bucket. So they are refused here, as by S3's schema. Also keeps the XML of which `s3s`
//! does not read a part ([`Kept`]), and completes what `s3s` writes ([`refer_to_returns`]).

use super::{errors, head::Head, refuse::is_subresource};
use bytes::Bytes;
use hyper::{Method, Response, header};
use quick_xml::{Reader, events::Event};
use s3s::{Body, S3Result};
use std::sync::{Arc, OnceLock};

/// The only subresource whose body is JSON.
const POLICY: &str = "policy";

/// What filters of lifecycle and notification rules may have, and their `And`.
const FILTER: &[&str] = &[
    "And",
    "ObjectSizeGreaterThan",
    "ObjectSizeLessThan",
    "Prefix",
    "S3Key",
    "Tag",
];
/// What redirects of web sites may have, of one request or of all.
const REDIRECT: &[&str] = &[
    "HostName",
    "HttpRedirectCode",
    "Protocol",
    "ReplaceKeyPrefixWith",
    "ReplaceKeyWith",
];
/// What the target of a notification may have, whatever its kind.
const NOTIFICATION: &[&str] = &["CloudFunction", "Event", "Filter", "Id", "Queue", "Topic"];

/// What each element with elements may have, by its name, in order. A name means the same in all
/// documents, or what it may have in each is joined.
const ELEMENTS: [(&str, &[&str]); 59] = [
    ("AbortIncompleteMultipartUpload", &["DaysAfterInitiation"]),
    ("AccelerateConfiguration", &["Status"]),
    ("AccessControlList", &["Grant"]),
    ("AccessControlPolicy", &["AccessControlList", "Owner"]),
    ("And", FILTER),
    (
        "ApplyServerSideEncryptionByDefault",
        &["KMSMasterKeyID", "SSEAlgorithm"],
    ),
    ("Bucket", &["DataRedundancy", "Type"]),
    ("BucketLoggingStatus", &["LoggingEnabled"]),
    ("CORSConfiguration", &["CORSRule"]),
    (
        "CORSRule",
        &[
            "AllowedHeader",
            "AllowedMethod",
            "AllowedOrigin",
            "ExposeHeader",
            "ID",
            "MaxAgeSeconds",
        ],
    ),
    ("CloudFunctionConfiguration", NOTIFICATION),
    ("CompleteMultipartUpload", &["Part"]),
    ("Condition", &["HttpErrorCodeReturnedEquals", "KeyPrefixEquals"]),
    (
        "CreateBucketConfiguration",
        &["Bucket", "Location", "LocationConstraint", "Tags"],
    ),
    ("DefaultRetention", &["Days", "Mode", "Years"]),
    ("Delete", &["Object", "Quiet"]),
    ("ErrorDocument", &["Key"]),
    ("EventBridgeConfiguration", &[]),
    ("Expiration", &["Date", "Days", "ExpiredObjectDeleteMarker"]),
    ("Filter", FILTER),
    ("FilterRule", &["Name", "Value"]),
    ("Grant", &["Grantee", "Permission"]),
    ("Grantee", &["DisplayName", "EmailAddress", "ID", "URI"]),
    ("IndexDocument", &["Suffix"]),
    ("LegalHold", &["Status"]),
    ("LifecycleConfiguration", &["Rule"]),
    ("Location", &["Name", "Type"]),
    (
        "LoggingEnabled",
        &["TargetBucket", "TargetGrants", "TargetObjectKeyFormat", "TargetPrefix"],
    ),
    (
        "NoncurrentVersionExpiration",
        &["NewerNoncurrentVersions", "NoncurrentDays", "StorageClass"],
    ),
    (
        "NoncurrentVersionTransition",
        &["NewerNoncurrentVersions", "NoncurrentDays", "StorageClass"],
    ),
    (
        "NotificationConfiguration",
        &[
            "CloudFunctionConfiguration",
            "EventBridgeConfiguration",
            "QueueConfiguration",
            "TopicConfiguration",
        ],
    ),
    ("Object", &["ETag", "Key", "LastModifiedTime", "Size", "VersionId"]),
    ("ObjectLockConfiguration", &["ObjectLockEnabled", "Rule"]),
    ("Owner", &["DisplayName", "ID"]),
    ("OwnershipControls", &["Rule"]),
    // Some clients send back what ListParts says of a part.
    (
        "Part",
        &[
            "ChecksumCRC32",
            "ChecksumCRC32C",
            "ChecksumCRC64NVME",
            "ChecksumSHA1",
            "ChecksumSHA256",
            "ETag",
            "LastModified",
            "PartNumber",
            "Size",
        ],
    ),
    ("PartitionedPrefix", &["PartitionDateSource"]),
    (
        "PublicAccessBlockConfiguration",
        &[
            "BlockPublicAcls",
            "BlockPublicPolicy",
            "IgnorePublicAcls",
            "RestrictPublicBuckets",
        ],
    ),
    ("QueueConfiguration", NOTIFICATION),
    ("Redirect", REDIRECT),
    ("RedirectAllRequestsTo", REDIRECT),
    ("RequestPaymentConfiguration", &["Payer"]),
    ("Retention", &["Mode", "RetainUntilDate"]),
    ("RoutingRule", &["Condition", "Redirect"]),
    ("RoutingRules", &["RoutingRule"]),
    (
        "Rule",
        &[
            "AbortIncompleteMultipartUpload",
            "ApplyServerSideEncryptionByDefault",
            "BucketKeyEnabled",
            "DefaultRetention",
            "Expiration",
            "Filter",
            "ID",
            "NoncurrentVersionExpiration",
            "NoncurrentVersionTransition",
            "ObjectOwnership",
            "Prefix",
            "Status",
            "Transition",
        ],
    ),
    ("S3Key", &["FilterRule"]),
    ("ServerSideEncryptionConfiguration", &["Rule"]),
    ("SimplePrefix", &[]),
    ("Tag", &["Key", "Value"]),
    ("TagSet", &["Tag"]),
    ("Tagging", &["TagSet"]),
    ("Tags", &["Tag"]),
    ("TargetGrants", &["Grant"]),
    ("TargetObjectKeyFormat", &["PartitionedPrefix", "SimplePrefix"]),
    ("TopicConfiguration", NOTIFICATION),
    ("Transition", &["Date", "Days", "StorageClass"]),
    ("VersioningConfiguration", &["MfaDelete", "Status"]),
    (
        "WebsiteConfiguration",
        &[
            "ErrorDocument",
            "IndexDocument",
            "RedirectAllRequestsTo",
            "RoutingRules",
        ],
    ),
];

/// The elements with a number. `s3s` reads one up to the first byte that is no digit: objects due
/// after `1O` days would be deleted after one. Dates and booleans it reads whole, and statuses of
/// web sites are text to it.
const NUMBERS: [&str; 10] = [
    "Days",
    "DaysAfterInitiation",
    "MaxAgeSeconds",
    "NewerNoncurrentVersions",
    "NoncurrentDays",
    "ObjectSizeGreaterThan",
    "ObjectSizeLessThan",
    "PartNumber",
    "Size",
    "Years",
];

/// The XML of a request that makes a bucket, once it has arrived and been checked: `s3s` does not
/// read the tags in it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Kept(Arc<OnceLock<Bytes>>);

impl Kept {
    /// The XML; empty if there is none.
    pub fn bytes(&self) -> &[u8] {
        self.0.get().map_or(&[], |xml| xml)
    }
}

/// The XML of a request, as it arrives. It shares the memory of what is collected for `s3s`.
#[derive(Debug, Default)]
pub struct Document {
    pieces: Vec<Bytes>,
    kept: Option<Kept>,
}

impl Document {
    /// `None` if the body of a request with this head is not XML.
    pub fn of(head: &Head) -> Option<Self> {
        let mut named = head
            .query
            .iter()
            .map(|(name, _)| name)
            .filter(|name| is_subresource(name));
        let is_policy = head.has(POLICY) && named.all(|name| name == POLICY);
        let makes_bucket = head.method == Method::PUT && !head.is_of_object() && !head.has_subresource;
        (head.is_xml && !head.is_form && !head.is_call && !is_policy).then(|| Self {
            pieces: Vec::new(),
            kept: makes_bucket.then(Kept::default),
        })
    }

    /// What the operation may read of it, beside what `s3s` does.
    pub fn kept(&self) -> Option<Kept> {
        self.kept.clone()
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: &Bytes) {
        self.pieces.push(piece.clone());
    }

    /// Checks all of it.
    ///
    /// # Errors
    /// `MalformedXML`
    pub fn check(self) -> S3Result {
        let whole = match self.pieces.as_slice() {
            [] => return Ok(()),
            [whole] => whole.clone(),
            pieces => pieces.concat().into(),
        };
        check(&whole)?;
        if let Some(Kept(kept)) = self.kept {
            // A body ends once.
            let _ = kept.set(whole);
        }
        Ok(())
    }
}

/// An element that is not closed yet.
struct Open {
    /// The names of the elements that it may have; `None` if it has text, or is not known.
    may_have: Option<&'static [&'static str]>,
    is_number: bool,
    has_text: bool,
    has_elements: bool,
}

/// Checks XML.
///
/// # Errors
/// `MalformedXML`
pub fn check(xml: &[u8]) -> S3Result {
    let mut reader = Reader::from_reader(xml);
    let mut open: Vec<Open> = Vec::new();
    // Documents of operations that do not exist here are unknown.
    let mut is_known = false;
    loop {
        let is_allowed = match reader.read_event().map_err(|_| errors::malformed_xml())? {
            Event::Eof => return Ok(()),
            Event::Start(start) => {
                is_known |= open.is_empty() && elements_of(start.name().as_ref()).is_some();
                let is_allowed = begin(&mut open, start.name().as_ref());
                let may_have = elements_of(start.name().as_ref()).filter(|_| is_known);
                open.push(Open {
                    may_have,
                    is_number: is_known && NUMBERS.iter().any(|name| name.as_bytes() == start.name().as_ref()),
                    has_text: false,
                    has_elements: false,
                });
                is_allowed
            }
            Event::Empty(empty) => begin(&mut open, empty.name().as_ref()),
            Event::End(_) => open.pop().is_some(),
            Event::Text(text) if is_of_number(&open) => is_number(&text, &open) && has_text(&mut open),
            Event::Text(text) => text.iter().all(u8::is_ascii_whitespace) || has_text(&mut open),
            Event::GeneralRef(_) => !is_of_number(&open) && has_text(&mut open),
            Event::CData(_) | Event::DocType(_) => false,
            // They are no part of a text, and `s3s` joins what is around them.
            Event::Comment(_) | Event::PI(_) | Event::Decl(_) => true,
        };
        if !is_allowed {
            return Err(errors::malformed_xml());
        }
    }
}

/// Begins an element. `false` if it may not be there.
fn begin(open: &mut [Open], name: &[u8]) -> bool {
    let Some(around) = open.last_mut() else { return true };
    around.has_elements = true;
    let is_known = around
        .may_have
        .is_none_or(|names| names.iter().any(|known| known.as_bytes() == name));
    is_known && !around.has_text
}

/// Adds text to the innermost element. `false` if it may have none.
fn has_text(open: &mut [Open]) -> bool {
    let Some(around) = open.last_mut() else { return false };
    around.has_text = true;
    around.may_have.is_none() && !around.has_elements
}

/// Whether the innermost element has a number.
fn is_of_number(open: &[Open]) -> bool {
    open.last().is_some_and(|around| around.is_number)
}

/// Whether a text can be in the number of the innermost element: digits, and a sign before the
/// first of them. Comments may split a number, as any text.
fn is_number(text: &[u8], open: &[Open]) -> bool {
    let is_first = open.last().is_some_and(|around| !around.has_text);
    let digits = match text {
        [b'+' | b'-', digits @ ..] if is_first => digits,
        digits => digits,
    };
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// The elements that an element of this name may have, in any document that an operation takes.
/// `None` for elements with text.
fn elements_of(name: &[u8]) -> Option<&'static [&'static str]> {
    let at = ELEMENTS.binary_search_by(|(known, _)| known.as_bytes().cmp(name));
    at.ok().map(|at| ELEMENTS[at].1)
}

/// Writes carriage returns in XML as references, since every reader takes a bare one for a line
/// feed (XML 1.0, section 2.11), and a listed key for another. Only values have them.
pub fn refer_to_returns(response: &mut Response<Body>) {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_xml = kind.is_some_and(|kind| kind.as_bytes().ends_with(b"xml"));
    let Some(xml) = response.body().bytes().filter(|xml| is_xml && xml.contains(&b'\r')) else {
        return;
    };
    let text = String::from_utf8_lossy(&xml).replace('\r', "&#13;");
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found() {
        assert!(ELEMENTS.is_sorted_by_key(|(name, _)| *name));
        assert_eq!(elements_of(b"Filter").map(<[_]>::len), Some(6));
        assert_eq!(elements_of(b"Prefix"), None);
    }
}
