//! Control messages that a fuzz target writes in place of the kernel.
//!
//! Above: `af_packet::fuzzing`.
//!
//! Not here: the system call.

use pkt::Packet;

use super::super::fuzzing::Found;
use super::super::receive::PACKET_VNET_HDR_LEN;
use super::{Received, RxCalls, vnet_header};

/// Bytes of memory for the control messages of one frame.
pub const CONTROL_BYTES: usize = super::CONTROL_BYTES;

/// A receive path without a socket.
#[derive(Debug)]
pub struct Calls(RxCalls);

impl Default for Calls {
    fn default() -> Self {
        Self(RxCalls::new(false))
    }
}

impl Calls {
    /// Returns the result for a frame with these control messages, with or without an offload
    /// header.
    pub fn take(
        &mut self,
        control: &[u8; CONTROL_BYTES],
        header: Option<[u8; PACKET_VNET_HDR_LEN]>,
        packet: Packet,
    ) -> Found {
        let info = self.0.read_control(control, packet.len());
        Received::of(&info, header.map(vnet_header), packet).into()
    }

    /// Returns whether the kernel has reported since the last call that it dropped frames.
    pub fn take_losing(&mut self) -> bool {
        std::mem::take(&mut self.0.losing)
    }
}
