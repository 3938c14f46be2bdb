//! Decides access, for all callers, in one place.
//!
//! A request's [`Claim`] names principal, action and bucket. A function that opens an object takes
//! the claim, opens exactly one version and decides the claim on it, so the version that is checked
//! is the one that is read. A function that changes an object takes the resulting [`Permit`] and
//! changes only the permit's bucket.
//!
//! The bucket's record is read after the version is opened, so an object put after the bucket was
//! closed is judged by the closed bucket.
//!
//! For objects and buckets of its own account, a key's level or policy decides. For those of
//! another account, that account must also grant it, by the bucket's policy or by lists. A denial
//! of any policy is final.

pub use super::action::Action;

use super::{
    action::Listed,
    asker::{Asker, Opinion},
};
use crate::{
    access_key::{Keys, Level, Standing},
    bucket::{Bucket, Buckets, Record},
    error::{ObjectError, ObjectResult},
    outbox::Cause,
    policy::Verdict,
    record::Facts,
    secrets::kms::Caller,
    session,
};
use std::{fmt, sync::Arc};

/// The principal of a request.
#[derive(Clone)]
pub enum Principal {
    /// A request without a signature.
    Anonymous,
    /// An access key whose signature was verified.
    Key {
        /// Its ID.
        id: Arc<str>,
        /// For the key's permissions at the time of the decision.
        keys: Arc<Keys>,
    },
    /// The page, which shows every client what was not put through S3: imports, and objects put on
    /// the command line.
    Page,
    /// The server itself and the command line, which have the store's files.
    System,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Key { id, .. } => f.debug_tuple("Key").field(id).finish(),
            Self::Page => f.write_str("Page"),
            Self::System => f.write_str("System"),
        }
    }
}

impl Principal {
    /// The principal of a request with a verified signature of this key, or with none.
    pub fn of(signer: Option<&str>, keys: &Arc<Keys>) -> Self {
        signer.map_or(Self::Anonymous, |signer| Self::Key {
            id: Arc::from(signer),
            keys: Arc::clone(keys),
        })
    }

    /// The same principal as a caller of KMS keys.
    pub fn caller(&self) -> Caller {
        match self {
            Self::Anonymous | Self::Page => Caller::Anonymous,
            Self::System => Caller::Server,
            Self::Key { id, keys } => keys.account(id).map_or(Caller::Anonymous, |account| Caller::Key {
                account,
                id: session::parent(id).unwrap_or_else(|| id.to_string()),
            }),
        }
    }

    /// The account of a key, and its permissions in a bucket or for an object.
    fn standing(&self, bucket: &str, key: Option<&str>) -> Option<Standing> {
        match self {
            Self::Anonymous | Self::Page | Self::System => None,
            Self::Key { id, keys } => keys.standing(id, bucket, key),
        }
    }
}

/// The subject of an action.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// The bucket, or an object that will be created.
    Bucket,
    /// A version that has been opened.
    Version(&'a Facts),
    /// A missing object or version.
    Nothing,
}

/// Reason for a refusal, as far as the caller may learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// 403: not even whether the object exists.
    Forbidden,
    /// 404: that it does not exist.
    Missing,
    /// 500: a setting cannot be parsed, so access cannot be decided.
    Unknown,
}

impl Denied {
    /// The error for the client; `missing` is the one for a missing object.
    pub fn told(self, missing: ObjectError) -> ObjectError {
        match self {
            Self::Forbidden => ObjectError::Denied,
            Self::Missing => missing,
            Self::Unknown => ObjectError::BucketUnreadable,
        }
    }
}

impl From<Denied> for ObjectError {
    fn from(denied: Denied) -> Self {
        denied.told(ObjectError::no_such_key())
    }
}

/// Permission for an action in a bucket. Only [`Claim::decide`] makes one.
#[derive(Debug, Clone)]
pub struct Permit {
    action: Action,
    bucket: Arc<Bucket>,
    cause: Option<Arc<dyn Cause>>,
    principal: Principal,
    is_weak: bool,
}

impl Permit {
    /// Its bucket.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// The cause of the change, if a target must be notified.
    pub fn cause(&self) -> Option<&dyn Cause> {
        self.cause.as_deref()
    }

    /// The principal as a caller of KMS keys.
    pub fn caller(&self) -> Caller {
        if self.is_weak {
            return Caller::Anonymous;
        }
        self.principal.caller()
    }

