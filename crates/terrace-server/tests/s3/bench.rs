//! `terrace bench s3`, on the program itself.

use crate::{
    Service,
    common::{Place, Process},
    elements, operating,
};
use std::process::Command;

/// The command for a server, which measures little and soon ends.
fn bench(place: &Place, endpoint: &str, service: &Service, more: &[&str]) -> Command {
    let mut command = place.command(&["bench", "s3", "--endpoint", endpoint]);
    command
        .args(["--seconds", "0.2", "--objects", "4", "--sizes", "4KiB,10MiB"])
        .args(["--part-size", "5MiB", "--range", "10000", "--connections", "1,8"])
        .args(more)
        .env("AWS_ACCESS_KEY_ID", &service.client.id)
        .env("AWS_SECRET_ACCESS_KEY", &service.client.secret);
    command
}

/// All operations, each with figures that can be; nothing is left behind, and the next run stands
/// beside the first.
#[test]
fn it_measures_each_operation_and_leaves_nothing() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let endpoint = format!("http://{}", service.client.address);
    let pid = service.child().id().to_string();
    let first = [
        "--json",
        "--name",
        "first",
        "--results",
        "rows",
        "--cold",
        "true",
        "--server-pid",
        &pid,
    ];
    let run = bench(&place, &endpoint, &service, &first).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let of = |name: &str| rows.iter().filter(|row| row["operation"] == name).count();
    for name in ["put", "list", "mixed", "delete"] {
        assert_eq!(of(name), 4, "two sizes, two numbers of connections: {name}");
    }
    for name in ["get", "range", "head"] {
        assert_eq!(of(name), 8, "and the same again, cold: {name}");
    }
    assert_eq!(of("multipart"), 2, "only what has several parts");
    for row in rows {
        assert!(
            row["count"].as_u64().unwrap() > 0 && row["failed"] == 0 && row["server_us"].is_number(),
            "{row}"
        );
        let (rate, seconds) = (row["per_second"].as_f64().unwrap(), row["seconds"].as_f64().unwrap());
        assert!((rate * seconds - row["count"].as_f64().unwrap()).abs() < 0.01, "{row}");
        let latencies: Vec<_> = row["latencies_us"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair[1].as_u64().unwrap())
            .collect();
        assert!(latencies.is_sorted() && latencies[0] > 0, "{row}");
        if row["operation"] == "get" && row["cold"] == true {
            assert!(row["count"].as_u64().unwrap() <= 4, "each object once at most: {row}");
        }
    }
    let metrics = service.metrics();
    let count = |operation: &str| {
        let name = format!("terrace_s3_requests_total{{operation=\"{operation}\",status=\"200\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let measured = |name: &str| -> u64 {
        let rows = rows.iter().filter(|row| row["operation"] == name);
        rows.map(|row| row["count"].as_u64().unwrap()).sum()
    };
    assert_eq!(count("CompleteMultipartUpload"), measured("multipart"));
    assert_eq!(count("ListObjectsV2"), measured("list"));
    let left = service.client.get("/terrace-bench?list-type=2").status(200);
    assert_eq!(elements(&left, "Key"), [""; 0], "all of it is deleted");
    stands_beside(&place, &service, rows.len());
}

/// A second run beside that many rows of the first.
fn stands_beside(place: &Place, service: &Service, rows: usize) {
    let endpoint = format!("http://{}", service.client.address);
    let second = [
        ["--name", "second"],
        ["--operations", "head"],
        ["--beside", "rows"],
        ["--picture", "rows.svg"],
    ];
    let run = bench(place, &endpoint, service, second.as_flattened())
        .output()
        .unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let beside = text
        .lines()
        .filter(|line| line.starts_with("head") && line.contains(" x first"))
        .count();
    assert_eq!(beside, 4, "{text}");
    let picture = std::fs::read_to_string(place.path("rows.svg")).unwrap();
    let drawn = |text: &str| picture.matches(text).count();
    assert_eq!((drawn("\nfirst\n"), drawn("\nsecond\n")), (1, 1), "the servers");
    assert_eq!(drawn("<circle"), 2 + 2 * (rows + 4), "two for each row of each");
}

/// Each object is written once, however short the time of a row is, and stays.
#[test]
fn it_fills_a_bucket() {
    let place = Place::new();
    let service = Service::program(&place, &[]);
    let mut command = place.command(&[
        "bench",
        "s3",
        "--endpoint",
        &format!("http://{}", service.client.address),
    ]);
    command
        .args(["--operations", "put,get", "--once", "--keep", "--json"])
        .args(["--objects", "1500", "--sizes", "1KiB", "--connections", "8"])
        .env("AWS_ACCESS_KEY_ID", &service.client.id)
        .env("AWS_SECRET_ACCESS_KEY", &service.client.secret);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let counts: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["count"]).collect();
    assert_eq!(counts, [1500, 1500]);
    let page = service.client.get("/terrace-bench?list-type=2").status(200);
    let keys = elements(&page, "Key");
    let expected: Vec<_> = (0..1000).map(|number| format!("bench-1024/{number:08}")).collect();
    assert_eq!(keys, expected);
    let rest = service
        .client
        .get("/terrace-bench?list-type=2&start-after=bench-1024%2F00000999");
    assert_eq!(elements(&rest.status(200), "Key").len(), 500);
}

#[test]
fn it_measures_over_tls() {
    let place = Place::new();
    let (child, client) = operating::start_with_tls(&place);
    let service = Service {
        process: Process::Program(child),
        page: String::new(),
        client,
    };
    let port = service.client.address.rsplit_once(':').unwrap().1;
    let endpoint = format!("https://localhost:{port}");
    let more = ["--json", "--operations", "put,get,range", "--ca", "tls.crt"];
    let run = bench(&place, &endpoint, &service, &more).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 12);
    assert!(rows.as_array().unwrap().iter().all(|row| row["tls"] == true));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    let endpoint = format!("http://{}", service.client.address);
    let mut wrong = bench(&place, &endpoint, &service, &[]);
    let run = wrong.env("AWS_SECRET_ACCESS_KEY", "another").output().unwrap();
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{error}");
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
    for (more, why) in [
        (["--operations", "fetch"], "none of put"),
        (["--mix", "delete=1"], "cannot be a part"),
        (["--connections", "0"], "from 1 to 10000"),
        (["--beside", "none"], "none"),
    ] {
        let run = bench(&place, &endpoint, &service, &more).output().unwrap();
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && error.contains(why), "{error}");
    }
    let run = place
        .command(&["bench", "s3", "--endpoint", &endpoint])
        .env_remove("AWS_ACCESS_KEY_ID")
        .output();
    assert_eq!(run.unwrap().status.code(), Some(2), "requests are signed");
}
