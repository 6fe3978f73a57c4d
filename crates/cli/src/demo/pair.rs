//! The measured pairs of hosts: the machine with itself, and two quietline stacks connected by a
//! wire.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::Result;
use ipnet::{IpNet, Ipv4Net};
use quietline::{Impairment, Stack, StackBuilder, Wire, WireConfig};

use super::{slice::Pair, workload::WireKind};
use crate::{
    endpoint::{KernelHost, StackHost},
    link::{Recording, Sysctl},
};

/// Fraction of packets that the lossy wire drops, in each direction.
const LOSS: f64 = 0.01;
/// Fraction of packets that the lossy wire delays.
const REORDER: f64 = 0.01;
/// Delay of these packets: long enough for dozens of segments to overtake, far below a
/// retransmission timeout.
const REORDER_DELAY: Duration = Duration::from_micros(100);

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PREFIX_LEN: u8 = 24;

/// Returns the kernel as both hosts, connected by the loopback interface as the system has
/// configured it.
pub(super) fn kernel() -> Pair<KernelHost> {
    Pair { client: KernelHost, server: KernelHost, server_ip: IpAddr::V4(Ipv4Addr::LOCALHOST) }
}

/// Creates two stacks on a wire, both with these settings. The recording captures at the server
/// only, because the client would show every frame again.
pub(super) fn quietline(
    kind: WireKind,
    seed: u64,
    sysctl: &[Sysctl],
    recording: Option<&Recording>,
) -> Result<Pair<StackHost>> {
    let impairment = match kind {
        WireKind::Frames | WireKind::Superframes => Impairment::default(),
        WireKind::Lossy => Impairment {
            loss: LOSS,
            reorder: REORDER,
            reorder_delay: REORDER_DELAY,
            ..Impairment::default()
        },
    };
    let (left, right) = Wire::pair(&WireConfig {
        name: kind.name().to_owned(),
        mtu: 1500,
        tso: kind == WireKind::Superframes,
        // A lossy wire verifies checksums like a real link; the others leave them out, as the
        // kernel's loopback does.
        checksums: kind == WireKind::Lossy,
        forward: impairment,
        backward: impairment,
        seed,
        ..WireConfig::default()
    })?;
    let builder = || {
        let set = |builder: StackBuilder, own: &Sysctl| builder.sysctl(&own.name, &own.value);
        sysctl.iter().fold(Stack::builder(), set)
    };
    let mut server =
        builder().name(format!("{} server", kind.name())).device(right).address(network(SERVER)?);
    if let Some(recording) = recording {
        server = server.capture(recording.handle());
    }
    let client =
        builder().name(format!("{} client", kind.name())).device(left).address(network(CLIENT)?);
    Ok(Pair {
        client: StackHost(client.build()?),
        server: StackHost(server.build()?),
        server_ip: IpAddr::V4(SERVER),
    })
}

fn network(address: Ipv4Addr) -> Result<IpNet> {
    Ok(IpNet::V4(Ipv4Net::new(address, PREFIX_LEN)?))
}
