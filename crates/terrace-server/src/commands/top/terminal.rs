//! The terminal of `terrace top`: alternate screen and raw keys.

use super::view::Line;
use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen},
};
use std::{
    io::{self, Write as _},
    time::Duration,
};

/// Size of a terminal that does not report one.
const SIZE: (u16, u16) = (80, 24);

/// The terminal, until it is dropped.
pub struct Terminal(());

impl Terminal {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// If standard input or output is no terminal.
    pub fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let terminal = Self(());
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        terminal::size()
            .ok()
            .filter(|size| size.0 > 0 && size.1 > 0)
            .unwrap_or(SIZE)
    }

    /// Draws as many lines as there are rows.
    ///
    /// # Errors
    /// The terminal's.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (row, line) in (0..self.size().1).zip(lines) {
            queue!(
                out,
                MoveTo(0, row),
                Clear(ClearType::UntilNewLine),
                Print(line.styled())
            )?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    /// Waits for a key that quits, or for the timeout, or for any other event that needs a redraw.
    ///
    /// # Errors
    /// The terminal's.
    pub fn is_left(&self, longest: Duration) -> io::Result<bool> {
        Ok(event::poll(longest)? && quits(&event::read()?))
    }
}

/// Whether an event quits. Ctrl-C is a key here and no signal.
fn quits(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossterm::event::KeyEvent;

    #[test]
    fn keys_that_quit() {
        let pressed = |code, modifiers| quits(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = KeyModifiers::NONE;
        assert!(pressed(KeyCode::Char('q'), plain) && pressed(KeyCode::Esc, plain));
        assert!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!pressed(KeyCode::Char('c'), plain) && !pressed(KeyCode::Up, plain));
        assert!(!quits(&Event::Resize(80, 24)));
    }
}
