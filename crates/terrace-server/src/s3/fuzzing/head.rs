//! Heads of requests.

use super::{parts, read};
use crate::s3::{at_once::Plain, head::Head, refuse, signature, verified};
use hyper::http::request::Parts;
use s3s::path;

/// A head, as lines: read once and once more, and as `s3s` reads it.
pub fn request_head(text: &[u8]) -> bool {
    let Some(mut parts) = parts(text) else { return false };
    let came = parts.clone();
    let (head, clear) = read(&mut parts);
    let headers = parts.headers.clone();
    // The resource of the request is the one that `s3s` finds.
    if let Some(meant) = head.path() {
        let of_host = head.is_of_host().then(|| head.bucket()).flatten();
        if let Ok(taken) = path::parse_virtual_hosted_style(of_host, meant) {
            assert_eq!(head.bucket(), taken.get_bucket_name(), "{meant}");
            let key = head.place().map_or("", |(_, key)| key);
            assert_eq!(key, taken.get_object_key().unwrap_or(""), "{meant}");
            assert_eq!(head.is_of_object(), taken.as_object().is_some(), "{meant}");
        }
    }
    shows_no_signature(&head);
    written_otherwise(&came, &head);
    // Read once more it is the same.
    let mut again = came;
    again.headers = headers.clone();
    let (second, clear_again) = read(&mut again);
    assert_eq!(second.place(), head.place());
    assert_eq!(second.query, head.query);
    assert_eq!(
        (second.is_form, second.is_call, second.is_xml, second.is_signed()),
        (head.is_form, head.is_call, head.is_xml, head.is_signed())
    );
    if clear.is_ok() {
        assert!(clear_again.is_ok(), "what is clear stays so");
        assert_eq!(again.headers, headers, "there is nothing more to take out");
    }
    let checked = signature::check(&head, &headers);
    // No request is refused that the short way accepts without a signature.
    if clear.is_ok() && !head.is_signed() && Plain::of(&head, &headers).is_some() {
        assert!(checked.is_ok(), "{checked:?}");
        assert!(signature::refuse_choices(&head).is_ok());
        assert!(head.ranges.is_none() && head.query.is_empty() && head.is_of_object());
        let _ = refuse::is_subresource(head.raw_key());
    }
    assert!(
        verified::signer(&head, &headers, super::secret, super::TIME_MS).is_none() || head.is_signed(),
        "it has no signature"
    );
    clear.is_ok() && checked.is_ok()
}

fn shows_no_signature(head: &Head) {
    let shown = head.shown_query();
    let mut names = form_urlencoded::parse(shown.as_bytes()).map(|(name, _)| name.into_owned());
    assert!(
        names.all(|name| !signature::is_of_signature(&name)),
        "what signs it is not shown: {shown}"
    );
}

/// With the first letter of each name in its query encoded it is the same.
fn written_otherwise(came: &Parts, head: &Head) {
    let encoded = |pair: &str| match pair.as_bytes() {
        [first, ..] if first.is_ascii_alphanumeric() => format!("%{first:02X}{}", &pair[1..]),
        _ => pair.to_owned(),
    };
    let Some(query) = came.uri.query() else { return };
    let query: Vec<_> = query.split('&').map(encoded).collect();
    let mut other = came.clone();
    let Ok(uri) = format!("{}?{}", came.uri.path(), query.join("&")).parse() else {
        return;
    };
    other.uri = uri;
    let (other, _) = read(&mut other);
    assert_eq!(other.query, head.query);
    assert_eq!(other.is_signed(), head.is_signed());
    shows_no_signature(&other);
}
