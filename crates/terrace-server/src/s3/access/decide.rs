//! Who may: the one place where that is decided.
//!
//! A request is a [`Claim`]: who wants to do what in which bucket. What opens an object takes the
//! claim, opens exactly one version and has the claim decided on that version, so what is judged is
//! what is read. What changes an object takes the [`Permit`] that came of it, and changes nothing
//! but the bucket that the permit is for.
//!
//! The bucket's record is read after the version was opened: an object that was put once the bucket
//! had been closed is judged by the closed bucket.

use super::denied;
use crate::s3::{
    access_key::{Keys, Level},
    bucket::{Bucket, Record, stored},
    commit::no_such_key,
    judged::Asker,
    notify::Cause,
    policy::Verdict,
    record::Facts,
};
use hyper::HeaderMap;
use s3s::{S3Error, S3Result, auth::Credentials};
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

impl Principal {
    /// Whose request has these credentials, which `s3s` has checked.
    pub fn of(credentials: Option<&Credentials>, keys: &Arc<Keys>) -> Self {
        credentials.map_or(Self::Everybody, |credentials| Self::Key {
            id: Arc::from(credentials.access_key.as_str()),
            keys: Arc::clone(keys),
        })
    }

    fn level(&self, bucket: &str) -> Option<Level> {
        match self {
            Self::Everybody | Self::Page => None,
            Self::Key { id, keys } => keys.level(id, bucket),
            Self::System => Some(Level::Admin),
        }
    }
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read an object as it is now: the one thing that an object's own list can allow.
    Read,
    /// List the bucket.
    List,
    /// Read what is not open to everybody even where objects are: versions by name, tags, lists,
    /// parts, settings.
    Inspect,
    /// Write and delete objects.
    Write,
    /// Create, configure and delete the bucket, and make objects public.
    Configure,
}

impl Action {
    /// What an operation of S3 is. One that is not in this table needs the highest level, so an
    /// operation that is added later, or that only answers `NotImplemented`, is never open by
    /// mistake.
    pub fn of(operation: &str) -> Self {
        match operation {
            "GetObject" | "HeadObject" => Self::Read,
            "ListObjects" | "ListObjectsV2" | "HeadBucket" => Self::List,
            "GetObjectAttributes"
            | "GetObjectTagging"
            | "GetObjectAcl"
            | "GetBucketLocation"
            | "GetBucketVersioning"
            | "ListObjectVersions"
            | "ListMultipartUploads"
            | "ListParts" => Self::Inspect,
            "PutObject"
            | "PostObject"
            | "CopyObject"
            | "DeleteObject"
            | "DeleteObjects"
            | "PutObjectTagging"
            | "DeleteObjectTagging"
            | "PutObjectAcl"
            | "CreateMultipartUpload"
            | "UploadPart"
            | "UploadPartCopy"
            | "CompleteMultipartUpload"
            | "AbortMultipartUpload" => Self::Write,
            _ => Self::Configure,
        }
    }

    /// What it is to read an object, or a version by its name: names of versions are for those who
    /// have a key to the bucket.
    pub const fn reading(is_named: bool) -> Self {
        if is_named { Self::Inspect } else { Self::Read }
    }

