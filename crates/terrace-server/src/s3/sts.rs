//! The security token service, limited to temporary credentials of the caller's key: AssumeRole,
//! GetSessionToken and GetCallerIdentity ("AWS STS API Reference"), on the same port.
//!
//! A call is a POST of a form to `/`, and recognised ([`Head::is_call`]) before any other
//! processing. Its signature must be for the service `sts`; signatures of other requests must not
//! be.

use super::{
    Gateway, account, errors,
    exchange::note,
    head::{Head, Peer},
    judged,
    ops::{said::date_text, tagging},
    policy::{Caller, Policy},
    session::{self, Bounds, Made},
};
use hyper::{
    HeaderMap, Method, Response, StatusCode, Uri,
    header::{self, HeaderValue},
    http::Extensions,
};
use s3s::{Body, S3Request, S3Response, S3Result, auth::Credentials, route::S3Route, s3_error};
use std::{collections::BTreeMap, sync::Arc};
use terrace::Clock;

/// Longest body of a call.
const CALL_BYTES_MAX: usize = 8 << 10;
/// Version of the API.
const VERSION: &str = "2011-06-15";
/// Life of a session in seconds: minimum, default and maximum, for AssumeRole and GetSessionToken.
const LIFE_S: Life = (15 * 60, 60 * 60, 12 * 60 * 60);
const TOKEN_LIFE_S: Life = (15 * 60, 12 * 60 * 60, 36 * 60 * 60);
/// Most bytes of a session's policy and tags, so that tokens fit into heads.
const BOUNDS_BYTES_MAX: usize = 2048;
/// Most tags of a session, AWS's limit.
const TAGS_MAX: usize = 50;
/// Handles calls.
pub struct Route(pub Arc<Gateway>);

type Life = (u64, u64, u64);
/// Names and values.
type Tags = Vec<(String, String)>;

/// An error of a call: status, code and message.
type Wrong = (StatusCode, &'static str, String);

fn invalid(message: String) -> Wrong {
    (StatusCode::BAD_REQUEST, "ValidationError", message)
}

#[async_trait::async_trait]
impl S3Route for Route {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, extensions: &mut Extensions) -> bool {
        Head::of(extensions).is_ok_and(|head| head.is_call)
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let credentials = request.credentials.as_ref();
        let key = credentials.map(|credentials| credentials.access_key.as_str());
        note("AssumeRole", key);
        match (key, request.service.as_deref()) {
            (Some(key), Some("sts")) => {
                let head = Head::of(&request.extensions)?;
                self.0.charge(head.peer, key)?;
                self.0.session(credentials, head, &request.headers, None).map(|_| ())
            }
            _ => Err(errors::custom(
                "MissingAuthenticationToken",
                StatusCode::FORBIDDEN,
                "Request is missing Authentication Token",
            )),
        }
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let body = request.input.store_all_limited(CALL_BYTES_MAX).await;
        let body = body.map_err(|_| s3_error!(InvalidRequest, "The body of the call cannot be read."))?;
        let Some(credentials) = request.credentials else {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        };
        let fields: BTreeMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
        let outcome = match fields.get("Action").map(String::as_str) {
            Some("AssumeRole") => {
                let peer = Head::of(&request.extensions)?.peer;
                self.assume(&credentials, &fields, peer).await?
            }
            Some("GetSessionToken") => self.session_token(&credentials, &fields).await?,
            Some("GetCallerIdentity") => self.identity(&credentials),
            other => Err((
                StatusCode::BAD_REQUEST,
                "InvalidAction",
                format!(
                    "Could not find operation {} for version {VERSION}",
                    plain(other.unwrap_or(""))
                ),
            )),
        };
        Ok(answer(outcome))
    }
}

/// S3's errors about signatures, and those of STS.
const SAID: [(&str, StatusCode, &str); 7] = [
    (
        "AuthorizationHeaderMalformed",
        StatusCode::FORBIDDEN,
        "SignatureDoesNotMatch",
    ),
    ("RequestTimeTooSkewed", StatusCode::FORBIDDEN, "SignatureDoesNotMatch"),
    ("InvalidAccessKeyId", StatusCode::FORBIDDEN, "InvalidClientTokenId"),
    ("InvalidToken", StatusCode::FORBIDDEN, "InvalidClientTokenId"),
    ("ExpiredToken", StatusCode::FORBIDDEN, "ExpiredToken"),
    ("SlowDown", StatusCode::BAD_REQUEST, "Throttling"),
    ("InternalError", StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
];

/// Rewrites the error of a call in STS's XML, including errors found before it was recognised as a
/// call: signature checks use S3's XML.
pub fn complete_error(response: &mut Response<Body>, number: &str) {
    let Some(xml) = response.body().bytes() else { return };
    let text = String::from_utf8_lossy(&xml);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0)
    };
    let Some(code) = element("Code") else { return };
    let said = SAID.iter().find(|(of_s3, ..)| *of_s3 == code);
    let (status, code) = said.map_or((response.status(), code), |(_, status, code)| (*status, *code));
    let kind = if status.is_server_error() { "Receiver" } else { "Sender" };
    let message = element("Message").unwrap_or_default();
    let xml = format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/{VERSION}/\"><Error><Type>{kind}</Type>\
         <Code>{code}</Code><Message>{message}</Message></Error><RequestId>{number}</RequestId></ErrorResponse>"
    );
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    headers.remove(header::CONTENT_LENGTH);
    *response.status_mut() = status;
    *response.body_mut() = Body::from(xml);
}

