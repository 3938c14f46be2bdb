//! Notifications: what happens in a bucket, told to a webhook.

use crate::{
    Service, code,
    common::{Answer, PATIENCE, Place},
    elements,
    sign::{Client, Mode},
};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
use serde_json::Value;
use std::{
    io::{self, BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
};

/// A webhook that answers with these statuses, one after the other, and then takes everything. What
/// it got, with the answers.
pub fn webhook(mut statuses: Vec<u16>) -> (String, Receiver<(u16, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/events?x=y", listener.local_addr().unwrap());
    let (sender, got) = channel();
    thread::spawn(move || {
        let mut last = None;
        for stream in listener.incoming() {
            let status = if statuses.is_empty() { 200 } else { statuses.remove(0) };
            let told = (status, take_event(stream.unwrap(), status).unwrap());
            // What the server took for lost, since this was slow, it tells again.
            if last.as_ref() == Some(&told) {
                continue;
            }
            last = Some(told.clone());
            if sender.send(told).is_err() {
                return;
            }
        }
    });
    (url, got)
}

/// Takes an event, and answers with this status.
fn take_event(stream: impl Read + Write, status: u16) -> io::Result<Value> {
    let mut stream = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    stream.read_line(&mut line)?;
    assert_eq!(line, "POST /events?x=y HTTP/1.1\r\n");
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let stream = stream.get_mut();
    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")?;
    stream.flush()?;
    Ok(serde_json::from_slice(&body).unwrap())
}

/// A webhook that speaks TLS, and the certificate by which it is known. What it got, or why it got
/// nothing.
fn tls_webhook() -> (String, String, Receiver<io::Result<Value>>) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/events?x=y", listener.local_addr().unwrap());
    let (sender, got) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let taken = take_event(StreamOwned::new(connection, stream.unwrap()), 200);
            if sender.send(taken).is_err() {
                return;
            }
        }
    });
    (url, made.cert.pem(), got)
}

pub fn configuration(kind: &str, arn: &str, event: &str, filter: &str) -> String {
    format!(
        "<NotificationConfiguration><{kind}Configuration><Id>rule</Id><{kind}>{arn}</{kind}><Event>{event}</Event>{filter}\
         </{kind}Configuration></NotificationConfiguration>"
    )
}

pub const HOOK: &str = "arn:aws:sqs:us-east-1:terrace:hook";
const JPEGS: &str = "<Filter><S3Key><FilterRule><Name>prefix</Name><Value>in/</Value></FilterRule>\
    <FilterRule><Name>suffix</Name><Value>.jpg</Value></FilterRule></S3Key></Filter>";

fn notify(client: &Client, configuration: &str) -> Answer {
    client.send("PUT", "/bucket?notification", &[], configuration.as_bytes())
}

/// The event's name, key and version, and the order of its commit.
fn told(event: &Value) -> (String, String, String) {
    let record = &event["Records"][0];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let object = &record["s3"]["object"];
    (
        text(&record["eventName"]),
        text(&object["key"]),
        text(&object["sequencer"]),
    )
}

/// A server with a bucket, whose settings name a webhook.
fn with_hook(place: &Place) -> (Service, Receiver<(u16, Value)>) {
    let (url, got) = webhook(Vec::new());
    let service = Service::start(place, &["--s3-notify", &format!("hook={url}")]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    (service, got)
}

/// Regression: if rules named addresses, a client that may configure a bucket could make the server
/// call any of them; and rules that cannot be kept are refused.
#[test]
fn rules_name_targets_of_the_settings() {
    let place = Place::new();
    let (service, got) = with_hook(&place);
    let client = &service.client;
    let created = configuration("Queue", HOOK, "s3:ObjectCreated:*", JPEGS);
    let again = created
        .replace("<Id>rule</Id>", "<Id>2</Id>")
        .replace("in/", "in/deep/");
    let again = again.replace("<NotificationConfiguration>", "");
    for (wrong, message) in [
        (
            configuration("Queue", "arn:aws:sqs:us-east-1:terrace:other", "s3:ObjectCreated:*", ""),
            "destination",
        ),
        (configuration("Topic", "hook", "s3:ObjectCreated:*", ""), "ARN"),
        (configuration("Queue", HOOK, "s3:ObjectRestore:*", ""), "not supported"),
        (configuration("Queue", HOOK, "s3:*", ""), "not supported"),
        (
            configuration("Queue", HOOK, "s3:ObjectAcl:Put", &JPEGS.replace("prefix", "infix")),
            "filter rule name",
        ),
        (created.replace("</NotificationConfiguration>", &again), "overlap"),
    ] {
        let refused = notify(client, &wrong);
        assert_eq!(code(&refused), (400, "InvalidArgument".to_owned()));
        assert!(refused.text().contains(message), "{}", refused.text());
    }
    notify(client, &created).status(200);
    let shown = client.get("/bucket?notification").status(200);
    assert_eq!(elements(&shown, "Queue"), [HOOK]);
    assert_eq!(elements(&shown, "Value"), ["in/", ".jpg"]);
    let (_, event) = got.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (&event["Event"], &event["Bucket"]),
        (&"s3:TestEvent".into(), &"bucket".into())
    );
}

