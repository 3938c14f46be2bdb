//! The engine's speed beside the device's, in one run: `cargo bench -p terrace --bench store --
//! [PART ...]`.
//!
//! Parts: `put`, `sync`, `large`, `get`, `open`, `recycle`, `overwrite`, `reads-first`, `causes`,
//! `churn`, `popular`, `multi-get`, `disk`, `sweep`; all of them without arguments. Variables:
//! `TERRACE_BENCH_DIR` is the directory (default: the build's temporary directory),
//! `TERRACE_BENCH_LARGE_DIR` that of the large tier in `disk`, which is skipped without it.
//! `TERRACE_BENCH_SCALE` scales counts (default 1.0). `TERRACE_BENCH_THREADS` is the number of
//! threads of `sync`; `TERRACE_BENCH_STEPS` selects steps of `popular` by prefix (`A, Zipf;C`),
//! `TERRACE_BENCH_TIMES` multiplies its operations, and `TERRACE_BENCH_CACHE_MIB` is its RAM for
//! values (default 256; of `multi-get` 0). With `TERRACE_BENCH_KEEP` the store of `multi-get` is
//! kept and read again. `fio` provides the device's figures; without it only ours are printed.
//! Figures go to standard output as Markdown and, one JSON object per line, to the file named by
//! `TERRACE_BENCH_JSON`.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

mod causes;
mod device;
mod disk;
mod parts;
mod popular;
mod report;
mod steady;
mod sweep;
mod together;

use std::path::PathBuf;

/// Directory and scale.
pub struct Bench {
    pub dir: PathBuf,
    pub scale: f64,
    pub report: report::Report,
}

impl Bench {
    pub fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(1_000)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if let [part, dir, count] = &arguments[..]
        && part == "load-and-die"
    {
        parts::load_and_die(dir.as_ref(), count.parse().unwrap());
    }
    let dir =
        std::env::var_os("TERRACE_BENCH_DIR").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let scale = std::env::var("TERRACE_BENCH_SCALE").map_or(1.0, |text| text.parse().unwrap());
    let mut bench = Bench {
        dir,
        scale,
        report: report::Report::new(),
    };
    let wanted = |part: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == part);
    for (name, part) in parts::ALL {
        if wanted(name) {
            part(&mut bench);
        }
    }
}
