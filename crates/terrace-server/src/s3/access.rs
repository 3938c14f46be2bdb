//! Who may: the secret of an access key for `s3s` to check signatures with, and what each operation needs.
//!
//! Whatever is not in the table of [`need_of`] needs the highest level, so an operation that is added later, or that
//! only answers `NotImplemented`, is never open by mistake. Anonymous requests get what a public bucket allows.

use super::{Gateway, access_key::Level, exchange::note, form, limit::Sender, policy::Verdict, versions};
use s3s::{
    S3Error, S3ErrorCode, S3Request, S3Result,
    access::{S3Access, S3AccessContext},
    auth::{Credentials, S3Auth, SecretKey},
    dto::PostObjectInput,
    host::{S3Host, VirtualHost},
    path::S3Path,
    s3_error,
};
use std::{sync::Arc, time::Instant};

/// Knows the secrets.
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

/// Decides.
pub struct Access(pub Arc<Gateway>);

/// What an operation on a bucket, or on an object in it, needs; and whether a public bucket allows it to everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    level: Level,
    public: Public,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Public {
    Never,
    Read,
    List,
}

fn need_of(operation: &str) -> Need {
    let (level, public) = match operation {
        "GetObject" | "HeadObject" => (Level::Read, Public::Read),
        "ListObjects" | "ListObjectsV2" | "HeadBucket" => (Level::Read, Public::List),
        "GetObjectAttributes"
        | "GetObjectTagging"
        | "GetObjectAcl"
        | "GetObjectRetention"
        | "GetObjectLegalHold"
        | "GetBucketLocation"
        | "GetBucketVersioning"
        | "ListObjectVersions"
        | "ListMultipartUploads"
        | "ListParts" => (Level::Read, Public::Never),
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
        | "AbortMultipartUpload" => (Level::Write, Public::Never),
        _ => (Level::Admin, Public::Never),
    };
    Need { level, public }
}

fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

impl Gateway {
    /// What these credentials may do in a bucket.
    pub(super) fn level(&self, credentials: Option<&Credentials>, bucket: &str) -> Option<Level> {
        self.access_keys.level(&credentials?.access_key, bucket)
    }

    /// Whether these credentials, or everybody, may read objects of a bucket; for what a copy reads.
    ///
    /// # Errors
    /// `AccessDenied`
    pub(super) fn may_read(&self, credentials: Option<&Credentials>, bucket: &str) -> S3Result {
        self.check("GetObject", credentials, bucket)
    }

    /// Whether everybody may read an object of a bucket that is not open to everybody.
    ///
    /// # Errors
    /// `AccessDenied`; `NoSuchKey` if there is none, and everybody may know that.
    async fn check_object(self: &Arc<Self>, bucket: &str, key: &str) -> S3Result {
        let bucket = self.buckets.get(bucket)?;
        let record = bucket.record();
        if !record.obeys_lists() && !record.is_listed_by_all() {
            return Err(denied());
        }
        let key = key.to_owned();
        let look = self.run(move |_, store| versions::describe(store, &bucket, &key, None));
        match look.await {
            Ok(facts) if facts.is_public() && record.obeys_lists() => Ok(()),
            Err(error) if *error.code() == S3ErrorCode::NoSuchKey && record.is_listed_by_all() => Err(error),
            _ => Err(denied()),
        }
    }

    /// What whoever asks is told of an object that could not be read: that there is none only if he may list the bucket, as
    /// he could find it out by listing. S3 does it so ("Permissions" of GetObject in its API reference).
    pub(super) fn told(&self, credentials: Option<&Credentials>, bucket: &str, error: S3Error) -> S3Error {
        let is_secret =
            *error.code() == S3ErrorCode::NoSuchKey && self.check("ListObjects", credentials, bucket).is_err();
        if is_secret { denied() } else { error }
    }

    fn check(&self, operation: &str, credentials: Option<&Credentials>, bucket: &str) -> S3Result {
        let need = need_of(operation);
        if self.level(credentials, bucket) >= Some(need.level) {
            return Ok(());
        }
        let record = self.buckets.get(bucket).map(|bucket| bucket.record());
        let open = record.is_ok_and(|record| match need.public {
            Public::Never => false,
            Public::Read => record.is_read_by_all(),
            Public::List => record.is_listed_by_all(),
        });
        if open { Ok(()) } else { Err(denied()) }
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let operation = context.s3_op().name().to_owned();
        let operation = operation.as_str();
        let signer = context.credentials().map(|credentials| credentials.access_key.as_str());
        note(operation, signer);
        if let Some(signer) = signer {
            self.0.admit(Sender::Key(signer.to_owned()), Instant::now())?;
        }
        let (bucket, key) = match context.s3_path() {
            S3Path::Bucket { bucket } => (bucket.to_string(), None),
            S3Path::Object { bucket, key } => (bucket.to_string(), Some(key.to_string())),
            // Only buckets the key may use are listed.
            S3Path::Root => return context.credentials().map(|_| ()).ok_or_else(denied),
        };
        if operation != "CreateBucket" {
            let found = self.0.buckets.get(&bucket)?;
            match self.0.judged(context, &found, key.as_deref(), operation) {
                Verdict::Denied => return Err(denied()),
                Verdict::Allowed => return Ok(()),
                Verdict::Silent => {}
            }
        }
        match (self.0.check(operation, context.credentials(), &bucket), key) {
            (Err(_), Some(key)) if need_of(operation).public == Public::Read => {
                self.0.check_object(&bucket, &key).await
            }
            (outcome, _) => outcome,
        }
    }

    async fn post_object(&self, request: &mut S3Request<PostObjectInput>) -> S3Result<()> {
        form::refuse(&request.input)?;
        let bucket = self.0.buckets.get(&request.input.bucket)?;
        let by = (&request.extensions, request.credentials.as_ref());
        if !self
            .0
            .may(by, &bucket, &request.input.key, "s3:PutObject", Level::Write)
        {
            return Err(denied());
        }
        if let Some(extras) = request.extensions.get::<form::Extras>() {
            extras.put_into(&mut request.input);
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
        self.0.iter().find_map(|domain| {
            let start = name.len().checked_sub(domain.len())?;
            let (front, end) = name.split_at_checked(start)?;
            let bucket = front.strip_suffix('.')?;
            (end.eq_ignore_ascii_case(domain) && !bucket.is_empty()).then_some(bucket)
        })
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
    fn what_is_not_known_needs_everything() {
        assert_eq!(need_of("GetObject").level, Level::Read);
        assert_eq!(need_of("UploadPart").level, Level::Write);
        for operation in [
            "CreateBucket",
            "DeleteBucket",
            "PutBucketPolicy",
            "PutObjectLegalHold",
            "Anything",
            "",
        ] {
            let need = need_of(operation);
            assert_eq!((need.level, need.public), (Level::Admin, Public::Never), "{operation}");
        }
    }

    #[test]
    fn hosts() {
        let domains = Domains(vec!["s3.example.org".to_owned(), "localhost".to_owned()]);
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
            ("[::1]:7071", None),
            ("é", None),
        ] {
            assert_eq!(domains.bucket(host), bucket, "{host}");
        }
    }
}
