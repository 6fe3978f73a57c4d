//! SYN-RECEIVED of a passive open as a small object: the SYN queue's entry.
//!
//! Above: a listener of `stack` keeps these until the handshake ends. RFC 9293 §3.10.7.2 and
//! §3.10.7.4; Linux: struct tcp_request_sock, tcp_conn_request, tcp_check_req.
//!
//! A SYN costs a request and one packet that leaves at once; the third segment of the handshake
//! creates the control block. Until then data of the peer is dropped: the peer has seen no window
//! to rely on.
//!
//! Not here: how many requests a listener holds, the accept queue. Requests that are not kept are
//! in `cookie`.

mod cookie;

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

/// First wait for the ACK of a SYN-ACK (RFC 6298 §2.1); it doubles.
const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// See the module head.
#[derive(Clone, Debug)]
pub struct Request {
    tuple: FourTuple,
    /// When the SYN-ACK is repeated or the request given up.
    deadline: Instant,
    /// When the SYN-ACK was last sent.
    sent_at: Instant,
    last_challenge_at: Option<Instant>,
    path: PathParams,
    iss: SeqNum,
    irs: SeqNum,
    ts_offset: u32,
    ts_recent: u32,
    /// What the SYN-ACK announces.
    rcv_wnd: u16,
    advertised_mss: u16,
    /// The peer's MSS option.
    peer_mss: Option<u16>,
    /// The peer's window scale; `None` without scaling.
    snd_wscale: Option<u8>,
    rcv_wscale: u8,
    timestamps: bool,
    /// SACK was offered and is accepted.
    sack: bool,
    /// It was never kept: when its SYN-ACK left is not known.
    from_cookie: bool,
    /// ECN was offered and is accepted.
    ecn: bool,
    retransmits: u8,
    /// `TCP_DEFER_ACCEPT`: bare ACKs are ignored until the SYN-ACK was repeated this often.
    defer: u8,
    /// TSval of the first SYN-ACK.
    ts_first: u32,
    /// A bare ACK has come: the peer is there, and silent.
    acked: bool,
    /// Fast Open cookie of the SYN-ACK.
    cookie: Option<Cookie>,
}

/// The SYN queue is what a flood fills.
const REQUEST_BYTES_MAX: usize = 256;
const _: () = assert!(size_of::<Request>() <= REQUEST_BYTES_MAX);

/// What a segment did to a request.
#[derive(Debug)]
#[must_use]
pub enum RequestVerdict {
    /// The segment is dropped for this reason, the request stays.
    Drop(DropReason, Packet),
    /// A reset, received or sent, ended the request: the caller forgets it and drops the packet for this reason.
    Closed(DropReason, Packet),
    /// The handshake is complete. The caller makes the connection with [`Request::to_tcb`], puts it in the
    /// request's place, and gives it this same segment with [`input`](crate::input::input).
    Establish(Packet),
}

/// What the timer of a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTimer {
    /// It waits on, until `deadline`.
    Keep,
    /// The peer did not answer: the caller forgets it.
    GiveUp,
}

impl Request {
    /// LISTEN, third: a SYN arrives. The SYN-ACK is in `cx.out`.
    ///
    /// The caller has checked that the SYN queue has room and that the segment has SYN and neither RST nor ACK
    /// (RFC 9293 §3.10.7.2, first and second: an ACK is answered by [`reset::reply`]). `codepoint` is the ECN field of
    /// its IP header.
    ///
    /// # Errors
    ///
    /// [`DropReason::NoMemory`]: the peer will repeat its SYN.
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

    /// The first SYN-ACK.
    fn answer_syn(&mut self, cx: &mut Cx<'_>) -> Result<(), DropReason> {
        if !self.send_syn_ack(cx) {
            return Err(DropReason::NoMemory);
        }
        cx.count(Counter::TcpOutSegs);
        Ok(())
    }

    /// Whether ECN is agreed on with the sender of `syn`, which came under `codepoint`.
    fn take_ecn(&mut self, cx: &Cx<'_>, params: &OpenParams, syn: &SegmentHeader, codepoint: Ecn) {
        let algorithm = params.options.congestion(cx.config);
        self.ecn = ecn::accepts(cx.config, algorithm, syn, codepoint);
    }

