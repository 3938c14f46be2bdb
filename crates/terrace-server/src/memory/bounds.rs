//! The memory bounds of this process: the machine's RAM and control groups, of version 1 and 2, its
//! own and their ancestors.

use super::events::Events;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Control groups, outermost last; a longer chain is cut.
const GROUPS_MAX: usize = 32;

/// A bound and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Bytes that may be used.
    pub limit_bytes: u64,
    /// Bytes in use that cannot be reclaimed by dropping cached files.
    pub used_bytes: u64,
}

impl Standing {
    /// Free bytes.
    pub const fn room_bytes(self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// The bounds of this process.
#[derive(Debug, Clone)]
pub struct Bounds {
    proc: PathBuf,
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Two,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    kind: Kind,
    dir: PathBuf,
}

impl Bounds {
    /// The limits of this process.
    pub fn of_this_process() -> Self {
        Self::below(Path::new("/"))
    }

    /// Bounds from the files below `root`: `proc` and the mounts that it lists.
    fn below(root: &Path) -> Self {
        let proc = root.join("proc");
        let read = |name: &str| fs::read_to_string(proc.join("self").join(name)).unwrap_or_default();
        let (mounts, paths) = (read("mountinfo"), read("cgroup"));
        let mut groups = Vec::new();
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some(path) = path_of(&paths, mount.kind) else {
                continue;
            };
            // In a container that can see only a part of the tree, its own group is the mount
            // itself.
            let inner = path.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or("");
            let top = root.join(mount.place.trim_start_matches('/'));
            let own = top.join(inner.trim_start_matches('/'));
            let chain = own.ancestors().take_while(|dir| dir.starts_with(&top));
            groups.extend(chain.take(GROUPS_MAX).map(|dir| Group {
                kind: mount.kind,
                dir: dir.to_owned(),
            }));
        }
        Self { proc, groups }
    }

    /// The bound with the least free bytes. `None` if unknown.
    pub fn tightest(&self) -> Option<Standing> {
        let all = self.groups.iter().filter_map(Group::standing).chain(self.machine());
        all.min_by_key(|standing| standing.room_bytes())
    }

    /// The lowest limit. `None` if unknown.
    pub fn limit_bytes(&self) -> Option<u64> {
        let groups = self.groups.iter().filter_map(Group::limit_bytes);
        groups.chain(self.machine().map(|machine| machine.limit_bytes)).min()
    }

    /// Percentage of the last ten seconds in which a task waited for memory, of the own group,
    /// otherwise of the machine.
    pub fn pressure_percent(&self) -> f64 {
        let own = self.groups.iter().map(|group| group.dir.join("memory.pressure"));
        let files = own.take(1).chain([self.proc.join("pressure/memory")]);
        let mut texts = files.filter_map(|file| fs::read_to_string(file).ok());
        texts.find_map(|text| pressure(&text)).unwrap_or(0.0)
    }

    /// Kernel events of tight bounds.
    pub fn events(&self) -> Events {
        let mut events = Events::default();
        let mut has_pressure = false;
        for group in &self.groups {
            if group.kind == Kind::Two && !has_pressure {
                has_pressure = events.add_pressure(&group.dir.join("memory.pressure"));
            }
            let Some(limit_bytes) = group.limit_bytes() else {
                continue;
            };
            let is_told = match group.kind {
                Kind::One => events.add_group_1(&group.dir, limit_bytes),
                Kind::Two => events.add_counts(&group.dir.join("memory.events")),
            };
            tracing::debug!(group = %group.dir.display(), limit_bytes, is_told, "memory is bounded");
        }
        let is_told = events.add_pressure(&self.proc.join("pressure/memory"));
        tracing::debug!(is_told, "pressure on the machine's memory");
        events
    }

    fn machine(&self) -> Option<Standing> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let kib = |name: &str| field(&text, name).map(|kib| kib << 10);
        let limit_bytes = kib("MemTotal:")?;
        Some(Standing {
            limit_bytes,
            used_bytes: limit_bytes.saturating_sub(kib("MemAvailable:")?),
        })
    }
}

/// A mounted tree of control groups with memory limits.
struct Mount<'t> {
    kind: Kind,
    root: &'t str,
    place: &'t str,
}

impl<'t> Mount<'t> {
    /// Reads a line of `mountinfo` (proc(5)).
    fn parse(line: &'t str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, place) = (before.next()?, before.next()?);
        let mut behind = behind.split(' ');
        let kind = match behind.next()? {
            "cgroup2" => Kind::Two,
            "cgroup" if behind.nth(1)?.split(',').any(|option| option == "memory") => Kind::One,
            _ => return None,
        };
        Some(Self { kind, root, place })
    }
}

