//! Connection request: a passive open in SYN-RECEIVED, as a small entry of the SYN queue.
//!
//! Above: a listener of `stack` keeps the requests until the handshake ends.
//! RFC 9293 §3.10.7.2 and §3.10.7.4; Linux: struct tcp_request_sock, tcp_conn_request,
//! tcp_check_req.
//!
//! A SYN costs one request and one packet, which is sent at once; the third segment of the
//! handshake creates the control block. Data of segments that do not complete the handshake is
//! dropped, which is safe: the peer retransmits it.
//!
//! Not here: the limit of requests per listener, the accept queue. Requests without state are in
//! `cookie`, requests whose SYN is not answered yet in `held`.

mod cookie;
mod held;

use core::time::Duration;

use pkt::{DropReason, Ecn, Instant, Packet};

use crate::{
    base::{counters::Counter, error::IcmpError, state::State},
    cx::{
        Cx,
        config::{PathParams, SocketOptions, TcpConfig},
    },
    open::fast_open,
    segment::{self, reset},
    tcb::{
        OpenParams, Tcb, TcbFlags,
        ecn::{self, EcnState},
        fast_open::FastOpen,
        mss::PathMss,
        receive_buffer::ReceiveBuffer,
        timers,
    },
    wire::{
        cookie::Cookie,
        four_tuple::FourTuple,
        header::{Flags, SegmentHeader},
        option::{self, Options, is_older},
        pseudo,
        seq::SeqNum,
    },
};

/// Initial retransmission timeout of a SYN-ACK (RFC 6298 §2.1). Each retransmission doubles it.
const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// A connection request of a listener: a passive open whose handshake is not complete.
#[derive(Clone, Debug)]
pub struct Request {
    tuple: FourTuple,
    /// Time of the next SYN-ACK retransmission, or of giving up.
    deadline: Instant,
    /// Time of the last SYN-ACK.
    sent_at: Instant,
    last_challenge_at: Option<Instant>,
    path: PathParams,
    iss: SeqNum,
    irs: SeqNum,
    ts_offset: u32,
    ts_recent: u32,
    /// Window that the SYN-ACK announces.
    rcv_wnd: u16,
    advertised_mss: u16,
    /// MSS option of the peer.
    peer_mss: Option<u16>,
    /// Window scale of the peer; `None` without scaling.
    snd_wscale: Option<u8>,
    rcv_wscale: u8,
    timestamps: bool,
    /// Whether SACK is agreed on.
    sack: bool,
    /// Whether the request was restored from a SYN cookie, so that the time of its SYN-ACK is
    /// unknown.
    from_cookie: bool,
    /// Whether ECN is agreed on.
    ecn: bool,
    retransmits: u8,
    /// Number of SYN-ACK retransmissions up to which bare ACKs are ignored (`TCP_DEFER_ACCEPT`).
    defer: u8,
    /// TSval of the first SYN-ACK.
    ts_first: u32,
    /// Whether the third segment has arrived, so that the peer considers the connection
    /// established. `TCP_DEFER_ACCEPT` or a full accept queue still delays the connection.
    acked: bool,
    /// Whether the SYN is not answered yet (`held`).
    held: bool,
    /// Fast Open cookie of the SYN-ACK.
    cookie: Option<Cookie>,
}

/// Upper bound of a request's size, because a SYN flood fills the SYN queue with requests.
const REQUEST_BYTES_MAX: usize = 256;
const _: () = assert!(size_of::<Request>() <= REQUEST_BYTES_MAX);

/// Effect of a segment on a request.
#[derive(Debug)]
#[must_use]
pub enum RequestVerdict {
    /// The segment is dropped for this reason; the request stays.
    Drop(DropReason, Packet),
    /// A received or sent reset ended the request. The caller frees it and drops the packet for
    /// this reason. A request whose SYN was not answered yet also ends by the SYN of a new
    /// connection (`TcpInvalidSyn`), which the caller passes to a new request.
    Closed(DropReason, Packet),
    /// The handshake is complete. The caller creates the connection with [`Request::to_tcb`],
    /// replaces the request by this connection, and passes the same segment to the connection with
    /// [`input`](crate::input::input).
    Establish(Packet),
}

