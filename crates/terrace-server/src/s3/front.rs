//! What stands before `s3s`: refuses what the service does not have, answers browsers that ask beforehand, limits how long
//! a client may stay silent, and gives every answer its number.
//!
//! Two things are refused here because `s3s` lets them pass. A header `x-amz-…` that is not signed: whoever has a presigned
//! URL could otherwise add `x-amz-copy-source` to it and read any object its signer can read. And signatures of version 2,
//! which cover neither body nor time.

use super::{
    Gateway, OWNER,
    access::{Access, Auth, Domains},
    cors, errors,
    service::Service,
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
    http::request::Parts,
};
use s3s::{
    Body, S3Error, S3Result,
    config::{S3Config, StaticConfigProvider},
    s3_error,
    service::{S3Service, S3ServiceBuilder},
};
use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// Longest silence in the middle of a request's body.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest XML body: 10,000 parts with their checksums fit.
const XML_BYTES_MAX: usize = 8 << 20;
/// Headers that need not be signed: the first two are covered by the signature in another way.
const UNSIGNED: [&str; 3] = ["x-amz-content-sha256", "x-amz-date", "x-amz-user-agent"];
/// What headers begin with that ask for something the service does not have.
const NOT_SUPPORTED: [&str; 7] = [
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-bypass-governance-retention",
    "x-amz-mfa",
    "x-amz-grant-",
    "x-amz-write-offset-bytes",
];

/// The S3 service as hyper calls it.
#[derive(Clone)]
pub struct Front {
    inner: Arc<Inner>,
}

struct Inner {
    gateway: Arc<Gateway>,
    service: S3Service,
    domains: Domains,
    /// Number of the next request.
    next: AtomicU64,
}

impl Front {
    /// A service that takes buckets from hosts below these domains.
    pub fn new(gateway: Arc<Gateway>, domains: Vec<String>) -> Self {
        let mut builder = S3ServiceBuilder::new(Service(Arc::clone(&gateway)));
        builder.set_auth(Auth(Arc::clone(&gateway)));
        builder.set_access(Access(Arc::clone(&gateway)));
        builder.set_host(Domains(domains.clone()));
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES_MAX;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        Self {
            inner: Arc::new(Inner {
                gateway,
                service: builder.build(),
                domains: Domains(domains),
                next: AtomicU64::new(super::keyspace::now_ms() << 20),
            }),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { Ok(inner.answer(request).await) })
    }
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let began = Instant::now();
        let number = format!("{:016X}", self.next.fetch_add(1, Ordering::Relaxed));
        let (mut parts, body) = request.into_parts();
        drop_odd_range(&mut parts);
        let (method, uri, headers) = (parts.method.clone(), parts.uri.clone(), parts.headers.clone());
        let outcome = match refuse(&parts) {
            Err(refusal) => Err(refusal),
            Ok(()) if method == Method::OPTIONS => self.preflight(&parts),
            Ok(()) => {
                let body = Body::http_body_unsync(Attentive::new(body));
                let answer = self.service.call(Request::from_parts(parts, body)).await;
                answer.map_err(|error| {
                    tracing::error!(?error, "a request could not be answered");
                    s3s::S3ErrorCode::InternalError.into()
                })
            }
        };
        let mut response = outcome.unwrap_or_else(into_response);
        // `s3s` sets this for GET only.
        if method == Method::HEAD
            && response.headers().contains_key(header::CONTENT_RANGE)
            && response.status().is_success()
        {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        self.add_cors(&method, uri.path(), &headers, response.headers_mut());
        if let Ok(value) = HeaderValue::from_str(&number) {
            response.headers_mut().insert("x-amz-request-id", value);
        }
        response
            .headers_mut()
            .insert(header::SERVER, HeaderValue::from_static("Terrace"));
        tracing::info!(
            target: "terrace::access",
            number,
            %method,
            path = uri.path(),
            status = response.status().as_u16(),
            milliseconds = began.elapsed().as_millis() as u64,
            "request"
        );
        response
    }

