//! Types that every other module but `wire` uses: counters, random numbers, states, errors, memory
//! pressure.
//!
//! The files of this module import no module of the crate outside `base`.

pub mod challenge;
pub mod counters;
pub mod error;
pub mod memory;
pub mod rng;
pub mod state;
