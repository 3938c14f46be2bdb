//! Questions to policies: the caller, the action and the condition values of a request.
//!
//! Policies see a key as a user of its account, named by the key's ID.

use crate::{
    bucket::Record,
    policy::{Caller, Context, Policy, Question, Verdict, actions},
    record::Facts,
    tags,
};
use std::sync::Arc;

/// The account of a bucket.
pub const RESOURCE_ACCOUNT: &str = "s3:ResourceAccount";

/// The version ID in a request.
const VERSION: &str = "s3:versionid";

/// A question to the policies: caller, action and condition values of a request. It is passed with
/// the request to its operation.
#[derive(Debug, Clone)]
pub struct Asker {
    /// Account and ID of the caller's key.
    pub caller: Option<(Arc<str>, String)>,
    /// `None` for operations that have no action in policies.
    pub action: Option<&'static str>,
    /// The object's key, if it concerns one.
    pub key: Option<String>,
    /// The caller may do everything in the bucket and reads or changes its policy, so that the
    /// policy does not apply.
    pub is_theirs: bool,
    /// The session's policy, which must allow the action.
    pub bound: Option<Arc<Policy>>,
    /// The key's policy, if it has one.
    pub own: Option<Arc<Policy>>,
    /// The object's attributes are in the body, a form.
    pub is_form: bool,
    /// When the request arrived, in milliseconds since 1970.
    pub now_ms: u64,
    /// Condition values.
    pub context: Arc<Context>,
}

/// Result of all policies for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opinion {
    /// The result of the bucket's policy, or that some policy denies it.
    pub verdict: Verdict,
    /// Whether the key's policy allows it. `None` if the key has none and its level decides.
    pub own: Option<bool>,
}

impl Opinion {
    /// There are no policies.
    pub const NONE: Self = Self {
        verdict: Verdict::Silent,
        own: None,
    };
    /// A policy denies it.
    pub const DENIED: Self = Self {
        verdict: Verdict::Denied,
        own: None,
    };

    /// Whether an additional action is allowed with one that is already: no policy denies it, and
    /// if the key has a policy, that or the bucket's allows it.
    pub fn may_also(self) -> bool {
        match self.verdict {
            Verdict::Denied => false,
            Verdict::Allowed => true,
            Verdict::Silent => self.own != Some(false),
        }
    }
}

impl Asker {
    /// The same request with another action, on an object that is not in its path.
    pub fn about(&self, action: &'static str, key: Option<&str>) -> Self {
        Self {
            action: Some(action),
            key: key.map(str::to_owned),
            is_theirs: false,
            ..self.clone()
        }
    }

    /// The same with this version ID, or without one.
    pub fn of_version(&self, name: Option<&str>) -> Self {
        let mut context = (*self.context).clone();
        context.forget(VERSION);
        if let Some(name) = name {
            context.add(VERSION, name);
        }
        self.knowing(context)
    }

    /// The same for a key with this policy.
    pub fn owning(self, own: Option<Arc<Policy>>) -> Self {
        Self { own, ..self }
    }

    /// The same with other condition values.
    pub fn knowing(&self, context: Context) -> Self {
        Self {
            context: Arc::new(context),
            ..self.clone()
        }
    }

    /// Whether an additional action on the same object or bucket is allowed
    /// ([`Opinion::may_also`]).
    pub fn may_also(&self, action: &'static str, record: &Record, bucket: &str) -> bool {
        let asker = self.about(action, self.key.as_deref());
        asker.judge(record, bucket, None).may_also()
    }

    /// Whether the key's policy allows another action on the same object or bucket.
    pub fn owns(&self, action: &'static str, record: &Record, bucket: &str) -> bool {
        let asker = self.about(action, self.key.as_deref());
        let opinion = asker.judge(record, bucket, None);
        opinion.verdict != Verdict::Denied && opinion.own == Some(true)
    }

