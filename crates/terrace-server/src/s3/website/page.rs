//! Errors of websites, in HTML.

use hyper::{
    HeaderMap, Response, StatusCode,
    header::{self, HeaderValue},
};
use s3s::{Body, S3Error};

/// An error.
#[derive(Debug)]
pub struct Problem {
    /// Its status.
    pub status: StatusCode,
    code: String,
    message: String,
    key: Option<String>,
    number: String,
}

impl Problem {
    /// The problem of an error.
    pub fn of(error: &S3Error, key: Option<&str>, number: &str) -> Self {
        Self {
            status: error.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code: error.code().as_str().to_owned(),
            message: error.message().unwrap_or("").to_owned(),
            key: key.map(str::to_owned),
            number: number.to_owned(),
        }
    }

    /// The problem of an answer with XML; an answer to a HEAD has only its status.
    pub fn of_answer(answer: &Response<Body>, key: &str, number: &str) -> Self {
        let xml = answer.body().bytes().unwrap_or_default();
        let xml = String::from_utf8_lossy(&xml);
        let element = |name: &str| {
            let (_, rest) = xml.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
        };
        let (code, message) = match answer.status() {
            StatusCode::NOT_FOUND => ("NoSuchKey", "The specified key does not exist."),
            StatusCode::FORBIDDEN => ("AccessDenied", "Access Denied"),
            _ => ("InternalError", "We encountered an internal error. Please try again."),
        };
        Self {
            status: answer.status(),
            code: element("Code").unwrap_or_else(|| code.to_owned()),
            message: element("Message").unwrap_or_else(|| message.to_owned()),
            key: Some(key.to_owned()).filter(|_| answer.status() == StatusCode::NOT_FOUND),
            number: number.to_owned(),
        }
    }

    /// Sets the headers of the error.
    pub fn name(&self, headers: &mut HeaderMap) {
        for (name, text) in [("x-amz-error-code", &self.code), ("x-amz-error-message", &self.message)] {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        }
    }

    fn lines(&self) -> Vec<(&'static str, &str)> {
        let mut lines = vec![("Code", self.code.as_str()), ("Message", &self.message)];
        lines.extend(self.key.as_deref().map(|key| ("Key", key)));
        lines
    }

    /// The answer.
    pub fn answer(&self) -> Response<Body> {
        self.answer_with(&[])
    }

    /// The answer if the error document could not be read either.
    pub fn answer_without(&self, document: &Self) -> Response<Body> {
        self.answer_with(&[document])
    }

    fn answer_with(&self, of_document: &[&Self]) -> Response<Body> {
        let mut lines = self.lines();
        lines.push(("RequestId", &self.number));
        let lists: Vec<_> = std::iter::once(lines)
            .chain(of_document.iter().map(|problem| problem.lines()))
            .collect();
        let mut response = page(self.status, &lists);
        self.name(response.headers_mut());
        response
    }
}

/// A page in S3's form: lists of facts; all but the first are about the error document.
pub fn page(status: StatusCode, lists: &[Vec<(&str, &str)>]) -> Response<Body> {
    let title = format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or(""));
    let mut html = format!("<html>\n<head><title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n");
    for (number, list) in lists.iter().enumerate() {
        if number > 0 {
            html.push_str("<h3>An Error Occurred While Attempting to Retrieve a Custom Error Document</h3>\n");
        }
        html.push_str("<ul>\n");
        for (name, text) in list {
            html.push_str(&format!("<li>{name}: {}</li>\n", escaped(text)));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("<hr/>\n</body>\n</html>\n");
    let length = HeaderValue::from(html.len());
    let mut response = Response::new(Body::from(html));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(header::CONTENT_LENGTH, length);
    response
}

/// Escapes text for HTML. Text from XML is escaped already, and stays so.
fn escaped(text: &str) -> String {
    text.replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
