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
    ("access_list", access_list),
    ("account_record", account_record),
    ("attributes_decode", attributes_decode),
    ("backup_manifest", backup_manifest),
    ("block_header", block_header),
    ("bucket_record", bucket_record),
    ("checkpoint", checkpoint),
    ("chunk", chunk),
    ("expiry", expiry),
    ("footer", footer),
    ("frame", frame),
    ("index_entry", index_entry),
    ("index_mark", index_mark),
    ("key_record", key_record),
    ("large_meta", large_meta),
    ("large_record_header", large_record_header),
    ("manifest", manifest),
    ("mark_payload", mark_payload),
    ("object_attributes", object_attributes),
    ("part_list", part_list),
    ("policy", policy),
    ("record", record),
    ("sealed_key", sealed_key),
    ("sealed_value", sealed_value),
    ("segment_header", segment_header),
    ("store_keys", store_keys),
    ("tags_query", tags_query),
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
