//! Queries of the page, for fuzz targets. No part of the interface.

use super::api::Page;
use crate::key_text;
use axum::extract::Query;
use hyper::Uri;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

/// The query of the grid of images, read as any form is.
pub fn page_query(query: &[u8]) -> bool {
    let Ok(query) = std::str::from_utf8(query) else {
        return false;
    };
    let Ok(uri) = format!("/api/images?{query}").parse::<Uri>() else {
        return false;
    };
    let Ok(Query(page)) = Query::<Page>::try_from_uri(&uri) else {
        return false;
    };
    let said = |name: &str| {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or("").as_bytes());
        let mut values = pairs
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.into_owned());
        let (first, second) = (values.next(), values.next());
        assert_eq!(second, None, "what is said twice is refused");
        first
    };
    assert_eq!(page.after, said("after"));
    assert_eq!(page.limit, said("limit").and_then(|limit| limit.parse().ok()));
    page.after.is_some() || page.limit.is_some()
}

/// A key as text, as the page and the command line have it.
pub fn key_text(bytes: &[u8]) -> bool {
    let shown = key_text::escape(bytes);
    assert_eq!(key_text::parse(OsStr::new(&shown)).ok().as_deref(), Some(bytes));
    assert!(!shown.contains(char::is_control));
    let Ok(key) = key_text::parse(OsStr::from_bytes(bytes)) else {
        return false;
    };
    assert!(key.len() <= bytes.len());
    true
}
