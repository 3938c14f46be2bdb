//! Cross-origin rules of a bucket, applied to requests.

use super::{bucket::CorsRule, errors};
use hyper::{HeaderMap, Method, StatusCode, header, header::HeaderValue};
use s3s::S3Result;

/// A cross-origin request.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Origin of the page.
    pub origin: &'a str,
    /// The method.
    pub method: &'a str,
    /// The request headers, separated by commas.
    pub headers: &'a str,
}

/// The first rule that allows it.
pub fn allowing<'r>(rules: &'r [CorsRule], question: &Question<'_>) -> Option<&'r CorsRule> {
    rules.iter().find(|rule| {
        let mut headers = question
            .headers
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        rule.origins.iter().any(|pattern| matches(pattern, question.origin))
            && rule.methods.iter().any(|method| method == question.method)
            && headers.all(|name| rule.headers.iter().any(|pattern| matches_any_case(pattern, name)))
    })
}

/// Refuses a request that no rule allows.
///
/// # Errors
/// `AccessForbidden`
pub fn allowed(rules: &[CorsRule], question: &Question<'_>) -> S3Result {
    let message = if rules.is_empty() {
        "CORSResponse: CORS is not enabled for this bucket."
    } else if allowing(rules, question).is_none() {
        // As S3 spells it.
        "CORSResponse: This CORS request is not allowed. This is usually because the evalution of Origin, \
         request method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted \
         by the resource's CORS spec."
    } else {
        return Ok(());
    };
    Err(errors::custom("AccessForbidden", StatusCode::FORBIDDEN, message))
}

/// Whether a text matches a pattern with at most one `*`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((front, end)) => text.len() >= front.len() + end.len() && text.starts_with(front) && text.ends_with(end),
    }
}

/// The same, ignoring the case of ASCII letters.
fn matches_any_case(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let Some(at) = pattern.iter().position(|byte| *byte == b'*') else {
        return pattern.eq_ignore_ascii_case(text);
    };
    let (front, end) = (&pattern[..at], &pattern[at + 1..]);
    text.len() >= front.len() + end.len()
        && text[..front.len()].eq_ignore_ascii_case(front)
        && text[text.len() - end.len()..].eq_ignore_ascii_case(end)
}

/// Adds a rule's headers to an answer.
pub fn add(headers: &mut HeaderMap, rule: &CorsRule, question: &Question<'_>) {
    let any_origin = rule.origins.iter().any(|pattern| pattern == "*");
    let origin = if any_origin { "*" } else { question.origin };
    let mut set = |name, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if !any_origin {
        set(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    }
    set(header::ACCESS_CONTROL_ALLOW_METHODS, &rule.methods.join(", "));
    if !question.headers.is_empty() {
        set(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            &question.headers.to_ascii_lowercase(),
        );
    }
    if !rule.expose.is_empty() {
        set(header::ACCESS_CONTROL_EXPOSE_HEADERS, &rule.expose.join(", "));
    }
    if let Some(seconds) = rule.max_age_seconds {
        set(header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
    }
    set(
        header::VARY,
        "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
    );
}

/// Reads a request's headers; `None` if it is not cross-origin.
pub fn question<'a>(headers: &'a HeaderMap, method: &'a Method) -> Option<Question<'a>> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN)?;
    let asked = text(header::ACCESS_CONTROL_REQUEST_METHOD);
    if method == Method::OPTIONS {
        return Some(Question {
            origin,
            method: asked?,
            headers: text(header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or(""),
        });
    }
    Some(Question {
        origin,
        // Browsers name a method only in preflight requests; as in S3, another client that names
        // one gets the rule for it.
        method: asked.unwrap_or(method.as_str()),
        headers: "",
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(origin: &str, methods: &[&str], headers: &[&str]) -> CorsRule {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        CorsRule {
            origins: vec![origin.to_owned()],
            methods: owned(methods),
            headers: owned(headers),
            ..CorsRule::default()
        }
    }

    #[test]
    fn the_first_rule_that_allows_it() {
        let rules = [
            rule("https://a.example", &["GET"], &[]),
            rule("https://*.b.example", &["GET", "PUT"], &["X-*", "content-type"]),
        ];
        let ask = |origin, method, headers| {
            let question = Question {
                origin,
                method,
                headers,
            };
            allowing(&rules, &question).map(|rule| rule.origins[0].as_str())
        };
        assert_eq!(ask("https://a.example", "GET", ""), Some("https://a.example"));
        assert_eq!(ask("https://a.example", "PUT", ""), None);
        assert_eq!(ask("https://a.example", "GET", "x-a"), None);
        assert_eq!(
            ask("https://www.b.example", "PUT", "x-a, Content-Type"),
            Some("https://*.b.example")
        );
        assert_eq!(ask("https://www.b.example", "PUT", "x-a, other"), None);
        assert_eq!(ask("https://b.example", "GET", ""), None);
        assert!(matches_any_case("X-*-É", "x-a-É") && matches_any_case("*", "") && !matches_any_case("a*A", "A"));
        assert!(!matches_any_case("x", "xy") && !matches_any_case("x-*", "é"));
        assert!(matches("*", "") && matches("a*a", "aa") && !matches("a*a", "a"));
    }

    #[test]
    fn what_is_added() {
        let question = Question {
            origin: "https://x",
            method: "GET",
            headers: "X-A",
        };
        let mut headers = HeaderMap::new();
        add(&mut headers, &rule("*", &["GET"], &["*"]), &question);
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert_eq!(headers["access-control-allow-headers"], "x-a");
        assert!(!headers.contains_key("access-control-allow-credentials"));
        add(&mut headers, &rule("https://x", &["GET"], &["*"]), &question);
        assert_eq!(headers["access-control-allow-origin"], "https://x");
        assert_eq!(headers["access-control-allow-credentials"], "true");
    }
}