    /// The bucket a request is about.
    fn bucket_name(&self, path: &str, headers: &HeaderMap) -> Option<String> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let bucket = host.and_then(|host| self.domains.bucket(host));
        let first = || path.trim_start_matches('/').split('/').next();
        bucket.or_else(first).map(str::to_owned)
    }

    /// Answers a browser that asks whether it may.
    fn preflight(&self, parts: &Parts) -> S3Result<Response<Body>> {
        let forbidden = || s3_error!(AccessDenied, "CORSResponse: This CORS request is not allowed.");
        let question = cors::question(&parts.headers, &parts.method).ok_or_else(|| {
            s3_error!(
                InvalidRequest,
                "Insufficient information. Origin request header needed."
            )
        })?;
        let bucket = self
            .bucket_name(parts.uri.path(), &parts.headers)
            .ok_or_else(forbidden)?;
        let record = self.gateway.buckets.get(&bucket).map_err(|_| forbidden())?.record();
        // The rule's headers are added with those of every other answer.
        cors::allowing(&record.cors, &question).ok_or_else(forbidden)?;
        Ok(Response::new(Body::empty()))
    }

    fn add_cors(&self, method: &Method, path: &str, request: &HeaderMap, answer: &mut HeaderMap) {
        let Some(question) = cors::question(request, method) else {
            return;
        };
        let bucket = self
            .bucket_name(path, request)
            .and_then(|name| self.gateway.buckets.get(&name).ok());
        let Some(record) = bucket.map(|bucket| bucket.record()) else {
            return;
        };
        if let Some(rule) = cors::allowing(&record.cors, &question) {
            cors::add(answer, rule, &question);
        }
    }
}

/// A range that cannot be understood, or several of them, is answered with the whole object, as RFC 9110 section 14.2
/// allows and S3 does it; `s3s` would refuse it. A signed one stays, since the signature covers it.
fn drop_odd_range(parts: &mut Parts) {
    let is_signed = parts.headers.contains_key(header::AUTHORIZATION);
    let range = parts.headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    if !is_signed && range.is_some_and(|text| s3s::dto::Range::parse(text).is_err()) {
        parts.headers.remove(header::RANGE);
    }
}

fn into_response(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Refuses what the service does not have.
fn refuse(parts: &Parts) -> S3Result {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let query = parts.uri.query().unwrap_or("");
    let has_field = |field: &str| {
        let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or(""));
        names.into_iter().any(|name| name == field)
    };
    let version_2 = text("authorization").is_some_and(|value| value.starts_with("AWS "));
    if version_2 || has_field("Signature") || has_field("AWSAccessKeyId") {
        return Err(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
    let form = text("content-type").is_some_and(|value| {
        value
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("multipart/form-data")
    });
    if parts.method == Method::POST && form {
        return Err(s3_error!(NotImplemented, "Uploads by HTML forms are not implemented."));
    }
    if let Some(name) = parts
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| NOT_SUPPORTED.iter().any(|start| name.starts_with(start)))
    {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: {name}"
        ));
    }
    refuse_values(text)?;
    check_signed(parts, query)
}

/// Refuses values of headers that the service does not have.
fn refuse_values<'v>(text: impl Fn(&str) -> Option<&'v str>) -> S3Result {
    if text("x-amz-security-token").is_some() {
        return Err(s3_error!(
            InvalidToken,
            "The provided token is malformed or otherwise invalid."
        ));
    }
    if text("x-amz-bucket-object-lock-enabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(s3_error!(NotImplemented, "Object lock is not implemented."));
    }
    if text("x-amz-storage-class").is_some_and(|value| value != "STANDARD") {
        return Err(s3_error!(
            InvalidStorageClass,
            "The storage class you specified is not valid"
        ));
    }
    if text("x-amz-acl").is_some_and(|value| !matches!(value, "private" | "bucket-owner-full-control")) {
        return Err(s3_error!(
            AccessControlListNotSupported,
            "The bucket does not allow ACLs; use a bucket policy to make it public."
        ));
    }
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if text(name).is_some_and(|owner| owner != OWNER) {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
    }
    Ok(())
}

