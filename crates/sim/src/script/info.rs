//! `TCP_INFO` by the names of its fields, in Linux's units: segments, microseconds, bytes.
//!
//! Not here: the snapshot itself (`tcp::socket::info`).

use tcp::{State, TcpInfo};

/// Returns a field of `struct tcp_info`; `None` for an unknown name.
pub(super) fn value(info: &TcpInfo, name: &str) -> Option<i64> {
    let micros = |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let segments = |bytes: u32| i64::from(bytes.div_ceil(info.snd_mss.max(1)));
    let large = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Some(match name {
        "tcpi_state" => info.state as i64,
        "tcpi_options" => {
            let scaled = info.window_scales != (0, 0);
            i64::from(info.timestamps) | i64::from(info.sack) << 1 | i64::from(scaled) << 2
        }
        "tcpi_snd_wscale" => info.window_scales.0.into(),
        "tcpi_rcv_wscale" => info.window_scales.1.into(),
        "tcpi_rto" => micros(info.rto),
        "tcpi_ato" => micros(info.ato),
        "tcpi_snd_mss" => info.snd_mss.into(),
        "tcpi_rcv_mss" => info.rcv_mss.into(),
        "tcpi_unacked" => segments(info.in_flight + info.lost),
        "tcpi_lost" => segments(info.lost),
        "tcpi_rtt" => micros(info.rtt.unwrap_or_default()),
        "tcpi_rttvar" => micros(info.rttvar),
        "tcpi_min_rtt" => micros(info.min_rtt.unwrap_or_default()),
        "tcpi_snd_cwnd" => i64::from(info.cwnd / info.snd_mss.max(1)),
        "cwnd_bytes" => info.cwnd.into(),
        "tcpi_snd_ssthresh" if info.ssthresh == u32::MAX => i64::from(i32::MAX),
        "tcpi_snd_ssthresh" => i64::from(info.ssthresh / info.snd_mss.max(1)),
        "ssthresh_bytes" => info.ssthresh.into(),
        "tcpi_snd_wnd" => info.snd_wnd.into(),
        "tcpi_rcv_wnd" => info.rcv_wnd.into(),
        "tcpi_rcv_rtt" => micros(info.rcv_rtt),
        "tcpi_rcv_space" => info.rcv_space.into(),
        "tcpi_rcv_ssthresh" => info.rcv_ssthresh.into(),
        "tcpi_pmtu" => info.pmtu.into(),
        "tcpi_advmss" => info.advmss.into(),
        "tcpi_retransmits" => info.retransmits.into(),
        "tcpi_probes" => info.probes.into(),
        "tcpi_backoff" => info.backoff.into(),
        "tcpi_reordering" => info.reordering.into(),
        "tcpi_reord_seen" => info.reord_seen.into(),
        "tcpi_sacked" => segments(info.sacked),
        "tcpi_retrans" => segments(info.retrans),
        "tcpi_fastopen_client_fail" => info.handshake.fast_open_failure as i64,
        "tcpi_total_retrans" => info.total_retrans.into(),
        "tcpi_bytes_acked" => large(info.bytes_acked),
        "tcpi_bytes_received" => large(info.bytes_received),
        "tcpi_bytes_sent" => large(info.bytes_sent),
        "tcpi_bytes_retrans" => large(info.bytes_retrans),
        "tcpi_segs_out" => info.segs_out.into(),
        "tcpi_segs_in" => info.segs_in.into(),
        "tcpi_notsent_bytes" => info.notsent_bytes.into(),
        _ => return None,
    })
}

/// Returns the number of `TCP_ESTABLISHED` and the other states, as in Linux.
pub(super) fn constant(name: &str) -> Option<i64> {
    let name = name.strip_prefix("TCP_")?;
    State::ALL.into_iter().find(|state| state.name() == name).map(|state| state as i64)
}
