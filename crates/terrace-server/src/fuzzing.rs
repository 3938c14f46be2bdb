//! The decoders of what comes over the wire, for fuzz targets. No part of the interface.
//!
//! Their types are the program's own, so what they assert is beside them: a function takes any
//! bytes, panics if a property is broken, and returns whether the bytes were accepted.

pub use crate::{
    admin::fuzzing::admin_call,
    http::fuzzing::{key_text, page_query},
    s3::fuzzing::{
        conditions, continuation_token, grants, nats_answer, post_form, ranges, request_head, settings_xml,
        signature_time, signed_chunks, signed_head, sts_call, unsigned_chunks, version_2_head,
    },
};
