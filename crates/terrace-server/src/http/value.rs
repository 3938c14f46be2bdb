//! `/images/ID/RESOLUTION`: values, whole or in part, as streams.
//!
//! A value is read in pieces, each in one engine call, into a short channel that the connection
//! drains. A client that goes away, or takes nothing for a while, closes the channel; the reader is
//! dropped with it and unpins what it read. If the engine finds damage in the middle of a value the
//! connection is cut, so that no client takes half a value for a whole one.

use super::{
    App, CLIENT_TIME_MAX,
    body::PieceBody,
    conditional::{self, Answer, Requested, Validators},
    engine::{Calls as _, Engine},
    ranges::content_range,
    refusal::{Checked, Refusal},
};
use axum::{
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use std::{io, sync::Arc, time::SystemTime};
use terrace::{ObjectInfo, Reader};
use terrace_objects::local::{self, Reading, Shown, Values};
use tokio::sync::mpsc;

/// Bytes to read of a device at a time: most images are had by one seek of a disk.
const READ_BYTES: usize = 1 << 20;
/// Pieces read ahead of the client.
const PIECES_AHEAD: usize = 2;

/// `?v=VERSION`: names one version of the value, so that the answer may be cached for good.
#[derive(Debug, Default, serde::Deserialize)]
pub struct Wanted {
    v: Option<u64>,
}

/// GET
pub async fn get(
    State(app): State<Arc<App>>,
    Checked(Path((id, resolution))): Checked<Path<(String, String)>>,
    Checked(Query(wanted)): Checked<Query<Wanted>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let key = key(&id, &resolution);
    // A conditional request is usually answered without the value, so it looks at the object only.
    if headers.contains_key(header::IF_NONE_MATCH) || headers.contains_key(header::IF_MODIFIED_SINCE) {
        let (facts, _, unchanged) = look(&app, &id, &resolution, &headers).await?;
        if unchanged {
            return Ok(respond(StatusCode::NOT_MODIFIED, &facts, &wanted, None, Body::empty()));
        }
    }
    let reading = app.beside.reading.clone();
    let opened = app
        .engine
        .call(move |store| open(store, &key, &headers, &reading))
        .await?;
    let Opened {
        info,
        length,
        answer,
        source,
        first,
    } = opened.ok_or_else(|| missing(&id, &resolution))?;
    let facts = Facts::of(&info);
    let range = match answer {
        Answer::Whole => 0..length,
        Answer::Part(range) => range,
        Answer::NotModified => return Ok(respond(StatusCode::NOT_MODIFIED, &facts, &wanted, None, Body::empty())),
        Answer::Unsatisfiable => return Ok(unsatisfiable(&facts, length)),
    };
    let is_part = range != (0..length);
    let bytes = range.end - range.start;
    let body = if first.len() as u64 == bytes {
        Body::from(first)
    } else {
        Body::new(stream(app.engine.clone(), source, first, bytes))
    };
    let content_range = is_part.then(|| content_range(&range, length));
    let status = if is_part {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    Ok(respond(status, &facts, &wanted, Some((bytes, content_range)), body))
}

/// HEAD: the answer to a GET without its body; the value is not touched. `Range` only applies to
/// GET.
pub async fn head(
    State(app): State<Arc<App>>,
    Checked(Path((id, resolution))): Checked<Path<(String, String)>>,
    Checked(Query(wanted)): Checked<Query<Wanted>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (facts, length, unchanged) = look(&app, &id, &resolution, &headers).await?;
    if unchanged {
        return Ok(respond(StatusCode::NOT_MODIFIED, &facts, &wanted, None, Body::empty()));
    }
    Ok(respond(
        StatusCode::OK,
        &facts,
        &wanted,
        Some((length, None)),
        Body::empty(),
    ))
}

/// Looks at an object without reading its value: the facts, its length, and whether the client has
/// it already.
async fn look(app: &App, id: &str, resolution: &str, headers: &HeaderMap) -> Result<(Facts, u64, bool), Refusal> {
    let key = key(id, resolution);
    let info = app
        .engine
        .call(move |store| {
            let shown = Shown::of(store, &key)?;
            match store.head(&key)? {
                Some(info) if shown.has(&info)? => Ok(Some(info)),
                _ => Ok::<_, terrace::Error>(None),
            }
        })
        .await?
        .ok_or_else(|| missing(id, resolution))?;
    let facts = Facts::of(&info);
    let unchanged = conditional::is_unchanged(&headers_of(headers).as_requested(), &facts.validators());
    Ok((facts, local::length(&info), unchanged))
}

fn key(id: &str, resolution: &str) -> Vec<u8> {
    format!("{}{id}/{resolution}", terrace_images::IMAGES_PREFIX).into_bytes()
}

fn missing(id: &str, resolution: &str) -> Refusal {
    Refusal::not_found(format!(
        "image {id} has no stored resolution {resolution}, or there is no such image"
    ))
}

/// A value that is open at the start of what was asked for, with the first piece of it.
struct Opened {
    info: ObjectInfo,
    length: u64,
    answer: Answer,
    source: Source,
    first: Bytes,
}

/// Where a value is read from.
enum Source {
    /// The object itself.
    Record(Reader),
    /// Values of its own, as S3 writes what is large.
    Values(Box<Values>),
}

impl Source {
    fn seek_to(&mut self, offset: u64) -> terrace::Result<()> {
        match self {
            Self::Record(reader) => reader.seek_to(offset),
            Self::Values(values) => values.seek_to(offset),
        }
    }

    /// The next piece, at most `left` bytes; empty only if there are none. One device read brings
    /// it and some after it.
    fn next_piece(&mut self, left: u64) -> terrace::Result<Bytes> {
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let mut piece = match self {
            Self::Record(reader) => reader.read_piece(left.min(READ_BYTES))?,
            Self::Values(values) => values.next_piece()?,
        };
        piece.truncate(left);
        Ok(piece)
    }
}

fn open(store: &terrace::Store, key: &[u8], headers: &HeaderMap, reading: &Reading) -> Result<Option<Opened>, Refusal> {
    let shown = Shown::of(store, key)?;
    let (info, mut source) = match shown.open(key, reading)? {
        Some(values) => (values.info(), Source::Values(Box::new(values))),
        None => match store.reader_with(key, &reading.options())? {
            Some(reader) if !local::has_values(reader.info()) && shown.has(reader.info())? => {
                (reader.info().clone(), Source::Record(reader))
            }
            _ => return Ok(None),
        },
    };
    let length = local::length(&info);
    let answer = conditional::decide(
        &headers_of(headers).as_requested(),
        &Facts::of(&info).validators(),
        length,
    );
    let range = match &answer {
        Answer::Whole => 0..length,
        Answer::Part(range) => range.clone(),
        Answer::NotModified | Answer::Unsatisfiable => 0..0,
    };
    if range.start > 0 {
        source.seek_to(range.start)?;
    }
    let first = read_piece(&mut source, range.end - range.start)?;
    Ok(Some(Opened {
        info,
        length,
        answer,
        source,
        first,
    }))
}

/// Reads the next piece of what is left, which is at most `left` bytes.
fn read_piece(source: &mut Source, left: u64) -> Result<Bytes, Refusal> {
    let piece = source.next_piece(left)?;
    if piece.is_empty() && left > 0 {
        return Err(Refusal::internal("the value is shorter than the store says"));
    }
    Ok(piece)
}

fn stream(engine: Engine, source: Source, first: Bytes, bytes: u64) -> PieceBody {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    tokio::spawn(feed(engine, source, first, bytes, sender));
    PieceBody::new(Bytes::new(), pieces, bytes)
}

/// Sends the value piece by piece until it is through or nobody takes it.
async fn feed(engine: Engine, source: Source, first: Bytes, bytes: u64, sender: mpsc::Sender<io::Result<Bytes>>) {
    let mut left = bytes - first.len() as u64;
    let mut source = Some(source);
    let mut next = Ok(first);
    loop {
        let failed = next.is_err();
        let sent = tokio::time::timeout(CLIENT_TIME_MAX, sender.send(next)).await;
        if failed || left == 0 || !matches!(sent, Ok(Ok(()))) {
            return;
        }
        let Some(mut current) = source.take() else { return };
        let read = engine
            .call(move |_| read_piece(&mut current, left).map(|piece| (current, piece)))
            .await;
        next = match read {
            Ok((back, piece)) => {
                source = Some(back);
                left -= piece.len() as u64;
                Ok(piece)
            }
            Err(_) => Err(io::Error::other("the value could not be read to its end")),
        };
    }
}

/// What the headers of an answer say about an object.
struct Facts {
    version: u64,
    etag: String,
    modified: Option<SystemTime>,
    content_type: HeaderValue,
}

impl Facts {
    fn of(info: &ObjectInfo) -> Self {
        use terrace_images::attribute;
        let stored = info
            .attributes
            .get_str(attribute::ETAG)
            .filter(|tag| is_strong_tag(tag));
        let etag = stored.map_or_else(
            || format!("\"{:x}-{:08x}\"", info.version.0, info.checksum),
            str::to_owned,
        );
        let content_type = info
            .attributes
            .get(attribute::CONTENT_TYPE)
            .and_then(|text| HeaderValue::from_bytes(text).ok());
        Self {
            version: info.version.0,
            etag,
            modified: info
                .attributes
                .get_str("last-modified")
                .and_then(|text| httpdate::parse_http_date(text).ok()),
            content_type: content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
        }
    }

    fn validators(&self) -> Validators<'_> {
        Validators {
            etag: &self.etag,
            modified: self.modified,
        }
    }
}

/// Whether a stored attribute is a strong entity tag that can go into a header as it is.
fn is_strong_tag(tag: &str) -> bool {
    let inner = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'))
}

/// The request's headers that matter, with several lines of a list joined.
struct RequestHeaders<'a> {
    if_none_match: Option<String>,
    headers: &'a HeaderMap,
}