    /// LISTEN, third: a SYN with data and a good Fast Open cookie (RFC 7413 §4.2.2): the connection, in SYN-RECEIVED, with
    /// the data readable. The SYN-ACK is in `cx.out`.
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

    /// What a SYN asks for and the settings agree to.
    fn new(cx: &Cx<'_>, params: &OpenParams, header: &SegmentHeader) -> Self {
        let OpenParams { tuple, iss, ts_offset, path, options, .. } = params;
        let offered = &header.options;
        let mss = PathMss::new(cx.config, *tuple, path, options);
        let buffer = ReceiveBuffer::new(cx.config, options, mss.advertised());
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
            cookie: match params.fast_open {
                FastOpen::Grant(cookie) => Some(cookie),
                _ => None,
            },
        }
    }

    /// SYN-RECEIVED: a segment of the request's connection arrives. `accept_room` says that the accept queue can
    /// take one more connection.
    pub fn on_segment(
        &mut self,
        cx: &mut Cx<'_>,
        header: &SegmentHeader,
        packet: Packet,
        accept_room: bool,
    ) -> RequestVerdict {
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
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
                // The peer believes the connection stands; it repeats its data until there is room.
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

    /// An ACK without data, while the listener wants data first.
    fn defers(&self, header: &SegmentHeader, len: u32) -> bool {
        self.retransmits < self.defer && header.segment_len(len) == 0
    }

    /// RFC 9293 §3.10.7.4, first to fifth, for SYN-RECEIVED.
    fn check(
        &mut self,
        cx: &mut Cx<'_>,
        header: &SegmentHeader,
        len: u32,
    ) -> Result<(), DropReason> {
        let rst = header.has(Flags::RST);
        let syn_alone = header.has(Flags::SYN) && !header.has(Flags::ACK) && !rst;
        if syn_alone && header.seq == self.irs {
            // The peer repeats its SYN: our SYN-ACK was lost.
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
        if !rst && self.is_echo_invented(cx, header) {
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
            // RFC 5961 §3: only the exact number.
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

    /// The segment echoes a timestamp from before our first SYN-ACK, or from the future: who guessed the sequence number blindly did not guess
    /// this as well (Linux: tcp_check_req).
    fn is_echo_invented(&self, cx: &Cx<'_>, header: &SegmentHeader) -> bool {
        let Some((_, echo)) = header.options.timestamps.filter(|_| self.timestamps) else {
            return false;
        };
        let now = option::ts_clock(cx.now, self.ts_offset);
        echo != 0 && !self.from_cookie && (is_older(echo, self.ts_first) || is_older(now, echo))
    }

    /// The connection this request stands for, in SYN-RECEIVED, with the listener's options.
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
        // Counted here as in Linux: a flood of SYNs opens nothing.
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

    /// The deadline came: repeats the SYN-ACK, or gives up after `tcp_synack_retries`. Does nothing too early.
    pub fn on_timer(&mut self, cx: &mut Cx<'_>) -> RequestTimer {
        if cx.now < self.deadline {
            return RequestTimer::Keep;
        }
        let silent = self.acked && self.retransmits < self.defer;
        if self.retransmits >= cx.config.tcp_synack_retries && !silent {
            cx.count(Counter::TcpAttemptFails);
            return RequestTimer::GiveUp;
        }
        // While a silent peer is waited for, only the last repetition leaves: its answer opens the connection.
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

    /// An ICMP error quotes a segment of ours with `seq`. Answers whether the request ends: the peer, if it is there, repeats
    /// its SYN (RFC 5927 §4.1; Linux: tcp_req_err).
    ///
    /// Differs from Linux: port and protocol unreachable end a request too, because RFC 1122 §4.2.3.9 calls them hard.
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

    /// Answers with `send`, at most once per `tcp_invalid_ratelimit`.
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

    /// When [`Request::on_timer`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The connection's name.
    #[must_use]
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// How often the SYN-ACK was repeated.
    #[must_use]
    pub fn retransmits(&self) -> u8 {
        self.retransmits
    }
}

/// How many repetitions of a SYN-ACK fit into `wait`: Linux's secs_to_retrans.
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
