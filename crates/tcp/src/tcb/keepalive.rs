//! Keepalive and the idle timeout: two limits for an inactive connection, with one common deadline.
//!
//! Above: `close::keepalive` runs when the `keep` timer expires, which is armed for the earlier of
//! both deadlines. Keepalive: RFC 9293 §3.8.4; Linux: tcp_keepalive_timer. The idle timeout
//! (`net.quietline.tcp_idle_timeout`) has no counterpart in Linux, where servers implement their
//! own.
//!
//! Keepalive checks whether the peer is reachable, and any acceptable segment is an answer. The
//! idle timeout checks whether the connection makes progress: new payload or a FIN arrived, payload
//! that this side sent was acknowledged or reported by SACK, or payload was sent while none was in
//! flight. A peer that answers probes but keeps its window closed makes no progress: of the two
//! limits, only the idle timeout ends such a connection.
//!
//! A segment moves neither deadline. Other mechanisms already store its time of arrival, and both
//! deadlines are recomputed from these times when the timer expires. A segment therefore costs
//! nothing here.
//!
//! Not here: the probes themselves (`close::keepalive`), probes of a closed window
//! (`close::timer`), the timeout of an orphan in FIN-WAIT-2, for which `close` uses the same timer.

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

/// Value of `IdleLimits::timeout_s` when the socket uses `tcp_idle_timeout`.
const TIMEOUT_DEFAULT: u32 = u32::MAX;

/// State of both limits on a connection.
#[derive(Clone, Debug)]
pub(crate) struct IdleLimits {
    /// Next keepalive deadline; far in the future without `SO_KEEPALIVE`.
    pub(crate) probe_at: Instant,
    /// Earliest start of the idle time: the handshake, the call that set the timeout, or the peer's
    /// FIN.
    from: Instant,
    /// Idle timeout of the socket in seconds: 0 is no timeout, [`TIMEOUT_DEFAULT`] means the
    /// sysctl.
    timeout_s: u32,
    /// `TCP_KEEPIDLE` in milliseconds; 0 means the sysctl.
    time_ms: u32,
    /// `TCP_KEEPINTVL` in milliseconds; 0 means the sysctl.
    interval_ms: u32,
    /// `TCP_KEEPCNT`; 0 means the sysctl.
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

    /// Returns the keepalive times that the socket has set.
    pub(crate) fn times(&self) -> Keepalive {
        Keepalive {
            time: Duration::from_millis(self.time_ms.into()),
            interval: Duration::from_millis(self.interval_ms.into()),
            probes: self.probes,
        }
    }

    /// Records progress that no other field records.
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.from = now;
    }
}

impl Tcb {
    /// Sets `SO_KEEPALIVE` and its three parameters; `None` switches keepalive off.
    pub fn set_keepalive(&mut self, cx: &Cx<'_>, keepalive: Option<Keepalive>) {
        self.flags.set(TcbFlags::KEEPALIVE, keepalive.is_some());
        if let Some(keepalive) = keepalive {
            self.idle.set_times(keepalive);
        }
        arm(self, cx);
    }

    /// Returns `SO_KEEPALIVE`.
    #[must_use]
    pub fn keepalive(&self) -> bool {
        self.flags.contains(TcbFlags::KEEPALIVE)
    }

    /// Sets `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`, whether or not keepalive is on.
    pub fn set_keepalive_times(&mut self, cx: &Cx<'_>, times: Keepalive) {
        self.idle.set_times(times);
        arm(self, cx);
    }

    /// Returns `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT` as the socket has set them; 0
    /// means the sysctl.
    #[must_use]
    pub fn keepalive_times(&self) -> Keepalive {
        self.idle.times()
    }

    /// Sets `QUIETLINE_IDLE_TIMEOUT`, in whole seconds: a connection without progress for that time
    /// is reset. Zero is no timeout, `None` means `tcp_idle_timeout`. The time starts with this
    /// call at the earliest.
    pub fn set_idle_timeout(&mut self, cx: &Cx<'_>, timeout: Option<Duration>) {
        self.idle.timeout_s = timeout_s(timeout);
        self.idle.from = cx.now;
        if is_watched(self) {
            arm_earlier(self, cx.config);
        }
    }

    /// Returns `QUIETLINE_IDLE_TIMEOUT` as the socket has set it.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        (self.idle.timeout_s != TIMEOUT_DEFAULT)
            .then(|| Duration::from_secs(u64::from(self.idle.timeout_s)))
    }
}

/// Returns a time in milliseconds, rounded up; 49 days at most.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn timeout_s(timeout: Option<Duration>) -> u32 {
    timeout.map_or(TIMEOUT_DEFAULT, |timeout| {
        u32::try_from(timeout.as_secs()).unwrap_or(TIMEOUT_DEFAULT - 1).min(TIMEOUT_DEFAULT - 1)
    })
}

/// Returns whether the `keep` timer belongs to keepalive and the idle timeout in this state.
pub(crate) fn is_watched(tcb: &Tcb) -> bool {
    let orphan_waits = tcb.state == State::FinWait2 && tcb.flags.contains(TcbFlags::ORPHAN);
    tcb.state.is_synchronized() && tcb.state != State::TimeWait && !orphan_waits
}

/// Restarts the keepalive time when the connection is established or a keepalive option has
/// changed, and arms the timer. The idle timeout is not restarted.
pub(crate) fn arm(tcb: &mut Tcb, cx: &Cx<'_>) {
    if !is_watched(tcb) {
        return;
    }
    let time = tcb.idle.times().or_config(cx.config).time;
    let probes = tcb.flags.contains(TcbFlags::KEEPALIVE);
    tcb.idle.probe_at = if probes { cx.now + time } else { Instant::FAR_FUTURE };
    arm_earlier(tcb, cx.config);
}

/// Arms the `keep` timer for the earlier of both deadlines.
pub(crate) fn arm_earlier(tcb: &mut Tcb, config: &TcpConfig) {
    let idle_end = idle_end(tcb, config).unwrap_or(Instant::FAR_FUTURE);
    tcb.timers.arm_keep(tcb.idle.probe_at.min(idle_end));
}

/// Returns the time at which the idle timeout ends the connection unless it makes progress; `None`
/// without a timeout.
pub(crate) fn idle_end(tcb: &Tcb, config: &TcpConfig) -> Option<Instant> {
    let timeout = tcb.idle_timeout().unwrap_or(config.tcp_idle_timeout);
    let received = tcb.ack.last_data_at().unwrap_or(Instant::ZERO);
    let moved = tcb.idle.from.max(received).max(tcb.rate.delivered_at());
    (!timeout.is_zero()).then(|| moved + timeout)
}
