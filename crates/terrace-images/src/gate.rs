//! Bounds the memory of images in flight.
//!
//! A worker takes a [`Permit`] for a file before it reads it, grows it before it decodes, shrinks
//! it to what the group holds afterwards, and the permit goes with the group until that is
//! committed.
//!
//! Invariants: the bytes of all permits stay within the budget, but for one case: when nobody
//! decodes, the next one may, however much it needs, for otherwise holders of small permits could
//! wait for each other forever. So the most ever held is the budget plus what one image needs.
//!
//! On failure: nothing here fails; a dropped permit gives everything back, also when its holder
//! panics.

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

    /// Waits for room to hold `bytes` of a file.
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
    /// Waits for room to decode with `bytes` more.
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

    /// Gives back all but `bytes`: decoding is over.
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
