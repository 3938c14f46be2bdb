//! What begins and ends with time, by a clock that is moved. The server is in this process and has
//! that clock.

use crate::{
    Service, anonymous, code,
    common::{Ahead, PATIENCE, Place, bytes, eventually},
    elements, events,
    protocol::bucket,
    sessions::session,
    sign::{Client, Mode},
    upload::Upload,
    version_2,
};
use std::{net::TcpListener, time::Duration};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

/// Gives the bucket these rules, by their prefix and their action, and so begins a walk.
fn walk(client: &Client, rules: &[(&str, &str)]) {
    let rule = |(at, (prefix, action)): (usize, &(&str, &str))| {
        format!("<Rule><ID>{at}</ID><Status>Enabled</Status><Filter><Prefix>{prefix}</Prefix></Filter>{action}</Rule>")
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    let rules = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
    client
        .send("PUT", "/bucket?lifecycle", &[], rules.as_bytes())
        .status(200);
}

/// `2026-01-31T12:30:00Z`
fn date(client: &Client, from_now: Duration) -> String {
    let time = client.time(from_now.as_secs() as i64);
    let (day, time) = time.split_once('T').unwrap();
    let (year, month, of_month) = (&day[..4], &day[4..6], &day[6..]);
    format!(
        "{year}-{month}-{of_month}T{}:{}:{}Z",
        &time[..2],
        &time[2..4],
        &time[4..6]
    )
}

fn is_gone(client: &Client, target: &str) -> Option<()> {
    (client.get(target).status == 404).then_some(())
}

#[test]
fn rules_delete_objects_by_their_days() {
    const RULES: [(&str, &str); 2] = [
        ("log/", "<Expiration><Days>3</Days></Expiration>"),
        // A walk takes it last, so when it is gone the others have been judged.
        ("mark/", "<Expiration><Days>1</Days></Expiration>"),
    ];
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    for key in ["kept", "log/old", "mark/1"] {
        client.put(&format!("/bucket/{key}"), b"v", Mode::Whole).status(200);
    }
    place.clock.pass(DAY * 2);
    for key in ["log/new", "mark/2"] {
        client.put(&format!("/bucket/{key}"), b"v", Mode::Whole).status(200);
    }
    walk(client, &RULES);
    eventually("a day has passed", || is_gone(client, "/bucket/mark/1"));
    client.get("/bucket/log/old").status(200);
    client.get("/bucket/mark/2").status(200);
    place.clock.pass(DAY * 2);
    walk(client, &RULES);
    eventually("three days have passed", || is_gone(client, "/bucket/mark/2"));
    let left = client.get("/bucket?list-type=2").status(200);
    assert_eq!(elements(&left, "Key"), ["kept", "log/new"]);
}

#[test]
fn uploads_end_by_rules_and_after_a_week() {
    let abort =
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let by_rule = Upload::begin(client, "/bucket/short/k", &[]);
    let by_age = Upload::begin(client, "/bucket/long/k", &[]);
    by_age.put(client, 1, b"part", Mode::Whole);
    place.clock.pass(DAY * 2);
    let young = Upload::begin(client, "/bucket/short/k", &[]);
    walk(client, &[("short/", abort)]);
    eventually("a day has passed", || is_gone(client, &by_rule.target()));
    client.get(&young.target()).status(200);
    client.get(&by_age.target()).status(200);
    place.clock.pass(DAY * 5);
    // Garbage wakes the collector, which also looks for such uploads.
    client.put("/bucket/large", &bytes(600_000), Mode::Whole).status(200);
    client.send("DELETE", "/bucket/large", &[], b"").status(204);
    eventually("a week has passed", || is_gone(client, &by_age.target()));
    client.get(&young.target()).status(200);
}

/// Regression: the next check for uploads was due an hour after the last one by the clock. After
/// the clock had been wrong and was set back, none was made until that time came again.
#[test]
fn uploads_end_though_the_clock_was_set_back() {
    let place = Place::new();
    place.clock.pass(DAY * 365);
    let service = bucket(&place);
    let client = &service.client;
    let collect = || {
        client.put("/bucket/large", &bytes(600_000), Mode::Whole).status(200);
        client.send("DELETE", "/bucket/large", &[], b"").status(204);
    };
    let wrong = Upload::begin(client, "/bucket/wrong", &[]);
    place.clock.pass(DAY * 8);
    collect();
    eventually("uploads are checked", || is_gone(client, &wrong.target()));
    place.clock.set_back(DAY * 373);
    let upload = Upload::begin(client, "/bucket/k", &[]);
    place.clock.pass(DAY * 8);
    collect();
    eventually("a week has passed", || is_gone(client, &upload.target()));
}

#[test]
fn locks_end() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let client = &service.client;
    let locks = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/bucket", &locks, b"").status(200);
    let default = b"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
        <Mode>COMPLIANCE</Mode><Days>2</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    client.send("PUT", "/bucket?object-lock", &[], default).status(200);
    let until = date(client, DAY * 3);
    let own = [
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-retain-until-date", until.as_str()),
    ];
    let put = |key: &str, headers: &[(&str, &str)]| {
        let put = client.send("PUT", &format!("/bucket/{key}"), headers, b"v").status(200);
        format!("/bucket/{key}?versionId={}", put.header("x-amz-version-id").unwrap())
    };
    let (default, own) = (put("default", &[]), put("own", &own));
    let delete = |version: &str| client.send("DELETE", version, &[], b"").status;
    place.clock.pass(DAY * 2 - HOUR);
    assert_eq!((delete(&default), delete(&own)), (403, 403));
    place.clock.pass(HOUR * 2);
    assert_eq!((delete(&default), delete(&own)), (204, 403));
    // A lock counts again while the clock is set back, as if it had not ended.
    let later = put("later", &[]);
    place.clock.pass(DAY * 3);
    place.clock.set_back(DAY * 2);
    assert_eq!((delete(&later), delete(&own)), (403, 204));
    place.clock.pass(DAY * 2);
    assert_eq!(delete(&later), 204);
}

