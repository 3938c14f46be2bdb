//! Access: gives `s3s` the secret of an access key for verifying signatures, permits each
//! operation, and finds the buckets that hosts name. The decisions are made by [`decide`].

pub use terrace_objects::access::{asker, decide};

use super::{
    Gateway,
    access_key::Level,
    account,
    bucket::{Bucket, Record},
    errors::{self, Told as _},
    exchange::{note, note_begun},
    form, front,
    head::{Head, Peer},
    judged::{self, Asker},
    kms::Caller,
    limit::Sender,
    notify::Cause,
    policy::{Policy, Verdict},
    session::{self, NoSession, Session},
    signature,
};
use decide::{Action, Claim, Permit, Principal};
use hyper::{HeaderMap, StatusCode, http::Extensions};
use s3s::{
    S3Error, S3Request, S3Result,
    access::{S3Access, S3AccessContext},
    auth::{Credentials, S3Auth, SecretKey},
    dto::PostObjectInput,
    host::{S3Host, VirtualHost},
    path::S3Path,
    s3_error,
};
use std::{net::IpAddr, sync::Arc, time::Instant};
use terrace_objects::error::ObjectError;

/// Provides the secrets.
pub struct Auth(pub Arc<Gateway>);

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.access_keys.secret(access_key) {
            Some(secret) => Ok(SecretKey::from(secret)),
            None => Err(s3_error!(
                InvalidAccessKeyId,
                "The access key ID you provided does not exist in our records."
            )),
        }
    }
}

/// Permits or denies operations.
pub struct Access(pub Arc<Gateway>);

/// The request is denied.
pub fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

/// The key or prefix of a request, if its access key has different permissions for different
/// objects: the key of an object, or the prefix of a listing.
#[derive(Debug, Clone)]
struct Within(Arc<str>);

/// The bucket in which [`Access`] permitted a request.
#[derive(Debug, Clone)]
struct Judged(Arc<Bucket>);

/// The expected owner of a bucket.
pub const EXPECTED_OWNER: &str = "x-amz-expected-bucket-owner";
/// The same of the bucket of a copy's source.
pub const EXPECTED_OWNER_OF_SOURCE: &str = "x-amz-source-expected-bucket-owner";

/// Checks that a bucket belongs to the account that the client expects, if it expects one. An
/// account is given by its name or its canonical ID; texts that can be neither have their own
/// error.
///
/// # Errors
/// `AccessDenied`, `InvalidBucketOwnerAWSAccountID`.
pub fn check_owner(bucket: &Bucket, expected: Option<&str>) -> S3Result {
    match expected {
        Some(expected) if !account::can_be_named(expected) => Err(no_account(expected)),
        Some(expected) if !account::is_named(bucket.record().owner(), expected) => Err(denied()),
        _ => Ok(()),
    }
}

/// An expected owner that can be no account.
pub fn no_account(expected: &str) -> S3Error {
    errors::custom(
        "InvalidBucketOwnerAWSAccountID",
        StatusCode::BAD_REQUEST,
        format!("The value of the expected bucket owner parameter must be an AWS Account ID... [{expected}]"),
    )
}

/// A request's principal: what [`Access`] noted with the request, and its signature.
pub type By<'a> = (&'a Extensions, Option<&'a Credentials>);

/// The key that signed a request.
fn signer_of(credentials: Option<&Credentials>) -> Option<&str> {
    credentials.map(|credentials| credentials.access_key.as_str())
}

/// The request is signed by version 2.
#[derive(Debug, Clone, Copy)]
struct Weak;

/// Whether a request is signed by version 2, in its head or as a form.
fn is_weak(noted: &Extensions) -> bool {
    let in_head = Head::of(noted).is_ok_and(|head| head.version_2.is_some());
    in_head || noted.get::<Weak>().is_some()
}

/// The claim of a principal, with the notes of its request.
fn claim_of(principal: Principal, noted: &Extensions, action: Action, bucket: &Arc<Bucket>) -> Claim {
    Claim::new(principal, action, bucket)
        .weakly(is_weak(noted))
        .paying(Head::of(noted).is_ok_and(|head| head.pays))
        .asking(noted.get::<Asker>().cloned())
        .within(noted.get::<Within>().map(|within| Arc::clone(&within.0)))
        .caused_by(noted.get::<Arc<Cause>>().map(|cause| Arc::clone(cause) as _))
}

/// Whether the session policy, if the request belongs to a session, allows an action on an object,
/// or on the bucket.
fn is_within(asker: &Asker, action: &'static str, key: Option<&str>, bucket: &Bucket) -> bool {
    let judge = || asker.about(action, key).judge(&bucket.record(), &bucket.name, None);
    asker.bound.is_none() || judge().verdict != Verdict::Denied
}

