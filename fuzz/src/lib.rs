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
    ("conditions", conditions),
    ("continuation_token", continuation_token),
    ("admin_call", admin_call),
    ("expiry", expiry),
    ("footer", footer),
    ("frame", frame),
    ("grants", grants),
    ("index_entry", index_entry),
    ("index_mark", index_mark),
    ("key_record", key_record),
    ("key_text", key_text),
    ("large_meta", large_meta),
    ("large_record_header", large_record_header),
    ("lost_range", lost_range),
    ("manifest", manifest),
    ("mark_payload", mark_payload),
    ("nats_answer", nats_answer),
    ("object_attributes", object_attributes),
    ("open_count", open_count),
    ("page_query", page_query),
    ("part_list", part_list),
    ("policy", policy),
    ("post_form", post_form),
    ("ranges", ranges),
    ("record", record),
    ("request_head", request_head),
    ("sealed_key", sealed_key),
    ("sealed_value", sealed_value),
    ("segment_header", segment_header),
    ("settings_xml", settings_xml),
    ("signature_time", signature_time),
    ("signed_chunks", signed_chunks),
    ("signed_head", signed_head),
    ("state_copy", state_copy),
    ("store_keys", store_keys),
    ("sts_call", sts_call),
    ("tags_query", tags_query),
    ("trailer", trailer),
    ("unsigned_chunks", unsigned_chunks),
    ("version_2_head", version_2_head),
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
