//! Answers while the store is being opened, which takes minutes if the ordered index is built anew:
//! 503, in the form of the service at that address. Connections stay, and their requests are
//! served from the moment on at which the store is open.
//!
//! Invariant: when a request's head has arrived it is decided whether it is refused or served.
//! Nothing of a refused one is kept.

use super::{guard, refusal::Refusal};
use axum::{
    Json,
    response::{IntoResponse as _, Response},
};
use http_body::Body;
use hyper::{
    Request, StatusCode,
    header::{self, HeaderValue},
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// A service that comes when the store is open. Clones share it.
#[derive(Debug)]
pub struct Opening<S> {
    service: Arc<OnceLock<S>>,
    begun: Instant,
}

impl<S> Clone for Opening<S> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
            begun: self.begun,
        }
    }
}

impl<S> Opening<S> {
    /// The store is being opened from now on.
    pub fn begin() -> Self {
        Self {
            service: Arc::default(),
            begun: Instant::now(),
        }
    }

    /// The store is open: requests from now on are served.
    pub fn end(&self, service: S) {
        // Only the first call counts; there is one.
        let _ = self.service.set(service);
    }

    /// The service, if the store is open.
    pub fn service(&self) -> Option<&S> {
        self.service.get()
    }

    /// The page's answer: a probe learns that the process is well and not ready yet.
    pub fn answer<B: Body>(&self, request: &Request<B>) -> Response {
        let reason = format!(
            "the store is being opened, for {} s so far",
            self.begun.elapsed().as_secs()
        );
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let mut answer = match request.uri().path() {
            "/healthz" => fresh(
                StatusCode::OK,
                json!({ "reads": "refused", "writes": "refused", "reason": reason }),
            ),
            "/readyz" => fresh(
                unavailable,
                json!({ "ready": false, "reads": "refused", "reason": reason }),
            ),
            _ => Refusal::new(unavailable, reason).into_response(),
        };
        guard::add_headers(&mut answer, guard::VALUE_POLICY);
        refused(request, answer)
    }
}

fn fresh(status: StatusCode, state: Value) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(state)).into_response()
}

/// Completes an answer to a request that was not read.
pub fn refused<B: Body, A>(request: &Request<B>, mut answer: Response<A>) -> Response<A> {
    let is_to_come_again = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
    let headers = answer.headers_mut();
    if is_to_come_again {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    // As everywhere: hyper closes the connection, since it does not read the rest.
    if !request.body().is_end_stream() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
