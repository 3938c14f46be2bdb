//! The page and its parts, built into the program.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

fn asset(content_type: &'static str, text: &'static str) -> Response {
    // Revalidation costs a round trip, but a stale script after an upgrade breaks the page.
    (
        [
            (header::CONTENT_TYPE, content_type),
            (header::CACHE_CONTROL, "no-cache"),
        ],
        text,
    )
        .into_response()
}

/// `/`
pub async fn index() -> Response {
    asset("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `/page.css`
pub async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// `/page.js`
pub async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

/// `/favicon.svg`
pub async fn icon() -> Response {
    asset("image/svg+xml", include_str!("page/favicon.svg"))
}
