//! Prints figures and stores them as JSON lines with the conditions of the measurement.

use std::{io::Write, process::Command};

pub struct Report {
    host: String,
    json: Option<std::fs::File>,
}

fn output(program: &str, arguments: &[&str]) -> String {
    Command::new(program)
        .args(arguments)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

impl Report {
    pub fn new() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo")
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")
                    .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
            })
            .unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let commit = output("git", &["rev-parse", "--short", "HEAD"]);
        let kernel = output("uname", &["-sr"]);
        let host = format!("\"cpu\":\"{cpu}\",\"cores\":{cores},\"kernel\":\"{kernel}\",\"commit\":\"{commit}\"");
        let json = std::env::var_os("TERRACE_BENCH_JSON")
            .map(|path| std::fs::File::options().create(true).append(true).open(path).unwrap());
        println!("# {cpu}, {cores} cores, {kernel}, commit {commit}");
        Self { host, json }
    }

    pub fn heading(&self, text: &str) {
        println!("\n## {text}\n\n| what | figure | device | ratio | notes |\n|---|---|---|---|---|");
    }

    /// One figure; `device` is the device's own for the same work, if measured.
    pub fn figure(&mut self, what: &str, figure: f64, unit: &str, device: Option<f64>, notes: &str) {
        let shown = device.map_or_else(|| "-".to_owned(), |device| format!("{device:.0}"));
        let ratio = device.map_or_else(|| "-".to_owned(), |device| format!("{:.2}", figure / device));
        println!("| {what} | {figure:.2} {unit} | {shown} | {ratio} | {notes} |");
        if let Some(json) = &mut self.json {
            let device = device.map_or_else(|| "null".to_owned(), |device| format!("{device:.3}"));
            writeln!(
                json,
                "{{\"what\":\"{what}\",\"figure\":{figure:.3},\"unit\":\"{unit}\",\"device\":{device},\"notes\":\"{notes}\",{}}}",
                self.host
            )
            .unwrap();
        }
    }
}
