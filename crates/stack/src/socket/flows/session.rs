//! UDP session of an intercepting device: the datagrams of one source address and port, to any
//! destination.
//!
//! Above: `sessions`, which finds and ends sessions; crate `quietline`. Below: `datagram::build`,
//! `transmit::ip_output`. RFC 4787: the mapping is endpoint-independent (REQ-1), so a session is
//! named by its source alone, and each datagram carries its destination.
//!
//! Datagrams wait for the application in a queue of limited bytes. When it is full, the oldest is
//! dropped: a late datagram is worth less than a new one.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet, checksum};
use sync::{EventCount, Watchers};
use tcp::{FourTuple, Readiness};

use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    header::{
        ip::{self, Visible, protocol},
        udp::UdpHeader,
    },
    route::router::Destination,
    socket::{
        connection::readiness::notify_watchers,
        datagram::build::{self, Checks},
        family::canonical,
        net::Net,
        rx::scoped,
    },
    transmit::{
        ip_output::{self, IpFields, MtuDiscover, Sender},
        link_output,
    },
};

/// Largest payload of a datagram over IPv4; the headers are part of the 16-bit length.
const PAYLOAD_MAX_V4: usize = 65_535 - 28;
/// Largest payload of a datagram over IPv6; the UDP header is part of the 16-bit length.
const PAYLOAD_MAX_V6: usize = 65_535 - 8;

