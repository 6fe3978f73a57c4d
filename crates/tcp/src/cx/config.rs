//! Settings of TCP, by their Linux names.
//!
//! Above: `stack::sysctl` parses and validates text into these fields. Linux:
//! Documentation/networking/ip-sysctl.rst.
//!
//! One `TcpConfig` belongs to a stack (Linux: a network namespace) and is only read by the engine.
//! Some values that a socket may override, such as the default buffer sizes, are copied into the
//! [`Tcb`](crate::Tcb) when the connection is created, so a later change affects new connections
//! only. Others, such as keepalive times, are read when they are needed. Both as in Linux.
//!
//! Not here: ranges and error texts (`stack::sysctl`), per-socket options of a connection
//! (`socket::sockopt`).

use core::{fmt, time::Duration};

use pkt::FreeMode;

use crate::{
    congestion::{Algorithm, HystartDetect},
    cx::host_queue::TsqLimit,
};

/// How the memory of used packets is recycled (`net.quietline.skb_recycle`). Each mode follows a
/// range of Linux versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRecycle {
    /// The thread that frees a packet returns its descriptor at once to its home core, the core
    /// that allocated it. Linux before 5.2.
    None,
    /// A connection keeps one acknowledged packet for its next write, and one packet that was read,
    /// which softirq frees. Linux 5.2 to 5.15.
    SocketOne,
    /// Packets that a read has emptied are freed after the socket is unlocked, by the reader or by
    /// softirq, whichever runs first. Linux 5.17 and 5.18.
    ListAfterUnlock,
    /// Each packet is returned whole to its home core, which frees it. Linux from 5.19 on.
    PerCoreDefer,
    /// Each packet stays on the core that frees it and is reused there.
    #[default]
    UnifiedPool,
}

impl PacketRecycle {
    /// Returns the mode of packet memory for this setting. `defer_max` limits the packets that wait
    /// for their home core with `PerCoreDefer`.
    #[must_use]
    pub const fn free_mode(self, defer_max: u32) -> FreeMode {
        match self {
            Self::None | Self::SocketOne | Self::ListAfterUnlock => FreeMode::Home,
            Self::PerCoreDefer => FreeMode::Defer { max: defer_max },
            Self::UnifiedPool => FreeMode::Unified,
        }
    }
}

/// Minimum, default and maximum of a buffer, in bytes of `truesize` (Linux: the three numbers of
/// `tcp_rmem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Smallest buffer under memory pressure.
    pub min: u32,
    /// Buffer of a new socket.
    pub default: u32,
    /// Upper bound of autotuning.
    pub max: u32,
}

