//! Fast Open's part of a connection: its mode, the state of the SYN, and the result of the
//! handshake.
//!
//! Above: `open` sends and receives SYNs with data; timers, resets and the end of a connection
//! report here that the path may drop Fast Open segments. RFC 7413; Linux: struct
//! tcp_fastopen_request, `syn_fastopen` of struct tcp_sock.
//!
//! Not here: the handshake itself (`open::fast_open`, `open::syn`), the cache of cookies
//! (`stack::socket::fast_open`).

use alloc::boxed::Box;

use crate::{base::state::State, tcb::Tcb, wire::cookie::Cookie};

/// Bytes of options in a SYN with the longest cookie: MSS, SACK and timestamps, window scale, and a
/// cookie of 16 bytes with its padding.
const SYN_OPTION_BYTES: u32 = 4 + 12 + 4 + 20;

/// Mode of Fast Open in an active or passive open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastOpen {
    /// No Fast Open.
    #[default]
    Off,
    /// A client without a cookie: the SYN requests one and is sent at once.
    Ask {
        /// Whether to use the experimental option, because the last request in the standard option
        /// was not answered.
        experimental: bool,
    },
    /// A client that sends data in its SYN: the SYN is held until the first write.
    Connect {
        /// The peer's cookie; `None` sends the data without a cookie (bit 0x4 of `tcp_fastopen`).
        cookie: Option<Cookie>,
        /// MSS that the peer announced together with the cookie: upper bound of the data in the
        /// SYN.
        peer_mss: u16,
    },
    /// A server: the SYN-ACK carries this cookie.
    Grant(Cookie),
}

/// Facts about the peer and the path that a handshake has revealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenResult {
    /// The peer's cookie for us, if our SYN requested or carried one.
    pub cookie: Option<Cookie>,
    /// MSS that the peer has announced; 0 if it has not answered.
    pub peer_mss: u16,
    /// Whether the SYN with data stayed unanswered: the peer answered only a SYN without data and
    /// cookie, or no SYN at all.
    pub syn_dropped: bool,
    /// `Some` if the peer answered our request without a cookie, and the SYN was sent only once;
    /// true when the request was in the experimental option.
    pub refused: Option<bool>,
}

/// State of a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SynPhase {
    /// Held until the first write.
    Held,
    /// Sent.
    Left,
    /// Sent, but too large for the network path according to ICMP: a SYN without data and cookie is
    /// due.
    TooLarge,
    /// Retransmitted without data and cookie.
    Plain,
}

/// Reason why a client's Fast Open failed (Linux `enum tcp_fastopen_client_fail`,
/// `tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// Fast Open did not fail, or was not tried.
    #[default]
    None = 0,
    /// There was no cookie: the SYN requested one.
    NoCookie = 1,
    /// The SYN-ACK acknowledged the SYN and not its data.
    DataNotAcknowledged = 2,
    /// The data of the SYN was not acknowledged, and the SYN was retransmitted without it; or the
    /// SYN timed out three times, or until the connection was given up.
    SynRetransmitted = 3,
}

/// State of Fast Open on a connection. Boxed, because few connections have it.
#[derive(Debug)]
pub(crate) struct FastOpenState {
    /// Whether we are the server and accepted the data of the SYN.
    pub(crate) passive: bool,
    /// Cookie that the SYN or the SYN-ACK carries.
    pub(crate) cookie: Option<Cookie>,
    pub(crate) phase: SynPhase,
    /// MSS that the peer announced on an earlier connection.
    pub(crate) peer_mss: u16,
    /// Bytes that were sent or received in the SYN.
    pub(crate) syn_data: u32,
    /// Whether data in the SYN was accepted, by the peer or by us.
    pub(crate) taken: bool,
    /// Whether the path may drop Fast Open segments, and the caller has not read this fact yet.
    pub(crate) suspicion: bool,
    /// Whether a writer sleeps until the handshake ends.
    pub(crate) writer_waits: bool,
    pub(crate) failure: FastOpenFailure,
    pub(crate) result: Option<FastOpenResult>,
}