/// Effect of a request's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTimer {
    /// The request stays; its next deadline is [`Request::deadline`].
    Keep,
    /// The peer did not answer: the caller frees the request.
    GiveUp,
}

impl Request {
    /// Processes a SYN (RFC 9293 §3.10.7.2, third step). The SYN-ACK is in `cx.out`.
    ///
    /// The caller has checked that the SYN queue has room and that the segment has SYN and neither
    /// RST nor ACK (RFC 9293 §3.10.7.2, first and second step; [`reset::reply`] answers an ACK).
    /// `codepoint` is the ECN field of the segment's IP header.
    ///
    /// # Errors
    ///
    /// [`DropReason::NoMemory`]: the peer will retransmit its SYN.
    pub fn on_syn(
        cx: &mut Cx<'_>,
        params: &OpenParams,
        header: &SegmentHeader,
        codepoint: Ecn,
    ) -> Result<Self, DropReason> {
        let mut request = Self::new(cx, params, header);
        request.take_ecn(cx, params, header, codepoint);
        request.answer_syn(cx)?;
        Ok(request)
    }

    /// Sends the first SYN-ACK.
    fn answer_syn(&mut self, cx: &mut Cx<'_>) -> Result<(), DropReason> {
        if !self.send_syn_ack(cx) {
            return Err(DropReason::NoMemory);
        }
        cx.count(Counter::TcpOutSegs);
        Ok(())
    }

    /// Agrees on ECN with the sender of `syn`, whose IP header has the ECN field `codepoint`.
    fn take_ecn(&mut self, cx: &Cx<'_>, params: &OpenParams, syn: &SegmentHeader, codepoint: Ecn) {
        let algorithm = params.options.congestion(cx.config, &params.path.metrics);
        self.ecn = ecn::accepts(cx.config, algorithm, syn, codepoint);
    }

    /// Processes a SYN that the caller accepts for Fast Open, by its cookie or by a setting
    /// (RFC 7413 §4.2.2). Returns the connection in SYN-RECEIVED, with the data readable. The
    /// SYN-ACK is in `cx.out`.
    #[must_use]
    pub fn fast_open(
        cx: &mut Cx<'_>,
        params: &OpenParams,
        header: &SegmentHeader,
        packet: Packet,
    ) -> Tcb {
        let mut request = Self::new(cx, params, header);
        request.take_ecn(cx, params, header, packet.meta().ecn);
        let mut tcb = request.to_tcb(cx, &params.options);
        fast_open::accept(&mut tcb, cx, header, packet, request.cookie);
        tcb
    }

    /// Creates a request with the options that the SYN offers and the settings allow.
    fn new(cx: &Cx<'_>, params: &OpenParams, header: &SegmentHeader) -> Self {
        let OpenParams { tuple, iss, ts_offset, path, options, .. } = params;
        let offered = &header.options;
        let mss = PathMss::new(cx.config, *tuple, path, options);
        let buffer = ReceiveBuffer::new(cx.config, options, &path.metrics, mss.advertised());
        let snd_wscale = offered.window_scale.filter(|_| cx.config.tcp_window_scaling);
        let timestamps = offered.timestamps.filter(|_| cx.config.tcp_timestamps);
        Self {
            tuple: *tuple,
            deadline: cx.now + TIMEOUT_INITIAL,
            sent_at: cx.now,
            last_challenge_at: None,
            path: *path,
            iss: *iss,
            irs: header.seq,
            ts_offset: *ts_offset,
            ts_recent: timestamps.map_or(0, |(value, _)| value),
            rcv_wnd: u16::try_from(buffer.initial_window()).unwrap_or(u16::MAX),
            advertised_mss: mss.advertised(),
            peer_mss: offered.mss,
            snd_wscale,
            rcv_wscale: snd_wscale.map_or(0, |_| buffer.offered_scale(cx.config)),
            timestamps: timestamps.is_some(),
            sack: offered.sack_permitted && cx.config.tcp_sack,
            from_cookie: false,
            ecn: false,
            retransmits: 0,
            defer: options.defer_accept.map_or(0, |wait| retransmits_in(wait, cx.config)),
            ts_first: option::ts_clock(cx.now, *ts_offset),
            acked: false,
            held: false,
            cookie: match params.fast_open {
                FastOpen::Grant(cookie) => Some(cookie),
                _ => None,
            },
        }
    }