#[test]
fn a_webhook_is_told_what_is_written() {
    let place = Place::new();
    let (service, got) = with_hook(&place);
    let client = &service.client;
    let next = || got.recv_timeout(PATIENCE).unwrap().1;
    notify(client, &configuration("Queue", HOOK, "s3:ObjectCreated:*", JPEGS)).status(200);
    next();
    client.put("/bucket/out/a.jpg", b"v", Mode::Whole).status(200);
    client.put("/bucket/in/a.png", b"v", Mode::Whole).status(200);
    let put = client.put("/bucket/in/a%20b.jpg", b"value", Mode::Whole).status(200);
    let event = next();
    let record = &event["Records"][0];
    let text = |pointer: &str| record.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
    let (number, tag) = (put.header("x-amz-request-id").unwrap(), put.header("etag").unwrap());
    for (pointer, expected) in [
        ("/eventName", "ObjectCreated:Put"),
        ("/eventSource", "aws:s3"),
        ("/userIdentity/principalId", client.id.as_str()),
        ("/requestParameters/sourceIPAddress", "127.0.0.1"),
        ("/responseElements/x-amz-request-id", number),
        ("/s3/configurationId", "rule"),
        ("/s3/bucket/name", "bucket"),
        ("/s3/object/key", "in/a+b.jpg"),
        ("/s3/object/eTag", tag.trim_matches('"')),
    ] {
        assert_eq!(text(pointer), expected, "{pointer}");
    }
    assert_eq!(record["s3"]["object"]["size"], 5);
    let copy = [("x-amz-copy-source", "/bucket/in/a%20b.jpg")];
    client.send("PUT", "/bucket/in/c.jpg", &copy, b"").status(200);
    let copied = told(&next());
    assert_eq!(
        (copied.0.as_str(), copied.1.as_str()),
        ("ObjectCreated:Copy", "in/c.jpg")
    );
    assert!(copied.2 > told(&event).2, "in the order of the commits");
    client.form("bucket", &[("key", "in/form.jpg")], 0, 60).status(204);
    assert_eq!(told(&next()).0, "ObjectCreated:Post");
}

#[test]
fn a_webhook_is_told_what_is_deleted() {
    let place = Place::new();
    let (service, got) = with_hook(&place);
    let client = &service.client;
    let next = || got.recv_timeout(PATIENCE).unwrap().1;
    for key in ["a", "b", "c"] {
        client.put(&format!("/bucket/{key}"), b"v", Mode::Whole).status(200);
    }
    let tagging = configuration("Queue", HOOK, "s3:ObjectTagging:Put", "").replace("<Id>rule</Id>", "");
    let both = configuration("Topic", "arn:aws:sns:us-east-1:terrace:hook", "s3:ObjectRemoved:*", "").replace(
        "</NotificationConfiguration>",
        &tagging.replace("<NotificationConfiguration>", ""),
    );
    notify(client, &both).status(200);
    next();
    client.put("/bucket/silent", b"v", Mode::Whole).status(200);
    let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    client.send("PUT", "/bucket/a?tagging", &[], tags).status(200);
    assert_eq!(told(&next()).0, "ObjectTagging:Put");
    client.send("DELETE", "/bucket/a", &[], b"").status(204);
    assert_eq!(told(&next()).0, "ObjectRemoved:Delete");
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    client.send("PUT", "/bucket?versioning", &[], enabled).status(200);
    let list = b"<Delete><Object><Key>b</Key></Object></Delete>";
    client.send("POST", "/bucket?delete", &[], list).status(200);
    let marked = next();
    assert_eq!(told(&marked).0, "ObjectRemoved:DeleteMarkerCreated");
    let version = marked["Records"][0]["s3"]["object"]["versionId"].as_str().unwrap();
    client
        .send("DELETE", &format!("/bucket/b?versionId={version}"), &[], b"")
        .status(204);
    let deleted = next();
    assert_eq!(told(&deleted).0, "ObjectRemoved:Delete");
    assert_eq!(deleted["Records"][0]["s3"]["object"]["versionId"], version);
    notify(client, "<NotificationConfiguration/>").status(200);
    client.send("DELETE", "/bucket/c", &[], b"").status(204);
    // The bucket goes with nothing left over, and nothing is told any more.
    assert!(got.try_recv().is_err());
}

