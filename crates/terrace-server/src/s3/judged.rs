//! What the policy of a bucket says of a request: how a request becomes a question to
//! [`super::policy`].
//!
//! To policies a key is a user of its account, named by the key's ID.

use super::{
    bucket::Record,
    head::{Head, Peer},
    policy::{Caller, Context, Policy, Question, Verdict, actions, condition},
    record::Facts,
    session,
};
use crate::http::tls::TlsVersion;
use hyper::HeaderMap;
use s3s::{S3Result, access::S3AccessContext, s3_error};
use std::sync::Arc;
use terrace_objects::{tags, text::percent_decode_path};

/// What policies may ask about and nobody knows here. Policies with these are refused, since a
/// denial that never holds would be worse than none.
const UNKNOWN_KEY: &str = "s3:accessgrantsinstancearn";
/// The same where TLS ends before the server; in its normal form.
const TLS_VERSION: &str = "s3:tlsversion";
/// Headers that lock what is put, and what policies call them.
const LOCKS: [(&str, &str); 3] = [
    ("x-amz-object-lock-mode", "s3:object-lock-mode"),
    (LOCKED_UNTIL, "s3:object-lock-retain-until-date"),
    ("x-amz-object-lock-legal-hold", "s3:object-lock-legal-hold"),
];
/// The one of them that is a time.
const LOCKED_UNTIL: &str = "x-amz-object-lock-retain-until-date";
/// What keys begin with of which a form says in its fields what other requests say in their
/// headers.
const OF_HEADERS: [&str; 4] = ["s3:x-amz-", "s3:if-", "s3:signature", "s3:authtype"];
/// Seconds of a day.
const DAY_SECONDS: f64 = 86_400.0;
/// The account that a bucket belongs to.
const RESOURCE_ACCOUNT: &str = "s3:ResourceAccount";
/// Operations on a policy itself, from which whoever may do everything in the bucket cannot be kept
/// by it.
const ON_POLICIES: [&str; 3] = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];

/// A question to the policies of buckets: whoever makes a request, what for, and what policies may
/// ask about it. It goes with the request to its operation.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The account and the ID of a key.
    caller: Option<(Arc<str>, String)>,
    /// `None` of what no policy says anything of.
    action: Option<&'static str>,
    key: Option<String>,
    /// A policy is nothing to whoever may do everything in the bucket, and asks about that policy.
    is_theirs: bool,
    /// What has to allow whatever is done in a session.
    bound: Option<Arc<Policy>>,
    /// What it says of the object is in its body.
    is_form: bool,
    context: Arc<Context>,
}

