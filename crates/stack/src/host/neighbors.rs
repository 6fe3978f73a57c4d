//! Neighbors that are set by hand, the list of all neighbors, and what the table asks of the host.
//!
//! Linux: `ip neigh replace ADDRESS lladdr MAC nud permanent dev DEVICE`, `ip neigh del`, `ip neigh show`. Any thread may call that
//! is not in a turn of a core.
//!
//! Not here: the table (`transmit::neighbor::table`), what ARP teaches (`receive::arp_input`).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Weak,
    vec::Vec,
};

use pkt::{Instant, Packet};
use tcp::{FourTuple, IcmpError, SeqNum, TcpError};

use super::Host;
use crate::{
    base::{config_error::ConfigError, errno::Errno, ids::CoreId},
    core::TimerEntry,
    cx::Cx,
    device::LinkType,
    header::{ethernet::MacAddr, icmp::Quote, ip::protocol},
    route::fib::Fib,
    socket::demux::Entry,
    transmit::{
        dst::RouteKind,
        neighbor::table::{NeighborEntry, NeighborInfo, Upper},
    },
};

/// Timers of neighbors run on the first core: ARP is not a data path.
const CORE: CoreId = CoreId(0);

impl Host {
    /// Sets the link address of a neighbor for good: it is never asked for, no ARP packet changes it and the table never collects
    /// it. Packets that waited for the address are sent. It ends by [`delete_neighbor`](Self::delete_neighbor), or when its device
    /// goes down, as in Linux.
    ///
    /// # Errors
    /// When there is no such device, its frames carry no link addresses, or `address` or `mac` is not that of a single other
    /// station. Nothing is changed then.
    pub fn set_neighbor(
        &self,
        cx: &mut Cx,
        device: u32,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), ConfigError> {
        self.check_device(device)?;
        // Differs from Linux: which takes a group address, too, because ARP packets that name one are refused here (`ArpPacket`).
        if !mac.is_unicast() {
            let allowed = "the link address of a single station";
            return Err(ConfigError::new("neighbor lladdr", mac, allowed));
        }
        let source = {
            let reader = self.rcu.reader();
            let rcu = reader.pin();
            let fib = self.fib(&rcu);
            check_address(fib, address)?;
            asker(fib, device, address)
        };
        let entered = cx.enter(self);
        self.neighbors.set_permanent(cx, (device, address), source, mac);
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Forgets the link address of a neighbor, set or learned: the next packet causes a request. Packets that wait are dropped.
    ///
    /// # Errors
    /// When there is no such device, or nothing is known of the address.
    pub fn delete_neighbor(
        &self,
        cx: &mut Cx,
        device: u32,
        address: IpAddr,
    ) -> Result<(), ConfigError> {
        self.check_device(device)?;
        let entered = cx.enter(self);
        let was_known = self.neighbors.delete(cx, (device, address));
        cx.do_softirq();
        cx.leave(entered);
        let error = || ConfigError::missing("neighbor", address, "no such neighbor");
        was_known.then_some(()).ok_or_else(error)
    }

    /// Every neighbor of which something is known, by device and address: `ip neigh show`.
    #[must_use]
    pub fn neighbors(&self) -> Vec<NeighborInfo> {
        self.neighbors.list()
    }

    /// Refuses a device that is not there or has no neighbors.
    fn check_device(&self, device: u32) -> Result<(), ConfigError> {
        let name = self.device_name(device);
        let refuse = || {
            let allowed = "a device whose frames carry link addresses";
            ConfigError::new("neighbor dev", name, allowed)
        };
        let missing = || ConfigError::missing("neighbor dev", device, "no such device");
        match self.attached(device) {
            Ok(attached) if attached.is_gone() => Err(missing()),
            Ok(_) => match self.device(device).caps().link {
                LinkType::Ethernet { .. } => Ok(()),
                LinkType::Ip => Err(refuse()),
            },
            Err(Errno::EINVAL) => Err(refuse()),
            Err(_) => Err(missing()),
        }
    }
}

impl Upper for Host {
    fn arm(&self, entry: Weak<NeighborEntry>, at: Instant) {
        self.core_sockets(CORE).arm(at, TimerEntry::Neighbor(entry));
    }

    /// Linux: `arp_error_report`.
    fn unreachable(&self, cx: &mut Cx, packet: &Packet) {
        let Ok(sent) = Quote::parse::<true>(packet.linear()) else { return };
        if sent.protocol != protocol::TCP {
            return;
        }
        let (src_port, dst_port) = sent.ports();
        let tuple = FourTuple {
            local: SocketAddr::new(sent.src, src_port),
            remote: SocketAddr::new(sent.dst, dst_port),
        };
        let hash = self.demux.hash(&tuple);
        let reader = cx.reader();
        let rcu = reader.pin();
        if let Some(Entry::Stream(socket)) = self.demux.established(hash, &tuple, &rcu) {
            let error = IcmpError::PathBroken(TcpError::HostUnreachable);
            socket.icmp_error(self, cx, error, SeqNum(sent.tcp_seq()));
        }
    }
}

/// Refuses an address that no single other station on a link can have.
fn check_address(fib: &Fib, address: IpAddr) -> Result<(), ConfigError> {
    let IpAddr::V4(ip) = address else {
        let allowed = "an IPv4 address: IPv6 is not spoken yet";
        return Err(ConfigError::new("neighbor", address, allowed));
    };
    match fib.local_kind(address) {
        Some(RouteKind::Local) => {
            Err(ConfigError::refused("neighbor", address, "an address of this host"))
        }
        None if ip.octets()[0] != 0 => Ok(()),
        _ => Err(ConfigError::new("neighbor", address, "an address of a single station")),
    }
}

/// The address that names this host as the asker, should `device` ever ask for `address`: of the same network, or the first one.
fn asker(fib: &Fib, device: u32, address: IpAddr) -> IpAddr {
    let route = fib.lookup(address).filter(|route| route.device == device);
    route
        .and_then(|route| route.prefsrc)
        .or_else(|| fib.first_address(device))
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}
