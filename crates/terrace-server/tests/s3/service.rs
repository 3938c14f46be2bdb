//! The S3 service: of a server in this process, or of the program, where that is killed or its
//! process is looked at.

use crate::{
    common::{Place, Process, eventually, signal, wait},
    operating,
    sign::Client,
};
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

/// A server whose store already has access keys, or makes the first one.
pub struct Service {
    pub process: Process,
    pub client: Client,
    pub page: String,
}

impl Service {
    /// One in this process.
    pub fn start(place: &Place, more: &[&str]) -> Self {
        Self::here(place, more, None)
    }

    /// The same in a store that has this key.
    pub fn with_key(place: &Place, more: &[&str], id: &str, secret: &str) -> Self {
        Self::here(place, more, Some((id, secret)))
    }

    fn here(place: &Place, more: &[&str], key: Option<(&str, &str)>) -> Self {
        let serving = place.serving(more);
        let made;
        let (id, secret) = match key.or(serving.first_key()) {
            Some(key) => key,
            None => {
                made = admin_key(place);
                (made.0.as_str(), made.1.as_str())
            }
        };
        let client = Client {
            address: serving.s3().unwrap().to_string(),
            id: id.to_owned(),
            secret: secret.to_owned(),
            clock: place.clock.clone(),
        };
        Self {
            page: format!("http://{}/", serving.page()),
            client,
            process: Process::Here(Some(serving)),
        }
    }

    /// The program, for what concerns a process.
    pub fn program(place: &Place, more: &[&str]) -> Self {
        let (id, secret) = admin_key(place);
        Self::program_with_key(place, more, &id, &secret)
    }

    pub fn program_with_key(place: &Place, more: &[&str], id: &str, secret: &str) -> Self {
        let mut command = place.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let page = lines.next().unwrap().unwrap();
        let line = lines.next().unwrap().unwrap();
        let address = line
            .strip_prefix("http://")
            .and_then(|rest| rest.strip_suffix("/ (S3)"))
            .unwrap();
        let client = Client {
            address: address.to_owned(),
            id: id.to_owned(),
            secret: secret.to_owned(),
            clock: place.clock.clone(),
        };
        Self {
            process: Process::Program(child),
            client,
            page,
        }
    }

    pub fn child(&self) -> &Child {
        self.process.child()
    }

    /// Stops it in order.
    #[track_caller]
    pub fn end(&mut self) {
        self.process.end();
    }

    /// The address of the page.
    pub fn page_address(&self) -> &str {
        self.page.trim_start_matches("http://").trim_end_matches('/')
    }

    /// The metrics, as text.
    pub fn metrics(&self) -> String {
        operating::plain(self.page_address(), "/metrics").status(200).text()
    }

    /// Waits until so many requests are being answered.
    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) {
        let line = format!("\nterrace_s3_in_flight {count}\n");
        eventually("so many requests are under way", || {
            self.metrics().contains(&line).then_some(())
        });
    }

    /// Stops it in order and starts it again.
    pub fn restart(mut self, place: &Place) -> Self {
        let client = self.client.clone();
        let start = match &self.process {
            Process::Here(_) => Self::with_key,
            Process::Program(_) => Self::program_with_key,
        };
        self.end();
        start(place, &[], &client.id, &client.secret)
    }

    /// Kills the program and starts it again.
    pub fn kill_and_restart(self, place: &Place) -> Self {
        let client = self.client.clone();
        self.kill();
        Self::program_with_key(place, &[], &client.id, &client.secret)
    }

    pub fn kill(mut self) {
        signal(self.child(), "KILL");
        let Process::Program(child) = &mut self.process else {
            unreachable!();
        };
        wait(child);
    }
}

/// A key that may do everything.
fn admin_key(place: &Place) -> (String, String) {
    let made = place
        .run(&["key", "create", "--allow", "*=admin", "--json"])
        .code(0)
        .json();
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("access_key_id"), text("secret_access_key"))
}
