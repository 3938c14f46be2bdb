//! Accounts: to whom access keys, buckets and objects belong.
//!
//! An account is its name. What S3 calls its canonical ID is made of the name, so nothing that is
//! stored has to be found by it; records name accounts. An account is there once a key was made for
//! it, as a record below [`keyspace::ACCOUNTS`] with its e-mail address, and stays when its keys
//! are removed, since buckets may be its own. The account of keys and buckets whose records name
//! none is [`DEFAULT`]; it always is there, and has no record unless it has an address.

use super::keyspace;
use ring::digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use terrace::{Error, ScanRange, Store};

/// The account of all that was made before there were accounts, and of keys that are made for no
/// other. Its canonical ID is this too, as it was: lists and policies that clients keep name it.
pub const DEFAULT: &str = "terrace";
/// The canonical ID that Amazon EC2 has in S3, by which lists grant to it, and its display name.
pub const EC2: (&str, &str) = (
    "6aa5a366c34c1cbe25dc49211496e913e0351eb0e8c37aa3477e40942ec6b97c",
    "za-team",
);
/// Longest name: no name is as long as a canonical ID.
const NAME_BYTES_MAX: usize = 63;
/// Longest e-mail address, by RFC 5321.
const EMAIL_BYTES_MAX: usize = 254;
/// What canonical IDs are made of besides names.
const CONTEXT: &str = "terrace account ";

/// The canonical ID of an account: 64 hex digits, but of [`DEFAULT`].
pub fn canonical_id(name: &str) -> String {
    if name == DEFAULT {
        return DEFAULT.to_owned();
    }
    let hash = digest::digest(&digest::SHA256, format!("{CONTEXT}{name}").as_bytes());
    super::text::hex(hash.as_ref())
}

/// Whether somebody who writes `text` for an account means this one: its name or its canonical ID.
pub fn is_named(name: &str, text: &str) -> bool {
    name == text || (text.len() > NAME_BYTES_MAX && canonical_id(name) == text)
}

/// Whether some account could be meant by that: it is made of what names and canonical IDs are made
/// of. One that is longer than either is an account that nobody has.
pub fn can_be_named(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_plain)
}

/// Whether names of accounts may have it.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Reads the name of an account.
///
/// # Errors
/// Saying what a name looks like.
pub fn read_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
        return Err(format!(
            "`{text}`: the name of an account is 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores"
        ));
    }
    Ok(text.to_owned())
}

/// Reads an e-mail address, as far as it must be one to be found by.
///
/// # Errors
/// That it is none.
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

/// What is stored of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its e-mail address, in small letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

/// The accounts of a store, by name.
#[derive(Debug, Default, Clone)]
pub struct Accounts(BTreeMap<String, Account>);

impl Accounts {
    /// Reads all of them.
    ///
    /// # Errors
    /// The store's; [`Error::Corruption`] for a record that is none.
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

    /// Has an account of this name, with this e-mail address if one is given.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another account has the address; the store's.
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
        store.put(keyspace::account(name), json)?;
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

    /// What is stored and what others store, byte for byte: lists name accounts by these IDs.
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
