//! Websites: a bucket's objects for browsers, on hosts of their own.
//!
//! A host below one of the domains of `--s3-website-domain` names a bucket, and a request to it is
//! an anonymous GET or HEAD: it becomes a request for an object like any other ([`Ask`]), with the
//! same checks of permissions. Here is only what websites have in addition: index and error
//! documents, redirects, and errors in HTML. Queries, signatures and headers that begin with
//! `x-amz-` are not passed on.

mod page;

pub use terrace_objects::website::{AllTo, Redirect, Rule, Settings};

use super::{head::Head, ops::listings::Encoding};
use futures_util::future::BoxFuture;
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use page::{Problem, page};
use s3s::{Body, S3Error, S3Result};

/// Reads an object of the website's bucket: by GET or HEAD, with these headers, by its key.
pub type Ask<'a> = &'a (dyn Fn(Method, HeaderMap, String) -> BoxFuture<'a, S3Result<Response<Body>>> + Send + Sync);

/// The header of an object that is a redirect.
const REDIRECT: &str = "x-amz-website-redirect-location";

/// A request to a website.
#[derive(Debug)]
pub struct Visit {
    method: Method,
    /// The decoded key.
    key: Option<String>,
    /// The headers that are passed on.
    headers: HeaderMap,
    /// The host, for redirects to the same.
    host: String,
    is_secure: bool,
}

impl Visit {
    /// Reads a request.
    pub fn of(head: &Head, headers: &HeaderMap) -> Self {
        let goes_along = |name: &HeaderName| {
            !name.as_str().starts_with("x-amz-")
                && ![
                    header::AUTHORIZATION,
                    header::CONTENT_LENGTH,
                    header::CONTENT_TYPE,
                    header::EXPECT,
                    header::HOST,
                    header::TRANSFER_ENCODING,
                ]
                .contains(name)
        };
        let along = headers.iter().filter(|(name, _)| goes_along(name));
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        Self {
            method: head.method.clone(),
            key: head.place().map(|(_, key)| key.to_owned()),
            headers: along.map(|(name, value)| (name.clone(), value.clone())).collect(),
            host: host.unwrap_or("").to_owned(),
            is_secure: head.peer.is_secure,
        }
    }

    /// Answers it. `settings` are the bucket's website; `number` is the request's.
    pub async fn answer(&self, settings: S3Result<Settings>, number: &str, ask: Ask<'_>) -> Response<Body> {
        let problem = |error: &S3Error, key: Option<&str>| Problem::of(error, key, number);
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => return problem(&error, None).answer(),
        };
        let Some(key) = &self.key else {
            let error = s3s::s3_error!(InvalidURI, "Couldn't parse the specified URI.");
            return problem(&error, None).answer();
        };
        if let Some(all) = &settings.all_to {
            let scheme = all.protocol.as_deref().unwrap_or(self.scheme());
            return moved(301, &format!("{scheme}://{}/{}", all.host, Encoding::URL.apply(key)));
        }
        if !matches!(self.method, Method::GET | Method::HEAD) {
            let error = s3s::s3_error!(
                MethodNotAllowed,
                "The specified method is not allowed against this resource."
            );
            return problem(&error, Some(key)).answer();
        }
        if let Some(rule) = settings.rule_for(key, None) {
            return self.redirected(&rule.redirect, rule.prefix.as_deref(), key);
        }
        let index = settings.index.as_deref().unwrap_or("");
        let is_folder = key.is_empty() || key.ends_with('/');
        let object = if is_folder {
            format!("{key}{index}")
        } else {
            key.clone()
        };
        let found = ask(self.method.clone(), self.headers.clone(), object.clone()).await;
        let failed = match found {
            Ok(answer) if !is_missing(answer.status()) => return after_object(answer, &object, number),
            Ok(answer) => Problem::of_answer(&answer, &object, number),
            Err(error) => problem(&error, Some(&object)),
        };
        if !is_folder {
            // There may be a folder of this name.
            let folder = ask(Method::HEAD, HeaderMap::new(), format!("{key}/{index}")).await;
            if folder.is_ok_and(|answer| answer.status().is_success()) {
                let path = Encoding::URL.apply(key);
                // Two slashes at the beginning would be the name of another host.
                let path = path.strip_prefix('/').map_or(path.clone(), |rest| format!("%2F{rest}"));
                return moved(302, &format!("/{path}/"));
            }
        }
        if let Some(rule) = settings.rule_for(key, Some(failed.status.as_u16())) {
            return self.redirected(&rule.redirect, rule.prefix.as_deref(), key);
        }
        self.failed(failed, settings.error.as_deref(), ask).await
    }

    /// The error document, if it can be read; otherwise the error in HTML.
    async fn failed(&self, failed: Problem, document: Option<&str>, ask: Ask<'_>) -> Response<Body> {
        let Some(document) = document else {
            return failed.answer();
        };
        let answer = ask(self.method.clone(), HeaderMap::new(), document.to_owned()).await;
        match answer {
            Ok(mut answer) if answer.status().is_success() => {
                *answer.status_mut() = failed.status;
                failed.name(answer.headers_mut());
                answer
            }
            Ok(answer) => failed.answer_without(&Problem::of_answer(&answer, document, "")),
            Err(error) => failed.answer_without(&Problem::of(&error, Some(document), "")),
        }
    }

    const fn scheme(&self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }

    /// The redirect of a rule for a key that begins with its prefix.
    fn redirected(&self, to: &Redirect, prefix: Option<&str>, key: &str) -> Response<Body> {
        let rest = || key.strip_prefix(prefix.unwrap_or("")).unwrap_or(key);
        let key = match (&to.key, &to.key_prefix) {
            (Some(key), _) => key.clone(),
            (None, Some(start)) => format!("{start}{}", rest()),
            (None, None) => key.to_owned(),
        };
        let scheme = to.protocol.as_deref().unwrap_or(self.scheme());
        let host = to.host.as_deref().unwrap_or(&self.host);
        moved(
            to.status.unwrap_or(301),
            &format!("{scheme}://{host}/{}", Encoding::URL.apply(&key)),
        )
    }
}

/// Whether the object is missing or not public: failed conditions and unsatisfiable ranges are
/// other errors.
fn is_missing(status: StatusCode) -> bool {
    (status.is_client_error() || status.is_server_error())
        && status != StatusCode::PRECONDITION_FAILED
        && status != StatusCode::RANGE_NOT_SATISFIABLE
}

/// The answer for an existing object: the object, or its redirect.
fn after_object(answer: Response<Body>, key: &str, number: &str) -> Response<Body> {
    if !answer.status().is_success() && answer.status() != StatusCode::NOT_MODIFIED {
        return Problem::of_answer(&answer, key, number).answer();
    }
    let location = answer.headers().get(REDIRECT).cloned();
    location.map_or(answer, |location| to(StatusCode::MOVED_PERMANENTLY, location))
}

/// A redirect.
fn moved(status: u16, location: &str) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::MOVED_PERMANENTLY);
    match HeaderValue::from_str(location) {
        Ok(location) => to(status, location),
        // Hosts and keys are checked when they are stored or received.
        Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, &[]),
    }
}

fn to(status: StatusCode, location: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::LOCATION, location);
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

#[cfg(test)]
mod tests;