    /// Whether the policies of key and session, if any, allow listing buckets.
    pub fn may_list_buckets(&self) -> bool {
        let asker = self.about("s3:ListAllMyBuckets", None);
        let resource = asker.resource("*");
        let question = asker.question(&resource, &self.context);
        [&self.own, &self.bound]
            .into_iter()
            .flatten()
            .all(|policy| question.is_some_and(|question| policy.judge(&question) == Verdict::Allowed))
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

    fn question<'q>(&'q self, resource: &'q str, context: &'q Context) -> Option<Question<'q>> {
        self.action.map(|action| Question {
            caller: self.caller(),
            action,
            resource,
            context,
        })
    }

    /// Evaluates the policies, for a version with these facts if there is one.
    pub fn judge(&self, record: &Record, bucket: &str, facts: Option<&Facts>) -> Opinion {
        let is_asked = |policy: &Arc<Policy>| policy.keys().any(|key| key.starts_with(actions::OBJECT_TAGS));
        let mut policies = [&record.rules, &self.own, &self.bound].into_iter().flatten();
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

    /// The most favourable result possible once the object is open and the body read.
    pub fn judge_at_best(&self, record: &Record, bucket: &str) -> Opinion {
        let is_open = |key: &str| self.action.is_some_and(|action| actions::is_known_later(action, key));
        self.judge_in(record, bucket, &self.context, Some(&is_open))
    }

    fn judge_in(
        &self,
        record: &Record,
        bucket: &str,
        context: &Context,
        open: Option<&dyn Fn(&str) -> bool>,
    ) -> Opinion {
        let resource = self.resource(bucket);
        // The source of a copy may be in another account's bucket than the copy.
        let context = context.with(RESOURCE_ACCOUNT, record.owner());
        let question = self.question(&resource, &context);
        let judge =
            |policy: &Arc<Policy>| question.map_or(Verdict::Silent, |question| judge_by(policy, &question, open));
        let own = self.own.as_ref().map(judge);
        let is_within = self.bound.as_ref().is_none_or(|bound| judge(bound) == Verdict::Allowed);
        let of_bucket = record.rules.as_ref().filter(|_| !self.is_theirs);
        let verdict = match of_bucket.map(|policy| (judge(policy), policy)) {
            _ if own == Some(Verdict::Denied) || !is_within => Verdict::Denied,
            Some((Verdict::Allowed, policy)) if self.is_ignored(policy, record) => Verdict::Silent,
            Some((verdict, _)) => verdict,
            None => Verdict::Silent,
        };
        Opinion {
            verdict,
            own: own.map(|own| own == Verdict::Allowed),
        }
    }

    /// Whether a public policy has no effect for this caller: the bucket restricts it to the
    /// owner's account.
    fn is_ignored(&self, policy: &Policy, record: &Record) -> bool {
        let is_owners = self.caller().is_some_and(|caller| caller.account == record.owner());
        !is_owners && !record.obeys_policy() && policy.is_public()
    }
}

/// Evaluates a policy; most favourably, if `open` condition keys have no values yet.
fn judge_by(policy: &Policy, question: &Question<'_>, open: Option<&dyn Fn(&str) -> bool>) -> Verdict {
    open.map_or_else(|| policy.judge(question), |open| policy.judge_at_best(question, open))
}

/// Evaluates the policy of the bucket `target` for a service that puts an object there on behalf of
/// another bucket of the same account.
pub fn of_service(service: &str, source: &str, (record, target): (&Record, &str), key: &str, now_ms: u64) -> Verdict {
    if record.is_unreadable() {
        return Verdict::Denied;
    }
    let Some(policy) = &record.rules else {
        return Verdict::Silent;
    };
    let mut context = Context::default();
    add_time(&mut context, now_ms);
    context.add("aws:SourceArn", format!("arn:aws:s3:::{source}"));
    // Both buckets have the same account.
    context.add("aws:SourceAccount", record.owner());
    context.add(RESOURCE_ACCOUNT, record.owner());
    context.add("aws:PrincipalServiceName", service);
    context.add("aws:PrincipalIsAWSService", "true");
    context.add("aws:PrincipalType", "Service");
    context.add(actions::CREATION, "true");
    policy.judge(&Question {
        caller: Some(Caller::service(service)),
        action: "s3:PutObject",
        resource: &format!("arn:aws:s3:::{target}/{key}"),
        context: &context,
    })
}

/// Adds the current time to condition values.
pub fn add_time(context: &mut Context, now_ms: u64) {
    let seconds = (now_ms / 1000).to_string();
    // A number of seconds is a valid date.
    context.add("aws:CurrentTime", seconds.clone());
    context.add("aws:EpochTime", seconds);
}
