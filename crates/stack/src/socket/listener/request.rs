//! A passive open in SYN-RECEIVED. The object is small, because a peer can cause many of them at no
//! cost.
//!
//! A request is in the established table under its four-tuple until the third segment, a reset or
//! an ICMP error ends it, the last SYN-ACK times out, its listener is closed, or its host loses the
//! local address. Exactly one thread sets `done`. That thread removes the request from the
//! listener's SYN queue, and replaces or removes its table entry. Linux: `struct request_sock`,
//! `tcp_check_req`.
//!
//! Not here: SYNs that are answered with a cookie (`input`).

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use pkt::{DropReason, Packet, Verdict};
use tcp::{FastOpen, IcmpError, Request, RequestTimer, RequestVerdict, SegmentHeader, SeqNum, Tcb};

use super::{Listener, Syn, source_limit::SourcePermit, syn_queue::Refused};
use crate::{
    cx::Cx,
    socket::{
        connection::Connection,
        core_sockets::TimerEntry,
        demux::{Entry, FlowName},
        net::Net,
        rx::Rx,
    },
    transmit::ip_output,
};

/// Value of `slot` for a request that is not in the SYN queue, because the request was made from a
/// cookie and exists for one segment only.
const NO_SLOT: usize = usize::MAX;

/// A half-open connection.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    name: FlowName,
    this: Weak<Self>,
    listener: Arc<Listener>,
    /// Index in the listener's SYN queue. Written once, before the table refers to this object.
    /// Relaxed: the insertion into the table orders the store.
    slot: AtomicUsize,
    /// Permit of the request under the limit of its source address, until the request ends or
    /// passes the permit to the connection. Only the thread that sets `done` takes the permit, so
    /// the lock is uncontended. `None` without a limit: then no lock is taken.
    permit: Option<Mutex<Option<Box<SourcePermit>>>>,
    /// State of the handshake. Locked for one segment, timer or ICMP error at a time, and never
    /// during transmission.
    request: Mutex<Request>,
    /// Whether the request has become a connection or has been given up.
    done: AtomicBool,
}

