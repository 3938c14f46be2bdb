//! Answers of websites, with objects from a table.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::s3::head::tests::head;
use std::sync::Mutex;

/// Existing objects; all others are missing.
fn object(key: &str) -> Response<Body> {
    let answer = Response::builder();
    match key {
        "index.html" | "dir/index.html" | "a b" => answer.body(Body::from(format!("object {key}"))).unwrap(),
        "error.html" => answer.body(Body::from("sorry".to_owned())).unwrap(),
        "moved" => answer.header(REDIRECT, "/elsewhere").body(Body::empty()).unwrap(),
        "hidden" => {
            let xml = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
            answer.status(403).body(Body::from(xml.to_owned())).unwrap()
        }
        "unchanged" => answer.status(304).body(Body::empty()).unwrap(),
        _ => {
            let xml = "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>";
            answer.status(404).body(Body::from(xml.to_owned())).unwrap()
        }
    }
}

struct Answer {
    status: u16,
    location: Option<String>,
    text: String,
    asked: Vec<String>,
}

fn visit(settings: &Settings, method: &str, path: &str) -> Answer {
    let said = [
        ("host", "site.example.org:7071"),
        ("authorization", "x"),
        ("x-amz-date", "y"),
        ("if-match", "z"),
    ];
    let (head, headers, _) = head(method, path, &said);
    let visit = Visit::of(&head, &headers);
    assert_eq!(visit.headers.len(), 1, "{:?}", visit.headers);
    let asked = Mutex::new(Vec::new());
    let ask = |method: Method, _: HeaderMap, key: String| -> BoxFuture<'_, S3Result<Response<Body>>> {
        asked.lock().unwrap().push(format!("{method} {key}"));
        Box::pin(std::future::ready(Ok(object(&key))))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = runtime.block_on(visit.answer(Ok(settings.clone()), "1F", &ask));
    let location = answer.headers().get(header::LOCATION);
    Answer {
        status: answer.status().as_u16(),
        location: location.map(|location| location.to_str().unwrap().to_owned()),
        text: String::from_utf8(answer.body().bytes().unwrap_or_default().to_vec()).unwrap(),
        asked: asked.into_inner().unwrap(),
    }
}

fn site() -> Settings {
    Settings {
        index: Some("index.html".to_owned()),
        error: Some("error.html".to_owned()),
        ..Settings::default()
    }
}

#[test]
fn folders_have_index_documents() {
    for (path, status, text) in [
        ("/", 200, "object index.html"),
        ("/dir/", 200, "object dir/index.html"),
        ("/a%20b", 200, "object a b"),
        ("/none", 404, "sorry"),
        ("/none/", 404, "sorry"),
        ("/hidden", 403, "sorry"),
        ("/unchanged", 304, ""),
    ] {
        let answer = visit(&site(), "GET", path);
        assert_eq!((answer.status, answer.text.as_str()), (status, text), "{path}");
    }
    let folder = visit(&site(), "GET", "/dir");
    assert_eq!((folder.status, folder.location.as_deref()), (302, Some("/dir/")));
    assert_eq!(folder.asked, ["GET dir", "HEAD dir/index.html"]);
    assert_eq!(visit(&site(), "HEAD", "/dir/").asked, ["HEAD dir/index.html"]);
    let moved = visit(&site(), "GET", "/moved");
    assert_eq!((moved.status, moved.location.as_deref()), (301, Some("/elsewhere")));
    let posted = visit(&site(), "POST", "/");
    assert_eq!(posted.status, 405);
    assert!(posted.asked.is_empty() && posted.text.contains("<li>Code: MethodNotAllowed</li>"));
}

#[test]
fn errors_are_pages() {
    let bare = Settings { error: None, ..site() };
    let answer = visit(&bare, "GET", "/%3Cscript%3E");
    assert_eq!(answer.status, 404);
    let expected = "<html>\n<head><title>404 Not Found</title></head>\n<body>\n<h1>404 Not Found</h1>\n<ul>\n\
        <li>Code: NoSuchKey</li>\n<li>Message: The specified key does not exist.</li>\n<li>Key: &lt;script&gt;</li>\n\
        <li>RequestId: 1F</li>\n</ul>\n<hr/>\n</body>\n</html>\n";
    assert_eq!(answer.text, expected);
    let lost = Settings {
        error: Some("gone.html".to_owned()),
        ..site()
    };
    let answer = visit(&lost, "GET", "/hidden");
    assert_eq!(answer.status, 403);
    let expected =
        "<h3>An Error Occurred While Attempting to Retrieve a Custom Error Document</h3>\n<ul>\n<li>Code: NoSuchKey";
    assert!(answer.text.contains(expected), "{}", answer.text);
}

#[test]
fn rules_send_elsewhere() {
    let to = |prefix: Option<&str>, status, redirect| Rule {
        prefix: prefix.map(str::to_owned),
        status,
        redirect,
    };
    let text = |text: &str| Some(text.to_owned());
    let settings = Settings {
        rules: vec![
            to(
                Some("docs/"),
                None,
                Redirect {
                    key_prefix: text("documents/"),
                    ..Redirect::default()
                },
            ),
            to(
                Some("old/"),
                Some(404),
                Redirect {
                    key: text("new page"),
                    status: Some(307),
                    ..Redirect::default()
                },
            ),
            to(
                None,
                Some(403),
                Redirect {
                    host: text("login.example.org"),
                    protocol: text("https"),
                    ..Redirect::default()
                },
            ),
        ],
        ..site()
    };
    for (path, status, location) in [
        ("/docs/x%20y", 301, Some("http://site.example.org:7071/documents/x%20y")),
        ("/old/x", 307, Some("http://site.example.org:7071/new%20page")),
        ("/hidden", 301, Some("https://login.example.org/hidden")),
        ("/none", 404, None),
    ] {
        let answer = visit(&settings, "GET", path);
        assert_eq!(
            (answer.status, answer.location.as_deref()),
            (status, location),
            "{path}"
        );
    }
    let all = Settings {
        all_to: Some(AllTo {
            host: "example.org".to_owned(),
            protocol: None,
        }),
        ..Settings::default()
    };
    let answer = visit(&all, "POST", "/a%0Ab?x=y");
    assert_eq!(
        (answer.status, answer.location.as_deref()),
        (301, Some("http://example.org/a%0Ab"))
    );
    assert!(answer.asked.is_empty());
}
