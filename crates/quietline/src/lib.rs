//! A multi-core TCP/IP stack for Linux in user space: sockets like those of `std::net`, devices,
//! and the threads that run the stack.
//!
//! ```no_run
//! use std::io::Write;
//!
//! use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};
//!
//! # fn main() -> std::io::Result<()> {
//! let (left, right) = Wire::pair(&WireConfig::default())?;
//! let server = Stack::builder().device(right).address("10.0.0.2/24".parse().unwrap()).build()?;
//! let client = Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap()).build()?;
//!
//! let listener = TcpListener::bind(&server, "10.0.0.2:80")?;
//! let mut stream = TcpStream::connect(&client, "10.0.0.2:80")?;
//! let (accepted, peer) = listener.accept()?;
//! stream.write_all(b"hello")?;
//! # let _ = (accepted, peer);
//! # Ok(())
//! # }
//! ```
//!
//! Everything that touches the operating system is in this crate: clocks, threads, file
//! descriptors. The data path is in crate `stack`, TCP in crate `tcp`.

mod addresses;
mod attachments;
mod blocking;
mod builder;
mod clock;
pub mod device;
mod device_info;
mod entropy;
mod events;
mod flows;
mod handle;
mod housekeeping;
mod listener;
mod memory;
mod neighbor;
mod observed;
mod pages;
mod ping;
pub mod poll;
mod polling;
mod relay;
mod route;
pub mod sans_io;
mod send_buffer;
mod socket;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
mod udp;
mod unwind;
mod wait;
mod worker;

pub use attachments::{Attachment, PollFd};
pub use builder::{Budget, EcnMode, MtuProbing, StackBuilder};
pub use device_info::DeviceInfo;
pub use events::Events;
pub use flows::{EchoRequest, Flow, Flows, IncomingFlows, OtherPacket, TcpRequest, UdpSession};
pub use handle::Stack;
pub use listener::{Incoming, IntoIncoming, TcpListener};
pub use memory::decide_packet_memory;
pub use neighbor::{Neighbor, NudState};
pub use ping::PingSocket;
pub use pkt::DomainStats as MemoryStats;
pub use relay::{RelayLimits, RelayStream, Relayed, relay};
pub use route::{NextHop, Route, RouteKind, RouteMetrics};
pub use send_buffer::SendBuffer;
pub use socket::TcpSocket;
pub use stack::{
    Errno, Readiness,
    base::{config_error::ConfigError, counters::Snapshot, ids::DeviceIndex},
    cx::event::Event,
    device::{Capabilities, Completed, Device, Impairment, RxSignal, Wire, WireConfig},
    header::{ethernet::MacAddr, icmp::Unreachable},
    receive::rps::SoftnetStat,
    socket::{
        ConnectOptions, ListenOptions, SendFlags,
        datagram::{
            ErrorOrigin, QueuedError, ReceiveMessage, Received, SendControl, SendMessage,
            SourceChange,
        },
        flows::Intercept,
        net::AnnouncedDns,
        options::{OptionValue, SocketOption, SocketSettings},
    },
    sysctl::qdisc::QdiscConfig,
    transmit::{ip_output::MtuDiscover, qdisc::QdiscStats, tx_queue::TxQueueStats},
};
pub use stream::TcpStream;
pub use tcp::{Algorithm as CongestionControl, SenderTime, TcpInfo};
pub use udp::UdpSocket;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
