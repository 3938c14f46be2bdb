//! `/images/ID/RESOLUTION`: values, whole or in part, as streams.
//!
//! A value is read in pieces as the connection requests them ([`super::download`]). If the engine
//! finds damage within a value the connection is cut, so that no client takes a part for the whole.

use super::{
    App, Beside,
    conditional::{self, Answer, Requested, Validators},
    download::Download,
    engine::Calls as _,
    ranges::content_range,
    read_ahead::Held,
    refusal::{Checked, Refusal},
};
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};
use terrace::{ObjectInfo, RamAnswer, Store};
use terrace_objects::{
    local::{self, Shown},
    read::{self, Opened},
};

/// `?v=VERSION`: names one version of the value, so that the answer may be cached without limit.
#[derive(Debug, Default, serde::Deserialize)]
pub struct Wanted {
    v: Option<u64>,
}

/// GET
pub async fn get(
    State(app): State<Arc<App>>,
    Checked(Path((id, resolution))): Checked<Path<(String, String)>>,
    Checked(Query(wanted)): Checked<Query<Wanted>>,
    Extension(peer): Extension<SocketAddr>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let key = key(&id, &resolution);
    // A conditional request is usually answered without the value, so only the object's facts are
    // read.
    if headers.contains_key(header::IF_NONE_MATCH) || headers.contains_key(header::IF_MODIFIED_SINCE) {
        let (facts, _, unchanged) = look(&app, &id, &resolution, &headers).await?;
        if unchanged {
            return Ok(respond(StatusCode::NOT_MODIFIED, &facts, &wanted, None, Body::empty()));
        }
    }
    let begun = match begin_in_ram(&app, &key, &headers, peer.ip()) {
        Some(begun) => Some(begun?),
        None => begin_by_call(&app, key, headers, peer.ip()).await?,
    };
    let Begun {
        opened,
        answer,
        first,
        held,
    } = begun.ok_or_else(|| missing(&id, &resolution))?;
    let (facts, length) = (Facts::of(&opened.info), opened.facts.length);
    let range = match answer {
        Answer::Whole => 0..length,
        Answer::Part(range) => range,
        Answer::NotModified => return Ok(respond(StatusCode::NOT_MODIFIED, &facts, &wanted, None, Body::empty())),
        Answer::Unsatisfiable => return Ok(unsatisfiable(&facts, length)),
    };
    let is_part = range != (0..length);
    let bytes = range.end - range.start;
    let body = if first.len() as u64 == bytes {
        Body::from(held.hold(first))
    } else {
        Body::new(Download::new(&app.engine, opened, first, held))
    };
    let content_range = is_part.then(|| content_range(&range, length));
    let status = if is_part {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    Ok(respond(status, &facts, &wanted, Some((bytes, content_range)), body))
}

/// HEAD: the answer to a GET without its body; the value is not read. `Range` only applies to GET.
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

/// Reads an object's metadata: its length, and whether the client has it already.
async fn look(app: &App, id: &str, resolution: &str, headers: &HeaderMap) -> Result<(Facts, u64, bool), Refusal> {
    let key = key(id, resolution);
    let shown = Shown::of(&app.beside.buckets, &key);
    let in_ram = app.engine.now().head_in_ram(&key).ok().and_then(RamAnswer::found);
    let info = match in_ram {
        Some(info) => Some(info),
        None => app.engine.call(move |store| store.head(&key)).await?,
    };
    let info = info.filter(|info| shown.has(info));
    let info = info.ok_or_else(|| missing(id, resolution))?;
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

/// A begun answer.
struct Begun {
    opened: Opened,
    answer: Answer,
    first: Bytes,
    held: Held,
}

/// Begins an answer if all of the value is in RAM and nothing must be waited for. `None` says
/// nothing about the value.
fn begin_in_ram(app: &App, key: &[u8], headers: &HeaderMap, sender: IpAddr) -> Option<Result<Begun, Refusal>> {
    let store = app.engine.now();
    let opened = Shown::of(&app.beside.buckets, key).open_in_ram(store, key)?;
    // Decryption takes time.
    if opened.facts.encryption.is_some() {
        return None;
    }
    let begun = begin(store, opened, headers, &app.beside, sender);
    if let Ok(Begun {
        opened,
        answer: Answer::Whole,
        ..
    }) = &begun
    {
        read::note_in_ram(store, opened);
    }
    Some(begun)
}

/// Begins an answer on a thread that may wait. `None` if there is no such object for the page.
async fn begin_by_call(
    app: &Arc<App>,
    key: Vec<u8>,
    headers: HeaderMap,
    sender: IpAddr,
) -> Result<Option<Begun>, Refusal> {
    let shared = Arc::clone(app);
    let call = move |store: &Store| {
        let shown = Shown::of(&shared.beside.buckets, &key);
        let opened = shown.open(store, &key, &shared.beside.reading)?;
        opened
            .map(|opened| begin(store, opened, &headers, &shared.beside, sender))
            .transpose()
    };
    app.engine.call(call).await
}

/// Seeks to the requested bytes, and reads the first piece.
fn begin(
    store: &Store,
    mut opened: Opened,
    headers: &HeaderMap,
    beside: &Beside,
    sender: IpAddr,
) -> Result<Begun, Refusal> {
    let answer = conditional::decide(
        &headers_of(headers).as_requested(),
        &Facts::of(&opened.info).validators(),
        opened.facts.length,
    );
    let range = match &answer {
        Answer::Whole => 0..opened.facts.length,
        Answer::Part(range) => range.clone(),
        Answer::NotModified | Answer::Unsatisfiable => 0..0,
    };
    let failed = |error| local::failed(error, beside.reading.large_wait.unwrap_or_default());
    let bytes = range.end - range.start;
    opened.seek(range).map_err(failed)?;
    let held = beside.ahead.begin(sender, &mut opened, bytes);
    let first = opened.next_piece(store).map_err(failed)?;
    Ok(Begun {
        opened,
        answer,
        first,
        held,
    })
}

/// The headers of an object.
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

/// Whether a stored attribute is a strong entity tag that can be sent as a header.
fn is_strong_tag(tag: &str) -> bool {
    let inner = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'))
}

/// The relevant headers of a request, with several lines of a list joined.
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

/// An answer for a value: its length, and Content-Range where it has one (or would, for HEAD).
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
    // The version in the address changes with the value; without it, clients must revalidate.
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