/// The path of a process in the tree, by its file `cgroup`.
fn path_of(text: &str, kind: Kind) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match kind {
            Kind::One => controllers.split(',').any(|name| name == "memory"),
            Kind::Two => number == "0" && controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

impl Group {
    fn number(&self, name: &str) -> Option<u64> {
        // "max" is no number, and no bound.
        fs::read_to_string(self.dir.join(name)).ok()?.trim().parse().ok()
    }

    fn limit_bytes(&self) -> Option<u64> {
        match self.kind {
            // The value for "no limit" depends on the page size.
            Kind::One => self.number("memory.limit_in_bytes").filter(|bytes| *bytes < 1 << 60),
            Kind::Two => ["memory.max", "memory.high"]
                .into_iter()
                .filter_map(|name| self.number(name))
                .min(),
        }
    }

    fn standing(&self) -> Option<Standing> {
        let limit_bytes = self.limit_bytes()?;
        let stat = fs::read_to_string(self.dir.join("memory.stat")).ok()?;
        let of = |name: &str| field(&stat, name).unwrap_or(0);
        let (all, droppable) = match self.kind {
            Kind::One => {
                let files = of("total_cache").saturating_sub(of("total_shmem"));
                (self.number("memory.usage_in_bytes")?, files)
            }
            Kind::Two => {
                let files = of("file").saturating_sub(of("shmem"));
                (self.number("memory.current")?, files + of("slab_reclaimable"))
            }
        };
        Some(Standing {
            limit_bytes,
            used_bytes: all.saturating_sub(droppable),
        })
    }
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// `avg10` of the line `some` (Documentation/accounting/psi.rst of Linux).
fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ')
        .find_map(|part| part.strip_prefix("avg10=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A tree of files like those of Linux.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(mountinfo: &str, cgroup: &str) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.write(
                "proc/meminfo",
                "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  6291456 kB\n",
            );
            tree.write("proc/self/mountinfo", mountinfo);
            tree.write("proc/self/cgroup", cgroup);
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn bounds(&self) -> Bounds {
            Bounds::below(self.0.path())
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn without_groups_the_machine_bounds() {
        let tree = Tree::new("", "");
        let standing = tree.bounds().tightest().unwrap();
        assert_eq!((standing.limit_bytes, standing.used_bytes), (8 << 30, 2 << 30));
        assert_eq!(tree.bounds().pressure_percent().to_bits(), 0.0_f64.to_bits());
        assert_eq!(Tree(tempfile::tempdir().unwrap()).bounds().tightest(), None);
    }

    #[test]
    fn a_group_of_version_2_and_those_above_it_bound() {
        let tree = Tree::new(
            "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
            "0::/system.slice/terrace.service\n",
        );
        let own = "sys/fs/cgroup/system.slice/terrace.service/";
        tree.write(&format!("{own}memory.max"), "max\n");
        tree.write(&format!("{own}memory.high"), "max\n");
        assert_eq!(tree.bounds().limit_bytes(), Some(8 << 30));
        tree.write(&format!("{own}memory.max"), &format!("{}\n", 512 * MIB));
        tree.write(&format!("{own}memory.high"), &format!("{}\n", 256 * MIB));
        tree.write(&format!("{own}memory.current"), &format!("{}\n", 200 * MIB));
        let stat = format!(
            "anon 1\nfile {}\nshmem {}\nslab_reclaimable {}\n",
            90 * MIB,
            10 * MIB,
            20 * MIB
        );
        tree.write(&format!("{own}memory.stat"), &stat);
        let bounds = tree.bounds();
        assert_eq!(bounds.limit_bytes(), Some(256 * MIB));
        let tight = Standing {
            limit_bytes: 256 * MIB,
            used_bytes: 100 * MIB,
        };
        assert_eq!(bounds.tightest(), Some(tight));
        // Other groups in the slice have used nearly all of its memory.
        tree.write("sys/fs/cgroup/system.slice/memory.max", &format!("{}\n", 1024 * MIB));
        tree.write(
            "sys/fs/cgroup/system.slice/memory.current",
            &format!("{}\n", 1000 * MIB),
        );
        tree.write("sys/fs/cgroup/system.slice/memory.stat", "file 0\n");
        assert_eq!(bounds.tightest().unwrap().room_bytes(), 24 * MIB);
        assert_eq!(bounds.limit_bytes(), Some(256 * MIB));
        let psi = "some avg10=7.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n";
        tree.write(&format!("{own}memory.pressure"), psi);
        assert_eq!(bounds.pressure_percent().to_bits(), 7.5_f64.to_bits());
    }

    #[test]
    fn a_group_of_version_1_bounds_also_where_a_container_sees_a_part() {
        let other = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        for (root, path) in [("/", "/box/one"), ("/box/one", "/box/one"), ("/box/one", "/elsewhere")] {
            let mount = format!("{other}35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
            let tree = Tree::new(&mount, &format!("9:cpu:/other\n4:memory:{path}\n0::/\n"));
            let inner = if root == "/" { "/box/one" } else { "" };
            let own = format!("sys/fs/cgroup/memory{inner}");
            tree.write(&format!("{own}/memory.limit_in_bytes"), &format!("{}\n", 256 * MIB));
            tree.write(&format!("{own}/memory.usage_in_bytes"), &format!("{}\n", 250 * MIB));
            let stat = format!("cache 1\ntotal_cache {}\ntotal_shmem {MIB}\n", 101 * MIB);
            tree.write(&format!("{own}/memory.stat"), &stat);
            if root == "/" {
                let unbounded = "9223372036854771712\n";
                tree.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", unbounded);
            }
            let tight = Standing {
                limit_bytes: 256 * MIB,
                used_bytes: 150 * MIB,
            };
            assert_eq!(tree.bounds().tightest(), Some(tight), "{root} {path}");
        }
    }
}
