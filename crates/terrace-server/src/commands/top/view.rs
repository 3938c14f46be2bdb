//! The view of `terrace top`, computed from two samples of a store.

use crate::size::Size;
use crossterm::style::{ContentStyle, Stylize as _};
use serde_json::Value;
use terrace::StallReason;

const BAR_CELLS: usize = 16;
/// Column where figures begin.
const NAME_CELLS: usize = 13;

/// The style of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Plain,
    Title,
    Faint,
    Alarm,
}

/// A line of the view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line(Vec<(String, Look)>);

impl Look {
    fn style(self) -> ContentStyle {
        let plain = ContentStyle::new();
        match self {
            Self::Plain => plain,
            Self::Title => plain.bold(),
            Self::Faint => plain.dim(),
            Self::Alarm => plain.red().bold(),
        }
    }
}

impl Line {
    fn of(text: impl Into<String>, look: Look) -> Self {
        Self(vec![(text.into(), look)])
    }

    fn named(name: &str, rest: impl Into<String>) -> Self {
        let name = format!("{name:<NAME_CELLS$}");
        Self(vec![(name, Look::Faint), (rest.into(), Look::Plain)])
    }

    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// With the terminal's styles.
    pub fn styled(&self) -> String {
        let part = |(text, look): &(String, Look)| look.style().apply(text).to_string();
        self.0.iter().map(part).collect()
    }

    /// Cut to a width.
    fn cut(mut self, width: usize) -> Self {
        let mut left = width;
        for (text, _) in &mut self.0 {
            *text = text.chars().take(left).collect();
            left -= text.chars().count();
        }
        self
    }
}

/// Two samples, and the time between them.
struct Between<'a> {
    before: &'a Value,
    after: &'a Value,
    seconds: f64,
}

impl Between<'_> {
    fn now(&self, path: &str) -> u64 {
        self.after.pointer(path).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Growth per second. A store that was reopened in between counts from 0.
    #[allow(clippy::cast_precision_loss)]
    fn rate(&self, path: &str) -> f64 {
        let before = self.before.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        if self.seconds <= 0.0 {
            return 0.0;
        }
        self.now(path).saturating_sub(before) as f64 / self.seconds
    }

    /// Age at which something was evicted, if anything was.
    fn age(&self, path: &str) -> String {
        let age = self.after.pointer(path).and_then(Value::as_f64);
        age.map_or_else(String::new, |age| format!(" (the last at an age of {age:.0} s)"))
    }

    fn rates(&self, paths: &[&str]) -> f64 {
        paths.iter().map(|path| self.rate(path)).sum()
    }

    fn size(&self, path: &str) -> String {
        Size(self.now(path)).to_string()
    }
}

/// The view.
pub fn lines(before: &Value, after: &Value, seconds: f64, width: usize) -> Vec<Line> {
    let between = Between { before, after, seconds };
    let mut lines = vec![Line::of("terrace top    q quits; rates are per second", Look::Title)];
    lines.extend(alarms(after));
    lines.push(Line::default());
    lines.extend(tiers(&between));
    lines.push(Line::default());
    lines.extend(writing(&between));
    lines.push(Line::default());
    lines.extend(moving(&between));
    lines.into_iter().map(|line| line.cut(width)).collect()
}

fn alarms(after: &Value) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(reason) = after["failed"].as_str() {
        lines.push(Line::of(format!("writes are refused: {reason}"), Look::Alarm));
    }
    if let Some(reason) = after["full"].as_str() {
        lines.push(Line::of(format!("nothing new is taken: {reason}"), Look::Alarm));
    }
    let damage = after["damage"].as_array().map_or(0, Vec::len);
    if damage > 0 {
        let text = format!("{damage} findings of damage when the store was opened; see `terrace stat`");
        lines.push(Line::of(text, Look::Alarm));
    }
    lines
}

