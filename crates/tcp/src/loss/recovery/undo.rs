//! Undo of a window reduction after a spurious loss detection: the segment that counted as lost had
//! arrived.
//!
//! Above: `recovery` and `recovery::sack` call it with every ACK. Below: `congestion` keeps the
//! previous cwnd and ssthresh. RFC 4015 (Eifel response), RFC 3522 (detection by timestamps),
//! RFC 3708 (by D-SACK), RFC 5682 (F-RTO); Linux: tcp_may_undo, tcp_process_loss.
//!
//! An undo requires one of three kinds of evidence. First: an ACK of new data echoes a timestamp
//! from before the first retransmission, so an original arrived. Second: the peer reports every
//! retransmission as a duplicate. Third: after a timeout, data that was sent once and counted as
//! lost is acknowledged or SACKed. To obtain the third kind, F-RTO sends new data instead of the
//! second retransmission, and examines which data the next ACK covers.
//!
//! Differs from RFC 5682: F-RTO runs with SACK only; without SACK only timestamps detect a spurious
//! timeout.

use crate::{
    base::counters::Counter,
    cx::Cx,
    loss::rack,
    tcb::{
        Tcb, TcbFlags,
        acked::Acked,
        recovery::{CaState, Frto, Undo},
    },
    wire::option::is_older,
};

/// Records that `bytes` were retransmitted.
pub(crate) fn on_retransmitted(tcb: &mut Tcb, cx: &Cx<'_>, bytes: u32) {
    let now = tcb.ts_now(cx.now);
    if let Some(undo) = &mut tcb.recovery.undo {
        undo.outstanding = undo.outstanding.saturating_add(bytes);
        undo.stamp.get_or_insert(now);
    }
}

/// Subtracts the data that an ACK reports as received twice from the outstanding retransmissions.
pub(super) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) {
    let Some((start, end)) = acked.duplicate else { return };
    match &mut tcb.recovery.undo {
        Some(undo) if undo.stamp.is_some() && end.gt(undo.marker) => {
            undo.outstanding = undo.outstanding.saturating_sub(end.since(start));
        }
        _ => cx.count(Counter::TcpExtTCPDSACKIgnoredNoUndo),
    }
}

/// Returns whether duplicate reports cover all retransmissions, which refutes the loss.
pub(super) fn all_duplicates(tcb: &Tcb) -> bool {
    tcb.recovery.undo.is_some_and(Undo::is_refuted)
}

/// Returns whether SND.UNA advanced over data sent before the first retransmission (RFC 3522 §3).
pub(super) fn is_original(tcb: &Tcb, acked: &Acked) -> bool {
    let stamp = tcb.recovery.undo.and_then(|undo| undo.stamp);
    match (stamp, acked.echo) {
        (Some(stamp), Some(echo)) if acked.bytes > 0 => {
            tcb.flags.contains(TcbFlags::TIMESTAMPS) && is_older(echo, stamp)
        }
        _ => false,
    }
}

/// Restores cwnd and ssthresh, and marks the lost entries as in flight again.
pub(super) fn revert(tcb: &mut Tcb, cx: &Cx<'_>, counter: Counter) {
    cx.count(counter);
    tcb.recovery.undo = None;
    tcb.recovery.frto = Frto::Off;
    tcb.congestion.undo();
    tcb.send_queue.unmark_lost();
    rack::forget_retransmissions(tcb);
    tcb.rtt.reset_backoff();
}

/// Processes an ACK after a timeout. Returns whether the timeout's reduction was undone.
pub(super) fn process_loss(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) -> bool {
    let by_duplicates = all_duplicates(tcb);
    if acked.bytes > 0 && (by_duplicates || is_original(tcb, acked)) {
        let counter =
            if by_duplicates { Counter::TcpExtTCPDSACKUndo } else { Counter::TcpExtTCPLossUndo };
        revert(tcb, cx, counter);
        return true;
    }
    if tcb.recovery.frto == Frto::Off {
        return false;
    }
    if acked.lowest_original.is_some_and(|lowest| lowest.lt(tcb.recovery.recover)) {
        // Step 3.b: an entry that was sent once and counted as lost has arrived.
        cx.count(Counter::TcpExtTCPSpuriousRTOs);
        revert(tcb, cx, Counter::TcpExtTCPLossUndo);
        return true;
    }
    let repeated = acked.bytes == 0 && !acked.not_duplicate;
    tcb.recovery.frto = match tcb.recovery.frto {
        Frto::Head if acked.bytes > 0 && tcb.snd_una.lt(tcb.recovery.recover) => {
            // Step 2.b: the next segments are new data, not retransmissions.
            tcb.recovery.recover = tcb.snd_nxt;
            Frto::NewData
        }
        // Step 3.a: the ACK of new data does not cover the holes, so the loss is real.
        Frto::NewData if acked.delivered > 0 || repeated => Frto::Off,
        Frto::Head if acked.sacked > 0 || repeated => Frto::Off,
        other => other,
    };
    false
}

/// Processes evidence outside of timeout recovery. Returns whether the reduction was undone.
pub(super) fn process(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) -> bool {
    let counter = match tcb.recovery.state {
        _ if tcb.recovery.undo.is_none() => return false,
        _ if all_duplicates(tcb) => Counter::TcpExtTCPDSACKUndo,
        CaState::Recovery if !is_original(tcb, acked) => return false,
        CaState::Recovery if tcb.snd_una.ge(tcb.recovery.recover) => Counter::TcpExtTCPFullUndo,
        // While a retransmission is still in flight, its ACK will be better evidence.
        CaState::Recovery if tcb.send_queue.retrans_bytes() == 0 => Counter::TcpExtTCPPartialUndo,
        _ => return false,
    };
    if counter == Counter::TcpExtTCPPartialUndo {
        let highest = tcb.send_queue.highest_sacked().unwrap_or(tcb.snd_una);
        let distance = highest.max(tcb.snd_una).since(tcb.snd_una - acked.bytes);
        rack::note_reordering(tcb, cx, distance, Counter::TcpExtTCPTSReorder);
    }
    revert(tcb, cx, counter);
    // The original arrived late: the path reorders.
    tcb.recovery.rack.reordering_seen = true;
    true
}