/// What headers ask for besides what the operation is, of objects and of buckets.
const ALSO: [(&str, [&str; 2]); 11] = [
    ("x-amz-acl", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-grant-full-control", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-grant-read", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-grant-read-acp", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-grant-write", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-grant-write-acp", ["s3:PutObjectAcl", "s3:PutBucketAcl"]),
    ("x-amz-tagging", ["s3:PutObjectTagging", "s3:PutBucketTagging"]),
    ("x-amz-object-lock-mode", ["s3:PutObjectRetention"; 2]),
    ("x-amz-object-lock-legal-hold", ["s3:PutObjectLegalHold"; 2]),
    ("x-amz-object-ownership", ["s3:PutBucketOwnershipControls"; 2]),
    (
        "x-amz-bucket-object-lock-enabled",
        ["s3:PutBucketObjectLockConfiguration"; 2],
    ),
];

impl Asker {
    /// Reads a request of somebody of `account` that is about an object, or about a bucket, that
    /// belongs to `owner`. `owns` if whoever makes it may do everything in the bucket.
    pub fn of(request: &S3AccessContext<'_>, head: &Head, account: Option<Arc<str>>, owner: &str, owns: bool) -> Self {
        let name = request.credentials().map(|credentials| credentials.access_key.clone());
        // To policies a session is the key that it was made with.
        let name = name.map(|name| session::parent(&name).unwrap_or(name));
        let caller = account.zip(name);
        let mut context = Context::default();
        add_surroundings(&mut context, Some(head.peer));
        context.add(RESOURCE_ACCOUNT, owner);
        let named = caller.as_ref().map(|(account, name)| Caller { account, name });
        add_caller(&mut context, named, head, request.headers());
        add_headers(&mut context, request.headers());
        add_query(&mut context, head);
        let has_version = head.value("versionId").is_some_and(|version| !version.is_empty());
        let operation = request.s3_op().name();
        let is_theirs = owns && ON_POLICIES.contains(&operation);
        let action = actions::of_operation(operation, has_version);
        Self {
            caller,
            action,
            is_theirs,
            bound: None,
            key: request.s3_path().as_object().map(|(_, key)| key.to_owned()),
            is_form: operation == "PostObject",
            context: Arc::new(context),
        }
    }

    /// The same request, but about an action on an object that it does not name in its path.
    pub fn about(&self, action: &'static str, key: Option<&str>) -> Self {
        Self {
            action: Some(action),
            key: key.map(str::to_owned),
            is_theirs: false,
            ..self.clone()
        }
    }

    /// The same request, with what was found in its body: named as headers of other requests name
    /// it. What its own headers say of the same nobody goes by, so policies must not either.
    pub fn saying(&self, headers: &HeaderMap) -> Self {
        let mut context = (*self.context).clone();
        context.forget(actions::REQUEST_TAGS);
        context.forget(actions::REQUEST_LOCKS);
        if self.is_form {
            OF_HEADERS.iter().for_each(|start| context.forget(start));
            if self.caller.is_some() {
                add_signature_of_form(&mut context, headers);
            }
        }
        add_headers(&mut context, headers);
        Self {
            context: Arc::new(context),
            ..self.clone()
        }
    }

    /// The same in a session with this policy.
    pub fn bound(self, bound: Option<Arc<Policy>>) -> Self {
        Self { bound, ..self }
    }

    /// Whether a session may say in its headers what it says.
    pub fn may_say(&self, headers: &HeaderMap, bucket: &str) -> bool {
        let place = usize::from(self.key.is_none());
        let asked = ALSO.iter().filter(|(name, _)| headers.contains_key(*name));
        let mut asked = asked.map(|(_, actions)| self.about(actions[place], self.key.as_deref()));
        self.bound.is_none() || asked.all(|asker| asker.is_within(&asker.resource(bucket), &self.context, None))
    }

    /// Whether a session may list buckets.
    pub fn may_list_buckets(&self) -> bool {
        let asker = self.about("s3:ListAllMyBuckets", None);
        asker.is_within(&asker.resource("*"), &self.context, None)
    }

    fn resource(&self, bucket: &str) -> String {
        match &self.key {
            Some(key) => format!("arn:aws:s3:::{bucket}/{key}"),
            None => format!("arn:aws:s3:::{bucket}"),
        }
    }

    fn caller(&self) -> Option<Caller<'_>> {
        let caller = self.caller.as_ref();
        caller.map(|(account, name)| Caller { account, name })
    }

    /// Whether the policy of the session allows it, if there is one: at best, if some keys of
    /// conditions are still `open`.
    fn is_within(&self, resource: &str, context: &Context, open: Option<&dyn Fn(&str) -> bool>) -> bool {
        let Some(bound) = &self.bound else { return true };
        let question = self.action.map(|action| Question {
            caller: self.caller(),
            action,
            resource,
            context,
        });
        question.is_some_and(|question| judge_by(bound, &question, open) == Verdict::Allowed)
    }

    /// What the policy of a bucket says of it, if it is about a version with these facts.
    pub fn judge(&self, record: &Record, bucket: &str, facts: Option<&Facts>) -> Verdict {
        let is_asked = |policy: &Policy| policy.keys().any(|key| key.starts_with(actions::OBJECT_TAGS));
        let mut policies = record.rules.as_deref().into_iter().chain(self.bound.as_deref());
        let tags = facts.filter(|_| policies.any(is_asked));
        let Some(tags) = tags.and_then(|facts| tags::decode(facts.tagging()?)) else {
            return self.judge_in(record, bucket, &self.context, None);
        };
        let mut context = (*self.context).clone();
        for (name, value) in tags {
            context.add(&format!("{}{name}", actions::OBJECT_TAGS), value);
        }
        self.judge_in(record, bucket, &context, None)
    }

    /// The best that the policy of a bucket can say of it when the object is open, and the
    /// request's body has been read.
    pub fn judge_at_best(&self, record: &Record, bucket: &str) -> Verdict {
        let is_open = |key: &str| self.action.is_some_and(|action| actions::is_known_later(action, key));
        self.judge_in(record, bucket, &self.context, Some(&is_open))
    }

    fn judge_in(
        &self,
        record: &Record,
        bucket: &str,
        context: &Context,
        open: Option<&dyn Fn(&str) -> bool>,
    ) -> Verdict {
        let resource = self.resource(bucket);
        if !self.is_within(&resource, context, open) {
            return Verdict::Denied;
        }
        let (Some(policy), Some(action)) = (&record.rules, self.action.filter(|_| !self.is_theirs)) else {
            return Verdict::Silent;
        };
        let caller = self.caller();
        // The source of a copy may be in a bucket of another account than the copy.
        let context = context.with(RESOURCE_ACCOUNT, record.owner());
        let question = Question {
            caller,
            action,
            resource: &resource,
            context: &context,
        };
        let verdict = judge_by(policy, &question, open);
        // A public policy counts only for those of the owner's account, if the bucket is kept from
        // being public.
        let is_owners = caller.is_some_and(|caller| caller.account == record.owner());
        let is_ignored = !is_owners && !record.obeys_policy() && policy.is_public();
        if verdict == Verdict::Allowed && is_ignored {
            Verdict::Silent
        } else {
            verdict
        }
    }
}