/// Fill, contents, and reads of each tier.
fn tiers(between: &Between<'_>) -> Vec<Line> {
    let answered = [
        (
            "RAM",
            &["/reads/overlay_hits", "/reads/cache_hits", "/reads/prefetch_hits"][..],
        ),
        (
            "flash",
            &["/reads/inline_hits", "/reads/flash_hits", "/reads/copy_hits"][..],
        ),
        ("disk", &["/reads/block_hits"][..]),
        ("nothing", &["/reads/misses"][..]),
    ];
    let rates = answered.map(|(name, paths)| (name, between.rates(paths)));
    let total: f64 = rates.iter().map(|(_, rate)| rate).sum();
    let fills = [
        (between.now("/cache/bytes"), between.now("/cache/capacity_bytes")),
        (
            between.now("/log/allocated_bytes")
                / (between.now("/log/segments_used") + between.now("/log/segments_free")).max(1)
                * between.now("/log/segments_used"),
            between.now("/log/capacity_bytes"),
        ),
        (between.now("/large/live_bytes"), between.now("/large/allocated_bytes")),
        (0, 0),
    ];
    let mut lines = vec![Line::of(
        format!(
            "{:<NAME_CELLS$}{:<BAR_CELLS$}  {:>22} {:>12} {:>12} {:>7} {:>9}",
            "", "fill", "of", "objects", "reads", "share", "of bytes"
        ),
        Look::Faint,
    )];
    let objects = [
        None,
        Some(between.now("/homes/flash/objects") + between.now("/homes/inline/objects")),
        Some(between.now("/homes/block/objects")),
        None,
    ];
    let bytes = ["/reads/ram_bytes", "/reads/flash_bytes", "/reads/large_bytes", ""].map(|path| between.rate(path));
    let total_bytes: f64 = bytes.iter().sum();
    for ((((name, rate), bytes), (used, capacity)), objects) in rates.into_iter().zip(bytes).zip(fills).zip(objects) {
        let (share, byte_share) = (percent(rate, total), percent(bytes, total_bytes));
        let (of, bar) = if capacity > 0 {
            (format!("{} of {}", Size(used), Size(capacity)), bar(used, capacity))
        } else {
            (String::new(), String::new())
        };
        let objects = objects.map(|objects| objects.to_string()).unwrap_or_default();
        lines.push(Line::named(
            name,
            format!("{bar:<BAR_CELLS$}  {of:>22} {objects:>12} {rate:>12.0} {share:>6.1}% {byte_share:>8.1}%"),
        ));
    }
    lines.push(Line::of(
        format!(
            "{:<NAME_CELLS$}flash device {:.0} reads, disk device {:.0} reads; RAM and flash are filled with data, disk shows what of its files is live",
            "",
            between.rate("/reads/flash_reads"),
            between.rate("/reads/block_reads"),
        ),
        Look::Faint,
    ));
    lines
}

