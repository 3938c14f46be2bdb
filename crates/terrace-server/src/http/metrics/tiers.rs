//! Figures of the tiers: checkpoints, space and cleaning, placement.

use super::{Figures, Out, signed};
use prometheus_client::{
    encoding::EncodeMetric as _,
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use std::fmt;
use terrace::{FilledFrom, Tier};

impl Figures {
    /// Checkpoints of the hash index.
    pub(super) fn checkpoints(&self, out: &mut Out<'_>) -> fmt::Result {
        let checkpoint = &self.0.hash_index.checkpoint;
        let from = |from| u64::from(checkpoint.filled_from == Some(from));
        out.gauges(
            "terrace_hash_index_filled_from",
            "1 for what the hash index was filled from after the opening",
            "source",
            [FilledFrom::Checkpoint, FilledFrom::Index].map(|source| (source.name(), from(source))),
        )?;
        let outcomes = [("taken", checkpoint.taken), ("failed", checkpoint.failed)];
        out.counters(
            "terrace_hash_index_checkpoints",
            "Checkpoints of the hash index since open, by outcome",
            "outcome",
            outcomes,
        )
    }

    /// What the tiers take, and what cleaning does about it.
    pub(super) fn space(&self, out: &mut Out<'_>) -> fmt::Result {
        let large = &self.0.large;
        let tiers = [("flash", Tier::Flash), ("large", Tier::Large)].map(|(name, tier)| (name, self.0.space(tier)));
        out.gauges(
            "terrace_tier_disk_bytes",
            "Bytes of the tiers' files",
            "tier",
            tiers.map(|(name, space)| (name, space.disk_bytes)),
        )?;
        out.gauges(
            "terrace_tier_live_bytes",
            "Bytes that live on the tiers",
            "tier",
            tiers.map(|(name, space)| (name, space.live_bytes)),
        )?;
        out.gauge_f64(
            "terrace_large_space_amplification",
            "Bytes on the large tier per byte that lives there",
            self.0.space(Tier::Large).amplification(),
        )?;
        out.gauge(
            "terrace_large_capacity_bytes",
            "Most that blocks may occupy, 0 if there is no limit",
            large.capacity_bytes.unwrap_or(0),
        )?;
        out.counter(
            "terrace_blocks_reclaimed",
            "Blocks emptied by cleaning since open",
            large.blocks_reclaimed,
        )?;
        out.gauge(
            "terrace_blocks_set_aside",
            "Blocks that cleaning cannot empty",
            large.blocks_set_aside,
        )?;
        out.gauge(
            "terrace_pinned_block_bytes",
            "Bytes of dead blocks that are only kept for readers",
            large.pinned_block_bytes,
        )?;
        out.counter(
            "terrace_writers_let_go",
            "Writes of large values over the limit that cleaning could not help",
            large.writers_let_go,
        )?;
        out.gauge(
            "terrace_full",
            "1 while nothing new is taken for want of room",
            self.0.full.is_some().into(),
        )?;
        out.gauge(
            "terrace_reserve_bytes",
            "Space of the flash device that is kept for deletes; 0 while it is used",
            self.0.reserve_bytes,
        )?;
        self.fill(out)
    }

    /// Callers that waited for room, by reason.
    pub(super) fn stalls(&self, out: &mut Out<'_>) -> fmt::Result {
        let label = "reason";
        let stalls = || {
            self.0
                .stalls
                .iter()
                .map(|stall| (stall, [(label, stall.reason.name())]))
        };
        let help = "Callers that wait for room now";
        let mut family = out
            .0
            .encode_descriptor("terrace_stalled", help, None, MetricType::Gauge)?;
        for (stall, labels) in stalls() {
            signed(stall.waiting).encode(family.encode_family(&labels)?)?;
        }
        let help = "Waits of callers for room that ended, since open";
        let mut family = out
            .0
            .encode_descriptor("terrace_stalls", help, None, MetricType::Counter)?;
        for (stall, labels) in stalls() {
            ConstCounter::new(stall.count).encode(family.encode_family(&labels)?)?;
        }
        let help = "Time that callers waited for room, since open";
        let name = "terrace_stall_seconds";
        let mut family = out.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (stall, labels) in stalls() {
            ConstCounter::new(stall.time.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn fill(&self, out: &mut Out<'_>) -> fmt::Result {
        let fill = &self.0.fill;
        let tiers = [("flash", fill.flash), ("large", fill.large)];
        out.gauges(
            "terrace_fill_used_bytes",
            "Bytes that only deletions can give back; of both tiers where they are on one device",
            "tier",
            tiers.map(|(name, tier)| (name, tier.used_bytes)),
        )?;
        out.gauges(
            "terrace_fill_capacity_bytes",
            "What the tier may have of its device, less what others have taken of that",
            "tier",
            tiers.map(|(name, tier)| (name, tier.capacity_bytes)),
        )?;
        out.gauges_f64(
            "terrace_hours_to_full",
            "How long what is left lasts at the rate of the last day; +Inf while it does not grow",
            "tier",
            tiers.map(|(name, tier)| (name, tier.hours_to_full.unwrap_or(f64::INFINITY))),
        )
    }

    /// What becomes of values when rules change.
    pub(super) fn placement(&self, out: &mut Out<'_>) -> fmt::Result {
        let placement = &self.0.placement;
        out.gauge(
            "terrace_migrating",
            "1 while not everything was looked at since the rules of placement were changed",
            placement.migrating.into(),
        )?;
        out.counter(
            "terrace_migrated",
            "Values moved since open because of changed rules",
            placement.moved,
        )
    }

    /// What scans have paid for, and what of them is in RAM.
    pub(super) fn scans(&self, out: &mut Out<'_>) -> fmt::Result {
        self.scan_order(out)?;
        self.scan_cache(out)
    }

    fn scan_order(&self, out: &mut Out<'_>) -> fmt::Result {
        let order = &self.0.scan_order;
        out.counter(
            "terrace_scans_paid_bytes",
            "What scans have paid for order since open: bytes that could have been written in the time",
            order.paid_bytes,
        )?;
        out.counter(
            "terrace_ordered",
            "Values written in the order of their keys since open because scans have paid for it",
            order.moved,
        )?;
        out.counter(
            "terrace_ordered_copies",
            "Of those, short ones that were copied into their index entries",
            order.copied,
        )?;
        let dropped = [("full", order.dropped_full), ("no_room", order.dropped_no_room)];
        out.counters(
            "terrace_order_dropped",
            "Values that scans have paid for and that were not written",
            "cause",
            dropped,
        )
    }

    fn scan_cache(&self, out: &mut Out<'_>) -> fmt::Result {
        let cache = &self.0.scan_cache;
        out.gauge(
            "terrace_scan_chunks",
            "Chunks of the scan cache: pairs of a range of keys, as scans have read them",
            cache.chunks,
        )?;
        out.counter(
            "terrace_scan_chunk_pairs",
            "Pairs that scans took out of chunks since open",
            cache.pair_hits,
        )?;
        out.counter(
            "terrace_scan_chunks_made",
            "Chunks of the scan cache made since open",
            cache.made,
        )?;
        out.counter(
            "terrace_scan_chunks_dropped",
            "Chunks of the scan cache dropped since open because something in them was written",
            cache.dropped,
        )
    }
}

impl Out<'_> {
    fn gauges_f64<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [(&str, f64); N],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values
            .iter()
            .try_for_each(|(text, value)| ConstGauge::new(*value).encode(family.encode_family(&[(label, *text)])?))
    }
}
