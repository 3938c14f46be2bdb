//! Accounts, which own access keys, buckets and objects.
//!
//! An account is identified by its name. Its canonical ID in S3 is computed from the name, so no
//! index from ID to name is stored; records contain the name. The first key made for an account
//! creates its record below [`keyspace::ACCOUNTS`], which holds its e-mail address. The record
//! stays when the keys are removed, since the account may own buckets. Keys and buckets whose
//! records have no account belong to [`DEFAULT`], which always exists and has a record only if it
//! has an address.

use super::{keyspace, lasting::lasting};
use ring::digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use terrace::{Error, ScanRange, Store};

/// The account of everything made before accounts existed, and of keys made without one. Its
/// canonical ID is this text too, since lists and policies that clients have stored contain it.
pub const DEFAULT: &str = "terrace";
/// Amazon EC2's canonical ID, which access control lists may contain, and its display name.
pub const EC2: (&str, &str) = (
    "6aa5a366c34c1cbe25dc49211496e913e0351eb0e8c37aa3477e40942ec6b97c",
    "za-team",
);
/// Longest name. It is shorter than a canonical ID, so the two cannot be confused.
const NAME_BYTES_MAX: usize = 63;
/// Longest e-mail address, by RFC 5321.
const EMAIL_BYTES_MAX: usize = 254;
/// Prefix of the text that is hashed for a canonical ID.
const CONTEXT: &str = "terrace account ";

/// The canonical ID of an account: 64 hex digits, except for [`DEFAULT`].
pub fn canonical_id(name: &str) -> String {
    if name == DEFAULT {
        return DEFAULT.to_owned();
    }
    let hash = digest::digest(&digest::SHA256, format!("{CONTEXT}{name}").as_bytes());
    super::text::hex(hash.as_ref())
}

/// Whether `text`, a name or a canonical ID, means this account.
pub fn is_named(name: &str, text: &str) -> bool {
    name == text || (text.len() > NAME_BYTES_MAX && canonical_id(name) == text)
}

/// Whether `text` has the form of a name or a canonical ID.
pub fn can_be_named(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_plain)
}

/// Whether names of accounts may contain it.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Reads the name of an account.
///
/// # Errors
/// A message that describes valid names.
pub fn read_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
        return Err(format!(
            "`{text}`: the name of an account is 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores"
        ));
    }
    Ok(text.to_owned())
}

/// Reads an e-mail address. Checks only what is needed to find an account by it.
///
/// # Errors
/// A message that the address is not valid.
pub fn read_email(text: &str) -> Result<String, String> {
    let is_address = text
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    if !is_address || !is_plain || text.len() > EMAIL_BYTES_MAX {
        return Err(format!("`{text}` is not an e-mail address"));
    }
    Ok(text.to_ascii_lowercase())
}

/// The stored record of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its e-mail address, in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

/// The accounts of a store, by name.
#[derive(Debug, Default, Clone)]
pub struct Accounts(BTreeMap<String, Account>);

impl Accounts {
    /// Reads all accounts.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Corruption`] for a record that cannot be decoded.
    pub fn load(store: &Store) -> terrace::Result<Self> {
        let mut all = BTreeMap::from([(DEFAULT.to_owned(), Account::default())]);
        for item in store.scan(ScanRange::prefix(keyspace::ACCOUNTS))? {
            let item = item?;
            let name = String::from_utf8_lossy(&item.key[keyspace::ACCOUNTS.len()..]).into_owned();
            let account = serde_json::from_slice(&item.value()?)
                .map_err(|error| Error::corruption(format!("account {name}"), error.to_string()))?;
            all.insert(name, account);
        }
        Ok(Self(all))
    }