/// A rule of a lifecycle gives an object another class. The event was refused as one that never
/// happens, though transitions do.
#[test]
fn a_webhook_is_told_what_becomes_of_another_class() {
    let place = Place::new();
    let (service, got) = with_hook(&place);
    let client = &service.client;
    client.put("/bucket/k", b"value", Mode::Whole).status(200);
    notify(client, &configuration("Queue", HOOK, "s3:LifecycleTransition", "")).status(200);
    assert_eq!(got.recv_timeout(PATIENCE).unwrap().1["Event"], "s3:TestEvent");
    let rules = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan></Filter>\
        <Transition><Date>2020-01-01T00:00:00Z</Date><StorageClass>GLACIER_IR</StorageClass></Transition>\
        </Rule></LifecycleConfiguration>";
    client
        .send("PUT", "/bucket?lifecycle", &[], rules.as_bytes())
        .status(200);
    let event = got.recv_timeout(PATIENCE).unwrap().1;
    let record = &event["Records"][0];
    assert_eq!(told(&event).0, "LifecycleTransition");
    assert_eq!(told(&event).1, "k");
    assert_eq!(record["userIdentity"]["principalId"], "s3.amazonaws.com");
    assert_eq!(record["s3"]["object"]["size"], 5);
    let class = &record["lifecycleEventData"]["transitionEventData"]["destinationStorageClass"];
    assert_eq!(class, "GLACIER_IR");
    let got = client.send("HEAD", "/bucket/k", &[], b"").status(200);
    assert_eq!(got.header("x-amz-storage-class"), Some("GLACIER_IR"));
}

/// An event that its target does not take stays in the store, also when the server is killed, and
/// comes before those behind it.
#[test]
fn events_survive_a_kill_and_are_sent_again() {
    let place = Place::new();
    let (url, got) = webhook(vec![503, 302]);
    let hook = format!("hook={url}");
    // No server listens at first. The port stays bound: otherwise a server of another test could
    // get it, and the events.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = silent.local_addr().unwrap();
    let service = Service::program(&place, &["--s3-notify", &format!("hook=http://{nowhere}/")]);
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    let skip = [("x-amz-skip-destination-validation", "true")];
    let rule = configuration("Queue", HOOK, "s3:ObjectCreated:*", "");
    client
        .send("PUT", "/bucket?notification", &skip, rule.as_bytes())
        .status(200);
    for key in ["a", "b", "c"] {
        client.put(&format!("/bucket/{key}"), b"v", Mode::Whole).status(200);
    }
    service.kill();
    drop(silent);
    let service = Service::with_key(&place, &["--s3-notify", &hook], &client.id, &client.secret);
    let mut all = Vec::new();
    while all.len() < 5 {
        let (status, event) = got.recv_timeout(PATIENCE).unwrap();
        all.push((status, told(&event).1));
    }
    let expected = [(503, "a"), (302, "a"), (200, "a"), (200, "b"), (200, "c")];
    assert_eq!(all, expected.map(|(status, key)| (status, key.to_owned())));
    // Each was counted before the next was told.
    let metrics = service.metrics();
    let mut lines = metrics.lines();
    let refused = lines.find_map(|line| line.strip_prefix("terrace_s3_events_refused_total "));
    assert!(refused.unwrap().parse::<u64>().unwrap() >= 2, "{metrics}");
}

/// Regression: events were not sent over TLS. A target whose certificate no trusted authority has
/// signed gets none of them; they wait, and are sent to one with a valid certificate.
#[test]
fn events_go_over_tls() {
    let place = Place::new();
    let (url, certificate, got) = tls_webhook();
    let (_, other, _) = tls_webhook();
    place.write("theirs.pem", certificate);
    place.write("others.pem", other);
    place.write("none.pem", "nothing");
    let hook = format!("hook={url}");
    let files = ["none.pem", "others.pem", "theirs.pem"].map(|name| place.path(name).display().to_string());
    let [none, others, theirs] = &files;
    let with = |authorities| ["--s3-notify", &*hook, "--s3-notify-ca", authorities];
    let refused = place
        .run(&[&["serve", "--listen", "127.0.0.1:0"][..], &with(none)].concat())
        .code(2);
    assert!(refused.error().contains("none.pem"), "{}", refused.error());
    let service = Service::start(&place, &with(others));
    let client = service.client.clone();
    client.send("PUT", "/bucket", &[], b"").status(200);
    notify(&client, &configuration("Queue", HOOK, "s3:ObjectCreated:*", "")).status(200);
    client.put("/bucket/k", b"value", Mode::Whole).status(200);
    got.recv_timeout(PATIENCE).unwrap().unwrap_err();
    drop(crate::encryption::stop(service));

    let service = Service::with_key(&place, &with(theirs), &client.id, &client.secret);
    let next = || loop {
        // What was refused before is of the first server.
        if let Ok(event) = got.recv_timeout(PATIENCE).unwrap() {
            return event;
        }
    };
    assert_eq!(next()["Event"], "s3:TestEvent");
    assert_eq!(told(&next()).1, "k");
    drop(service);
}

