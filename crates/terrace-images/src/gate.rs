//! Limits the memory of images in flight.
//!
//! A worker takes a [`Permit`] for a file before it reads it, grows it before decoding, and shrinks
//! it to the size of the group afterwards; the permit is held until the group is committed.
//!
//! Invariants: the bytes of all permits stay within the budget, with one exception: while no worker
//! decodes, one may start, whatever it needs; otherwise holders of small permits could wait for
//! each other forever. So at most the budget plus the need of one image is held.
//!
//! Failure: none; a dropped permit returns all its bytes, also when its holder panics.

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct Use {
    bytes: u64,
    decoding: usize,
}

/// The budget, shared by all workers.
#[derive(Debug)]
pub(super) struct MemoryGate {
    budget_bytes: u64,
    used: Mutex<Use>,
    freed: Condvar,
}

/// A part of the budget.
#[derive(Debug)]
pub(super) struct Permit<'gate> {
    gate: &'gate MemoryGate,
    bytes: u64,
    decoding: bool,
}

impl MemoryGate {
    pub(super) fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            used: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Waits until the budget allows `bytes` for a file.
    pub(super) fn enter(&self, bytes: u64) -> Permit<'_> {
        let mut used = self.used.lock();
        while used.bytes > 0 && used.bytes.saturating_add(bytes) > self.budget_bytes {
            self.freed.wait(&mut used);
        }
        used.bytes = used.bytes.saturating_add(bytes);
        Permit {
            gate: self,
            bytes,
            decoding: false,
        }
    }

    /// Bytes held now.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.lock().bytes
    }
}

impl Permit<'_> {
    /// Waits until the budget allows `bytes` more for decoding.
    pub(super) fn grow(&mut self, bytes: u64) {
        let mut used = self.gate.used.lock();
        while used.decoding > 0 && used.bytes.saturating_add(bytes) > self.gate.budget_bytes {
            self.gate.freed.wait(&mut used);
        }
        used.bytes = used.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        used.decoding += usize::from(!self.decoding);
        self.decoding = true;
    }

    /// Returns all but `bytes`: decoding has ended.
    pub(super) fn settle(&mut self, bytes: u64) {
        let mut used = self.gate.used.lock();
        used.bytes = used.bytes - self.bytes + bytes;
        used.decoding -= usize::from(self.decoding);
        self.bytes = bytes;
        self.decoding = false;
        drop(used);
        self.gate.freed.notify_all();
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.settle(0);
    }
}
