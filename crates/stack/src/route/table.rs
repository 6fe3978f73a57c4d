//! The forwarding table of a host, which changes replace while other threads read it.
//!
//! Below: [`Fib`], an immutable table. Above: `Router`, whose callers look routes up in an RCU read
//! section. Linux: `fib_table_insert`, `rt_cache_flush`.
//!
//! A change builds a new table, which shares with the old one all nodes except those between the
//! root and the changed prefix. The new table replaces the old one; then a new **generation**
//! begins. A reader that loads the generation first and the table second may combine an old
//! generation with a new table, but never a new generation with an old table. A route entry (dst)
//! made from an old generation and a new table counts as stale and is made again.
//!
//! Not here: the route entries made from the table (`route::input`, `route::output`), which the
//! host removes after a change.

use std::{
    sync::{Arc, Mutex, PoisonError},
    vec::Vec,
};

use sync::{
    RcuCell,
    epoch::{Domain, Section},
};

use super::fib::{Fib, FibBuilder, RouteEntry};
use crate::{base::config_error::ConfigError, transmit::dst::RouteGeneration};

/// Current forwarding table, and its generation.
#[derive(Debug)]
pub(crate) struct RouteTable {
    /// Generation of the routes, incremented by every change (Linux: `rt_genid`). A cached route
    /// entry with another number is looked up again. A change increments it with Release after it
    /// has replaced the table; a reader loads it with Acquire before it loads the table.
    generation: Arc<RouteGeneration>,
    fib: RcuCell<Fib>,
    /// Builder of the table. Locked during a change.
    builder: Mutex<FibBuilder>,
}

impl RouteTable {
    pub(crate) fn new(rcu: &Domain, builder: FibBuilder, generation: Arc<RouteGeneration>) -> Self {
        Self { generation, fib: RcuCell::new(rcu, builder.build()), builder: Mutex::new(builder) }
    }

    /// Returns the current generation.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.current()
    }

    /// Returns the table, which stays valid during the read section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.fib.load(rcu)
    }

    /// Returns every route, even if another route to its prefix has a smaller metric.
    pub(crate) fn entries(&self) -> Vec<RouteEntry> {
        self.builder.lock().unwrap_or_else(PoisonError::into_inner).entries()
    }

    /// Applies a change. A refused change has no effect.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut FibBuilder) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = builder.fork();
        if let Err(refused) = change(&mut next) {
            builder.rejoin(next);
            return Err(refused);
        }
        let old = self.fib.exchange(next.build());
        *builder = next;
        self.bump();
        drop(builder);
        // The old table is dropped after the lock is released, because the drop also drops other
        // objects whose grace period has ended.
        drop(old);
        Ok(())
    }

    /// Starts a new generation.
    pub(crate) fn bump(&self) {
        self.generation.begin();
    }
}
