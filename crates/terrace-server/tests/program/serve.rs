//! The HTTP service through a plain socket.

use crate::common::{Answer, Place, Server, bytes, eventually, files};
use serde_json::{Value, json};
use std::{collections::BTreeSet, io::Read as _, net::TcpStream, time::Duration};

/// A store with one image that was put by hand: a small resolution on flash, a large one in a
/// block.
fn by_hand() -> (Place, Vec<u8>) {
    let place = Place::new();
    let large = bytes(1_500_000);
    place
        .run_with_input(
            &["put", "images/x/small", "-", "--content-type", "image/jpeg"],
            b"0123456789",
        )
        .code(0);
    place
        .run_with_input(&["put", "images/x/original", "-", "--attribute", "width=40"], &large)
        .code(0);
    let attributes = [
        "--attribute",
        "file-name=<b>x</b>.jpg",
        "--attribute",
        "width=40",
        "--attribute",
        "height=30",
    ];
    let resolutions = ["--attribute", "resolutions=original,small"];
    let put = [&["put", "catalogue/x", "-"][..], &attributes, &resolutions].concat();
    place.run_with_input(&put, b"").code(0);
    (place, large)
}

fn page(server: &Server, path: &str) -> Value {
    server.get(path).status(200).json()
}

#[test]
fn the_page_and_its_headers() {
    let place = Place::new();
    let server = place.serve(&[]);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
    ] {
        let answer = server.get(path).status(200);
        assert_eq!(answer.header("content-type"), Some(content_type));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert!(
            answer
                .header("content-security-policy")
                .unwrap()
                .contains("default-src 'none'")
        );
        assert!(
            !answer.text().contains("https://"),
            "{path} loads nothing from elsewhere"
        );
    }
    assert_eq!(page(&server, "/api/images"), json!({ "images": [], "next": null }));
    assert_eq!(page(&server, "/healthz")["writes"], "ok");
    assert_eq!(page(&server, "/api/stats")["import"], Value::Null);
}