/// Escapes text for XML.
fn plain(text: &str) -> String {
    text.chars().filter(|letter| letter.is_ascii_alphanumeric()).collect()
}

fn answer(outcome: Result<String, Wrong>) -> S3Response<Body> {
    let (status, xml) = match outcome {
        Ok(xml) => {
            let namespace = format!(" xmlns=\"https://sts.amazonaws.com/doc/{VERSION}/\">");
            (StatusCode::OK, xml.replacen('>', &namespace, 1))
        }
        // The front calls [`complete_error`].
        Err((status, code, message)) => {
            let message = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            (
                status,
                format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"),
            )
        }
    };
    let mut response = S3Response::new(Body::from(xml));
    response.status = Some(status);
    response
        .headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    response
}

/// Parses the life of a session, in seconds.
fn life_s(text: Option<&String>, (least, usual, most): Life) -> Result<u64, Wrong> {
    let Some(text) = text else { return Ok(usual) };
    match text.parse::<u64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(invalid(format!(
            "1 validation error detected: Value at 'durationSeconds' failed to satisfy constraint: Member must be \
             between {least} and {most}"
        ))),
    }
}

fn session_name(text: Option<&String>) -> Result<&str, Wrong> {
    let name = text.map_or("session", String::as_str);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
    if (2..=64).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(name);
    }
    Err(invalid(
        "1 validation error detected: Value at 'roleSessionName' failed to satisfy constraint: Member must satisfy \
         regular expression pattern: [\\w+=,.@-]{2,64}"
            .to_owned(),
    ))
}

/// Policy and tags of a requested session.
fn bounds(fields: &BTreeMap<String, String>, peer: Peer) -> Result<(Option<String>, Tags), Wrong> {
    let text = fields.get("Policy").filter(|text| !text.is_empty());
    let tags = tags(fields)?;
    let lengths = tags.iter().map(|(name, value)| name.len() + value.len());
    if lengths.sum::<usize>() + text.map_or(0, String::len) > BOUNDS_BYTES_MAX {
        let message = format!("The policy and the tags of a session have {BOUNDS_BYTES_MAX} bytes at most");
        return Err((StatusCode::BAD_REQUEST, "PackedPolicyTooLarge", message));
    }
    Ok((policy(text, peer)?, tags))
}

/// The tags of a session: `Tags.member.1.Key` and `.Value`, and so on.
fn tags(fields: &BTreeMap<String, String>) -> Result<Tags, Wrong> {
    let mut tags = Tags::new();
    while let Some(name) = fields.get(&format!("Tags.member.{}.Key", tags.len() + 1)) {
        let value = fields.get(&format!("Tags.member.{}.Value", tags.len() + 1));
        let value = value.map(String::as_str).unwrap_or_default();
        let is_taken = tags.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        if is_taken || tags.len() == TAGS_MAX || tagging::check_one(name, value).is_err() {
            return Err(invalid(format!(
                "1 validation error detected: Value at 'tags' failed to satisfy constraint: Member must be {TAGS_MAX} \
                 tags at most, of valid and different keys, and of valid values"
            )));
        }
        tags.push((name.clone(), value.to_owned()));
    }
    Ok(tags)
}

/// Policies may allow more for a tag, so choosing tags is choosing permissions.
fn may_not_tag() -> Wrong {
    let message = "The access key is not authorized to perform: sts:TagSession. Tags need a key with the level admin for all \
                   buckets (*=admin) and without a policy.";
    (StatusCode::FORBIDDEN, "AccessDenied", message.to_owned())
}

/// Whether a call requests a session that can exist.
#[cfg(feature = "fuzzing")]
pub fn checked(fields: &BTreeMap<String, String>) -> bool {
    let lives = [LIFE_S, TOKEN_LIFE_S].map(|life| (life, life_s(fields.get("DurationSeconds"), life)));
    for ((least, _, most), life_s) in lives {
        assert!(life_s.is_ok_and(|life_s| (least..=most).contains(&life_s)) || fields.contains_key("DurationSeconds"));
    }
    let name = session_name(fields.get("RoleSessionName"));
    // It is in the XML unchanged.
    assert!(
        name.as_ref()
            .map_or(true, |name| !name.contains(['<', '>', '&', '"', ' ']))
    );
    let peer = Peer {
        address: None,
        is_secure: false,
        tls: None,
        number: 1,
        arrived_ms: 0,
    };
    let bounds = bounds(fields, peer);
    if let Ok((policy, tags)) = &bounds {
        let names: std::collections::BTreeSet<_> = tags.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert!(
            names.len() == tags.len() && tags.len() <= TAGS_MAX,
            "each has a name of its own"
        );
        let lengths = tags.iter().map(|(name, value)| name.len() + value.len());
        assert!(lengths.sum::<usize>() + policy.as_ref().map_or(0, String::len) <= BOUNDS_BYTES_MAX);
    }
    name.is_ok() && bounds.is_ok()
}

