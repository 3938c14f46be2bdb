//! Converts requests to questions to policies.
//!
//! Policies see a key as a user of its account, named by the key's ID.

pub use terrace_objects::access::asker::Asker;

use super::{
    bucket::Record,
    head::{Head, Peer},
    policy::{
        Caller, Context, IDLE_CONDITIONS, Policy, actions,
        condition::{self, Standing, TLS_VERSION},
        date,
    },
    session::{self, Session},
    signature,
};
use crate::http::tls::TlsVersion;
use hyper::HeaderMap;
use s3s::{S3Result, access::S3AccessContext, s3_error};
use std::sync::Arc;
use terrace_objects::{
    access::{
        asker::{RESOURCE_ACCOUNT, add_time},
        decide::Action,
    },
    tags,
    text::percent_decode_path,
};

/// Lock headers, and their condition keys.
const LOCKS: [(&str, &str); 3] = [
    ("x-amz-object-lock-mode", "s3:object-lock-mode"),
    (LOCKED_UNTIL, "s3:object-lock-retain-until-date"),
    ("x-amz-object-lock-legal-hold", "s3:object-lock-legal-hold"),
];
/// The one of them that is a time.
const LOCKED_UNTIL: &str = "x-amz-object-lock-retain-until-date";
/// Prefixes of condition keys whose values a form has in its fields instead of headers.
const OF_HEADERS: [&str; 4] = ["s3:x-amz-", "s3:if-", "s3:signature", "s3:authtype"];
const DAY_SECONDS: f64 = 86_400.0;
/// Operations on the policy itself, which it cannot deny to callers that may do everything in the
/// bucket.
const ON_POLICIES: [&str; 3] = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];

/// The actions of operations with headers that need further actions.
const WITH_MORE: [&str; 2] = [actions::PUT, "s3:CreateBucket"];
/// Headers, and the further actions that they need, for objects and for buckets.
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

/// Reads a request by `account` on an object, or a bucket, of `owner`, possibly in a session.
/// `owns` if the caller may do everything in the bucket.
pub fn read(
    request: &S3AccessContext<'_>,
    head: &Head,
    (account, session): (Option<Arc<str>>, Option<Session>),
    owner: &str,
    owns: bool,
) -> Asker {
    let name = request.credentials().map(|credentials| credentials.access_key.clone());
    // Policies see a session as its key.
    let name = name.map(|name| session::parent(&name).unwrap_or(name));
    let caller = account.zip(name);
    let mut context = Context::default();
    add_surroundings(&mut context, head.peer);
    context.add(RESOURCE_ACCOUNT, owner);
    let named = caller.as_ref().map(|(account, name)| Caller { account, name });
    add_caller(&mut context, named, head, request.headers());
    add_headers(&mut context, request.headers(), head.peer.arrived_ms);
    add_query(&mut context, head, request.s3_op().name());
    let Session { policy: bound, tags } = session.unwrap_or_default();
    for (name, value) in tags {
        context.add(&format!("aws:PrincipalTag/{name}"), value);
    }
    if let Some(is_creation) = actions::is_creation(request.s3_op().name()) {
        context.add(actions::CREATION, is_creation.to_string());
    }
    let has_version = head.value("versionId").is_some_and(|version| !version.is_empty());
    let operation = request.s3_op().name();
    let is_theirs = owns && ON_POLICIES.contains(&operation);
    let action = actions::of_operation(operation, has_version);
    Asker {
        caller,
        action,
        is_theirs,
        bound,
        own: None,
        key: request.s3_path().as_object().map(|(_, key)| key.to_owned()),
        is_form: operation == "PostObject",
        now_ms: head.peer.arrived_ms,
        context: Arc::new(context),
    }
}

/// An unsigned form, before it becomes a request of the library: a PUT of this key with these
/// fields.
pub fn of_unsigned_form(head: &Head, headers: &HeaderMap, fields: &HeaderMap, owner: &str, key: &str) -> Asker {
    let mut context = Context::default();
    add_surroundings(&mut context, head.peer);
    context.add(RESOURCE_ACCOUNT, owner);
    add_caller(&mut context, None, head, headers);
    add_headers(&mut context, headers, head.peer.arrived_ms);
    context.add(actions::CREATION, "true");
    let asker = Asker {
        caller: None,
        action: Some(actions::PUT),
        is_theirs: false,
        bound: None,
        own: None,
        key: Some(key.to_owned()),
        is_form: true,
        now_ms: head.peer.arrived_ms,
        context: Arc::new(context),
    };
    saying(&asker, fields)
}

