//! The device's own speed, by `fio` in the same directory.

use std::{path::Path, process::Command};

fn fio(dir: &Path, arguments: &[&str], field: usize) -> Option<f64> {
    let dir = format!("--directory={}", dir.display());
    let output = Command::new("fio")
        .args([
            "--name=device",
            "--minimal",
            "--group_reporting",
            "--thread",
            "--direct=1",
            &dir,
        ])
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .rev()
        .find(|line| line.contains(';'))?
        .split(';')
        .nth(field)?
        .parse()
        .ok()
}

/// Random 4 KiB reads per second with this many threads.
pub fn random_reads(dir: &Path, threads: usize) -> Option<f64> {
    let jobs = format!("--numjobs={threads}");
    let arguments = [
        "--filename=fio.read",
        "--size=2g",
        "--rw=randread",
        "--bs=4k",
        "--ioengine=psync",
        "--runtime=5",
        "--time_based",
        &jobs,
    ];
    fio(dir, &arguments, 7)
}

/// 4 KiB writes per second, each followed by fdatasync.
pub fn synced_writes(dir: &Path) -> Option<f64> {
    let arguments = [
        "--filename=fio.sync",
        "--size=256m",
        "--rw=write",
        "--bs=4k",
        "--ioengine=psync",
        "--fdatasync=1",
        "--runtime=4",
        "--time_based",
    ];
    let figure = fio(dir, &arguments, 48);
    let _ = std::fs::remove_file(dir.join("fio.sync"));
    figure
}

/// Bytes per second of sequential 1 MiB writes.
pub fn sequential_writes(dir: &Path) -> Option<f64> {
    let arguments = [
        "--filename=fio.write",
        "--size=2g",
        "--rw=write",
        "--bs=1m",
        "--ioengine=psync",
        "--end_fsync=1",
    ];
    let figure = fio(dir, &arguments, 47);
    let _ = std::fs::remove_file(dir.join("fio.write"));
    figure.map(|kib| kib * 1024.0)
}
