//! A directory to work in, a server in this process or the program as one, runs of the program,
//! HTTP by hand.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};
use tempfile::TempDir;
use terrace::Clock;
use terrace_server::Serving;

/// Longest wait for anything here, on a machine that is busy with other work. Waits end as soon as
/// the condition holds.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of every server and command.
const SETTINGS: [(&str, &str); 3] = [
    ("TERRACE_SEGMENT_SIZE", "1MiB"),
    ("TERRACE_FLASH_CAPACITY", "64MiB"),
    ("TERRACE_S3_LISTEN", "127.0.0.1:0"),
];

/// Cache of a server in this process. Without it each takes a quarter of the machine's memory, and
/// the table for that takes longer to make and to drop than most tests.
const CACHE: (&str, &str) = ("TERRACE_CACHE", "64MiB");

/// The system's clock, moved forward. Clones are moved together.
#[derive(Clone, Default)]
pub struct Ahead(Arc<AtomicU64>);

impl Ahead {
    pub fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    /// Moves it on.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Sets it back, at most to the system's time.
    pub fn set_back(&self, time: Duration) {
        let ms = time.as_millis() as u64;
        let before = self.0.fetch_sub(ms, Ordering::SeqCst);
        assert!(before >= ms, "not behind the system's clock");
    }

    fn clock(&self) -> Clock {
        let ahead = self.clone();
        Clock::new(move || ahead.now())
    }
}

/// An empty directory, in which servers and the program run with small segments and without
/// settings from outside.
pub struct Place {
    pub dir: TempDir,
    /// The clock of servers in this process.
    pub clock: Ahead,
    /// The command that starts the program there, if this process does not do it itself.
    starter: &'static [&'static str],
}

impl Place {
    pub fn new() -> Self {
        Self::with_starter(&[])
    }

    /// A place where the program is started by another one, which executes its arguments.
    pub fn with_starter(starter: &'static [&'static str]) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            clock: Ahead::default(),
            starter,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let program = env!("CARGO_BIN_EXE_terrace");
        let mut line = self.starter.iter().copied().chain([program]);
        let mut command = Command::new(line.next().unwrap_or(program));
        command.args(line);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TERRACE_") {
                command.env_remove(name);
            }
        }
        command.envs(SETTINGS).env_remove("RUST_LOG");
        command.current_dir(self.dir.path()).args(args).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Run {
        Run(self.command(args).output().unwrap())
    }

    pub fn run_with_input<A: AsRef<OsStr>>(&self, args: &[A], input: &[u8]) -> Run {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        Run(output)
    }

    /// A server in this process. Relative paths in `more` are this process's.
    pub fn serve(&self, more: &[&str]) -> Server {
        let serving = self.serving(more);
        Server {
            address: serving.page().to_string(),
            process: Process::Here(Some(serving)),
        }
    }

    /// The same, where addresses are not all that is asked of it.
    pub fn serving(&self, more: &[&str]) -> Serving {
        let store = self.path("terrace-data");
        let own = [CACHE, ("TERRACE_STORE", store.to_str().unwrap())];
        let variables = SETTINGS.into_iter().chain(own);
        let arguments = ["--listen", "127.0.0.1:0"].into_iter().chain(more.iter().copied());
        Serving::start(arguments, variables, self.clock.clock()).unwrap()
    }

    /// The program as a server, for what concerns a process.
    pub fn serve_program(&self, more: &[&str]) -> Server {
        Server::start(self.command(&["serve", "--listen", "127.0.0.1:0"]).args(more))
    }
}

/// A run of the program that has ended.
pub struct Run(pub Output);

impl Run {
    /// Expects this exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(
            self.0.status.code(),
            Some(code),
            "stdout: {}\nstderr: {}",
            self.text(),
            self.error()
        );
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub fn error(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).unwrap()
    }
}

/// Where a server runs. It ends when this is dropped: the program is killed.
pub enum Process {
    /// `None` when it has ended.
    Here(Option<Serving>),
    Program(Child),
}

impl Process {
    /// The program.
    #[track_caller]
    pub fn child(&self) -> &Child {
        match self {
            Self::Program(child) => child,
            Self::Here(_) => panic!("this server is no process of its own"),
        }
    }

    /// Stops it in order, in a program by SIGTERM, and waits for its end.
    #[track_caller]
    pub fn end(&mut self) {
        match self {
            Self::Here(serving) => serving.take().unwrap().stop().unwrap(),
            Self::Program(child) => {
                signal(child, "TERM");
                assert!(wait(child).success());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Program(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server, and the address of its page.
pub struct Server {
    pub process: Process,
    pub address: String,
}

impl Server {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Some(address) = line
            .trim()
            .strip_prefix("http://")
            .and_then(|rest| rest.strip_suffix('/'))
        else {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("no address but {line:?}; stderr: {error}");
        };
        let address = address.to_owned();
        Self {
            process: Process::Program(child),
            address,
        }
    }

    pub fn child(&self) -> &Child {
        self.process.child()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let host = if headers.iter().any(|(name, _)| *name == "Host") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        self.send(format!("{method} {path} HTTP/1.1\r\n{host}{lines}Connection: close\r\n\r\n").as_bytes())
    }

    /// Sends bytes as they are and reads until the server closes.
    pub fn send(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    /// Sends SIGINT and waits for the end.
    pub fn interrupt(&mut self) -> ExitStatus {
        let Process::Program(child) = &mut self.process else {
            panic!("no signal for this process");
        };
        signal(child, "INT");
        wait(child)
    }

    pub fn error(mut self) -> String {
        let Process::Program(child) = &mut self.process else {
            panic!("what it prints goes elsewhere");
        };
        let _ = child.kill();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    eventually("the program ends", || child.try_wait().unwrap())
}

/// Polls until something is there.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An HTTP answer.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .expect("an answer has a head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        Self {
            status,
            headers,
            body: bytes[end + 4..].to_vec(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}\n{}", self.headers, self.text());
        self
    }
}

/// Every file under `dir`.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Bytes that do not repeat within a value.
pub fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = vec![0; length];
    // By eight: a step for each byte takes ten times as long in a debug build.
    for part in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    bytes
}
