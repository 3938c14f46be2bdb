//! What the policy of a bucket says of a request: how a request becomes a question to [`super::policy`].
//!
//! To policies a key is a user of its account, named by the key's ID.

use super::{
    bucket::Record,
    ops::tagging,
    policy::{Caller, Context, Policy, Question, Verdict, actions},
    session,
};
use hyper::{HeaderMap, Uri};
use s3s::{S3Result, access::S3AccessContext, s3_error};
use std::{net::IpAddr, sync::Arc};

/// What policies may ask about and nobody knows here before the object is opened, or at all. Policies with these are refused,
/// since a denial that never holds would be worse than none.
const UNKNOWN_KEYS: [&str; 5] = [
    "s3:existingobjecttag/",
    "s3:object-lock-",
    "s3:signatureage",
    "s3:tlsversion",
    "s3:accessgrantsinstancearn",
];
/// The account that a bucket belongs to.
const RESOURCE_ACCOUNT: &str = "s3:ResourceAccount";
/// Operations on a policy itself, from which whoever may do everything in the bucket cannot be kept by it.
const ON_POLICIES: [&str; 3] = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];

/// The other end of a request's connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub address: Option<IpAddr>,
    /// What goes over it is encrypted.
    pub is_secure: bool,
}

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
    pub fn of(request: &mut S3AccessContext<'_>, account: Option<Arc<str>>, owner: &str, owns: bool) -> Self {
        let peer = request.extensions_mut().get::<Peer>().copied();
        let name = request.credentials().map(|credentials| credentials.access_key.clone());
        // To policies a session is the key that it was made with.
        let name = name.map(|name| session::parent(&name).unwrap_or(name));
        let caller = account.zip(name);
        let mut context = Context::default();
        add_surroundings(&mut context, peer);
        context.add(RESOURCE_ACCOUNT, owner);
        let named = caller.as_ref().map(|(account, name)| Caller { account, name });
        add_caller(&mut context, named, request.headers());
        add_headers(&mut context, request.headers());
        let has_version = add_query(&mut context, request.uri());
        let operation = request.s3_op().name();
        let is_theirs = owns && ON_POLICIES.contains(&operation);
        let action = actions::of_operation(operation, has_version);
        Self {
            caller,
            action,
            is_theirs,
            bound: None,
            key: request.s3_path().as_object().map(|(_, key)| key.to_owned()),
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

    /// The same in a session with this policy.
    pub fn bound(self, bound: Option<Arc<Policy>>) -> Self {
        Self { bound, ..self }
    }

    /// Whether a session may say in its headers what it says.
    pub fn may_say(&self, headers: &HeaderMap, bucket: &str) -> bool {
        let place = usize::from(self.key.is_none());
        let asked = ALSO.iter().filter(|(name, _)| headers.contains_key(*name));
        let mut asked = asked.map(|(_, actions)| self.about(actions[place], self.key.as_deref()));
        self.bound.is_none() || asked.all(|asker| asker.is_within(&asker.resource(bucket)))
    }

    /// Whether a session may list buckets.
    pub fn may_list_buckets(&self) -> bool {
        self.about("s3:ListAllMyBuckets", None).is_within(&self.resource("*"))
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

    /// Whether the policy of the session allows it, if there is one.
    fn is_within(&self, resource: &str) -> bool {
        let Some(bound) = &self.bound else { return true };
        let question = self.action.map(|action| Question {
            caller: self.caller(),
            action,
            resource,
            context: &self.context,
        });
        question.is_some_and(|question| bound.judge(&question) == Verdict::Allowed)
    }

    /// What the policy of a bucket says of it.
    pub fn judge(&self, record: &Record, bucket: &str) -> Verdict {
        if self.bound.is_some() && !self.is_within(&self.resource(bucket)) {
            return Verdict::Denied;
        }
        let (Some(policy), Some(action)) = (&record.rules, self.action.filter(|_| !self.is_theirs)) else {
            return Verdict::Silent;
        };
        let resource = self.resource(bucket);
        let caller = self.caller();
        // The source of a copy may be in a bucket of another account than the copy.
        let context = self.context.with(RESOURCE_ACCOUNT, record.owner());
        let verdict = policy.judge(&Question {
            caller,
            action,
            resource: &resource,
            context: &context,
        });
        // A public policy counts only for those of the owner's account, if the bucket is kept from being public.
        let is_owners = caller.is_some_and(|caller| caller.account == record.owner());
        let is_ignored = !is_owners && !record.obeys_policy() && policy.is_public();
        if verdict == Verdict::Allowed && is_ignored {
            Verdict::Silent
        } else {
            verdict
        }
    }
}

fn add_surroundings(context: &mut Context, peer: Option<Peer>) {
    if let Some(peer) = peer {
        context.add("aws:SecureTransport", peer.is_secure.to_string());
        if let Some(address) = peer.address {
            context.add("aws:SourceIp", address.to_canonical().to_string());
        }
    }
    let seconds = (super::keyspace::now_ms() / 1000).to_string();
    // A number of seconds is a date, too.
    context.add("aws:CurrentTime", seconds.clone());
    context.add("aws:EpochTime", seconds);
}

fn add_caller(context: &mut Context, caller: Option<Caller<'_>>, headers: &HeaderMap) {
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
    let is_in_head = headers.contains_key(hyper::header::AUTHORIZATION);
    context.add(
        "s3:authType",
        if is_in_head { "REST-HEADER" } else { "REST-QUERY-STRING" },
    );
    context.add("s3:signatureversion", "AWS4-HMAC-SHA256");
}

fn add_headers(context: &mut Context, headers: &HeaderMap) {
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        match name.as_str() {
            "user-agent" => context.add("aws:UserAgent", value),
            "referer" => context.add("aws:Referer", value),
            "x-amz-tagging" => {
                for (name, value) in tagging::decode(value).unwrap_or_default() {
                    context.add(&format!("s3:RequestObjectTag/{name}"), value);
                    context.add("s3:RequestObjectTagKeys", name);
                }
            }
            // The source of a copy may be written with a slash before it, and percent-encoded.
            "x-amz-copy-source" => {
                let source = value.strip_prefix('/').unwrap_or(value);
                context.add(
                    "s3:x-amz-copy-source",
                    tagging::unescape(&source.replace('+', "%2B")).unwrap_or_else(|| source.to_owned()),
                );
            }
            "if-match" | "if-none-match" => context.add(&format!("s3:{name}"), value),
            name if name.starts_with("x-amz-") && !name.starts_with("x-amz-meta-") => {
                context.add(&format!("s3:{name}"), value);
            }
            _ => {}
        }
    }
}

/// Adds what the query says. Whether it names a version.
fn add_query(context: &mut Context, uri: &Uri) -> bool {
    let pairs = tagging::decode(uri.query().unwrap_or("")).unwrap_or_default();
    for (name, value) in &pairs {
        match name.as_str() {
            "prefix" | "delimiter" | "max-keys" | "versionId" => context.add(&format!("s3:{name}"), value.clone()),
            _ => {}
        }
    }
    pairs
        .iter()
        .any(|(name, value)| name == "versionId" && !value.is_empty())
}

/// Refuses policies that ask about what nobody knows here.
///
/// # Errors
/// `NotImplemented`
pub fn check_keys<'k>(mut keys: impl Iterator<Item = &'k str>) -> S3Result {
    match keys.find(|key| UNKNOWN_KEYS.iter().any(|unknown| key.starts_with(unknown))) {
        None => Ok(()),
        Some(key) => Err(s3_error!(
            NotImplemented,
            "Policies with conditions on {key} are not implemented."
        )),
    }
}