/// By versions 4 and 2, on the short way from RAM and on the long one, and for a form.
#[test]
fn presigned_requests_end() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/k", b"value", Mode::Whole).status(200);
    // The URLs are good for ten minutes.
    let urls = [
        client.presigned("GET", "/bucket/k"),
        client.presigned("GET", "/bucket/k?response-content-type=text%2Fplain"),
        version_2::presigned(client, "GET", "/bucket/k", &[], 600),
    ];
    let get = |url: &String| code(&version_2::ask(client, "GET", url, "", b""));
    place.clock.pass(MINUTE * 9);
    for url in &urls {
        assert_eq!(get(url).0, 200, "{url}");
    }
    assert_eq!(client.form("bucket", &[("key", "form")], 600, 60).status, 204);
    place.clock.pass(MINUTE * 2);
    for url in &urls {
        assert_eq!(get(url), (403, "AccessDenied".to_owned()), "{url}");
    }
    assert_eq!(
        code(&client.form("bucket", &[("key", "form")], 600, -1)),
        (403, "AccessDenied".to_owned())
    );
    // They are good again while the clock is set back, as their text says.
    place.clock.set_back(MINUTE * 5);
    for url in &urls {
        assert_eq!(get(url).0, 200, "{url}");
    }
}

/// A client's clock may differ from the server's by a quarter of an hour.
#[test]
fn a_request_is_signed_near_the_servers_time() {
    let place = Place::new();
    place.clock.pass(DAY);
    let service = bucket(&place);
    let behind = Client {
        clock: Ahead::default(),
        ..service.client.clone()
    };
    behind.clock.pass(DAY - MINUTE * 14);
    behind.put("/bucket/k", b"value", Mode::Chunks).status(200);
    place.clock.pass(MINUTE * 2);
    let skewed = (403, "RequestTimeTooSkewed".to_owned());
    assert_eq!(code(&behind.get("/bucket/k")), skewed);
    assert_eq!(code(&behind.put("/bucket/k", b"v", Mode::Chunks)), skewed);
    behind.clock.pass(MINUTE * 30);
    behind.get("/bucket/k").status(200);
    behind.clock.pass(MINUTE * 2);
    assert_eq!(code(&behind.get("/bucket/k")), skewed);
}

