//! `/metrics`: the engine's figures and the service's own, in the OpenMetrics text that Prometheus
//! reads.

mod tiers;

use super::{App, engine::Calls as _, refusal::Refusal};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, NoLabelSet, text},
    metrics::{MetricType, counter::ConstCounter, counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};
use std::{fmt, sync::Arc};
use terrace::{OperationStats, Stats};

/// Answers given, by route and status.
#[derive(Debug, Default)]
pub struct Requests(Family<RequestLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

impl Requests {
    /// Counts an answer. Routes are patterns, so their number is bounded.
    pub fn count(&self, route: String, status: StatusCode) {
        self.0
            .get_or_create(&RequestLabels {
                route,
                status: status.as_u16(),
            })
            .inc();
    }
}

/// `/metrics`
pub async fn text(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let stats = app.probes.call(|store| Ok::<_, Refusal>(store.stats())).await?;
    let mut registry = Registry::default();
    registry.register("terrace_http_requests", "Requests answered", app.requests.0.clone());
    if let Some(register) = &app.beside.register {
        register(&mut registry);
    }
    registry.register_collector(Box::new(Figures(stats)));
    let mut body = String::new();
    text::encode(&mut body, &registry).map_err(|_| Refusal::internal("the metrics could not be written"))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok((
        [
            (header::CONTENT_TYPE, content_type),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body,
    )
        .into_response())
}

/// The engine's figures of one moment.
#[derive(Debug)]
struct Figures(Stats);

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.homes(&mut out)?;
        self.reads(&mut out)?;
        self.written(&mut out)?;
        self.parts(&mut out)?;
        self.sizes(&mut out)?;
        self.under_way(&mut out)?;
        self.expired(&mut out)?;
        self.snapshots(&mut out)?;
        self.flash_cache(&mut out)?;
        self.paces(&mut out)?;
        self.checkpoints(&mut out)?;
        self.space(&mut out)?;
        self.stalls(&mut out)?;
        self.placement(&mut out)?;
        self.scans(&mut out)?;
        out.operations(&self.0.operations)
    }
}

impl Figures {
    fn homes(&self, out: &mut Out<'_>) -> fmt::Result {
        let homes = [
            ("inline", self.0.inline),
            ("flash", self.0.flash),
            ("block", self.0.block),
        ];
        out.gauges(
            "terrace_objects",
            "Live objects",
            "home",
            homes.map(|(name, home)| (name, home.objects)),
        )?;
        out.gauges(
            "terrace_object_bytes",
            "Bytes of live values",
            "home",
            homes.map(|(name, home)| (name, home.bytes)),
        )
    }

    fn reads(&self, out: &mut Out<'_>) -> fmt::Result {
        let reads = &self.0.reads;
        let answered = [
            ("overlay", reads.overlay_hits),
            ("cache", reads.cache_hits),
            ("inline", reads.inline_hits),
            ("flash", reads.flash_hits),
            ("copy", reads.copy_hits),
            ("prefetch", reads.prefetch_hits),
            ("block", reads.block_hits),
            ("none", reads.misses),
        ];
        out.counters(
            "terrace_reads",
            "Reads of objects, by where they were answered",
            "answered_by",
            answered,
        )?;
        let bytes = [
            ("ram", reads.ram_bytes),
            ("flash", reads.flash_bytes),
            ("large", reads.large_bytes),
        ];
        out.counters(
            "terrace_read_bytes",
            "Bytes of the values that reads were answered with, by tier",
            "tier",
            bytes,
        )?;
        let device = [("flash", reads.flash_reads), ("large", reads.block_reads)];
        out.counters("terrace_device_reads", "Reads of the tiers' devices", "tier", device)?;
        let ages = [
            ("log", self.0.log.eviction_age),
            ("copies", self.0.flash_cache.eviction_age),
        ];
        out.gauges(
            "terrace_eviction_age_seconds",
            "How long what left flash last had been there; 0 before the first",
            "part",
            ages.map(|(part, age)| (part, age.unwrap_or_default().as_secs())),
        )?;
        out.counter(
            "terrace_false_flash_reads",
            "Flash reads that found another key",
            reads.false_flash_reads,
        )
    }

