//! Start of an active open, and the transition to ESTABLISHED that active and passive opens share.
//!
//! Above: `stack::socket` calls `connect`; `input::ack` calls `establish` when a handshake
//! completes. RFC 9293 §3.10.1; Linux: tcp_v4_connect, tcp_finish_connect, tcp_init_transfer.
//!
//! Not here: the header and data of the SYN (`syn`), the processing of the SYN-ACK
//! (`input::syn_sent`).

use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    open::syn,
    segment::pacing,
    tcb::{OpenParams, Tcb, TcbFlags, fast_open::FastOpenState, keepalive, mtu_probe},
};

impl Tcb {
    /// Opens a connection actively: returns it in SYN-SENT, with its SYN in `cx.out`
    /// (RFC 9293 §3.10.1).
    ///
    /// If packet memory is missing, the first retransmission timeout sends the SYN. With
    /// `FastOpen::Connect` the SYN is held until the first write, and
    /// [`output`](crate::output::output) sends it.
    #[must_use]
    pub fn connect(cx: &mut Cx<'_>, params: &OpenParams) -> Self {
        let mut tcb = Self::new(cx, params);
        cx.count(Counter::TcpActiveOpens);
        tcb.set_state(cx, State::SynSent);
        tcb.fast_open = FastOpenState::connect(params.fast_open);
        tcb.flags.set(TcbFlags::OFFERS_TIMESTAMPS, cx.config.tcp_timestamps);
        tcb.flags.set(TcbFlags::OFFERS_SCALING, cx.config.tcp_window_scaling);
        tcb.flags.set(TcbFlags::OFFERS_SACK, cx.config.tcp_sack);
        if !tcb.is_syn_held() {
            syn::send_syn(&mut tcb, cx);
        }
        tcb
    }

    /// Enters ESTABLISHED: sizes the buffers and the window, and replaces the handshake's timers.
    pub(crate) fn establish(&mut self, cx: &Cx<'_>) {
        self.set_state(cx, State::Established);
        self.congestion.set_mss(self.mss.effective());
        if self.recovery.handshake_was_lossy() {
            self.congestion.on_lossy_handshake();
            self.rtt.on_handshake_without_sample();
        }
        pacing::update(self, cx);
        self.recovery.on_established(self.snd_una);
        self.timers.stop_rtx();
        mtu_probe::on_established(self, cx);
        self.receive_buffer.on_established(self.rcv_nxt, cx.now);
        let mss = self.mss.effective().min(u32::from(self.mss.advertised_payload()));
        self.ack.on_handshake(mss, self.rcv_wnd);
        self.grow_sndbuf(cx);
        self.last_received_at = cx.now;
        self.idle.note_progress(cx.now);
        keepalive::arm(self, cx);
    }
}