impl Gateway {
    /// The level of a key in a bucket of its own account, whatever the bucket's policy says.
    pub(super) fn level(&self, credentials: Option<&Credentials>, bucket: &Bucket) -> Option<Level> {
        let standing = self
            .access_keys
            .standing(&credentials?.access_key, &bucket.name, None)?;
        standing.level.filter(|_| *standing.account == *bucket.record().owner())
    }

    /// The policy of the signer.
    fn policy(&self, credentials: Option<&Credentials>) -> Option<Arc<Policy>> {
        self.access_keys.policy(&credentials?.access_key)
    }

    /// Whether the principal may, besides the request's own action, do another one on the same
    /// resource that needs the highest level, given by `has_level`, or a policy that allows that
    /// action.
    pub(super) fn is_trusted(
        &self,
        (noted, _): By<'_>,
        has_level: bool,
        action: &'static str,
        bucket: &Bucket,
    ) -> bool {
        let asker = noted.get::<Asker>();
        let owns = |asker: &Asker| asker.owns(action, &bucket.record(), &bucket.name);
        let is_within = |asker: &Asker| is_within(asker, action, asker.key.as_deref(), bucket);
        (has_level && asker.is_none_or(is_within)) || asker.is_some_and(owns)
    }

    /// Whether the session policy, if there is one, allows a put of this key.
    pub(super) fn may_put_within(&self, (noted, _): By<'_>, bucket: &Bucket, key: &str) -> bool {
        let asker = noted.get::<Asker>();
        asker.is_none_or(|asker| is_within(asker, "s3:PutObject", Some(key), bucket))
    }

    /// The account of the signer.
    pub(super) fn account(&self, credentials: Option<&Credentials>) -> Option<Arc<str>> {
        self.access_keys.account(&credentials?.access_key)
    }

    /// The claim of this request's principal for an action in a bucket.
    pub(super) fn claim(&self, (noted, credentials): By<'_>, action: Action, bucket: &Arc<Bucket>) -> Claim {
        let principal = Principal::of(signer_of(credentials), &self.access_keys);
        claim_of(principal, noted, action, bucket)
    }

    /// The principal of this request as a user of the store's named keys: only signatures of
    /// version 4 count, as in AWS.
    pub(super) fn kms_caller(&self, (noted, credentials): By<'_>) -> Caller {
        if is_weak(noted) {
            return Caller::Anonymous;
        }
        Principal::of(signer_of(credentials), &self.access_keys).caller()
    }

    /// The cause of a change, for events: the operation of a request, or none.
    pub(super) fn cause(&self, operation: &str, key: Option<String>, peer: Option<Peer>) -> Arc<Cause> {
        Arc::new(Cause {
            targets: Arc::clone(&self.targets),
            clock: self.clock().clone(),
            operation: operation.to_owned(),
            key,
            address: peer.and_then(|peer| peer.address),
            number: peer.map(|peer| front::number_text(peer.number)).unwrap_or_default(),
        })
    }

    /// Checks that the bucket of a request is the one in which it was permitted: while the body
    /// arrived, that bucket may have been deleted and another account may have made one of the same
    /// name.
    ///
    /// # Errors
    /// `NoSuchBucket`
    pub(super) fn is_as_judged(&self, noted: &Extensions) -> S3Result {
        let Some(Judged(judged)) = noted.get::<Judged>() else {
            return Ok(());
        };
        if self.buckets.is_there(judged) {
            return Ok(());
        }
        Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    /// The permit for an action in a bucket.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`.
    pub(super) fn permit(&self, by: By<'_>, action: Action, bucket: &str) -> S3Result<Permit> {
        let bucket = self.buckets.get(bucket).told()?;
        self.claim(by, action, &bucket).on_bucket().told()
    }
}

/// Headers and query names of a session's token.
const TOKEN: [&str; 2] = ["x-amz-security-token", "X-Amz-Security-Token"];

impl Gateway {
    /// Counts a request with a valid signature for the key, or for that of the session.
    ///
    /// # Errors
    /// `SlowDown`
    pub(super) fn charge(&self, payer: Peer, signer: &str) -> S3Result {
        // Until here the request was counted for the address.
        if let Some(address) = payer.address {
            self.give_back(&Sender::at(address));
        }
        let key = session::parent(signer).unwrap_or_else(|| signer.to_owned());
        self.admit(Sender::Key(key), Instant::now())
    }

