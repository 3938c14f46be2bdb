//! The players: sessions that each read a title in order, one thread each, from any server.
//!
//! A player starts when its first segment has arrived, keeps some segments ahead of the one being
//! played, and pauses if the next one has not arrived in time. A pause is measured from the time at
//! which the segment should have been played.

use super::{Server, Settings, System};
use crate::{
    Outcome,
    harness::{
        driver::in_threads,
        latency::{Latencies, LatencySummary},
        values::Values,
    },
    video::sessions::{Session, Titles},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Traffic of an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Bytes delivered to players.
    pub delivered_bytes: u64,
    /// Bytes read from the disk for this.
    pub disk_read_bytes: u64,
    /// Bytes written to flash.
    pub flash_written_bytes: u64,
}

impl Window {
    /// The difference to an earlier reading.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            delivered_bytes: self.delivered_bytes - earlier.delivered_bytes,
            disk_read_bytes: self.disk_read_bytes - earlier.disk_read_bytes,
            flash_written_bytes: self.flash_written_bytes - earlier.flash_written_bytes,
        }
    }

    /// Adds another interval.
    pub const fn add(&mut self, other: &Self) {
        self.delivered_bytes += other.delivered_bytes;
        self.disk_read_bytes += other.disk_read_bytes;
        self.flash_written_bytes += other.flash_written_bytes;
    }

    /// Share of the delivered bytes that did not come from the disk. Negative if more was read than
    /// delivered.
    pub fn hits(&self) -> f64 {
        1.0 - self.disk_read_bytes as f64 / self.delivered_bytes.max(1) as f64
    }
}

/// Results of reading at full speed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rush {
    /// Duration.
    pub seconds: f64,
    /// Segments read.
    pub reads: u64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Latencies of the reads.
    pub latency: LatencySummary,
}

/// Results of playing at the bit rate. Only sessions that began when all players had started count.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Played {
    /// Number of sessions.
    pub sessions: u64,
    /// Sessions with a pause.
    pub paused_sessions: u64,
    /// Number of pauses.
    pub pauses: u64,
    /// Total duration of pauses.
    pub paused_seconds: f64,
    /// Total duration of playing.
    pub shown_seconds: f64,
    /// Time from the request of a title to its first segment.
    pub start: LatencySummary,
}

impl Played {
    fn add(&mut self, seen: &Seen) {
        self.sessions += 1;
        self.paused_sessions += u64::from(seen.pauses > 0);
        self.pauses += seen.pauses;
        self.paused_seconds += seen.paused.as_secs_f64();
        self.shown_seconds += seen.shown.as_secs_f64();
    }
}

/// One session.
#[derive(Debug, Default)]
struct Seen {
    started_after: Duration,
    pauses: u64,
    paused: Duration,
    shown: Duration,
}

/// The sessions on a server.
pub struct Audience<'a> {
    server: &'a dyn Server,
    titles: Mutex<Titles>,
    values: &'a Values,
    settings: &'a Settings,
    delivered_bytes: AtomicU64,
}

impl<'a> Audience<'a> {
    /// Before the first session.
    pub fn new(server: &'a dyn Server, titles: Titles, values: &'a Values, settings: &'a Settings) -> Self {
        Self {
            server,
            titles: Mutex::new(titles),
            values,
            settings,
            delivered_bytes: AtomicU64::new(0),
        }
    }

    /// Traffic so far.
    pub fn so_far(&self) -> Window {
        Window {
            delivered_bytes: self.delivered_bytes.load(Ordering::Relaxed),
            disk_read_bytes: self.server.disk_read_bytes(),
            flash_written_bytes: self.server.flash_written_bytes(),
        }
    }

