//! What stands before `s3s`: refuses what the service does not have, answers browsers that ask
//! beforehand, limits how long a client may stay silent, and gives every answer its number.
//! [`super::exchange`] counts and logs.

use super::{
    Gateway,
    access::{
        Access, Auth, Domains,
        decide::{Action, Claim, Principal},
    },
    at_once::Plain,
    body::{Attentive, Broken, Collected, Promise, Watch},
    chunks::Chunks,
    cors, crypt,
    exchange::{Counted, Exchange, NOTED, Noted},
    form::{self, Form, is_form},
    judged::Peer,
    last_chunk::ToLastChunk,
    limit::Sender,
    logging::{self, Logged},
    ops,
    refuse::{XML_BYTES_MAX, is_object, is_xml, refuse},
    service::Service,
    signature::{has_signature, refuse_repeated},
    sts::{self, Call},
    website::Visit,
};
use crate::http::ranges::Ranges;
use futures_util::future::{BoxFuture, Either, Ready, ready};
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

/// How many times its bytes XML takes when it is read: the shortest element that `s3s` makes
/// something of has some thirty.
const XML_WEIGHT: u64 = 8;

/// The S3 service as hyper calls it.
#[derive(Clone)]
pub struct Front {
    inner: Arc<Inner>,
    /// Who is at the other end of the connection.
    peer: Option<IpAddr>,
}

struct Inner {
    gateway: Arc<Gateway>,
    service: S3Service,
    /// For forms: until when one is good its policy says, however long ago it was signed.
    form_service: S3Service,
    domains: Domains,
    /// Number of the next request.
    next: AtomicU64,
    /// What connections carry is encrypted.
    is_secure: bool,
}

impl Front {
    /// A service that takes buckets from hosts below these domains.
    pub fn new(gateway: Arc<Gateway>, domains: Vec<String>, is_secure: bool) -> Self {
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES_MAX;
        config.post_object_max_file_size = form::FILE_BYTES_MAX;
        config.form_max_field_size = form::FIELD_BYTES_MAX;
        config.form_max_fields_size = form::FIELDS_BYTES_MAX;
        config.form_max_parts = form::FIELDS_MAX;
        let service = service(&gateway, &domains, config.clone());
        config.presigned_url_max_skew_time_secs = u32::MAX;
        Self {
            inner: Arc::new(Inner {
                service,
                form_service: self::service(&gateway, &domains, config),
                gateway,
                domains: Domains(domains),
                next: AtomicU64::new(super::keyspace::now_ms() << 20),
                is_secure,
            }),
            peer: None,
        }
    }

    /// The service for a connection.
    pub fn to(&self, peer: IpAddr) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            peer: Some(peer),
        }
    }
}

/// The number of a request as answers have it.
pub fn number_text(number: u64) -> String {
    format!("{number:016X}")
}

/// `s3s`, with all that it asks.
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
        let number = inner.next.fetch_add(1, Ordering::Relaxed);
        parts.extensions.insert(Peer {
            address: self.peer,
            is_secure: inner.is_secure,
            tls: parts.extensions.get().copied(),
            number,
        });
        Call::mark(&inner.domains, &mut parts);
        // Before anything is read or taken out.
        let is_clear = refuse_repeated(&parts);
        let site = inner.site(&parts);
        take_odd_range(&mut parts);
        crypt::request::hide(&mut parts.headers);
        take_empty_authorization(&mut parts);
        let number = number_text(number);
        let mut exchange = Exchange::begin(&inner.gateway, &parts, number, self.peer);
        let logged = inner.logged(&parts);
        if let Some(logged) = &logged {
            parts.extensions.insert(logged.each());
        }
        exchange.log(logged);
        let mut asked = Asked::of(&parts, exchange);
        let way = match (is_clear, site) {
            (Ok(()), Some(site)) => {
                // A browser that asks beforehand is answered as on any host.
                if parts.method != Method::OPTIONS {
                    return Either::Right(Box::pin(async move {
                        let outcome = inner.show(&mut asked, &parts, &site).await;
                        Ok(inner.finish(asked, outcome))
                    }));
                }
                Way::Short(inner.admit(self.peer).and_then(|()| inner.preflight(&parts)))
            }
            (Ok(()), None) => inner.way(&parts, &mut asked, self.peer),
            (Err(refusal), _) => Way::Short(Err(refusal)),
        };
        match way {
            Way::Short(outcome) => Either::Left(ready(Ok(inner.finish(asked, outcome)))),
            Way::Long(promise) => Either::Right(Box::pin(async move {
                let outcome = inner.go_long(&mut asked, parts, body, promise).await;
                Ok(inner.finish(asked, outcome))
            })),
        }
    }
}