    /// The bucket, for writing.
    ///
    /// # Errors
    /// `AccessDenied` if the permit is for another action.
    pub fn to_write(&self) -> ObjectResult<&Bucket> {
        match self.action {
            Action::Write | Action::Describe | Action::WriteAcl | Action::Configure => Ok(&self.bucket),
            _ => Err(ObjectError::Denied),
        }
    }
}

/// Whether the page shows it without asking the bucket's policy and lists, which are S3's.
fn is_published(principal: &Principal, action: Action, subject: Subject<'_>) -> bool {
    match (principal, action, subject) {
        (Principal::Page, Action::Read, Subject::Version(facts)) => !facts.is_of_s3(),
        _ => false,
    }
}

/// Whether the bucket's policy allows it to all callers. It does not apply to objects of other
/// accounts.
fn is_public(action: Action, subject: Subject<'_>, record: &Record) -> bool {
    match (action, subject) {
        (Action::Read, Subject::Version(facts)) => record.is_read_by_all() && record.owner_of(facts) == record.owner(),
        (Action::Read, Subject::Bucket) => record.is_read_by_all(),
        (Action::List, _) => record.is_listed_by_all(),
        _ => false,
    }
}

/// Whether a list grants it to `account`, or, if `None`, to unsigned requests.
fn is_granted(action: Action, subject: Subject<'_>, record: &Record, account: Option<&str>) -> bool {
    let Some((listed, asked)) = action.granted_by() else {
        return false;
    };
    if !record.obeys_lists() || (account.is_none() && action.needs_key()) {
        return false;
    }
    let list = match (listed, subject) {
        (Listed::Object, Subject::Version(facts)) => record.list_of(facts),
        (Listed::Bucket, _) => record.list(),
        (Listed::Object, _) => return false,
    };
    list.allows(asked, account, record.obeys_public_lists())
}

/// Whether `account` is the owner that must allow it.
fn is_of(account: &str, action: Action, subject: Subject<'_>, record: &Record) -> bool {
    match subject {
        Subject::Version(facts) if action.is_of_object() => account == record.owner_of(facts),
        Subject::Bucket | Subject::Nothing | Subject::Version(_) => account == record.owner(),
    }
}

/// Whether a key may do everything in its account's bucket, without a session's limits.
fn is_owners(standing: Option<&Standing>, asker: Option<&Asker>, record: &Record) -> bool {
    let is_bound = asker.is_some_and(|asker| asker.bound.is_some());
    let may = |standing: &Standing| standing.level == Some(Level::Admin) && *standing.account == *record.owner();
    standing.is_some_and(may) && !is_bound
}

/// Principal, action and bucket of a request, to be decided.
#[derive(Clone)]
pub struct Claim {
    principal: Principal,
    action: Action,
    bucket: Arc<Bucket>,
    /// The question to policies.
    asker: Option<Asker>,
    /// The object's key, or a prefix, where the permissions of a key may depend on it.
    key: Option<Arc<str>>,
    cause: Option<Arc<dyn Cause>>,
    is_weak: bool,
    pays: bool,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("action", &self.action)
            .field("bucket", &self.bucket.name)
            .finish_non_exhaustive()
    }
}

impl Claim {
    /// A claim of `principal` to do `action` in `bucket`.
    pub fn new(principal: Principal, action: Action, bucket: &Arc<Bucket>) -> Self {
        Self {
            principal,
            action,
            bucket: Arc::clone(bucket),
            asker: None,
            key: None,
            cause: None,
            is_weak: false,
            pays: false,
        }
    }

    /// Sets whether the request agrees to pay.
    pub fn paying(self, pays: bool) -> Self {
        Self { pays, ..self }
    }

    /// Sets whether its signature covers too little to use a KMS key.
    pub fn weakly(self, is_weak: bool) -> Self {
        Self { is_weak, ..self }
    }

    /// Limits it to objects with this key or prefix.
    pub fn within(self, key: Option<Arc<str>>) -> Self {
        Self { key, ..self }
    }

    /// Sets the cause, for events.
    pub fn caused_by(self, cause: Option<Arc<dyn Cause>>) -> Self {
        Self { cause, ..self }
    }

    /// Sets the question to policies.
    pub fn asking(self, asker: Option<Asker>) -> Self {
        Self { asker, ..self }
    }

    /// Replaces its policy question, if it has one.
    pub fn asking_anew(self, anew: impl FnOnce(&Asker) -> Asker) -> Self {
        let asker = self.asker.as_ref().map(anew);
        self.asking(asker)
    }

    /// The same with this action on an object for policies.
    pub fn about(self, action: &'static str, key: &str) -> Self {
        let asker = self.asker.as_ref().map(|asker| asker.about(action, Some(key)));
        self.asking(asker).within(Some(Arc::from(key)))
    }