/// A server of NATS that answers with these, one after the other, and then as a stream that takes
/// everything. What was published: the number of the event, and the event.
fn nats(mut answers: Vec<&'static str>) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://me:se:cret@{}/events.s3", listener.local_addr().unwrap());
    let (sender, got) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = if answers.is_empty() { TAKEN } else { answers.remove(0) };
            let published = take_published(stream.unwrap(), answer).unwrap();
            if sender.send(published).is_err() {
                return;
            }
        }
    });
    (url, got)
}

const TAKEN: &str = r#"MSG {"stream":"EVENTS","seq":1}"#;
const NOT_TAKEN: &str = r#"MSG {"error":{"code":503,"description":"no space"}}"#;
const NO_STREAM: &str = "HMSG NATS/1.0 503";

fn take_published(stream: impl Read + Write, answer: &str) -> io::Result<(String, Value)> {
    let mut stream = BufReader::new(stream);
    stream
        .get_mut()
        .write_all(b"INFO {\"headers\":true,\"max_payload\":1048576}\r\nPING\r\n")?;
    let mut next = || -> io::Result<String> {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    let options: Value = serde_json::from_str(next()?.strip_prefix("CONNECT ").unwrap()).unwrap();
    assert_eq!((&options["user"], &options["pass"]), (&"me".into(), &"se:cret".into()));
    assert_eq!(options["no_responders"], true);
    let (inbox, publish) = (next()?, next()?);
    let inbox = inbox.strip_prefix("SUB ").unwrap().strip_suffix(" 1").unwrap();
    let lengths = publish.strip_prefix(&format!("HPUB events.s3 {inbox} ")).unwrap();
    let (head, all) = lengths.split_once(' ').unwrap();
    let (head, all): (usize, usize) = (head.parse().unwrap(), all.parse().unwrap());
    let mut published = vec![0; all + 2];
    stream.read_exact(&mut published)?;
    let (head, body) = published.split_at(head);
    let id = std::str::from_utf8(head)
        .unwrap()
        .strip_prefix("NATS/1.0\r\nNats-Msg-Id: ")
        .unwrap();
    let event = serde_json::from_slice(body.strip_suffix(b"\r\n").unwrap()).unwrap();
    let (kind, text) = answer.split_once(' ').unwrap();
    let answer = match kind {
        "MSG" => format!("MSG {inbox} 1 {}\r\n{text}\r\n", text.len()),
        _ => format!("HMSG {inbox} 1 {0} {0}\r\n{text}\r\n\r\n\r\n", text.len() + 4),
    };
    stream.get_mut().write_all(answer.as_bytes())?;
    let mut pong = String::new();
    stream.read_line(&mut pong)?;
    assert_eq!(pong, "PONG\r\n");
    Ok((id.trim_end().to_owned(), event))
}

/// Regression: events were sent to webhooks only. With NATS a stream must have stored an event
/// before it is deleted here: one that was not acknowledged, or was refused, is published again
/// with the same number, in order.
#[test]
fn events_are_published_until_a_stream_has_them() {
    let place = Place::new();
    let (url, got) = nats(vec![TAKEN, NO_STREAM, NOT_TAKEN]);
    let service = Service::start(&place, &["--s3-notify", &format!("hook={url}")]);
    let client = &service.client;
    client.send("PUT", "/bucket", &[], b"").status(200);
    notify(client, &configuration("Queue", HOOK, "s3:ObjectCreated:*", "")).status(200);
    let next = || got.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next().1["Event"], "s3:TestEvent");
    for key in ["a", "b"] {
        client.put(&format!("/bucket/{key}"), b"v", Mode::Whole).status(200);
    }
    let published: Vec<_> = (0..4).map(|_| next()).collect();
    let keys: Vec<_> = published.iter().map(|(_, event)| told(event).1).collect();
    assert_eq!(keys, ["a", "a", "a", "b"]);
    let ids: Vec<_> = published.iter().map(|(id, _)| id).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[2] < ids[3], "{ids:?}");
}
