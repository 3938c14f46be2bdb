//! Who may: the one place where that is decided.
//!
//! A request is a [`Claim`]: who wants to do what in which bucket. What opens an object takes the
//! claim, opens exactly one version and has the claim decided on that version, so what is judged is
//! what is read. What changes an object takes the [`Permit`] that came of it, and changes nothing
//! but the bucket that the permit is for.
//!
//! The bucket's record is read after the version was opened: an object that was put once the bucket
//! had been closed is judged by the closed bucket.
//!
//! A key may do what its level says, or its policy, with what belongs to its own account. With what
//! belongs to another it may do what that account grants, by the bucket's policy or by lists, and
//! no more than its level or its policy says either. What any policy denies is denied.

pub use super::action::Action;

use super::{
    action::Listed,
    asker::{Asker, Opinion},
};
use crate::{
    access_key::{Keys, Level, Standing},
    bucket::{Bucket, Record, stored},
    error::{ObjectError, ObjectResult},
    outbox::Cause,
    policy::Verdict,
    record::Facts,
    secrets::kms::Caller,
    session,
};
use std::{fmt, sync::Arc};
use terrace::Store;

/// Who asks.
#[derive(Clone)]
pub enum Principal {
    /// Nobody in particular: a request without a signature.
    Everybody,
    /// An access key whose signature was right.
    Key {
        /// Its ID.
        id: Arc<str>,
        /// What keys may do, at the moment of the decision.
        keys: Arc<Keys>,
    },
    /// The page, which shows everybody what was not put over S3: imports, and what the command line
    /// put.
    Page,
    /// The server's own work and the command line, which have the store's files.
    System,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("Everybody"),
            Self::Key { id, .. } => f.debug_tuple("Key").field(id).finish(),
            Self::Page => f.write_str("Page"),
            Self::System => f.write_str("System"),
        }
    }
}

impl Principal {
    /// Whose request has the signature of this key, which was checked, or none.
    pub fn of(signer: Option<&str>, keys: &Arc<Keys>) -> Self {
        signer.map_or(Self::Everybody, |signer| Self::Key {
            id: Arc::from(signer),
            keys: Arc::clone(keys),
        })
    }

    /// The same principal, as the caller of a key of the store.
    pub fn caller(&self) -> Caller {
        match self {
            Self::Everybody | Self::Page => Caller::Nobody,
            Self::System => Caller::Server,
            Self::Key { id, keys } => keys.account(id).map_or(Caller::Nobody, |account| Caller::Key {
                account,
                id: session::parent(id).unwrap_or_else(|| id.to_string()),
            }),
        }
    }

    /// The account of a key, and its level in a bucket, or with what has this key in it.
    fn standing(&self, bucket: &str, key: Option<&str>) -> Option<Standing> {
        match self {
            Self::Everybody | Self::Page | Self::System => None,
            Self::Key { id, keys } => keys.standing(id, bucket, key),
        }
    }
}

/// What it is to be done with.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// The bucket, or an object that is to come.
    Bucket,
    /// A version that is open.
    Version(&'a Facts),
    /// There is no such object, or version.
    Nothing,
}

/// Why not: what may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// 403: nothing, not even whether it is there.
    Forbidden,
    /// 404: that it is not there.
    Missing,
    /// 500: that it cannot be known, because of what cannot be read.
    Unknown,
}

impl Denied {
    /// The answer, where `missing` says what is not there.
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

/// That something may be done in a bucket. Only [`Claim::decide`] makes it.
#[derive(Debug, Clone)]
pub struct Permit {
    action: Action,
    bucket: Arc<Bucket>,
    cause: Option<Arc<dyn Cause>>,
    principal: Principal,
    is_weak: bool,
}

impl Permit {
    /// The bucket that it is for.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Why, if a target is to be told of what is done with it.
    pub fn cause(&self) -> Option<&dyn Cause> {
        self.cause.as_deref()
    }

    /// The principal it was given to, as the caller of a key of the store.
    pub fn caller(&self) -> Caller {
        if self.is_weak {
            return Caller::Nobody;
        }
        self.principal.caller()
    }

