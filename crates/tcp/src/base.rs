//! Types that every other module uses: counters, random numbers, states, errors, memory pressure.
//!
//! Nothing here imports another module of this crate.

pub mod challenge;
pub mod counters;
pub mod error;
pub mod memory;
pub mod rng;
pub mod state;
