//! What the network reports about a connection's packets.
//!
//! Above: `stack::ip::icmp`, which finds the connection by the quoted headers. RFC 9293 §3.9.2.2, RFC 5461, RFC 5927,
//! RFC 1191; Linux: tcp_v4_err, tcp_v4_mtu_reduced.
//!
//! Only a report that quotes a sequence number now in flight counts: others are forged or too late. In a synchronized
//! state no report ends the connection; it becomes the reason a timer gives when it gives up.
//!
//! Not here: parsing ICMP, which code maps to which kind.

use crate::{
    api::TcpError,
    counters::Counter,
    cx::Cx,
    recovery,
    seq::SeqNum,
    state::State,
    tcb::{Tcb, TcbFlags},
};

/// What an ICMP error says, independent of the IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Fragmentation needed, or packet too big: the path takes IP packets of at most this many bytes.
    PacketTooBig {
        /// Next-hop MTU, already bounded from below by the IP layer.
        mtu: u32,
    },
    /// Destination unreachable, or time exceeded.
    Unreachable(TcpError),
    /// Parameter problem and whatever else is only a hint.
    Other,
}

/// Tells the connection about an ICMP error that quotes a segment with `seq`. The caller runs `output` after it.
pub fn on_icmp(tcb: &mut Tcb, cx: &mut Cx<'_>, error: IcmpError, seq: SeqNum) {
    if !seq.between(tcb.snd_una, tcb.snd_nxt) || tcb.state == State::Close {
        cx.count(Counter::TcpExtOutOfWindowIcmps);
        return;
    }
    match error {
        IcmpError::PacketTooBig { mtu } => on_pmtu(tcb, mtu),
        IcmpError::Unreachable(reason) if !tcb.state.is_synchronized() => {
            tcb.finish(cx, Some(reason));
        }
        IcmpError::Unreachable(reason) => tcb.soft_error = Some(reason),
        IcmpError::Other => {}
    }
}

/// RFC 1191 §6.4: segments become smaller, and what is in flight too large is sent again at once. It was not
/// congestion, so the window stays.
fn on_pmtu(tcb: &mut Tcb, mtu: u32) {
    if !tcb.mss.on_pmtu(mtu) {
        return;
    }
    tcb.congestion.set_mss(tcb.mss.effective());
    if tcb.send_queue.mark_larger_lost(tcb.mss.effective()) && tcb.flags.contains(TcbFlags::SACK) {
        recovery::enter_resize(tcb);
    }
}
