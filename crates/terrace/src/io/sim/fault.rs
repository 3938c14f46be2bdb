//! Faults that a test can inject into a simulated disk.

/// Which part of the unsynced changes a power cut leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Survival {
    /// None of them.
    Nothing,
    /// All of them, as when only the program dies.
    Everything,
    /// All up to some moment, none after it; the last write may end at any sector.
    Prefix,
    /// Each sector, length and name on its own: writes tear anywhere, later ones survive earlier
    /// ones.
    #[default]
    Random,
}

impl Survival {
    /// All of them, for tests that try each.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Everything, Self::Prefix, Self::Random];
}

/// Which requests a [`Fault`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Reads of files and listings of directories.
    Read,
    /// Writes, allocations, changes of length, creations, removals and renames. Some sectors of a
    /// failed write may have been written.
    Write,
    /// Syncs of files and directories. Some of the changes become durable, the others never do,
    /// whatever later syncs return; reads show them until the power is cut.
    Sync,
}

/// A fault: requests of one kind fail with the error of a broken device, from some point on, until
/// the fault is replaced or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    path_part: Option<String>,
    after: u64,
}

impl Fault {
    /// Fails all requests of this kind.
    #[must_use]
    pub const fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            path_part: None,
            after: 0,
        }
    }

    /// Only those about a path that contains `path_part`.
    #[must_use]
    pub fn on(mut self, path_part: impl Into<String>) -> Self {
        self.path_part = Some(path_part.into());
        self
    }

    /// Only when `requests` that would have failed have passed.
    #[must_use]
    pub const fn after(mut self, requests: u64) -> Self {
        self.after = requests;
        self
    }

    /// Whether a request fails. Counts it if it would have.
    pub(super) fn strikes(&mut self, kind: FaultKind, paths: &[&str]) -> bool {
        let concerns = |part: &String| paths.iter().any(|path| path.contains(part.as_str()));
        if kind != self.kind || !self.path_part.as_ref().is_none_or(concerns) {
            return false;
        }
        let passes = self.after > 0;
        self.after = self.after.saturating_sub(1);
        !passes
    }
}
