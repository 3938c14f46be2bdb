//! Stand-in.
use super::address::Address;
use parking_lot::Mutex;
use std::collections::HashMap;
/// Index.
#[derive(Debug, Default)]
pub struct FlashIndex(Mutex<HashMap<u64, (Address, usize)>>);
/// Found.
pub struct Found {
    /// a
    pub address: Address,
    /// b
    pub read_bytes_max: usize,
}
#[allow(missing_docs)]
impl FlashIndex {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn lookup(&self, hash: u64) -> Option<Found> {
        self.0.lock().get(&hash).map(|x| Found {
            address: x.0,
            read_bytes_max: x.1,
        })
    }
    pub fn insert(&self, hash: u64, address: Address, bytes: usize) -> Option<Address> {
        self.0.lock().insert(hash, (address, bytes)).map(|x| x.0)
    }
    pub fn remove(&self, hash: u64) -> Option<Address> {
        self.0.lock().remove(&hash).map(|x| x.0)
    }
    pub fn recency(&self, hash: u64, address: Address) -> Option<bool> {
        self.0.lock().get(&hash).filter(|x| x.0 == address).map(|_| false)
    }
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
    pub fn ram_bytes(&self) -> usize {
        self.len() * 9
    }
}
