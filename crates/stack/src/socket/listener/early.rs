//! Fast Open at a listener: decides whether data is taken from a SYN.
//!
//! Below: `tcp::open::fast_open`. RFC 7413 §4.2.2; Linux: tcp_try_fastopen,
//! tcp_fastopen_queue_check.
//!
//! Connections that are open before their handshake has completed wait in the accept queue like
//! others, and have their own bound (`TCP_FASTOPEN`), so a flood with stolen cookies costs a
//! bounded number of control blocks.
//!
//! Differs from Linux: a connection ended by a reset leaves the count at once, not after a minute.

use std::sync::{Arc, atomic::Ordering};

use pkt::{DropReason, Packet};
use tcp::{
    Cookie, Counter as TcpCounter, FastOpen, FourTuple, KeyUsed, Request, SegmentHeader, SeqNum,
};

use super::{Listener, request::RequestSocket};
use crate::{
    cx::Cx,
    socket::net::Net,
    socket::{connection::Connection, demux::Entry, fast_open::mode},
    sysctl::FastOpenKey,
    transmit::ip_output,
};

/// Treatment of a SYN by Fast Open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    /// An ordinary handshake, with this option in its SYN-ACK.
    Handshake(FastOpen),
    /// The data is accepted; a client whose cookie is outdated gets this one.
    Accept(Option<Cookie>),
}

/// Fast Open settings of the listener.
struct Policy {
    /// Maximum number of connections that are open early.
    limit: usize,
    no_cookie: bool,
    key: Option<FastOpenKey>,
}

impl Listener {
    /// Answers a SYN with a request, or opens the connection early.
    pub(super) fn open(
        self: &Arc<Self>,
        net: &Net,
        cx: &mut Cx,
        name: (FourTuple, u32),
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        match self.judge_early(net, cx, &name.0, header, !packet.is_empty()) {
            Early::Handshake(fast_open) => {
                RequestSocket::open(net, cx, self, name, (iss_min, fast_open), header, packet);
            }
            Early::Accept(cookie) => {
                self.accept_early(net, cx, name, iss_min, header, packet, cookie);
            }
        }
    }

    fn judge_early(
        &self,
        net: &Net,
        cx: &Cx,
        tuple: &FourTuple,
        header: &SegmentHeader,
        has_data: bool,
    ) -> Early {
        const PLAIN: Early = Early::Handshake(FastOpen::Off);
        let (sysctls, counters) = (cx.sysctls(), &cx.counters().tcp);
        let offered = header.options.fast_open;
        if offered.is_some_and(|cookie| cookie.is_request()) {
            counters.add(TcpCounter::TcpExtTCPFastOpenCookieReqd, 1);
        }
        if sysctls.tcp_fastopen & mode::SERVER == 0 || (!has_data && offered.is_none()) {
            return PLAIN;
        }
        let policy = self.early_policy(cx);
        if policy.limit == 0 {
            return PLAIN;
        }
        if self.early().load(Ordering::Relaxed) >= policy.limit {
            counters.add(TcpCounter::TcpExtTCPFastOpenListenOverflow, 1);
            return PLAIN;
        }
        if policy.no_cookie || sysctls.tcp_fastopen & mode::SERVER_NO_COOKIE != 0 {
            return Early::Accept(None);
        }
        let Some(offered) = offered else { return PLAIN };
        let keys = net.fast_open().keys(sysctls, policy.key);
        let present = keys.cookie(tuple).in_form(offered.is_experimental());
        if offered.is_request() {
            return Early::Handshake(FastOpen::Grant(present));
        }
        match keys.check(tuple, &offered) {
            Some(KeyUsed::Primary) => Early::Accept(None),
            Some(KeyUsed::Backup) => {
                counters.add(TcpCounter::TcpExtTCPFastOpenPassiveAltKey, 1);
                Early::Accept(Some(present))
            }
            None => {
                counters.add(TcpCounter::TcpExtTCPFastOpenPassiveFail, 1);
                Early::Handshake(FastOpen::Grant(present))
            }
        }
    }

    fn early_policy(&self, cx: &Cx) -> Policy {
        let (reader, sysctls) = (cx.reader(), cx.sysctls());
        let rcu = reader.pin();
        let settings = self.settings(&rcu);
        let limit = match settings.fast_open {
            0 if sysctls.tcp_fastopen & mode::SERVER_ALL != 0 => self.backlog(),
            limit => limit.min(sysctls.somaxconn) as usize,
        };
        Policy { limit, no_cookie: settings.fast_open_no_cookie, key: settings.fast_open_key }
    }

    /// Creates the connection before the handshake has completed: its data can be read, and it
    /// waits to be accepted.
    #[expect(clippy::too_many_arguments, reason = "a SYN and what was made of it")]
    fn accept_early(
        self: &Arc<Self>,
        net: &Net,
        cx: &mut Cx,
        (tuple, hash): (FourTuple, u32),
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
        cookie: Option<Cookie>,
    ) {
        let place = match self.claim_place(cx, &tuple) {
            Ok(place) => place,
            Err(reason) => return Self::refuse(cx, reason, packet),
        };
        let params = {
            let reader = cx.reader();
            let rcu = reader.pin();
            let name = (tuple, hash);
            let Some((_, mut params)) = self.open_params(net, cx, name, iss_min, &rcu) else {
                return cx.drop_packet(DropReason::IpNoRoute, packet);
            };
            params.fast_open = cookie.map_or(FastOpen::Off, FastOpen::Grant);
            params
        };
        let tcb = Request::fast_open(&mut cx.tcp(), &params, header, packet);
        let name = (tuple, hash, net.core_for(cx, hash));
        let socket = Connection::new(net, cx, name, Box::new(tcb), None, self.flags());
        self.settle_options(cx, &socket);
        socket.set_early(self);
        socket.set_place(place);
        self.early().fetch_add(1, Ordering::Relaxed);
        let entry = Entry::Stream(Arc::clone(&socket));
        if socket.begin(net, cx, |_| net.demux().insert(hash, tuple, entry)).is_err() {
            // Another core has answered the same SYN meanwhile.
            socket.discard(cx);
            ip_output::discard_output(cx);
            return;
        }
        self.offer(net, cx, socket);
    }

    /// Uncounts an early connection whose handshake has completed or that has ended.
    pub(crate) fn early_done(&self) {
        self.early().fetch_sub(1, Ordering::Relaxed);
    }
}
