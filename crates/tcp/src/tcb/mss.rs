//! Segment sizes: the MSS that we announce, the size that we may send, and the payload of one
//! packet.
//!
//! RFC 9293 §3.7.1, RFC 6691, RFC 1191; Linux: tcp_sync_mss, tcp_current_mss, tcp_send_mss.
//!
//! `effective` is Eff.snd.MSS: payload bytes of a full segment, options already subtracted. It is
//! never 0. The work per byte that a hostile peer or ICMP error can cause is bounded: neither the
//! path MTU nor the peer's MSS option reduces the size below `tcp_min_snd_mss`, which includes
//! options. A small window may reduce the size further, because, as in Linux, that setting does not
//! apply to windows. The lower bound is then a TCP segment of 68 bytes, header and options
//! included.
//!
//! Not here: splitting queued data to a new size (`output` does that when it sends).

use crate::{
    cx::config::{PathParams, SocketOptions, TcpConfig},
    wire::{
        four_tuple::FourTuple,
        header::HEADER_BYTES_MIN,
        option::{OPTIONS_BYTES_MAX, TIMESTAMPS_BYTES},
    },
};

/// MSS of a peer that announces none (RFC 9293 §3.7.1).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;

/// Largest payload that an IP length field and a GSO size can express with any header.
const MSS_MAX: u32 = 65_535 - 20 - 60;

/// Largest window that one segment may fill (Linux `TCP_MSS_DEFAULT`). A segment may fill half of a
/// larger window.
const WINDOW_UNSHARED: u32 = DEFAULT_MSS_V4 as u32;

/// Smallest TCP segment, header and options included, to which a small window reduces the size. As
/// in Linux (tcp_bound_to_half_wnd) this is the size of an IP packet that every path carries
/// (RFC 791 §3.1), although the IP header is not included.
const PACKET_MIN: u32 = 68;

/// Number of segments of one packet whose checksums the packet keeps.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const SUMMED_MAX: u32 = pkt::SUMS_MAX as u32;

/// Header lengths of the wire format, in the integer types that this file computes with.
const TCP_HEADER: u32 = 20;
const TCP_OPTIONS: u32 = 40;
const TIMESTAMPS: u8 = 12;
const _: () = assert!(TCP_HEADER as usize == HEADER_BYTES_MIN);
const _: () = assert!(TCP_OPTIONS as usize == OPTIONS_BYTES_MAX);
const _: () = assert!(TIMESTAMPS as usize == TIMESTAMPS_BYTES);

const IPV4_HEADER_BYTES: u8 = 20;
const IPV6_HEADER_BYTES: u8 = 40;

/// Segment sizes of a connection and the values from which they are computed.
#[derive(Clone, Debug)]
pub(crate) struct PathMss {
    /// Payload bytes of a full segment.
    effective: u32,
    /// Payload bytes of a full packet: a multiple of `effective`.
    size_goal: u32,
    gso_bytes_max: u32,
    /// MAX.WND: largest window that the peer has ever offered; 0 before the handshake.
    max_window: u32,
    /// Largest IP packet of the path, as known from the route or from ICMP.
    pmtu: u16,
    /// Largest IP packet that path MTU probing permits; no bound without probing.
    searched: u16,
    /// The peer's MSS option, bounded by `TCP_MAXSEG`.
    clamp: u16,
    /// MSS that our SYN or SYN-ACK announces.
    advertised: u16,
    min_snd_mss: u16,
    ip_header_bytes: u8,
    /// Bytes of options that every segment carries.
    option_bytes: u8,
    /// Whether payload is summed while it is copied ([`PathParams::sums_payload`]).
    sums_payload: bool,
}

impl PathMss {
    pub(crate) fn new(
        config: &TcpConfig,
        tuple: FourTuple,
        path: &PathParams,
        options: &SocketOptions,
    ) -> Self {
        let ip_header_bytes = if tuple.is_ipv4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        let mut mss = Self {
            effective: 1,
            size_goal: 1,
            gso_bytes_max: path.gso_bytes_max,
            max_window: 0,
            pmtu: length(path.mtu),
            searched: u16::MAX,
            clamp: options.maxseg.unwrap_or(u16::MAX),
            advertised: 0,
            min_snd_mss: config.tcp_min_snd_mss,
            ip_header_bytes,
            option_bytes: 0,
            sums_payload: path.sums_payload,
        };
        // RFC 9293 §3.7.1 (MUST-67): the size that we can receive. A small MTU of the path to the
        // peer says nothing about the path back (RFC 1191 §3.1). Differs from Linux, which
        // announces the path MTU that it has learned.
        let announced = mss.payload_within(length(path.receive_mtu));
        mss.advertised = u16::try_from(announced).unwrap_or(u16::MAX);
        if path.metrics.advmss != 0 {
            mss.advertised = mss.advertised.min(path.metrics.advmss);
        }
        mss.update();
        mss
    }

    /// Processes the options of the handshake: the peer's MSS, and whether every segment carries
    /// timestamps.
    pub(crate) fn on_handshake(&mut self, peer: Option<u16>, timestamps: bool) {
        let default =
            if self.ip_header_bytes == IPV4_HEADER_BYTES { DEFAULT_MSS_V4 } else { DEFAULT_MSS_V6 };
        self.clamp = self.clamp.min(peer.unwrap_or(default));
        self.option_bytes = if timestamps { TIMESTAMPS } else { 0 };
        self.update();
    }

    /// Sets the MTU of the path, as the network layer knows it.
    pub(crate) fn set_pmtu(&mut self, mtu: u32) {
        self.pmtu = length(mtu);
        self.update();
    }

