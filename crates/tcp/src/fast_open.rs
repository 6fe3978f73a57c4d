//! TCP Fast Open: data in the SYN, for a peer that has proved its address before.
//!
//! Above: `stack::socket`, which keeps the client's cookies and the server's queue. RFC 7413; Linux:
//! net/ipv4/tcp_fastopen.c.
//!
//! A server gives every client address a cookie: a keyed hash that only it can make. A client that brings its cookie along
//! with data in the SYN is answered as if the handshake were done: the data goes to the application at once, and the
//! application may answer before the third segment.
//!
//! *What the application must know* (RFC 7413 §6): a SYN may be duplicated by the network after its connection has ended, and is
//! then a second connection with the same data. A server that turns Fast Open on says that a request may be carried out twice.
//!
//! A client with a cookie holds its SYN until the first write (`TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`). A server that does not
//! take the data acknowledges the SYN alone, and the data is sent again at once.
//!
//! Before RFC 7413 gave the option a kind of its own it was an experiment's (kind 254, RFC 6994). Both forms are read, a
//! server answers in the client's, and a client whose request in the first form is not answered tries the other once.
//!
//! Not here: the cache of cookies, the pause after suspicion, the queue of a listener (all `stack`).

use alloc::boxed::Box;

use pkt::Packet;

use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    input::Segment,
    segment,
    tcb::Tcb,
    wire::{
        cookie::Cookie,
        header::{Flags, SegmentHeader},
        option::Options,
    },
};

pub mod keys;

/// Bytes of options that a SYN with our own cookie carries: MSS, SACK and timestamps, window scale, cookie.
const SYN_OPTION_BYTES: u32 = 4 + 12 + 4 + 20;

/// MSS of a peer that announces none (RFC 9293 §3.7.1).
const MSS_UNKNOWN: u16 = 536;

/// What an open does about Fast Open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastOpen {
    /// Nothing.
    #[default]
    Off,
    /// A client without a cookie: the SYN asks for one and leaves at once.
    Ask {
        /// By the experimental option: the other was not answered last time.
        experimental: bool,
    },
    /// A client with a cookie: the SYN waits for data.
    Connect {
        /// The peer's cookie; `None` sends the data without any (bit 0x4 of `tcp_fastopen`).
        cookie: Option<Cookie>,
        /// MSS that the peer announced when it gave the cookie: no more data goes with the SYN.
        peer_mss: u16,
    },
    /// A server: the SYN-ACK carries this cookie.
    Grant(Cookie),
}

/// What a handshake has taught about the peer and the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenNews {
    /// The peer's cookie for us, if we had asked for one or brought one.
    pub cookie: Option<Cookie>,
    /// The MSS that the peer has announced; 0 if it has not answered.
    pub peer_mss: u16,
    /// The SYN was answered only when it came without data or cookie.
    pub syn_dropped: bool,
    /// The peer has answered our request, and not with a cookie. True when the request was the experimental one.
    pub refused: Option<bool>,
}

/// How far the SYN of a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SynPhase {
    /// It waits for data.
    Held,
    /// It has left.
    Left,
    /// It has left, and the path is too narrow for it: it is due again, plain.
    TooLarge,
    /// It is repeated without data and cookie.
    Plain,
}

/// Why a client's Fast Open came to nothing (Linux `enum tcp_fastopen_client_fail`, `tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// It did not, or was not tried.
    #[default]
    None = 0,
    /// There was no cookie yet: the SYN asked for one.
    NoCookie = 1,
    /// The SYN-ACK acknowledged the SYN and not its data.
    DataNotAcknowledged = 2,
    /// The SYN had to be repeated, without its data.
    SynRetransmitted = 3,
}

/// Fast Open's part of a block. Boxed: few connections have it.
#[derive(Debug)]
pub(crate) struct FastOpenState {
    /// We are the server, and the SYN's data was taken.
    passive: bool,
    /// What the SYN or the SYN-ACK carries.
    cookie: Option<Cookie>,
    phase: SynPhase,
    /// What the peer announced last time.
    peer_mss: u16,
    /// Bytes that left with the SYN, or came with it.
    syn_data: u32,
    /// Data in the SYN was taken, by the peer or by us.
    taken: bool,
    /// The path may swallow what belongs to Fast Open; nobody has been told.
    suspicion: bool,
    /// A writer sleeps until the handshake ends.
    writer_waits: bool,
    failure: FastOpenFailure,
    news: Option<FastOpenNews>,
}

