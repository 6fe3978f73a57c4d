//! Receive offload without a device: frames in, packets and superframes out, as IP would get them.
//!
//! Above: the fuzzer and whoever else asks what a train of frames would become. The data path does not come here.

use pkt::{Packet, PacketList};

use super::{Gro, GroMode};
use crate::{cx::Cx, sysctl::modes::GroExit};

/// One NAPI instance's receive offload with settings of its own. Dropping it frees what it holds.
#[derive(Debug)]
pub struct Offline {
    gro: Gro,
    mode: GroMode,
    network: usize,
}

impl Offline {
    /// Nothing held. `batch` as `net.core.gro_normal_batch`; a superframe has fewer than `max_bytes` bytes of IP packet, and 0
    /// merges nothing; the IP header of a frame begins `network` bytes in.
    #[must_use]
    pub fn new(exit: GroExit, batch: u32, max_bytes: u32, network: usize) -> Self {
        let merges = max_bytes > 0;
        let batch = batch.max(1);
        let mode = GroMode { exit, batch, merges, max_bytes, ipv4_max_bytes: max_bytes };
        Self { gro: Gro::default(), mode, network }
    }

    /// Takes a frame; answers what goes up now, oldest first.
    pub fn receive(&mut self, cx: &mut Cx, frame: Packet) -> PacketList {
        self.gro.receive(cx, &self.mode, self.network, frame);
        core::mem::take(self.gro.ready())
    }

    /// The end of a poll: answers everything that was held and waited. With `old_only` what was held in the present millisecond
    /// stays.
    pub fn end_poll(&mut self, cx: &Cx, old_only: bool) -> PacketList {
        self.gro.flush(cx, &self.mode, old_only);
        core::mem::take(self.gro.ready())
    }

    /// Nothing is held and nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.gro.is_empty()
    }
}
