//! Temporary credentials: what AssumeRole gives out, and what a request is that comes with it.
//!
//! Nothing is stored of a session. Its access key ID has that of the key it was made with, whose
//! account and levels it has while that key is there. Its secret is made of its ID, and its token
//! is what it is bound to besides, sealed: until when it is good, and a policy that has to allow
//! what it does. Both are made with a key of the store, drawn when the first session is, so a
//! server that starts again knows them.
//!
//! The token is AES-256-GCM by `ring`, a nonce drawn for each, with the session's ID as additional
//! data, so that no token goes with another ID; base64 of nonce, ciphertext and tag. 2^32 tokens
//! may be drawn nonces for.

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
use terrace::{Error, Store};

/// How IDs of access keys begin, and their length.
const OF_KEYS: (&str, usize) = ("TRCE", 20);
/// How IDs of sessions begin: the rest of the key's ID follows, and as much of chance.
const OF_SESSIONS: &str = "TRCS";
/// Letters of a secret.
const SECRET_LETTERS: usize = 40;
/// What the keys for tokens and for secrets are made of besides the store's.
const CONTEXTS: [&str; 2] = ["terrace session token", "terrace session secret"];

/// What it is encrypted as the secret of; no access key has this ID.
pub const KEY_ID: &str = "session-key";
/// Where the store keeps it.
const DRAWN: Drawn = Drawn {
    place: keyspace::SESSION_KEY,
    id: KEY_ID,
};

/// The ID of the access key that the session with this ID was made with. `None` if it is no
/// session's.
pub fn parent(id: &str) -> Option<String> {
    let (beginning, length) = OF_KEYS;
    let rest = id.strip_prefix(OF_SESSIONS)?;
    let (of_key, own) = rest.split_at_checked(length - beginning.len())?;
    (own.len() == of_key.len()).then(|| format!("{beginning}{of_key}"))
}

/// A new ID of a session of a key; `letters` are of chance.
fn id_of(key: &str, letters: &str) -> Option<String> {
    let (beginning, length) = OF_KEYS;
    let of_key = key.strip_prefix(beginning).filter(|_| key.len() == length)?;
    Some(format!("{OF_SESSIONS}{of_key}{letters}"))
}

/// What a session is bound to, as its token has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Until when it is good, in milliseconds since 1970.
    pub expires_ms: u64,
    /// The policy that has to allow what it does, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its tags, which policies may ask about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
}

/// What a session gets.
pub struct Made {
    /// Its access key ID.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// Its token.
    pub token: String,
}

/// Why a token is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSession {
    /// It was not made here, or for another ID.
    Invalid,
    /// It was good until now.
    Expired,
}

/// A session whose token was good when its request came.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// What has to allow what it does.
    pub policy: Option<Arc<Policy>>,
    /// What policies may ask about.
    pub tags: Vec<(String, String)>,
}

/// What sessions are made and known with.
pub struct Sessions {
    token: LessSafeKey,
    secret: hmac::Key,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the keys: this ends in logs.
        f.write_str("Sessions")
    }
}

impl Sessions {
    /// Draws a key for sessions, and keeps it.
    ///
    /// # Errors
    /// The store's.
    pub fn begin(store: &Store, secrets: &Secrets) -> terrace::Result<Self> {
        Self::of(&DRAWN.draw(store, secrets)?)
    }

    /// What sessions are made with, if there were any; encrypted from now on, if there is a key for
    /// that.
    ///
    /// # Errors
    /// The store's, and as [`Secrets::open`].
    pub fn stored(store: &Store, secrets: &Secrets) -> terrace::Result<Option<Self>> {
        let key = DRAWN.kept(store, secrets)?;
        key.map(|key| Self::of(&key)).transpose()
    }

    /// Of this key of the store.
    ///
    /// # Errors
    /// The library's, which says nothing.
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

    /// A new session of a key. `None` if the key has an ID of another form.
    ///
    /// # Errors
    /// The library's, which says nothing.
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
    /// Why there is none.
    pub fn open(&self, id: &str, token: &str) -> Result<Session, NoSession> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| NoSession::Invalid)?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(NoSession::Invalid)?;
        let mut text = text.to_vec();
        let opened = self
            .token
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(id), &mut text);
        let opened = opened.map_err(|_| NoSession::Invalid)?;
        let bounds: Bounds = serde_json::from_slice(opened).map_err(|_| NoSession::Invalid)?;
        if bounds.expires_ms <= keyspace::now_ms() {
            return Err(NoSession::Expired);
        }
        // It was read when the token was made.
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

    /// What goes out, byte for byte: a server of tomorrow must know it.
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
        assert!(sessions.open(&id, &token).unwrap().policy.is_none());
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
        let later = keyspace::now_ms() + 60_000;
        let made = make(later, Some(policy));
        let opened = sessions.open(&made.id, &made.token).unwrap();
        assert!(opened.policy.is_some());
        assert_eq!(opened.tags, tags);
        assert_ne!(make(later, None).token, make(later, None).token);
        let refused = |id: &str, token: &str| sessions.open(id, token).unwrap_err();
        let other = id_of(KEY, "CCCCCCCCCCCCCCCC").unwrap();
        assert_eq!(refused(&other, &made.token), NoSession::Invalid);
        for token in ["", "AAAA", "!", &made.token[1..], &format!("{}A", made.token)] {
            assert_eq!(refused(&made.id, token), NoSession::Invalid, "{token}");
        }
        let elsewhere = Sessions::of(&[8; KEY_BYTES]).unwrap();
        assert!(elsewhere.open(&made.id, &made.token).is_err());
        assert_ne!(elsewhere.secret(&made.id), made.secret);
        let ended = make(keyspace::now_ms(), None);
        assert_eq!(refused(&ended.id, &ended.token), NoSession::Expired);
    }
}
