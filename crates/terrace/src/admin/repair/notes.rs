//! Messages of a repair. Bounded: a damaged block may concern a million keys.

/// Notes about single keys before they are only counted.
const KEY_NOTES_MAX: u64 = 1000;

/// Notes in the order they were made.
#[derive(Debug, Default)]
pub struct Notes {
    lines: Vec<String>,
    key_notes: u64,
}

impl Notes {
    /// Notes something about a file or the store.
    pub fn add(&mut self, note: impl Into<String>) {
        let note = note.into();
        tracing::warn!("repair: {note}");
        self.lines.push(note);
    }

    /// Notes something about one key.
    pub fn add_key(&mut self, key: &[u8], note: &str) {
        self.key_notes += 1;
        if self.key_notes <= KEY_NOTES_MAX {
            self.add(format!("key {:?}: {note}", String::from_utf8_lossy(key)));
        }
    }

    /// All of them.
    pub fn into_lines(mut self) -> Vec<String> {
        if let Some(more) = self.key_notes.checked_sub(KEY_NOTES_MAX).filter(|more| *more > 0) {
            self.add(format!("{more} more keys are concerned in one of these ways"));
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_up_to_a_limit_and_then_counted() {
        let mut notes = Notes::default();
        for n in 0..KEY_NOTES_MAX + 7 {
            notes.add_key(n.to_string().as_bytes(), "lost");
        }
        let lines = notes.into_lines();
        assert_eq!(lines.len() as u64, KEY_NOTES_MAX + 1);
        assert_eq!(lines[3], "key \"3\": lost");
        assert!(lines[1000].starts_with("7 more"), "{}", lines[1000]);
    }
}
