//! Reads and writes the encryption fields of requests and answers.

pub use super::{CustomerKey, Told};
use super::{Protection, Sealing, by_default, by_kms, by_master};
use crate::s3::{
    Gateway,
    access::By,
    bucket::Bucket,
    errors::{self, Told as _},
    keyspace,
    kms::{self, Caller},
    secrets::{KEY_BYTES, Secrets},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{HeaderMap, header::HeaderValue};
use s3s::{S3Result, s3_error};
use std::sync::Arc;

/// The only algorithm.
pub const AES256: &str = "AES256";
/// The value of `x-amz-server-side-encryption` for named keys.
pub const KMS: &str = "aws:kms";
/// The same with double encryption.
const TWICE: &str = "aws:kms:dsse";
/// Longest context in bytes, as received.
const CONTEXT_BYTES_MAX: usize = 4096;
/// Headers that contain a client's key.
const SECRET: [&str; 2] = [
    "x-amz-server-side-encryption-customer-key",
    "x-amz-copy-source-server-side-encryption-customer-key",
];

/// The three headers of SSE-C, of the object or of the source of a copy.
#[derive(Default)]
pub struct CustomerFields {
    /// `…-customer-algorithm`
    pub algorithm: Option<String>,
    /// `…-customer-key`
    pub key: Option<String>,
    /// `…-customer-key-MD5`
    pub md5: Option<String>,
}

/// Takes the headers of SSE-C out of an input.
#[macro_export]
macro_rules! customer {
    ($input:expr) => {
        $crate::s3::crypt::request::CustomerFields {
            algorithm: $input.sse_customer_algorithm.take(),
            key: $input.sse_customer_key.take(),
            md5: $input.sse_customer_key_md5.take(),
        }
    };
}

/// Takes the same for the source out of the input of a copy.
#[macro_export]
macro_rules! source_customer {
    ($input:expr) => {
        $crate::s3::crypt::request::CustomerFields {
            algorithm: $input.copy_source_sse_customer_algorithm.take(),
            key: $input.copy_source_sse_customer_key.take(),
            md5: $input.copy_source_sse_customer_key_md5.take(),
        }
    };
}

/// Takes the encryption fields out of an input; three inputs have the same fields.
#[macro_export]
macro_rules! encryption {
    ($input:expr) => {
        $crate::s3::crypt::request::Asked {
            method: $input
                .server_side_encryption
                .take()
                .map(|method| method.as_str().to_owned()),
            kms_key: $input.ssekms_key_id.take(),
            context: $input.ssekms_encryption_context.take(),
            bucket_key: $input.bucket_key_enabled.take(),
            customer: $crate::customer!($input),
        }
    };
}

/// Sets the encryption fields of an answer.
#[macro_export]
macro_rules! set_encryption {
    ($output:expr, $said:expr) => {{
        let said: Option<$crate::s3::crypt::request::Told> = $said;
        match said {
            None => {}
            Some($crate::s3::crypt::request::Told::Master) => {
                $output.server_side_encryption = Some(s3s::dto::ServerSideEncryption::from_static("AES256"));
            }
            Some($crate::s3::crypt::request::Told::Kms { arn, bucket_key, .. }) => {
                $output.server_side_encryption = Some(s3s::dto::ServerSideEncryption::from_static("aws:kms"));
                $output.ssekms_key_id = Some(arn);
                $output.bucket_key_enabled = bucket_key.then_some(true);
            }
            Some($crate::s3::crypt::request::Told::Customer(md5)) => {
                $output.sse_customer_algorithm = Some("AES256".to_owned());
                $output.sse_customer_key_md5 = Some(md5);
            }
        }
    }};
}

/// The same for an answer to a request that made something, which also returns the context.
#[macro_export]
macro_rules! set_encryption_of_new {
    ($output:expr, $said:expr) => {{
        let said: Option<$crate::s3::crypt::request::Told> = $said;
        $output.ssekms_encryption_context = $crate::s3::crypt::request::context(said.as_ref());
        $crate::set_encryption!($output, said);
    }};
}

impl CustomerFields {
    /// The key, if one is given, after checks.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidEncryptionAlgorithmError`.
    pub fn read(self) -> S3Result<Option<CustomerKey>> {
        let Self { algorithm, key, md5 } = self;
        if algorithm.is_none() && key.is_none() && md5.is_none() {
            return Ok(None);
        }
        let algorithm = algorithm.ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "Requests specifying Server Side Encryption with Customer provided keys must provide a valid encryption algorithm."
            )
        })?;
        if algorithm != AES256 {
            return Err(s3_error!(
                InvalidEncryptionAlgorithmError,
                "The Encryption request you specified is not valid. Supported value: AES256."
            ));
        }
        let key = key.ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "Requests specifying Server Side Encryption with Customer provided keys must provide an appropriate secret key."
            )
        })?;
        let md5 = md5.ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "Requests specifying Server Side Encryption with Customer provided keys must provide the client calculated MD5 of the secret key."
            )
        })?;
        let bytes = STANDARD.decode(&key).ok();
        let bytes = bytes.and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "The secret key was invalid for the specified algorithm."
            )
        })?;
        if STANDARD.decode(&md5).ok().as_deref() != Some(&crate::s3::digest::md5(&bytes)[..]) {
            return Err(s3_error!(
                InvalidArgument,
                "The calculated MD5 hash of the key did not match the hash that was provided."
            ));
        }
        Ok(Some(CustomerKey::new(bytes, md5)))
    }
}