    /// Processes a segment of the request's connection (SYN-RECEIVED). `accept_room` says that the
    /// accept queue can take one more connection.
    pub fn on_segment(
        &mut self,
        cx: &mut Cx<'_>,
        header: &SegmentHeader,
        packet: Packet,
        accept_room: bool,
    ) -> RequestVerdict {
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        if self.held {
            return self.on_held_segment(cx, header, packet);
        }
        match self.check(cx, header, len) {
            Ok(()) if self.defers(header, len) => {
                self.acked = true;
                cx.count(Counter::TcpExtTCPDeferAcceptDrop);
                RequestVerdict::Drop(DropReason::TcpDeferAccept, packet)
            }
            Ok(()) if accept_room => RequestVerdict::Establish(packet),
            Ok(()) if cx.config.tcp_abort_on_overflow => {
                cx.count(Counter::TcpExtListenOverflows);
                cx.count(Counter::TcpExtListenDrops);
                cx.count(Counter::TcpExtEmbryonicRsts);
                cx.count(Counter::TcpAttemptFails);
                reset::reply(cx, &self.tuple, header, len);
                RequestVerdict::Closed(DropReason::ListenOverflow, packet)
            }
            Ok(()) => {
                self.acked = true;
                // The peer considers the connection established; it retransmits its data until the
                // queue has room.
                cx.count(Counter::TcpExtListenOverflows);
                cx.count(Counter::TcpExtListenDrops);
                RequestVerdict::Drop(DropReason::ListenOverflow, packet)
            }
            Err(DropReason::TcpReset) => {
                cx.count(Counter::TcpExtEmbryonicRsts);
                cx.count(Counter::TcpAttemptFails);
                RequestVerdict::Closed(DropReason::TcpReset, packet)
            }
            Err(reason) => RequestVerdict::Drop(reason, packet),
        }
    }

    /// Returns whether the segment is a bare ACK that `TCP_DEFER_ACCEPT` ignores.
    fn defers(&self, header: &SegmentHeader, len: u32) -> bool {
        self.retransmits < self.defer && header.segment_len(len) == 0
    }

    /// Performs the checks of RFC 9293 §3.10.7.4, first to fifth, for SYN-RECEIVED.
    fn check(
        &mut self,
        cx: &mut Cx<'_>,
        header: &SegmentHeader,
        len: u32,
    ) -> Result<(), DropReason> {
        let rst = header.has(Flags::RST);
        let syn_alone = header.has(Flags::SYN) && !header.has(Flags::ACK) && !rst;
        if syn_alone && header.seq == self.irs {
            // The peer retransmits its SYN: our SYN-ACK was lost.
            self.challenge(cx, Self::send_syn_ack);
            return Err(DropReason::TcpInvalidSyn);
        }
        if let Some((value, _)) = header.options.timestamps
            && self.timestamps
            && !rst
            && is_older(value, self.ts_recent)
        {
            cx.count(Counter::TcpExtPAWSEstab);
            self.challenge(cx, Self::send_ack);
            return Err(DropReason::TcpPaws);
        }
        if !rst && self.has_invalid_tsecr(cx, header) {
            cx.count(Counter::TcpExtTSEcrRejected);
            self.challenge(cx, Self::send_ack);
            return Err(DropReason::TcpTsEcr);
        }
        let rcv_nxt = self.irs + 1;
        let end = header.seq + header.segment_len(len);
        let right = rcv_nxt + u32::from(self.rcv_wnd);
        if end.lt(rcv_nxt) || header.seq.gt(right) {
            if !rst {
                self.challenge(cx, Self::send_ack);
            }
            return Err(DropReason::TcpInvalidSequence);
        }
        if rst {
            // RFC 5961 §3: only the exact sequence number resets.
            if header.seq == rcv_nxt {
                return Err(DropReason::TcpReset);
            }
            self.challenge(cx, Self::send_ack);
            return Err(DropReason::TcpResetInvalid);
        }
        if header.has(Flags::SYN) {
            self.challenge(cx, Self::send_ack);
            return Err(DropReason::TcpInvalidSyn);
        }
        if !header.has(Flags::ACK) {
            return Err(DropReason::TcpFlags);
        }
        if header.ack != self.iss + 1 {
            reset::reply(cx, &self.tuple, header, len);
            return Err(DropReason::TcpInvalidAck);
        }
        Ok(())
    }

