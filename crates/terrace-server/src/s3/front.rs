//! The layer in front of `s3s`: refuses features that the service does not have, answers preflight
//! requests, limits silence of clients, and numbers the answers. [`super::exchange`] counts and
//! logs.

use super::{
    Gateway,
    access::{
        Access, Auth, Domains,
        decide::{Action, Claim, Principal},
    },
    at_once::{AtOnce, Plain},
    body::{Attentive, Broken, Collected, Promise, Watch},
    chunks::Chunks,
    cors, crypt, errors,
    exchange::{Counted, Exchange, NOTED, Noted},
    form::{self, Form},
    head::{Head, Hosts, Peer},
    judged,
    limit::Sender,
    ops,
    refuse::{XML_BYTES_MAX, refuse},
    service::Service,
    signature, sts, verified, version_2,
    website::Visit,
    xml::{self, Document},
};
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http_body::Body as _;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use s3s::{
    Body, S3Error, S3Result,
    config::{S3Config, StaticConfigProvider},
    s3_error,
    service::{S3Service, S3ServiceBuilder},
};
use std::{
    cell::RefCell,
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// Memory of parsed XML per byte: the shortest element that `s3s` parses has some thirty bytes.
const XML_WEIGHT: u64 = 8;

/// The S3 service, as a hyper service.
#[derive(Clone)]
pub struct Front {
    inner: Arc<Inner>,
    /// The peer's address.
    peer: Option<IpAddr>,
}

struct Inner {
    gateway: Arc<Gateway>,
    service: S3Service,
    domains: Domains,
    /// Number of the next request.
    next: AtomicU64,
    /// Connections are encrypted.
    is_secure: bool,
}

impl Front {
    /// A service with buckets as hosts below these domains.
    pub fn new(gateway: Arc<Gateway>, domains: Vec<String>, is_secure: bool) -> Self {
        let next = gateway.clock().now_ms() << 20;
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES_MAX;
        config.post_object_max_file_size = form::FILE_BYTES_MAX;
        config.form_max_field_size = form::FIELD_BYTES_MAX;
        config.form_max_fields_size = form::FIELDS_BYTES_MAX;
        config.form_max_parts = form::FIELDS_MAX;
        // `signature` compares times, with the store's clock. Policies of forms have their own
        // expiry, independent of the time of signing.
        config.presigned_url_max_skew_time_secs = u32::MAX;
        Self {
            inner: Arc::new(Inner {
                service: service(&gateway, &domains, config),
                gateway,
                domains: Domains(domains),
                next: AtomicU64::new(next),
                is_secure,
            }),
            peer: None,
        }
    }

    /// Its state.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.inner.gateway
    }

    /// The service for a connection.
    pub fn to(&self, peer: IpAddr) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            peer: Some(peer),
        }
    }
}

/// A request's number as text for answers.
pub fn number_text(number: u64) -> String {
    format!("{number:016X}")
}

/// Configures `s3s`.
fn service(gateway: &Arc<Gateway>, domains: &[String], config: S3Config) -> S3Service {
    let mut builder = S3ServiceBuilder::new(Service(Arc::clone(gateway)));
    builder.set_auth(Auth(Arc::clone(gateway)));
    builder.set_access(Access(Arc::clone(gateway)));
    builder.set_route(sts::Route(Arc::clone(gateway)));
    builder.set_host(Domains(domains.to_vec()));
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.build()
}

