//! Fast Open's part of a connection: the setting of an open, how far the SYN is, and what the
//! handshake has shown.
//!
//! Above: `open` sends and takes a SYN with data; timers, resets and the end of a connection raise
//! a suspicion here. RFC 7413; Linux: struct tcp_fastopen_context, `syn_fastopen` of struct
//! tcp_sock.
//!
//! Not here: the handshake itself (`open::fast_open`, `open::syn`), the cache of cookies
//! (`stack::fast_open`).

use alloc::boxed::Box;

use crate::{base::state::State, tcb::Tcb, wire::cookie::Cookie};

/// Bytes of options that a SYN with our own cookie carries: MSS, SACK and timestamps, window scale, cookie.
const SYN_OPTION_BYTES: u32 = 4 + 12 + 4 + 20;

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
pub(crate) enum SynPhase {
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
    pub(crate) passive: bool,
    /// What the SYN or the SYN-ACK carries.
    pub(crate) cookie: Option<Cookie>,
    pub(crate) phase: SynPhase,
    /// What the peer announced last time.
    pub(crate) peer_mss: u16,
    /// Bytes that left with the SYN, or came with it.
    pub(crate) syn_data: u32,
    /// Data in the SYN was taken, by the peer or by us.
    pub(crate) taken: bool,
    /// The path may swallow what belongs to Fast Open; nobody has been told.
    pub(crate) suspicion: bool,
    /// A writer sleeps until the handshake ends.
    pub(crate) writer_waits: bool,
    pub(crate) failure: FastOpenFailure,
    pub(crate) news: Option<FastOpenNews>,
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
