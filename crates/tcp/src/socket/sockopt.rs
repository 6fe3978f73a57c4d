//! Options of a live connection.
//!
//! Above: `setsockopt` in the socket layer. Linux: do_tcp_setsockopt, sk_setsockopt.
//!
//! A setter changes state only; the caller runs `output` after one that may release data
//! (`set_nodelay`, `set_cork`).
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
    /// `TCP_NODELAY`: small segments leave at once. Turning it on releases what is held, even under a cork.
    pub fn set_nodelay(&mut self, on: bool) {
        self.flags.set(TcbFlags::NODELAY, on);
        self.flags.set(TcbFlags::PUSH_HELD, on);
    }

    /// `TCP_NODELAY`.
    #[must_use]
    pub fn nodelay(&self) -> bool {
        self.flags.contains(TcbFlags::NODELAY)
    }

    /// `TCP_CORK`: only full segments leave, at most for one retransmission timeout. Turning it off releases them.
    pub fn set_cork(&mut self, on: bool) {
        self.flags.set(TcbFlags::CORK, on);
    }

    /// `TCP_CORK`.
    #[must_use]
    pub fn cork(&self) -> bool {
        self.flags.contains(TcbFlags::CORK)
    }

    /// `SO_LINGER`: `None` is off, zero makes close reset.
    pub fn set_linger(&mut self, linger: Option<Duration>) {
        self.linger_ms = linger_ms(linger);
    }

    /// `SO_LINGER`.
    #[must_use]
    pub fn linger(&self) -> Option<Duration> {
        (self.linger_ms != LINGER_OFF).then(|| Duration::from_millis(u64::from(self.linger_ms)))
    }

    /// `TCP_USER_TIMEOUT` (RFC 5482): `None` leaves it to `tcp_retries2`.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// `TCP_USER_TIMEOUT`.
    #[must_use]
    pub fn user_timeout(&self) -> Option<Duration> {
        self.user_timeout
    }

    /// `SO_RCVBUF` in bytes of memory: ends autotuning. A window once announced is kept; one that at least doubles is
    /// announced at once.
    pub fn set_rcvbuf(&mut self, bytes: u32) {
        self.receive_buffer.set_rcvbuf(bytes);
        self.announce_room();
    }

    /// `SO_RCVBUF`.
    #[must_use]
    pub fn rcvbuf(&self) -> u32 {
        self.receive_buffer.rcvbuf()
    }

    /// `SO_RCVLOWAT`: the socket becomes readable with this many bytes, and the buffer grows to hold them. At least 1, at
    /// most half of the largest buffer.
    pub fn set_rcvlowat(&mut self, cx: &Cx<'_>, bytes: u32) {
        self.receive_buffer.set_lowat(bytes, cx.config);
        self.announce_room();
    }

    /// `SO_RCVLOWAT`.
    #[must_use]
    pub fn rcvlowat(&self) -> u32 {
        self.receive_buffer.lowat()
    }

    /// `TCP_WINDOW_CLAMP`: no window above this many bytes is announced from here on; 0 lifts it.
    pub fn set_window_clamp(&mut self, bytes: u32) {
        self.receive_buffer.set_window_clamp(bytes, self.rcv_wnd);
        self.announce_room();
    }

    /// `TCP_WINDOW_CLAMP`: the largest window that may be announced, in bytes.
    #[must_use]
    pub fn window_clamp(&self) -> u32 {
        self.receive_buffer.window_clamp()
    }

    /// Memory of what waits to be read, in order or not (Linux `sk_rmem_alloc`).
    #[must_use]
    pub fn rmem_alloc(&self) -> u32 {
        rmem_alloc(self)
    }

    /// Memory of what waits to be sent or acknowledged (Linux `sk_wmem_queued`).
    #[must_use]
    pub fn wmem_queued(&self) -> u32 {
        self.send_queue.wmem_queued()
    }

    /// `SO_SNDBUF` in bytes of memory: ends autotuning.
    pub fn set_sndbuf(&mut self, bytes: u32) {
        self.sndbuf = bytes;
        self.flags |= TcbFlags::SNDBUF_LOCKED;
    }

    /// `SO_SNDBUF`.
    #[must_use]
    pub fn sndbuf(&self) -> u32 {
        self.sndbuf
    }

    /// `TCP_MAXSEG` on a connection: segments become no larger.
    pub fn set_maxseg(&mut self, maxseg: u16) {
        self.mss.clamp_to(maxseg);
        self.congestion.set_mss(self.mss.effective());
    }

    /// `TCP_MAXSEG`: payload bytes of a full segment.
    #[must_use]
    pub fn mss(&self) -> u32 {
        self.mss.effective()
    }

    /// `TCP_QUICKACK`: on sends what is owed at once and leaves the mode in which answers carry ACKs; off enters it.
    pub fn set_quickack(&mut self, on: bool) {
        self.ack.set_quick(on);
    }

    /// `TCP_QUICKACK`: ACKs do not wait for answers to carry them.
    #[must_use]
    pub fn quickack(&self) -> bool {
        !self.ack.is_pingpong()
    }

    /// `TCP_NOTSENT_LOWAT`; `None` leaves it to `tcp_notsent_lowat`.
    #[must_use]
    pub fn notsent_lowat(&self) -> Option<u32> {
        self.flags.contains(TcbFlags::OWN_NOTSENT_LOWAT).then_some(self.not_sent_lowat)
    }

    /// The socket's `TCP_NOTSENT_LOWAT` is taken back: `default` is the sysctl's.
    pub fn reset_notsent_lowat(&mut self, default: u32) {
        self.not_sent_lowat = default;
        self.flags -= TcbFlags::OWN_NOTSENT_LOWAT;
    }

    /// `TCP_NOTSENT_LOWAT`: a write begins no new packet above this many unsent bytes, and the socket is writable below half
    /// of it. 0 lifts it.
    pub fn set_notsent_lowat(&mut self, bytes: u32) {
        self.not_sent_lowat = if bytes == 0 { u32::MAX } else { bytes };
        self.flags |= TcbFlags::OWN_NOTSENT_LOWAT;
    }

    /// `IP_MTU`: the largest IP packet that the path is known to carry.
    #[must_use]
    pub fn path_mtu(&self) -> u32 {
        self.mss.pmtu()
    }

    /// `TCP_SYNCNT`: repetitions of the SYN; `None` leaves it to `tcp_syn_retries`.
    pub fn set_syn_retries(&mut self, retries: Option<u8>) {
        self.syn_retries = retries;
    }

    /// `TCP_SYNCNT`.
    #[must_use]
    pub fn syn_retries(&self) -> Option<u8> {
        self.syn_retries
    }

    /// `TCP_RTO_MAX_MS`: the longest retransmission timeout. The caller allows 1 s to 120 s.
    pub fn set_rto_max(&mut self, limit: Duration) {
        self.rtt.set_rto_max(limit);
    }

    /// `TCP_RTO_MAX_MS`.
    #[must_use]
    pub fn rto_max(&self) -> Duration {
        self.rtt.rto_max()
    }

    /// `TCP_THIN_LINEAR_TIMEOUTS`: the first six timeouts of a stream with few segments in flight do not double.
    pub fn set_thin_linear_timeouts(&mut self, on: bool) {
        self.thin_linear_timeouts = on;
    }

    /// `TCP_THIN_LINEAR_TIMEOUTS`.
    #[must_use]
    pub fn thin_linear_timeouts(&self) -> bool {
        self.thin_linear_timeouts
    }

    /// `TCP_CONGESTION`: the algorithm from here on. It begins without memory; the window stays, and the
    /// pace follows with the next ACK.
    ///
    /// ECN is a matter of the handshake: one that needs it (DCTCP) finds no marks on a connection that did not agree on it, and
    /// behaves as Reno.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.congestion.set_algorithm(algorithm);
    }

    /// `IP_RECVERR`: what ICMP reports about the open connection is its error at once, instead of the reason that a timer
    /// gives when it gives up.
    pub fn set_receive_error(&mut self, on: bool) {
        self.flags.set(TcbFlags::RECEIVE_ERROR, on);
    }

    /// `IP_RECVERR`.
    #[must_use]
    pub fn receive_error(&self) -> bool {
        self.flags.contains(TcbFlags::RECEIVE_ERROR)
    }

    /// `SO_MAX_PACING_RATE`, bytes per second: segments leave no faster. `None` lifts the limit.
    pub fn set_max_pacing_rate(&mut self, bytes_per_second: Option<u64>) {
        self.pacing.set_max_rate(bytes_per_second);
    }

    /// `SO_MAX_PACING_RATE`.
    #[must_use]
    pub fn max_pacing_rate(&self) -> Option<u64> {
        self.pacing.max_rate()
    }

    /// The pace, bytes per second, whether packets are held back to it or not; `None` before the first round trip.
    #[must_use]
    pub fn pacing_rate(&self) -> Option<u64> {
        self.pacing.rate()
    }

    /// `TCP_CONGESTION`.
    #[must_use]
    pub fn congestion(&self) -> Algorithm {
        self.congestion.algorithm()
    }

    /// The route changed its device: `PathParams::gso_bytes_max` and `PathParams::sums_payload` of the new one.
    pub fn set_device(&mut self, gso_bytes_max: u32, sums_payload: bool) {
        self.mss.set_device(gso_bytes_max, sums_payload);
    }

    /// Header prediction on or off: the mechanism's switch, so that its gain can be measured and its equality
    /// tested.
    pub fn set_header_prediction(&mut self, on: bool) {
        self.flags.set(TcbFlags::NO_FAST_PATH, !on);
    }
}