/// Checks a session's policy.
fn policy(text: Option<&String>, peer: Peer) -> Result<Option<String>, Wrong> {
    let Some(text) = text else {
        return Ok(None);
    };
    let malformed = |wrong| (StatusCode::BAD_REQUEST, "MalformedPolicyDocument", wrong);
    let read = Policy::of_session(text).map_err(malformed)?;
    judged::check_keys(&read, peer).map_err(|error| malformed(error.message().unwrap_or("").to_owned()))?;
    Ok(Some(text.clone()))
}

impl Route {
    /// Credentials with at most the permissions and life of the caller's key.
    async fn assume(
        &self,
        credentials: &Credentials,
        fields: &BTreeMap<String, String>,
        peer: Peer,
    ) -> S3Result<Result<String, Wrong>> {
        let key = credentials.access_key.clone();
        let read = || {
            Ok((
                life_s(fields.get("DurationSeconds"), LIFE_S)?,
                session_name(fields.get("RoleSessionName"))?,
            ))
        };
        let (life_s, name) = match read() {
            Ok(read) => read,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let read = || bounds(fields, peer);
        let (policy, tags) = match read() {
            Ok(read) => read,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if !tags.is_empty() && !self.0.access_keys.may_everything(&key) {
            return Ok(Err(may_not_tag()));
        }
        let account = self.0.account(Some(credentials));
        let account = account.as_deref().unwrap_or(account::DEFAULT);
        let made = self.make(&key, life_s, policy, tags).await?;
        Ok(made.map(|(made, expires_ms)| assumed(&made, account, &key, name, expires_ms)))
    }

    /// Credentials with the permissions of the caller's key, for some time.
    async fn session_token(
        &self,
        credentials: &Credentials,
        fields: &BTreeMap<String, String>,
    ) -> S3Result<Result<String, Wrong>> {
        let life_s = match life_s(fields.get("DurationSeconds"), TOKEN_LIFE_S) {
            Ok(life_s) => life_s,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let made = self.make(&credentials.access_key, life_s, None, Vec::new()).await?;
        Ok(made.map(|(made, expires_ms)| {
            let given = given(&made, expires_ms);
            format!("<GetSessionTokenResponse><GetSessionTokenResult>{given}</GetSessionTokenResult></GetSessionTokenResponse>")
        }))
    }

    /// Makes a session of a key; returns its end too.
    async fn make(
        &self,
        key: &str,
        life_s: u64,
        policy: Option<String>,
        tags: Tags,
    ) -> S3Result<Result<(Made, u64), Wrong>> {
        if session::parent(key).is_some() {
            let message = "A session cannot make another.".to_owned();
            return Ok(Err((StatusCode::FORBIDDEN, "AccessDenied", message)));
        }
        let expires_ms = self.0.clock().now_ms().saturating_add(life_s * 1000);
        let bounds = Bounds {
            expires_ms,
            policy,
            tags,
        };
        let key = key.to_owned();
        let made = self
            .0
            .run(move |gateway, store| {
                let made = gateway.access_keys.assume(store, &key, &bounds);
                made.map_err(|error| errors::of_engine(&error, b"sessions"))
            })
            .await?;
        let Some(made) = made else {
            return Err(s3_error!(
                InvalidAccessKeyId,
                "A key with such an ID cannot have sessions."
            ));
        };
        Ok(Ok((made, expires_ms)))
    }

    /// The caller's identity.
    fn identity(&self, credentials: &Credentials) -> Result<String, Wrong> {
        let account = self.0.account(Some(credentials));
        let account = account.as_deref().unwrap_or(account::DEFAULT);
        let parent = session::parent(&credentials.access_key);
        let name = parent.as_deref().unwrap_or(&credentials.access_key);
        let arn = Caller { account, name }.arn();
        Ok(format!(
            "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>{arn}</Arn><UserId>{name}</UserId>\
             <Account>{account}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
        ))
    }
}

fn assumed(made: &Made, account: &str, key: &str, name: &str, expires_ms: u64) -> String {
    let (id, given) = (&made.id, given(made, expires_ms));
    format!(
        "<AssumeRoleResponse><AssumeRoleResult><AssumedRoleUser>\
         <Arn>arn:aws:sts::{account}:assumed-role/{key}/{name}</Arn><AssumedRoleId>{id}:{name}</AssumedRoleId>\
         </AssumedRoleUser>{given}</AssumeRoleResult></AssumeRoleResponse>"
    )
}

/// A session's credentials, in the form of answers.
fn given(made: &Made, expires_ms: u64) -> String {
    let end = date_text(Clock::of_ms(expires_ms / 1000 * 1000));
    let Made { id, secret, token } = made;
    format!(
        "<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
         <SessionToken>{token}</SessionToken><Expiration>{end}</Expiration></Credentials>"
    )
}
