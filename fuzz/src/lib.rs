//! Fuzz targets: one plain function per decoder, listed in [`TARGETS`].
//!
//! A target takes any bytes, panics if a property is broken, and returns whether the decoder
//! accepted the bytes: the mutation runner keeps accepted inputs and mutates them further. Two
//! programs call the targets: `mutate`, which runs on stable Rust, and `libfuzzer`, which
//! cargo-fuzz builds.

pub mod mutation;
mod targets;

pub use targets::*;

/// A target: panics if a property is broken, else says whether the decoder accepted the bytes.
pub type Target = fn(&[u8]) -> bool;

/// Every target by name. The seeds of a target are the files in `seeds/NAME/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("attributes_decode", attributes_decode),
    ("backup_manifest", backup_manifest),
    ("block_header", block_header),
    ("checkpoint", checkpoint),
    ("chunk", chunk),
    ("expiry", expiry),
    ("footer", footer),
    ("frame", frame),
    ("index_entry", index_entry),
    ("index_mark", index_mark),
    ("large_meta", large_meta),
    ("large_record_header", large_record_header),
    ("manifest", manifest),
    ("mark_payload", mark_payload),
    ("record", record),
    ("segment_header", segment_header),
    ("trailer", trailer),
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// The names of all targets, for messages.
#[must_use]
pub fn names() -> String {
    TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
