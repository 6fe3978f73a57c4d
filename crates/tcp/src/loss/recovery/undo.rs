//! Undo of a reduction: the segment that counted as lost had arrived.
//!
//! Above: `recovery` and `recovery::sack`, with every ACK. Below: `congestion` remembers both
//! variables. RFC 4015 (Eifel response), RFC 3522 (detection by timestamps), RFC 3708 (by D-SACK),
//! RFC 5682 (F-RTO); Linux: tcp_may_undo, tcp_process_loss.
//!
//! Three kinds of evidence: the first new ACK echoes a timestamp from before the first
//! retransmission, so that an original is what arrived; every retransmission is reported as a
//! duplicate; or, after a timeout, something that was sent once only arrives although it was taken
//! for lost. For the last one F-RTO sends new data instead of the second retransmission, and waits
//! for what the next ACK covers.
//!
//! Differs from RFC 5682: F-RTO runs with SACK only; without it timestamps alone tell.

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

/// `bytes` were sent again.
pub(crate) fn on_retransmitted(tcb: &mut Tcb, cx: &Cx<'_>, bytes: u32) {
    let now = tcb.ts_now(cx.now);
    if let Some(undo) = &mut tcb.recovery.undo {
        undo.outstanding = undo.outstanding.saturating_add(bytes);
        undo.stamp.get_or_insert(now);
    }
}

/// Counts what an ACK reports as received twice.
pub(super) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) {
    let Some((start, end)) = acked.duplicate else { return };
    match &mut tcb.recovery.undo {
        Some(undo) if undo.stamp.is_some() && end.gt(undo.marker) => {
            undo.outstanding = undo.outstanding.saturating_sub(end.since(start));
        }
        _ => cx.count(Counter::TcpExtTCPDSACKIgnoredNoUndo),
    }
}

/// The reduction, if there was one, is unsaid by duplicates.
pub(super) fn all_duplicates(tcb: &Tcb) -> bool {
    tcb.recovery.undo.is_some_and(Undo::is_refuted)
}

/// SND.UNA moved by what was sent before the first retransmission (RFC 3522 §3).
pub(super) fn is_original(tcb: &Tcb, acked: &Acked) -> bool {
    let stamp = tcb.recovery.undo.and_then(|undo| undo.stamp);
    match (stamp, acked.echo) {
        (Some(stamp), Some(echo)) if acked.bytes > 0 => {
            tcb.flags.contains(TcbFlags::TIMESTAMPS) && is_older(echo, stamp)
        }
        _ => false,
    }
}

/// Both variables return; what was marked lost is in flight again.
pub(super) fn revert(tcb: &mut Tcb, cx: &Cx<'_>, counter: Counter) {
    cx.count(counter);
    tcb.recovery.undo = None;
    tcb.recovery.frto = Frto::Off;
    tcb.congestion.undo();
    tcb.send_queue.unmark_lost();
    rack::forget_retransmissions(tcb);
    tcb.rtt.reset_backoff();
}

/// An ACK after a timeout. Answers whether the timeout is taken back.
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
        // Step 3.b: sent once, taken for lost, arrived.
        cx.count(Counter::TcpExtTCPSpuriousRTOs);
        revert(tcb, cx, Counter::TcpExtTCPLossUndo);
        return true;
    }
    let repeated = acked.bytes == 0 && !acked.has_news;
    tcb.recovery.frto = match tcb.recovery.frto {
        Frto::Head if acked.bytes > 0 && tcb.snd_una.lt(tcb.recovery.recover) => {
            // Step 2.b. What follows from here on is new.
            tcb.recovery.recover = tcb.snd_nxt;
            Frto::NewData
        }
        // Step 3.a: the ACK of new data leaves the holes: they are real.
        Frto::NewData if acked.delivered > 0 || repeated => Frto::Off,
        Frto::Head if acked.sacked > 0 || repeated => Frto::Off,
        other => other,
    };
    false
}

/// Evidence outside time-out recovery. Answers whether the reduction is taken back.
pub(super) fn process(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) -> bool {
    let counter = match tcb.recovery.state {
        _ if tcb.recovery.undo.is_none() => return false,
        _ if all_duplicates(tcb) => Counter::TcpExtTCPDSACKUndo,
        CaState::Recovery if !is_original(tcb, acked) => return false,
        CaState::Recovery if tcb.snd_una.ge(tcb.recovery.recover) => Counter::TcpExtTCPFullUndo,
        // While another retransmission is out, its answer says more.
        CaState::Recovery if tcb.send_queue.retrans_bytes() == 0 => Counter::TcpExtTCPPartialUndo,
        _ => return false,
    };
    if counter == Counter::TcpExtTCPPartialUndo {
        let highest = tcb.send_queue.highest_sacked().unwrap_or(tcb.snd_una);
        let distance = highest.max(tcb.snd_una).since(tcb.snd_una - acked.bytes);
        rack::note_reordering(tcb, cx, distance, Counter::TcpExtTCPTSReorder);
    }
    revert(tcb, cx, counter);
    // What was sent again arrived late, and nothing else was wrong with it.
    tcb.recovery.rack.reordering_seen = true;
    true
}
