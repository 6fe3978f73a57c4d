//! Segment sizes: what we announce, what we may send, and how much one packet holds.
//!
//! RFC 9293 §3.7.1, RFC 6691, RFC 1191; Linux: tcp_sync_mss, tcp_current_mss, tcp_send_mss.
//!
//! `effective` is Eff.snd.MSS: payload bytes of a full segment, options already subtracted. It is
//! never 0. What a hostile peer or ICMP can make us do per byte is bounded: neither path nor MSS
//! option pushes it below `tcp_min_snd_mss`, options included, and a small window, which that
//! setting does not reach (as in Linux), not below what a packet of 68 bytes holds.
//!
//! Not here: cutting queued data to a new size (`output` does it when it sends).

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

/// A payload of this size is the largest that an IP length field and a GSO size can express with any header.
const MSS_MAX: u32 = 65_535 - 20 - 60;

/// Up to this window a segment may take all of it (Linux `TCP_MSS_DEFAULT`).
const WINDOW_UNSHARED: u32 = DEFAULT_MSS_V4 as u32;

/// The IP packet that every path carries (RFC 791 §3.1): no window makes segments smaller than what fits with our header.
const PACKET_MIN: u32 = 68;

/// Header lengths in the type of the arithmetic here; equal to those of the wire format.
/// Segments of one packet whose sums it keeps.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const SUMMED_MAX: u32 = pkt::SUMS_MAX as u32;

const TCP_HEADER: u32 = 20;
const TCP_OPTIONS: u32 = 40;
const TIMESTAMPS: u8 = 12;
const _: () = assert!(TCP_HEADER as usize == HEADER_BYTES_MIN);
const _: () = assert!(TCP_OPTIONS as usize == OPTIONS_BYTES_MAX);
const _: () = assert!(TIMESTAMPS as usize == TIMESTAMPS_BYTES);

