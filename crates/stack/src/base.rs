//! Definitions that all other modules use: counters, error numbers, limits, indices, timers,
//! secrets, accounts of memory.
//!
//! This module imports no other module of this crate.

pub(crate) mod armed_timers;
pub mod config_error;
pub mod counters;
pub mod errno;
pub mod ids;
pub(crate) mod interface_id;
pub mod limits;
pub mod memory_map;
pub mod secrets;
pub mod tcp_memory;
pub mod timer;
pub(crate) mod udp_memory;