#[test]
fn sessions_and_keys_end() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/k", b"value", Mode::Whole).status(200);
    let made = place
        .run(&["key", "create", "--json", "--allow", "*=admin", "--expires", "1h"])
        .code(0)
        .json();
    let short = client.with_key(&made);
    // Of 900 seconds.
    let first = session(&short, None);
    place.clock.pass(MINUTE * 14);
    first.get("/bucket/k").status(200);
    place.clock.pass(MINUTE * 2);
    let ended = code(&first.get("/bucket/k"));
    assert_eq!(ended.1, "ExpiredToken");
    place.clock.pass(MINUTE * 43);
    let last = session(&short, None);
    last.get("/bucket/k").status(200);
    // The key ends before its last session would.
    place.clock.pass(MINUTE * 2);
    assert_eq!(code(&short.get("/bucket/k")), (403, "InvalidAccessKeyId".to_owned()));
    assert_eq!(code(&last.get("/bucket/k")), (403, "InvalidAccessKeyId".to_owned()));
    client.get("/bucket/k").status(200);
}

#[test]
fn policies_begin_and_end_by_date() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    client.put("/bucket/k", b"value", Mode::Whole).status(200);
    let (begin, end) = (date(client, HOUR), date(client, HOUR * 2));
    let policy = format!(
        r#"{{"Statement":{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{{"DateGreaterThan":{{"aws:CurrentTime":"{begin}"}},"DateLessThan":{{"aws:CurrentTime":"{end}"}}}}}}}}"#
    );
    client.send("PUT", "/bucket?policy", &[], policy.as_bytes()).status(204);
    let read = || anonymous(&client.address, "GET", "/bucket/k", "");
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(read());
        place.clock.pass(MINUTE * 61);
    }
    assert_eq!(statuses, [403, 200, 403]);
}

/// The latest version is the one that was written last, whatever the clock said.
#[test]
fn versions_keep_their_order_when_the_clock_is_set_back() {
    let place = Place::new();
    place.clock.pass(DAY * 2);
    let service = bucket(&place);
    let client = &service.client;
    let put = |body: &[u8]| {
        let put = client.put("/bucket/k", body, Mode::Whole).status(200);
        put.header("x-amz-version-id").map(str::to_owned)
    };
    assert_eq!(put(b"null"), None);
    place.clock.set_back(DAY);
    client.send("PUT", "/bucket?versioning", &[], VERSIONING).status(200);
    let first = put(b"first").unwrap();
    place.clock.set_back(DAY);
    let service = service.restart(&place);
    let client = &service.client;
    let second = client.put("/bucket/k", b"second", Mode::Whole).status(200);
    let second = second.header("x-amz-version-id").unwrap().to_owned();
    assert_eq!(client.get("/bucket/k").status(200).text(), "second");
    client.send("DELETE", "/bucket/k", &[], b"").status(204);
    client.get("/bucket/k").status(404);
    let all = client.get("/bucket?versions").status(200);
    let marker = elements(&all, "VersionId").remove(0);
    assert_eq!(elements(&all, "VersionId")[1..], [second, first, "null".to_owned()]);
    assert_eq!(elements(&all, "IsLatest"), ["true", "false", "false", "false"]);
    client
        .send("DELETE", &format!("/bucket/k?versionId={marker}"), &[], b"")
        .status(204);
    assert_eq!(client.get("/bucket/k").status(200).text(), "second");
}

