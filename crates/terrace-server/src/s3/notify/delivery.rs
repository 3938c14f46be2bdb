//! Delivers events to a target: in order, one at a time, retried until each is accepted or too old.

use super::{Target, event::with_sequencer, nats};
use crate::s3::{Gateway, errors, keyspace};
use bytes::Bytes;
use futures_util::future::{Either, select};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use s3s::{Body, S3Result};
use std::{pin::pin, sync::Arc, time::Duration};
use terrace::{Batch, Durability, ScanRange, Store};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// Events that are read at a time.
const PAGE: usize = 16;
/// Time limit of a delivery, from connecting to the head of the answer.
const TARGET_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after the first failed delivery.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause: it doubles with each failure.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How long the delivery of an event is retried.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How often the store is read without a wake-up.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// A queued event.
struct Waiting {
    place: Vec<u8>,
    written_ms: u64,
    body: Bytes,
}

/// Delivers a target's events; never returns.
pub async fn run(gateway: Arc<Gateway>, target: Arc<Target>) {
    let mut pause = PAUSE_MIN;
    // No event after this key has been seen; events with smaller keys may still be committed later.
    let mut after = None;
    loop {
        let was_behind = after.is_some();
        let events = match look(&gateway, &target, after.take()).await {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, target = target.name, "events could not be read");
                tokio::time::sleep(PAUSE_MAX).await;
                continue;
            }
        };
        if events.is_empty() {
            if !was_behind {
                let _ = tokio::time::timeout(LOOK_INTERVAL, target.wake.notified()).await;
            }
            continue;
        }
        let (taken, is_stuck) = send(&gateway, &target, &events).await;
        after = taken.last().cloned().filter(|_| !is_stuck);
        forget(&gateway, &target, taken).await;
        if is_stuck {
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        } else {
            pause = PAUSE_MIN;
        }
    }
}

/// The next events for a target.
async fn look(gateway: &Arc<Gateway>, target: &Target, after: Option<Vec<u8>>) -> S3Result<Vec<Waiting>> {
    let prefix = keyspace::events(&target.name);
    gateway
        .run(move |_, store| {
            let mut range = ScanRange::prefix(&prefix);
            if let Some(after) = after {
                range = range.after(after);
            }
            page(store, range).map_err(|error| errors::of_engine(&error, &prefix))
        })
        .await
}

fn page(store: &Store, range: ScanRange) -> terrace::Result<Vec<Waiting>> {
    let items = store.scan(range)?.take(PAGE).map(|item| {
        let item = item?;
        let written_ms = keyspace::parse_id(&item.key).map_or(0, keyspace::Id::ms);
        let body = with_sequencer(&item.value()?, item.info.version.0).into();
        let place = item.key.to_vec();
        Ok(Waiting {
            place,
            written_ms,
            body,
        })
    });
    items.collect()
}

/// Sends events until one is not accepted. Returns the keys of those that are done, and whether one
/// failed.
async fn send(gateway: &Gateway, target: &Target, events: &[Waiting]) -> (Vec<Vec<u8>>, bool) {
    let mut done = Vec::with_capacity(events.len());
    for event in events {
        let posted = tokio::time::timeout(TARGET_TIME_MAX, deliver(target, event)).await;
        let failed = match posted {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some(reason),
            Err(_) => Some("no answer in time".to_owned()),
        };
        let Some(reason) = failed else {
            gateway.figures.events_delivered.inc();
            done.push(event.place.clone());
            continue;
        };
        gateway.figures.events_refused.inc();
        tracing::debug!(target = target.name, reason, "an event was not taken");
        let age = Duration::from_millis(gateway.clock().now_ms().saturating_sub(event.written_ms));
        if age < AGE_MAX {
            return (done, true);
        }
        tracing::warn!(target = target.name, reason, "an event is given up");
        gateway.figures.events_lost.inc();
        done.push(event.place.clone());
    }
    (done, false)
}

/// Delivers an event. Returns the reason of a failure.
async fn deliver(target: &Target, event: &Waiting) -> Result<(), String> {
    match &target.address.nats {
        Some(login) => nats::publish(&target.address, login, &event.place, &event.body).await,
        None => post(target, event.body.clone()).await,
    }
}

/// Posts an event. Returns the reason of a failure; redirects are not followed.
async fn post(target: &Target, body: Bytes) -> Result<(), String> {
    let address = &target.address;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&address.path)
        .header(header::HOST, &address.authority)
        .header(header::USER_AGENT, "Terrace")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Body::from(body))
        .map_err(|error| error.to_string())?;
    match (&target.tls, &address.server) {
        (Some(config), Some(server)) => {
            let connecting = TlsConnector::from(Arc::clone(config)).connect(server.clone(), stream);
            let stream = connecting.await.map_err(|error| error.to_string())?;
            post_over(stream, request).await
        }
        _ => post_over(stream, request).await,
    }
}

async fn post_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<(), String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // The connection lives as long as the request. It may end with the answer, which is complete
    // then.
    let answer = match select(pin!(sender.send_request(request)), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, answer)) => answer.await,
    };
    let status = answer.map_err(|error| error.to_string())?.status();
    if status.is_success() {
        Ok(())
    } else {
        Err(status.to_string())
    }
}

/// Deletes delivered events. Those that a crash restores are sent again.
async fn forget(gateway: &Arc<Gateway>, target: &Target, places: Vec<Vec<u8>>) {
    let count = places.len();
    if count == 0 {
        return;
    }
    let deleted = gateway
        .run(move |_, store| {
            let mut batch = Batch::new();
            for place in &places {
                batch.delete(place);
            }
            store
                .write(batch, Durability::Buffered)
                .map_err(|error| errors::of_engine(&error, b""))
        })
        .await;
    match deleted {
        Ok(_) => target.done(count),
        Err(error) => {
            tracing::warn!(%error, target = target.name, "events that were delivered could not be deleted");
            // They will be sent again, but not in a tight loop while the store refuses writes.
            tokio::time::sleep(PAUSE_MAX).await;
        }
    }
}
