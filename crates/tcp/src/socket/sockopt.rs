//! Options of an existing connection.
//!
//! Above: `setsockopt` in the socket layer. Linux: do_tcp_setsockopt, sk_setsockopt.
//!
//! A setter only changes the state; the caller runs `output` after a setter that may release held
//! data (`set_nodelay`, `set_cork`) or schedule an ACK (`set_quickack`, `set_rcvbuf`,
//! `set_rcvlowat`, `set_window_clamp`).
//!
//! Not here: options of a socket without connection ([`SocketOptions`](crate::SocketOptions)),
//! keepalive and the idle timeout (`tcb::keepalive`).

use core::time::Duration;

use crate::{
    congestion::Algorithm,
    cx::Cx,
    tcb::{LINGER_OFF, Tcb, TcbFlags, linger_ms, memory::rmem_alloc},
};

impl Tcb {
    /// Sets `TCP_NODELAY`: sends small segments at once. Turning it on releases held data, even
    /// under a cork.
    pub fn set_nodelay(&mut self, on: bool) {
        self.flags.set(TcbFlags::NODELAY, on);
        self.flags.set(TcbFlags::PUSH_HELD, on);
    }

    /// Returns `TCP_NODELAY`.
    #[must_use]
    pub fn nodelay(&self) -> bool {
        self.flags.contains(TcbFlags::NODELAY)
    }

    /// Sets `TCP_CORK`: holds segments that are not full, for at most 200 ms after the data in
    /// flight is acknowledged. Turning it off releases them.
    pub fn set_cork(&mut self, on: bool) {
        self.flags.set(TcbFlags::CORK, on);
    }

    /// Returns `TCP_CORK`.
    #[must_use]
    pub fn cork(&self) -> bool {
        self.flags.contains(TcbFlags::CORK)
    }

    /// Sets `SO_LINGER`: `None` disables it, and zero makes `close` send a reset.
    pub fn set_linger(&mut self, linger: Option<Duration>) {
        self.linger_ms = linger_ms(linger);
    }

    /// Returns `SO_LINGER`.
    #[must_use]
    pub fn linger(&self) -> Option<Duration> {
        (self.linger_ms != LINGER_OFF).then(|| Duration::from_millis(u64::from(self.linger_ms)))
    }

    /// Sets `TCP_USER_TIMEOUT` (RFC 5482): with `None`, `tcp_retries2` applies.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// Returns `TCP_USER_TIMEOUT`.
    #[must_use]
    pub fn user_timeout(&self) -> Option<Duration> {
        self.user_timeout
    }

    /// Sets `SO_RCVBUF` in bytes of memory: ends autotuning. The announced window is kept; a window
    /// that at least doubles is announced at once.
    pub fn set_rcvbuf(&mut self, bytes: u32) {
        self.receive_buffer.set_rcvbuf(bytes);
        self.schedule_window_update();
    }

    /// Returns `SO_RCVBUF`.
    #[must_use]
    pub fn rcvbuf(&self) -> u32 {
        self.receive_buffer.rcvbuf()
    }

    /// Sets `SO_RCVLOWAT`: the socket becomes readable with this many bytes, and the buffer grows
    /// to hold them. The number is at least 1 and at most half of the largest buffer.
    pub fn set_rcvlowat(&mut self, cx: &Cx<'_>, bytes: u32) {
        self.receive_buffer.set_lowat(bytes, cx.config);
        self.schedule_window_update();
    }

    /// Returns `SO_RCVLOWAT`.
    #[must_use]
    pub fn rcvlowat(&self) -> u32 {
        self.receive_buffer.lowat()
    }

    /// Sets `TCP_WINDOW_CLAMP`: no window above this many bytes is announced from now on; 0 removes
    /// the limit.
    pub fn set_window_clamp(&mut self, bytes: u32) {
        self.receive_buffer.set_window_clamp(bytes, self.rcv_wnd);
        self.schedule_window_update();
    }

    /// Returns `TCP_WINDOW_CLAMP`: the largest window that may be announced, in bytes.
    #[must_use]
    pub fn window_clamp(&self) -> u32 {
        self.receive_buffer.window_clamp()
    }

    /// Returns the memory of received data that was not read, in order or not (Linux
    /// `sk_rmem_alloc`).
    #[must_use]
    pub fn rmem_alloc(&self) -> u32 {
        rmem_alloc(self)
    }

    /// Returns the memory of data that is unsent or unacknowledged (Linux `sk_wmem_queued`).
    #[must_use]
    pub fn wmem_queued(&self) -> u32 {
        self.send_queue.wmem_queued()
    }

    /// Sets `SO_SNDBUF` in bytes of memory: ends autotuning.
    pub fn set_sndbuf(&mut self, bytes: u32) {
        self.sndbuf = bytes;
        self.flags |= TcbFlags::SNDBUF_LOCKED;
    }

    /// Returns `SO_SNDBUF`.
    #[must_use]
    pub fn sndbuf(&self) -> u32 {
        self.sndbuf
    }

    /// Sets `TCP_MAXSEG` on a connection: limits the size of sent segments.
    pub fn set_maxseg(&mut self, maxseg: u16) {
        self.mss.clamp_to(maxseg);
        self.congestion.set_mss(self.mss.effective());
    }

    /// Returns `TCP_MAXSEG`: payload bytes of a full segment.
    #[must_use]
    pub fn mss(&self) -> u32 {
        self.mss.effective()
    }