    /// The same with this version ID for policies, or none, whatever the request's query says.
    /// Copies and lists of objects name versions elsewhere.
    pub fn of_version(self, name: Option<&str>) -> Self {
        self.asking_anew(|asker| asker.of_version(name))
    }

    /// The same for another action on the same object; `asked` is its name in policies.
    pub fn of_another(&self, action: Action, asked: &'static str) -> Self {
        let claim = Self { action, ..self.clone() };
        claim.asking_anew(|asker| asker.about(asked, asker.key.as_deref()))
    }

    /// A claim of the server to write in `bucket`.
    pub fn of_system(bucket: &Arc<Bucket>) -> Self {
        Self::new(Principal::System, Action::Write, bucket)
    }

    /// A claim of the page to read a bucket, or the keys of an import, which need none.
    pub fn of_page(buckets: &Buckets, name: &str) -> Self {
        let bucket = buckets.get(name);
        let bucket = bucket.unwrap_or_else(|_| Arc::new(Bucket::apart(name.to_owned(), Record::default())));
        Self::new(Principal::Page, Action::Read, &bucket)
    }

    /// A claim of the command line to read anything.
    pub fn of_operator() -> Self {
        let nowhere = Arc::new(Bucket::apart(String::new(), Record::default()));
        Self::new(Principal::System, Action::Read, &nowhere)
    }

    /// Its bucket.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Decides the claim for `subject` in the bucket as it is now. A denial of a policy is final,
    /// and what the bucket's policy allows is allowed; otherwise the level or policy of the key and
    /// the lists decide. As in S3 ("Permissions" of GetObject in its API reference), only callers
    /// that may list the bucket learn that an object does not exist.
    ///
    /// # Errors
    /// The reason, as far as the caller may learn it.
    pub fn decide(&self, subject: Subject<'_>) -> Result<Permit, Denied> {
        let record = self.bucket.record();
        let facts = match subject {
            Subject::Version(facts) => Some(facts),
            Subject::Bucket | Subject::Nothing => None,
        };
        self.decide_by(|asker| asker.judge(&record, &self.bucket.name, facts), subject, &record)
    }

    fn decide_by(
        &self,
        judge: impl Fn(&Asker) -> Opinion,
        subject: Subject<'_>,
        record: &Record,
    ) -> Result<Permit, Denied> {
        let standing = self.principal.standing(&self.bucket.name, self.key.as_deref());
        if record.is_unreadable() && !self.may_repair(subject) {
            return Err(Denied::Unknown);
        }
        let opinion = self.opinion(standing.as_ref(), record, judge);
        let allows = |action, opinion| self.allows(standing.as_ref(), action, opinion, subject, record);
        let is_allowed = allows(self.action, opinion);
        match subject {
            Subject::Nothing if opinion.verdict == Verdict::Denied => Err(Denied::Forbidden),
            Subject::Nothing if self.action == Action::Read => {
                let list = |asker: &Asker| {
                    let asker = asker.about("s3:ListBucket", None);
                    asker.judge(record, &self.bucket.name, None)
                };
                let may_list = self.asker.as_ref().map_or(Opinion::NONE, list);
                let is_told = allows(Action::List, may_list);
                Err(if is_told { Denied::Missing } else { Denied::Forbidden })
            }
            Subject::Nothing if is_allowed => Err(Denied::Missing),
            Subject::Bucket | Subject::Version(_) if is_allowed => Ok(Permit {
                action: self.action,
                bucket: Arc::clone(&self.bucket),
                cause: self.cause.clone(),
                principal: self.principal.clone(),
                is_weak: self.is_weak,
            }),
            Subject::Nothing | Subject::Bucket | Subject::Version(_) => Err(Denied::Forbidden),
        }
    }

    /// Whether it may proceed although a setting cannot be parsed: it depends on no setting, or may
    /// replace the setting. Operations are checked for the latter when they arrive.
    fn may_repair(&self, subject: Subject<'_>) -> bool {
        matches!(self.principal, Principal::System)
            || is_published(&self.principal, self.action, subject)
            || matches!(self.action, Action::Configure | Action::WriteBucketAcl)
    }

