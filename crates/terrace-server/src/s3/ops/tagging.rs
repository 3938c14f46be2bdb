//! Tags of objects and buckets.

use super::{Answered, check_key, redescribe, set};
use crate::s3::judged;
use crate::s3::{
    Gateway,
    access::decide::{Action, Claim},
    errors::{self, Told as _},
    record::{self, Facts},
    versions::{self, Name},
};
use hyper::{HeaderMap, StatusCode, header::HeaderValue};
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        BucketInfo, DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetBucketTaggingInput, GetBucketTaggingOutput,
        GetObjectTaggingInput, GetObjectTaggingOutput, LocationInfo, PutBucketTaggingInput, PutBucketTaggingOutput,
        PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
    },
    s3_error,
    xml::{DeResult, Deserializer},
};
use std::{collections::BTreeSet, sync::Arc};
use terrace_objects::tags;

/// Most tags of an object, and the beginning of the error.
const OBJECT_TAGS_MAX: Most = (10, "Object tags");
/// The same of a bucket.
const BUCKET_TAGS_MAX: Most = (50, "Bucket tag count");
/// Longest name of a tag, in characters.
const NAME_MAX: usize = 128;
/// Longest value of a tag, in characters.
const VALUE_MAX: usize = 256;
/// Prefix of tag names that S3 reserves.
const RESERVED: &str = "aws:";

/// A maximum of tags, and the beginning of its error.
type Most = (usize, &'static str);

/// Whether a name or value has only what S3 allows in tags.
fn is_plain(text: &str) -> bool {
    text.chars()
        .all(|letter| letter.is_alphanumeric() || letter.is_whitespace() || "+-=._:/@".contains(letter))
}

/// Checks name and value of a tag.
///
/// # Errors
/// `InvalidTag`
pub fn check_one(name: &str, value: &str) -> S3Result {
    if name.is_empty() || name.chars().count() > NAME_MAX || !is_plain(name) {
        return Err(s3_error!(InvalidTag, "The TagKey you have provided is invalid"));
    }
    if value.chars().count() > VALUE_MAX || !is_plain(value) {
        return Err(s3_error!(InvalidTag, "The TagValue you have provided is invalid"));
    }
    Ok(())
}

fn check(tags: &[(String, String)], (most, what): Most) -> S3Result {
    if tags.len() > most {
        let message = format!("{what} cannot be greater than {most}");
        return Err(errors::custom("BadRequest", StatusCode::BAD_REQUEST, message));
    }
    let mut names = BTreeSet::new();
    for (name, value) in tags {
        check_one(name, value)?;
        if name.to_ascii_lowercase().starts_with(RESERVED) {
            return Err(s3_error!(
                InvalidTag,
                "System tags cannot be added/updated by requester"
            ));
        }
        if !names.insert(name) {
            return Err(s3_error!(InvalidTag, "Cannot provide multiple Tags with the same key"));
        }
    }
    Ok(())
}

/// Reads the tags of a header.
///
/// # Errors
/// `InvalidArgument` if they are not in query form.
pub fn decode(text: &str) -> S3Result<Vec<(String, String)>> {
    tags::decode(text).ok_or_else(malformed_header)
}

fn malformed_header() -> S3Error {
    s3_error!(
        InvalidArgument,
        "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates."
    )
}

/// Checks `x-amz-tagging` and returns its stored form.
///
/// # Errors
/// `InvalidArgument`, `InvalidTag`.
pub fn normal(text: &str) -> S3Result<String> {
    let tags = decode(text)?;
    let names: BTreeSet<_> = tags.iter().map(|(name, _)| name).collect();
    if names.len() < tags.len() {
        return Err(malformed_header());
    }
    check(&tags, OBJECT_TAGS_MAX)?;
    Ok(tags::encode(&tags))
}

/// Checks the tags of an object and returns their stored form.
///
/// # Errors
/// `InvalidTag`, `BadRequest`.
pub fn of_set(set: Vec<Tag>) -> S3Result<String> {
    Ok(tags::encode(&from_set(set, OBJECT_TAGS_MAX)?))
}

fn from_set(set: Vec<Tag>, most: Most) -> S3Result<Vec<(String, String)>> {
    let tags: Vec<_> = set
        .into_iter()
        .map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default()))
        .collect();
    check(&tags, most)?;
    Ok(tags)
}

fn to_set(tags: Vec<(String, String)>) -> Vec<Tag> {
    let tag = |(name, value)| Tag {
        key: Some(name),
        value: Some(value),
    };
    tags.into_iter().map(tag).collect()
}