/// What a policy says, or the best that it can say while some keys of conditions are `open`.
fn judge_by(policy: &Policy, question: &Question<'_>, open: Option<&dyn Fn(&str) -> bool>) -> Verdict {
    open.map_or_else(|| policy.judge(question), |open| policy.judge_at_best(question, open))
}

/// What the policy of the bucket `target` says of a service that puts an object there for another
/// bucket of the same account.
pub fn of_service(service: &str, source: &str, record: &Record, target: &str, key: &str) -> Verdict {
    let Some(policy) = &record.rules else {
        return Verdict::Silent;
    };
    let mut context = Context::default();
    add_surroundings(&mut context, None);
    context.add("aws:SourceArn", format!("arn:aws:s3:::{source}"));
    // Both are of one account.
    context.add("aws:SourceAccount", record.owner());
    context.add(RESOURCE_ACCOUNT, record.owner());
    context.add("aws:PrincipalServiceName", service);
    context.add("aws:PrincipalIsAWSService", "true");
    context.add("aws:PrincipalType", "Service");
    policy.judge(&Question {
        caller: Some(Caller::service(service)),
        action: "s3:PutObject",
        resource: &format!("arn:aws:s3:::{target}/{key}"),
        context: &context,
    })
}

fn add_surroundings(context: &mut Context, peer: Option<Peer>) {
    if let Some(peer) = peer {
        context.add("aws:SecureTransport", peer.is_secure.to_string());
        if let Some(TlsVersion(version)) = peer.tls {
            context.add(TLS_VERSION, version);
        }
        if let Some(address) = peer.address {
            context.add("aws:SourceIp", address.to_canonical().to_string());
        }
    }
    let seconds = (super::keyspace::now_ms() / 1000).to_string();
    // A number of seconds is a date, too.
    context.add("aws:CurrentTime", seconds.clone());
    context.add("aws:EpochTime", seconds);
}

fn add_caller(context: &mut Context, caller: Option<Caller<'_>>, head: &Head, headers: &HeaderMap) {
    let Some(caller) = caller else {
        context.add("aws:PrincipalType", "Anonymous");
        context.add("aws:userid", "anonymous");
        return;
    };
    context.add("aws:PrincipalType", "User");
    context.add("aws:username", caller.name);
    context.add("aws:userid", caller.name);
    context.add("aws:PrincipalAccount", caller.account);
    context.add("aws:PrincipalArn", caller.arn());
    let place = if head.is_signed_in_header {
        "REST-HEADER"
    } else {
        "REST-QUERY-STRING"
    };
    context.add("s3:authType", place);
    context.add("s3:signatureversion", "AWS4-HMAC-SHA256");
    let in_head = headers.get("x-amz-date").and_then(|value| value.to_str().ok());
    let signed = in_head.or_else(|| head.value("X-Amz-Date"));
    add_age(context, signed);
}

/// Adds how old a signature is of this time.
fn add_age(context: &mut Context, signed: Option<&str>) {
    if let Some(signed_ms) = signed.and_then(milliseconds_of) {
        let age_ms = super::keyspace::now_ms().saturating_sub(signed_ms);
        context.add("s3:signatureAge", age_ms.to_string());
    }
}

