//! Reference counts of objects that readers find without holding a reference.
//!
//! Below: the `shim`. Above: [`crate::counted`]. Linux: `atomic_inc_not_zero` as `dst_hold_safe`
//! used it until 6.3, and `rcuref_t` (lib/rcuref.c, include/linux/rcuref.h) since.
//!
//! A reader that found an object in a table may take a reference only if at least one still exists:
//! a **conditional get**. The object stays allocated meanwhile, because the last put retires it for
//! a grace period ([`crate::epoch`]).
//!
//! ```text
//!   cas_inc_not_zero   0 dead │ 1 .. 2^31-1 references │ saturated; get is a CAS loop
//!
//!   rcuref             stores references - 1; get is one addition, independent of other threads
//!  0x0000_0000 ─ 0x7fff_ffff │ 0x8000_0000 ─ 0xa000_0000 │ 0xc000_0000 ─ 0xe000_0000 ─ 0xffff_ffff
//!  one reference 2^31        │ saturated:    reset here  │ dead:         DEAD          NOREF
//! ```
//!
//! *rcuref.* A put that reaches NOREF has dropped the last reference, but a get may revive the
//! object until a compare-and-swap from NOREF to DEAD has succeeded. The one put whose swap
//! succeeds owns the object. A get that lands in the dead zone stores DEAD again, so that no number
//! of gets or puts leaves the zone. A count that overflows is set to the middle of the saturated
//! zone: the object leaks, which is better than freeing it in use.
//!
//! *Section of a put.* Between its subtraction and its swap a put must be in a read section,
//! because another core may revive the object and drop its last reference meanwhile.
//! [`put_alone`](RefCount::put_alone) is for callers outside of any section: it swaps directly from
//! one reference to DEAD, and that swap is its last access to the count.
//!
//! *Sharded.* While an object has an owner, references are also counted in words of their own CPUs
//! (`Shards`), and the word here is `SPREAD` too high. Without an owner it is an rcuref.
//!
//! Not here: the counted objects, and the time at which they are freed.

use crate::epoch::Section;
use crate::shim::{AtomicU32, Ordering, fence};

pub(crate) use shards::Shards;

mod shards;
#[cfg(test)]
mod tests;

/// rcuref: no reference is left, and no put has changed the word to DEAD yet. One below one
/// reference.
const NOREF: u32 = 0xffff_ffff;
/// rcuref: maximum number of references, less one.
const MAXREF: u32 = 0x7fff_ffff;
/// rcuref: the middle of the saturated zone, 2^29 operations from either end.
const SATURATED: u32 = 0xa000_0000;
/// rcuref: start of the dead zone.
const RELEASED: u32 = 0xc000_0000;
/// rcuref: the middle of the dead zone.
const DEAD: u32 = 0xe000_0000;
/// Sharded: raises the word while references are counted elsewhere. Half of the valid zone, so that
/// neither 2^30 references nor 2^30 puts of references that are counted elsewhere leave the zone.
const SPREAD: u32 = 0x4000_0000;

/// Method of counting references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Counting {
    /// A conditional get is a loop of compare-and-swap.
    CasIncNotZero,
    /// A conditional get is one addition.
    #[default]
    Rcuref,
    /// As `Rcuref`, but while an object has an owner, a get and a put in a read section count in a
    /// word of their CPU.
    Sharded,
}

/// Result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// Other references exist, or the count is saturated.
    Shared,
    /// The caller put the last reference: it owns the object, and must retire it.
    Last,
    /// There was no reference to put: a bug of the caller. Nothing changed.
    Imbalanced,
}

/// A count in one 32-bit word, so that a layout can place it. The method of counting is an argument
/// of each call: it is read often, and must not share a line with a word that is written often.
#[derive(Debug)]
#[repr(transparent)]
pub struct RefCount {
    /// Count, as the head of the module describes. A get is Relaxed: the caller has a reference or
    /// a read section already. A put is Release and the last one Acquire: all accesses of holders
    /// come before the object is freed.
    word: AtomicU32,
}

impl RefCount {
    /// Makes a count of one reference, the creator's.
    pub fn new(counting: Counting) -> Self {
        let word = match counting {
            Counting::CasIncNotZero => 1,
            Counting::Rcuref | Counting::Sharded => 0,
        };
        Self { word: AtomicU32::new(word) }
    }

    /// Makes a count of one reference, the owner's, for an object with `Shards`.
    pub(crate) fn new_spread() -> Self {
        Self { word: AtomicU32::new(SPREAD) }
    }

    /// Adds the sum of the closed `Shards`. The owner calls it once, and still has its reference.
    pub(crate) fn gather(&self, sum: i64) {
        let Ok(change) = i32::try_from(sum - i64::from(SPREAD)) else {
            return self.word.store(SATURATED, Ordering::Relaxed);
        };
        let change = change.cast_unsigned();
        // Release: the puts that were counted in the shards come before the last put of the word.
        let word = self.word.fetch_add(change, Ordering::Release).wrapping_add(change);
        if word > MAXREF {
            self.word.store(SATURATED, Ordering::Relaxed);
        }
    }

