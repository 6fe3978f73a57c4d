//! Devices that use the operating system, and the types that a device of your own needs.
//!
//! | device | other end |
//! |---|---|
//! | [`Tun`] | a tap or tun interface of the Linux kernel, created by `Tun` or opened elsewhere |
//! | [`AfPacket`] | an interface of the kernel, shared with the kernel's stack through packet sockets |
//! | [`AfXdp`] | queues of an interface, taken from the kernel's stack |
//! | [`Wire`](crate::Wire) | another stack of the same process |
//! | [`PacketPort`] | the application, which takes and gives packets |
//! | a [`Device`] of your own | anything; see [`Attachment`](crate::Attachment) for a complete example |
//!
//! Above: the builder and the workers. Linux: drivers/net/tun.c, net/packet/af_packet.c, net/xdp.
//!
//! Not here: loopback and wire, which use no operating system and are in crate `stack`.

pub mod af_packet;
pub mod af_xdp;
#[cfg(feature = "capture")]
pub mod capture;
mod checksum;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod interface;
mod mapping;
#[cfg(test)]
pub(crate) mod namespace;
pub mod netlink;
pub mod packet_port;
mod presence;
pub mod setup_error;
mod sockopt;
pub mod tun;
pub mod vnet_hdr;

pub use af_packet::{AfPacket, AfPacketConfig};
pub use af_xdp::{AfXdp, AfXdpConfig, XdpMode};
#[cfg(feature = "capture")]
pub use capture::{Capture, CaptureConfig, CaptureDevice, CaptureFile, CaptureReport};
pub use interface::Interface;
pub use packet_port::{PacketPort, PortConfig, PortFrame};
pub use pkt::{
    Batch, DropReason, Gso, GsoKind, Instant, Packet, PacketList, Pool, RxChecksum, RxSlot,
    TxChecksum,
};
pub use setup_error::SetupError;
pub use stack::{
    Cx,
    base::limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX, WEIGHT},
    device::{Capabilities, Completed, Device, Doorbell, LinkType, QueueId, RxSignal},
};
pub use tun::{Tun, TunConfig, TunFdConfig, TunKind};

/// Runs a test with a pool, and asserts that the test has freed every packet.
#[cfg(test)]
fn with_pool(test: impl FnOnce(&mut Pool)) {
    let domain = pkt::Domain::new(pkt::DomainConfig::default());
    let mut pool = domain.pool();
    test(&mut pool);
    drop(pool);
    assert_eq!(domain.balance(), 0);
}