    /// Sets the largest IP packet that path MTU probing permits.
    pub(crate) fn set_searched(&mut self, mtu: u32) {
        self.searched = length(mtu);
        self.update();
    }

    /// Returns the largest IP packet that is worth a probe, within the limits of path, peer and
    /// `TCP_MAXSEG`.
    pub(crate) fn searchable_mtu(&self) -> u32 {
        u32::from(self.pmtu).min(u32::from(self.clamp) + self.headers())
    }

    /// Returns the size of the IP packet that carries `payload` bytes in a segment of this
    /// connection.
    pub(crate) fn mtu_of(&self, payload: u32) -> u32 {
        payload + self.headers() + u32::from(self.option_bytes)
    }

    /// Returns the payload bytes of an IP packet of `mtu` bytes: the inverse of `mtu_of`, at least
    /// 1.
    pub(crate) fn payload_of(&self, mtu: u32) -> u32 {
        mtu.saturating_sub(self.headers() + u32::from(self.option_bytes)).max(1)
    }

    fn headers(&self) -> u32 {
        u32::from(self.ip_header_bytes) + TCP_HEADER
    }

    /// Applies `TCP_MAXSEG` to an open connection: segments become no larger than this.
    pub(crate) fn clamp_to(&mut self, maxseg: u16) {
        self.clamp = self.clamp.min(maxseg);
        self.update();
    }

    /// Records the window of `bytes` that the peer offers. Returns whether the size of a full
    /// segment has changed.
    pub(crate) fn on_window(&mut self, bytes: u32) -> bool {
        if bytes <= self.max_window {
            return false;
        }
        let before = self.effective;
        self.max_window = bytes;
        self.update();
        self.effective != before
    }

    /// Returns MAX.WND.
    pub(crate) fn max_window(&self) -> u32 {
        self.max_window
    }

    /// Returns the largest segment for a peer with small buffers: half its window, so that two
    /// segments can be in flight, or all of a window up to the default MSS (Linux:
    /// tcp_bound_to_half_wnd).
    fn window_share(&self) -> u32 {
        let share = match self.max_window {
            0 => u32::MAX,
            window @ ..=WINDOW_UNSHARED => window,
            window => window / 2,
        };
        share.max(PACKET_MIN.saturating_sub(TCP_HEADER + u32::from(self.option_bytes)))
    }

    /// Updates the properties of the device after a route change.
    pub(crate) fn set_device(&mut self, gso_bytes_max: u32, sums_payload: bool) {
        self.gso_bytes_max = gso_bytes_max;
        self.sums_payload = sums_payload;
        self.update();
    }

    /// Returns the bytes of the pieces, one segment each, in which payload is summed while it is
    /// copied; 0 if the device completes checksums.
    pub(crate) fn summed_piece(&self) -> u16 {
        if self.sums_payload { u16::try_from(self.effective).unwrap_or(0) } else { 0 }
    }

    /// Returns the payload of a full segment without options.
    fn without_options(&self) -> u32 {
        self.payload_within(self.pmtu.min(self.searched))
    }

    /// Returns the payload of a segment without options in an IP packet of `mtu` bytes, within the
    /// limits of peer and settings.
    fn payload_within(&self, mtu: u16) -> u32 {
        let from_path = u32::from(mtu).saturating_sub(self.headers()).min(MSS_MAX);
        from_path.min(u32::from(self.clamp)).max(u32::from(self.min_snd_mss))
    }

    fn update(&mut self) {
        let path = self.without_options().saturating_sub(u32::from(self.option_bytes));
        self.effective = path.min(self.window_share()).max(1);
        let room = self.gso_bytes_max.saturating_sub(self.headers() + TCP_OPTIONS);
        let mut segments = room / self.effective;
        if self.sums_payload {
            // A packet keeps the checksums of at most `SUMMED_MAX` segments. If it has more, all
            // segments are summed again. Therefore such packets are avoided, but 64 KB of very
            // small segments are still allowed.
            segments = segments.min(SUMMED_MAX.max(MSS_MAX / self.effective));
        }
        let segments = segments.clamp(1, u32::from(u16::MAX));
        self.size_goal = segments * self.effective;
    }

    /// Returns the size of the largest superframe (a packet of several segments, for GSO) that the
    /// device accepts, headers included.
    pub(crate) fn superframe_max(&self) -> u32 {
        self.gso_bytes_max
    }

    /// Returns the payload bytes of a full segment (Eff.snd.MSS).
    pub(crate) fn effective(&self) -> u32 {
        self.effective
    }

    /// Returns the payload bytes to collect in one packet: at most half the largest window that the
    /// peer has ever offered, so that one packet can be in flight while another one is
    /// acknowledged, but at least one segment.
    pub(crate) fn size_goal(&self) -> u32 {
        if self.size_goal <= self.max_window / 2 {
            return self.size_goal;
        }
        (self.max_window / 2 / self.effective).max(1) * self.effective
    }

    /// Returns the payload bytes that one transmission may carry. A queued packet that is larger is
    /// split.
    pub(crate) fn transmit_max(&self) -> u32 {
        self.size_goal
    }

    /// Returns the MSS that our SYN announces.
    pub(crate) fn advertised(&self) -> u16 {
        self.advertised
    }

    /// Returns the announced MSS less the options that every segment carries (Linux `tp->advmss`).
    pub(crate) fn advertised_payload(&self) -> u16 {
        self.advertised.saturating_sub(self.option_bytes.into())
    }

    /// Returns the largest IP packet of the path.
    pub(crate) fn pmtu(&self) -> u32 {
        u32::from(self.pmtu)
    }
}

/// Converts a packet size, bounded by the 65,535 bytes of an IP packet (Linux: IP_MAX_MTU).
fn length(bytes: u32) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
