//! Longest prefix match: a map from prefixes to values, for a million routes and lock-free readers.
//!
//! Above: `route::fib`. Linux: the LC-trie of net/ipv4/fib_trie.c; the layout of a node is the
//! tree bitmap of Eatherton, Varghese and Dittia (2004).
//!
//! A node decides on six bits of the address (a chunk). `internal` has a bit for each possible
//! prefix that ends within these bits, numbered as in a binary heap: 1 is the empty prefix, `2n`
//! and `2n + 1` extend prefix `n` by a bit. `external` has a bit for each of the 64 values of the
//! chunk, set if a child node continues there. Values and children are stored in arrays without
//! gaps, so the position of an element is the number of set bits below its bit. Levels at which
//! nothing is decided have no node. To check the bits of the skipped levels, a node stores all
//! address bits in front of its chunk as its key.
//!
//! ```text
//!   level      0     1        2        3         4         5         6
//!   lengths    0   1 … 6   7 … 12   13 … 18   19 … 24   25 … 30   31, 32 …
//! ```
//!
//! Addresses are read as if five zeros preceded them, so that a level ends at /24, the length of
//! most routes: the 32 prefixes of this length in a /19 share one node. For IPv6, a level ends at
//! /48.
//!
//! **The map is persistent.** Clones share their nodes. A change affects the nodes from the root to
//! the changed prefix, at most seven for IPv4. It copies those that another clone also uses, and
//! changes the others in place. A clone is published to readers, which follow plain references in
//! their RCU read section. The memory of a replaced node is freed when the last clone that uses the
//! node is dropped.
//!
//! Not here: the meaning of the values; several values for one prefix.

use std::{boxed::Box, fmt::Debug, sync::Arc};

/// Bits that one node decides on.
const STRIDE: u32 = 6;

/// Zeros that precede an address. With 5, levels end at the prefix lengths 24 and 48.
const LEAD: u32 = 5;

/// For each value of the first five bits of a chunk: bit set of the heap indices of the six
/// prefixes of these bits.
const ANCESTORS: [u64; 32] = {
    let mut masks = [0; 32];
    let mut chunk = 0;
    while chunk < 32 {
        let mut len = 0;
        while len < STRIDE {
            masks[chunk] |= 1 << ((1 << len) | (chunk >> (STRIDE - 1 - len)));
            len += 1;
        }
        chunk += 1;
    }
    masks
};

/// An address as a number, of 32 or 128 bits.
pub trait Address: Copy + Eq + Debug + Send + Sync + 'static {
    /// Number of bits of an address.
    const BITS: u32;
    /// Returns the first `len` bits, followed by zeros.
    #[must_use]
    fn masked(self, len: u32) -> Self;
    /// Returns the number of leading bits that both addresses share.
    fn common(self, other: Self) -> u32;
    /// Whether both addresses share the first `len` bits; `len` is below [`BITS`](Self::BITS).
    fn shares(self, other: Self, len: u8) -> bool;
    /// Removes the first `skip` bits, and returns the first `BITS - drop` bits of the rest, which
    /// are at most six.
    fn chunk(self, skip: u8, drop: u8) -> usize;
    /// Returns an address whose first `len` bits end with `bits`. All other bits are zero.
    #[must_use]
    fn ending(bits: u32, len: u32) -> Self;
    /// Returns the bitwise union of both addresses.
    #[must_use]
    fn joined(self, other: Self) -> Self;
}

macro_rules! address {
    ($number:ty) => {
        impl Address for $number {
            const BITS: u32 = <$number>::BITS;

            #[inline]
            fn masked(self, len: u32) -> Self {
                self & <$number>::MAX.checked_shl(Self::BITS - len).unwrap_or(0)
            }

            #[inline]
            fn common(self, other: Self) -> u32 {
                (self ^ other).leading_zeros()
            }

            #[inline]
            fn shares(self, other: Self, len: u8) -> bool {
                self ^ other <= <$number>::MAX.wrapping_shr(len.into())
            }

            #[inline]
            #[allow(clippy::cast_lossless, reason = "one of the two types is lossless")]
            fn chunk(self, skip: u8, drop: u8) -> usize {
                (self.wrapping_shl(skip.into()).wrapping_shr(drop.into())) as usize & 63
            }

            #[allow(clippy::cast_lossless, reason = "one of the two types is the same")]
            #[allow(trivial_numeric_casts, reason = "one of the two types is the same")]
            fn ending(bits: u32, len: u32) -> Self {
                (bits as $number).checked_shl(Self::BITS - len).unwrap_or(0)
            }

            fn joined(self, other: Self) -> Self {
                self | other
            }
        }
    };
}

