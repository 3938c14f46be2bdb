//! What the hash index shares between threads. `model_tests.rs` compiles the same sources against
//! a model checker's versions of these names.

pub(super) use parking_lot::{Mutex, RwLock};
pub(super) use std::{hint::spin_loop as pause, sync::atomic::AtomicU64};
