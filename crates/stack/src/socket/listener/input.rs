//! Segments for a listening port that belong to no known connection: SYNs, and ACKs with a SYN
//! cookie.
//!
//! Softirq context. RFC 9293 §3.10.7.2. Not here: segments of a request (`request`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pkt::{DropReason, Instant, Packet};
use tcp::{
    Counter as TcpCounter, Flags, FourTuple, OpenParams, Request, SegmentHeader, SeqNum,
    open::syn_cookie::COOKIE_LIFETIME_SECONDS,
};

use super::{Listener, Syn, request::RequestSocket, source_limit::SourcePermit};
use crate::{
    base::counters::Counter,
    cx::Cx,
    socket::{demux::FlowName, rx::Rx},
    transmit::{dst::DstHandle, ip_output},
};

impl Listener {
    /// Softirq: processes a segment for a listening port that belongs to no known connection.
    /// `iss_min` is set when the four-tuple has just left TIME-WAIT.
    pub(crate) fn segment(
        self: &Arc<Self>,
        rx: &mut Rx<'_, '_>,
        name: &FlowName,
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        // RFC 9293 §3.10.7.2: first RST, second ACK, third SYN.
        if header.has(Flags::RST) {
            return rx.cx.drop_packet(DropReason::TcpReset, packet);
        }
        if header.has(Flags::ACK) {
            return self.third_segment(rx, name, header, packet);
        }
        if !header.has(Flags::SYN) || header.has(Flags::FIN) {
            return rx.cx.drop_packet(DropReason::TcpFlags, packet);
        }
        let syn = Syn { name, iss_min, header, packet };
        if rx.net.connections_full(rx.cx) {
            return Self::refuse(rx.cx, DropReason::ConnectionLimit, syn.packet);
        }
        match self.admit(rx.cx, &name.tuple, iss_min.is_some()) {
            Ok(Answer::Request) => self.open(rx, syn),
            Ok(Answer::Cookie) => self.send_cookie(rx, syn),
            Err(reason) => Self::refuse(rx.cx, reason, syn.packet),
        }
    }

    /// Drops a SYN or a returned cookie, and counts the drop, as Linux does for every refusal of a
    /// listener.
    pub(in crate::socket) fn refuse(cx: &mut Cx, reason: DropReason, packet: Packet) {
        cx.counters().tcp.add(TcpCounter::TcpExtListenDrops, 1);
        cx.drop_packet(reason, packet);
    }

    /// Checks whether the listener may answer the SYN `header` with a request that replaces a
    /// TIME-WAIT socket. A refusal is counted like that of any SYN.
    pub(crate) fn admit_reopening(
        &self,
        cx: &Cx,
        tuple: &FourTuple,
        header: &SegmentHeader,
    ) -> Result<(), DropReason> {
        if header.has(Flags::FIN) {
            return Err(DropReason::TcpFlags);
        }
        self.admit(cx, tuple, true).map(drop).inspect_err(|_| {
            cx.counters().tcp.add(TcpCounter::TcpExtListenDrops, 1);
        })
    }

    /// Returns the maximum number of requests that wait for their third segment.
    pub(in crate::socket) fn syn_backlog(&self, cx: &Cx) -> usize {
        self.backlog().min(cx.sysctls().tcp_max_syn_backlog as usize)
    }

    /// Selects the answer to a SYN. A SYN that reopens a connection in TIME-WAIT needs an initial
    /// sequence number above the old ones, which a cookie cannot guarantee.
    fn admit(&self, cx: &Cx, tuple: &FourTuple, reopens: bool) -> Result<Answer, DropReason> {
        if self.source_limit.is_reached(tuple.remote.ip()) {
            return Err(count_reached(cx));
        }
        let counters = &cx.counters().tcp;
        let policy = cx.sysctls().tcp_syncookies;
        let full = self.syn_queue.len() >= self.syn_backlog(cx);
        let answer = if full || (policy == 2 && !reopens) {
            if policy == 0 || reopens {
                counters.add(TcpCounter::TcpExtTCPReqQFullDrop, 1);
                return Err(DropReason::SynQueueFull);
            }
            counters.add(TcpCounter::TcpExtTCPReqQFullDoCookies, 1);
            Answer::Cookie
        } else {
            Answer::Request
        };
        if self.is_accept_queue_full() {
            counters.add(TcpCounter::TcpExtListenOverflows, 1);
            return Err(DropReason::ListenOverflow);
        }
        Ok(answer)
    }