address!(u32);
address!(u128);

/// Map from prefixes to values. Clones share memory.
#[derive(Clone, Debug)]
pub struct Lpm<A, V> {
    root: Option<Arc<Node<A, V>>>,
    /// Number of prefixes.
    len: usize,
}

#[derive(Clone, Debug)]
struct Node<A, V> {
    /// Bit set of the prefixes that end in this node, by heap index.
    internal: u64,
    /// Bit set of the chunks that have a child.
    external: u64,
    /// Values of the prefixes, in the order of the bits in `internal`.
    values: Box<[V]>,
    /// Children, in the order of the bits in `external`.
    children: Box<[Arc<Self>]>,
    /// The `skip` address bits in front of the chunk of this node, followed by zeros.
    key: A,
    level: u8,
    /// Number of address bits in front of the chunk.
    skip: u8,
    /// Number of address bits minus the width of the chunk.
    drop: u8,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match<'a, V> {
    /// Length of the prefix.
    pub len: u8,
    /// Value of the prefix.
    pub value: &'a V,
}

impl<A: Address, V: Clone> Default for Lpm<A, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Address, V: Clone> Lpm<A, V> {
    /// Creates an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { root: None, len: 0 }
    }

    /// Returns the number of prefixes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no prefix.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the longest prefix that contains `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: A) -> Option<Match<'_, V>> {
        let mut node = &**self.root.as_ref()?;
        let mut best = None;
        while node.covers(address) {
            let chunk = node.chunk(address);
            let matching = node.internal & ANCESTORS[chunk >> 1];
            if matching != 0 {
                best = Some((node, matching));
            }
            match node.child(chunk) {
                Some(child) => node = child,
                None => break,
            }
        }
        let (node, matching) = best?;
        let index = matching.ilog2();
        Some(Match { len: node.len_at(index), value: &node.values[rank(node.internal, index)] })
    }

    /// Visits every prefix that contains `address`, in ascending order of length.
    pub fn for_each_match(&self, address: A, mut visit: impl FnMut(u8, &V)) {
        let mut next = self.root.as_deref();
        while let Some(node) = next.filter(|node| node.covers(address)) {
            let chunk = node.chunk(address);
            for index in bits(node.internal & ANCESTORS[chunk >> 1]) {
                visit(node.len_at(index), &node.values[rank(node.internal, index)]);
            }
            next = node.child(chunk);
        }
    }

    /// Returns the value of exactly this prefix. Bits beyond `len` must be zero.
    #[must_use]
    pub fn get(&self, prefix: A, len: u8) -> Option<&V> {
        let home = level(len);
        let mut node = self.root.as_deref()?;
        while node.level < home && node.covers(prefix) {
            node = node.child(node.chunk(prefix))?;
        }
        if node.level != home || !node.covers(prefix) {
            return None;
        }
        let index = node.index(prefix, len);
        (node.internal >> index & 1 == 1).then(|| &node.values[rank(node.internal, index)])
    }

    /// Sets the value of a prefix and returns the previous value. Bits of `prefix` beyond `len` are
    /// ignored.
    pub fn insert(&mut self, prefix: A, len: u8, value: V) -> Option<V> {
        let prefix = prefix.masked(len.into());
        let old = match &mut self.root {
            Some(root) => insert(root, prefix, len, value),
            root @ None => {
                *root = Some(Node::leaf(prefix, len, value));
                None
            }
        };
        self.len += usize::from(old.is_none());
        old
    }

    /// Removes a prefix and returns its value. Bits of `prefix` beyond `len` are ignored.
    pub fn remove(&mut self, prefix: A, len: u8) -> Option<V> {
        let prefix = prefix.masked(len.into());
        // This check ensures that the removal of an absent prefix copies no node.
        self.get(prefix, len)?;
        let (old, left) = remove(self.root.take()?, prefix, len);
        self.root = left;
        self.len -= 1;
        old
    }

    /// Visits every prefix in ascending order of address, then of length.
    pub fn for_each(&self, mut visit: impl FnMut(A, u8, &V)) {
        if let Some(root) = &self.root {
            root.for_each(1, &mut visit);
        }
    }

    /// Returns the number of nodes and their memory in bytes, as requested from the allocator.
    /// Memory to which the values refer is not included.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        self.root.as_ref().map_or((0, 0), |root| root.memory())
    }
}