    /// Evaluates the policies. For a principal without condition values, only a policy's statement
    /// for all callers counts, and the least favourable result is assumed of any other.
    fn opinion(&self, standing: Option<&Standing>, record: &Record, judge: impl FnOnce(&Asker) -> Opinion) -> Opinion {
        let has_own = standing.is_some_and(|standing| standing.policy.is_some());
        match (&self.principal, &self.asker) {
            (Principal::System, _) => Opinion::NONE,
            // The result of a policy that cannot be parsed is unknown; but a caller that may do
            // everything in the bucket cannot be denied it.
            (_, asker) if record.has_unreadable_policy() && !is_owners(standing, asker.as_ref(), record) => {
                Opinion::DENIED
            }
            // This includes a key whose policy was set after the request arrived.
            (_, asker) if has_own && asker.as_ref().is_none_or(|asker| asker.own.is_none()) => Opinion::DENIED,
            (_, Some(asker)) => judge(asker),
            (_, None) if record.has_more_rules() => Opinion::DENIED,
            (_, None) => Opinion::NONE,
        }
    }

    fn allows(
        &self,
        standing: Option<&Standing>,
        action: Action,
        Opinion { verdict, own }: Opinion,
        subject: Subject<'_>,
        record: &Record,
    ) -> bool {
        if let Principal::System = self.principal {
            return true;
        }
        // In its own account, a key needs its level, its policy or the bucket's to allow it. In
        // another, it needs both its own and the other account's permission.
        let able = standing.filter(|standing| own.unwrap_or_else(|| standing.level >= Some(action.level())));
        let able = able.map(|standing| &*standing.account);
        let is_stranger = standing.is_some_and(|standing| *standing.account != *record.owner());
        let by_policy = || {
            let is_theirs = is_of(record.owner(), action, subject, record);
            verdict == Verdict::Allowed && is_theirs && (able.is_some() || !is_stranger)
        };
        // An unsigned request cannot pay.
        let is_charged = standing.is_some() && self.pays;
        let is_owner = standing.is_some_and(|standing| *standing.account == *record.owner());
        if record.requester_pays && !is_owner && !is_charged {
            return is_published(&self.principal, action, subject);
        }
        is_published(&self.principal, action, subject)
            || verdict != Verdict::Denied
                && (by_policy()
                    || able.is_some_and(|account| is_of(account, action, subject, record))
                    || is_public(action, subject, record)
                    || is_granted(action, subject, record, able))
    }

    /// Whether no list can grant it to this principal.
    fn is_for_keys_only(&self, action: Action) -> bool {
        action.needs_key() && matches!(self.principal, Principal::Anonymous | Principal::Page)
    }

    /// Checks that an additional action is allowed on the object with this key, for a version with
    /// these facts or one to be created ([`Opinion::may_also`]).
    ///
    /// # Errors
    /// The reason, as far as the caller may learn it.
    pub fn may_also(&self, action: &'static str, key: &str, facts: Option<&Facts>) -> Result<(), Denied> {
        let record = self.bucket.record();
        let also = self.clone().about(action, key);
        let standing = also.principal.standing(&self.bucket.name, Some(key));
        let judge = |asker: &Asker| asker.judge(&record, &self.bucket.name, facts);
        if also.opinion(standing.as_ref(), &record, judge).may_also() {
            Ok(())
        } else {
            Err(Denied::Forbidden)
        }
    }

    /// Decides it for the bucket, and for objects to be created.
    ///
    /// # Errors
    /// The reason, as far as the caller may learn it.
    pub fn on_bucket(&self) -> Result<Permit, Denied> {
        self.decide(Subject::Bucket)
    }

    /// Decides it for a version that has been opened.
    ///
    /// # Errors
    /// The reason, as far as the caller may learn it.
    pub fn on(&self, facts: &Facts) -> Result<Permit, Denied> {
        self.decide(Subject::Version(facts))
    }

    /// The error for a missing object; `missing` if the caller may learn that.
    pub fn on_nothing(&self, missing: ObjectError) -> ObjectError {
        match self.decide(Subject::Nothing) {
            // No action is possible on a missing object.
            Ok(_) => ObjectError::Denied,
            Err(denied) => denied.told(missing),
        }
    }

    /// Refuses early what will be denied in any case, before an object is opened or a body read.
    /// Condition values that are not known yet are assumed to be favourable.
    ///
    /// # Errors
    /// The reason, as far as the caller may learn it.
    pub fn may_begin(&self) -> Result<(), Denied> {
        let record = self.bucket.record();
        let depends_on_object = match self.action {
            Action::Read => record.obeys_lists() || record.is_listed_by_all(),
            action => action.is_of_object() && record.obeys_lists() && !self.is_for_keys_only(action),
        };
        let judge = |asker: &Asker| asker.judge_at_best(&record, &self.bucket.name);
        match self.decide_by(judge, Subject::Bucket, &record) {
            Err(Denied::Forbidden) if depends_on_object => Ok(()),
            decided => decided.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
