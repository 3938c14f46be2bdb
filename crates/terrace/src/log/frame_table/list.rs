//! A list that is read without a lock. Appended items are visible to readers that have loaded the
//! list already; to remove items, the list is replaced.
//!
//! The cost of replacing it grows with the number of threads that have ever read: each is checked
//! for the old list. So there are spare cells at the end.

use arc_swap::{ArcSwapOption, Guard};
use std::sync::{Arc, OnceLock};

type Cells<T> = Vec<OnceLock<T>>;

/// See the module. Callers that change it must serialise that by a lock of their own.
#[derive(Debug)]
pub struct List<T>(ArcSwapOption<Cells<T>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(ArcSwapOption::empty())
    }
}

/// The list as it was when it was loaded, and what has been appended since.
pub struct Loaded<T>(Guard<Option<Arc<Cells<T>>>>);

impl<T: Clone> List<T> {
    /// Loads it, for a reader.
    pub fn load(&self) -> Loaded<T> {
        Loaded(self.0.load())
    }

    /// Appends an item.
    pub fn push(&self, item: T) {
        let loaded = self.load();
        let Err(item) = loaded.fill_spare(item) else { return };
        let mut items: Vec<T> = loaded.iter().cloned().collect();
        items.push(item);
        let spare = items.len();
        self.replace(items, spare);
    }

    /// Replaces its items, with room for so many more.
    pub fn replace(&self, items: Vec<T>, spare: usize) {
        let spare = (0..spare).map(|_| OnceLock::new());
        let cells: Cells<T> = items.into_iter().map(OnceLock::from).chain(spare).collect();
        self.0.store((!cells.is_empty()).then(|| Arc::new(cells)));
    }
}

impl<T> Loaded<T> {
    fn cells(&self) -> &[OnceLock<T>] {
        self.0.as_ref().map_or(&[], |cells| cells)
    }

    fn fill_spare(&self, item: T) -> Result<(), T> {
        match self.cells().get(self.len()) {
            Some(spare) => spare.set(item),
            None => Err(item),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.cells().partition_point(|cell| cell.get().is_some())
    }

    /// From the first to the last.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.cells()[..self.len()].iter().filter_map(OnceLock::get)
    }

    /// The last of the items at the front for which `is_before` holds.
    pub fn last_before(&self, is_before: impl Fn(&T) -> bool) -> Option<&T> {
        let is_before = |cell: &OnceLock<T>| cell.get().is_some_and(&is_before);
        let count = self.cells().partition_point(is_before);
        self.cells().get(count.checked_sub(1)?)?.get()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn numbers(loaded: &Loaded<u32>) -> Vec<u32> {
        loaded.iter().copied().collect()
    }

    #[test]
    fn a_reader_of_the_list_sees_appends_and_misses_nothing_that_is_removed() {
        let list = List::default();
        assert_eq!(
            (numbers(&list.load()), list.load().last_before(|_| true)),
            (vec![], None)
        );
        list.replace(vec![1, 2], 2);
        let before = list.load();
        list.push(3);
        list.push(4);
        assert_eq!(numbers(&before), [1, 2, 3, 4]);
        list.push(5);
        assert_eq!(
            (numbers(&before), numbers(&list.load())),
            (vec![1, 2, 3, 4], vec![1, 2, 3, 4, 5])
        );
        list.replace(vec![5], 0);
        list.push(6);
        assert_eq!((before.len(), numbers(&list.load())), (4, vec![5, 6]));
        assert_eq!(list.load().last_before(|number| *number < 6), Some(&5));
        assert_eq!(list.load().last_before(|number| *number < 9), Some(&6));
        assert_eq!(list.load().last_before(|number| *number < 5), None);
        list.replace(vec![], 0);
        assert_eq!((list.load().len(), list.load().iter().next_back()), (0, None));
    }
}
