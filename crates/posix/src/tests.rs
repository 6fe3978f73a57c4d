//! Every call in every state, and the rules in which an interpreter of scripts is easily wrong.
//!
//! The tables hold the answers of Linux 6.18: the same calls on sockets of the kernel, over its
//! loopback device.

mod calls;
mod datagrams;
mod net;
mod numbers;
mod readiness;
mod states;