/// The encryption fields of a request that makes an object.
#[derive(Default)]
pub struct Asked {
    /// `x-amz-server-side-encryption`
    pub method: Option<String>,
    /// `x-amz-server-side-encryption-aws-kms-key-id`
    pub kms_key: Option<String>,
    /// `x-amz-server-side-encryption-context`
    pub context: Option<String>,
    /// `x-amz-server-side-encryption-bucket-key-enabled`
    pub bucket_key: Option<bool>,
    /// A client's key.
    pub customer: CustomerFields,
}

/// Ensures that there is a master key: the configured one, or one that the store generates for
/// itself now.
///
/// # Errors
/// Errors of the store.
pub async fn have_master_key(gateway: &Arc<Gateway>) -> S3Result {
    if gateway.shared.secrets.has_key() {
        return Ok(());
    }
    gateway
        .run(|gateway, store| {
            let drawn = gateway.shared.secrets.draw_own(store);
            drawn.map_err(|error| errors::of_engine(&error, keyspace::OWN_MASTER_KEY.as_bytes()))
        })
        .await
}

/// Ensures that the default named key exists, if this is its name.
///
/// # Errors
/// Errors of the store.
pub async fn have_kms_key(gateway: &Arc<Gateway>, key: &str) -> S3Result {
    let is_default = key.is_empty() || kms::name_of(key) == kms::DEFAULT;
    if !is_default || gateway.shared.secrets.kms().has(kms::DEFAULT) {
        return Ok(());
    }
    gateway
        .run(|gateway, store| {
            let secrets = &gateway.shared.secrets;
            let made = secrets.kms().have_default(store, secrets);
            made.map_err(|error| errors::of_engine(&error, keyspace::KMS_KEYS.as_bytes()))
        })
        .await
}

/// Checks a context: an object of strings, as JSON in base64.
fn check_context(context: &str) -> S3Result {
    let json = STANDARD
        .decode(context)
        .ok()
        .filter(|_| context.len() <= CONTEXT_BYTES_MAX);
    let read = json.and_then(|json| serde_json::from_slice::<std::collections::BTreeMap<String, String>>(&json).ok());
    read.map(drop).ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "The header 'x-amz-server-side-encryption-context' shall be Base64-encoded UTF-8 string holding JSON which represents a string-string map"
        )
    })
}

impl Asked {
    /// Like [`Asked::sealing`], and makes the master key or the default named key if it is needed.
    ///
    /// # Errors
    /// As [`Asked::sealing`], and errors of the store.
    pub async fn sealing_by(self, gateway: &Arc<Gateway>, by: By<'_>, bucket: &Bucket) -> S3Result<Option<Sealing>> {
        match self.method.as_deref() {
            Some(AES256) => have_master_key(gateway).await?,
            Some(KMS) => have_kms_key(gateway, self.kms_key.as_deref().unwrap_or_default()).await?,
            _ => {}
        }
        let caller = gateway.kms_caller(by);
        self.sealing(&gateway.shared.secrets, bucket, &caller)
    }

