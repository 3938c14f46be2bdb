//! Limits the RAM of a run: the engine's caches, its other memory, and the kernel's cache of its
//! files, together.
//!
//! Without a limit an engine that relies on the kernel's cache could use all RAM of the machine,
//! while one with its own cache has what it was given. The limit is a memory cgroup below this
//! process's, of version 1 or 2, whichever is writable. If neither is, the run continues without a
//! limit, which the results say.

use crate::Outcome;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Usual mount points of version 1 and version 2.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

/// A cgroup, removed when dropped, after its processes have ended.
#[derive(Debug)]
pub struct MemoryLimit {
    group: PathBuf,
}

impl MemoryLimit {
    /// Creates a group; `None` if this system does not allow it.
    pub fn create(bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("terrace-bench-{}", std::process::id());
        let attempts = [
            (group_of(&own, "memory", VERSION_1), "memory.limit_in_bytes"),
            (group_of(&own, "", VERSION_2), "memory.max"),
        ];
        attempts
            .into_iter()
            .find_map(|(parent, limit)| Self::below(&parent?, &name, limit, bytes).ok())
    }

    fn below(parent: &Path, name: &str, limit: &str, bytes: u64) -> Outcome<Self> {
        if !parent.join("cgroup.procs").exists() {
            return Err("no group of this version".into());
        }
        let group = parent.join(name);
        fs::create_dir(&group)?;
        // From here on it is removed in any case.
        let made = Self { group };
        // If the file does not exist, the controller is off; it must not be created.
        let file = made.group.join(limit);
        fs::OpenOptions::new().write(true).open(&file)?;
        fs::write(file, bytes.to_string())?;
        Ok(made)
    }

    /// Puts a process into the group.
    pub fn hold(&self, process: u32) -> Outcome {
        Ok(fs::write(self.group.join("cgroup.procs"), process.to_string())?)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // The kernel may need a moment after the last process has ended; half a minute at most.
        for _ in 0..1500 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The directory of this process's group: lines of /proc/self/cgroup are `number:controllers:path`
/// (cgroups(7)).
fn group_of(own: &str, controller: &str, mount: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::Command;

    #[test]
    fn groups_are_found() {
        let own = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c\n";
        assert_eq!(group_of(own, "memory", "/m").unwrap(), Path::new("/m/a/b"));
        assert_eq!(group_of(own, "", "/m").unwrap(), Path::new("/m/c"));
        assert_eq!(group_of(own, "io", "/m"), None);
    }

    /// The kernel kills a process above the limit, and not one below it.
    #[test]
    fn a_bound_binds() {
        let Some(limit) = MemoryLimit::create(32 << 20) else {
            eprintln!("SKIPPED: no memory cgroup can be made here");
            return;
        };
        let run = |mib: u32| {
            let script = format!("read line; head -c {mib}m /dev/zero | tail -c {mib}m | wc -c");
            let mut child = Command::new("sh")
                .args(["-c", &script])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            limit.hold(child.id()).unwrap();
            drop(child.stdin.take());
            let said = child.wait_with_output().unwrap().stdout;
            String::from_utf8_lossy(&said).trim().to_owned()
        };
        assert_eq!(run(4), (4 << 20).to_string());
        // `tail` buffers its output, so the kernel kills `tail`; with swap it need not.
        if fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() <= 1) {
            assert_eq!(run(200), "0");
        }
        let group = limit.group.clone();
        drop(limit);
        assert!(!group.exists());
    }
}
