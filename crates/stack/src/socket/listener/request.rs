//! A passive open in SYN-RECEIVED. The object is small, because a peer can cause many of them at no
//! cost.
//!
//! A request is in the established table under its four-tuple until the third segment, a reset or
//! an ICMP error ends it, the last SYN-ACK times out, its listener is closed, or its host loses the
//! local address. Exactly one thread sets `done`. That thread removes the request from the
//! listener's SYN queue, and replaces or removes its table entry. Linux: `struct request_sock`,
//! `tcp_check_req`.
//!
//! The request of an intercepted connection has no listener (`Owner::Flow`): the application
//! answers the SYN, and takes the connection.
//!
//! Not here: SYNs that are answered with a cookie (`input`), the application's side of intercepted
//! requests (`flows::held`).

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use pkt::{DropReason, Packet, Verdict};
use sync::epoch::Section;
use tcp::{
    FastOpen, IcmpError, Request, RequestTimer, RequestVerdict, SegmentHeader, SeqNum,
    SocketOptions, Tcb,
};

use super::{
    Listener, Syn,
    source_limit::SourcePermit,
    syn_queue::{Refused, SynQueue},
};
use crate::{
    base::{counters::Counter, errno::Errno},
    cx::Cx,
    socket::{
        connection::Connection,
        core_sockets::TimerEntry,
        demux::{BindFlags, Entry, FlowName},
        family::Family,
        flows::held::Held,
        net::Net,
        rx::Rx,
    },
    transmit::ip_output,
};

/// Value of `slot` for a request that is not in the SYN queue, because the request was made from a
/// cookie and exists for one segment only.
const NO_SLOT: usize = usize::MAX;

/// Owner of a request, which takes its connection.
#[derive(Debug)]
pub(in crate::socket) enum Owner {
    Listener(Arc<Listener>),
    /// An application that intercepts.
    Flow(Box<Held>),
}

impl Owner {
    fn syn_queue(&self) -> &SynQueue {
        match self {
            Self::Listener(listener) => listener.syn_queue(),
            Self::Flow(held) => held.interceptor.pending(),
        }
    }

    fn has_room(&self) -> bool {
        match self {
            Self::Listener(listener) => !listener.is_accept_queue_full(),
            Self::Flow(_) => true,
        }
    }

    /// Creates the connection's state from a request whose handshake is complete.
    fn tcb_of(&self, request: &Request, cx: &tcp::Cx<'_>, rcu: &Section<'_>) -> Tcb {
        match self {
            Self::Listener(listener) => request.to_tcb(cx, &listener.settings(rcu).tcp),
            Self::Flow(_) => request.to_tcb(cx, &SocketOptions::default()),
        }
    }

    /// Returns the flags of the connection with this local address.
    fn bind_flags(&self, local: SocketAddr) -> BindFlags {
        match self {
            Self::Listener(listener) => listener.flags(),
            Self::Flow(_) => BindFlags { family: Family::of(local, true), ..BindFlags::default() },
        }
    }
}