    /// The bucket, to write to.
    ///
    /// # Errors
    /// `AccessDenied` if it is a permit to do something else.
    pub fn to_write(&self) -> ObjectResult<&Bucket> {
        match self.action {
            Action::Write | Action::Describe | Action::WriteAcl | Action::Configure => Ok(&self.bucket),
            _ => Err(ObjectError::Denied),
        }
    }
}

/// Whether the page shows it whatever the bucket's policy and lists say: they are S3's.
fn is_published(principal: &Principal, action: Action, subject: Subject<'_>) -> bool {
    match (principal, action, subject) {
        (Principal::Page, Action::Read, Subject::Version(facts)) => !facts.is_of_s3(),
        _ => false,
    }
}

/// Whether the bucket's policy allows it whoever asks. It says nothing of what belongs to others.
fn is_public(action: Action, subject: Subject<'_>, record: &Record) -> bool {
    match (action, subject) {
        (Action::Read, Subject::Version(facts)) => record.is_read_by_all() && record.owner_of(facts) == record.owner(),
        (Action::Read, Subject::Bucket) => record.is_read_by_all(),
        (Action::List, _) => record.is_listed_by_all(),
        _ => false,
    }
}

/// Whether a list allows it to `account`, or to whoever does not sign.
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

/// Whether it is `account` that has to allow it.
fn is_of(account: &str, action: Action, subject: Subject<'_>, record: &Record) -> bool {
    match subject {
        Subject::Version(facts) if action.is_of_object() => account == record.owner_of(facts),
        Subject::Bucket | Subject::Nothing | Subject::Version(_) => account == record.owner(),
    }
}

/// Whether a key may do everything in the bucket of its account, in no session that bounds it.
fn is_owners(standing: Option<&Standing>, asker: Option<&Asker>, record: &Record) -> bool {
    let is_bound = asker.is_some_and(|asker| asker.bound.is_some());
    let may = |standing: &Standing| standing.level == Some(Level::Admin) && *standing.account == *record.owner();
    standing.is_some_and(may) && !is_bound
}

/// Who wants to do what in which bucket.
#[derive(Clone)]
pub struct Claim {
    principal: Principal,
    action: Action,
    bucket: Arc<Bucket>,
    /// What the bucket's policy is asked.
    asker: Option<Asker>,
    /// The key of the object that it is about, or how those begin that it is about, where somebody
    /// may depend on it.
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
    /// That `principal` wants to do `action` in `bucket`.
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

    /// The same, or that its account pays for the request, as far as anybody does.
    pub fn paying(self, pays: bool) -> Self {
        Self { pays, ..self }
    }

    /// The same, or that its signature covers too little to use a key of the store.
    pub fn weakly(self, is_weak: bool) -> Self {
        Self { is_weak, ..self }
    }

    /// The same, about objects with this key, or that begin with it.
    pub fn within(self, key: Option<Arc<str>>) -> Self {
        Self { key, ..self }
    }

    /// The same, with what events tell of why.
    pub fn caused_by(self, cause: Option<Arc<dyn Cause>>) -> Self {
        Self { cause, ..self }
    }

    /// The same, with what the bucket's policy is to be asked of it.
    pub fn asking(self, asker: Option<Asker>) -> Self {
        Self { asker, ..self }
    }

    /// The same, with another question to policies in place of the one that it has, if it has one.
    pub fn asking_anew(self, anew: impl FnOnce(&Asker) -> Asker) -> Self {
        let asker = self.asker.as_ref().map(anew);
        self.asking(asker)
    }

    /// The same, but to policies it is this action on an object.
    pub fn about(self, action: &'static str, key: &str) -> Self {
        let asker = self.asker.as_ref().map(|asker| asker.about(action, Some(key)));
        self.asking(asker).within(Some(Arc::from(key)))
    }

    /// The same, but to policies it is about this version, or names none, whatever the request's
    /// query says: of copies and lists of objects that is said elsewhere.
    pub fn of_version(self, name: Option<&str>) -> Self {
        self.asking_anew(|asker| asker.of_version(name))
    }

    /// The same, but about another thing of the same object; `asked` is what policies call it.
    pub fn of_another(&self, action: Action, asked: &'static str) -> Self {
        let claim = Self { action, ..self.clone() };
        claim.asking_anew(|asker| asker.about(asked, asker.key.as_deref()))
    }

    /// That the server itself wants to write in `bucket`.
    pub fn of_system(bucket: &Arc<Bucket>) -> Self {
        Self::new(Principal::System, Action::Write, bucket)
    }

