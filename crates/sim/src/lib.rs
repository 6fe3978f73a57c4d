//! Deterministic simulation: hosts, wires and applications in one thread, in virtual time, from one
//! seed.
//!
//! The stack is the shipped code, in every receive context; only the clock is simulated. A
//! [`World`] steps from event to event. Nothing in it depends on anything but the seed, so a
//! failing run is replayed by its number.
//!
//! A host can be tested in four ways: joined to another by a wire ([`World::pair`]); among others
//! in a network with every kind of fault and random applications ([`scenario`]); alone, opposite a
//! peer that sends the bytes a test chooses ([`Rig`]); or by a packet script ([`script`]).
//!
//! Below: `stack`. Not here: real devices.

#![forbid(unsafe_code)]

pub mod apps;
pub mod byte_link;
pub mod engine_pair;
pub mod frame;
pub mod hostile;
pub mod hostile_datagrams;
pub mod modes;
pub mod network;
pub mod offload;
pub mod peer;
pub mod reassembly;
pub mod rig;
pub mod scenario;
pub mod script;
pub mod suite;
pub mod traffic;
pub mod world;

pub use byte_link::ByteLink;
pub use peer::Peer;
pub use rig::{Rig, RigConfig};
pub use world::{Stalled, World};
