//! Forms with a file: read alike however they are split, and again as they are written for `s3s`.

use super::block_on;
use crate::s3::form::{self, Extras, FIELD_BYTES_MAX, FIELDS_BYTES_MAX, FIELDS_MAX, Form};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
};
use std::convert::Infallible;

/// Fields, and the file, if all of it came.
type Read = (Vec<(String, String)>, Option<Vec<u8>>);

fn form(body: Body, kind: HeaderValue) -> Option<Form> {
    let headers: HeaderMap = [(header::CONTENT_TYPE, kind)].into_iter().collect();
    block_on(Form::read(&headers, body)).ok()
}

fn in_pieces(text: &[u8], piece_bytes: usize) -> Option<Form> {
    let pieces: Vec<_> = text.chunks(piece_bytes).map(Bytes::copy_from_slice).collect();
    let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)));
    form(body, HeaderValue::from_static("multipart/form-data; boundary=x"))
}

fn read(form: Form) -> Read {
    let (fields, file) = form.into_parts();
    (fields, block_on(file.bytes()).ok().map(|bytes| bytes.to_vec()))
}

/// A form whose boundary is `x`.
pub fn post_form(text: &[u8]) -> bool {
    let whole = in_pieces(text, text.len().max(1)).map(read);
    for piece_bytes in [1, 2, 7, 64] {
        assert_eq!(
            in_pieces(text, piece_bytes).map(read),
            whole,
            "in pieces of {piece_bytes} bytes"
        );
    }
    let Some((fields, file)) = whole else { return false };
    let lengths = fields.iter().map(|(name, value)| name.len() + value.len());
    // The file's name may make them longer.
    let has_name = text.windows(8).any(|part| part == b"filename");
    assert!(fields.len() <= FIELDS_MAX && (has_name || lengths.sum::<usize>() <= FIELDS_BYTES_MAX));
    assert!(has_name || fields.iter().all(|(_, value)| value.len() <= FIELD_BYTES_MAX));
    for (at, (name, _)) in fields.iter().enumerate() {
        assert!(
            fields[..at].iter().all(|(other, _)| other != name),
            "{name} is there once"
        );
    }
    let Some(given) = in_pieces(text, 64) else { return false };
    let _ = form::check(&given, "photos");
    let _ = given.check_version_2(super::secret);
    let _ = given.check_version_4(super::secret);
    if let Ok(extras) = Extras::of(&given) {
        assert!(extras.said().values().all(|value| value.as_bytes().is_ascii()));
    }
    let (kind, body) = given.written();
    let Ok(written) = block_on(axum::body::to_bytes(body, usize::MAX)) else {
        assert!(file.is_none(), "a whole file is written");
        return false;
    };
    let again = form(Body::from(written), kind).map(read);
    let kept = |(name, _): &(String, String)| {
        !["success_action_status", "success_action_redirect", "redirect"].contains(&name.as_str())
    };
    let (again, file_again) = again.unwrap_or_else(|| panic!("what is written is read"));
    assert_eq!(file_again, file, "the file");
    let plain = |fields: &[(String, String)]| fields.iter().filter(|field| kept(field)).cloned().collect::<Vec<_>>();
    assert_eq!(plain(&again), plain(&fields), "the fields");
    assert!(again.iter().all(|field| fields.contains(field)), "nothing else");
    true
}
