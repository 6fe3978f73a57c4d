//! Names of structures by their addresses, for tools that trace the memory accesses of a program
//! and report which structure a cache line belongs to.

use std::{format, ops::Range, string::String, sync::Arc};

/// Address range of a structure, or of a part of it. A region may lie within another one; the
/// smallest region that covers an address names it best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name of the type; for a part, followed by a dot and the field.
    pub name: String,
    /// First address.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Region {
    pub(crate) fn of<T: ?Sized>(name: impl Into<String>, value: &T) -> Self {
        let address = std::ptr::from_ref(value).cast::<()>().addr();
        Self { name: name.into(), address, bytes: size_of_val(value) }
    }

    /// Returns the region of the reference counts of a shared value, which precede the value.
    pub(crate) fn references<T: ?Sized>(name: &str, value: &Arc<T>) -> Self {
        // Two counts, and the padding that the value's alignment requires.
        let bytes = align_of_val(&**value).max(2 * size_of::<usize>());
        let value = Self::of(format!("{name} references"), &**value);
        Self { address: value.address - bytes, bytes, ..value }
    }

    /// Returns the region of an address range.
    pub(crate) fn range(name: &str, range: &Range<usize>) -> Self {
        Self { name: name.into(), address: range.start, bytes: range.len() }
    }
}

/// Creates the regions of some fields of one structure, each named after type and field.
macro_rules! regions {
    ($type:literal, $value:expr, [$($field:ident),+ $(,)?]) => {
        [$($crate::base::memory_map::Region::of(
            concat!($type, ".", stringify!($field)),
            &$value.$field,
        )),+]
    };
}
pub(crate) use regions;
