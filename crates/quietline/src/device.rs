//! Devices that touch the operating system: tap and tun against the Linux kernel, packet sockets on its interfaces, queues
//! taken from them, and capture to a file.
//!
//! Above: the builder and the workers. Linux: drivers/net/tun.c, net/packet/af_packet.c, net/xdp.
//!
//! Not here: loopback and wire, which touch no operating system and live in crate `stack`.

pub mod af_packet;
pub mod af_xdp;
#[cfg(feature = "capture")]
pub mod capture;
mod checksum;
pub mod interface;
mod mapping;
#[cfg(test)]
pub(crate) mod namespace;
pub mod netlink;
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
pub use setup_error::SetupError;
pub use tun::{Tun, TunConfig, TunKind};

/// Runs a test with a pool, which it must leave empty.
#[cfg(test)]
fn with_pool(test: impl FnOnce(&mut pkt::Pool)) {
    let domain = pkt::Domain::new(pkt::DomainConfig::default());
    let mut pool = domain.pool();
    test(&mut pool);
    drop(pool);
    assert_eq!(domain.balance(), 0);
}
