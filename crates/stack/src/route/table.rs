//! The forwarding table of a host as it changes under those who read it.
//!
//! Below: [`Fib`], immutable. Above: `Host`, whose callers look up in a read section. Linux: `fib_table_insert`,
//! `rt_cache_flush`.
//!
//! A change builds a new table beside the old one, puts it in its place and begins a new **generation**, in this order: whoever
//! reads the generation first and the table then may take a new table for an old one, never the other way round. Then an entry
//! made from it is too old, and is made once more.
//!
//! Not here: what was made from the tables (`route::input`, `route::output`), which the host forgets after a change.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    vec::Vec,
};

use sync::{
    RcuCell,
    epoch::{Domain, Section},
};

use super::fib::{Fib, FibBuilder, RouteEntry};
use crate::base::config_error::ConfigError;

/// See the module head.
#[derive(Debug)]
pub(crate) struct RouteTable {
    /// Bumped by every change: a cached path or entry with another number is made anew (Linux: `rt_genid`). Release after the
    /// change, Acquire by who reads the table next.
    generation: AtomicU32,
    fib: RcuCell<Fib>,
    /// What the table is built from. Held for a change.
    builder: Mutex<FibBuilder>,
}

impl RouteTable {
    pub(crate) fn new(rcu: &Domain, builder: FibBuilder) -> Self {
        Self {
            generation: AtomicU32::new(0),
            fib: RcuCell::new(rcu, builder.build()),
            builder: Mutex::new(builder),
        }
    }

    /// The number of the routes as they are.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The table, as long as the section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.fib.load(rcu)
    }

    /// Every route, those included that another with a smaller metric hides.
    pub(crate) fn entries(&self) -> Vec<RouteEntry> {
        self.builder.lock().unwrap_or_else(PoisonError::into_inner).entries().cloned().collect()
    }

    /// Makes a change. If it is refused nothing is changed.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut FibBuilder) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = builder.clone();
        change(&mut next)?;
        let old = self.fib.exchange(next.build());
        *builder = next;
        self.bump();
        drop(builder);
        // Not under the lock: what else is retired by now is dropped on the way.
        drop(old);
        Ok(())
    }

    /// A new generation of the same routes.
    pub(crate) fn bump(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}