impl FastOpenState {
    fn new(passive: bool, cookie: Option<Cookie>, phase: SynPhase) -> Box<Self> {
        Box::new(Self {
            passive,
            cookie,
            phase,
            peer_mss: u16::MAX,
            syn_data: 0,
            taken: false,
            suspicion: false,
            writer_waits: false,
            failure: FastOpenFailure::None,
            news: None,
        })
    }

    /// An active open begins.
    pub(crate) fn connect(fast_open: FastOpen) -> Option<Box<Self>> {
        match fast_open {
            FastOpen::Off | FastOpen::Grant(_) => None,
            FastOpen::Ask { experimental } => {
                let request = Cookie::REQUEST.in_form(experimental);
                let mut state = Self::new(false, Some(request), SynPhase::Left);
                state.failure = FastOpenFailure::NoCookie;
                Some(state)
            }
            FastOpen::Connect { cookie, peer_mss } => {
                let mut state = Self::new(false, cookie, SynPhase::Held);
                state.peer_mss = peer_mss;
                Some(state)
            }
        }
    }
}

impl Tcb {
    /// The SYN waits for the first write.
    #[must_use]
    pub fn is_syn_held(&self) -> bool {
        let held = |state: &FastOpenState| state.phase == SynPhase::Held;
        self.state == State::SynSent && self.fast_open.as_deref().is_some_and(held)
    }

    /// The server's side before the third segment: the application may read and write already.
    pub(crate) fn is_open_early(&self) -> bool {
        self.state == State::SynRecv && self.fast_open.as_ref().is_some_and(|state| state.passive)
    }

    /// Whether data in the SYN was taken: by the peer as a client, by us as a server (TCPI_OPT_SYN_DATA).
    #[must_use]
    pub fn syn_data_taken(&self) -> bool {
        self.fast_open.as_ref().is_some_and(|state| state.taken)
    }

    /// The SYN leaves now, with what data there is for it: a client with a cookie and nothing to write.
    pub fn release_syn(&mut self, cx: &mut Cx<'_>) {
        if self.is_syn_held() {
            segment::send_syn(self, cx);
            if let Some(state) = &mut self.fast_open {
                state.phase = SynPhase::Left;
            }
        }
    }

    pub(crate) fn fast_open_failure(&self) -> FastOpenFailure {
        self.fast_open.as_ref().map_or(FastOpenFailure::None, |state| state.failure)
    }

    /// The peer has taken the data of our SYN.
    pub(crate) fn is_syn_data_acked(&self) -> bool {
        self.fast_open.as_ref().is_some_and(|state| state.taken && !state.passive)
    }

    /// A writer with more than the SYN has carried sleeps until the handshake ends: the ACK of the SYN-ACK waits for its data.
    pub fn expect_write(&mut self) {
        if let Some(state) = self.fast_open.as_mut().filter(|_| self.state == State::SynSent) {
            state.writer_waits = true;
        }
    }

    /// Segments with data have arrived.
    #[must_use]
    pub const fn has_received_data(&self) -> bool {
        self.totals.data_segs_in > 0
    }

    /// Whether the path is suspected from here on to swallow what belongs to Fast Open: told once, at any time.
    pub fn take_fast_open_suspicion(&mut self) -> bool {
        self.fast_open.as_mut().is_some_and(|state| core::mem::take(&mut state.suspicion))
    }

    /// What the handshake has taught, once. The caller remembers it for the next connection to the peer.
    pub fn take_fast_open_news(&mut self) -> Option<FastOpenNews> {
        if self.state == State::SynSent {
            return None;
        }
        self.fast_open.as_mut().and_then(|state| state.news.take())
    }

    /// Payload bytes that fit into the held SYN.
    pub(crate) fn syn_data_room(&self) -> usize {
        let peer = self.fast_open.as_ref().map_or(u16::MAX, |state| state.peer_mss);
        let mss = self.mss.effective().min(u32::from(peer));
        mss.saturating_sub(SYN_OPTION_BYTES) as usize
    }
}

