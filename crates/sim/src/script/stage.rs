//! The host of a script with its wire, its process, its connections, and the trace of the events.
//!
//! The host is 192.168.0.1 on a device that carries IP packets, as a tun; the peer is 192.0.2.1,
//! behind a router. In another [`Family`], packets and addresses are translated where they meet
//! the host.
//!
//! Not here: the order of events and the expectations (`run`).

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::Instant;
use stack::{
    Capabilities, Errno,
    base::counters::Snapshot,
    device::LinkType,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    route::fib::RouteSpec,
    socket::Connection,
    sysctl::Sysctls,
};
use tcp::TcpInfo;

use super::{
    ast::{Call, Cookie, IcmpSpec, Opt, Payload, Spec, TcpSpec},
    config::Config,
    conn::{Conn, timestamp_of},
    family::Family,
    packet::{Segment, icmp_packet},
    run::show_time,
    syscall::{Outcome, Process, Running},
};
use crate::{ByteLink, World};

/// The host's address, as packetdrill's.
const HOST_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// The peer's.
const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The router between them.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
/// Port of the listening end.
const SERVICE_PORT: u16 = 8080;
/// Port of a peer that connects, unless the script names another.
const PEER_PORT: u16 = 40_000;
/// Packet memory of one script.
const MEMORY_BYTES: usize = 64 << 20;

/// A segment of the host with its time.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) at: Duration,
    pub(super) segment: Segment,
}

/// Host of a script with its wire, its process, its connections, and its trace.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) config: Config,
    family: Family,
    /// Segments that no line has expected so far.
    pub(super) sent: VecDeque<Sent>,
    pub(super) trace: Vec<String>,
    world: World,
    link: Arc<ByteLink>,
    process: Process,
    conns: Vec<Conn>,
    current: Option<usize>,
    cookies: BTreeMap<String, Vec<u8>>,
}

impl Stage {
    /// Builds a host with `cores` cores and these settings.
    ///
    /// # Errors
    /// The refused setting.
    pub(super) fn new(
        config: Config,
        cores: u16,
        settings: &[(String, String)],
        family: Family,
    ) -> Result<Self, String> {
        let mut sysctls = Sysctls::default();
        for (name, value) in settings {
            sysctls.set(name, value).map_err(|error| error.to_string())?;
        }
        let mtu = family.mtu(config.mtu);
        let link = Arc::new(ByteLink::new(Capabilities::plain("tun0", mtu, LinkType::Ip)));
        let mut world = World::with_memory(config.seed, MEMORY_BYTES);
        let (everywhere, bits) = match family {
            Family::V6 => ("::/0", 112),
            Family::V4 | Family::Mapped => ("0.0.0.0/0", 16),
        };
        let everywhere = everywhere.parse().expect("a prefix");
        let address = format!("{}/{bits}", family.of_wire(HOST_IP));
        let added = world.add_host(HostConfig {
            name: String::from("host"),
            devices: vec![DeviceConfig {
                device: Arc::clone(&link) as _,
                addresses: vec![address.parse().expect("a prefix")],
            }],
            routes: vec![RouteSpec::via(everywhere, family.of_wire(GATEWAY))],
            cores,
            sysctls,
            ..HostConfig::replay(0)
        });
        added.map_err(|error| error.to_string())?;
        let peer = SocketAddr::new(PEER_IP.into(), SERVICE_PORT);
        let process = Process::new(HOST_IP, peer, SERVICE_PORT, family);
        Ok(Self {
            config,
            family,
            sent: VecDeque::new(),
            trace: Vec::new(),
            world,
            link,
            process,
            conns: Vec::new(),
            current: None,
            cookies: BTreeMap::new(),
        })
    }

    /// Time since the script began.
    pub(super) fn now(&self) -> Duration {
        self.world.elapsed()
    }

    pub(super) fn set_now(&mut self, now: Duration) {
        let ahead = now.saturating_sub(self.now());
        self.world.cx.now += ahead;
    }

    pub(super) fn since_start(&self, then: Instant) -> Duration {
        (then + self.now()) - self.world.cx.now
    }

    /// Runs the host until it has nothing to do, and takes its segments. Returns its next deadline.
    ///
    /// # Errors
    /// When the host has sent an invalid packet.
    pub(super) fn settle(&mut self) -> Result<Option<Duration>, String> {
        let next = self.world.settle();
        while let Some(sent) = self.link.take() {
            let read = self.family.outbound(sent.bytes);
            let segment = read
                .and_then(|bytes| Segment::read(&bytes, self.config.mtu))
                .map_err(|fault| format!("the host has sent {fault}"))?;
            self.sent.push_back(Sent { at: self.now(), segment });
        }
        Ok(next.map(|next| self.since_start(next)))
    }

