//! Objects: put, get, head, delete.

use super::{Conditions, VERSION, check_key, check_version, range_of_part, signed};
use crate::{
    declared_fields, description,
    s3::{
        Gateway,
        commit::{self, NewObject, Outcome, Requirement, no_such_key},
        digest::{self, Algorithm},
        keyspace, manifest,
        read::{self, Opened},
        receive::{self, Incoming, Received, Target},
        record::{self, Description, Facts},
    },
    set_checksums,
};
use hyper::{HeaderMap, header, header::HeaderValue};
use s3s::{
    S3Error, S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        ChecksumMode, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
        ETag, ETagCondition, Error, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, PutObjectInput,
        PutObjectOutput, Range,
    },
    s3_error,
};
use std::sync::Arc;
use terrace::{Attributes, Durability};

/// Most keys of one DeleteObjects.
const DELETE_KEYS_MAX: usize = 1000;

/// PutObject
pub async fn put(gateway: &Arc<Gateway>, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
    let mut input = request.input;
    check_key(&input.key)?;
    let bucket = gateway.buckets.get(&input.bucket)?;
    let requirement = Requirement {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        ..Requirement::default()
    };
    let attributes = checked_description(description!(input))?;
    let incoming = Incoming {
        body: input.body.take(),
        length: receive::announced(&request.headers, input.content_length),
        md5: digest::content_md5(input.content_md5.as_deref())?,
        declared: digest::declared(declared_fields!(input))?,
        trailing: receive::trailing(&request.headers, request.trailing_headers),
        algorithms: asked_algorithm(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()))?,
    };
    // Before the body, so that a client need not send it for nothing; what counts is judged again in the commit.
    if requirement.if_match.is_some() || requirement.if_none_match.is_some() {
        let (requirement, object) = (requirement.clone(), keyspace::object(&bucket.name, &input.key));
        gateway
            .run(move |_, store| {
                let found = store
                    .head(&object)
                    .map_err(|error| crate::s3::errors::of_engine(&error, &object))?;
                requirement.check(found.map(|info| Facts::of(&info)).as_ref())
            })
            .await?;
    }
    let received = receive::receive(gateway, incoming, Target::Object).await?;
    let key = input.key;
    let facts = gateway
        .run(move |gateway, store| {
            let bucket = gateway.buckets.get(&bucket.name)?;
            keep(gateway, store, &bucket, &key, &requirement, attributes, received)
        })
        .await?;
    let mut output = PutObjectOutput {
        e_tag: Some(ETag::Strong(facts.etag)),
        ..PutObjectOutput::default()
    };
    set_checksums!(output, digest::stored(&facts.attributes));
    output.checksum_type = digest::stored(&facts.attributes).checksum_type;
    Ok(S3Response::new(output))
}

/// The checksum algorithm a client names beside the body.
pub fn asked_algorithm(name: Option<&str>) -> S3Result<Vec<Algorithm>> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let algorithm = Algorithm::parse(name);
    algorithm
        .map(|algorithm| vec![algorithm])
        .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"))
}

/// The attributes of a description whose tags are checked.
pub fn checked_description(mut description: Description) -> S3Result<Attributes> {
    if let Some(tagging) = description.tagging.take() {
        description.tagging = Some(super::tagging::normal(&tagging)?);
    }
    description.into_attributes()
}

/// What a commit stored.
pub struct Kept {
    /// Entity tag without quotes.
    pub etag: String,
    /// All attributes.
    pub attributes: Attributes,
    /// When it was.
    pub modified_ms: u64,
}

/// Commits what was received as an object. Blocks.
pub fn keep(
    gateway: &Gateway,
    store: &terrace::Store,
    bucket: &crate::s3::bucket::Bucket,
    key: &str,
    requirement: &Requirement,
    mut attributes: Attributes,
    received: Received,
) -> S3Result<Kept> {
    let (value, computed, stored) = match received {
        Received::Whole(value, computed) => (value, computed, None),
        Received::Stored(stored) => {
            let list = manifest::encode(std::slice::from_ref(&stored.part), None);
            (
                list.into(),
                stored.computed.clone(),
                Some((stored.id, stored.unfinished)),
            )
        }
    };
    let id = stored.as_ref().map(|(id, _)| *id);
    let modified_ms = record::complete(&mut attributes, &computed, id);
    let new = NewObject {
        value,
        attributes: attributes.clone(),
    };
    let also = |batch: &mut terrace::Batch| {
        if let Some(id) = id {
            batch.delete(keyspace::pending(id));
        }
    };
    let outcome = commit::change(store, gateway.durability, bucket, key, requirement, Some(&new), &also)?;
    if let Some((_, unfinished)) = stored {
        unfinished.finished();
    }
    if outcome == (Outcome::Done { garbage: true }) {
        gateway.collector.wake();
    }
    Ok(Kept {
        etag: computed.etag(),
        attributes,
        modified_ms,
    })
}

