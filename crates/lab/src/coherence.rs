//! A model of cache coherence: what the lines that several CPUs write cost, for more CPUs than this machine has.
//!
//! Above: the experiments whose claims are about many CPUs. Below: nothing; the model knows no packet.
//!
//! Each CPU repeats a [`Program`]: the work of one packet or one request as a sequence of computing time and of accesses to
//! cache lines. A directory keeps for every line which CPUs have a valid copy and which one, if any, has it modified (MESI
//! without the distinction of E and M: a line that one CPU alone reads becomes its own without a transfer). An access costs
//!
//! - [`Costs::local_ns`] if the CPU's copy allows it: any valid copy for a read, a copy that no other CPU shares for a write;
//! - [`Costs::clean_ns`] for a line that no CPU has modified, fetched from memory or from a cache that shares it, and for the
//!   invalidation of other copies;
//! - [`Costs::dirty_ns`] for a line that another CPU has modified;
//!
//! and [`Costs::socket_factor`] times as much if the line comes from a CPU of another socket. A line serves one transfer at a
//! time, in the order of the requests. That order is what bounds a line that every CPU writes, whatever the number of CPUs.
//!
//! Not modeled: sizes of caches, the store buffer (a write waits for its line), prefetching, bandwidth of the interconnect, and
//! simultaneous multithreading. So the model says when a line saturates and by what factor removing it helps; it does not
//! predict the throughput of a machine it has not been calibrated on.

mod directory;
mod machine;
mod program;

pub use directory::{Access, LineId};
pub use machine::{Costs, CpuTotals, Machine, Totals};
pub use program::{Layout, Program, Step};
