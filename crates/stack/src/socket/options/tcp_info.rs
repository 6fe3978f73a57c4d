//! `TCP_INFO` in the kernel's layout.
//!
//! Linux: struct tcp_info in include/uapi/linux/tcp.h, tcp_get_info. A program reads as many bytes
//! as its version of the structure has; new fields are added only at the end.
//!
//! Times are in microseconds, but those of `tcpi_last_*` and `tcpi_total_rto_time` in milliseconds.
//! The congestion window, its threshold and the segments in flight (SACKed, lost, retransmitted)
//! are in segments, the announced windows in bytes. An unlimited pacing rate is all ones. Three
//! fields are always 0: `tcpi_last_ack_sent`, as in Linux, which does not record it;
//! `tcpi_fackets`, as in Linux since RACK; and `tcpi_rehash`, because flows are not rehashed to
//! other paths.

use core::time::Duration;

use tcp::{State, TcpInfo};

/// Size of the structure with the fields of Linux 6.7, in bytes.
pub(super) const TCP_INFO_BYTES: usize = 248;

/// `TCPI_OPT_*`.
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
const OPT_ECN: u8 = 8;
const OPT_ECN_SEEN: u8 = 16;
const OPT_SYN_DATA: u8 = 32;

/// Buffer of the structure, written field by field.
struct Layout([u8; TCP_INFO_BYTES]);

impl Layout {
    fn put<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        self.0[offset..offset + N].copy_from_slice(&bytes);
    }

    fn byte(&mut self, offset: usize, value: u8) {
        self.put(offset, [value]);
    }

    fn half(&mut self, offset: usize, value: u16) {
        self.put(offset, value.to_ne_bytes());
    }

    fn word(&mut self, offset: usize, value: u32) {
        self.put(offset, value.to_ne_bytes());
    }

    fn long(&mut self, offset: usize, value: u64) {
        self.put(offset, value.to_ne_bytes());
    }

    fn micros(&mut self, offset: usize, time: Duration) {
        self.word(offset, u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    }

    fn millis(&mut self, offset: usize, time: Duration) {
        self.word(offset, u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    }

    fn long_micros(&mut self, offset: usize, time: Duration) {
        self.long(offset, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

/// Encodes the structure for a socket without a connection: only its state.
pub(super) fn without_connection(state: State) -> Vec<u8> {
    let mut layout = Layout([0; TCP_INFO_BYTES]);
    layout.byte(0, state as u8);
    layout.0.to_vec()
}

/// Encodes the structure for a connection.
pub(super) fn encode(info: &TcpInfo) -> Vec<u8> {
    let mut layout = Layout([0; TCP_INFO_BYTES]);
    put_state(&mut layout, info);
    put_times(&mut layout, info);
    put_windows(&mut layout, info);
    put_totals(&mut layout, info);
    layout.0.to_vec()
}

fn put_state(layout: &mut Layout, info: &TcpInfo) {
    let options = [
        (info.timestamps, OPT_TIMESTAMPS),
        (info.sack, OPT_SACK),
        (info.window_scaling, OPT_WSCALE),
        (info.ecn, OPT_ECN),
        (info.ecn_seen, OPT_ECN_SEEN),
        (info.handshake.syn_data, OPT_SYN_DATA),
    ];
    layout.byte(0, info.state as u8);
    layout.byte(1, info.ca_state);
    layout.byte(2, info.retransmits);
    layout.byte(3, info.probes);
    layout.byte(4, info.backoff);
    layout.byte(5, options.iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum());
    // Bit fields start at the low end of a byte on little-endian machines and at the high end on
    // others.
    let (snd_wscale, rcv_wscale) = info.window_scales;
    let limited = u8::from(info.delivery_rate_app_limited);
    // `tcpi_fastopen_client_fail` is the two-bit field after `tcpi_delivery_rate_app_limited`.
    let failure = info.handshake.fast_open_failure as u8;
    if cfg!(target_endian = "little") {
        layout.byte(6, (snd_wscale & 15) | (rcv_wscale << 4));
        layout.byte(7, limited | failure << 1);
    } else {
        layout.byte(6, (snd_wscale << 4) | (rcv_wscale & 15));
        layout.byte(7, limited << 7 | failure << 5);
    }
}

fn put_times(layout: &mut Layout, info: &TcpInfo) {
    layout.micros(8, info.rto);
    layout.micros(12, info.ato);
    layout.millis(44, info.last_data_sent);
    layout.millis(52, info.last_data_received.unwrap_or(info.last_ack_received));
    layout.millis(56, info.last_ack_received);
    layout.micros(68, info.rtt.unwrap_or_default());
    layout.micros(72, info.rttvar);
    layout.micros(92, info.rcv_rtt);
    match info.min_rtt {
        Some(rtt) => layout.micros(148, rtt),
        None => layout.word(148, u32::MAX),
    }
    layout.long_micros(168, info.sender_time.busy);
    layout.long_micros(176, info.sender_time.rwnd_limited);
    layout.long_micros(184, info.sender_time.sndbuf_limited);
    layout.half(240, info.total_rto);
    layout.half(242, info.total_rto_recoveries);
    layout.millis(244, info.total_rto_time);
}

fn put_windows(layout: &mut Layout, info: &TcpInfo) {
    let segments = |bytes: u32| bytes.div_ceil(info.snd_mss.max(1));
    layout.word(16, info.snd_mss);
    layout.word(20, info.rcv_mss);
    layout.word(24, segments(info.unacked));
    layout.word(28, segments(info.sacked));
    layout.word(32, segments(info.lost));
    layout.word(36, segments(info.retrans));
    layout.word(60, info.pmtu);
    layout.word(64, info.rcv_ssthresh);
    // Linux's "infinite" threshold of a connection without any loss.
    layout.word(
        76,
        if info.ssthresh > i32::MAX as u32 { i32::MAX as u32 } else { segments(info.ssthresh) },
    );
    layout.word(80, segments(info.cwnd));
    layout.word(84, u32::from(info.advmss));
    layout.word(88, u32::from(info.reordering));
    layout.word(96, info.rcv_space);
    layout.long(104, info.pacing_rate.unwrap_or(u64::MAX));
    layout.long(112, info.max_pacing_rate.unwrap_or(u64::MAX));
    layout.word(144, info.notsent_bytes);
    layout.long(160, info.delivery_rate.unwrap_or(0));
    layout.word(228, info.snd_wnd);
    layout.word(232, info.rcv_wnd);
}

fn put_totals(layout: &mut Layout, info: &TcpInfo) {
    let segments = |bytes: u64| {
        u32::try_from(bytes.div_ceil(u64::from(info.snd_mss.max(1)))).unwrap_or(u32::MAX)
    };
    layout.word(100, info.total_retrans);
    layout.long(120, info.bytes_acked);
    layout.long(128, info.bytes_received);
    layout.word(136, info.segs_out);
    layout.word(140, info.segs_in);
    layout.word(152, info.data_segs_in);
    layout.word(156, info.data_segs_out);
    // Linux counts the SYN as well.
    layout.word(192, segments(info.bytes_delivered) + u32::from(info.handshake.syn_acked));
    layout.word(196, segments(info.bytes_delivered_ce));
    // Linux includes retransmitted bytes in the bytes sent.
    layout.long(200, info.bytes_sent + info.bytes_retrans);
    layout.long(208, info.bytes_retrans);
    layout.word(216, info.dsack_dups);
    layout.word(220, info.reord_seen);
    layout.word(224, info.rcv_ooopack);
}