/// GetObjectTagging
pub async fn get(
    gateway: &Arc<Gateway>,
    request: S3Request<GetObjectTaggingInput>,
) -> Answered<GetObjectTaggingOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let claim = gateway.claim(by, Action::Inspect, &bucket);
    let (tags, version_id) = gateway
        .run(move |_, store| {
            let facts = versions::describe(store, &claim, &input.key, name).told()?;
            Ok((decode(facts.tagging().unwrap_or(""))?, bucket.shown(Name::of(&facts))))
        })
        .await?;
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set: to_set(tags),
        version_id,
    }))
}

/// PutObjectTagging
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutObjectTaggingInput>,
) -> Answered<PutObjectTaggingOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let tags = from_set(input.tagging.tag_set, OBJECT_TAGS_MAX)?;
    let bucket = gateway.bucket(&input.bucket)?;
    let tagging = tags::encode(&tags);
    let mut said = HeaderMap::new();
    said.insert(
        "x-amz-tagging",
        HeaderValue::from_str(&tagging).map_err(S3Error::internal_error)?,
    );
    let claim = gateway
        .claim(by, Action::Describe, &bucket)
        .asking_anew(|asker| judged::saying(asker, &said));
    let version_id = retag(gateway, claim, input.key, name, Some(tagging)).await?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
}

/// DeleteObjectTagging
pub async fn delete(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteObjectTaggingInput>,
) -> Answered<DeleteObjectTaggingOutput> {
    let by = (&request.extensions, request.credentials.as_ref());
    let input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let claim = gateway.claim(by, Action::Describe, &bucket);
    let version_id = retag(gateway, claim, input.key, name, None).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
}

async fn retag(
    gateway: &Arc<Gateway>,
    claim: Claim,
    key: String,
    name: Option<Name>,
    tagging: Option<String>,
) -> S3Result<Option<String>> {
    check_key(&key)?;
    let change = move |_: &Gateway, facts: &Facts| Ok(record::with_tagging(&facts.attributes, tagging.as_deref()));
    redescribe(gateway, claim, (key, name), change).await
}

/// GetBucketTagging
pub fn get_of_bucket(
    gateway: &Gateway,
    request: &S3Request<GetBucketTaggingInput>,
) -> Answered<GetBucketTaggingOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    if record.tags.is_empty() {
        return Err(s3_error!(NoSuchTagSet, "The TagSet does not exist"));
    }
    Ok(S3Response::new(GetBucketTaggingOutput {
        tag_set: to_set(record.tags.clone()),
    }))
}

/// PutBucketTagging
pub async fn put_of_bucket(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketTaggingInput>,
) -> Answered<PutBucketTaggingOutput> {
    let tags = from_set(request.input.tagging.tag_set, BUCKET_TAGS_MAX)?;
    set(gateway, request.input.bucket, |record| record.tags = tags).await
}

/// The tags in the XML of a request that makes a bucket, which `s3s` does not read.
///
/// # Errors
/// `MalformedXML`, and as PutBucketTagging.
pub fn of_new_bucket(xml: &[u8]) -> S3Result<Vec<(String, String)>> {
    if xml.is_empty() {
        return Ok(Vec::new());
    }
    let mut tags = None;
    let mut reader = Deserializer::new(xml);
    let configuration = |reader: &mut Deserializer<'_>| {
        reader.for_each_element(|reader, name| match name {
            b"Tags" if tags.is_none() => {
                tags = Some(reader.list_content("Tag")?);
                Ok(())
            }
            b"Bucket" => reader.content::<BucketInfo>().map(drop),
            b"Location" => reader.content::<LocationInfo>().map(drop),
            // A second list is not read, so what follows its start is an error.
            b"Tags" => Ok(()),
            _ => reader.text(|_| Ok(())),
        })
    };
    let read: DeResult = reader.named_element("CreateBucketConfiguration", configuration);
    read.map_err(|_| errors::malformed_xml())?;
    from_set(tags.unwrap_or_default(), BUCKET_TAGS_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tags_survive_as_a_query() {
        let tags = vec![("a b".to_owned(), "ü=&".to_owned()), ("c".to_owned(), String::new())];
        assert_eq!(decode(&tags::encode(&tags)).unwrap(), tags);
        assert_eq!(normal("k+1=v%20x&empty").unwrap(), "k%201=v%20x&empty=");
        assert_eq!(normal("").unwrap(), "");
    }

    #[test]
    fn limits() {
        assert!(normal("a=1&a=2").is_err());
        assert!(normal("=x").is_err());
        assert!(normal("%zz=x").is_err());
        assert!(normal("%ff=x").is_err());
        assert!(normal(&format!("{}=x", "k".repeat(129))).is_err());
        assert!(normal(&format!("k={}", "v".repeat(257))).is_err());
        let many: Vec<_> = (0..11).map(|number| format!("k{number}=v")).collect();
        assert!(normal(&many[..10].join("&")).is_ok());
        assert!(normal(&many.join("&")).is_err());
    }
}