impl<A: Address, V: Clone> Node<A, V> {
    fn new(key: A, level: u8) -> Self {
        let depth = depth(level);
        let width = if level == 0 { STRIDE - LEAD } else { STRIDE };
        let narrow = |bits| u8::try_from(bits).expect("an address has at most 128 bits");
        Self {
            internal: 0,
            external: 0,
            values: Box::default(),
            children: Box::default(),
            key: key.masked(depth),
            level,
            skip: narrow(depth),
            drop: narrow(A::BITS - width),
        }
    }

    fn leaf(prefix: A, len: u8, value: V) -> Arc<Self> {
        let mut node = Self::new(prefix, level(len));
        node.internal = 1 << node.index(prefix, len);
        node.values = Box::new([value]);
        Arc::new(node)
    }

    /// Whether `address` begins with the key of this node.
    #[inline]
    fn covers(&self, address: A) -> bool {
        address.shares(self.key, self.skip)
    }

    /// Returns the bits of `address` on which this node decides.
    #[inline]
    fn chunk(&self, address: A) -> usize {
        address.chunk(self.skip, self.drop)
    }

    #[inline]
    fn child(&self, chunk: usize) -> Option<&Self> {
        let at = u32::try_from(chunk).unwrap_or(u32::MAX);
        (self.external >> chunk & 1 == 1).then(|| &*self.children[rank(self.external, at)])
    }

    /// Returns the heap index of a prefix that ends in this node.
    fn index(&self, prefix: A, len: u8) -> u32 {
        let rest = (u32::from(len) + LEAD) % STRIDE;
        let chunk = u32::try_from(self.chunk(prefix)).unwrap_or(0);
        (1 << rest) | (chunk >> (STRIDE - rest))
    }

    /// Returns the length of the prefix with this heap index.
    #[inline]
    fn len_at(&self, index: u32) -> u8 {
        #[expect(clippy::cast_possible_truncation, reason = "an index is below 64")]
        let rest = index.ilog2() as u8;
        // The sum is computed first, so there is no underflow: at level 0 the empty prefix has
        // index 32, hence `rest` 5.
        self.level * 6 + rest - 5
    }

    fn for_each(&self, index: u32, visit: &mut impl FnMut(A, u8, &V)) {
        if self.internal >> index & 1 == 1 {
            let rest = index.ilog2();
            let len = self.len_at(index);
            let key = self.key.joined(A::ending(index & !(1 << rest), len.into()));
            visit(key, len, &self.values[rank(self.internal, index)]);
        }
        for next in [2 * index, 2 * index + 1] {
            if next < 64 {
                self.for_each(next, visit);
            } else if let Some(child) = self.child((next - 64) as usize) {
                child.for_each(1, visit);
            }
        }
    }

    fn memory(&self) -> (usize, usize) {
        // An `Arc` allocates a strong and a weak count beside the node.
        let counts = 2 * size_of::<usize>();
        let own = counts
            + size_of::<Self>()
            + size_of_val::<[V]>(&self.values)
            + size_of_val::<[_]>(&self.children);
        self.children.iter().fold((1, own), |(nodes, bytes), child| {
            let (more, theirs) = child.memory();
            (nodes + more, bytes + theirs)
        })
    }
}