    /// Walks the invariants of every connection.
    pub(super) fn check(&mut self) {
        let host = self.host();
        for socket in self.process.sockets().to_vec() {
            socket.with_tcb(&host, &mut self.world.cx, |tcb, _| tcb.check());
        }
    }

    fn host(&self) -> Arc<Host> {
        Arc::clone(&self.world.hosts[0])
    }

    /// Changes settings of the running host.
    ///
    /// # Errors
    /// The refused setting.
    pub(super) fn set_sysctls(&self, settings: &[(String, String)]) -> Result<(), String> {
        for (name, value) in settings {
            self.world.hosts[0].set_sysctl(name, value).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    // ---- Calls.

    pub(super) fn run_call(&mut self, running: &mut Running) -> Result<Outcome, String> {
        let outcome = self.process.run(&mut self.world, running);
        if let Some((local, remote)) = self.process.connected.take() {
            let [local, remote] = [local, remote].map(|end| self.family.to_script(end));
            let (IpAddr::V4(host), IpAddr::V4(peer)) = (local.ip(), remote.ip()) else {
                return Err(String::from("addresses of IPv6"));
            };
            self.conns.push(Conn::new((host, local.port()), (peer, remote.port())));
            self.current = Some(self.conns.len() - 1);
        }
        outcome
    }

    pub(super) fn note_call(&mut self, call: &Call) {
        let line = format!("{} {}(...)", show_time(self.now()), call.name);
        self.trace.push(line);
    }

    pub(super) fn note_result(&mut self, result: Result<i64, Errno>) {
        let shown = match result {
            Ok(value) => value.to_string(),
            Err(errno) => format!("-1 {}", errno.name()),
        };
        let line = format!("{}   = {shown}", show_time(self.now()));
        self.trace.push(line);
    }

    // ---- Packets of the peer.

    pub(super) fn inbound(&mut self, spec: &Spec) -> Result<(), String> {
        let bytes = match &spec.payload {
            Payload::Tcp(tcp) => {
                let at = self.inbound_conn(tcp);
                let segment = self.conns[at].inbound(&spec.ip, tcp, &self.cookies);
                let shown = self.conns[at].relative_inbound(&segment);
                let line = format!("{} < {}", show_time(self.now()), self.with_ports(at, &shown));
                self.trace.push(line);
                segment.bytes(spec.ip.bad_checksum)?
            }
            Payload::Icmp(icmp) => {
                let line = format!("{} < icmp {}/{}", show_time(self.now()), icmp.kind, icmp.code);
                self.trace.push(line);
                self.icmp(spec, icmp)?
            }
        };
        let bytes = self.family.inbound(bytes);
        if self.link.deliver(&mut self.world.cx, &bytes) {
            Ok(())
        } else {
            Err(String::from("no packet memory is left"))
        }
    }

    fn inbound_conn(&mut self, tcp: &TcpSpec) -> usize {
        let ports = match (tcp.ports, self.current) {
            (None, Some(current)) => return current,
            (None, None) => (SERVICE_PORT, PEER_PORT),
            (Some((peer, host)), _) => (host, peer),
        };
        let at = self.find(ports).unwrap_or_else(|| {
            self.conns.push(Conn::new((HOST_IP, ports.0), (PEER_IP, ports.1)));
            self.conns.len() - 1
        });
        self.current = Some(at);
        at
    }

    /// The connection with these ports, the host's first.
    fn find(&self, (host, peer): (u16, u16)) -> Option<usize> {
        self.conns.iter().rposition(|conn| (conn.host_port, conn.peer_port) == (host, peer))
    }

    fn icmp(&self, spec: &Spec, icmp: &IcmpSpec) -> Result<Vec<u8>, String> {
        let at = match icmp.ports {
            Some(ports) => self.find(ports),
            None => self.current,
        };
        let conn = at.map(|at| &self.conns[at]).ok_or("an error about no connection")?;
        let src = spec.ip.src.unwrap_or(conn.peer_ip);
        Ok(icmp_packet(
            (src, conn.host_ip, conn.peer_ip),
            (icmp.kind, icmp.code, icmp.mtu),
            (conn.host_port, conn.peer_port, conn.to_wire(icmp.seq)),
        ))
    }

    // ---- Segments of the host.

    /// The connection on which a segment is expected.
    pub(super) fn expected_conn(&mut self, tcp: &TcpSpec) -> Result<usize, String> {
        let at = match tcp.ports {
            Some(ports) => self.find(ports),
            None => self.current,
        };
        self.current = at.or(self.current);
        at.ok_or_else(|| String::from("a segment of no connection known"))
    }

    /// Takes the values that `tcp` leaves open from a segment. Returns the segment with relative
    /// numbers.
    pub(super) fn learn(
        &mut self,
        at: usize,
        tcp: &TcpSpec,
        segment: &Segment,
    ) -> Result<Segment, String> {
        let conn = &mut self.conns[at];
        if !conn.is_of(segment) {
            return Err(String::from("a segment of another connection"));
        }
        conn.learn(tcp, segment);
        let seen = conn.relative(segment);
        if !conn.is_payload_right(&seen) {
            return Err(String::from("wrong bytes in the payload"));
        }
        for (expected, came) in tcp.options.iter().flatten().zip(&seen.options) {
            if let Opt::Cookie { cookie: Cookie::Named(name), .. } = expected
                && let Opt::Cookie { cookie: Cookie::Bytes(bytes), .. } = came
            {
                self.cookies.insert(name.clone(), bytes.clone());
            }
        }
        Ok(seen)
    }

    /// With `--tcp_ts_tick_usecs` the host's timestamps follow the clock.
    pub(super) fn check_clock(&self, at: usize, tcp: &TcpSpec, sent: &Sent) -> Result<(), String> {
        let expected = tcp.options.iter().flatten().find_map(|option| match option {
            Opt::Timestamps(label, _) => Some(*label),
            _ => None,
        });
        let (Some(label), Some(wire)) = (expected, timestamp_of(&sent.segment)) else {
            return Ok(());
        };
        let off = self.conns[at].clock_error(label, wire);
        let tick = u64::try_from(self.config.ts_tick.as_micros()).unwrap_or(u64::MAX);
        let off = Duration::from_micros(tick.saturating_mul(u64::from(off)));
        if off > self.config.tolerance {
            return Err(format!("TS val {label}: the clock is off by {off:?}"));
        }
        Ok(())
    }

    pub(super) fn note_sent(&mut self, at: usize, sent: &Sent) {
        let shown = self.conns[at].relative(&sent.segment);
        let line = format!("{} > {}", show_time(sent.at), self.with_ports(at, &shown));
        self.trace.push(line);
    }

    /// A segment of the host as a line of a script.
    pub(super) fn show(&self, segment: &Segment) -> String {
        match self.conns.iter().rposition(|conn| conn.is_of(segment)) {
            Some(at) => self.with_ports(at, &self.conns[at].relative(segment)),
            None => format!("{} > {} {segment}", segment.src_port, segment.dst_port),
        }
    }

    /// Ports are shown when there is more than one connection.
    fn with_ports(&self, at: usize, segment: &Segment) -> String {
        if self.conns.len() < 2 && Some(at) == self.current {
            segment.to_string()
        } else {
            format!("{} > {} {segment}", segment.src_port, segment.dst_port)
        }
    }

    // ---- Values of assertions.

    pub(super) fn counters(&self) -> Snapshot {
        self.world.hosts[0].counters()
    }

    pub(super) fn counter(&self, name: &str) -> Option<i64> {
        let value = self.world.hosts[0].counters().get(name)?;
        Some(i64::try_from(value).unwrap_or(i64::MAX))
    }

    /// `TCP_INFO` of the current connection.
    pub(super) fn info(&mut self) -> Result<TcpInfo, String> {
        let socket = self.socket().ok_or("the process has no socket of this connection")?;
        let host = self.host();
        Ok(socket.with_tcb(&host, &mut self.world.cx, |tcb, _| tcb.info()))
    }

    fn socket(&self) -> Option<Arc<Connection>> {
        let conn = &self.conns[self.current?];
        let local = SocketAddr::new(conn.host_ip.into(), conn.host_port);
        let remote = SocketAddr::new(conn.peer_ip.into(), conn.peer_port);
        let [local, remote] = [local, remote].map(|end| self.family.of_process(end));
        self.process.socket(local, remote).cloned()
    }

    /// Stops the host and lets every timer expire.
    ///
    /// # Errors
    /// When a connection or a packet is left.
    pub(super) fn finish(self) -> Result<(), String> {
        let Self { mut world, process, .. } = self;
        drop(process);
        let host = Arc::clone(&world.hosts[0]);
        host.shut_down(&mut world.cx);
        world.pass(Duration::from_secs(1200));
        if host.established_len() != 0 {
            return Err(format!("after the end {} connections are left", host.established_len()));
        }
        drop(host);
        world.hosts.clear();
        match world.packets_alive() {
            0 => Ok(()),
            left => Err(format!("after the end {left} packets are left")),
        }
    }
}
