//! Settings of TCP, by their Linux names.
//!
//! Above: `stack::sysctl` parses and validates text into these fields. Linux:
//! Documentation/networking/ip-sysctl.rst.
//!
//! One `TcpConfig` belongs to a stack (Linux: a network namespace) and is only read by the engine.
//! A value that a socket may override (keepalive times, buffer sizes) is copied into the
//! [`Tcb`](crate::Tcb) when it is made, so that a later change concerns new connections, as in
//! Linux.
//!
//! Not here: ranges and error texts (`stack::sysctl`), per-socket options of a connection
//! (`socket::sockopt`).

use core::time::Duration;

use pkt::FreeMode;

use crate::{
    congestion::{Algorithm, HystartDetect},
    cx::host_queue::TsqLimit,
};

/// What becomes of packets that have served (`net.quietline.skb_recycle`): as the versions of Linux did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRecycle {
    /// Each goes home from where it died, alone. Linux before 5.2.
    None,
    /// A connection keeps one for its next write and one for softirq to free. Linux 5.2 to 5.15.
    SocketOne,
    /// What a read has emptied is freed after the socket was let go, by the reader or by softirq, whoever comes first.
    /// Linux 5.16 to 5.18.
    ListAfterUnlock,
    /// Each goes home whole and dies there. Linux from 5.19 on.
    PerCoreDefer,
    /// Each stays where it dies, for the next one that is needed there.
    #[default]
    UnifiedPool,
}

impl PacketRecycle {
    /// What this asks of packet memory, with `defer_max` packets that may wait for their home.
    #[must_use]
    pub const fn free_mode(self, defer_max: u32) -> FreeMode {
        match self {
            Self::None | Self::SocketOne | Self::ListAfterUnlock => FreeMode::Home,
            Self::PerCoreDefer => FreeMode::Defer { max: defer_max },
            Self::UnifiedPool => FreeMode::Unified,
        }
    }
}

/// Minimum, default and maximum of a buffer, in bytes of `truesize` (Linux: the three numbers of `tcp_rmem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Smallest buffer under memory pressure.
    pub min: u32,
    /// What a new socket gets.
    pub default: u32,
    /// How far autotuning may go.
    pub max: u32,
}

