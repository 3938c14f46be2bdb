//! What requests say of encryption.

pub use super::{CustomerKey, Told};
use super::{Protection, Sealing, by_default, by_master};
use crate::s3::{
    Gateway,
    bucket::Bucket,
    errors::{self, Told as _},
    keyspace,
    secrets::{KEY_BYTES, Secrets},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{HeaderMap, header::HeaderValue};
use s3s::{S3Result, s3_error};
use std::sync::Arc;

/// The one algorithm there is.
pub const AES256: &str = "AES256";
/// What `x-amz-server-side-encryption` says of keys that are elsewhere.
const KMS: [&str; 2] = ["aws:kms", "aws:kms:dsse"];
/// Headers that have a client's key in them.
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

/// Takes what is to be encrypted how out of an input; three inputs have the same fields.
#[macro_export]
macro_rules! encryption {
    ($input:expr) => {
        $crate::s3::crypt::request::Asked {
            method: $input
                .server_side_encryption
                .take()
                .map(|method| method.as_str().to_owned()),
            kms_key: $input.ssekms_key_id.take(),
            customer: $crate::customer!($input),
        }
    };
}

/// Sets what an answer says of encryption.
#[macro_export]
macro_rules! set_encryption {
    ($output:expr, $said:expr) => {{
        let said: Option<$crate::s3::crypt::request::Told> = $said;
        match said {
            None => {}
            Some($crate::s3::crypt::request::Told::Master) => {
                $output.server_side_encryption = Some(s3s::dto::ServerSideEncryption::from_static("AES256"));
            }
            Some($crate::s3::crypt::request::Told::Customer(md5)) => {
                $output.sse_customer_algorithm = Some("AES256".to_owned());
                $output.sse_customer_key_md5 = Some(md5);
            }
        }
    }};
}

impl CustomerFields {
    /// The key, if one is given, and checked.
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

/// What a request that makes an object says of its encryption.
#[derive(Default)]
pub struct Asked {
    /// `x-amz-server-side-encryption`
    pub method: Option<String>,
    /// `x-amz-server-side-encryption-aws-kms-key-id`
    pub kms_key: Option<String>,
    /// A client's key.
    pub customer: CustomerFields,
}

/// Has a master key: one that was given, or one that the store draws for itself now.
///
/// # Errors
/// The store's.
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

impl Asked {
    /// The same as [`Asked::sealing`], with a master key if one is needed.
    ///
    /// # Errors
    /// As that, and the store's.
    pub async fn sealing_by(self, gateway: &Arc<Gateway>, bucket: &Bucket) -> S3Result<Option<Sealing>> {
        if self.method.as_deref() == Some(AES256) {
            have_master_key(gateway).await?;
        }
        self.sealing(&gateway.shared.secrets, bucket)
    }

    /// How the object is to be encrypted: as the request says, or else as the bucket does.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidEncryptionAlgorithmError`, `NotImplemented`.
    pub fn sealing(self, secrets: &Secrets, bucket: &Bucket) -> S3Result<Option<Sealing>> {
        let customer = self.customer.read()?;
        if customer.is_some() && (self.method.is_some() || self.kms_key.is_some()) {
            return Err(s3_error!(
                InvalidArgument,
                "Server Side Encryption with Customer provided key is incompatible with the encryption method specified"
            ));
        }
        let is_asked = check_method(self.method.as_deref(), self.kms_key.as_deref())?;
        if let Some(customer) = customer {
            return Ok(Some(Sealing::new(Protection::Customer(customer))));
        }
        if is_asked {
            return by_master(secrets).map(Some).told();
        }
        by_default(secrets, bucket.record().encryption.is_some()).told()
    }

    /// Something is said of encryption.
    pub const fn is_any(&self) -> bool {
        self.method.is_some() || self.customer.key.is_some() || self.customer.algorithm.is_some()
    }
}

/// Whether a method is named that the service has.
///
/// # Errors
/// `InvalidArgument`, `NotImplemented`.
pub fn check_method(method: Option<&str>, kms_key: Option<&str>) -> S3Result<bool> {
    match method {
        Some(method) if KMS.contains(&method) => Err(s3_error!(
            NotImplemented,
            "There is no key management service: encrypt with AES256, or with keys of your own (SSE-C), instead of {method}."
        )),
        _ if kms_key.is_some() => Err(s3_error!(
            InvalidArgument,
            "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms"
        )),
        None => Ok(false),
        Some(AES256) => Ok(true),
        Some(_) => Err(s3_error!(
            InvalidArgument,
            "The encryption method specified is not supported"
        )),
    }
}

/// What an answer says of encryption, as headers.
pub fn headers(told: &Told) -> Vec<(&'static str, &str)> {
    match told {
        Told::Master => vec![("x-amz-server-side-encryption", AES256)],
        Told::Customer(md5) => vec![
            ("x-amz-server-side-encryption-customer-algorithm", AES256),
            ("x-amz-server-side-encryption-customer-key-md5", md5),
        ],
    }
}

/// Keeps clients' keys out of what is logged of headers.
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

    #[test]
    fn who_decides() {
        let secrets = Secrets::with_key(&"0f".repeat(32)).unwrap();
        let bucket = |encryption| {
            let record = Record {
                encryption,
                ..Record::default()
            };
            Bucket::apart("abc".to_owned(), record)
        };
        let (plain, default) = (bucket(None), bucket(Some(Encryption::default())));
        let asked = |method: &str| Asked {
            method: (!method.is_empty()).then(|| method.to_owned()),
            ..Asked::default()
        };
        let says = |asked: Asked, secrets: &Secrets, bucket: &Bucket| match asked.sealing(secrets, bucket) {
            Ok(None) => "plain".to_owned(),
            Ok(Some(Sealing {
                protection: Protection::Master(_),
                ..
            })) => "master".to_owned(),
            Ok(Some(_)) => "customer".to_owned(),
            Err(error) => error.code().as_str().to_owned(),
        };
        let none = Secrets::default();
        assert_eq!(says(asked(""), &none, &plain), "plain");
        assert_eq!(says(asked(""), &secrets, &plain), "plain");
        assert_eq!(says(asked(""), &secrets, &default), "master");
        assert_eq!(says(asked(""), &none, &default), "NotImplemented");
        assert_eq!(says(asked(AES256), &secrets, &plain), "master");
        assert_eq!(says(asked(AES256), &none, &plain), "NotImplemented");
        assert_eq!(says(asked("aws:kms"), &secrets, &plain), "NotImplemented");
        assert_eq!(says(asked("aes256"), &secrets, &plain), "InvalidArgument");
        let customer = |method: &str| Asked {
            customer: fields(AES256, KEY, &md5()),
            ..asked(method)
        };
        assert_eq!(says(customer(""), &none, &default), "customer");
        assert_eq!(says(customer(AES256), &secrets, &default), "InvalidArgument");
    }

    /// The library logs requests with their headers when it is asked to log everything.
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