/// GetObject
pub async fn get(gateway: &Arc<Gateway>, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
    let mut input = request.input;
    check_version(input.version_id.as_deref())?;
    let object = keyspace::object(&gateway.buckets.get(&input.bucket)?.name, &input.key);
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        if_modified_since: input.if_modified_since.take(),
        if_unmodified_since: input.if_unmodified_since.take(),
    };
    let wanted = Wanted::of(input.range, input.part_number)?;
    let (mut answer, opened, first) = gateway
        .run(move |gateway, store| {
            let mut opened = read::open(store, &gateway.collector, &object)?.ok_or_else(no_such_key)?;
            conditions.check(&opened.facts)?;
            let answer = wanted.answer(&opened)?;
            opened.seek(answer.range.clone())?;
            let first = opened.next_piece(store)?;
            Ok((answer, opened, first))
        })
        .await?;
    let facts = opened.facts.clone();
    let mut output = GetObjectOutput {
        body: Some(read::stream(gateway, opened, first)),
        accept_ranges: Some("bytes".to_owned()),
        cache_control: facts.header("cache-control"),
        content_disposition: facts.header("content-disposition"),
        content_encoding: facts.header("content-encoding"),
        content_language: facts.header("content-language"),
        content_length: Some(signed(answer.range.end - answer.range.start)),
        content_range: answer.content_range.take(),
        content_type: Some(facts.content_type()),
        e_tag: Some(facts.etag()),
        expires: facts.expires(),
        last_modified: Some(record::timestamp(facts.modified)),
        metadata: facts.metadata(),
        parts_count: answer.parts,
        tag_count: tag_count(&facts),
        website_redirect_location: facts.header("x-amz-website-redirect-location"),
        ..GetObjectOutput::default()
    };
    if wants_checksums(input.checksum_mode.as_ref(), output.content_range.is_some()) {
        set_checksums!(output, facts.checksums());
        output.checksum_type = facts.checksums().checksum_type;
    }
    Ok(S3Response::new(output))
}

/// HeadObject: the answer to a GET without its body; the value is not touched.
pub async fn head(
    gateway: &Arc<Gateway>,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let mut input = request.input;
    check_version(input.version_id.as_deref())?;
    let object = keyspace::object(&gateway.buckets.get(&input.bucket)?.name, &input.key);
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        if_modified_since: input.if_modified_since.take(),
        if_unmodified_since: input.if_unmodified_since.take(),
    };
    let wanted = Wanted::of(input.range, input.part_number)?;
    let (facts, mut answer) = gateway
        .run(move |gateway, store| {
            if let Wanted::Part(_) = wanted {
                let opened = read::open(store, &gateway.collector, &object)?.ok_or_else(no_such_key)?;
                conditions.check(&opened.facts)?;
                let answer = wanted.answer(&opened)?;
                return Ok((opened.facts, answer));
            }
            let info = store
                .head(&object)
                .map_err(|error| crate::s3::errors::of_engine(&error, &object))?;
            let facts = Facts::of(&info.ok_or_else(no_such_key)?);
            conditions.check(&facts)?;
            let answer = wanted.answer_for(facts.length)?;
            Ok((facts, answer))
        })
        .await?;
    let mut output = HeadObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        cache_control: facts.header("cache-control"),
        content_disposition: facts.header("content-disposition"),
        content_encoding: facts.header("content-encoding"),
        content_language: facts.header("content-language"),
        content_length: Some(signed(answer.range.end - answer.range.start)),
        content_range: answer.content_range.take(),
        content_type: Some(facts.content_type()),
        e_tag: Some(facts.etag()),
        expires: facts.expires(),
        last_modified: Some(record::timestamp(facts.modified)),
        metadata: facts.metadata(),
        parts_count: answer.parts,
        website_redirect_location: facts.header("x-amz-website-redirect-location"),
        ..HeadObjectOutput::default()
    };
    if wants_checksums(input.checksum_mode.as_ref(), output.content_range.is_some()) {
        set_checksums!(output, facts.checksums());
        output.checksum_type = facts.checksums().checksum_type;
    }
    Ok(S3Response::new(output))
}

/// Checksums are of the whole object, so they go only with all of it.
fn wants_checksums(mode: Option<&ChecksumMode>, partial: bool) -> bool {
    !partial && mode.is_some_and(|mode| mode.as_str().eq_ignore_ascii_case("ENABLED"))
}

fn tag_count(facts: &Facts) -> Option<i32> {
    let tagging = facts.tagging()?;
    i32::try_from(tagging.split('&').count()).ok()
}

/// What a request wants of an object.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    All,
    Range(Range),
    Part(i32),
}

/// What it gets.
struct Answer {
    range: std::ops::Range<u64>,
    content_range: Option<String>,
    parts: Option<i32>,
}