    /// The session of a request, if it belongs to one: its token is valid, and only sessions have
    /// tokens. A form has the token among its fields, which its policy covers.
    ///
    /// # Errors
    /// `InvalidToken`, `ExpiredToken`.
    pub(super) fn session(
        &self,
        credentials: Option<&Credentials>,
        head: &Head,
        headers: &HeaderMap,
        form: Option<&form::Extras>,
    ) -> S3Result<Option<Session>> {
        let invalid = || s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid.");
        let in_head = headers.get(TOKEN[0]).map(|value| value.to_str().unwrap_or(""));
        let in_query = head.value(TOKEN[1]);
        let id = credentials.map(|credentials| credentials.access_key.as_str());
        let id = id.filter(|id| session::parent(id).is_some());
        let in_form = form.map(|form| form.token());
        let token = match (in_form, in_head, in_query) {
            (Some(token), None, None) | (None, token, None) | (None, None, token) => token,
            _ => return Err(invalid()),
        };
        match (id, token) {
            (None, None) => Ok(None),
            (Some(id), Some(token)) => {
                let session = self.access_keys.session(id, token).map_err(|why| match why {
                    NoSession::Invalid => invalid(),
                    NoSession::Expired => s3_error!(ExpiredToken, "The provided token has expired."),
                })?;
                Ok(Some(session))
            }
            _ => Err(invalid()),
        }
    }
}

impl Access {
    /// Decides on requests without a bucket.
    fn check_root(&self, context: &S3AccessContext<'_>, head: &Head, session: Option<Session>) -> S3Result {
        if context.credentials().is_none() {
            return Err(denied());
        }
        let account = self.0.account(context.credentials());
        let own = self.0.policy(context.credentials());
        let asker = judged::read(context, head, (account, session), account::DEFAULT, false).owning(own);
        if asker.may_list_buckets() {
            Ok(())
        } else {
            Err(denied())
        }
    }

    /// The bucket of a request, if it is the expected one and its access settings can be read.
    fn found(&self, context: &mut S3AccessContext<'_>, bucket: &str) -> S3Result<Arc<Bucket>> {
        let bucket = self.0.buckets.get(bucket).told()?;
        let expected = context.headers().get(EXPECTED_OWNER);
        check_owner(&bucket, expected.map(|value| value.to_str().unwrap_or("")))?;
        if !bucket.record().is_open_to(context.s3_op().name()) {
            // The failure is the server's, and not the body's.
            note_begun();
            return Err(ObjectError::BucketUnreadable).told();
        }
        context.extensions_mut().insert(Judged(Arc::clone(&bucket)));
        Ok(bucket)
    }

    /// The bucket that an account wants to make. Making an existing bucket again sets its list, as
    /// far as its policy permits; only callers that may make a bucket learn that another account
    /// has it.
    fn to_create(
        &self,
        context: &mut S3AccessContext<'_>,
        bucket: String,
        account: Option<&str>,
    ) -> S3Result<Arc<Bucket>> {
        let there = self.0.buckets.get(&bucket).ok();
        if there.is_some_and(|bucket| account == Some(bucket.record().owner())) {
            let found = self.found(context, &bucket)?;
            // If it has been deleted by then, it is created.
            context.extensions_mut().remove::<Judged>();
            return Ok(found);
        }
        let record = Record {
            account: account.map(str::to_owned),
            ..Record::default()
        };
        Ok(Arc::new(Bucket::apart(bucket, record)))
    }