#[test]
fn wrong_requests_get_clear_answers() {
    let (place, _) = by_hand();
    let server = place.serve(&[]);
    for (path, status) in [
        ("/nowhere", 404),
        ("/images/x/none", 404),
        ("/images/none/small", 404),
        ("/images/x", 404),
        ("/images/%ff/small", 400),
        ("/api/images/none", 404),
        ("/api/images?limit=0", 400),
        ("/api/images?limit=1001", 400),
        ("/api/images?limit=x", 400),
        ("/images/x/small?v=x", 400),
    ] {
        let answer = server.get(path).status(status);
        assert!(
            answer.json()["error"].as_str().is_some_and(|error| !error.is_empty()),
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let long = "k".repeat(5000);
    server.get(&format!("/images/{long}/small")).status(400);
    for (method, path) in [("POST", "/"), ("DELETE", "/images/x/small"), ("PUT", "/api/images")] {
        let answer = server.ask(method, path, &[]).status(405);
        assert!(answer.header("allow").unwrap().contains("GET"));
    }
    server.send(b"nonsense\r\n\r\n").status(400);
    server.get("/").status(200);
}

#[test]
fn only_loopback_names_are_answered() {
    let place = Place::new();
    let server = place.serve(&[]);
    server
        .ask("GET", "/api/stats", &[("Host", "attacker.example:7070")])
        .status(421);
    server
        .ask("GET", "/api/stats", &[("Host", "localhost:1234")])
        .status(200);
}

#[test]
fn values_whole_and_conditional() {
    let (place, large) = by_hand();
    let server = place.serve(&[]);
    let answer = server.get("/images/x/original").status(200);
    assert_eq!(answer.body, large);
    assert_eq!(answer.header("content-length"), Some("1500000"));
    assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    assert_eq!(answer.header("cache-control"), Some("private, no-cache"));

    let small = server.get("/images/x/small").status(200);
    assert_eq!(
        (small.text().as_str(), small.header("content-type")),
        ("0123456789", Some("image/jpeg"))
    );
    let etag = small.header("etag").unwrap();
    assert!(etag.starts_with('"') && etag.ends_with('"'));
    assert_ne!(Some(etag), answer.header("etag"));

    let unchanged = server
        .ask("GET", "/images/x/small", &[("If-None-Match", etag)])
        .status(304);
    assert_eq!((unchanged.body.len(), unchanged.header("etag")), (0, Some(etag)));
    server
        .ask(
            "HEAD",
            "/images/x/small",
            &[("If-None-Match", &format!("\"a\", W/{etag}"))],
        )
        .status(304);
    server
        .ask(
            "GET",
            "/images/x/small",
            &[("If-None-Match", "\"a\""), ("If-None-Match", etag)],
        )
        .status(304);
    server
        .ask("GET", "/images/x/small", &[("If-None-Match", "\"other\"")])
        .status(200);

    let head = server.ask("HEAD", "/images/x/original", &[]).status(200);
    assert_eq!((head.body.len(), head.header("content-length")), (0, Some("1500000")));
    assert_eq!(head.header("etag"), answer.header("etag"));

    let version = page(&server, "/api/images/x")["resolutions"][0]["version"].clone();
    let lasting = server.get(&format!("/images/x/small?v={version}")).status(200);
    let other = server.get("/images/x/small?v=999999").status(200);
    let immutable = |answer: &Answer| answer.header("cache-control").unwrap().contains("immutable");
    assert!(!immutable(&other));
    assert!(immutable(&lasting) || page(&server, "/api/images/x")["resolutions"][0]["name"] != "small");
}

#[test]
fn ranges() {
    let (place, large) = by_hand();
    let server = place.serve(&[]);
    for (range, expected) in [
        ("bytes=0-0", 0..1),
        ("bytes=1000-700000", 1000..700_001),
        ("bytes=1499999-", 1_499_999..1_500_000),
        ("bytes=-300000", 1_200_000..1_500_000),
        ("bytes=262144-524287", 262_144..524_288),
    ] {
        let answer = server.ask("GET", "/images/x/original", &[("Range", range)]).status(206);
        assert!(answer.body == large[expected.clone()], "{range}");
        let content_range = format!("bytes {}-{}/1500000", expected.start, expected.end - 1);
        assert_eq!(answer.header("content-range"), Some(content_range.as_str()));
        assert_eq!(
            answer.header("content-length"),
            Some(expected.len().to_string().as_str())
        );
    }
    let beyond = server
        .ask("GET", "/images/x/small", &[("Range", "bytes=10-")])
        .status(416);
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    let several = server
        .ask("GET", "/images/x/small", &[("Range", "bytes=0-1,3-4")])
        .status(200);
    assert_eq!(several.text(), "0123456789");
    let etag = several.header("etag").unwrap();
    let same = server
        .ask("GET", "/images/x/small", &[("Range", "bytes=2-3"), ("If-Range", etag)])
        .status(206);
    assert_eq!(same.text(), "23");
    server
        .ask(
            "GET",
            "/images/x/small",
            &[("Range", "bytes=2-3"), ("If-Range", "\"old\"")],
        )
        .status(200);
}

/// What has a time to live is gone when that has passed, and then from the store, too.
#[test]
fn images_end_while_they_are_served() {
    const HOUR: Duration = Duration::from_secs(3600);
    let place = Place::new();
    for (name, life) in [("short", "1h"), ("long", "3h")] {
        let key = format!("images/x/{name}");
        place
            .run_with_input(&["put", &key, "-", "--ttl", life], name.as_bytes())
            .code(0);
    }
    let mut server = place.serve(&[]);
    assert_eq!(server.get("/images/x/short").status(200).text(), "short");
    place.clock.pass(HOUR * 2);
    server.get("/images/x/short").status(404);
    assert_eq!(server.get("/images/x/long").status(200).text(), "long");
    eventually("it is deleted", || {
        let metrics = server.get("/metrics").status(200).text();
        metrics.contains("\nterrace_objects{home=\"inline\"} 1\n").then_some(())
    });
    server.process.end();
    // By the command's clock it would be there for another hour.
    place.run(&["get", "images/x/short"]).code(3);
    assert_eq!(place.run(&["get", "images/x/long"]).code(0).text(), "long");
}

#[test]
fn one_image_with_the_home_of_each_resolution() {
    let (place, _) = by_hand();
    let server = place.serve(&[]);
    let image = page(&server, "/api/images/x");
    assert_eq!(image["attributes"]["file-name"], "<b>x</b>.jpg");
    let homes: Vec<_> = image["resolutions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["name"], &one["bytes"], &one["home"]))
        .collect();
    assert_eq!(
        homes,
        [
            (&json!("small"), &json!(10), &json!("inline")),
            (&json!("original"), &json!(1_500_000), &json!("block")),
        ]
    );
    // JSON is sent as JSON, so a name that looks like markup stays a name.
    let answer = server.get("/api/images").status(200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json()["images"][0]["name"], "<b>x</b>.jpg");
}

#[test]
fn metrics_are_openmetrics_text() {
    let (place, _) = by_hand();
    let server = place.serve(&[]);
    server.get("/images/x/original").status(200);
    server.get("/images/x/none").status(404);
    let answer = server.get("/metrics").status(200);
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"));
    let value = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line[name.len()..].trim().parse::<f64>().unwrap()
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
    }
    assert_eq!(value("terrace_objects{home=\"block\"}"), 1.0);
    assert_eq!(value("terrace_object_bytes{home=\"block\"}"), 1_500_000.0);
    assert!(value("terrace_reads_total{answered_by=\"block\"}") >= 1.0);
    assert_eq!(
        value("terrace_http_requests_total{route=\"/images/{id}/{resolution}\",status=\"404\"}"),
        1.0
    );
    assert!(text.contains("# TYPE terrace_operation_seconds histogram"));
}

/// A directory of small pictures with names that try things, and one that is none.
fn pictures(place: &Place, count: u32) {
    std::fs::create_dir(place.path("pictures")).unwrap();
    for number in 0..count {
        let picture = image::RgbImage::from_fn(160, 120, |x, y| image::Rgb([x as u8, y as u8, number as u8]));
        let name = match number {
            0 => "<img src=x onerror=alert(1)>.png".to_owned(),
            1 => "a'\"b & \u{202e}gnp.png".to_owned(),
            number => format!("{number}.png"),
        };
        picture.save(place.path("pictures").join(name)).unwrap();
    }
    place.write("pictures/broken.png", b"\x89PNG\r\n\x1a\nno more");
}

fn wait_for_import(server: &Server) -> Value {
    eventually("the import is over", || {
        let import = page(server, "/api/stats")["import"].clone();
        (import["running"] == false).then_some(import)
    })
}

#[test]
fn import_then_serve_pages_of_a_grid() {
    let place = Place::new();
    pictures(&place, 23);
    let mut server = place.serve(&["--import", place.path("pictures").to_str().unwrap()]);
    let import = wait_for_import(&server);
    assert_eq!((&import["imported"], &import["failed"]), (&json!(23), &json!(1)));

    let mut ids = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page = page(&server, &format!("/api/images?limit=5&after={after}"));
        for image in page["images"].as_array().unwrap() {
            assert!(
                ids.insert(image["id"].as_str().unwrap().to_owned()),
                "an image is listed twice"
            );
            names.insert(image["name"].as_str().unwrap().to_owned());
            assert_eq!((&image["width"], &image["height"]), (&json!(160), &json!(120)));
        }
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((ids.len(), pages), (23, 5));
    assert!(names.contains("<img src=x onerror=alert(1)>.png"));

    let id = ids.first().unwrap();
    let image = page(&server, &format!("/api/images/{id}"));
    for resolution in image["resolutions"].as_array().unwrap() {
        let name = resolution["name"].as_str().unwrap();
        let answer = server
            .get(&format!("/images/{id}/{name}?v={}", resolution["version"]))
            .status(200);
        assert_eq!(answer.body.len() as u64, resolution["bytes"].as_u64().unwrap());
        assert!(answer.header("content-type").unwrap().starts_with("image/"));
        assert!(answer.header("cache-control").unwrap().contains("immutable"));
    }
    server.process.end();

    let again = place.run(&["import", "pictures", "--json"]).code(8).json();
    assert_eq!((&again["imported"], &again["already_stored"]), (&json!(0), &json!(23)));
    assert!(again["failed"][0]["path"].as_str().unwrap().ends_with("broken.png"));
    place.run(&["verify"]).code(0);
}

#[test]
fn ctrl_c_ends_well_even_with_a_slow_client() {
    let (place, _) = by_hand();
    let mut server = place.serve_program(&[]);
    // A connection without a request must not delay the shutdown.
    let idle = TcpStream::connect(&server.address).unwrap();
    server.get("/").status(200);
    assert!(server.interrupt().success());
    drop(idle);
    place.run(&["verify"]).code(0);
    assert_eq!(place.run(&["get", "images/x/small"]).code(0).text(), "0123456789");
}

#[test]
fn terminate_ends_well_too() {
    let place = Place::new();
    let mut server = place.serve_program(&[]);
    server.process.end();
}

/// How often the threads of a process have gone to sleep so far. Ended threads are not included, so
/// it may fall.
#[cfg(target_os = "linux")]
fn wake_ups(child: &std::process::Child) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let switches = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.and_then(|line| line.split_whitespace().last()?.parse::<u64>().ok())
    };
    tasks.flatten().filter_map(status).filter_map(switches).sum()
}

