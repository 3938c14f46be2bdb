//! Objects: put, get, head, delete.

use super::{
    Answered, Conditions, acl, check_key, lock,
    said::{self, Said},
    wanted::{Answer, Wanted},
};
use crate::s3::ops::{reading, requirement, tag};
use crate::{
    conditions, customer, declared_fields, description, encryption,
    http::read_ahead::Held,
    locking,
    s3::{
        Gateway,
        access::{
            By,
            decide::{Action, Claim, Permit},
        },
        access_key::Level,
        bucket::Bucket,
        commit::{Place, Requirement},
        crypt::{
            self, Sealing,
            request::{self, CustomerKey, Told},
        },
        digest::{self, Algorithm},
        errors::Told as _,
        head::Head,
        keyspace,
        read::{self, Opened},
        receive::{self, Incoming, Received, Target},
        record::{self, Description, Facts},
        secrets::Secrets,
        versions::{self, Name},
    },
    set_checksums, set_encryption_of_new,
};
use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use s3s::{
    Body, S3Error, S3Request, S3Response, S3Result,
    dto::{
        ChecksumMode, ETag, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Metadata,
        PutObjectInput, PutObjectOutput,
    },
    s3_error,
};
use std::{net::IpAddr, sync::Arc};
use terrace::{Attributes, Store};
use terrace_objects::keep::{Kept, keep, try_keep};

/// PutObject
pub async fn put(gateway: &Arc<Gateway>, request: S3Request<PutObjectInput>) -> Answered<PutObjectOutput> {
    let trailing = receive::trailing(&request);
    let mut input = request.input;
    check_key(&input.key)?;
    let is_form = Head::of(&request.extensions).is_ok_and(|head| head.is_form);
    let by = (&request.extensions, request.credentials.as_ref());
    // The key of a form is checked only here.
    let claim = gateway.claim(by, Action::Write, &gateway.bucket(&input.bucket)?);
    let permit = claim.about("s3:PutObject", &input.key).on_bucket().told()?;
    let bucket = permit.bucket();
    let reading = || reading(gateway, by, bucket, &input.key, None);
    let [if_match, if_none_match] = [&input.if_match, &input.if_none_match].map(|given| given.clone().map(tag));
    let requirement = requirement(reading, if_match, if_none_match)?;
    let attributes = checked_description(gateway, by, bucket, description!(input), locking!(input))?;
    let sealing = encryption!(input).sealing_by(gateway, by, bucket).await?;
    let incoming = Incoming {
        sender: Head::of(&request.extensions)?.sender(),
        body: input.body.take(),
        length: receive::announced(&request.headers, input.content_length),
        md5: digest::content_md5(input.content_md5.as_deref())?,
        declared: digest::declared(declared_fields!(input))?,
        trailing,
        algorithms: asked_algorithm(input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()))?,
        data_key: sealing.as_ref().map(|sealing| sealing.data_key.clone()),
    };
    let told = sealing.as_ref().map(Sealing::told);
    // Before the body, so that a client does not send it needlessly; the commit checks again.
    if requirement.if_match.is_some() || requirement.if_none_match.is_some() {
        let (requirement, object) = (requirement.clone(), keyspace::object(&bucket.name, &input.key));
        gateway
            .run(move |_, store| {
                let found = store
                    .head(&object)
                    .map_err(|error| crate::s3::errors::of_engine(&error, &object))?;
                requirement.check(found.map(|info| Facts::of(&info)).as_ref()).told()
            })
            .await?;
    }
    let (received, _held) = receive::receive(gateway, incoming, Target::Object).await?;
    let key = input.key;
    let kept = commit(gateway, permit, key, &requirement, attributes, (received, sealing)).await?;
    let mut output = PutObjectOutput {
        e_tag: Some(ETag::Strong(kept.etag)),
        expiration: kept.expiration.and_then(said::expiration),
        version_id: said::made(kept.version),
        ..PutObjectOutput::default()
    };
    set_checksums!(output, digest::stored(&kept.attributes));
    output.checksum_type = digest::stored(&kept.attributes).checksum_type;
    let headers = if is_form {
        said_of_form(&mut output, told.as_ref())
    } else {
        HeaderMap::new()
    };
    set_encryption_of_new!(output, told);
    Ok(S3Response::with_headers(output, headers))
}