    /// That the page shows what is in `bucket`, of which the store says who may. Of imports no
    /// bucket need say anything.
    ///
    /// # Errors
    /// The store's.
    pub fn of_page(store: &Store, bucket: &str) -> terrace::Result<Self> {
        let record = stored(store, bucket)?.unwrap_or_default();
        let bucket = Arc::new(Bucket::apart(bucket.to_owned(), record));
        Ok(Self::new(Principal::Page, Action::Read, &bucket))
    }

    /// That the command line wants to read whatever there is.
    pub fn of_operator() -> Self {
        let nowhere = Arc::new(Bucket::apart(String::new(), Record::default()));
        Self::new(Principal::System, Action::Read, &nowhere)
    }

    /// The bucket.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Decides whether it may be done with `subject`, in the bucket as it is now: what a policy
    /// denies is denied, and what the bucket's allows is allowed; else the level or the policy of
    /// the key, and the lists decide. That there is nothing is told, as S3 does it ("Permissions"
    /// of GetObject in its API reference), to those who may list the bucket, as they could find it
    /// out.
    ///
    /// # Errors
    /// What may be told of it.
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

    /// Whether it goes on though something of the bucket cannot be read: what needs no decision by
    /// it, and what may put that anew. Which operations that are is looked at where they come in.
    fn may_repair(&self, subject: Subject<'_>) -> bool {
        matches!(self.principal, Principal::System)
            || is_published(&self.principal, self.action, subject)
            || matches!(self.action, Action::Configure | Action::WriteBucketAcl)
    }

    /// What policies say. Of whom nothing is known that a policy may ask about, only what a policy
    /// says to everybody counts, and of any other policy the worst is assumed.
    fn opinion(&self, standing: Option<&Standing>, record: &Record, judge: impl FnOnce(&Asker) -> Opinion) -> Opinion {
        let has_own = standing.is_some_and(|standing| standing.policy.is_some());
        match (&self.principal, &self.asker) {
            (Principal::System, _) => Opinion::NONE,
            // What a policy says of it that cannot be read is unknown; but whoever may do
            // everything in the bucket cannot be kept from it.
            (_, asker) if record.has_unreadable_policy() && !is_owners(standing, asker.as_ref(), record) => {
                Opinion::DENIED
            }
            // A key that got its policy since the request came is one of these.
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
        // What a key of the bucket's account may do its level says, or its own policy, or that of
        // the bucket. That of another has to have both.
        let able = standing.filter(|standing| own.unwrap_or_else(|| standing.level >= Some(action.level())));
        let able = able.map(|standing| &*standing.account);
        let is_stranger = standing.is_some_and(|standing| *standing.account != *record.owner());
        let by_policy = || {
            let is_theirs = is_of(record.owner(), action, subject, record);
            verdict == Verdict::Allowed && is_theirs && (able.is_some() || !is_stranger)
        };
        // Whoever is nobody can pay nothing.
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

    /// Whether nobody's list can allow it to who asks.
    fn is_nobody(&self, action: Action) -> bool {
        action.needs_key() && matches!(self.principal, Principal::Everybody | Principal::Page)
    }

    /// Checks that it may be another thing, too, that is done with the object of this key, as its
    /// version with these facts is or as it is to come ([`Opinion::may_also`]).
    ///
    /// # Errors
    /// What may be told.
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

    /// Decides it for the bucket, and for objects that are to come.
    ///
    /// # Errors
    /// What may be told.
    pub fn on_bucket(&self) -> Result<Permit, Denied> {
        self.decide(Subject::Bucket)
    }

    /// Decides it for a version that is open.
    ///
    /// # Errors
    /// What may be told.
    pub fn on(&self, facts: &Facts) -> Result<Permit, Denied> {
        self.decide(Subject::Version(facts))
    }

    /// What may be told of nothing being there, if `missing` says that it is so.
    pub fn on_nothing(&self, missing: ObjectError) -> ObjectError {
        match self.decide(Subject::Nothing) {
            // Nothing can be done with what is not there.
            Ok(_) => ObjectError::Denied,
            Err(denied) => denied.told(missing),
        }
    }

    /// Refuses what can only be denied, before anything is opened or taken in for it: of what
    /// policies ask about and is not known yet, the best is assumed.
    ///
    /// # Errors
    /// What may be told.
    pub fn may_begin(&self) -> Result<(), Denied> {
        let record = self.bucket.record();
        let depends_on_object = match self.action {
            Action::Read => record.obeys_lists() || record.is_listed_by_all(),
            action => action.is_of_object() && record.obeys_lists() && !self.is_nobody(action),
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