/// Regression: an idle server checked its stop flag and its control socket forty times a second,
/// and its memory up to ten times.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_server_sleeps_and_wakes_at_once() {
    const WAKE_UPS_MAX: u64 = 5;
    const SECONDS: u64 = 3;
    let (place, _) = by_hand();
    let mut server = place.serve_program(&[]);
    server.get("/").status(200);
    eventually("few wake-ups of an idle server", || {
        let before = wake_ups(server.child());
        std::thread::sleep(Duration::from_secs(SECONDS));
        let woken = wake_ups(server.child()).saturating_sub(before);
        (woken <= WAKE_UPS_MAX * SECONDS).then_some(())
    });
    server.get("/").status(200);
    // Requests to the control socket, and the stop, are noticed without polling.
    let began = std::time::Instant::now();
    place.run(&["key", "create", "--allow", "*=read"]).code(0);
    server.process.end();
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_address_in_use_is_told_before_a_store_is_made() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::new();
    let address = taken.local_addr().unwrap().to_string();
    let run = place.run(&["serve", "--listen", &address]).code(1);
    assert!(
        run.error().contains("choose another address with --listen"),
        "{}",
        run.error()
    );
    assert!(files(place.dir.path()).is_empty());
}

#[test]
fn clients_that_leave_in_the_middle_free_what_they_held() {
    let place = Place::new();
    place
        .run_with_input(&["put", "images/x/big", "-"], &bytes(24 << 20))
        .code(0);
    let mut server = place.serve(&[]);
    for _ in 0..100 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /images/x/big HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut some = [0; 4096];
        stream.read_exact(&mut some).unwrap();
    }
    // More downloads were abandoned than engine calls are allowed at a time, and the next is
    // served.
    assert_eq!(server.get("/images/x/big").status(200).body.len(), 24 << 20);
    server.process.end();
}

#[test]
fn top_shows_a_store_that_is_served_and_refuses_one_that_is_not() {
    let (place, _) = by_hand();
    let refused = place.run(&["top", "--count", "1"]).code(1);
    assert!(
        refused.error().contains("no server") && refused.error().contains("terrace serve"),
        "{}",
        refused.error()
    );
    let server = place.serve(&[]);
    // Standard output is no terminal here, so it prints and ends.
    let shown = place
        .run(&["top", "--count", "2", "--interval", "100ms"])
        .code(0)
        .text();
    assert_eq!(shown.matches("terrace top").count(), 2, "{shown}");
    for name in ["RAM", "flash", "disk", "given", "to flash", "copies", "recycling"] {
        assert!(
            shown.lines().any(|line| line.starts_with(name)),
            "{name} is missing in\n{shown}"
        );
    }
    place.run(&["top", "--interval", "1ms"]).code(2);
    drop(server);
}
