//! Rotation of the master key and of KMS keys: re-encrypts what former keys encrypted with the
//! current one, whether or not the store is being served.
//!
//! No bytes of long objects are rewritten: an object's record contains its wrapped data key, and is
//! rewritten with the same value and the data key wrapped again. Each record is replaced only if it
//! has not changed, so concurrent requests are not disturbed; changed records are visited again. It
//! is done when a scan of one snapshot of the store has found nothing of a former key. Once the
//! server has the new key, nothing is wrapped with a former one ([`Secrets::replace`] waits for
//! commits under way), so then nothing is left, and the store records that only the current key is
//! needed. The same holds for KMS keys: once there is a new version, nothing is wrapped with a
//! former one ([`kms::Current::hold`]), and when nothing of these is left they are removed.
//!
//! After a failure or a crash some records need the former key and some the new one. The store
//! still records that both are needed, and another run completes the work.

use super::{
    Shared,
    crypt::{ENCRYPTION, Encryption, SealedKey, Wrapper},
    keyspace, kms, record,
    secrets::{self, KeyId, SEALED, Secrets},
    session,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};
use terrace::{Condition, Durability, Error, ObjectInfo, PutOptions, ScanItem, ScanRange, Store};
use terrace_objects::error::ObjectError;

/// Records written before a new scan begins, since a scan's snapshot retains replaced values.
const WRITES_PER_LOOK: u64 = 10_000;
/// Field of an access key's encrypted secret.
const SECRET: &str = "secret_aes_256_gcm";

/// Counts of re-encrypted items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Data keys of objects, versions and uploads.
    pub data_keys: u64,
    /// Secrets of access keys, the session key, and KMS keys.
    pub access_keys: u64,
}

/// Replaces the master keys by `new`, if given, and re-encrypts data that former ones encrypted.
/// Blocks. Stops early once `stop` is set. Calls `tell` repeatedly with the number of records
/// written.
///
/// # Errors
/// [`Error::Invalid`] if a master key is missing, or there is none; [`Error::Unavailable`] if it
/// was stopped; errors of the store.
pub fn run(
    store: &Store,
    shared: &Shared,
    new: Option<&Secrets>,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(u64),
) -> terrace::Result<Report> {
    let secrets = &shared.secrets;
    let wanted = new.unwrap_or(secrets);
    let former = secrets.kms().former();
    if !wanted.is_given() && former.is_empty() {
        return Err(Error::invalid(
            "there is no master key, and no key of `terrace kms` has two versions; give a master key by \
             `--secrets-key-file`, TERRACE_SECRETS_KEY or `--key-command`",
        ));
    }
    wanted.check(store)?;
    access_keys(store, wanted, false)?;
    // Before data keys are wrapped with it, but only after it has decrypted the existing ones.
    wanted.register(store)?;
    if let Some(new) = new {
        secrets.replace(new);
    }
    let mut report = Report {
        access_keys: access_keys(store, secrets, true)?,
        ..Report::default()
    };
    let mut start = Vec::new();
    loop {
        let look = look(store, (shared, &former), &start, stop, &mut |written| {
            tell(report.data_keys + written);
        })?;
        report.data_keys += look.written;
        let is_done = start.is_empty() && look.is_clean;
        start = look.next.unwrap_or_default();
        if is_done {
            break;
        }
    }
    // Again: writes under way at the switch are committed now.
    report.access_keys += access_keys(store, secrets, true)?;
    // Earlier writes are buffered; this makes them durable before the keys are recorded.
    store.delete_with(keyspace::sync_marker(), Condition::None, Durability::Sync)?;
    secrets.forget_former(store)?;
    secrets.kms().strike(store, secrets, &former)?;
    tracing::info!(
        report.data_keys,
        report.access_keys,
        "everything is encrypted with the current master key"
    );
    Ok(report)
}

/// Result of a scan.
struct Look {
    written: u64,
    /// It reached the end, and there was nothing to write.
    is_clean: bool,
    /// Where it stopped early.
    next: Option<Vec<u8>>,
}