    /// Returns whether the segment echoes a timestamp from before the first SYN-ACK or from the
    /// future. A blind attacker may guess the sequence number, but not the timestamp as well
    /// (Linux: tcp_check_req).
    fn has_invalid_tsecr(&self, cx: &Cx<'_>, header: &SegmentHeader) -> bool {
        let Some((_, echo)) = header.options.timestamps.filter(|_| self.timestamps) else {
            return false;
        };
        let now = option::ts_clock(cx.now, self.ts_offset);
        echo != 0 && !self.from_cookie && (is_older(echo, self.ts_first) || is_older(now, echo))
    }

    /// Creates the request's connection, in SYN-RECEIVED, with the listener's options.
    #[must_use]
    pub fn to_tcb(&self, cx: &Cx<'_>, options: &SocketOptions) -> Tcb {
        let params = OpenParams {
            tuple: self.tuple,
            iss: self.iss,
            ts_offset: self.ts_offset,
            path: self.path,
            options: options.clone(),
            ts_recent: None,
            fast_open: FastOpen::Off,
        };
        // The open is counted here and not at the SYN, as in Linux, because a SYN flood creates no
        // connection.
        cx.count(Counter::TcpPassiveOpens);
        let mut tcb = Tcb::new(cx, &params);
        tcb.state = State::SynRecv;
        tcb.irs = self.irs;
        tcb.rcv_nxt = self.irs + 1;
        tcb.rcv_wup = tcb.rcv_nxt;
        tcb.rcv_wnd = u32::from(self.rcv_wnd);
        tcb.ts_recent = self.ts_recent;
        tcb.snd_wscale = self.snd_wscale.unwrap_or(0);
        tcb.rcv_wscale = self.rcv_wscale;
        tcb.flags.set(TcbFlags::TIMESTAMPS, self.timestamps);
        tcb.flags.set(TcbFlags::WINDOW_SCALING, self.snd_wscale.is_some());
        tcb.flags.set(TcbFlags::SACK, self.sack);
        tcb.ecn.set(EcnState::AGREED, self.ecn);
        tcb.mss.on_handshake(self.peer_mss, self.timestamps);
        tcb.last_sent_at = self.sent_at;
        tcb.recovery.on_request_retransmits(self.retransmits);
        if self.from_cookie {
            tcb.recovery.on_unsampled_handshake();
        }
        timers::arm_rto(&mut tcb, cx);
        tcb
    }

    /// Retransmits the SYN-ACK at the deadline, or gives up after `tcp_synack_retries`. Does
    /// nothing before the deadline.
    pub fn on_timer(&mut self, cx: &mut Cx<'_>) -> RequestTimer {
        if cx.now < self.deadline {
            return RequestTimer::Keep;
        }
        if self.held {
            cx.count(Counter::TcpAttemptFails);
            return RequestTimer::GiveUp;
        }
        let silent = self.acked && self.retransmits < self.defer;
        if self.retransmits >= cx.config.tcp_synack_retries && !silent {
            cx.count(Counter::TcpAttemptFails);
            return RequestTimer::GiveUp;
        }
        // While a deferred request waits for data, only the last SYN-ACK is sent: the answer to it
        // opens the connection.
        let waits = silent && self.retransmits + 1 < self.defer;
        self.retransmits = self.retransmits.saturating_add(1);
        if !waits {
            cx.count(Counter::TcpExtTCPTimeouts);
            self.send_syn_ack(cx);
        }
        let wait = TIMEOUT_INITIAL * (1 << u32::from(self.retransmits.min(16)));
        self.deadline = cx.now + wait.min(cx.config.tcp_rto_max);
        RequestTimer::Keep
    }

