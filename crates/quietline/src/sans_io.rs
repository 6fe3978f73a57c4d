//! The stack without an operating system: no thread, no clock, no file descriptor.
//!
//! The caller drives a [`Host`]: it sets the time in [`Cx::now`], passes frames through its own
//! [`Device`], and calls [`Host::poll`], which runs all pending work and returns the time of the
//! next call. Socket calls are those of [`Connection`] and [`Listener`]. No call blocks; a call
//! that would have to wait returns `EAGAIN`. Uses: the simulator, and proxies or microVM monitors
//! with their own event loop.
//!
//! The caller also supplies random numbers: [`secrets`] and [`rng`] read them from the kernel,
//! [`HostConfig::replay`] and [`Cx::replay`] derive them from a seed for a reproducible run.
//!
//! ```
//! use std::{io::IoSlice, sync::Arc, time::Duration};
//!
//! use quietline::sans_io::{
//!     Connection, Cx, DeviceConfig, Host, HostConfig, Instant, Listener, Memory, Wire, WireConfig,
//!     rng, secrets,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = Memory::new(16 << 20);
//! let mut cx = Cx::new(&memory, rng());
//! cx.now = Instant::from_secs(1);
//!
//! // A device that connects two hosts, with a delay of 5 ms in each direction.
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
//! let stream = Connection::connect(&client, &mut cx, None, "10.0.0.2:80".parse()?)?;
//! // Virtual time: when no work is left, the clock jumps to the next deadline.
//! let accepted = loop {
//!     let _ = (client.poll(&mut cx), server.poll(&mut cx));
//!     // Read after both hosts have run: the server's answer is the client's next deadline.
//!     let next = [&client, &server].into_iter().filter_map(|host| host.next_deadline()).min();
//!     match listener.accept() {
//!         Ok(accepted) => break accepted,
//!         Err(_) => cx.now = cx.now.max(next.expect("a deadline")),
//!     }
//! };
//! assert_eq!(accepted.remote(), stream.local());
//! // ARP request and reply, SYN, SYN-ACK, ACK.
//! assert!(cx.now - Instant::from_secs(1) < 6 * config.forward.delay);
//! assert_eq!(stream.send(&client, &mut cx, &[IoSlice::new(b"hello")])?, 5);
//! # Ok(())
//! # }
//! ```

pub use crate::entropy::{rng, secrets};
pub use pkt::{Batch, DropReason, Instant, Packet, PacketList, RxChecksum, TxChecksum};
pub use stack::{
    Cx, Errno, Memory, Readiness, Secrets,
    base::{config_error::ConfigError, ids::DeviceIndex, memory_map::Region},
    device::{
        Capabilities, Completed, Device, Doorbell, Impairment, LinkType, QueueId, RxSignal, Wire,
        WireConfig,
    },
    header::ethernet::MacAddr,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    receive::intercept::{answer_echo, ignore, refuse_unreachable, reject},
    route::fib::RouteSpec,
    socket::{
        Connection, DatagramSocket, Listener, Reader, RequestSocket, ShutdownHow,
        flows::{FlowPacket, FlowQueue, Intercept, NewFlow, UdpSession},
    },
    sysctl::Sysctls,
    transmit::neighbor::{NudState, table::NeighborInfo},
};
pub use tcp::Rng;
