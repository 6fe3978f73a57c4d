//! A model of cache coherence: the cost of cache lines that several CPUs write, for more CPUs than
//! this machine has.
//!
//! Above: `quietline lab calibrate`, the report, and the experiments whose claims are about many
//! CPUs. Below: [`path`], the accesses of this stack's per-packet paths. docs/model.md describes
//! the model, its calibration, and its error.
//!
//! Each CPU repeats a [`Program`]: the work of one packet or one request as a sequence of computing
//! time and of accesses to cache lines. A directory keeps for every line which CPUs have a valid
//! copy and which CPU, if any, has modified it (MESI without the distinction of E and M: a line
//! that one CPU alone reads becomes its own without a transfer). An access costs
//!
//! - [`Costs::local_ns`] if the CPU's copy allows it: any valid copy for a read, a copy that no
//!   other CPU shares for a write;
//! - [`Costs::clean_ns`] for a line that no CPU has modified, and [`Costs::upgrade_ns`] for the
//!   invalidation of other copies by a CPU that has one;
//! - [`Costs::dirty_ns`] for a line that another CPU has modified, [`Costs::dirty_read_ns`] for a
//!   read of it;
//!
//! and [`Costs::socket_factor`] times as much if the line comes from a CPU of another socket. A
//! line serves one transfer at a time, in the order of the requests. That order is the limit of a
//! line that every CPU writes, whatever the number of CPUs.
//!
//! The modules: [`subject`] is the work whose accesses [`trace`] reads and [`path`] keeps;
//! [`calibrate`] measures the costs; [`control`] compares the model with two real CPUs;
//! [`published`] with figures of others; [`curves`] are the result for up to 112 CPUs.

pub mod calibrate;
pub mod control;
mod costs;
pub mod curves;
mod directory;
mod machine;
pub mod path;
mod program;
pub mod published;
pub mod subject;
pub mod trace;

pub use costs::Costs;
pub use directory::{Access, LineId};
pub use machine::{CpuTotals, Machine, Totals};
pub use program::{Layout, Program, Step};