/// The same request with values found in its body, named like headers. Its own headers of these
/// names are ignored by the operation, so policies must ignore them too.
pub fn saying(asker: &Asker, headers: &HeaderMap) -> Asker {
    let mut context = (*asker.context).clone();
    context.forget(actions::REQUEST_TAGS);
    context.forget(actions::REQUEST_LOCKS);
    if asker.is_form {
        OF_HEADERS.iter().for_each(|start| context.forget(start));
        if asker.caller.is_some() {
            add_signature_of_form(&mut context, headers, asker.now_ms);
        }
    }
    add_headers(&mut context, headers, asker.now_ms);
    asker.knowing(context)
}

/// Whether a request may have its headers: no policy denies the further actions that they need, a
/// session's policy allows them, and, if the key has a policy, so does that or the bucket's. For a
/// form this is checked when its fields are known.
pub fn may_say(asker: &Asker, headers: &HeaderMap, record: &Record, bucket: &str) -> bool {
    let place = usize::from(asker.key.is_none());
    let is_head_of_form = asker.is_form && asker.key.is_none();
    if is_head_of_form || !asker.action.is_some_and(|action| WITH_MORE.contains(&action)) {
        return true;
    }
    let mut asked = ALSO.iter().filter(|(name, _)| headers.contains_key(*name));
    asked.all(|(_, actions)| asker.may_also(actions[place], record, bucket))
}

fn add_surroundings(context: &mut Context, peer: Peer) {
    context.add("aws:SecureTransport", peer.is_secure.to_string());
    if let Some(TlsVersion(version)) = peer.tls {
        context.add(TLS_VERSION, version);
    }
    if let Some(address) = peer.address {
        context.add("aws:SourceIp", address.to_canonical().to_string());
    }
    add_time(context, peer.arrived_ms);
}

fn add_caller(context: &mut Context, caller: Option<Caller<'_>>, head: &Head, headers: &HeaderMap) {
    let Some(caller) = caller else {
        context.add("aws:PrincipalType", "Anonymous");
        context.add("aws:userid", "anonymous");
        return;
    };
    let now_ms = head.peer.arrived_ms;
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
    if let Some(version_2) = &head.version_2 {
        context.add("s3:signatureversion", "AWS");
        add_age_ms(context, version_2.signed_ms(), now_ms);
        return;
    }
    context.add("s3:signatureversion", "AWS4-HMAC-SHA256");
    // A presigned URL contains its hash; a header beside it is not signed.
    let signed = if head.is_signed_in_header {
        headers.get("x-amz-date").and_then(|value| value.to_str().ok())
    } else {
        head.value("X-Amz-Date")
    };
    add_age(context, signed, now_ms);
}

/// Adds the age of a signature.
fn add_age(context: &mut Context, signed: Option<&str>, now_ms: u64) {
    add_age_ms(context, signed.and_then(milliseconds_of), now_ms);
}

fn add_age_ms(context: &mut Context, signed_ms: Option<u64>, now_ms: u64) {
    if let Some(signed_ms) = signed_ms {
        let age_ms = now_ms.saturating_sub(signed_ms);
        context.add("s3:signatureAge", age_ms.to_string());
    }
}

/// Adds the signature of a form with these fields.
fn add_signature_of_form(context: &mut Context, fields: &HeaderMap, now_ms: u64) {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
    context.add("s3:authType", "POST");
    context.add("s3:signatureversion", text("x-amz-algorithm").unwrap_or("AWS"));
    add_age(context, text("x-amz-date"), now_ms);
}

/// Milliseconds since 1970 of a signature's time: `20260131T235959Z`. `None` for another form, for
/// a day that does not exist, and before 1970, which `s3s` refuses too.
pub fn milliseconds_of(text: &str) -> Option<u64> {
    if !signature::is_time(text) {
        return None;
    }
    let (year, month, of_month) = (&text[..4], &text[4..6], &text[6..8]);
    let (hours, minutes, seconds) = (&text[9..11], &text[11..13], &text[13..15]);
    if seconds > "59" || year < "1970" {
        return None;
    }
    let seconds = date::seconds_of(&format!("{year}-{month}-{of_month}T{hours}:{minutes}:{seconds}Z"))?;
    Some((seconds * 1000.0) as u64)
}

/// Adds a requested lock, and its duration.
fn add_lock(context: &mut Context, (header, key, value): (&str, &str, &str), now_ms: u64) {
    context.add(key, value);
    let until = date::seconds_of(value).filter(|_| header == LOCKED_UNTIL);
    if let Some(until) = until {
        let days = (until - now_ms as f64 / 1000.0) / DAY_SECONDS;
        context.add(
            "s3:object-lock-remaining-retention-days",
            days.max(0.0).ceil().to_string(),
        );
    }
}

