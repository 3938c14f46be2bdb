//! Kernel events of short memory, so that no thread has to poll.
//!
//! | where | what | which |
//! |---|---|---|
//! | the machine, groups of version 2 | pressure | a task waited for memory (PSI, Linux 5.2) |
//! | groups of version 2 | `memory.events` | the limit was reached |
//! | groups of version 1 | thresholds | usage has passed three quarters of the limit, or more |
//! | groups of version 1 | pressure | memory is reclaimed |
//!
//! Each may be missing: old kernels, files without permission to write, groups of a container that
//! are mounted read-only. Traffic with clients is the fallback ([`Traffic`]).

use crate::http::Traffic;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::OwnedFd,
    fs::{Mode, OFlags, open},
};
use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
    time::Duration,
};

/// A tenth of a second within two: the shortest window that an unprivileged process may request.
const STALL: &[u8] = b"some 100000 2000000\0";
/// Thresholds of a group of version 1, as parts of 16 of its limit.
const THRESHOLDS: [u64; 4] = [12, 13, 14, 15];

/// Files with events.
#[derive(Debug, Default)]
pub struct Events {
    /// Pressure: waits for memory.
    pressures: Vec<OwnedFd>,
    /// `memory.events` of groups of version 2.
    counts: Vec<File>,
    /// The eventfd of groups of version 1.
    told: Option<OwnedFd>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// An event.
    Told,
    /// A timeout.
    Time,
}

impl Events {
    /// Registers for waits for memory; `file` is a `memory.pressure` or that of the machine.
    /// Returns whether it succeeded.
    pub fn add_pressure(&mut self, file: &Path) -> bool {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(opened) = open(file, flags, Mode::empty()) else {
            return false;
        };
        let is_taken = rustix::io::write(&opened, STALL).is_ok_and(|bytes| bytes == STALL.len());
        if is_taken {
            self.pressures.push(opened);
        }
        is_taken
    }

    /// The same for reached limits; `file` is a `memory.events`.
    pub fn add_counts(&mut self, file: &Path) -> bool {
        let mut opened = File::open(file).ok();
        let is_read = opened.as_mut().is_some_and(read_counts);
        self.counts.extend(opened.filter(|_| is_read));
        is_read
    }

    /// The same for a group of version 1 with this limit.
    pub fn add_group_1(&mut self, dir: &Path, limit_bytes: u64) -> bool {
        if self.told.is_none() {
            self.told = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok();
        }
        let Some(told) = &self.told else { return false };
        // The kernel keeps the registration for as long as `told` is open.
        let register = |name: &str, at: &str| {
            let watched = File::open(dir.join(name))?;
            let line = format!("{} {} {at}", told.as_raw_fd(), watched.as_raw_fd());
            let mut control = fs::OpenOptions::new()
                .write(true)
                .open(dir.join("cgroup.event_control"))?;
            control.write_all(line.as_bytes())
        };
        let at = |part: u64| (limit_bytes / 16 * part).to_string();
        let thresholds = THRESHOLDS.map(|part| register("memory.usage_in_bytes", &at(part)).is_ok());
        let is_pressure_told = register("memory.pressure_level", "low").is_ok();
        is_pressure_told || thresholds.contains(&true)
    }

    /// Waits for an event of the kernel or of traffic, or for a timeout.
    pub fn wait(&mut self, traffic: &Traffic, longest: Option<Duration>) -> Woken {
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let mut all = vec![PollFd::new(traffic, PollFlags::IN)];
        all.extend(self.told.iter().map(|told| PollFd::new(told, PollFlags::IN)));
        let own = all.len();
        all.extend(self.counts.iter().map(|file| PollFd::new(file, PollFlags::PRI)));
        let counts = all.len();
        all.extend(self.pressures.iter().map(|file| PollFd::new(file, PollFlags::PRI)));
        // A signal ends it early; an additional check is harmless.
        let outcome = poll(&mut all, longest.as_ref());
        let is_told: Vec<_> = all.iter().map(|polled| polled.revents()).collect();
        drop(all);
        if let Some(told) = &self.told {
            let _ = rustix::io::read(told, &mut [0; 8]);
        }
        for (file, told) in self.counts.iter_mut().zip(&is_told[own..]) {
            // It stays readable until it is read.
            if !told.is_empty() {
                read_counts(file);
            }
        }
        // Files with only an error have no further events.
        let mut of_pressures = is_told[counts..].iter();
        self.pressures
            .retain(|_| of_pressures.next().is_none_or(|told| !told.contains(PollFlags::ERR)));
        match outcome {
            Ok(0) => Woken::Time,
            _ => Woken::Told,
        }
    }
}

/// Reads a file again from its beginning.
fn read_counts(file: &mut File) -> bool {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{sync::Arc, thread, time::Instant};

    #[test]
    fn it_waits_for_traffic_and_no_longer_than_it_may() {
        let (mut events, traffic) = (Events::default(), Traffic::new(1000).unwrap());
        let short = Some(Duration::from_millis(20));
        assert_eq!(events.wait(&traffic, short), Woken::Time);
        let sender = thread::spawn({
            let traffic = Arc::clone(&traffic);
            move || {
                thread::sleep(Duration::from_millis(20));
                traffic.count(1000);
            }
        });
        assert_eq!(events.wait(&traffic, None), Woken::Told);
        sender.join().unwrap();
        traffic.look();
        assert_eq!(events.wait(&traffic, short), Woken::Time);
    }

    #[test]
    fn what_is_not_there_or_no_such_file_tells_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Events::default();
        assert!(!events.add_pressure(&dir.path().join("memory.pressure")));
        assert!(!events.add_counts(&dir.path().join("memory.events")));
        assert!(!events.add_group_1(dir.path(), 1 << 30));
        std::fs::write(dir.path().join("memory.events"), "max 0\n").unwrap();
        assert!(events.add_counts(&dir.path().join("memory.events")));
        let traffic = Traffic::new(1).unwrap();
        let began = Instant::now();
        assert_eq!(events.wait(&traffic, Some(Duration::from_millis(30))), Woken::Time);
        assert!(began.elapsed() >= Duration::from_millis(30));
    }
}
