//! Opening, verifying, repairing and backing up a store.

pub(crate) mod backup;
pub(crate) mod open;
pub(crate) mod repair;
pub(crate) mod verify;
