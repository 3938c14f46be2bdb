//! The JSON of the page: the grid, one image, figures.
//!
//! The grid is one scan of `catalogue/` per request, however many images there are: attributes are
//! in the ordered index, so no value is read. Names and numbers in attributes come from untrusted
//! files; they are sent as JSON strings, and the page inserts them as text.

use super::{
    App, ImportWatch,
    engine::Calls as _,
    refusal::{Checked, Refusal},
};
use crate::{key_text, report};
use axum::{
    Json,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use terrace::{Attributes, ObjectInfo, ScanRange, Store};
use terrace_images::{CATALOGUE_PREFIX, IMAGES_PREFIX, attribute};
use terrace_objects::{bucket::Buckets, local::Shown};

/// Images per answer if the request does not say.
const LIMIT_DEFAULT: usize = 200;
/// Most images per answer.
const LIMIT_MAX: usize = 1000;
/// Most resolutions listed of one image.
const RESOLUTIONS_MAX: usize = 1000;

/// The images to list.
#[derive(Debug, serde::Deserialize)]
pub struct Page {
    /// First ID is the one after this.
    pub after: Option<String>,
    pub limit: Option<usize>,
}

/// `/api/images?after=ID&limit=N`
pub async fn images(
    State(app): State<Arc<App>>,
    Checked(Query(page)): Checked<Query<Page>>,
) -> Result<Response, Refusal> {
    let limit = page.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Refusal::bad_request(format!("limit must be between 1 and {LIMIT_MAX}")));
    }
    let buckets = Arc::clone(&app.beside.buckets);
    let answer = app
        .engine
        .call(move |store| list(store, &buckets, page.after.as_deref(), limit))
        .await?;
    Ok(fresh(answer))
}

fn list(store: &Store, buckets: &Buckets, after: Option<&str>, limit: usize) -> terrace::Result<Value> {
    let mut range = ScanRange::prefix(CATALOGUE_PREFIX);
    if let Some(id) = after.filter(|id| !id.is_empty()) {
        range = range.after(format!("{CATALOGUE_PREFIX}{id}"));
    }
    let scan = store.scan(range)?;
    let shown = Shown::of(buckets, CATALOGUE_PREFIX.as_bytes());
    let mut images = Vec::with_capacity(limit);
    let mut last = None;
    for item in scan {
        if images.len() == limit {
            return Ok(json!({ "images": images, "next": last }));
        }
        let item = item?;
        if !shown.has(&item.info) {
            continue;
        }
        // An ID that is not UTF-8 cannot be requested over HTTP, and is never imported.
        let Some(id) = item
            .key
            .strip_prefix(CATALOGUE_PREFIX.as_bytes())
            .and_then(|id| std::str::from_utf8(id).ok())
        else {
            continue;
        };
        let attributes = &item.info.attributes;
        let resolutions: Vec<_> = attributes
            .get_str(attribute::RESOLUTIONS)
            .unwrap_or("")
            .split(',')
            .filter(|name| !name.is_empty())
            .collect();
        images.push(json!({
            "id": id,
            "version": item.info.version.0,
            "name": attributes.get(attribute::FILE_NAME).map(key_text::to_json),
            "width": number(attributes, attribute::WIDTH),
            "height": number(attributes, attribute::HEIGHT),
            "resolutions": resolutions,
        }));
        last = Some(id.to_owned());
    }
    Ok(json!({ "images": images, "next": null }))
}

/// `/api/images/ID`
pub async fn image(State(app): State<Arc<App>>, Checked(Path(id)): Checked<Path<String>>) -> Result<Response, Refusal> {
    let wanted = id.clone();
    let buckets = Arc::clone(&app.beside.buckets);
    let found = app.engine.call(move |store| describe(store, &buckets, &wanted)).await?;
    found
        .map(fresh)
        .ok_or_else(|| Refusal::not_found(format!("there is no image {id}")))
}

fn describe(store: &Store, buckets: &Buckets, id: &str) -> terrace::Result<Option<Value>> {
    // One snapshot, so that a group that is replaced meanwhile is not shown in parts of both.
    let snapshot = store.snapshot()?;
    let entry = snapshot.head(format!("{CATALOGUE_PREFIX}{id}"))?;
    let shown = Shown::of(buckets, CATALOGUE_PREFIX.as_bytes());
    let Some(entry) = entry else { return Ok(None) };
    if !shown.has(&entry) {
        return Ok(None);
    }
    let prefix = format!("{IMAGES_PREFIX}{id}/");
    let shown = Shown::of(buckets, IMAGES_PREFIX.as_bytes());
    let mut resolutions = Vec::new();
    for item in snapshot.scan(ScanRange::prefix(&prefix))?.take(RESOLUTIONS_MAX) {
        let item = item?;
        let name = item
            .key
            .strip_prefix(prefix.as_bytes())
            .and_then(|name| std::str::from_utf8(name).ok());
        if let Some(name) = name.filter(|name| !name.contains('/'))
            && shown.has(&item.info)
        {
            resolutions.push(resolution(name, &item.info));
        }
    }
    // Smallest first: the order in which a viewer shows them. An image smaller than its boxes has
    // several of one size; of those the later name is first, so small before large.
    resolutions.reverse();
    resolutions.sort_by_key(|resolution| (resolution["width"].as_u64(), resolution["bytes"].as_u64()));
    Ok(Some(json!({
        "id": id,
        "version": entry.version.0,
        "attributes": attributes_json(&entry.attributes),
        "resolutions": resolutions,
    })))
}

