//! Packetization-layer path MTU discovery: finds the path MTU by probes, where ICMP does not report
//! it.
//!
//! Above: `output::mtu_probe` sends a probe, `input::ack` and `loss::recovery` report its end, and
//! `loss::retransmit` reports a path that seems to drop every full segment. RFC 4821, RFC 8899;
//! Linux: tcp_mtup_probe_success, tcp_mtup_probe_failed, tcp_mtu_probing.
//!
//! Between `low`, which passes, and `high`, which may not, one segment of the size in the middle is
//! sent with the stream's next bytes in it. Acknowledged, it raises `low` and with it every
//! segment; lost alone, it lowers `high` and is sent again in small segments, and the loss is no
//! congestion (RFC 4821 §7.6.2). The search ends when the two are within `tcp_probe_threshold`, and
//! begins anew after `tcp_probe_interval`.
//!
//! `tcp_mtu_probing` 2 searches from the handshake on, 1 only once a black hole is suspected:
//! timeouts beyond `tcp_retries1` first fall back to `tcp_base_mss`, each further one halves that,
//! down to `tcp_mtu_probe_floor` (RFC 4821 §7.7). 0 never does.
//!
//! Not here: reports (`input::icmp`), what a connection may send at present (`mss`).

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
    /// Its IP packet in bytes.
    pub(crate) mtu: u32,
}

/// The search of one connection. Sizes are bytes of IP packet.
#[derive(Clone, Debug)]
pub(crate) struct MtuProbing {
    /// Largest size taken to pass: segments are no larger.
    pub(crate) low: u32,
    /// Largest size that may pass.
    pub(crate) high: u32,
    /// When the search began.
    pub(crate) began_at: Instant,
    pub(crate) probe: Option<Probe>,
}

/// ESTABLISHED: the search begins with it when `tcp_mtu_probing` says so.
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

/// Timeouts beyond `tcp_retries1`: full segments may vanish without a word (RFC 4821 §7.7, RFC 2923 §2.1). What is in
/// flight is about to be marked lost anyway.
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

/// The next smaller payload to try.
fn halved(payload: u32, config: &TcpConfig) -> u32 {
    let floor = config.tcp_mtu_probe_floor.max(config.tcp_min_snd_mss);
    (payload / 2).min(u32::from(config.tcp_base_mss)).max(u32::from(floor))
}

/// The path MTU that the network layer knows has changed to `mtu`. What was found to pass passes no longer, if it is more.
pub(crate) fn on_path_mtu(tcb: &mut Tcb, mtu: u32) {
    if let Some(search) = &mut tcb.mtu_probing {
        search.high = search.high.min(mtu);
        if search.low > search.high {
            search.low = search.high;
            tcb.mss.set_searched(search.low);
        }
    }
}

/// SND.UNA moved: has the probe arrived?
pub(crate) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>) {
    let Some(search) = &mut tcb.mtu_probing else { return };
    let Some(probe) = search.probe.filter(|probe| tcb.snd_una.ge(probe.end)) else { return };
    cx.count(Counter::TcpExtTCPMTUPSuccess);
    search.probe = None;
    // A report may have come since the probe left.
    search.low = probe.mtu.min(search.high);
    tcb.mss.set_searched(search.low);
    tcb.congestion.set_mss_in_bytes(tcb.mss.effective());
}

/// A loss was found. Answers whether it is the probe alone that the path did not take: then the window stays, and the
/// probe's bytes leave again in small segments. Lost together with others it says nothing (RFC 4821 §7.6.2).
pub(crate) fn took_the_loss(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
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

/// Something was sent again: what arrives says nothing certain about the probe any more.
pub(crate) fn on_retransmitted(tcb: &mut Tcb) {
    if let Some(search) = &mut tcb.mtu_probing {
        search.probe = None;
    }
}
