//! The decoders of data from the network, for fuzz targets. Not part of the interface.
//!
//! Their types are private to the program, so the checked properties are next to them: a function
//! takes any bytes, panics if a property is violated, and returns whether the bytes were accepted.

pub use crate::{
    admin::fuzzing::admin_call,
    http::fuzzing::{key_text, page_query},
    s3::fuzzing::{
        conditions, continuation_token, grants, nats_answer, post_form, ranges, request_head, settings_xml,
        signature_time, signed_chunks, signed_head, sts_call, unsigned_chunks, version_2_head,
    },
};