    /// The encryption of the object: by the request, otherwise by the bucket's default.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidEncryptionAlgorithmError`, `NotImplemented`.
    pub fn sealing(self, secrets: &Secrets, bucket: &Bucket, caller: &Caller) -> S3Result<Option<Sealing>> {
        let customer = self.customer.read()?;
        let is_kms = self.kms_key.is_some() || self.context.is_some();
        if customer.is_some() && (self.method.is_some() || is_kms) {
            return Err(s3_error!(
                InvalidArgument,
                "Server Side Encryption with Customer provided key is incompatible with the encryption method specified"
            ));
        }
        let method = check_method(self.method.as_deref(), is_kms)?;
        if let Some(customer) = customer {
            return Ok(Some(Sealing::new(Protection::Customer(customer))));
        }
        match method {
            Some(Method::Master) => by_master(secrets).map(Some).told(),
            Some(Method::Kms) => {
                if let Some(context) = &self.context {
                    check_context(context)?;
                }
                let key = self.kms_key.unwrap_or_default();
                let bucket_key = self.bucket_key.unwrap_or(false);
                by_kms(secrets, &key, self.context, bucket_key, caller).map(Some).told()
            }
            None => {
                let record = bucket.record();
                let wanted = record.encryption.as_ref().map(|wanted| wanted.wanted());
                by_default(secrets, wanted, caller).told()
            }
        }
    }

    /// Whether the request has any encryption field.
    pub const fn is_any(&self) -> bool {
        self.method.is_some()
            || self.kms_key.is_some()
            || self.customer.key.is_some()
            || self.customer.algorithm.is_some()
    }
}

/// The origin of the key that the server encrypts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The master key.
    Master,
    /// A named key of the store.
    Kms,
}

/// The requested method, if there is one; `is_kms` says whether there are other fields of named
/// keys.
///
/// # Errors
/// `InvalidArgument`, `NotImplemented`.
pub fn check_method(method: Option<&str>, is_kms: bool) -> S3Result<Option<Method>> {
    match method {
        Some(KMS) => Ok(Some(Method::Kms)),
        Some(TWICE) => Err(s3_error!(
            NotImplemented,
            "Nothing is encrypted twice here: encrypt with AES256 or {KMS} instead of {TWICE}."
        )),
        _ if is_kms => Err(s3_error!(
            InvalidArgument,
            "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms"
        )),
        None => Ok(None),
        Some(AES256) => Ok(Some(Method::Master)),
        Some(_) => Err(s3_error!(
            InvalidArgument,
            "The encryption method specified is not supported"
        )),
    }
}

/// The context in the answer to a request that created an object.
pub fn context(told: Option<&Told>) -> Option<String> {
    match told? {
        Told::Kms { context, .. } => context.clone(),
        Told::Master | Told::Customer(_) => None,
    }
}

/// The encryption headers of an answer.
pub fn headers(told: &Told) -> Vec<(&'static str, &str)> {
    match told {
        Told::Master => vec![("x-amz-server-side-encryption", AES256)],
        Told::Kms { arn, bucket_key, .. } => {
            let mut said = vec![
                ("x-amz-server-side-encryption", KMS),
                ("x-amz-server-side-encryption-aws-kms-key-id", arn.as_str()),
            ];
            said.extend(bucket_key.then_some(("x-amz-server-side-encryption-bucket-key-enabled", "true")));
            said
        }
        Told::Customer(md5) => vec![
            ("x-amz-server-side-encryption-customer-algorithm", AES256),
            ("x-amz-server-side-encryption-customer-key-md5", md5),
        ],
    }
}