fn resolution(name: &str, info: &ObjectInfo) -> Value {
    json!({
        "name": name,
        "version": info.version.0,
        "bytes": info.length,
        "width": number(&info.attributes, attribute::WIDTH),
        "height": number(&info.attributes, attribute::HEIGHT),
        "content_type": info.attributes.get(attribute::CONTENT_TYPE).map(key_text::to_json),
        "home": info.home.to_string(),
    })
}

fn attributes_json(attributes: &Attributes) -> Map<String, Value> {
    attributes
        .iter()
        .map(|(name, value)| (name.to_owned(), key_text::to_json(value)))
        .collect()
}

fn number(attributes: &Attributes, name: &str) -> Option<u64> {
    attributes.get_str(name)?.parse().ok()
}

/// `/api/stats`
pub async fn stats(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let mut answer = app
        .engine
        .call(|store| Ok::<_, Refusal>(report::stats_json(&store.stats())))
        .await?;
    answer["import"] = app.import.as_deref().map_or(Value::Null, import_json);
    Ok(fresh(answer))
}

fn import_json(watch: &ImportWatch) -> Value {
    let progress = &watch.progress;
    json!({
        "running": watch.running.load(Relaxed),
        "counted": progress.counted.load(Relaxed),
        "files_found": progress.files_found.load(Relaxed),
        "files_done": progress.files_done.load(Relaxed),
        "imported": progress.imported.load(Relaxed),
        "failed": progress.failed.load(Relaxed),
        "error": watch.error.get(),
    })
}

/// `/healthz`: whether the store can be read; reports if it refuses writes.
pub async fn health(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let failed = app.probes.call(|store| Ok::<_, Refusal>(store.stats().failed)).await?;
    Ok(fresh(
        json!({ "reads": "ok", "writes": failed.as_ref().map_or("ok", |_| "refused"), "reason": failed }),
    ))
}

/// `/readyz`: whether the server should get requests: 503 once the store refuses writes or new
/// data.
pub async fn ready(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let (failed, full) = app
        .probes
        .call(|store| {
            let stats = store.stats();
            Ok::<_, Refusal>((stats.failed, stats.full))
        })
        .await?;
    let reason = failed.or(full);
    let status = if reason.is_none() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let answer = json!({ "ready": reason.is_none(), "reads": "ok", "reason": reason });
    Ok((status, fresh(answer)).into_response())
}

/// JSON that must not be cached.
fn fresh(value: Value) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::{Beside, Door, value};
    use axum::{
        Extension,
        http::{HeaderValue, header},
    };
    use std::{net::SocketAddr, sync::mpsc, time::Duration};
    use terrace::Options;

    /// Regression: the record of the bucket was looked up once for each image.
    #[test]
    fn a_page_of_the_grid_looks_up_no_bucket() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        for number in 0..100 {
            store.put(format!("{CATALOGUE_PREFIX}{number:03}"), "").unwrap();
            store.put(format!("{IMAGES_PREFIX}007/{number}"), "").unwrap();
        }
        let looked_up = || {
            let operations = store.stats().operations.into_iter();
            let single = operations.filter(|operation| ["head", "get"].contains(&operation.name));
            single.map(|operation| operation.count).sum::<u64>()
        };
        let (before, buckets) = (looked_up(), Buckets::default());
        let page = list(&store, &buckets, Some("009"), 50).unwrap();
        assert_eq!(page["images"].as_array().unwrap().len(), 50);
        let image = describe(&store, &buckets, "007").unwrap().unwrap();
        assert_eq!(image["resolutions"].as_array().unwrap().len(), 100);
        assert_eq!(looked_up(), before, "no lookups beside the scans");
    }

    /// Regression: a server whose engine was busy failed its health probe, and was restarted during
    /// its work.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_busy_engine_does_not_make_it_ill() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        store.put(format!("{IMAGES_PREFIX}007/small"), "pixels").unwrap();
        let app = App::new(store, None, Beside::default(), Door::new(Vec::new(), None));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let calls: Vec<_> = (0..super::super::engine::CALLS_MAX)
            .map(|_| {
                let (engine, released, begun) = (app.engine.clone(), Arc::clone(&released), begun.clone());
                tokio::spawn(async move {
                    engine
                        .run(move |_| {
                            begun.send(()).unwrap();
                            let _ = released.lock().map(|released| released.recv());
                        })
                        .await
                })
            })
            .collect();
        for _ in 0..calls.len() {
            begins.recv().await.unwrap();
        }
        let probed = tokio::time::timeout(Duration::from_secs(120), async {
            let healthy = health(State(Arc::clone(&app))).await.unwrap().status();
            let ready = ready(State(Arc::clone(&app))).await.unwrap().status();
            let figures = super::super::metrics::text(State(Arc::clone(&app))).await.is_ok();
            (healthy, ready, figures)
        });
        assert_eq!(probed.await.unwrap(), (StatusCode::OK, StatusCode::OK, true));
        // An image in RAM needs no call of the engine.
        for (range, status) in [(None, StatusCode::OK), (Some("bytes=1-2"), StatusCode::PARTIAL_CONTENT)] {
            let asked = range.map(|range| (header::RANGE, HeaderValue::from_static(range)));
            let image = value::get(
                State(Arc::clone(&app)),
                Checked(Path(("007".to_owned(), "small".to_owned()))),
                Checked(Query(value::Wanted::default())),
                Extension(SocketAddr::from(([127, 0, 0, 1], 1))),
                asked.into_iter().collect(),
            );
            let image = tokio::time::timeout(Duration::from_secs(120), image).await.unwrap();
            assert_eq!(image.unwrap().status(), status);
        }
        drop(release);
        for call in calls {
            call.await.unwrap().unwrap();
        }
    }
}