    /// Counts a new request or connection against the limit of the peer's address, and returns its
    /// permit ([`SourcePermit`]); `None` without a limit. On an error the caller drops the segment.
    pub(in crate::socket) fn claim_permit(
        &self,
        cx: &Cx,
        tuple: &FourTuple,
    ) -> Result<Option<Box<SourcePermit>>, DropReason> {
        self.source_limit.claim(tuple.remote.ip()).map_err(|_| count_reached(cx))
    }

    fn send_cookie(&self, rx: &mut Rx<'_, '_>, syn: Syn<'_>) {
        let Syn { name, header, packet, .. } = syn;
        let Some((dst, params)) = self.open_params(rx, name, None) else {
            return rx.cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        let (net, cx) = (rx.net, &mut *rx.cx);
        let mut tcx = cx.tcp();
        let (cookies, ecn) = (net.syn_cookies(), packet.meta().ecn);
        if let Err(reason) = Request::send_cookie(&mut tcx, &params, header, cookies, ecn) {
            return cx.drop_packet(reason, packet);
        }
        cx.pool.free(packet);
        self.note_cookie(cx.now);
        ip_output::output(cx, dst, &name.tuple, name.core);
    }

    /// Records the time of a cookie. The time is written at most once a second, because all cores
    /// share its cache line.
    fn note_cookie(&self, now: Instant) {
        let sent = Instant::from_nanos(self.cookie_sent_ns.load(Ordering::Relaxed));
        if now.checked_duration_since(sent).is_some_and(|age| age >= Duration::from_secs(1)) {
            self.cookie_sent_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    fn expects_cookies(&self, cx: &Cx) -> bool {
        let sent = self.cookie_sent_ns.load(Ordering::Relaxed);
        cx.sysctls().tcp_syncookies != 0
            && sent != 0
            && cx.now - Instant::from_nanos(sent) <= Duration::from_secs(COOKIE_LIFETIME_SECONDS)
    }

    /// Processes an ACK of no known connection: a returned cookie, or a segment to answer with a
    /// reset.
    fn third_segment(
        self: &Arc<Self>,
        rx: &mut Rx<'_, '_>,
        name: &FlowName,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        let net = rx.net;
        if header.has(Flags::SYN) || !self.expects_cookies(rx.cx) {
            return net.reply_with_reset(rx.cx, name, header, DropReason::TcpFlags, packet);
        }
        if net.connections_full(rx.cx) {
            return Self::refuse(rx.cx, DropReason::ConnectionLimit, packet);
        }
        let Some((_, params)) = self.open_params(rx, name, None) else {
            return rx.cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        let tcx = rx.cx.tcp();
        let Some(request) = Request::from_cookie(&tcx, &params, header, net.syn_cookies()) else {
            return net.reply_with_reset(rx.cx, name, header, DropReason::TcpFlags, packet);
        };
        RequestSocket::open_from_cookie(rx, self, name, request, header, packet);
    }

    /// Returns the initial parameters of a connection to this listener, and the route entry (dst)
    /// to its peer; `None` without a route.
    pub(in crate::socket) fn open_params<'s>(
        &self,
        rx: &Rx<'_, 's>,
        name: &FlowName,
        iss_min: Option<SeqNum>,
    ) -> Option<(DstHandle<'s>, OpenParams)> {
        let (net, cx, rcu) = (rx.net, &*rx.cx, rx.rcu);
        let FourTuple { local, remote } = name.tuple;
        let (core, flow) = (net.core_of_flow(name.hash), Some(name.hash));
        let dst = net.reply_dst(cx, remote, Some(local.ip()), flow, core, rcu).ok()?;
        let options = self.settings(rcu).tcp.clone();
        let mut params = OpenParams { options, ..net.open_params(name, &dst, cx.now) };
        if let Some(iss_min) = iss_min
            && params.iss.lt(iss_min)
        {
            params.iss = iss_min;
        }
        Some((dst, params))
    }
}

/// Counts a segment refused because its source address has reached the limit.
fn count_reached(cx: &Cx) -> DropReason {
    cx.count(Counter::ListenSourceLimit, 1);
    DropReason::SourceLimit
}

/// Answer to a SYN.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// A request that waits for the third segment.
    Request,
    /// A SYN cookie, which holds the whole state.
    Cookie,
}