impl FastOpenState {
    pub(crate) fn new(passive: bool, cookie: Option<Cookie>, phase: SynPhase) -> Box<Self> {
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
            result: None,
        })
    }

    /// Returns the state for an active open.
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
    /// Returns whether the SYN is held until the first write.
    #[must_use]
    pub fn is_syn_held(&self) -> bool {
        let held = |state: &FastOpenState| state.phase == SynPhase::Held;
        self.state == State::SynSent && self.fast_open.as_deref().is_some_and(held)
    }

    /// Returns whether this side is a Fast Open server that waits for the third segment, while the
    /// application may already read and write.
    pub(crate) fn is_open_early(&self) -> bool {
        self.state == State::SynRecv && self.fast_open.as_ref().is_some_and(|state| state.passive)
    }

    /// Returns whether data in the SYN was accepted: by the peer if we are the client, by us if we
    /// are the server (TCPI_OPT_SYN_DATA).
    #[must_use]
    pub fn syn_data_taken(&self) -> bool {
        self.fast_open.as_ref().is_some_and(|state| state.taken)
    }

    pub(crate) fn fast_open_failure(&self) -> FastOpenFailure {
        self.fast_open.as_ref().map_or(FastOpenFailure::None, |state| state.failure)
    }

    /// Returns whether the peer has accepted the data of our SYN.
    pub(crate) fn is_syn_data_acked(&self) -> bool {
        self.fast_open.as_ref().is_some_and(|state| state.taken && !state.passive)
    }

    /// Records that a writer with more data than the SYN carries sleeps until the handshake ends:
    /// the ACK of the SYN-ACK waits for the writer's data.
    pub fn expect_write(&mut self) {
        if let Some(state) = self.fast_open.as_mut().filter(|_| self.state == State::SynSent) {
            state.writer_waits = true;
        }
    }

    /// Returns whether segments with data have arrived.
    #[must_use]
    pub const fn has_received_data(&self) -> bool {
        self.totals.data_segs_in > 0
    }

    /// Returns, once, whether the path is suspected to drop Fast Open segments. May be called at
    /// any time.
    pub fn take_fast_open_suspicion(&mut self) -> bool {
        self.fast_open.as_mut().is_some_and(|state| core::mem::take(&mut state.suspicion))
    }

    /// Returns, once, the facts that the handshake has revealed. The caller keeps them for the next
    /// connection to the peer.
    pub fn take_fast_open_result(&mut self) -> Option<FastOpenResult> {
        if self.state == State::SynSent {
            return None;
        }
        self.fast_open.as_mut().and_then(|state| state.result.take())
    }

    /// Returns the payload bytes that fit into the held SYN.
    pub(crate) fn syn_data_room(&self) -> usize {
        let peer = self.fast_open.as_ref().map_or(u16::MAX, |state| state.peer_mss);
        let mss = self.mss.effective().min(u32::from(peer));
        mss.saturating_sub(SYN_OPTION_BYTES) as usize
    }
}

/// Records, at the second timeout of the SYN and later ones, that the peer did not answer the SYN
/// with data, which is sent only once.
pub(crate) fn on_syn_timeout(tcb: &mut Tcb) {
    let timeouts = tcb.recovery.timeouts();
    if let Some(state) = &mut tcb.fast_open
        && state.syn_data > 0
        && timeouts >= 2
    {
        state.result = Some(FastOpenResult { syn_dropped: true, ..FastOpenResult::default() });
    }
}

/// Handles a retransmission timeout of the SYN or of data. A network path may drop a SYN with data
/// or the segments after it: this is suspected at the third timeout in a row, or at an earlier
/// timeout that ends the connection (RFC 7413 §7.1; Linux: tcp_fastopen_active_detect_blackhole).
pub(crate) fn on_timeout(tcb: &mut Tcb, gives_up: bool) {
    let timeouts = tcb.recovery.timeouts();
    if timeouts == 2 || (timeouts < 2 && gives_up) {
        suspect(tcb);
        if let Some(state) = tcb.fast_open.as_mut().filter(|_| tcb.state == State::SynSent) {
            state.failure = FastOpenFailure::SynRetransmitted;
        }
    }
}

/// Handles a reset whose sequence number is in the window but not RCV.NXT. In ESTABLISHED, before
/// any data was received, the network path may have dropped the data before the reset.
pub(crate) fn on_early_reset(tcb: &mut Tcb) {
    if tcb.state == State::Established && tcb.totals.data_segs_in == 0 {
        suspect(tcb);
    }
}

/// Handles the end of the connection: the suspicion arises if only an out-of-order FIN has arrived
/// (Linux: tcp_fastopen_active_disable_ofo_check).
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

/// Handles a reduced path MTU while the SYN is unanswered: a SYN with data may have been too large,
/// so `output` sends one without data (Linux: tcp_simple_retransmit).
pub(crate) fn on_path_mtu_reduced(tcb: &mut Tcb) {
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

/// Returns whether data in the SYN-ACK is accepted: the handshake must have used Fast Open, and the
/// server must not have refused data of our SYN, which would have to be retransmitted first
/// (RFC 7413 §4.2.1).
pub(crate) fn takes_syn_ack_data(tcb: &Tcb) -> bool {
    tcb.fast_open.as_ref().is_some_and(|state| state.syn_data == 0 || state.taken)
}
