//! Decoders of data from the network, for fuzz targets: each takes any bytes, panics if a property
//! is violated, and returns whether the bytes were accepted. Not part of the interface.

mod chunks;
mod form;
mod head;
mod ranges;
mod said;
mod settings;
mod signed;
mod version_2;

pub use chunks::{signed_chunks, unsigned_chunks};
pub use form::post_form;
pub use head::request_head;
pub use ranges::{conditions, ranges};
pub use said::{continuation_token, nats_answer, signature_time, sts_call};
pub use settings::{grants, settings_xml};
pub use signed::signed_head;
pub use version_2::version_2_head;

use super::head::{Head, read_at_example as read};
use hyper::{
    HeaderMap, Request,
    header::{HeaderName, HeaderValue},
    http::request::Parts,
};
use std::{cell::LazyCell, sync::Arc};

/// The access key that there is.
const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
/// A time, as signatures have it and in milliseconds since 1970.
const TIME: &str = "20130524T000000Z";
const TIME_MS: u64 = 1_369_353_600_000;

fn secret(id: &str) -> Option<String> {
    (id == ID).then(|| SECRET.to_owned())
}

thread_local! {
    static RUNTIME: LazyCell<tokio::runtime::Runtime> = LazyCell::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap_or_else(|error| panic!("there are no threads and no files in it: {error}"))
    });
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// A request head in lines: method and target, then headers. What `hyper` would refuse is none.
fn parts(text: &[u8]) -> Option<Parts> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = first.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        // As `hyper` passes it on: without leading and trailing spaces.
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        request = request.header(name, value);
    }
    let parts = request.body(()).ok()?.into_parts().0;
    parts.uri.path().starts_with('/').then_some(parts)
}

/// A head with these parts.
fn head(method: &str, target: &str, headers: HeaderMap) -> Option<(Arc<Head>, HeaderMap)> {
    let (mut parts, ()) = Request::builder()
        .method(method)
        .uri(target)
        .body(())
        .ok()?
        .into_parts();
    parts.headers = headers;
    let (head, clear) = read(&mut parts);
    clear.ok().map(|()| (head, parts.headers))
}
