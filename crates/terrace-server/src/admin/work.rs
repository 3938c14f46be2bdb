//! The handlers of the calls, in a running server or in a command that has the store open itself.

use super::{BackupRequest, BackupSummary, KeyPolicy, KeySummary, KmsChange, TierBytes, TierCapacity};
use crate::{
    failure::Outcome,
    report::stats_json,
    s3::{
        Shared,
        access_key::{self, Keys, NewKey},
        kms, rewrap,
        secrets::Secrets,
    },
    settings::Settings,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use terrace::{BackupOptions, BackupProgress, Store, Tier};

/// The parameters of calls.
pub struct Served {
    /// The store.
    pub store: Store,
    /// The access keys of a running server, and its master keys; `None` in a command.
    pub running: Option<(Arc<Keys>, Shared)>,
    /// They say where the master keys are, which may change.
    pub settings: Settings,
    /// Set when the process is to end.
    pub stop: Arc<AtomicBool>,
}

impl Served {
    /// The master keys, and with them the keys for SSE-KMS.
    fn secrets(&self) -> Outcome<Secrets> {
        if let Some((_, shared)) = &self.running {
            return Ok(shared.secrets.clone());
        }
        let secrets = self.settings.secrets()?;
        secrets.check(&self.store)?;
        secrets.kms().load(&self.store, &secrets)?;
        Ok(secrets)
    }
}

/// Progress of a call.
#[derive(Default)]
pub struct Work {
    /// Progress of a backup, which also stops it.
    pub backup: Arc<BackupProgress>,
    records: AtomicU64,
}

impl Work {
    /// Bytes or records that are done, and of how many, if that is known.
    pub fn figures(&self) -> (u64, u64) {
        let records = self.records.load(Ordering::Relaxed);
        (self.backup.done_bytes() + records, self.backup.total_bytes())
    }
}

pub(super) fn stats(served: &Served, (): (), _: &Work) -> Outcome<serde_json::Value> {
    Ok(stats_json(&served.store.stats()))
}

pub(super) fn back_up(served: &Served, request: BackupRequest, work: &Work) -> Outcome<BackupSummary> {
    tracing::info!(dir = %request.dir.display(), "taking a backup");
    let options = BackupOptions {
        onto: request.onto,
        copy: request.copy,
        bytes_per_second: request.bytes_per_second,
        progress: Arc::clone(&work.backup),
        ..BackupOptions::default()
    };
    Ok(served.store.backup(&request.dir, &options)?.into())
}

pub(super) fn rewrap(served: &Served, (): (), work: &Work) -> Outcome<rewrap::Report> {
    let (store, new) = (&served.store, served.settings.secrets()?);
    let mut tell = |records| work.records.store(records, Ordering::Relaxed);
    if let Some((_, shared)) = &served.running {
        return Ok(rewrap::run(store, shared, Some(&new), &served.stop, &mut tell)?);
    }
    new.load_own(store)?;
    new.kms().load(store, &new)?;
    let shared = Shared::new(None, new);
    Ok(rewrap::run(store, &shared, None, &served.stop, &mut tell)?)
}

pub(super) fn set_capacity(Served { store, .. }: &Served, wanted: TierBytes, _: &Work) -> Outcome<TierCapacity> {
    match wanted {
        TierBytes::Flash(bytes) => store.set_flash_capacity(bytes)?,
        TierBytes::Large(bytes) => store.set_large_capacity(bytes)?,
    }
    let stats = store.stats();
    let (tier, capacity_bytes, allocated_bytes) = match wanted {
        TierBytes::Flash(bytes) => ("flash", Some(bytes), stats.space(Tier::Flash).disk_bytes),
        TierBytes::Large(_) => ("large", stats.large.capacity_bytes, stats.large.allocated_bytes),
    };
    tracing::info!(tier, capacity_bytes, "a tier has another capacity");
    Ok(TierCapacity {
        capacity_bytes,
        allocated_bytes,
    })
}

pub(super) fn keys(served: &Served, (): (), _: &Work) -> Outcome<Vec<KeySummary>> {
    let stored = access_key::stored(&served.store)?.into_iter();
    Ok(stored.map(KeySummary::of).collect())
}

pub(super) fn create_key(served: &Served, new: NewKey, _: &Work) -> Outcome<KeySummary> {
    let (id, key) = match &served.running {
        Some((keys, _)) => keys.create(&served.store, &new)?,
        None => access_key::create(&served.store, &new, &served.settings.secrets()?)?,
    };
    tracing::info!(id, "an access key was made");
    Ok(KeySummary {
        id,
        secret: Some(key.secret),
        created_ms: key.created_ms,
        grants: key.grants,
        account: key.account.to_string(),
        expires_ms: key.expires_ms,
        policy: key.policy.map(|policy| policy.text.clone()),
    })
}

pub(super) fn set_key_policy(served: &Served, KeyPolicy { id, policy }: KeyPolicy, _: &Work) -> Outcome<bool> {
    let text = policy.as_deref();
    let is_there = match &served.running {
        Some((keys, _)) => keys.set_policy(&served.store, &id, text)?.is_some(),
        None => access_key::set_policy(&served.store, &id, text)?.is_some(),
    };
    tracing::info!(
        id,
        has_policy = text.is_some(),
        is_there,
        "what an access key may do was changed"
    );
    Ok(is_there)
}

pub(super) fn remove_key(served: &Served, id: String, _: &Work) -> Outcome<bool> {
    let was_there = match &served.running {
        Some((keys, _)) => keys.remove(&served.store, &id)?,
        None => access_key::remove(&served.store, &id)?,
    };
    tracing::info!(id, was_there, "an access key was removed");
    Ok(was_there)
}

pub(super) fn kms(served: &Served, (): (), _: &Work) -> Outcome<Vec<kms::Summary>> {
    Ok(served.secrets()?.kms().all())
}

pub(super) fn change_kms(served: &Served, KmsChange { name, change }: KmsChange, _: &Work) -> Outcome<kms::Summary> {
    let secrets = served.secrets()?;
    // Before anything is encrypted with it. A running server has done so.
    secrets.register(&served.store)?;
    let key = secrets.kms().change(&served.store, &secrets, &name, change)?;
    let (is_disabled, versions) = (key.is_disabled, key.versions);
    tracing::info!(name, is_disabled, versions, "a key was changed");
    Ok(key)
}