/// Commits a received object: on this thread if nothing blocks, otherwise on one that may block.
/// The bucket is the one in which it was permitted, even if a new one has its name.
///
/// # Errors
/// As `terrace_objects::keep::keep`.
pub async fn commit(
    gateway: &Arc<Gateway>,
    permit: Permit,
    key: String,
    requirement: &Requirement,
    attributes: Attributes,
    (received, sealing): (Received, Option<Sealing>),
) -> S3Result<Kept> {
    if sealing.is_none() {
        let place = gateway.place(&permit, &key);
        if let Some((kept, committing)) = try_keep(place, requirement, attributes.clone(), &received) {
            gateway.committed(committing, &key).await?;
            return Ok(kept);
        }
    }
    let (held, requirement) = (Arc::clone(permit.bucket()), requirement.clone());
    gateway
        .run_in_turn(&held, &key.clone(), move |gateway, store| {
            let place = Place {
                store,
                durability: gateway.durability,
                permit: &permit,
                key: &key,
            };
            keep(&gateway.collector, place, &requirement, attributes, (received, sealing)).told()
        })
        .await
}

/// The headers of an answer to a form that an answer to a PUT has: `s3s` writes only XML or a
/// location, and the entity tag without quotes.
fn said_of_form(output: &mut PutObjectOutput, told: Option<&Told>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let tag = output.e_tag.take().map(|tag| format!("\"{}\"", tag.value()));
    let [version, expiration] = ["x-amz-version-id", "x-amz-expiration"].map(HeaderName::from_static);
    let encrypted = told.map(request::headers).unwrap_or_default().into_iter();
    let said = [
        (header::ETAG, tag.as_deref()),
        (version, output.version_id.as_deref()),
        (expiration, output.expiration.as_deref()),
    ];
    let encrypted = encrypted.map(|(name, value)| (HeaderName::from_static(name), Some(value)));
    for (name, text) in said.into_iter().chain(encrypted) {
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
    output.e_tag = tag.map(ETag::Strong);
    headers
}

/// The checksum algorithm that a client names.
pub fn asked_algorithm(name: Option<&str>) -> S3Result<Vec<Algorithm>> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let algorithm = Algorithm::parse(name);
    algorithm
        .map(|algorithm| vec![algorithm])
        .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"))
}

/// The attributes of a description with checked tags and access control list.
///
/// # Errors
/// Errors of the headers.
pub fn checked_description(
    gateway: &Gateway,
    by: By<'_>,
    bucket: &Arc<Bucket>,
    mut description: Description,
    locking: lock::Asked,
) -> S3Result<Attributes> {
    description.check_redirect()?;
    let asked = std::mem::take(&mut description.acl);
    let (list, account) = acl::of_new(gateway, by, bucket, &asked)?;
    if let Some(tagging) = description.tagging.take() {
        description.tagging = Some(super::tagging::normal(&tagging)?);
    }
    let attributes = record::with_list(&description.into_attributes()?, &list);
    let mut attributes = record::of_account(&attributes, account.as_deref());
    let may_lock = |action| {
        let has_level = gateway.level(by.1, bucket) == Some(Level::Admin);
        gateway.is_trusted(by, has_level, action, bucket)
    };
    locking.apply(may_lock, bucket, &mut attributes, gateway.clock().now_ms())?;
    Ok(attributes)
}

/// The parameters of a GET.
struct Question {
    claim: Claim,
    key: String,
    name: Option<Name>,
    conditions: Conditions,
    wanted: Wanted,
    customer: Option<CustomerKey>,
    sender: IpAddr,
}

/// A begun answer.
struct Begun {
    opened: Opened,
    answer: Answer,
    first: Bytes,
    /// The memory that it holds.
    held: Held,
}

impl Question {
    /// Opens the object: on this thread if all of it is in RAM, otherwise on one that may wait.
    async fn ask(self, gateway: &Arc<Gateway>) -> S3Result<(Self, Begun)> {
        let store = gateway.engine.now();
        let in_ram = || {
            let object = keyspace::object(&self.claim.bucket().name, &self.key);
            read::open_in_ram(store, &object, |facts| self.claim.on(facts).ok())
        };
        if let Some(opened) = self.name.is_none().then(in_ram).flatten() {
            let begun = self.begin(gateway, store, opened)?;
            return Ok((self, begun));
        }
        gateway
            .run(move |gateway, store| {
                let reading = gateway.shared.reading();
                let opened =
                    versions::open_with(store, &reading, &gateway.collector, &self.claim, &self.key, self.name)
                        .told()?;
                let begun = self.begin(gateway, store, opened)?;
                if begun.answer.range.start == 0 {
                    read::note(store, &reading, &begun.opened);
                }
                Ok((self, begun))
            })
            .await
    }

    /// Seeks to the requested bytes, and reads the first piece.
    fn begin(&self, gateway: &Gateway, store: &Store, mut opened: Opened) -> S3Result<Begun> {
        opened.unlock(&gateway.shared.secrets, self.customer.as_ref()).told()?;
        self.conditions.check(&opened.facts)?;
        let answer = self.wanted.answer(&opened)?;
        opened.seek(answer.range.clone()).told()?;
        let bytes = match &answer.several {
            // Each range may have its own pieces.
            Some(_) => opened.facts.length,
            None => answer.range.end - answer.range.start,
        };
        let held = gateway.shared.ahead.begin(self.sender, &mut opened, bytes);
        let first = opened.next_piece(store).told()?;
        Ok(Begun {
            opened,
            answer,
            first,
            held,
        })
    }
}

