//! Description of the machine and the program in a result.
//!
//! A property that cannot be determined is `unknown`.

use serde::{Deserialize, Serialize};
use std::{fs, process::Command};

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Release and version of the kernel.
    pub kernel: String,
    /// Model of the first processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// RAM.
    pub memory_bytes: u64,
}

impl Host {
    /// This machine.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let proc = |name: &str| known(read(&format!("/proc/sys/kernel/{name}")).trim());
        let memory_kib: u64 = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches(" kB").parse().ok())
            .unwrap_or(0);
        Self {
            name: proc("hostname"),
            kernel: format!("{} {}", proc("osrelease"), proc("version")),
            cpu: known(&field(&read("/proc/cpuinfo"), "model name").unwrap_or_default()),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib << 10,
        }
    }
}

fn known(text: &str) -> String {
    if text.is_empty() { "unknown" } else { text }.to_owned()
}

/// The first `name : value` of a text.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(left, _)| left.trim() == name)
        .map(|(_, right)| right.trim().to_owned())
}

/// The commit of the checkout from which this program was built, with `-changed` if files differ
/// from it.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(arguments)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else {
        return known("");
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]).as_deref() {
        Some("") => commit,
        _ => format!("{commit}-changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 85\nmodel name\t: A Processor: fast\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A Processor: fast"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_processor() {
        let host = Host::here();
        assert_ne!(host.kernel, "unknown unknown");
        assert!(host.cpus > 0 && host.memory_bytes > 0);
    }
}