    fn written(&self, out: &mut Out<'_>) -> fmt::Result {
        let written = &self.0.written;
        let causes = [
            ("flash", "user", written.flash_user_bytes),
            ("flash", "padding", written.flash_padding_bytes),
            ("flash", "reinsertion", written.flash_reinserted_bytes),
            ("flash", "move", written.flash_moved_bytes),
            ("flash", "order", written.flash_ordered_bytes),
            ("flash", "index", written.index_bytes),
            ("flash", "compaction", written.compaction_bytes),
            ("flash", "copy", written.copy_bytes),
            ("flash", "checkpoint", written.checkpoint_bytes),
            ("large", "user", written.large_user_bytes),
            ("large", "destage", written.large_destaged_bytes),
            ("large", "cleaning", written.large_cleaned_bytes),
        ];
        let mut family = out.0.encode_descriptor(
            "terrace_written_bytes",
            "Bytes written, by tier and cause",
            None,
            MetricType::Counter,
        )?;
        for (tier, cause, bytes) in causes {
            ConstCounter::new(bytes).encode(family.encode_family(&[("tier", tier), ("cause", cause)])?)?;
        }
        out.counter(
            "terrace_user_bytes",
            "Bytes of keys, attributes and values that callers wrote",
            written.user_bytes,
        )?;
        out.gauge_f64(
            "terrace_write_amplification",
            "Device bytes per user byte since open",
            written.write_amplification(),
        )
    }

    /// Gauges and counters of the parts of the store.
    fn parts(&self, out: &mut Out<'_>) -> fmt::Result {
        let Stats { log, index, queue, .. } = &self.0;
        let segments = [
            ("used", log.segments_used),
            ("free", log.segments_free),
            ("quarantined", log.segments_quarantined),
        ];
        out.gauges("terrace_log_segments", "Segments of the flash log", "state", segments)?;
        out.counter(
            "terrace_log_segments_reclaimed",
            "Segments reclaimed since open",
            log.segments_reclaimed,
        )?;
        out.counter(
            "terrace_log_syncs",
            "Group commits: fdatasyncs of the log since open",
            queue.syncs,
        )?;
        out.counter(
            "terrace_index_flushes",
            "Flushes of the ordered index since open",
            index.flushes,
        )?;
        out.counter(
            "terrace_index_compactions",
            "Compactions of the ordered index since open that wrote tables",
            index.compactions,
        )?;
        out.counter(
            "terrace_index_block_reads",
            "Index block reads that went to the device",
            index.block_reads,
        )?;
        Ok(())
    }

    /// Gauges of how large the parts are.
    fn sizes(&self, out: &mut Out<'_>) -> fmt::Result {
        let Stats {
            log,
            large,
            index,
            hash_index,
            ..
        } = &self.0;
        for (name, help, value) in [
            (
                "terrace_log_capacity_bytes",
                "Most the flash log may occupy",
                log.capacity_bytes,
            ),
            (
                "terrace_log_allocated_bytes",
                "Bytes the flash log occupies",
                log.allocated_bytes,
            ),
            ("terrace_large_blocks", "Block files of the large space", large.blocks),
            (
                "terrace_large_allocated_bytes",
                "Bytes of the block files",
                large.allocated_bytes,
            ),
            (
                "terrace_large_live_bytes",
                "Bytes in blocks that hold live values",
                large.live_bytes,
            ),
            ("terrace_index_tables", "Tables of the ordered index", index.tables),
            (
                "terrace_index_table_bytes",
                "Bytes of the ordered index's tables",
                index.bytes,
            ),
            (
                "terrace_index_memtable_bytes",
                "Bytes of the ordered index's memtables",
                index.memtable_bytes,
            ),
            (
                "terrace_hash_index_entries",
                "Slots in use in the hash index",
                hash_index.entries,
            ),
            (
                "terrace_hash_index_ram_bytes",
                "RAM of the hash index",
                hash_index.ram_bytes,
            ),
            (
                "terrace_hash_index_refilling",
                "1 while the hash index is refilled after an open",
                hash_index.refilling.into(),
            ),
        ] {
            out.gauge(name, help, value)?;
        }
        Ok(())
    }

    /// What has expired or was deleted by a range.
    fn expired(&self, out: &mut Out<'_>) -> fmt::Result {
        let expire = &self.0.expire;
        out.gauge(
            "terrace_ranges_outstanding",
            "Range deletions whose space is not reclaimed yet",
            expire.ranges_outstanding,
        )?;
        let dropped = [("expired", expire.dropped_expired), ("deleted", expire.dropped_deleted)];
        out.counters(
            "terrace_dropped_objects",
            "Objects dropped since open after they expired or a range deletion took them",
            "cause",
            dropped,
        )?;
        out.counter(
            "terrace_expiry_passes",
            "Walks over the index for expired objects since open",
            expire.expiry_passes,
        )
    }