fn insert<A: Address, V: Clone>(
    slot: &mut Arc<Node<A, V>>,
    prefix: A,
    len: u8,
    value: V,
) -> Option<V> {
    let home = level(len);
    let shared = prefix.common(slot.key).min(u32::from(slot.skip));
    let shared = level(u8::try_from(shared).expect("a prefix has at most 128 bits"));
    if home < slot.level || shared < slot.level {
        let mut parent = Node::new(prefix, home.min(shared));
        let chunk = parent.chunk(slot.key);
        parent.external = 1 << chunk;
        parent.children = Box::new([Arc::clone(slot)]);
        // The clone above adds a reference to the old node, and this assignment drops one. So the
        // old node still counts as unshared, and `make_mut` copies it only if another clone of the
        // map uses it.
        *slot = Arc::new(parent);
    }
    let node = Arc::make_mut(slot);
    if node.level == home {
        let index = node.index(prefix, len);
        let at = rank(node.internal, index);
        if node.internal >> index & 1 == 1 {
            return Some(std::mem::replace(&mut node.values[at], value));
        }
        node.internal |= 1 << index;
        insert_at(&mut node.values, at, value);
        return None;
    }
    let chunk = node.chunk(prefix);
    let at = rank(node.external, u32::try_from(chunk).expect("below 64"));
    if node.external >> chunk & 1 == 1 {
        return insert(&mut node.children[at], prefix, len, value);
    }
    node.external |= 1 << chunk;
    insert_at(&mut node.children, at, Node::leaf(prefix, len, value));
    None
}

/// Removes a prefix, which must exist, from the tree below `shared`. Returns the value, and the
/// remaining tree.
fn remove<A: Address, V: Clone>(
    mut shared: Arc<Node<A, V>>,
    prefix: A,
    len: u8,
) -> (Option<V>, Option<Arc<Node<A, V>>>) {
    let node = Arc::make_mut(&mut shared);
    let old = if node.level == level(len) {
        let index = node.index(prefix, len);
        let old = remove_at(&mut node.values, rank(node.internal, index));
        node.internal &= !(1 << index);
        Some(old)
    } else {
        let chunk = node.chunk(prefix);
        let at = rank(node.external, u32::try_from(chunk).expect("below 64"));
        let (old, left) = remove(remove_at(&mut node.children, at), prefix, len);
        match left {
            Some(left) => insert_at(&mut node.children, at, left),
            None => node.external &= !(1 << chunk),
        }
        old
    };
    let left = match (node.values.len(), node.children.len()) {
        (0, 0) => None,
        // A node without values and with a single child decides nothing, so the child replaces it.
        (0, 1) => Some(remove_at(&mut node.children, 0)),
        _ => Some(shared),
    };
    (old, left)
}

/// Returns the level of the node in which a prefix ends.
#[expect(clippy::cast_possible_truncation, reason = "below 23")]
const fn level(len: u8) -> u8 {
    ((len as u32 + LEAD) / STRIDE) as u8
}

/// Returns the number of address bits in front of a level.
const fn depth(level: u8) -> u32 {
    (level as u32 * STRIDE).saturating_sub(LEAD)
}

/// Returns the number of set bits below bit `index`.
#[inline]
const fn rank(bitmap: u64, index: u32) -> usize {
    (bitmap & ((1 << index) - 1)).count_ones() as usize
}

/// Iterates over the positions of the set bits.
fn bits(bitmap: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |&bit| bitmap >> bit & 1 == 1)
}

fn insert_at<T>(array: &mut Box<[T]>, at: usize, item: T) {
    let mut items = std::mem::take(array).into_vec();
    items.reserve_exact(1);
    items.insert(at, item);
    *array = items.into_boxed_slice();
}

fn remove_at<T>(array: &mut Box<[T]>, at: usize) -> T {
    let mut items = std::mem::take(array).into_vec();
    let item = items.remove(at);
    *array = items.into_boxed_slice();
    item
}

#[cfg(test)]
mod tests;
