//! One slot per core, each on cache lines of its own.
//!
//! Linux: `alloc_percpu`. The number of slots is fixed at construction: cores do not come and go
//! while a stack exists, so an index needs no lock and a slot never moves.
//!
//! Not here: the mapping of threads to cores (`stack::Cx`), and any check that only its core writes
//! a slot. The slot's type decides which sharing is allowed.

use core::ops::{Index, IndexMut};

use crate::padded::Padded;

/// A fixed slice of [`Padded`] slots, indexed by core number.
#[derive(Debug)]
pub struct PerCore<T>(Box<[Padded<T>]>);

impl<T> PerCore<T> {
    /// Makes `count` slots, each by `make(core index)`.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> T) -> Self {
        Self((0..count).map(|index| Padded::new(make(index))).collect())
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no slot.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the slot of core `index`, if there is such a core.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index).map(|slot| &**slot)
    }

    /// Returns all slots in core order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter().map(|slot| &**slot)
    }

    /// Returns all slots in core order, mutable: possible only before the cores start or after they
    /// end.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        self.0.iter_mut().map(|slot| &mut **slot)
    }
}

/// Panics if there is no such core, as a slice does.
impl<T> Index<usize> for PerCore<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}

impl<T> IndexMut<usize> for PerCore<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_indexed_by_core_and_on_separate_lines() {
        let mut slots = PerCore::new(3, |core| core * 10);
        slots[2] += 1;
        assert_eq!(slots.iter().copied().collect::<Vec<_>>(), [0, 10, 21]);
        assert_eq!((slots.len(), slots.get(3)), (3, None));
        let distance = (&raw const slots[1]).addr() - (&raw const slots[0]).addr();
        assert_eq!(distance, 128);
    }
}
