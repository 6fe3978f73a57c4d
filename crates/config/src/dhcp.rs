//! DHCPv4 client (RFC 2131, RFC 2132, RFC 3442, RFC 4361).
//!
//! [`Client`] is the state machine of one device: bytes and times in, bytes and decisions out. It
//! has no clock, no socket and no randomness of its own, so its tests run in virtual time.
//! `message` reads and writes messages by crate `dhcproto`. [`Service`] is one thread that runs the
//! clients of a stack over a UDP socket and changes the addresses and routes of the stack.
//!
//! A lease is remembered while its link is down, and requested again when the link comes up
//! (INIT-REBOOT).
//!
//! Not here: DHCPv6, a server, leases stored in files.

mod client;
mod lease;
mod message;
mod service;

pub use self::{
    client::{Action, Checked, Client, ClientConfig, ClientId, Destination, Loss},
    lease::{Lease, LeaseRoute},
    service::{Change, Service},
};

/// UDP port of servers.
pub const SERVER_PORT: u16 = 67;

/// UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
