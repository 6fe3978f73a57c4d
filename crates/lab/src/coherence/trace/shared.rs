//! A cache line of a trace that both CPUs access.
//!
//! Above: [`Trace::shared`](super::Trace::shared).

use std::collections::BTreeSet;

use super::Traced;
use crate::coherence::{directory::Access, subject::OWN};

/// Parts in which one CPU accessed a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// With at least one read.
    pub reads: usize,
    /// With at least one write that is not atomic.
    pub writes: usize,
    /// With at least one atomic read-modify-write.
    pub rmws: usize,
}

impl Uses {
    const fn touches(&self, enough: usize) -> bool {
        self.reads >= enough || self.modifies(enough)
    }

    const fn modifies(&self, enough: usize) -> bool {
        self.writes >= enough || self.rmws >= enough
    }

    /// The strongest access: `rmw`, `write` or `read`.
    #[must_use]
    pub const fn word(&self, enough: usize) -> &'static str {
        if self.rmws >= enough {
            "rmw"
        } else if self.writes >= enough {
            "write"
        } else {
            "read"
        }
    }
}

/// A line that both CPUs access.
#[derive(Clone, Debug)]
pub struct SharedLine {
    /// Address divided by `LINE_BYTES`.
    pub number: u64,
    /// Structures of the accessed bytes.
    pub names: BTreeSet<String>,
    /// Structures of the written bytes.
    pub written: BTreeSet<String>,
    /// By CPU.
    pub uses: [Uses; 2],
    /// Instructions that write it.
    pub writers: Vec<u64>,
    /// Addresses that each CPU accessed.
    addresses: [BTreeSet<u64>; 2],
}

impl SharedLine {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            names: BTreeSet::new(),
            written: BTreeSet::new(),
            uses: [Uses::default(); 2],
            writers: Vec::new(),
            addresses: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    pub(super) fn add<'n>(
        &mut self,
        cpu: u8,
        accesses: &[&Traced],
        name: impl Fn(u64) -> Option<&'n str>,
    ) {
        let uses = &mut self.uses[usize::from(cpu)];
        let has = |kind| usize::from(accesses.iter().any(|traced| traced.access == kind));
        uses.reads += has(Access::Read);
        uses.writes += has(Access::Write);
        uses.rmws += has(Access::Rmw);
        for traced in accesses {
            let name = name(traced.address).unwrap_or("unnamed");
            if !self.names.contains(name) {
                self.names.insert(name.to_owned());
            }
            self.addresses[usize::from(cpu)].insert(traced.address);
            if traced.access != Access::Read {
                if !self.written.contains(name) {
                    self.written.insert(name.to_owned());
                }
                if !self.writers.contains(&traced.pc) {
                    self.writers.push(traced.pc);
                }
            }
        }
    }

    pub(super) fn is_shared(&self, enough: usize) -> bool {
        self.uses.iter().all(|uses| uses.touches(enough))
            && self.uses.iter().any(|uses| uses.modifies(enough))
            && !self.names.iter().any(|name| name == OWN)
    }

    /// Whether both CPUs write it.
    #[must_use]
    pub fn is_written_by_both(&self, enough: usize) -> bool {
        self.uses.iter().all(|uses| uses.modifies(enough))
    }

    /// Whether the line holds parts of two buffers of the heap, each of which one CPU uses. The
    /// allocator put them side by side; in another run they are elsewhere.
    #[must_use]
    pub fn is_chance(&self) -> bool {
        const BUFFERS: [&str; 2] = ["SendQueue", "ReceiveQueue"];
        self.names.iter().all(|name| BUFFERS.contains(&name.as_str()))
            && self.addresses[0].is_disjoint(&self.addresses[1])
    }

    /// Its name: the structures of the accessed bytes.
    #[must_use]
    pub fn name(&self) -> String {
        joined(&self.names)
    }

    /// The structures of the written bytes. Others may lie beside them by an accident of the
    /// allocator.
    #[must_use]
    pub fn written_name(&self) -> String {
        joined(&self.written)
    }
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" + ")
}