/// Refuses signed requests with headers that matter and are not signed.
fn check_signed(parts: &Parts, query: &str) -> S3Result {
    let authorization = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let of_header = authorization.and_then(|value| {
        let (_, rest) = value.split_once("SignedHeaders=")?;
        Some(rest.split([',', ' ']).next().unwrap_or(""))
    });
    let of_query = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("X-Amz-SignedHeaders="));
    let Some(signed) = of_header.or(of_query) else {
        // Anonymous, or malformed; both are for others to judge.
        return Ok(());
    };
    let signed = signed.to_ascii_lowercase().replace("%3b", ";");
    let is_signed = |name: &str| signed.split(';').any(|other| other == name);
    let unsigned = parts
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .find(|name| name.starts_with("x-amz-") && !UNSIGNED.contains(name) && !is_signed(name));
    let unsigned = unsigned.or_else(|| (!is_signed("host")).then_some("host"));
    match unsigned {
        None => Ok(()),
        Some(name) => Err(s3_error!(
            AccessDenied,
            "There were headers present in the request which were not signed: {name}"
        )),
    }
}

/// A body that fails when nothing comes for too long.
struct Attentive {
    body: Incoming,
    /// Runs only while the client is waited for: it must not pay for the time the store takes.
    waiting: bool,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl Attentive {
    fn new(body: Incoming) -> Self {
        Self {
            body,
            waiting: false,
            deadline: Box::pin(tokio::time::sleep(SILENCE_MAX)),
        }
    }
}

impl http_body::Body for Attentive {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(tokio::time::Instant::now() + SILENCE_MAX);
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, errors::STALLED)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        refuse(&parts).err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn what_the_service_does_not_have() {
        for (headers, code) in [
            (("x-amz-server-side-encryption", "AES256"), "NotImplemented"),
            (("x-amz-object-lock-mode", "GOVERNANCE"), "NotImplemented"),
            (("x-amz-grant-read", "id=x"), "NotImplemented"),
            (("x-amz-storage-class", "GLACIER"), "InvalidStorageClass"),
            (("x-amz-acl", "public-read"), "AccessControlListNotSupported"),
            (("x-amz-expected-bucket-owner", "1234"), "AccessDenied"),
            (("authorization", "AWS key:signature"), "InvalidRequest"),
            (("content-type", "Multipart/Form-Data; boundary=x"), "NotImplemented"),
        ] {
            assert_eq!(refused("POST", "/b", &[headers]).as_deref(), Some(code), "{headers:?}");
        }
        assert_eq!(
            refused("GET", "/b/k?AWSAccessKeyId=x&Signature=y", &[]).as_deref(),
            Some("InvalidRequest")
        );
        for headers in [
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-meta-a", "b"),
        ] {
            assert_eq!(refused("PUT", "/b/k?prefix=Signature", &[headers]), None, "{headers:?}");
        }
    }

    #[test]
    fn odd_ranges_of_players_are_no_ranges() {
        let kept = |range: &str| {
            let request = Request::builder().header("range", range).body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            drop_odd_range(&mut parts);
            parts.headers.contains_key("range")
        };
        assert!(kept("bytes=0-1") && kept("bytes=5-") && kept("bytes=-5"));
        assert!(!kept("bytes=0-1,4-5") && !kept("bytes=x") && !kept("lines=1-2") && !kept("bytes=3-2"));
    }

    #[test]
    fn headers_that_matter_are_signed() {
        let signed = (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host;x-amz-meta-a, Signature=y",
        );
        let presigned = "/b/k?X-Amz-SignedHeaders=host%3Bx-amz-meta-a&X-Amz-Signature=y";
        let refused = |uri, headers: &[(&str, &str)]| refused("PUT", uri, headers).is_some();
        assert!(!refused(
            "/b/k",
            &[signed, ("x-amz-meta-a", "1"), ("x-amz-date", "1"), ("range", "x")]
        ));
        assert!(refused("/b/k", &[signed, ("x-amz-copy-source", "/b/secret")]));
        assert!(!refused(presigned, &[("x-amz-meta-a", "1")]));
        assert!(refused(presigned, &[("x-amz-copy-source", "/b/secret")]));
        assert!(
            refused("/b/k?X-Amz-SignedHeaders=date", &[]),
            "the host is always signed"
        );
        assert!(!refused("/b/k", &[("x-amz-meta-a", "1")]), "anonymous");
    }
}
