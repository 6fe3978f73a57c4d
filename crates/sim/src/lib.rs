//! Deterministic simulation: hosts, wires and applications in one thread, in virtual time, from one seed.
//!
//! The stack is the product's own, with every context; only the clock is ours. A [`World`] steps from event to event;
//! nothing in it depends on anything but the seed, so a failing run is replayed by its number.
//!
//! Below: `stack`. Not here: real devices, packet scripts.

#![forbid(unsafe_code)]

pub mod apps;
pub mod world;

pub use world::{Stalled, World};