fn percent(part: f64, of: f64) -> f64 {
    if of > 0.0 { part / of * 100.0 } else { 0.0 }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
fn bar(used: u64, capacity: u64) -> String {
    let share = (used as f64 / capacity.max(1) as f64).clamp(0.0, 1.0);
    let full = (share * BAR_CELLS as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(BAR_CELLS - full)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn bytes_rate(rate: f64) -> String {
    format!("{}/s", Size(rate as u64))
}

/// Bytes written, by tier and cause.
fn writing(between: &Between<'_>) -> Vec<Line> {
    let causes = |causes: &[(&str, &str)]| {
        let parts: Vec<String> = causes
            .iter()
            .map(|(name, path)| (name, between.rate(path)))
            .filter(|(_, rate)| *rate > 0.0)
            .map(|(name, rate)| format!("{name} {}", bytes_rate(rate)))
            .collect();
        if parts.is_empty() {
            "nothing".to_owned()
        } else {
            parts.join(", ")
        }
    };
    let amplification = between.after["written"]["write_amplification"].as_f64().unwrap_or(0.0);
    vec![
        Line::named(
            "given",
            format!(
                "{}, {:.0} syncs; write amplification since open {amplification:.2}",
                bytes_rate(between.rate("/written/user_bytes")),
                between.rate("/queue/syncs")
            ),
        ),
        Line::named(
            "to flash",
            causes(&[
                ("user", "/written/flash_user_bytes"),
                ("padding", "/written/flash_padding_bytes"),
                ("reinserted", "/written/flash_reinserted_bytes"),
                ("brought back", "/written/flash_moved_bytes"),
                ("for scans", "/written/flash_ordered_bytes"),
                ("for sweeps", "/written/sweep_bytes"),
                ("index", "/written/index_bytes"),
                ("compaction", "/written/compaction_bytes"),
                ("copies", "/written/copy_bytes"),
                ("checkpoints", "/written/checkpoint_bytes"),
            ]),
        ),
        Line::named(
            "to disk",
            causes(&[
                ("user", "/written/large_user_bytes"),
                ("destaged", "/written/large_destaged_bytes"),
                ("cleaned", "/written/large_cleaned_bytes"),
            ]),
        ),
    ]
}

/// Moves between the tiers, and their limits.
fn moving(between: &Between<'_>) -> Vec<Line> {
    let mut lines = vec![
        Line::named(
            "copies",
            format!(
                "{} in {} segments; {} written, {} evicted{}, {} forgotten in all",
                between.size("/flash_cache/bytes"),
                between.now("/flash_cache/segments"),
                between.now("/flash_cache/promoted"),
                between.now("/flash_cache/evicted"),
                between.age("/flash_cache/eviction_age_seconds"),
                between.now("/flash_cache/forgotten"),
            ),
        ),
        Line::named(
            "given up",
            format!(
                "{} for the queue, {} for the budget, {} for want of room",
                between.now("/flash_cache/dropped/full"),
                between.now("/flash_cache/dropped/budget"),
                between.now("/flash_cache/dropped/no_room"),
            ),
        ),
        Line::named(
            "read ahead",
            format!(
                "{:.0} objects, {}; {} unused in all",
                between.rate("/flash_cache/prefetch/objects"),
                bytes_rate(between.rate("/flash_cache/prefetch/bytes")),
                between.now("/flash_cache/prefetch/unused"),
            ),
        ),
    ];
    lines.extend(keeping(between));
    let snapshots = &between.after["snapshots"];
    if let Some(age) = snapshots["oldest_age_seconds"].as_f64() {
        lines.push(Line::named(
            "snapshots",
            format!(
                "{}, the oldest for {age:.0} s; they hold {} on flash and {} on disk",
                between.now("/snapshots/open"),
                between.size("/snapshots/held_segment_bytes"),
                between.size("/snapshots/held_block_bytes"),
            ),
        ));
    }
    lines
}

/// The part of a tier that only deletions can free, and how long the rest lasts.
fn fill(fill: &Value) -> String {
    let bytes = |name: &str| Size(fill[name].as_u64().unwrap_or(0));
    let left = fill["hours_to_full"].as_f64();
    let left = left.map_or_else(String::new, |hours| format!(", {hours:.1} hours to full"));
    let percent = fill["percent"].as_u64().unwrap_or(0);
    format!(
        "{} of {} ({percent} %){left}",
        bytes("used_bytes"),
        bytes("capacity_bytes")
    )
}

/// Fill of the devices.
fn filling(between: &Between<'_>) -> Line {
    let fills = &between.after["fill"];
    let large = if fills["shared"] == true {
        String::new()
    } else {
        format!("; disk {}", fill(&fills["large"]))
    };
    let flash = fill(&fills["flash"]);
    let text = format!("flash {flash}{large}; reserve {}", between.size("/reserve_bytes"));
    Line::named("in use", text)
}

/// Background work.
fn keeping(between: &Between<'_>) -> Vec<Line> {
    let share = |tier: &str| between.now(&format!("/throttle/{tier}/share_per_mille")) / 10;
    vec![
        filling(between),
        Line::named(
            "recycling",
            format!(
                "{:.1} segments{}; background may have {} % of flash and {} % of disk",
                between.rate("/log/segments_reclaimed"),
                between.age("/log/eviction_age_seconds"),
                share("flash"),
                share("large"),
            ),
        ),
        Line::named(
            "index",
            format!(
                "{} in {} tables, {:.1} flushes, {:.1} compactions; hash index {} slots in {}",
                between.size("/index/bytes"),
                between.now("/index/tables"),
                between.rate("/index/flushes"),
                between.rate("/index/compactions"),
                between.now("/hash_index/entries"),
                between.size("/hash_index/ram_bytes"),
            ),
        ),
        Line::named(
            "waiting",
            format!(
                "{} of commits in {} frames; {} ranges to sweep",
                between.size("/queue/overlay_bytes"),
                between.now("/queue/frames"),
                between.now("/expire/ranges_outstanding"),
            ),
        ),
        stalling(between),
    ]
}

/// Reasons of stalls.
fn stalling(between: &Between<'_>) -> Line {
    let stalled = |reason: StallReason| {
        let at = format!("/stalls/{}", reason.name());
        let (rate, waiting) = (
            between.rate(&format!("{at}/count")),
            between.now(&format!("{at}/waiting")),
        );
        let name = reason.name().replace('_', " ");
        (rate > 0.0 || waiting > 0).then(|| format!("{name} {rate:.1} ({waiting} now)"))
    };
    let stalls: Vec<String> = StallReason::ALL.into_iter().filter_map(stalled).collect();
    let text = if stalls.is_empty() {
        "none".to_owned()
    } else {
        stalls.join(", ")
    };
    Line::named("stalled", text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::stats_json;
    use std::time::Duration;
    use terrace::{StallStats, Stats};

    fn text(lines: &[Line]) -> String {
        lines.iter().map(|line| line.text() + "\n").collect()
    }

    fn line<'a>(text: &'a str, name: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(name)).unwrap_or_default()
    }

    #[test]
    fn every_path_is_in_the_figures() {
        let stats = stats_json(&Stats::default());
        let source = include_str!("view.rs");
        let paths: Vec<&str> = source
            .split('"')
            .filter(|part| part.starts_with('/') && part.len() > 1 && !part.contains('{') && !part.contains(' '))
            .collect();
        assert!(paths.len() > 30, "{paths:?}");
        for path in paths {
            assert!(stats.pointer(path).is_some(), "{path}");
        }
    }

    #[test]
    fn rates_are_growth_over_time() {
        let mut stats = Stats::default();
        stats.reads.flash_hits = 100;
        stats.reads.block_hits = 50;
        stats.written.user_bytes = 1 << 20;
        let before = stats_json(&stats);
        stats.reads.flash_hits = 400;
        stats.reads.block_hits = 150;
        stats.written.user_bytes = 5 << 20;
        stats.log.capacity_bytes = 64 << 20;
        let after = stats_json(&stats);
        let text = text(&lines(&before, &after, 2.0, 200));
        assert!(
            line(&text, "flash").contains("150") && line(&text, "flash").contains("75.0%"),
            "{text}"
        );
        assert!(
            line(&text, "disk").contains("50") && line(&text, "disk").contains("25.0%"),
            "{text}"
        );
        assert!(line(&text, "given").contains("2 MiB/s"), "{text}");
    }

    #[test]
    fn a_store_that_was_opened_anew_has_no_negative_rates_and_a_single_picture_none() {
        let mut stats = Stats::default();
        stats.reads.misses = 100;
        let before = stats_json(&stats);
        stats.reads.misses = 1;
        let after = stats_json(&stats);
        assert!(line(&text(&lines(&before, &after, 1.0, 200)), "nothing").contains(" 0 "));
        assert!(line(&text(&lines(&before, &before, 0.0, 200)), "nothing").contains(" 0 "));
    }

    #[test]
    fn stalls_are_shown_with_their_reason() {
        let stall = |count, waiting| StallStats {
            reason: StallReason::BlockRoom,
            waiting,
            count,
            time: Duration::from_secs(1),
        };
        let picture = |stall| {
            stats_json(&Stats {
                stalls: vec![stall],
                ..Stats::default()
            })
        };
        let (before, after) = (picture(stall(3, 0)), picture(stall(7, 2)));
        let text = |before, after| text(&lines(before, after, 2.0, 200));
        assert!(line(&text(&before, &after), "stalled").ends_with(" block room 2.0 (2 now)"));
        assert!(line(&text(&before, &before), "stalled").ends_with(" none"));
    }

    #[test]
    fn failure_and_damage_come_first() {
        let stats = Stats {
            failed: Some("disk on fire".to_owned()),
            damage: vec!["a block is gone".to_owned()],
            ..Stats::default()
        };
        let json = stats_json(&stats);
        let shown = lines(&json, &json, 1.0, 200);
        assert!(shown[1].text().contains("disk on fire") && shown[2].text().contains("1 findings"));
    }

    #[test]
    fn what_is_full_and_how_long_the_rest_lasts() {
        let mut stats = Stats {
            full: Some("no room".to_owned()),
            reserve_bytes: 5 << 20,
            ..Stats::default()
        };
        stats.fill.flash.used_bytes = 3 << 30;
        stats.fill.flash.capacity_bytes = 4 << 30;
        stats.fill.flash.hours_to_full = Some(7.25);
        let json = stats_json(&stats);
        let text = text(&lines(&json, &json, 1.0, 200));
        assert!(text.contains("nothing new is taken: no room"), "{text}");
        let shown = "flash 3 GiB of 4 GiB (75 %), 7.2 hours to full; disk 0 B of 0 B (0 %); reserve 5 MiB";
        assert!(line(&text, "in use").contains(shown), "{text}");
    }

    #[test]
    fn lines_are_cut_to_the_terminal() {
        let json = stats_json(&Stats::default());
        assert!(
            lines(&json, &json, 1.0, 20)
                .iter()
                .all(|line| line.text().chars().count() <= 20)
        );
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0, 10), "░".repeat(BAR_CELLS));
        assert_eq!(bar(20, 10), "█".repeat(BAR_CELLS));
        assert_eq!(bar(5, 10), "█".repeat(BAR_CELLS / 2) + &"░".repeat(BAR_CELLS / 2));
    }
}
