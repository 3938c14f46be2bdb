//! The terminal while `terrace top` draws on it: its other screen, keys as they are pressed.

use super::view::Line;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use std::{
    io::{self, Write as _},
    time::Duration,
};

/// To the other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Back to what was there.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Cells of a terminal that does not say how large it is.
const SIZE: (u16, u16) = (80, 24);

const ESCAPE: u8 = 0x1b;
/// Ctrl-C, which is no signal here.
const INTERRUPT: u8 = 0x03;

/// The terminal, until it is dropped.
pub struct Terminal {
    /// How it was.
    before: Termios,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// If standard input or output is none.
    pub fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let terminal = Self { before };
        say(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        let size = tcgetwinsize(io::stdout()).map_or(SIZE, |size| (size.ws_col, size.ws_row));
        if size.0 == 0 || size.1 == 0 { SIZE } else { size }
    }

    /// Draws as many of the lines as there are rows.
    ///
    /// # Errors
    /// The terminal's.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let rows = usize::from(self.size().1);
        let shown: Vec<_> = lines
            .iter()
            .take(rows)
            .map(|line| format!("\x1b[K{}", line.styled()))
            .collect();
        say(&format!("\x1b[H{}\x1b[J", shown.join("\r\n")))
    }

    /// Waits for a key that quits, at most for so long.
    ///
    /// # Errors
    /// The terminal's.
    pub fn is_left(&self, longest: Duration) -> io::Result<bool> {
        let stdin = io::stdin();
        let longest = Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&longest)) {
            // Also where it was resized.
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            other => other?,
        };
        let mut keys = [0; 64];
        let keys = match rustix::io::read(&stdin, &mut keys)? {
            // Nobody can press anything any more.
            0 => return Ok(true),
            length => &keys[..length],
        };
        Ok(quits(keys))
    }
}

/// Whether what was pressed quits. What arrows and the like send begins with an escape as well.
fn quits(keys: &[u8]) -> bool {
    match keys {
        [ESCAPE] => true,
        [ESCAPE, ..] => false,
        keys => keys.iter().any(|key| [b'q', INTERRUPT].contains(key)),
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = say(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_quit() {
        for keys in [&b"q"[..], b"qq", b"\x1b", b"\x03", b"xq"] {
            assert!(quits(keys), "{keys:?}");
        }
        for keys in [&b"x"[..], b"\x1b[A", b"Q"] {
            assert!(!quits(keys), "{keys:?}");
        }
    }
}
