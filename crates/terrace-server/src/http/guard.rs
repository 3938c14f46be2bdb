//! Checks every request's Host and password, and adds the common headers of answers.

use super::{App, refusal::Refusal, route_of};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;
use std::{fmt, sync::Arc};
use terrace_objects::keyspace;

/// Policy of the page: loads from this server only, nothing inline, no frames.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Policy of all other answers, if a browser shows one as a document: nothing is allowed. Stored
/// files are untrusted.
pub const VALUE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'";

/// The challenge for a password. <https://www.rfc-editor.org/rfc/rfc7617>
const CHALLENGE: &str = "Basic realm=\"Terrace\", charset=\"UTF-8\"";
/// Routes without a password: probes have none, and get only the server's state.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// The access check of the page.
pub struct Door {
    /// Names of this host. An attacker may make any other name resolve to this machine, so that a
    /// browser gives the attacker's page what it reads here.
    names: Vec<String>,
    /// Verifies the password without storing it.
    password: Option<(hmac::Key, hmac::Tag)>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Door {
    /// Admits requests with one of these names, or an address, as Host, and with the password, if
    /// there is one.
    pub fn new(names: Vec<String>, password: Option<&str>) -> Self {
        let password = password.map(|password| {
            let mut random = [0; 32];
            keyspace::fill_random(&mut random);
            let key = hmac::Key::new(hmac::HMAC_SHA256, &random);
            let tag = hmac::sign(&key, password.as_bytes());
            (key, tag)
        });
        Self { names, password }
    }

    /// Why a request is refused.
    fn refuse(&self, request: &Request, route: &str) -> Option<Response> {
        let host = request.headers().get(header::HOST).map(HeaderValue::as_bytes);
        if !request_host(request.uri(), host).is_none_or(|host| self.is_ours(host)) {
            let message =
                "this server does not answer to that name; it does if it is started with --host-name and the name";
            return Some(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message).into_response());
        }
        if OPEN.contains(&route) || self.knows(request.headers().get(header::AUTHORIZATION)) {
            return None;
        }
        let refusal = Refusal::new(
            StatusCode::UNAUTHORIZED,
            "this page needs its password, with any user name",
        );
        let challenge = [(header::WWW_AUTHENTICATE, CHALLENGE)];
        Some((challenge, refusal).into_response())
    }

    /// Whether a request has the password, if there is one. Takes constant time.
    fn knows(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some((key, tag)) = &self.password else { return true };
        let given = authorization.and_then(|value| {
            let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
            let credentials = STANDARD.decode(credentials.trim()).ok()?;
            let at = credentials.iter().position(|byte| *byte == b':')?;
            scheme
                .eq_ignore_ascii_case("basic")
                .then(|| credentials[at + 1..].to_vec())
        });
        given.is_some_and(|given| hmac::verify(key, &given, tag.as_ref()).is_ok())
    }

    /// Whether a Host header names this machine, with or without a port: by an address, which
    /// cannot be made to resolve to another, as `localhost`, which browsers resolve themselves, or
    /// by a configured name.
    fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        is_address_or_local(name) || self.names.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

/// Checks a request, runs the handler, counts the answer and adds its headers.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = route_of(&request);
    let policy = if route == "/" { PAGE_POLICY } else { VALUE_POLICY };
    let mut response = match app.door.refuse(&request, &route) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    app.requests.count(route, response.status());
    add_headers(&mut response, policy);
    response
}

/// Adds the headers of every answer of the page.
pub fn add_headers(response: &mut Response, policy: &'static str) {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
}

/// The host of a request. One that is not UTF-8 matches no name, so it becomes empty.
fn request_host<'a>(uri: &'a Uri, host: Option<&'a [u8]>) -> Option<&'a str> {
    uri.authority()
        .map(|authority| authority.as_str())
        .or(host.map(|host| std::str::from_utf8(host).unwrap_or("")))
}

/// A Host header without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

fn is_address_or_local(name: &str) -> bool {
    let bare = name
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(name);
    let localhost = bare.eq_ignore_ascii_case("localhost") || bare.to_ascii_lowercase().ends_with(".localhost");
    localhost || bare.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Regression: with `--listen 0.0.0.0` every name was accepted: a website could make its own
    /// name resolve to this server, and read all of it through a visitor's browser.
    #[test]
    fn names_of_this_host() {
        let door = Door::new(vec!["pictures.example.org".to_owned()], None);
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "127.3.2.1",
            "[::1]:7070",
            "[::1]",
            "a.localhost",
            "10.0.0.1",
            "[2001:db8::1]:7070",
            "pictures.example.org",
            "Pictures.Example.org.:7070",
        ] {
            assert!(door.is_ours(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "example.org:7070",
            "a.pictures.example.org",
            "127.0.0.1.example.org",
            "localhost.example.org",
            "10.0.0.1.",
            "2130706433",
            "0x7f.1",
        ] {
            let is_address = host == "10.0.0.1.";
            assert_eq!(door.is_ours(host), is_address, "{host}");
        }
    }

    #[test]
    fn passwords() {
        let door = Door::new(Vec::new(), Some("p:ss"));
        let knows = |text: &str| door.knows(Some(&HeaderValue::from_str(text).unwrap()));
        let basic = |credentials: &str| format!("Basic {}", STANDARD.encode(credentials));
        assert!(knows(&basic("user:p:ss")) && knows(&basic(":p:ss").replace("Basic", "basic")));
        for wrong in [
            "",
            "Basic",
            "Basic !",
            "Bearer p:ss",
            &basic("p:ss"),
            &basic("x:p:s"),
            &basic("x:p:ss "),
        ] {
            assert!(!knows(wrong), "{wrong}");
        }
        assert!(!door.knows(None));
        assert!(Door::new(Vec::new(), None).knows(None));
    }
}