/// The settings that the engine reads, most of them `net.ipv4.tcp_*`. Times are durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// `tcp_rmem`: receive buffer. Until arriving packets show the real ratio of payload to memory,
    /// half of the buffer is announced as window (Linux: `tcp_adv_win_scale` of 1).
    pub tcp_rmem: BufferLimits,
    /// `tcp_wmem`: send buffer. When the connection is established, the default of 16384 grows to
    /// hold two initial windows; then the buffer grows with cwnd.
    pub tcp_wmem: BufferLimits,
    /// `net.core.rmem_max`: largest buffer that `SO_RCVBUF` may request. The window scale that we
    /// offer allows for such a buffer, too.
    pub rmem_max: u32,
    /// `net.core.wmem_max`: largest buffer that `SO_SNDBUF` may request.
    pub wmem_max: u32,
    /// `tcp_moderate_rcvbuf`: receive-window autotuning (dynamic right-sizing).
    pub tcp_moderate_rcvbuf: bool,
    /// `tcp_shrink_window`: whether a scaled window may become smaller than announced when its
    /// memory is no longer available (RFC 7323 §2.4).
    pub tcp_shrink_window: bool,
    /// `tcp_timestamps`: whether to offer and accept RFC 7323 timestamps.
    pub tcp_timestamps: bool,
    /// `tcp_window_scaling`: whether to offer and accept RFC 7323 window scaling.
    pub tcp_window_scaling: bool,
    /// `tcp_sack`: whether to offer and accept selective acknowledgments (RFC 2018).
    pub tcp_sack: bool,
    /// `tcp_dsack`: whether to report data that arrived twice (RFC 2883).
    pub tcp_dsack: bool,
    /// `tcp_frto`: other than 0 enables the detection of spurious timeouts (RFC 5682).
    pub tcp_frto: u8,
    /// `tcp_early_retrans`: 3 or 4 enables tail loss probes (RFC 8985 §7), a smaller value disables
    /// them.
    pub tcp_early_retrans: u8,
    /// `tcp_retries1`: retransmissions after which the network layer is asked for another route.
    pub tcp_retries1: u8,
    /// `tcp_retries2`: R2 of RFC 9293 §3.8.3 as a count; 15 means 924.6 s when the RTO
    /// starts at 200 ms.
    pub tcp_retries2: u8,
    /// `tcp_syn_retries`: number of SYN retransmissions with a doubled timeout before connect
    /// fails, after those of `tcp_syn_linear_timeouts`; 6 means 131 s.
    pub tcp_syn_retries: u8,
    /// `tcp_syn_linear_timeouts`: number of SYN retransmissions before the timeout begins to
    /// double. The default is 4.
    pub tcp_syn_linear_timeouts: u8,
    /// `tcp_thin_linear_timeouts`: whether the first six timeouts of a stream with few segments in
    /// flight do not double.
    pub tcp_thin_linear_timeouts: bool,
    /// `tcp_synack_retries`: number of SYN-ACK retransmissions before the request is dropped; 5
    /// means 63 s.
    pub tcp_synack_retries: u8,
    /// `tcp_orphan_retries`: number of retries (R2) after the application has closed the socket; 0
    /// means 8, or none once the RTO has reached its maximum.
    pub tcp_orphan_retries: u8,
    /// `tcp_keepalive_time`: idle time before the first probe.
    pub tcp_keepalive_time: Duration,
    /// `tcp_keepalive_intvl`: time between probes.
    pub tcp_keepalive_intvl: Duration,
    /// `tcp_keepalive_probes`: unanswered probes after which the connection is ended.
    pub tcp_keepalive_probes: u8,
    /// `net.quietline.tcp_idle_timeout`: time without new payload in either direction after which a
    /// connection is reset. Probes and their answers do not count, so the timeout also ends a
    /// connection whose peer keeps its window closed. 0 is no limit. A connection that is
    /// established while the setting is 0 has no limit until its socket sets
    /// `QUIETLINE_IDLE_TIMEOUT` or a keepalive option, or its keepalive timer expires. Any other
    /// change affects a connection when its current deadline expires.
    pub tcp_idle_timeout: Duration,
    /// `tcp_fin_timeout`: time that an orphan stays in FIN-WAIT-2.
    pub tcp_fin_timeout: Duration,
    /// `tcp_rfc1337`: whether TIME-WAIT ignores RST segments.
    pub tcp_rfc1337: bool,
    /// `tcp_mtu_probing`: 0 never searches for the path MTU, 1 only after a black hole is
    /// suspected, 2 always (RFC 4821).
    pub tcp_mtu_probing: u8,
    /// `tcp_mtu_probe_floor`: smallest segment size to which a suspected black hole reduces
    /// segments.
    pub tcp_mtu_probe_floor: u16,
    /// `tcp_probe_threshold`: width in bytes of the remaining interval below which the search for
    /// the path MTU ends.
    pub tcp_probe_threshold: u16,
    /// `tcp_probe_interval`: time after which a finished search starts again.
    pub tcp_probe_interval: Duration,
    /// `tcp_base_mss`: segment size at which path MTU probing starts and to which a suspected black
    /// hole falls back.
    pub tcp_base_mss: u16,
    /// `tcp_min_snd_mss`: size, options included, below which neither an MSS option nor an ICMP
    /// error reduces our segments. A small window may still make segments smaller.
    pub tcp_min_snd_mss: u16,
    /// `tcp_challenge_ack_limit`: approximate number of challenge ACKs per second of all
    /// connections together; INT_MAX is no limit (RFC 5961 §7).
    pub tcp_challenge_ack_limit: u32,
    /// `tcp_abort_on_overflow`: whether a handshake that completes while the accept queue is full
    /// is reset instead of ignored.
    pub tcp_abort_on_overflow: bool,
    /// `tcp_invalid_ratelimit`: shortest time between two ACKs that answer unacceptable segments
    /// (RFC 5961 §7).
    pub tcp_invalid_ratelimit: Duration,
    /// `tcp_slow_start_after_idle`: whether cwnd shrinks after an RTO without sending (RFC 2861).
    pub tcp_slow_start_after_idle: bool,
    /// `tcp_notsent_lowat`: while at least this many bytes are unsent, a write starts no new
    /// packet. The socket is writable while fewer than half as many are unsent.
    pub tcp_notsent_lowat: u32,
    /// `tcp_stdurg`: whether a peer's urgent pointer points to the urgent byte itself
    /// (RFC 1122 §4.2.2.4) instead of the byte after it.
    pub tcp_stdurg: bool,
    /// `tcp_reordering`: initial number of segments behind a hole that indicate a loss (RFC 5681:
    /// 3).
    pub tcp_reordering: u8,
    /// `tcp_max_reordering`: upper bound to which a connection that detects reordering raises the
    /// number of `tcp_reordering`. The default is 300.
    pub tcp_max_reordering: u16,
    /// `tcp_tso_win_divisor`: a partial superframe (a packet of several segments) may wait for an
    /// ACK if the free part of the windows is below the smaller window divided by this number. With
    /// 0 it never waits.
    pub tcp_tso_win_divisor: u8,
    /// `tcp_congestion_control`: algorithm of sockets that do not choose one.
    pub tcp_congestion_control: Algorithm,
    /// `net.quietline.hystart_detect`: signal that ends CUBIC's first slow start before a loss:
    /// ACKs of one flight that arrive close together for half a round trip, a growing round-trip
    /// time (RFC 9406), or either.
    pub hystart_detect: HystartDetect,
    /// `tcp_ecn`: 0 never, 1 request and accept ECN, 2 accept it when the peer requests it
    /// (RFC 3168).
    pub tcp_ecn: u8,
    /// `tcp_ecn_fallback`: whether a retransmitted SYN does not request ECN (RFC 3168 §6.1.1.1).
    pub tcp_ecn_fallback: bool,
    /// `tcp_pacing_ss_ratio`: pacing rate in slow start, in percent of the window per round trip.
    pub tcp_pacing_ss_ratio: u16,
    /// `tcp_pacing_ca_ratio`: pacing rate in congestion avoidance.
    pub tcp_pacing_ca_ratio: u16,
    /// `tcp_min_tso_segs`: number of segments of a superframe at low pacing rates.
    pub tcp_min_tso_segs: u16,
    /// `tcp_tso_rtt_log`: superframes are larger on short paths: by a bonus that halves with each
    /// 2^n µs of the minimum round-trip time, where n is this setting.
    pub tcp_tso_rtt_log: u8,
    /// Limit of a connection's bytes below TCP and of one superframe, as a time: the bytes that its
    /// pacing rate sends in 2^-n seconds, where n is this value. Linux has 1 ms (10) for most
    /// devices, and 8 ms (7) for wireless ones, which aggregate many packets (`sk_pacing_shift`).
    pub pacing_shift: u8,
    /// `tcp_limit_output_bytes`: limit of one connection's packets below TCP, in bytes of truesize;
    /// 0 is no limit.
    pub tcp_limit_output_bytes: u32,
    /// `net.quietline.tsq_limit`: how the limit follows from `tcp_limit_output_bytes` and the
    /// pacing rate.
    pub tsq_limit: TsqLimit,
    /// `net.quietline.skb_recycle`: how the memory of used packets is recycled.
    pub packet_recycle: PacketRecycle,
    /// `tcp_tx_skb_cache` (Linux 5.2 to 5.15): whether, with `skb_recycle` at `socket_one`, a
    /// connection keeps one packet for its next write. On by default, as the cache was when Linux
    /// introduced it; the setting that Linux 5.2 has is off by default.
    pub tcp_tx_packet_cache: bool,
    /// `tcp_rx_skb_cache` (Linux 5.2 to 5.15): whether, with `skb_recycle` at `socket_one`, a
    /// connection keeps one packet that was read, which softirq frees. On by default, as the cache
    /// was when Linux introduced it; the setting that Linux 5.2 has is off by default.
    pub tcp_rx_packet_cache: bool,
    /// Whether `tcp_rx_skb_cache` applies only while RPS and RFS do not move packets to another
    /// core, as when Linux introduced the cache: with RPS, the core of the next segment may not be
    /// the core that allocated this one.
    pub rx_packet_cache_rps_gate: bool,
    /// `tcp_autocorking`: whether small writes wait while packets of the connection are below TCP.
    pub tcp_autocorking: bool,
    /// `tcp_min_rtt_wlen`: time for which the minimum round-trip time stays valid.
    pub tcp_min_rtt_wlen: Duration,
    /// `tcp_rto_min_us`, as a duration: lower bound of the retransmission timeout (RFC 6298 §2.4).
    pub tcp_rto_min: Duration,
    /// `tcp_rto_max_ms`, as a duration: upper bound of the retransmission timeout.
    pub tcp_rto_max: Duration,
    /// `tcp_comp_sack_delay_ns`, as a duration: time that an ACK of out-of-order segments may wait
    /// for more of them. The default is 1 ms.
    pub tcp_comp_sack_delay: Duration,
    /// `tcp_comp_sack_nr`: number of answers to out-of-order segments that may wait for one ACK;
    /// with 0 none waits.
    pub tcp_comp_sack_nr: u8,
    /// `tcp_pingpong_thresh`: number of prompt replies of the application after which ACKs are
    /// delayed, so that a reply carries them.
    pub tcp_pingpong_thresh: u8,
    /// Fraction of BBR's data in flight, in thousandths, that may be lost before the path counts as
    /// full (LossThresh of draft-ietf-ccwg-bbr, whose value is 20). A socket keeps the value that
    /// applied when it was opened.
    pub bbr_loss_thresh: u16,
    /// Longest delay of an ACK (Linux `TCP_DELACK_MAX`); RFC 9293 §3.8.6.3 allows 500 ms.
    pub tcp_delack_max: Duration,
    /// Shortest delay of a delayed ACK (Linux `TCP_DELACK_MIN`).
    pub tcp_delack_min: Duration,
}