    /// Sets `TCP_QUICKACK`: `true` sends a pending ACK at once and leaves the mode in which data
    /// segments carry the ACKs; `false` enters that mode.
    pub fn set_quickack(&mut self, on: bool) {
        self.ack.set_quick(on);
    }

    /// Returns `TCP_QUICKACK`: whether ACKs are sent without waiting for data segments to carry
    /// them.
    #[must_use]
    pub fn quickack(&self) -> bool {
        !self.ack.is_pingpong()
    }

    /// Returns `TCP_NOTSENT_LOWAT`; with `None`, `tcp_notsent_lowat` applies.
    #[must_use]
    pub fn notsent_lowat(&self) -> Option<u32> {
        self.flags.contains(TcbFlags::OWN_NOTSENT_LOWAT).then_some(self.not_sent_lowat)
    }

    /// Removes the socket's own `TCP_NOTSENT_LOWAT`; `default` is the value of the sysctl.
    pub fn reset_notsent_lowat(&mut self, default: u32) {
        self.not_sent_lowat = default;
        self.flags -= TcbFlags::OWN_NOTSENT_LOWAT;
    }

    /// Sets `TCP_NOTSENT_LOWAT`: while at least this many bytes are unsent, a write starts no new
    /// packet. The socket is writable while fewer than half as many are unsent. 0 removes the
    /// limit.
    pub fn set_notsent_lowat(&mut self, bytes: u32) {
        self.not_sent_lowat = if bytes == 0 { u32::MAX } else { bytes };
        self.flags |= TcbFlags::OWN_NOTSENT_LOWAT;
    }

    /// Returns `IP_MTU`: the path MTU as far as it is known.
    #[must_use]
    pub fn path_mtu(&self) -> u32 {
        self.mss.pmtu()
    }

    /// Sets `TCP_SYNCNT`: number of SYN retransmissions; with `None`, `tcp_syn_retries` applies.
    pub fn set_syn_retries(&mut self, retries: Option<u8>) {
        self.syn_retries = retries;
    }

    /// Returns `TCP_SYNCNT`.
    #[must_use]
    pub fn syn_retries(&self) -> Option<u8> {
        self.syn_retries
    }

    /// Sets `TCP_RTO_MAX_MS`: upper bound of the retransmission timeout. The caller allows 1 s to
    /// 120 s.
    pub fn set_rto_max(&mut self, limit: Duration) {
        self.rtt.set_rto_max(limit);
    }

    /// Returns `TCP_RTO_MAX_MS`.
    #[must_use]
    pub fn rto_max(&self) -> Duration {
        self.rtt.rto_max()
    }

    /// Sets `TCP_THIN_LINEAR_TIMEOUTS`: the first six timeouts of a stream with few segments in
    /// flight do not double the RTO.
    pub fn set_thin_linear_timeouts(&mut self, on: bool) {
        self.thin_linear_timeouts = on;
    }

    /// Returns `TCP_THIN_LINEAR_TIMEOUTS`.
    #[must_use]
    pub fn thin_linear_timeouts(&self) -> bool {
        self.thin_linear_timeouts
    }

    /// Sets `TCP_CONGESTION`: replaces the congestion control algorithm. The new algorithm starts
    /// without history; the congestion window stays, and the pacing rate follows with the next ACK.
    ///
    /// ECN is negotiated in the handshake. An algorithm that needs ECN (DCTCP) receives no marks on
    /// a connection that has not agreed on it, and behaves as Reno.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.congestion.set_algorithm(algorithm);
    }

    /// Sets `IP_RECVERR`: an ICMP error about the open connection becomes its error at once.
    /// Otherwise it is kept as the reason for a later timeout.
    pub fn set_receive_error(&mut self, on: bool) {
        self.flags.set(TcbFlags::RECEIVE_ERROR, on);
    }

    /// Returns `IP_RECVERR`.
    #[must_use]
    pub fn receive_error(&self) -> bool {
        self.flags.contains(TcbFlags::RECEIVE_ERROR)
    }

    /// Sets `SO_MAX_PACING_RATE` in bytes per second: upper bound of the pacing rate. `None`
    /// removes it.
    pub fn set_max_pacing_rate(&mut self, bytes_per_second: Option<u64>) {
        self.pacing.set_max_rate(bytes_per_second);
    }

    /// Returns `SO_MAX_PACING_RATE`.
    #[must_use]
    pub fn max_pacing_rate(&self) -> Option<u64> {
        self.pacing.max_rate()
    }

    /// Returns the pacing rate in bytes per second, even if packets are not paced; `None` before
    /// the first round trip.
    #[must_use]
    pub fn pacing_rate(&self) -> Option<u64> {
        self.pacing.rate()
    }

    /// Returns `TCP_CONGESTION`.
    #[must_use]
    pub fn congestion(&self) -> Algorithm {
        self.congestion.algorithm()
    }

    /// Sets `quickack` of a new route, the only metric of `PathMetrics` that affects open
    /// connections.
    pub fn set_route_quickack(&mut self, on: bool) {
        self.ack.set_never_delays(on);
    }

    /// Sets the values of a new route's device: `PathParams::gso_bytes_max` and
    /// `PathParams::sums_payload`.
    pub fn set_device(&mut self, gso_bytes_max: u32, sums_payload: bool) {
        self.mss.set_device(gso_bytes_max, sums_payload);
    }

    /// Enables or disables header prediction, so that tests and benchmarks can compare it with the
    /// complete processing.
    pub fn set_header_prediction(&mut self, on: bool) {
        self.flags.set(TcbFlags::NO_FAST_PATH, !on);
    }
}
