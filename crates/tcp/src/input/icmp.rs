//! ICMP errors about packets of a connection.
//!
//! Above: `stack::receive::icmp_input`, which finds the connection by the quoted headers.
//! RFC 9293 §3.9.2.2, RFC 5461, RFC 5927, RFC 1191, RFC 6069; Linux: tcp_v4_err,
//! tcp_v4_mtu_reduced, tcp_ld_RTO_revert.
//!
//! A report is accepted only if it quotes a sequence number in flight; other reports are forged or
//! late. In a synchronized state no report ends the connection: its error is kept as the reason for
//! a later timeout (soft error), or with `IP_RECVERR` becomes the error of the next call. In the
//! table, PMTU means that the path MTU is updated, and "ends" that the connection ends.
//!
//! ```text
//!                        SYN-SENT, SYN-RECEIVED    synchronized
//!    too big             PMTU                      PMTU; larger segments are retransmitted at once
//!    net, host unreach.  ends                      soft error; reverts one RTO backoff (RFC 6069)
//!    other unreachable   ends                      soft error
//!    time exceeded,
//!    parameter problem   ends                      soft error
//!    source quench       ignored (RFC 6633 §3)     ignored
//! ```
//!
//! Not here: parsing of ICMP, the mapping of codes to kinds, the path MTU of a destination
//! (`stack::route`).

use pkt::Instant;

use crate::{
    base::{
        counters::Counter,
        error::{IcmpError, TcpError},
        state::State,
    },
    cx::Cx,
    loss::{recovery, retransmit},
    tcb::{Tcb, TcbFlags, fast_open, mtu_probe, timers::RtxPurpose},
    wire::seq::SeqNum,
};

/// Processes an ICMP error that quotes a segment with `seq`. The caller runs `output` afterwards.
///
/// Returns the path MTU that a credible report contains. The caller records it for the destination
/// and passes the resulting value to [`Tcb::set_path_mtu`].
pub fn on_icmp(tcb: &mut Tcb, cx: &mut Cx<'_>, error: IcmpError, seq: SeqNum) -> Option<u32> {
    if !is_credible(tcb, cx, seq) {
        return None;
    }
    match error {
        IcmpError::PacketTooBig { mtu } => return Some(mtu),
        IcmpError::PathBroken(reason) | IcmpError::Unreachable(reason)
            if !tcb.state.is_synchronized() =>
        {
            tcb.finish(cx, Some(reason));
        }
        IcmpError::PathBroken(reason) => {
            note_error(tcb, reason);
            revert_backoff(tcb, cx, seq);
        }
        IcmpError::Unreachable(reason) => note_error(tcb, reason),
        IcmpError::Other => {}
    }
    None
}

/// Returns whether an ICMP message that quotes a segment with `seq` may be believed: the segment is
/// in flight (RFC 5927 §4.1: SND.UNA =< SEG.SEQ < SND.NXT). Counts a message that may not.
#[must_use]
pub fn is_credible(tcb: &Tcb, cx: &mut Cx<'_>, seq: SeqNum) -> bool {
    let in_flight = seq.ge(tcb.snd_una) && seq.lt(tcb.snd_nxt);
    if !in_flight || tcb.state == State::Close {
        cx.count(Counter::TcpExtOutOfWindowIcmps);
        return false;
    }
    true
}

/// Keeps an ICMP error of an open connection: as its error at once (`IP_RECVERR`), or as the reason
/// for a later timeout.
fn note_error(tcb: &mut Tcb, reason: TcpError) {
    if tcb.flags.contains(TcbFlags::RECEIVE_ERROR) {
        tcb.error = Some(reason);
    } else {
        tcb.soft_error = Some(reason);
    }
}

/// Reverts one RTO backoff: the retransmission was lost because of a broken path and not because of
/// congestion (RFC 6069 §4.2). If the shorter RTO has passed already, the retransmission follows at
/// once.
fn revert_backoff(tcb: &mut Tcb, cx: &mut Cx<'_>, seq: SeqNum) {
    let waits = tcb.timers.rtx() == Some(RtxPurpose::Retransmit);
    if seq != tcb.snd_una || tcb.recovery.timeouts() == 0 || tcb.rtt.backoff() == 0 || !waits {
        return;
    }
    let Some(sent_at) = tcb.send_queue.head().map(|head| head.sent_at) else { return };
    tcb.rtt.revert_rto();
    let due: Instant = sent_at + tcb.rtt.rto();
    if due > cx.now {
        tcb.timers.arm_rtx(RtxPurpose::Retransmit, due);
    } else {
        retransmit::on_rto(tcb, cx);
    }
}

impl Tcb {
    /// Sets the path MTU after a change of the route, an ICMP report, or the expiry of such a
    /// report. Larger segments in flight are retransmitted at once (RFC 1191 §6.4). There was no
    /// congestion, so the window keeps its number of segments.
    pub fn set_path_mtu(&mut self, mtu: u32) {
        if mtu == self.mss.pmtu() {
            return;
        }
        self.mss.set_pmtu(mtu);
        mtu_probe::on_path_mtu(self, mtu);
        self.on_mss_changed();
    }

    /// Adapts the connection to a changed segment size.
    pub(crate) fn on_mss_changed(&mut self) {
        let (before, mss) = (self.congestion.mss(), self.mss.effective());
        if mss == before {
            return;
        }
        self.congestion.set_mss(mss);
        if mss < before && self.state == State::SynSent {
            fast_open::on_path_mtu_reduced(self);
        } else if mss < before && self.send_queue.mark_larger_lost(mss) {
            recovery::enter_resize(self);
        }
    }
}