    /// Creates an account of this name unless it exists, and sets its e-mail address if one is
    /// given.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another account has the address; errors of the store.
    pub fn join(&mut self, store: &Store, name: &str, email: Option<&str>) -> terrace::Result<()> {
        let is_taken = email.is_some_and(|email| self.by_email(email).is_some_and(|other| other != name));
        if is_taken {
            return Err(Error::invalid("another account has this e-mail address"));
        }
        let known = self.0.get(name);
        let mut account = known.cloned().unwrap_or_default();
        account.email = email.map(str::to_owned).or(account.email);
        if known == Some(&account) {
            return Ok(());
        }
        let json = serde_json::to_vec(&account).map_err(|error| Error::invalid(error.to_string()))?;
        store.put(keyspace::account(name), lasting(json))?;
        self.0.insert(name.to_owned(), account);
        Ok(())
    }

    /// The account with this canonical ID.
    pub fn by_id(&self, id: &str) -> Option<&str> {
        let mut names = self.0.keys().map(String::as_str);
        names.find(|name| canonical_id(name) == id)
    }

    /// The account with this e-mail address.
    pub fn by_email(&self, email: &str) -> Option<&str> {
        let has = |account: &Account| {
            account
                .email
                .as_deref()
                .is_some_and(|own| own.eq_ignore_ascii_case(email))
        };
        self.0
            .iter()
            .find(|(_, account)| has(account))
            .map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::Options;

    /// The stored ID, byte for byte: access control lists contain it.
    #[test]
    fn golden() {
        assert_eq!(canonical_id(DEFAULT), "terrace");
        assert_eq!(
            canonical_id("press"),
            "23a748b3b108c7b68543b777e69214971e265d256d856c67da4e911cc1726fe5"
        );
        assert!(is_named("press", "press") && is_named("press", &canonical_id("press")));
        let id = canonical_id("press");
        let long = format!("{id}foo");
        assert!(
            ["press", "000000000000", DEFAULT, &id, &long]
                .iter()
                .all(|text| can_be_named(text))
        );
        assert!(["", "a/b", "a b", "é"].iter().all(|text| !can_be_named(text)));
        assert!(!is_named("press", &long));
        assert!(!is_named("press", "pres") && !is_named("press", &canonical_id("other")));
        let account = Account {
            email: Some("press@example.org".to_owned()),
        };
        let json = serde_json::to_string(&account).unwrap();
        assert_eq!(json, r#"{"email":"press@example.org"}"#);
        assert_eq!(serde_json::to_string(&Account::default()).unwrap(), "{}");
    }

    #[test]
    fn names_and_addresses() {
        assert_eq!(read_name("Press-2.b_c").unwrap(), "Press-2.b_c");
        for name in ["", "a b", "a=b", "@all", "ü", "a/b", &"a".repeat(64)] {
            assert!(read_name(name).is_err(), "{name}");
        }
        assert_eq!(read_email("A@Example.org").unwrap(), "a@example.org");
        for email in ["", "a", "@b", "a@", "a@b@c", "a b@c", "a\"@b"] {
            assert!(read_email(email).is_err(), "{email}");
        }
    }

    #[test]
    fn accounts_are_joined_and_found() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let mut accounts = Accounts::load(&store).unwrap();
        accounts.join(&store, DEFAULT, None).unwrap();
        assert!(
            store.get(keyspace::account(DEFAULT)).unwrap().is_none(),
            "nothing to say"
        );
        accounts.join(&store, "press", None).unwrap();
        accounts.join(&store, "press", Some("press@example.org")).unwrap();
        accounts.join(&store, "press", None).unwrap();
        assert!(accounts.join(&store, "other", Some("press@example.org")).is_err());
        for accounts in [accounts, Accounts::load(&store).unwrap()] {
            assert_eq!(accounts.by_email("Press@example.org"), Some("press"));
            assert_eq!(accounts.by_id(&canonical_id("press")), Some("press"));
            assert_eq!(accounts.by_id("terrace"), Some(DEFAULT));
            assert_eq!(
                (accounts.by_id("press"), accounts.by_id(&canonical_id("other"))),
                (None, None)
            );
        }
    }
}
