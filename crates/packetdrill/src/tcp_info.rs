//! `struct tcp_info` of Linux, from the engine's snapshot: what packetdrill's `%{ }%` blocks read.
//!
//! Linux counts segments where the engine counts bytes; what the snapshot does not tell is zero.

use std::time::Duration;

use tcp::{State, TcpInfo};

/// Bytes of the structure as packetdrill knows it, a little longer than any kernel's.
const BYTES: usize = 280;
/// `TCP_CA_Open`, `TCP_CA_Recovery`.
const CA_STATES: (u8, u8) = (0, 3);
/// `TCP_INFINITE_SSTHRESH`.
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;
/// Offsets of fields behind the first thirty-two.
const MIN_RTT: usize = 148;
const DELIVERED: usize = 192;

/// The structure in the machine's byte order.
pub(crate) fn encode(info: &TcpInfo) -> Vec<u8> {
    let mut out = vec![0; BYTES];
    let (timestamps, sack) = (u8::from(info.timestamps), u8::from(info.sack));
    let scaling = u8::from(info.window_scales != (0, 0));
    let (ecn, ecn_seen) = (u8::from(info.ecn), u8::from(info.ecn_seen));
    out[..8].copy_from_slice(&[
        state(info.state),
        if info.in_recovery { CA_STATES.1 } else { CA_STATES.0 },
        info.retransmits,
        info.probes,
        info.backoff,
        timestamps | sack << 1 | scaling << 2 | ecn << 3 | ecn_seen << 4,
        info.window_scales.0 | info.window_scales.1 << 4,
        u8::from(info.delivery_rate_app_limited),
    ]);
    for (index, word) in words(info).into_iter().enumerate() {
        put(&mut out, 8 + 4 * index, word);
    }
    put(&mut out, MIN_RTT, info.min_rtt.map_or(u32::MAX, micros));
    let delivered = info.bytes_delivered / u64::from(info.snd_mss.max(1));
    put(&mut out, DELIVERED, u32::try_from(delivered).unwrap_or(u32::MAX));
    out
}

/// The 32-bit fields from `tcpi_rto` to `tcpi_total_retrans`.
fn words(info: &TcpInfo) -> [u32; 24] {
    let mss = info.snd_mss.max(1);
    let ssthresh =
        if info.ssthresh > SSTHRESH_INFINITE { SSTHRESH_INFINITE } else { info.ssthresh / mss };
    let mut words = [0; 24];
    words[0] = micros(info.rto);
    words[1] = micros(info.ato);
    words[2] = info.snd_mss;
    words[3] = info.rcv_mss;
    words[4] = info.in_flight.div_ceil(mss);
    words[6] = info.lost.div_ceil(mss);
    words[13] = info.pmtu;
    words[14] = info.rcv_wnd;
    words[15] = info.rtt.map_or(0, micros);
    words[16] = micros(info.rttvar);
    words[17] = ssthresh;
    words[18] = info.cwnd / mss;
    words[19] = u32::from(info.advmss);
    words[21] = micros(info.rcv_rtt);
    words[22] = info.rcv_space;
    words[23] = info.total_retrans;
    words
}

/// Linux's number of a state.
const fn state(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynRecv => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Close => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Listen => 10,
        State::Closing => 11,
    }
}

fn put(out: &mut [u8], at: usize, word: u32) {
    out[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