impl TcpConfig {
    /// Whether connections keep used packets, or leave them to be freed after the unlock.
    #[must_use]
    pub const fn keeps_packets(&self) -> bool {
        matches!(self.packet_recycle, PacketRecycle::SocketOne | PacketRecycle::ListAfterUnlock)
    }

    pub(crate) fn caches_tx(&self) -> bool {
        self.packet_recycle == PacketRecycle::SocketOne && self.tcp_tx_packet_cache
    }

    pub(crate) fn caches_rx(&self) -> bool {
        self.packet_recycle == PacketRecycle::SocketOne && self.tcp_rx_packet_cache
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            tcp_rmem: BufferLimits { min: 4096, default: 131_072, max: 6_291_456 },
            tcp_wmem: BufferLimits { min: 4096, default: 16_384, max: 4_194_304 },
            rmem_max: 212_992,
            wmem_max: 212_992,
            tcp_moderate_rcvbuf: true,
            tcp_shrink_window: false,
            tcp_timestamps: true,
            tcp_window_scaling: true,
            tcp_sack: true,
            tcp_dsack: true,
            tcp_frto: 2,
            tcp_early_retrans: 3,
            tcp_retries1: 3,
            tcp_retries2: 15,
            tcp_syn_retries: 6,
            tcp_syn_linear_timeouts: 4,
            tcp_thin_linear_timeouts: false,
            tcp_synack_retries: 5,
            tcp_orphan_retries: 0,
            tcp_keepalive_time: Duration::from_secs(7200),
            tcp_keepalive_intvl: Duration::from_secs(75),
            tcp_keepalive_probes: 9,
            tcp_idle_timeout: Duration::ZERO,
            tcp_fin_timeout: Duration::from_secs(60),
            tcp_rfc1337: false,
            tcp_mtu_probing: 0,
            tcp_mtu_probe_floor: 48,
            tcp_probe_threshold: 8,
            tcp_probe_interval: Duration::from_secs(600),
            tcp_base_mss: 1024,
            tcp_min_snd_mss: 48,
            tcp_challenge_ack_limit: crate::base::challenge::UNLIMITED,
            tcp_abort_on_overflow: false,
            tcp_invalid_ratelimit: Duration::from_millis(500),
            tcp_slow_start_after_idle: true,
            tcp_notsent_lowat: u32::MAX,
            tcp_stdurg: false,
            tcp_reordering: 3,
            tcp_max_reordering: 300,
            tcp_tso_win_divisor: 3,
            tcp_congestion_control: Algorithm::Cubic,
            hystart_detect: HystartDetect::Both,
            tcp_ecn: 2,
            tcp_ecn_fallback: true,
            tcp_pacing_ss_ratio: 200,
            tcp_pacing_ca_ratio: 120,
            tcp_min_tso_segs: 2,
            tcp_tso_rtt_log: 9,
            pacing_shift: 10,
            tcp_limit_output_bytes: TsqLimit::V619.default_limit_bytes(),
            tsq_limit: TsqLimit::V619,
            packet_recycle: PacketRecycle::UnifiedPool,
            tcp_tx_packet_cache: true,
            tcp_rx_packet_cache: true,
            rx_packet_cache_rps_gate: true,
            tcp_autocorking: true,
            tcp_min_rtt_wlen: Duration::from_secs(300),
            tcp_rto_min: Duration::from_millis(200),
            tcp_rto_max: Duration::from_secs(120),
            tcp_comp_sack_delay: Duration::from_millis(1),
            tcp_comp_sack_nr: 44,
            tcp_pingpong_thresh: 1,
            bbr_loss_thresh: 100,
            tcp_delack_max: Duration::from_millis(200),
            tcp_delack_min: Duration::from_millis(40),
        }
    }
}