type Answered = Result<Response<Counted>, Infallible>;

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Either<Ready<Answered>, Pin<Box<dyn Future<Output = Answered> + Send>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        let (mut parts, body) = request.into_parts();
        let peer = Peer {
            address: self.peer,
            is_secure: inner.is_secure,
            tls: parts.extensions.get().copied(),
            number: inner.next.fetch_add(1, Ordering::Relaxed),
            arrived_ms: inner.gateway.clock().now_ms(),
        };
        let (head, is_clear) = Head::read(&mut parts, peer, inner.hosts());
        crypt::request::hide(&mut parts.headers);
        let exchange = Exchange::begin(&inner.gateway, Arc::clone(&head), &parts.headers);
        let mut asked = Asked::of(&parts.headers, exchange);
        match is_clear.map(|()| inner.way(&head, &parts.headers, &mut asked)) {
            Err(refusal) => Either::Left(ready(Ok(inner.finish(asked, Err(refusal))))),
            Ok(Way::Short(outcome)) => Either::Left(ready(Ok(inner.finish(asked, outcome)))),
            Ok(Way::Site) => Either::Right(Box::pin(async move {
                let outcome = inner.show(&mut asked, &head, &parts.headers).await;
                Ok(inner.finish(asked, outcome))
            })),
            Ok(Way::Long(promise)) => Either::Right(Box::pin(async move {
                let outcome = inner.go_long(&mut asked, &head, parts, body, promise).await;
                Ok(inner.finish(asked, outcome))
            })),
        }
    }
}

/// A request being answered, with the data needed at the end of its answer.
struct Asked {
    exchange: Exchange,
    /// Its headers, if it is cross-origin: only then are they needed.
    headers: Option<HeaderMap>,
    waits_for_continue: bool,
    /// It concerns two objects.
    is_copy: bool,
    /// Part of its body was read.
    was_read: Arc<AtomicBool>,
}

impl Asked {
    fn of(headers: &HeaderMap, exchange: Exchange) -> Self {
        Self {
            exchange,
            headers: headers.get(header::ORIGIN).map(|_| headers.clone()),
            waits_for_continue: headers.contains_key(header::EXPECT),
            is_copy: headers.contains_key("x-amz-copy-source"),
            was_read: Arc::default(),
        }
    }
}

impl Asked {
    /// Uses an answer of the short way.
    fn at_once(&mut self, answer: AtOnce) -> Way {
        self.exchange.note(Noted {
            operation: answer.operation.to_owned(),
            key: answer.key,
            has_begun: true,
        });
        Way::Short(answer.response)
    }

    /// Awaits an answer and takes the facts recorded meanwhile.
    async fn noting(&mut self, answer: impl Future<Output = S3Result<Response<Body>>>) -> S3Result<Response<Body>> {
        let call = async { (answer.await, NOTED.with(RefCell::take)) };
        let (answer, noted) = NOTED.scope(RefCell::default(), call).await;
        self.exchange.note(noted);
        answer
    }
}

/// The answer of `s3s`.
async fn handed(service: &S3Service, request: Request<Body>) -> S3Result<Response<Body>> {
    service.call(request).await.map_err(|error| {
        tracing::error!(?error, "a request could not be answered");
        s3s::S3ErrorCode::InternalError.into()
    })
}

/// How a request is answered.
enum Way {
    /// It has been answered.
    Short(S3Result<Response<Body>>),
    /// By the bucket's web site.
    Site,
    /// By `s3s`, with these digests of its body.
    Long(Option<Promise>),
}