/// Scans a snapshot of the store from a key on.
fn look(
    store: &Store,
    (shared, former): (&Shared, &BTreeSet<KeyId>),
    start: &[u8],
    stop: &AtomicBool,
    tell: &mut dyn FnMut(u64),
) -> terrace::Result<Look> {
    let mut look = Look {
        written: 0,
        is_clean: true,
        next: None,
    };
    for item in store.scan(ScanRange::range(start.to_vec()..))? {
        tell(look.written);
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Unavailable("stopped; do it again for the rest"));
        }
        let item = item?;
        if Encryption::of(&item.info.attributes).is_none() {
            continue;
        }
        if look.written == WRITES_PER_LOOK {
            look.next = Some(item.key.to_vec());
            break;
        }
        if !needs(&item.info, (&shared.secrets, former), &item.key)? {
            continue;
        }
        look.is_clean = false;
        let is_upload = item.key.starts_with(keyspace::UPLOADS.as_bytes());
        let is_written = if is_upload {
            // Parts that arrive rewrite the same record.
            let _alone = shared.wrapping.write();
            match store.head(&item.key)? {
                None => false,
                Some(info) => write(store, &shared.secrets, &item.key, &info, Vec::new().into())?,
            }
        } else {
            write(store, &shared.secrets, &item.key, &item.info, item.value()?)?
        };
        if is_written {
            look.written += 1;
        }
    }
    Ok(look)
}

fn sealed(info: &ObjectInfo, key: &[u8]) -> terrace::Result<SealedKey> {
    let stored = info.attributes.get(ENCRYPTION).and_then(SealedKey::decode);
    stored.ok_or_else(|| {
        let key = String::from_utf8_lossy(key);
        Error::corruption(
            format!("the key of object {key:?}"),
            "this program does not know how it is encrypted",
        )
    })
}

/// Whether its data key is wrapped with a former master key, or one of these versions of KMS keys.
fn needs(info: &ObjectInfo, (secrets, former): (&Secrets, &BTreeSet<KeyId>), key: &[u8]) -> terrace::Result<bool> {
    Ok(match sealed(info, key)?.by {
        Wrapper::Master(id) => secrets.is_given() && secrets.ids().first() != Some(&id),
        Wrapper::Kms(id) => former.contains(&id),
        Wrapper::Customer => false,
    })
}