    /// Notes the key or prefix of a request, if the permissions of its access key depend on it.
    /// Returns whether they do.
    fn note_within(&self, context: &mut S3AccessContext<'_>, head: &Head, bucket: &str) -> bool {
        let key = context.credentials().map(|credentials| credentials.access_key.as_str());
        if !key.is_some_and(|key| self.0.access_keys.is_limited(key, bucket)) {
            return false;
        }
        let within = match context.s3_path() {
            S3Path::Object { key, .. } => Some(Arc::from(&**key)),
            S3Path::Root | S3Path::Bucket { .. } => listed_prefix(context.s3_op().name(), head),
        };
        if let Some(within) = within {
            context.extensions_mut().insert(Within(within));
        }
        true
    }
}

/// The prefix of a listing.
fn listed_prefix(operation: &str, head: &Head) -> Option<Arc<str>> {
    if !judged::is_listing(operation) {
        return None;
    }
    let mut fields = head.query.iter().filter(|(name, _)| name == "prefix");
    // With two prefixes it is unknown which one counts.
    let (_, prefix) = fields.next()?;
    fields.next().is_none().then(|| Arc::from(prefix.as_str()))
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let operation = context.s3_op().name().to_owned();
        let operation = operation.as_str();
        let head = Arc::clone(Head::of(context.extensions_mut())?);
        let signer = context.credentials().map(|credentials| credentials.access_key.as_str());
        note(operation, signer);
        match signer {
            Some(signer) => self.0.charge(head.peer, signer)?,
            None => signature::refuse_choices(&head)?,
        }
        let form = context.extensions_mut().get::<form::Extras>().cloned();
        let session = self
            .0
            .session(context.credentials(), &head, context.headers(), form.as_ref())?;
        let bucket = match context.s3_path() {
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => bucket.to_string(),
            // Only buckets the key may use are listed.
            S3Path::Root => return self.check_root(context, &head, session),
        };
        let action = Action::of(operation);
        let account = self.0.account(context.credentials());
        let bucket = if operation == "CreateBucket" {
            self.to_create(context, bucket, account.as_deref())?
        } else {
            self.found(context, &bucket)?
        };
        let record = bucket.record();
        let own = self.0.policy(context.credentials());
        let is_bound = session.as_ref().is_some_and(|session| session.policy.is_some());
        let has_rules = record.has_more_rules() || is_bound || own.is_some();
        // A copy also reads another bucket, which may have a policy.
        if has_rules || record.rules.is_some() || matches!(operation, "CopyObject" | "UploadPartCopy") {
            let owns = self.0.level(context.credentials(), &bucket) == Some(Level::Admin);
            let asker = judged::read(context, &head, (account, session), record.owner(), owns).owning(own);
            if !judged::may_say(&asker, context.headers(), &record, &bucket.name) {
                return Err(denied());
            }
            context.extensions_mut().insert(asker);
        }
        let is_limited = self.note_within(context, &head, &bucket.name);
        if !record.notifications.is_empty() {
            let key = context.credentials().map(|credentials| credentials.access_key.clone());
            let cause = self.0.cause(operation, key, Some(head.peer));
            context.extensions_mut().insert(cause);
        }
        // A policy may decide differently for each key of these; they check each key.
        if (has_rules || is_limited) && matches!(operation, "DeleteObjects" | "PostObject") {
            return Ok(());
        }
        let principal = Principal::of(signer_of(context.credentials()), &self.0.access_keys);
        claim_of(principal, context.extensions_mut(), action, &bucket)
            .may_begin()
            .told()?;
        Ok(())
    }

    async fn post_object(&self, request: &mut S3Request<PostObjectInput>) -> S3Result<()> {
        form::refuse(&request.input)?;
        let Some(extras) = request.extensions.remove::<form::Extras>() else {
            return Ok(());
        };
        extras.put_into(&mut request.input);
        if !extras.said().contains_key("x-amz-algorithm") {
            request.extensions.insert(Weak);
        }
        if let Some(Judged(bucket)) = request.extensions.get() {
            check_owner(bucket, request.input.expected_bucket_owner.as_deref())?;
        }
        if let Some(asker) = request.extensions.get::<Asker>() {
            let asker = asker.about("s3:PutObject", Some(&request.input.key));
            let asker = judged::saying(&asker, extras.said());
            let record = self.0.buckets.get(&request.input.bucket).told()?.record();
            if !judged::may_say(&asker, extras.said(), &record, &request.input.bucket) {
                return Err(denied());
            }
            request.extensions.insert(asker);
        }
        Ok(())
    }
}

/// Finds the bucket in the host: `BUCKET.DOMAIN`. Any other host is a path-style request.
pub struct Domains(pub Vec<String>);

impl Domains {
    /// The bucket that a host names.
    pub fn bucket<'h>(&self, host: &'h str) -> Option<&'h str> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let bucket = self.0.iter().find_map(|domain| {
            let start = name.len().checked_sub(domain.len())?;
            let (front, end) = name.split_at_checked(start)?;
            let bucket = front.strip_suffix('.')?;
            (end.eq_ignore_ascii_case(domain) && !bucket.is_empty()).then_some(bucket)
        });
        // An IP address is below no domain, which `s3s` does not check.
        bucket.filter(|_| name.parse::<IpAddr>().is_err())
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        Ok(match self.bucket(host) {
            Some(bucket) => VirtualHost::new(host).with_bucket(bucket),
            None => VirtualHost::new(host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let domains = ["s3.example.org", "localhost", "0.1"].map(str::to_owned);
        let domains = Domains(domains.to_vec());
        for (host, bucket) in [
            ("photos.s3.example.org", Some("photos")),
            ("photos.S3.example.org:7071", Some("photos")),
            ("a.b.s3.example.org", Some("a.b")),
            ("photos.localhost:7071", Some("photos")),
            ("s3.example.org", None),
            (".s3.example.org", None),
            ("xs3.example.org", None),
            ("localhost:7071", None),
            ("127.0.0.1:7071", None),
            ("10.0.0.1", None),
            ("[::1]:7071", None),
            ("é", None),
        ] {
            assert_eq!(domains.bucket(host), bucket, "{host}");
        }
    }
}