impl Inner {
    /// The domains below which hosts name buckets.
    fn hosts(&self) -> Hosts<'_> {
        Hosts {
            buckets: &self.domains,
            sites: &self.gateway.websites,
        }
    }

    /// Chooses the short or the long way, and answers requests that need no waiting.
    fn way(&self, head: &Head, headers: &HeaderMap, asked: &mut Asked) -> Way {
        if head.is_site {
            // Preflight requests are handled alike on all hosts.
            if head.method != Method::OPTIONS {
                return Way::Site;
            }
            return Way::Short(self.admit(head.peer).and_then(|()| self.preflight(head, headers)));
        }
        let plain = Plain::of(head, headers);
        if let Some(plain) = plain.as_ref().filter(|_| !head.is_signed()) {
            if let Err(refusal) = self.admit(head.peer) {
                return Way::Short(Err(refusal));
            }
            let answer = plain.answer(&self.gateway);
            return answer.map_or(Way::Long(None), |answer| asked.at_once(answer));
        }
        // The request counts for its address, which is corrected when its signature has been
        // verified.
        let admitted = refuse(head, headers).and_then(|()| self.admit(head.peer));
        let admitted = admitted.and_then(|()| self.refuse_version_2(head));
        match admitted.and_then(|()| Promise::of(head, headers)) {
            Err(refusal) => Way::Short(Err(refusal)),
            Ok(_) if head.method == Method::OPTIONS => Way::Short(self.preflight(head, headers)),
            Ok(promise) => {
                let answer = plain.and_then(|plain| plain.answer_to_signer(&self.gateway, head, headers));
                answer.map_or(Way::Long(promise), |answer| asked.at_once(answer))
            }
        }
    }

    /// Lets `s3s` answer.
    async fn go_long(
        &self,
        asked: &mut Asked,
        head: &Arc<Head>,
        mut parts: Parts,
        body: Incoming,
        promise: Option<Promise>,
    ) -> S3Result<Response<Body>> {
        if head.version_2.is_some() {
            version_2::carry(
                head,
                &mut parts,
                |id| self.gateway.access_keys.secret(id),
                head.peer.arrived(),
            )?;
        } else {
            let secret = |id: &str| self.gateway.access_keys.secret(id);
            verified::take_out_idle(head, &mut parts.headers, secret, head.peer.arrived_ms);
        }
        let ticket = asked.exchange.ticket();
        parts.extensions.insert(Arc::clone(&ticket));
        parts.extensions.insert(Arc::clone(head));
        if let Some(each) = asked.exchange.each() {
            parts.extensions.insert(each);
        }
        let is_over = promise.is_none() && body.is_end_stream();
        if is_over && matches!(head.method, Method::GET | Method::HEAD) {
            // Most requests have no body to check.
            let request = Request::from_parts(parts, Body::empty());
            return asked.noting(handed(&self.service, request)).await;
        }
        let broken = Broken::default();
        let secret = |id: &str| self.gateway.access_keys.secret(id);
        let chunks = Chunks::of(head, &mut parts.headers, &ticket, secret, head.peer.arrived_ms);
        if let Some(trailer) = chunks.as_ref().and_then(Chunks::trailer) {
            parts.extensions.insert(trailer);
        }
        let document = Document::of(head).filter(|_| !is_over);
        if let Some(kept) = document.as_ref().and_then(Document::kept) {
            parts.extensions.insert(kept);
        }
        let watch = Watch {
            promise,
            was_read: Arc::clone(&asked.was_read),
            received: asked.exchange.received(),
            chunks,
            document,
            collected: weight(head).map(|weight| Collected { ticket, weight }),
            broken: broken.clone(),
        };
        let body = Attentive::new(body, watch);
        let answer = asked.noting(self.call(head, parts, body)).await;
        let answer = broken.take().map_or(answer, Err)?;
        // `s3s` collects such a body before the operation, and reports an incomplete one, or wrong
        // chunks, as a server error.
        let is_failure = answer.status() == StatusCode::INTERNAL_SERVER_ERROR;
        if is_failure && weight(head).is_some() && !head.is_call && !asked.exchange.has_begun() {
            return Err(s3_error!(
                IncompleteBody,
                "The body ended early, or is not in the form that was announced."
            ));
        }
        Ok(answer)
    }

    /// Answers a request to a bucket's web site.
    async fn show(&self, asked: &mut Asked, head: &Head, headers: &HeaderMap) -> S3Result<Response<Body>> {
        self.admit(head.peer)?;
        let bucket = head.bucket().unwrap_or_default();
        let site = self.gateway.bucket(bucket);
        let settings = site.and_then(|bucket| bucket.record().website.clone().ok_or_else(ops::website::no_site));
        let ask = |method: Method, headers: HeaderMap, key: String| -> BoxFuture<'_, S3Result<Response<Body>>> {
            Box::pin(self.ask_for(head, bucket, method, headers, key))
        };
        let visit = Visit::of(head, headers);
        let number = number_text(head.peer.number);
        let answer = NOTED
            .scope(RefCell::default(), visit.answer(settings, &number, &ask))
            .await;
        asked.exchange.note(Noted {
            operation: "WebsiteObject".to_owned(),
            key: None,
            has_begun: true,
        });
        Ok(answer)
    }

    /// Answers a request for an object, made from another request.
    async fn ask_for(
        &self,
        of: &Head,
        bucket: &str,
        method: Method,
        headers: HeaderMap,
        key: String,
    ) -> S3Result<Response<Body>> {
        let uri = format!("/{bucket}/{}", ops::listings::Encoding::URL.apply(&key));
        let request = Request::builder().method(method).uri(uri).body(());
        let (mut parts, ()) = request.map_err(S3Error::internal_error)?.into_parts();
        // A request for several ranges keeps its headers.
        let is_first = !headers.is_empty();
        parts.headers = headers;
        // A host without a dot is below no domain, so it names no bucket.
        parts.headers.insert(header::HOST, HeaderValue::from_static("website"));
        let (mut head, is_clear) = Head::read(&mut parts, of.peer, self.hosts());
        is_clear?;
        if let Some(head) = Arc::get_mut(&mut head).filter(|_| is_first) {
            head.ranges.clone_from(&of.ranges);
        }
        let at_once = Plain::of(&head, &parts.headers).and_then(|plain| plain.answer(&self.gateway));
        if let Some(answer) = at_once {
            return answer.response;
        }
        refuse(&head, &parts.headers)?;
        parts.extensions.insert(head);
        handed(&self.service, Request::from_parts(parts, Body::empty())).await
    }

    /// Adds the headers of every answer.
    fn finish(&self, asked: Asked, outcome: S3Result<Response<Body>>) -> Response<Counted> {
        let (head, exchange) = (Arc::clone(&asked.exchange.head), asked.exchange);
        let mut response = outcome.unwrap_or_else(into_response);
        ops::attributes::bare_tag(&mut response);
        let is_part = response.headers().contains_key(header::CONTENT_RANGE)
            || response.extensions().get::<StatusCode>().is_some();
        if response.status().is_success() && is_part {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        // A client that is answered instead of getting the "100 Continue" it waits for must not get
        // another answer on the same connection: botocore then takes the second status line for a
        // header. And a client that is still sending must not send another request: hyper closes
        // the connection, since it does not read the rest.
        let is_refused = response.status().is_client_error() || response.status().is_server_error();
        let announced = head.content_length.unwrap_or(0);
        let is_cut_short = is_refused && exchange.received().load(Ordering::Relaxed) < announced;
        if is_cut_short || (asked.waits_for_continue && !asked.was_read.load(Ordering::Relaxed)) {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if !is_refused && self.is_charged(&head, &exchange) {
            response
                .headers_mut()
                .insert("x-amz-request-charged", HeaderValue::from_static("requester"));
        }
        if let Some(headers) = &asked.headers {
            self.add_cors(&head, headers, response.headers_mut());
        }
        let number = number_text(head.peer.number);
        if is_refused && head.is_call {
            sts::complete_error(&mut response, &number);
        } else if is_refused {
            errors::complete(&mut response, &head, asked.is_copy, &number);
        }
        // Neither a site's pages nor an object's bytes are this server's XML.
        if !head.is_site && (is_refused || exchange.operation() != "GetObject") {
            xml::refer_to_returns(&mut response);
        }
        if let Ok(value) = HeaderValue::from_str(&number) {
            response.headers_mut().insert(REQUEST_ID.clone(), value);
        }
        response
            .headers_mut()
            .insert(header::SERVER, HeaderValue::from_static("Terrace"));
        exchange.answer(response)
    }

    /// Passes a request to `s3s`.
    async fn call(&self, head: &Head, parts: Parts, body: Attentive<Incoming>) -> S3Result<Response<Body>> {
        if head.is_form {
            return self.call_with_form(head, parts, body).await;
        }
        let body = Body::http_body_unsync(body);
        handed(&self.service, Request::from_parts(parts, body)).await
    }

    /// Passes a form to `s3s`.
    async fn call_with_form(
        &self,
        head: &Head,
        mut parts: Parts,
        body: Attentive<Incoming>,
    ) -> S3Result<Response<Body>> {
        let bucket = head.bucket().unwrap_or_default();
        self.gateway.bucket(bucket)?;
        let form = Form::read(&parts.headers, axum::body::Body::new(body)).await?;
        form::check(&form, bucket)?;
        let extras = form::Extras::of(&form)?;
        let is_open = !form.is_signed() && self.is_open(head, &parts.headers, &extras, &form);
        parts.extensions.insert(extras);
        if !is_open {
            if form.is_version_2() && self.gateway.no_version_2 {
                return Err(signature::not_version_2());
            }
            form.check_version_2(|id| self.gateway.access_keys.secret(id))?;
            form.check_version_4(|id| self.gateway.access_keys.secret(id))?;
        }
        form::refuse_ended(&form, head.peer.arrived_ms)?;
        let key = form.field("key").unwrap_or_default();
        let location = ops::said::location(&parts.extensions, &parts.headers, bucket, key);
        let (kind, body) = form.written();
        parts.headers.insert(header::CONTENT_TYPE, kind);
        let request = Request::from_parts(parts, Body::http_body_unsync(body));
        let mut answer = handed(&self.service, request).await?;
        form::say_location(&mut answer, &location);
        Ok(answer)
    }

    /// Whether the bucket's list or policy may allow all callers to put this form's object. Values
    /// that are not known yet are checked again with the resulting request.
    fn is_open(&self, head: &Head, headers: &HeaderMap, extras: &form::Extras, form: &Form) -> bool {
        let bucket = self.gateway.buckets.get(head.bucket().unwrap_or_default());
        bucket.is_ok_and(|bucket| {
            let record = bucket.record();
            let key = form.field("key").unwrap_or_default();
            let asker = || judged::of_unsigned_form(head, headers, extras.said(), record.owner(), key);
            Claim::new(Principal::Anonymous, Action::Write, &bucket)
                .asking(record.rules.is_some().then(asker))
                .may_begin()
                .is_ok()
        })
    }

    /// Whether a request was admitted because its account pays.
    fn is_charged(&self, head: &Head, exchange: &Exchange) -> bool {
        let bucket = head.bucket().filter(|_| head.pays);
        let record = bucket
            .and_then(|name| self.gateway.buckets.get(name).ok())
            .map(|bucket| bucket.record());
        let Some(record) = record.filter(|record| record.requester_pays) else {
            return false;
        };
        let account = exchange.key().and_then(|key| self.gateway.access_keys.account(key));
        account.is_some_and(|account| *account != *record.owner())
    }

    /// Refuses signatures of version 2 if they are switched off.
    fn refuse_version_2(&self, head: &Head) -> S3Result {
        if head.version_2.is_some() && self.gateway.no_version_2 {
            return Err(signature::not_version_2());
        }
        Ok(())
    }

    /// Counts a request for its address.
    fn admit(&self, peer: Peer) -> S3Result {
        let Some(address) = peer.address else { return Ok(()) };
        self.gateway.admit(Sender::at(address), Instant::now())
    }

    /// Answers a preflight request.
    fn preflight(&self, head: &Head, headers: &HeaderMap) -> S3Result<Response<Body>> {
        let question = cors::question(headers, &head.method).ok_or_else(|| {
            errors::custom(
                "BadRequest",
                StatusCode::BAD_REQUEST,
                "Insufficient information. Origin request header needed.",
            )
        })?;
        // A missing bucket is reported like one without rules.
        let bucket = head.bucket().and_then(|name| self.gateway.buckets.get(name).ok());
        let record = bucket.map(|bucket| bucket.record());
        // The rule's headers are added like those of every answer.
        cors::allowed(record.as_ref().map_or(&[], |record| &record.cors), &question)?;
        Ok(Response::new(Body::empty()))
    }

    fn add_cors(&self, head: &Head, request: &HeaderMap, answer: &mut HeaderMap) {
        let Some(question) = cors::question(request, &head.method) else {
            return;
        };
        let bucket = head.bucket().and_then(|name| self.gateway.buckets.get(name).ok());
        let Some(record) = bucket.map(|bucket| bucket.record()) else {
            return;
        };
        if let Some(rule) = cors::allowing(&record.cors, &question) {
            cors::add(answer, rule, &question);
        }
    }
}

/// Memory per byte of a body that is collected before the operation. Bodies of objects are not.
fn weight(head: &Head) -> Option<u64> {
    if head.is_form {
        return Some(1);
    }
    (!head.is_of_object() || head.is_xml).then_some(XML_WEIGHT)
}

/// An error as an answer.
pub fn into_response(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

#[cfg(test)]
mod tests;
