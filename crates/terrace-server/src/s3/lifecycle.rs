//! Starts lifecycle walks ([`terrace_objects::walk`]): one page of versions per engine call, so
//! that requests are served in between.

pub use terrace_objects::lifecycle::*;

use super::{
    Gateway,
    bucket::Bucket,
    errors::{self, Told as _},
};
use s3s::S3Result;
use std::{sync::Arc, time::Duration};
use terrace_objects::{
    outbox::Cause,
    walk::{Walk, abort_uploads},
};

/// Interval of walks.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Walks when rules change, and at intervals, until the process ends.
pub async fn run(gateway: Arc<Gateway>) {
    loop {
        for bucket in gateway.buckets.all() {
            let rules = bucket.record();
            // If a lock or the ownership cannot be parsed, nothing is deleted.
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

/// Walks a whole bucket.
async fn through(gateway: &Arc<Gateway>, bucket: &Arc<Bucket>) -> S3Result {
    let now_ms = gateway.clock().now_ms();
    let is_told = !bucket.record().notifications.is_empty();
    let cause = is_told.then(|| gateway.cause("", None, None) as Arc<dyn Cause>);
    let mut walk = Some(Walk::new(now_ms).caused_by(cause));
    while let Some(mut current) = walk.take() {
        let bucket = Arc::clone(bucket);
        walk = gateway
            .run(move |gateway, store| {
                // The current rules, for each page.
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
