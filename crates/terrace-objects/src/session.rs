//! Temporary credentials, which AssumeRole returns, and requests that use them.
//!
//! The store keeps no record of a session. Its ID contains that of its access key, whose account
//! and permissions it has while that key exists. Its secret is derived from its ID. Its token
//! contains, encrypted, its expiry and the policy that limits it. Secret and token are made with a
//! key that the store generates for the first session and keeps, so sessions survive a restart of
//! the server.
//!
//! A token is AES-256-GCM from `ring`, with a random nonce and the session's ID as additional data,
//! so that it is valid for no other ID; it is base64 of nonce, ciphertext and tag. At most 2^32
//! tokens may be made.

use super::{
    keyspace,
    policy::Policy,
    secrets::{Drawn, KEY_BYTES, Secrets},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};
use terrace::{Clock, Error, Store};

/// Prefix and length of access key IDs.
const OF_KEYS: (&str, usize) = ("TRCE", 20);
/// Prefix of session IDs. The rest of the key's ID follows, then as many random letters.
const OF_SESSIONS: &str = "TRCS";
/// Length of a secret.
const SECRET_LETTERS: usize = 40;
/// Contexts for deriving the keys for tokens and for secrets.
const CONTEXTS: [&str; 2] = ["terrace session token", "terrace session secret"];

/// ID under which the session key is encrypted; no access key has it.
pub const KEY_ID: &str = "session-key";
/// Where the store keeps it.
const DRAWN: Drawn = Drawn {
    place: keyspace::SESSION_KEY,
    id: KEY_ID,
};

/// The ID of the access key of the session with this ID. `None` if it is no session's.
pub fn parent(id: &str) -> Option<String> {
    let (beginning, length) = OF_KEYS;
    let rest = id.strip_prefix(OF_SESSIONS)?;
    let (of_key, own) = rest.split_at_checked(length - beginning.len())?;
    (own.len() == of_key.len()).then(|| format!("{beginning}{of_key}"))
}

/// Makes a session ID for a key from random `letters`.
fn id_of(key: &str, letters: &str) -> Option<String> {
    let (beginning, length) = OF_KEYS;
    let of_key = key.strip_prefix(beginning).filter(|_| key.len() == length)?;
    Some(format!("{OF_SESSIONS}{of_key}{letters}"))
}

/// The limits of a session, in its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Expiry, in milliseconds since 1970.
    pub expires_ms: u64,
    /// The policy that must allow the session's requests, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its tags, for conditions of policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
}

/// A new session's credentials.
pub struct Made {
    /// Its access key ID.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// Its token.
    pub token: String,
}

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSession {
    /// It is not from this store, or is for another ID.
    Invalid,
    /// It has expired.
    Expired,
}

/// A session whose token was valid when its request arrived.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// The policy that must allow its requests.
    pub policy: Option<Arc<Policy>>,
    /// Its tags, for conditions of policies.
    pub tags: Vec<(String, String)>,
}

/// Makes and checks sessions.
pub struct Sessions {
    token: LessSafeKey,
    secret: hmac::Key,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the keys: this output ends in logs.
        f.write_str("Sessions")
    }
}