/// GetObject
pub async fn get(gateway: &Arc<Gateway>, request: S3Request<GetObjectInput>) -> Answered<GetObjectOutput> {
    let mut input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let by = (&request.extensions, request.credentials.as_ref());
    let question = Question {
        claim: gateway.claim(by, Action::reading(name.is_some()), &bucket),
        key: input.key,
        name,
        conditions: conditions!(input),
        wanted: Wanted::of(input.range, input.part_number)?.with(&request.extensions, &request.headers)?,
        customer: customer!(input).read()?,
        sender: Head::of(&request.extensions)?.sender(),
    };
    let (asked, begun) = question.ask(gateway).await?;
    let Begun {
        opened,
        mut answer,
        first,
        held,
    } = begun;
    let several = answer.several.take();
    let said = Said {
        claim: &asked.claim,
        key: current(&asked.key, name),
        facts: &opened.facts,
        answer: &answer,
        with_checksums: wants_checksums(input.checksum_mode.as_ref()),
        customer: asked.customer.as_ref(),
    };
    let mut head = said.head_with_body(opened.home());
    // `s3s` writes the response headers that a signed request chooses where these would replace
    // them.
    let chosen = [
        (header::CONTENT_TYPE, input.response_content_type.is_some()),
        (header::CONTENT_LANGUAGE, input.response_content_language.is_some()),
        (header::EXPIRES, input.response_expires.is_some()),
        (header::CACHE_CONTROL, input.response_cache_control.is_some()),
        (
            header::CONTENT_DISPOSITION,
            input.response_content_disposition.is_some(),
        ),
        (header::CONTENT_ENCODING, input.response_content_encoding.is_some()),
    ];
    for (name, _) in chosen.into_iter().filter(|(_, is_chosen)| *is_chosen) {
        head.remove(name);
    }
    let mut output = GetObjectOutput {
        metadata: opened.facts.encoded_metadata(),
        ..GetObjectOutput::default()
    };
    let Some(several) = several else {
        output.body = Some(read::stream(gateway, opened, first, held));
        return Ok(S3Response::with_headers(output, head));
    };
    head.remove(header::CONTENT_RANGE);
    head.insert(header::CONTENT_LENGTH, HeaderValue::from(several.bytes()));
    head.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_str(&several.kind()).map_err(S3Error::internal_error)?,
    );
    output.body = Some(read::stream_several(gateway, opened, (first, held), several));
    let mut response = S3Response::with_headers(output, head);
    // The front recognises one range by its header, and several by this.
    response.extensions.insert(StatusCode::PARTIAL_CONTENT);
    Ok(response)
}

/// HeadObject: the answer to a GET without its body; the value is not read.
pub async fn head(gateway: &Arc<Gateway>, request: S3Request<HeadObjectInput>) -> Answered<HeadObjectOutput> {
    let mut input = request.input;
    let name = Name::parse(input.version_id.as_deref()).told()?;
    let bucket = gateway.bucket(&input.bucket)?;
    let claim = gateway.claim(
        (&request.extensions, request.credentials.as_ref()),
        Action::reading(name.is_some()),
        &bucket,
    );
    let conditions = conditions!(input);
    let wanted = Wanted::of(input.range, input.part_number)?.with(&request.extensions, &request.headers)?;
    let customer = customer!(input).read()?;
    let chosen = [
        (header::CONTENT_TYPE, input.response_content_type),
        (header::CONTENT_LANGUAGE, input.response_content_language),
        (header::EXPIRES, input.response_expires.as_ref().map(record::http_date)),
        (header::CACHE_CONTROL, input.response_cache_control),
        (header::CONTENT_DISPOSITION, input.response_content_disposition),
        (header::CONTENT_ENCODING, input.response_content_encoding),
    ];
    let asked = HeadAsked {
        claim,
        key: input.key,
        name,
        conditions,
        wanted,
        customer,
        with_checksums: wants_checksums(input.checksum_mode.as_ref()),
    };
    let object = keyspace::object(&bucket.name, &asked.key);
    let may_be_in_ram = name.is_none() && !asked.wanted.is_part();
    let in_ram = || read::describe_in_ram(gateway.engine.now(), &object, &asked.claim);
    let (mut head, metadata) = match may_be_in_ram.then(in_ram).flatten() {
        Some(facts) => asked.said(&gateway.shared.secrets, &facts, &object)?,
        None => {
            gateway
                .run(move |gateway, store| {
                    let secrets = &gateway.shared.secrets;
                    if !asked.wanted.is_part() {
                        let facts = versions::describe(store, &asked.claim, &asked.key, name).told()?;
                        return asked.said(secrets, &facts, &object);
                    }
                    let mut opened =
                        versions::open(store, &gateway.collector, &asked.claim, &asked.key, name).told()?;
                    opened.unlock(secrets, asked.customer.as_ref()).told()?;
                    asked.conditions.check(&opened.facts)?;
                    let answer = asked.wanted.answer(&opened)?;
                    Ok(asked.said_of(&opened.facts, &answer))
                })
                .await?
        }
    };
    for (name, text) in chosen {
        if let Some(text) = text {
            let value = HeaderValue::from_str(&text);
            head.insert(
                name,
                value.map_err(|_| s3_error!(InvalidArgument, "A header cannot have this value."))?,
            );
        }
    }
    let output = HeadObjectOutput {
        metadata,
        ..HeadObjectOutput::default()
    };
    Ok(S3Response::with_headers(output, head))
}

