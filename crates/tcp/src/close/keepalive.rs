//! Handles the timer shared by keepalive and the idle timeout: sends a probe, ends the connection,
//! or arms the timer again.
//!
//! Above: `close::timer`. RFC 9293 §3.8.4; Linux: tcp_keepalive_timer.
//!
//! Not here: both deadlines, and the options that set them (`tcb::keepalive`).

use core::time::Duration;

use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    cx::Cx,
    segment,
    tcb::{
        Tcb,
        keepalive::{arm_earlier, idle_end, is_watched},
    },
};

/// Handles the expiry of the timer. Either deadline may have moved since the timer was armed.
pub(crate) fn on_timer(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if !is_watched(tcb) {
        return;
    }
    if idle_end(tcb, cx.config).is_some_and(|end| end <= cx.now) {
        cx.count(Counter::IdleTimeouts);
        return abort(tcb, cx, TcpError::TimedOut);
    }
    if tcb.idle.probe_at <= cx.now {
        on_keepalive(tcb, cx);
    }
    if tcb.state != State::Close {
        arm_earlier(tcb, cx.config);
    }
}

/// Ends the connection and sends a reset, in case the peer is still alive.
fn abort(tcb: &mut Tcb, cx: &mut Cx<'_>, error: TcpError) {
    segment::send_reset(tcb, cx);
    cx.count(Counter::TcpExtTCPAbortOnTimeout);
    tcb.finish(cx, Some(error));
}

/// Handles the keepalive deadline (RFC 9293 §3.8.4). Traffic does not move the armed timer, so this
/// function first computes how long the connection has been idle.
fn on_keepalive(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let busy = tcb.send_queue.sent_count() > 0 || tcb.send_queue.first_unsent().is_some();
    let idle = cx.now - tcb.last_received_at;
    let keepalive = tcb.idle.times().or_config(cx.config);
    if busy || idle < keepalive.time {
        // The retransmission or persist timer supervises queued data, so keepalive waits.
        let left = if busy { keepalive.time } else { keepalive.time - idle };
        tcb.idle.probe_at = cx.now + left;
        return;
    }
    if keepalive_exhausted(tcb, idle, keepalive.probes) {
        return abort(tcb, cx, tcb.soft_error.unwrap_or(TcpError::TimedOut));
    }
    segment::send_probe(tcb, cx);
    cx.count(Counter::TcpExtTCPKeepAlive);
    tcb.count_probe(cx.now);
    tcb.idle.probe_at = cx.now + keepalive.interval;
}

fn keepalive_exhausted(tcb: &Tcb, idle: Duration, probes: u8) -> bool {
    match tcb.user_timeout {
        Some(limit) => tcb.probes_out > 0 && idle >= limit,
        None => tcb.probes_out >= probes,
    }
}
