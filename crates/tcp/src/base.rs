//! Names that every other module reads: counters, chance, states, errors, how scarce memory is.
//!
//! Nothing here imports another module of this crate.

pub mod challenge;
pub mod counters;
pub mod error;
pub mod memory;
pub mod rng;
pub mod state;