impl Sessions {
    /// Generates and stores the session key.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn begin(store: &Store, secrets: &Secrets) -> terrace::Result<Self> {
        Self::of(&DRAWN.draw(store, secrets)?)
    }

    /// Reads the session key, if there is one, and encrypts it in the store if a master key is
    /// given.
    ///
    /// # Errors
    /// Errors of the store, and as [`Secrets::open`].
    pub fn stored(store: &Store, secrets: &Secrets) -> terrace::Result<Option<Self>> {
        let key = DRAWN.kept(store, secrets)?;
        key.map(|key| Self::of(&key)).transpose()
    }

    /// Derives the keys from the session key.
    ///
    /// # Errors
    /// The cryptographic library's, which has no details.
    fn of(key: &[u8; KEY_BYTES]) -> terrace::Result<Self> {
        let whole = hmac::Key::new(hmac::HMAC_SHA256, key);
        let [token, secret] = CONTEXTS.map(|context| hmac::sign(&whole, context.as_bytes()));
        let token = UnboundKey::new(&AES_256_GCM, token.as_ref());
        let token = token.map_err(|_| Error::invalid("the key for sessions cannot be used"))?;
        Ok(Self {
            token: LessSafeKey::new(token),
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref()),
        })
    }

    /// The secret of the session with this ID.
    pub fn secret(&self, id: &str) -> String {
        let mut text = URL_SAFE_NO_PAD.encode(hmac::sign(&self.secret, id.as_bytes()));
        text.truncate(SECRET_LETTERS);
        text
    }

    /// Makes a session for an access key. `None` if the key's ID has another form.
    ///
    /// # Errors
    /// The cryptographic library's, which has no details.
    pub fn make(&self, key: &str, letters: &str, bounds: &Bounds) -> terrace::Result<Option<Made>> {
        let Some(id) = id_of(key, letters) else {
            return Ok(None);
        };
        let mut nonce = [0; NONCE_LEN];
        keyspace::fill_random(&mut nonce);
        Ok(Some(Made {
            secret: self.secret(&id),
            token: self.seal(nonce, &id, bounds)?,
            id,
        }))
    }

    fn seal(&self, nonce: [u8; NONCE_LEN], id: &str, bounds: &Bounds) -> terrace::Result<String> {
        let mut text = serde_json::to_vec(bounds).map_err(|error| Error::invalid(error.to_string()))?;
        let sealed = self
            .token
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(id), &mut text);
        sealed.map_err(|_| Error::invalid("a session cannot be sealed"))?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &text].concat()))
    }

    /// The session with this ID and token.
    ///
    /// # Errors
    /// [`NoSession`]
    pub fn open(&self, id: &str, token: &str, clock: &Clock) -> Result<Session, NoSession> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| NoSession::Invalid)?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(NoSession::Invalid)?;
        let mut text = text.to_vec();
        let opened = self
            .token
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(id), &mut text);
        let opened = opened.map_err(|_| NoSession::Invalid)?;
        let bounds: Bounds = serde_json::from_slice(opened).map_err(|_| NoSession::Invalid)?;
        if bounds.expires_ms <= clock.now_ms() {
            return Err(NoSession::Expired);
        }
        // It was checked when the token was made.
        let policy = bounds.policy.map(|text| Policy::of_session(&text)).transpose();
        let policy = policy.map_err(|_| NoSession::Invalid)?;
        Ok(Session {
            policy: policy.map(Arc::new),
            tags: bounds.tags,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KEY: &str = "TRCEAAAAAAAAAAAAAAAA";
    const LETTERS: &str = "BBBBBBBBBBBBBBBB";

    #[test]
    fn ids_say_whose_sessions_are() {
        let id = id_of(KEY, LETTERS).unwrap();
        assert_eq!(id, "TRCSAAAAAAAAAAAAAAAABBBBBBBBBBBBBBBB");
        assert_eq!(parent(&id).as_deref(), Some(KEY));
        for other in [
            KEY,
            "",
            "TRCS",
            "TRCSAAAAAAAAAAAAAAAA",
            &format!("{id}B"),
            &format!("X{id}"),
        ] {
            assert_eq!(parent(other), None, "{other}");
        }
        assert_eq!(id_of("TRCEOLD", LETTERS), None);
    }

    /// The format of tokens, byte for byte: a later server must accept them.
    #[test]
    fn golden() {
        let sessions = Sessions::of(&[7; KEY_BYTES]).unwrap();
        let bounds = Bounds {
            expires_ms: u64::MAX,
            policy: None,
            tags: Vec::new(),
        };
        let id = id_of(KEY, LETTERS).unwrap();
        let token = sessions.seal([9; NONCE_LEN], &id, &bounds).unwrap();
        assert_eq!(sessions.secret(&id), "MXlhHVtKVMXNCa1sziHhzcTyGcrgp6zdlZ83zqM_");
        assert_eq!(
            token,
            "CQkJCQkJCQkJCQkJM0USeOI0tQtEZ3TODUdde3CfKI3ykA3q0dDvGm2MnIkG-O8-ZeCtaGvJBpsqkWwJFbHA"
        );
        assert!(sessions.open(&id, &token, &Clock::default()).unwrap().policy.is_none());
    }

    #[test]
    fn tokens_are_bound() {
        let sessions = Sessions::of(&[7; KEY_BYTES]).unwrap();
        let policy = r#"{"Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*"}}"#;
        let tags = vec![("team".to_owned(), "red".to_owned())];
        let make = |expires_ms, policy: Option<&str>| {
            let bounds = Bounds {
                expires_ms,
                policy: policy.map(str::to_owned),
                tags: tags.clone(),
            };
            sessions.make(KEY, LETTERS, &bounds).unwrap().unwrap()
        };
        let clock = Clock::default();
        let later = clock.now_ms() + 60_000;
        let made = make(later, Some(policy));
        let opened = sessions.open(&made.id, &made.token, &clock).unwrap();
        assert!(opened.policy.is_some());
        assert_eq!(opened.tags, tags);
        assert_ne!(make(later, None).token, make(later, None).token);
        let refused = |id: &str, token: &str| sessions.open(id, token, &clock).unwrap_err();
        let other = id_of(KEY, "CCCCCCCCCCCCCCCC").unwrap();
        assert_eq!(refused(&other, &made.token), NoSession::Invalid);
        for token in ["", "AAAA", "!", &made.token[1..], &format!("{}A", made.token)] {
            assert_eq!(refused(&made.id, token), NoSession::Invalid, "{token}");
        }
        let elsewhere = Sessions::of(&[8; KEY_BYTES]).unwrap();
        assert!(elsewhere.open(&made.id, &made.token, &clock).is_err());
        assert_ne!(elsewhere.secret(&made.id), made.secret);
        let ended = make(clock.now_ms(), None);
        assert_eq!(refused(&ended.id, &ended.token), NoSession::Expired);
    }
}
