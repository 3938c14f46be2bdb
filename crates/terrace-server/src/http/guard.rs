//! What every request passes: the check of its Host, and the headers every answer carries.

use super::{App, refusal::Refusal, route_of};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// What the page may do: load from here, nothing inline, nothing framed.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// What any other answer may do if a browser shows it as a document: nothing. Stored files come from anywhere.
const VALUE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'";

/// Checks the Host, runs the handler, counts the answer and adds its headers.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = route_of(&request);
    let policy = if route == "/" { PAGE_POLICY } else { VALUE_POLICY };
    let host = request.headers().get(header::HOST).map(HeaderValue::as_bytes);
    let addressed_here = !app.loopback_only || request_host(request.uri(), host).is_none_or(is_loopback_name);
    let mut response = if addressed_here {
        next.run(request).await
    } else {
        Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "this server answers to localhost only; start it with --listen and another address to change that",
        )
        .into_response()
    };
    app.requests.count(route, response.status());
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

/// The host a request is addressed to. One that is not text is no name we answer to, so it becomes an empty one.
fn request_host<'a>(uri: &'a Uri, host: Option<&'a [u8]>) -> Option<&'a str> {
    uri.authority()
        .map(|authority| authority.as_str())
        .or(host.map(|host| std::str::from_utf8(host).unwrap_or("")))
}

/// Whether a Host header names this machine by a loopback name, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(name);
    let localhost = bare.eq_ignore_ascii_case("localhost") || bare.to_ascii_lowercase().ends_with(".localhost");
    localhost
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names() {
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "127.3.2.1",
            "[::1]:7070",
            "[::1]",
            "a.localhost",
        ] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "example.org:7070",
            "10.0.0.1",
            "127.0.0.1.example.org",
            "localhost.example.org",
            "[::2]:1",
        ] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