    /// The level that allows it to a key.
    const fn level(self) -> Level {
        match self {
            Self::Read | Self::List | Self::Inspect => Level::Read,
            Self::Write => Level::Write,
            Self::Configure => Level::Admin,
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
}

impl Denied {
    /// The answer, where `missing` says what is not there.
    pub fn told(self, missing: S3Error) -> S3Error {
        match self {
            Self::Forbidden => denied(),
            Self::Missing => missing,
        }
    }
}

impl From<Denied> for S3Error {
    fn from(denied: Denied) -> Self {
        denied.told(no_such_key())
    }
}

/// That something may be done in a bucket. Only [`Claim::decide`] makes it.
#[derive(Debug, Clone)]
pub struct Permit {
    action: Action,
    bucket: Arc<Bucket>,
    cause: Option<Arc<Cause>>,
}

impl Permit {
    /// The bucket that it is for.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Why, if somebody is to be told of what is done with it.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_deref()
    }

    /// The bucket, to write to.
    ///
    /// # Errors
    /// `AccessDenied` if it is a permit to do something else.
    pub fn to_write(&self) -> S3Result<&Bucket> {
        match self.action {
            Action::Write | Action::Configure => Ok(&self.bucket),
            Action::Read | Action::List | Action::Inspect => Err(denied()),
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

/// Whether it is allowed whoever asks.
fn is_public(action: Action, subject: Subject<'_>, record: &Record) -> bool {
    match (action, subject) {
        (Action::Read, Subject::Version(facts)) => {
            record.is_read_by_all() || (facts.is_public() && record.obeys_lists())
        }
        (Action::Read, Subject::Bucket) => record.is_read_by_all(),
        (Action::List, _) => record.is_listed_by_all(),
        (Action::Read, Subject::Nothing) | (Action::Inspect | Action::Write | Action::Configure, _) => false,
    }
}

/// Who wants to do what in which bucket.
#[derive(Clone)]
pub struct Claim {
    principal: Principal,
    action: Action,
    bucket: Arc<Bucket>,
    /// What the bucket's policy is asked.
    asker: Option<Asker>,
    cause: Option<Arc<Cause>>,
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
            cause: None,
        }
    }

    /// The same, with what events tell of why.
    pub fn caused_by(self, cause: Option<Arc<Cause>>) -> Self {
        Self { cause, ..self }
    }

    /// The same, with what the bucket's policy is to be asked of it.
    pub fn asking(self, asker: Option<Asker>) -> Self {
        Self { asker, ..self }
    }

    /// The same, with what was found in the request's body: named as headers of other requests name it.
    pub fn saying(self, headers: &HeaderMap) -> Self {
        let asker = self.asker.as_ref().map(|asker| asker.saying(headers));
        self.asking(asker)
    }

    /// The same, but to policies it is this action on an object.
    pub fn about(self, action: &'static str, key: &str) -> Self {
        let asker = self.asker.as_ref().map(|asker| asker.about(action, Some(key)));
        self.asking(asker)
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

    /// Decides whether it may be done with `subject`, in the bucket as it is now: what the
    /// bucket's policy denies is denied, and what it allows is allowed; else the level of the key
    /// and the lists decide. That there is nothing is told, as S3 does it ("Permissions" of
    /// GetObject in its API reference), to those who may list the bucket, as they could find it
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
        let verdict = self.verdict(&record, |asker| asker.judge(&record, &self.bucket.name, facts));
        self.decide_by(verdict, subject, &record)
    }

    fn decide_by(&self, verdict: Verdict, subject: Subject<'_>, record: &Record) -> Result<Permit, Denied> {
        let is_allowed = self.allows(self.action, verdict, subject, record);
        match subject {
            Subject::Nothing if verdict == Verdict::Denied => Err(Denied::Forbidden),
            Subject::Nothing if self.action == Action::Read => {
                let list = |asker: &Asker| {
                    let asker = asker.about("s3:ListBucket", None);
                    asker.judge(record, &self.bucket.name, None)
                };
                let may_list = self.asker.as_ref().map_or(Verdict::Silent, list);
                let is_told = self.allows(Action::List, may_list, subject, record);
                Err(if is_told { Denied::Missing } else { Denied::Forbidden })
            }
            Subject::Nothing if is_allowed => Err(Denied::Missing),
            Subject::Bucket | Subject::Version(_) if is_allowed => Ok(Permit {
                action: self.action,
                bucket: Arc::clone(&self.bucket),
                cause: self.cause.clone(),
            }),
            Subject::Nothing | Subject::Bucket | Subject::Version(_) => Err(Denied::Forbidden),
        }
    }

    /// What the bucket's policy says. Of whom nothing is known that a policy may ask about, only
    /// what a policy says to everybody counts, and of any other policy the worst is assumed.
    fn verdict(&self, record: &Record, judge: impl FnOnce(&Asker) -> Verdict) -> Verdict {
        match (&self.principal, &self.asker) {
            (Principal::System, _) => Verdict::Silent,
            (_, Some(asker)) => judge(asker),
            (_, None) if record.has_more_rules() => Verdict::Denied,
            (_, None) => Verdict::Silent,
        }
    }

    fn allows(&self, action: Action, verdict: Verdict, subject: Subject<'_>, record: &Record) -> bool {
        match verdict {
            Verdict::Denied => is_published(&self.principal, action, subject),
            Verdict::Allowed => true,
            Verdict::Silent => {
                self.principal.level(&self.bucket.name) >= Some(action.level())
                    || is_published(&self.principal, action, subject)
                    || is_public(action, subject, record)
            }
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
    pub fn on_nothing(&self, missing: S3Error) -> S3Error {
        match self.decide(Subject::Nothing) {
            // Nothing can be done with what is not there.
            Ok(_) => denied(),
            Err(denied) => denied.told(missing),
        }
    }

    /// Refuses what can only be denied, before anything is opened or taken in for it: of what policies ask about and is not
    /// known yet, the best is assumed.
    ///
    /// # Errors
    /// What may be told.
    pub fn may_begin(&self) -> Result<(), Denied> {
        let record = self.bucket.record();
        let depends_on_object = self.action == Action::Read && (record.obeys_lists() || record.is_listed_by_all());
        let verdict = self.verdict(&record, |asker| asker.judge_at_best(&record, &self.bucket.name));
        match self.decide_by(verdict, Subject::Bucket, &record) {
            Err(Denied::Forbidden) if depends_on_object => Ok(()),
            decided => decided.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
