//! The stack without an operating system: no thread, no clock, no file descriptor.
//!
//! A [`Host`] is driven by its caller. Time goes in as [`Cx::now`], frames come and go through a [`Device`] of the
//! caller's own, and [`Host::poll`] runs whatever has work and returns when to call again. Socket calls are those of
//! [`TcpSocket`] and [`Listener`]; none of them waits: `EAGAIN` is the answer. This is what the simulator uses, and what a
//! proxy or a microVM monitor with an event loop of its own wants.
//!
//! Chance goes in, too: [`secrets`] and [`rng`] ask the kernel, [`HostConfig::replay`] and [`Cx::replay`] take the seed of a run
//! that must repeat.
//!
//! ```
//! use std::{io::IoSlice, sync::Arc, time::Duration};
//!
//! use quietline::sans_io::{
//!     Cx, DeviceConfig, Host, HostConfig, Instant, Listener, Memory, TcpSocket, Wire, WireConfig, rng, secrets,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = Memory::new(16 << 20);
//! let mut cx = Cx::new(&memory, rng());
//! cx.now = Instant::from_secs(1);
//!
//! // Any `Device` will do; this one joins two hosts and takes 5 ms each way.
//! let mut config = WireConfig::default();
//! config.forward.delay = Duration::from_millis(5);
//! config.backward.delay = Duration::from_millis(5);
//! let (left, right) = Wire::pair(&config)?;
//! let host = |device: Arc<Wire>, address: &str| {
//!     let addresses = vec![address.parse().expect("an address with its prefix")];
//!     let devices = vec![DeviceConfig { device, addresses }];
//!     Host::new(&memory, HostConfig { devices, ..HostConfig::new(secrets()) })
//! };
//! let (client, server) = (host(left, "10.0.0.1/24")?, host(right, "10.0.0.2/24")?);
//!
//! let listener = Listener::listen(&server, &mut cx, "10.0.0.2:80".parse()?, 16)?;
//! let stream = TcpSocket::connect(&client, &mut cx, None, "10.0.0.2:80".parse()?)?;
//! // Virtual time: whenever nothing is left to do, the clock jumps to the next deadline.
//! let accepted = loop {
//!     let _ = (client.poll(&mut cx), server.poll(&mut cx));
//!     // Asked after both have run: the server's answer is the client's next deadline.
//!     let next = [&client, &server].into_iter().filter_map(|host| host.next_deadline()).min();
//!     match listener.accept() {
//!         Ok(accepted) => break accepted,
//!         Err(_) => cx.now = cx.now.max(next.expect("something to wait for")),
//!     }
//! };
//! assert_eq!(accepted.remote(), stream.local());
//! // ARP, its answer, SYN, SYN-ACK, ACK.
//! assert!(cx.now - Instant::from_secs(1) < 6 * config.forward.delay);
//! assert_eq!(stream.send(&client, &mut cx, &[IoSlice::new(b"hello")])?, 5);
//! # Ok(())
//! # }
//! ```

pub use crate::entropy::{rng, secrets};
pub use pkt::{Batch, DropReason, Instant, Packet, PacketList, RxChecksum, TxChecksum};
pub use stack::{
    Cx, Errno, Memory, Readiness, Secrets,
    base::config_error::ConfigError,
    device::{
        Capabilities, Completed, Device, Doorbell, Impairment, LinkType, QueueId, RxSignal, Wire,
        WireConfig,
    },
    header::ethernet::MacAddr,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    route::fib::RouteSpec,
    socket::{Listener, ShutdownHow, TcpSocket},
    sysctl::Sysctls,
    transmit::neighbor::{NudState, table::NeighborInfo},
};
pub use tcp::Rng;
