//! The engine under test: two control blocks joined by a network in virtual time.

mod acks;
mod close;
mod ecn;
mod fast_path;
mod handshake;
mod host;
mod hostile;
mod loss;
mod memory;
mod mtu_probe;
pub(crate) mod net;
mod pacing;
mod path;
mod pathological;
mod pressure;
mod receive_buffer;
mod sack;
mod sack_report;
mod segments;
mod send_buffer;
mod small;
mod states;
mod stress;
mod timers;
mod undo;
mod urgent;
mod window;
