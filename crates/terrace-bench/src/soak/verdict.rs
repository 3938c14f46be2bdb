//! The verdict of a soak test: medians of the last quarter relative to those of the quarter before,
//! and limits on space.

use super::Sample;
use crate::{Outcome, harness::target::Target};
use terrace::Options;

/// Fewest samples for a verdict.
const LOOKS_MIN: usize = 12;
/// Tolerated growth of RAM, handles, threads and space.
const GROWTH_MAX: f64 = 1.05;
/// Tolerated growth of latencies at 99 %, which other users of the machine and the device affect.
const LATENCY_GROWTH_MAX: f64 = 1.5;
/// Limit of blocks relative to live bytes, without those beyond the share: block GC's bound, and
/// the padding of extents.
const AMPLIFICATION_MAX: f64 = 1.52;

/// The verdict for each figure.
///
/// # Errors
/// If there are too few samples.
pub fn verdicts(samples: &[Sample]) -> Outcome<Vec<Target>> {
    if samples.len() < LOOKS_MIN {
        return Err(format!(
            "{} looks are too few for a verdict; {LOOKS_MIN} are needed",
            samples.len()
        )
        .into());
    }
    let quarter = samples.len() / 4;
    let (rest, last) = samples.split_at(samples.len() - quarter);
    let before = &rest[rest.len() - quarter..];
    let growth = |name: &str, wanted: f64, figure: &dyn Fn(&Sample) -> f64| {
        let grown = median(last, figure) / median(before, figure).max(1e-9);
        Target::at_most(format!("{name}, last quarter over the one before"), wanted, grown)
    };
    let mut verdicts = vec![
        growth("handles", GROWTH_MAX, &|sample| sample.handles as f64),
        growth("threads", GROWTH_MAX, &|sample| sample.threads as f64),
        growth("reads at 99 %", LATENCY_GROWTH_MAX, &|sample| sample.read_p99_us),
        growth("writes at 99 %", LATENCY_GROWTH_MAX, &|sample| sample.write_p99_us),
        growth("files on disk", GROWTH_MAX, &|sample| sample.disk_bytes as f64),
        Target::at_most(
            format!("blocks over what lives in them, but for {}", Options::HOLD_BLOCKS),
            AMPLIFICATION_MAX,
            median(last, &|sample| sample.large_amplification - sample.amplification_beyond),
        ),
    ];
    if last.iter().chain(before).all(|sample| sample.ram_bytes.is_some()) {
        verdicts.insert(
            0,
            growth("RAM", GROWTH_MAX, &|sample| sample.ram_bytes.unwrap_or_default() as f64),
        );
    }
    Ok(verdicts)
}

fn median(samples: &[Sample], figure: &dyn Fn(&Sample) -> f64) -> f64 {
    let mut figures: Vec<f64> = samples.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn steady(looks: usize) -> Vec<Sample> {
        let sample = |at: usize| Sample {
            seconds: at as f64,
            // A little noise.
            ram_bytes: Some((100 << 20) + ((at as u64 * 37 % 5) << 18)),
            handles: 60 + at as u64 % 2,
            threads: 14,
            read_p99_us: 900.0 + (at * 53 % 7) as f64 * 40.0,
            write_p99_us: 2000.0 + (at * 31 % 5) as f64 * 90.0,
            disk_bytes: (500 << 20) + ((at as u64 * 13 % 3) << 20),
            large_amplification: 1.3,
            ..Sample::default()
        };
        (0..looks).map(sample).collect()
    }

    fn grown(samples: &[Sample]) -> Vec<String> {
        let verdicts = verdicts(samples).unwrap();
        assert_eq!(verdicts.len(), 7);
        let missed = verdicts.iter().filter(|verdict| !verdict.is_met());
        missed
            .map(|verdict| verdict.name.split(',').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn what_goes_up_and_down_is_flat_and_what_grows_is_not() {
        assert_eq!(grown(&steady(60)), [""; 0]);
        let mut samples = steady(60);
        for (at, sample) in samples.iter_mut().enumerate() {
            // 1 MiB per sample is 15 MiB per quarter.
            sample.ram_bytes = sample.ram_bytes.map(|bytes| bytes + (at as u64) * (1 << 20));
            sample.handles += at as u64;
        }
        assert_eq!(grown(&samples), ["RAM", "handles"]);
        let mut samples = steady(60);
        samples[50..].iter_mut().for_each(|sample| sample.read_p99_us *= 3.0);
        assert_eq!(grown(&samples), ["reads at 99 %"]);
        // Growth in the first half is warm-up.
        let mut samples = steady(60);
        samples[..30].iter_mut().for_each(|sample| sample.disk_bytes /= 4);
        assert_eq!(grown(&samples), [""; 0]);
        let mut samples = steady(60);
        samples.iter_mut().for_each(|sample| sample.large_amplification = 1.7);
        assert_eq!(grown(&samples), ["blocks over what lives in them"]);
        // Two blocks in a store of ten.
        samples.iter_mut().for_each(|sample| sample.amplification_beyond = 0.2);
        assert_eq!(grown(&samples), [""; 0]);
    }

    #[test]
    fn a_few_looks_say_nothing() {
        assert!(verdicts(&steady(11)).is_err());
    }
}