    /// Copies of large objects on flash.
    fn flash_cache(&self, out: &mut Out<'_>) -> fmt::Result {
        let cache = &self.0.flash_cache;
        out.gauge("terrace_copies", "Copies of large objects on flash", cache.copies)?;
        out.gauge("terrace_copies_bytes", "Bytes of the copies on flash", cache.bytes)?;
        out.gauge(
            "terrace_staged_bytes",
            "RAM for objects on their way from disk to readers and to flash",
            cache.staged_bytes,
        )?;
        out.counter("terrace_promoted", "Copies written to flash since open", cache.promoted)?;
        out.counter(
            "terrace_moved_back",
            "Small values moved from blocks to the log since open, because they are read often",
            cache.moved,
        )?;
        out.counter(
            "terrace_copies_evicted",
            "Copies given up since open, for others or for the log",
            cache.evicted,
        )?;
        out.counter(
            "terrace_copies_forgotten",
            "Copies that did not match their checksums since open",
            cache.forgotten,
        )?;
        let dropped = [
            ("full", cache.dropped_full),
            ("budget", cache.dropped_budget),
            ("no_room", cache.dropped_no_room),
        ];
        out.counters(
            "terrace_promotions_dropped",
            "Promotions given up since open",
            "cause",
            dropped,
        )?;
        out.counter(
            "terrace_prefetch_objects",
            "Objects read ahead since open",
            cache.prefetch_objects,
        )?;
        out.counter("terrace_prefetch_bytes", "Their bytes", cache.prefetch_bytes)?;
        out.counter(
            "terrace_prefetch_unused",
            "Objects read ahead since open for which nobody came",
            cache.prefetch_unused,
        )
    }

    /// What background work may have of the devices.
    fn paces(&self, out: &mut Out<'_>) -> fmt::Result {
        let paces = [("flash", self.0.flash_throttle), ("large", self.0.large_throttle)];
        out.gauges(
            "terrace_background_share_per_mille",
            "Share of the device's time that background work may have",
            "tier",
            paces.map(|(tier, pace)| (tier, u64::from(pace.share_per_mille))),
        )?;
        out.counters(
            "terrace_background_rest_microseconds",
            "Time that background work rested for callers' reads since open",
            "tier",
            paces.map(|(tier, pace)| (tier, pace.rested_us)),
        )
    }

    /// Snapshots and what they hold back.
    fn snapshots(&self, out: &mut Out<'_>) -> fmt::Result {
        let snapshots = &self.0.snapshots;
        out.gauge_f64(
            "terrace_snapshot_oldest_age_seconds",
            "Age of the oldest snapshot, 0 if there is none",
            snapshots.oldest_age.map_or(0.0, |age| age.as_secs_f64()),
        )?;
        let held = [
            ("flash", snapshots.held_segment_bytes),
            ("large", snapshots.held_block_bytes),
        ];
        out.gauges(
            "terrace_snapshot_held_bytes",
            "Bytes of segments and blocks that only snapshots keep",
            "tier",
            held,
        )?;
        out.counter(
            "terrace_snapshots_expired",
            "Snapshots that became older than the limit, since open",
            snapshots.expired,
        )
    }

    /// Gauges of what is on its way, and of the RAM cache.
    fn under_way(&self, out: &mut Out<'_>) -> fmt::Result {
        let Stats {
            index, cache, queue, ..
        } = &self.0;
        out.gauges(
            "terrace_ram_bytes",
            "RAM of the store, by what it is for",
            "part",
            self.0.ram.parts(),
        )?;
        for (name, help, value) in [
            ("terrace_cache_used_bytes", "Bytes in the RAM cache", cache.bytes),
            (
                "terrace_cache_capacity_bytes",
                "Most the RAM cache may hold",
                cache.capacity_bytes,
            ),
            (
                "terrace_overlay_bytes",
                "Bytes of commits not yet applied",
                queue.overlay_bytes,
            ),
            ("terrace_queue_frames", "Frames not yet applied", queue.frames),
            ("terrace_snapshots", "Open snapshots", queue.snapshots),
            ("terrace_committed_seq", "Last commit", queue.committed_seq),
            ("terrace_durable_seq", "Last commit on the device", queue.durable_seq),
            (
                "terrace_applied_seq",
                "Last commit applied to the index",
                queue.applied_seq,
            ),
            (
                "terrace_persisted_seq",
                "Last commit the index has persisted",
                index.persisted_seq,
            ),
            (
                "terrace_writes_refused",
                "1 while writes are refused after a failure",
                self.0.failed.is_some().into(),
            ),
            (
                "terrace_damage_findings",
                "Damage found when the store was opened",
                self.0.damage.len() as u64,
            ),
        ] {
            out.gauge(name, help, value)?;
        }
        Ok(())
    }
}