/// A half-open connection.
#[derive(Debug)]
pub struct RequestSocket {
    name: FlowName,
    this: Weak<Self>,
    owner: Owner,
    /// Index in the owner's SYN queue. Written once, before the table refers to this object.
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
        let socket = Self::new(Owner::Listener(Arc::clone(listener)), name, request, permit);
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
        let socket = Self::new(Owner::Listener(Arc::clone(listener)), name, request, permit);
        if net.demux().insert(name.hash, name.tuple, Entry::Request(Arc::clone(&socket))).is_err() {
            // Another core has processed the same segment meanwhile.
            return cx.drop_packet(DropReason::TcpClosed, packet);
        }
        socket.segment(rx, header, packet);
        socket.give_up(net);
    }

    pub(in crate::socket) fn new(
        owner: Owner,
        name: &FlowName,
        request: Request,
        permit: Option<Box<SourcePermit>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            name: *name,
            this: this.clone(),
            owner,
            slot: AtomicUsize::new(NO_SLOT),
            permit: permit.map(|permit| Mutex::new(Some(permit))),
            request: Mutex::new(request),
            done: AtomicBool::new(false),
        })
    }

    /// Adds the request to the SYN queue and the table, or to neither.
    pub(in crate::socket) fn register(
        self: &Arc<Self>,
        net: &Net,
        limit: usize,
    ) -> Result<(), DropReason> {
        let syn_queue = self.owner.syn_queue();
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
        let has_room = self.owner.has_room();
        let verdict = {
            let mut request = self.request();
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
                RequestVerdict::Establish(packet) if self.done.swap(true, Ordering::SeqCst) => {
                    Err(RequestVerdict::Drop(DropReason::TcpClosed, packet))
                }
                RequestVerdict::Establish(packet) => {
                    Ok((self.owner.tcb_of(&request, &tcx, rx.rcu), packet))
                }
                other => Err(other),
            }
        };
        match verdict {
            Ok((tcb, packet)) => self.establish(net, cx, tcb, header, packet),
            Err(verdict) => {
                self.transmit(net, cx);
                self.on_refusal(rx, header, verdict);
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
        let flags = self.owner.bind_flags(self.name.tuple.local);
        let socket = Connection::new(net, cx, &self.name, Box::new(tcb), None, flags);
        let permit = self.take_permit();
        if let Owner::Listener(listener) = &self.owner {
            listener.settle_options(cx, &socket);
            socket.set_permit(permit);
        }
        let entry = Entry::Stream(Arc::clone(&socket));
        let begun = socket.begin(net, cx, |_| {
            net.demux().replace(self.name.hash, self.name.tuple, entry);
            Ok(())
        });
        debug_assert!(begun.is_ok());
        match &self.owner {
            Owner::Listener(listener) => listener.offer(net, cx, socket),
            Owner::Flow(_) => self.complete_held(net, cx, socket),
        }
        if let Verdict::Drop(reason, packet) = verdict {
            cx.drop_packet(reason, packet);
        }
    }

    /// Softirq: drops a segment that does not complete the handshake, and ends the request if the
    /// segment says so.
    fn on_refusal(&self, rx: &mut Rx<'_, '_>, header: &SegmentHeader, verdict: RequestVerdict) {
        let (net, cx) = (rx.net, &mut *rx.cx);
        match verdict {
            RequestVerdict::Drop(reason, packet) => cx.drop_packet(reason, packet),
            RequestVerdict::Closed(reason, packet) => {
                self.end_by_peer(net, cx, Errno::ECONNRESET);
                match &self.owner {
                    // The client has given up and opens a new connection.
                    Owner::Flow(held) if reason == DropReason::TcpInvalidSyn => {
                        held.interceptor.segment(rx, &self.name, None, header, packet);
                    }
                    _ => cx.drop_packet(reason, packet),
                }
            }
            RequestVerdict::Establish(packet) => cx.drop_packet(DropReason::TcpClosed, packet),
        }
    }

    /// Softirq: repeats the SYN-ACK, or gives up.
    pub(crate) fn on_timer(&self, net: &Net, cx: &mut Cx) {
        self.on_held_timer();
        let next = {
            let mut request = self.request();
            if self.done.load(Ordering::Acquire) {
                return;
            }
            let timer = request.on_timer(&mut cx.tcp());
            (timer, request.deadline())
        };
        self.transmit(net, cx);
        match next {
            (RequestTimer::Keep, deadline) if self.held().is_some() => {
                self.arm_held(net, deadline);
            }
            (RequestTimer::Keep, deadline) => {
                net.core_sockets(self.name.core)
                    .arm(deadline, TimerEntry::Request(self.this.clone()));
            }
            (RequestTimer::GiveUp, _) => self.end_by_peer(net, cx, Errno::ETIMEDOUT),
        }
    }

    /// Softirq: processes a report by a router or the peer that the SYN-ACK could not be delivered
    /// (Linux: `tcp_req_err`).
    pub(crate) fn icmp_error(&self, net: &Net, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        let ends = {
            let request = self.request();
            request.on_icmp(&cx.tcp(), error, seq)
        };
        if ends {
            self.end_by_peer(net, cx, Errno::ECONNABORTED);
        }
    }

    fn transmit(&self, net: &Net, cx: &mut Cx) {
        net.reply(cx, &self.name);
    }

    /// Ends the request without a connection. Nothing is sent.
    pub(crate) fn give_up(&self, net: &Net) {
        let _ended = self.end(net, Errno::ECONNABORTED);
    }

    /// Ends the request because of something that the peer or a router has sent, or of its silence.
    fn end_by_peer(&self, net: &Net, cx: &Cx, errno: Errno) {
        if self.end(net, errno) && self.held().is_some() {
            cx.count(Counter::FlowCancelled, 1);
        }
    }

    /// Ends the request without a connection; its application gets the error `errno`. Returns false
    /// if it had ended before.
    pub(in crate::socket) fn end(&self, net: &Net, errno: Errno) -> bool {
        let ends = !self.done.swap(true, Ordering::SeqCst);
        if ends {
            self.leave_queue();
            self.remove_entry(net);
            drop(self.take_permit());
            self.fail_held(net, errno);
        }
        ends
    }

    pub(in crate::socket) const fn name(&self) -> &FlowName {
        &self.name
    }

    pub(in crate::socket) fn weak(&self) -> Weak<Self> {
        self.this.clone()
    }

    pub(in crate::socket) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    pub(in crate::socket) fn request(&self) -> MutexGuard<'_, Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the part of an intercepted connection's request.
    pub(in crate::socket) const fn held(&self) -> Option<&Held> {
        match &self.owner {
            Owner::Listener(_) => None,
            Owner::Flow(held) => Some(held),
        }
    }

    fn take_permit(&self) -> Option<Box<SourcePermit>> {
        self.permit.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave_queue(&self) {
        match self.slot.load(Ordering::Relaxed) {
            NO_SLOT => {}
            slot => self.owner.syn_queue().remove(slot),
        }
    }

    fn remove_entry(&self, net: &Net) {
        net.demux().remove(self.name.hash, &self.name.tuple, |entry| {
            matches!(entry, Entry::Request(request) if std::ptr::eq(&raw const **request, self))
        });
    }
}
