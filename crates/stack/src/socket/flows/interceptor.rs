//! The interceptor of one device: what becomes of the first segment of a connection.
//!
//! Above: `receive::tcp_input`. RFC 9293 §3.10.7.2, for a listener of every address and port that
//! leaves the answer to the application. Differs from a listener: there are no SYN cookies and no
//! Fast Open, because both answer before the application has decided; a reset or a late segment of
//! a client that has given up is dropped.

use std::sync::Arc;

use pkt::{DropReason, Packet};
use tcp::{Flags, FourTuple, OpenParams, Request, SegmentHeader, SeqNum};

use super::{
    config::Intercept,
    queue::{FlowQueue, NewFlow},
};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
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
    queue: Arc<FlowQueue>,
}

impl Interceptor {
    pub(super) fn new(device: DeviceIndex, config: Intercept, queue: Arc<FlowQueue>) -> Self {
        let sources = SourceLimit::new(config.max_pending_per_source);
        Self { device, config, pending: SynQueue::new(), sources, queue }
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
        if let Err(NewFlow::Tcp(request)) = self.queue.push(cx, NewFlow::Tcp(socket)) {
            // The last handle was dropped since the interceptor was found.
            request.refuse(net, cx);
        }
        Ok(())
    }

    /// Ends all requests, because the host shuts down.
    pub(super) fn shut_down(&self, net: &Net) {
        for request in self.pending.close().iter().filter_map(std::sync::Weak::upgrade) {
            request.give_up(net);
        }
    }
}
