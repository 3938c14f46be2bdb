//! Well-known eviction policies for whole objects, on the same reads: their hits, and their writes
//! to flash.

use lru::LruCache;
use std::num::NonZeroUsize;

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
    /// The objects in the order of their eviction, and whether they were used since they came.
    there: LruCache<usize, bool>,
    /// Hits.
    pub hits: u64,
    /// Objects written.
    pub writes: u64,
}

impl Cache {
    /// An empty cache.
    pub fn new(rule: Rule, objects_max: usize) -> Self {
        Self {
            rule,
            there: LruCache::new(NonZeroUsize::new(objects_max).unwrap_or(NonZeroUsize::MIN)),
            hits: 0,
            writes: 0,
        }
    }

    /// Reads an object.
    pub fn read(&mut self, object: usize) {
        let used = match self.rule {
            Rule::Lru => self.there.get_mut(&object),
            Rule::Fifo | Rule::SecondChance => self.there.peek_mut(&object),
        };
        if let Some(used) = used {
            self.hits += 1;
            *used = true;
            return;
        }
        while self.there.len() == self.there.cap().get() {
            let oldest = self.there.pop_lru();
            if let Some((again, true)) = oldest.filter(|_| self.rule == Rule::SecondChance) {
                self.put(again);
            }
        }
        self.put(object);
    }

    fn put(&mut self, object: usize) {
        self.writes += 1;
        self.there.push(object, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(rule: Rule, reads: &[usize]) -> (u64, u64) {
        let mut cache = Cache::new(rule, 2);
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
