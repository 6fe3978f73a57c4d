//! The forwarding table of a host, replaced under concurrent readers.
//!
//! Below: [`Fib`], immutable. Above: `Router`, whose callers look up in a read section. Linux:
//! `fib_table_insert`, `rt_cache_flush`.
//!
//! A change builds a new table beside the old one, of which it copies only the nodes on the path to
//! the changed prefix, replaces the old one, and then starts a new **generation**. A reader that
//! loads the generation first and the table second may combine an old generation with a new table,
//! never the reverse. An entry made from that combination is
//! considered stale and is made once more.
//!
//! Not here: entries made from the tables (`route::input`, `route::output`), which the host removes
//! after a change.

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
    /// Generation of the routes, incremented by every change: a cached path or entry with another
    /// number is made again (Linux: `rt_genid`). Release after the change, Acquire before a reader
    /// loads the table.
    generation: Arc<RouteGeneration>,
    fib: RcuCell<Fib>,
    /// Source that the table is built from. Locked during a change.
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

    /// Returns the table, valid for the section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.fib.load(rcu)
    }

    /// Returns every route, including those hidden by another with a smaller metric.
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
        // Dropped outside the lock, because this also drops other objects whose grace period has
        // ended.
        drop(old);
        Ok(())
    }

    /// Starts a new generation of the same routes.
    pub(crate) fn bump(&self) {
        self.generation.begin();
    }
}