/// The held SYN leaves as soon as there is data for it; one that was too large for the path leaves again without.
pub(crate) fn poll_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state != State::SynSent {
        return;
    }
    match tcb.fast_open.as_mut() {
        Some(state) if state.phase == SynPhase::TooLarge => {
            state.phase = SynPhase::Plain;
            // Nothing was lost to congestion; which of the two is answered remains open.
            tcb.recovery.on_unsampled_handshake();
            tcb.totals.total_retrans += 1;
            cx.count(Counter::TcpExtTCPSynRetrans);
            cx.count(Counter::TcpRetransSegs);
            segment::send_syn(tcb, cx);
        }
        Some(_) if !tcb.send_queue.is_empty() => tcb.release_syn(cx),
        _ => {}
    }
}

/// The packet of a SYN or SYN-ACK, how much payload it carries, and its Fast Open option. Data goes with the first SYN
/// only: a repetition is plain, in case the path minds.
pub(crate) fn syn_packet(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    options: &mut Options,
) -> Option<(Packet, u32)> {
    let Some(state) = &mut tcb.fast_open else { return Some((cx.pool.alloc()?, 0)) };
    if state.passive {
        options.fast_open = state.cookie;
        return Some((cx.pool.alloc()?, 0));
    }
    if tcb.recovery.timeouts() > 0 || state.phase == SynPhase::Plain || tcb.state != State::SynSent
    {
        return Some((cx.pool.alloc()?, 0));
    }
    options.fast_open = state.cookie;
    let held = state.phase == SynPhase::Held;
    let entry = tcb.send_queue.first_unsent().filter(|_| held);
    let Some(packet) = entry.and_then(|(_, entry)| entry.packet.as_ref()) else {
        return Some((cx.pool.alloc()?, 0));
    };
    let packet = packet.clone_in(cx.pool)?;
    let len = u32::try_from(packet.len()).ok()?;
    state.syn_data = len;
    Some((packet, len))
}

/// The data of the first SYN has left with it.
pub(crate) fn on_syn_sent(tcb: &mut Tcb, cx: &Cx<'_>, len: u32) {
    if len == 0 {
        return;
    }
    let snapshot = tcb.rate.on_transmit(cx.now, true, len, tcb.send_queue.lost_total());
    tcb.send_queue.on_transmit(0, cx.now, snapshot, tcb.rate.is_app_limited());
    tcb.snd_nxt = tcb.send_queue.entry(0).end_seq();
    tcb.totals.bytes_sent += u64::from(len);
    cx.count(Counter::TcpExtTCPOrigDataSent);
}

/// The SYN-ACK has come, and the block is established: what became of the data (RFC 7413 §4.2.1).
pub(crate) fn on_syn_ack(tcb: &mut Tcb, cx: &Cx<'_>, header: &SegmentHeader) {
    let lossy = tcb.recovery.handshake_was_lossy();
    let Some(state) = &mut tcb.fast_open else { return };
    // What acknowledges a part comes from a server that has not understood, on a path that carries such SYNs.
    let taken = header.ack.ge(tcb.iss + 1 + state.syn_data);
    let offered = header.options.fast_open.filter(|cookie| !cookie.is_request());
    // A cookie that nobody has asked for is not kept.
    let cookie = offered.filter(|_| state.cookie.is_some());
    let asked = state.cookie.filter(|cookie| cookie.is_request());
    state.news = Some(FastOpenNews {
        cookie,
        peer_mss: header.options.mss.unwrap_or(MSS_UNKNOWN),
        syn_dropped: lossy && cookie.is_none() && state.syn_data > 0 && !taken,
        refused: asked
            .filter(|_| !lossy && cookie.is_none())
            .map(|request| request.is_experimental()),
    });
    if state.syn_data == 0 {
        return;
    }
    state.taken = taken;
    state.failure = match (taken, lossy) {
        (true, _) => FastOpenFailure::None,
        (false, false) => FastOpenFailure::DataNotAcknowledged,
        (false, true) => FastOpenFailure::SynRetransmitted,
    };
    cx.count(if taken {
        Counter::TcpExtTCPFastOpenActive
    } else {
        Counter::TcpExtTCPFastOpenActiveFail
    });
}

/// The SYN has been repeated, so that the peer has answered none with data.
pub(crate) fn on_syn_timeout(tcb: &mut Tcb) {
    let timeouts = tcb.recovery.timeouts();
    if let Some(state) = &mut tcb.fast_open
        && state.syn_data > 0
        && timeouts >= 2
    {
        state.news = Some(FastOpenNews { syn_dropped: true, ..FastOpenNews::default() });
    }
}