/// An event has the server's time, and one that its target does not take is given up after a day.
#[test]
fn events_are_given_up_after_a_day() {
    let place = Place::new();
    place.clock.pass(DAY * 3);
    // It says nothing. The port stays bound, so that no other test gets the event.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("hook=http://{}/", silent.local_addr().unwrap());
    let mut service = Service::start(&place, &["--s3-notify", &nowhere]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    let skip = [("x-amz-skip-destination-validation", "true")];
    let rule = events::configuration("Queue", events::HOOK, "s3:ObjectCreated:*", "");
    client
        .send("PUT", "/bucket?notification", &skip, rule.as_bytes())
        .status(200);
    let before = date(&client, Duration::ZERO);
    client.put("/bucket/lost", b"v", Mode::Whole).status(200);
    let after = date(&client, Duration::from_secs(1));
    service.end();
    place.clock.pass(DAY + HOUR);
    let (url, got) = events::webhook(vec![503]);
    let hook = format!("hook={url}");
    let service = Service::with_key(&place, &["--s3-notify", &hook], &client.id, &client.secret);
    service.client.put("/bucket/told", b"v", Mode::Whole).status(200);
    let next = || {
        let (status, event) = got.recv_timeout(PATIENCE).unwrap();
        let record = &event["Records"][0];
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        (status, text(&record["s3"]["object"]["key"]), text(&record["eventTime"]))
    };
    let (status, key, time) = next();
    assert_eq!((status, key.as_str()), (503, "lost"));
    assert!(
        before[..19] <= time[..19] && time[..19] <= after[..19],
        "{before} {time} {after}"
    );
    let (status, key, _) = next();
    assert_eq!((status, key.as_str()), (200, "told"));
    eventually("it is counted", || {
        let metrics = service.metrics();
        metrics.contains("\nterrace_s3_events_lost_total 1\n").then_some(())
    });
}

/// Regression: dates end with the year 9999, and a time after it, or before 1970, ended the request
/// that was to tell it in a panic. A retention until the end of 9999 in a western time zone made
/// its object unreadable, a rule for uploads with the most days their beginning impossible, and
/// with a clock that is set wrong nothing could be put or read any more. Such a clock now stands at
/// the first or the last time that dates have.
#[test]
fn times_that_have_no_date() {
    let place = Place::new();
    let service = bucket(&place);
    let client = &service.client;
    let abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>2147483647</DaysAfterInitiation>\
        </AbortIncompleteMultipartUpload>";
    walk(client, &[("", abort)]);
    let begun = client.send("POST", "/bucket/k?uploads", &[], b"").status(200);
    assert_eq!(begun.header("x-amz-abort-date"), None);
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    client.send("PUT", "/locked", &locked, b"").status(200);
    let retention = [
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-retain-until-date", "9999-12-31T23:59:59-12:00"),
    ];
    client.send("PUT", "/locked/k", &retention, b"v").status(200);
    let got = client.get("/locked/k").status(200);
    assert_eq!(
        got.header("x-amz-object-lock-retain-until-date"),
        Some("9999-12-31T23:59:59.999Z")
    );
    client
        .send("PUT", "/bucket?acl", &[("x-amz-acl", "public-read-write")], b"")
        .status(200);
    place.clock.pass(DAY * 366 * 8_100);
    let ask = |method: &str, path: &str, headers: &str| anonymous(&client.address, method, path, headers);
    let readable = "Content-Length: 0\r\nx-amz-acl: public-read\r\n";
    assert_eq!(ask("PUT", "/bucket/late", readable), 200);
    for (method, path) in [
        ("HEAD", "/bucket/late"),
        ("GET", "/bucket/late"),
        ("GET", "/bucket?list-type=2"),
        ("GET", "/bucket/none"),
    ] {
        let expected = if path.ends_with("none") { 404 } else { 200 };
        assert_eq!(ask(method, path, ""), expected, "{method} {path}");
    }
}
