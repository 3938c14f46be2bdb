//! What RAM alone tells.

use super::{History, Step, name};
use terrace::RamAnswer;

impl History<'_> {
    /// What RAM alone tells of a key is what there is.
    pub(super) fn get_in_ram(&mut self, key: &[u8]) -> Step {
        let info = self.store.head_in_ram(key);
        let info = self.survive(info)?;
        let expected = self.held(key).map(|held| (held.version, held.attributes.clone()));
        match info {
            RamAnswer::Found(info) => {
                assert_eq!(
                    Some((info.version.0, info.attributes)),
                    expected,
                    "in RAM, {}",
                    name(key)
                );
            }
            RamAnswer::Absent => assert_eq!(expected, None, "absent by RAM, {}", name(key)),
            RamAnswer::Unknown => {}
        }
        let reader = self.store.reader_in_ram(key);
        if let Some(mut reader) = self.survive(reader)? {
            let value: Vec<u8> = std::iter::from_fn(|| reader.piece_in_ram()).flatten().collect();
            let expected = self.held(key).map(|held| held.value.as_ref());
            assert!(Some(&*value) == expected, "value in RAM of {}", name(key));
        }
        Ok(())
    }
}