fn headers_of(headers: &HeaderMap) -> RequestHeaders<'_> {
    let lines: Vec<_> = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .collect();
    RequestHeaders {
        if_none_match: (!lines.is_empty()).then(|| lines.join(",")),
        headers,
    }
}

impl RequestHeaders<'_> {
    fn as_requested(&self) -> Requested<'_> {
        let one = |name: HeaderName| self.headers.get(name).and_then(|line| line.to_str().ok());
        Requested {
            if_none_match: self.if_none_match.as_deref(),
            if_modified_since: one(header::IF_MODIFIED_SINCE),
            range: one(header::RANGE),
            if_range: one(header::IF_RANGE),
        }
    }
}

/// An answer about a value: its length and Content-Range where it carries one (or, to HEAD, would).
fn respond(
    status: StatusCode,
    facts: &Facts,
    wanted: &Wanted,
    content: Option<(u64, Option<String>)>,
    body: Body,
) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    set(header::ETAG, &facts.etag);
    // The version in the address changes with the value; without it, ask again each time.
    let lasting = wanted.v == Some(facts.version);
    set(
        header::CACHE_CONTROL,
        if lasting {
            "private, max-age=31536000, immutable"
        } else {
            "private, no-cache"
        },
    );
    if let Some(modified) = facts.modified {
        set(header::LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    }
    if let Some((bytes, content_range)) = content {
        set(header::ACCEPT_RANGES, "bytes");
        set(header::CONTENT_LENGTH, &bytes.to_string());
        if let Some(range) = content_range {
            set(header::CONTENT_RANGE, &range);
        }
        headers.insert(header::CONTENT_TYPE, facts.content_type.clone());
    }
    response
}

fn unsatisfiable(facts: &Facts, length: u64) -> Response {
    let message = format!("the value has {length} bytes; the range asked for begins after them");
    let mut response = Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, message).into_response();
    for (name, text) in [
        (header::CONTENT_RANGE, format!("bytes */{length}")),
        (header::ETAG, facts.etag.clone()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