/// Rewraps a data key. False if that was not needed, or the record has changed.
fn write(
    store: &Store,
    secrets: &Secrets,
    key: &[u8],
    info: &ObjectInfo,
    value: bytes::Bytes,
) -> terrace::Result<bool> {
    let anew = sealed(info, key)?.anew(secrets, &info.attributes, keyspace::object_of(key));
    let Some(anew) = anew.map_err(|error| failed(&error, key))? else {
        return Ok(false);
    };
    let options = PutOptions {
        attributes: record::with_encryption(&info.attributes, &anew.encode()),
        durability: Durability::Buffered,
        condition: Condition::VersionIs(info.version),
        ..PutOptions::default()
    };
    match store.put_with(key, value, &options) {
        Ok(_) => Ok(true),
        Err(Error::ConditionFailed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn failed(error: &ObjectError, key: &[u8]) -> Error {
    error.of_engine().cloned().unwrap_or_else(|| {
        let key = String::from_utf8_lossy(key);
        Error::corruption(format!("the key of object {key:?}"), error.to_string())
    })
}

/// Re-encrypts secrets of access keys and generated keys, or only checks that it is possible.
/// Returns the number written.
fn access_keys(store: &Store, secrets: &Secrets, writes: bool) -> terrace::Result<u64> {
    let mut written = 0;
    for item in store.scan(ScanRange::prefix(keyspace::ACCESS_KEYS))? {
        let item = item?;
        let id = String::from_utf8_lossy(&item.key[keyspace::ACCESS_KEYS.len()..]).into_owned();
        written += secret(store, secrets, writes, &item, (&id, SECRET))?;
    }
    for (place, id) in [
        (keyspace::SESSION_KEY, session::KEY_ID),
        (keyspace::OWN_MASTER_KEY, secrets::OWN_ID),
    ] {
        for item in store.scan(ScanRange::prefix(place))? {
            written += secret(store, secrets, writes, &item?, (id, SEALED))?;
        }
    }
    written += kms::seal_anew(store, secrets, writes)?;
    Ok(written)
}

/// Re-encrypts `field` of a JSON record under `id`. Returns the number of records written, at most
/// one.
fn secret(
    store: &Store,
    secrets: &Secrets,
    writes: bool,
    item: &ScanItem,
    (id, field): (&str, &str),
) -> terrace::Result<u64> {
    let damaged = |error: serde_json::Error| Error::corruption(format!("access key {id}"), error.to_string());
    let mut record: serde_json::Value = serde_json::from_slice(&item.value()?).map_err(damaged)?;
    let Some(sealed) = record.get(field).and_then(serde_json::Value::as_str) else {
        return Ok(0);
    };
    let Some(anew) = secrets.sealed_anew(id, sealed)?.filter(|_| writes) else {
        return Ok(0);
    };
    record[field] = anew.into();
    let options = PutOptions {
        attributes: item.info.attributes.clone(),
        condition: Condition::VersionIs(item.info.version),
        ..PutOptions::default()
    };
    match store.put_with(&item.key, serde_json::to_vec(&record).map_err(damaged)?, &options) {
        Ok(_) => Ok(1),
        // Removed or rewritten: visited again before the end.
        Err(Error::ConditionFailed { .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{
        crypt::{self, Protection, Sealing},
        kms::Caller,
        record::Facts,
    };
    use terrace::{Attributes, Options};

    fn secrets(digits: &[&str]) -> Secrets {
        let lines: Vec<_> = digits.iter().map(|digits| digits.repeat(32)).collect();
        Secrets::with_key(&lines.join("\n")).unwrap()
    }

    /// An object, one with a separate value, a version, and an upload.
    fn places() -> Vec<Vec<u8>> {
        let id = keyspace::Id::new(&terrace::Clock::default());
        vec![
            keyspace::object("b", "short"),
            keyspace::object("b", "long"),
            keyspace::version("b", "short", id),
            keyspace::upload("b", "k", id),
        ]
    }

    fn fill(store: &Store, protection: &Protection, places: &[Vec<u8>]) {
        for place in places {
            let sealing = Sealing::new(protection.clone());
            let sealed = sealing.wrapped(&sealing.hold(), keyspace::object_of(place));
            let mut attributes = Attributes::new().with("colour", "red");
            record::encrypt(&mut attributes, &sealed.unwrap().encode(), 5);
            sealing.describe(&mut attributes);
            let options = PutOptions {
                attributes,
                ..PutOptions::default()
            };
            let value = if place.starts_with(keyspace::UPLOADS.as_bytes()) {
                ""
            } else {
                "value"
            };
            store.put_with(place, value, &options).unwrap();
        }
    }

    /// Checks that all objects can be unlocked and have not changed otherwise.
    fn all_open(store: &Store, secrets: &Secrets, places: &[Vec<u8>]) -> bool {
        places.iter().all(|place| {
            let info = store.head(place).unwrap().unwrap();
            assert_eq!(info.attributes.get_str("colour"), Some("red"));
            let unlocked = crypt::unlock(&Facts::of(&info), keyspace::object_of(place), secrets, None, || {
                Caller::Server
            });
            unlocked.is_ok_and(|data_key| data_key.is_some())
        })
    }

    /// After a stop at any record nothing is lost, both keys are needed, and another run completes
    /// it.
    #[test]
    fn a_rotation_that_ends_early_is_done_again() {
        for stop_behind in 0..places().len() as u64 {
            let dir = tempfile::tempdir().unwrap();
            let open = || Store::open(Options::new(dir.path())).unwrap();
            let (old, both, new) = (secrets(&["0f"]), secrets(&["0e", "0f"]), secrets(&["0e"]));
            let store = open();
            old.register(&store).unwrap();
            let places = places();
            fill(&store, &Protection::Master(old.clone()), &places);
            let shared = Shared::new(None, secrets(&["0f"]));
            let stop = AtomicBool::new(false);
            let mut tell = |written: u64| stop.store(written >= stop_behind, Ordering::Relaxed);
            let ended = run(&store, &shared, Some(&both), &stop, &mut tell);
            // Progress is reported when the next record is visited.
            assert!(matches!(ended, Err(Error::Unavailable(_))), "{ended:?}");
            drop(store);

            let store = open();
            assert!(all_open(&store, &both, &places));
            assert!(new.register(&store).is_err() && old.register(&store).is_err());
            both.register(&store).unwrap();
            let shared = Shared::new(None, both.clone());
            let never = AtomicBool::new(false);
            let report = run(&store, &shared, None, &never, &mut |_| {}).unwrap();
            assert_eq!(report.data_keys, places.len() as u64 - stop_behind);
            new.register(&store).unwrap();
            assert!(all_open(&store, &new, &places) && !all_open(&store, &old, &places));
            assert_eq!(
                run(&store, &shared, None, &never, &mut |_| {}).unwrap(),
                Report::default()
            );
        }
    }

    /// After a stop at any record the former version of a KMS key is still there and unwraps the
    /// remaining ones; another run removes it.
    #[test]
    fn a_rotation_of_a_named_key_that_ends_early_is_done_again() {
        for stop_behind in 0..=places().len() as u64 {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(Options::new(dir.path())).unwrap();
            let shared = Shared::default();
            let secrets = &shared.secrets;
            let change = |change| secrets.kms().change(&store, secrets, "k", change).unwrap();
            change(kms::Change::Create(Vec::new()));
            let sealing = crypt::by_kms(secrets, "k", Some("e30=".to_owned()), false, &Caller::Server);
            let places = places();
            fill(&store, &sealing.unwrap().protection, &places);
            assert_eq!(change(kms::Change::Rotate).versions, 2);
            let stop = AtomicBool::new(false);
            let mut tell = |written: u64| stop.store(written >= stop_behind, Ordering::Relaxed);
            let ended = run(&store, &shared, None, &stop, &mut tell);
            assert!(matches!(ended, Err(Error::Unavailable(_))), "{ended:?}");
            // Opened by another process.
            let reopened = || {
                let secrets = Secrets::default();
                secrets.kms().load(&store, &secrets).unwrap();
                secrets
            };
            assert!(all_open(&store, &reopened(), &places));
            assert_eq!(reopened().kms().all()[0].versions, 2);
            let never = AtomicBool::new(false);
            let report = run(&store, &shared, None, &never, &mut |_| {}).unwrap();
            assert_eq!(report.data_keys, places.len() as u64 - stop_behind);
            assert_eq!(reopened().kms().all()[0].versions, 1);
            assert!(all_open(&store, &reopened(), &places) && all_open(&store, secrets, &places));
            assert_eq!(change(kms::Change::Rotate).versions, 2);
        }
    }

    /// Regression: a rotation left the session key under the former master key, and recorded that
    /// this is no longer needed: no server with only the new one would have started.
    #[test]
    fn what_the_store_has_drawn_is_encrypted_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let (old, both, new) = (secrets(&["0f"]), secrets(&["0e", "0f"]), secrets(&["0e"]));
        old.register(&store).unwrap();
        session::Sessions::begin(&store, &old).unwrap();
        // Generated before there was a master key, and encrypted with it later.
        old.draw_own(&store).unwrap();
        assert!(session::Sessions::stored(&store, &new).is_err());
        let shared = Shared::new(None, secrets(&["0f"]));
        let never = AtomicBool::new(false);
        let report = run(&store, &shared, Some(&both), &never, &mut |_| {}).unwrap();
        assert_eq!(report.access_keys, 2);
        new.register(&store).unwrap();
        assert!(secrets(&["0f"]).keep_own(&store).is_err());
        new.keep_own(&store).unwrap();
        assert_eq!(new.ids().last(), old.ids().last());
        assert!(session::Sessions::stored(&store, &new).unwrap().is_some());
        assert!(session::Sessions::stored(&store, &old).is_err());
    }

    #[test]
    fn without_a_key_there_is_nothing_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let never = AtomicBool::new(false);
        let refused = run(&store, &Shared::default(), None, &never, &mut |_| {}).unwrap_err();
        assert!(refused.to_string().contains("there is no master key"));
    }
}
