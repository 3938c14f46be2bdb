//! Well-known eviction policies for whole objects, on the same reads: their hits, and their writes
//! to flash.

use std::collections::{BTreeMap, VecDeque};

/// An eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Evicts the least recently used.
    Lru,
    /// Evicts the oldest.
    Fifo,
    /// Evicts the oldest, unless it was used since it came: then it is written again.
    SecondChance,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Fifo, Self::SecondChance];

    /// As text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "LRU",
            Self::Fifo => "FIFO",
            Self::SecondChance => "second chance",
        }
    }
}

/// A cache with space for this many objects. Every object that is read and missing is written.
#[derive(Debug)]
pub struct Cache {
    rule: Rule,
    objects_max: usize,
    /// For each object: when it came or was last used, and whether it was used since it came.
    there: Vec<Option<(u64, bool)>>,
    order: VecDeque<(usize, u64)>,
    by_use: BTreeMap<u64, usize>,
    now: u64,
    count: usize,
    /// Hits.
    pub hits: u64,
    /// Objects written.
    pub writes: u64,
}

impl Cache {
    /// An empty cache, for objects with numbers below `objects`.
    pub fn new(rule: Rule, objects_max: usize, objects: usize) -> Self {
        Self {
            rule,
            objects_max: objects_max.max(1),
            there: vec![None; objects],
            order: VecDeque::new(),
            by_use: BTreeMap::new(),
            now: 0,
            count: 0,
            hits: 0,
            writes: 0,
        }
    }

    /// Reads an object.
    pub fn read(&mut self, object: usize) {
        self.now += 1;
        if let Some((at, used)) = &mut self.there[object] {
            self.hits += 1;
            *used = true;
            if self.rule == Rule::Lru {
                self.by_use.remove(at);
                *at = self.now;
                self.by_use.insert(self.now, object);
            }
            return;
        }
        while self.count >= self.objects_max {
            self.evict();
        }
        self.count += 1;
        self.insert(object);
    }

    fn insert(&mut self, object: usize) {
        self.writes += 1;
        self.there[object] = Some((self.now, false));
        if self.rule == Rule::Lru {
            self.by_use.insert(self.now, object);
        } else {
            self.order.push_back((object, self.now));
        }
    }

    fn evict(&mut self) {
        if self.rule == Rule::Lru {
            if let Some((_, object)) = self.by_use.pop_first() {
                self.there[object] = None;
                self.count -= 1;
            }
            return;
        }
        let Some((object, _)) = self.order.pop_front() else {
            return;
        };
        let was_used = self.there[object].is_some_and(|(_, used)| used);
        if self.rule == Rule::SecondChance && was_used {
            self.insert(object);
        } else {
            self.there[object] = None;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(rule: Rule, reads: &[usize]) -> (u64, u64) {
        let mut cache = Cache::new(rule, 2, 10);
        reads.iter().for_each(|&object| cache.read(object));
        (cache.hits, cache.writes)
    }

    #[test]
    fn each_rule_lets_another_one_go() {
        // When 3 comes, 1 is the oldest and 2 the least recently used.
        let reads = [1, 2, 1, 3, 1];
        assert_eq!(hits(Rule::Lru, &reads), (2, 3));
        assert_eq!(hits(Rule::Fifo, &reads), (1, 4));
        // 1 is written again.
        assert_eq!(hits(Rule::SecondChance, &reads), (2, 4));
    }
}