/// Adds what is known of the signature of a form with these fields.
fn add_signature_of_form(context: &mut Context, fields: &HeaderMap) {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
    context.add("s3:authType", "POST");
    context.add("s3:signatureversion", text("x-amz-algorithm").unwrap_or("AWS"));
    add_age(context, text("x-amz-date"));
}

/// Milliseconds since 1970 of a time as signatures have it: `20260131T235959Z`.
pub fn milliseconds_of(text: &str) -> Option<u64> {
    let (day, time) = text.split_once('T')?;
    let parts = (
        day.get(..4)?,
        day.get(4..6)?,
        day.get(6..)?,
        time.get(..2)?,
        time.get(2..4)?,
        time.get(4..)?,
    );
    let (year, month, of_month, hours, minutes, rest) = parts;
    let seconds = condition::date(&format!("{year}-{month}-{of_month}T{hours}:{minutes}:{rest}"))?;
    // No time of a signature that counts is before 1970.
    Some((seconds * 1000.0) as u64)
}

/// Adds what a request says of a lock, and how long it is to be.
fn add_lock(context: &mut Context, header: &str, key: &str, value: &str) {
    context.add(key, value);
    let until = condition::date(value).filter(|_| header == LOCKED_UNTIL);
    if let Some(until) = until {
        let days = (until - super::keyspace::now_ms() as f64 / 1000.0) / DAY_SECONDS;
        context.add(
            "s3:object-lock-remaining-retention-days",
            days.max(0.0).ceil().to_string(),
        );
    }
}

fn add_headers(context: &mut Context, headers: &HeaderMap) {
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        match name.as_str() {
            "user-agent" => context.add("aws:UserAgent", value),
            "referer" => context.add("aws:Referer", value),
            // A copy takes its source's tags along unless it says otherwise, whatever this says.
            "x-amz-tagging" if !has_tags_of_source(headers) => {
                for (name, value) in tags::decode(value).unwrap_or_default() {
                    context.add(&format!("s3:RequestObjectTag/{name}"), value);
                    context.add("s3:RequestObjectTagKeys", name);
                }
            }
            // The source of a copy may be written with a slash before it, and percent-encoded.
            "x-amz-copy-source" => {
                let source = value.strip_prefix('/').unwrap_or(value);
                context.add(
                    "s3:x-amz-copy-source",
                    percent_decode_path(source).unwrap_or_else(|| source.to_owned()),
                );
            }
            "if-match" | "if-none-match" => context.add(&format!("s3:{name}"), value),
            name if LOCKS.iter().any(|(header, _)| *header == name) => {
                for (header, key) in LOCKS.into_iter().filter(|(header, _)| *header == name) {
                    add_lock(context, header, key, value);
                }
            }
            name if name.starts_with("x-amz-") && !name.starts_with("x-amz-meta-") => {
                context.add(&format!("s3:{name}"), value);
            }
            _ => {}
        }
    }
}

/// Whether a request is a copy that gets the tags of its source.
fn has_tags_of_source(headers: &HeaderMap) -> bool {
    let directive = headers.get("x-amz-tagging-directive");
    headers.contains_key("x-amz-copy-source") && directive.is_none_or(|directive| directive != "REPLACE")
}

/// Adds what the query says.
fn add_query(context: &mut Context, head: &Head) {
    for (name, value) in &head.query {
        match name.as_str() {
            "prefix" | "delimiter" | "max-keys" | "versionId" => context.add(&format!("s3:{name}"), value.clone()),
            _ => {}
        }
    }
}

/// Refuses policies that ask about what nobody knows here, or about what no action of a statement
/// has. What version of TLS requests come over is known if one comes over TLS.
///
/// # Errors
/// `NotImplemented`, `MalformedPolicy`
pub fn check_keys(policy: &Policy, peer: Peer) -> S3Result {
    let knows_tls = peer.tls.is_some();
    let is_unknown = |key: &&str| key.starts_with(UNKNOWN_KEY) || (!knows_tls && key.starts_with(TLS_VERSION));
    if let Some(key) = policy.keys().find(is_unknown) {
        return Err(s3_error!(
            NotImplemented,
            "Policies with conditions on {key} are not implemented."
        ));
    }
    if policy.has_idle_conditions() {
        return Err(s3_error!(
            MalformedPolicy,
            "Conditions do not apply to combination of actions and resources in statement"
        ));
    }
    Ok(())
}
