//! When the walks begin that delete what is due by the rules of buckets
//! ([`terrace_objects::walk`]): one page of versions per engine call, so that requests go in
//! between.

pub use terrace_objects::lifecycle::*;

use super::{
    Gateway,
    bucket::Bucket,
    errors::{self, Told as _},
    keyspace,
};
use s3s::S3Result;
use std::{sync::Arc, time::Duration};
use terrace_objects::{
    outbox::Cause,
    walk::{Walk, abort_uploads},
};

/// How often to walk.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Walks whenever rules change, and every so often, for ever.
pub async fn run(gateway: Arc<Gateway>) {
    loop {
        for bucket in gateway.buckets.all() {
            let rules = bucket.record();
            // Where a lock or whose it is cannot be read nothing is deleted either.
            if rules.lifecycle.is_empty() || rules.is_unreadable() {
                continue;
            }
            if let Err(error) = through(&gateway, &bucket).await {
                tracing::warn!(%error, bucket = bucket.name, "the lifecycle of a bucket stopped early; this is tried again");
            }
        }
        let _ = tokio::time::timeout(INTERVAL, gateway.lifecycle_changed.notified()).await;
    }
}

/// All of a bucket.
async fn through(gateway: &Arc<Gateway>, bucket: &Arc<Bucket>) -> S3Result {
    let now_ms = keyspace::now_ms();
    let is_told = !bucket.record().notifications.is_empty();
    let cause = is_told.then(|| gateway.cause("", None, None) as Arc<dyn Cause>);
    let mut walk = Some(Walk::new(now_ms).caused_by(cause));
    while let Some(mut current) = walk.take() {
        let bucket = Arc::clone(bucket);
        walk = gateway
            .run(move |gateway, store| {
                // The rules as they are now, for each page.
                let record = bucket.record();
                let is_over = current.page(store, &bucket, &record.lifecycle).told()?;
                if current.garbage {
                    gateway.collector.wake();
                }
                Ok((!is_over).then_some(current))
            })
            .await?;
    }
    let bucket = Arc::clone(bucket);
    gateway
        .run(move |gateway, store| {
            let fail = |error: terrace::Error| errors::of_engine(&error, bucket.name.as_bytes());
            if abort_uploads(store, &bucket, now_ms).map_err(fail)? {
                gateway.collector.wake();
            }
            Ok(())
        })
        .await
}