/// A retransmission timeout, of the SYN or of data: a path may swallow what follows a SYN with data, too. The third in a row
/// is suspicious, and so is one after which the connection is given up (RFC 7413 §7.1; Linux:
/// tcp_fastopen_active_detect_blackhole).
pub(crate) fn on_timeout(tcb: &mut Tcb, gives_up: bool) {
    let timeouts = tcb.recovery.timeouts();
    if timeouts == 2 || (timeouts < 2 && gives_up) {
        suspect(tcb);
        if let Some(state) = tcb.fast_open.as_mut().filter(|_| tcb.state == State::SynSent) {
            state.failure = FastOpenFailure::SynRetransmitted;
        }
    }
}

/// A reset of the connection has come from beyond what has arrived, and nothing had arrived: what was between was swallowed.
pub(crate) fn on_early_reset(tcb: &mut Tcb) {
    if tcb.state == State::Established && tcb.totals.data_segs_in == 0 {
        suspect(tcb);
    }
}

/// The connection ends: all that has arrived is a FIN from beyond (Linux: tcp_fastopen_active_disable_ofo_check).
pub(crate) fn on_finish(tcb: &mut Tcb) {
    if tcb.totals.data_segs_in == 0 && tcb.reassembly.fin().is_some() {
        suspect(tcb);
    }
}

fn suspect(tcb: &mut Tcb) {
    if let Some(state) = tcb.fast_open.as_mut().filter(|state| !state.passive) {
        state.suspicion = true;
    }
}

/// The path has become narrower while the SYN waits for its answer: one with data may have been too large, and a plain one
/// leaves at once (Linux: tcp_simple_retransmit).
pub(crate) fn on_narrow_path(tcb: &mut Tcb) {
    let first = tcb.recovery.timeouts() == 0;
    if let Some(state) = &mut tcb.fast_open
        && state.phase == SynPhase::Left
        && state.syn_data > 0
        && first
    {
        state.phase = SynPhase::TooLarge;
    }
}

pub(crate) fn is_writer_waiting(tcb: &Tcb) -> bool {
    tcb.fast_open.as_ref().is_some_and(|state| state.writer_waits)
}

/// Whether data that comes with the SYN-ACK is taken: from a server that Fast Open was spoken with, unless it has left data
/// of our SYN to be sent again (RFC 7413 §4.2.1).
pub(crate) fn takes_syn_ack_data(tcb: &Tcb) -> bool {
    tcb.fast_open.as_ref().is_some_and(|state| state.syn_data == 0 || state.taken)
}

/// A server takes the data of a SYN: the block is as good as open. `cookie` goes into the SYN-ACK, if the client's is out
/// of date.
pub(crate) fn accept(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    header: &SegmentHeader,
    packet: Packet,
    cookie: Option<Cookie>,
) {
    let len = u32::try_from(packet.len()).expect("a packet is shorter than 2^32");
    let mut state = FastOpenState::new(true, cookie, SynPhase::Left);
    state.syn_data = len;
    state.taken = len > 0;
    tcb.fast_open = Some(state);
    tcb.snd_wnd = u32::from(header.window);
    tcb.mss.on_window(tcb.snd_wnd);
    tcb.snd_wl1 = header.seq;
    tcb.congestion.set_mss(tcb.mss.effective());
    if len > 0 {
        tcb.rcv_nxt += len;
        tcb.totals.bytes_received += u64::from(len);
        tcb.receive_queue.push(cx.pool, packet);
    } else {
        cx.pool.free(packet);
    }
    tcb.rcv_wup = tcb.rcv_nxt;
    cx.count(Counter::TcpExtTCPFastOpenPassive);
    segment::send_syn(tcb, cx);
}

/// The client repeats its SYN: our SYN-ACK was lost. True if the segment is that.
pub(crate) fn is_repeated_syn(tcb: &mut Tcb, cx: &mut Cx<'_>, segment: &Segment<'_>) -> bool {
    let header = segment.header;
    let repeated = tcb.is_open_early()
        && header.flags.intersection(Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN
        && header.seq == tcb.irs;
    if repeated && tcb.may_answer_invalid(cx) {
        segment::send_syn(tcb, cx);
    }
    repeated
}
