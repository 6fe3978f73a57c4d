//! Keepalive and the idle timeout: two limits of a connection on which nothing happens, behind one
//! deadline.
//!
//! Above: `close::keepalive` runs when the `keep` slot of `timers` fires, which holds the earlier
//! of both deadlines. Keepalive: RFC 9293 §3.8.4; Linux: tcp_keepalive_timer. Linux has no idle
//! timeout (`net.quietline.tcp_idle_timeout`); the daemons above its sockets have one each.
//!
//! Keepalive asks whether the peer is there, and any acceptable segment is an answer. The idle
//! timeout asks whether the connection makes progress: new payload arrived, payload of ours was
//! acknowledged or reported by SACK, or payload left while none was in flight. A peer that answers
//! probes and keeps its window closed makes no progress, so that only the idle timeout ends it.
//!
//! Both deadlines are lazy. A segment stores its time of arrival in fields that other mechanisms
//! need as well. The deadline moves when the slot fires, so that a segment costs nothing here.
//!
//! Not here: the probes themselves (`close::keepalive`), probes of a closed window
//! (`close::timer`), the wait of an orphan in FIN-WAIT-2, which has the slot for itself (`close`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::state::State,
    cx::{
        Cx,
        config::{Keepalive, SocketOptions, TcpConfig},
    },
    tcb::{Tcb, TcbFlags},
};

/// `IdleLimits::timeout_s` of a socket that leaves it to `tcp_idle_timeout`.
const TIMEOUT_DEFAULT: u32 = u32::MAX;

/// What a connection keeps for both limits.
#[derive(Clone, Debug)]
pub(crate) struct IdleLimits {
    /// When keepalive looks again; never without `SO_KEEPALIVE`.
    pub(crate) probe_at: Instant,
    /// Idle time counts from here at the earliest: the handshake, the call that set the timeout, the peer's FIN.
    from: Instant,
    /// The socket's idle timeout in seconds: 0 is none, [`TIMEOUT_DEFAULT`] is the sysctl's.
    timeout_s: u32,
    /// `TCP_KEEPIDLE` in milliseconds; 0 is the sysctl's.
    time_ms: u32,
    /// `TCP_KEEPINTVL` in milliseconds; 0 is the sysctl's.
    interval_ms: u32,
    /// `TCP_KEEPCNT`; 0 is the sysctl's.
    probes: u8,
}

impl IdleLimits {
    pub(crate) fn new(options: &SocketOptions, now: Instant) -> Self {
        let mut limits = Self {
            probe_at: Instant::FAR_FUTURE,
            from: now,
            timeout_s: timeout_s(options.idle_timeout),
            time_ms: 0,
            interval_ms: 0,
            probes: 0,
        };
        limits.set_times(options.keepalive_times);
        limits
    }

    fn set_times(&mut self, times: Keepalive) {
        self.time_ms = ms(times.time);
        self.interval_ms = ms(times.interval);
        self.probes = times.probes;
    }

    /// What the socket has set of keepalive's times.
    pub(crate) fn times(&self) -> Keepalive {
        Keepalive {
            time: Duration::from_millis(self.time_ms.into()),
            interval: Duration::from_millis(self.interval_ms.into()),
            probes: self.probes,
        }
    }

    /// The connection moved, and no other field records it.
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.from = now;
    }
}

impl Tcb {
    /// `SO_KEEPALIVE` and its three numbers; `None` switches it off.
    pub fn set_keepalive(&mut self, cx: &Cx<'_>, keepalive: Option<Keepalive>) {
        self.flags.set(TcbFlags::KEEPALIVE, keepalive.is_some());
        if let Some(keepalive) = keepalive {
            self.idle.set_times(keepalive);
        }
        arm(self, cx);
    }

    /// `SO_KEEPALIVE`.
    #[must_use]
    pub fn keepalive(&self) -> bool {
        self.flags.contains(TcbFlags::KEEPALIVE)
    }

    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`, whether or not keepalive is on.
    pub fn set_keepalive_times(&mut self, cx: &Cx<'_>, times: Keepalive) {
        self.idle.set_times(times);
        arm(self, cx);
    }

    /// What the socket has set of these times.
    #[must_use]
    pub fn keepalive_times(&self) -> Keepalive {
        self.idle.times()
    }

    /// `QUIETLINE_IDLE_TIMEOUT`, in whole seconds: a connection on which nothing moved for so long is reset. Zero is none, `None`
    /// leaves it to `tcp_idle_timeout`. The time counts from this call at the earliest.
    pub fn set_idle_timeout(&mut self, cx: &Cx<'_>, timeout: Option<Duration>) {
        self.idle.timeout_s = timeout_s(timeout);
        self.idle.from = cx.now;
        if is_watched(self) {
            arm_earlier(self, cx.config);
        }
    }

    /// `QUIETLINE_IDLE_TIMEOUT` as the socket has set it.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        (self.idle.timeout_s != TIMEOUT_DEFAULT)
            .then(|| Duration::from_secs(u64::from(self.idle.timeout_s)))
    }
}

/// Milliseconds, a part of one counted whole; 49 days at most.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn timeout_s(timeout: Option<Duration>) -> u32 {
    timeout.map_or(TIMEOUT_DEFAULT, |timeout| {
        u32::try_from(timeout.as_secs()).unwrap_or(TIMEOUT_DEFAULT - 1).min(TIMEOUT_DEFAULT - 1)
    })
}

/// The `keep` slot is keepalive's and the idle timeout's in this state.
pub(crate) fn is_watched(tcb: &Tcb) -> bool {
    let orphan_waits = tcb.state == State::FinWait2 && tcb.flags.contains(TcbFlags::ORPHAN);
    tcb.state.is_synchronized() && tcb.state != State::TimeWait && !orphan_waits
}

/// The connection is established, or an option of keepalive has changed: its idle time begins.
pub(crate) fn arm(tcb: &mut Tcb, cx: &Cx<'_>) {
    if !is_watched(tcb) {
        return;
    }
    let time = tcb.idle.times().or_config(cx.config).time;
    let probes = tcb.flags.contains(TcbFlags::KEEPALIVE);
    tcb.idle.probe_at = if probes { cx.now + time } else { Instant::FAR_FUTURE };
    arm_earlier(tcb, cx.config);
}

pub(crate) fn arm_earlier(tcb: &mut Tcb, config: &TcpConfig) {
    let idle_end = idle_end(tcb, config).unwrap_or(Instant::FAR_FUTURE);
    tcb.timers.arm_keep(tcb.idle.probe_at.min(idle_end));
}

/// When the idle timeout ends the connection if nothing moves any more; `None` without a timeout.
pub(crate) fn idle_end(tcb: &Tcb, config: &TcpConfig) -> Option<Instant> {
    let timeout = tcb.idle_timeout().unwrap_or(config.tcp_idle_timeout);
    let received = tcb.ack.last_data_at().unwrap_or(Instant::ZERO);
    let moved = tcb.idle.from.max(received).max(tcb.rate.delivered_at());
    (!timeout.is_zero()).then(|| moved + timeout)
}