    /// Reads segments one after the other until a number of sessions have begun, and returns the
    /// traffic in equal parts of that number. For the server, the playing time of the sessions
    /// passes meanwhile.
    pub fn warm_up(&self, windows: u64, progress: impl Fn(f64) + Sync) -> Outcome<Vec<Window>> {
        let scene = &self.settings.scene;
        let each = Duration::from_secs_f64(scene.segment_seconds / self.settings.sessions as f64);
        // Without flash only a little RAM warms up.
        let wanted = if self.settings.system == System::DiskOnly {
            windows * 5
        } else {
            scene.warm_up_sessions
        };
        let (end, per_window) = (AtomicBool::new(false), (wanted / windows).max(1));
        let pictures = Mutex::new(vec![self.so_far()]);
        in_threads(self.settings.sessions, |_| {
            while !end.load(Ordering::Relaxed) {
                let session = {
                    let mut titles = self.titles.lock();
                    if titles.begun > 0 && titles.begun.is_multiple_of(per_window) {
                        let mut pictures = pictures.lock();
                        pictures.push(self.so_far());
                        progress(pictures.len() as f64 / windows as f64);
                        end.fetch_or(pictures.len() as u64 > windows, Ordering::Relaxed);
                    }
                    titles.begin()
                };
                for object in self.objects(session) {
                    self.read(object)?;
                    self.server.warm_up_passed(Some(each))?;
                    if end.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            Ok(())
        })?;
        self.server.warm_up_passed(None)?;
        let pictures = pictures.into_inner();
        let mut parts: Vec<Window> = pictures.windows(2).map(|pair| pair[1].since(&pair[0])).collect();
        parts.truncate(windows as usize);
        Ok(parts)
    }

    /// All players read at full speed, until a number of segments has been requested.
    pub fn rush(&self) -> Outcome<Rush> {
        let wanted = self.settings.scene.rush_reads;
        let (started, before) = (Instant::now(), self.so_far());
        let latencies = Mutex::new(Latencies::default());
        let reads = AtomicU64::new(0);
        in_threads(self.settings.sessions, |_| {
            let mut own = Latencies::default();
            'wanted: loop {
                let session = self.titles.lock().begin();
                for object in self.objects(session) {
                    if reads.fetch_add(1, Ordering::Relaxed) >= wanted {
                        break 'wanted;
                    }
                    let asked = Instant::now();
                    self.read(object)?;
                    own.record(asked.elapsed());
                }
            }
            latencies.lock().add(&own);
            Ok(())
        })?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Rush {
            seconds,
            reads: wanted,
            bytes_per_second: self.so_far().since(&before).delivered_bytes as f64 / seconds,
            latency: latencies.into_inner().summary(),
        })
    }

    /// All players play. They start one after the other within the length of a title; sessions that
    /// began before all had started do not count.
    pub fn play(&self) -> Outcome<Played> {
        let scene = &self.settings.scene;
        let title = Duration::from_secs_f64(scene.segment_seconds * scene.catalogue.parts as f64);
        let (started, time) = (Instant::now(), Duration::from_secs_f64(scene.play_seconds));
        let played = Mutex::new((Played::default(), Latencies::default()));
        in_threads(self.settings.sessions, |thread| {
            std::thread::sleep(title.mul_f64(thread as f64 / self.settings.sessions as f64));
            while started.elapsed() < time {
                let counts = started.elapsed() >= title;
                let session = self.titles.lock().begin();
                let seen = self.see(session, started + time)?;
                if counts {
                    let mut played = played.lock();
                    played.0.add(&seen);
                    played.1.record(seen.started_after);
                }
            }
            Ok(())
        })?;
        let (mut played, starts) = played.into_inner();
        played.start = starts.summary();
        Ok(played)
    }

    /// Plays one session, until its end or the end of the measurement.
    fn see(&self, session: Session, end: Instant) -> Outcome<Seen> {
        let scene = &self.settings.scene;
        let segment = Duration::from_secs_f64(scene.segment_seconds);
        let wished = Instant::now();
        let mut seen = Seen::default();
        // When the segments received so far will have been played.
        let mut shown_until = wished;
        for (number, object) in self.objects(session).enumerate() {
            // With all its segments ahead, a player waits until one of them is being played.
            let room_at = shown_until.checked_sub(segment * scene.ahead as u32);
            if let Some(wait) = room_at.and_then(|at| at.checked_duration_since(Instant::now())) {
                std::thread::sleep(wait);
            }
            if number > 0 && Instant::now() >= end {
                break;
            }
            self.read(object)?;
            let now = Instant::now();
            if number == 0 {
                seen.started_after = now - wished;
                shown_until = now;
            } else if let Some(late) = now.checked_duration_since(shown_until).filter(|late| !late.is_zero()) {
                seen.pauses += 1;
                seen.paused += late;
                shown_until = now;
            }
            shown_until += segment;
            seen.shown += segment;
        }
        Ok(seen)
    }

    fn objects(&self, session: Session) -> std::ops::Range<usize> {
        let first = session.title * self.settings.scene.catalogue.parts;
        first..first + session.parts
    }

    /// Reads a segment and checks every byte.
    fn read(&self, object: usize) -> Outcome {
        let found = self.server.read(object)?;
        let length = self.settings.scene.segment_bytes;
        if **found != *self.values.piece(object as u64, length) {
            return Err(format!(
                "object {object}: {} bytes that are not the {length} bytes stored",
                found.len()
            )
            .into());
        }
        self.delivered_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(())
    }
}
