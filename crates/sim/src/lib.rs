//! Deterministic simulation: hosts, wires and applications in one thread, in virtual time, from one seed.
//!
//! The stack is the product's own, with every context; only the clock is ours. A [`World`] steps from event to event;
//! nothing in it depends on anything but the seed, so a failing run is replayed by its number.
//!
//! Four ways to look at a host: joined to another by a wire ([`World::pair`]); among others in a network where everything
//! goes wrong, with applications that do anything ([`scenario`]); alone, opposite a peer that says byte for byte what a
//! test wants ([`Rig`]); or held to a conversation that is written down line by line ([`script`]).
//!
//! Below: `stack`. Not here: real devices.

#![forbid(unsafe_code)]

pub mod apps;
pub mod byte_link;
pub mod engine_pair;
pub mod frame;
pub mod hostile;
pub mod modes;
pub mod network;
pub mod offload;
pub mod peer;
pub mod rig;
pub mod scenario;
pub mod script;
pub mod traffic;
pub mod world;

pub use byte_link::ByteLink;
pub use peer::Peer;
pub use rig::{Rig, RigConfig};
pub use world::{Stalled, World};
