//! Echo requests and packets of other protocols.

use std::{fmt, net::IpAddr};

use stack::{
    base::ids::DeviceIndex, header::icmp::Unreachable, receive::intercept,
    socket::flows::FlowPacket,
};

use crate::{clock::with_cx, handle::Stack};

/// A packet that is answered once, or dropped.
struct Held {
    stack: Stack,
    packet: Option<FlowPacket>,
}

impl Held {
    fn packet(&self) -> &FlowPacket {
        self.packet.as_ref().expect("the packet is taken by the last method")
    }

    fn reject(&mut self, why: Unreachable) {
        if let Some(packet) = self.packet.take() {
            with_cx(|cx| intercept::reject(self.stack.host(), cx, packet, why));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(packet) = self.packet.take() {
            with_cx(|cx| intercept::ignore(self.stack.host(), cx, packet));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = self.packet();
        f.debug_struct("Held")
            .field("source", &packet.source())
            .field("destination", &packet.destination())
            .field("protocol", &packet.protocol())
            .finish_non_exhaustive()
    }
}

/// An echo request (ping) to any address. Dropped without an answer, it counts as
/// `FLOW_IGNORED`.
#[derive(Debug)]
pub struct EchoRequest(Held);

impl EchoRequest {
    pub(super) const fn new(stack: Stack, packet: FlowPacket) -> Self {
        Self(Held { stack, packet: Some(packet) })
    }

    /// Returns the address of the client.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.0.packet().source()
    }

    /// Returns the address to which the request was sent.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.0.packet().destination()
    }

    /// Returns the device that has brought the request.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.0.packet().via()
    }

    /// Returns the ICMP message: its header of 8 bytes, and the payload.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        self.0.packet().payload()
    }

    /// Answers in the place of the destination: an echo reply with the numbers and the payload of
    /// the request. The rate limits of ICMP apply.
    pub fn reply(mut self) {
        if let Some(packet) = self.0.packet.take() {
            with_cx(|cx| intercept::answer_echo(self.0.stack.host(), cx, packet));
        }
    }

    /// Reports to the client that the destination is unreachable.
    pub fn unreachable(mut self, why: Unreachable) {
        self.0.reject(why);
    }
}

/// A packet of another protocol than TCP, UDP and ICMP, to any address. Dropped without an answer,
/// it counts as `FLOW_IGNORED`.
#[derive(Debug)]
pub struct OtherPacket(Held);

impl OtherPacket {
    pub(super) const fn new(stack: Stack, packet: FlowPacket) -> Self {
        Self(Held { stack, packet: Some(packet) })
    }

    /// Returns the address of the client.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.0.packet().source()
    }

    /// Returns the address to which the packet was sent.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.0.packet().destination()
    }

    /// Returns the number of the protocol.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.0.packet().protocol()
    }

    /// Returns the device that has brought the packet.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.0.packet().via()
    }

    /// Returns the bytes after the IP header.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        self.0.packet().payload()
    }

    /// Reports to the client that the destination is unreachable. A host reports
    /// [`Unreachable::Protocol`].
    pub fn unreachable(mut self, why: Unreachable) {
        self.0.reject(why);
    }
}