    /// Returns the current number of references of an object, of which `sum` are counted in its
    /// `Shards`.
    pub(crate) fn refs_spread(&self, sum: i64) -> u32 {
        let word = self.word.load(Ordering::Relaxed);
        let spread = if (SPREAD / 2..=MAXREF).contains(&word) { SPREAD } else { 0 };
        let refs = i64::from(self.refs(Counting::Sharded)) + sum - i64::from(spread);
        u32::try_from(refs).unwrap_or(0)
    }

    /// Takes a reference unless the last one is gone.
    #[inline]
    #[must_use]
    pub fn try_get(&self, counting: Counting) -> bool {
        match counting {
            Counting::CasIncNotZero => self.cas_get(),
            Counting::Rcuref | Counting::Sharded => self.rcuref_get(),
        }
    }

    /// Puts a reference, inside a read section.
    #[inline]
    pub fn put(&self, counting: Counting, _section: &Section<'_>) -> Put {
        match counting {
            Counting::CasIncNotZero => self.cas_put(),
            Counting::Rcuref | Counting::Sharded => self.rcuref_put(),
        }
    }

    /// Puts a reference outside of any section, at the cost of a compare-and-swap loop.
    pub fn put_alone(&self, counting: Counting) -> Put {
        match counting {
            // A subtraction never accesses the count again, for any value it finds.
            Counting::CasIncNotZero => self.cas_put(),
            Counting::Rcuref | Counting::Sharded => self.rcuref_put_alone(),
        }
    }

    /// Returns the current number of references; 0 if the object is dead. For tests and listings.
    #[must_use]
    pub fn refs(&self, counting: Counting) -> u32 {
        let word = self.word.load(Ordering::Relaxed);
        match counting {
            Counting::CasIncNotZero => word,
            Counting::Rcuref | Counting::Sharded if word >= RELEASED => 0,
            Counting::Rcuref | Counting::Sharded => word + 1,
        }
    }

    fn cas_get(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word != 0 {
            if word > MAXREF {
                // Saturated: the object leaks, as with `refcount_t`.
                return true;
            }
            let taken =
                self.word.compare_exchange(word, word + 1, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
        false
    }

    fn cas_put(&self) -> Put {
        match self.word.fetch_sub(1, Ordering::Release) {
            1 => {
                fence(Ordering::Acquire);
                Put::Last
            }
            0 => {
                self.word.store(0, Ordering::Relaxed);
                Put::Imbalanced
            }
            2..=MAXREF => Put::Shared,
            _ => {
                self.word.store(SATURATED, Ordering::Relaxed);
                Put::Shared
            }
        }
    }

    #[inline]
    fn rcuref_get(&self) -> bool {
        let word = self.word.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if word <= MAXREF { true } else { self.rcuref_get_slow(word) }
    }

    #[cold]
    fn rcuref_get_slow(&self, word: u32) -> bool {
        if word >= RELEASED {
            self.word.store(DEAD, Ordering::Relaxed);
            return false;
        }
        self.word.store(SATURATED, Ordering::Relaxed);
        true
    }

    #[inline]
    fn rcuref_put(&self) -> Put {
        let word = self.word.fetch_sub(1, Ordering::Release).wrapping_sub(1);
        if word <= MAXREF { Put::Shared } else { self.rcuref_put_slow(word) }
    }

    /// Completes a put, where `word` is the result of the subtraction. Linux up to 6.12 read the
    /// count again instead, which also sees later changes: an object that another thread revived
    /// and released then looks like one put too many.
    #[cold]
    fn rcuref_put_slow(&self, word: u32) -> Put {
        if word == NOREF {
            let released =
                self.word.compare_exchange(NOREF, DEAD, Ordering::Release, Ordering::Relaxed);
            if released.is_err() {
                // Revived: the put of the thread that revived it changes the word to DEAD.
                return Put::Shared;
            }
            fence(Ordering::Acquire);
            return Put::Last;
        }
        if word >= RELEASED {
            self.word.store(DEAD, Ordering::Relaxed);
            return Put::Imbalanced;
        }
        self.word.store(SATURATED, Ordering::Relaxed);
        Put::Shared
    }

    fn rcuref_put_alone(&self) -> Put {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = match word {
                0 => DEAD,
                1..=MAXREF => word - 1,
                RELEASED.. => return Put::Imbalanced,
                _ => return Put::Shared,
            };
            match self.word.compare_exchange(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(0) => break,
                Ok(_) => return Put::Shared,
                Err(found) => word = found,
            }
        }
        fence(Ordering::Acquire);
        Put::Last
    }
}