fn add_headers(context: &mut Context, headers: &HeaderMap, now_ms: u64) {
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        // The operation takes an empty one for absent, so a policy that demands it must too.
        if value.trim_ascii().is_empty() {
            continue;
        }
        match name.as_str() {
            "user-agent" => context.add("aws:UserAgent", value),
            "referer" => context.add("aws:Referer", value),
            // A copy keeps its source's tags unless it replaces them, whatever this header says.
            "x-amz-tagging" if !has_tags_of_source(headers) => {
                for (name, value) in tags::decode(value).unwrap_or_default() {
                    context.add(&format!("s3:RequestObjectTag/{name}"), value);
                    context.add("s3:RequestObjectTagKeys", name);
                }
            }
            // The source of a copy may be percent-encoded, with a slash at its beginning, which may
            // be encoded too.
            "x-amz-copy-source" => {
                let source = percent_decode_path(value).unwrap_or_else(|| value.to_owned());
                context.add("s3:x-amz-copy-source", source.strip_prefix('/').unwrap_or(&source));
            }
            "if-match" | "if-none-match" => context.add(&format!("s3:{name}"), value),
            name if LOCKS.iter().any(|(header, _)| *header == name) => {
                for (header, key) in LOCKS.into_iter().filter(|(header, _)| *header == name) {
                    add_lock(context, (header, key, value), now_ms);
                }
            }
            name if name.starts_with("x-amz-") && !name.starts_with("x-amz-meta-") => {
                context.add(&format!("s3:{name}"), value);
            }
            _ => {}
        }
    }
}

/// Whether a request is a copy that keeps its source's tags.
fn has_tags_of_source(headers: &HeaderMap) -> bool {
    let directive = headers.get("x-amz-tagging-directive");
    headers.contains_key("x-amz-copy-source") && directive.is_none_or(|directive| directive != "REPLACE")
}

/// Adds the query values that this operation uses. Otherwise a caller that may list one prefix
/// could add it to any request, and be treated as a listing.
fn add_query(context: &mut Context, head: &Head, operation: &str) {
    for (name, value) in &head.query {
        match name.as_str() {
            "prefix" | "delimiter" | "max-keys" if !is_listing(operation) => {}
            "prefix" | "delimiter" | "max-keys" | "versionId" => context.add(&format!("s3:{name}"), value.clone()),
            _ => {}
        }
    }
}

/// Whether an operation lists a bucket's contents.
pub fn is_listing(operation: &str) -> bool {
    matches!(Action::of(operation), Action::List | Action::ListMore) && operation != "HeadBucket"
}

/// Refuses policies with condition keys that are unknown here or in S3, or that apply to no action
/// of their statement. The version of TLS is known if this request uses TLS.
///
/// # Errors
/// `NotImplemented`, `MalformedPolicy`
pub fn check_keys(policy: &Policy, peer: Peer) -> S3Result {
    for key in policy.keys() {
        match condition::standing(key) {
            Standing::Unknown => {
                return Err(s3_error!(
                    MalformedPolicy,
                    "Policy has an invalid condition key - {key}"
                ));
            }
            Standing::Known if key != TLS_VERSION || peer.tls.is_some() => {}
            // A denial that never matches would be worse than none.
            Standing::Known | Standing::Unanswered => {
                return Err(s3_error!(
                    NotImplemented,
                    "Policies with conditions on {key} are not implemented."
                ));
            }
        }
    }
    if policy.has_idle_conditions() {
        return Err(s3_error!(MalformedPolicy, "{IDLE_CONDITIONS}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing: the 31st of February was the 3rd of March, a minute had 61 seconds, a year
    /// before 1970 was 1970, and a zone behind the time was taken. The short way and the chunks of
    /// a body would have accepted such a time, which the long way refuses.
    #[test]
    fn one_text_for_each_second() {
        assert_eq!(milliseconds_of("20130524T000000Z"), Some(1_369_353_600_000));
        assert_eq!(milliseconds_of("20240229T235959Z"), Some(1_709_251_199_000));
        for none in [
            "20130231T000000Z",
            "20230229T000000Z",
            "20130431T000000Z",
            "20130524T000060Z",
            "20130524T240000Z",
            "19691231T235959Z",
            "20130524T000000.5Z",
            "20130524T000000+02:00",
            "20130524T000000",
        ] {
            assert_eq!(milliseconds_of(none), None, "{none}");
        }
    }
}