/// The `net.ipv4.tcp_*` settings the engine reads. Times are durations, limits are counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// `tcp_rmem`: receive buffer. 131072 by default, of which half is window (`tcp_adv_win_scale`).
    pub tcp_rmem: BufferLimits,
    /// `tcp_wmem`: send buffer. 16384 is raised at once to hold two initial windows, then follows cwnd.
    pub tcp_wmem: BufferLimits,
    /// `net.core.rmem_max`: largest buffer `SO_RCVBUF` may ask for; it also bounds the window scale we offer.
    pub rmem_max: u32,
    /// `net.core.wmem_max`: largest buffer `SO_SNDBUF` may ask for.
    pub wmem_max: u32,
    /// `tcp_moderate_rcvbuf`: receive-window autotuning (dynamic right-sizing).
    pub tcp_moderate_rcvbuf: bool,
    /// `tcp_shrink_window`: a scaled window may become smaller than what was announced, when the memory for it has gone (RFC 7323
    /// §2.4).
    pub tcp_shrink_window: bool,
    /// `tcp_timestamps`: offer and accept RFC 7323 timestamps.
    pub tcp_timestamps: bool,
    /// `tcp_window_scaling`: offer and accept RFC 7323 window scaling.
    pub tcp_window_scaling: bool,
    /// `tcp_sack`: offer and accept selective acknowledgments (RFC 2018).
    pub tcp_sack: bool,
    /// `tcp_dsack`: report data that arrived twice (RFC 2883).
    pub tcp_dsack: bool,
    /// `tcp_frto`: other than 0 finds out whether a timeout was needless (RFC 5682).
    pub tcp_frto: u8,
    /// `tcp_early_retrans`: 3 sends tail loss probes (RFC 8985 §7), 0 does not.
    pub tcp_early_retrans: u8,
    /// `tcp_retries1`: retransmissions after which the network layer is asked to look for another route.
    pub tcp_retries1: u8,
    /// `tcp_retries2`: R2 of RFC 9293 §3.8.3 as a count; 15 means 924.6 s when RTO starts at 200 ms.
    pub tcp_retries2: u8,
    /// `tcp_syn_retries`: how often a SYN is repeated, after `tcp_syn_linear_timeouts`, before connect fails; 6 means 131 s.
    pub tcp_syn_retries: u8,
    /// `tcp_syn_linear_timeouts`: repetitions of a SYN whose wait does not double, 4.
    pub tcp_syn_linear_timeouts: u8,
    /// `tcp_thin_linear_timeouts`: the first six timeouts of a stream with few segments in flight do not double.
    pub tcp_thin_linear_timeouts: bool,
    /// `tcp_synack_retries`: how often a SYN-ACK is repeated before the request is forgotten; 5 means 63 s.
    pub tcp_synack_retries: u8,
    /// `tcp_orphan_retries`: R2 once no application holds the socket; 0 means 8 while the peer may be alive.
    pub tcp_orphan_retries: u8,
    /// `tcp_keepalive_time`: idle time before the first probe.
    pub tcp_keepalive_time: Duration,
    /// `tcp_keepalive_intvl`: time between probes.
    pub tcp_keepalive_intvl: Duration,
    /// `tcp_keepalive_probes`: unanswered probes after which the connection is dead.
    pub tcp_keepalive_probes: u8,
    /// `net.quietline.tcp_idle_timeout`: a connection on which no new payload arrived and none was acknowledged for this long is
    /// reset. Probes and their answers do not count, so that it also ends a peer that keeps its window closed. 0 is no limit. A
    /// connection that is established while it is 0 has none until its socket sets `QUIETLINE_IDLE_TIMEOUT`; another change holds
    /// for a connection from the end of its present deadline on.
    pub tcp_idle_timeout: Duration,
    /// `tcp_fin_timeout`: how long an orphan stays in FIN-WAIT-2.
    pub tcp_fin_timeout: Duration,
    /// `tcp_rfc1337`: a TIME-WAIT ignores RST segments.
    pub tcp_rfc1337: bool,
    /// `tcp_mtu_probing`: 0 searches for no path MTU, 1 only after a black hole is suspected, 2 always (RFC 4821).
    pub tcp_mtu_probing: u8,
    /// `tcp_mtu_probe_floor`: no suspicion of a black hole makes segments smaller than this.
    pub tcp_mtu_probe_floor: u16,
    /// `tcp_probe_threshold`: a search ends when it knows the path MTU to within this many bytes.
    pub tcp_probe_threshold: u16,
    /// `tcp_probe_interval`: time after which a finished search begins again.
    pub tcp_probe_interval: Duration,
    /// `tcp_base_mss`: where path MTU probing starts and where a suspected black hole is retried.
    pub tcp_base_mss: u16,
    /// `tcp_min_snd_mss`: no MSS option and no ICMP pushes our segments below this, options included; a small window may.
    pub tcp_min_snd_mss: u16,
    /// `tcp_challenge_ack_limit`: challenge ACKs of all connections together in a second, about; INT_MAX is no limit
    /// (RFC 5961 §7).
    pub tcp_challenge_ack_limit: u32,
    /// `tcp_abort_on_overflow`: a handshake that finds the accept queue full is reset instead of being ignored.
    pub tcp_abort_on_overflow: bool,
    /// `tcp_invalid_ratelimit`: shortest time between two ACKs that answer unacceptable segments (RFC 5961 §7).
    pub tcp_invalid_ratelimit: Duration,
    /// `tcp_slow_start_after_idle`: shrink cwnd after an RTO without sending (RFC 2861).
    pub tcp_slow_start_after_idle: bool,
    /// `tcp_notsent_lowat`: a socket is writable only while it holds fewer unsent bytes than this.
    pub tcp_notsent_lowat: u32,
    /// `tcp_stdurg`: a peer's urgent pointer names the urgent byte itself (RFC 1122 §4.2.2.4) instead of the one behind it.
    pub tcp_stdurg: bool,
    /// `tcp_reordering`: segments behind a hole that mean a loss (RFC 5681: 3), until a connection knows better.
    pub tcp_reordering: u8,
    /// `tcp_max_reordering`: how far a connection that sees reordering may raise that for itself. 300.
    pub tcp_max_reordering: u16,
    /// `tcp_tso_win_divisor`: a superframe waits for an ACK until it may fill this part of the window; 0 never waits.
    pub tcp_tso_win_divisor: u8,
    /// `tcp_congestion_control`: the algorithm of sockets that choose none.
    pub tcp_congestion_control: Algorithm,
    /// `net.quietline.hystart_detect`: what ends CUBIC's first slow start before a loss does: acknowledgments of one flight that come
    /// close together for half a round trip, a round trip that grows (RFC 9406), or whichever comes first.
    pub hystart_detect: HystartDetect,
    /// `tcp_ecn`: 0 never, 1 ask for it and take it, 2 take it when the peer asks (RFC 3168).
    pub tcp_ecn: u8,
    /// `tcp_ecn_fallback`: a SYN that is sent again does not ask for ECN (RFC 3168 §6.1.1.1).
    pub tcp_ecn_fallback: bool,
    /// `tcp_pacing_ss_ratio`: the pace in slow start, in percent of the window per round trip.
    pub tcp_pacing_ss_ratio: u16,
    /// `tcp_pacing_ca_ratio`: the pace in congestion avoidance.
    pub tcp_pacing_ca_ratio: u16,
    /// `tcp_min_tso_segs`: segments of a superframe at the slowest pace.
    pub tcp_min_tso_segs: u16,
    /// `tcp_tso_rtt_log`: superframes are larger on paths whose round trip is below 2^this µs.
    pub tcp_tso_rtt_log: u8,
    /// How much of its pace a connection has below it, and in one packet: what leaves in 2^-this seconds. Linux has a millisecond (10)
    /// for most devices, and 8 ms (7) for wireless ones, which send many packets together (`sk_pacing_shift`).
    pub pacing_shift: u8,
    /// `tcp_limit_output_bytes`: what may wait of one connection below TCP, in bytes of truesize; 0 is no limit.
    pub tcp_limit_output_bytes: u32,
    /// `net.quietline.tsq_limit`: how `tcp_limit_output_bytes` follows the pace.
    pub tsq_limit: TsqLimit,
    /// What becomes of packets that have served: each goes home alone from where it died; a connection keeps one for its next write
    /// and one for softirq to free; they are freed after the socket was let go; each goes home whole; each stays where it died.
    pub packet_recycle: PacketRecycle,
    /// `tcp_tx_skb_cache` (Linux 5.2 to 5.15): with `skb_recycle` at `socket_one` a connection keeps one packet for its next write. On,
    /// as in the first version; Linux 5.2 has it off.
    pub tcp_tx_packet_cache: bool,
    /// `tcp_rx_skb_cache` (Linux 5.2 to 5.15): with `skb_recycle` at `socket_one` a connection keeps one packet that was read, for
    /// softirq to free. On, as in the first version; Linux 5.2 has it off.
    pub tcp_rx_packet_cache: bool,
    /// `tcp_rx_skb_cache` only while packets do not change core (RPS, RFS), as in the first version: the core of the next segment
    /// need not be the one that allocated this one.
    pub rx_packet_cache_rps_gate: bool,
    /// `tcp_autocorking`: small writes wait while packets of the connection are below.
    pub tcp_autocorking: bool,
    /// `tcp_min_rtt_wlen`: how long the smallest round trip stays believed.
    pub tcp_min_rtt_wlen: Duration,
    /// `tcp_rto_min_us`, as a duration: lower bound of the retransmission timeout (RFC 6298 §2.4).
    pub tcp_rto_min: Duration,
    /// `tcp_rto_max_ms`, as a duration: upper bound of the retransmission timeout.
    pub tcp_rto_max: Duration,
    /// `tcp_comp_sack_delay_ns`, as a duration: how long an ACK of segments out of order may wait for more of them. 1 ms.
    pub tcp_comp_sack_delay: Duration,
    /// `tcp_comp_sack_nr`: segments out of order that one ACK may answer; 0 answers each.
    pub tcp_comp_sack_nr: u8,
    /// `tcp_pingpong_thresh`: answers sent soon after what they answer, from which on they are trusted to carry ACKs.
    pub tcp_pingpong_thresh: u8,
    /// Part of what BBR has in flight, in thousandths, that a path may lose without being taken for full (LossThresh of
    /// draft-ietf-ccwg-bbr, which says 20); a socket keeps what it was when it was opened.
    pub bbr_loss_thresh: u16,
    /// Longest time an ACK may wait (Linux `TCP_DELACK_MAX`); RFC 9293 §3.8.6.3 allows 500 ms.
    pub tcp_delack_max: Duration,
    /// Shortest delayed-ACK time (Linux `TCP_DELACK_MIN`).
    pub tcp_delack_min: Duration,
}

