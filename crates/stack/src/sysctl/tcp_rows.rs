//! Settings of TCP and of neighbor resolution: rows whose values are fields of `TcpConfig` and
//! `NeighborConfig`.
//!
//! A row is a documentation comment, the name, the field, the codec with its bounds, and the tier.
//! The comment is the text of docs/sysctl.md and of `quietline sysctl`: complete sentences with the
//! unit, the effect and the reason to change the value.
//!
//! Not here: defaults (`tcp::TcpConfig`, `modes::NeighborConfig`), settings of the host itself
//! (`host_rows`).

use super::{
    Entry, INT_MAX, Tier, WORDS,
    codec::{
        Codec, CongestionControl, HystartDetects, Limits, Micros, Millis, Nanos, Number,
        PacketRecycles, Seconds, Switch, TsqLimitWord,
    },
    entry,
};

/// Expands the rows below into [`PART_TABLE`].
macro_rules! part_rows {
    ($(
        $(#[doc = $doc:literal])*
        $name:literal, $part:ident.$place:ident, $codec:ident $allowed:expr, $tier:ident;
    )*) => {
        pub(super) const PART_TABLE: &[Entry] =
            &[$(entry!(concat!($($doc),*), $name, $tier, $codec $allowed, $part.$place),)*];
    };
}

part_rows! {
    /// Largest receive buffer that `SO_RCVBUF` may ask for, in bytes; the offered window scale
    /// suffices for this buffer. Raise it if applications set their buffers for paths with a large
    /// product of bandwidth and delay.
    "net.core.rmem_max", tcp.rmem_max, Number 2304..=INT_MAX, Operate;
    /// Largest send buffer that `SO_SNDBUF` may ask for, in bytes. Raise it if applications set
    /// their buffers for paths with a large product of bandwidth and delay.
    "net.core.wmem_max", tcp.wmem_max, Number 4608..=INT_MAX, Operate;
    /// Receive buffer of a connection, in bytes of packet memory: the minimum under memory
    /// pressure, the initial size, and the limit of autotuning. The announced window is half of
    /// the buffer at first, later the share that payload has in the memory of arriving packets. Set
    /// the last number to four times the product of bandwidth and delay of the longest path.
    "net.ipv4.tcp_rmem", tcp.tcp_rmem, Limits 1..=INT_MAX, Operate;
    /// Send buffer of a connection, in bytes of packet memory: the minimum under memory pressure,
    /// the initial size, and the limit of autotuning. The initial size is raised at once so that it
    /// holds two initial windows, and then follows the congestion window. Set the last number to
    /// three times the product of bandwidth and delay of the longest path.
    "net.ipv4.tcp_wmem", tcp.tcp_wmem, Limits 1..=INT_MAX, Operate;
    /// Autotuning of the receive buffer: the window grows with the rate at which the application
    /// reads, up to the last number of `tcp_rmem`. Set 0 to keep every connection at the initial
    /// size.
    "net.ipv4.tcp_moderate_rcvbuf", tcp.tcp_moderate_rcvbuf, Switch 0..=1, Operate;
    /// Allows a scaled window to become smaller than announced when memory is short
    /// (RFC 7323 §2.4). Set it on hosts that run close to `tcp_mem`: segments beyond the smaller
    /// window are dropped instead of buffered.
    "net.ipv4.tcp_shrink_window", tcp.tcp_shrink_window, Switch 0..=1, Tune;
    /// Offers and accepts timestamps (RFC 7323). They give a round-trip time for each ACK and
    /// protect fast connections against wrapped sequence numbers. Set 0 only for peers or
    /// middleboxes that fail with them.
    "net.ipv4.tcp_timestamps", tcp.tcp_timestamps, Switch 0..=1, Operate;
    /// Offers and accepts window scaling (RFC 7323). Without it a window is at most 65,535 bytes.
    /// Set 0 only for peers or middleboxes that fail with it.
    "net.ipv4.tcp_window_scaling", tcp.tcp_window_scaling, Switch 0..=1, Operate;
    /// Offers and accepts selective acknowledgments (RFC 2018). Without them a window with several
    /// losses takes several round trips to repair. Set 0 only for peers or middleboxes that fail
    /// with them.
    "net.ipv4.tcp_sack", tcp.tcp_sack, Switch 0..=1, Operate;
    /// Reports data that arrived twice in the first SACK block (RFC 2883). The sender uses the
    /// report to undo needless reductions of its window. Set 0 only for peers that fail with it.
    "net.ipv4.tcp_dsack", tcp.tcp_dsack, Switch 0..=1, Tune;
    /// Detects spurious retransmission timeouts by the next ACKs (F-RTO, RFC 5682). 0: off. 1 and
    /// 2: on, for connections with SACK. Set 0 to see every timeout repaired by go-back-N.
    "net.ipv4.tcp_frto", tcp.tcp_frto, Number 0..=2, Tune;
    /// Tail loss probes (RFC 8985 §7). 3 and 4: on, for connections with SACK. 0 to 2: off. A probe
    /// repairs the loss of the last segment of a flight within some two round trips instead of a
    /// timeout. Set 0 if the probes disturb a measurement.
    "net.ipv4.tcp_early_retrans", tcp.tcp_early_retrans, Number 0..=4, Tune;
    /// Time without progress, given as in `tcp_retries2`, after which TCP asks for another route,
    /// and suspects a black hole if `tcp_mtu_probing` is on (R1 of RFC 9293 §3.8.3). Lower it on
    /// hosts with alternative gateways.
    "net.ipv4.tcp_retries1", tcp.tcp_retries1, Number 0..=255, Tune;
    /// Search for the path MTU by probe segments (RFC 4821). 0: off. 1: after a suspected black
    /// hole. 2: always. Set 1 where routers of the path filter ICMP.
    "net.ipv4.tcp_mtu_probing", tcp.tcp_mtu_probing, Number 0..=2, Operate;
    /// Lower bound of the segment size after a suspected black hole, in bytes. Raise it if no path
    /// is that narrow, so that connections do not keep tiny segments after a long outage.
    "net.ipv4.tcp_mtu_probe_floor", tcp.tcp_mtu_probe_floor, Number 48..=65_535, Tune;
    /// Accuracy of the path MTU search, in bytes: it ends when the bounds are closer than this.
    /// Lower it to use the last bytes of a path, at the price of more probes.
    "net.ipv4.tcp_probe_threshold", tcp.tcp_probe_threshold, Number 0..=65_535, Tune;
    /// Time after which a finished path MTU search starts again, in seconds. Lower it where paths
    /// change often.
    "net.ipv4.tcp_probe_interval", tcp.tcp_probe_interval, Seconds 0..=INT_MAX, Tune;
    /// Number of SYN retransmissions, one second apart, before the timeout starts to double. Raise
    /// it where SYNs are often lost and connections must open soon.
    "net.ipv4.tcp_syn_linear_timeouts", tcp.tcp_syn_linear_timeouts, Number 0..=127, Tune;
    /// Keeps the retransmission timeout of a thin stream, which has few segments in flight, from
    /// doubling for its first six timeouts. Set it for interactive traffic on lossy paths;
    /// `TCP_THIN_LINEAR_TIMEOUTS` sets it for one socket.
    "net.ipv4.tcp_thin_linear_timeouts", tcp.tcp_thin_linear_timeouts, Switch 0..=1, Tune;
    /// Time without progress after which a connection fails (R2 of RFC 9293 §3.8.3), given as a
    /// number of timeouts that double from `tcp_rto_min_us` to `tcp_rto_max_ms`: 15 is 924.6 s.
    /// While the peer's window is closed, it is the number of unanswered probes. Lower it to notice
    /// dead peers sooner; `TCP_USER_TIMEOUT` sets a time for one socket.
    "net.ipv4.tcp_retries2", tcp.tcp_retries2, Number 0..=255, Operate;
    /// Number of SYN retransmissions with doubling timeouts before a connect fails; those of
    /// `tcp_syn_linear_timeouts` come first. 6 is 131 s. Lower it to fail sooner; `TCP_SYNCNT` sets
    /// it for one socket.
    "net.ipv4.tcp_syn_retries", tcp.tcp_syn_retries, Number 1..=127, Operate;
    /// Number of SYN-ACK retransmissions before a half-open connection is removed. 5 is 63 s. Lower
    /// it to clear the queue of half-open connections sooner under a flood.
    "net.ipv4.tcp_synack_retries", tcp.tcp_synack_retries, Number 0..=255, Operate;
    /// Time without progress, given as in `tcp_retries2`, after which a connection without an
    /// application fails. 0 means 8 until the timeout has reached its upper bound. Lower it on
    /// servers where orphans hold too much memory.
    "net.ipv4.tcp_orphan_retries", tcp.tcp_orphan_retries, Number 0..=255, Operate;
    /// Idle time after which a connection with `SO_KEEPALIVE` sends its first probe, in seconds.
    /// Lower it below the time after which a NAT or firewall of the path forgets idle connections;
    /// `TCP_KEEPIDLE` sets it for one socket.
    "net.ipv4.tcp_keepalive_time", tcp.tcp_keepalive_time, Seconds 1..=32_767, Operate;
    /// Time between two keepalive probes, in seconds. Lower it, and `tcp_keepalive_probes`, to
    /// notice dead peers sooner; `TCP_KEEPINTVL` sets it for one socket.
    "net.ipv4.tcp_keepalive_intvl", tcp.tcp_keepalive_intvl, Seconds 1..=32_767, Operate;
    /// Number of unanswered keepalive probes after which a connection fails. Lower it to notice
    /// dead peers sooner; `TCP_KEEPCNT` sets it for one socket.
    "net.ipv4.tcp_keepalive_probes", tcp.tcp_keepalive_probes, Number 1..=127, Operate;
    /// Time that a connection without an application stays in FIN-WAIT-2, in seconds. Lower it on
    /// servers whose clients do not close; `TCP_LINGER2` sets it for one socket.
    "net.ipv4.tcp_fin_timeout", tcp.tcp_fin_timeout, Seconds 0..=120, Operate;
    /// Ignores RST segments in TIME-WAIT (RFC 1337). Set it so that a late RST cannot end the state
    /// early.
    "net.ipv4.tcp_rfc1337", tcp.tcp_rfc1337, Switch 0..=1, Tune;
    /// Segment size at which the path MTU search starts, and to which a suspected black hole
    /// reduces it, in bytes. Set it to the size that all paths carry for certain.
    "net.ipv4.tcp_base_mss", tcp.tcp_base_mss, Number 48..=65_535, Tune;
    /// Smallest segment size that an MSS option or an ICMP report may set, in bytes with the
    /// options. Raise it against peers that ask for tiny segments to burn CPU time
    /// (CVE-2019-11479).
    "net.ipv4.tcp_min_snd_mss", tcp.tcp_min_snd_mss, Number 48..=65_535, Tune;
    /// Number of challenge ACKs that all connections together may send per second, on average
    /// (RFC 5961 §7). 2147483647 is no limit: `tcp_invalid_ratelimit` bounds each connection by
    /// itself, and a shared limit is a side channel (CVE-2016-5696). Lower it only if challenge
    /// ACKs load the network.
    "net.ipv4.tcp_challenge_ack_limit", tcp.tcp_challenge_ack_limit, Number 0..=INT_MAX, Tune;
    /// Resets a handshake that finds the accept queue full, instead of ignoring its last ACK. Set
    /// it if clients should fail at once rather than retry.
    "net.ipv4.tcp_abort_on_overflow", tcp.tcp_abort_on_overflow, Switch 0..=1, Operate;
    /// Shortest time between two ACKs that answer unacceptable segments of one connection, in
    /// milliseconds (RFC 5961 §7). Raise it if such answers load the network. 0: no limit.
    "net.ipv4.tcp_invalid_ratelimit", tcp.tcp_invalid_ratelimit, Millis 0..=INT_MAX, Tune;
    /// Reduces the congestion window of a connection that was idle for a retransmission timeout
    /// (RFC 2861). Set 0 for request and response traffic on networks without congestion.
    "net.ipv4.tcp_slow_start_after_idle", tcp.tcp_slow_start_after_idle, Switch 0..=1, Operate;
    /// While at least this many bytes are unsent, a write starts no new packet; a socket is
    /// writable while fewer than half as many are unsent. Lower it, for example to 131072, so that
    /// applications decide late what to send and buffers stay small; `TCP_NOTSENT_LOWAT` sets it
    /// for one socket.
    "net.ipv4.tcp_notsent_lowat", tcp.tcp_notsent_lowat, Number 0..=0xffff_ffff, Operate;
    /// Interprets a peer's urgent pointer as the last urgent byte (RFC 1122 §4.2.2.4) instead of
    /// the byte after it (RFC 6093). Set it only for peers that follow RFC 1122.
    "net.ipv4.tcp_stdurg", tcp.tcp_stdurg, Switch 0..=1, Tune;
    /// Initial number of later segments whose arrival marks a segment as lost (DupThresh of
    /// RFC 5681). A connection that sees reordering raises it for itself. Raise it on networks that
    /// spread one flow over several paths.
    "net.ipv4.tcp_reordering", tcp.tcp_reordering, Number 1..=127, Tune;
    /// Upper bound of the reordering that a connection adapts to, in segments. Lower it if losses
    /// are found too late after heavy reordering.
    "net.ipv4.tcp_max_reordering", tcp.tcp_max_reordering, Number 1..=300, Tune;
    /// Share of the smaller of congestion window and peer's window that a superframe (a packet of
    /// several segments) should fill before it leaves, as a divisor: 3 is a third. 0: superframes
    /// never wait to be filled. Raise it for smaller and earlier superframes.
    "net.ipv4.tcp_tso_win_divisor", tcp.tcp_tso_win_divisor, Number 0..=255, Tune;
    /// Lower bound of the retransmission timeout, in microseconds. The default of 200 ms is
    /// Linux's; RFC 6298 §2.4 says one second. Lower it in data centers, but not below the peers'
    /// delayed-ACK time.
    "net.ipv4.tcp_rto_min_us", tcp.tcp_rto_min, Micros 1..=INT_MAX, Tune;
    /// Congestion-control algorithm of sockets that choose none. Set `bbr` for long paths with
    /// random loss, `dctcp` only in networks whose switches mark early; `TCP_CONGESTION` sets it
    /// for one socket.
    "net.ipv4.tcp_congestion_control", tcp.tcp_congestion_control, CongestionControl WORDS, Operate;
    /// Event other than a loss that ends CUBIC's first slow start. `train`: the ACKs of one flight
    /// arrive close together for half a round trip. `delay`: the round-trip time grows (RFC 9406).
    /// `both`: the first of the two. `off`: none. Set `delay` if slow start ends too early on paths
    /// that compress ACKs.
    "net.quietline.hystart_detect", tcp.hystart_detect, HystartDetects WORDS, Tune;
    /// Explicit congestion notification (RFC 3168). 0: off, except for `dctcp`. 1: requested and
    /// accepted. 2: accepted if the peer requests it. Set 1 on networks whose queues mark packets.
    "net.ipv4.tcp_ecn", tcp.tcp_ecn, Number 0..=2, Operate;
    /// Retransmits a SYN without the request for ECN (RFC 3168 §6.1.1.1), in case the path drops
    /// such SYNs. Set 0 on networks where none does.
    "net.ipv4.tcp_ecn_fallback", tcp.tcp_ecn_fallback, Switch 0..=1, Tune;
    /// Pacing rate in slow start, in percent of one congestion window per round trip. Lower it if
    /// bursts of new connections overflow queues.
    "net.ipv4.tcp_pacing_ss_ratio", tcp.tcp_pacing_ss_ratio, Number 0..=1000, Tune;
    /// Pacing rate in congestion avoidance, in percent of one congestion window per round trip.
    /// Values below 100 slow the connection down. Lower it towards 100 if queues must stay short.
    "net.ipv4.tcp_pacing_ca_ratio", tcp.tcp_pacing_ca_ratio, Number 0..=1000, Tune;
    /// Smallest superframe of a paced connection, in segments. Raise it to save CPU time at low
    /// rates; 1 gives the smoothest pacing.
    "net.ipv4.tcp_min_tso_segs", tcp.tcp_min_tso_segs, Number 1..=65_535, Tune;
    /// Binary logarithm of the round-trip time, in microseconds, below which superframes grow: the
    /// allowance halves with every 2^N µs of round-trip time. 9 is 512 µs. 0: no allowance. Raise
    /// it for larger superframes on longer paths.
    "net.ipv4.tcp_tso_rtt_log", tcp.tcp_tso_rtt_log, Number 0..=255, Tune;
    /// Bytes of packet memory that one connection may have below TCP, in queueing disciplines and
    /// devices; 0 is no limit. `net.quietline.tsq_limit` selects how the limit follows from this
    /// value and the pacing rate. Lower it to shorten the queues of bulk senders on slow links.
    "net.ipv4.tcp_limit_output_bytes", tcp.tcp_limit_output_bytes, Number 0..=INT_MAX, Tune;
    /// Amount of data that a paced connection may have below TCP, and that it may put into one
    /// packet: the data that its pacing rate sends in 2^-N seconds. The value is N. 10 is about a
    /// millisecond, 7 about 8 ms. Set 7 for wireless devices, which send many packets together
    /// (Linux: `sk_pacing_shift`).
    "net.quietline.pacing_shift", tcp.pacing_shift, Number 5..=12, Tune;
    /// Rule of the limit that TCP Small Queues put on one connection. `off`: no limit.
    /// `static131072_ge`: `tcp_limit_output_bytes` (Linux 3.6). `dyn_max`: that or a millisecond at
    /// the pacing rate, whichever is more (3.13). `dyn_min2`: a millisecond at the pacing rate, at
    /// least two packets and at most `tcp_limit_output_bytes` (4.4). `paced_exempt`: as `dyn_min2`,
    /// without upper bound for paced connections (5.0). `v619`: as `dyn_min2`, and a connection
    /// with one packet in flight may send (6.19). It also sets `tcp_limit_output_bytes` to that
    /// version's default. Change it to compare the queues.
    "net.quietline.tsq_limit", tcp.tsq_limit, TsqLimitWord WORDS, Lab;
    /// Reuse of a packet whose data was consumed. `none`: the consuming thread frees it at once,
    /// and its memory returns to the core that allocated it. `socket_one`: the connection keeps one
    /// packet for its next write and one for softirq to free (Linux 5.2). `list_after_unlock`:
    /// packets are freed after the socket is released (5.17). `per_core_defer`: packets return
    /// whole to that core (5.19). `unified_pool`: packets stay on the core that consumed them.
    /// Change it to compare the costs.
    "net.quietline.skb_recycle", tcp.packet_recycle, PacketRecycles WORDS, Lab;
    /// Lets a connection keep one packet for its next write, with `net.quietline.skb_recycle` at
    /// `socket_one`. Linux 5.2 to 5.15 had this setting, off by default; here it is on. Set 0 to
    /// measure the receive half alone.
    "net.ipv4.tcp_tx_skb_cache", tcp.tcp_tx_packet_cache, Switch 0..=1, Lab;
    /// Lets a connection keep one consumed packet for softirq to free, with
    /// `net.quietline.skb_recycle` at `socket_one`. Linux 5.2 to 5.15 had this setting, off by
    /// default; here it is on. Set 0 to measure the transmit half alone.
    "net.ipv4.tcp_rx_skb_cache", tcp.tcp_rx_packet_cache, Switch 0..=1, Lab;
    /// Applies `tcp_rx_skb_cache` only while packets do not change their core (RPS, RFS): otherwise
    /// the core of the next segment may not be the one that allocated this one. Set 0 to measure
    /// the cache with steering.
    "net.quietline.rx_skb_cache_rps_gate", tcp.rx_packet_cache_rps_gate, Switch 0..=1, Lab;
    /// Holds a small write back while packets of the connection wait below TCP, so that small
    /// writes grow into full segments. Set 0 if each write must leave at once; `TCP_NODELAY` does
    /// not switch it off.
    "net.ipv4.tcp_autocorking", tcp.tcp_autocorking, Switch 0..=1, Operate;
    /// Time for which the smallest round-trip time of a connection stays valid, in seconds. Lower
    /// it on mobile networks, whose paths change.
    "net.ipv4.tcp_min_rtt_wlen", tcp.tcp_min_rtt_wlen, Seconds 0..=86_400, Tune;
    /// Longest delay of an ACK for segments out of order, in nanoseconds: segments that arrive
    /// meanwhile share one ACK. 0: no delay. Set 0 if the sender depends on an ACK for every
    /// segment.
    "net.ipv4.tcp_comp_sack_delay_ns", tcp.tcp_comp_sack_delay, Nanos 0..=INT_MAX, Tune;
    /// Largest number of segments out of order that one delayed ACK answers. 0: each has its own
    /// ACK. Lower it if the sender detects losses too late.
    "net.ipv4.tcp_comp_sack_nr", tcp.tcp_comp_sack_nr, Number 0..=255, Tune;
    /// Number of prompt answers after which a connection counts as interactive; its ACKs then wait
    /// for the next answer. Raise it if peers of request and response traffic wait for ACKs.
    "net.ipv4.tcp_pingpong_thresh", tcp.tcp_pingpong_thresh, Number 1..=255, Tune;
    /// Upper bound of the retransmission timeout, in milliseconds. Lower it on networks where a
    /// silence of two minutes is a failure; `TCP_RTO_MAX_MS` sets it for one socket.
    "net.ipv4.tcp_rto_max_ms", tcp.tcp_rto_max, Millis 1_000..=120_000, Operate;
    /// Loss rate that BBR takes as the sign of a full queue, in thousandths of the data in flight
    /// (LossThresh of draft-ietf-ccwg-bbr, which says 20). An open socket keeps its value. Set 20
    /// on networks where loss means a full queue: BBR then shares evenly with CUBIC.
    "net.quietline.bbr_loss_thresh", tcp.bbr_loss_thresh, Number 1..=999, Tune;
    /// Longest delay of an ACK, in milliseconds (Linux: `TCP_DELACK_MAX`); RFC 9293 §3.8.6.3 allows
    /// 500. Lower it if peers have a short retransmission timeout.
    "net.quietline.tcp_delack_max_ms", tcp.tcp_delack_max, Millis 1..=500, Tune;
    /// Shortest delay of a delayed ACK, in milliseconds (Linux: `TCP_DELACK_MIN`). Lower it if
    /// peers wait for ACKs between small writes.
    "net.quietline.tcp_delack_min_ms", tcp.tcp_delack_min, Millis 1..=500, Tune;
    /// Time without new payload in either direction after which a connection is reset, in seconds.
    /// Keepalive and window probes do not count, so it also ends peers that keep their window
    /// closed. 0: no limit. A connection established at 0 has no limit until its socket sets
    /// `QUIETLINE_IDLE_TIMEOUT`; any other change applies to a connection after its present
    /// deadline. Set it on servers against clients that hold connections without use.
    "net.quietline.tcp_idle_timeout", tcp.tcp_idle_timeout, Seconds 0..=INT_MAX, Operate;
    /// Time for which a neighbor counts as reachable after a confirmation, in milliseconds; each
    /// neighbor gets a random time of half to one and a half of it (RFC 4861 §6.3.2). Lower it to
    /// notice changed link addresses sooner.
    "net.ipv4.neigh.default.base_reachable_time_ms", neigh.base_reachable_time, Millis 1..=INT_MAX, Tune;
    /// Time between two probes of a neighbor, in milliseconds. Lower it on fast links to fail
    /// sooner.
    "net.ipv4.neigh.default.retrans_time_ms", neigh.retrans_time, Millis 1..=INT_MAX, Tune;
    /// Time that upper layers have to confirm a stale neighbor before it is probed, in seconds.
    /// Raise it to send fewer probes.
    "net.ipv4.neigh.default.delay_first_probe_time", neigh.delay_first_probe_time, Seconds 0..=INT_MAX, Tune;
    /// Number of probes to the known link address of a stale neighbor before that address is given
    /// up. Raise it on links that lose many frames.
    "net.ipv4.neigh.default.ucast_solicit", neigh.ucast_solicit, Number 0..=INT_MAX, Tune;
    /// Number of broadcast requests for an unknown neighbor before its resolution fails. Raise it
    /// on links that lose many frames.
    "net.ipv4.neigh.default.mcast_solicit", neigh.mcast_solicit, Number 1..=INT_MAX, Tune;
    /// Largest number of packets that wait for the link address of one neighbor; the oldest is
    /// dropped for a further one. Raise it if bursts to new neighbors lose packets.
    "net.ipv4.neigh.default.unres_qlen", neigh.unres_qlen, Number 1..=INT_MAX, Tune;
    /// Largest memory of the packets that wait for the link address of one neighbor, in bytes; one
    /// packet always fits. Raise it together with `unres_qlen`.
    "net.ipv4.neigh.default.unres_qlen_bytes", neigh.unres_qlen_bytes, Number 0..=INT_MAX, Tune;
    /// Time between two collections of neighbor entries that have not been used for
    /// `gc_stale_time`, in seconds. A collection takes place when an entry is added, because an
    /// idle host has no use for the memory. Lower it, and `gc_stale_time`, on links with many
    /// stations that stay for a short time.
    "net.ipv4.neigh.default.gc_interval", neigh.gc_interval, Seconds 1..=INT_MAX, Tune;
    /// Time without use after which a collection removes a neighbor entry, in seconds. Lower it
    /// together with `gc_interval`.
    "net.ipv4.neigh.default.gc_stale_time", neigh.gc_stale_time, Seconds 0..=INT_MAX, Tune;
    /// Number of neighbor entries below which none is removed because of its age. Raise it on links
    /// with more stations than that, so that their link addresses stay known.
    "net.ipv4.neigh.default.gc_thresh1", neigh.gc_thresh1, Number 0..=INT_MAX, Tune;
    /// Number of neighbor entries above which a new entry causes the removal of unused ones, at
    /// most once in five seconds; those that have just changed stay. Raise it together with
    /// `gc_thresh3`.
    "net.ipv4.neigh.default.gc_thresh2", neigh.gc_thresh2, Number 1..=INT_MAX, Tune;
    /// Number of IPv4 neighbor entries above which unused ones are removed; beyond eight times
    /// that number new neighbors are refused. Raise it on links with more stations than that.
    "net.ipv4.neigh.default.gc_thresh3", neigh.gc_thresh3, Number 1..=INT_MAX, Operate;
    /// Time for which an IPv6 neighbor counts as reachable after a confirmation, in milliseconds;
    /// each neighbor gets a random time of half to one and a half of it (RFC 4861 §6.3.2). Lower it
    /// to notice changed link addresses sooner.
    "net.ipv6.neigh.default.base_reachable_time_ms", neigh_v6.base_reachable_time, Millis 1..=INT_MAX, Tune;
    /// Time between two probes of an IPv6 neighbor, and between two probes for a duplicate of an
    /// address of this host, in milliseconds. Lower it on fast links to fail sooner.
    "net.ipv6.neigh.default.retrans_time_ms", neigh_v6.retrans_time, Millis 1..=INT_MAX, Tune;
    /// Time that upper layers have to confirm a stale IPv6 neighbor before it is probed, in
    /// seconds. Raise it to send fewer probes.
    "net.ipv6.neigh.default.delay_first_probe_time", neigh_v6.delay_first_probe_time, Seconds 0..=INT_MAX, Tune;
    /// Number of probes to the known link address of a stale IPv6 neighbor before that address is
    /// given up. Raise it on links that lose many frames.
    "net.ipv6.neigh.default.ucast_solicit", neigh_v6.ucast_solicit, Number 0..=INT_MAX, Tune;
    /// Number of multicast solicitations for an unknown IPv6 neighbor before its resolution fails.
    /// Raise it on links that lose many frames.
    "net.ipv6.neigh.default.mcast_solicit", neigh_v6.mcast_solicit, Number 1..=INT_MAX, Tune;
    /// Largest number of packets that wait for the link address of one IPv6 neighbor; the oldest is
    /// dropped for a further one. Raise it if bursts to new neighbors lose packets.
    "net.ipv6.neigh.default.unres_qlen", neigh_v6.unres_qlen, Number 1..=INT_MAX, Tune;
    /// Largest memory of the packets that wait for the link address of one IPv6 neighbor, in bytes;
    /// one packet always fits. Raise it together with `unres_qlen`.
    "net.ipv6.neigh.default.unres_qlen_bytes", neigh_v6.unres_qlen_bytes, Number 0..=INT_MAX, Tune;
    /// Time between two collections of IPv6 neighbor entries that have not been used for
    /// `gc_stale_time`, in seconds. Lower it, and `gc_stale_time`, on links with many stations that
    /// stay for a short time.
    "net.ipv6.neigh.default.gc_interval", neigh_v6.gc_interval, Seconds 1..=INT_MAX, Tune;
    /// Time without use after which a collection removes an IPv6 neighbor entry, in seconds. Lower
    /// it together with `gc_interval`.
    "net.ipv6.neigh.default.gc_stale_time", neigh_v6.gc_stale_time, Seconds 0..=INT_MAX, Tune;
    /// Number of IPv6 neighbor entries below which none is removed because of its age. Raise it on
    /// links with more stations than that, so that their link addresses stay known.
    "net.ipv6.neigh.default.gc_thresh1", neigh_v6.gc_thresh1, Number 0..=INT_MAX, Tune;
    /// Number of IPv6 neighbor entries above which a new entry causes the removal of unused ones,
    /// at most once in five seconds; those that have just changed stay. Raise it together with
    /// `gc_thresh3`.
    "net.ipv6.neigh.default.gc_thresh2", neigh_v6.gc_thresh2, Number 1..=INT_MAX, Tune;
    /// Number of IPv6 neighbor entries above which unused ones are removed; beyond eight times that
    /// number new neighbors are refused. Raise it on links with more stations than that.
    "net.ipv6.neigh.default.gc_thresh3", neigh_v6.gc_thresh3, Number 1..=INT_MAX, Operate;
}