impl Wanted {
    fn of(range: Option<Range>, part: Option<i32>) -> S3Result<Self> {
        match (range, part) {
            (Some(_), Some(_)) => Err(s3_error!(
                InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter"
            )),
            (None, Some(number)) if !(1..=10_000).contains(&number) => Err(s3_error!(
                InvalidArgument,
                "Part number must be an integer between 1 and 10000, inclusive"
            )),
            (None, Some(number)) => Ok(Self::Part(number)),
            (Some(range), None) => Ok(Self::Range(range)),
            (None, None) => Ok(Self::All),
        }
    }

    fn answer(self, opened: &Opened) -> S3Result<Answer> {
        let length = opened.facts.length;
        let Self::Part(number) = self else {
            return self.answer_for(length);
        };
        let (range, parts) = range_of_part(opened, number)?;
        let content_range = (!range.is_empty()).then(|| content_range(&range, length));
        Ok(Answer {
            range,
            content_range,
            parts,
        })
    }

    fn answer_for(self, length: u64) -> S3Result<Answer> {
        let Self::Range(range) = self else {
            return Ok(Answer {
                range: 0..length,
                content_range: None,
                parts: None,
            });
        };
        // A suffix of nothing: `check` of an empty object gives an empty range, which no answer can name.
        let range = range.check(length).ok().filter(|range| !range.is_empty());
        let range = range.ok_or_else(|| unsatisfiable(length))?;
        let content_range = Some(content_range(&range, length));
        Ok(Answer {
            range,
            content_range,
            parts: None,
        })
    }
}

fn content_range(range: &std::ops::Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

fn unsatisfiable(length: u64) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::InvalidRange, "The requested range is not satisfiable");
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{length}")) {
        headers.insert(header::CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}

/// DeleteObject
pub async fn delete(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    check_key(&input.key)?;
    let bucket = gateway.buckets.get(&input.bucket)?;
    let requirement = Requirement {
        if_match: input.if_match,
        modified: input.if_match_last_modified_time,
        length: input.if_match_size,
        ..Requirement::default()
    };
    gateway
        .run(move |gateway, store| {
            let durability = gateway.durability;
            let outcome = commit::change(store, durability, &bucket, &input.key, &requirement, None, &|_| {})?;
            if outcome == (Outcome::Done { garbage: true }) {
                gateway.collector.wake();
            }
            Ok(())
        })
        .await?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
}

/// DeleteObjects: each for itself, and all durable before the answer.
pub async fn delete_many(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let delete = request.input.delete;
    if delete.objects.is_empty() || delete.objects.len() > DELETE_KEYS_MAX {
        return Err(s3_error!(
            MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema"
        ));
    }
    let bucket = gateway.buckets.get(&request.input.bucket)?;
    let quiet = delete.quiet.unwrap_or(false);
    let (deleted, errors) = gateway
        .run(move |gateway, store| {
            let (mut deleted, mut errors) = (Vec::new(), Vec::new());
            let mut garbage = false;
            let mut last = None;
            for object in delete.objects {
                let outcome = check_version(object.version_id.as_deref())
                    .and_then(|()| check_key(&object.key))
                    .and_then(|()| {
                        let requirement = Requirement {
                            if_match: object.e_tag.clone().map(ETagCondition::ETag),
                            modified: object.last_modified_time.clone(),
                            length: object.size,
                            ..Requirement::default()
                        };
                        commit::change(
                            store,
                            Durability::Buffered,
                            &bucket,
                            &object.key,
                            &requirement,
                            None,
                            &|_| {},
                        )
                    });
                match outcome {
                    Ok(outcome) => {
                        garbage |= outcome == (Outcome::Done { garbage: true });
                        last = Some(keyspace::object(&bucket.name, &object.key));
                        deleted.push(DeletedObject {
                            key: Some(object.key),
                            version_id: object.version_id.filter(|version| version == VERSION),
                            ..DeletedObject::default()
                        });
                    }
                    Err(error) => errors.push(Error {
                        code: Some(error.code().as_str().to_owned()),
                        key: Some(object.key),
                        message: error.message().map(str::to_owned),
                        version_id: object.version_id,
                    }),
                }
            }
            make_durable(gateway, store, last)?;
            if garbage {
                gateway.collector.wake();
            }
            Ok((deleted, errors))
        })
        .await?;
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: (!quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        request_charged: None,
    }))
}

/// Makes buffered commits durable with one that waits: an empty marker's delete, whose place in the log is behind them.
fn make_durable(gateway: &Gateway, store: &terrace::Store, last: Option<Vec<u8>>) -> S3Result {
    let Some(last) = last.filter(|_| gateway.durability == Durability::Sync) else {
        return Ok(());
    };
    let marker = keyspace::sync_marker();
    store
        .delete_with(&marker, terrace::Condition::None, Durability::Sync)
        .map_err(|error| crate::s3::errors::of_engine(&error, &last))?;
    Ok(())
}