/// A request that is being answered: what the end of the answer needs of it.
struct Asked {
    exchange: Exchange,
    /// Its headers, if a page asks from elsewhere: only that is answered by what else it said.
    headers: Option<HeaderMap>,
    waits_for_continue: bool,
    /// It is a call of the security token service.
    is_call: bool,
    /// How long it says that its body is.
    announced: u64,
    /// Something of its body was read.
    was_read: Arc<AtomicBool>,
}

impl Asked {
    fn of(parts: &Parts, exchange: Exchange) -> Self {
        Self {
            exchange,
            headers: parts.headers.get(header::ORIGIN).map(|_| parts.headers.clone()),
            waits_for_continue: parts.headers.contains_key(header::EXPECT),
            is_call: parts.extensions.get::<Call>().is_some(),
            announced: announced(&parts.headers),
            was_read: Arc::default(),
        }
    }
}

fn announced(headers: &HeaderMap) -> u64 {
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// How a request is answered.
enum Way {
    /// It is answered already.
    Short(S3Result<Response<Body>>),
    /// By `s3s`; and its body is to be this.
    Long(Option<Promise>),
}

impl Inner {
    /// Answers what can be answered without waiting.
    fn way(&self, parts: &Parts, asked: &mut Asked, peer: Option<IpAddr>) -> Way {
        if let Some(plain) = Plain::of(&self.domains, parts) {
            if let Err(refusal) = self.admit(peer) {
                return Way::Short(Err(refusal));
            }
            return plain.answer(&self.gateway).map_or(Way::Long(None), |answer| {
                asked.exchange.note(Noted {
                    operation: answer.operation.to_owned(),
                    key: None,
                });
                Way::Short(Ok(answer.response))
            });
        }
        // The address pays until a signature is known to be right, and gets back what it paid if it
        // is.
        let admitted = refuse(parts).and_then(|()| self.admit(peer));
        match admitted.and_then(|()| Promise::of(parts)) {
            Err(refusal) => Way::Short(Err(refusal)),
            Ok(_) if parts.method == Method::OPTIONS => Way::Short(self.preflight(parts)),
            Ok(promise) => Way::Long(promise),
        }
    }

    /// Has `s3s` answer.
    async fn go_long(
        &self,
        asked: &mut Asked,
        mut parts: Parts,
        body: Incoming,
        promise: Option<Promise>,
    ) -> S3Result<Response<Body>> {
        let broken = Broken::default();
        let ticket = asked.exchange.ticket();
        let watch = Watch {
            promise,
            was_read: Arc::clone(&asked.was_read),
            received: asked.exchange.received(),
            chunks: Chunks::of(&parts.headers, &ticket),
            collected: self.weight(&parts).map(|weight| Collected {
                ticket: Arc::clone(&ticket),
                weight,
            }),
            broken: broken.clone(),
        };
        parts.extensions.insert(ticket);
        let body = Attentive::new(body, watch);
        let call = async { (self.call(parts, body).await, NOTED.with(RefCell::take)) };
        let (answer, noted) = NOTED.scope(RefCell::default(), call).await;
        asked.exchange.note(noted);
        broken.take().map_or(answer, Err)
    }

    /// The bucket whose web site a request is to.
    fn site(&self, parts: &Parts) -> Option<String> {
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        self.gateway.websites.bucket(host?).map(str::to_owned)
    }

    /// Shows something of the web site of a bucket.
    async fn show(&self, asked: &mut Asked, parts: &Parts, bucket: &str) -> S3Result<Response<Body>> {
        self.admit(parts.extensions.get::<Peer>().and_then(|peer| peer.address))?;
        let site = self.gateway.buckets.get(bucket);
        let settings = site.and_then(|bucket| bucket.record().website.clone().ok_or_else(ops::website::no_site));
        let ask = |method: Method, headers: HeaderMap, key: String| -> BoxFuture<'_, S3Result<Response<Body>>> {
            Box::pin(self.ask_for(parts, bucket, method, headers, key))
        };
        let visit = Visit::of(parts, self.is_secure);
        let number = asked.exchange.number.clone();
        let answer = NOTED
            .scope(RefCell::default(), visit.answer(settings, &number, &ask))
            .await;
        asked.exchange.note(Noted {
            operation: "WebsiteObject".to_owned(),
            key: None,
        });
        Ok(answer)
    }

    /// Answers somebody's request for an object, made of another request.
    async fn ask_for(
        &self,
        of: &Parts,
        bucket: &str,
        method: Method,
        headers: HeaderMap,
        key: String,
    ) -> S3Result<Response<Body>> {
        let uri = format!("/{bucket}/{}", ops::listings::Encoding::URL.apply(&key));
        let request = Request::builder().method(method).uri(uri).body(());
        let (mut parts, ()) = request.map_err(S3Error::internal_error)?.into_parts();
        // Several ranges stay with the headers that asked for them.
        let is_first = !headers.is_empty();
        parts.headers = headers;
        // No bucket's: without a dot it is below no domain.
        parts.headers.insert(header::HOST, HeaderValue::from_static("website"));
        if let Some(peer) = of.extensions.get::<Peer>() {
            parts.extensions.insert(*peer);
        }
        if let Some(ranges) = of.extensions.get::<Ranges>().filter(|_| is_first) {
            parts.extensions.insert(ranges.clone());
        }
        let at_once = Plain::of(&self.domains, &parts).and_then(|plain| plain.answer(&self.gateway));
        if let Some(answer) = at_once {
            return Ok(answer.response);
        }
        refuse(&parts)?;
        let answer = self.service.call(Request::from_parts(parts, Body::empty())).await;
        answer.map_err(|error| {
            tracing::error!(?error, "a request to a web site could not be answered");
            s3s::S3ErrorCode::InternalError.into()
        })
    }

    /// Adds what every answer has.
    fn finish(&self, asked: Asked, outcome: S3Result<Response<Body>>) -> Response<Counted> {
        let exchange = asked.exchange;
        let mut response = outcome.unwrap_or_else(into_response);
        ops::attributes::bare_tag(&mut response);
        let is_part = response.headers().contains_key(header::CONTENT_RANGE)
            || response.extensions().get::<StatusCode>().is_some();
        if response.status().is_success() && is_part {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        // Who is answered without the "100 Continue" it waits for may not be sent another answer on
        // the same connection: botocore then takes the second answer's status line for a header.
        // And who still sends is not to send another request: hyper ends the connection, since it
        // does not read the rest.
        let is_refused = response.status().is_client_error() || response.status().is_server_error();
        let is_cut_short = is_refused && exchange.received().load(Ordering::Relaxed) < asked.announced;
        if is_cut_short || (asked.waits_for_continue && !asked.was_read.load(Ordering::Relaxed)) {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(headers) = &asked.headers {
            self.add_cors(&exchange.method, exchange.uri.path(), headers, response.headers_mut());
        }
        if is_refused && asked.is_call {
            sts::complete_error(&mut response, &exchange.number);
        } else if is_refused {
            complete_error(response.body_mut(), exchange.uri.path(), &exchange.number);
        }
        if let Ok(value) = HeaderValue::from_str(&exchange.number) {
            response.headers_mut().insert("x-amz-request-id", value);
        }
        response
            .headers_mut()
            .insert(header::SERVER, HeaderValue::from_static("Terrace"));
        exchange.answer(response)
    }

    /// How many times its bytes a body becomes that is collected before an operation begins. Bodies
    /// of objects are not.
    fn weight(&self, parts: &Parts) -> Option<u64> {
        if is_form(&parts.method, &parts.headers) {
            return Some(1);
        }
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let has_key = match host.and_then(|host| self.domains.bucket(host)) {
            Some(_) => parts.uri.path().len() > 1,
            None => is_object(parts.uri.path()),
        };
        let is_of_object = has_key && !is_xml(&parts.method, parts.uri.query().unwrap_or(""));
        (!is_of_object).then_some(XML_WEIGHT)
    }

    /// Hands a request to `s3s`.
    async fn call(&self, mut parts: Parts, body: Attentive<Incoming>) -> S3Result<Response<Body>> {
        let (service, body) = if is_form(&parts.method, &parts.headers) {
            let form = Form::read(&parts.headers, axum::body::Body::new(body)).await?;
            let bucket = self.bucket_name(parts.uri.path(), &parts.headers).unwrap_or_default();
            form::check(&form, &bucket)?;
            parts.extensions.insert(form::Extras::of(&form)?);
            if form.is_signed() || !self.is_written_by_all(&bucket) {
                form.check_version_2(|id| self.gateway.access_keys.secret(id))?;
                form.check_version_4(|id| self.gateway.access_keys.secret(id))?;
            }
            let (kind, body) = form.written();
            parts.headers.insert(header::CONTENT_TYPE, kind);
            (&self.form_service, Body::http_body_unsync(body))
        } else {
            let body = ToLastChunk::new(&parts.headers, body);
            (&self.service, Body::http_body_unsync(body))
        };
        let answer = service.call(Request::from_parts(parts, body)).await;
        answer.map_err(|error| {
            tracing::error!(?error, "a request could not be answered");
            s3s::S3ErrorCode::InternalError.into()
        })
    }

    /// Whether a bucket takes what nobody signed.
    fn is_written_by_all(&self, bucket: &str) -> bool {
        let bucket = self.gateway.buckets.get(bucket);
        bucket.is_ok_and(|bucket| {
            Claim::new(Principal::Everybody, Action::Write, &bucket)
                .on_bucket()
                .is_ok()
        })
    }

    /// Counts a request for the address that it came from.
    fn admit(&self, peer: Option<IpAddr>) -> S3Result {
        let Some(peer) = peer else { return Ok(()) };
        self.gateway.admit(Sender::at(peer), Instant::now())
    }

    /// The bucket that a host names, of S3 or of a web site.
    fn bucket_of_host<'h>(&self, host: &'h str) -> Option<&'h str> {
        let websites = &self.gateway.websites;
        websites.bucket(host).or_else(|| self.domains.bucket(host))
    }

    /// The bucket a request is about.
    fn bucket_name(&self, path: &str, headers: &HeaderMap) -> Option<String> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let bucket = host.and_then(|host| self.bucket_of_host(host));
        let first = || path.trim_start_matches('/').split('/').next();
        bucket.or_else(first).map(str::to_owned)
    }

    /// What the log of a bucket needs of a request that is about it, if there is one.
    fn logged(&self, parts: &Parts) -> Option<Box<Logged>> {
        // Most servers have no such bucket, and then this costs nothing.
        if !self.gateway.buckets.is_any_logged() {
            return None;
        }
        let (path, headers) = (parts.uri.path(), &parts.headers);
        let bucket = self.bucket_name(path, headers)?;
        let bucket = self.gateway.buckets.logged(&bucket)?;
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let is_of_host = host.is_some_and(|host| self.bucket_of_host(host).is_some());
        let key = logging::key_of(path, is_of_host);
        Some(Box::new(Logged::of(parts, bucket.name.clone(), key)))
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

/// Adds to an error's XML what it was about, and the request's number, as S3 has them.
fn complete_error(body: &mut Body, path: &str, number: &str) {
    const END: &[u8] = b"</Error>";
    let Some(xml) = body.bytes() else { return };
    let Some(front) = xml.strip_suffix(END) else { return };
    let resource = path.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let more = format!("<Resource>{resource}</Resource><RequestId>{number}</RequestId>");
    *body = Body::from([front, more.as_bytes(), END].concat());
}

/// A range that cannot be understood is answered with the whole object, as RFC 9110 section 14.2
/// allows and S3 does it; `s3s` would refuse it. So are several ranges of whoever signs, since S3
/// never sends several; a browser or a player, who does not sign, gets them. In a signed header a
/// range stays, since the signature covers it.
fn take_odd_range(parts: &mut Parts) {
    let is_signed = parts.headers.contains_key(header::AUTHORIZATION);
    let range = parts.headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let Some(range) = range.filter(|text| !is_signed && s3s::dto::Range::parse(text).is_err()) else {
        return;
    };
    let ranges = Ranges::parse(range).filter(|_| parts.method == Method::GET && !has_signature(parts));
    parts.headers.remove(header::RANGE);
    if let Some(ranges) = ranges {
        parts.extensions.insert(ranges);
    }
}

/// A header without a value says nothing; `s3s` would refuse it.
fn take_empty_authorization(parts: &mut Parts) {
    if parts.headers.contains_key(header::AUTHORIZATION) && !has_signature(parts) {
        parts.headers.remove(header::AUTHORIZATION);
    }
}

fn into_response(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

#[cfg(test)]
mod tests;
