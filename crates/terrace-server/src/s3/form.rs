//! Uploads by HTML forms, prepared for `s3s`.
//!
//! `s3s` reads a form, checks its policy and the policy's signature, and holds the file in memory
//! meanwhile. So files have a size limit and are counted as they arrive ([`crate::http::budget`]).
//! [`fields`] rewrites the fields. Features that the service does not have are refused as in
//! headers.

mod fields;
mod policy;

pub use fields::Form;
pub use policy::{Extras, check, refuse_ended};

use super::refuse::refuse_class;
use hyper::{
    Response,
    header::{self, HeaderValue},
};
use s3s::{Body, S3Result, dto::PostObjectInput, s3_error};

/// Longest file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest form, with its fields and the framing.
pub const FORM_BYTES_MAX: u64 = FILE_BYTES_MAX + FIELDS_BYTES_MAX as u64;
/// Longest fields, all together.
pub const FIELDS_BYTES_MAX: usize = 1 << 20;
/// Longest field.
pub const FIELD_BYTES_MAX: usize = 64 << 10;
/// Most fields.
pub const FIELDS_MAX: usize = 100;

/// Refuses fields for features that the service does not have.
///
/// # Errors
/// `NotImplemented`, `InvalidStorageClass`.
pub fn refuse(input: &PostObjectInput) -> S3Result {
    let is_locked = input.object_lock_mode.is_some()
        || input.object_lock_legal_hold_status.is_some()
        || input.object_lock_retain_until_date.is_some();
    if is_locked || input.write_offset_bytes.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "A field you provided implies functionality that is not implemented."
        ));
    }
    if let Some(class) = &input.storage_class {
        refuse_class(class.as_str())?;
    }
    if input.key.is_empty() {
        return Err(s3_error!(
            InvalidArgument,
            "User key must have a length greater than 0."
        ));
    }
    Ok(())
}

/// Sets the object's full address in the answer to a form: `s3s` has only the path.
pub fn say_location(answer: &mut Response<Body>, location: &str) {
    let Ok(value) = HeaderValue::from_str(location) else {
        return;
    };
    // A redirect already has its location.
    if !answer.status().is_success() {
        return;
    }
    answer.headers_mut().insert(header::LOCATION, value);
    let text = answer
        .body()
        .bytes()
        .and_then(|xml| String::from_utf8(xml.to_vec()).ok());
    let parts = text.as_deref().and_then(|text| {
        let (front, rest) = text.split_once("<Location>")?;
        Some((front, rest.split_once("</Location>")?.1))
    });
    if let Some((front, rest)) = parts {
        let whole = format!("{front}<Location>{location}</Location>{rest}");
        *answer.body_mut() = Body::from(whole.into_bytes());
    }
}
