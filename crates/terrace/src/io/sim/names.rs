//! The directories of a simulated disk: which name leads to which file, now and after a power cut.
//!
//! Invariants:
//! - `durable` plus all of `pending`, in order, is `live`, unless the sync of a directory failed.
//! - A file has at most one name in each of `live` and `durable`.
//! - A change becomes durable together with all earlier ones it builds on, as in a journal.
//!
//! Directories themselves are durable when they are created, as `Disk::create_dir_all` promises.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

#[derive(Clone, Default)]
pub(super) struct Names {
    live: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    pending: Vec<NameChange>,
    directories: BTreeSet<String>,
}

/// A creation (no `from`), a removal (no `to`) or a rename of a file, not durable yet.
#[derive(Clone)]
struct NameChange {
    order: u64,
    inode: u64,
    from: Option<String>,
    to: Option<String>,
    /// Directories still to be synced before it is durable.
    waits_for: Vec<String>,
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        if let Some(from) = &self.from
            && names.get(from) == Some(&self.inode)
        {
            names.remove(from);
        }
        if let Some(to) = &self.to {
            // An earlier rename may have been lost; its source must not stay as a second name.
            names.retain(|_, inode| *inode != self.inode);
            names.insert(to.clone(), self.inode);
        }
    }

    fn paths(&self) -> impl Iterator<Item = &String> {
        self.from.iter().chain(&self.to)
    }
}

impl Names {
    pub(super) fn get(&self, path: &str) -> io::Result<u64> {
        self.check_parent(path)?;
        match self.live.get(path) {
            _ if self.is_directory(path) => Err(io::ErrorKind::IsADirectory.into()),
            Some(inode) => Ok(*inode),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn check_absent(&self, path: &str) -> io::Result<()> {
        self.check_parent(path)?;
        if self.live.contains_key(path) || self.is_directory(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(())
    }

    pub(super) fn create(&mut self, path: &str, inode: u64, order: u64) {
        self.change(order, inode, None, Some(path));
    }

    pub(super) fn remove(&mut self, path: &str, order: u64) -> io::Result<()> {
        let inode = self.get(path)?;
        self.change(order, inode, Some(path), None);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, order: u64) -> io::Result<()> {
        // The order in which systems look: both directories, then the names.
        self.check_parent(from)?;
        self.check_parent(to)?;
        let inode = self.get(from)?;
        if self.is_directory(to) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if from != to {
            self.change(order, inode, Some(from), Some(to));
        }
        Ok(())
    }

    fn change(&mut self, order: u64, inode: u64, from: Option<&str>, to: Option<&str>) {
        let mut waits_for: Vec<String> = from.iter().chain(&to).map(|path| parent(path).to_owned()).collect();
        waits_for.dedup();
        let change = NameChange {
            order,
            inode,
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
            waits_for,
        };
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    pub(super) fn create_dir_all(&mut self, path: &str) -> io::Result<()> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let prefixes: Vec<&str> = ends.map(|end| &path[..end]).collect();
        if prefixes.iter().any(|prefix| self.live.contains_key(*prefix)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let new = prefixes.into_iter().filter(|prefix| !prefix.is_empty());
        self.directories.extend(new.map(str::to_owned));
        Ok(())
    }

    pub(super) fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        if self.live.contains_key(directory) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let inside = self.live.keys().filter(|path| parent(path) == directory);
        Ok(inside.map(|path| name(path).to_owned()).collect())
    }

    pub(super) fn check_directory(&self, path: &str) -> io::Result<()> {
        if self.is_directory(path) {
            Ok(())
        } else if self.live.contains_key(path) {
            Err(io::ErrorKind::NotADirectory.into())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Takes the changes in `directory` that a sync makes durable, makes those durable that `keep`
    /// chooses, and drops the others permanently.
    pub(super) fn sync(&mut self, directory: &str, mut keep: impl FnMut() -> bool) {
        let mut taken = Vec::new();
        let mut needed = BTreeSet::new();
        // Backwards, because a change pulls the earlier ones it builds on with it.
        for index in (0..self.pending.len()).rev() {
            let change = &mut self.pending[index];
            change.waits_for.retain(|waiting| waiting != directory);
            if change.waits_for.is_empty() || change.paths().any(|path| needed.contains(path)) {
                let change = self.pending.remove(index);
                needed.extend(change.paths().cloned());
                taken.push(change);
            }
        }
        for change in taken.iter().rev().filter(|_| keep()) {
            change.apply(&mut self.durable);
        }
    }

    /// After a power cut: makes the changes `keep` chooses by their order durable, forgets the
    /// others.
    pub(super) fn settle(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for change in std::mem::take(&mut self.pending) {
            if keep(change.order) {
                change.apply(&mut self.durable);
            }
        }
        self.live = self.durable.clone();
    }

    /// Enters a file as if it had always been there.
    pub(super) fn place(&mut self, path: &str, inode: u64) {
        self.pending
            .retain(|change| change.paths().all(|changed| changed != path));
        self.live.insert(path.to_owned(), inode);
        self.durable.insert(path.to_owned(), inode);
    }

    pub(super) fn oldest_order(&self) -> Option<u64> {
        self.pending.first().map(|change| change.order)
    }

    pub(super) fn live(&self) -> &BTreeMap<String, u64> {
        &self.live
    }

    /// All files that have a name or may get one back.
    pub(super) fn reachable(&self) -> BTreeSet<u64> {
        let named = self.live.values().chain(self.durable.values()).copied();
        named.chain(self.pending.iter().map(|change| change.inode)).collect()
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.directories.contains(path)
    }

    fn check_parent(&self, path: &str) -> io::Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let mut above = parent(path);
        if self.is_directory(above) {
            return Ok(());
        }
        while !above.is_empty() {
            if self.live.contains_key(above) {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            above = parent(above);
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
