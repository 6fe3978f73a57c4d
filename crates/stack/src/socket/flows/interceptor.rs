//! The interceptor of one device: what becomes of the first segment of a connection, and of
//! datagrams.
//!
//! Above: `receive::tcp_input`, `receive::udp_input`. RFC 9293 §3.10.7.2, for a listener of every
//! address and port that leaves the answer to the application. Differs from a listener: there are
//! no SYN cookies and no Fast Open, because both answer before the application has decided.

use std::{net::SocketAddr, sync::Arc};

use pkt::{DropReason, Packet};
use sync::epoch::Domain;
use tcp::{Flags, FourTuple, OpenParams, Request, SegmentHeader, SeqNum};

use super::{
    config::Intercept,
    queue::{FlowQueue, NewFlow},
    session::UdpSession,
    sessions::Sessions,
};
use crate::{
    base::{counters::Counter, errno::Errno, ids::DeviceIndex},
    cx::Cx,
    socket::{
        RequestSocket,
        demux::FlowName,
        listener::{source_limit::SourceLimit, syn_queue::SynQueue},
        net::Net,
        rx::Rx,
    },
};

/// Interceptor of one device.
#[derive(Debug)]
pub(crate) struct Interceptor {
    device: DeviceIndex,
    config: Intercept,
    /// Requests that are not established yet.
    pending: SynQueue,
    /// Their number by source address.
    sources: Arc<SourceLimit>,
    sessions: Sessions,
    queue: Arc<FlowQueue>,
}

impl Interceptor {
    pub(super) fn new(
        rcu: &Domain,
        device: DeviceIndex,
        config: Intercept,
        queue: Arc<FlowQueue>,
    ) -> Self {
        let sources = SourceLimit::new(config.max_pending_per_source);
        let sessions = Sessions::new(rcu, device);
        Self { device, config, pending: SynQueue::new(), sources, sessions, queue }
    }

    pub(super) const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(in crate::socket) const fn pending(&self) -> &SynQueue {
        &self.pending
    }

    /// Softirq: processes a segment that belongs to no known connection. `iss_min` is set when the
    /// four-tuple has just left TIME-WAIT.
    pub(crate) fn segment(
        self: &Arc<Self>,
        rx: &mut Rx<'_, '_>,
        name: &FlowName,
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        debug_assert_eq!(name.via, Some(self.device));
        // RFC 9293 §3.10.7.2: first RST, second ACK, third SYN.
        if header.has(Flags::RST) {
            return rx.cx.drop_packet(DropReason::TcpReset, packet);
        }
        if header.has(Flags::ACK) {
            let net = rx.net;
            return net.reply_with_reset(rx.cx, name, header, DropReason::TcpNoSocket, packet);
        }
        if !header.has(Flags::SYN) || header.has(Flags::FIN) {
            return rx.cx.drop_packet(DropReason::TcpFlags, packet);
        }
        if let Err((reason, packet)) = self.hold(rx, name, iss_min, header, packet) {
            rx.cx.drop_packet(reason, packet);
        }
    }

    /// Makes a request of a SYN, and hands it to the application.
    fn hold(
        self: &Arc<Self>,
        rx: &mut Rx<'_, '_>,
        name: &FlowName,
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) -> Result<(), (DropReason, Packet)> {
        let (net, cx, rcu) = (rx.net, &mut *rx.cx, rx.rcu);
        let FlowName { tuple, hash, core, .. } = *name;
        let FourTuple { local, remote } = tuple;
        let source = Some(local.ip());
        let Ok(dst) = net.reply_dst(cx, name.peer(), source, Some(hash), core, rcu) else {
            return Err((DropReason::IpNoRoute, packet));
        };
        let mut params: OpenParams = net.open_params(name, &dst, cx.now);
        if let Some(iss_min) = iss_min
            && params.iss.lt(iss_min)
        {
            params.iss = iss_min;
        }
        let Ok(permit) = self.sources.claim(remote.ip()) else {
            cx.count(Counter::FlowSourceLimit, 1);
            return Err((DropReason::FlowSourceLimit, packet));
        };
        let request = Request::hold(&cx.tcp(), &params, header, packet.meta().ecn);
        let limit = self.config.max_pending as usize;
        let held = RequestSocket::hold(net, self, name, request, permit, limit);
        let socket = match held {
            Ok(socket) => socket,
            Err(DropReason::SynQueueFull) => {
                cx.count(Counter::FlowPendingFull, 1);
                return Err((DropReason::FlowPendingFull, packet));
            }
            Err(reason) => return Err((reason, packet)),
        };
        cx.count(Counter::FlowRequests, 1);
        cx.pool.free(packet);
        if let Err(flow) = self.queue.push(cx, NewFlow::Tcp(socket)) {
            // The last handle was dropped since the interceptor was found.
            flow.refuse(net, cx);
        }
        Ok(())
    }

    /// Softirq: queues a datagram of `source` to `port`, whose headers were removed, at its
    /// session, which is made if necessary.
    pub(crate) fn datagram(
        &self,
        rx: &mut Rx<'_, '_>,
        source: SocketAddr,
        port: u16,
        packet: Packet,
    ) {
        let (net, cx, rcu) = (rx.net, &mut *rx.cx, rx.rcu);
        let (now, timeout) = (cx.now, self.config.timeout_of(port));
        let mut packet = packet;
        if let Some(session) = self.sessions.find(net, source, rcu) {
            session.touch(now, timeout);
            match session.deliver(cx, packet) {
                Ok(()) => return,
                // It ends at this moment.
                Err(refused) => packet = refused,
            }
        }
        let core = net.core_for(cx, packet.meta().flow_hash);
        let serial = self.sessions.next_serial();
        let session = UdpSession::new(self.device, source, core, self.config.session_bytes, serial);
        session.touch(now, timeout);
        let Ok(evicted) = self.sessions.add(net, &session, self.config.max_sessions as usize)
        else {
            // Another core has opened one, or the host shuts down. A datagram may be lost.
            return cx.drop_packet(DropReason::SocketClosed, packet);
        };
        cx.count(Counter::FlowSessions, 1);
        cx.count(Counter::FlowSessionsEvicted, evicted.len() as u64);
        for oldest in evicted {
            oldest.end(cx, Errno::ECONNABORTED);
        }
        if let Err(packet) = session.deliver(cx, packet) {
            return cx.drop_packet(DropReason::SocketClosed, packet);
        }
        if self.queue.push(cx, NewFlow::Udp(Arc::clone(&session))).is_err() {
            session.close(net, cx);
        }
    }

    /// Ends all requests and sessions, because the host shuts down.
    pub(super) fn shut_down(&self, net: &Net, cx: &mut Cx) {
        self.sessions.close(net, cx);
        for request in self.pending.close().iter().filter_map(std::sync::Weak::upgrade) {
            request.give_up(net);
        }
    }
}
