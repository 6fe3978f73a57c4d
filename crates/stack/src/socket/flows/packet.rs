//! Packets of intercepted flows that are neither TCP nor UDP: echo requests, and all other
//! protocols. The application answers or drops each.
//!
//! Above: `receive::intercept`, which makes and answers them.

use std::net::IpAddr;

use pkt::Packet;

use crate::{base::ids::DeviceIndex, header::ip::IpHeader};

/// A packet of an intercepted flow, with its IP header.
#[derive(Debug)]
pub struct FlowPacket {
    /// Its header; extension headers count as part of it.
    pub(crate) header: IpHeader,
    pub(crate) packet: Packet,
}

impl FlowPacket {
    /// Returns the address of the sender.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        self.header.src
    }

    /// Returns the address to which the packet was sent.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        self.header.dst
    }

    /// Returns the number of its protocol.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header.protocol
    }

    /// Returns the device that has brought it.
    #[must_use]
    pub fn via(&self) -> DeviceIndex {
        DeviceIndex(self.packet.meta().rx_device)
    }

    /// Returns the bytes after the IP header.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        let at = usize::from(self.header.header_len);
        let mut bytes = vec![0; self.packet.len().saturating_sub(at)];
        let copied = self.packet.copy_to(at, &mut bytes);
        bytes.truncate(copied);
        bytes
    }
}
