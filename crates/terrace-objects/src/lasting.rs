//! Records that outlive the loss of their entries in the index: of buckets, access keys, accounts
//! and encryption keys.
//!
//! A tiny value is in the ordered index alone once its log segment was recycled. If a file of the
//! index is lost, `repair` finds longer values in the log and in blocks, and tiny ones nowhere:
//! objects of a bucket were there, and their bucket was not. So these records are never tiny: JSON
//! may end with spaces.

use crate::keyspace::{ACCESS_KEYS, ACCOUNTS, BUCKETS, KMS_KEYS, MASTER_KEYS, OWN_MASTER_KEY, SESSION_KEY};
use terrace::{ScanRange, Store};

/// Bytes of the shortest such record: more than a tiny value has (`Tuning::inline_bytes_max`, by
/// default 64).
pub const BYTES_MIN: usize = 128;

/// A record, lengthened with spaces if it is short.
#[must_use]
pub fn lasting(mut json: Vec<u8>) -> Vec<u8> {
    json.resize(json.len().max(BYTES_MIN), b' ');
    json
}

/// Lengthens the short records of an older store. No other thread may change them.
///
/// # Errors
/// Errors of the store.
pub fn lengthen_all(store: &Store) -> terrace::Result<()> {
    let prefixes = [
        BUCKETS,
        ACCESS_KEYS,
        ACCOUNTS,
        KMS_KEYS,
        MASTER_KEYS,
        OWN_MASTER_KEY,
        SESSION_KEY,
    ];
    for prefix in prefixes {
        for item in store.scan(ScanRange::prefix(prefix))? {
            let item = item?;
            if item.info.length < BYTES_MIN as u64 {
                let record = item.value()?.to_vec();
                store.put(&item.key, lasting(record))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::keyspace;
    use terrace::{HomeKind, Options};

    #[test]
    fn short_records_of_an_older_store_are_lengthened() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let short = [
            (keyspace::bucket("mine"), "{\"created_ms\":7}".to_owned()),
            (keyspace::account("press"), "{}".to_owned()),
            (keyspace::master_key("name"), String::new()),
        ];
        let long = (keyspace::bucket("other"), format!("{{\"created_ms\":7}}{:200}", ""));
        for (key, value) in short.iter().chain([&long]) {
            store.put(key, value).unwrap();
        }
        let version = || store.head(&long.0).unwrap().unwrap().version;
        let before = version();
        lengthen_all(&store).unwrap();
        for (key, value) in &short {
            let kept = store.get(key).unwrap().unwrap();
            assert_eq!(kept.len(), BYTES_MIN);
            assert_eq!(String::from_utf8_lossy(&kept).trim_end(), value);
            assert_ne!(store.head(key).unwrap().unwrap().home, HomeKind::Inline);
        }
        assert_eq!(version(), before, "it is not written again");
    }
}
