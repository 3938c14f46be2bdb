//! Who reads in order by names that are no keys of the large space.
//!
//! An application may keep a value under another key than the one its callers ask for, as the S3
//! service does with objects that are written as they arrive. Then the keys that are read say
//! nothing of the order. So such an application says which name was asked for, is told which will
//! be asked for next, and knows the value's key.
//!
//! Invariant: bounded; the groups that were read longest ago are forgotten.

use super::{prefetch::RUN_MIN, streams::Heads};

use crate::api::group::{GroupRule, ordinal, successor};
use crate::key_hash;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Groups that are remembered.
const GROUPS_MAX: usize = 1 << 12;

/// The groups' readers.
#[derive(Debug)]
pub struct Runs {
    rule: GroupRule,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Each with when it was read last.
    groups: HashMap<u64, (Heads, f64)>,
    /// Reads so far.
    now: f64,
}

impl Runs {
    /// Nobody reads yet.
    #[must_use]
    pub fn new(rule: GroupRule) -> Self {
        Self {
            rule,
            state: Mutex::default(),
        }
    }

    /// Counts a read of `name`. What its reader will ask for next, if it has come by steps in
    /// order.
    #[must_use]
    pub fn read(&self, name: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.rule.group(name);
        let ordinal = ordinal(&name[prefix.len()..])?;
        let state = &mut *self.state.lock();
        state.now += 1.0;
        let hash = key_hash(prefix);
        if state.groups.len() >= GROUPS_MAX && !state.groups.contains_key(&hash) {
            state.forget();
        }
        let (heads, read_at) = state.groups.entry(hash).or_default();
        *read_at = state.now;
        if heads.read(ordinal, state.now) < RUN_MIN {
            return None;
        }
        let next = successor(&name[prefix.len()..])?;
        Some([prefix, &next].concat())
    }
}

impl State {
    /// Forgets a quarter of the groups.
    fn forget(&mut self) {
        let mut times: Vec<f64> = self.groups.values().map(|(_, read_at)| *read_at).collect();
        let quarter = times.len() / 4;
        let (_, limit, _) = times.select_nth_unstable_by(quarter, f64::total_cmp);
        let limit = *limit;
        self.groups.retain(|_, (_, read_at)| *read_at > limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(runs: &Runs, name: &str) -> Option<String> {
        let next = runs.read(name.as_bytes());
        next.map(|next| String::from_utf8_lossy(&next).into_owned())
    }

    #[test]
    fn who_goes_in_order_is_known_from_the_third_step_on() {
        let runs = Runs::new(GroupRule::LastSlash);
        assert_eq!(read(&runs, "v/a/seg-008.ts"), None);
        assert_eq!(read(&runs, "v/b/seg-009.ts"), None);
        assert_eq!(read(&runs, "v/a/seg-009.ts"), None);
        assert_eq!(read(&runs, "v/a/seg-010.ts").as_deref(), Some("v/a/seg-011.ts"));
        assert_eq!(read(&runs, "v/a/seg-010.ts"), None, "once for each step");
        assert_eq!(read(&runs, "v/a/seg-200.ts"), None, "who jumps begins anew");
        assert_eq!(read(&runs, "v/a/index"), None);
    }

    #[test]
    fn groups_are_bounded() {
        let runs = Runs::new(GroupRule::LastSlash);
        for group in 0..GROUPS_MAX + 10 {
            assert_eq!(read(&runs, &format!("{group}/1")), None);
        }
        assert!(runs.state.lock().groups.len() <= GROUPS_MAX);
        let late = GROUPS_MAX + 9;
        assert_eq!(read(&runs, &format!("{late}/2")), None);
        assert_eq!(read(&runs, &format!("{late}/3")), Some(format!("{late}/4")));
    }
}