impl RequestSocket {
    /// Answers a SYN: adds a request to the table, sends a SYN-ACK, and arms the timer that repeats
    /// the SYN-ACK.
    pub(super) fn open(
        rx: &mut Rx<'_, '_>,
        listener: &Arc<Listener>,
        syn: Syn<'_>,
        fast_open: FastOpen,
    ) {
        let Syn { name, iss_min, header, packet } = syn;
        let Some((dst, mut params)) = listener.open_params(rx, name, iss_min) else {
            return rx.cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        let (net, cx) = (rx.net, &mut *rx.cx);
        params.fast_open = fast_open;
        let permit = match listener.claim_permit(cx, &name.tuple) {
            Ok(permit) => permit,
            Err(reason) => return Listener::refuse(cx, reason, packet),
        };
        let mut tcx = cx.tcp();
        let request = match Request::on_syn(&mut tcx, &params, header, packet.meta().ecn) {
            Ok(request) => request,
            Err(reason) => return cx.drop_packet(reason, packet),
        };
        let deadline = request.deadline();
        let socket = Self::new(listener, name, request, permit);
        if let Err(reason) = socket.register(net, listener.syn_backlog(cx)) {
            ip_output::discard_output(cx);
            return Listener::refuse(cx, reason, packet);
        }
        cx.pool.free(packet);
        net.core_sockets(name.core).arm(deadline, TimerEntry::Request(socket.this.clone()));
        ip_output::output(cx, dst, &name.tuple, name.core);
    }

    /// Processes a returned cookie: recreates the request for the segment that carried it, and
    /// removes it afterwards.
    pub(super) fn open_from_cookie(
        rx: &mut Rx<'_, '_>,
        listener: &Arc<Listener>,
        name: &FlowName,
        request: Request,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        let (net, cx) = (rx.net, &mut *rx.cx);
        let permit = match listener.claim_permit(cx, &name.tuple) {
            Ok(permit) => permit,
            Err(reason) => return Listener::refuse(cx, reason, packet),
        };
        let socket = Self::new(listener, name, request, permit);
        if net.demux().insert(name.hash, name.tuple, Entry::Request(Arc::clone(&socket))).is_err() {
            // Another core has processed the same segment meanwhile.
            return cx.drop_packet(DropReason::TcpClosed, packet);
        }
        socket.segment(rx, header, packet);
        socket.give_up(net);
    }

    fn new(
        listener: &Arc<Listener>,
        name: &FlowName,
        request: Request,
        permit: Option<Box<SourcePermit>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            name: *name,
            this: this.clone(),
            listener: Arc::clone(listener),
            slot: AtomicUsize::new(NO_SLOT),
            permit: permit.map(|permit| Mutex::new(Some(permit))),
            request: Mutex::new(request),
            done: AtomicBool::new(false),
        })
    }

    /// Adds the request to the SYN queue and the table, or to neither.
    fn register(self: &Arc<Self>, net: &Net, limit: usize) -> Result<(), DropReason> {
        let syn_queue = self.listener.syn_queue();
        let slot = syn_queue.add(self.this.clone(), limit).map_err(|refused| match refused {
            Refused::Closed => DropReason::TcpClosed,
            Refused::Full => DropReason::SynQueueFull,
        })?;
        self.slot.store(slot, Ordering::Relaxed);
        if net
            .demux()
            .insert(self.name.hash, self.name.tuple, Entry::Request(Arc::clone(self)))
            .is_err()
        {
            // Another core has answered the same SYN meanwhile; its SYN-ACK is the valid one.
            self.give_up(net);
            return Err(DropReason::TcpInvalidSyn);
        }
        if self.done.load(Ordering::Acquire) {
            // The listener was closed meanwhile, perhaps before the entry was inserted. The lock of
            // the table orders the insertion and `give_up`, which `Listener::close` calls: either
            // `give_up` finds the entry, or `done` is visible here.
            self.remove_entry(net);
            return Err(DropReason::TcpClosed);
        }
        Ok(())
    }

    /// Softirq: processes a segment for this half-open connection.
    pub(crate) fn segment(
        self: &Arc<Self>,
        rx: &mut Rx<'_, '_>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        let (net, cx) = (rx.net, &mut *rx.cx);
        let has_room = !self.listener.is_accept_queue_full();
        let verdict = {
            let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            if self.done.load(Ordering::Acquire) {
                drop(request);
                // The sender retransmits a dropped segment; by then the table has the connection,
                // or no entry.
                return cx.drop_packet(DropReason::TcpClosed, packet);
            }
            let mut tcx = cx.tcp();
            let verdict = request.on_segment(&mut tcx, header, packet, has_room);
            match verdict {
                // Another core may have given up the request meanwhile, for the timer or for a
                // closed listener.
                RequestVerdict::Establish(packet) if self.done.swap(true, Ordering::AcqRel) => {
                    Err(RequestVerdict::Drop(DropReason::TcpClosed, packet))
                }
                RequestVerdict::Establish(packet) => {
                    Ok((request.to_tcb(&tcx, &self.listener.settings(rx.rcu).tcp), packet))
                }
                other => Err(other),
            }
        };
        match verdict {
            Ok((tcb, packet)) => self.establish(net, cx, tcb, header, packet),
            Err(verdict) => {
                self.transmit(net, cx);
                self.refuse(net, cx, verdict);
            }
        }
    }

    /// Completes the handshake: the connection replaces the request, and this segment is the
    /// connection's first.
    fn establish(
        &self,
        net: &Net,
        cx: &mut Cx,
        mut tcb: Tcb,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        self.leave_queue();
        let verdict = tcp::input(&mut tcb, header, packet, &mut cx.tcp());
        let socket =
            Connection::new(net, cx, &self.name, Box::new(tcb), None, self.listener.flags());
        self.listener.settle_options(cx, &socket);
        socket.set_permit(self.take_permit());
        let entry = Entry::Stream(Arc::clone(&socket));
        let begun = socket.begin(net, cx, |_| {
            net.demux().replace(self.name.hash, self.name.tuple, entry);
            Ok(())
        });
        debug_assert!(begun.is_ok());
        self.listener.offer(net, cx, socket);
        if let Verdict::Drop(reason, packet) = verdict {
            cx.drop_packet(reason, packet);
        }
    }

    fn refuse(&self, net: &Net, cx: &mut Cx, verdict: RequestVerdict) {
        match verdict {
            RequestVerdict::Drop(reason, packet) => cx.drop_packet(reason, packet),
            RequestVerdict::Closed(reason, packet) => {
                self.give_up(net);
                cx.drop_packet(reason, packet);
            }
            RequestVerdict::Establish(packet) => cx.drop_packet(DropReason::TcpClosed, packet),
        }
    }

    /// Softirq: repeats the SYN-ACK, or gives up.
    pub(crate) fn on_timer(&self, net: &Net, cx: &mut Cx) {
        let next = {
            let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            if self.done.load(Ordering::Acquire) {
                return;
            }
            let timer = request.on_timer(&mut cx.tcp());
            (timer, request.deadline())
        };
        self.transmit(net, cx);
        match next {
            (RequestTimer::Keep, deadline) => {
                net.core_sockets(self.name.core)
                    .arm(deadline, TimerEntry::Request(self.this.clone()));
            }
            (RequestTimer::GiveUp, _) => self.give_up(net),
        }
    }

    /// Softirq: processes a report by a router or the peer that the SYN-ACK could not be delivered
    /// (Linux: `tcp_req_err`).
    pub(crate) fn icmp_error(&self, net: &Net, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        let ends = {
            let request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
            request.on_icmp(&cx.tcp(), error, seq)
        };
        if ends {
            self.give_up(net);
        }
    }

    fn transmit(&self, net: &Net, cx: &mut Cx) {
        net.reply(cx, &self.name.tuple, self.name.core);
    }

    /// Ends the request without a connection. Nothing is sent.
    pub(crate) fn give_up(&self, net: &Net) {
        if !self.done.swap(true, Ordering::AcqRel) {
            self.leave_queue();
            self.remove_entry(net);
            drop(self.take_permit());
        }
    }

    fn take_permit(&self) -> Option<Box<SourcePermit>> {
        self.permit.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave_queue(&self) {
        match self.slot.load(Ordering::Relaxed) {
            NO_SLOT => {}
            slot => self.listener.syn_queue().remove(slot),
        }
    }

    fn remove_entry(&self, net: &Net) {
        net.demux().remove(self.name.hash, &self.name.tuple, |entry| {
            matches!(entry, Entry::Request(request) if std::ptr::eq(&raw const **request, self))
        });
    }
}
