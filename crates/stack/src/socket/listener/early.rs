//! Fast Open at a listener: decides whether data is taken from a SYN.
//!
//! Below: `tcp::open::fast_open`. RFC 7413 §4.2.2; Linux: tcp_try_fastopen,
//! tcp_fastopen_queue_check.
//!
//! An early connection is open before its handshake has completed. Early connections wait in the
//! accept queue like others. Their number has a separate bound (`TCP_FASTOPEN`), so a flood with
//! stolen cookies costs a bounded number of control blocks.
//!
//! Differs from Linux: an early connection that a reset ends leaves the count at once, not after a
//! minute.

use std::sync::{Arc, atomic::Ordering};

use pkt::DropReason;
use tcp::{Cookie, Counter as TcpCounter, FastOpen, KeyUsed, Request};

use super::{Listener, Syn, request::RequestSocket};
use crate::{
    socket::{connection::Connection, demux::Entry, fast_open::mode, rx::Rx},
    sysctl::FastOpenKey,
    transmit::ip_output,
};

/// Treatment of a SYN by Fast Open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastOpenDecision {
    /// The SYN starts an ordinary handshake, with this option in its SYN-ACK.
    Handshake(FastOpen),
    /// The data of the SYN is accepted. A client whose cookie was made with the backup key gets
    /// this new cookie.
    Accept(Option<Cookie>),
}

/// Fast Open settings of the listener.
struct Policy {
    /// Maximum number of connections that are open before their handshake has completed.
    limit: usize,
    no_cookie: bool,
    key: Option<FastOpenKey>,
}

impl Listener {
    /// Makes a request (half-open connection) from a SYN, or its connection at once by Fast Open.
    pub(super) fn open(self: &Arc<Self>, rx: &mut Rx<'_, '_>, syn: Syn<'_>) {
        match self.decide_fast_open(rx, &syn) {
            FastOpenDecision::Handshake(fast_open) => RequestSocket::open(rx, self, syn, fast_open),
            FastOpenDecision::Accept(cookie) => self.open_early(rx, syn, cookie),
        }
    }

    fn decide_fast_open(&self, rx: &Rx<'_, '_>, syn: &Syn<'_>) -> FastOpenDecision {
        const PLAIN: FastOpenDecision = FastOpenDecision::Handshake(FastOpen::Off);
        let (sysctls, counters) = (rx.cx.sysctls(), &rx.cx.counters().tcp);
        let (tuple, has_data) = (&syn.name.tuple, !syn.packet.is_empty());
        let offered = syn.header.options.fast_open;
        if offered.is_some_and(|cookie| cookie.is_request()) {
            counters.add(TcpCounter::TcpExtTCPFastOpenCookieReqd, 1);
        }
        if sysctls.tcp_fastopen & mode::SERVER == 0 || (!has_data && offered.is_none()) {
            return PLAIN;
        }
        let policy = self.fast_open_policy(rx);
        if policy.limit == 0 {
            return PLAIN;
        }
        if self.early_count().load(Ordering::Relaxed) >= policy.limit {
            counters.add(TcpCounter::TcpExtTCPFastOpenListenOverflow, 1);
            return PLAIN;
        }
        if policy.no_cookie || sysctls.tcp_fastopen & mode::SERVER_NO_COOKIE != 0 {
            return FastOpenDecision::Accept(None);
        }
        let Some(offered) = offered else { return PLAIN };
        let keys = rx.net.fast_open().keys(sysctls, policy.key);
        let present = keys.cookie(tuple).in_form(offered.is_experimental());
        if offered.is_request() {
            return FastOpenDecision::Handshake(FastOpen::Grant(present));
        }
        match keys.check(tuple, &offered) {
            Some(KeyUsed::Primary) => FastOpenDecision::Accept(None),
            Some(KeyUsed::Backup) => {
                counters.add(TcpCounter::TcpExtTCPFastOpenPassiveAltKey, 1);
                FastOpenDecision::Accept(Some(present))
            }
            None => {
                counters.add(TcpCounter::TcpExtTCPFastOpenPassiveFail, 1);
                FastOpenDecision::Handshake(FastOpen::Grant(present))
            }
        }
    }

    fn fast_open_policy(&self, rx: &Rx<'_, '_>) -> Policy {
        let (settings, sysctls) = (self.settings(rx.rcu), rx.cx.sysctls());
        let limit = match settings.fast_open {
            0 if sysctls.tcp_fastopen & mode::SERVER_ALL != 0 => self.backlog(),
            limit => limit.min(sysctls.somaxconn) as usize,
        };
        Policy { limit, no_cookie: settings.fast_open_no_cookie, key: settings.fast_open_key }
    }

    /// Creates the connection before the handshake has completed: the data of the SYN can be read,
    /// and the connection waits for `accept`.
    fn open_early(self: &Arc<Self>, rx: &mut Rx<'_, '_>, syn: Syn<'_>, cookie: Option<Cookie>) {
        let Syn { name, iss_min, header, packet } = syn;
        let permit = match self.claim_permit(rx.cx, &name.tuple) {
            Ok(permit) => permit,
            Err(reason) => return Self::refuse(rx.cx, reason, packet),
        };
        let Some((_, mut params)) = self.open_params(rx, name, iss_min) else {
            return rx.cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        params.fast_open = cookie.map_or(FastOpen::Off, FastOpen::Grant);
        let (net, cx) = (rx.net, &mut *rx.cx);
        let tcb = Request::fast_open(&mut cx.tcp(), &params, header, packet);
        let socket = Connection::new(net, cx, name, Box::new(tcb), None, self.flags());
        self.settle_options(cx, &socket);
        socket.set_early_listener(self);
        socket.set_permit(permit);
        self.early_count().fetch_add(1, Ordering::Relaxed);
        let entry = Entry::Stream(Arc::clone(&socket));
        if socket.begin(net, cx, |_| net.demux().insert(name.hash, name.tuple, entry)).is_err() {
            // Another core has answered the same SYN meanwhile.
            socket.discard(cx);
            ip_output::discard_output(cx);
            return;
        }
        self.offer(net, cx, socket);
    }

    /// Removes a connection from the count of early connections, because its handshake has
    /// completed or the connection has ended.
    pub(crate) fn uncount_early(&self) {
        self.early_count().fetch_sub(1, Ordering::Relaxed);
    }
}
