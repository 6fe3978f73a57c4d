//! Packetization-layer path MTU discovery: finds the path MTU by probes if ICMP does not report it.
//!
//! Above: `output::mtu_probe` sends a probe, `input::ack` and `loss::recovery` report its result,
//! and `loss::retransmit` reports a path that seems to drop every full segment. RFC 4821, RFC 8899;
//! Linux: tcp_mtup_probe_success, tcp_mtup_probe_failed, tcp_mtu_probing.
//!
//! `low` is a packet size that is assumed to pass, and `high` is the largest size that may pass.
//! The probe is one segment of the size halfway between them, filled with the next bytes of the
//! stream. When the probe is acknowledged, `low` and the size of all segments rise to the probe's
//! size. When the probe alone is lost, `high` falls below the probe's size, the probe's bytes are
//! retransmitted in small segments, and the loss is not treated as congestion (RFC 4821 §7.6.2).
//! The search ends when the two sizes are within `tcp_probe_threshold`, and starts again
//! `tcp_probe_interval` after its start.
//!
//! With `tcp_mtu_probing` 2 the search starts at the end of the handshake, with 1 it starts when a
//! black hole is suspected, and with 0 it never starts. If there is no search yet, the first
//! timeout beyond `tcp_retries1` starts one at `tcp_base_mss`; every later such timeout halves the
//! size, down to `tcp_mtu_probe_floor` or `tcp_min_snd_mss`, whichever is larger (RFC 4821 §7.7).
//!
//! Not here: ICMP errors (`input::icmp`), the current segment size (`mss`).

use alloc::boxed::Box;

use pkt::Instant;

use crate::{
    base::counters::Counter,
    cx::{Cx, config::TcpConfig},
    tcb::Tcb,
    wire::seq::SeqNum,
};

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) start: SeqNum,
    pub(crate) end: SeqNum,
    /// Size of its IP packet in bytes.
    pub(crate) mtu: u32,
}

/// The search of one connection. Sizes are bytes of IP packet.
#[derive(Clone, Debug)]
pub(crate) struct MtuProbing {
    /// Largest size that is assumed to pass: segments are no larger.
    pub(crate) low: u32,
    /// Largest size that may pass.
    pub(crate) high: u32,
    /// Start of the search.
    pub(crate) began_at: Instant,
    pub(crate) probe: Option<Probe>,
}

/// Starts the search when the connection is established and `tcp_mtu_probing` is 2.
pub(crate) fn on_established(tcb: &mut Tcb, cx: &Cx<'_>) {
    if cx.config.tcp_mtu_probing >= 2 {
        start(tcb, cx);
    }
}

fn start(tcb: &mut Tcb, cx: &Cx<'_>) {
    let high = tcb.mss.searchable_mtu();
    let low = tcb.mss.mtu_of(u32::from(cx.config.tcp_base_mss)).min(high);
    tcb.mtu_probing = Some(Box::new(MtuProbing { low, high, began_at: cx.now, probe: None }));
    tcb.mss.set_searched(low);
    tcb.congestion.set_mss(tcb.mss.effective());
}

/// Reduces the segment size after timeouts beyond `tcp_retries1`, because the path may silently
/// drop full segments (RFC 4821 §7.7, RFC 2923 §2.1). The caller marks all segments in flight as
/// lost.
pub(crate) fn on_black_hole(tcb: &mut Tcb, cx: &Cx<'_>) {
    if cx.config.tcp_mtu_probing == 0 {
        return;
    }
    let Some(search) = &mut tcb.mtu_probing else { return start(tcb, cx) };
    search.probe = None;
    let low = halved(tcb.mss.payload_of(search.low), cx.config);
    search.low = tcb.mss.mtu_of(low).min(search.low);
    tcb.mss.set_searched(search.low);
    tcb.congestion.set_mss(tcb.mss.effective());
}

/// Returns the next smaller payload.
fn halved(payload: u32, config: &TcpConfig) -> u32 {
    let floor = config.tcp_mtu_probe_floor.max(config.tcp_min_snd_mss);
    (payload / 2).min(u32::from(config.tcp_base_mss)).max(u32::from(floor))
}

/// Handles a change of the path MTU of the network layer to `mtu`: sizes above `mtu` are reduced to
/// it.
pub(crate) fn on_path_mtu(tcb: &mut Tcb, mtu: u32) {
    if let Some(search) = &mut tcb.mtu_probing {
        search.high = search.high.min(mtu);
        if search.low > search.high {
            search.low = search.high;
            tcb.mss.set_searched(search.low);
        }
    }
}

/// Handles an advance of SND.UNA, which may acknowledge the probe.
pub(crate) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>) {
    let Some(search) = &mut tcb.mtu_probing else { return };
    let Some(probe) = search.probe.filter(|probe| tcb.snd_una.ge(probe.end)) else { return };
    cx.count(Counter::TcpExtTCPMTUPSuccess);
    search.probe = None;
    // An ICMP error may have lowered `high` since the probe was sent.
    search.low = probe.mtu.min(search.high);
    tcb.mss.set_searched(search.low);
    tcb.congestion.set_mss_in_bytes(tcb.mss.effective());
}

/// Returns whether a detected loss concerns the probe alone. Then the probe has failed: the
/// congestion window is kept, and the probe's bytes are retransmitted in small segments. A probe
/// that is lost together with other segments proves nothing (RFC 4821 §7.6.2). Linux:
/// `tcp_mtup_probe_failed`.
pub(crate) fn probe_failed(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    let Some(search) = &mut tcb.mtu_probing else { return false };
    let Some(probe) = search.probe.take_if(|probe| tcb.snd_una == probe.start) else {
        return false;
    };
    if tcb.send_queue.lost_bytes() > probe.end.since(probe.start) {
        return false;
    }
    cx.count(Counter::TcpExtTCPMTUPFail);
    search.high = (probe.mtu - 1).max(search.low);
    tcb.send_queue.mark_lost(0);
    true
}

/// Ends the probe after a retransmission, because acknowledgments no longer prove that the probe
/// itself arrived.
pub(crate) fn on_retransmitted(tcb: &mut Tcb) {
    if let Some(search) = &mut tcb.mtu_probing {
        search.probe = None;
    }
}
