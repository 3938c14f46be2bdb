//! memcached with extstore: a cache with keys in RAM and values on flash. It persists nothing and
//! may evict.
//!
//! Debian's program is started for the run. It is used through its meta commands (protocol.txt,
//! "Meta Commands") over a unix socket, with one connection per active caller.

use super::{Figures, KeyValue, Lookups, Opening};
use crate::Outcome;
use ::terrace::Durability;
use parking_lot::Mutex;
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Longest key of the protocol.
const KEY_BYTES_MAX: usize = 250;
/// Longest value: with the flag -I.
const VALUE_BYTES_MAX: usize = 8 << 20;
/// Longest wait for an answer: once an answer of 1 MiB stopped after its first bytes, without an
/// error.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for its start.
const START: Duration = Duration::from_secs(10);
/// Longest path of a unix socket (sun_path in unix(7)), with its zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A running server.
pub struct Memcached {
    server: Mutex<Child>,
    process: u32,
    /// Directory of its socket; removed when dropped.
    _directory: tempfile::TempDir,
    socket: PathBuf,
    idle: Mutex<Vec<Connection>>,
    lookups: Lookups,
    settings: String,
}

struct Connection {
    stream: BufReader<UnixStream>,
    request: Vec<u8>,
}

impl Memcached {
    /// Starts a server.
    pub fn open(opening: &Opening) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("terrace-bench-").tempdir()?;
        let socket = directory.path().join("memcached");
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(format!(
                "{} is too long for a socket; set TMPDIR to a shorter one",
                socket.display()
            )
            .into());
        }
        let ram_mib = (opening.cache_bytes >> 20).max(64);
        let flash_mib = opening.flash_bytes_of_cache() >> 20;
        let extstore = opening.directory.join("extstore");
        let server = Command::new("memcached")
            .arg("-s")
            .arg(&socket)
            .args(["-u", "root", "-c", "1100", "-t", "2"])
            .args(["-m", &ram_mib.to_string(), "-I", &format!("{}m", VALUE_BYTES_MAX >> 20)])
            .arg("-o")
            .arg(format!("ext_path={}:{flash_mib}m,ext_wbuf_size=16", extstore.display()))
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("memcached cannot be started ({error}); install the package memcached"))?;
        let process = server.id();
        let memcached = Self {
            server: Mutex::new(server),
            process,
            _directory: directory,
            socket,
            idle: Mutex::new(Vec::new()),
            lookups: Lookups::default(),
            settings: format!(
                "Debian's memcached; {ram_mib} MiB of RAM, extstore of {flash_mib} MiB, values to {} MiB, 2 threads, the rest its defaults; \
                 one connection for each thread, over a unix socket",
                VALUE_BYTES_MAX >> 20
            ),
        };
        memcached.wait_for_start()?;
        Ok(memcached)
    }

    fn wait_for_start(&self) -> Outcome {
        let since = Instant::now();
        loop {
            if let Some(status) = self.server.lock().try_wait()? {
                return Err(format!("memcached ended at once ({status})").into());
            }
            match self.sync() {
                Ok(()) => return Ok(()),
                Err(error) if since.elapsed() > START => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Makes a request on a free connection. After a failure the connection is closed, since its
    /// next answer is unknown.
    fn ask<T>(&self, request: impl FnOnce(&mut Connection) -> Outcome<T>) -> Outcome<T> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.socket)?,
        };
        let answer = request(&mut connection)?;
        self.idle.lock().push(connection);
        Ok(answer)
    }
}

/// A key in the protocol's form, without spaces and control characters. Others are converted to
/// hexadecimal.
fn protocol_key(key: &[u8]) -> Outcome<String> {
    let is_plain = key.first() != Some(&b'%') && key.iter().all(u8::is_ascii_graphic);
    let text = if is_plain {
        String::from_utf8_lossy(key).into_owned()
    } else {
        key.iter().fold("%".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    if text.is_empty() || text.len() > KEY_BYTES_MAX {
        return Err(format!(
            "memcached: a key of {} bytes; at most {KEY_BYTES_MAX} are allowed",
            text.len()
        )
        .into());
    }
    Ok(text)
}

impl Connection {
    fn open(socket: &Path) -> Outcome<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            request: Vec::new(),
        })
    }

    fn send(&mut self) -> Outcome<String> {
        self.stream.get_mut().write_all(&self.request)?;
        let mut line = String::new();
        (&mut self.stream).take(4096).read_line(&mut line)?;
        if !line.ends_with("\r\n") {
            return Err("memcached ended".into());
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn command(&mut self, command: &str) -> Outcome<String> {
        self.request.clear();
        self.request.extend_from_slice(command.as_bytes());
        self.request.extend_from_slice(b"\r\n");
        self.send()
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        if value.len() > VALUE_BYTES_MAX {
            return Err(format!("memcached: a value of {} bytes", value.len()).into());
        }
        self.request.clear();
        write!(self.request, "ms {} {}\r\n", protocol_key(key)?, value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        match self.send()?.as_str() {
            "HD" => Ok(()),
            other => Err(format!("memcached: {other}").into()),
        }
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        let command = format!("mg {} v", protocol_key(key)?);
        let line = self.command(&command)?;
        if line == "EN" {
            return Ok(false);
        }
        let length: usize = match line.split(' ').collect::<Vec<_>>()[..] {
            ["VA", length, ..] => length.parse()?,
            _ => return Err(format!("memcached: {line}").into()),
        };
        if length > VALUE_BYTES_MAX {
            return Err(format!("memcached: a value of {length} bytes").into());
        }
        value.resize(length + 2, 0);
        self.stream.read_exact(value)?;
        value.truncate(length);
        Ok(true)
    }
}

impl KeyValue for Memcached {
    fn put(&self, key: &[u8], value: &[u8], _: Durability) -> Outcome {
        self.ask(|connection| connection.set(key, value))
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        value.clear();
        let found = self.ask(|connection| connection.get(key, value))?;
        self.lookups.count(found);
        Ok(found)
    }

    fn delete(&self, key: &[u8], _: Durability) -> Outcome {
        let command = format!("md {}", protocol_key(key)?);
        let line = self.ask(|connection| connection.command(&command))?;
        match line.as_str() {
            "HD" | "NF" => Ok(()),
            _ => Err(format!("memcached: {line}").into()),
        }
    }

    fn scan(&self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome {
        Err("memcached has no order to scan in".into())
    }

    /// It has no durability; an answer shows that earlier requests have been processed.
    fn sync(&self) -> Outcome {
        match self.ask(|connection| connection.command("mn"))?.as_str() {
            "MN" => Ok(()),
            line => Err(format!("memcached: {line}").into()),
        }
    }

    fn figures(&self) -> Figures {
        self.lookups.figures()
    }

    fn process(&self) -> Option<u32> {
        Some(self.process)
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let mut server = self.server.lock();
        let _ = server.kill();
        let _ = server.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn different_keys_stay_different() {
        let keys: [&[u8]; 5] = [b"plain", b"%706c61696e", b"with space", b"\0", b"%"];
        let texts: Vec<String> = keys.iter().map(|key| protocol_key(key).unwrap()).collect();
        for (at, text) in texts.iter().enumerate() {
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert!(!texts[..at].contains(text), "{text}");
        }
        assert!(protocol_key(b"").is_err() && protocol_key(&[b'a'; 251]).is_err());
    }
}
