//! A thread that reads what others are writing and reports it: a `Sync` commit that was read must
//! survive a cut.

use crate::{
    protocol::Said,
    workload::{self, CALLERS, SHARED_KEYS, caller_of, own_key, shared_key},
};
use rand::{Rng, rngs::StdRng};
use std::{collections::HashMap, sync::Mutex, time::Duration};
use terrace::Store;

/// Pause between two reads, since the writers need the processors too.
const PAUSE: Duration = Duration::from_micros(50);

/// Reads until a call fails.
pub fn run(store: &Store, life: u64, keys_of_each: u64, under_way: &[Mutex<String>], mut rng: StdRng) {
    let mut told: HashMap<String, u64> = HashMap::new();
    loop {
        std::thread::sleep(PAUSE);
        let key = match rng.random_range(0..2 * CALLERS) {
            0 => shared_key(rng.random_range(0..SHARED_KEYS)),
            caller if caller < CALLERS => own_key(caller, rng.random_range(0..keys_of_each)),
            // Mostly keys that are being written: they could be visible too early.
            caller => match under_way[(caller - CALLERS) as usize].lock() {
                Ok(key) if !key.is_empty() => key.clone(),
                _ => continue,
            },
        };
        let object = match store.get(&key) {
            Ok(Some(object)) => object,
            Ok(None) => continue,
            Err(error) => return Said::Failed(format!("reader: {error}")).say(),
        };
        let version = object.version.0;
        if told.get(&key).is_some_and(|told| version <= *told) {
            continue;
        }
        match workload::origin(&key, &object.value, &object.attributes) {
            Ok(op) if caller_of(op).0 == life => Said::Read { op, version }.say(),
            Ok(_) => {}
            Err(reason) => return Said::Broken(format!("reader: {reason}")).say(),
        }
        told.insert(key, version);
    }
}