/// The parameters of a HEAD.
struct HeadAsked {
    claim: Claim,
    key: String,
    name: Option<Name>,
    conditions: Conditions,
    wanted: Wanted,
    customer: Option<CustomerKey>,
    with_checksums: bool,
}

/// The head of an answer, and the metadata that `s3s` adds.
type HeadSaid = (HeaderMap, Option<Metadata>);

impl HeadAsked {
    /// The head for an object, or for ranges of it; `object` is its key in the store.
    fn said(&self, secrets: &Secrets, facts: &Facts, object: &[u8]) -> S3Result<HeadSaid> {
        crypt::check_key(facts, object, secrets, self.customer.as_ref()).told()?;
        self.conditions.check(facts)?;
        Ok(self.said_of(facts, &self.wanted.answer_for(facts)?))
    }

    fn said_of(&self, facts: &Facts, answer: &Answer) -> HeadSaid {
        let said = Said {
            claim: &self.claim,
            key: current(&self.key, self.name),
            facts,
            answer,
            with_checksums: self.with_checksums,
            customer: self.customer.as_ref(),
        };
        (said.head(), facts.encoded_metadata())
    }
}

/// The answer to a plain GET of the current object, if all of it is in RAM and nothing must be
/// waited for. `None` says nothing about the object.
pub fn get_at_once(
    gateway: &Gateway,
    claim: &Claim,
    key: &str,
    with_checksums: bool,
    sender: IpAddr,
) -> Option<(HeaderMap, Body)> {
    let store = gateway.engine.now();
    check_key(key).ok()?;
    let object = keyspace::object(&claim.bucket().name, key);
    let may_read = |facts: &Facts| claim.on(facts).ok().filter(|_| is_plain(facts));
    let mut opened = read::open_in_ram(store, &object, may_read)?;
    let length = opened.facts.length;
    // Without memory only a part of it is read.
    let held = gateway.shared.ahead.begin(sender, &mut opened, length);
    let body = held.hold(opened.next_piece(store).ok()?);
    let answer = Answer::whole(length);
    let said = said_at_once(claim, key, &opened.facts, &answer, with_checksums);
    let head = said.head_with_body(opened.home());
    (body.len() as u64 == length).then_some(())?;
    read::note_in_ram(store, &opened);
    Some((head, Body::from(body)))
}

/// The same to a HEAD.
pub fn head_at_once(gateway: &Gateway, claim: &Claim, key: &str, with_checksums: bool) -> Option<HeaderMap> {
    check_key(key).ok()?;
    let object = keyspace::object(&claim.bucket().name, key);
    let facts = read::describe_in_ram(gateway.engine.now(), &object, claim).filter(is_plain)?;
    let answer = Answer::whole(facts.length);
    Some(said_at_once(claim, key, &facts, &answer, with_checksums).head())
}

/// Encrypted objects may need a key, and decrypting takes time.
fn is_plain(facts: &Facts) -> bool {
    facts.encoded_metadata().is_none() && facts.encryption.is_none()
}

fn said_at_once<'a>(
    claim: &'a Claim,
    key: &'a str,
    facts: &'a Facts,
    answer: &'a Answer,
    with_checksums: bool,
) -> Said<'a> {
    Said {
        claim,
        key: Some(key),
        facts,
        answer,
        with_checksums,
        customer: None,
    }
}

/// The key of an object whose expiry an answer may have: named versions have none.
fn current(key: &str, name: Option<Name>) -> Option<&str> {
    Some(key).filter(|_| name.is_none())
}

fn wants_checksums(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str().eq_ignore_ascii_case("ENABLED"))
}
