//! Answers to requests that cannot be served: a status and one sentence, as JSON.
//!
//! Paths and details of the device are only logged; the client gets only information that it can
//! act on.

use axum::{
    Json,
    extract::FromRequestParts,
    http::{Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use terrace::Error;

/// A refused request.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    /// A refusal with `status`.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// 400
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 500
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 503
    pub fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the store is busy; try again shortly")
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(message) => Self::bad_request(message),
            Error::Unavailable(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the store is closed"),
            Error::Busy { .. } => Self::busy(),
            Error::Corruption { .. } => {
                tracing::error!(%error, "damaged object");
                Self::internal("this object is damaged; run `terrace verify` for the extent of it")
            }
            error => {
                tracing::error!(%error, "engine error");
                Self::internal("the store could not answer; see the server's log")
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retry = (self.status == StatusCode::SERVICE_UNAVAILABLE).then_some([(header::RETRY_AFTER, "1")]);
        let body = Json(serde_json::json!({ "error": self.message }));
        (self.status, retry, [(header::CACHE_CONTROL, "no-store")], body).into_response()
    }
}

/// Answers an unknown path.
pub async fn no_such_page(uri: Uri) -> Refusal {
    Refusal::not_found(format!("nothing is served at {}", uri.path()))
}

/// Answers an unsupported method; the router adds `Allow`.
pub async fn no_such_method(method: Method) -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} is not served here; only GET and HEAD are"),
    )
}

/// Wraps an extractor, so that its rejection is a 400 in the common form.
#[derive(Debug)]
pub struct Checked<E>(pub E);

impl<S: Sync, E> FromRequestParts<S> for Checked<E>
where
    E: FromRequestParts<S, Rejection: std::fmt::Display>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let extracted = E::from_request_parts(parts, state).await;
        extracted
            .map(Self)
            .map_err(|rejection| Refusal::bad_request(rejection.to_string()))
    }
}