    /// Processes an ICMP error that quotes a segment that this side sent, with sequence number
    /// `seq`. Returns whether the request ends; a live peer then retransmits its SYN
    /// (RFC 5927 §4.1; Linux: tcp_req_err).
    ///
    /// Differs from Linux: all defined codes of destination unreachable end a request, because
    /// RFC 1122 §4.2.3.9 calls port and protocol unreachable hard errors.
    #[must_use]
    pub fn on_icmp(&self, cx: &Cx<'_>, error: IcmpError, seq: SeqNum) -> bool {
        if seq != self.iss {
            cx.count(Counter::TcpExtOutOfWindowIcmps);
            return false;
        }
        let ends = matches!(error, IcmpError::PathBroken(_) | IcmpError::Unreachable(_));
        if ends {
            cx.count(Counter::TcpExtListenDrops);
        }
        ends
    }

    /// Calls `send` to answer a segment, at most once per `tcp_invalid_ratelimit`.
    fn challenge(&mut self, cx: &mut Cx<'_>, send: fn(&mut Self, &mut Cx<'_>) -> bool) {
        let limit = cx.config.tcp_invalid_ratelimit;
        if self.last_challenge_at.is_some_and(|at| cx.now - at < limit) {
            cx.count(Counter::TcpExtTCPACKSkippedSynRecv);
            return;
        }
        self.last_challenge_at = Some(cx.now);
        send(self, cx);
    }

    fn send_syn_ack(&mut self, cx: &mut Cx<'_>) -> bool {
        let options = Options {
            mss: Some(self.advertised_mss),
            window_scale: self.snd_wscale.map(|_| self.rcv_wscale),
            sack_permitted: self.sack,
            fast_open: self.cookie,
            ..self.options(cx)
        };
        let mut flags = Flags::SYN | Flags::ACK;
        flags.set(Flags::ECE, self.ecn);
        let sent = self.send(cx, self.iss, flags, self.rcv_wnd, options);
        if sent && cx.now != self.sent_at {
            cx.count(Counter::TcpExtTCPSynRetrans);
            cx.count(Counter::TcpRetransSegs);
        }
        self.sent_at = cx.now;
        sent
    }

    fn send_ack(&mut self, cx: &mut Cx<'_>) -> bool {
        let options = self.options(cx);
        cx.count(Counter::TcpOutSegs);
        self.send(cx, self.iss + 1, Flags::ACK, self.rcv_wnd >> self.rcv_wscale, options)
    }

    fn options(&self, cx: &Cx<'_>) -> Options {
        let value = option::ts_clock(cx.now, self.ts_offset);
        Options { timestamps: self.timestamps.then_some((value, self.ts_recent)), ..Options::new() }
    }

    fn send(
        &self,
        cx: &mut Cx<'_>,
        seq: SeqNum,
        flags: Flags,
        window: u16,
        options: Options,
    ) -> bool {
        let Some(mut packet) = cx.pool.alloc() else { return false };
        let header = SegmentHeader {
            src_port: self.tuple.local.port(),
            dst_port: self.tuple.remote.port(),
            seq,
            ack: self.irs + 1,
            flags,
            window,
            options,
            ..SegmentHeader::default()
        };
        packet.meta_mut().flow_hash = self.path.flow_hash;
        segment::push_header(&mut packet, &header, pseudo::pseudo_sum(&self.tuple));
        cx.out.push_back(packet);
        true
    }

    /// Returns the time at which [`Request::on_timer`] must be called.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the connection's four-tuple.
    #[must_use]
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Returns the number of SYN-ACK retransmissions.
    #[must_use]
    pub fn retransmits(&self) -> u8 {
        self.retransmits
    }
}

/// Returns the number of SYN-ACK retransmissions within `wait` (Linux: secs_to_retrans).
fn retransmits_in(wait: Duration, config: &TcpConfig) -> u8 {
    let mut retransmits = 0;
    let (mut passed, mut next) = (Duration::ZERO, TIMEOUT_INITIAL);
    while passed < wait && retransmits < u8::MAX {
        retransmits += 1;
        passed += next;
        next = (next * 2).min(config.tcp_rto_max);
    }
    retransmits
}