/// Keepalive times of one socket: `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`. Zero means the
/// current value of the sysctl, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub time: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is ended.
    pub probes: u8,
}

impl Keepalive {
    /// Returns the effective times: values that the socket has not set are taken from the sysctls.
    #[must_use]
    pub const fn or_config(self, config: &TcpConfig) -> Self {
        Self {
            time: if self.time.is_zero() { config.tcp_keepalive_time } else { self.time },
            interval: if self.interval.is_zero() {
                config.tcp_keepalive_intvl
            } else {
                self.interval
            },
            probes: if self.probes == 0 { config.tcp_keepalive_probes } else { self.probes },
        }
    }
}

/// Options that a socket may set before it has a connection. A connection inherits the options of
/// its listener, as in Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`: whether Nagle's algorithm is off.
    pub nodelay: bool,
    /// `TCP_CORK`: whether partial segments are held back.
    pub cork: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`.
    pub keepalive_times: Keepalive,
    /// `QUIETLINE_IDLE_TIMEOUT`, in whole seconds; zero is no limit, and `None` means
    /// `tcp_idle_timeout`.
    pub idle_timeout: Option<Duration>,
    /// `TCP_QUICKACK` switched off: whether ACKs wait for outgoing data from the start.
    pub pingpong: bool,
    /// `SO_LINGER`; zero makes close send a reset.
    pub linger: Option<Duration>,
    /// `SO_RCVBUF`, already doubled and bounded by the socket layer; it disables autotuning.
    pub rcvbuf: Option<u32>,
    /// `SO_RCVLOWAT`: number of bytes that make the socket readable; `None` is 1.
    pub rcvlowat: Option<u32>,
    /// `TCP_WINDOW_CLAMP`: largest window to announce, in bytes; it also bounds the window scale
    /// that we offer.
    pub window_clamp: Option<u32>,
    /// `SO_OOBINLINE`: whether urgent data is read with the stream.
    pub oob_inline: bool,
    /// `TCP_NOTSENT_LOWAT`; `None` means `tcp_notsent_lowat`.
    pub notsent_lowat: Option<u32>,
    /// `SO_SNDBUF`, already doubled and bounded by the socket layer; it disables autotuning.
    pub sndbuf: Option<u32>,
    /// `TCP_DEFER_ACCEPT` of a listener: time that a handshake waits for data before `accept`
    /// returns it.
    pub defer_accept: Option<Duration>,
    /// `TCP_LINGER2`: time that an orphan stays in FIN-WAIT-2, at most two minutes, but at least
    /// 3.5 RTO. Zero closes it at once by a reset, as a negative number does in Linux; `None` means
    /// `tcp_fin_timeout`.
    pub linger2: Option<Duration>,
    /// `TCP_USER_TIMEOUT` (RFC 5482): time that sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
    /// `TCP_MAXSEG`: upper bound of the MSS that we announce and use.
    pub maxseg: Option<u16>,
    /// `TCP_SYNCNT`: number of SYN retransmissions, instead of `tcp_syn_retries`.
    pub syn_retries: Option<u8>,
    /// `TCP_THIN_LINEAR_TIMEOUTS`: whether a thin stream's first timeouts do not double.
    pub thin_linear_timeouts: bool,
    /// `TCP_RTO_MAX_MS`: upper bound of the retransmission timeout, instead of `tcp_rto_max_ms`.
    pub rto_max: Option<Duration>,
    /// `TCP_CONGESTION`; `None` means `tcp_congestion_control`.
    pub congestion: Option<Algorithm>,
    /// `IP_RECVERR`: whether an ICMP error of an open connection is reported at once.
    pub receive_error: bool,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub max_pacing_rate: Option<u64>,
}

impl SocketOptions {
    /// Returns the algorithm of a socket with these options. A route that names one takes
    /// precedence (Linux: tcp_ca_dst_init).
    pub(crate) fn congestion(&self, config: &TcpConfig, metrics: &PathMetrics) -> Algorithm {
        metrics.congctl.or(self.congestion).unwrap_or(config.tcp_congestion_control)
    }
}

/// Metrics of a route that concern TCP (`ip route add ... advmss N`). 0, false and `None`: not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathMetrics {
    /// `window`: largest receive window that is announced, in bytes.
    pub window: u32,
    /// `rtt`: expected round-trip time in milliseconds. A smaller measurement of the handshake does
    /// not lower the first retransmission timeout below the one that this time gives.
    pub rtt_ms: u32,
    /// `advmss`: largest MSS that is announced.
    pub advmss: u16,
    /// `initcwnd`: initial congestion window in segments, instead of 10.
    pub initcwnd: u16,
    /// `initrwnd`: largest window of the SYN or SYN-ACK, in segments.
    pub initrwnd: u16,
    /// `quickack`: no ACK is delayed.
    pub quickack: bool,
    /// `congctl`: congestion control of new connections, whatever their sockets ask for.
    pub congctl: Option<Algorithm>,
}

impl fmt::Display for PathMetrics {
    /// Prints the metrics that are set, each with a space in front, as `ip route` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { window, rtt_ms, advmss, initcwnd, initrwnd, quickack, congctl } = *self;
        let numbers = [
            ("window", window, ""),
            ("rtt", rtt_ms, "ms"),
            ("advmss", advmss.into(), ""),
            ("initcwnd", initcwnd.into(), ""),
            ("initrwnd", initrwnd.into(), ""),
            ("quickack", quickack.into(), ""),
        ];
        for (name, value, unit) in numbers {
            if value != 0 {
                write!(f, " {name} {value}{unit}")?;
            }
        }
        congctl.map_or(Ok(()), |algorithm| write!(f, " congctl {}", algorithm.name()))
    }
}

/// Properties of the route to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathParams {
    /// Largest IP packet that the path accepts, in bytes.
    pub mtu: u32,
    /// Largest IP packet that the peer may send to us: the MTU of the interface or the route. ICMP
    /// errors do not lower it, because they describe the path in the other direction. The MSS
    /// option follows it.
    pub receive_mtu: u32,
    /// Largest IP packet that the device segments by itself (`gso_max_size`); 0 without TSO.
    pub gso_bytes_max: u32,
    /// Flow hash of the connection, put into every packet's metadata.
    pub flow_hash: u32,
    /// Whether the device does not complete checksums, so that payload is summed while it is copied
    /// into packets.
    pub sums_payload: bool,
    /// Metrics of the route.
    pub metrics: PathMetrics,
}
