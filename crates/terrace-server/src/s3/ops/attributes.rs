//! GetObjectAttributes.

use super::{Answered, reading, signed};
use crate::s3::digest;
use crate::{
    customer,
    s3::{
        Gateway,
        access::decide::Action,
        errors::Told as _,
        read::Opened,
        versions::{self, Name},
    },
    set_checksums,
};
use hyper::Response;
use s3s::dto::{ETag, Timestamp};
use s3s::{
    Body, S3Request, S3Response,
    dto::{
        Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts, ObjectAttributes,
        ObjectPart, StorageClass,
    },
    s3_error,
};
use std::sync::Arc;
use terrace_objects::error::ObjectError;

/// Most parts of an answer.
const PARTS_MAX: i32 = 1000;

/// GetObjectAttributes
pub async fn get(
    gateway: &Arc<Gateway>,
    request: S3Request<GetObjectAttributesInput>,
) -> Answered<GetObjectAttributesOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let mut input = request.input;
    let customer = customer!(input).read()?;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let known = [
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::ETAG,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::OBJECT_SIZE,
        ObjectAttributes::STORAGE_CLASS,
    ];
    let asked: Vec<_> = input
        .object_attributes
        .iter()
        .flat_map(|attributes| attributes.as_str().split(','))
        .map(str::trim)
        .collect();
    if asked.is_empty() || asked.iter().any(|name| !known.contains(name)) {
        return Err(s3_error!(InvalidArgument, "Invalid attribute name specified."));
    }
    let wants = |name: &str| asked.contains(&name);
    let most = super::listings::limit(input.max_parts, "max-parts")?.min(PARTS_MAX);
    let bucket = gateway.bucket(&input.bucket)?;
    let inspecting = gateway.claim(by, Action::Inspect, &bucket);
    let key = input.key;
    // It needs permission to read the object; a missing object has the same answer as for GET.
    let reading = reading(gateway, by, &bucket, &key, name);
    let opened = gateway
        .run(move |gateway, store| {
            let mut opened = versions::open(store, &gateway.collector, &reading, &key, name).told()?;
            inspecting.on(&opened.facts).map_err(ObjectError::from).told()?;
            opened.unlock(&gateway.shared.secrets, customer.as_ref()).told()?;
            Ok(opened)
        })
        .await?;
    let facts = &opened.facts;
    let checksum = digest::stored(&facts.attributes);
    let has_checksum = checksum != Checksum::default();
    let object_parts = if wants(ObjectAttributes::OBJECT_PARTS) {
        parts(&opened, most, input.part_number_marker)
    } else {
        None
    };
    let output = GetObjectAttributesOutput {
        checksum: (wants(ObjectAttributes::CHECKSUM) && has_checksum).then_some(checksum),
        e_tag: wants(ObjectAttributes::ETAG).then(|| ETag::Strong(facts.etag.clone())),
        last_modified: Some(Timestamp::from(facts.modified)),
        object_parts,
        object_size: wants(ObjectAttributes::OBJECT_SIZE).then(|| signed(facts.length)),
        storage_class: wants(ObjectAttributes::STORAGE_CLASS).then(|| StorageClass::from_static(facts.class().name())),
        version_id: bucket.shown(Name::of(facts)),
        ..GetObjectAttributesOutput::default()
    };
    let mut response = S3Response::new(output);
    response.extensions.insert(BareTag);
    Ok(response)
}

/// Marks an answer whose entity tag has no quotes in S3; `s3s` writes them always.
#[derive(Debug, Clone, Copy)]
struct BareTag;

/// Removes the quotes where they do not belong.
pub fn bare_tag(response: &mut Response<Body>) {
    if response.extensions().get::<BareTag>().is_none() {
        return;
    }
    let text = response
        .body()
        .bytes()
        .and_then(|xml| String::from_utf8(xml.to_vec()).ok());
    if let Some(text) = text {
        let bare = text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>");
        *response.body_mut() = Body::from(bare.into_bytes());
    }
}

/// The parts of a multipart object: their number, and each of them if they have checksums.
fn parts(opened: &Opened, most: i32, marker: Option<i32>) -> Option<GetObjectAttributesParts> {
    let is_multipart = opened.facts.etag.contains('-');
    let parts = opened.parts.as_deref().filter(|_| is_multipart)?;
    let marker = marker.unwrap_or(0);
    let behind: Vec<_> = parts.iter().filter(|part| i32::from(part.number) > marker).collect();
    let count = usize::try_from(most).unwrap_or(0);
    let shown: Vec<_> = behind
        .iter()
        .take(count)
        .map(|part| {
            let mut shown = ObjectPart {
                part_number: Some(i32::from(part.number)),
                size: Some(signed(part.length)),
                ..ObjectPart::default()
            };
            if let Some(checksum) = &part.checksum {
                let attributes = terrace::Attributes::new().with(checksum.algorithm.header(), checksum.text());
                set_checksums!(shown, crate::s3::digest::stored(&attributes));
            }
            shown
        })
        .collect();
    let truncated = behind.len() > count;
    Some(GetObjectAttributesParts {
        is_truncated: Some(truncated),
        max_parts: Some(most),
        next_part_number_marker: shown.last().and_then(|part| part.part_number),
        part_number_marker: Some(marker),
        total_parts_count: i32::try_from(parts.len()).ok(),
        parts: parts
            .first()
            .is_some_and(|part| part.checksum.is_some())
            .then_some(shown),
    })
}
