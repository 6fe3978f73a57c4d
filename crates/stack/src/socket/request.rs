//! A passive open in SYN-RECEIVED: small, because a peer can make many of them for free.
//!
//! Lives in the established table under its four-tuple until the third segment, a reset or the last SYN-ACK timeout.
//! Linux: `struct request_sock`, `tcp_check_req`.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use pkt::{DropReason, Packet, Verdict};
use tcp::{
    FourTuple, IcmpError, Request, RequestTimer, RequestVerdict, SegmentHeader, SeqNum,
    SocketOptions, Tcb,
};

use super::{listener::Listener, stream::TcpSocket};
use crate::{
    core::{CoreId, TimerEntry},
    cx::Cx,
    demux::Entry,
    host::Host,
    ip,
};

/// A half-open connection.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    tuple: FourTuple,
    hash: u32,
    core: CoreId,
    this: Weak<Self>,
    listener: Arc<Listener>,
    /// Held for one segment or timer only, and never while segments go out.
    request: Mutex<Request>,
    /// Turned into a connection, or given up; whoever sets it has removed the request from its listener's count.
    done: AtomicBool,
}

impl RequestSocket {
    /// Answers a SYN: a request in the table, a SYN-ACK on the wire, a timer to repeat it.
    pub(super) fn open(
        host: &Host,
        cx: &mut Cx,
        listener: &Arc<Listener>,
        (tuple, hash): (FourTuple, u32),
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        let Ok(dst) = host.route(cx, tuple.remote.ip(), Some(tuple.local.ip())) else {
            return cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        let mut params = host.open_params(tuple, hash, &dst, cx.now);
        if let Some(iss_min) = iss_min
            && params.iss.lt(iss_min)
        {
            params.iss = iss_min;
        }
        let mut tcx = cx.tcp();
        let request = match Request::on_syn(&mut tcx, &params, header) {
            Ok(request) => request,
            Err(reason) => return cx.drop_packet(reason, packet),
        };
        cx.pool.free(packet);
        let core = host.core_of_flow(hash);
        let deadline = request.deadline();
        let socket = Arc::new_cyclic(|this| Self {
            tuple,
            hash,
            core,
            this: this.clone(),
            listener: Arc::clone(listener),
            request: Mutex::new(request),
            done: AtomicBool::new(false),
        });
        listener.request_added();
        if host.demux().insert(hash, tuple, Entry::Request(Arc::clone(&socket))).is_err() {
            // Another core answered the same SYN a moment ago; its SYN-ACK is the one that counts.
            listener.request_gone();
            ip::discard_output(cx);
            return;
        }
        host.core(core).arm(deadline, TimerEntry::Request(socket.this.clone()));
        ip::output(host, cx, &dst, &tuple, core);
    }

    /// Softirq: a segment for this half-open connection.
    pub(crate) fn segment(
        self: &Arc<Self>,
        host: &Host,
        cx: &mut Cx,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        if self.listener.is_closed() {
            self.give_up(host);
            return host.reply_with_reset(cx, &self.tuple, header, DropReason::TcpClosed, packet);
        }
        let has_room = !self.listener.is_accept_queue_full();
        let verdict = {
            let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            if self.done.load(Ordering::Acquire) {
                drop(request);
                // The sender repeats what we cannot place; by then the table leads to the connection.
                return cx.drop_packet(DropReason::TcpClosed, packet);
            }
            let mut tcx = cx.tcp();
            let verdict = request.on_segment(&mut tcx, header, packet, has_room);
            match verdict {
                // Its timer, or a reset on another core, may have given the request up just now.
                RequestVerdict::Establish(packet) if self.done.swap(true, Ordering::AcqRel) => {
                    Err(RequestVerdict::Drop(DropReason::TcpClosed, packet))
                }
                RequestVerdict::Establish(packet) => {
                    Ok((request.to_tcb(&tcx, &SocketOptions::default()), packet))
                }
                other => Err(other),
            }
        };
        match verdict {
            Ok((tcb, packet)) => self.establish(host, cx, tcb, header, packet),
            Err(verdict) => {
                self.transmit(host, cx);
                self.refuse(host, cx, verdict);
            }
        }
    }

    /// The third segment: the connection takes the request's place and this segment as its first.
    fn establish(
        &self,
        host: &Host,
        cx: &mut Cx,
        mut tcb: Tcb,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        self.listener.request_gone();
        let verdict = tcp::input(&mut tcb, header, packet, &mut cx.tcp());
        let socket = TcpSocket::new(host, self.tuple, self.hash, self.core, Box::new(tcb), None);
        let entry = Entry::Stream(Arc::clone(&socket));
        let begun = socket.begin(host, cx, || {
            host.demux().replace(self.hash, self.tuple, entry);
            Ok(())
        });
        debug_assert!(begun.is_ok());
        self.listener.offer(host, cx, socket);
        if let Verdict::Drop(reason, packet) = verdict {
            cx.drop_packet(reason, packet);
        }
    }

    fn refuse(&self, host: &Host, cx: &mut Cx, verdict: RequestVerdict) {
        match verdict {
            RequestVerdict::Drop(reason, packet) => cx.drop_packet(reason, packet),
            RequestVerdict::Closed(reason, packet) => {
                self.give_up(host);
                cx.drop_packet(reason, packet);
            }
            RequestVerdict::Establish(packet) => cx.drop_packet(DropReason::TcpClosed, packet),
        }
    }

    /// Softirq: time to repeat the SYN-ACK, or to give up.
    pub(crate) fn on_timer(&self, host: &Host, cx: &mut Cx) {
        if self.listener.is_closed() {
            return self.give_up(host);
        }
        let next = {
            let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            if self.done.load(Ordering::Acquire) {
                return;
            }
            let timer = request.on_timer(&mut cx.tcp());
            (timer, request.deadline())
        };
        self.transmit(host, cx);
        match next {
            (RequestTimer::Keep, deadline) => {
                host.core(self.core).arm(deadline, TimerEntry::Request(self.this.clone()));
            }
            (RequestTimer::GiveUp, _) => self.give_up(host),
        }
    }

    /// Softirq: a router or the peer reports that our SYN-ACK could not be delivered (Linux: `tcp_req_err`).
    pub(crate) fn icmp_error(&self, host: &Host, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        let ends = {
            let request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            request.on_icmp(&cx.tcp(), error, seq)
        };
        if ends {
            self.give_up(host);
        }
    }

    fn transmit(&self, host: &Host, cx: &mut Cx) {
        if cx.out.is_empty() {
            return;
        }
        match host.route(cx, self.tuple.remote.ip(), Some(self.tuple.local.ip())) {
            Ok(dst) => ip::output(host, cx, &dst, &self.tuple, self.core),
            Err(_) => ip::discard_unroutable(cx),
        }
    }

    fn give_up(&self, host: &Host) {
        if !self.done.swap(true, Ordering::AcqRel) {
            self.listener.request_gone();
            host.demux().remove(self.hash, &self.tuple, |entry| {
                matches!(entry, Entry::Request(request) if std::ptr::eq(&raw const **request, self))
            });
        }
    }
}
