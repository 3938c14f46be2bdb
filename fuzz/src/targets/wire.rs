//! Targets of what comes over the wire, and what else the program reads of others. What they decode
//! is the program's own, so the properties are beside it: `crates/terrace-server/src/s3/fuzzing/`,
//! and `fuzzing.rs` in `admin/` and `http/`.

pub use terrace_server::fuzzing::{
    admin_call, conditions, continuation_token, grants, key_text, nats_answer, page_query, post_form, ranges,
    request_head, settings_xml, signature_time, signed_chunks, signed_head, sts_call, unsigned_chunks, version_2_head,
};