const IPV4_HEADER_BYTES: u8 = 20;
const IPV6_HEADER_BYTES: u8 = 40;

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct PathMss {
    /// Payload bytes of a full segment.
    effective: u32,
    /// Payload bytes of a full packet: a multiple of `effective`.
    size_goal: u32,
    gso_bytes_max: u32,
    /// MAX.WND: largest window the peer ever offered; 0 before the handshake.
    max_window: u32,
    /// Largest IP packet of the path, as the route or ICMP says.
    pmtu: u16,
    /// Largest IP packet that probing lets us send; without it, no bound.
    searched: u16,
    /// The peer's MSS option, bounded by `TCP_MAXSEG`.
    clamp: u16,
    /// MSS that our SYN or SYN-ACK announces.
    advertised: u16,
    min_snd_mss: u16,
    ip_header_bytes: u8,
    /// Bytes of options every segment carries.
    option_bytes: u8,
    /// See [`PathParams::sums_payload`].
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
        // RFC 9293 §3.7.1 (MUST-67): what can be received. A narrow path to the peer says nothing about the way back
        // (RFC 1191 §3.1). Differs from Linux, which announces the path MTU that it has learned.
        let announced = mss.payload_within(length(path.receive_mtu));
        mss.advertised = u16::try_from(announced).unwrap_or(u16::MAX);
        mss.update();
        mss
    }

    /// The handshake is read: the peer's MSS option, and whether every segment carries timestamps.
    pub(crate) fn on_handshake(&mut self, peer: Option<u16>, timestamps: bool) {
        let default =
            if self.ip_header_bytes == IPV4_HEADER_BYTES { DEFAULT_MSS_V4 } else { DEFAULT_MSS_V6 };
        self.clamp = self.clamp.min(peer.unwrap_or(default));
        self.option_bytes = if timestamps { TIMESTAMPS } else { 0 };
        self.update();
    }

    /// The path takes packets of `mtu` bytes, as the network layer knows it by now.
    pub(crate) fn set_pmtu(&mut self, mtu: u32) {
        self.pmtu = length(mtu);
        self.update();
    }

    /// Probing lets us send IP packets of `mtu` bytes.
    pub(crate) fn set_searched(&mut self, mtu: u32) {
        self.searched = length(mtu);
        self.update();
    }

    /// Largest IP packet that is worth a probe: what path, peer and `TCP_MAXSEG` allow.
    pub(crate) fn searchable_mtu(&self) -> u32 {
        u32::from(self.pmtu).min(u32::from(self.clamp) + self.headers())
    }

    /// Bytes of the IP packet that carries `payload` bytes in a segment of this connection.
    pub(crate) fn mtu_of(&self, payload: u32) -> u32 {
        payload + self.headers() + u32::from(self.option_bytes)
    }

    /// Payload bytes of an IP packet of `mtu` bytes: the inverse of `mtu_of`, at least 1.
    pub(crate) fn payload_of(&self, mtu: u32) -> u32 {
        mtu.saturating_sub(self.headers() + u32::from(self.option_bytes)).max(1)
    }

    fn headers(&self) -> u32 {
        u32::from(self.ip_header_bytes) + TCP_HEADER
    }

    /// `TCP_MAXSEG` on a connection: segments become no larger than this.
    pub(crate) fn clamp_to(&mut self, maxseg: u16) {
        self.clamp = self.clamp.min(maxseg);
        self.update();
    }

    /// The peer offers a window of `bytes`. Answers whether a full segment has another size from here on.
    pub(crate) fn on_window(&mut self, bytes: u32) -> bool {
        if bytes <= self.max_window {
            return false;
        }
        let before = self.effective;
        self.max_window = bytes;
        self.update();
        self.effective != before
    }

    /// MAX.WND.
    pub(crate) fn max_window(&self) -> u32 {
        self.max_window
    }

    /// What is full for a peer with small buffers: half its window, so that two segments can be on their way, and all of it
    /// when that is smaller than anybody's segments (Linux: tcp_bound_to_half_wnd).
    fn window_share(&self) -> u32 {
        let share = match self.max_window {
            0 => u32::MAX,
            window @ ..=WINDOW_UNSHARED => window,
            window => window / 2,
        };
        share.max(PACKET_MIN.saturating_sub(TCP_HEADER + u32::from(self.option_bytes)))
    }

    /// The route changed its device.
    pub(crate) fn set_device(&mut self, gso_bytes_max: u32, sums_payload: bool) {
        self.gso_bytes_max = gso_bytes_max;
        self.sums_payload = sums_payload;
        self.update();
    }

    /// Bytes of the pieces in which payload is summed while it is copied: segments. 0 where the device completes checksums.
    pub(crate) fn summed_piece(&self) -> u16 {
        if self.sums_payload { u16::try_from(self.effective).unwrap_or(0) } else { 0 }
    }

    /// Payload of a full segment without options.
    fn without_options(&self) -> u32 {
        self.payload_within(self.pmtu.min(self.searched))
    }

    /// Payload of a segment without options in an IP packet of `mtu` bytes, within the limits of peer and settings.
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
            // A packet keeps the sums of so many segments, and of a longer one all are summed anew: no reason to make less than 64 KB
            // of tiny ones, but one not to make more.
            segments = segments.min(SUMMED_MAX.max(MSS_MAX / self.effective));
        }
        let segments = segments.clamp(1, u32::from(u16::MAX));
        self.size_goal = segments * self.effective;
    }

    /// Bytes of a superframe, headers included, as its device says.
    pub(crate) fn superframe_max(&self) -> u32 {
        self.gso_bytes_max
    }

    /// Payload bytes of a full segment (Eff.snd.MSS).
    pub(crate) fn effective(&self) -> u32 {
        self.effective
    }

    /// Payload bytes to gather in one packet, at most half the largest window the peer ever offered, so that one
    /// packet can be on its way while the other is acknowledged.
    pub(crate) fn size_goal(&self) -> u32 {
        if self.size_goal <= self.max_window / 2 {
            return self.size_goal;
        }
        (self.max_window / 2 / self.effective).max(1) * self.effective
    }

    /// Payload bytes one transmission may carry: a packet that was filled for a larger size is cut.
    pub(crate) fn transmit_max(&self) -> u32 {
        self.size_goal
    }

    /// What our SYN announces.
    pub(crate) fn advertised(&self) -> u16 {
        self.advertised
    }

    /// What is left of it for payload in segments that carry the options agreed on (Linux `tp->advmss`).
    pub(crate) fn advertised_payload(&self) -> u16 {
        self.advertised.saturating_sub(self.option_bytes.into())
    }

    /// Largest IP packet of the path.
    pub(crate) fn pmtu(&self) -> u32 {
        u32::from(self.pmtu)
    }
}

/// An IP packet has 65,535 bytes at most, whatever the device takes (Linux: IP_MAX_MTU).
fn length(bytes: u32) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