impl TcpConfig {
    /// Connections may keep packets that have served, or leave them behind for whoever comes next.
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

/// Keepalive times of one socket: `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`. Zero is whatever the sysctl says at the
/// time, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub time: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is dead.
    pub probes: u8,
}

impl Keepalive {
    /// What is in force: what the socket left open is filled in from the sysctls.
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

/// What a socket may set before it has a connection; a listener hands its own to every child, as in Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`: no Nagle.
    pub nodelay: bool,
    /// `TCP_CORK`: hold back what is not a full segment.
    pub cork: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`.
    pub keepalive_times: Keepalive,
    /// `QUIETLINE_IDLE_TIMEOUT`, in whole seconds; zero is none, and `None` leaves it to `tcp_idle_timeout`.
    pub idle_timeout: Option<Duration>,
    /// `TCP_QUICKACK` switched off: answers carry the ACKs from the beginning.
    pub pingpong: bool,
    /// `SO_LINGER`; zero means that close resets.
    pub linger: Option<Duration>,
    /// `SO_RCVBUF`, already doubled and bounded by the socket layer; it ends autotuning.
    pub rcvbuf: Option<u32>,
    /// `SO_RCVLOWAT`: bytes that make the socket readable; `None` is 1.
    pub rcvlowat: Option<u32>,
    /// `TCP_WINDOW_CLAMP`: largest window to announce, in bytes; it also bounds the window scale we offer.
    pub window_clamp: Option<u32>,
    /// `SO_OOBINLINE`: urgent data is read with the stream.
    pub oob_inline: bool,
    /// `TCP_NOTSENT_LOWAT`; `None` leaves it to `tcp_notsent_lowat`.
    pub notsent_lowat: Option<u32>,
    /// `SO_SNDBUF`, already doubled and bounded by the socket layer; it ends autotuning.
    pub sndbuf: Option<u32>,
    /// `TCP_DEFER_ACCEPT` of a listener: how long a handshake waits for data before `accept` sees it.
    pub defer_accept: Option<Duration>,
    /// `TCP_LINGER2`: how long an orphan stays in FIN-WAIT-2, at most two minutes. Zero closes it at once by a reset,
    /// where Linux takes a negative number; `None` is `tcp_fin_timeout`.
    pub linger2: Option<Duration>,
    /// `TCP_USER_TIMEOUT` (RFC 5482): how long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
    /// `TCP_MAXSEG`: the MSS we announce and use at most.
    pub maxseg: Option<u16>,
    /// `TCP_SYNCNT`: how often the SYN is repeated, instead of `tcp_syn_retries`.
    pub syn_retries: Option<u8>,
    /// `TCP_THIN_LINEAR_TIMEOUTS`: a thin stream's first timeouts do not double.
    pub thin_linear_timeouts: bool,
    /// `TCP_RTO_MAX_MS`: the longest retransmission timeout, instead of `tcp_rto_max_ms`.
    pub rto_max: Option<Duration>,
    /// `TCP_CONGESTION`; `None` is what `tcp_congestion_control` says.
    pub congestion: Option<Algorithm>,
    /// `IP_RECVERR`: what ICMP reports about an open connection is an error at once.
    pub receive_error: bool,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub max_pacing_rate: Option<u64>,
}

impl SocketOptions {
    /// The algorithm of a socket with these options.
    pub(crate) fn congestion(&self, config: &TcpConfig) -> Algorithm {
        self.congestion.unwrap_or(config.tcp_congestion_control)
    }
}

/// What the route to the peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathParams {
    /// Largest IP packet of the path.
    pub mtu: u32,
    /// Largest IP packet that the peer may send here: the interface's or the route's MTU, without what ICMP has reported
    /// of the path to the peer. The MSS option follows it.
    pub receive_mtu: u32,
    /// Largest IP packet the device cuts into segments by itself (`gso_max_size`); 0 without TSO.
    pub gso_bytes_max: u32,
    /// Flow hash of the connection, put into every packet's metadata.
    pub flow_hash: u32,
    /// The device does not complete checksums: what is copied into packets is summed on the way.
    pub sums_payload: bool,
}
