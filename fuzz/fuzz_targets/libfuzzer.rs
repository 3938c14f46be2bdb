//! libFuzzer's entry to every target: cargo-fuzz builds it, the variable `TERRACE_FUZZ_TARGET`
//! names the target.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(
    init: {
        chosen();
    },
    |data: &[u8]| {
        chosen()(data);
    }
);

/// The target that the environment names.
#[cfg(fuzzing)]
fn chosen() -> terrace_fuzz::Target {
    static CHOSEN: std::sync::OnceLock<terrace_fuzz::Target> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("TERRACE_FUZZ_TARGET").unwrap_or_default();
        terrace_fuzz::target(&name).unwrap_or_else(|| {
            eprintln!("set TERRACE_FUZZ_TARGET to one of: {}", terrace_fuzz::names());
            std::process::exit(2)
        })
    })
}

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("this program is built by cargo-fuzz; without it: cargo run --release --bin mutate -- --target all");
    std::process::exit(2);
}