/// A UDP session.
#[derive(Debug)]
pub struct UdpSession {
    device: DeviceIndex,
    source: SocketAddr,
    /// Core that has received the first datagram. Sends its datagrams.
    core: CoreId,
    /// Upper bound of `truesize` of the waiting datagrams.
    queue_bytes_max: u32,
    /// Number of the session, by which sessions with the same expiry differ.
    pub(super) serial: u64,
    /// Expiry under which `sessions` lists the session, in nanoseconds; the true one may be later.
    /// Written under the lock of the list.
    pub(super) listed_ns: AtomicU64,
    /// Time of the last datagram in either direction. Relaxed: a late expiry is harmless.
    used_ns: AtomicU64,
    /// Idle time after which the session ends: the longest of the destination ports so far.
    timeout_ns: AtomicU64,
    state: Mutex<State>,
    readers: EventCount,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct State {
    packets: VecDeque<Packet>,
    /// Sum of `truesize`.
    bytes: u32,
    /// Error of calls after the end.
    ended: Option<Errno>,
}

impl UdpSession {
    pub(super) fn new(
        device: DeviceIndex,
        source: SocketAddr,
        core: CoreId,
        queue_bytes_max: u32,
        serial: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            device,
            source,
            core,
            queue_bytes_max,
            serial,
            listed_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            timeout_ns: AtomicU64::new(0),
            state: Mutex::default(),
            readers: EventCount::new(),
            watchers: Watchers::new(),
        })
    }

    /// Notes a datagram to a port with this timeout.
    pub(super) fn touch(&self, now: Instant, timeout: Duration) {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        if self.timeout_ns.load(Ordering::Relaxed) < timeout {
            self.timeout_ns.fetch_max(timeout, Ordering::Relaxed);
        }
        self.used_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the time at which the session ends unless it is used before.
    pub(super) fn expiry(&self) -> Instant {
        let used = self.used_ns.load(Ordering::Relaxed);
        Instant::from_nanos(used.saturating_add(self.timeout_ns.load(Ordering::Relaxed)))
    }

    /// Softirq: queues a datagram, whose headers were removed and stay readable in front of the
    /// payload. `Err` returns it if the session has ended.
    pub(super) fn deliver(&self, cx: &mut Cx, packet: Packet) -> Result<(), Packet> {
        let mut dropped = VecDeque::new();
        {
            let mut state = self.lock();
            if state.ended.is_some() {
                return Err(packet);
            }
            state.bytes += packet.truesize();
            state.packets.push_back(packet);
            while state.bytes > self.queue_bytes_max
                && let Some(oldest) = state.packets.pop_front()
            {
                state.bytes -= oldest.truesize();
                dropped.push_back(oldest);
            }
        }
        cx.count(Counter::FlowSessionDrops, dropped.len() as u64);
        for packet in dropped {
            cx.drop_packet(DropReason::FlowQueueFull, packet);
        }
        if self.readers.notify_one() {
            cx.count(Counter::SocketWakes, 1);
        }
        notify_watchers(&self.watchers, cx, Readiness::READ);
        Ok(())
    }

    /// Ends the session; the caller has removed it from the list.
    pub(super) fn end(&self, cx: &mut Cx, errno: Errno) {
        let packets = {
            let mut state = self.lock();
            state.ended.get_or_insert(errno);
            state.bytes = 0;
            core::mem::take(&mut state.packets)
        };
        for packet in packets {
            cx.drop_packet(DropReason::SocketClosed, packet);
        }
        self.readers.notify_all();
        notify_watchers(&self.watchers, cx, Readiness::all());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls of the application.
impl UdpSession {
    /// Returns the address and port whose datagrams the session has.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        self.source
    }

    /// Returns the device that has brought the first datagram.
    #[must_use]
    pub const fn via(&self) -> DeviceIndex {
        self.device
    }

    /// Returns the core that receives the datagrams.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// Takes the oldest datagram. Returns the number of bytes copied into `buf`, the rest of a
    /// longer datagram is lost, and the destination to which the source has sent it.
    ///
    /// # Errors
    /// `EAGAIN` without a datagram. After the end of the session: `ETIMEDOUT` if it was idle for
    /// too long, `ECONNABORTED` if a newer session has taken its place, `ENETDOWN` if the host or
    /// its device has ended.
    pub fn recv(
        &self,
        net: &Net,
        cx: &mut Cx,
        buf: &mut [u8],
    ) -> Result<(usize, SocketAddr), Errno> {
        let packet = {
            let mut state = self.lock();
            match state.packets.pop_front() {
                Some(packet) => {
                    state.bytes -= packet.truesize();
                    packet
                }
                None => return Err(state.ended.unwrap_or(Errno::EAGAIN)),
            }
        };
        let len = packet.copy_to(0, buf);
        let ip = packet.network_header();
        let (v4, dst) = (ip::is_v4(ip), Visible::read(ip).dst);
        let port = UdpHeader::ports(packet.transport_header()).map_or(0, |(_, to)| to);
        cx.pool.free(packet);
        let entered = cx.enter(net);
        cx.count(Counter::UdpInDatagrams.of_version(v4), 1);
        cx.leave(entered);
        Ok((len, scoped(dst, port, self.device)))
    }

    /// Sends a datagram to the source of the session. `from` becomes its source address and port:
    /// for an answer, the destination of the datagram that it answers.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for an address of the other family, `EINVAL` for one that is not a single
    /// host's, or port 0; `EMSGSIZE` for a payload that does not fit a packet; `ENOBUFS` without
    /// memory; as [`recv`](Self::recv) after the end of the session.
    pub fn send(
        &self,
        net: &Net,
        cx: &mut Cx,
        payload: &[u8],
        from: SocketAddr,
    ) -> Result<usize, Errno> {
        if let Some(errno) = self.lock().ended {
            return Err(errno);
        }
        let tuple = FourTuple { local: self.check(from)?, remote: self.source };
        let max = if tuple.is_ipv4() { PAYLOAD_MAX_V4 } else { PAYLOAD_MAX_V6 };
        if payload.len() > max {
            return Err(Errno::EMSGSIZE);
        }
        let entered = cx.enter(net);
        let sent = self.transmit(net, cx, payload, &tuple);
        self.touch(cx.now, Duration::ZERO);
        cx.do_softirq();
        cx.leave(entered);
        sent
    }

    /// Checks the source address of a datagram.
    fn check(&self, from: SocketAddr) -> Result<SocketAddr, Errno> {
        let from = canonical(from)?;
        if from.is_ipv4() != self.source.is_ipv4() {
            return Err(Errno::EAFNOSUPPORT);
        }
        let (ip, broadcast) = (from.ip(), matches!(from.ip(), IpAddr::V4(ip) if ip.is_broadcast()));
        let is_host = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && !broadcast;
        if is_host && from.port() != 0 { Ok(from) } else { Err(Errno::EINVAL) }
    }

    fn transmit(
        &self,
        net: &Net,
        cx: &mut Cx,
        payload: &[u8],
        tuple: &FourTuple,
    ) -> Result<usize, Errno> {
        let v4 = tuple.is_ipv4();
        let hash = net.demux().hash(tuple);
        let reader = cx.reader();
        let rcu = reader.pin();
        let to = Destination::of_answer(self.source, Some(self.device));
        let dst = net.reply_dst(cx, to, None, Some(hash), self.core, &rcu)?;
        let checks = if dst.sums_payload { Checks::Here } else { Checks::Device };
        let ports = (tuple.local.port(), tuple.remote.port());
        let pseudo = checksum::pseudo_header(tuple.local.ip(), tuple.remote.ip(), protocol::UDP, 0);
        let mut packet =
            build::datagram(cx, payload, ports, (checks, pseudo)).ok_or_else(|| {
                cx.count(Counter::UdpSndbufErrors.of_version(v4), 1);
                Errno::ENOBUFS
            })?;
        packet.meta_mut().flow_hash = hash;
        let queue = dst.tx.pick_queue(cx, self.core, hash);
        let headers = ip_header_len(v4);
        let is_long = packet.len() + headers > dst.mtu as usize;
        cx.out.push_back(packet);
        cx.count(Counter::UdpOutDatagrams.of_version(v4), 1);
        let protocol = protocol::UDP;
        if is_long {
            // Fragments need an identification that is not used again soon.
            let (src, dst_ip) = (tuple.local.ip(), tuple.remote.ip());
            let mut id = net.ip_ids().next(src, dst_ip, protocol, cx.now, &mut cx.rng);
            let fields = IpFields { mtu_discover: Some(MtuDiscover::Dont), ..IpFields::default() };
            let sender = Sender { tuple, protocol, fields, ids: Some(&mut id) };
            let mut list = pkt::PacketList::new();
            ip_output::add_headers_and_cut(cx, &dst, sender, &mut list);
            let _ = link_output::output(cx, &dst, queue, &mut list);
        } else {
            let sender = Sender { tuple, protocol, fields: IpFields::default(), ids: None };
            let list = core::mem::take(&mut cx.out);
            let _ = ip_output::output_as(cx, dst, sender, queue, list);
        }
        Ok(payload.len())
    }

    /// Ends the session for the application. A further datagram of the source opens another one.
    pub fn close(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        let entered = cx.enter(net);
        if let Some(interceptor) = net.flows().interceptor(self.device) {
            interceptor.sessions().remove(net, self);
        }
        self.end(cx, Errno::ECONNABORTED);
        cx.leave(entered);
    }

    /// Returns READ if a datagram waits, always WRITE, and HUP and ERROR once the session has
    /// ended.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let state = self.lock();
        let mut ready = Readiness::WRITE;
        let ended = state.ended.is_some();
        ready.set(Readiness::READ, ended || !state.packets.is_empty());
        ready.set(Readiness::HUP | Readiness::ERROR, ended);
        ready
    }

    /// Returns the event count of threads that wait for a datagram.
    #[must_use]
    pub const fn waiters(&self) -> &EventCount {
        &self.readers
    }

    /// Returns the tasks and event loops that the session notifies.
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Synchronizes a task with the contexts that queue datagrams, as
    /// [`Connection::sync_with_owner`](crate::socket::Connection::sync_with_owner).
    pub fn sync_with_owner(&self) {
        drop(self.lock());
    }
}

const fn ip_header_len(v4: bool) -> usize {
    if v4 { ip::fixed_len::<true>() } else { ip::fixed_len::<false>() }
}