/// The encoder, with the shapes used above.
struct Out<'a>(DescriptorEncoder<'a>);

/// A gauge's value: the encoder takes signed numbers only.
fn signed(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        signed(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauges<const N: usize>(&mut self, name: &str, help: &str, label: &str, values: [(&str, u64); N]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values
            .iter()
            .try_for_each(|(text, value)| signed(*value).encode(family.encode_family(&[(label, *text)])?))
    }

    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [(&str, u64); N],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values
            .iter()
            .try_for_each(|(text, value)| ConstCounter::new(*value).encode(family.encode_family(&[(label, *text)])?))
    }

    fn operations(&mut self, operations: &[OperationStats]) -> fmt::Result {
        let name = "terrace_operations";
        let mut family = self
            .0
            .encode_descriptor(name, "Engine calls, by outcome", None, MetricType::Counter)?;
        for operation in operations {
            for (outcome, count) in [("ok", operation.count), ("error", operation.errors)] {
                let labels = [("operation", operation.name), ("outcome", outcome)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let name = "terrace_operation_seconds";
        let mut family = self
            .0
            .encode_descriptor(name, "Time engine calls took", None, MetricType::Histogram)?;
        for operation in operations {
            let (sum, count, buckets) = histogram(operation);
            family
                .encode_family(&[("operation", operation.name)])?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Sum in seconds, count, and the calls per upper bound in seconds, the last bound being infinite.
#[allow(clippy::cast_precision_loss)]
fn histogram(operation: &OperationStats) -> (f64, u64, Vec<(f64, u64)>) {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let mut buckets: Vec<_> = operation
        .buckets
        .iter()
        .filter(|(bound, _)| *bound < u64::MAX)
        .map(|(bound, count)| (seconds(*bound), *count))
        .collect();
    let overflow = operation
        .buckets
        .iter()
        .filter(|(bound, _)| *bound == u64::MAX)
        .map(|(_, count)| count)
        .sum();
    buckets.push((f64::INFINITY, overflow));
    // Counted from the buckets, so that the two agree even while calls end beside the snapshot.
    let count = buckets.iter().map(|(_, count)| count).sum();
    (seconds(operation.total_ns), count, buckets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn figures_become_openmetrics_text() {
        let operation = OperationStats {
            name: "get",
            count: 6,
            errors: 1,
            total_ns: 3_000_000_000,
            buckets: vec![(1_000, 4), (1_000_000_000, 2), (u64::MAX, 1)],
        };
        let mut stats = Stats {
            operations: vec![operation],
            ..Stats::default()
        };
        stats.block.objects = 7;
        stats.written.flash_padding_bytes = 9;
        stats.written.compaction_bytes = 11;
        stats.expire.dropped_expired = 13;
        stats.ram.frames_bytes = 17;
        stats.damage = vec!["a block is gone".to_owned(), "another, too".to_owned()];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Figures(stats)));
        let mut body = String::new();
        text::encode(&mut body, &registry).unwrap();
        for line in [
            "# TYPE terrace_objects gauge",
            "terrace_objects{home=\"block\"} 7",
            "terrace_written_bytes_total{tier=\"flash\",cause=\"padding\"} 9",
            "terrace_written_bytes_total{tier=\"flash\",cause=\"compaction\"} 11",
            "terrace_dropped_objects_total{cause=\"expired\"} 13",
            "terrace_ram_bytes{part=\"frames\"} 17",
            "terrace_operations_total{operation=\"get\",outcome=\"error\"} 1",
            "terrace_operation_seconds_bucket{le=\"0.000001\",operation=\"get\"} 4",
            "terrace_operation_seconds_bucket{le=\"1.0\",operation=\"get\"} 6",
            "terrace_operation_seconds_bucket{le=\"+Inf\",operation=\"get\"} 7",
            "terrace_operation_seconds_count{operation=\"get\"} 7",
            "terrace_operation_seconds_sum{operation=\"get\"} 3.0",
            "terrace_damage_findings 2",
            "# EOF",
        ] {
            assert!(body.lines().any(|text| text == line), "{line} is not in\n{body}");
        }
    }
}