/// Keeps clients' keys out of logged headers.
pub fn hide(headers: &mut HeaderMap) {
    for name in SECRET {
        if let Some(value) = headers.get_mut(name) {
            HeaderValue::set_sensitive(value, true);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::bucket::{Encryption, Record};

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn fields(algorithm: &str, key: &str, md5: &str) -> CustomerFields {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        CustomerFields {
            algorithm: given(algorithm),
            key: given(key),
            md5: given(md5),
        }
    }

    fn md5() -> String {
        STANDARD.encode(crate::s3::digest::md5(&STANDARD.decode(KEY).unwrap()))
    }

    #[test]
    fn keys_of_clients() {
        let md5 = md5();
        assert!(fields("", "", "").read().unwrap().is_none());
        let key = fields(AES256, KEY, &md5).read().unwrap().unwrap();
        assert_eq!(key.md5, md5);
        assert!(!format!("{key:?}").contains("0123"));
        let other = STANDARD.encode([0; 16]);
        for (algorithm, key, md5, code) in [
            ("", KEY, md5.as_str(), "InvalidArgument"),
            ("AES128", KEY, &md5, "InvalidEncryptionAlgorithmError"),
            (AES256, "", &md5, "InvalidArgument"),
            (AES256, KEY, "", "InvalidArgument"),
            (AES256, &KEY[4..], &md5, "InvalidArgument"),
            (AES256, "?", &md5, "InvalidArgument"),
            (AES256, KEY, &other, "InvalidArgument"),
            (AES256, KEY, "?", "InvalidArgument"),
        ] {
            let refused = fields(algorithm, key, md5).read().unwrap_err();
            assert_eq!(refused.code().as_str(), code, "{algorithm} {key} {md5}");
        }
    }

    fn bucket(encryption: Option<Encryption>) -> Bucket {
        let record = Record {
            encryption,
            ..Record::default()
        };
        Bucket::apart("abc".to_owned(), record)
    }

    fn asked(method: &str) -> Asked {
        Asked {
            method: (!method.is_empty()).then(|| method.to_owned()),
            ..Asked::default()
        }
    }

    /// The key that encrypts, or the error's code.
    fn says(asked: Asked, secrets: &Secrets, bucket: &Bucket) -> String {
        match asked.sealing(secrets, bucket, &Caller::Server) {
            Ok(None) => "plain".to_owned(),
            Ok(Some(sealing)) => match sealing.protection {
                Protection::Master(_) => "master".to_owned(),
                Protection::Customer(_) => "customer".to_owned(),
                Protection::Kms(kms) => kms.key.name,
            },
            Err(error) => error.code().as_str().to_owned(),
        }
    }

    #[test]
    fn keys_that_are_named() {
        let secrets = Secrets::with_key(&"0f".repeat(32)).unwrap();
        let plain = bucket(None);
        assert_eq!(says(asked(KMS), &secrets, &plain), "KMS.NotFoundException");
        let dir = tempfile::tempdir().unwrap();
        let store = terrace::Store::open(terrace::Options::new(dir.path())).unwrap();
        for name in [kms::DEFAULT, "photos"] {
            let made = kms::Change::Create(Vec::new());
            secrets.kms().change(&store, &secrets, name, made).unwrap();
        }
        let named = |method: &str, key: &str, context: &str| Asked {
            kms_key: (!key.is_empty()).then(|| key.to_owned()),
            context: (!context.is_empty()).then(|| STANDARD.encode(context)),
            ..asked(method)
        };
        assert_eq!(says(asked(KMS), &secrets, &plain), "aws/s3");
        assert_eq!(
            says(named(KMS, "alias/photos", r#"{"a":"b"}"#), &secrets, &plain),
            "photos"
        );
        for wrong in ["[]", r#"{"a":1}"#, "x"] {
            assert_eq!(says(named(KMS, "photos", wrong), &secrets, &plain), "InvalidArgument");
        }
        for method in ["", AES256] {
            assert_eq!(says(named(method, "photos", ""), &secrets, &plain), "InvalidArgument");
            assert_eq!(says(named(method, "", "{}"), &secrets, &plain), "InvalidArgument");
        }
        let by_kms = |key: &str| {
            bucket(Some(Encryption {
                bucket_key: false,
                kms_key: Some(key.to_owned()),
            }))
        };
        assert_eq!(says(asked(""), &secrets, &by_kms("")), "aws/s3");
        assert_eq!(says(asked(""), &secrets, &by_kms("photos")), "photos");
        assert_eq!(says(asked(AES256), &secrets, &by_kms("photos")), "master");
    }

    #[test]
    fn precedence_of_encryption_settings() {
        let secrets = Secrets::with_key(&"0f".repeat(32)).unwrap();
        let (plain, default) = (bucket(None), bucket(Some(Encryption::default())));
        let none = Secrets::default();
        assert_eq!(says(asked(""), &none, &plain), "plain");
        assert_eq!(says(asked(""), &secrets, &plain), "plain");
        assert_eq!(says(asked(""), &secrets, &default), "master");
        assert_eq!(says(asked(""), &none, &default), "NotImplemented");
        assert_eq!(says(asked(AES256), &secrets, &plain), "master");
        assert_eq!(says(asked(AES256), &none, &plain), "NotImplemented");
        assert_eq!(says(asked(TWICE), &secrets, &plain), "NotImplemented");
        assert_eq!(says(asked("aes256"), &secrets, &plain), "InvalidArgument");
        let customer = |method: &str| Asked {
            customer: fields(AES256, KEY, &md5()),
            ..asked(method)
        };
        assert_eq!(says(customer(""), &none, &default), "customer");
        assert_eq!(says(customer(AES256), &secrets, &default), "InvalidArgument");
    }

    /// The library logs the headers of requests if all logging is on.
    #[test]
    fn keys_are_not_logged() {
        let mut headers: HeaderMap = SECRET
            .map(|name| {
                (
                    hyper::header::HeaderName::from_static(name),
                    HeaderValue::from_static(KEY),
                )
            })
            .into_iter()
            .collect();
        hide(&mut headers);
        assert!(!format!("{headers:?}").contains(KEY));
    }
}
